"""What a history of the real drivers may be hit by, and what its programs do: drawn once, then
fixed. Classes of faults are on or off for a whole history: mild ones everywhere would average out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from dlog.testing.sim.loop_cluster import Climate, Trouble
from dlog.testing.sim.metadata import MetaManners
from dlog.testing.sim.network import Roads
from dlog.testing.sim.server import Manners
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.tcp import Streams

FAULT_ON = 0.3


@dataclass(slots=True)
class DriverWeather:
    climate: Climate = field(default_factory=Climate)
    bookies: int = 4
    copies: int = 3
    acks: int = 2
    # programs
    writers: int = 1
    incarnations: int = 1
    appends: int = 8
    readers: int = 1
    standbys: int = 0
    stranger: bool = False  # one who has another password looks for ledgers
    shared: float = 0.0  # programs that share the client of another one
    window_bytes: int = 1 << 20
    window_entries: int = 2_000
    segment_bytes: int = 1 << 20
    on_full: str = "wait"
    visible: str = "on_ack"
    linger_ms: int = 0
    # what they do, per call
    cancelled: float = 0.0
    hurried: float = 0.0  # with a time-out
    many: float = 0.0
    rotated: float = 0.0
    flushed: float = 0.0
    numbered: float = 0.0  # a message has the number of its producer
    asked: float = 0.0  # what became of a message
    pause_ms: float = 5.0
    # how they end
    under_load: float = 0.0  # its client is closed while it works
    handed_over: float = 0.0
    dies: float = 0.0
    frozen: float = 0.0  # per incarnation
    span_ms: float = 3_000.0  # the faults end then

    def fix(self, **options: Any) -> None:
        """Options instead of what was drawn: by their names, those of the climate's parts as
        `meta_…`, `bookie_…`, `road_…`, `stream_…`, `trouble_…`."""
        fix_weather(self, self.climate, options)


def fix_weather(weather: Any, climate: Climate, options: dict[str, Any]) -> None:
    parts: dict[str, Any] = {
        "meta": climate.meta,
        "bookie": climate.bookies,
        "road": climate.roads,
        "stream": climate.streams,
        "trouble": climate.trouble,
    }
    for name, value in options.items():
        prefix, _, rest = name.partition("_")
        owner: Any = weather if hasattr(weather, name) else climate
        if not hasattr(owner, name):
            owner, name = parts[prefix], rest
        if not hasattr(owner, name):
            raise TypeError(f"no weather has {name}")
        setattr(owner, name, value)


def draw_driver_weather(chance: Chance) -> DriverWeather:
    copies, acks = chance.pick(((3, 2), (3, 2), (2, 2), (3, 3), (4, 3), (1, 1)), "copies and acks")
    weather = DriverWeather(
        climate=draw_climate(chance),
        copies=copies,
        acks=acks,
        bookies=copies + chance.pick((1, 2, 0), "spare bookies"),
    )
    _draw_programs(chance, weather)
    return weather


def draw_climate(chance: Chance) -> Climate:
    def rate(what: str, high: float = 0.1, on: float = FAULT_ON) -> float:
        return chance.rate(0.003, high, on=on, what=what)

    def on(what: str, share: float = FAULT_ON) -> bool:
        return chance.hits(share, what)

    def pause(what: str, share: float = 0.2) -> float:
        return chance.pick((2_000.0, 400.0), what) if on(what, share) else math.inf

    return Climate(
        bookies=Manners(
            journal_ms=chance.pick((2.0, 2.0, 20.0), "a journal's mean"),
            busy=rate("bookies are busy"),
            io_failed=rate("disks fail", 0.03),
            never=rate("acks are never sent", 0.03),
            twice=rate("acks come twice"),
            late=rate("answers are late"),
            disordered=rate("acks change places"),
            broken=rate("entries come back damaged", 0.03),
            short=rate("batches end early"),
            watch_lost=rate("long polls are forgotten"),
        ),
        roads=Roads(
            far=chance.pick((0.0, 0.0, 0.4), "far pairs"),
            far_factor=chance.pick((10.0, 100.0), "how far"),
            refused=rate("connections are refused"),
            breaks=rate("connections break", 0.02),
        ),
        streams=Streams(
            cut=chance.pick((0.0, 0.1, 0.5), "bytes are cut"),
            kernel_bytes=chance.pick((1 << 18, 1 << 12, 400), "kernel buffers"),
        ),
        meta=MetaManners(
            refused=rate("metadata refuses"),
            request_lost=rate("metadata requests are lost"),
            reply_lost=rate("metadata replies are lost"),
            late=rate("metadata writes arrive late"),
            outages=on("metadata outages"),
            pauses=on("leader pauses"),
            stale=rate("stale reads", 0.5),
            torn=rate("torn listings", 0.5),
            touched=rate("strangers store nodes again"),
            session_ends=rate("sessions end", 0.02),
            watch_lost=rate("watches are lost", 0.5),
            watch_late=rate("watches are late", 0.5),
            watch_twice=rate("watches are doubled", 0.5),
        ),
        trouble=Trouble(
            kill_ms=pause("bookies are killed"),
            stop_ms=pause("bookies are stopped"),
            read_only_ms=pause("bookies turn read-only"),
            cut_ms=pause("roads are cut"),
            reset_ms=pause("connections are reset"),
            lasts_ms=chance.pick((300.0, 2_000.0, 8_000.0), "how long"),
            down_max=chance.pick((1, 2), "bookies down"),
        ),
        busy=rate("loops are busy"),
        shuffled=chance.pick((0.0, 0.5), "arrivals change places"),
        meta_ms=chance.pick((0.5, 0.5, 10.0), "the way to the metadata"),
    )


def _draw_programs(chance: Chance, weather: DriverWeather) -> None:
    def rate(what: str, high: float) -> float:
        return chance.rate(0.01, high, on=FAULT_ON, what=what)

    weather.writers = chance.pick((1, 1, 2, 2, 3), "writers")
    weather.incarnations = chance.pick((1, 1, 2), "incarnations")
    weather.appends = chance.pick((4, 8, 8, 16, 40), "appends")
    weather.readers = chance.pick((1, 1, 2, 0), "readers")
    weather.shared = chance.pick((0.0, 0.5), "shared clients")
    weather.window_bytes = chance.pick((1 << 20, 1 << 10), "bytes of the window")
    weather.window_entries = chance.pick((2_000, 1, 2), "entries of the window")
    weather.segment_bytes = chance.pick((1 << 20, 1 << 20, 1 << 12), "bytes of a segment")
    weather.on_full = chance.pick(("wait", "wait", "wait", "raise"), "when it is full")
    weather.visible = chance.pick(("on_ack", "on_ack", "within:50ms"), "visible")
    weather.linger_ms = chance.pick((0, 0, 5), "linger")
    weather.cancelled = chance.rate(0.02, 0.5, on=0.5, what="calls are cancelled")
    weather.hurried = rate("calls are hurried", 0.5)
    weather.many = rate("append_many", 0.5)
    weather.rotated = rate("rotations are asked for", 0.3)
    weather.flushed = rate("flushes", 0.3)
    weather.pause_ms = chance.pick((5.0, 0.0, 100.0), "pauses")
    weather.under_load = chance.pick((0.0, 0.0, 0.5), "closed under load")
    weather.handed_over = chance.pick((0.0, 0.3), "handed over")
    weather.dies = chance.pick((0.0, 0.0, 0.5), "processes die")
    weather.frozen = chance.pick((0.0, 0.0, 0.5), "processes freeze")
    weather.stranger = chance.hits(0.1, "a stranger")
    weather.standbys = chance.pick((0, 0, 0, 1, 2), "standbys")
    weather.numbered = chance.pick((0.0, 0.0, 0.5, 1.0), "messages with numbers")
    weather.asked = chance.pick((0.0, 0.5), "somebody asks what became of a message")
