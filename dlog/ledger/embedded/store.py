"""`EmbeddedLedgerStore`: makes, opens, recovers and deletes ledgers in a directory of one host.

Every order here matters, because a process may die, or sleep for a day, between any two steps:

- create: node, then words and data file, then *the node again*: a creator that slept while somebody
  deleted its node finds that out before it writes.
- recover: fence, then scan, then sync what was found, then close by compare-and-set.
- delete: mark and fence, then the node, then the data, then the words: a marked words file without
  a node is a deletion to be finished, by whoever deletes or scans next.

Several processes may do all of that at once. Local file systems only: mapped words need one kernel.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from dlog import trace
from dlog.chance import SYSTEM_CHANCE, Chance
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import (
    ConfigError,
    Corrupt,
    Fenced,
    ForkedHandle,
    NotFound,
    Outcome,
)
from dlog.ledger.copies import Stray
from dlog.ledger.embedded.appender import EmbeddedAppender
from dlog.ledger.embedded.background import in_background
from dlog.ledger.embedded.datafile import DataFile, disk_error
from dlog.ledger.embedded.file import FILE_HEADER_BYTES, encode_file_header
from dlog.ledger.embedded.left import left_in
from dlog.ledger.embedded.nodes import EMPTY, End, LedgerNodes, Node
from dlog.ledger.embedded.reader import EmbeddedReader
from dlog.ledger.embedded.recovery import find_end
from dlog.ledger.embedded.words import Words
from dlog.ledger.store import ClosedLedger, LedgerInfo, LedgerSpec, check_digest
from dlog.meta.store import MetaStore

_log = logging.getLogger("dlog.ledger")

T = TypeVar("T")

_DATA_SUFFIX = ".ledger"
_WORDS_SUFFIX = ".words"
_OWNER_NAME = "store"  # holds the uid of the metadata store that these files belong to
_CLOSE_WAIT_S = 10.0  # for writes under way; a disk that hangs longer keeps its daemon thread


class EmbeddedLedgerStore:
    """Ledgers below `directory/ledgers`, their metadata below `root` in `meta` (which stays the
    caller's to close). One per event loop; any number of processes."""

    serves_one_root = True

    def __init__(
        self,
        directory: Path,
        meta: MetaStore,
        *,
        root: str = "/ledgers",
        clock: Clock = SYSTEM_CLOCK,
        chance: Chance = SYSTEM_CHANCE,
    ) -> None:
        self._directory = Path(directory) / "ledgers"
        self._nodes = LedgerNodes(meta, root, chance)
        self._clock = clock
        self._pid = os.getpid()
        self._ready = False
        self._swept = False
        self._warming: asyncio.Task[None] | None = None
        self._getting_ready = asyncio.Lock()
        self._appenders: set[EmbeddedAppender] = set()
        self._readers: set[EmbeddedReader] = set()
        self._closed = False

    def warm_up(self) -> None:
        """Begin what the first use would wait for. If it fails, the first use says why."""
        if self._warming is None:
            self._warming = asyncio.get_running_loop().create_task(self._prepare())
            self._warming.add_done_callback(_look_at)

    async def create(self, spec: LedgerSpec) -> EmbeddedAppender:
        await self._prepare()
        trace.before("ledger.node_created")
        node = await self._nodes.create(spec, self._clock.wall_us())
        trace.after("ledger.node_created")
        words, fd = await self._on_thread(lambda: self._make_files(node))
        try:
            # The names must outlive a crash as the entries will; the header goes with the first of
            # them. Meanwhile: slept since the node was made? Whoever deleted it may have taken the
            # fence with it.
            synced = asyncio.ensure_future(
                self._on_thread(lambda: _sync_directory(self._directory))
            )
            try:
                await self._nodes.read(node.ledger_id)
            finally:
                await synced
        except BaseException as error:
            words.close()
            os.close(fd)
            if isinstance(error, NotFound):
                self._remove_files(node.ledger_id)
                raise Fenced(
                    f"ledger {node.ledger_id} was deleted while it was made",
                    ledger_id=node.ledger_id,
                ) from error
            raise
        appender = EmbeddedAppender(
            ledger_id=node.ledger_id,
            uid=node.uid,
            path=self._data_path(node.ledger_id),
            fd=fd,
            words=words,
            nodes=self._nodes,
            on_let_go=self._appenders.discard,
        )
        self._appenders.add(appender)
        return appender

    async def open(
        self, ledger_id: int, *, digest: str | None = None, closed: ClosedLedger | None = None
    ) -> EmbeddedReader:
        await self._prepare()
        node = await self._nodes.read(ledger_id)
        check_digest(ledger_id, node.spec.digest, digest)
        reader = EmbeddedReader(
            node,
            data_path=self._data_path(ledger_id),
            words_path=self._words_path(ledger_id),
            nodes=self._nodes,
            clock=self._clock,
            on_closed=self._readers.discard,
        )
        self._readers.add(reader)
        return reader

    async def info(self, ledger_id: int, *, digest: str | None = None) -> LedgerInfo:
        await self._prepare()
        node = await self._nodes.read(ledger_id)
        check_digest(ledger_id, node.spec.digest, digest)
        return node.info

    async def recover(
        self,
        ledger_id: int,
        *,
        digest: str | None = None,
        fenced: Callable[[], None] | None = None,
    ) -> ClosedLedger:
        await self._prepare()
        node = await self._nodes.read(ledger_id)
        if node.end is not None:
            return node.end.closed
        check_digest(ledger_id, node.spec.digest, digest)
        # No step of its own in metadata says "in recovery": the fence word holds off the appender,
        # and the one compare-and-set that closes is the only write that counts.
        words = await self._on_thread(lambda: self._fence(ledger_id))
        if fenced is not None:
            fenced()
        try:
            trace.before("recover.scanned")
            found = await self._on_thread(lambda: self._find_end(node, words))
            trace.after("recover.scanned")
            trace.before("recover.closed")
            end = await self._nodes.decide_end(ledger_id, found, seen=node)
            trace.after("recover.closed")
            words.ring()
        finally:
            words.close()
        return end.closed

    async def delete(self, ledger_id: int) -> None:
        await self._prepare()
        if not self._swept:
            await self._sweep()
        try:
            await self._nodes.read(ledger_id)
        except NotFound:
            return
        words = await self._on_thread(lambda: self._open_words(ledger_id))
        try:
            # First of all no appender may confirm into a file that is about to vanish.
            await self._on_thread(words.mark_deleting)
            await self._nodes.delete(ledger_id)
            words.ring()
            await self._on_thread(lambda: self._remove_files(ledger_id))
        finally:
            words.close()

    async def scan_ids(self) -> AsyncIterator[int]:
        await self._prepare()
        await self._sweep()
        for ledger_id in await self._nodes.ids():
            yield ledger_id

    async def strays(self) -> list[Stray]:
        """Files of ledgers that have no node, and files that are none of a ledger's. Left alone: if
        an older copy of the metadata was put back, they may be all that is left of the data."""
        await self._prepare()
        await self._sweep()
        files = await self._on_thread(self._files)  # before the nodes, which are made first
        known = set(await self._nodes.ids())
        found = [Stray(path, size) for path, ledger_id, size in files if ledger_id not in known]
        if found:  # some may be of a ledger that is being deleted now: its node goes first
            await self._sweep()
            left = {path for path, _, _ in await self._on_thread(self._files)}
            found = [stray for stray in found if stray.path in left]
        return found

    def _files(self) -> list[tuple[str, int | None, int]]:
        """Path, ledger and size of each; what is gone by now is not there."""
        found = []
        for entry in os.scandir(self._directory):
            stem, suffix = os.path.splitext(entry.name)
            is_ledgers = suffix in (_DATA_SUFFIX, _WORDS_SUFFIX) and stem.isdigit()
            if entry.name.startswith(_OWNER_NAME):
                continue
            try:
                size = entry.stat().st_size
            except FileNotFoundError:
                continue
            found.append((entry.path, int(stem) if is_ledgers else None, size))
        return sorted(found)

    async def close(self) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        if self._warming is not None:
            await asyncio.wait([self._warming])
        for reader in list(self._readers):
            await reader.close()
        appenders = list(self._appenders)
        for appender in appenders:
            appender.abandon()
        endings = [asyncio.ensure_future(appender.ended.wait()) for appender in appenders]
        if endings:
            _, late = await asyncio.wait(endings, timeout=_CLOSE_WAIT_S)
            for ending in late:
                ending.cancel()

    # Files.

    def _data_path(self, ledger_id: int) -> str:
        return os.fspath(self._directory / f"{ledger_id:010d}{_DATA_SUFFIX}")

    def _words_path(self, ledger_id: int) -> str:
        return os.fspath(self._directory / f"{ledger_id:010d}{_WORDS_SUFFIX}")

    def _open_words(self, ledger_id: int) -> Words:
        return Words(self._words_path(ledger_id), ledger_id, create=True)

    def _fence(self, ledger_id: int) -> Words:
        words = self._open_words(ledger_id)
        try:
            trace.before("ledger.fenced")
            words.fence()
            words.ring()
            trace.after("ledger.fenced")
        except BaseException:
            words.close()
            raise
        return words

    def _make_files(self, node: Node) -> tuple[Words, int]:
        trace.before("ledger.file_created")
        words = self._open_words(node.ledger_id)
        path = self._data_path(node.ledger_id)
        fd = -1
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            header = encode_file_header(node.ledger_id, node.uid, node.created_us)
            if os.pwrite(fd, header, 0) != FILE_HEADER_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except FileExistsError as error:
            words.close()
            raise Corrupt(
                f"{path} is there already, but ledger {node.ledger_id} was just made",
                path=path,
                ledger_id=node.ledger_id,
            ) from error
        except BaseException:
            words.close()
            if fd >= 0:
                os.close(fd)
            raise
        trace.after("ledger.file_created")
        return words, fd

    def _find_end(self, node: Node, words: Words) -> End:
        try:
            file = DataFile(self._data_path(node.ledger_id), node.ledger_id)
        except FileNotFoundError:
            if words.confirmed_offset > 0:
                raise Corrupt(
                    f"{self._data_path(node.ledger_id)} is gone, but held confirmed entries",
                    path=self._data_path(node.ledger_id),
                    offset=0,
                    ledger_id=node.ledger_id,
                ) from None
            return EMPTY
        try:
            failed = words.sync_failed
            confirmed = words.confirmed_offset
            end = find_end(file, node.uid, confirmed_offset=confirmed, only_confirmed=failed)
            if end.offset != confirmed:
                file.sync()  # entries the appender had written, and maybe not synced
            if words.sync_failed and not failed:
                confirmed = words.confirmed_offset
                end = find_end(file, node.uid, confirmed_offset=confirmed, only_confirmed=True)
            return end
        finally:
            file.close()

    def _remove_files(self, ledger_id: int) -> None:
        for path in (self._data_path(ledger_id), self._words_path(ledger_id)):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass  # another deleter, or a creator that never came that far

    # First use.

    async def _prepare(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle(
                f"the ledgers in {self._directory} were opened by process {self._pid}, before a "
                "fork",
                path=os.fspath(self._directory),
                pid=self._pid,
            )
        if self._closed:
            raise ConfigError(f"the ledger store in {self._directory} was closed")
        if self._ready:
            return
        async with self._getting_ready:
            if not self._ready:
                uid = await self._nodes.store_uid()
                await self._on_thread(lambda: self._check_owner(uid))
                self._ready = True

    def _check_owner(self, uid: str) -> None:
        """These files belong to one metadata store. With another one each of them would look like
        garbage."""
        self._directory.mkdir(parents=True, exist_ok=True)
        owner = self._directory / _OWNER_NAME
        if not owner.exists():
            ledgers = any(name.endswith(_DATA_SUFFIX) for name in os.listdir(self._directory))
            if ledgers and not owner.exists():  # who is faster than us makes the owner first
                raise ConfigError(
                    f"{self._directory} holds ledgers, but not {owner.name!r}", left=self._left()
                )
            ours = self._directory / f"{_OWNER_NAME}.{os.getpid()}.{id(self):x}"
            ours.write_text(uid + "\n")
            try:
                os.link(ours, owner)  # whole or not at all; whoever comes first
            except FileExistsError:
                pass
            finally:
                ours.unlink()
            _sync_directory(self._directory)
        found = owner.read_text().strip()
        if found != uid:
            raise ConfigError(
                f"the ledgers in {self._directory} belong to metadata store {found}, not {uid}",
                left=self._left(),
            )

    def _left(self) -> str | None:
        left = left_in(self._directory)
        return None if left is None else left.marks

    async def _sweep(self) -> None:
        """Finish the deletions whose deleter died before it came to the files.

        Only a file that its deleter marked goes. One that merely lacks a node stays: somebody may
        have put back an older copy of the metadata, and these may be all that is left of the data.
        """
        self._swept = True
        listed = await self._on_thread(lambda: os.listdir(self._directory))
        with_words = {
            int(name.removesuffix(_WORDS_SUFFIX))
            for name in listed
            if name.endswith(_WORDS_SUFFIX) and name.removesuffix(_WORDS_SUFFIX).isdigit()
        }
        if with_words:
            orphans = sorted(with_words.difference(await self._nodes.ids()))
            await self._on_thread(lambda: self._remove_marked(orphans))

    def _remove_marked(self, ledger_ids: list[int]) -> None:
        for ledger_id in ledger_ids:
            try:
                words = Words(self._words_path(ledger_id), ledger_id, create=False)
            except FileNotFoundError:
                continue  # another sweeper
            except Corrupt as error:
                _log.warning("left alone: %s", error)
                continue
            marked = words.deleting
            words.close()
            if marked:
                self._remove_files(ledger_id)

    async def _on_thread(self, step: Callable[[], T]) -> T:
        """Disk work off the loop. It is waited for to its end even if we are cancelled, since the
        words it uses are closed behind it."""
        working = in_background(step)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait([working])
            if working.exception() is None:
                _discard(working.result())
            raise
        except OSError as error:
            path = error.filename or os.fspath(self._directory)
            raise disk_error(error, "use", path, outcome=Outcome.UNKNOWN) from error


def _look_at(warming: asyncio.Task[None]) -> None:
    """Its error is not lost: whoever uses the store first meets it again."""
    if not warming.cancelled():
        warming.exception()


def _discard(result: object) -> None:
    """Of work whose caller was cancelled."""
    if isinstance(result, Words):
        result.close()
    elif isinstance(result, tuple):
        words, fd = result
        words.close()
        os.close(fd)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
