"""Ledger files that no metadata store knows: what they say of themselves, for people who have to
put the metadata back. Changes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dlog.errors import DlogError
from dlog.ledger.embedded.file import FILE_HEADER_BYTES, parse_frame, salt_of
from dlog.wire.batch import Birth, ControlKind, decode

DATA_SUFFIX = ".ledger"
_BEGINNING_BYTES = 4096
_UID = slice(24, 40)  # of the file header


@dataclass(frozen=True, slots=True)
class LeftLedgers:
    """In one directory. `logs`: the uids of the logs they were made for, as far as they say."""

    directory: str
    count: int
    bytes: int
    logs: tuple[str, ...]

    @property
    def told(self) -> str:
        whose = f", of {len(self.logs)} logs" if self.logs else ""
        return f"{self.count} ledgers ({self.bytes} bytes) are in {self.directory}{whose}"

    @property
    def marks(self) -> str:
        return f"{self.count} ledgers, by their marks of logs {', '.join(self.logs) or '?'}"


def left_in(directory: Path) -> LeftLedgers | None:
    """`directory` is that of the ledgers. None where there are none."""
    count, size = 0, 0
    logs: dict[str, None] = {}
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return None
    for name in names:
        stem, suffix = os.path.splitext(name)
        if suffix != DATA_SUFFIX or not stem.isdecimal():
            continue
        try:
            with open(directory / name, "rb") as file:
                size += os.fstat(file.fileno()).st_size
                beginning = file.read(_BEGINNING_BYTES)
        except OSError:
            beginning = b""  # it counts, whatever it says
        count += 1
        log = _log_of(int(stem), beginning)
        if log is not None:
            logs[log] = None
    return LeftLedgers(os.fspath(directory), count, size, tuple(logs)) if count else None


def _log_of(ledger_id: int, beginning: bytes) -> str | None:
    """By its first entry."""
    at = FILE_HEADER_BYTES
    frame = parse_frame(beginning, at, at, ledger_id, salt_of(beginning[_UID]))
    if frame is None or frame.payload_offset + frame.payload_bytes > len(beginning):
        return None
    payload = beginning[frame.payload_offset :][: frame.payload_bytes]
    where = f"ledger {ledger_id} entry 0"
    try:
        entry = decode(payload, where=where)
        if entry.control is not ControlKind.BIRTH:
            return None
        return Birth.from_bytes(entry.control_body, where=where).log_uid
    except DlogError:
        return None
