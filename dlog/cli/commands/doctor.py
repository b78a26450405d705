"""`dlog doctor`: is this place fit for logs, and what is installed? One bad finding makes the exit
code 1. A directory is looked at here, with one scratch file that is removed; a cluster looks at
itself (`client.admin.examine()`)."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import sqlite3
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

import dlog
from dlog import uri
from dlog.cli import draw
from dlog.cli.commands.bench import percentile_ms
from dlog.cli.failures import FAILED, OK
from dlog.cli.lost import unlisted_told
from dlog.cli.moments import size_text
from dlog.cli.mounts import VOLATILE, mount_of
from dlog.cli.plain import print_json
from dlog.cli.shared import Settings, common_options, output_option
from dlog.errors import DlogError
from dlog.findings import Finding, State

FINE, NOTE, WARNING, BAD = State.FINE, State.NOTE, State.WARNING, State.BAD

FREE_BYTES_LOW = 1 << 30
SYNC_BYTES = 4096
SYNC_ROUNDS = 64
SYNC_LIMIT_S = 2.0
SYNC_SLOW_MS = 50.0

OPTIONAL = {
    "fastcrc": "fast CRC32C",
    "google-crc32c": "fast CRC32C",
    "numpy": "fast encoding of many messages",
    "pyarrow": "batches().to_arrow()",
    "kazoo": "zk: URLs",
    "lz4": "codec lz4",
    "zstandard": "codec zstd",
    "rich": "tables on a terminal",
    "structlog": "coloured diagnostics",
}


@click.command("doctor")
@output_option
@common_options
def command(settings: Settings, output: str) -> int:
    """Check the place the logs live in and what is installed.

    A network file system is bad: the embedded backend is for local ones only. Of a cluster, every
    server and bookie is asked, and it is said what is open to anybody. The exit code is 1 if
    anything is bad. With -o json, one object a line.
    """
    findings = list(_findings(settings))
    if output == "json":
        for each in findings:
            print_json(each)
    else:
        columns = (draw.Column("CHECK"), draw.Column("STATE"), draw.Column("FOUND"))
        draw.table(columns, [(each.check, each.state, each.told) for each in findings])
    return FAILED if any(each.state == BAD for each in findings) else OK


def _findings(settings: Settings) -> Iterator[Finding]:
    url = uri.resolve(settings.url)
    source = "--url" if settings.url is not None else "default"
    if settings.url is None and os.environ.get(uri.ENV_URL):
        source = uri.ENV_URL
    yield Finding("url", FINE, f"{url} (from {source})")
    if url.scheme == "file":
        yield Finding("backend", FINE, "embedded: segment files and SQLite, local disks only")
        yield from _place(Path(url.place))
        yield _opens(settings)
    elif url.scheme == "zk":
        yield Finding("backend", FINE, "logs on BookKeeper and ZooKeeper")
        yield from _cluster(settings)
    else:
        yield Finding("backend", WARNING, f"{url.scheme}: lives and dies with its process")
        yield _opens(settings)
    yield from _installed()


def _cluster(settings: Settings) -> Iterator[Finding]:
    try:
        with settings.connect(quiet=True) as client:
            yield from client.admin.examine()
    except DlogError as error:  # a file that is no certificate, a secret that is not there
        yield Finding("opens", BAD, f"{type(error).__name__}: {error.message}")


def _place(directory: Path) -> Iterator[Finding]:
    there = _nearest(directory)
    yield _file_system(directory, there)
    yield _permission(directory, there)
    free = shutil.disk_usage(there).free
    low = free < FREE_BYTES_LOW
    yield Finding("free space", WARNING if low else FINE, f"{size_text(free)} at {there}")
    yield _sync_latency(there)


def _nearest(directory: Path) -> Path:
    """The directory itself, or the closest one above it that exists."""
    return next(each for each in (directory, *directory.parents) if each.is_dir())


def _file_system(directory: Path, there: Path) -> Finding:
    mount = mount_of(there)
    if mount is None:
        return Finding(
            "file system", NOTE, f"this system does not say what {there} is; it must be local"
        )
    told = f"{mount.kind} at {mount.point}"
    if mount.is_network:
        return Finding(
            "file system", BAD, f"{told}: a network file system; logs here can lose messages"
        )
    if mount.is_network is None:
        return Finding("file system", WARNING, f"{told}: unknown to this program; it must be local")
    if mount.kind in VOLATILE:
        return Finding("file system", WARNING, f"{told}: in memory, gone at the next boot")
    return Finding("file system", FINE, f"{told}, local")


def _permission(directory: Path, there: Path) -> Finding:
    if directory.exists() and not directory.is_dir():
        return Finding("permission", BAD, f"{directory} is there and is no directory")
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        return Finding("permission", BAD, f"this user cannot read and write {there}")
    if there != directory:
        return Finding("permission", FINE, f"{directory} is not there yet and can be made")
    found = directory.stat()
    mode = stat.S_IMODE(found.st_mode)
    told = f"{directory}: mode {mode:04o}, owner {found.st_uid}"
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return Finding("permission", BAD, f"{told}: anybody may change or remove these logs")
    if mode & stat.S_IROTH:
        return Finding("permission", NOTE, f"{told}: anybody on this machine may read these logs")
    return Finding("permission", FINE, told)


def _sync_latency(there: Path) -> Finding:
    """What one acknowledged append costs at least: a small write and fdatasync."""
    block = b"\0" * SYNC_BYTES
    each_s: list[float] = []
    until = time.perf_counter() + SYNC_LIMIT_S
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            while len(each_s) < SYNC_ROUNDS and (now := time.perf_counter()) < until:
                os.write(file.fileno(), block)
                _datasync(file.fileno())
                each_s.append(time.perf_counter() - now)
    except OSError as error:
        return Finding("write and sync", BAD, f"{there}: {error.strerror or error}")
    p50, p99 = percentile_ms(each_s, 0.50), percentile_ms(each_s, 0.99)
    if p50 is None or p99 is None:
        return Finding("write and sync", BAD, f"{there}: no write within {SYNC_LIMIT_S:.0f} s")
    told = f"4 KiB: p50 {p50:.3f} ms, p99 {p99:.3f} ms over {len(each_s)} rounds"
    return Finding("write and sync", WARNING if p50 > SYNC_SLOW_MS else FINE, told)


def _datasync(descriptor: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:  # macOS, Windows
        os.fsync(descriptor)


def _opens(settings: Settings) -> Finding:
    try:
        with settings.connect() as client:
            count = len(client.admin.list())
            lost = unlisted_told(client)
    except DlogError as error:
        return Finding("opens", BAD, f"{type(error).__name__}: {error.message}")
    if lost is not None:
        return Finding("opens", BAD, f"{count} logs; {lost}")
    return Finding("opens", FINE, f"{count} logs")


def _installed() -> Iterator[Finding]:
    yield Finding("dlog", FINE, dlog.__version__)
    told = f"{platform.python_implementation()} {platform.python_version()} on {sys.platform}"
    yield Finding("python", FINE, told)
    yield Finding("sqlite", FINE, sqlite3.sqlite_version)
    yield Finding("crc32c", *_crc32c())
    for name, purpose in OPTIONAL.items():
        version = None
        with suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(name)
        yield Finding(name, FINE if version else NOTE, f"{version or 'not installed'} ({purpose})")


def _crc32c() -> tuple[State, str]:
    from dlog.wire.crc32c import IMPLEMENTATION

    if IMPLEMENTATION != "crcmod":
        return FINE, IMPLEMENTATION
    try:
        importlib.import_module("crcmod._crcfunext")
    except ImportError:
        return WARNING, "crcmod without its C extension: about 20 MB/s; install dlog[fast]"
    return NOTE, "crcmod; dlog[fast] is faster"
