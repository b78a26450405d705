"""Writers, readers and logs go by the document that their client follows, while they are open."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import dlog
from dlog import trace
from dlog.client import Client, connect
from dlog.errors import BufferFull, ConfigError
from dlog.options import LogOptions
from tests.api.waiting import eventually

LONG_MS = 3_600_000


async def set_and_wait(client: Client, part: str, **values: Any) -> int:
    found = await client.config("prod").set(part, values)
    followed = client.followed_config
    assert followed is not None
    await followed.wait_for(found.version, timeout=20)
    return found.version


@pytest.fixture
def levels() -> Iterator[None]:
    logger = logging.getLogger("dlog.writer")
    before = logger.level
    yield
    logger.setLevel(before)


async def test_a_writer_takes_new_options_while_it_is_open(url: str) -> None:
    """CL-01: fetch and re-init the handle, which stays the same one: same epoch, no message
    lost."""
    async with connect(url) as client:
        await client.config("prod").set("writer", {"linger_ms": 1})
        await client.follow_config("prod", poll_ms=LONG_MS)
        async with client.open_writer("orders") as log:
            assert log.options.linger_ms == 1
            epoch = log.epoch
            sent = [await log.append(b"%d" % n) for n in range(3)]
            await set_and_wait(
                client, "writer", linger_ms=0, window_entries=3, entry_bytes=64, window_bytes=4096
            )
            assert (log.options.linger_ms, log.options.window_entries) == (0, 3)
            ids = await log.append_many([b"x" * 40] * 20)
            assert len({(each.ledger_id, each.entry_id) for each in ids}) == 20  # one an entry
            assert log.epoch == epoch
        async with client.open_reader("orders") as reader:
            assert [m.id for m in await reader.read(3)] == sent
            assert len(await reader.read(100)) == 20


async def test_what_the_program_gave_itself_stays_unless_it_is_forced(memory_url: str) -> None:
    async with connect(memory_url, config="prod") as client:
        async with client.open_writer("orders", linger_ms=7) as log:
            await set_and_wait(client, "writer", linger_ms=1, window_entries=9)
            assert (log.options.linger_ms, log.options.window_entries) == (7, 9)
            await set_and_wait(client, "writer", force=["linger_ms"])
            assert log.options.linger_ms == 1
            found = await client.config("prod").set("writer", unset=["force", "window_entries"])
            assert client.followed_config is not None
            await client.followed_config.wait_for(found.version, timeout=20)
            assert (log.options.linger_ms, log.options.window_entries) == (7, 2000)


async def test_a_lingering_message_goes_when_lingering_ends(memory_url: str) -> None:
    async with connect(memory_url, config="prod") as client:
        await client.config("prod").set("writer", {"linger_ms": 60_000})
        async with client.open_writer("orders") as log:
            ticket = await log.submit(b"alone")
            await eventually(lambda: log.why() is not None)
            await set_and_wait(client, "writer", linger_ms=0)
            await ticket


async def _fill(log: Any) -> None:
    for _ in range(1000):
        await log.submit(b"x" * 200)


async def test_a_larger_window_wakes_who_waits_for_room(memory_url: str) -> None:
    """And a policy for a full one holds from the next message on."""
    async with connect(memory_url, config="prod") as client:
        await client.config("prod").set(
            "writer", {"window_bytes": 1024, "entry_bytes": 256, "linger_ms": 60_000}
        )
        async with client.open_writer("orders") as log:
            await set_and_wait(client, "writer", on_full="raise")
            with pytest.raises(BufferFull):
                await _fill(log)
            await set_and_wait(client, "writer", window_bytes=1 << 20, linger_ms=0)
            for _ in range(50):
                await log.submit(b"x" * 200)
            await log.flush()


async def test_a_reader_takes_new_options_while_it_reads(url: str) -> None:
    async with connect(url) as client:
        async with client.open_writer("orders", entry_bytes=1000) as log:
            await log.append_many([b"x" * 900 for _ in range(60)])
        await client.config("prod").set(
            "reader", {"read_ahead_bytes": 1000, "read_run_bytes": 1000}
        )
        await client.follow_config("prod", poll_ms=LONG_MS)
        async with client.open_reader("orders") as reader, client.open_reader("orders") as fixed:
            assert reader.options.read_ahead_bytes == 1000
            await eventually(lambda: reader._feed.is_full)
            ahead = reader._feed.ahead_bytes
            assert ahead < 5000
            await set_and_wait(client, "reader", read_ahead_bytes=1 << 20)
            await eventually(lambda: reader._feed.ahead_bytes > 50_000)
            await fixed.seek(10)
            assert fixed.options.read_ahead_bytes == 1 << 20
            assert len(await reader.read(100)) == 60


async def test_sections_of_some_logs(memory_url: str) -> None:
    async with connect(memory_url, config="prod") as client:
        async with client.open_writer("orders-1") as one, client.open_writer("clicks") as other:
            await set_and_wait(client, "writer", logs=[{"pattern": "orders-*", "linger_ms": 3}])
            assert (one.options.linger_ms, other.options.linger_ms) == (3, 0)


async def test_rotation_limits_hold_at_once_and_are_told_to_the_list(url: str) -> None:
    """A log's own options: its writer goes by them from now on, and changes the log meta by
    compare-and-set, for whoever comes next."""
    async with connect(url, config="prod") as client:
        async with client.open_writer("orders") as log:
            await log.append(b"x" * 3000)
            await set_and_wait(client, "log", segment_bytes=4096, retention_age_s=3600)
            assert log.log_options.segment_bytes == 4096
            await log.append(b"x" * 3000)
            await log.append(b"x" * 3000)
            await eventually(lambda: log._engine.rotations > 0)
            await eventually(lambda: log._engine.core.options_wanted is None)
            told = await client.admin.describe("orders")
            assert told.options["segment_bytes"] == 4096
            assert told.options["retention_age_s"] == 3600
            assert log._engine.core.epoch == told.epoch
        async with connect(url) as stranger, stranger.open_writer("orders") as log:
            assert log.log_options.segment_bytes == 4096
            ids = await log.append_many([b"x" * 3000 for _ in range(4)])
            assert len(ids) == 4


async def test_what_a_log_was_made_with_stays(memory_url: str) -> None:
    async with connect(memory_url, config="prod") as client:
        made = LogOptions(ack_quorum=1, unsafe_single_copy=True, ensemble=1, write_quorum=1)
        async with client.open_writer("orders", create=made) as log:
            await set_and_wait(client, "log", segment_age_s=60)
            await eventually(lambda: log._engine.core.options_wanted is None)
            told = (await client.admin.describe("orders")).options
            assert (told["ack_quorum"], told["ensemble"], told["segment_age_s"]) == (1, 1, 60)


async def test_the_same_options_again_change_no_log_meta(memory_url: str) -> None:
    """DL-25: a followed document costs its writer a compare-and-set only where the log's options
    differ."""
    async with connect(memory_url, config="prod") as client:
        async with client.open_writer("orders") as log:
            await set_and_wait(client, "log", segment_age_s=60)
            await eventually(lambda: log._engine.core.options_wanted is None)
            seen = log._engine.core.seen.version
            await set_and_wait(client, "writer", linger_ms=1)
            await set_and_wait(client, "log", retention_age_s=None)
            await log.append(b"x")
            assert log._engine.core.seen.version == seen


async def test_new_options_of_a_log_are_told_after_an_outage(memory_url: str) -> None:
    """What is in force for the writer is at once; the list is told when it can be."""
    async with connect(memory_url, config="prod") as client:
        async with client.open_writer("orders") as log:
            core = log._engine.core
            stores = await client._stores(False)
            put, refused = stores.meta.put, 0

            async def refusing(path: str, value: bytes, version: int) -> int:
                nonlocal refused
                if path == core.identity.path and refused < 3:
                    refused += 1
                    raise dlog.Unavailable("away", retry=dlog.Retry.NEVER)
                return await put(path, value, version)

            log._engine._driver.meta = _with_put(stores.meta, refusing)
            await set_and_wait(client, "log", segment_age_s=60)
            assert log.log_options.segment_age_s == 60
            assert core.seen.meta.options.segment_age_s != 60
            await eventually(lambda: core.seen.meta.options.segment_age_s == 60)
            assert refused == 3


def _with_put(meta: Any, put: Any) -> Any:
    class Meta:
        def __getattr__(self, name: str) -> Any:
            return put if name == "put" else getattr(meta, name)

    return Meta()


async def test_a_refused_document_changes_no_handle(memory_url: str) -> None:
    """All or nothing over real handles: a part that is right does not count without the others."""
    async with connect(memory_url, config="prod") as client:
        async with client.open_writer("orders") as log:
            await set_and_wait(client, "writer", linger_ms=1)
            stores = await client._stores(False)
            path = stores.layout.config("prod")
            value, version = await stores.meta.get(path)
            wrong = (
                value.replace(b'"linger_ms":1', b'"linger_ms":2')
                .replace(b'"content":{', b'"content":{"log":{"ensemble":5},')
                .replace(b'"version":1', b'"version":2')
            )
            await stores.meta.put(path, wrong, version)
            followed = client.followed_config
            assert followed is not None
            await eventually(lambda: followed.why() is not None)
            status = followed.status()
            assert (status.version, status.refused_version, status.refused_part) == (1, 2, "log")
            assert "log.ensemble cannot change" in str(status.reason)
            assert log.options.linger_ms == 1


async def test_nobody_can_write_what_followers_would_refuse(memory_url: str) -> None:
    async with connect(memory_url) as client:
        with pytest.raises(ConfigError, match=r"log\.digest cannot change"):
            await client.config("prod").set("log", {"digest": "hmac"})
        with pytest.raises(ConfigError, match="nobody here knows"):
            await client.config("prod").replace({"mine": {}})
        assert (await client.config("prod").get()).version == 0


async def test_a_handle_opened_later_begins_with_what_is_in_force(memory_url: str) -> None:
    async with connect(memory_url, config="prod") as client:
        await client.config("prod").set("writer", {"linger_ms": 4})
        async with client.open_standby("orders") as standby:
            log = await standby.take_over()
            assert log.options.linger_ms == 4
            await set_and_wait(client, "writer", linger_ms=5)
            assert log.options.linger_ms == 5


async def test_a_client_without_a_document_is_as_ever(memory_url: str) -> None:
    async with connect(memory_url) as client:
        assert client.followed_config is None
        async with client.open_writer("orders") as log:
            assert log.options.linger_ms == 0
        await client.follow_config("prod")
        with pytest.raises(ConfigError, match="follows 'prod' already"):
            await client.follow_config("other")


async def test_levels_of_loggers_change_and_come_back(memory_url: str, levels: None) -> None:
    logger = logging.getLogger("dlog.writer")
    before = logger.level
    async with connect(memory_url) as client:
        await client.config("prod").set("client", {"log_levels": {"dlog.writer": "ERROR"}})
        await client.follow_config("prod", poll_ms=LONG_MS)
        assert logger.level == logging.ERROR
        await set_and_wait(client, "client", log_levels={})
        assert logger.level == before
        await set_and_wait(client, "client", log_levels={"dlog.writer": "DEBUG"})
        assert logger.level == logging.DEBUG
    assert logger.level == before


async def test_a_writer_that_is_over_is_left_alone(memory_url: str) -> None:
    async with connect(memory_url, config="prod") as client, connect(memory_url) as rival:
        log = await client.open_writer("orders")
        async with rival.open_writer("orders"):
            with pytest.raises(dlog.Fenced):
                await log.append(b"late")
            await set_and_wait(client, "writer", linger_ms=5)
            assert log.options.linger_ms == 0
        closed = await client.open_writer("clicks")
        await closed.close()
        await set_and_wait(client, "writer", linger_ms=6)
        await log.close()


async def test_every_step_of_it_is_announced(memory_url: str) -> None:
    reached: set[str] = set()
    trace.listen(lambda point, side: reached.add(point))
    try:
        async with connect(memory_url, config="prod") as client:
            async with client.open_writer("orders") as log:
                for age_s in range(1, 36):
                    await client.config("prod").set("log", {"segment_age_s": 600 + age_s})
                core = log._engine.core
                await eventually(lambda: core.seen.meta.options.segment_age_s == 635)
    finally:
        trace.listen(None)
    assert trace.CONFIG_POINTS <= reached


async def test_how_often_a_client_looks_is_its_own_to_say(memory_url: str) -> None:
    """And one that said it wrong follows nothing yet."""
    async with connect(memory_url) as client:
        async with client.open_writer("orders"):
            with pytest.raises(ConfigError, match="poll_ms"):
                await client.follow_config("prod", poll_ms=1)
            assert client.followed_config is None
            followed = await client.follow_config("other", poll_ms=60_000)
            assert await client.follow_config("other", poll_ms=60_000) is followed


async def test_each_change_says_who_made_it_and_why(memory_url: str) -> None:
    async with connect(memory_url) as client:
        prod = client.config("prod")
        ana = "ana@host:1"
        made = [
            await prod.set("writer", {"linger_ms": 4}, note="set it", who=ana),
            await prod.replace({"writer": {"linger_ms": 5}}, note="replaced it", who=ana),
            await prod.rollback(1, note="back again", who=ana),
        ]
    assert [each.note for each in made] == ["set it", "replaced it", "back again"]
    assert {each.who for each in made} == {ana}
    assert [each.version for each in made] == [1, 2, 3]
