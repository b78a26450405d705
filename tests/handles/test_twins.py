"""The sync faces add nothing of their own: what an async handle does about a call that fails, its
twin does. The table says it of the engine that they share; here each face is seen to pass it on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dlog
from dlog.errors import Handle, Retry
from tests.handles.faults import Faults, faulty

VALUES = [b"one", b"two", b"three"]


@pytest.fixture
def faults() -> Faults:
    return Faults(lambda seconds: asyncio.sleep(0))


@pytest.fixture
def client(
    faults: Faults, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[dlog.Client]:
    with dlog.connect(f"memory:twin-{id(request)}") as client:
        inner = client._inner
        real = inner._open_stores

        def open_stores(*, create: bool) -> Any:
            return faulty(real(create=create), faults)

        monkeypatch.setattr(inner, "_open_stores", open_stores)
        yield client


def read_range(client: dlog.Client) -> Callable[[], list[bytes]]:
    (wanted,) = client.admin.plan_ranges("log")
    batches = client.read_range(wanted)
    return lambda: next(batches).values()


def read(client: dlog.Client) -> Callable[[], list[bytes]]:
    reader = client.open_reader("log", read_ahead_bytes=1, read_run_bytes=1)
    return lambda: [each.value for each in reader.read(1)]


def read_a_stream(client: dlog.Client) -> Callable[[], list[bytes]]:
    reader = client.stream("log").open_reader()
    return lambda: [each.message.value for each in reader.read(1)]


@pytest.mark.parametrize("begin", [read_range, read, read_a_stream])
def test_what_reads_to_an_end_raises_once_and_goes_on(
    client: dlog.Client, faults: Faults, begin: Callable[[dlog.Client], Callable[[], list[bytes]]]
) -> None:
    with client.open_writer("log") as log:
        for value in VALUES:
            log.append(value)
            log.rotate()
    faults.begin("ledger.read", lambda: dlog.Unavailable("it is away"), 1)
    step = begin(client)
    came: list[bytes] = []
    told: list[dlog.DlogError] = []
    while len(came) < len(VALUES):
        try:
            came += step()
        except dlog.Unavailable as error:
            told.append(error)
    assert came == VALUES
    assert [(each.handle, each.retry) for each in told] == [(Handle.USABLE, Retry.NOW)]
    client.close()  # before the reader is dropped


def test_a_writer_rotates_behind_it_and_raises_nothing(client: dlog.Client, faults: Faults) -> None:
    with client.open_writer("log") as log:
        log.append(VALUES[0])
        faults.begin("meta.put", lambda: dlog.Timeout("it gave no answer"), 1)
        log.rotate()
        log.append(VALUES[1])
    assert faults.struck == 1


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_segment_is_ended_by_the_second_try(
    client: dlog.Client, faults: Faults, end: str
) -> None:
    client.open_writer("log").close()
    segment = client.admin.open_segment("log", job="j")
    faults.begin("ledgers.delete", lambda: dlog.Unavailable("it is away"), 1)
    with pytest.raises(dlog.Unavailable) as failed:
        getattr(segment, end)()
    assert failed.value.handle is Handle.USABLE
    getattr(segment, end)()
    assert faults.asked["ledgers.delete"] == 2
