"""Protections of the product, removed one at a time, to see that the checkers object; and ways to
make a disk behave as badly as it may."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dlog.ledger.embedded import committer
from dlog.ledger.embedded.words import Words
from dlog.ledger.store import Buffer
from dlog.meta.listed import WriterMark
from dlog.meta.log_meta import LogMeta
from dlog.writer.core import WriterCore

BUGS: dict[str, Callable[[], None]] = {}


def bug(plant: Callable[[], None]) -> Callable[[], None]:
    BUGS[plant.__name__] = plant
    return plant


@bug
def fence_look_skipped() -> None:
    """Store, and do not look."""
    Words.fenced = property(lambda words: False)  # type: ignore[method-assign, assignment]


@bug
def claim_without_epoch() -> None:
    def claimed(meta: LogMeta, writer: WriterMark, *, copies: str | None = None) -> LogMeta:
        return dataclasses.replace(meta, epoch=max(meta.epoch, 1), writer=writer, hand_over=None)

    LogMeta.claimed = claimed  # type: ignore[method-assign]


@bug
def no_barrier() -> None:
    """A ledger's acknowledgements do not wait for the end of the one before."""

    def collect(core: WriterCore) -> None:
        for pipe in core.pipes:
            core._released += pipe.released(pipe.last_published)

    WriterCore._collect = collect  # type: ignore[method-assign]


class _Cache:
    """Writes are kept in memory until a sync; a kill loses them, as a power cut would."""

    def __init__(self) -> None:
        self._write: Callable[..., None] = committer._write_all
        self._sync: Callable[[int], None] = committer._sync
        self._waiting: deque[tuple[int, bytes, int]] = deque()

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        self._waiting.append((fd, b"".join(map(bytes, buffers)), offset))

    def sync(self, fd: int) -> None:
        for _ in range(len(self._waiting)):
            item = self._waiting.popleft()
            if item[0] == fd:
                self._write(fd, [item[1]], item[2])
            else:
                self._waiting.append(item)
        self._sync(fd)


@bug
def power_cut_loses_what_is_not_synced() -> None:
    """No bug: the control of the next one."""
    cache = _Cache()
    _replace(committer, _write_all=cache.write, _sync=cache.sync)


@bug
def ack_without_sync() -> None:
    _replace(committer, _write_all=_Cache().write, _sync=lambda fd: None)


def hang_the_disk() -> threading.Event:
    """From now on nothing more of the first ledger reaches the disk, until the event is set."""
    works_again = threading.Event()
    write = committer._write_all
    (first,) = [thread for thread in threading.enumerate() if "dlog-ledger" in thread.name]

    def hang(fd: int, buffers: Any, offset: int) -> None:
        if threading.current_thread() is first:
            works_again.wait()
        write(fd, buffers, offset)

    _replace(committer, _write_all=hang)
    return works_again


def _replace(module: Any, **names: Any) -> None:
    for name, value in names.items():
        assert hasattr(module, name), f"{module.__name__} has no {name} any more"
        setattr(module, name, value)
