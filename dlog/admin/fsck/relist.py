"""Repairing what a list says: a page is written again, an end is corrected. Procedures, each of
which looks again at what it rests on, and changes by compare-and-set.

What they write is proven, so that it does not matter who else writes it, or when: a page by its
reference and by the ledgers, an end by the ledger, if no seq moves. If a repair dies between two
steps, the next run finds what is left to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from dlog.admin.fsck.lists import walk_list
from dlog.admin.fsck.orphan_deletes import Said
from dlog.admin.fsck.orphans import mark_of
from dlog.admin.fsck.rebuild import (
    ENTRIES_TOLD,
    Told,
    find_ref,
    proven_refs,
    proven_segments,
    refs_below,
    told_by,
)
from dlog.admin.fsck.report import Action, Ended
from dlog.chance import Chance
from dlog.effects import (
    CreateNode,
    LastReadable,
    ListNodes,
    LookAtLedger,
    Procedure,
    ReadEntries,
    ReadNode,
    ReadRun,
    ReplaceNode,
)
from dlog.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    FormatError,
    NotFound,
    Unavailable,
    Unsupported,
    check,
)
from dlog.meta.cas import Seen, change_log, read_log
from dlog.meta.layout import Layout
from dlog.meta.listed import End, PageRef, Segment
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.pages import page_to_bytes
from dlog.meta.published import Published
from dlog.wire.batch import Seam
from dlog.writer.segments import SEAM_ENTRY, decode_seam

NO_PROOF = (Corrupt, FormatError, Unsupported)


def read_there(name: str, layout: Layout) -> Procedure[Seen]:
    """Of a log that is there."""
    seen = yield from read_log(layout.log(name))
    if seen.meta.state not in (LogState.OPEN, LogState.TERMINATED):
        raise NotFound(f"the log {name!r} is {seen.meta.state.value}", log=name)
    return seen


# --- pages


@dataclass(frozen=True, slots=True)
class LostPage:
    """A page that does not say what refers to it says, and the list it was found in."""

    path: str
    ref: PageRef
    meta: LogMeta


def find_lost_page(name: str, layout: Layout, path: str) -> Procedure[LostPage | Said]:
    walk = yield from walk_list(name, layout)
    again = (f for f in walk.findings if f.action is Action.WRITE_PAGE and f.where.path == path)
    if next(again, None) is None:
        return Ended.NOT_NEEDED, "it says what refers to it says"
    ref = yield from find_ref(
        name, layout, walk.meta, lambda ref: layout.page(name, ref.number, ref.level) == path
    )
    if ref is None:
        return Ended.NOT_NEEDED, "nothing refers to it any more"
    return LostPage(path, ref, walk.meta)


def write_page(
    name: str, layout: Layout, lost: LostPage, ledger_ids: Sequence[int]
) -> Procedure[Said]:
    """`ledger_ids`: all ledgers of the store, of any log, from the page's first to its last. A page
    of pages needs none."""
    ref = lost.ref
    held: tuple[Segment, ...] | tuple[PageRef, ...] | None
    if ref.level == 0:
        told = []
        for ledger_id in ledger_ids:
            found = yield from _told(lost.meta, ledger_id)
            if found is not None:
                told.append(found)
        held = proven_segments(ref, told)
    else:
        numbers = yield from _page_numbers(name, layout, ref)
        held = proven_refs(ref, (yield from refs_below(name, layout, ref.level - 1, numbers)))
    if held is None:
        why = ""
        if lost.meta.published != Published():  # they name neither their number nor their epoch
            why = "; jobs published into this log, and their segments do not tell their place"
        return Ended.REFUSED, (
            "what is left does not prove what stood there: segments "
            f"{ref.number} to {ref.last_number}, seqs {ref.base_seq} to {ref.next_seq - 1}{why}"
        )
    try:
        yield from put_node(lost.path, page_to_bytes(held))
    except (Conflict, AlreadyExists):
        return Ended.NOT_NEEDED, "it was written by another repair meanwhile"
    return Ended.DONE, f"written: {ref.segments} segments, proven by what they say themselves"


def _told(meta: LogMeta, ledger_id: int) -> Procedure[Told | None]:
    """None: it is not closed, or no segment of this log, or not to be read."""
    try:
        info = yield LookAtLedger(ledger_id)
        mark, closed = mark_of(info, 0), info.closed
        if mark is None or mark.uid != meta.uid or closed is None:
            return None
        if closed.last_entry < SEAM_ENTRY:
            return None
        entries = yield ReadEntries(ledger_id, meta.digest, (*ENTRIES_TOLD, closed.last_entry))
        return told_by(ledger_id, closed.bytes, closed.last_entry, entries, meta.uid)
    except (NotFound, *NO_PROOF):
        return None


def _page_numbers(name: str, layout: Layout, ref: PageRef) -> Procedure[list[int]]:
    suffix = f".{ref.level - 1}" if ref.level > 1 else ""
    names: list[str] = yield ListNodes(layout.pages(name))
    stems = [each.removesuffix(suffix) for each in names if each.endswith(suffix)]
    numbers = sorted(int(stem) for stem in stems if stem.isdigit())
    return [number for number in numbers if ref.number <= number <= ref.last_number]


def put_node(path: str, value: bytes) -> Procedure[None]:
    try:
        node = yield ReadNode(path)
    except NotFound:
        yield CreateNode(path, value, point="repair.page_written")
        return
    if node.value != value:
        yield ReplaceNode(path, value, node.version, point="repair.page_written")


# --- ends


@dataclass(frozen=True, slots=True)
class Weighed:
    """What is known of where a segment ends."""

    seen: Seen
    segment: Segment  # as it is listed
    told: Told | None  # what its ledger says; None: nothing
    after: Segment | None
    seam: Seam | None  # of the segment behind it; None: it cannot be read (yet)

    @property
    def may_be_right(self) -> bool:
        """Where the ledger has more than the list says, only who continues it proves the list."""
        assert self.segment.sealed is not None
        last_entry = self.segment.sealed.last_entry
        has_more = self.told is not None and self.told.end[1] > last_entry
        goes_on = self.seam is not None and _continues(self.seam) == (
            self.segment.ledger_id,
            last_entry,
        )
        return goes_on or not has_more


def weigh(name: str, layout: Layout, number: int, ledger_id: int) -> Procedure[Weighed | Said]:
    seen = yield from read_there(name, layout)
    segment = seen.meta.segment(number)
    if segment is None or segment.sealed is None or segment.ledger_id != ledger_id:
        return Ended.REFUSED, (
            "it is not in the node of the log itself, whose pages prove each other"
        )
    after = next((s for s in seen.meta.segments if s.number > number), None)
    seam = None if after is None else (yield from _seam(after))
    try:
        told = yield from _told(seen.meta, ledger_id)
    except Unavailable:  # no bookie that answers has its last entry; amending it asks all of them
        told = None
    return Weighed(seen, segment, told, after, seam)


def reseal(name: str, layout: Layout, weighed: Weighed, chance: Chance) -> Procedure[Said]:
    """The list is wrong, and its ledger right."""
    segment, told, seam = weighed.segment, weighed.told, weighed.seam
    number, listed = segment.number, segment.sealed
    assert listed is not None
    if told is None or told.segment.sealed is None:
        return Ended.REFUSED, "the ledger does not tell where it ends"
    wanted = told.segment.sealed
    # What was sent last and lost may have been listed by its time, which the ledger does not tell.
    last_time_us = max(wanted.last_time_us, listed.last_time_us)
    wanted = dataclasses.replace(wanted, last_time_us=last_time_us)
    if wanted == listed:
        return Ended.NOT_NEEDED, "the list says what the ledger says"
    if (told.segment.number, told.segment.epoch) != (segment.number, segment.epoch) or (
        (wanted.base_seq, wanted.next_seq) != (listed.base_seq, listed.next_seq)
    ):
        return Ended.REFUSED, (
            f"the list says seqs {listed.base_seq} to {listed.next_seq - 1}, and the ledger "
            f"has {wanted.base_seq} to {wanted.next_seq - 1}: which of them is right, nothing "
            "proves"
        )
    if weighed.after is not None and seam is None and wanted.last_entry != listed.last_entry:
        return Ended.REFUSED, "what the segment behind it continues cannot be read (yet)"
    if seam is not None and _continues(seam) != told.end:
        return Ended.REFUSED, (
            f"the segment behind it continues entry {seam.predecessor_last} of ledger "
            f"{seam.predecessor_ledger}, and the ledger ends with entry {told.end[1]}"
        )

    def change(meta: LogMeta) -> LogMeta:
        if meta.segment(number) != segment:
            raise NotFound(f"segment {number} changed meanwhile")
        return _resealed(meta, dataclasses.replace(segment, sealed=wanted))

    def is_done(meta: LogMeta) -> bool:
        now = meta.segment(number)
        return now is not None and now.sealed == wanted

    path, point = layout.log(name), "repair.resealed"
    yield from change_log(path, weighed.seen, change, is_done=is_done, chance=chance, point=point)
    return Ended.DONE, f"the list says entry {wanted.last_entry}, {wanted.bytes} bytes"


def _resealed(meta: LogMeta, segment: Segment) -> LogMeta:
    """The same seqs as before, so that nothing behind it moves."""
    sealed = segment.sealed
    before = meta.segment(segment.number)
    assert sealed is not None
    check(
        before is not None
        and before.sealed is not None
        and (before.sealed.base_seq, before.sealed.next_seq) == (sealed.base_seq, sealed.next_seq),
        "a repair moves no seq",
        segment,
    )
    end = meta.end
    if end.number == segment.number:
        end = End(
            segment.number,
            segment.ledger_id,
            sealed.last_entry,
            sealed.next_seq,
            max(end.last_time_us, sealed.last_time_us),
        )
    segments = tuple(segment if s.number == segment.number else s for s in meta.segments)
    return dataclasses.replace(meta, segments=segments, end=end)


def _continues(seam: Seam) -> tuple[int, int]:
    return seam.predecessor_ledger, seam.predecessor_last


def _seam(segment: Segment) -> Procedure[Seam | None]:
    """Of a segment that may be open. A takeover drops it if it continues more than the list says,
    with all that was acknowledged in it. None: it cannot be read (yet)."""
    try:
        if (yield LastReadable(segment.ledger_id)) < SEAM_ENTRY:
            return None
        raw = yield ReadRun(segment.ledger_id, SEAM_ENTRY, SEAM_ENTRY, 1)
        seam, _ = decode_seam(raw[0], segment)
    except (NotFound, *NO_PROOF):
        return None
    return seam
