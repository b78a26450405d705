"""Changing a stream: procedures, without IO.

A change is one compare-and-set of the stream's node. What it decided is then carried out by whoever
needs it next: the logs of sealed shards, and of all shards before them, are ended before the log of
a child is opened for the first time (`end_before`). So a change whose author died at once is as
good as done, no step of it has to be undone, and two who carry it out do not meet.

Only `EndLog` is asked of the world here that a metadata store cannot do: make the log if it is not
there yet (nobody may open it later as if nothing had happened), and terminate it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dlog import limits
from dlog.chance import Chance, backoff_s
from dlog.effects import CreateNode, DeleteNode, Effect, Pause, Procedure, ReadNode, Together
from dlog.errors import AlreadyExists, Conflict, DlogError, NotFound, Outcome, Retry
from dlog.meta.cas import change_log, change_node
from dlog.meta.layout import Layout
from dlog.meta.log_meta import LogMeta
from dlog.meta.shards import ShardLog, refuse_unless_shard
from dlog.options import LogOptions
from dlog.streams.document import Shard, ShardState, StreamMeta, StreamState

ENDINGS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class EndLog(Effect):
    """Terminate the log of a shard, which is made first if it is not there."""

    shard: ShardLog
    options: LogOptions


@dataclass(frozen=True, slots=True)
class LookForLog(Effect):
    """→ uid and options of a log that is a stream of its own; `NotFound` if there is none."""

    log: str


class Site(NamedTuple):
    """Which stream, and what a change of it needs. With a `uid`, only the stream that has it: a
    stream that was removed and made again under its name is another one."""

    name: str
    path: str
    chance: Chance
    uid: str | None = None
    holds: str | None = None  # the node below which its holders are
    numbers_at: str | None = None  # and that of what shards inherited

    @classmethod
    def at(cls, layout: Layout, name: str, chance: Chance, uid: str | None = None) -> Site:
        holds, numbers = layout.stream_holds(name), layout.stream_numbers(name)
        return cls(name, layout.stream(name), chance, uid, holds, numbers)

    def of(self, meta: StreamMeta) -> Site:
        return self._replace(uid=meta.uid)

    def numbers(self, uid: str) -> str:
        """The node below which the stream keeps what its shards inherited. It is none below the
        stream's own: who slept, and stores something, does not make that one anew."""
        return f"{self.numbers_at or self.path + '/numbers'}/{uid}"

    def inherited(self, uid: str, shard: Shard) -> str:
        """Where a shard keeps what it inherited of producers' numbers."""
        if not shard.log_uid:  # of an older version
            return f"{self.path}/numbers/{shard.number}"
        return f"{self.numbers(uid)}/{shard.number}"


@dataclass(frozen=True, slots=True)
class MarkLog(Effect):
    """Note in a log that it is a shard, before there is a stream that says so. `NotFound` where the
    log was removed, or another one made, `ConfigError` where it is a shard of another stream."""

    shard: ShardLog


class SeenStream(NamedTuple):
    """`version` is of the node; None while there is none, and the stream is one log."""

    meta: StreamMeta
    version: int | None


def read_stream(
    site: Site, *, fresh: bool = True, is_removing: bool = False
) -> Procedure[SeenStream]:
    """`NotFound` where the stream is gone, being removed (except to `is_removing`), or another one
    than the site's."""
    try:
        raw, version = yield ReadNode(site.path, fresh=fresh)
    except NotFound:
        try:
            meta = yield LookForLog(site.name)
        except NotFound:
            if site.uid is None:
                raise
            raise _gone(site) from None
        seen = SeenStream(meta, None)
    else:
        seen = SeenStream(_parse(raw, site.path), version)
    check_is(site, seen.meta, is_removing=is_removing)
    return seen


def check_is(site: Site, meta: StreamMeta, *, is_removing: bool = False) -> None:
    """`NotFound` unless this is the stream of the site."""
    if site.uid is not None and meta.uid != site.uid:
        raise NotFound(
            f"the stream {site.name!r} was removed, and another one was made under its name",
            stream=site.name,
        )
    if meta.state is StreamState.DELETING and not is_removing:
        raise _gone(site)


