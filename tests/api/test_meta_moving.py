"""A log's metadata moved to another metadata store over the same ledgers: by whatever way and
however often it is cut short, the log can be written at one place, and nothing is lost."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog import backends, limits
from dlog.admin.moving import Arriving, arrive
from dlog.drive import Driver
from dlog.meta.document import LogDocument
from dlog.meta.layout import Layout
from dlog.meta.log_meta import LogMeta, LogState
from dlog.trace import MOVE_POINTS
from dlog.writer.engine import Engine
from tests.api.adapter import AioApi, Api
from tests.api.killing import Killed, killed_at

_worlds = itertools.count()
SIDES = ("before", "after")
SMALL = dlog.LogOptions(segment_bytes=4096)


@pytest.fixture
def url() -> Iterator[str]:
    yield from _world()


@pytest.fixture
def there(url: str) -> Iterator[str]:
    """Another metadata store over the same ledgers."""
    yield from _world(of=url)


def _world(of: str | None = None) -> Iterator[str]:
    from dlog.ledger.memory import MemoryLedgers
    from dlog.meta.memory import MemoryTree

    name = f"moving-{os.getpid()}-{next(_worlds)}"
    ledgers = MemoryLedgers()
    if of is not None:
        ledgers = backends._memory_worlds[of.partition(":")[2]][1]
    backends._memory_worlds[name] = MemoryTree(), ledgers
    yield f"memory:{name}"
    backends._memory_worlds.pop(name, None)


async def fill(api: Api, url: str, segments: int = 3, first: int = 0) -> int:
    """The epoch of the writer."""
    async with api.open_writer(url=url, create=SMALL) as writer:
        for i in range(segments):
            await writer.append(b"%d" % (first + i))
            await writer.rotate()
        return int(writer.epoch)


def values_to(end: int) -> list[bytes]:
    return [b"%d" % i for i in range(end)]


async def move(api: Api, url: str, there: str, **options: Any) -> bytes:
    """There and nowhere else; the document that it was brought by."""
    async with api.connect(url) as here, api.connect(there) as other:
        document = await here.admin.move_meta("log", there, **options)
        await other.admin.import_meta(document)
        assert isinstance(document, bytes)
        return document


async def test_the_log_is_there_with_all_its_ids(api: Api, there: str) -> None:
    epoch = await fill(api, api.url)
    before = await api.read_all()
    await move(api, api.url, there)
    assert await api.read_all(url=there) == before, "ids, epochs and all"
    assert await fill(api, there, first=3) > epoch
    assert await api.values(url=there) == values_to(6)


async def test_here_everybody_is_told_where_it_went(api: Api, there: str) -> None:
    await fill(api, api.url)
    async with api.open_reader(follow=True) as reader, api.connect() as here:
        seen: list[dlog.Message] = []
        while len(seen) < 3:
            seen += await reader.read()
        await move(api, api.url, there)
        with pytest.raises(dlog.Moved) as told:
            await reader.read()
        assert told.value.place == there
        for call in (
            here.open_writer("log"),
            here.open_reader("log"),
            here.open_standby("log"),
            here.admin.describe("log"),
            here.admin.segments("log"),
            here.admin.tail("log"),
            here.admin.remove("log"),
        ):
            with pytest.raises(dlog.Moved, match=there):
                await call
        with pytest.raises(dlog.AlreadyExists):
            await here.admin.create("log")
        assert await here.admin.list() == []
    assert await api.values(url=there) == values_to(3)


async def test_its_writer_is_fenced_and_hears_of_it(api: Api, there: str) -> None:
    writer = await api.open_writer()
    await writer.append(b"0")
    await move(api, api.url, there)
    with pytest.raises(dlog.Fenced) as told:
        await writer.append(b"late")
    assert there in told.value.message
    await writer.close()
    assert await api.values(url=there) == [b"0"]


async def test_there_and_back_and_there_again(api: Api, there: str) -> None:
    """DL-07: another metadata store gets the document alone, and the log is whole there."""
    await fill(api, api.url, first=0)
    first = await move(api, api.url, there)
    await fill(api, there, first=3)
    back = await move(api, there, api.url)
    await fill(api, api.url, first=6)
    again = await move(api, api.url, there)
    assert await api.values(url=there) == values_to(9)
    async with api.connect() as here, api.connect(there) as other:
        for stale, place in ((first, other), (again, other), (back, here)):
            with pytest.raises(dlog.AlreadyExists, match=r"here already|too old"):
                await place.admin.import_meta(stale)
    assert await api.values(url=there) == values_to(9)


async def test_a_document_counts_once(api: Api, there: str) -> None:
    """Removed there in the meantime: what it lists is gone, and stays gone."""
    await fill(api, api.url)
    document = await move(api, api.url, there)
    async with api.connect(there) as other:
        await other.admin.remove("log")
        with pytest.raises(dlog.AlreadyExists, match="too old"):
            await other.admin.import_meta(document)
        await other.admin.create("log")
        with pytest.raises(dlog.AlreadyExists, match="another log"):
            await other.admin.import_meta(document)


async def test_over_what_is_left_of_a_removed_log(api: Api, there: str) -> None:
    """Its numbers are lower, so nothing goes back; with higher ones it is refused."""
    async with api.connect() as here, api.connect(there) as other:
        await fill(api, there, segments=1)
        await other.admin.remove("log")
        await fill(api, api.url, segments=5)
        await fill(api, api.url, segments=1, first=5)
        await fill(api, api.url, segments=1, first=6)
        await move(api, api.url, there)
        assert await api.values(url=there) == values_to(7)
        await here.admin.create("b")
        await other.admin.create("b")
        for _ in range(3):
            await (await other.open_writer("b")).close()
        await other.admin.remove("b")
        document = await here.admin.move_meta("b", there)
        with pytest.raises(dlog.AlreadyExists, match="too old"):
            await other.admin.import_meta(document)


async def test_what_may_not_come(api: Api, there: str) -> None:
    await fill(api, api.url)
    async with api.connect() as here, api.connect(there) as other:
        stayed = await here.admin.export_meta("log")
        with pytest.raises(dlog.ConfigError, match="stayed where it was"):
            await other.admin.import_meta(stayed)
        with pytest.raises(dlog.ConfigError, match="already"):
            await here.admin.move_meta("log", api.url)
        with pytest.raises(dlog.NotFound):
            await here.admin.move_meta("nothing", there)
        assert await api.values() == values_to(3), "nothing of that was done"
        document = await here.admin.move_meta("log", there)
        with pytest.raises(dlog.ConfigError, match=there):
            await here.admin.import_meta(document)
        with pytest.raises(dlog.Corrupt, match="checksum"):
            await other.admin.import_meta(document.replace(b'"last_entry":2', b'"last_entry":3', 1))
        with pytest.raises(dlog.FormatError):
            await other.admin.import_meta(b"{}")
        await _without_a_ledger(there, document, other)
        assert (await other.admin.import_meta(document, dry_run=True)).moves_to == there
        with pytest.raises(dlog.NotFound):
            await other.admin.describe("log")
        await other.admin.import_meta(document)
        assert await api.values(url=there) == values_to(3)


async def _without_a_ledger(there: str, document: bytes, other: Any) -> None:
    """Over ledgers of another cluster nothing comes."""
    first = json.loads(document)["node"]["segments"][0]["ledger_id"]
    ledgers = backends._memory_worlds[there.partition(":")[2]][1]._ledgers
    taken = ledgers.pop(first)
    try:
        with pytest.raises(dlog.NotFound, match="same ledgers"):
            await other.admin.import_meta(document)
        made_with = taken.spec
        for wrong in ({"log": b"another"}, {}):
            taken.spec = dataclasses.replace(made_with, custom=wrong)
            ledgers[first] = taken
            with pytest.raises(dlog.Corrupt, match="another log's"):
                await other.admin.import_meta(document)
        taken.spec = made_with
        closed = taken.closed
        taken.closed = dataclasses.replace(closed, last_entry=closed.last_entry - 1)
        with pytest.raises(dlog.Corrupt, match="in the list"):
            await other.admin.import_meta(document)
        taken.closed = closed
    finally:
        ledgers[first] = taken


async def test_sent_elsewhere(api: Api, there: str) -> None:
    """The place was a mistake, and nobody ever brought the log there. Also back to where it was."""
    await fill(api, api.url)
    async with api.connect() as here, api.connect(there) as other:
        wrong = await here.admin.move_meta("log", "memory:a-mistake")
        again = await here.admin.move_meta("log", "memory:a-mistake")
        assert json.loads(again)["node"] == json.loads(wrong)["node"], "written out again"
        with pytest.raises(dlog.AlreadyExists, match="a-mistake"):
            await here.admin.move_meta("log", there)
        right = await here.admin.move_meta("log", there, retarget=True)
        await other.admin.import_meta(right)
        assert await api.values(url=there) == values_to(3)
        await other.admin.move_meta("log", "memory:a-mistake")
        home = await other.admin.move_meta("log", there, retarget=True)
        await other.admin.import_meta(home)
        await fill(api, there, first=3)
        assert await api.values(url=there) == values_to(6)


async def test_pages_and_what_a_hold_says(
    api: Api, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)
    await fill(api, api.url, segments=21)
    async with dlog.aio.connect(api.url) as inner, dlog.aio.connect(there) as outer:
        here, other = await inner._stores(True), await outer._stores(True)
        layout = Layout(here.layout.root)
        hold = b'{"anything":1}'
        await here.meta.create(layout.hold("log", "a/b"), hold)
        pages = await here.meta.children(layout.pages("log"))
        assert any("." in page for page in pages), "pages of pages"
        await move(api, api.url, there)
        assert await api.values(url=there) == values_to(21)
        assert await other.meta.children(layout.pages("log")) == pages
        assert (await other.meta.get(layout.hold("log", "a/b"))).value == hold
        await other.meta.delete(
            layout.hold("log", "a/b"), (await other.meta.get(layout.hold("log", "a/b"))).version
        )
        await fill(api, there, segments=9, first=21)
        await move(api, there, api.url)
        assert await api.values() == values_to(30)
        assert await here.meta.children(layout.holds("log")) == []
        assert await here.meta.children(layout.pages("log")) == await other.meta.children(
            layout.pages("log")
        )
        await fill(api, api.url, segments=9, first=30)
        assert await api.values() == values_to(39)


async def test_a_copy_stays_one(url: str, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when its copier died, and it is taken over to be sealed before it leaves."""
    api = AioApi(url)
    await fill(api, url)

    async def dies(self: Engine, *args: Any, **options: Any) -> None:
        self.abandon(dlog.WriterClosed("killed"))

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "close", dies)
        await api.copy_log(url, "log", url, "copy")
    async with api.connect() as here, api.connect(there) as other:
        await other.admin.import_meta(await here.admin.move_meta("copy", there))
    await fill(api, url, first=3)
    told = await api.copy_log(url, "log", there, "copy")
    assert (told.resumed_seq, told.next_seq) == (3, 6)
    assert await api.values("copy", url=there) == values_to(6)


