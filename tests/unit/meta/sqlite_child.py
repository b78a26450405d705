"""Programs that tests of the SQLite store start, freeze and kill: `python -m
tests.unit.meta.sqlite_child PROGRAM DIRECTORY ARGUMENTS…`. Each says what it did line by line."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
import threading
from pathlib import Path

from dlog import trace
from dlog.chance import SYSTEM_CHANCE, backoff_s
from dlog.clock import SYSTEM_CLOCK
from dlog.errors import AlreadyExists, Conflict, DlogError
from dlog.meta.sqlite import SqliteMetaStore


def say(*words: object) -> None:
    print(*words, flush=True)


async def put_and_stop_at(store: SqliteMetaStore, point: str, side: str) -> None:
    """Freezes itself in the middle of a put of `/a`."""
    seen = await store.get("/a")

    def listener(reached: str, reached_side: str) -> None:
        if (reached, reached_side) == (point, side):
            # To this very thread: a signal to the process may stop another one first, and let
            # this one run on for a moment.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    trace.listen(listener)
    say("put", await store.put("/a", b"from the child", seen.version))


async def increment(store: SqliteMetaStore, count: str) -> None:
    try:
        await store.create("/n", b"0")
    except AlreadyExists:
        pass
    for _ in range(int(count)):
        attempt = 0
        while True:
            seen = await store.get("/n")
            try:
                await store.put("/n", b"%d" % (int(seen.value) + 1), seen.version)
                break
            except Conflict:
                await asyncio.sleep(backoff_s(attempt, SYSTEM_CHANCE))
                attempt += 1
    say("done")


async def presence(store: SqliteMetaStore, path: str) -> None:
    await store.create(path, b"here", ephemeral=True)
    say("here", (await store.session()).id)
    await asyncio.to_thread(sys.stdin.readline)


async def presence_with_a_fork(store: SqliteMetaStore, path: str) -> None:
    """The forked child lives on when this process is killed."""
    await store.create(path, b"here", ephemeral=True)
    if os.fork() == 0:
        say("here", os.getpid())
        sys.stdin.readline()
        os._exit(0)
    await asyncio.to_thread(sys.stdin.readline)


async def lock_file(store: SqliteMetaStore) -> None:
    """The lock SQLite takes when it wants a database for itself, taken by hand."""
    fd = os.open(store.path, os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 510, 0x40000002)
    say("locked")
    await asyncio.to_thread(sys.stdin.readline)
    os.close(fd)


async def leave_open(store: SqliteMetaStore) -> None:
    """Ends without closing, while a watch waits and a write is under way."""
    await store.create("/a", b"", ephemeral=True)
    async with store.watch("/a") as watch:
        waiting = asyncio.ensure_future(watch.wait(60_000))
        await asyncio.sleep(0)
        writing = asyncio.ensure_future(store.create("/b", b""))
        await asyncio.sleep(0)
        waiting.cancel()
        writing.cancel()
    say("leaving")


async def fill_the_disk(store: SqliteMetaStore) -> None:
    """In a mount namespace of its own: the small disk goes with this process, whatever happens."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(store.path.parent)]
    await (await asyncio.create_subprocess_exec(*mount)).wait()
    version = (await store.create("/a", b"small")).version
    refused = 0
    for index in range(40):
        try:
            await store.create(f"/n{index}", bytes(20_000))
        except DlogError as error:
            refused += 1
            say(type(error).__name__, error.outcome.value, error.path)
    assert await store.get("/a") == (b"small", version)
    kept = await store.children("/")
    assert len(kept) == 1 + 40 - refused, "each refused node is absent, each other there"
    await store.close()
    again = SqliteMetaStore(store.path.parent, SYSTEM_CLOCK, SYSTEM_CHANCE)
    assert await again.children("/") == kept
    await again.close()
    say("kept", len(kept))


async def open_as_nobody(store: SqliteMetaStore) -> None:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    try:
        await store.open()
        await store.create("/x", b"")
    except DlogError as error:
        say(type(error).__name__, error.outcome.value, error.message)
    else:
        say("opened")


PROGRAMS = {
    program.__name__: program
    for program in (
        put_and_stop_at,
        increment,
        presence,
        presence_with_a_fork,
        lock_file,
        leave_open,
        fill_the_disk,
        open_as_nobody,
    )
}


async def main() -> None:
    name, directory, *arguments = sys.argv[1:]
    store = SqliteMetaStore(Path(directory), SYSTEM_CLOCK, SYSTEM_CHANCE)
    await PROGRAMS[name](store, *arguments)  # type: ignore[operator]
    if name != "leave_open":
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
