"""One look at a log, by name, without a reader: what its last message is, what became of a
message."""

from __future__ import annotations

from dlog.drive import Stores
from dlog.ids import MessageId, Token
from dlog.reader.feed import look
from dlog.reader.reader import find_tail_id
from dlog.reader.resolve import Resolved, resolve
from dlog.reader.segments import SegmentView


class Looks:
    """At one log. Each look is complete in itself."""

    def __init__(self, stores: Stores, name: str) -> None:
        self._stores = stores
        self._name = name

    async def last_id(self) -> MessageId | None:
        """The last message of the log, None when it holds none."""
        return await find_tail_id(self._stores, self._name)

    async def resolve(self, token: Token, *, only_here: bool = False) -> Resolved:
        view = SegmentView(self._name, self._stores.layout, token.log_uid, tail="strict")
        return await look(self._stores, view, resolve(view, token, only_here=only_here))
