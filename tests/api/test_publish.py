"""Segments that jobs fill beside a log, and that are published into it: whole, once, in order."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import pickle
from typing import Any

import pytest

import dlog
from dlog.clock import us_datetime
from dlog.meta.listed import Doomed
from dlog.meta.pages import page_to_bytes
from tests.api.adapter import AioApi, Api
from tests.api.filling import fill, publish, values_of
from tests.api.planting import (
    change_meta,
    checked,
    first_page,
    kinds,
    ledger_ids,
    meta_of,
    ours,
    remove_node,
    repaired,
    stores_of,
    with_segment,
)

pytestmark = pytest.mark.crosswise(seconds=1)

A, B, C = values_of("a", 30), values_of("b", 20), values_of("c", 10)


async def created(api: Api, log: str = "log", **options: Any) -> None:
    async with api.connect() as client:
        await client.admin.create(log, **options)


async def test_what_was_filled_beside_each_other_is_published_at_once(api: Api) -> None:
    async with api.open_writer() as writer:
        await writer.append_many(A)
    async with api.connect() as client:
        admin = client.admin
        first = await admin.open_segment("log", job="task 1")
        second = await admin.open_segment("log", job="task 2", entry_bytes=64)
        await second.append_many(C)
        await first.append_many(B[:5])
        await first.append_many(B[5:])
        filled = [await second.close(), await first.close()]
        assert await api.values() == A, "nobody sees them yet"
        told = pickle.loads(pickle.dumps(filled[1]))  # noqa: S301 - as other processes get it
        assert (told.messages, told.job, told.log) == (20, "task 1", "log")
        answer = await admin.publish_segments("log", [filled[0], told], key=("query", 0))
        assert (answer.published, answer.base_seq, answer.next_seq) == (True, 30, 60)
        assert (answer.messages, answer.query, answer.number) == (30, "query", 0)
        described = await admin.describe("log")
        assert described.writer is None
        assert [each.state for each in described.segments] == ["sealed"] * 3
        assert described.messages == 60
    messages = await api.read_all()
    assert [message.value for message in messages] == A + B + C  # by ledger id
    assert [message.seq for message in messages] == list(range(60))
    assert {message.epoch for message in messages[30:]} == {answer.epoch}
    assert (await checked(api, deep=True)).is_clean
    async with api.open_writer() as writer:  # goes on behind
        await writer.append(b"behind")
    assert await api.values() == [*A, *B, *C, b"behind"]
    report = await checked(api, deep=True)
    assert report.is_clean, report.findings


async def test_messages_keep_all_that_they_have(api: Api) -> None:
    await created(api)
    values = [b"one", None, b"", b"four"]
    keys = [b"k", None, b"", b"k"]
    headers = [[("h", b"1"), ("h", b"2")], None, {"x": b""}, ()]
    times = [17, us_datetime(18), None, -5]
    async with api.connect() as client:
        more = {"keys": keys, "headers": headers, "event_times": times}
        filled = await fill(client.admin, values, codec="lz4", **more)
        await client.admin.publish_segments("log", [filled], key=("q", 3))
    found = await api.read_all()
    assert [message.value for message in found] == values
    assert [message.key for message in found] == keys
    assert [message.headers for message in found] == [
        (("h", b"1"), ("h", b"2")),
        (),
        (("x", b""),),
        (),
    ]
    assert [message.event_time_us for message in found] == [17, 18, None, -5]


async def test_arrow_batches_go_in_as_they_come_out(api: Api) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    async with api.open_writer("source") as writer:
        for number in range(4):
            await writer.append(
                b"%d" % number, key=b"k", headers={"h": b"v"}, event_time=1_000 * number
            )
    await created(api)
    async with api.connect() as client:
        segment = await client.admin.open_segment("log", job="arrow")
        async with api.open_reader("source") as reader:
            async for batch in reader.batches():
                await segment.append_batch(batch.to_arrow(ids=True))
        plain = pyarrow.table({"value": pyarrow.array([b"x", None], pyarrow.binary())})
        await segment.append_batch(plain)
        with pytest.raises(dlog.ConfigError, match="strange"):
            await segment.append_batch(plain.append_column("strange", plain.column("value")))
        with pytest.raises(dlog.ConfigError, match="value"):
            await segment.append_batch(pyarrow.table({"key": [b"k"]}))
        await client.admin.publish_segments("log", [await segment.close()], key=("q", 0))
    there, here = await api.read_all("source"), await api.read_all()
    content = [(m.value, m.key, m.headers, m.event_time_us) for m in there]
    assert [(m.value, m.key, m.headers, m.event_time_us) for m in here[:4]] == content
    assert [m.value for m in here[4:]] == [b"x", None]


async def test_a_batch_that_is_there_is_there_already(api: Api) -> None:
    await created(api)
    first = await publish(api, A, key=("query", 5))
    for number, base in ((5, 0), (4, None), (0, None)):
        again = await publish(api, B, key=("query", number))
        assert (again.published, again.base_seq) == (False, base)
    assert (await publish(api, C, key=("query", 6))).published
    assert (await publish(api, C, key=("other", 0))).published
    assert await api.values() == A + C + C
    assert first.published


async def test_the_same_segments_again_are_there_already(api: Api) -> None:
    await created(api)
    async with api.connect() as client:
        admin = client.admin
        filled = [await fill(admin, A), await fill(admin, B)]
        answers = [await admin.publish_segments("log", filled, key=("query", 1)) for _ in range(3)]
        assert [answer.published for answer in answers] == [True, False, False]
        assert {answer.base_seq for answer in answers} == {0}
        discarded = await admin.discard_segments(filled)
        assert discarded.deleted == (), "what is listed is not deleted"
    assert await api.values() == A + B


async def test_without_messages_only_the_key_is_noted(api: Api) -> None:
    async with api.open_writer() as writer:
        async with api.connect() as client:
            admin = client.admin
            segment = await admin.open_segment("log", job="nothing")
            empty = await segment.close()
            assert empty.messages == 0
            async with stores_of(api) as stores:
                assert empty.ledger_id not in await ledger_ids(stores)
            answer = await admin.publish_segments("log", [empty], key=("query", 0))
            assert (answer.published, answer.messages) == (True, 0)
            assert not (await admin.publish_segments("log", [], key=("query", 0))).published
        await writer.append(b"still here")
    assert await api.values() == [b"still here"]


async def test_a_live_writer_is_fenced_and_told_by_whom(api: Api) -> None:
    writer = await api.open_writer()
    await writer.append_many(A)
    answer = await publish(api, B)
    assert answer.base_seq == 30
    with pytest.raises(dlog.Fenced) as lost:
        await writer.append(b"too late")
    assert lost.value.winner is not None
    assert lost.value.winner.epoch == answer.epoch
    await writer.close()
    assert await api.values() == A + B
    assert (await checked(api, deep=True)).is_clean


async def test_readers_that_follow_go_on_into_what_is_published(api: Api) -> None:
    writer = await api.open_writer()
    await writer.append_many(A)
    async with api.open_reader(follow=True) as reader:
        assert [m.value for m in await reader.read(30)] == A
        await publish(api, B, C)
        found = []
        while len(found) < 30:
            found += [m.value for m in await reader.read(100)]
        assert found == B + C
        async with api.open_writer() as behind:
            await behind.append(b"behind")
            assert [m.value for m in await reader.read(1)] == [b"behind"]
    with pytest.raises(dlog.Fenced):
        await writer.append(b"too late")
    await writer.close()


async def test_a_ledger_below_the_floor_is_run_again(api: Api) -> None:
    await created(api)
    async with api.connect() as client:
        admin = client.admin
        filled = [await fill(admin, A), await fill(admin, B)]
        writer = await api.open_writer()
        await writer.append(b"first")
        with pytest.raises(dlog.Conflict, match="run the batch again") as refused:
            await admin.publish_segments("log", filled, key=("query", 0))
        assert refused.value.outcome is dlog.Outcome.NOT_HAPPENED
        await writer.append(b"the writer was not fenced for it")
        await writer.close()
        discarded = await admin.discard_segments(filled)
        assert discarded.deleted == tuple(each.ledger_id for each in filled)
        assert (await admin.discard_segments(filled)).deleted == ()
    assert (await publish(api, A, B)).published
    assert (await api.values())[2:] == A + B


async def test_what_is_not_to_be_published_is_refused_by_name(api: Api) -> None:
    await created(api)
    await created(api, "other")
    async with api.connect() as client:
        admin = client.admin
        filled = await fill(admin, A)
        strange = await fill(admin, A, log="other")
        forged = dataclasses.replace(strange, log="log", log_uid=filled.log_uid)
        segment = await admin.open_segment("log", job="open")
        await segment.append_many(B)
        unclosed = dataclasses.replace(filled, ledger_id=segment.ledger_id)
        for wrong, kind in (
            ([filled, filled], dlog.ConfigError),
            ([strange], dlog.ConfigError),
            ([forged], dlog.ConfigError),
            ([unclosed], dlog.ConfigError),
            ([dataclasses.replace(filled, messages=29)], dlog.ConfigError),
            ([dataclasses.replace(filled, last_entry=9)], dlog.ConfigError),
            ([dataclasses.replace(filled, ledger_id=10_000_000)], dlog.Conflict),
            ([dataclasses.replace(filled, log_uid="another")], dlog.NotFound),
            (["text"], dlog.ConfigError),
            (filled, dlog.ConfigError),
        ):
            with pytest.raises(kind):
                await admin.publish_segments("log", wrong, key=("query", 0))
        for key in (("q",), ("", 0), ("q", -1), ("q", True), ("x" * 129, 0), "q", ("a\n", 0)):
            with pytest.raises(dlog.ConfigError, match="key"):
                await admin.publish_segments("log", [filled], key=key)
        with pytest.raises(dlog.NotFound):
            await admin.publish_segments("nolog", [], key=("query", 0))
        with pytest.raises(dlog.NotFound):
            await admin.open_segment("nolog", job="job")
        with pytest.raises(dlog.ConfigError):
            await admin.open_segment("log", job="job", takeover="always")
        assert await api.values() == []
        assert (await admin.publish_segments("log", [filled], key=("query", 0))).published
        await segment.abort()
        with pytest.raises(dlog.WriterClosed):
            await segment.append_many(C)
        with pytest.raises(dlog.WriterClosed):
            await segment.close()
    assert await api.values() == A


async def test_a_ledger_of_a_writer_is_not_published(api: Api) -> None:
    async with api.open_writer() as writer:
        await writer.append_many(A)
    async with api.connect() as client:
        admin = client.admin
        (theirs,) = (await admin.describe("log")).segments
        filled = await fill(admin, B)
        async with stores_of(api) as stores:
            await change_meta(stores, lambda meta: dataclasses.replace(meta, ledger_floor=-1))
        forged = dataclasses.replace(
            filled,
            ledger_id=theirs.ledger_id,
            last_entry=theirs.last_entry,
            bytes=theirs.bytes,
            messages=theirs.messages,
        )
        with pytest.raises(dlog.ConfigError, match="birth"):
            await admin.publish_segments("log", [forged], key=("query", 0))
        assert (await admin.discard_segments([forged])).kept == (theirs.ledger_id,)
    assert await api.values() == A


async def test_a_terminated_and_a_removed_log_refuse(api: Api) -> None:
    await created(api)
    async with api.connect() as client:
        admin = client.admin
        filled = await fill(admin, A)
        await admin.terminate("log")
        with pytest.raises(dlog.Unsupported, match="terminated"):
            await admin.publish_segments("log", [filled], key=("query", 0))
        with pytest.raises(dlog.Unsupported):
            await admin.open_segment("log", job="job")
        await admin.remove("log")
        with pytest.raises(dlog.NotFound):
            await admin.publish_segments("log", [filled], key=("query", 0))
        await admin.create("log")
        with pytest.raises(dlog.NotFound, match="another"):
            await admin.publish_segments("log", [filled], key=("query", 0))
        assert (await admin.discard_segments([filled])).deleted == (filled.ledger_id,)
        assert (await admin.publish_segments("log", [], key=("query", 0))).published


async def _failing(api: Api, seen: list[int]) -> None:
    async with api.connect() as client, client.admin.open_segment("log", job="f") as segment:
        seen.append(segment.ledger_id)
        await segment.append_many(A)
        raise ZeroDivisionError


async def test_one_that_failed_or_was_given_up_leaves_no_ledger(api: Api) -> None:
    await created(api)
    seen: list[int] = []
    with pytest.raises(ZeroDivisionError):
        await _failing(api, seen)
    async with api.connect() as client:  # and one that is open when its client closes
        segment = await client.admin.open_segment("log", job="left open")
        seen.append(segment.ledger_id)
        await segment.append_many(A)
    async with api.connect() as client:
        async with client.admin.open_segment("log", job="good") as segment:
            await segment.append_many(A)
        await segment.abort()  # of a closed one: nothing
        assert segment.filled is not None
        seen.append(segment.filled.ledger_id)
        assert (await client.admin.discard_segments([segment.filled])).deleted
    async with stores_of(api) as stores:
        assert not set(seen) & set(await ledger_ids(stores))
        assert (await meta_of(stores)).deleting == ()


async def test_a_window_and_a_size_bound_what_is_taken(api: Api) -> None:
    await created(api, segment_bytes=8192)
    async with api.connect() as client:
        options = {"window_bytes": 1024, "entry_bytes": 512, "window_entries": 2}
        segment = await client.admin.open_segment("log", job="job", **options)
        await segment.append_many([b"x" * 100] * 50)
        assert not segment.is_full
        await segment.append_many([b"x" * 100] * 50)
        assert segment.is_full
        assert segment.messages == 100
        with pytest.raises(dlog.TooLarge, match="close it"):
            await segment.append_many([b"x" * 100] * 1000)
        filled = await segment.close()
        await client.admin.publish_segments("log", [filled], key=("query", 0))
    assert len(await api.values()) == filled.messages < 300


async def test_places_are_found_in_what_was_published(api: Api) -> None:
    async with api.open_writer() as writer:
        await writer.append_many(A)
    await publish(api, B, C, key=("query", 0))
    async with api.open_writer() as writer:
        await writer.append_many(A)
    await publish(api, C, key=("query", 1))
    everything = A + B + C + A + C
    whole = await api.read_all()
    assert [message.value for message in whole] == everything
    for message in whole:
        at = message.seq
        by_seq, by_id = [await api.read_all(start=start) for start in (at, message.id)]
        assert by_seq == by_id == whole[at:]
    async with api.connect() as client:
        ranges = await client.admin.plan_ranges("log", max_messages=7)
        found = []
        for each in ranges:
            async for batch in client.read_range(each):
                found += batch.to_pylist()
        assert found == whole
        assert await client.admin.tail("log") == whole[-1].id
        truncation = await client.admin.truncate("log", 35)
        assert truncation.head_seq == 35
        assert await api.values() == everything[35:]
        await client.admin.truncate("log", whole[55].id)
        assert await api.values() == everything[55:]
        await client.admin.truncate("log", "latest")
    assert await api.values() == []
    assert (await publish(api, B, key=("query", 2))).base_seq == len(everything)
    assert await api.values() == B


async def test_the_clock_of_the_log_does_not_go_back(api: Api) -> None:
    """What was filled before a writer wrote counts as written behind it; a search by time finds the
    first message that is not older, wherever it stands."""
    await created(api)
    async with api.connect() as client:
        segment = await client.admin.open_segment("log", job="slow", entry_bytes=40)
        await segment.append_many(B)
        filled = await segment.close()
        async with stores_of(api) as stores:
            late_us = filled.last_time_us + 1_000_000
            await change_meta(
                stores,
                lambda meta: dataclasses.replace(
                    meta, end=dataclasses.replace(meta.end, last_time_us=late_us)
                ),
            )
        newer = await fill(client.admin, C)  # its clock began there
        assert newer.first_time_us == late_us
        await client.admin.publish_segments("log", [newer, filled], key=("query", 0))
        async with api.open_writer() as writer:
            await writer.append(b"behind")
        whole = await api.read_all()
        times = [message.timestamp_us for message in whole]
        assert times == sorted(times)
        assert times[0] == late_us
        for moment, seq in ((filled.first_time_us, 0), (late_us, 0), (times[-1], None)):
            found = await api.read_all(start=us_datetime(moment))
            at = next(i for i, time in enumerate(times) if time >= moment) if seq is None else seq
            assert found == whole[at:]
        async with api.connect() as source:
            await api.copy_log(source, "log", source, "copy")
    copied = await api.read_all("copy")
    content = [(m.seq, m.value, m.timestamp_us) for m in whole]
    assert [(m.seq, m.value, m.timestamp_us) for m in copied] == content
    report = await checked(api, deep=True)
    assert report.is_clean, report.findings


async def test_two_publishers_of_one_batch_give_one_publication(api: Api) -> None:
    async with api.open_writer() as writer:
        await writer.append_many(A)
        async with api.connect() as one, api.connect() as two:
            first, second = await fill(one.admin, B), await fill(two.admin, B)
            answers = await asyncio.gather(
                one.admin.publish_segments("log", [first], key=("query", 0)),
                two.admin.publish_segments("log", [second], key=("query", 0)),
                return_exceptions=True,
            )
            told = [
                answer.published
                for answer in answers
                if not isinstance(answer, (dlog.Conflict, dlog.Fenced))
            ]
            assert told.count(True) == 1, answers
        with pytest.raises(dlog.Fenced):
            await writer.append(b"too late")
    assert await api.values() == A + B


async def test_two_publishers_of_two_batches(api: Api) -> None:
    await created(api)
    async with api.connect() as one, api.connect() as two:
        first, second = await fill(one.admin, A), await fill(two.admin, B)
        answers = await asyncio.gather(
            one.admin.publish_segments("log", [first], key=("one", 0)),
            two.admin.publish_segments("log", [second], key=("two", 0)),
            return_exceptions=True,
        )
    published = [not isinstance(answer, dlog.Conflict) for answer in answers]
    assert True in published, answers
    assert await api.values() == [
        value
        for values, is_there in ((A, published[0]), (B, published[1]))
        if is_there
        for value in values
    ]


async def test_a_log_that_forgot_queries_says_so(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlog.limits, "PUBLISHED_QUERIES_MAX", 2)  # type: ignore[attr-defined]
    await created(api)
    for name in ("one", "two", "three"):
        await publish(api, C, key=(name, 7 if name != "three" else 0))
    assert not (await publish(api, C, key=("two", 7))).published
    for number in (0, 7, 8):
        with pytest.raises(dlog.NotFound, match="'one' is not known any more"):
            await publish(api, C, key=("one", number))
    assert (await publish(api, C, key=("new", 0))).published
    with pytest.raises(dlog.NotFound):
        await publish(api, C, key=("two", 0))
    assert len(await api.values()) == 40


async def test_a_batch_is_not_published_again_after_many_other_queries(api: Api) -> None:
    """Its last batch is forgotten, and not that it was there. Jobs that draw their name make no
    query forgotten."""
    await created(api)
    assert (await publish(api, A, key=("first", 0))).published
    others = dlog.limits.PUBLISHED_QUERIES_MAX  # type: ignore[attr-defined]
    async with api.connect() as client:
        for number in range(others):
            await client.admin.publish_segments("log", [], key=(f"one-off:{number}", 0))
    assert not (await publish(api, A, key=("first", 0))).published
    async with api.connect() as client:
        for number in range(others):
            await client.admin.publish_segments("log", [], key=(f"other {number}", 0))
    for number in (0, 1):
        with pytest.raises(dlog.NotFound, match="a query that was never used"):
            await publish(api, A, key=("first", number))
    assert await api.values() == A


async def test_numbers_of_producers_outlive_what_is_published(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where everything was truncated, and the list went to pages."""
    monkeypatch.setattr(dlog.limits, "META_PAGE_ITEMS", 2)  # type: ignore[attr-defined]
    async with api.open_writer(create=dlog.LogOptions(deletion_grace_s=0)) as writer:
        await writer.append(b"numbered", producer=(1, 5))
    for number in range(9):
        await publish(api, values_of(str(number), 4), key=("query", number), entry_bytes=16)
    for upto in (3, "latest"):  # into the first page, and behind all
        async with api.connect() as client:
            await client.admin.truncate("log", upto)
            await client.admin.collect("log")
        async with api.open_writer() as writer:
            with pytest.raises(dlog.AlreadyExists):
                await writer.append(b"again", producer=(1, 5))
    async with api.open_writer() as writer:
        with pytest.raises(dlog.AlreadyExists):
            await writer.append(b"again", producer=(1, 5))
        await writer.append(b"new", producer=(1, 6))
    assert (await publish(api, C, key=("query", 9))).published
    async with api.connect() as client:
        await client.admin.truncate("log", "latest")
        await client.admin.collect("log")
    async with api.open_writer() as writer:
        with pytest.raises(dlog.AlreadyExists):
            await writer.append(b"again", producer=(1, 6))
    report = await checked(api, deep=True)
    assert report.is_clean, report.findings


