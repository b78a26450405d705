"""A bookie at work: when it does what, and how it fails. `bookie` is what it knows; here are time,
the journal's rhythm and the faults of one server.

Requests of one connection arrive in their order; answers leave as soon as they are ready, so reads
overtake adds, and refusals overtake acknowledgements. Adds are acknowledged when their group of the
journal was synced, a fencing read that found something when the fence was. A server that is
stopped hears nothing until it goes on, and then everything; one that is killed loses what was not
synced, and its connections; while it starts it accepts connections and resets them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from dlog.testing.sim.bookie import LAST_ENTRY, Mode, SimBookie, Watch
from dlog.testing.sim.world import World
from dlog.wire.bookie_codes import Answer

WARM_UP_MS = 20.0  # of a start; real ones take seconds


@dataclass(slots=True)
class Manners:
    """How bookies of one history behave. Rates are per request; 0 is off."""

    serve_ms: float = 0.2
    journal_ms: float = 2.0
    busy: float = 0.0  # refuses an add in the middle of a burst (106)
    io_failed: float = 0.0
    read_failed: float = 0.0
    never: float = 0.0  # an acknowledgement that is not sent
    twice: float = 0.0
    late: float = 0.0  # … thirty times as late
    disordered: float = 0.0
    broken: float = 0.0  # bytes of a read
    short: float = 0.0  # batches that end before they must
    low: float = 0.0  # "the last entry" that is not
    watch_lost: float = 0.0
    wrong: float = 0.0  # a read brings another entry
    lies: float = 0.0  # a poll tells a higher LAC than anything proves


class AddRequest(NamedTuple):
    entry_id: int
    raw: bytes
    key: bytes
    is_recovery: bool


class Caller(Protocol):
    """The server's end of a connection."""

    is_up: bool

    def answer(self, what: Callable[[], None]) -> None:
        """Travels to the client and is done there, unless the connection breaks first."""
        ...

    def reset(self) -> None: ...


AddsAnswered = Callable[[Answer, list[int]], None]


@dataclass(slots=True)
class _Promise:
    """An acknowledgement that waits for the journal."""

    caller: Caller
    tell: AddsAnswered
    ledger_id: int
    entry_ids: list[int]


@dataclass(slots=True)
class Poll:
    """A long poll, with what it waits past."""

    ledger_id: int
    waits_past: int
    timeout_ms: float
    answered: Callable[[Answer, int, bytes | None, int], None]


