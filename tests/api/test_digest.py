"""The digest of a log's ledgers is named by its list; a ledger that claims another one is refused,
not believed."""

from __future__ import annotations

import pytest

import dlog
from dlog.aio import connect
from dlog.meta.log_meta import LogMeta
from tests.api.adapter import Api, rest_of


async def change_list(url: str, was: bytes, now: bytes) -> None:
    """Which comes to the same as changing every ledger's own metadata."""
    async with connect(url) as client:
        stores = await client._stores(False)
        path = stores.layout.log("log")
        found = await stores.meta.get(path)
        assert found.value.count(was) == 1
        await stores.meta.put(path, found.value.replace(was, now), found.version)


async def is_closed(url: str) -> bool:
    async with connect(url) as client:
        stores = await client._stores(False)
        found = LogMeta.from_bytes(
            (await stores.meta.get(stores.layout.log("log"))).value, where=""
        )
        return (await stores.ledgers.info(found.segments[-1].ledger_id)).closed is not None


@pytest.mark.parametrize("is_left_open", [False, True])
async def test_a_ledger_that_claims_another_digest_is_refused(
    api: Api, url: str, is_left_open: bool
) -> None:
    """Of closed segments as of one that a takeover has to recover."""
    async with api.connect() as client:
        await client.admin.create("log", digest="hmac")
        described = await client.admin.describe("log")
        assert described.digest == "hmac"
        assert described.options["digest"] == "hmac"
        log = await client.open_writer("log")
        await log.append(b"first")
        if not is_left_open:
            await log.close()
        await change_list(url, b'"digest":"hmac"', b'"digest":"crc32c"')
        async with api.connect() as other:
            with pytest.raises(dlog.AuthError, match="should have the digest crc32c"):
                async with other.open_reader("log") as reader:
                    await rest_of(reader)
            with pytest.raises(dlog.AuthError, match="should have the digest crc32c"):
                await other.admin.tail("log")
            if is_left_open:
                with pytest.raises(dlog.AuthError, match="should have the digest crc32c"):
                    await other.open_writer("log")
                assert not await is_closed(url), "nobody decides an end by what he does not believe"
        await change_list(url, b'"digest":"crc32c"', b'"digest":"hmac"')
        async with api.connect() as other:
            async with other.open_writer("log") as new:
                await new.append(b"second")
            async with other.open_reader("log") as reader:
                found = [message.value for message in await rest_of(reader)]
            assert found == [b"first", b"second"]
            await other.admin.remove("log")
        await log.close()


async def test_a_digest_that_nobody_knows_is_no_log(api: Api, url: str) -> None:
    async with api.connect() as client:
        await client.admin.create("log")
        await change_list(url, b'"digest":"crc32c"', b'"digest":"dummy"')
        with pytest.raises(dlog.FormatError, match="digest is one of"):
            await client.open_writer("log")
        for digest in ("dummy", "none", "", None):
            with pytest.raises(dlog.ConfigError, match="digest is one of"):
                await client.admin.create("another", digest=digest)
