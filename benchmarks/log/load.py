"""Appends that go on while something happens: one log under load, with rotations or without, and a
crowd of logs."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import dlog
from benchmarks.common import KIB, random_values
from benchmarks.embedded.rotating import AROUND_S, SLOT_S, TASKS, Spans

NUMBER_BYTES = 8  # each message of a load begins with its number
STATE_TIMEOUT_S = 120.0
OPENING_MAX = 64  # of a crowd, at a time


class Load:
    """So many tasks append 1 KB each, over and over, and wait for each acknowledgement. On a thread
    and a loop of its own, since whoever asks comes and goes. What was acknowledged is written to
    `book`, if there is one, as it comes: that outlives a kill -9 of us."""

    def __init__(self, url: str, log: str, tasks: int, book: str | None = None) -> None:
        self._url, self._log, self._count = url, log, tasks
        self._book = None if book is None else open_book(book)
        self._loop = asyncio.new_event_loop()
        self._stop = False
        self._next = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._acked: list[int] = []
        self._failures: list[str] = []
        self._spans = Spans()
        self._longest_s = 0.0
        self._client: dlog.aio.Client | None = None
        self._writer: dlog.aio.Writer | None = None

    def start(self) -> Any:
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        return self._run(self._start())

    def state(self) -> Any:
        """The longest append of those that ended since the last question, too."""
        return self._run(self._state())

    def rotate(self, timeout_s: float) -> Any:
        """Asks for a rotation and waits so long."""
        return self._run(self._rotate(timeout_s))

    def rest(self) -> Any:
        """The writer stays open, and has nothing to do."""
        return self._run(self._rest())

    def hand_over(self) -> Any:
        """Then `leave`."""
        return self._run(self._hand_over())

    def end(self) -> Any:
        told = self._run(self._end())
        self.leave()
        return told

    def leave(self) -> Any:
        assert self._client is not None
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        return True

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(STATE_TIMEOUT_S)

    async def _start(self) -> Any:
        self._client = dlog.aio.connect(self._url)
        self._writer = await self._client.open_writer(self._log)
        self._tasks = [asyncio.create_task(self._append()) for _ in range(self._count)]
        return True

    async def _append(self) -> None:
        assert self._writer is not None
        (rest,) = random_values(1, KIB - NUMBER_BYTES)
        while not self._stop:
            number, self._next = self._next, self._next + 1
            began = time.monotonic()
            try:
                await self._writer.append(number.to_bytes(NUMBER_BYTES, "big") + rest)
            except dlog.DlogError as error:
                self._failures.append(f"{type(error).__name__}: {error}")
                return
            now = time.monotonic()
            self._acked.append(number)
            if self._book is not None:
                os.write(self._book, number.to_bytes(NUMBER_BYTES, "big"))
            self._spans.add(began, now)
            self._longest_s = max(self._longest_s, now - began)

    async def _state(self) -> Any:
        longest_s, self._longest_s = self._longest_s, 0.0
        return {"acked": len(self._acked), "failures": self._failures, "longest_s": longest_s}

    async def _rotate(self, timeout_s: float) -> Any:
        assert self._writer is not None
        try:
            await self._writer.rotate(timeout=timeout_s)
        except dlog.DlogError as error:
            return {"failure": f"{type(error).__name__}: {error}"}
        return {"failure": None}

    async def _rest(self) -> Any:
        self._stop = True
        await asyncio.gather(*self._tasks)
        return True

    async def _hand_over(self) -> Any:
        """From the moment on when no append begins any more, on the clock that all processes
        share."""
        assert self._writer is not None
        self._stop = True
        left_s = time.monotonic()
        await self._writer.hand_over()
        handed_s = time.monotonic()
        await asyncio.gather(*self._tasks)
        return {"left_s": left_s, "handed_s": handed_s, "failures": self._failures}

    async def _end(self) -> Any:
        assert self._writer is not None
        assert self._client is not None
        await self._rest()
        await self._writer.close()
        async with self._client.open_reader(self._log) as log:
            found = {number_of(message) async for message in log}
        return {
            "acked": len(self._acked),
            "lost": len(set(self._acked) - found),
            "failures": self._failures,
            "longest_s": self._longest_s,
        }


def number_of(message: dlog.Message) -> int:
    assert message.value is not None
    return int.from_bytes(message.value[:NUMBER_BYTES], "big")


def open_book(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def numbers_in(book: str) -> set[int]:
    raw = Path(book).read_bytes()
    at = range(0, len(raw), NUMBER_BYTES)
    return {int.from_bytes(raw[each : each + NUMBER_BYTES], "big") for each in at}


async def rotate_under_load(url: str, name: str, count: int) -> Any:
    """Time is cut into pairs of slots: in the first a rotation is asked for, in the second nothing
    happens at a random moment."""
    spans = Spans()
    rotations, others, taken = [], [], []
    chance = random.Random(11)
    async with dlog.aio.open_writer(name, url=url) as log:
        stop = asyncio.Event()

        async def load() -> None:
            (value,) = random_values(1, KIB)
            while not stop.is_set():
                began = time.perf_counter()
                await log.append(value)
                spans.add(began, time.perf_counter())

        tasks = [asyncio.create_task(load()) for _ in range(TASKS)]
        for _ in range(count):
            await asyncio.sleep(AROUND_S)
            rotations.append(time.perf_counter())
            await log.rotate()
            taken.append(time.perf_counter() - rotations[-1])
            await asyncio.sleep(max(0.0, rotations[-1] + SLOT_S - time.perf_counter()))
            began = time.perf_counter()
            others.append(began + chance.uniform(AROUND_S, SLOT_S - AROUND_S))
            await asyncio.sleep(SLOT_S)
        stop.set()
        await asyncio.gather(*tasks)
    return {
        "near_s": spans.longest_around(rotations),
        "apart_s": spans.longest_around(others),
        "rotate_s": taken,
        "appends": len(spans.ends),
    }


class Crowd:
    """Many logs in one process, by one client: opened, then appended to in turns, all at once in
    each; memory is looked at after each turn."""

    def __init__(self, url: str, logs: int, seconds: float) -> None:
        self._url, self._logs, self._seconds = url, logs, seconds

    async def run(self) -> Any:
        async with dlog.aio.connect(self._url) as client:
            room = asyncio.Semaphore(OPENING_MAX)

            async def one(number: int) -> dlog.aio.Writer:
                async with room:
                    return await client.open_writer(f"crowd-{number}")

            began = time.perf_counter()
            writers = await asyncio.gather(*map(one, range(self._logs)))
            opened_s = time.perf_counter() - began
            (value,) = random_values(1, 100)
            turns_s: list[float] = []
            memory: list[tuple[float, float]] = []
            began = time.perf_counter()
            while time.perf_counter() - began < self._seconds:
                turn = time.perf_counter()
                await asyncio.gather(*(each.append(value) for each in writers))
                turns_s.append(time.perf_counter() - turn)
                memory.append((time.perf_counter() - began, resident_bytes()))
                await asyncio.sleep(max(0.0, 0.2 - turns_s[-1]))
            closing = time.perf_counter()
            await asyncio.gather(*(each.close() for each in writers))
        return {
            "opened_s": opened_s,
            "turns_s": turns_s,
            "memory": memory,
            "closed_s": time.perf_counter() - closing,
        }


def resident_bytes() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
