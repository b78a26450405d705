"""What one history of logs may be hit by, and what is done in it: drawn once, then fixed.

With the same mild faults everywhere, faults average out. So each history switches whole classes of
them on or off, and draws their rates from wide laws: most show nothing, some a storm.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from dlog.testing.sim.abstract_ledgers import LedgerManners
from dlog.testing.sim.metadata import MetaManners
from dlog.testing.sim.tape import Chance

FAULT_ON = 0.3  # each class of faults is on in this part of the histories
LIFE_ON = 0.35
END_ON, END_OF_LIVES_ON = 0.05, 0.15  # the latter where all histories are of truncated logs
CLOSES_AT_ENDS = 0.8
RATE_MIN = 0.003


@dataclass(slots=True)
class LogWeather:
    """Rates are per event; 0 is off."""

    meta: MetaManners = field(default_factory=MetaManners)
    ledgers: LedgerManners = field(default_factory=LedgerManners)
    # clients
    crash: float = 0.0
    freeze: float = 0.0
    clocks_jump: float = 0.0
    slow: float = 1.0  # links of this history are up to so many times slower
    # the work
    span: float = 1.0  # how long the faults last, as a multiple
    writers: int = 1
    incarnations: int = 1  # a writer's process is started again so often
    readers: int = 1
    appends: int = 8
    takeover: str = "always"
    visible: str = "on_ack"
    window_entries: int = 2000
    rotate_every: int | None = None
    wait_often: float = 0.0  # the policy says WAIT
    rotations_asked: float = 0.0
    closes: float = 0.0
    numbered: float = 0.0  # of the appends carry the number of a producer
    producers_max: int = 8192  # that a log remembers
    table_every: int = 10_000  # entries between tables of producers
    resolved: float = 0.0  # so often somebody asks what became of a message
    leaves: float = 0.0  # a reader stops inside a batch, and comes back
    removers: int = 0
    page_segments: int = 128
    foreign_recoverers: bool = False
    standbys: int = 0
    publishers: int = 0  # queries whose batches are published; never drawn, see the world of jobs
    # the other end
    truncations: int = 0
    forces: float = 0.0  # so many of them do not heed holds
    holders: int = 0
    collectors: int = 0
    terminators: int = 0
    checkers: int = 0
    damages: int = 0  # done to its list
    retention_bytes: int | None = None
    retention_age_s: int | None = None
    grace_s: int = 30
    jumps: float = 0.0  # readers that go on at the new head by themselves
    tail: str = "mixed"  # of readers: normal, strict, or every second one strict

    def fixed(self, **options: Any) -> LogWeather:
        """With some options set: of the work by their names, of metadata as `meta_…`, of ledgers as
        `ledger_…`."""
        mine = {name: each for name, each in options.items() if not _is_of_a_store(name)}
        return dataclasses.replace(
            self,
            meta=dataclasses.replace(self.meta, **_named("meta_", options)),
            ledgers=dataclasses.replace(self.ledgers, **_named("ledger_", options)),
            **mine,
        )


def _is_of_a_store(name: str) -> bool:
    return name.startswith(("meta_", "ledger_"))


def _named(prefix: str, options: dict[str, Any]) -> dict[str, Any]:
    return {name[len(prefix) :]: each for name, each in options.items() if name.startswith(prefix)}


def draw_log_weather(chance: Chance, *, life: float = LIFE_ON) -> LogWeather:
    def rate(what: str, high: float = 0.3) -> float:
        return chance.rate(RATE_MIN, high, on=FAULT_ON, what=what)

    def on(what: str, share: float = FAULT_ON) -> bool:
        return chance.hits(share, what)

    meta = MetaManners(
        refused=rate("metadata refuses"),
        request_lost=rate("metadata requests are lost"),
        reply_lost=rate("metadata replies are lost"),
        late=rate("metadata writes arrive late"),
        outages=on("metadata outages"),
        pauses=on("pauses of the leader of metadata"),
        stale=chance.pick((0.0, 1.0, 1.0), "stale reads of metadata"),
        torn=rate("torn listings"),
        touched=rate("nodes are stored again by a stranger"),
        sessions_lost=on("sleepers lose their sessions"),
        session_ends=rate("sessions end unnoticed", 0.1),
        watch_lost=rate("watches are lost", 0.9),
        watch_late=rate("watches are late", 0.9),
        watch_twice=rate("watches are doubled"),
    )
    ledgers = LedgerManners(
        create_fails=rate("creates fail"),
        birth_fails=rate("births fail"),
        append_fails=rate("appends fail", 0.1),
        recover_fails=rate("recoveries fail"),
        close_fails=rate("closes fail"),
        read_fails=rate("reads fail", 0.1),
        fence_noticed=rate("idle appenders notice fences", 0.9),
        ids_go_back=rate("ledger ids go back"),
        watch_lost=meta.watch_lost,
        publish_is_free=on("publishing is free", 0.5),
        first_id=chance.pick((0, 0, 7), "the first ledger id"),
        store_ms=chance.pick((1.0, 1.0, 20.0), "the way to a quorum, in ms"),
    )
    drawn = LogWeather(
        meta=meta,
        ledgers=ledgers,
        crash=rate("clients crash", 0.1),
        freeze=rate("clients freeze", 0.1),
        clocks_jump=0.05 if on("clocks jump") else 0.0,
        slow=chance.pick((1.0, 1.0, 1.0, 10.0, 100.0), "slow links, times"),
        span=chance.pick((1.0, 1.0, 1.0, 1.0, 3.0), "times the span"),
        writers=chance.pick((1, 1, 2, 2, 3, 4), "writers"),
        incarnations=chance.pick((1, 1, 2, 3), "incarnations"),
        readers=chance.pick((0, 1, 1, 2, 3), "readers"),
        appends=chance.pick((1, 2, 2, 3, 3, 5, 8, 20), "appends"),
        takeover=chance.pick(("always", "always", "always", "if_dead", "wait", "never"), "policy"),
        visible=chance.pick(("on_ack", "on_ack", "within:5ms"), "visible"),
        window_entries=chance.pick((2000, 8, 2, 1), "window"),
        rotate_every=chance.pick((None, 20, 5, 2, 1), "rotation every"),
        wait_often=rate("the policy says wait"),
        rotations_asked=rate("rotations are asked for"),
        closes=chance.pick((0.0, 0.3, 0.8), "closes"),
        leaves=chance.pick((0.0, 0.05, 0.05), "readers leave"),
        removers=1 if on("a remover", 0.08) else 0,
        page_segments=chance.pick((128, 3, 2), "segments of a page"),
        foreign_recoverers=on("foreign recoverers"),
        standbys=chance.pick((0, 0, 0, 0, 1, 2), "standbys"),
        numbered=chance.pick((0.0, 0.0, 0.0, 0.5, 1.0), "appends with numbers"),
        producers_max=chance.pick((8192, 8192, 2), "producers that a log remembers"),
        table_every=chance.pick((10_000, 3, 2), "entries between tables of producers"),
        resolved=chance.pick((0.0, 0.3, 0.9), "somebody asks what became of a message"),
        **_draw_life(chance, life),
    )
    if drawn.terminators and life == 1.0:
        drawn.closes = CLOSES_AT_ENDS  # or hardly one of them would find a log that nobody writes
    return drawn


def _draw_life(chance: Chance, share: float) -> dict[str, Any]:
    """Truncation and all that follows from it, in a share of the histories."""
    if not chance.hits(share, "the log is truncated"):
        return {}
    ends = END_OF_LIVES_ON if share == 1.0 else END_ON
    return {
        "truncations": chance.pick((1, 2, 3, 5, 0), "truncations"),
        "forces": chance.pick((0.0, 0.0, 0.0, 0.3), "truncations are forced"),
        "holders": chance.pick((0, 1, 2), "holders"),
        "collectors": chance.pick((1, 1, 2, 3), "collectors"),
        "terminators": 1 if chance.hits(ends, "somebody terminates the log") else 0,
        "retention_bytes": chance.pick((None, None, None, 300, 0), "retention by bytes"),
        "retention_age_s": chance.pick((None, None, None, 1), "retention by age"),
        "grace_s": chance.pick((0, 0, 30, 5), "the grace, in seconds"),
        "jumps": chance.pick((0.0, 0.5), "readers jump"),
    }
