"""Our side in a process of its own, asked line by line what `DistributedLogPeer.java` is asked.

    python -m benchmarks.log.ours URL

Only what `dlog` and `dlog.aio` offer to anybody is used. Each question is one run on a thread of
its own, measured here, with the processor time of this whole process; those of the sync API share
one client, which was connected before.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import dlog
from benchmarks.bookkeeper.ours import cpu_s, payloads_of
from benchmarks.log.load import Crowd, Load, rotate_under_load
from benchmarks.log.succeeding import Successor


class Ours:
    def __init__(self, url: str) -> None:
        self._url = url
        self._client = dlog.connect(url)
        self._loads: dict[str, Load] = {}
        self._successor = Successor(self._client)

    def close(self) -> None:
        self._client.close()

    def answer(self, what: str, asked: dict[str, Any]) -> Any:
        run: Callable[[dict[str, Any]], Any] | None = getattr(self, f"do_{what}", None)
        if run is None:
            raise ValueError(f"nothing is called {what}")
        return run(asked)

    # --- appending

    def do_sequential(self, asked: dict[str, Any]) -> Any:
        """The same of both APIs."""
        return self._each_sync(asked) if asked["way"] == "sync" else asyncio.run(self._each(asked))

    def _each_sync(self, asked: dict[str, Any]) -> Any:
        payloads, taken = payloads_of(asked), []
        with self._client.open_writer(asked["log"]) as log:
            log.append(b"warm")
            used = cpu_s()
            for at in range(asked["count"]):
                began = time.perf_counter()
                log.append(payloads[at % len(payloads)])
                taken.append(time.perf_counter() - began)
            used = cpu_s() - used
        return {"each_s": taken, "cpu_s": used}

    async def _each(self, asked: dict[str, Any]) -> Any:
        payloads, taken = payloads_of(asked), []
        async with dlog.aio.open_writer(asked["log"], url=self._url) as log:
            await log.append(b"warm")
            used = cpu_s()
            for at in range(asked["count"]):
                began = time.perf_counter()
                await log.append(payloads[at % len(payloads)])
                taken.append(time.perf_counter() - began)
            used = cpu_s() - used
        return {"each_s": taken, "cpu_s": used}

    def do_append_many(self, asked: dict[str, Any]) -> Any:
        values = _values(asked)
        with self._client.open_writer(asked["log"]) as log:
            log.append(values[0])
            used, began = cpu_s(), time.perf_counter()
            log.append_many(values[1:])
            return _told(began, used, len(values) - 1)

    def do_submit(self, asked: dict[str, Any]) -> Any:
        """A ticket for each message, all of them kept to the end."""
        values = _values(asked)
        with self._client.open_writer(asked["log"]) as log:
            log.append(values[0])
            used, began = cpu_s(), time.perf_counter()
            put = log.submit
            tickets = [put(value) for value in values[1:]]
            log.flush()
            told = _told(began, used, len(tickets))
            assert tickets[-1].result() == log.last_id
        return told

    # --- reading

    def do_arrow(self, asked: dict[str, Any]) -> Any:
        used, began = cpu_s(), time.perf_counter()
        seen = 0
        with self._client.open_reader(asked["log"]) as log:
            for batch in log.batches():
                seen += batch.to_arrow().num_rows
        told = _told(began, used, seen)
        assert seen == asked["count"]
        return told

    def do_iterate(self, asked: dict[str, Any]) -> Any:
        used, began = cpu_s(), time.perf_counter()
        count = seen = 0
        with self._client.open_reader(asked["log"]) as log:
            for message in log:
                seen += len(message.value)
                count += 1
        told = _told(began, used, count)
        assert seen == asked["count"] * asked["size"]
        return told

    def do_tail_create(self, asked: dict[str, Any]) -> Any:
        with self._client.open_writer(asked["log"]) as log:
            log.append(payloads_of(asked)[0])
        return True

    def do_tail_write(self, asked: dict[str, Any]) -> Any:
        """At an even pace, each waits for its acknowledgement; when that came, on the clock that
        all processes share."""
        return asyncio.run(self._tail_write(asked))

    async def _tail_write(self, asked: dict[str, Any]) -> Any:
        payloads, stamps = payloads_of(asked), []
        pace_s = asked["pace_us"] / 1e6
        async with dlog.aio.open_writer(asked["log"], url=self._url) as log:
            next_s = time.monotonic()
            for at in range(asked["count"]):
                next_s += pace_s
                await asyncio.sleep(next_s - time.monotonic())
                await log.append(payloads[at % len(payloads)])
                stamps.append(time.monotonic_ns())
            await asyncio.sleep(0.1)  # closing at once would tell readers in another way
        return {"stamps": stamps}

    def do_tail_read(self, asked: dict[str, Any]) -> Any:
        return asyncio.run(self._tail_read(asked))

    async def _tail_read(self, asked: dict[str, Any]) -> Any:
        """When each message behind the first was handed out."""
        stamps: list[int] = []
        async with dlog.aio.open_reader(asked["log"], url=self._url, follow=True) as log:
            async for _ in log:
                stamps.append(time.monotonic_ns())
                if len(stamps) > asked["count"]:
                    break
        return {"stamps": stamps[1:]}

    # --- while something happens

    def do_rotations(self, asked: dict[str, Any]) -> Any:
        return asyncio.run(rotate_under_load(self._url, asked["log"], asked["count"]))

    def do_crowd(self, asked: dict[str, Any]) -> Any:
        return asyncio.run(Crowd(self._url, asked["logs"], asked["seconds"]).run())

    def do_load(self, asked: dict[str, Any]) -> Any:
        load = Load(self._url, asked["log"], asked["tasks"], asked.get("book"))
        self._loads[asked["log"]] = load
        return load.start()

    def do_load_state(self, asked: dict[str, Any]) -> Any:
        return self._loads[asked["log"]].state()

    def do_load_rotate(self, asked: dict[str, Any]) -> Any:
        return self._loads[asked["log"]].rotate(asked["within_s"])

    def do_load_rest(self, asked: dict[str, Any]) -> Any:
        return self._loads[asked["log"]].rest()

    def do_load_hand_over(self, asked: dict[str, Any]) -> Any:
        return self._loads[asked["log"]].hand_over()

    def do_load_leave(self, asked: dict[str, Any]) -> Any:
        return self._loads.pop(asked["log"]).leave()

    def do_load_end(self, asked: dict[str, Any]) -> Any:
        """Every message that was acknowledged is looked for in the log."""
        return self._loads.pop(asked["log"]).end()

    # --- after somebody else

    def do_stand_by(self, asked: dict[str, Any]) -> Any:
        return self._successor.stand_by(asked["log"])

    def do_succeed(self, asked: dict[str, Any]) -> Any:
        return self._successor.succeed(asked["log"], asked.get("takeover", "always"))

    def do_look_for(self, asked: dict[str, Any]) -> Any:
        return self._successor.look_for(asked["log"], asked["book"])

    def do_newest_ledger(self, asked: dict[str, Any]) -> Any:
        return self._client.admin.segments(asked["log"])[-1].ledger_id

    # --- beside it

    def do_follow(self, asked: dict[str, Any]) -> Any:
        """Reads a log as it grows, for so long; raises what goes wrong."""
        return asyncio.run(self._follow(asked))

    async def _follow(self, asked: dict[str, Any]) -> Any:
        seen, longest_s = 0, 0.0
        moved_s = time.monotonic()
        end_s = moved_s + asked["seconds"]
        async with dlog.aio.open_reader(asked["log"], url=self._url, follow=True) as log:
            while time.monotonic() < end_s:
                found = await log.read(1_000, timeout=0.1)
                if found:
                    seen += len(found)
                    longest_s = max(longest_s, time.monotonic() - moved_s)
                    moved_s = time.monotonic()
        return {"messages": seen, "longest_s": max(longest_s, end_s - moved_s)}


def _values(asked: dict[str, Any]) -> list[bytes]:
    payloads = payloads_of(asked)
    return (payloads * (asked["count"] // len(payloads) + 1))[: asked["count"]]


def _told(began_s: float, used_s: float, messages: int) -> dict[str, Any]:
    seconds = time.perf_counter() - began_s
    return {"seconds": seconds, "cpu_s": cpu_s() - used_s, "messages": messages}


def main(url: str) -> None:
    ours, saying = Ours(url), threading.Lock()

    def one(asked: dict[str, Any]) -> None:
        told: dict[str, Any] = {"number": asked.pop("number")}
        try:
            told["answer"] = ours.answer(asked.pop("what"), asked)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever asked shall hear it
            told["error"] = {"code": None, "name": type(error).__name__, "message": str(error)}
        with saying:
            print(json.dumps(told), flush=True)

    try:
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            threading.Thread(target=one, args=(json.loads(line),), daemon=True).start()
    finally:
        ours.close()


if __name__ == "__main__":
    main(sys.argv[1])