def _gone(site: Site) -> NotFound:
    return NotFound(f"the stream {site.name!r} was removed", stream=site.name)


def make_stream(
    site: Site, draw: Callable[[], StreamMeta], mark: MarkLog | None = None
) -> Procedure[SeenStream]:
    """`AlreadyExists` if there is one that we did not make. Each attempt makes what `draw` says,
    behind the `mark`: what an earlier one made may have been removed since, and must not come
    back."""
    ours: set[str] = set()
    maybe_made = False
    for attempt in range(limits.META_ATTEMPTS_MAX):
        try:
            if mark is not None:
                yield mark
            meta = draw()
            ours.add(meta.uid)
            version = yield CreateNode(site.path, meta.to_bytes(), point="stream.made")
            return SeenStream(meta, version)
        except AlreadyExists:
            try:
                found, version = yield ReadNode(site.path)
            except NotFound:
                continue  # removed since
            there = _parse(found, site.path)
            if there.uid in ours:
                return SeenStream(there, version)
            raise AlreadyExists(f"the stream {site.name!r} exists", path=site.path) from None
        except DlogError as error:
            maybe_made |= error.outcome is Outcome.UNKNOWN
            if error.retry is not Retry.NOW or attempt + 1 == limits.META_ATTEMPTS_MAX:
                if maybe_made:
                    error.outcome = Outcome.UNKNOWN
                raise
        yield Pause(backoff_s(attempt, site.chance))
    raise Conflict(f"the stream {site.name!r} is made and removed again and again")


def _make_of_log(site: Site, meta: StreamMeta) -> Procedure[SeenStream]:
    """A log that is a stream of one shard becomes a node. `NotFound` where the log was removed
    meanwhile, and then no node of it stays."""
    (only,) = meta.shards
    mark = MarkLog(meta.log_of(only, site.name))
    made = yield from make_stream(site, lambda: meta, mark)
    assert made.version is not None
    if made.meta != meta:
        return made  # others have changed it since
    try:
        yield mark
    except NotFound:
        try:
            yield DeleteNode(site.path, made.version)
        except Conflict:
            return made  # as above
        raise
    return made


def change_stream(
    site: Site,
    change: Callable[[StreamMeta], StreamMeta],
    *,
    is_done: Callable[[StreamMeta], bool],
    point: str,
    is_removing: bool = False,
) -> Procedure[SeenStream]:
    """One change of the stream that was there when it began, whoever else makes some. A log that is
    a stream of one shard becomes a node first: so it is changed like all others."""
    seen = yield from read_stream(site, is_removing=is_removing)
    if seen.version is None:
        try:
            seen = yield from _make_of_log(site, seen.meta)
        except AlreadyExists:
            seen = yield from read_stream(site.of(seen.meta), is_removing=is_removing)
    assert seen.version is not None
    this = site.of(seen.meta)

    def parse(raw: bytes, where: str) -> StreamMeta:
        meta = _parse(raw, where)
        check_is(this, meta, is_removing=is_removing)
        return meta

    try:
        meta, version = yield from change_node(
            site.path,
            (seen.meta, seen.version),
            change,
            parse=parse,
            is_done=is_done,
            chance=site.chance,
            point=point,
        )
    except NotFound as error:
        if error.about.get("path") == site.path:
            raise _gone(site).again(outcome=error.outcome) from error
        raise
    return SeenStream(meta, version)


def split(site: Site, number: int, at: tuple[int, ...], token: str) -> Procedure[SeenStream]:
    return _reshard(site, lambda meta: meta.split(site.name, number, at, token), token)


def merge(site: Site, numbers: tuple[int, ...], token: str) -> Procedure[SeenStream]:
    return _reshard(site, lambda meta: meta.merged(site.name, numbers, token), token)


