"""The database file: formats, damage, permissions, full disks, and a file that is moved away."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path

import pytest

from dlog.errors import (
    ConfigError,
    Corrupt,
    FormatError,
    Handle,
    Outcome,
    Unavailable,
)
from dlog.meta.sqlite_file import APPLICATION_ID, FORMAT, WAL_BYTES_KEPT, DatabaseFile
from tests.unit.meta.conftest import OpenStore, StartChild


async def make(open_store: OpenStore, count: int = 1) -> Path:
    store = open_store()
    for index in range(count):
        await store.create(f"/a{index}", b"x" * 2000)
    await store.close()
    return store.path


def alter(path: Path, sql: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(sql)
    connection.commit()
    connection.close()


def place(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def damage(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))


def names_in(directory: Path) -> list[str]:
    return sorted(os.listdir(directory)) if os.path.exists(directory) else []


async def test_a_new_store_says_whose_it_is_and_syncs_its_log(open_store: OpenStore) -> None:
    path = await make(open_store)
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    finally:
        connection.close()


async def test_directories_are_made(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(tmp_path / "a" / "b" / "c")
    await store.create("/a", b"")
    assert "meta.db" in names_in(tmp_path / "a" / "b" / "c")


async def test_a_store_without_ephemeral_nodes_makes_no_session_files(
    open_store: OpenStore, directory: Path
) -> None:
    store = open_store()
    await store.session()
    await store.create("/a", b"")
    assert names_in(directory) == ["meta.db", "meta.db-shm", "meta.db-wal"]


async def test_nothing_happens_before_the_first_call(
    open_store: OpenStore, directory: Path
) -> None:
    open_store()
    assert names_in(directory.parent) == []


async def test_a_newer_format_is_refused_and_nothing_is_changed(open_store: OpenStore) -> None:
    path = await make(open_store)
    alter(path, f"PRAGMA user_version = {FORMAT + 41}")
    before = path.read_bytes()
    store = open_store()
    with pytest.raises(FormatError) as caught:
        await store.get("/a0")
    assert str(path) in caught.value.message
    assert f"format {FORMAT + 41}" in caught.value.message
    assert f"format {FORMAT}" in caught.value.message.replace(str(FORMAT + 41), "")
    assert caught.value.path == str(path)
    with pytest.raises(FormatError):
        await store.create("/b", b"")
    await store.close()
    assert path.read_bytes() == before
    assert names_in(path.parent) == ["meta.db"]


async def test_a_database_of_another_program_is_refused(
    open_store: OpenStore, directory: Path
) -> None:
    place(directory / "meta.db", b"")
    alter(directory / "meta.db", "CREATE TABLE theirs (a)")
    before = (directory / "meta.db").read_bytes()
    store = open_store()
    with pytest.raises(FormatError, match="another program"):
        await store.open()
    await store.close()
    assert (directory / "meta.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"hello", b"no database at all " * 500], ids=len)
async def test_a_file_that_is_no_database_is_corrupt(
    open_store: OpenStore, directory: Path, content: bytes
) -> None:
    place(directory / "meta.db", content)
    store = open_store()
    with pytest.raises(Corrupt) as caught:
        await store.get("/a")
    assert str(directory / "meta.db") in caught.value.message
    await store.close()
    assert (directory / "meta.db").read_bytes() == content


async def test_damaged_pages_are_corrupt_and_name_the_file(open_store: OpenStore) -> None:
    path = await make(open_store, 50)
    damage(path)
    store = open_store()
    with pytest.raises(Corrupt) as caught:
        await store.children("/")
    assert caught.value.path == str(path)


async def test_a_store_heals_when_the_trouble_goes_away(
    open_store: OpenStore, directory: Path
) -> None:
    place(directory / "meta.db", b"no database at all " * 500)
    store = open_store()
    with pytest.raises(Corrupt):
        await store.get("/")
    (directory / "meta.db").unlink()
    assert (await store.get("/")).value == b""


async def test_a_path_that_is_a_file_is_a_mistake_of_the_caller(
    open_store: OpenStore, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for where in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="not a directory"):
            await open_store(where).open()


@pytest.mark.parametrize("existing", [False, True])
async def test_without_permission_the_error_names_the_path(
    start_child: StartChild, open_store: OpenStore, existing: bool
) -> None:
    """The child gives up root's rights, if it has them, once it has everything imported."""
    where = Path(tempfile.mkdtemp(prefix="dlog-test-"))  # tmp_path is closed to others
    try:
        if existing:
            store = open_store(where)
            await store.create("/a", b"")
            await store.close()
            os.chmod(where / "meta.db", 0o444)
        os.chmod(where, 0o555)
        out, _ = await asyncio.to_thread(start_child("open_as_nobody", where=where).communicate)
        kind, outcome, message = out.split(maxsplit=2)
        assert kind == "AuthError", out
        assert outcome == Outcome.NOT_HAPPENED.value
        assert str(where) in message
    finally:
        os.chmod(where, 0o755)
        shutil.rmtree(where)