async def test_many_segments_go_to_pages(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlog.limits, "META_PAGE_ITEMS", 2)  # type: ignore[attr-defined]
    await created(api)
    expected = []
    for number in range(4):
        batches = [values_of(f"{number}.{each}", 3) for each in range(9)]
        expected += [value for values in batches for value in values]
        await publish(api, *batches, key=("query", number))
    assert await api.values() == expected
    async with stores_of(api) as stores:
        meta = await meta_of(stores)
        assert meta.pages
    async with api.connect() as client:
        described = await client.admin.describe("log")
        assert len(described.segments) == 36
    report = await checked(api, deep=True)
    assert report.is_clean, report.findings


async def test_what_was_discarded_is_published_by_nobody(api: Api) -> None:
    await created(api)
    async with api.connect() as client:
        admin = client.admin
        filled = await fill(admin, A)
        async with stores_of(api) as stores:  # as if whoever discards it had died after the mark
            await change_meta(stores, lambda meta: meta.discarded((filled.ledger_id,), 1))
            with pytest.raises(dlog.Conflict, match="discarded"):
                await admin.publish_segments("log", [filled], key=("query", 0))
            assert (await meta_of(stores)).deleting == (Doomed(filled.ledger_id, 1),)
            await admin.collect("log")
            assert filled.ledger_id not in await ledger_ids(stores)
        gone = await fill(admin, B)
        await admin.discard_segments([gone])
        with pytest.raises(dlog.Conflict, match="not there"):
            await admin.publish_segments("log", [gone], key=("query", 0))


