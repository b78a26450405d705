"""The contract of connections to bookies: what appenders, readers and recoveries build on.

A *link* is one connection to one bookie for as long as it lives. It never reconnects: a bookie that
was lost and is reached again is another link, so whoever must look twice at a bookie that came back
sees it by identity. Links are shared by all ledgers of a store, and handed out by `Links`:

- a `DataLink` speaks the binary protocol (v2): adds, reads, batch reads;
- a `ControlLink` speaks protobuf (v3): the LAC written and read, long polls, fences;
- a recovery link is a `DataLink` that carries recoveries only: an answer to an add or to a fencing
  read looks like any other's there, so they must not meet those of an appender or reader.

Nothing here raises for what a bookie did: silence, a lost connection and a refusal all come back as
an `Answer`. Everything has a deadline. All of it belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dlog.ledger.store import Buffer
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v2 import BatchReadReply, ReadReply
from dlog.wire.bookie_v3_replies import Response


class AddSink(Protocol):
    """Hears what a bookie says to the adds of one ledger. Called from the loop, never from inside
    `send_adds`."""

    def on_adds(self, link: DataLink, answer: Answer, entry_ids: list[int]) -> None:
        """One answer to all of these, in the order they came; an entry may come twice."""
        ...

    def on_room(self, link: DataLink) -> None:
        """The link `has_room` again, after a time without."""
        ...

    def on_down(self, link: DataLink, answer: Answer) -> None:
        """The link is gone and whatever was in flight is unknown. Comes once, and is the last."""
        ...


class DataLink(Protocol):
    @property
    def bookie_id(self) -> str: ...

    @property
    def where(self) -> str:
        """For messages: "bookie b1 at 127.0.0.1:3181"."""
        ...

    @property
    def is_up(self) -> bool: ...

    @property
    def has_room(self) -> bool:
        """False while its unsent bytes, or the un-replied adds of all ledgers together, are at
        their limit: send no adds, `on_room` follows. One more call of bounded size never hurts."""
        ...

    def attach(self, ledger_id: int, sink: AddSink) -> None:
        """From now on the sink hears of this ledger. One sink for a ledger and link."""
        ...

    def detach(self, ledger_id: int) -> None:
        """Answers that still come are dropped, and what the ledger had in flight is settled."""
        ...

    def send_adds(self, ledger_id: int, frames: Buffer, *, entries: int, bytes: int) -> None:
        """Whole frames, back to back, of an attached ledger. The same buffer may go to several
        links and must not change. On a link that is down nothing happens (`on_down` told, or will
        tell)."""
        ...

    def settle(self, ledger_id: int, *, entries: int, bytes: int) -> None:
        """The sink counted this much of what it sent as answered."""
        ...

    async def read(
        self, ledger_id: int, entry_id: int, *, timeout_ms: float, fence_key: bytes | None = None
    ) -> ReadReply:
        """One entry; with a `fence_key` on a recovery link only, and at high priority. Reads of the
        same entry wait for each other."""
        ...

    async def batch_read(
        self,
        ledger_id: int,
        first_entry: int,
        *,
        count_max: int,
        frame_bytes_max: int,
        timeout_ms: float,
        fence_key: bytes | None = None,
    ) -> BatchReadReply:
        """A run of entries. The views hold the buffer that they were received into."""
        ...


class ControlLink(Protocol):
    @property
    def bookie_id(self) -> str: ...

    @property
    def where(self) -> str: ...

    @property
    def is_up(self) -> bool: ...

    def ask_soon(
        self,
        pack: Callable[[int], bytes],
        on_answer: Callable[[Response], None],
        *,
        timeout_ms: float,
    ) -> None:
        """Send what `pack` makes of a transaction number. The answer comes exactly once, from the
        loop, never from inside this call; without a body if there was none (`DISCONNECTED`,
        `TIMED_OUT`)."""
        ...

    async def ask(self, pack: Callable[[int], bytes], *, timeout_ms: float) -> Response: ...


class Links(Protocol):
    """Hands out the one link of its kind to a bookie, connected if need be. While a bookie resets
    or refuses connections, further calls fail at once for a growing, jittered while: to accept is
    not yet to serve. `Unavailable` names the bookie."""

    async def data(self, bookie_id: str) -> DataLink: ...

    async def control(self, bookie_id: str) -> ControlLink: ...

    async def recovery(self, bookie_id: str) -> DataLink: ...

    def data_now(self, bookie_id: str) -> DataLink | None:
        """The link if it is up this moment."""
        ...

    def control_now(self, bookie_id: str) -> ControlLink | None: ...
