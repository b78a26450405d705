"""Bugs of recoveries: the fence, the end, what is written back, and the procedure."""

from __future__ import annotations

import dataclasses
from functools import partial
from struct import unpack_from
from typing import Any

from dlog.ledger.bookkeeper.core import (
    changes,
    end_search,
    fencing,
    quorum,
    recovery,
    write_back,
)
from dlog.ledger.bookkeeper.core.end_search import EndSearch, Evidence
from dlog.ledger.bookkeeper.core.fencing import Fencing
from dlog.ledger.bookkeeper.core.recovery import FindEnd
from dlog.ledger.bookkeeper.core.tail_recovery import TailRecovery
from dlog.ledger.bookkeeper.core.write_back import WriteBack
from dlog.testing.sim import recovering
from dlog.testing.sim.planted import Patch
from dlog.testing.sim.planted.ledger_weather import (
    CHANGING_RECOVERY,
    DENIALS,
    EVERY_READ_FENCES,
    LATE_CONFIRMATIONS,
    LIMBO,
    OURS,
    RARELY_HARMFUL,
    RECOVERY_TESTS,
    SILENCE,
    UNFENCED,
    UNREACHED,
    plants,
)
from dlog.testing.sim.recovering import SimRecovery, SimTail
from dlog.wire.bookie_codes import Answer, Call, Reaction, reaction
from dlog.wire.bookie_digest import EntryDigest, StoredEntry
from dlog.wire.ledger_metadata import LedgerMetadata, LedgerState

# --- recovery: fencing


@plants("P1, recovery_read_must_fence", harder=RARELY_HARMFUL, **UNFENCED)
def recovery_read_must_fence(patch: Patch) -> None:
    """Issue 2614: only the first read fenced."""
    real = SimTail.fence_key

    def fence_key(self: SimTail, ask: Any) -> bytes | None:
        return real(self, ask) if ask.is_fence else None

    patch.setattr(SimTail, "fence_key", fence_key)


@plants(
    "P40",
    survives=EVERY_READ_FENCES,
    shown_by=f"{RECOVERY_TESTS}::test_no_other_answer_covers",
)
def one_answer_covers(patch: Patch) -> None:
    patch.setattr(fencing, "is_covered", lambda metadata, known: len(known) >= 1)


@plants("P14, recovery_floor")
def recovery_floor(patch: Patch) -> None:
    """Issue 2615: an empty last fragment knows no LAC, and recovery began at entry 0."""
    init = Fencing.__init__

    def without_floor(self: Fencing, *args: Any) -> None:
        init(self, *args)
        self.last_confirmed = -1

    patch.setattr(Fencing, "__init__", without_floor)


@plants("lac_is_a_hint", harder=RARELY_HARMFUL)
def the_last_entry_seen_is_the_end(patch: Patch) -> None:
    """lac_is_a_hint (issue 2612): what a fence reads back is believed."""
    begin, decide = TailRecovery._begin_search, EndSearch._decide

    def begin_knowing(self: TailRecovery, now_s: float) -> None:
        begin(self, now_s)
        search: Any = self._search
        search.seen = max(self._fencing.last_seen, self._began_at)

    def believe(self: EndSearch) -> None:
        seen = vars(self).get("seen")
        if seen is not None and self.position > seen:
            names = tuple(each.bookie_id for each in self._places)
            self.evidence = Evidence(self.position, names[:2], 2)
        else:
            decide(self)

    patch.setattr(TailRecovery, "_begin_search", begin_knowing)
    patch.setattr(EndSearch, "_decide", believe)


# --- the end


@plants("P2, negative_needs_quorum")
def negative_needs_quorum(patch: Patch) -> None:
    """Issue 2908: one "no entry" ended a ledger."""
    patch.setattr(end_search, "missing_needed", lambda metadata: 1)


def _count_as_missing(patch: Patch, *wrong: Answer) -> None:
    def react(call: Call, answer: Answer) -> Reaction:
        if call is Call.RECOVERY_READ and answer in wrong:
            return Reaction.COUNT_MISSING
        return reaction(call, answer)

    patch.setattr(end_search, "reaction", react)


@plants("P3, limbo_answer", **LIMBO)
def limbo_answer(patch: Patch) -> None:
    """BP-46: a bookie without its journal "proved" absence."""
    _count_as_missing(patch, Answer.LIMBO)


