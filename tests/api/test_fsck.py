"""Damage that was planted is found, named, and repaired as far as anything proves what belongs
there; and where nothing is wrong, nothing is found."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

import dlog
from dlog import backends, limits
from dlog.admin.fsck import repair, run
from dlog.admin.fsck.report import Action, Ended, Step, Where
from dlog.ledger.store import ClosedLedger, LedgerSpec
from dlog.meta.listed import MovedTo, Point
from dlog.meta.log_meta import LogMeta, LogState
from tests.api.adapter import AioApi, Api
from tests.api.planting import (
    change_meta,
    checked,
    filled,
    first_page,
    kinds,
    ledger_ids,
    meta_of,
    new_ledger,
    only,
    ours,
    put_node,
    remove_node,
    repaired,
    stale,
    stores_of,
    with_segment,
)

pytestmark = pytest.mark.crosswise(seconds=1)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two segments to a page, two pages to a page of pages."""
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)


async def clean(api: Api, values: list[bytes]) -> None:
    """Deep, too; and it reads as it did."""
    report = await checked(api, deep=True)
    assert report.is_clean, (report.findings, report.not_checked)
    assert await api.values() == values


# --- nothing is wrong


async def test_nothing_is_found_where_nothing_is_wrong(api: Api, small_pages: None) -> None:
    values = await filled(api, 9)
    report = await checked(api, "log")
    assert report.is_clean, report.findings
    assert not report.findings
    assert [(log.name, log.segments) for log in report.logs] == [("log", 9)]
    assert report.logs[0].pages >= 3, "and a page of pages"
    assert report.ledgers == 9
    assert report.entries >= 9 * 4
    await clean(api, values)


async def test_nor_beside_a_writer_and_a_standby(api: Api) -> None:
    """What they have ready is nobody's orphan."""
    async with api.open_writer() as log, api.open_standby():
        for number in range(20):
            await log.append(b"%d" % number)
            if number % 5 == 4:
                await log.rotate()
            report = await checked(api, deep=True)
            assert report.is_clean, (report.findings, report.not_checked)
            assert not report.plan
        await log.append(b"still ours")


async def test_parts_of_a_log_are_looked_at_apart(api: Api) -> None:
    await filled(api, 9)
    whole = await checked(api, "log", deep=True)
    parts = [
        await checked(api, "log", deep=True, segments=range(first, first + 3))
        for first in (1, 4, 7)
    ]
    assert [part.ledgers for part in parts] == [3, 3, 3]
    assert sum(part.entries for part in parts) == whole.entries
    async with stores_of(api) as stores:
        segment = (await meta_of(stores)).segments[4]
        await stores.ledgers.delete(segment.ledger_id)
    damaged = [
        kinds(await checked(api, "log", segments=range(first, first + 3))) for first in (1, 4, 7)
    ]
    assert [bool(found) for found in damaged] == [False, True, False]
    with pytest.raises(dlog.ConfigError, match="range of their numbers"):
        await checked(api, "log", segments=(1, 3))


async def test_an_empty_place_and_an_empty_log_are_clean(api: Api) -> None:
    async with api.connect() as client:
        await client.admin.create("log")
        report = await client.admin.fsck()
        assert report.is_clean
        assert (report.ledgers, len(report.logs)) == (0, 1)
        with pytest.raises(dlog.NotFound):
            await client.admin.fsck("other")
        with pytest.raises(dlog.ConfigError):
            await client.admin.fsck(parallel=0)
        with pytest.raises(dlog.ConfigError):
            await client.admin.fsck(deep=True, replication=True)


# --- the list


