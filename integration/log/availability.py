"""The availability table: who is down, what can be done with logs meanwhile, and how long it takes.

Logs of three copies and two acknowledgements lie on four bookies, so that whoever will be down has
a copy of each. Each cell is one attempt, timed, by clients that did not see the fault yet. Nothing
is tried twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dlog import aio
from dlog.errors import DlogError
from dlog.testing.children import Child
from dlog.testing.cluster import Bookie, Cluster
from integration.bookkeeper.fault_tools import Fault, Frozen, Killed

COLUMNS = ("create", "open", "append", "read", "shrink", "rotate")
OPEN_TIMEOUT_MS = 8_000
TRIES_MAX = 60  # an ensemble that has the victims in it is drawn with one chance in two at least
MESSAGES = 50
APPENDS = 10  # one after the other


@dataclass(slots=True)
class Cell:
    took_s: float
    error: DlogError | None = None

    @property
    def is_ok(self) -> bool:
        return self.error is None

    def __str__(self) -> str:
        took = f"{self.took_s * 1000:.0f} ms" if self.took_s < 1 else f"{self.took_s:.1f} s"
        return took if self.error is None else f"**{type(self.error).__name__}** in {took}"


@dataclass(slots=True)
class Row:
    name: str
    cells: dict[str, Cell] = field(default_factory=dict)


class Attempts:
    """Of one row. Each column has a log of its own, whose writer belongs to one client, and a
    second client, of another program, that read it once: a cell shows what it meets first."""

    def __init__(self, cluster: Cluster, numbers: Iterator[int]) -> None:
        self.owners: dict[str, aio.Writer] = {}
        self._url = cluster.url
        self._numbers = numbers
        self._clients: list[aio.Client] = []
        self._others: dict[str, aio.Client] = {}
        self._names: dict[str, str] = {}
        self._held: list[aio.Writer] = []  # until their clients close what is open

    async def prepare(self, victims: Sequence[Bookie]) -> None:
        """All victims have a copy of each log."""
        for column in COLUMNS:
            writer = self.owners[column] = await self._log_on(victims)
            await self.know(column, writer.log)

    async def know(self, column: str, name: str) -> None:
        self._names[column] = name
        self._others[column] = self._connect()
        await self._read(column)

    def _connect(self) -> aio.Client:
        client = aio.connect(self._url)
        self._clients.append(client)
        return client

    async def _log_on(self, victims: Sequence[Bookie]) -> aio.Writer:
        client = self._connect()
        for _ in range(TRIES_MAX):
            writer = await client.open_writer(f"log-{next(self._numbers)}")
            await writer.append_many([b"%d" % number for number in range(MESSAGES)])
            stores = await client._stores(False)
            ledger_id = writer._engine.core.current.ledger_id
            stored = await stores.ledgers._nodes.read(ledger_id)  # type: ignore[attr-defined]
            if {each.bookie_id for each in victims} <= set(stored.metadata.fragments[-1].ensemble):
                return writer
            await writer.close()
        raise AssertionError("no ensemble with all victims was drawn")

    # --- columns

    async def make(self, column: str) -> Cell:
        work: dict[str, Callable[[], Awaitable[object]]] = {
            "create": self._create,
            "open": self._open,
            "append": self._append,
            "read": lambda: self._read("read"),
            "shrink": self._shrink,
            "rotate": self._rotate,
        }
        began_s = time.monotonic()
        try:
            await work[column]()
        except DlogError as error:
            return Cell(time.monotonic() - began_s, error)
        return Cell(time.monotonic() - began_s)

    async def _create(self) -> None:
        name = f"new-{next(self._numbers)}"
        client = self._others["create"]
        self._held.append(await client.open_writer(name, open_timeout_ms=OPEN_TIMEOUT_MS))

    async def _open(self) -> None:
        """Nobody closed it: a takeover, to its first acknowledgement."""
        await (await self._take_over("open")).append(b"mine")

    async def _take_over(self, column: str) -> aio.Writer:
        name = self._names[column]
        writer = await self._others[column].open_writer(name, open_timeout_ms=OPEN_TIMEOUT_MS)
        self._held.append(writer)
        return writer

    async def _append(self) -> None:
        """By the writer that is open; another one first where it is gone."""
        for number in range(APPENDS):
            await self.owners["append"].append(b"on %d" % number)

    async def _read(self, column: str) -> None:
        async with self._others[column].open_reader(self._names[column]) as reader:
            got = [message.value async for message in reader]
        assert got[:MESSAGES] == [b"%d" % number for number in range(MESSAGES)]

    async def _rotate(self) -> None:
        writer = self.owners["rotate"]
        await writer.rotate(timeout=OPEN_TIMEOUT_MS / 1000)
        await writer.append(b"behind")

    async def _shrink(self) -> None:
        """Gives everything back: the whole log is removed."""
        await self._others["shrink"].admin.remove(self._names["shrink"])

    async def take_over_first(self, *columns: str) -> None:
        for column in columns:
            self.owners[column] = await self._take_over(column)

    async def close(self) -> None:
        for client in self._clients:
            # Logs were taken over or removed under their writers, or their bookies are gone.
            with contextlib.suppress(DlogError):
                await client.close()


class Table:
    def __init__(self, cluster: Cluster) -> None:
        self.rows: list[Row] = []
        self.cluster = cluster
        self._numbers = itertools.count()

    async def row_of_bookies(
        self, name: str, fault: Fault | None = None, victims: Sequence[Bookie] = ()
    ) -> Row:
        async with self._attempts() as attempts:
            await attempts.prepare(victims)
            try:
                if fault is not None:
                    await asyncio.gather(*map(fault.strike, victims))
                return await self._fill(name, attempts)
            finally:
                if fault is not None:
                    await asyncio.gather(*map(fault.heal, victims))

    async def row_of_a_dead_writer(self, start: Callable[..., Child]) -> Row:
        """The process that wrote the logs was killed. What it would have done, its
        successor does."""
        async with self._attempts() as attempts:
            names = {column: f"dead-{next(self._numbers)}" for column in COLUMNS}
            child = start(*names.values())
            await asyncio.to_thread(child.wait_line, "ready")
            for column, name in names.items():
                await attempts.know(column, name)
            child.kill()
            await asyncio.to_thread(child.wait_end)
            await attempts.take_over_first("append", "rotate")
            return await self._fill("the writer's process killed", attempts)

    async def _fill(self, name: str, attempts: Attempts) -> Row:
        row = Row(name)
        self.rows.append(row)
        for column in COLUMNS:
            row.cells[column] = await attempts.make(column)
        return row

    @asynccontextmanager
    async def _attempts(self) -> AsyncIterator[Attempts]:
        attempts = Attempts(self.cluster, self._numbers)
        try:
            yield attempts
        finally:
            await attempts.close()

    # --- told

    def markdown(self) -> str:
        lines = [
            f"| down | {' | '.join(COLUMNS)} |",
            f"|---|{'---|' * len(COLUMNS)}",
        ]
        for row in self.rows:
            told = " | ".join(str(row.cells[column]) for column in COLUMNS)
            lines.append(f"| {row.name} | {told} |")
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Between the marks of a page."""
        begin, end = "<!-- table -->\n", "<!-- end of table -->"
        page = path.read_text()
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        path.write_text(before + begin + self.markdown() + end + after)


KILLED, FROZEN = Killed(), Frozen()
