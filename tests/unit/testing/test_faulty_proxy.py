"""The proxy does the harm it promises, and only that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dlog.errors import ConfigError
from dlog.testing.faulty_proxy import LOOPBACK, FaultyProxy

End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def proxy() -> AsyncIterator[FaultyProxy]:
    """In front of a server that says everything back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(echo, LOOPBACK, 0)
    async with FaultyProxy(server.sockets[0].getsockname()[1]) as between:
        yield between
    server.close()


async def _connect(proxy: FaultyProxy) -> End:
    return await asyncio.open_connection(LOOPBACK, proxy.port)


async def _says_back(end: End, text: bytes) -> bool:
    reader, writer = end
    writer.write(text)
    async with asyncio.timeout(5):
        return await reader.readexactly(len(text)) == text


async def _is_reset(end: End) -> bool:
    try:
        async with asyncio.timeout(5):
            await end[0].read(1)
    except ConnectionResetError:
        return True
    return False  # a polite end, or bytes


async def test_it_passes_everything(proxy: FaultyProxy) -> None:
    end = await _connect(proxy)
    assert await _says_back(end, bytes(range(256)) * 1000)
    assert proxy.to_server.bytes_passed == proxy.to_client.bytes_passed == 256_000
    end[1].close()


async def test_a_cut_is_a_reset_and_new_connections_work(proxy: FaultyProxy) -> None:
    first = await _connect(proxy)
    assert await _says_back(first, b"x")
    proxy.cut()
    assert await _is_reset(first)
    second = await _connect(proxy)
    assert await _says_back(second, b"y")
    assert proxy.connections_made == 2
    for end in (first, second):
        end[1].close()


async def test_what_is_held_comes_late_or_never(proxy: FaultyProxy) -> None:
    end = await _connect(proxy)
    assert await _says_back(end, b"1")
    proxy.to_client.hold()
    end[1].write(b"22")
    async with asyncio.timeout(5):
        await proxy.to_client.wait_bytes_seen(2)
    assert proxy.to_client.bytes_passed == 1
    proxy.to_client.release()
    async with asyncio.timeout(5):
        assert await end[0].readexactly(2) == b"22"
    proxy.to_server.hold()
    end[1].write(b"333")
    async with asyncio.timeout(5):
        await proxy.to_server.wait_bytes_seen(5)
    proxy.cut()
    proxy.heal()
    assert await _is_reset(end)
    assert proxy.to_server.bytes_passed == 3
    end[1].close()


async def test_slices_and_delays_lose_nothing(proxy: FaultyProxy) -> None:
    proxy.to_client.slice_bytes = 1
    proxy.to_server.delay_s = 0.001
    end = await _connect(proxy)
    assert await _says_back(end, b"abc" * 100)
    end[1].close()


async def test_each_frame_comes_twice(proxy: FaultyProxy) -> None:
    proxy.to_client.doubles_frames = True
    proxy.to_server.slice_bytes = 5  # so that frames come in pieces
    end = await _connect(proxy)
    frames = [len(body).to_bytes(4, "big") + body for body in (b"", b"x", bytes(100))]
    end[1].write(b"".join(frames))
    wanted = b"".join(2 * frame for frame in frames)
    async with asyncio.timeout(5):
        assert await end[0].readexactly(len(wanted)) == wanted
    proxy.heal()
    later = await _connect(proxy)
    assert await _says_back(later, b"".join(frames))
    for each in (end, later):
        each[1].close()


async def test_its_end_is_no_error(proxy: FaultyProxy, caplog: pytest.LogCaptureFixture) -> None:
    async with FaultyProxy(proxy.server_port) as ending:
        end = await _connect(ending)
        assert await _says_back(end, b"x")
        ending.to_client.hold()
        end[1].write(b"y")
    assert await _is_reset(end)
    assert not caplog.records
    end[1].close()


async def test_it_refuses_and_accepts_again(proxy: FaultyProxy) -> None:
    proxy.refuse()
    refused = await _connect(proxy)
    assert await _is_reset(refused)
    proxy.accept()
    welcome = await _connect(proxy)
    assert await _says_back(welcome, b"z")
    for end in (refused, welcome):
        end[1].close()


@pytest.mark.parametrize(("what", "value"), [("slice_bytes", -1), ("slice_bytes", 0)])
async def test_a_slice_that_would_lose_everything_is_refused(what: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{what}={value}"):
        setattr(FaultyProxy(1).to_client, what, value)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
async def test_a_delay_that_cannot_be_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="delay_s="):
        FaultyProxy(1).to_server.delay_s = seconds


async def test_a_proxy_that_was_not_started_has_no_address() -> None:
    with pytest.raises(ConfigError, match="start the proxy first"):
        _ = FaultyProxy(1).address


async def test_a_server_that_is_away_is_a_reset() -> None:
    gone = await asyncio.start_server(lambda reader, writer: None, LOOPBACK, 0)
    port = gone.sockets[0].getsockname()[1]
    gone.close()
    await gone.wait_closed()
    async with FaultyProxy(port) as proxy:
        end = await _connect(proxy)
        assert await _is_reset(end)
        end[1].close()