@pytest.mark.parametrize("how", ["missing", "stale", "unreadable"])
async def test_a_page_that_is_not_what_it_should_be(api: Api, small_pages: None, how: str) -> None:
    values = await filled(api, 6)
    async with stores_of(api) as stores:
        path, ref = await first_page(stores)
        if how == "missing":
            before = await remove_node(stores, path)
        else:
            raw = (await stores.meta.get(path)).value
            before = await put_node(stores, path, stale(raw) if how == "stale" else b"{")
    report = await checked(api)
    found = only(report, f"page_{how}")
    assert found.severity == "bad"
    assert (found.where.log, found.where.path) == ("log", path)
    assert (found.where.first_seq, found.where.next_seq) == (ref.base_seq, ref.next_seq)
    assert kinds(report) == [f"page_{how}"], "its ledgers are no orphans to be deleted"
    done = await repaired(api, report)
    assert [each.ended for each in done.steps] == [Ended.DONE], done
    async with stores_of(api) as stores:
        assert (await stores.meta.get(path)).value == before, "byte by byte"
    await clean(api, values)
    assert [each.ended for each in (await repaired(api, report)).steps] == [Ended.NOT_NEEDED]


async def test_a_page_of_pages_is_proven_by_its_pages(api: Api, small_pages: None) -> None:
    values = await filled(api, 14, each=1)
    async with stores_of(api) as stores:
        path, ref = await first_page(stores)
        assert ref.level == 1
        before = await remove_node(stores, path)
    report = await checked(api)
    assert only(report, "page_missing").where.path == path
    done = await repaired(api, report)
    assert all(each.ended == Ended.DONE for each in done.steps if each.step.where.path == path)
    async with stores_of(api) as stores:
        assert (await stores.meta.get(path)).value == before
    await clean(api, values)


async def test_what_stands_behind_a_lost_page_is_not_blamed_for_it(
    api: Api, small_pages: None
) -> None:
    """Its seam continues a segment that nobody can name just now."""
    values = await filled(api, 8, each=1)
    async with stores_of(api) as stores:
        beside = (await meta_of(stores)).pages[1]
        await remove_node(stores, stores.layout.page("log", beside.number, beside.level))
    report = await checked(api)
    assert kinds(report) == ["page_missing"]
    await repaired(api, report)
    await clean(api, values)


async def test_who_meets_another_page_is_told_so_and_goes_by_nothing_in_it(
    api: Api, small_pages: None
) -> None:
    """Not even into a new page, by which it would be true."""
    values = await filled(api, 6)
    async with stores_of(api) as stores:
        path, ref = await first_page(stores)
        await put_node(stores, path, stale((await stores.meta.get(path)).value))
    with pytest.raises(dlog.Corrupt, match="something else"):
        await api.read_all()
    async with api.connect() as client:
        told = await client.admin.truncate("log", 4)  # which would cut the page in two
        assert "something else" in told.reasons[0]
    async with stores_of(api) as stores:
        assert (await meta_of(stores)).pages[0] == ref
    await repaired(api, await checked(api))
    async with api.connect() as client:
        await client.admin.collect("log")
    await clean(api, values[4:])


async def test_a_page_that_cannot_be_read_does_not_keep_a_log_from_its_end(
    api: Api, small_pages: None
) -> None:
    """It waits for its deletion: what stood in it is found without it."""
    async with api.connect() as client:
        await client.admin.create("log", deletion_grace_s=0)
    values = await filled(api, 8, each=1)
    async with stores_of(api) as stores:
        path, ref = await first_page(stores)
        await put_node(stores, path, b"{")
    async with api.connect() as client:
        await client.admin.truncate("log", ref.next_seq)
        assert (await client.admin.collect("log")).problems
    report = await checked(api)
    assert only(report, "page_unreadable").where.path == path
    for _ in range(2):  # the page; then what stood in it is nobody's
        await repaired(api, await checked(api, grace_s=0))
    async with api.connect() as client:
        assert not (await client.admin.collect("log")).problems
    async with stores_of(api) as stores:
        assert not (await meta_of(stores)).deleting_pages
        assert ref.first_ledger not in await ledger_ids(stores)
    await clean(api, values[ref.next_seq :])


