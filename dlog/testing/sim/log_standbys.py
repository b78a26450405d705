"""A simulated standby: the production procedures of `dlog.standby.core`, driven as `Standby` drives
them, and then a writer as any other. Its loop is told to stop before a takeover; a ledger that it
is just making is left to be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlog.effects import Procedure
from dlog.errors import (
    AuthError,
    Conflict,
    DlogError,
    Fenced,
    NotFound,
    Outcome,
    Timeout,
    Unsupported,
    WriterClosed,
)
from dlog.meta.listed import WriterMark
from dlog.standby.core import Post, StandbyCore
from dlog.testing.sim.clients import Scene
from dlog.testing.sim.log_oracle import LAYOUT, NAME
from dlog.testing.sim.log_readers import may_be_told
from dlog.testing.sim.log_writers import SimWriter
from dlog.testing.sim.world import require
from dlog.writer.ready import ReadyState
from dlog.writer.takeover import Opened, take_over

TRIES_MAX = 3  # takeovers that others were faster at
STAND_MS = 60.0  # before the first
CUT_SHORT = 0.2  # of the takeovers run out of time
CUT_MS = 10.0


class SimStandby(SimWriter):
    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(scene, name)
        self.standby = StandbyCore(Post(NAME, LAYOUT, self.token(), self.now_us, self))
        self._stands = False  # its loop goes on
        self._tries = 0
        self._policy: str | None = None

    def open(self, then: Callable[[], None] = lambda: None, *, policy: str | None = None) -> None:
        """Stands by, and takes over after a while; `then` runs once it is a writer, or gave up."""
        self._then = then
        self._policy = policy
        self.run(self.standby.begin(self.scene.quorum, self.token()), self._begun_to_stand)

    def _begun_to_stand(self, _: Any, error: DlogError | None) -> None:
        if error is not None:
            self._give_up(error)
            return
        self._stand()
        self.after(self.world.chance.delay(STAND_MS), self.take)

    def _stand(self) -> None:
        self.standby.stopped = False
        if not self._stands:
            self._stands = True
            self.run(self.standby.stand_by(), self._stood)

    def _stood(self, _: Any, error: DlogError | None) -> None:
        self._stands = False
        if isinstance(error, WriterClosed):  # let go by our writer: here both hold theirs in one
            error = None
            if not self.standby.stopped:
                self._stand()
        if error is not None:
            self._judge(error, NotFound)
        if error is not None and self.handle is None and not self.standby.stopped:
            self._give_up(error)

    def _judge(self, error: DlogError, *expected: type[DlogError]) -> None:
        """It stands by through whatever passes; else the log is gone, or somebody has it."""
        honest = isinstance(error, expected) or may_be_told(self.scene, error)
        honest |= isinstance(error, AuthError) and self.scene.ledgers.has_forgotten
        honest |= isinstance(error, Unsupported) and self.scene.oracle.was_terminated
        require(honest, "I17", "a standby was told", self.name, error)

    def take(self) -> None:
        """Now, or once nobody is there who writes."""
        if self.error is not None:
            return
        policy = self._policy or self.options.takeover
        if policy == "wait":
            self.run(self.standby.until_vacant(), lambda _, error: self._take("if_dead", error))
        else:
            self._take(policy, None)

    def _take(self, policy: str, error: DlogError | None) -> None:
        if error is not None:  # whatever passes is waited for
            gone = isinstance(error, NotFound)
            gone |= isinstance(error, Unsupported) and self.scene.oracle.was_terminated
            require(gone, "I17", "who waits for a vacancy was told", self.name, error)
            self._give_up(error)
        elif self.error is None:
            self._tries += 1
            self.standby.stopped = self.standby.taking_over = True
            self._stood_by = self.standby.brings()
            self._mark = WriterMark(self.token(), self.name, 0)
            self.world.mark("a standby takes over")
            if self.world.strikes(CUT_SHORT, "a takeover is cut short"):
                cut_at_ms = self.world.now_ms + self.world.chance.delay(CUT_MS)
                opening = self.opening(policy)
                self.run(self._cut_short(take_over(opening), cut_at_ms), self._taken_over)
            else:
                self.take_over(policy)

    def _cut_short(self, procedure: Procedure[Opened], at_ms: float) -> Procedure[Opened]:
        """As a time-out does: what was asked goes on, and its answer is heard by nobody."""
        answer: Any = None
        error: DlogError | None = None
        while True:
            try:
                effect = procedure.send(answer) if error is None else procedure.throw(error)
            except StopIteration as stop:
                opened: Opened = stop.value
                return opened
            answer = error = None
            try:
                answer = yield effect
            except DlogError as caught:
                error = caught
            if self.world.now_ms >= at_ms:
                procedure.close()
                raise Timeout("the takeover took too long", outcome=Outcome.UNKNOWN)

    def _open_failed(self, error: DlogError | None) -> None:
        """Somebody was faster: it stands by again, and tries again."""
        self._opening_ledger = None
        self.standby.taking_over = False
        if isinstance(error, (Conflict, Fenced, Timeout)) and self._tries < TRIES_MAX:
            self.world.mark("a standby stands by again")
            self.core = None
            self._buried = False
            self._stand()
            self.after(self.world.chance.delay(STAND_MS), self.take)
        else:
            self._give_up(error)

    def _give_up(self, error: DlogError | None) -> None:
        self.standby.stopped = True
        if error is not None:
            self._judge(error, NotFound, Conflict, Fenced)
        if self.error is None:
            self.error = error
            self.run(
                self.standby.leave(),
                lambda _, error: super(SimStandby, self)._open_failed(self.error),
            )

    def _has_opened(self) -> None:
        self.standby.taking_over = False
        if self.standby.ready.state is ReadyState.GIVEN:
            self.world.mark("a ready ledger was taken")
        self.run(self.standby.leave(), lambda _, error: None)
        super()._has_opened()

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        if self.core is None and ledger_id == self.standby.ready.ledger_id:
            self.standby.on_failed(error)
        super().on_failed(ledger_id, error)