@dataclass(slots=True, eq=False)
class Server:
    world: World
    bookie: SimBookie
    manners: Manners
    slow: float = 1.0
    is_stopped: bool = False  # SIGSTOP
    is_warming: bool = False
    callers: list[Caller] = field(default_factory=list)
    _pile: list[Callable[[], None]] = field(default_factory=list)
    _promises: list[_Promise] = field(default_factory=list)
    _behind_fence: list[Callable[[], None]] = field(default_factory=list)
    _syncs: bool = False

    @property
    def bookie_id(self) -> str:
        return self.bookie.bookie_id

    @property
    def serves(self) -> bool:
        return self.bookie.is_up and not self.is_warming

    def hear(self, caller: Caller, request: Callable[[], None]) -> None:
        """A request arrived."""
        if not caller.is_up:
            return
        if self.is_stopped:
            self._pile.append(lambda: self.hear(caller, request))
        elif self.serves:
            request()
        else:
            caller.reset()

    # --- requests

    def add(
        self, caller: Caller, ledger_id: int, adds: Sequence[AddRequest], tell: AddsAnswered
    ) -> None:
        world, manners = self.world, self.manners
        taken: list[int] = []
        for entry_id, raw, key, is_recovery in adds:
            if world.strikes(manners.busy, "an add is refused"):
                answer = Answer.BUSY
            elif world.strikes(manners.io_failed, "an add meets a bad disk"):
                answer = Answer.IO_FAILED
            else:
                answer = self.bookie.add(ledger_id, entry_id, raw, key=key, is_recovery=is_recovery)
            if answer is Answer.OK:
                taken.append(entry_id)
            else:
                self._answer(caller, partial(tell, answer, [entry_id]))
        if taken:
            self._promises.append(_Promise(caller, tell, ledger_id, taken))
            self._sync_soon()

    def read(
        self,
        caller: Caller,
        ledger_id: int,
        entry_id: int,
        fence_key: bytes | None,
        tell: Callable[[Answer, bytes | None], None],
    ) -> None:
        refusal = self._refusal()
        if refusal is not None:
            self._answer(caller, lambda: tell(refusal, None))
            return
        answer, raw = self.bookie.read(ledger_id, entry_id, fence_key=fence_key)
        if raw is not None and entry_id == LAST_ENTRY:
            raw = self._maybe_lower(ledger_id, raw)
        if raw is not None:
            raw = self._maybe_broken(self._maybe_wrong(ledger_id, raw))
        self._answer_fenced(caller, fence_key, answer, lambda: tell(answer, raw))

    def batch_read(
        self,
        caller: Caller,
        ledger_id: int,
        first_entry: int,
        count_max: int,
        frame_bytes_max: int,
        fence_key: bytes | None,
        tell: Callable[[Answer, list[bytes]], None],
    ) -> None:
        refusal = self._refusal()
        if refusal is not None:
            self._answer(caller, lambda: tell(refusal, []))
            return
        answer, found = self.bookie.batch_read(
            ledger_id,
            first_entry,
            count_max=count_max,
            frame_bytes_max=frame_bytes_max,
            fence_key=fence_key,
        )
        if len(found) > 1 and self.world.strikes(self.manners.short, "a batch ends early"):
            found = found[: 1 + self.world.chance.randrange(len(found) - 1)]
        found = [self._maybe_broken(self._maybe_wrong(ledger_id, raw)) for raw in found]
        self._answer_fenced(caller, fence_key, answer, lambda: tell(answer, found))

    def write_lac(
        self,
        caller: Caller,
        ledger_id: int,
        last_confirmed: int,
        proof: bytes,
        key: bytes,
        tell: Callable[[Answer], None],
    ) -> None:
        answer = self.bookie.write_lac(ledger_id, last_confirmed, proof, key)
        if answer is not Answer.OK:
            self._answer(caller, lambda: tell(answer))
            return
        self._promises.append(_Promise(caller, lambda told, _: tell(told), ledger_id, []))
        self._sync_soon()

    def read_lac(
        self,
        caller: Caller,
        ledger_id: int,
        tell: Callable[[Answer, bytes | None, bytes | None], None],
    ) -> None:
        refusal = self._refusal()
        if refusal is not None:
            self._answer(caller, lambda: tell(refusal, None, None))
            return
        answer, proof, last = self.bookie.read_lac(ledger_id)
        if last is not None:
            last = self._maybe_broken(last)
        self._answer(caller, lambda: tell(answer, proof, last))

    def poll(self, caller: Caller, poll: Poll) -> None:
        is_over = False

        def end() -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            self.bookie.unwatch(poll.ledger_id, watch)
            told = self._maybe_lie(self.bookie.polled(poll.ledger_id, poll.waits_past))
            self._answer(caller, lambda: poll.answered(*told))

        watch = Watch(poll.waits_past, end)
        if self.world.strikes(self.manners.watch_lost, "a long poll is forgotten"):
            return
        if self.bookie.watch(poll.ledger_id, watch):
            self.world.after(poll.timeout_ms, end)
        else:
            end()

    # --- life

    def kill(self) -> None:
        """-9. Whatever part of the journal was on its way may have reached the disk."""
        pending = len(self.bookie.unsynced)
        kept = self.world.chance.randrange(pending + 1) if pending else 0
        self._end(f"{self.bookie_id} is killed", lambda: self.bookie.kill(kept))

    def lose_disks(self, *, is_noticed: bool, last_ledger: int) -> None:
        how = "and knows" if is_noticed else "and does not know"
        self._end(
            f"{self.bookie_id} loses its disks {how}",
            lambda: self.bookie.wipe(is_noticed=is_noticed, last_ledger=last_ledger),
        )

    def terminate(self) -> None:
        self._end(f"{self.bookie_id} is shut down", self.bookie.stop)

    def start(self) -> None:
        if self.bookie.is_up:
            return
        self.world.note(f"{self.bookie_id} starts")
        self.bookie.start()
        self.is_warming = True
        incarnation = self.bookie.incarnation
        self.world.after(WARM_UP_MS, lambda: self._warm(incarnation))

    def stop(self) -> None:
        """SIGSTOP."""
        if self.bookie.is_up and not self.is_stopped:
            self.world.note(f"{self.bookie_id} is stopped")
            self.is_stopped = True

    def go_on(self) -> None:
        """SIGCONT: it does all that it was sent."""
        if not self.is_stopped:
            return
        self.world.note(f"{self.bookie_id} goes on")
        self.is_stopped = False
        pile, self._pile = self._pile, []
        for heard in pile:
            heard()

    def turn(self, mode: Mode) -> None:
        if self.bookie.mode is not mode:
            self.world.note(f"{self.bookie_id} is {mode.value}")
            self.bookie.mode = mode

    def heal(self) -> None:
        """All is well from here on."""
        self.slow = 1.0
        self.go_on()
        self.turn(Mode.WRITABLE)
        self.start()
        if self._syncs:  # one that was slow as the bookie was
            self._syncs = False
            self._sync_soon()

    # --- inside

    def _warm(self, incarnation: int) -> None:
        if self.bookie.incarnation == incarnation:
            self.is_warming = False

    def _end(self, what: str, end: Callable[[], None]) -> None:
        if not self.bookie.is_up:
            return
        self.world.note(what)
        self.is_stopped = False
        self._pile.clear()
        end()
        self._syncs = False
        self._promises.clear()
        self._behind_fence.clear()
        for caller in list(self.callers):
            caller.reset()

    def _refusal(self) -> Answer | None:
        if self.world.strikes(self.manners.io_failed, "a read meets a bad disk"):
            return Answer.IO_FAILED
        if self.world.strikes(self.manners.read_failed, "a read fails"):
            return Answer.IO_FAILED
        if self.world.strikes(self.manners.busy, "a read is refused"):
            return Answer.BUSY
        return None

    def _maybe_lower(self, ledger_id: int, raw: bytes) -> bytes:
        if not self.world.strikes(self.manners.low, "another entry is called the last"):
            return raw
        entries = sorted(self.bookie.ledgers[ledger_id].entries.items())
        return entries[self.world.chance.randrange(len(entries))][1].raw

    def _maybe_wrong(self, ledger_id: int, raw: bytes) -> bytes:
        if not self.world.strikes(self.manners.wrong, "another entry comes back"):
            return raw
        entries = list(self.bookie.ledgers[ledger_id].entries.values())
        return entries[self.world.chance.randrange(len(entries))].raw

    def _maybe_lie(
        self, told: tuple[Answer, int, bytes | None, int]
    ) -> tuple[Answer, int, bytes | None, int]:
        answer, entry_id, raw, lac = told
        if answer is Answer.OK and self.world.strikes(self.manners.lies, "a LAC is made up"):
            lac += 1 + self.world.chance.randrange(3)
        return answer, entry_id, raw, lac

    def _maybe_broken(self, raw: bytes) -> bytes:
        if not self.world.strikes(self.manners.broken, "an entry comes back damaged"):
            return raw
        at = self.world.chance.randrange(len(raw))
        return raw[:at] + bytes([raw[at] ^ 1 << self.world.chance.randrange(8)]) + raw[at + 1 :]

    def _sync_soon(self) -> None:
        if self._syncs:
            return
        self._syncs = True
        incarnation = self.bookie.incarnation
        delay_ms = self.world.chance.delay(self.manners.journal_ms * self.slow, "a sync")
        self.world.after(delay_ms, lambda: self._sync(incarnation))

    def _sync(self, incarnation: int) -> None:
        if self.is_stopped and self.bookie.incarnation == incarnation:
            self._pile.append(lambda: self._sync(incarnation))
            return
        if self.bookie.incarnation != incarnation:
            return
        self._syncs = False
        self.bookie.sync()
        promises, self._promises = self._promises, []
        if len(promises) > 1 and self.world.strikes(self.manners.disordered, "acks change places"):
            promises.reverse()
        for promise in promises:
            self._acknowledge(promise)
        waiting, self._behind_fence = self._behind_fence, []
        for tell in waiting:
            tell()

    def _acknowledge(self, promise: _Promise) -> None:
        manners, caller = self.manners, promise.caller
        if self.world.strikes(manners.never, "an ack is never sent"):
            return

        def told() -> None:
            promise.tell(Answer.OK, promise.entry_ids)

        self._answer(caller, told)
        if self.world.strikes(manners.twice, "an ack comes twice"):
            self._answer(caller, told)

    def _answer_fenced(
        self, caller: Caller, fence_key: bytes | None, answer: Answer, tell: Callable[[], None]
    ) -> None:
        """A fence that found something is told when it is durable."""
        if fence_key is not None and answer is Answer.OK and self.bookie.unsynced:
            self._behind_fence.append(lambda: self._answer(caller, tell))
            self._sync_soon()
        else:
            self._answer(caller, tell)

    def _answer(self, caller: Caller, tell: Callable[[], None]) -> None:
        manners = self.manners
        mean_ms = manners.serve_ms * self.slow
        if self.world.strikes(manners.late, "an answer is late"):
            mean_ms *= 30
        self.world.after(self.world.chance.delay(mean_ms), lambda: caller.answer(tell))