async def test_what_nothing_proves_is_not_written(api: Api, small_pages: None) -> None:
    """A page is gone, and one of its ledgers, too."""
    await filled(api, 6)
    async with stores_of(api) as stores:
        path, ref = await first_page(stores)
        await remove_node(stores, path)
        await stores.ledgers.delete(ref.first_ledger)
    report = await checked(api)
    (done,) = (await repaired(api, report)).steps
    assert done.ended is Ended.REFUSED
    assert f"seqs {ref.base_seq} to {ref.next_seq - 1}" in done.told
    assert kinds(await checked(api)) == ["page_missing"]
    async with stores_of(api) as stores:
        assert ref.last_ledger in await ledger_ids(stores), "what is left is left alone"


async def test_page_nodes_that_nothing_refers_to(api: Api, small_pages: None) -> None:
    values = await filled(api, 6)
    async with stores_of(api) as stores:
        path, _ = await first_page(stores)
        value = (await stores.meta.get(path)).value
        below, above = stores.layout.page("log", 0), stores.layout.page("log", 77)
        await stores.meta.create(below, value)
        await stores.meta.create(above, value)
    report = await checked(api)
    found = {each.where.path: each for each in ours(report)}
    assert {path: each.severity.value for path, each in found.items()} == {
        below: "warning",
        above: "note",
    }
    assert {each.kind.value for each in ours(report)} == {"page_unused"}
    done = await repaired(api, report)
    assert [(each.step.where.path, each.ended) for each in done.steps] == [(below, Ended.DONE)]
    async with stores_of(api) as stores:
        assert (await stores.meta.get(above)).value == value, "a writer may be about to name it"
        with pytest.raises(dlog.NotFound):
            await stores.meta.get(below)
    await clean(api, values)


@pytest.mark.parametrize("wrong", [{"last_entry": 3}, {"bytes": 7}])
async def test_the_list_is_wrong_about_an_end(api: Api, wrong: dict[str, int]) -> None:
    values = await filled(api, 3)
    async with stores_of(api) as stores:
        before = await meta_of(stores)
        await change_meta(stores, with_segment(2, **wrong))
    report = await checked(api)
    found = only(report, "end_differs")
    assert (found.where.segment, found.where.ledger_id) == (2, before.segments[1].ledger_id)
    done = await repaired(api, report)
    assert [each.ended for each in done.steps] == [Ended.DONE], done
    async with stores_of(api) as stores:
        assert await meta_of(stores) == before
    await clean(api, values)


async def test_a_list_that_ends_a_segment_too_early_is_told_so(api: Api) -> None:
    """What is behind it was not truncated, it is there."""
    values = await filled(api, 3)
    async with api.open_reader() as reader:
        ids = [message.id async for message in reader]
    async with stores_of(api) as stores:
        await change_meta(stores, with_segment(2, last_entry=3))
    for options in ({}, {"on_truncated": "jump"}):
        got: list[bytes] = []
        async with api.open_reader(**options) as reader:
            with pytest.raises(dlog.Corrupt, match="segment 2 is listed up to seq 5"):
                await _take_all(reader, got)
        assert got == values[:5]
    for start in (ids[5], 5):
        with pytest.raises(dlog.Corrupt, match="segment 2 is listed up to seq 5"):
            await api.read_all(start=start)
    async with api.connect() as client:
        assert (await client.admin.truncate("log", ids[5])).head_seq is None, "nobody can tell"
    await repaired(api, await checked(api))
    await clean(api, values[5:])


async def _take_all(reader: Any, into: list[bytes]) -> None:
    async for message in reader:
        into.append(message.value)  # noqa: PERF401 - also when it ends with an error


async def test_an_end_is_corrected_without_its_time(api: Api) -> None:
    """Its writer may have lost what it sent last, and listed when that was."""
    await filled(api, 3)
    async with stores_of(api) as stores:
        sealed = (await meta_of(stores)).segments[1].sealed
        assert sealed is not None
        later_us = sealed.last_time_us + 5
        await change_meta(stores, with_segment(2, bytes=7, last_time_us=later_us))
        await repaired(api, await checked(api))
        corrected = dataclasses.replace(sealed, last_time_us=later_us)
        assert (await meta_of(stores)).segments[1].sealed == corrected


