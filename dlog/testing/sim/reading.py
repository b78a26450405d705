"""The simulated driver of a reader: what `reader`, `tail_watch` and `entry_fetch` of
`dlog.ledger.bookkeeper` do, with flows where those have coroutines.

`SimReader` answers what a reader of one ledger is asked: what may be read, entries, and whether
there is more. Everything it says or delivers goes by the oracle first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dlog.errors import (
    ConfigError,
    Corrupt,
    DlogError,
    NotFound,
    ReaderClosed,
    Timeout,
    Unavailable,
)
from dlog.ledger.bookkeeper.core.tail_read import (
    POLL_MS,
    LacRound,
    Poll,
    TailRead,
    read_lac_answer,
)
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.limits import READ_TIMEOUT_MS_DEFAULT
from dlog.testing.sim.fetching import SimFetch
from dlog.testing.sim.flow import Answered, Flow, Pending, any_of, run
from dlog.testing.sim.links import SimLink
from dlog.testing.sim.surroundings import Surroundings, keys_of
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v3_replies import ReadBody, ReadLacBody
from dlog.wire.ledger_metadata import LedgerState

LAC_TIMEOUT_MS = float(READ_TIMEOUT_MS_DEFAULT)
POLL_TIMEOUT_MS = POLL_MS + 1_000.0
METADATA_GRACE_MS = 2_000.0
LOOK_AGAIN_MS = 10_000.0
RETRY_MS = 200.0
RUN_BYTES = 1 << 20


class SimReader:
    def __init__(self, around: Surroundings, stored: StoredLedger) -> None:
        self.ledger_id = stored.ledger_id
        self.core = TailRead(stored.ledger_id, stored.metadata)
        self.metadata_away = False
        self._around = around
        self._world = around.world
        self._digest, _ = keys_of(stored.metadata)
        self._fetch = SimFetch(around, stored.ledger_id, self._digest)
        self._closed = False
        self._watches = False
        self._probing: Pending | None = None
        self._looked_at_ms = self._world.now_ms
        self._waiters: list[Callable[[], None]] = []

    # --- what it is asked

    def last_readable(self, answer: Answered) -> None:
        at_least = -1 if self.metadata_away else self._around.audit.readable_now(self.ledger_id)

        def told(readable: Any, error: DlogError | None) -> None:
            if error is None and self.core.is_deleted:
                gone = f"ledger {self.ledger_id} was deleted"
                readable, error = None, NotFound(gone, ledger_id=self.ledger_id)
            answer(readable, error)

        run(self._last_readable(), self._told(told, at_least))

    def wait_past(self, last_entry: int, timeout_ms: float, answer: Answered) -> None:
        run(self._wait_past(last_entry, timeout_ms), self._told(answer))

    def read(
        self, first_entry: int, last_entry: int, answer: Answered, *, bytes_max: int = RUN_BYTES
    ) -> None:
        def told(payloads: Any, error: DlogError | None) -> None:
            if error is None:
                self._around.audit.on_read(self.ledger_id, first_entry, payloads)
            answer(payloads, error)

        run(self._read(first_entry, last_entry, bytes_max), told)

    def info(self, answer: Answered) -> None:
        run(self._look(), answer)

    def close(self) -> None:
        self._closed = True
        self._wake()

    def _told(self, answer: Answered, at_least: int = -1) -> Answered:
        def told(readable: Any, error: DlogError | None) -> None:
            if error is None:
                self._audit(-1 if self.metadata_away else at_least)
            answer(readable, error)

        return told

    def _audit(self, at_least: int = -1) -> None:
        core = self.core
        if not core.is_deleted:
            is_closed = core.metadata.state is LedgerState.CLOSED
            self._around.audit.on_readable(
                self.ledger_id, core.readable, is_closed=is_closed, at_least=at_least
            )

    # --- metadata

    def _look(self) -> Flow[StoredLedger]:
        """Metadata, not older than the call."""
        nodes, around = self._around.nodes, self._around
        try:
            stored: StoredLedger = yield lambda answer: nodes.read(
                around.client, self.ledger_id, answer, fresh=True
            )
        except NotFound:
            self.metadata_away = False
            self.core.on_deleted()
            raise
        except (Unavailable, Timeout):
            self.metadata_away = True
            raise
        finally:
            self._looked_at_ms = self._world.now_ms
            self._wake()
        self.metadata_away = False
        self.core.on_metadata(stored.metadata)
        return stored

    def _try_look(self) -> Flow[DlogError | None]:
        try:
            yield from self._look()
        except DlogError as error:
            return error
        return None

    def _probe(self) -> None:
        if self._probing is None or self._probing.is_done:
            self._looked_at_ms = self._world.now_ms
            self._probing = Pending(self._try_look())

    def _look_briefly(self) -> Flow[None]:
        if self.metadata_away:
            self._probe()
        else:
            yield from self._wait_for(Pending(self._try_look()), METADATA_GRACE_MS)

    def _wait_for(self, look: Pending, timeout_ms: float | None) -> Flow[None]:
        yield any_of(look, timeout_ms=timeout_ms, after=self._around.after)
        self._check_open()
        if not look.is_done:
            self.metadata_away = True
            self._probing = look
            return
        error = look.value
        if error is not None and not isinstance(error, (NotFound, Unavailable, Timeout)):
            raise error

    # --- the question

    def _last_readable(self) -> Flow[int]:
        """Metadata and bookies are asked at once: metadata says whether the right bookies were
        asked, and whether their answer counts."""
        self._check_open()
        core = self.core
        if self.metadata_away:
            self._probe()
        look = None if self.metadata_away else Pending(self._try_look())
        ensemble = core.metadata.fragments[-1].ensemble
        lacs = None if core.is_ended else Pending(self._try_ask_lacs())
        if look is not None:
            if lacs is not None:
                yield any_of(look, lacs)
                self._check_open()
            has_answers = lacs is None or (lacs.is_done and lacs.value is None)
            yield from self._wait_for(look, METADATA_GRACE_MS if has_answers else None)
        if lacs is not None and not core.is_ended:
            if ensemble == core.metadata.fragments[-1].ensemble:
                yield any_of(lacs)
                self._check_open()
            yield from self._take_lacs(lacs, ensemble)
        return core.readable

    def _take_lacs(self, lacs: Pending, asked: tuple[str, ...]) -> Flow[None]:
        """Metadata may have come back in the meantime, and know better."""
        if self.core.is_ended:
            return
        if asked != self.core.metadata.fragments[-1].ensemble:
            yield from self._ask_lacs()
        elif lacs.value is not None:
            raise lacs.value

    def _try_ask_lacs(self) -> Flow[DlogError | None]:
        try:
            yield from self._ask_lacs()
        except DlogError as error:
            return error
        return None

    def _ask_lacs(self) -> Flow[None]:
        round = LacRound(self.core.metadata, ledger_id=self.ledger_id)

        def asking(answer: Answered) -> None:
            is_over = False

            def heard(place: int, bookie_id: str, told: Answer, body: ReadLacBody | None) -> None:
                nonlocal is_over
                lac = read_lac_answer(
                    told, body, ledger_id=self.ledger_id, digest=self._digest, where=bookie_id
                )
                round.on_answer(place, lac)
                self.core.on_lac_answer(bookie_id, lac, self._around.now_s)
                if round.is_over and not is_over:
                    is_over = True
                    answer(None, None)

            for place, bookie_id in enumerate(round.bookies):
                self._ask_lac(bookie_id, partial(heard, place, bookie_id))

        yield asking
        self._check_open()
        if not round.is_covered:
            raise round.error()

    def _ask_lac(self, bookie_id: str, told: Callable[[Answer, ReadLacBody | None], None]) -> None:
        def answered(answer: Answer, proof: bytes | None, last: bytes | None) -> None:
            told(answer, ReadLacBody(self.ledger_id, _view(proof), _view(last)))

        def ask(link: SimLink | None) -> None:
            if link is None:
                told(Answer.DISCONNECTED, None)
            else:
                link.ask_lac(self.ledger_id, answered, timeout_ms=LAC_TIMEOUT_MS)

        self._around.with_link(bookie_id, ask)

    # --- waiting

    def _wait_past(self, last_entry: int, timeout_ms: float) -> Flow[int]:
        core, around = self.core, self._around
        deadline_s = around.now_s + timeout_ms / 1000
        was_in_recovery = core.is_in_recovery
        if not core.is_heard(around.now_s):
            try:
                readable = yield from self._last_readable()
            except (Unavailable, Timeout):
                if around.now_s >= deadline_s:
                    raise
            else:
                if around.now_s >= deadline_s:
                    return readable
        if not core.is_ended and not self._watches:
            self._watches = True
            run(self._watch_metadata(), lambda value, error: None)
        while True:
            self._check_open()
            fenced_now = core.is_in_recovery and not was_in_recovery
            if core.readable > last_entry or core.is_ended or fenced_now:
                return core.readable
            if around.now_s >= deadline_s:
                return (yield from self._last_readable())
            self._send(around.now_s)
            wait_s = max(0.0, min(deadline_s, core.look_again_s()) - around.now_s)
            yield partial(self._heard, wait_s * 1000)

    def _heard(self, timeout_ms: float, answer: Answered) -> None:
        """Something came, or the time is over."""
        is_over = False

        def once() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                answer(None, None)

        self._waiters.append(once)
        self._around.after(timeout_ms, once)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            self._around.after(0.0, wake)

    def _send(self, now_s: float) -> None:
        if self.core.wants_metadata:
            self.core.wants_metadata = False
            self._probe()
        polls, proofs = self.core.asks(now_s)
        for poll in polls:
            self._send_poll(poll)
        for poll in proofs:
            self._ask_lac(poll.bookie_id, partial(self._on_proof, poll))

    def _send_poll(self, poll: Poll) -> None:
        def answered(answer: Answer, entry_id: int, raw: bytes | None, lac: int) -> None:
            body = ReadBody(self.ledger_id, entry_id, _view(raw), lac, None)
            self._on_poll(poll, answer, body)

        def ask(link: SimLink | None) -> None:
            if link is None:
                self._on_poll(poll, Answer.DISCONNECTED, None)
            else:
                link.ask_poll(
                    self.ledger_id,
                    poll.waits_past,
                    answered,
                    poll_ms=float(POLL_MS),
                    timeout_ms=POLL_TIMEOUT_MS,
                )

        self._around.with_link(poll.bookie_id, ask)

    def _on_poll(self, poll: Poll, answer: Answer, body: ReadBody | None) -> None:
        if self._closed:
            return
        self.core.on_poll(poll, answer, body, self._digest, self._around.now_s)
        self._wake()

    def _on_proof(self, poll: Poll, answer: Answer, body: ReadLacBody | None) -> None:
        if self._closed:
            return
        lac = read_lac_answer(
            answer, body, ledger_id=self.ledger_id, digest=self._digest, where=poll.bookie_id
        )
        self.core.on_proof_answer(poll, lac, self._around.now_s)
        self._audit()
        self._wake()

    def _watch_metadata(self) -> Flow[None]:
        nodes, client = self._around.nodes, self._around.client
        while not self.core.is_ended and not self._closed:
            fired = _Signal()
            nodes.watch(client, self.ledger_id, fired.fire)
            try:
                yield from self._look()
            except NotFound:
                return
            except DlogError:
                yield partial(self._nap, RETRY_MS)
                continue
            if not self.core.is_ended:
                yield partial(fired.wait, self._around.after, LOOK_AGAIN_MS)

    def _nap(self, nap_ms: float, answer: Answered) -> None:
        self._around.after(nap_ms, lambda: answer(None, None))

    # --- entries

    def _read(self, first_entry: int, last_entry: int, bytes_max: int) -> Flow[list[bytes]]:
        self._check_open()
        core = self.core
        if last_entry > core.readable and not core.is_deleted:
            readable = yield from self._last_readable()
            if last_entry > readable and not core.is_deleted:
                if self.metadata_away:
                    raise Unavailable(f"may entry {last_entry} be read? No answer from metadata")
                raise ConfigError(f"entry {last_entry} is not readable; the last one is {readable}")
        if core.is_deleted:
            raise self._deleted()
        self._audit()
        if first_entry == last_entry:
            brought = core.take_brought(first_entry)
            if brought is not None:
                self._world.mark("a poll brought the entry")
                return [bytes(brought)]
        if self._world.now_ms - self._looked_at_ms > LOOK_AGAIN_MS:
            self._probe()
        metadata = core.metadata
        try:
            return (
                yield from self._fetch.read(metadata, first_entry, last_entry, bytes_max=bytes_max)
            )
        except (Unavailable, Corrupt) as error:
            failed = error
        yield from self._look_briefly()
        if core.is_deleted:
            raise self._deleted()
        found = core.metadata
        if found.fragment_of(first_entry).ensemble == metadata.fragment_of(first_entry).ensemble:
            raise failed
        return (yield from self._fetch.read(found, first_entry, last_entry, bytes_max=bytes_max))

    def _deleted(self) -> NotFound:
        return NotFound(f"ledger {self.ledger_id} was deleted", ledger_id=self.ledger_id)

    def _check_open(self) -> None:
        if self._closed:
            raise ReaderClosed(
                f"the reader of ledger {self.ledger_id} was closed", ledger_id=self.ledger_id
            )


class _Signal:
    """Fires once, or the time is over."""

    def __init__(self) -> None:
        self._is_fired = False
        self._waiting: Callable[[], None] | None = None

    def fire(self) -> None:
        self._is_fired = True
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting()

    def wait(
        self,
        after: Callable[[float, Callable[[], None]], None],
        timeout_ms: float,
        answer: Answered,
    ) -> None:
        if self._is_fired:
            after(0.0, lambda: answer(None, None))
            return
        is_over = False

        def once() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                answer(None, None)

        self._waiting = once
        after(timeout_ms, once)


def _view(raw: bytes | None) -> memoryview | None:
    return None if raw is None else memoryview(raw)
