"""The weather of one history of `streams-life`: who there is, what happens to the stream, and what
goes wrong. Each history switches features on and off as a whole."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from dlog.testing.sim.metadata import MetaManners
from dlog.testing.sim.streams_life_process import LedgerManners
from dlog.testing.sim.tape import Chance

TIMEOUT_MS = 150  # of a group, virtual
CHANGES = (
    "split",
    "merge",
    "pin",
    "unpin",
    "truncate",
    "trim",
    "trim",
    "collect",
    "terminate",
    "again",
)
# What it takes that something happens to the stream: see `_draw_meeting`.
MEETINGS = {
    "split": ("split",),
    "merge": ("merge", "merge"),
    "pin": ("pin", "unpin"),
    "trim": ("split", "trim", "trim"),
    "truncate": ("truncate", "truncate"),
    "retain": ("collect", "collect"),
    "terminate": ("terminate",),
    "made again": ("again",),
}
ENDS = ("terminate", "again")  # behind these little happens to the stream
_ON = 0.3


@dataclass(slots=True)
class LifeWeather:
    meta: MetaManners = field(default_factory=MetaManners)
    ledgers: LedgerManners = field(default_factory=LedgerManners)
    meta_ms: float = 0.4
    # what there is
    shards: int = 1
    keys: int = 4
    retention: bool = False  # by bytes: all but the newest segment goes
    # who
    producers: int = 1
    senders: int = 1  # processes that have all of them, at the same time
    messages: int = 10  # of each
    many: float = 0.0  # runs instead of single messages
    again: float = 0.0  # what was acknowledged is sent again
    reopens: float = 0.0
    heirs: float = 0.0  # another process goes on for a producer that may be asleep
    readers: int = 1
    starts: tuple[str, ...] = ("earliest",)
    bounded: float = 0.0
    saves: float = 0.0  # a reader is closed, and goes on from where it stood
    order: str = "arrival"
    workers: int = 0
    group_start: str = "earliest"
    job: bool = False
    leaves: float = 0.0  # workers that are closed, or die, and others that come
    forgets: bool = False  # few producers are remembered
    # what happens to the stream
    changes: tuple[str, ...] = ()
    ends_late: bool = False  # those of ENDS come when most others are over
    group_removals: int = 0
    # what befalls them
    sleeps: float = 0.0  # per process
    dies: float = 0.0
    span_ms: float = 250.0

    def fix(self, **options: Any) -> None:
        """Options instead of what was drawn: those of the metadata as `meta_…`, of the ledgers as
        `ledgers_…`."""
        names = {each.name for each in dataclasses.fields(self)}
        for name, value in options.items():
            prefix, _, rest = name.partition("_")
            if name in names:
                setattr(self, name, value)
            elif prefix in ("meta", "ledgers") and hasattr(getattr(self, prefix), rest):
                setattr(getattr(self, prefix), rest, value)
            else:
                raise TypeError(f"no weather has {name}")


def draw_life_weather(chance: Chance) -> LifeWeather:
    def rate(what: str, high: float = 0.08) -> float:
        return chance.rate(0.004, high, on=_ON, what=what)

    def some(options: tuple[Any, ...], what: str) -> Any:
        return chance.pick(options, what)

    weather = LifeWeather(
        meta=_draw_meta(chance),
        ledgers=LedgerManners(
            append_ms=some((0.4, 0.4, 4.0), "an append takes"),
            slow=rate("appends are slow", 0.3),
            refused=rate("ledgers refuse", 0.04),
            reply_lost=rate("replies of ledgers are lost", 0.04),
        ),
        shards=some((1, 2, 1, 3), "shards"),
        keys=some((4, 2, 6), "keys"),
        retention=chance.hits(0.4, "retention"),
        senders=some((1, 1, 1, 1, 1, 2), "senders"),
        producers=some((1, 2, 1, 3), "producers"),
        messages=some((10, 5, 16), "messages of each"),
        many=some((0.0, 0.5), "runs of messages"),
        again=some((0.0, 0.2, 0.4), "sent again"),
        reopens=some((0.0, 0.1), "writers are opened again"),
        heirs=some((0.0, 0.5), "producers have heirs"),
        readers=some((1, 0, 1, 2), "readers"),
        starts=tuple(
            some(("earliest", "latest", "earliest", "time"), "readers begin at") for _ in range(2)
        ),
        bounded=some((0.0, 0.0, 0.4), "readers end"),
        saves=some((0.0, 0.0, 0.3), "readers go on from where they stood"),
        order=some(("arrival", "arrival", "arrival", "time"), "readers read by"),
        workers=some((0, 0, 0, 1, 2), "workers"),
        group_start=some(("earliest", "earliest", "latest"), "the group begins at"),
        job=chance.hits(_ON, "a bounded job"),
        leaves=some((0.0, 0.5), "workers leave"),
        forgets=chance.hits(0.15, "producers are forgotten"),
        group_removals=some((0, 0, 0, 1), "removals of the group"),
        sleeps=some((0.0, 0.3, 0.6), "processes sleep"),
        dies=some((0.0, 0.0, 0.3), "processes die"),
    )
    weather.changes = _draw_changes(chance)
    weather.ends_late = chance.hits(0.5, "the stream ends late")
    if chance.hits(0.6, "two kinds of changes are to meet"):
        _draw_meeting(chance, weather)
    elif weather.retention and chance.hits(0.7, "retention at work"):
        _retain(weather)
    return weather


def _draw_meeting(chance: Chance, weather: LifeWeather) -> None:
    """Two of them in one stream, in place of what was drawn: by itself, the rarest of these pairs
    would be in four of a thousand histories."""
    kinds = list(MEETINGS)
    one = chance.pick(kinds, "one that is to meet")
    kinds.remove(one)
    two = chance.pick(kinds, "whom it is to meet")
    weather.changes = (*MEETINGS[one], *MEETINGS[two])
    weather.ends_late = True
    weather.retention |= "retain" in (one, two)
    if weather.retention:
        _retain(weather)


def _retain(weather: LifeWeather) -> None:
    """It takes whole segments: there must be some."""
    weather.reopens = 0.5
    weather.messages = max(weather.messages, 10)
    weather.changes += ("collect", "collect")


def _draw_meta(chance: Chance) -> MetaManners:
    def rate(what: str, high: float = 0.05) -> float:
        return chance.rate(0.003, high, on=_ON, what=what)

    return MetaManners(
        refused=rate("metadata refuses"),
        request_lost=rate("requests to metadata are lost"),
        reply_lost=rate("replies of metadata are lost"),
        late=rate("writes of metadata are late"),
        stale=rate("reads of metadata are old", 0.3),
        torn=rate("listings are torn", 0.3),
        touched=rate("a stranger stores nodes again"),
        watch_lost=rate("watches are lost", 0.3),
    )


def _draw_changes(chance: Chance) -> tuple[str, ...]:
    """The kinds of a history come up again and again, so that some meet themselves."""
    kinds = chance.pick((1, 2, 3, 5), "kinds of changes")
    usual = [chance.pick(CHANGES, "a kind of change") for _ in range(kinds)]
    count = chance.pick((2, 0, 4, 6, 8), "changes")
    if "trim" in usual or "truncate" in usual:
        usual.append("split")
    return tuple(chance.pick(usual, "a change") for _ in range(count))