async def test_a_ledger_that_has_more_than_the_list_says_is_not_cut(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry stands at the end of either: that the list's says its size proves nothing then."""
    await filled(api, 2)

    async def amended(self: object, *args: object) -> bool:
        raise AssertionError("its metadata would not name the last entry any more")

    monkeypatch.setattr(repair._Repair, "_amended", amended)
    async with stores_of(api) as stores:

        def shorter(meta: LogMeta) -> LogMeta:
            meta = with_segment(2, last_entry=3, next_seq=5)(meta)
            return dataclasses.replace(
                meta, end=dataclasses.replace(meta.end, last_entry=3, next_seq=5)
            )

        await change_meta(stores, shorter)
        planted = await meta_of(stores)
    (done,) = (await repaired(api, await checked(api))).steps
    assert done.ended is Ended.REFUSED, done
    async with stores_of(api) as stores:
        assert await meta_of(stores) == planted


async def test_an_end_that_a_writer_goes_on_from_is_not_moved(url: str) -> None:
    """Its seam names the end that the list says. A takeover drops what continues more than there
    is."""
    if not url.startswith("memory:"):
        pytest.skip("the last entry is taken from the memory")
    api = AioApi(url)
    async with api.open_writer() as log:
        await log.append(b"a", producer=(7, 0))
    async with api.open_writer() as log:
        await log.append(b"b")
        async with stores_of(api) as stores:
            planted = await meta_of(stores)
        first, _ = planted.segments
        ledger = backends._memory_worlds[url.partition(":")[2]][1]._ledgers[first.ledger_id]
        lost = ledger.entries.pop()  # the table of producers that a writer closes with
        ledger.bytes -= len(lost)
        assert ledger.closed is not None
        ledger.closed = ClosedLedger(ledger.closed.last_entry - 1, ledger.bytes)
        report = await checked(api)
        assert only(report, "end_differs").action is Action.RESEAL
        done = await repaired(api, report)
        assert [each.ended for each in done.steps] == [Ended.REFUSED], done
        async with stores_of(api) as stores:
            assert await meta_of(stores) == planted
        log._engine.abandon(dlog.WriterClosed("killed"))
    async with api.open_writer() as log:
        await log.append(b"c")
    assert await api.values(start=1) == [b"b", b"c"]


async def test_seqs_that_the_ledger_does_not_bear_out_are_not_changed(api: Api) -> None:
    await filled(api, 2)
    async with stores_of(api) as stores:

        def later(meta: LogMeta) -> LogMeta:
            meta = with_segment(2, next_seq=9)(meta)
            return dataclasses.replace(meta, end=dataclasses.replace(meta.end, next_seq=9))

        await change_meta(stores, later)
        planted = await meta_of(stores)
    report = await checked(api)
    assert kinds(report) == ["end_differs"]
    (done,) = (await repaired(api, report)).steps
    assert done.ended is Ended.REFUSED
    async with stores_of(api) as stores:
        assert await meta_of(stores) == planted


@pytest.mark.parametrize(
    "wrong", [{"base_seq": 4}, {"next_seq": 7}, {"first_time_us": 1 << 60}], ids=str
)
async def test_segments_that_do_not_fit_each_other(api: Api, wrong: dict[str, int]) -> None:
    await filled(api, 3)
    async with stores_of(api) as stores:
        await change_meta(stores, with_segment(2, **wrong))
    report = await checked(api)
    assert "list_broken" in kinds(report)
    assert {f.where.segment for f in report.damage} <= {2, 3}


async def test_the_end_of_the_log_is_another_than_that_of_its_last_segment(api: Api) -> None:
    await filled(api, 2)
    async with stores_of(api) as stores:
        await change_meta(
            stores, lambda m: dataclasses.replace(m, end=dataclasses.replace(m.end, last_entry=1))
        )
    assert kinds(await checked(api)) == ["list_broken"]


async def test_numbers_and_ids_below_the_floor(api: Api) -> None:
    await filled(api, 2)
    async with stores_of(api) as stores:
        await change_meta(stores, lambda meta: dataclasses.replace(meta, next_number=2))
    assert kinds(await checked(api)) == ["list_broken"]


async def test_the_node_of_a_log_cannot_be_read(api: Api) -> None:
    await filled(api, 1)
    await filled(api, 1, log="other")
    async with stores_of(api) as stores:
        path = stores.layout.log("log")
        await put_node(stores, path, b"?")
    report = await checked(api)
    assert kinds(report) == ["meta_unreadable"]
    assert only(report, "meta_unreadable").where.path == path
    assert not report.plan
    assert [log.name for log in report.logs] == ["other"]
    async with api.connect() as client:
        listed = await client.admin.list()
        assert [(log.name, log.state) for log in listed] == [
            ("log", "unreadable"),
            ("other", "open"),
        ]


# --- between the list and the ledgers


async def test_a_ledger_is_gone(api: Api) -> None:
    await filled(api, 3)
    async with stores_of(api) as stores:
        segment = (await meta_of(stores)).segments[1]
        await stores.ledgers.delete(segment.ledger_id)
    report = await checked(api)
    assert kinds(report) == ["ledger_missing"]
    where = only(report, "ledger_missing").where
    assert (where.log, where.segment, where.ledger_id) == ("log", 2, segment.ledger_id)
    assert (where.first_seq, where.next_seq) == (3, 6), "what is lost"
    assert not report.plan


async def test_a_ledger_of_another_log(api: Api) -> None:
    await filled(api, 2)
    await filled(api, 1, log="other")
    async with stores_of(api) as stores:
        other = (await meta_of(stores, "other")).segments[0].ledger_id

        def listing(meta: LogMeta) -> LogMeta:
            segments = (meta.segments[0], dataclasses.replace(meta.segments[1], ledger_id=other))
            return dataclasses.replace(
                meta,
                segments=segments,
                ledger_floor=other,
                end=dataclasses.replace(meta.end, ledger_id=other),
            )

        await change_meta(stores, listing)
    report = await checked(api, "log")
    assert {"ledger_foreign", "seam_differs"} <= set(kinds(report))
    assert only(report, "ledger_foreign").where.ledger_id == other
    assert "it is of log" in only(report, "ledger_foreign").told


async def test_a_ledger_at_another_place_of_its_log(api: Api) -> None:
    await filled(api, 2)
    async with stores_of(api) as stores:

        def renumbered(meta: LogMeta) -> LogMeta:
            last = dataclasses.replace(meta.segments[1], number=7)
            end = dataclasses.replace(meta.end, number=7)
            segments = (meta.segments[0], last)
            return dataclasses.replace(meta, segments=segments, end=end, next_number=8)

        await change_meta(stores, renumbered)
    assert {"ledger_foreign", "seam_differs"} <= set(kinds(await checked(api)))


async def test_a_sealed_segment_whose_ledger_is_open(api: Api) -> None:
    """And whose seam does not continue what is listed before it."""
    await filled(api, 2)
    async with stores_of(api) as stores:
        meta = await meta_of(stores)
        ledger_id = await new_ledger(
            stores, log=meta.uid.encode(), number=b"2", epoch=str(meta.epoch).encode()
        )

        def listing(meta: LogMeta) -> LogMeta:
            last = dataclasses.replace(meta.segments[1], ledger_id=ledger_id)
            end = dataclasses.replace(meta.end, ledger_id=ledger_id)
            return dataclasses.replace(
                meta, segments=(meta.segments[0], last), end=end, ledger_floor=ledger_id
            )

        await change_meta(stores, listing)
    report = await checked(api)
    assert only(report, "ledger_not_closed").where.ledger_id == ledger_id


async def test_a_seam_that_continues_another_end(api: Api) -> None:
    await filled(api, 3)
    async with stores_of(api) as stores:
        await change_meta(stores, with_segment(1, last_entry=3))
    report = await checked(api)
    assert kinds(report) == ["end_differs", "seam_differs"]
    assert only(report, "seam_differs").where.segment == 2


async def keeps_no_presence(log: Any) -> None:
    """As a process that stands still: its session is over, and it does not know."""
    inner = getattr(log, "inner", log)
    engine = getattr(inner, "_inner", inner)._engine
    stopped = asyncio.Event()

    def stop() -> None:
        engine._presence.stop()
        here.call_soon_threadsafe(stopped.set)

    here = asyncio.get_running_loop()
    engine._loop.call_soon_threadsafe(stop)
    await stopped.wait()


async def test_the_tail_of_a_writer_that_is_not_there_any_more(api: Api) -> None:
    async with api.open_writer() as log:
        await log.append(b"a")
        assert not ours(await checked(api))
        async with stores_of(api) as stores:
            meta = await meta_of(stores)
            assert meta.writer is not None
            await keeps_no_presence(log)
            await remove_node(stores, stores.layout.presence("log", meta.writer.token))
        report = await checked(api)
        assert report.is_clean, "that is no damage"
        assert only(report, "tail_unsealed").where.segment == 1
        done = await repaired(api, report)
        assert [each.ended for each in done.steps] == [Ended.DONE]
        with pytest.raises(dlog.Fenced):
            await log.append(b"b")
    async with stores_of(api) as stores:
        assert not (await meta_of(stores)).unsealed
    assert not ours(await checked(api))
    assert await api.values() == [b"a"]


async def test_what_leaves_the_list_while_it_is_looked_at_is_no_damage(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A truncation and a collector are faster than we."""
    await filled(api, 3)
    look = run._Fsck._segments

    async def late(self: run._Fsck, walk: Any) -> None:
        async with stores_of(api) as stores:
            gone = (await meta_of(stores)).segments[0]
            point = Point(seq=3)
            await change_meta(stores, lambda meta: meta.truncated(point).swept(1))
            await stores.ledgers.delete(gone.ledger_id)
        await look(self, walk)

    monkeypatch.setattr(run._Fsck, "_segments", late)
    report = await checked(api, "log")
    assert report.is_clean, (report.findings, report.not_checked)


async def test_a_log_that_moved_is_left_alone(api: Api) -> None:
    """Its ledgers are listed by the place that it moved to."""
    await filled(api, 2)
    async with stores_of(api) as stores:
        left = MovedTo("zk://elsewhere/dlog", "open", "ana", 1)
        await change_meta(
            stores, lambda meta: dataclasses.replace(meta, state=LogState.MOVED, moved_to=left)
        )
        ledger_id = (await meta_of(stores)).segments[0].ledger_id
        await new_ledger(stores, log=(await meta_of(stores)).uid.encode(), number=b"1", epoch=b"0")
        before = await ledger_ids(stores)
    report = await checked(api, grace_s=0)
    assert [each.kind.value for each in ours(report)] == ["moved"]
    assert not report.plan
    steps = [
        Step(action, Where(log="log", segment=1, ledger_id=ledger_id), "?")
        for action in (Action.DELETE_LEDGER, Action.RESEAL)
    ]
    assert all(each.ended is not Ended.DONE for each in (await repaired(api, steps)).steps)
    async with stores_of(api) as stores:
        assert await ledger_ids(stores) == before


# --- nobody's


async def test_orphans_are_found_and_deleted(api: Api) -> None:
    values = await filled(api, 1)
    async with stores_of(api) as stores:
        meta = await meta_of(stores)
        below = await new_ledger(
            stores, log=meta.uid.encode(), number=b"2", epoch=str(meta.epoch + 1).encode()
        )
        standby = await new_ledger(stores, log=meta.uid.encode(), role=b"standby")
    values += await filled(api, 1)
    async with stores_of(api) as stores:
        meta = await meta_of(stores)
        epoch = str(meta.epoch)
        spare = await new_ledger(stores, log=meta.uid.encode(), number=b"3", epoch=epoch.encode())
        old = await new_ledger(
            stores, log=meta.uid.encode(), number=b"3", epoch=str(meta.epoch - 1).encode()
        )
        job = await new_ledger(stores, log=meta.uid.encode(), role=b"job")
        unknown = await new_ledger(stores, log=b"nobody")
        strange = LedgerSpec(custom={"application": b"somebody else's"})
        foreign = (await stores.ledgers.create(strange)).ledger_id
    young = {each.where.ledger_id for each in (await checked(api)).damage}
    assert young == {old}, "who made the others may be about to delete them"
    report = await checked(api, grace_s=0)
    found = {each.where.ledger_id: each.kind.value for each in ours(report)}
    assert found == {
        below: "orphan",
        standby: "orphan",
        old: "orphan",
        spare: "maybe_in_use",
        job: "maybe_in_use",
        unknown: "unknown_ledger",
    }
    assert kinds(report) == ["orphan"] * 3
    done = await repaired(api, report)
    assert [each.ended for each in done.steps] == [Ended.DONE] * 3
    async with stores_of(api) as stores:
        left = await ledger_ids(stores)
    assert {spare, job, unknown, foreign} <= set(left)
    assert not {below, standby, old} & set(left)
    await clean(api, values)
    assert [each.ended for each in (await repaired(api, report)).steps] == [Ended.NOT_NEEDED] * 3
    async with stores_of(api) as stores:  # a cluster lasts longer than this log
        await stores.ledgers.delete(unknown)


async def test_no_ledger_is_deleted_while_the_list_is_broken(api: Api, small_pages: None) -> None:
    """Its ledgers look like nobody's then."""
    await filled(api, 6)
    async with stores_of(api) as stores:
        path, ref = await first_page(stores)
        await remove_node(stores, path)
        await stores.ledgers.delete(ref.first_ledger)  # so that the page cannot be proven
        before = await ledger_ids(stores)
    report = await checked(api)
    done = await repaired(api, report)
    assert all(each.ended is not Ended.DONE for each in done.steps)
    async with stores_of(api) as stores:
        assert await ledger_ids(stores) == before


async def test_an_orphan_that_was_listed_meanwhile_is_not_deleted(api: Api) -> None:
    await filled(api, 1)
    async with stores_of(api) as stores:
        meta = await meta_of(stores)
        await new_ledger(stores, log=meta.uid.encode(), number=b"1", epoch=b"0")
    report = await checked(api)
    (step,) = report.plan
    listed = dataclasses.replace(
        step, where=dataclasses.replace(step.where, ledger_id=meta.segments[0].ledger_id)
    )
    done = await repaired(api, [listed])
    assert [each.ended for each in done.steps] == [Ended.NOT_NEEDED]
    assert await api.values() == [b"message %d of segment 0" % at for at in range(3)]


async def test_what_is_left_of_a_removed_log(api: Api) -> None:
    await filled(api, 1)
    async with stores_of(api) as stores:
        uid = (await meta_of(stores)).uid.encode()
    async with api.connect() as client:
        await client.admin.remove("log")
    async with stores_of(api) as stores:
        orphan = await new_ledger(stores, log=uid, number=b"9", epoch=b"99")
    report = await checked(api)
    assert only(report, "orphan").where.ledger_id == orphan
    assert not report.logs
    await repaired(api, report)
    assert (await checked(api)).is_clean


async def test_one_copy_has_no_replication(api: Api) -> None:
    if api.url.startswith("zk:"):
        pytest.skip("bookies keep several")
    await filled(api, 1)
    report = await checked(api, replication=True)
    assert not report.findings
    assert not report.is_clean
    assert "one copy" in report.not_checked[0].why
