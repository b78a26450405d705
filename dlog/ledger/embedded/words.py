"""The words file: what the processes around one ledger tell each other through mapped memory.

Each word is eight bytes and is stored in one piece, so a reader sees the old value or the new one.
All begin at zero and zero always means "not yet": whoever comes first may create the file, also the
recoverer of a ledger whose creator died before it made any. Nothing here is ever ahead of the disk:
`confirmed` and `published` name frames that were synced before. A word that went back to an older
value with a crash of the host is therefore only a longer scan.
"""

from __future__ import annotations

import mmap
import os

from dlog.errors import Corrupt
from dlog.ledger.embedded.datafile import reserve
from dlog.nudge import ring

WORDS_BYTES = 64
_MAGIC = int.from_bytes(b"DLOGWRD\x01", "little")

# Indices of the words.
MAGIC, LEDGER_ID, FENCE, PUBLISHED, CONFIRMED, CLOSING, DELETING, SYNC_FAILED = range(8)


class Words:
    """An open, mapped words file. Every accessor is one load or one store."""

    def __init__(self, path: str, ledger_id: int, *, create: bool) -> None:
        """`FileNotFoundError` when there is none and none is to be made."""
        self.path = path
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | (os.O_CREAT if create else 0)
        self._fd = os.open(path, flags, 0o644)
        try:
            # Several may make it at once: growing to the same size twice changes nothing.
            if os.fstat(self._fd).st_size < WORDS_BYTES:
                _grow(self._fd)
            self._map = mmap.mmap(self._fd, WORDS_BYTES)
        except BaseException:
            os.close(self._fd)
            raise
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("q")
        if self._words[MAGIC] == 0:
            self._words[LEDGER_ID] = ledger_id
            self._words[MAGIC] = _MAGIC
        if self._words[MAGIC] != _MAGIC or self._words[LEDGER_ID] != ledger_id:
            self.close()
            raise Corrupt(
                f"{path} holds no words of ledger {ledger_id}",
                path=path,
                offset=0,
                ledger_id=ledger_id,
            )

    @property
    def closed(self) -> bool:
        """This mapping, not the ledger."""
        return self._map.closed

    @property
    def fenced(self) -> bool:
        return self._words[FENCE] != 0

    @property
    def sync_failed(self) -> bool:
        return self._words[SYNC_FAILED] != 0

    @property
    def deleting(self) -> bool:
        return self._words[DELETING] != 0

    @property
    def ending(self) -> bool:
        """Somebody closes, fences or deletes: metadata must be asked. Always set before metadata
        change, so while it is clear the ledger is open."""
        words = self._words
        return words[FENCE] != 0 or words[CLOSING] != 0 or words[DELETING] != 0

    @property
    def published_offset(self) -> int:
        return self._words[PUBLISHED]

    @property
    def confirmed_offset(self) -> int:
        return self._words[CONFIRMED]

    def publish(self, offset: int) -> None:
        self._words[PUBLISHED] = offset
        self.ring()

    def confirm(self, offset: int) -> None:
        self._words[CONFIRMED] = offset

    def mark_sync_failed(self) -> None:
        self._words[SYNC_FAILED] = 1

    def mark_closing(self) -> None:
        self._words[CLOSING] = 1

    def fence(self) -> None:
        """Returns when the fence is on disk."""
        self._words[FENCE] = 1
        self._map.flush()

    def mark_deleting(self) -> None:
        self._words[DELETING] = 1
        self.fence()

    def ring(self) -> None:
        ring(self._fd)

    def close(self) -> None:
        if not self._map.closed:
            self._words.release()
            self._bytes.release()
            self._map.close()
            os.close(self._fd)


def _grow(fd: int) -> None:
    """With its block, not as a hole: a store into a hole on a full disk would kill the process."""
    if not reserve(fd, 0, WORDS_BYTES):
        os.ftruncate(fd, WORDS_BYTES)