async def test_an_ended_log_stays_ended(api: Api, there: str) -> None:
    async with dlog.aio.connect(api.url) as inner:
        stores = await inner._stores(True)
        await fill(AioApi(api.url), api.url)
        path = stores.layout.log("log")
        raw, version = await stores.meta.get(path)
        meta = LogMeta.from_bytes(raw, where="node")
        await stores.meta.put(path, meta.terminated().to_bytes(), version)
        await move(api, api.url, there)
    with pytest.raises(dlog.Unsupported, match="terminated"):
        await api.open_writer(url=there)
    assert await api.values(url=there) == values_to(3)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("point", sorted(MOVE_POINTS))
@pytest.mark.parametrize("which", range(3))
async def test_killed_at_every_step_and_done_again(
    url: str, there: str, point: str, side: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no time can it be opened at both places; done again, it is there whole."""
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)
    api = AioApi(url)
    await fill(api, url, segments=12)
    async with api.connect() as here, api.connect(there) as other:
        with killed_at(point, side, which + 1) as reached:
            try:
                await other.admin.import_meta(await here.admin.move_meta("log", there))
            except Killed:
                assert reached.hits == which + 1
        assert reached.hits > 0
        states = [await _state(each) for each in (url, there)]
        assert states.count(LogState.OPEN) <= 1, states
        document = await here.admin.move_meta("log", there)
        try:
            await other.admin.import_meta(document)
        except dlog.AlreadyExists:
            assert states[1] is LogState.OPEN, "it was there already"
    await fill(api, there, segments=2, first=12)
    assert await api.values(url=there) == values_to(14)
    with pytest.raises(dlog.Moved):
        await api.open_writer()


async def _state(url: str) -> LogState | None:
    async with dlog.aio.connect(url) as inner:
        stores = await inner._stores(True)
        try:
            raw = (await stores.meta.get(stores.layout.log("log"))).value
        except dlog.NotFound:
            return None
        return LogMeta.from_bytes(raw, where="node").state


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("point", ["collect.ledger_deleted", "collect.forgotten"])
@pytest.mark.parametrize("which", [1, 3])
async def test_what_a_collector_deleted_and_did_not_forget(
    url: str, there: str, point: str, side: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that wait for their deletion, and are gone already, keep no log where it was."""
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)
    api = AioApi(url)
    options = dlog.LogOptions(segment_bytes=4096, deletion_grace_s=0)
    async with api.open_writer(create=options) as writer:
        for i in range(21):
            await writer.append(b"%d" % i)
            await writer.rotate()
    async with api.connect() as here, api.connect(there) as other:
        await here.admin.truncate("log", 13)
        with killed_at(point, side, which), pytest.raises(Killed):
            await here.admin.collect("log")
        await other.admin.import_meta(await here.admin.move_meta("log", there))
        assert await api.values(url=there) == values_to(21)[13:]
        told = await other.admin.collect("log")
        assert (told.waiting, told.problems) == (0, ())
        report = await other.admin.fsck(grace_s=0)
        assert not report.findings, report.findings


