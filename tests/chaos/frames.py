"""The frames of a ledger's file, as bytes on disk: what was written, confirmed or not."""

from __future__ import annotations

from pathlib import Path

from dlog.ledger.embedded.file import FILE_HEADER_BYTES, Frame, parse_frame, salt_of

UID_AT, UID_BYTES = 24, 16  # in the file's header


def last_ledger_file(data: Path) -> Path:
    return max((data / "ledgers").glob("*.ledger"))


def frames_of(path: Path) -> list[Frame]:
    raw = path.read_bytes()
    salt = salt_of(raw[UID_AT : UID_AT + UID_BYTES])
    frames: list[Frame] = []
    offset = FILE_HEADER_BYTES
    while (frame := parse_frame(memoryview(raw), offset, offset, int(path.stem), salt)) is not None:
        frames.append(frame)
        offset = frame.end_offset
    return frames
