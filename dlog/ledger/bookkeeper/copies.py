"""Each copy of a ledger for itself: read from its bookie alone, written again where it is not as
the others are, or moved where its bookie is gone. The driver of `core.copies`.

What is written is what a good copy has, byte by byte: numbers, confirmation and digest as the
writer made them. It goes as a recovery's adds do, which pass the fence, and is read back before it
counts. Only closed ledgers are written to: an open one has a writer or a recovery that looks after
its own bookies. Metadata is changed by compare-and-set, and only when every entry stands at the new
place.

    async for news in copies.check(12, last_entry=99): ...
    await copies.mend(12, "b1", 40, 40)
    await copies.move(12, 0, "b1")
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container, Iterable, Sequence
from functools import partial
from typing import Any

from dlog import trace
from dlog.clock import Clock
from dlog.errors import Corrupt, DlogError, Unavailable, Unsupported
from dlog.ledger.bookkeeper.core.copies import (
    Copy,
    amended,
    compare,
    fault_of,
    holders_of,
    kept_at,
    moved,
    print_of,
)
from dlog.ledger.bookkeeper.core.entry_read import BookieHabits
from dlog.ledger.bookkeeper.info import end_of, info_of
from dlog.ledger.bookkeeper.ledger_nodes import LedgerNodes, StoredLedger
from dlog.ledger.bookkeeper.links import DataLink, Links
from dlog.ledger.bookkeeper.passwords import Passwords
from dlog.ledger.bookkeeper.policy import Placement
from dlog.ledger.bookkeeper.registry import BookieRegistry
from dlog.ledger.copies import CopyNews, Fault, LedgerCopies, Looked
from dlog.ledger.store import Buffer
from dlog.limits import (
    ADD_RUN_BYTES_MAX,
    ADD_TIMEOUT_MS_DEFAULT,
    BOOKIE_FRAME_BYTES_MAX,
    FSCK_WINDOW_ENTRIES,
    READ_TIMEOUT_MS_DEFAULT,
)
from dlog.patience import AwakeTimeout
from dlog.together import together
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import EntryDigest, master_key
from dlog.wire.bookie_v2 import Flag, pack_add
from dlog.wire.ledger_metadata import LedgerMetadata

_TRIES_MAX = 3  # of a question that was not answered
_SURE = 2  # looks at a window before a copy in it is called bad
_FLAGS = Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY
_BUSY_S = 0.1

# An entry that was read, as the bookie has it, and the copy that it is.
_Read = tuple[Copy, memoryview | None]


class LedgerCopiesAtBookies:
    """Of one store, whose parts these are."""

    def __init__(
        self,
        registry: BookieRegistry,
        links: Links,
        nodes: LedgerNodes,
        passwords: Passwords,
        placement: Placement,
        habits: BookieHabits,
        *,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._links = links
        self._nodes = nodes
        self._passwords = passwords
        self._placement = placement
        self._habits = habits
        self._clock = clock
        self._writing = asyncio.Lock()  # one sink for a ledger and link

    async def of(self, ledger_id: int) -> LedgerCopies:
        stored = await self._nodes.read_fresh(ledger_id)
        state = info_of(stored).state
        kept = kept_at(stored.metadata, self._here())
        return LedgerCopies(ledger_id, state, stored.metadata.ack_quorum, kept)

    def _here(self) -> frozenset[str]:
        return frozenset((*self._registry.writable(), *self._registry.read_only()))

    async def check(
        self, ledger_id: int, *, digest: str | None, last_entry: int
    ) -> AsyncIterator[CopyNews]:
        stored = await self._nodes.read_fresh(ledger_id)
        given_up: dict[str, Copy] = {}  # bookies that say nothing about this ledger, or have none
        first_entry = 0
        while first_entry <= last_entry:
            end = min(last_entry, first_entry + FSCK_WINDOW_ENTRIES - 1)
            news, stored = await self._window(stored, digest, first_entry, end, given_up)
            for each in news:
                yield each
            first_entry = end + 1

    async def _window(
        self,
        stored: StoredLedger,
        digest: str | None,
        first_entry: int,
        last_entry: int,
        given_up: dict[str, Copy],
    ) -> tuple[list[CopyNews], StoredLedger]:
        """Looked at again before anything is called bad: a copy may have been on its way, and the
        ledger may have moved."""
        news: list[CopyNews] = []
        for turn in range(_SURE):
            checked = self._passwords.digest_of(stored, digest)
            reader = _WindowReader(self, stored, checked, given_up if turn == 0 else {})
            news = await reader.read(first_entry, last_entry)
            if turn + 1 == _SURE or not reader.is_news:
                break
            stored = await self._nodes.read_fresh(stored.ledger_id)
        given_up.update(reader.given_up)
        return news, stored

    # --- writing

    async def mend(
        self,
        ledger_id: int,
        keeper: str,
        first_entry: int,
        last_entry: int,
        *,
        digest: str | None,
    ) -> int:
        stored, checked = await self._closed(ledger_id, digest)
        last_entry = min(last_entry, stored.metadata.last_entry_id)
        async with self._writing:
            bad: list[int] = []
            is_damaged = False
            for entry_id in range(first_entry, last_entry + 1):
                if keeper in holders_of(stored.metadata, entry_id):  # else it moved
                    copy, _ = await self._single(ledger_id, checked, keeper, entry_id)
                    if copy.payload_print is None:
                        bad.append(entry_id)
                        is_damaged |= fault_of(copy) is Fault.DAMAGED
            if not bad:
                return 0
            wanted: Iterable[int] = bad
            if is_damaged:
                # Stock bookies read ahead from where an entry stands on the disk: the old copy
                # would come back behind any older neighbour. So those are written again as well.
                wanted = (
                    entry_id
                    for entry_id in range(bad[-1] + 1)
                    if keeper in holders_of(stored.metadata, entry_id)
                )
            await self._copy(stored, checked, keeper, wanted, needed=set(bad))
        return len(bad)

    async def move(
        self, ledger_id: int, first_entry: int, lost: str, *, digest: str | None
    ) -> str | None:
        stored, checked = await self._closed(ledger_id, digest)
        metadata = stored.metadata
        if metadata.ensemble_size != metadata.write_quorum:
            raise Unsupported(f"ledger {ledger_id} is striped", ledger_id=ledger_id)
        await self._registry.refresh()
        kept = next(
            (k for k in kept_at(metadata, self._here()) if k.first_entry == first_entry), None
        )
        if kept is None or lost not in kept.away:
            return None  # it moved, or is back
        to = self._placement.replacement(
            excluded=frozenset(kept.keepers),
            writable=self._registry.writable(),
            avoided=self._registry.avoided(),
        )
        if to is None or to in kept.keepers:
            raise Unavailable(
                f"no other bookie could keep the copies of {lost}", missing=(lost,), needed=1
            )
        async with self._writing:
            entries = range(first_entry, kept.last_entry + 1)
            await self._copy(stored, checked, to, entries, away=kept.away)
            change = partial(moved, ledger_id=ledger_id, first_entry=first_entry, lost=lost, to=to)
            trace.before("copies.moved")
            await self._nodes.change(stored, change)
            trace.after("copies.moved")
        return to

    async def amend(
        self, ledger_id: int, last_entry: int, bytes: int, *, digest: str | None
    ) -> bool:
        stored, checked = await self._closed(ledger_id, digest)
        change = partial(amended, ledger_id=ledger_id, last_entry=last_entry, bytes=bytes)
        if change(stored.metadata) is None:
            return False
        end = stored.metadata.last_entry_id
        if end > last_entry:  # that it is not there, each has to say that could have it
            said = await self._ask_all(stored, checked, holders_of(stored.metadata, end), end)
            silent = [b for b, (copy, _) in said.items() if fault_of(copy) is Fault.NOT_CHECKED]
            if silent:
                raise Unavailable(
                    f"whether entry {end} of ledger {ledger_id} is there, {', '.join(silent)} did "
                    "not say",
                    missing=silent,
                    needed=len(silent),
                    ledger_id=ledger_id,
                )
        said = await self._ask_all(
            stored, checked, holders_of(stored.metadata, last_entry), last_entry
        )
        raw = _good(ledger_id, last_entry, said)
        found = checked.verify(raw, ledger_id=ledger_id, entry_id=last_entry).ledger_bytes
        if found != bytes:
            raise Corrupt(
                f"entry {last_entry} of ledger {ledger_id} says that {found} bytes end with it, "
                f"not {bytes}",
                ledger_id=ledger_id,
                entry_id=last_entry,
            )
        trace.before("copies.end_amended")
        await self._nodes.change(stored, change)
        trace.after("copies.end_amended")
        return True

    async def _copy(
        self,
        stored: StoredLedger,
        digest: EntryDigest,
        to: str,
        entries: Iterable[int],
        *,
        away: Sequence[str] = (),
        needed: Container[int] | None = None,
    ) -> None:
        """Entries as good copies have them, in runs. Of those that are not `needed` what no copy
        proves stays as it is; None: all are."""
        run: dict[int, memoryview] = {}
        run_bytes = 0
        for entry_id in entries:
            left = [each for each in holders_of(stored.metadata, entry_id) if each not in away]
            said = await self._ask_all(stored, digest, left, entry_id)
            try:
                run[entry_id] = _good(stored.ledger_id, entry_id, said)
            except Corrupt:
                if needed is None or entry_id in needed:
                    raise
                continue
            run_bytes += len(run[entry_id])
            if run_bytes >= ADD_RUN_BYTES_MAX or len(run) >= FSCK_WINDOW_ENTRIES:
                await self._write(stored, digest, to, run)
                run, run_bytes = {}, 0
        if run:
            await self._write(stored, digest, to, run)

    async def _closed(self, ledger_id: int, digest: str | None) -> tuple[StoredLedger, EntryDigest]:
        stored = await self._nodes.read_fresh(ledger_id)
        checked = self._passwords.digest_of(stored, digest)
        if end_of(stored.metadata) is None:
            raise Unsupported(
                f"ledger {ledger_id} is not closed: who has it looks after its bookies",
                ledger_id=ledger_id,
            )
        return stored, checked

    async def _ask_all(
        self, stored: StoredLedger, digest: EntryDigest, bookies: Sequence[str], entry_id: int
    ) -> dict[str, _Read]:
        asks = (self._single(stored.ledger_id, digest, each, entry_id) for each in bookies)
        return dict(zip(bookies, await together(*asks), strict=True))

    async def _single(
        self, ledger_id: int, digest: EntryDigest, bookie_id: str, entry_id: int
    ) -> _Read:
        """Asked again when it was no answer."""
        answer = Answer.DISCONNECTED
        for attempt in range(_TRIES_MAX):
            if attempt > 0:
                await asyncio.sleep(_BUSY_S * attempt)
            try:
                link = await self._links.data(bookie_id)
            except DlogError as error:  # of connecting: what a bookie does is an answer
                return Copy(Answer.DISCONNECTED, told=error.message), None
            reply = await link.read(ledger_id, entry_id, timeout_ms=READ_TIMEOUT_MS_DEFAULT)
            answer = reply.answer
            if reply.entry is not None:
                copy = _verified(digest, ledger_id, entry_id, bookie_id, reply.entry)
                return copy, reply.entry
            if fault_of(Copy(answer)) is Fault.MISSING:
                break
        return Copy(answer), None

    async def _write(
        self,
        stored: StoredLedger,
        digest: EntryDigest,
        bookie_id: str,
        entries: dict[int, memoryview],
    ) -> None:
        """Then each of them is there: it was read back."""
        assert stored.metadata.password is not None  # its digest was made of it
        key = master_key(stored.metadata.password)
        frames: list[Buffer] = []
        for raw in entries.values():
            head, payload = raw[: digest.head_bytes], raw[digest.head_bytes :]
            front = pack_add(bytes(head), payload_bytes=len(payload), master_key=key, flags=_FLAGS)
            frames += [front, payload]
        link = await self._links.recovery(bookie_id)
        adds = _Adds(stored.ledger_id, bookie_id, set(entries))
        trace.before("copies.written")
        link.attach(stored.ledger_id, adds)
        try:
            async with AwakeTimeout(2 * ADD_TIMEOUT_MS_DEFAULT / 1000):
                if not link.has_room:
                    await adds.room.wait()
                joined = b"".join(frames)
                link.send_adds(stored.ledger_id, joined, entries=len(entries), bytes=len(joined))
                await adds.done.wait()
        except TimeoutError:
            adds.failed = adds.failed or Answer.TIMED_OUT
        finally:
            link.detach(stored.ledger_id)
        if adds.failed is not None:
            raise Unavailable(
                f"bookie {bookie_id} did not take copies of ledger {stored.ledger_id}: "
                f"{adds.failed.value}",
                missing=(bookie_id,),
                needed=1,
                ledger_id=stored.ledger_id,
            )
        trace.after("copies.written")
        trace.before("copies.read_back")
        for entry_id, raw in entries.items():
            copy, there = await self._single(stored.ledger_id, digest, bookie_id, entry_id)
            if copy.payload_print is None or there is None or bytes(there) != bytes(raw):
                raise Corrupt(
                    f"entry {entry_id} of ledger {stored.ledger_id} was written to bookie "
                    f"{bookie_id}, which gives something else: {copy.told or copy.answer.value}",
                    ledger_id=stored.ledger_id,
                    entry_id=entry_id,
                )
        trace.after("copies.read_back")


class _Adds:
    """The sink of one run of adds."""

    def __init__(self, ledger_id: int, bookie_id: str, entries: set[int]) -> None:
        self.done = asyncio.Event()
        self.room = asyncio.Event()
        self.failed: Answer | None = None
        self._ledger_id = ledger_id
        self._waiting = entries

    def on_adds(self, link: DataLink, answer: Answer, entry_ids: list[int]) -> None:
        if answer is not Answer.OK:
            self._fail(answer)
        self._waiting.difference_update(entry_ids)
        if not self._waiting:
            self.done.set()

    def on_room(self, link: DataLink) -> None:
        self.room.set()

    def on_down(self, link: DataLink, answer: Answer) -> None:
        self._fail(Answer.DISCONNECTED)

    def _fail(self, answer: Answer) -> None:
        self.failed = self.failed or answer
        self.done.set()
        self.room.set()


class _WindowReader:
    """One look at a few entries, at each of their bookies beside the others."""

    def __init__(
        self,
        owner: LedgerCopiesAtBookies,
        stored: StoredLedger,
        digest: EntryDigest,
        given_up: dict[str, Copy],
    ) -> None:
        self.given_up = dict(given_up)
        self.is_news = False  # something is bad that was not given up before
        self._owner = owner
        self._ledger_id = stored.ledger_id
        self._metadata: LedgerMetadata = stored.metadata
        self._digest = digest

    async def read(self, first_entry: int, last_entry: int) -> list[CopyNews]:
        entries = range(first_entry, last_entry + 1)
        holders = {each: holders_of(self._metadata, each) for each in entries}
        wanted: dict[str, list[int]] = {}
        for entry_id, bookies in holders.items():
            for bookie_id in bookies:
                wanted.setdefault(bookie_id, []).append(entry_id)
        before = set(self.given_up)
        reads = await together(*(self._of_bookie(b, ids) for b, ids in wanted.items()))
        copies: dict[str, dict[int, Copy]] = dict(zip(wanted, reads, strict=True))
        faults = compare(entries, holders, copies)
        self.is_news = any(
            fault_of(copy) is not None
            for bookie_id, its in copies.items()
            if bookie_id not in before
            for copy in its.values()
        )
        sizes = {
            entry_id: copy.payload_bytes
            for its in copies.values()
            for entry_id, copy in its.items()
            if copy.payload_print is not None
        }
        looked = Looked(sum(map(len, copies.values())), sum(sizes.values()))
        return [*faults, looked]

    async def _of_bookie(self, bookie_id: str, entries: list[int]) -> dict[int, Copy]:
        found: dict[int, Copy] = {}
        at = 0
        while at < len(entries):
            given_up = self.given_up.get(bookie_id)
            if given_up is not None:
                found.update((entry_id, given_up) for entry_id in entries[at:])
                break
            run = await self._batch(bookie_id, entries[at], entries[-1], len(entries) - at)
            if not run:  # none, or a bad one: by itself, to hear what the bookie says to it
                copy, _ = await self._owner._single(
                    self._ledger_id, self._digest, bookie_id, entries[at]
                )
                run = [copy]
                is_silent = fault_of(copy) is Fault.NOT_CHECKED
                if is_silent or copy.answer is Answer.NO_LEDGER:
                    self.given_up[bookie_id] = copy
            for copy in run:
                found[entries[at]] = copy
                at += 1
        return found

    async def _batch(
        self, bookie_id: str, first_entry: int, last_entry: int, count: int
    ) -> list[Copy]:
        """As many good ones as come together. None of a bookie that knows no batches, or does not
        keep entries that follow each other."""
        owner = self._owner
        now_s = owner._clock.monotonic_s()
        if last_entry - first_entry + 1 != count or count == 1:
            return []
        if not owner._habits.reads_batches(bookie_id, now_s):
            return []
        try:
            link = await owner._links.data(bookie_id)
        except DlogError:
            return []
        reply = await link.batch_read(
            self._ledger_id,
            first_entry,
            count_max=count,
            frame_bytes_max=BOOKIE_FRAME_BYTES_MAX,
            timeout_ms=READ_TIMEOUT_MS_DEFAULT,
        )
        owner._habits.note_batch(
            bookie_id, reply.answer, asked_at_s=now_s, now_s=owner._clock.monotonic_s()
        )
        good: list[Copy] = []
        for entry_id, raw in enumerate(reply.entries[:count], first_entry):
            copy = _verified(self._digest, self._ledger_id, entry_id, bookie_id, raw)
            if copy.payload_print is None:
                break
            good.append(copy)
        return good


def _verified(
    digest: EntryDigest, ledger_id: int, entry_id: int, bookie_id: str, raw: memoryview
) -> Copy:
    try:
        entry = digest.verify(raw, ledger_id=ledger_id, entry_id=entry_id, where=bookie_id)
    except Corrupt as error:
        return Copy(Answer.BAD_DIGEST, told=error.message.removeprefix(f"{bookie_id}: "))
    return Copy(Answer.OK, print_of(entry.payload), len(entry.payload))


def _good(ledger_id: int, entry_id: int, said: dict[str, _Read]) -> memoryview:
    """The entry as good copies have it. `Corrupt` if there is none, or they do not agree; then
    `Unavailable` if somebody who may have one did not answer."""
    good = {
        copy.payload_print: raw
        for copy, raw in said.values()
        if copy.payload_print is not None and raw is not None
    }
    about: dict[str, Any] = {"ledger_id": ledger_id, "entry_id": entry_id}
    if len(good) == 1:
        return next(iter(good.values()))
    if len(good) > 1:
        raise Corrupt(
            f"the copies of entry {entry_id} of ledger {ledger_id} differ, and each has a right "
            "digest: nobody can tell which is the one",
            **about,
        )
    silent = [each for each, (copy, _) in said.items() if fault_of(copy) is Fault.NOT_CHECKED]
    if silent:
        raise Unavailable(
            f"no copy of entry {entry_id} of ledger {ledger_id} is to be had now: "
            f"{', '.join(silent)} did not answer",
            missing=silent,
            needed=1,
            **about,
        )
    raise Corrupt(f"no copy of entry {entry_id} of ledger {ledger_id} is good", **about)