def pin(site: Site, key: bytes, to: int | None, token: str) -> Procedure[SeenStream]:
    """With None, the key goes back to whoever has its hash."""

    def is_there(meta: StreamMeta) -> bool:
        """Where it goes without new shards."""
        return key not in meta.pins if to is None else meta.pins.get(key) == to

    return _reshard(site, lambda meta: meta.pinned(site.name, key, to, token), token, is_there)


def _reshard(
    site: Site,
    change: Callable[[StreamMeta], StreamMeta],
    token: str,
    is_there: Callable[[StreamMeta], bool] = lambda meta: False,
) -> Procedure[SeenStream]:
    """Decide, then carry out: a reader need not wait for a writer to come along. What is refused
    may be the second try of a change whose first one failed half-way, so that is carried out."""
    try:
        seen = yield from change_stream(
            site,
            change,
            is_done=lambda meta: bool(meta.made_in(token)) or is_there(meta),
            point="stream.resharded",
        )
    except (Conflict, NotFound) as refused:
        if refused.retry is Retry.NEVER:
            seen = yield from read_stream(site)
            sealed = (s.number for s in seen.meta.shards if s.state is ShardState.SEALED)
            yield from end_before(site, seen, sealed)
        raise
    parents = {parent for shard in seen.meta.made_in(token) for parent in shard.parents}
    return (yield from _carry_out(site, seen, parents))


def terminate_stream(site: Site) -> Procedure[SeenStream]:
    seen = yield from change_stream(
        site,
        StreamMeta.terminated,
        is_done=lambda meta: meta.state is StreamState.TERMINATED,
        point="stream.terminated",
    )
    return (yield from _carry_out(site, seen, {shard.number for shard in seen.meta.shards}))


def _carry_out(site: Site, seen: SeenStream, numbers: Iterable[int]) -> Procedure[SeenStream]:
    """A failure does not undo the change: whoever needs it next carries it out."""
    try:
        return (yield from end_before(site, seen, numbers))
    except DlogError as error:
        error.outcome = Outcome.UNKNOWN
        raise


def end_before(site: Site, seen: SeenStream, numbers: Iterable[int]) -> Procedure[SeenStream]:
    """End the logs of these sealed shards, and of all before them; then say that it is done. In
    the list as it stands behind that, all of them are `ENDED`."""
    site = site.of(seen.meta)  # also who asked by the name alone: another stream may have it by now
    wanted = tuple(numbers)
    to_end = [s for s in seen.meta.before(wanted) if s.state is ShardState.SEALED]
    if not to_end:
        return seen
    for first in range(0, len(to_end), ENDINGS_AT_ONCE):
        some = to_end[first : first + ENDINGS_AT_ONCE]
        yield Together(tuple(_end(site, seen.meta, shard) for shard in some))
    ended = {shard.number for shard in to_end}

    def is_done(meta: StreamMeta) -> bool:
        return all(s.state is ShardState.ENDED for s in meta.shards if s.number in ended)

    return (
        yield from change_stream(
            site, lambda meta: meta.ended(ended), is_done=is_done, point="stream.ended"
        )
    )


def _end(site: Site, meta: StreamMeta, shard: Shard) -> Procedure[None]:
    yield EndLog(meta.log_of(shard, site.name), meta.options, point="stream.log_ended")


def _parse(raw: bytes, where: str) -> StreamMeta:
    return StreamMeta.from_bytes(raw, where)


def mark_as_shard(path: str, shard: ShardLog, chance: Chance) -> Procedure[None]:
    """From here on the log is used through its stream only."""

    def marked(meta: LogMeta) -> LogMeta:
        refuse_unless_shard(meta, shard, shard.name)
        if meta.is_here(shard.name).is_removed:
            raise NotFound(f"the log {shard.name!r} was removed", log=shard.name)
        return dataclasses.replace(meta, stream=shard.mark)

    yield from change_log(
        path,
        None,
        marked,
        is_done=lambda meta: shard.is_log(meta) and meta.stream == shard.mark,
        chance=chance,
    )
