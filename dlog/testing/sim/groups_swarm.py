"""The weather of one history of a group: who works, what of, and what goes wrong."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from dlog.groups.membership import GroupOptions
from dlog.testing.sim.metadata import MetaManners
from dlog.testing.sim.tape import Chance

TIMEOUT_S = 0.2  # virtual; all other times are in proportion
SPAN_MS = 250.0  # in which faults strike
DRIFT_MAX = 0.02  # of a monotonic clock; the margin takes twice that between two
FAULT_ON = 0.3
NEVER, SOMETIMES, ALWAYS = 0.0, 0.3, 1.0


@dataclass(slots=True)
class GroupWeather:
    meta: MetaManners = field(default_factory=MetaManners)
    store: str = "nodes"  # or logs
    timeout_s: float = TIMEOUT_S
    workers: int = 2
    joiners: int = 0  # more workers, later
    leavers: int = 0
    shards: int = 3
    splits: int = 0
    messages: int = 3  # of each shard, when the history begins
    more: int = 0  # that come while it runs
    truncations: int = 0
    seals: bool = False  # all shards come to an end: a job
    domains: int = 0
    weights: bool = False
    weighs: int = 0  # shards are weighed; so often one becomes heavy or light
    proves: bool = False  # leases are renewed one by one, too
    crash: float = 0.0
    freeze: float = 0.0
    restarts: float = 1.0  # of those that die
    cuts: int = 0  # of one worker from metadata, while all others reach it
    is_drifting: bool = False
    slow: float = 1.0
    process_ms: float = 4.0
    batch: int = 2
    checkpoints: str = "memory"  # or at_once, or late: only when it is shut down
    watches: bool = True
    force: bool = False
    trusts_name: bool = False
    moves_at_once: int = 16
    neighbours: int = 3
    quiet: bool = False  # and at the end, nothing moves any more
    append_fails: float = 0.0  # of lease logs

    def fixed(self, **options: Any) -> GroupWeather:
        """With these instead; names with `meta_` in front are of the metadata store."""
        meta = {k[5:]: v for k, v in options.items() if k.startswith("meta_")}
        own = {k: v for k, v in options.items() if not k.startswith("meta_")}
        return dataclasses.replace(self, meta=dataclasses.replace(self.meta, **meta), **own)

    def options(self) -> GroupOptions:
        return GroupOptions(
            timeout_s=self.timeout_s,
            flush_s=self.timeout_s / 4,
            force_s=self.timeout_s if self.force else None,
            neighbours=self.neighbours,
            moves_at_once=self.moves_at_once,
            trusts_name=self.trusts_name,
            is_job=self.seals,
            weigh_s=self.timeout_s if self.weighs else None,
            prove_s=self.timeout_s / 2 if self.proves else None,
        )


def draw_group_weather(chance: Chance) -> GroupWeather:
    def rate(what: str, high: float = 0.2) -> float:
        return chance.rate(0.002, high, on=FAULT_ON, what=what)

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
        watch_lost=rate("watches are lost", 0.9),
        watch_late=rate("watches are late", 0.9),
        watch_twice=rate("watches are doubled"),
    )
    return GroupWeather(
        meta=meta,
        store=chance.pick(("nodes", "nodes", "logs"), "leases are kept in"),
        workers=chance.pick((2, 1, 2, 2, 3, 3, 4), "workers"),
        joiners=chance.pick((0, 0, 0, 1, 2), "workers that come later"),
        leavers=chance.pick((0, 0, 1, 2), "workers that leave"),
        shards=chance.pick((2, 1, 2, 3, 4, 5, 6), "shards"),
        splits=1 if on("a shard is split", 0.2) else 0,
        messages=chance.pick((2, 0, 1, 3, 5), "messages of a shard"),
        more=chance.pick((0, 3, 6), "messages that come later"),
        truncations=chance.pick((0, 0, 2), "truncations"),
        seals=on("all shards come to an end", 0.15),
        domains=chance.pick((0, 0, 0, 2), "failure domains"),
        weights=on("shards have weights", 0.1),
        crash=rate("workers crash", 0.03),
        freeze=rate("workers freeze", 0.03),
        restarts=chance.pick((1.0, 0.5, 0.0), "the dead come back"),
        cuts=chance.pick((0, 0, 0, 0, 1, 2), "workers are cut off"),
        is_drifting=on("clocks drift"),
        slow=chance.pick((1.0, 1.0, 1.0, 10.0), "slow links, times"),
        process_ms=chance.pick((2.0, 2.0, 20.0), "a batch takes, in ms"),
        batch=chance.pick((2, 1, 4), "messages of a batch"),
        checkpoints=chance.pick(("memory", "at_once", "late"), "checkpoints are kept"),
        watches=not on("nobody watches"),
        force=on("hand-overs are forced", 0.1),
        trusts_name=on("names are trusted", 0.15),
        moves_at_once=chance.pick((16, 16, 1), "moves at once"),
        neighbours=chance.pick((3, 1), "neighbours"),
        quiet=on("a quiet end", 0.03),
        append_fails=rate("appends to lease logs fail"),
        weighs=chance.pick((0,) * 8 + (1, 4), "loads of shards change"),
        proves=on("leases are renewed one by one", 0.2),
    )
