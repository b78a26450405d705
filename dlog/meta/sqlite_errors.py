"""What SQLite says, in our words: each result code becomes a typed error that names the file.

A code that is not in the table is `Broken`: guessing an outcome would be worse. Here is also the
detective work for the one failure that people meet in practice: a frozen process that holds the
write lock.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from dlog.errors import (
    AuthError,
    Broken,
    ConfigError,
    Corrupt,
    DlogError,
    Handle,
    Outcome,
    Retry,
    Unavailable,
)

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_DENIED = {sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_AWAY = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM}

# Where a lock stops others: in the wal-index the writer's byte and that of whoever recovers; in the
# database the byte of whoever makes it, or closes it as the last.
_LOCK_BYTES = (("-shm", 120), ("-shm", 122), ("", 0x40000002))


def primary_code(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)  # absent when the module itself complains
    return None if code is None else code & 0xFF


def busy(error: sqlite3.Error) -> bool:
    return primary_code(error) in _BUSY


def translated(error: sqlite3.Error, database: Path, *, committing: bool = False) -> DlogError:
    """`committing`: the error came out of COMMIT."""
    code, path = primary_code(error), str(database)
    if code in _DAMAGED:
        return Corrupt(f"{path} is not a sound database: {error}", path=path)
    if code in _DENIED:
        return AuthError(f"no permission to write {path}: {error}", path=path)
    if code == sqlite3.SQLITE_CANTOPEN and not os.access(database.parent, os.W_OK):
        return AuthError(f"no permission to write in {database.parent}: {error}", path=path)
    if code == sqlite3.SQLITE_FULL:
        # The frame that makes a transaction count is written last: if the disk was full before
        # it, the transaction is not there, whatever came before.
        return Unavailable(f"no space left for {path}", path=path)
    if code in _AWAY:
        outcome = Outcome.UNKNOWN if committing else Outcome.NOT_HAPPENED
        return Unavailable(f"cannot use {path}: {error}", path=path, outcome=outcome)
    if code in _BUSY:
        return Unavailable(f"{path} is locked: {error}", path=path)
    return Broken(f"unexpected answer from SQLite for {path}: {error!r} (code {code})", path=path)


def denied_or_away(error: OSError, database: Path) -> DlogError:
    """For the files and folders that we make ourselves."""
    path = str(error.filename or database)
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return AuthError(f"no permission to write {path}: {error.strerror}", path=path)
    if isinstance(error, FileExistsError | NotADirectoryError):
        return ConfigError(f"{path} is not a directory", path=path)
    return Unavailable(f"cannot use {path}: {error.strerror}", path=path)


def moved(database: Path) -> DlogError:
    return Unavailable(
        f"{database} was moved or deleted while it was open",
        path=str(database),
        retry=Retry.AFTER_REOPEN,
        handle=Handle.DEAD,
    )


def locked_out(database: Path, waited_ms: float) -> DlogError:
    """We waited for a lock until our time was over; what was asked for never began."""
    pid = lock_holder(database)
    if pid is None:
        who = "a process that cannot be found out here"
    else:
        who = f"process {pid}{' (it is stopped)' if _stopped(pid) else ''}"
    return Unavailable(
        f"waited {waited_ms:.0f} ms for a lock of {database}, held by {who}",
        path=str(database),
        pid=pid,
        elapsed_ms=waited_ms,
    )


def lock_holder(database: Path) -> int | None:
    """The process that stands in the way now, or None when it cannot be found out.

    The file is only looked at, never opened: closing a second descriptor of it would drop every
    lock that other stores in this process hold.
    """
    try:
        with open("/proc/locks") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for suffix, wanted_byte in _LOCK_BYTES:
        try:
            inode = os.stat(f"{database}{suffix}").st_ino
        except OSError:
            continue
        for line in lines:
            pid = _holder_in(line, inode, wanted_byte)
            if pid is not None:
                return pid
    return None


def _holder_in(line: str, inode: int, wanted_byte: int) -> int | None:
    # "7: POSIX  ADVISORY  WRITE 4075 fe:00:9978012 120 120"; a waiter has "->" in its second field.
    # Only the inode is compared: some file systems show another device number here than in stat.
    fields = line.split()
    if len(fields) != 8 or fields[1] != "POSIX" or fields[3] != "WRITE":
        return None
    pid, place, first, last = fields[4:]
    if not place.endswith(f":{inode}") or int(first) > wanted_byte:
        return None
    if last != "EOF" and int(last) < wanted_byte:
        return None
    return int(pid) if int(pid) > 0 else None  # 0: of a process outside our container


def _stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")
