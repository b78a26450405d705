"""How spans of ledgers are cut into ranges: every message once, in sizes that were asked for."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlog.admin.plan import Sizes, Span, cut, survey
from dlog.clock import us_datetime
from dlog.effects import ReadRun, Together
from dlog.errors import ConfigError, Corrupt, Truncated
from dlog.ids import Position
from dlog.limits import RANGE_BYTES_DEFAULT, RANGE_BYTES_MIN, RANGES_MAX
from dlog.meta.listed import Point
from dlog.options import OnTruncated
from dlog.reader.places import EARLIEST, LATEST, Start
from dlog.reader.ranges import LedgerPart
from dlog.wire.batch import ControlKind, encode, encode_control
from dlog.writer.segments import SEAM_ENTRY
from tests.unit.admin.scripted import Scripted
from tests.unit.reader.small_log import SmallLog, seven_segments

FIRST = 2  # entry of a ledger that may have messages
Entry = tuple[int, int]  # messages, bytes of each


class Ledger:
    """Entries of so many messages of so many bytes; reads are counted."""

    def __init__(self, ledger_id: int, base_seq: int, entries: Sequence[Entry]) -> None:
        self.ledger_id = ledger_id
        self.base_seq = base_seq
        self.raw: list[memoryview] = []
        self.counts = [count for count, _ in entries]
        seq = 0
        for count, size in entries:
            if count > 0:
                parts = encode([b"x" * size] * count, first_seq=seq, timestamp_us=1)
            else:
                parts = encode_control(ControlKind.SEAM, b"x" * size, first_seq=seq, timestamp_us=1)
            self.raw.append(memoryview(b"".join(parts)))
            seq += count
        self.messages = seq

    def span(self, *, is_exact: bool = True) -> Span:
        return Span(
            segment=self.ledger_id + 1,
            ledger_id=self.ledger_id,
            base_seq=self.base_seq,
            first_entry=FIRST,
            first_idx=0,
            first_seq=self.base_seq,
            last_entry=FIRST + len(self.raw) - 1,
            next_seq=self.base_seq + self.messages,
            bytes=sum(map(len, self.raw)),
            is_exact=is_exact,
        )

    def seqs(self, part: LedgerPart) -> list[int]:
        """What a reader of the part delivers."""
        firsts = [0, *itertools.accumulate(self.counts)]
        first, last = part.first_entry - FIRST, part.last_entry - FIRST
        behind = self.base_seq + firsts[last + 1]
        begin = self.base_seq + firsts[first] + part.first_idx
        return list(range(begin, min(behind, begin + part.messages)))


class Bench:
    def __init__(self, *ledgers: Sequence[Entry]) -> None:
        self.ledgers: dict[int, Ledger] = {}
        self.looks = 0
        seq = 100
        for ledger_id, entries in enumerate(ledgers):
            self.ledgers[ledger_id] = Ledger(ledger_id, seq, entries)
            seq += self.ledgers[ledger_id].messages
        self.next_seq = seq

    @property
    def spans(self) -> list[Span]:
        return [ledger.span() for ledger in self.ledgers.values()]

    def run(self, work: Any) -> Any:
        answer = None
        try:
            while True:
                answer = self._perform(work.send(answer))
        except StopIteration as end:
            return end.value

    def _perform(self, effect: Any) -> Any:
        if isinstance(effect, Together):
            return [self.run(each) for each in effect.procedures]
        assert isinstance(effect, ReadRun)
        assert effect.first_entry == effect.last_entry
        self.looks += 1
        return [self.ledgers[effect.ledger_id].raw[effect.first_entry - FIRST]]

    def cut(self, target: int, most: int | None = None) -> list[tuple[LedgerPart, ...]]:
        found: list[tuple[LedgerPart, ...]] = self.run(cut(self.spans, target, most))
        return found

    def true_bytes(self, part: LedgerPart) -> int:
        raw = self.ledgers[part.ledger_id].raw
        return sum(map(len, raw[part.first_entry - FIRST : part.last_entry - FIRST + 1]))


def check(bench: Bench, ranges: list[tuple[LedgerPart, ...]], most: int | None) -> None:
    """Each message in one range, in order; what a range says of itself is so."""
    seqs: list[int] = []
    for parts in ranges:
        assert parts, "no range is empty"
        in_range = 0
        for part in parts:
            delivered = bench.ledgers[part.ledger_id].seqs(part)
            assert (delivered[0], len(delivered)) == (part.first_seq, part.messages)
            assert part.segment == part.ledger_id + 1
            seqs += delivered
            in_range += part.messages
        assert most is None or in_range <= most
        assert len({part.ledger_id for part in parts}) == len(parts)
    assert seqs == list(range(100, bench.next_seq))


entries = st.lists(
    st.tuples(st.sampled_from([0, 1, 1, 2, 3, 40]), st.sampled_from([0, 1, 30, 500, 4000])),
    min_size=1,
    max_size=14,
)


@settings(max_examples=60)
@given(
    st.lists(entries, min_size=1, max_size=4),
    st.sampled_from([1, 100, 1024, 3000, 20_000, 1 << 20]),
    st.sampled_from([None, 1, 2, 7, 50]),
)
@example([[(3, 10)], [(0, 0)], [(3, 10)]], 1 << 20, None)
@example([[(40, 1)]], 1 << 20, 7)
@example([[(1, 4000)] * 14], 1024, None)
def test_every_message_is_in_one_range_and_in_order(
    ledgers: list[list[Entry]], target: int, most: int | None
) -> None:
    bench = Bench(*ledgers)
    check(bench, bench.cut(target, most), most)


def uneven() -> list[Entry]:
    """Many small messages, then few large ones, in 300 entries."""
    return [(20, 10)] * 200 + [(2, 4000)] * 20 + [(1, 1)] * 80


@pytest.mark.parametrize("target", [16 << 10, 64 << 10])
def test_ranges_are_even_however_uneven_the_entries_are(target: int) -> None:
    bench = Bench(uneven())
    ranges = bench.cut(target)
    check(bench, ranges, None)
    whole = bench.spans[0].bytes
    wanted = -(-whole // target)
    assert wanted - 2 <= len(ranges) <= wanted
    largest = max(map(len, bench.ledgers[0].raw))
    for (part,) in ranges:
        assert bench.true_bytes(part) <= 1.5 * target + largest
    assert sum(part.bytes for parts in ranges for part in parts) == whole, "exactly"
    assert bench.looks <= 8 * 4 * wanted, "a few entries of each range"


def test_a_ledger_that_fits_is_not_looked_into() -> None:
    bench = Bench([(5, 100)] * 4, [(5, 100)] * 4, [(5, 100)] * 4)
    size = bench.spans[0].bytes
    ranges = bench.cut(3 * size)
    assert bench.looks == 0
    assert [[part.ledger_id for part in parts] for parts in ranges] == [[0, 1, 2]]
    assert [part.bytes for part in ranges[0]] == [size] * 3
    ranges = bench.cut(2 * size)
    assert bench.looks == 0
    assert sorted(len(parts) for parts in ranges) in ([1, 2], [1, 1, 1])
    bench.cut(2 * size - 1)
    assert bench.looks > 0


def test_neighbours_share_a_range_by_where_their_middles_stand() -> None:
    bench = Bench(*[[(1, 1000)]] * 10)
    size = bench.spans[0].bytes
    for of_range in (1, 2, 3, 5, 10):
        ranges = bench.cut(max(of_range * size, 2 * size))
        counts = [len(parts) for parts in ranges]
        assert sum(counts) == 10
        assert max(counts) - min(counts) <= 1, counts


def test_a_bound_on_messages_cuts_within_an_entry() -> None:
    bench = Bench([(10, 1), (3, 1)])
    ranges = bench.cut(1 << 20, 4)
    check(bench, ranges, 4)
    assert [sum(part.messages for part in parts) for parts in ranges] == [4, 4, 2, 3] or [
        sum(part.messages for part in parts) for parts in ranges
    ] == [4, 4, 4, 1]
    firsts = [(parts[0].first_entry, parts[0].first_idx) for parts in ranges]
    assert firsts[:3] == [(FIRST, 0), (FIRST, 4), (FIRST, 8)]


def test_a_list_that_disagrees_with_the_entries_is_corrupt() -> None:
    bench = Bench([(3, 500)] * 9)
    for changes in ({"next_seq": 105}, {"base_seq": 60}, {"base_seq": 200}):
        span = dataclasses.replace(bench.spans[0], **changes)
        with pytest.raises(Corrupt) as caught:
            bench.run(cut([span], 100, None))
        assert caught.value.ledger_id == 0


def test_the_size_of_a_range_makes_enough_of_them() -> None:
    assert Sizes().target_of(10) == 10
    assert Sizes().target_of(0) == 1
    assert Sizes(target_bytes=2048).target_of(100_000) == 2048
    assert Sizes().target_of(1 << 40) == RANGE_BYTES_DEFAULT
    assert Sizes(min_ranges=7).target_of(100) == 15
    assert Sizes(min_ranges=100).target_of(100) == 1
    assert Sizes(min_ranges=101).target_of(100) == 1
    least = Sizes(target_bytes=RANGE_BYTES_MIN)
    assert least.target_of(RANGE_BYTES_MIN * RANGES_MAX) == RANGE_BYTES_MIN
    with pytest.raises(ConfigError, match="are more than"):
        least.target_of(RANGE_BYTES_MIN * (RANGES_MAX + 1))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"target_bytes": RANGE_BYTES_MIN - 1}, "target_bytes"),
        ({"target_bytes": 1e6}, "target_bytes"),
        ({"min_ranges": 0}, "min_ranges"),
        ({"min_ranges": True}, "min_ranges"),
        ({"max_messages": 0}, "max_messages"),
    ],
)
def test_sizes_are_whole_numbers_within_their_bounds(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Sizes(**changes)
    least = Sizes(target_bytes=RANGE_BYTES_MIN, min_ranges=1, max_messages=1)
    assert least.max_messages == 1


# --- what is wanted


def surveyed(log: Scripted, start: Start, end: Start, on_truncated: OnTruncated = "raise") -> Any:
    return log.run(survey(log.view(), start, end, on_truncated))


def check_spans(log: Scripted, spans: list[Span], first: int, behind: int) -> None:
    """Each message from `first` to `behind` is in one span, at the place where it stands."""
    seqs = [seq for span in spans for seq in range(span.first_seq, span.next_seq)]
    assert seqs == list(range(first, behind))
    for span in spans:
        begin, last = log.messages[span.first_seq], log.messages[span.next_seq - 1]
        assert span.ledger_id == 10 * span.segment == begin.id.ledger_id
        mine = [each for each in log.messages if each.id.ledger_id == span.ledger_id]
        assert span.base_seq == mine[0].seq
        assert span.last_entry >= last.id.entry_id
        if span.first_seq != mine[0].seq:
            assert (span.first_entry, span.first_idx) == begin.id[1:]
        else:
            assert (span.first_entry, span.first_idx) in ((SEAM_ENTRY, 0), begin.id[1:])
        if span.next_seq <= mine[-1].seq:
            assert span.last_entry == last.id.entry_id


def test_a_survey_has_each_message_from_its_start_to_its_end() -> None:
    log = Scripted.of(seven_segments())
    count = len(log.messages)
    for first in (0, 1, 6, 17, count - 1, count):
        for behind in range(first, count + 2):
            check_spans(log, surveyed(log, first, behind), first, min(behind, count))
    assert surveyed(log, 5, 5) == surveyed(log, 7, 3) == []


def test_a_survey_goes_from_any_kind_of_place_to_any_other() -> None:
    log = Scripted.of(seven_segments())
    messages, count = log.messages, len(log.messages)
    places: list[tuple[Start, int]] = [
        (EARLIEST, 0),
        (LATEST, count),
        (messages[4].id, 4),
        (Position("uid", 9, messages[8].id), 9),
        (us_datetime(messages[13].time_us), 13),
        (17, 17),
    ]
    for (start, first), (end, behind) in itertools.product(places, places):
        check_spans(log, surveyed(log, start, end), first, max(first, behind))


def test_a_survey_of_sealed_ledgers_knows_their_size_exactly() -> None:
    """And that of a part, or of an open one, about."""
    log = Scripted.of(seven_segments())
    spans = {span.segment: span for span in surveyed(log, 1, LATEST)}
    for number in (2, 3, 5, 6):
        assert spans[number].is_exact
        assert spans[number].bytes == sum(map(len, log.ledgers[10 * number]))
    assert not spans[1].is_exact
    whole = sum(map(len, log.ledgers[10]))
    count = sum(each.id.ledger_id == 10 for each in log.messages)
    assert spans[1].bytes == whole * (count - 1) // count
    assert not spans[7].is_exact
    true = sum(map(len, log.ledgers[70][SEAM_ENTRY:]))
    assert true // 2 < spans[7].bytes < 2 * true
    part = surveyed(log, 0, 1)[0]
    assert (part.is_exact, part.bytes) == (False, whole // count)


def test_a_ledger_that_is_closed_and_not_sealed_yet_is_surveyed_to_its_end() -> None:
    log = SmallLog()
    for number in range(3):
        log.begin(at_us=number)
        log.write(number, number)
        log.write(number)
        if number == 0:
            log.seal()
        elif number == 1:
            log.close()
    scripted = Scripted.of(log)
    spans = surveyed(scripted, EARLIEST, LATEST)
    check_spans(scripted, spans, 0, 9)
    assert [span.segment for span in spans] == [1, 2, 3]
    assert [span.is_exact for span in spans] == [True, True, False]
    assert spans[1].bytes == sum(map(len, log.ledgers[20]))
    scripted.closed.discard(20)
    check_spans(scripted, surveyed(scripted, EARLIEST, LATEST), 0, 6)


def test_a_place_that_was_truncated_is_refused_or_jumped_over() -> None:
    log = Scripted.of(seven_segments())
    log.truncate(Point(6))
    for at in (2, log.messages[2].id):
        with pytest.raises(Truncated):
            surveyed(log, at, LATEST)
        check_spans(log, surveyed(log, at, LATEST, "jump"), 6, len(log.messages))
    assert surveyed(log, 6, log.messages[3].id, "jump") == []


def test_a_log_without_messages_has_no_spans() -> None:
    empty = Scripted.of(SmallLog())
    assert surveyed(empty, EARLIEST, LATEST) == []
    begun = SmallLog()
    begun.begin()
    assert surveyed(Scripted.of(begun), EARLIEST, LATEST) == []


def test_a_list_whose_seqs_have_a_gap_is_corrupt() -> None:
    log = Scripted.of(seven_segments())
    fifth, *rest = log.meta.segments
    assert fifth.sealed is not None
    sealed = dataclasses.replace(fifth.sealed, base_seq=fifth.sealed.base_seq + 1)
    log.change(segments=(dataclasses.replace(fifth, sealed=sealed), *rest))
    with pytest.raises(Corrupt):
        surveyed(log, EARLIEST, LATEST)
