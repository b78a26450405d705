"""A log with a hundred thousand sealed segments: `history`.

The time of `connect` and `open_writer` in a process that did both before, from the call to the
return; and that of one message and one rotation, on a log with so many segments and on one with
ten, turn by turn. Each log's list is made for it (see `benchmarks.histories`).
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import dlog
from benchmarks.common import Finding, Setting, interleaved
from benchmarks.histories import (
    LEDGERS_BEFORE,
    counts_of,
    findings,
    name_of,
    opened_s,
    rotated_s,
    write_history,
)
from dlog.meta.layout import Layout
from dlog.meta.sqlite import DATABASE_NAME, SqliteMetaStore

OPEN_S = 0.100


def history(setting: Setting) -> list[Finding]:
    counts = counts_of(setting)
    with setting.scratch() as directory:
        url = f"file:{directory}"
        asyncio.run(_write(directory, url, counts))
        opening = {name_of(n): partial(_opened_s, url, name_of(n)) for n in counts}
        interleaved(1, opening)
        opened = interleaved(setting.pick(7 * setting.rounds, 1), opening)
        with dlog.connect(url) as client:
            logs = {name_of(n): client.open_writer(name_of(n)) for n in counts}
            rotating = {name: partial(rotated_s, log) for name, log in logs.items()}
            interleaved(1, rotating)
            rotated = interleaved(setting.pick(30 * setting.rounds, 1), rotating)
    return findings(counts, opened, rotated, OPEN_S)


async def _write(directory: Path, url: str, counts: tuple[int, ...]) -> None:
    async with dlog.aio.connect(url) as client:
        for count in counts:
            await client.admin.create(name_of(count))
    with closing(sqlite3.connect(directory / DATABASE_NAME)) as database, database:
        database.execute("UPDATE counter SET next = ? WHERE name = 'sequential'", (LEDGERS_BEFORE,))
    meta = SqliteMetaStore(directory)
    try:
        for count in counts:
            await write_history(meta, Layout(), count)
    finally:
        await meta.close()


def _opened_s(url: str, name: str) -> float:
    with dlog.connect(url) as client:
        return opened_s(client, name)
