"""A MetaStore whose every call runs in a process of its own: JSON lines over its standard streams.
The bottom half is that process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import dlog.errors
from dlog.chance import SYSTEM_CHANCE
from dlog.clock import SYSTEM_CLOCK
from dlog.errors import Outcome, WriterClosed
from dlog.meta.sqlite import SqliteMetaStore, SqliteSession
from dlog.meta.store import Created, Versioned, check_path

LINE_BYTES_MAX = 8 << 20


class RemoteMetaStore:
    def __init__(self, process: asyncio.subprocess.Process, session_id: str) -> None:
        self._process = process
        self._session = SqliteSession(session_id)
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count()
        self._listener = asyncio.ensure_future(self._listen())
        self._closed = False

    @classmethod
    async def start(cls, directory: Path) -> RemoteMetaStore:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.conformance.remote_meta_store",
            str(directory),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        return cls(process, json.loads(await process.stdout.readline()))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def get(self, path: str) -> Versioned:
        value, version = await self._ask("get", path)
        return Versioned(base64.b64decode(value), version)

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> Created:
        return Created(*await self._ask("create", path, _text(value), ephemeral, sequential))

    async def put(self, path: str, value: bytes, version: int) -> int:
        return int(await self._ask("put", path, _text(value), version))

    async def delete(self, path: str, version: int) -> None:
        await self._ask("delete", path, version)

    async def children(self, path: str) -> list[str]:
        return list(await self._ask("children", path))

    async def sync(self) -> None:
        await self._ask("sync")

    async def session(self) -> SqliteSession:
        return self._session

    def watch(self, path: str) -> RemoteWatch:
        return RemoteWatch(self, check_path(path))

    async def close(self) -> None:
        if not self._closed:
            await self._ask("close")
            self._closed = True

    async def end(self) -> None:
        """After `close`: no process is left behind."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()
        await self._listener

    async def _ask(self, *call: Any) -> Any:
        if self._closed:
            raise WriterClosed("the metadata store is closed")
        assert self._process.stdin is not None
        request = next(self._ids)
        self._replies[request] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps([request, *call]).encode() + b"\n")
        return await self._replies[request]

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            request, kind, answer = json.loads(line)
            if kind == "lost":
                self._session.lost.set()
                continue
            reply = self._replies.pop(request)
            if reply.done():
                continue
            if kind == "ok":
                reply.set_result(answer)
            else:
                message, outcome, about = answer
                error = getattr(dlog.errors, kind)(message, outcome=Outcome(outcome), **about)
                reply.set_exception(error)


class RemoteWatch:
    def __init__(self, store: RemoteMetaStore, path: str) -> None:
        self._store = store
        self._path = path

    async def wait(self, timeout_ms: float) -> bool:
        return bool(await self._store._ask("wait", self._watch, timeout_ms))

    async def __aenter__(self) -> RemoteWatch:
        self._watch = await self._store._ask("watch", self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


# --- In the other process ---------------------------------------------------------------------


class _Servant:
    def __init__(self, store: SqliteMetaStore) -> None:
        self._store = store
        self._watches: list[Any] = []

    async def serve(self) -> None:
        reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        session = await self._store.session()
        _say(session.id)
        tasks = [asyncio.ensure_future(self._tell_of_loss(session))]
        while line := await reader.readline():
            tasks.append(asyncio.ensure_future(self._answer(*json.loads(line))))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.close()

    async def _tell_of_loss(self, session: SqliteSession) -> None:
        await session.lost.wait()
        _say([-1, "lost", None])

    async def _answer(self, request: int, verb: str, *args: Any) -> None:
        try:
            answer = await getattr(self, f"do_{verb}")(*args)
        except dlog.errors.DlogError as error:
            about = [error.message, error.outcome.value, error.about]
            _say([request, type(error).__name__, about])
        else:
            _say([request, "ok", answer])

    async def do_get(self, path: str) -> Any:
        found = await self._store.get(path)
        return _text(found.value), found.version

    async def do_create(self, path: str, value: str, ephemeral: bool, sequential: bool) -> Any:
        raw = base64.b64decode(value)
        return await self._store.create(path, raw, ephemeral=ephemeral, sequential=sequential)

    async def do_put(self, path: str, value: str, version: int) -> Any:
        return await self._store.put(path, base64.b64decode(value), version)

    async def do_delete(self, path: str, version: int) -> Any:
        await self._store.delete(path, version)

    async def do_children(self, path: str) -> Any:
        return await self._store.children(path)

    async def do_sync(self) -> Any:
        await self._store.sync()

    async def do_close(self) -> Any:
        await self._store.close()

    async def do_watch(self, path: str) -> Any:
        self._watches.append(await self._store.watch(path).__aenter__())
        return len(self._watches) - 1

    async def do_wait(self, watch: int, timeout_ms: float) -> Any:
        return await self._watches[watch].wait(timeout_ms)


def _say(answer: Any) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(
            _Servant(SqliteMetaStore(Path(sys.argv[1]), SYSTEM_CLOCK, SYSTEM_CHANCE)).serve()
        )