@plants("P3", **SILENCE)
def silence_denies(patch: Patch) -> None:
    _count_as_missing(patch, Answer.TIMED_OUT)


@plants("P3", **UNREACHED)
def a_lost_connection_denies(patch: Patch) -> None:
    _count_as_missing(patch, Answer.DISCONNECTED)


@plants("P3")
def a_refusal_denies(patch: Patch) -> None:
    _count_as_missing(patch, Answer.IO_FAILED, Answer.BUSY)


@plants("P3")
def a_broken_copy_denies(patch: Patch) -> None:
    look = EndSearch._look_at

    def look_and_deny(self: EndSearch, place: int, ask: Any, entries: Any) -> None:
        look(self, place, ask, entries)
        for entry_id, unknown in self._unknown.items():
            if unknown.get(place) is Answer.BAD_DIGEST:
                self._missing.setdefault(entry_id, set()).add(place)

    patch.setattr(EndSearch, "_look_at", look_and_deny)


@plants("P3")
def a_short_batch_denies_the_next(patch: Patch) -> None:
    look = EndSearch._look_at

    def look_and_deny(self: EndSearch, place: int, ask: Any, entries: Any) -> None:
        look(self, place, ask, entries)
        self._missing.setdefault(ask.first_entry + len(entries), set()).add(place)

    patch.setattr(EndSearch, "_look_at", look_and_deny)


@plants("I14", harder=RARELY_HARMFUL, **DENIALS)
def a_denial_counts_for_the_next_entry(patch: Patch) -> None:
    """Denials are not forgotten when somebody else had the entry."""
    on_answer = EndSearch.on_answer

    def carry(self: EndSearch, ask: Any, answer: Answer, entries: Any, *, now_s: float) -> None:
        before = self._missing.get(self.position, set())
        began = self.position
        on_answer(self, ask, answer, entries, now_s=now_s)
        if self.position > began and before:
            self._missing.setdefault(self.position, set()).update(before)

    patch.setattr(EndSearch, "on_answer", carry)


@plants("I13")
def an_unchecked_copy_is_taken(patch: Patch) -> None:
    def trust(
        self: EntryDigest, raw: bytes, *, ledger_id: int, entry_id: int, where: str = ""
    ) -> Any:
        _, found, lac, size = unpack_from(">qqqq", raw)
        return StoredEntry(found, lac, size, memoryview(raw)[self.head_bytes :])

    patch.setattr(EntryDigest, "verify", trust)


@plants("I14")
def undecided_is_the_end(patch: Patch) -> None:
    def give_in(self: EndSearch, unknown: Any, needed: int) -> Exception:
        self.evidence = Evidence(self.position, (), 0)
        raise _Ended

    class _Ended(Exception):
        pass

    decide = EndSearch._decide

    def decide_anyway(self: EndSearch) -> None:
        try:
            decide(self)
        except _Ended:
            pass

    patch.setattr(EndSearch, "_undecided", give_in)
    patch.setattr(EndSearch, "_decide", decide_anyway)


@plants("P13", **CHANGING_RECOVERY)
def reads_follow_the_changed_ensemble(patch: Patch) -> None:
    """BOOKKEEPER-355: an empty newcomer was asked whether an entry exists."""
    go_on = TailRecovery._go_on

    def follow(self: TailRecovery, now_s: float) -> None:
        search, writing = self._search, self._write_back
        if search is not None and writing is not None:
            for place, slot in enumerate(writing._slots):
                each = search._places[place]
                if each.bookie_id != slot.bookie_id:
                    search._place_of[slot.bookie_id] = place
                    each.bookie_id = slot.bookie_id
                    each.asked.clear()
                    search._unknown.get(search.position, {}).pop(place, None)
        go_on(self, now_s)

    patch.setattr(TailRecovery, "_go_on", follow)


# --- writing back


@plants("P15, H2")
def lac_on_recovery_adds(patch: Patch) -> None:
    """H1 and H2: a LAC that rises while entries are written back."""
    next_run = WriteBack._next_run

    def rising(self: WriteBack, entries: Any, at: int) -> Any:
        pack_head = self._digest.pack_head

        def pack(ledger_id: int, entry_id: int, lac: int, *rest: Any) -> bytes:
            return pack_head(ledger_id, entry_id, entry_id - 1, *rest)

        digest = self._digest
        self._digest = type("Rising", (), {"pack_head": staticmethod(pack)})()
        try:
            return next_run(self, entries[: at + 1], at)  # one by one, as they are written
        finally:
            self._digest = digest

    patch.setattr(WriteBack, "_next_run", rising)