async def test_brought_by_two_at_once(api: Api, there: str) -> None:
    await fill(api, api.url, segments=8)
    async with api.connect() as here, api.connect(there) as other, api.connect(there) as third:
        document = await here.admin.move_meta("log", there)
        ends = await asyncio.gather(
            other.admin.import_meta(document),
            third.admin.import_meta(document),
            return_exceptions=True,
        )
    refused = [each for each in ends if isinstance(each, BaseException)]
    assert len(refused) <= 1
    assert all(isinstance(each, (dlog.AlreadyExists, dlog.Conflict)) for each in refused), refused
    assert await api.values(url=there) == values_to(8)


async def test_whoever_slept_while_it_was_brought_changes_nothing(url: str, there: str) -> None:
    """Of a log that lives again: the hold that was dropped since does not come back."""
    api = AioApi(url)
    await fill(api, url)
    async with api.connect() as here, api.connect(there) as other:
        stores = await here._stores(True)
        hold = stores.layout.hold("log", "h")
        await stores.meta.create(hold, b'{"anything":1}')
        document = await here.admin.move_meta("log", there)
        stores = await other._stores(True)
        told = LogDocument.from_bytes(document, where="here")
        sleeper = arrive(Arriving(told, stores.layout, there, stores.chance))
        driver = Driver(stores.meta, stores.ledgers)
        effect = next(sleeper)
        while effect.point != "move.made":
            effect = await _step(sleeper, driver, effect)
        effect = await _step(sleeper, driver, effect)
        await other.admin.import_meta(document)
        await stores.meta.delete(hold, (await stores.meta.get(hold)).version)
        with pytest.raises(dlog.Conflict):
            await _go_on(sleeper, driver, effect)
        assert await stores.meta.children(stores.layout.holds("log")) == []
    assert await api.values(url=there) == values_to(3)


