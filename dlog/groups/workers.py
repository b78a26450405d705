"""A worker's node: that it is alive, by a counter; what it has; and what others want of it.

It is the one thing that a worker renews, however many leases it has. A counter that changes says
that its worker lives; one that does not, for one time-out of whoever watches, by that one's own
clock, lets the watcher delete the node at the version it saw: so nobody renewed it. From then on
the worker is dead, whatever it thinks: each incarnation has a node once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlog import limits
from dlog.errors import FormatError
from dlog.groups.view import WorkerId
from dlog.meta.json_fields import dump, load, optional_str, the_dict, the_int, the_list

FORMAT = 1


@dataclass(frozen=True, slots=True)
class WorkerNode:
    """`holds`: the shards it consumes. `coming`: those it announced itself for. `wanted`: what
    others ask it to look at, `rings`: how often anybody did. `after`: incarnations of its name
    that were there when it came. `waits`: what does not get on, by shard (or "": all of them), as
    codes, with a cause behind it where a log of ours refused something (see `with_cause`); no words
    of the program's errors, which may tell what is in messages."""

    id: WorkerId
    counter: int = 0
    domain: str | None = None
    after: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    coming: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    rings: int = 0
    waits: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def renewed(
        self,
        counter: int,
        holds: Iterable[str],
        coming: Iterable[str],
        seen: Iterable[str],
        waits: Mapping[str, str],
    ) -> WorkerNode:
        """By the worker itself. What it has `seen` is not wanted any more."""
        done = set(seen)
        wanted = tuple(each for each in self.wanted if each not in done)
        lists = tuple(sorted(holds)), tuple(sorted(coming)), wanted
        known = self.id, counter, self.domain, self.after
        return WorkerNode(*known, *lists, self.rings, waits, self.extra)

    def rung(self, shards: Iterable[str]) -> WorkerNode:
        """By somebody else, who wants it to look at these."""
        wanted = (*self.wanted, *(each for each in shards if each not in self.wanted))
        wanted = wanted[-limits.GROUP_SHARDS_MAX :]
        return dataclasses.replace(self, wanted=wanted, rings=self.rings + 1)

    def to_bytes(self) -> bytes:
        return dump(
            {
                **self.extra,
                "format": FORMAT,
                "counter": self.counter,
                "domain": self.domain,
                "after": list(self.after),
                "holds": list(self.holds),
                "coming": list(self.coming),
                "wanted": list(self.wanted),
                "rings": self.rings,
                **({"waits": dict(self.waits)} if self.waits else {}),
            }
        )

    @classmethod
    def from_bytes(cls, raw: bytes, worker: WorkerId, *, where: str) -> WorkerNode:
        if len(raw) > limits.META_NODE_BYTES_MAX:
            raise FormatError(f"{where} has {len(raw)} bytes, more than a worker can have")
        fields = load(raw, where)
        if the_int(fields, "format", where) != FORMAT:
            raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
        return cls(
            worker,
            the_int(fields, "counter", where),
            optional_str(fields, "domain", where),
            _names(fields, "after", where),
            _names(fields, "holds", where),
            _names(fields, "coming", where),
            _names(fields, "wanted", where),
            the_int(fields, "rings", where),
            _waits(fields, where),
            extra={k: v for k, v in fields.items() if k not in _FIELDS},
        )


def with_cause(code: str, cause: str) -> str:
    """What a worker's node says of a wait whose cause others may read."""
    return f"{code}: {cause}"


def codes_and_causes(waits: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The codes, and the causes of those that have one."""
    told = {shard: wait.partition(": ") for shard, wait in waits.items()}
    codes = {shard: code for shard, (code, _, _) in told.items()}
    return codes, {shard: cause for shard, (_, _, cause) in told.items() if cause}


_FIELDS = frozenset("format counter domain after holds coming wanted rings waits".split())


def _waits(fields: Mapping[str, Any], where: str) -> dict[str, str]:
    if "waits" not in fields:
        return {}
    waits = the_dict(fields, "waits", where)
    if len(waits) > limits.GROUP_SHARDS_MAX + 1:
        raise FormatError(f"{where}: more waits than a group has shards")
    if not all(isinstance(each, str) and each for each in waits.values()):
        raise FormatError(f"{where}: waits are codes")
    return waits


def _names(fields: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    values = the_list(fields, name, where)
    if len(values) > limits.GROUP_SHARDS_MAX:
        raise FormatError(f"{where}: {name} are more than a group has shards")
    if not all(isinstance(each, str) and each for each in values):
        raise FormatError(f"{where}: {name} are names of shards")
    return tuple(values)