@plants("P11, recovery_flag_lost_on_resend")
def recovery_flag_lost_on_resend(patch: Patch) -> None:
    """Issue 4163."""
    send_run = WriteBack._send_run

    def send_plain(self: WriteBack, slot: Any, run: Any, now_s: float) -> None:
        sent = vars(self).setdefault("sent", set())
        key = slot.place, run.first_entry
        if key in sent:
            frames, entries = run.frames[slot.place]
            plain = bytearray(frames)
            at = 0
            while at < len(plain):
                plain[at + 7] &= ~2
                at += 4 + int.from_bytes(plain[at : at + 4], "big")
            changed = [*run.frames]
            changed[slot.place] = (bytes(plain), entries)
            run = dataclasses.replace(run, frames=changed)
        sent.add(key)
        send_run(self, slot, run, now_s)

    patch.setattr(WriteBack, "_send_run", send_plain)


@plants("I8")
def nothing_is_written_back(patch: Patch) -> None:
    def pretend(self: WriteBack, entries: Any, *, now_s: float) -> None:
        if entries:
            self.written_to = entries[-1].entry_id

    patch.setattr(WriteBack, "write", pretend)


@plants("I8")
def one_acknowledgement_is_enough(patch: Patch) -> None:
    init = WriteBack.__init__

    def hasty(self: WriteBack, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self._ack_quorum = 1

    patch.setattr(WriteBack, "__init__", hasty)


@plants("P8", **CHANGING_RECOVERY)
def acknowledgements_of_a_replaced_bookie_stay(patch: Patch) -> None:
    mend = WriteBack._mend

    def keep(self: WriteBack, now_s: float) -> None:
        before = dict(self._acks)
        mend(self, now_s)
        for entry_id, mask in before.items():
            if entry_id in self._acks:
                self._acks[entry_id] |= mask

    patch.setattr(WriteBack, "_mend", keep)


@plants("I8")
def private_fragments_are_forgotten(patch: Patch) -> None:
    closing = recovery._closing
    patch.setattr(
        recovery,
        "_closing",
        lambda began, found: closing(began, dataclasses.replace(found, fragments=None)),
    )


@plants("I8")
def private_fragments_begin_too_late(patch: Patch) -> None:

    def late(fragments: Any, *, first_entry: int, places: Any) -> Any:
        return changes.with_places(fragments, first_entry=first_entry + 1, places=places)

    patch.setattr(write_back, "with_places", late)


# --- the procedure


@plants("I7")
def the_mark_is_left_out(patch: Patch) -> None:
    def closing(began: LedgerMetadata, found: Any) -> Any:
        return partial(
            _close_anything, found=found, is_right=lambda state: state is not LedgerState.CLOSED
        )

    patch.setattr(recovery, "marked", lambda metadata: None)
    patch.setattr(recovery, "_closing", closing)


@plants("I8, close_race_two_closers")
def a_close_goes_over_a_close(patch: Patch) -> None:
    """Issue 1712, and what an unconditional write comes to."""

    def closing(began: LedgerMetadata, found: Any) -> Any:
        return partial(_close_anything, found=found, is_right=lambda state: True)

    patch.setattr(recovery, "_closing", closing)


def _close_anything(metadata: LedgerMetadata, *, found: Any, is_right: Any) -> Any:
    is_done = metadata.state is LedgerState.CLOSED and metadata.last_entry_id == found.last_entry
    if is_done or not is_right(metadata.state):
        return None
    return dataclasses.replace(
        metadata,
        state=LedgerState.CLOSED,
        last_entry_id=found.last_entry,
        length_bytes=found.bytes,
    )


@plants("I8")
def the_bookies_are_those_of_before_the_mark(patch: Patch) -> None:
    """The ensemble as it was read first, maybe stale, instead of as the mark found it."""
    init, perform = SimRecovery.__init__, SimRecovery._perform

    def remember(
        self: Any, around: Any, ledger_id: int, known: Any, *rest: Any, **more: Any
    ) -> None:
        self.first = known.metadata.fragments
        init(self, around, ledger_id, known, *rest, **more)

    def perform_there(self: Any, step: Any) -> None:
        if isinstance(step, FindEnd):
            step = FindEnd(dataclasses.replace(step.metadata, fragments=self.first))
        perform(self, step)

    patch.setattr(SimRecovery, "__init__", remember)
    patch.setattr(SimRecovery, "_perform", perform_there)


@plants("I10")
def its_own_end_is_right_whoever_closed(patch: Patch) -> None:
    def recover(ledger_id: int) -> Any:
        procedure = genuine(ledger_id)
        answer: Any = None
        found: Any = None
        while True:
            try:
                step = procedure.send(answer)
            except StopIteration as end:
                if found is None:
                    return end.value
                return dataclasses.replace(
                    end.value, last_entry=found.last_entry, bytes=found.bytes
                )
            answer = yield step
            found = answer if isinstance(step, FindEnd) else found

    genuine = recovery.recover
    patch.setattr(recovering, "recover", recover)


@plants("I8")
def the_size_is_not_looked_up(patch: Patch) -> None:
    patch.setattr(TailRecovery, "_is_sized", lambda self, now_s: True)


@plants(
    "I9",
    survives=LATE_CONFIRMATIONS,
    shown_by=f"{RECOVERY_TESTS}::test_an_end_below_what_somebody_confirmed_is_refused",
)
def late_confirmations_are_not_heard(patch: Patch) -> None:
    patch.setattr(EndSearch, "saw_confirmed", lambda self, last_confirmed: None)


# --- more of the list of planted bugs


@plants("P4")
def one_denial_too_few(patch: Patch) -> None:
    real = quorum.missing_needed
    patch.setattr(end_search, "missing_needed", lambda metadata: max(real(metadata) - 1, 1))


@plants("P12", **CHANGING_RECOVERY)
def private_fragments_are_told_early(patch: Patch) -> None:
    """BOOKKEEPER-355: whoever recovers next asks an empty newcomer."""
    real = SimTail._perform

    def perform(self: Any) -> None:
        real(self)
        writing, nodes = self.core._write_back, self._around.nodes
        stored = nodes.truth(self._ledger_id)
        if writing is None or stored is None or stored.state is not LedgerState.IN_RECOVERY:
            return
        if writing.fragments != stored.fragments:
            told = dataclasses.replace(stored, fragments=writing.fragments)
            nodes.put(self._ledger_id, told)

    patch.setattr(SimTail, "_perform", perform)


def _close_over_a_recovery(patch: Patch) -> None:
    real = changes.closed_by_appender

    def close(metadata: LedgerMetadata, **end: Any) -> LedgerMetadata | None:
        if metadata.state is LedgerState.IN_RECOVERY:
            metadata = dataclasses.replace(metadata, state=LedgerState.OPEN)
        return real(metadata, **end)

    patch.setattr(changes, "closed_by_appender", close)


@plants(
    "P16",
    survives="what is written back carries the LAC that was known before, so nobody has read what "
    "the close cuts off",
    shown_by="tests/unit/ledger/bookkeeper/test_appender.py::test_nobody_closes_over_a_recovery",
)
def a_close_goes_over_a_recovery(patch: Patch) -> None:
    _close_over_a_recovery(patch)


@plants("P15 and P16, H1", **OURS, readers=2, recoverers=1, closes=True, appends=20, burst=8)
def a_close_over_a_recovery_with_rising_lacs(patch: Patch) -> None:
    _close_over_a_recovery(patch)
    lac_on_recovery_adds(patch)


@plants("P39", is_striped=True, recoverers=2)
def striped_entries_are_looked_for_elsewhere(patch: Patch) -> None:
    def write_set(metadata: LedgerMetadata, entry_id: int) -> tuple[int, ...]:
        size = metadata.ensemble_size
        return tuple((entry_id + 1 + turn) % size for turn in range(metadata.write_quorum))

    for module in (end_search, write_back):
        patch.setattr(module, "write_set", write_set)


@plants(
    "P40",
    is_striped=True,
    survives=EVERY_READ_FENCES,
    shown_by=f"{RECOVERY_TESTS}::test_coverage_of_a_striped_ensemble_is_of_every_write_set",
)
def coverage_of_the_ensemble_alone(patch: Patch) -> None:
    patch.setattr(
        fencing, "is_covered", lambda metadata, known: len(known) >= quorum.missing_needed(metadata)
    )