async def test_fsck_tells_what_jobs_left_and_deletes_it(api: Api) -> None:
    await created(api)
    async with api.connect() as client:
        segment = await client.admin.open_segment("log", job="alive")
        await segment.append_many(A)
        async with api.connect() as gone:
            left = await fill(gone.admin, B)
        report = await checked(api, grace_s=0)
        told = {each.where.ledger_id: each.kind.value for each in report.findings}
        assert told[segment.ledger_id] == "maybe_in_use"
        assert told[left.ledger_id] == "orphan"
        kept = await checked(api)  # within the grace
        assert {each.kind.value for each in ours(kept)} == {"maybe_in_use"}
        repaired = await client.admin.repair(report)
        assert [step.ended.value for step in repaired.steps] == ["done"]
        with pytest.raises(dlog.Conflict):
            await client.admin.publish_segments("log", [left], key=("query", 0))
        filled = await segment.close()
        assert (await client.admin.publish_segments("log", [filled], key=("query", 0))).published
    assert await api.values() == A


async def test_what_published_segments_do_not_tell_is_not_written_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlog.limits, "META_PAGE_ITEMS", 2)  # type: ignore[attr-defined]
    await created(api)
    for number in range(6):
        await publish(api, values_of(str(number), 4), key=("query", number))
    async with stores_of(api) as stores:
        path, _ = await first_page(stores)
        await remove_node(stores, path)
    report = await checked(api)
    assert kinds(report) == ["page_missing"]
    (step,) = (await repaired(api, report)).steps
    assert step.ended.value == "refused"
    assert "jobs published into this log" in step.told


