"""A file that is there as a whole or not at all: written under another name, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dlog.chance import SYSTEM_CHANCE
from dlog.cli.failures import USAGE, Told


@contextmanager
def whole_file(path: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """What is written becomes `path` when the block ends well, and goes away when it does not."""
    if path.is_dir():
        raise Told(f"{path} is a directory", USAGE)
    if path.exists() and not replace:
        raise Told(f"{path} is there already; --force replaces it", USAGE)
    part = path.with_name(f".{path.name}.{SYSTEM_CHANCE.token()[:8]}.part")
    try:
        with part.open("xb") as file:
            yield file
            if not file.closed:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
    _sync_directory(path.absolute().parent)


def _sync_directory(directory: Path) -> None:
    """So that the name outlives a crash, as the bytes do."""
    try:
        fd = os.open(directory, os.O_RDONLY)
    except OSError:  # not every system opens directories
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
