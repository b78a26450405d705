"""What the collector would do is told before it does it, to the byte, and nothing changes by it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dlog import limits
from tests.api.adapter import Api
from tests.api.planting import change_meta, first_page, ledger_ids, meta_of, stores_of
from tests.api.test_truncation import filled


async def whole_root(api: Api) -> list[Any]:
    """Lists, pages and ledgers."""
    async with stores_of(api) as stores:
        told: list[Any] = sorted(await ledger_ids(stores))
        for name in await stores.meta.children(stores.layout.logs):
            told.append(await meta_of(stores, name))
            folder = stores.layout.pages(name)
            told += sorted(await stores.meta.children(folder))
        return told


async def test_a_plan_of_what_is_collected_changes_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what the pass then does, in pages and inline, now and later."""
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)
    async with api.connect() as client:
        for name, grace_s in (("log", 0), ("patient", 3600)):
            await client.admin.create(name, deletion_grace_s=grace_s)
            async with api.open_writer(name) as log:
                await filled(log, 9)
            await client.admin.truncate(name, 33)
        before = await whole_root(api)
        plan = await client.admin.collect("log", dry_run=True)
        patient = await client.admin.collect("patient", dry_run=True)
        assert await whole_root(api) == before
        assert (plan.done, plan.truncated, plan.deleted, plan.waiting) == (False, 0, 6, 0)
        assert plan.pages > 0
        assert plan.bytes > 0
        assert plan.problems == ()
        assert (patient.deleted, patient.bytes, patient.pages) == (0, 0, 0)
        assert patient.waiting > 0
        told = await client.admin.collect("log")
        assert told == dataclasses.replace(plan, done=True)
        nothing = await client.admin.collect("log", dry_run=True)
        assert (nothing.deleted, nothing.bytes, nothing.nodes) == (0, 0, 0)


@pytest.mark.parametrize("kept_bytes", [0, 100])
async def test_a_plan_foresees_what_retention_truncates(
    api: Api, monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    """Into the middle of a page, too, which only the pass trims."""
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 4)
    async with api.connect() as client:
        await client.admin.create("log", deletion_grace_s=0)
        async with api.open_writer() as log:
            await filled(log, 11)
        sizes = [each.bytes or 0 for each in await client.admin.segments("log")]
        keep = 0 if kept_bytes == 0 else sum(sizes[6:])
        async with stores_of(api) as stores:
            await change_meta(
                stores,
                lambda meta: dataclasses.replace(
                    meta, options=dataclasses.replace(meta.options, retention_bytes=keep)
                ),
            )
        await client.admin.hold("log", "h", 52)
        before = await whole_root(api)
        plan = await client.admin.collect("log", dry_run=True)
        assert await whole_root(api) == before
        count = 10 if kept_bytes == 0 else 6
        assert (plan.truncated, plan.deleted, plan.waiting) == (count, count, 0)
        assert plan.bytes == sum(sizes[:count])
        assert plan.held_by == (("h",) if kept_bytes == 0 else ())
        told = await client.admin.collect("log")
        assert told == dataclasses.replace(plan, done=True)


async def test_a_plan_tells_of_nodes_that_nothing_names(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)
    async with api.connect() as client:
        await client.admin.create("log", deletion_grace_s=0)
        async with api.open_writer() as log:
            await filled(log, 9)
        async with stores_of(api) as stores:
            path, _ = await first_page(stores)
            page = (await stores.meta.get(path)).value
        await client.admin.truncate("log", 33)
        await client.admin.collect("log")
        async with stores_of(api) as stores:
            await stores.meta.create(stores.layout.page("log", 1), page)
        assert (await client.admin.collect("log", dry_run=True)).nodes == 1
        assert (await client.admin.collect("log")).nodes == 1
        assert (await client.admin.collect("log", dry_run=True)).nodes == 0