async def test_a_list_that_is_wrong_about_a_published_segment(api: Api) -> None:
    async with api.open_writer() as writer:
        await writer.append_many(A)
    await publish(api, B, key=("query", 0))
    async with stores_of(api) as stores:
        whole = await meta_of(stores)
        no_job = (whole.segments[0], dataclasses.replace(whole.segments[1], is_job=False))
        for change, kind in (
            (with_segment(2, last_entry=7), "end_differs"),
            (with_segment(1, last_entry=7), "end_differs"),
            (lambda meta: dataclasses.replace(meta, segments=no_job), "ledger_foreign"),
        ):
            await change_meta(stores, change)
            report = await checked(api)
            assert kind in kinds(report)
            done = await repaired(api, report)
            assert {step.ended.value for step in done.steps} <= {"refused"}
            await change_meta(stores, lambda _: whole)
    report = await checked(api, deep=True)
    assert report.is_clean, report.findings


def _dropped(held: list[Any]) -> None:
    held.clear()
    gc.collect()


async def test_one_that_was_dropped_is_given_up(url: str) -> None:
    api = AioApi(url)
    await created(api)
    async with api.connect() as client, stores_of(api) as stores:
        held = [await client.admin.open_segment("log", job="dropped")]
        await held[0].append_many(A)
        ledger_id = held[0].ledger_id
        with pytest.warns(ResourceWarning, match="without close"):
            _dropped(held)
        for _ in range(10_000):  # looks, not seconds
            if ledger_id not in await ledger_ids(stores):
                return
        raise AssertionError("it is still there")