async def _go_on(procedure: Any, driver: Driver, effect: Any) -> None:
    while True:
        effect = await _step(procedure, driver, effect)


async def _step(procedure: Any, driver: Driver, effect: Any) -> Any:
    """What it wants next."""
    try:
        answer = await driver.perform(effect)
    except dlog.DlogError as error:
        return procedure.throw(error)
    return procedure.send(answer)


async def test_a_directory_that_is_copied(file_api: Api, tmp_path: Path) -> None:
    """Ledgers in files have their metadata beside the log's: so the log leaves for the directory
    that the files are copied to, and arrives when they are there."""
    await fill(file_api, file_api.url)
    to = tmp_path / "elsewhere"
    async with file_api.connect() as here:
        document = await here.admin.move_meta("log", f"file:{to}")
    shutil.copytree(file_api.url.removeprefix("file:"), to)
    for place in (file_api.url, f"file:{to}"):
        with pytest.raises(dlog.Moved):
            await file_api.open_writer(url=place)
    async with file_api.connect(f"file:{to}") as other:
        await other.admin.import_meta(document)
    await fill(file_api, f"file:{to}", first=3)
    assert await file_api.values(url=f"file:{to}") == values_to(6)
    with pytest.raises(dlog.Moved):
        await file_api.open_writer()
