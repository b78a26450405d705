"""Our client in a process of its own, asked line by line what `Peer.java` is asked, too.

    python -m benchmarks.bookkeeper.ours ZOOKEEPER_HOSTS LEDGERS_ROOT

Only the LedgerStore contract is used, by one store, on one loop. Each question is one run: measured
here, with the processor time of this whole process and its largest size.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.bookkeeper.pump import Published, Pump
from benchmarks.common import MIB, random_values
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import Appender, LedgerSpec, LedgerStore
from dlog.meta.store import MetaStore
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.wire.ledger_metadata_format import parse_ledger_metadata
from dlog.wire.ledger_paths import Manager, ledger_path

SPEC = LedgerSpec(ensemble=3, write_quorum=3, ack_quorum=2, digest="crc32c")
READ_BYTES = MIB  # of one call
POLL_MS = 1_000
META_TIMEOUT_MS = 10_000


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def memory_bytes() -> int:
    """The most it ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def payloads_of(asked: dict[str, Any]) -> list[bytes]:
    """Not more than 16 MiB of them; a longer run begins them again."""
    size = asked["size"]
    return random_values(max(1, min(asked["count"], 16 * MIB // size)), size)


class Ours:
    def __init__(self, store: LedgerStore, meta: MetaStore, ledgers_root: str) -> None:
        self._store = store
        self._meta, self._ledgers_root = meta, ledgers_root
        self._waiting: dict[int, tuple[Appender, Pump]] = {}

    async def answer(self, what: str, asked: dict[str, Any]) -> Any:
        run: Callable[[dict[str, Any]], Awaitable[Any]] | None = getattr(self, f"do_{what}", None)
        if run is None:
            raise ValueError(f"nothing is called {what}")
        return await run(asked)

    async def do_bookies(self, asked: dict[str, Any]) -> Any:
        """Who holds the end of a ledger; the contract of ledger stores does not say it."""
        path = self._ledgers_root + ledger_path(Manager.HIERARCHICAL, asked["ledger"])
        raw = (await self._meta.get(path)).value
        return list(parse_ledger_metadata(raw, where=path).fragments[-1].ensemble)

    async def do_memory(self, asked: dict[str, Any]) -> Any:
        del asked
        return {"bytes": memory_bytes()}

    async def do_sequential(self, asked: dict[str, Any]) -> Any:
        payloads, taken = payloads_of(asked), []
        appender, pump = await self._begin(payloads)
        used = cpu_s()
        for _ in range(asked["count"]):
            began = time.perf_counter()
            pump.send(1)
            await pump.drained()
            taken.append(time.perf_counter() - began)
        used = cpu_s() - used
        await appender.close()
        return {"each_s": taken, "cpu_s": used, "ledger": appender.ledger_id}

    async def do_pipelined(self, asked: dict[str, Any]) -> Any:
        payloads = payloads_of(asked)
        appender, pump = await self._begin(payloads, outstanding=asked["outstanding"])
        used, began = cpu_s(), time.perf_counter()
        pump.send(asked["count"])
        await pump.drained()
        seconds, used = time.perf_counter() - began, cpu_s() - used
        await appender.close()
        return {"seconds": seconds, "cpu_s": used, "ledger": appender.ledger_id}

    async def do_storm(self, asked: dict[str, Any]) -> Any:
        """So many, and every one read back."""
        payloads = payloads_of(asked)
        appender, pump = await self._begin(payloads, outstanding=asked["outstanding"])
        began = time.perf_counter()
        pump.send(asked["count"])
        await pump.drained()
        seconds, largest = time.perf_counter() - began, memory_bytes()
        closed = await appender.close()
        return {
            "seconds": seconds,
            "sent": pump.sent,
            "entries": closed.last_entry + 1,
            "lost": await self._compare(appender.ledger_id, closed.last_entry, pump.payload_of),
            "memory_bytes": largest,
        }

    async def do_read(self, asked: dict[str, Any]) -> Any:
        """Ranges in order, so many calls in flight; a short answer is asked on at once."""
        reader = await self._store.open(asked["ledger"])
        last, step = asked["count"] - 1, asked["step"]
        bytes_max = asked["bytes_max"]
        next_first, entries = 0, 0

        async def one_lane() -> None:
            nonlocal next_first, entries
            while next_first <= last:
                first = next_first
                end = min(last, first + step - 1)
                next_first = end + 1
                while first <= end:
                    found = await reader.read(first, end, bytes_max=bytes_max)
                    entries += len(found)
                    first += len(found)

        used, began = cpu_s(), time.perf_counter()
        await asyncio.gather(*(one_lane() for _ in range(asked["in_flight"])))
        seconds, used = time.perf_counter() - began, cpu_s() - used
        await reader.close()
        return {"seconds": seconds, "cpu_s": used, "entries": entries}

    async def do_recover(self, asked: dict[str, Any]) -> Any:
        used, began = cpu_s(), time.perf_counter()
        closed = await self._store.recover(asked["ledger"])
        seconds, used = time.perf_counter() - began, cpu_s() - used
        return {"seconds": seconds, "cpu_s": used, "last": closed.last_entry}

    async def do_tail_create(self, asked: dict[str, Any]) -> Any:
        """An open ledger of one entry, to be written on by `tail_write`."""
        payloads = payloads_of(asked)
        appender = await self._store.create(SPEC)
        pump = Published(appender, payloads)
        appender.listen(pump)
        await appender.birth([payloads[0]])
        pump.begin(1)
        return {"ledger": self._keep(appender, pump)}

    async def do_tail_write(self, asked: dict[str, Any]) -> Any:
        """When each entry was confirmed, on the clock that all processes share. Each confirmation
        is published at once."""
        appender, pump = self._waiting.pop(asked["ledger"])
        pace_s, stamps = asked["pace_us"] / 1e6, []
        next_s = time.monotonic()
        for _ in range(asked["count"]):
            next_s += pace_s
            await asyncio.sleep(next_s - time.monotonic())
            pump.send(1)
            await pump.drained()
            stamps.append(pump.confirmed_ns)
        await pump.published(asked["count"])  # closing at once would tell readers in another way
        await appender.close()
        return {"stamps": stamps}

    async def do_tail_read(self, asked: dict[str, Any]) -> Any:
        """When each entry behind the first could be read, and was."""
        reader = await self._store.open(asked["ledger"])
        stamps: list[int] = []
        next_entry, last_entry = 1, asked["count"]
        while next_entry <= last_entry:
            last = await reader.wait_past(next_entry - 1, POLL_MS)
            if last >= next_entry:
                end = min(last, last_entry)
                found = await reader.read(next_entry, end, bytes_max=READ_BYTES)
                stamps += [time.monotonic_ns()] * len(found)
                next_entry += len(found)
        await reader.close()
        return {"stamps": stamps}

    async def do_load(self, asked: dict[str, Any]) -> Any:
        """Keeps adding, until `end_load`; returns at once."""
        payloads = payloads_of(asked)
        appender, pump = await self._begin(payloads, outstanding=asked["outstanding"])
        self._waiting[appender.ledger_id] = (appender, pump)
        pump.keep_gaps()
        pump.send(1 << 40)
        return {"ledger": appender.ledger_id}

    async def do_load_state(self, asked: dict[str, Any]) -> Any:
        _, pump = self._waiting[asked["ledger"]]
        return {"confirmed": pump.confirmed, "failure": _told(pump.failure)}

    async def do_end_load(self, asked: dict[str, Any]) -> Any:
        """All that was sent is confirmed, the ledger closed, and every entry read back and compared
        with what was sent."""
        appender, pump = self._waiting.pop(asked["ledger"])
        pump.stop()
        await pump.drained()
        closed = await appender.close()
        lost = await self._compare(appender.ledger_id, closed.last_entry, pump.payload_of)
        return {
            "entries": closed.last_entry + 1,
            "sent": pump.sent,
            "lost": lost,
            "gaps": pump.gaps,
        }

    async def do_zombie(self, asked: dict[str, Any]) -> Any:
        """An appender whose ledger will be recovered behind its back. With `entries` the first is
        acknowledged by all of its bookies, and the others by enough."""
        appender = await self._store.create(SPEC)
        pump = Pump(appender, random_values(16, 100))
        appender.listen(pump)
        if asked["entries"] > 0:
            await appender.birth([pump.payload_of(0)])
            pump.begin(1)
            pump.send(asked["entries"] - 1)
            await pump.drained()
        return {"ledger": self._keep(appender, pump)}

    async def do_zombie_adds(self, asked: dict[str, Any]) -> Any:
        """It adds once more; what it was told in the end."""
        appender, pump = self._waiting.pop(asked["ledger"])
        before = pump.confirmed
        pump.send(asked["entries"])
        async with asyncio.timeout(asked["seconds"]):
            await pump.ended()
        appender.abandon()
        return {"acked": pump.confirmed - before, "failure": _told(pump.failure)}

    async def do_follow(self, asked: dict[str, Any]) -> Any:
        """Reads an open ledger as it grows, for so long; raises what goes wrong."""
        reader = await self._store.open(asked["ledger"])
        next_entry, longest_s = 0, 0.0
        end_s = time.monotonic() + asked["seconds"]
        moved_s = time.monotonic()
        while time.monotonic() < end_s:
            last = await reader.wait_past(next_entry - 1, POLL_MS)
            while next_entry <= last:
                found = await reader.read(next_entry, last, bytes_max=READ_BYTES)
                next_entry += len(found)
                longest_s = max(longest_s, time.monotonic() - moved_s)
                moved_s = time.monotonic()
        await reader.close()
        return {"entries": next_entry, "longest_s": longest_s}

    async def do_reread(self, asked: dict[str, Any]) -> Any:
        """A closed ledger again and again, for so long."""
        reader = await self._store.open(asked["ledger"])
        last = await reader.last_readable()
        entries, end_s = 0, time.monotonic() + asked["seconds"]
        while time.monotonic() < end_s:
            first = 0
            while first <= last:
                found = await reader.read(first, last, bytes_max=READ_BYTES)
                first += len(found)
            entries += last + 1
            await asyncio.sleep(asked["pause_s"])
        await reader.close()
        return {"entries": entries}

    async def _begin(self, payloads: list[bytes], *, outstanding: int = 1) -> tuple[Appender, Pump]:
        appender = await self._store.create(SPEC)
        pump = Pump(appender, payloads, outstanding=outstanding)
        appender.listen(pump)
        await appender.birth([payloads[0]])
        pump.begin(1)
        return appender, pump

    def _keep(self, appender: Appender, pump: Pump) -> int:
        self._waiting[appender.ledger_id] = (appender, pump)
        return appender.ledger_id

    async def _compare(
        self, ledger_id: int, last_entry: int, payload_of: Callable[[int], bytes]
    ) -> int:
        """How many entries are not what was sent. Their absence raises."""
        reader = await self._store.open(ledger_id)
        wrong, at = 0, 0
        ahead: deque[memoryview] = deque()
        while at <= last_entry:
            ahead.extend(await reader.read(at, last_entry, bytes_max=READ_BYTES))
            while ahead:
                wrong += ahead.popleft() != payload_of(at)
                at += 1
        await reader.close()
        return wrong


def _told(failure: Exception | None) -> str | None:
    return None if failure is None else f"{type(failure).__name__}: {failure}"


async def main(hosts: str, ledgers_root: str) -> None:
    meta = ZooKeeperMetaStore(hosts, root=ledgers_root, timeout_ms=META_TIMEOUT_MS)
    store = BookKeeperLedgerStore(
        meta,
        ledgers_root=ledgers_root,
        password=b"",  # both sides open the ledgers of each other
        unsafe_empty_password=True,
    )
    ours = Ours(store, meta, ledgers_root)
    tasks: set[asyncio.Task[None]] = set()

    async def one(asked: dict[str, Any]) -> None:
        told: dict[str, Any] = {"number": asked.pop("number")}
        try:
            told["answer"] = await ours.answer(asked.pop("what"), asked)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever asked shall hear it
            told["error"] = {"code": None, "name": type(error).__name__, "message": str(error)}
        print(json.dumps(told), flush=True)

    try:
        print(json.dumps({"ready": True}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            task = asyncio.create_task(one(json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        for task in tasks:
            task.cancel()
        await store.close()
        await meta.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
