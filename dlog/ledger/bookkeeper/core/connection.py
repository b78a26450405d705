"""One connection to a bookie, without the socket: which answer belongs to which request.

Bytes go in (`receive`), time goes in (`sweep`), the end goes in (`down`); answers go out to whoever
asked, each request's exactly once. A driver owns the socket and the timer, a simulator has neither.

This is what both protocols share; `data_connection` and `control_connection` are the two, and
`pending_reads` is where it gets difficult. An answer that nobody waits for (late, double, or to
something that was never asked) is a stray: it is counted by name and dropped. Bytes that are no
answer at all raise `FormatError` or `Corrupt`, and the connection cannot go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable

from dlog.ledger.store import Buffer
from dlog.limits import LINK_REQUESTS_MAX
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_frame import FrameRun, FrameSplitter

SWEEP_S = 0.05  # how often a driver sweeps while something is in flight

Send = Callable[[Buffer], None]
Note = Callable[[Answer], None]  # of each answer that is not OK, or did not come in time


class Connection(ABC):
    """What both protocols share."""

    def __init__(self, where: str, send: Send, note: Note) -> None:
        self.where = where
        self.is_up = True
        self.end = Answer.DISCONNECTED  # said to whoever asks once it is down
        self.has_answered = False  # anything at all: only then does a bookie serve
        self.strays: Counter[str] = Counter()
        self._splitter = FrameSplitter(where)
        self._send = send
        self._note = note

    def receive(self, chunk: bytes) -> None:
        """The next bytes of the stream. `FormatError` or `Corrupt`: there can be no more."""
        splitter = self._splitter
        splitter.feed(chunk)
        while self.is_up and (run := splitter.next_run()) is not None:
            self._take(run)
            self.has_answered = True

    def refusal(self) -> Answer | None:
        """Why nothing may be asked just now, or None. `BUSY`: we wait for too many answers."""
        if not self.is_up:
            return self.end
        return Answer.BUSY if self._waiting() >= LINK_REQUESTS_MAX else None

    def down(self, answer: Answer) -> None:
        """The end: whatever is in flight is answered with this, and so is what comes later."""
        if not self.is_up:
            return
        self.is_up = False
        self.end = answer
        failures: list[Exception] = []
        for tell in self._endings(answer):
            try:
                tell()
            except Exception as error:  # noqa: BLE001 - the others must hear of it all the same
                failures.append(error)
        if failures:
            raise failures[0]

    @abstractmethod
    def is_idle(self) -> bool:
        """Nothing is in flight, so nobody needs to sweep."""
        ...

    @abstractmethod
    def sweep(self, now_s: float) -> bool:
        """Answer what is out of time. False: the connection is worn out and must go."""
        ...

    @abstractmethod
    def _take(self, run: FrameRun) -> None: ...

    @abstractmethod
    def _waiting(self) -> int: ...

    @abstractmethod
    def _endings(self, answer: Answer) -> list[Callable[[], None]]: ...
