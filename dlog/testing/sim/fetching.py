"""Entries of one ledger from simulated bookies, by `EntryRead`: what `entry_fetch` of
`dlog.ledger.bookkeeper` does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from dlog.ledger.bookkeeper.core.entry_read import (
    READ_DEADLINE_MS,
    Ask,
    EntryRead,
    asking_order,
)
from dlog.ledger.bookkeeper.core.quorum import write_set
from dlog.testing.sim.flow import Answered, Flow, Pending, any_of
from dlog.testing.sim.links import SimLink
from dlog.testing.sim.surroundings import Surroundings
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import EntryDigest
from dlog.wire.ledger_metadata import LedgerMetadata

SINGLES_FIRST = 4
RUN_BYTES = 1 << 20


class SimFetch:
    """Entries from bookies, by `EntryRead`."""

    def __init__(self, around: Surroundings, ledger_id: int, digest: EntryDigest) -> None:
        self._around = around
        self._ledger_id = ledger_id
        self._digest = digest
        self._first_place = int(around.world.chance.fraction() * 3)
        self._home: str | None = None
        self._in_flight: Counter[str] = Counter()

    def read(
        self, metadata: LedgerMetadata, first_entry: int, last_entry: int, *, bytes_max: int
    ) -> Flow[list[bytes]]:
        """Of one fragment, at least one entry."""
        last_entry = min(last_entry, _end_of_fragment(metadata, first_entry))
        ensemble = metadata.fragment_of(first_entry).ensemble
        if metadata.ensemble_size > metadata.write_quorum:
            return (yield from self._read_striped(metadata, ensemble, first_entry, last_entry))
        if self._home is None:
            self._home = ensemble[self._first_place % len(ensemble)]
        read = self._new_read(ensemble, first_entry, last_entry, bytes_max, in_batches=True)
        yield partial(self._run, read)
        self._home = read.winner
        if read.winner is None:
            raise read.error()
        return [bytes(payload) for payload in read.payloads]

    def _read_striped(
        self,
        metadata: LedgerMetadata,
        ensemble: Sequence[str],
        first_entry: int,
        last_entry: int,
    ) -> Flow[list[bytes]]:
        """Every entry from its own bookies, side by side."""
        last_entry = min(last_entry, first_entry + SINGLES_FIRST - 1)
        reads = [
            self._new_read(
                [ensemble[place] for place in write_set(metadata, entry_id)],
                entry_id,
                entry_id,
                RUN_BYTES,
                in_batches=False,
            )
            for entry_id in range(first_entry, last_entry + 1)
        ]

        def one(read: EntryRead) -> Flow[None]:
            yield partial(self._run, read)

        for pending in [Pending(one(read)) for read in reads]:
            yield any_of(pending)
        payloads: list[bytes] = []
        for read in reads:
            if read.winner is None:
                if payloads:
                    break
                raise read.error()
            payloads += [bytes(payload) for payload in read.payloads]
        return payloads

    def _new_read(
        self,
        bookies: Sequence[str],
        first_entry: int,
        last_entry: int,
        bytes_max: int,
        *,
        in_batches: bool,
    ) -> EntryRead:
        now_s, habits = self._around.now_s, self._around.habits
        order = asking_order(
            bookies, home=self._home, in_flight=self._in_flight, habits=habits, now_s=now_s
        )
        return EntryRead(
            self._ledger_id,
            first_entry,
            last_entry,
            bytes_max=bytes_max,
            bookies=order,
            in_batches=in_batches,
            singles_max=SINGLES_FIRST,
            digest=self._digest,
            habits=habits,
            deadline_s=now_s + READ_DEADLINE_MS / 1000,
        )

    def _run(self, read: EntryRead, answer: Answered) -> None:
        around = self._around
        is_over = False

        def go_on() -> None:
            nonlocal is_over
            if is_over:
                return
            while (ask := read.asks(around.now_s)) is not None:
                self._ask(read, ask, go_on)
            if read.is_over:
                is_over = True
                answer(None, None)
            else:
                around.after(max(0.0, read.look_again_s() - around.now_s) * 1000 + 0.01, go_on)

        go_on()

    def _ask(self, read: EntryRead, ask: Ask, go_on: Callable[[], None]) -> None:
        self._in_flight[ask.bookie_id] += 1

        def answered(answer: Answer, entries: Sequence[bytes]) -> None:
            self._in_flight[ask.bookie_id] -= 1
            read.on_answer(ask, answer, [memoryview(raw) for raw in entries], self._around.now_s)
            go_on()

        def reached(link: SimLink | None) -> None:
            if link is None:
                self._in_flight[ask.bookie_id] -= 1
                read.on_unreached(ask, self._around.now_s)
                go_on()
            elif ask.as_batch:
                link.ask_batch(
                    read.ledger_id,
                    read.first_entry,
                    answered,
                    count_max=ask.count_max,
                    frame_bytes_max=ask.frame_bytes_max,
                    timeout_ms=ask.timeout_ms,
                )
            else:
                self._ask_singly(link, read, ask, answered)

        self._around.with_link(ask.bookie_id, reached)

    def _ask_singly(
        self,
        link: SimLink,
        read: EntryRead,
        ask: Ask,
        answered: Callable[[Answer, Sequence[bytes]], None],
    ) -> None:
        told: dict[int, tuple[Answer, bytes | None]] = {}

        def one(number: int, answer: Answer, raw: bytes | None) -> None:
            told[number] = answer, raw
            if len(told) < ask.count_max:
                return
            entries: list[bytes] = []
            for each in range(ask.count_max):
                found = told[each][1]
                if found is None:
                    break
                entries.append(found)
            answered(Answer.OK if entries else told[0][0], entries)

        for number in range(ask.count_max):
            link.ask_read(
                read.ledger_id,
                read.first_entry + number,
                partial(one, number),
                timeout_ms=ask.timeout_ms,
            )


def _end_of_fragment(metadata: LedgerMetadata, entry_id: int) -> int:
    following = (
        each.first_entry_id for each in metadata.fragments if each.first_entry_id > entry_id
    )
    return next(following, 1 << 63) - 1
