"""What a hot standby does until it is needed, as procedures without IO.

It looks at the log meta whenever that may have changed, and keeps one ledger born and above the
floor of every id that the log ever listed. Each rotation of the writer raises that floor past our
ledger, so each is followed by another ledger of ours; the one that fell below is deleted. So a
takeover has nothing to read first and nothing to make: claim, fence and recover, commit. A takeover
that comes between a rotation and our answer to it makes its ledger like any other.

Whether the present writer still lives is asked of its presence node: advice, for whoever waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from dlog.chance import Chance, backoff_s
from dlog.effects import (
    CreateNode,
    DeleteLedger,
    LetGo,
    Pause,
    Procedure,
    ReadNode,
    ReplaceNode,
    WaitNode,
)
from dlog.errors import (
    AlreadyExists,
    Conflict,
    DlogError,
    Handle,
    Moved,
    NotFound,
    Retry,
    Unsupported,
    check,
)
from dlog.meta.cas import Seen, read_log
from dlog.meta.layout import Layout
from dlog.meta.listed import WriterMark
from dlog.meta.log_meta import LogMeta, LogState
from dlog.options import LogOptions
from dlog.reason import ReasonCode, Wait, told_of
from dlog.writer.ready import ReadyLedger, ReadyState
from dlog.writer.segments import standby_ledger
from dlog.writer.takeover import StoodBy, refuse_unless_open

_log = logging.getLogger("dlog.standby")

LOOK_MS = 1_000  # watches are hints: look again this often
CREATE_TRIES = 10  # of a log that others make and remove meanwhile
TRY_AGAIN_S = 1.0  # at most, behind an error: within this it goes on once the trouble ends


@dataclass(frozen=True, slots=True)
class Post:
    """Who stands by, and where."""

    name: str
    layout: Layout
    token: str
    now_us: Callable[[], int]
    chance: Chance

    @property
    def path(self) -> str:
        return self.layout.log(self.name)


class StandbyCore:
    def __init__(self, post: Post) -> None:
        self.post = post
        self.ready = ReadyLedger()
        self.seen: Seen | None = None
        self.failed: DlogError | None = None  # the ready ledger's appender, while it waited
        self.stopped = False
        self.taking_over = False
        self.own_token: str | None = (
            None  # of the writer that it became: no other one is waited for
        )
        self.trouble: Wait | None = None  # the last try to have a ledger ready failed

    # --- what it knows

    @property
    def meta(self) -> LogMeta:
        assert self.seen is not None
        return self.seen.meta

    @property
    def is_ready(self) -> bool:
        return self.seen is not None and self.failed is None and self.ready.fits(self.meta)

    def brings(self) -> StoodBy:
        assert self.seen is not None
        ready = self.ready if self.failed is None else ReadyLedger()
        return StoodBy(ready, self.seen)

    def is_stopped(self) -> bool:
        return self.stopped

    def on_failed(self, error: DlogError) -> None:
        """The ready ledger takes nothing more: another one is made at the next look."""
        self.failed = error

    # --- at the beginning

    def begin(self, create: LogOptions | None, new_uid: str) -> Procedure[None]:
        """Find the log, or make it, and have a ledger ready."""
        yield from self._find(create, new_uid)
        yield from self.prepare()

    def _find(self, create: LogOptions | None, new_uid: str) -> Procedure[None]:
        post = self.post
        for attempt in range(CREATE_TRIES):
            try:
                yield from self.look()
                return
            except NotFound:
                if create is None:
                    raise
            try:
                yield from self._create(create, new_uid)
            except (AlreadyExists, Conflict, NotFound) as error:
                _log.debug("log %s: somebody else made it: %s", post.name, error)
            yield Pause(backoff_s(attempt, post.chance))
        yield from self.look()

    def _create(self, create: LogOptions, new_uid: str) -> Procedure[None]:
        path = self.post.path
        try:
            seen = yield from read_log(path)
        except NotFound:
            fresh = LogMeta(uid=new_uid, options=create)
            yield CreateNode(path, fresh.to_bytes())
            return
        if seen.meta.state is LogState.DELETED:
            reborn = seen.meta.reborn(new_uid, create)
            yield ReplaceNode(path, reborn.to_bytes(), seen.version)

    # --- standing by

    def stand_by(self) -> Procedure[None]:
        """Until it is told to stop, or the log is gone. Whatever else fails is tried again."""
        attempt = 0
        while not self.is_stopped():
            try:
                yield WaitNode(self.post.path, LOOK_MS)
                if self.is_stopped():
                    return
                yield from self.look()
                if self.is_stopped():
                    return
                yield from self.prepare()
                attempt, self.trouble = 0, None
            except (NotFound, Unsupported, Moved):
                raise
            except DlogError as error:
                if error.handle is Handle.DEAD:
                    raise
                if attempt == 0:
                    _log.warning("log %s: the standby is not ready: %s", self.post.name, error)
                attempt += 1
                told = f"no ledger is ready, which is tried again: {error}"
                self.trouble = Wait(ReasonCode.LEDGER_CREATION, told, told_of(error))
                yield Pause(self._pause_s(attempt), wait=self.trouble)

    def _pause_s(self, attempt: int) -> float:
        return backoff_s(attempt, self.post.chance, base_s=0.05, limit_s=TRY_AGAIN_S)

    def look(self) -> Procedure[None]:
        """The newest log meta. `NotFound` when the log was removed, or is another one by now."""
        post = self.post
        try:
            seen = yield from read_log(post.path, point="standby.read")
        except NotFound:
            raise NotFound(f"there is no log {post.name!r}", log=post.name) from None
        refuse_unless_open(seen.meta, post.name)
        if self.seen is not None and self.seen.meta.uid != seen.meta.uid:
            raise NotFound(f"the log {post.name!r} was removed", log=post.name)
        if self.seen is None or self.seen.version <= seen.version:  # two may look at once
            self.seen = seen

    def prepare(self) -> Procedure[None]:
        """A ledger that the log, as it was last seen, may list."""
        if self.is_ready:
            return
        held = self.ready.state not in (ReadyState.NONE, ReadyState.READY)
        check(not (held and self.taking_over), "a ledger on offer is not replaced")
        yield from self._drop("standby.replaced")
        self.failed = None
        meta = self.meta
        ledger_id = yield from standby_ledger(
            meta, token=self.post.token, now_us=self.post.now_us()
        )
        self.ready.made(ledger_id, meta)

    # --- the writer's presence

    def until_vacant(self) -> Procedure[None]:
        """Until nobody is there who writes: nobody holds the log, or its holder's presence is gone.
        While metadata is away nobody can tell, and it waits on. Advice only."""
        attempt = 0
        while True:
            try:
                if (yield from self.is_vacant()):
                    return
                holder = self.meta.writer
                if holder is not None:
                    yield WaitNode(self._presence(holder), LOOK_MS)
                attempt = 0
            except DlogError as error:
                if error.retry is not Retry.NOW:
                    raise
                attempt += 1
                yield Pause(self._pause_s(attempt))

    def is_vacant(self) -> Procedure[bool]:
        yield from self.look()
        holder = self.meta.writer
        if holder is None or holder.token == self.own_token:
            return True
        try:
            yield ReadNode(self._presence(holder))
        except NotFound:
            return True
        return False

    def _presence(self, holder: WriterMark) -> str:
        return self.post.layout.presence(self.post.name, holder.token)

    # --- the end

    def leave(self) -> Procedure[None]:
        """Delete what nobody will list. What may be listed stays."""
        yield from self._drop("")

    def _drop(self, point: str) -> Procedure[None]:
        offered = self.ready.ledger_id if self.ready.state is ReadyState.OFFERED else None
        gone = self.ready.let_go()
        if offered is not None:
            yield LetGo(offered)
        if gone is not None:
            yield DeleteLedger(gone, point=point)
