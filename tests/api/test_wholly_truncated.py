"""A log of which nothing is left, while its list keeps a segment for the numbers of producers.
Whatever walks over the list of segments begins behind what was truncated."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import dlog
from dlog import limits
from tests.api.adapter import Api

pytestmark = pytest.mark.crosswise(seconds=1)

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
KINDS = ("closed", "rotated", "taken over", "open", "jobs", "pages", "terminated")


async def truncated(api: Api, kind: str, *, by_id: bool = False) -> int:
    """The seq behind the last message of a log that was truncated up to there."""
    writer = await api.open_writer()
    for number in range(3):
        last = await writer.append(b"%d" % number, producer=(number, 0))
    if kind in ("rotated", "pages"):
        for number in range(3, 9 if kind == "pages" else 4):
            await writer.rotate()
            last = await writer.append(b"%d" % number, producer=(number, 0))
    end = last
    if kind == "taken over":
        other = await api.open_writer()
        end = last = await other.append(b"later", producer=(9, 0))
        await other.close()
    if kind != "open":
        await writer.close()
    async with api.connect() as client:
        admin = client.admin
        if kind == "jobs":
            segment = await admin.open_segment("log", job="job")
            await segment.append_many([b"a", b"b"])
            filled = await segment.close()
            await admin.publish_segments("log", [filled], key=("query", 0))
        if kind == "terminated":
            await admin.terminate("log")
        next_seq = (await admin.status("log")).next_seq
        await admin.truncate("log", next_seq if not by_id or kind == "jobs" else "latest")
    if kind == "open":
        await writer.close()
    assert end
    return next_seq


@pytest.mark.parametrize("by_id", [False, True], ids=["by seq", "to the latest"])
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_of_it_is_planned_read_counted_or_copied(
    api: Api, kind: str, by_id: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "pages":
        monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)
    next_seq = await truncated(api, kind, by_id=by_id)
    async with api.connect() as client:
        admin = client.admin
        for start in ("earliest", next_seq, "latest"):
            assert await admin.plan_ranges("log", start=start) == ()
        for end in ("earliest", next_seq, "latest"):
            assert await admin.plan_ranges("log", end=end) == ()
        for start in (0, LONG_AGO):
            with pytest.raises(dlog.Truncated):
                await admin.plan_ranges("log", start=start)
            assert await admin.plan_ranges("log", start=start, on_truncated="jump") == ()
        status, described = await admin.status("log"), await admin.describe("log")
        (listed,) = await admin.list()
        for told in (status, described, listed):
            assert (told.head_seq, told.next_seq) == (next_seq, next_seq)
        assert (listed.messages, described.messages) == (0, 0)
        left = await admin.segments("log")
        assert all(each.messages in (0, None) for each in left)
        assert described.segments == left
        assert (listed.segments, status.segments) == (len(left), len(left))
        assert listed.bytes == status.bytes == sum(each.bytes or 0 for each in left)
        assert status.last_id is None
        assert described.tail is None
        report = await admin.fsck("log", deep=True)
        assert report.is_clean, report.findings
    assert await api.read_all() == []
    reader = await api.open_reader(start="earliest")
    assert (await reader.lag()).messages == 0
    await reader.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_copy_of_it_begins_at_its_end_and_knows_whom_it_forgot(
    api: Api, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "pages":
        monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)
    next_seq = await truncated(api, kind)
    told = await api.copy_log(api.url, "log", api.url, "copy")
    assert (told.first_seq, told.next_seq) == (next_seq, next_seq)
    async with api.open_writer("copy") as writer:
        for number in (0, 1):
            with pytest.raises(dlog.NotFound):
                await writer.append(b"again", producer=(2, number))
        if kind == "terminated":  # and nobody knows any more who wrote there
            with pytest.raises(dlog.NotFound, match="in another log"):
                await writer.append(b"new", producer=(77, 0))
        else:
            await writer.append(b"new", producer=(77, 0))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "terminated"])
async def test_what_comes_afterwards_is_planned_alone(
    api: Api, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "pages":
        monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)
    next_seq = await truncated(api, kind)
    async with api.open_writer() as writer, api.connect() as client:
        for number in range(3):
            await writer.append(b"new %d" % number, producer=(20 + number, 0))
            (planned,) = await client.admin.plan_ranges("log")
            assert (planned.first_seq, planned.messages) == (next_seq, number + 1)
            batches = [each async for each in client.read_range(planned)]
            assert sum(map(len, batches)) == number + 1
