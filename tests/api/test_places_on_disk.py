"""Directories that cannot be used: of a newer version, without permission, or none at all."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import dlog
from dlog.wire.crc32c import crc32c
from tests.api.adapter import Api

Newer = Callable[[Path], None]


def database(directory: Path, statement: str, *parameters: object) -> None:
    connection = sqlite3.connect(directory / "meta.db")
    with connection:
        assert connection.execute(statement, parameters).rowcount != 0
    connection.close()


def newer_database(directory: Path) -> None:
    database(directory, "PRAGMA user_version = 99")


def newer_tree(directory: Path) -> None:
    database(directory, "UPDATE node SET value = ? WHERE path = '/dlog/format'", b"99")


def newer_log(directory: Path) -> None:
    connection = sqlite3.connect(directory / "meta.db")
    (raw,) = connection.execute("SELECT value FROM node WHERE path = '/dlog/logs/log'").fetchone()
    connection.close()
    fields = json.loads(raw)
    fields["needs"] = ["time travel"]
    value = json.dumps(fields).encode()
    database(directory, "UPDATE node SET value = ? WHERE path = '/dlog/logs/log'", value)


def newer_ledger(directory: Path) -> None:
    path = directory / "ledgers" / "0000000000.ledger"
    raw = bytearray(path.read_bytes())
    raw[8] = 99  # the version, behind the magic
    raw[60:64] = crc32c(bytes(raw[:60])).to_bytes(4, "little")
    path.write_bytes(raw)


def contents(directory: Path) -> dict[Path, bytes]:
    found = (path for path in directory.rglob("*") if path.suffix in (".ledger", ".db"))
    return {path: path.read_bytes() for path in found}


@pytest.mark.parametrize("newer", [newer_database, newer_tree, newer_log, newer_ledger])
async def test_what_a_newer_version_wrote_is_refused(file_api: Api, newer: Newer) -> None:
    async with file_api.open_writer() as log:
        await log.append(b"x")
    directory = Path(file_api.url.removeprefix("file:"))
    newer(directory)
    before = contents(directory)
    with pytest.raises((dlog.FormatError, dlog.Unsupported)) as caught:
        await file_api.read_all()
    assert caught.value.retry is dlog.Retry.NEVER
    if newer is not newer_ledger:
        with pytest.raises((dlog.FormatError, dlog.Unsupported)):
            await file_api.open_writer()
    assert contents(directory) == before


async def test_a_file_stands_where_a_directory_should(make_api: type[Api], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for place, refused in (("file", dlog.ConfigError), ("file/below", dlog.NotFound)):
        api = make_api(f"file:{tmp_path / place}")
        with pytest.raises(dlog.ConfigError):
            await api.open_writer()
        with pytest.raises(refused):
            await api.open_reader()
    assert (tmp_path / "file").read_text() == "precious"


async def test_a_file_stands_where_the_ledgers_should(file_api: Api, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ledgers").write_text("precious")
    with pytest.raises(dlog.DlogError) as caught:
        await file_api.open_writer()
    assert caught.value.handle is dlog.Handle.USABLE
    assert "ledgers" in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere: needs another user")
async def test_no_permission_to_write(make_api: type[Api], tmp_path: Path) -> None:
    sealed = tmp_path / "sealed"
    sealed.mkdir(mode=0o500)
    for place in (sealed, sealed / "below"):
        with pytest.raises(dlog.AuthError) as caught:
            await make_api(f"file:{place}").open_writer()
        assert str(sealed) in caught.value.path


async def test_garbage_for_a_database(file_api: Api, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.db").write_bytes(b"not a database, but long enough to be one" * 99)
    for ask in (file_api.open_writer, file_api.open_reader):
        with pytest.raises((dlog.FormatError, dlog.Corrupt, dlog.Unsupported)):
            await ask("log")


async def test_a_reader_makes_no_directory(file_api: Api, tmp_path: Path) -> None:
    with pytest.raises(dlog.NotFound):
        await file_api.open_reader()
    async with file_api.connect() as client:
        assert await client.admin.list() == []
    with pytest.raises(dlog.NotFound):
        await file_api.open_writer(create=False)
    assert not (tmp_path / "data").exists()


async def test_a_path_with_strange_characters(make_api: type[Api], tmp_path: Path) -> None:
    directory = tmp_path / "with blank" / "ключ;'\"" / "100%"
    directory.mkdir(parents=True)
    quoted = str(directory).replace("%", "%25")
    api = make_api(f"file:{quoted}")
    async with api.open_writer() as log:
        await log.append(b"x")
    assert await api.values() == [b"x"]
    assert (directory / "meta.db").exists()


async def test_files_under_a_relative_path_stay_there(
    make_api: type[Api], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    api = make_api("file:./data")
    async with api.connect() as client:
        monkeypatch.chdir("/")
        log = await client.open_writer("log")
        await log.append(b"x")
    assert (tmp_path / "data" / "meta.db").exists()