async def test_the_table_of_batches_outlives_takeovers_and_copies_begin_without(api: Api) -> None:
    await created(api)
    await publish(api, A, key=("query", 3))
    async with api.open_writer() as writer:
        await writer.append(b"between")
        await writer.rotate()
    assert not (await publish(api, A, key=("query", 3))).published
    async with api.connect() as client:
        await api.copy_log(client, "log", client, "copy")
    assert (await publish(api, B, key=("query", 3), log="copy")).published
    assert await api.values("copy") == [*A, b"between", *B]


async def test_a_page_of_a_list_that_never_comes_back_is_replaced(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody wrote it and died, and a repair corrected an end since."""
    monkeypatch.setattr(dlog.limits, "META_PAGE_ITEMS", 2)  # type: ignore[attr-defined]
    await created(api)
    for number in range(3):
        await publish(api, C, key=("query", number))
    async with stores_of(api) as stores:
        first = (await meta_of(stores)).segments[0]
        assert first.sealed is not None
        wrong = dataclasses.replace(first, sealed=dataclasses.replace(first.sealed, bytes=1))
        second = (await meta_of(stores)).segments[1]
        page = stores.layout.page("log", first.number)
        await stores.meta.create(page, page_to_bytes((wrong, second)))
        assert (await publish(api, C, key=("query", 3))).published
        assert (await meta_of(stores)).pages
        assert (await stores.meta.get(page)).value == page_to_bytes((first, second))
    assert await api.values() == C * 4
    assert (await checked(api, deep=True)).is_clean


async def test_segments_without_messages_are_passed_over(api: Api) -> None:
    await created(api)
    async with api.connect() as client:
        admin = client.admin
        filled = []
        for values in (A, [], B, []):
            segment = await admin.open_segment("log", job="task")
            if values:
                await segment.append_many(values)
            filled.append(await segment.close())
        empty, *_ = (each for each in filled if each.messages == 0)
        assert empty.messages == 0
        answer = await admin.publish_segments("log", filled, key=("query", 0))
        assert (answer.published, answer.messages) == (True, len(A) + len(B))
    assert await api.values() == A + B


@pytest.mark.parametrize(
    "key",
    [
        ("", 0),
        ("q" * 201, 0),
        ("q", -1),
        ("q", 1 << 63),
        ("q", True),
        ("q",),
        "q",
        ("two\nlines", 0),
    ],
)
async def test_a_key_is_a_query_and_a_number(api: Api, key: Any) -> None:
    await created(api)
    async with api.connect() as client:
        with pytest.raises(dlog.ConfigError, match="a key is the name of a query"):
            await client.admin.publish_segments("log", [], key=key)
