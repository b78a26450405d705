"""A connection that speaks the protobuf protocol: every question has a number, and its answer,
too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dlog.errors import Corrupt, check
from dlog.ledger.bookkeeper.core.connection import Connection, Note, Send
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_frame import FrameRun
from dlog.wire.bookie_v3 import Operation, operation_of
from dlog.wire.bookie_v3_replies import Response, parse_response

_V3_BYTE = 0x0A  # behind a frame's length: tells the protocols apart


class _Ask:
    __slots__ = ("deadline_s", "on_answer", "operation")

    def __init__(
        self, operation: Operation, deadline_s: float, on_answer: Callable[[Response], None]
    ) -> None:
        self.operation = operation
        self.deadline_s = deadline_s
        self.on_answer = on_answer


class ControlConnection(Connection):
    """The protobuf protocol."""

    def __init__(self, where: str, *, send: Send, note: Note) -> None:
        super().__init__(where, send, note)
        self._asks: dict[int, _Ask] = {}
        self._txn_id = 0

    def ask(
        self,
        pack: Callable[[int], bytes],
        *,
        deadline_s: float,
        on_answer: Callable[[Response], None],
    ) -> None:
        """Only when there is no `refusal`."""
        txn_id = self._txn_id + 1
        frame = pack(txn_id)
        check(frame[4] == _V3_BYTE, "a control link speaks the protobuf protocol")
        self._txn_id = txn_id
        self._asks[txn_id] = _Ask(operation_of(frame), deadline_s, on_answer)
        self._send(frame)

    def refused(self, pack: Callable[[int], bytes], refusal: Answer) -> Response:
        """The answer to what is not even asked."""
        return Response(0, operation_of(pack(0)), refusal, None)

    def _take(self, run: FrameRun) -> None:
        for body in run.bodies():
            response = parse_response(body, self.where)
            ask = self._asks.get(response.txn_id)
            if ask is None:
                self.strays["response"] += 1
                continue
            if response.operation is not ask.operation:
                raise Corrupt(
                    f"{self.where}: {ask.operation.name} was answered as {response.operation.name}"
                )
            del self._asks[response.txn_id]
            if response.answer is not Answer.OK:
                self._note(response.answer)
            ask.on_answer(response)
            if not self.is_up:
                return

    def is_idle(self) -> bool:
        return not self._asks

    def sweep(self, now_s: float) -> bool:
        """Always True: nothing is owed where answers have numbers."""
        late = [txn_id for txn_id, ask in self._asks.items() if ask.deadline_s <= now_s]
        for txn_id in late:
            ask = self._asks.pop(txn_id, None)
            if ask is not None:
                self._note(Answer.TIMED_OUT)
                ask.on_answer(Response(txn_id, ask.operation, Answer.TIMED_OUT, None))
        return True

    def _waiting(self) -> int:
        return len(self._asks)

    def _endings(self, answer: Answer) -> list[Callable[[], None]]:
        asks, self._asks = self._asks, {}
        return [
            partial(ask.on_answer, Response(txn_id, ask.operation, answer, None))
            for txn_id, ask in asks.items()
        ]
