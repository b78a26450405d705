"""What a stream remembers of shards that were trimmed: how far each went, and who wrote it last.

A trim removes the log of a shard, and with it all that the log knew. A writer that slept meanwhile,
and a group that never came to the shard, go by this. It is one node, kept under the stream's uid
beside the numbers that shards inherited, so it goes with the stream. Of too many shards the oldest
are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dlog import limits
from dlog.chance import backoff_s
from dlog.effects import CreateNode, Effect, Pause, Procedure, ReadNode, ReplaceNode
from dlog.errors import AlreadyExists, Conflict, FormatError, NotFound
from dlog.meta.json_fields import dump, load, the_int, the_list
from dlog.meta.shards import ShardLog
from dlog.streams.reshard import Site

FORMAT = 1


class TrimmedShard(NamedTuple):
    number: int
    first_seq: int  # of the first message that its log ever had
    next_seq: int
    last_writer: int  # as of `LastWriter`
    parents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LookAtEnd(Effect):
    """→ `first_seq`, `next_seq` and `last_writer` of a shard whose log has ended. `NotFound` where
    the log is gone."""

    shard: ShardLog


def read_trimmed(site: Site, uid: str) -> Procedure[Mapping[int, TrimmedShard]]:
    """By number."""
    try:
        raw, _ = yield ReadNode(_path(site, uid))
    except NotFound:
        return {}
    return _parse(raw, _path(site, uid))


def keep_trimmed(site: Site, uid: str, shards: Iterable[TrimmedShard]) -> Procedure[None]:
    path = _path(site, uid)
    ours = {shard.number: shard for shard in shards}
    for attempt in range(limits.META_ATTEMPTS_MAX):
        there: dict[int, TrimmedShard] = {}
        version: int | None = None
        try:
            raw, version = yield ReadNode(path)
            there = _parse(raw, path)
        except NotFound:
            pass
        if ours.items() <= there.items():
            return
        all_of_them = sorted({**there, **ours}.values())[-limits.TRIMMED_SHARDS_KEPT :]
        value = dump({"format": FORMAT, "shards": [[*each] for each in all_of_them]})
        try:
            if version is None:
                yield CreateNode(path, value)
            else:
                yield ReplaceNode(path, value, version)
            return
        except (AlreadyExists, Conflict, NotFound):
            yield Pause(backoff_s(attempt, site.chance))
    raise Conflict(f"what is kept of trimmed shards of {site.name!r} keeps changing", path=path)


def _path(site: Site, uid: str) -> str:
    return f"{site.numbers(uid)}/trimmed"


def _parse(raw: bytes, where: str) -> dict[int, TrimmedShard]:
    fields = load(raw, where)
    if the_int(fields, "format", where) != FORMAT:
        raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
    found: dict[int, TrimmedShard] = {}
    for row in the_list(fields, "shards", where):
        match row:
            case [int(number), int(first), int(end), int(writer), [*parents]] if all(
                type(parent) is int for parent in parents
            ):
                found[number] = TrimmedShard(number, first, end, writer, tuple(parents))
            case _:
                raise FormatError(f"{where}: a trimmed shard is four numbers and a list: {row!r}")
    return found