async def test_a_file_moved_away_under_an_open_store_takes_no_writes(
    open_store: OpenStore, directory: Path
) -> None:
    store = open_store()
    version = (await store.create("/a", b"")).version
    (directory / "meta.db").rename(directory / "moved.db")
    with pytest.raises(Unavailable, match="moved or deleted") as caught:
        await store.put("/a", b"1", version)
    assert caught.value.handle is Handle.DEAD
    (directory / "meta.db").write_bytes(b"")
    with pytest.raises(Unavailable, match="moved or deleted"):
        await store.put("/a", b"1", version)


def mounts_are_ours_to_make() -> bool:
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/tmp"]
    try:
        return subprocess.run(probe, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(
    not mounts_are_ours_to_make(), reason="a full disk needs the right to mount a small one"
)
async def test_a_full_disk_is_a_certain_no(start_child: StartChild, directory: Path) -> None:
    place(directory / "elsewhere", b"")
    child = start_child("fill_the_disk", before=["unshare", "--mount"])
    out, _ = await asyncio.to_thread(child.communicate)
    *refusals, kept = out.splitlines()
    assert kept.startswith("kept "), out
    assert refusals, "the disk was too large for this test"
    assert set(refusals) == {f"Unavailable not_happened {directory / 'meta.db'}"}


class Patient:
    """Waits for no lock: nobody else is there."""

    def pause(self, attempt: int) -> None:
        raise AssertionError("somebody holds a lock")

    def enter(self) -> None:
        pass


def settings_of_writes(path: Path) -> dict[str, object]:
    """As the connection has them that a transaction is made with."""
    file = DatabaseFile(path)
    file.open(Patient())
    try:
        return file.write(
            Patient(),
            lambda connection: {
                name: connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("synchronous", "journal_mode", "journal_size_limit", "fullfsync")
            },
        )
    finally:
        file.close()


@pytest.mark.parametrize("opening", ["first", "second"])
def test_every_commit_is_synced_to_disk(tmp_path: Path, opening: str) -> None:
    """By the connection that made the database as by one that found it: a synchronous setting of
    NORMAL would lose acknowledged commits with the machine's power, in WAL mode without a trace."""
    path = tmp_path / "meta.db"
    told = settings_of_writes(path)
    if opening == "second":
        told = settings_of_writes(path)
    assert told["synchronous"] == 2  # FULL
    assert told["journal_mode"] == "wal"


def test_the_log_of_a_burst_does_not_stay_large(tmp_path: Path) -> None:
    """Once it has been written into the database, up to its limit of 8 MiB."""
    file = DatabaseFile(tmp_path / "meta.db")
    file.open(Patient())
    log = tmp_path / "meta.db-wal"

    def put(name: str, size: int) -> None:
        file.write(
            Patient(),
            lambda c: c.execute(
                "INSERT OR REPLACE INTO node VALUES (?, '/', 1, NULL, zeroblob(?))", (name, size)
            ),
        )

    put("/large", 12 << 20)
    assert log.stat().st_size > 12 << 20
    for step in range(3):  # the log begins again behind a checkpoint, and is cut then
        put(f"/small{step}", 10)
    assert WAL_BYTES_KEPT // 2 < log.stat().st_size <= WAL_BYTES_KEPT
    file.close()


def test_directories_are_made_durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new directory is an entry in its parent, which is synced behind it."""
    synced: list[tuple[str, bool]] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        where = os.readlink(f"/proc/self/fd/{fd}")
        synced.append((where, (tmp_path / "a" / "b").is_dir()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    descriptors = len(os.listdir("/proc/self/fd"))
    file = DatabaseFile(tmp_path / "a" / "b" / "meta.db")
    file.open(Patient())
    file.close()
    assert synced == [(str(tmp_path), False), (str(tmp_path / "a"), True)]
    assert len(os.listdir("/proc/self/fd")) == descriptors
    synced.clear()
    file.open(Patient())
    file.close()
    assert synced == []
