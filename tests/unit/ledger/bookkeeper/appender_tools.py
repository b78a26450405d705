"""What the tests of the appender share: its core with links of paper, and the whole of it with
bookies that live in the test."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from dlog.errors import Unavailable
from dlog.ledger.bookkeeper.appender import BookKeeperAppender
from dlog.ledger.bookkeeper.core import changes
from dlog.ledger.bookkeeper.core.append_effects import (
    AppendOptions,
    Change,
    Connect,
    WriteLac,
)
from dlog.ledger.bookkeeper.core.appender import AppenderCore
from dlog.ledger.bookkeeper.core.slots import Slot, State
from dlog.ledger.bookkeeper.ledger_nodes import LedgerNodes
from dlog.ledger.bookkeeper.policy import RandomPlacement
from dlog.testing.conformance.ledger_tools import Heard
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest
from dlog.wire.bookie_v3 import Operation
from dlog.wire.bookie_v3_replies import Response
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata

LEDGER_ID = 7
FIXED_BYTES = 10


class Even:
    """Chance without surprises."""

    def fraction(self) -> float:
        return 0.5

    def token(self) -> str:
        return "00" * 16


class PaperLink:
    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id

    def __repr__(self) -> str:
        return f"link to {self.bookie_id}"


def metadata_on(*ensemble: str, ack_quorum: int = 2) -> LedgerMetadata:
    size = len(ensemble)
    return LedgerMetadata(
        size,
        size,
        ack_quorum,
        (Fragment(0, ensemble),),
        digest_type=DigestType.CRC32C,
        password=b"secret",
    )


class Bench:
    """A core on a bench: the test is its driver. `pump` sends what may be sent and says to whom."""

    def __init__(
        self,
        *ensemble: str,
        ack_quorum: int = 2,
        spares: Sequence[str] = ("d",),
        linked: bool = True,
        **options: Any,
    ) -> None:
        self.metadata = metadata_on(*(ensemble or ("a", "b", "c")), ack_quorum=ack_quorum)
        self.spares = list(spares)
        self.heads: list[tuple[int, int]] = []  # entry id, LAC
        self.core = AppenderCore(
            LEDGER_ID,
            self.metadata,
            pack_front=self.pack_front,
            frame_fixed_bytes=FIXED_BYTES,
            pick=self.pick,
            chance=Even(),
            options=AppendOptions(**options),
        )
        self.sent: dict[str, list[int]] = {}
        if linked:
            for effect in self.effects(Connect):
                self.link(effect.slot, is_proven=True)

    def pack_front(self, entry_id: int, lac: int, size: int, buffers: Any, bytes: int) -> bytes:
        self.heads.append((entry_id, lac))
        return b"%10d" % entry_id

    def pick(self, excluded: AbstractSet[str]) -> str | None:
        return next((bookie for bookie in self.spares if bookie not in excluded), None)

    # --- Effects

    def effects(self, kind: type | None = None) -> list[Any]:
        """Taken off, all of them or those of a kind."""
        wanted = [each for each in self.core.effects if kind is None or isinstance(each, kind)]
        self.core.effects[:] = [each for each in self.core.effects if each not in wanted]
        return wanted

    def effect(self, kind: type) -> Any:
        (found,) = self.effects(kind)
        return found

    # --- Facts

    def slot(self, bookie_id: str) -> Slot:
        return next(slot for slot in self.core.slots if slot.bookie_id == bookie_id)

    def put(self, count: int = 1, *, bytes: int = 1) -> None:
        for _ in range(count):
            self.core.put([b"x" * bytes], bytes)

    def link(self, slot: Slot, *, is_proven: bool = False) -> PaperLink:
        link = PaperLink(slot.bookie_id)
        assert self.core.on_link(slot, link, is_proven=is_proven)
        return link

    def pump(self) -> dict[str, list[int]]:
        now: dict[str, list[int]] = {}
        for slot in self.core.slots:
            if slot.state is not State.LIVE:
                continue
            while (run := self.core.take_run(slot)) is not None:
                now.setdefault(slot.bookie_id, []).extend(run)
        for bookie_id, run in now.items():
            self.sent.setdefault(bookie_id, []).extend(run)
        return now

    def ack(self, bookie_id: str, *entry_ids: int) -> tuple[int, int]:
        return self.say(bookie_id, Answer.OK, *entry_ids)

    def ack_to(self, bookie_id: str, last: int) -> None:
        slot = self.slot(bookie_id)
        self.ack(bookie_id, *range(slot.acked_to + 1, last + 1))

    def say(self, bookie_id: str, answer: Answer, *entry_ids: int) -> tuple[int, int]:
        return self.core.on_adds(self.slot(bookie_id).link, answer, list(entry_ids))

    def down(self, bookie_id: str, answer: Answer = Answer.DISCONNECTED) -> None:
        self.core.on_down(self.slot(bookie_id).link, answer)

    def ticks(self, ms: float) -> None:
        """Time goes by as it does for a loop that is not blocked."""
        for _ in range(int(ms // 25)):
            self.core.on_tick(25.0)

    def changed(self, change: Change) -> None:
        """The metadata store says yes."""
        wanted = changes.replaced(
            self.metadata,
            ledger_id=LEDGER_ID,
            first_entry=change.first_entry,
            places=change.places,
        )
        self.metadata = wanted or self.metadata
        self.core.on_changed(self.metadata)

    def replace(self, bookie_id: str) -> str:
        """The whole way, once the bookie is lost."""
        slot = self.effect(Connect).slot
        self.link(slot)
        for effect in self.effects(WriteLac):
            if effect.slot is slot:
                self.core.on_lac_written(slot, effect.last_entry, Answer.OK)
        self.changed(self.effect(Change))
        assert bookie_id not in self.core.places.ensemble
        return slot.bookie_id

    @property
    def confirmed(self) -> int:
        return self.core.last_confirmed


# --- The driver, among bookies that live in the test


class TestBookie:
    """Answers at once, unless told otherwise. Not a model of a bookie: the simulator has that."""

    __test__ = False

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.is_silent = False
        self.is_up = True
        self.answer = Answer.OK
        self.lac_answer = Answer.OK
        self.entries: list[int] = []
        self.buffers: list[bytes] = []
        self.lac = -1


class TestLink:
    """A data link and a control link in one."""

    __test__ = False

    def __init__(self, bookie: TestBookie) -> None:
        self.bookie = bookie
        self.bookie_id = bookie.bookie_id
        self.where = f"bookie {bookie.bookie_id}"
        self.is_up = True
        self.has_room = True
        self.sinks: dict[int, Any] = {}
        self.owed = 0
        self.owed_bytes = 0

    def attach(self, ledger_id: int, sink: Any) -> None:
        assert ledger_id not in self.sinks
        self.sinks[ledger_id] = sink

    def detach(self, ledger_id: int) -> None:
        self.sinks.pop(ledger_id, None)

    def send_adds(self, ledger_id: int, frames: bytes, *, entries: int, bytes: int) -> None:
        assert ledger_id in self.sinks
        assert bytes == len(frames)
        self.owed += entries
        self.owed_bytes += bytes
        ids = entry_ids_of(frames)
        assert len(ids) == entries
        self.bookie.buffers.append(frames)
        if not self.bookie.is_silent:
            asyncio.get_running_loop().call_soon(self.answer, ledger_id, ids)

    def answer(self, ledger_id: int, ids: list[int]) -> None:
        if self.bookie.answer is Answer.OK:
            self.bookie.entries += ids
        if ledger_id in self.sinks:
            self.sinks[ledger_id].on_adds(self, self.bookie.answer, ids)

    def settle(self, ledger_id: int, *, entries: int, bytes: int) -> None:
        self.owed -= entries
        self.owed_bytes -= bytes
        assert self.owed >= 0
        assert self.owed_bytes >= 0

    def ask_soon(
        self,
        pack: Callable[[int], bytes],
        on_answer: Callable[[Response], None],
        *,
        timeout_ms: float,
    ) -> None:
        assert pack(1)
        answer = self.bookie.lac_answer
        response = Response(1, Operation.WRITE_LAC, answer, None)
        if not self.bookie.is_silent:
            asyncio.get_running_loop().call_soon(on_answer, response)

    def down(self) -> None:
        self.is_up = self.has_room = False
        for sink in list(self.sinks.values()):
            sink.on_down(self, Answer.DISCONNECTED)


class TestLinks:
    __test__ = False

    def __init__(self, *bookie_ids: str) -> None:
        self.bookies = {bookie_id: TestBookie(bookie_id) for bookie_id in bookie_ids}
        self.up: dict[str, TestLink] = {}
        self.in_quarantine: set[str] = set()

    def data_now(self, bookie_id: str) -> TestLink | None:
        link = self.up.get(bookie_id)
        return link if link is not None and link.is_up else None

    control_now = data_now

    async def data(self, bookie_id: str) -> TestLink:
        await asyncio.sleep(0)
        bookie = self.bookies[bookie_id]
        if not bookie.is_up:
            raise Unavailable(f"bookie {bookie_id} is away", missing=[bookie_id])
        link = self.data_now(bookie_id)
        if link is None:
            link = self.up[bookie_id] = TestLink(bookie)
        return link

    control = data

    # What a registry tells.

    def writable(self) -> Sequence[str]:
        return [bookie_id for bookie_id, bookie in self.bookies.items() if bookie.is_up]

    def avoided(self) -> AbstractSet[str]:
        return self.in_quarantine


def entry_ids_of(frames: bytes) -> list[int]:
    """Of whole v2 adds, back to back: length, word, key, then the numbers."""
    ids, at = [], 0
    while at < len(frames):
        length = int.from_bytes(frames[at : at + 4], "big")
        ids.append(int.from_bytes(frames[at + 36 : at + 44], "big"))
        at += 4 + length
    return ids


def entries_of(frames: bytes, ledger_id: int) -> list[tuple[int, int, int, bytes]]:
    """Entry id, LAC, ledger bytes, payload; verified."""
    digest = EntryDigest(DigestType.CRC32C, b"secret")
    found, at = [], 0
    while at < len(frames):
        length = int.from_bytes(frames[at : at + 4], "big")
        entry = digest.verify_last(frames[at + 28 : at + 4 + length], ledger_id=ledger_id)
        found.append(
            (entry.entry_id, entry.last_confirmed, entry.ledger_bytes, bytes(entry.payload))
        )
        at += 4 + length
    return found


class Whole:
    """An appender with all its surroundings."""

    def __init__(self, appender: BookKeeperAppender, heard: Heard, links: TestLinks) -> None:
        self.appender = appender
        self.heard = heard
        self.links = links
        self.let_go: list[BookKeeperAppender] = []

    @property
    def ensemble(self) -> tuple[str, ...]:
        return self.appender.core.places.ensemble

    def bookie(self, place: int) -> TestBookie:
        return self.links.bookies[self.ensemble[place]]

    def link(self, place: int) -> TestLink:
        link = self.links.data_now(self.ensemble[place])
        assert link is not None
        return link

    async def confirmed(self, entry_id: int) -> None:
        await self.heard.until_confirmed(entry_id)


async def whole(
    nodes: LedgerNodes,
    *,
    ack_quorum: int = 2,
    spares: int = 1,
    listen: bool = True,
    links: TestLinks | None = None,
    **options: Any,
) -> Whole:
    ensemble = ("a", "b", "c")
    links = links or TestLinks(*ensemble, *("d", "e", "f")[:spares])
    links_before = {bookie_id: links.data_now(bookie_id) for bookie_id in ensemble}
    stored = await nodes.create(metadata_on(*ensemble, ack_quorum=ack_quorum))
    let_go: list[BookKeeperAppender] = []
    appender = BookKeeperAppender(
        stored,
        links=links,  # type: ignore[arg-type]
        nodes=nodes,
        bookies=links,
        placement=RandomPlacement(Even()),
        options=AppendOptions(**options),
        links_before=links_before,  # type: ignore[arg-type]
        on_let_go=let_go.append,
    )
    heard = Heard()
    if listen:
        appender.listen(heard)
    made = Whole(appender, heard, links)
    made.let_go = let_go
    return made


async def until(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        for _ in itertools.count():
            if fact():
                return
            await asyncio.sleep(0)
