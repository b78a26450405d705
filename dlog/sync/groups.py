"""Sync workers and groups. A processor that is a plain function runs on threads of the worker; an
async one on the client's own loop thread, where nothing may block."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any

from dlog.errors import ConfigError
from dlog.groups import group as aio_group
from dlog.groups import worker as aio_worker
from dlog.groups.charter import Charter
from dlog.groups.crew import ShardAtWork
from dlog.groups.group import GroupDescription, Member, Reset
from dlog.groups.options import WorkerOptions
from dlog.groups.view import Move, WorkerId
from dlog.reader.places import Start
from dlog.reason import Reason
from dlog.sync.portal import Answer, Portal
from dlog.sync.writer import Closeable


class Worker:
    """One member of a group: consumes its share of a stream's shards, until it is closed."""

    def __init__(self, inner: aio_worker.Worker, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal
        self._owned: Closeable | None = None
        self._closed = False

    def own(self, client: Closeable) -> None:
        """Close this client with us."""
        self._owned = client

    @property
    def group(self) -> str:
        return self._inner.group

    @property
    def stream(self) -> str:
        return self._inner.stream

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def id(self) -> WorkerId | None:
        """Name and incarnation; None before the first registration."""
        return self._inner.id

    @property
    def options(self) -> WorkerOptions:
        return self._inner.options

    @property
    def closed(self) -> bool:
        return self._closed or self._inner.closed

    @property
    def shards(self) -> tuple[ShardAtWork, ...]:
        """Those that it has, and what it is at in each."""
        return self._inner.shards

    @property
    def failed(self) -> dict[str, str]:
        """Shards that stopped here because of an error (`on_error="stop"`), and why. They stay
        with this worker until it is closed, or until they are moved to another one."""
        return self._inner.failed

    def resume(self, log: str | None = None) -> tuple[str, ...]:
        """Give shards in `failed` back to the group (this one, or all of them), so that whichever
        worker gets each tries it again, from its checkpoint on: which ones. `ConfigError` if the
        one that is named did not fail here."""
        return self._portal.run(self._inner.resume(log))

    def why(self) -> Reason | None:
        """What it waits for, or what does not get on; None while all is well. Once the worker has
        ended, why it did."""
        return self._portal.ask(self._inner.why)

    def wait(self, timeout: float | None = None) -> str | None:
        """Until it ends by itself (a bounded job is done, its group or stream was removed, another
        process goes by its name) or is closed: why. None when the time is over before. Of a bounded
        job whose shard failed, raises what it failed with."""
        return self._portal.run(self._inner.wait(timeout))

    # --- life

    def close(self, timeout: float | None = None) -> None:
        """Hand all shards back, each in order, and leave the group. A processor that is at work is
        waited for, for `timeout` seconds: then it is cut short, and what does not even come to its
        end then is left as if this process had died. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if not self._portal.usable:
            return
        try:
            self._portal.run(self._inner.close(timeout))
        finally:
            owned, self._owned = self._owned, None
            if owned is not None:
                owned.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or not self._portal.usable:
            return
        self._closed = self._inner._closed = True
        self._portal.loop.call_soon_threadsafe(self._inner.drop)
        if self._owned is not None:
            self._owned.abandon()
        warnings.warn(self._inner.dropped, ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> str:
        raise ConfigError("a worker cannot be pickled: open one where it is needed")


class Group:
    """A group from outside: looks at it, and puts it elsewhere; takes part in nothing."""

    def __init__(self, inner: aio_group.Group, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def stream(self) -> str:
        return self._inner.stream

    def charter(self) -> Charter:
        """What all of its workers agree on. `NotFound`: there is no such group."""
        return self._run(self._inner.charter)

    def members(self) -> tuple[Member, ...]:
        return self._run(self._inner.members)

    def describe(self, *, lag: bool = True) -> GroupDescription:
        """Asks the store for each lease, and with `lag` each shard's log where it ends."""
        return self._run(self._inner.describe, lag=lag)

    def plan(
        self,
        *,
        add: int | Iterable[str] = 0,
        without: Iterable[str] = (),
        domain: str | None = None,
    ) -> tuple[Move, ...]:
        """The moves that the group would make if so many more workers came (or those with these
        names), and these were gone."""
        return self._run(self._inner.plan, add=add, without=without, domain=domain)

    def reset(
        self,
        to: Start,
        *,
        shards: Sequence[int] | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> tuple[Reset, ...]:
        """Put shards at "earliest", "latest", a seq, a MessageId, a Position or an aware datetime;
        what the program kept with the checkpoint is gone. A shard that somebody consumes is refused
        unless by `force`, which fences that worker; one that is finished stays so. What fails when
        some were put there already is told in the answer, not raised. `dry_run` only tells."""
        return self._run(self._inner.reset, to, shards=shards, force=force, dry_run=dry_run)

    def set_checkpoint(
        self, shard: int, to: Start, *, app: bytes = b"", force: bool = False
    ) -> Reset:
        """The same for one shard, with what the program shall find there."""
        return self._run(self._inner.set_checkpoint, shard, to, app=app, force=force)

    def remove(self) -> None:
        """Forget the group: its checkpoints, its holds, its charter. `Conflict` while it has
        workers."""
        self._run(self._inner.remove)

    def _run(
        self, verb: Callable[..., Coroutine[Any, Any, Answer]], *args: Any, **kw: Any
    ) -> Answer:
        return self._portal.run(verb(*args, **kw))

    def __repr__(self) -> str:
        return repr(self._inner)
