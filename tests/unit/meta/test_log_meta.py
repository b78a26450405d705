"""The log meta: its bytes are fixed by vectors, foreign bytes are refused by type, unknown fields
survive, and unlawful changes are `Broken` before they reach a store."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog import limits
from dlog.errors import Broken, FormatError, Moved, NotFound, TooLarge
from dlog.forgotten import ForgottenNames
from dlog.meta.listed import (
    CopyOf,
    Doomed,
    DoomedPage,
    End,
    MovedTo,
    PageRef,
    Point,
    Sealed,
    Segment,
    WriterMark,
)
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.pages import page_from_bytes, page_to_bytes
from dlog.meta.published import Published, PublishedBatch
from dlog.options import LogOptions

VECTORS = Path(__file__).parents[2] / "vectors" / "log_meta"
MARK = WriterMark("token-a", "ada@host:1", 1_700_000_000_000_000)
NEW = LogMeta("uid-1", LogOptions())


def sealed(base_seq: int, next_seq: int, last_entry: int = 3) -> Sealed:
    return Sealed(last_entry, 100, base_seq, next_seq, 10, 20)


FULL = LogMeta(
    uid="uid-2",
    options=LogOptions(segment_bytes=1 << 20, ensemble=5, write_quorum=5, ack_quorum=3),
    epoch=7,
    writer=MARK,
    end=End(3, 12, 8, 42, 99),
    next_number=5,
    ledger_floor=13,
    segments=(
        Segment(3, 12, 6, Sealed(8, 4096, 40, 42, 90, 99)),
        Segment(4, 13, 7),
    ),
    pages=(PageRef(1, 2, 0, 40, 5, 89, 4, 9, 2, 700),),
    deleting=(Doomed(11, 77),),
    deleting_pages=(DoomedPage(1, 1, 78),),
    hand_over="grace@host:2",
    truncate_before=Point(38, 9, 1, 4),
    holds=3,
    producers=True,
)

COPY = NEW.as_copy(CopyOf("uid-9", "orders", 40), 30)
LEFT = NEW.claimed(MARK).handed_over(None)
PLACE = "zk://zk1:2181/dlog"
MOVED = LEFT.left_for(PLACE, "ada@host:1", 1_700_000_000_000_001)

BATCH = PublishedBatch("query", 3, "token-b", 2, 2, 42)
PUBLISHED = (
    dataclasses.replace(NEW.claimed(MARK).listed(5), producers=True)
    .sealed(1, Sealed(3, 100, 0, 2, 10, 20))
    .handed_over(None)
    .claimed(WriterMark("token-b", "spark@host:3", 1_700_000_000_000_002))
    .filled(7, Sealed(2, 300, 2, 42, 20, 30))
    .noted(BATCH)
    .handed_over(None)
)

VALUES: dict[str, LogMeta] = {
    "published": PUBLISHED,
    "copy": COPY,
    "moved": MOVED,
    "new": NEW,
    "claimed": NEW.claimed(MARK).listed(5),
    "full": FULL,
    "left": NEW.claimed(MARK).handed_over("grace@host:2"),
    "removed": dataclasses.replace(
        NEW, state=LogState.DELETED, epoch=4, next_number=9, ledger_floor=30
    ),
}


@pytest.mark.parametrize("name", sorted(VALUES))
def test_the_bytes_are_those_of_the_vector(name: str) -> None:
    raw = (VECTORS / f"{name}.json").read_bytes()
    assert VALUES[name].to_bytes() == raw
    assert LogMeta.from_bytes(raw, where="vector") == VALUES[name]


def test_a_page_has_the_bytes_of_its_vector() -> None:
    segments = (
        Segment(1, 4, 1, sealed(0, 5)),
        Segment(2, 9, 2, sealed(5, 40), {"newer": [1]}),
    )
    raw = (VECTORS / "page.json").read_bytes()
    assert page_to_bytes(segments) == raw
    assert page_from_bytes(raw, where="vector") == segments


# --- fields of later versions


def with_fields(meta: LogMeta, *path: str | int, **fields: object) -> bytes:
    """The bytes of `meta` with more fields in the object that `path` leads to."""
    tree: Any = json.loads(meta.to_bytes())
    place = tree
    for step in path:
        place = place[step]
    place.update(fields)
    return json.dumps(tree).encode()


@pytest.mark.parametrize("path", [(), ("options",), ("segments", 0), ("segments", 1)])
def test_unknown_fields_survive_a_change(path: tuple[str | int, ...]) -> None:
    """DL-08. At every level of the node that may grow."""
    raw = with_fields(FULL, *path, newer={"a": [1, None]})
    changed = LogMeta.from_bytes(raw, where="node").claimed(MARK)
    after: Any = json.loads(changed.to_bytes())
    for step in path:
        after = after[step]
    assert after["newer"] == {"a": [1, None]}


def test_unknown_fields_of_a_segment_survive_its_sealing_and_its_page() -> None:
    raw = with_fields(NEW.listed(5), "segments", 0, newer=1)
    meta = LogMeta.from_bytes(raw, where="node").sealed(1, sealed(0, 2))
    assert meta.segments[0].extra == {"newer": 1}
    assert page_from_bytes(page_to_bytes(meta.segments), where="page") == meta.segments


def test_what_must_be_understood_is_refused_by_name() -> None:
    with pytest.raises(FormatError, match="needs telepathy"):
        LogMeta.from_bytes(with_fields(NEW, needs=["telepathy"]), where="node")


@pytest.mark.parametrize("newer", [2, 0, -1])
def test_another_format_is_refused(newer: int) -> None:
    with pytest.raises(FormatError, match=f"format {newer}"):
        LogMeta.from_bytes(with_fields(NEW, format=newer), where="node")
    page = json.dumps({"format": newer, "segments": []}).encode()
    with pytest.raises(FormatError, match=f"format {newer}"):
        page_from_bytes(page, where="page")


# --- hostile bytes

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
FIELDS = sorted(json.loads(FULL.to_bytes()))


@given(name=st.sampled_from(FIELDS), value=json_values)
def test_a_wrong_field_is_a_format_error(name: str, value: Any) -> None:
    _only_format_errors(with_fields(FULL, **{name: value}))


@given(
    path=st.sampled_from([("writer",), ("options",), ("end",), ("segments", 0), ("pages", 0),
                          ("deleting", 0)]),
    data=st.data(),
)  # fmt: skip
def test_a_wrong_inner_field_is_a_format_error(path: tuple[Any, ...], data: st.DataObject) -> None:
    tree: Any = json.loads(FULL.to_bytes())
    for step in path:
        tree = tree[step]
    name = data.draw(st.sampled_from(sorted(tree)))
    value = data.draw(json_values)
    _only_format_errors(with_fields(FULL, *path, **{name: value}))


@given(raw=st.binary(max_size=64))
def test_garbage_is_a_format_error(raw: bytes) -> None:
    _only_format_errors(raw)


@given(at=st.integers(0, len(FULL.to_bytes()) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_is_a_format_error_or_another_value(at: int, byte: int) -> None:
    raw = bytearray(FULL.to_bytes())
    raw[at] = byte
    _only_format_errors(bytes(raw))


def _only_format_errors(raw: bytes) -> None:
    try:
        meta = LogMeta.from_bytes(raw, where="node")
    except FormatError:
        return
    assert LogMeta.from_bytes(meta.to_bytes(), where="again") == meta


@pytest.mark.parametrize("name", ["uid", "newer"])
def test_half_a_surrogate_is_a_format_error(name: str) -> None:
    with pytest.raises(FormatError, match="not Unicode"):
        LogMeta.from_bytes(with_fields(NEW, **{name: "\ud800"}), where="node")


def test_deep_nesting_is_a_format_error() -> None:
    with pytest.raises(FormatError):
        LogMeta.from_bytes(b"[" * 100_000, where="node")


@pytest.mark.parametrize(
    "segments",
    [
        (Segment(2, 5, 1), Segment(1, 6, 1)),
        (Segment(1, 6, 1), Segment(2, 5, 1)),
        (Segment(1, 5, 1), Segment(2, 6, 1, sealed(0, 1))),
    ],
)
def test_segments_out_of_order_are_refused(segments: tuple[Segment, ...]) -> None:
    raw = dataclasses.replace(NEW, segments=segments).to_bytes()
    with pytest.raises(FormatError):
        LogMeta.from_bytes(raw, where="node")


def test_a_page_with_an_open_segment_is_refused() -> None:
    with pytest.raises(FormatError, match="sealed segments only"):
        page_from_bytes(page_to_bytes((Segment(1, 5, 1),)), where="page")


def test_a_node_has_a_largest_size() -> None:
    with pytest.raises(TooLarge):
        dataclasses.replace(NEW, hand_over="x" * limits.META_NODE_BYTES_MAX).to_bytes()


# --- lawful changes


def test_a_listed_ledger_exceeds_every_one_before() -> None:
    """DL-13."""
    meta = NEW.listed(5)
    for ledger_id in (5, 4, -1):
        with pytest.raises(Broken, match="only grow"):
            meta.listed(ledger_id)


def test_at_most_two_segments_are_unsealed() -> None:
    """DL-32: a takeover recovers two, so a third one would be lost."""
    with pytest.raises(Broken, match="at most two"):
        NEW.listed(0).listed(1).listed(2)


def test_segments_are_sealed_in_order_and_seqs_have_no_gap() -> None:
    meta = NEW.listed(0).listed(1)
    with pytest.raises(Broken, match="in order"):
        meta.sealed(2, sealed(0, 1))
    with pytest.raises(Broken, match="no seq is lost"):
        meta.sealed(1, sealed(1, 2))
    done = meta.sealed(1, sealed(0, 4)).sealed(2, sealed(4, 4, last_entry=1))
    assert done.end == End(2, 1, 1, 4, 20)
    with pytest.raises(Broken):
        done.sealed(2, sealed(4, 4))


def test_a_dropped_number_is_burnt_and_its_ledger_doomed() -> None:
    meta = NEW.listed(3).dropped(1, 50).listed(4)
    assert [segment.number for segment in meta.segments] == [2]
    assert meta.deleting == (Doomed(3, 50),)
    for number in (1, 7):
        with pytest.raises(Broken, match="unsealed"):
            meta.dropped(number, 50)
    with pytest.raises(Broken, match="unsealed"):
        meta.sealed(2, sealed(0, 0)).dropped(2, 50)


def test_only_ledgers_that_no_log_listed_are_discarded() -> None:
    meta = NEW.listed(5)
    assert meta.discarded((6, 9), 50).deleting == (Doomed(6, 50), Doomed(9, 50))
    for ledgers in ((5,), (6, 5), (3, 9)):
        with pytest.raises(Broken, match="never listed"):
            meta.discarded(ledgers, 50)


def test_only_an_open_log_is_claimed_and_only_a_removed_one_reborn() -> None:
    removed = NEW.claimed(MARK).listed(5).doomed(9, MARK)
    assert removed.state is LogState.DELETING
    assert removed.epoch == 2
    with pytest.raises(Broken):
        removed.claimed(MARK)
    with pytest.raises(Broken, match="holds no ledger"):
        removed.tombstone()
    stone = dataclasses.replace(removed, deleting=()).tombstone()
    reborn = stone.reborn("uid-9", LogOptions())
    kept = (reborn.epoch, reborn.next_number, reborn.ledger_floor)
    assert kept == (2, 2, 5)
    assert reborn.end == End(number=1)
    with pytest.raises(Broken, match="made anew"):
        reborn.reborn("uid-10", LogOptions())


def test_a_token_owns_an_open_log_only() -> None:
    meta = NEW.claimed(MARK)
    assert meta.owned_by("token-a")
    assert not meta.owned_by("token-b")
    assert not NEW.owned_by("token-a")
    assert not meta.doomed(0, MARK).owned_by("token-a")


# --- pages


def long_list(count: int) -> LogMeta:
    meta = NEW
    for number in range(1, count + 1):
        meta = meta.listed(number * 2).sealed(number, sealed(number - 1, number))
    return meta


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_text_in_another_encoding_is_a_format_error(encoding: str) -> None:
    """Also half a surrogate pair as bytes, without a backslash: it could not be written again."""
    half = NEW.to_bytes().replace(b'"uid"', b'"x":"\\ud800","uid"')
    text = json.dumps(json.loads(half), ensure_ascii=False)
    with pytest.raises(FormatError, match="here"):
        LogMeta.from_bytes(text.encode(encoding, "surrogatepass"), where="here")


def test_a_log_of_single_copies_is_read_again() -> None:
    options = LogOptions(ensemble=1, write_quorum=1, ack_quorum=1, unsafe_single_copy=True)
    meta = LogMeta(uid="u", options=options)
    raw = meta.to_bytes()
    assert b"unsafe" not in raw
    assert LogMeta.from_bytes(raw, where="here") == meta


# --- copies


def test_a_copy_begins_where_it_is_told() -> None:
    assert (COPY.end, COPY.truncate_before) == (End(next_seq=40, last_time_us=30), Point(40))
    opened = COPY.claimed(MARK, copies="uid-9").listed(5)
    assert opened.sealed(1, sealed(40, 41)).end.next_seq == 41
    with pytest.raises(Broken):
        opened.as_copy(CopyOf("uid-9", "orders", 0), 0)


def test_whoever_opens_a_copy_for_messages_of_their_own_ends_it() -> None:
    of = COPY.claimed(MARK, copies="uid-9").copy_of
    assert of is not None
    assert of.may_go_on("uid-9")
    assert not of.may_go_on("uid-8")
    mine = COPY.claimed(MARK).copy_of
    assert mine is not None
    assert (mine.own_epoch, mine.may_go_on("uid-9")) == (1, False)
    later = COPY.claimed(MARK).claimed(MARK, copies="uid-9").claimed(MARK)
    assert later.copy_of == mine, "the first one counts"
    assert NEW.claimed(MARK).copy_of is None


# --- logs that moved


def test_a_log_that_moved_is_changed_by_nobody() -> None:
    moved = MOVED
    page = PageRef(1, 2, 0, 40, 5, 89, 4, 9, 2, 700)
    for change in (
        lambda: moved.truncated(Point(1)),
        lambda: moved.swept(1),
        lambda: moved.trimmed(page, (), (), (), 1),
        lambda: moved.forgotten((), ()),
        lambda: moved.held(),
        lambda: moved.doomed(1, MARK),
        lambda: moved.terminated(),
        lambda: moved.is_here("orders"),
    ):
        with pytest.raises(Moved) as told:
            change()
        assert told.value.place == PLACE
    with pytest.raises(Broken):
        moved.claimed(MARK)


def test_only_what_is_sealed_and_free_moves() -> None:
    unsealed = dataclasses.replace(NEW.claimed(MARK).listed(5), writer=None)
    for refused in (NEW.claimed(MARK), unsealed, MOVED, VALUES["removed"]):
        with pytest.raises(Broken):
            refused.left_for(PLACE, "ada", 1)
    assert MOVED.arrived() == dataclasses.replace(LEFT, epoch=2)
    ended = LEFT.terminated()
    assert ended.left_for(PLACE, "ada", 1).arrived() == dataclasses.replace(ended, epoch=2)
    for refused in (LEFT, ended):
        with pytest.raises(Broken):
            refused.arrived()
        with pytest.raises(Broken):
            refused.sent_elsewhere(PLACE, "ada", 1)
    further = ended.left_for(PLACE, "ada", 1).sent_elsewhere("file:/a", "bob", 2)
    assert (further.epoch, further.moved_to) == (3, MovedTo("file:/a", "terminated", "bob", 2))


def test_no_number_goes_back_where_a_log_comes_to() -> None:
    removed = VALUES["removed"]
    higher = dataclasses.replace(MOVED, epoch=5, next_number=9, ledger_floor=30)
    assert higher.succeeds(removed)
    assert higher.succeeds(MOVED)
    assert not higher.succeeds(higher)
    for taken in ({"epoch": 4}, {"next_number": 8}, {"ledger_floor": 29}):
        assert not dataclasses.replace(higher, **taken).succeeds(removed)
    for there in (NEW, LEFT, LEFT.terminated(), FULL):
        assert not higher.succeeds(there)


def test_the_state_and_the_place_agree() -> None:
    for name, taken in (("moved", "moved_to"), ("moved", "state")):
        fields = json.loads((VECTORS / f"{name}.json").read_bytes())
        fields |= {"state": "open"} if taken == "state" else {"moved_to": None}
        with pytest.raises(FormatError, match="where to"):
            LogMeta.from_bytes(json.dumps(fields).encode(), where="node")
    fields = json.loads((VECTORS / "moved.json").read_bytes())
    fields["moved_to"]["was"] = "deleted"
    with pytest.raises(FormatError, match="does not move"):
        LogMeta.from_bytes(json.dumps(fields).encode(), where="node")


# --- what jobs publish


def test_what_a_job_filled_is_sealed_from_the_first() -> None:
    (theirs, published) = PUBLISHED.segments
    assert not theirs.is_job
    assert published.is_job
    assert (published.number, published.epoch, published.not_before_us) == (2, 2, 20)
    assert (PUBLISHED.end.ledger_id, PUBLISHED.end.next_seq, PUBLISHED.ledger_floor) == (7, 42, 7)
    assert PUBLISHED.writer is None
    assert (PUBLISHED.published.producers_at, PUBLISHED.kept_from) == (1, 1)


@pytest.mark.parametrize(
    ("ledger_id", "end"),
    [
        (7, Sealed(2, 300, 42, 50, 30, 40)),  # listed before
        (6, Sealed(2, 300, 42, 50, 30, 40)),  # below the floor
        (8, Sealed(2, 300, 41, 50, 30, 40)),  # seqs given twice
        (8, Sealed(2, 300, 43, 50, 30, 40)),  # or lost
        (8, Sealed(2, 300, 42, 42, 30, 40)),  # without messages
        (8, Sealed(2, 300, 42, 50, 29, 40)),  # before what stands there
        (8, Sealed(2, 300, 42, 50, 40, 30)),
    ],
)
def test_what_may_not_be_listed_is_refused(ledger_id: int, end: Sealed) -> None:
    with pytest.raises(Broken):
        PUBLISHED.filled(ledger_id, end)


def test_nothing_is_published_before_what_is_open() -> None:
    with pytest.raises(Broken):
        PUBLISHED.claimed(MARK).listed(9).filled(10, Sealed(2, 300, 42, 50, 30, 40))


def test_batches_of_a_query_rise_and_the_oldest_query_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PUBLISHED_QUERIES_MAX", 2)
    table = Published().noted(BATCH)
    for number in (0, 3):
        assert table.has("query", number) == BATCH
        with pytest.raises(Broken):
            table.noted(dataclasses.replace(BATCH, number=number))
    assert table.has("query", 4) is None
    assert table.has("other", 9) is None
    table = table.noted(dataclasses.replace(BATCH, query="other"))
    table = table.noted(dataclasses.replace(BATCH, number=4))
    assert [each.query for each in table.batches] == ["other", "query"]
    assert not table.forgot
    table = table.noted(dataclasses.replace(BATCH, query="third", number=0))
    assert [each.query for each in table.batches] == ["query", "third"]
    assert table.has("new", 0) is None
    assert table.has("new", 5) is None
    for again in (table, Published.from_fields(table.fields(), "here")):
        for number in (0, 1):
            with pytest.raises(NotFound, match="the query 'other' is not known any more"):
                again.has("other", number)


def test_a_table_that_does_not_say_which_queries_it_forgot_refuses_all_others() -> None:
    fields = {**Published((BATCH,)).fields(), "forgot": True}
    table = Published.from_fields(fields, "here")
    assert table.has("query", 0) == BATCH
    for number in (0, 1):
        with pytest.raises(NotFound):
            table.has("other", number)


def test_one_off_publications_take_no_room_from_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUBLISHED_QUERIES_MAX", 1)
    monkeypatch.setattr(limits, "PUBLISHED_ONE_OFF_MAX", 2)
    table = Published().noted(BATCH)
    for number in range(4):
        name = f"one-off:{number}"
        table = table.noted(dataclasses.replace(BATCH, query=name, number=0))
        assert table.has(name, 0) is not None
    assert [each.query for each in table.batches] == ["query", "one-off:2", "one-off:3"]
    assert not table.forgot
    assert table.has("query", 0) == BATCH
    assert table.has("one-off:0", 0) is None


def test_who_does_not_know_of_jobs_does_not_open_such_a_log() -> None:
    fields = json.loads(PUBLISHED.to_bytes())
    assert fields["needs"] == ["jobs"]
    assert json.loads(NEW.to_bytes())["needs"] == []
    assert "published" not in json.loads(NEW.to_bytes())
    for number, name, value in ((1, "job", False), (0, "job", 1), (1, "last_entry", None)):
        wrong = json.loads(PUBLISHED.to_bytes())
        if value is None:
            del wrong["segments"][number][name]
        else:
            wrong["segments"][number][name] = value
        with pytest.raises(FormatError):
            LogMeta.from_bytes(json.dumps(wrong).encode(), where="here")
    fields["published"]["batches"] *= 2
    with pytest.raises(FormatError, match="two last batches"):
        LogMeta.from_bytes(json.dumps(fields).encode(), where="here")


def test_the_segment_with_the_numbers_of_producers_stays_behind_jobs() -> None:
    meta = PUBLISHED.truncated(Point(42)).swept(1)
    assert [segment.number for segment in meta.segments] == [1, 2]
    later = meta.claimed(MARK).listed(9).sealed(3, Sealed(3, 9, 42, 43, 30, 40))
    assert later.kept_from is None
    swept = later.truncated(Point(43)).swept(1)
    assert [segment.number for segment in swept.segments] == [3]


def test_what_is_discarded_was_never_listed() -> None:
    assert [each.ledger_id for each in PUBLISHED.discarded((8, 9), 5).deleting] == [8, 9]
    with pytest.raises(Broken):
        PUBLISHED.discarded((7,), 5)


def test_the_largest_publication_fits_the_node_whatever_stands_in_it() -> None:
    """A node as full as it gets, and all that may be published at once."""
    many, big = limits.META_PAGE_ITEMS * 2 - 1, 10**15
    end = Sealed(10**6, 10**10, big, big + 1, big, big)
    ref = PageRef(10**6, 10**6, big, big, big, big, 10**12, 10**12, 10**6, 10**14)
    count = many + limits.PUBLISHED_SEGMENTS_MAX
    query = "q" * limits.PUBLISHED_QUERY_BYTES_MAX
    batch = PublishedBatch(query, 10**9, "t" * 32, 10**6, big, big)
    full = dataclasses.replace(
        PUBLISHED,
        segments=tuple(Segment(10**6, 10**12, 10**6, end, is_job=True) for _ in range(count)),
        pages=(ref,) * many,
        deleting=(Doomed(10**12, big),) * limits.META_DELETING_MAX,
        deleting_pages=(DoomedPage(10**6, 1, big),) * limits.META_DELETING_PAGES_MAX,
        published=Published(
            (batch,) * (limits.PUBLISHED_QUERIES_MAX + limits.PUBLISHED_ONE_OFF_MAX),
            True,
            10**6,
            ForgottenNames(random.Random(1).randbytes(limits.FORGOTTEN_NAMES_BYTES)),
        ),
    )
    assert len(full.to_bytes()) <= limits.META_NODE_BYTES_MAX


@pytest.mark.parametrize("state", LogState, ids=lambda state: state.value)
@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "open"])
def test_only_an_open_log_whose_every_segment_is_sealed_is_terminated(
    state: LogState, is_sealed: bool
) -> None:
    meta = NEW.claimed(MARK).listed(5)
    if is_sealed:
        meta = meta.sealed(1, sealed(0, 3))
    meta = dataclasses.replace(meta, state=state)
    if state is LogState.OPEN and is_sealed:
        ended = meta.terminated()
        assert (ended.state, ended.writer, ended.left_by) == (LogState.TERMINATED, None, MARK)
        assert ended.hand_over is None
    else:
        with pytest.raises(Broken, match="an end is sealed"):
            meta.terminated()
