"""The appender as a whole, among bookies that live in the test and metadata in memory: what its
callers rely on, and that nothing of it is left over."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from dlog import trace
from dlog.errors import Broken, ConfigError, Fenced, ForkedHandle, Outcome, TooLarge, WriterClosed
from dlog.ledger.bookkeeper.core.changes import marked
from dlog.ledger.bookkeeper.ledger_nodes import LedgerNodes
from dlog.ledger.store import ClosedLedger
from dlog.limits import ADD_RUN_BYTES_MAX, LEDGER_ENTRY_BYTES_MAX
from dlog.meta.memory import MemoryTree
from dlog.wire.bookie_codes import Answer
from dlog.wire.ledger_metadata import LedgerState
from tests.unit.ledger.bookkeeper.appender_tools import (
    TestLink,
    TestLinks,
    Whole,
    entries_of,
    until,
    whole,
)
from tests.unit.ledger.bookkeeper.meddling import Meddling


@pytest.fixture
async def meta() -> AsyncIterator[Meddling]:
    meta = Meddling(MemoryTree())
    before = asyncio.all_tasks()
    trouble: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: trouble.append(about))
    yield meta
    assert not trouble, "no callback raises"
    await meta.close()
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, "an appender that ended has no tasks"


@pytest.fixture
def nodes(meta: Meddling) -> LedgerNodes:
    return LedgerNodes(meta)


async def ended(made: Whole) -> None:
    made.appender.abandon()
    await made.appender.wait_ended()


# --- Entries on the wire


async def test_entries_of_one_turn_are_sent_together_and_shared(nodes: LedgerNodes) -> None:
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    for number in range(10):
        made.appender.submit([b"%d" % number, memoryview(b"+"), bytearray(b"!")])
    await made.confirmed(10)
    buffers = [made.bookie(place).buffers[-1] for place in range(3)]
    assert buffers[0] is buffers[1] is buffers[2], "one copy for all"
    ledger_id = made.appender.ledger_id
    assert [entry_id for entry_id, *_ in entries_of(buffers[0], ledger_id)] == list(range(1, 11))
    assert entries_of(buffers[0], ledger_id)[-1] == (10, 0, 5 + 10 * 3, b"9+!")
    await ended(made)


async def test_a_large_entry_travels_alone(nodes: LedgerNodes) -> None:
    made = await whole(nodes)
    for size in (10, ADD_RUN_BYTES_MAX, 10):
        made.appender.submit([bytes(size)])
    await made.confirmed(2)
    assert [len(buffer) > ADD_RUN_BYTES_MAX for buffer in made.bookie(0).buffers] == [
        False,
        True,
        False,
    ]
    await ended(made)


async def test_everything_sent_is_settled(nodes: LedgerNodes) -> None:
    made = await whole(nodes)
    for number in range(100):
        made.appender.submit([bytes(number)])
        if number % 7 == 0:
            await asyncio.sleep(0)
    await made.confirmed(99)
    for place in range(3):
        assert (made.link(place).owed, made.link(place).owed_bytes) == (0, 0)
    await ended(made)


async def test_a_link_without_room_is_sent_nothing(nodes: LedgerNodes) -> None:
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    full = made.link(2)
    full.has_room = False
    made.appender.submit([b"1"])
    await made.confirmed(1)
    assert made.bookie(2).entries == [0]
    full.has_room = True
    made.appender.on_room(full)
    await until(lambda: made.bookie(2).entries == [0, 1])
    await ended(made)


# --- The contract's fine points


async def test_a_listener_may_submit_and_abandon(nodes: LedgerNodes) -> None:
    made = await whole(nodes, listen=False)
    appender = made.appender

    class Eager:
        confirmed: list[int] = []  # noqa: RUF012

        def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
            self.confirmed.append(last_entry)
            if last_entry < 3:
                appender.submit([b"more"])
                appender.publish()
            else:
                appender.abandon()

        def on_published(self, ledger_id: int, last_entry: int) -> None:
            assert last_entry <= self.confirmed[-1]

        def on_failed(self, ledger_id: int, error: Exception) -> None:
            raise error

    appender.listen(Eager())
    appender.submit([b"first"])
    await until(lambda: made.let_go)
    assert Eager.confirmed == [0, 1, 2, 3]
    await appender.wait_ended()


async def test_too_large_an_entry_takes_no_number(nodes: LedgerNodes) -> None:
    made = await whole(nodes)
    with pytest.raises(TooLarge):
        made.appender.submit([bytes(LEDGER_ENTRY_BYTES_MAX), b"1"])
    assert made.appender.submit([b"small"]) == 0
    await made.confirmed(0)
    await ended(made)


async def test_listen_once_and_before_the_first_entry(nodes: LedgerNodes) -> None:
    made = await whole(nodes, listen=False)
    with pytest.raises(ConfigError):
        made.appender.submit([b"nobody hears"])
    await made.appender.birth([b"birth"])
    made.appender.listen(made.heard)
    with pytest.raises(ConfigError):
        made.appender.listen(made.heard)
    with pytest.raises(ConfigError):
        await made.appender.birth([b"again"])
    await ended(made)


async def test_a_failure_is_told_once_also_to_who_comes_late(nodes: LedgerNodes) -> None:
    made = await whole(nodes, listen=False)
    for bookie in made.links.bookies.values():
        bookie.answer = Answer.FENCED
    with pytest.raises(Fenced):
        await made.appender.birth([b"birth"])
    made.appender.listen(made.heard)
    made.appender.submit([b"late"])
    await made.heard.until_failed()
    made.appender.submit([b"later"])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(made.heard.facts) == 1
    await ended(made)


async def test_a_cancelled_birth_goes_on(nodes: LedgerNodes) -> None:
    made = await whole(nodes)
    birth = asyncio.create_task(made.appender.birth([b"birth"]))
    await asyncio.sleep(0)
    birth.cancel()
    await asyncio.wait([birth])
    await made.confirmed(0)
    await ended(made)


async def test_an_ended_birth_says_so(nodes: LedgerNodes) -> None:
    made = await whole(nodes)
    for bookie in made.links.bookies.values():
        bookie.is_silent = True
    birth = asyncio.create_task(made.appender.birth([b"birth"]))
    await asyncio.sleep(0)
    await ended(made)
    with pytest.raises(WriterClosed) as raised:
        await birth
    assert raised.value.outcome is Outcome.UNKNOWN, "it was sent"


async def test_another_process_is_refused(
    nodes: LedgerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await whole(nodes)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        for use in (lambda: made.appender.submit([b""]), made.appender.publish):
            with pytest.raises(ForkedHandle):
                use()
        for wait in (made.appender.birth([b""]), made.appender.close()):
            with pytest.raises(ForkedHandle):
                await wait
        made.appender.abandon()
    assert not made.let_go, "a child cannot abandon what its parent writes"
    await ended(made)


async def test_a_broken_promise_ends_the_handle(
    nodes: LedgerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await whole(nodes)
    await made.appender.birth([b"birth"])

    def count() -> None:
        raise Broken("a promise")

    monkeypatch.setattr(made.appender.core, "_count", count)
    made.appender.submit([b"1"])
    await made.heard.until_failed()
    assert isinstance(made.heard.failed, Broken)
    assert made.heard.confirmed == 0
    await ended(made)


# --- A bookie is lost


async def test_a_lost_bookie_is_replaced_and_the_new_one_gets_the_rest(nodes: LedgerNodes) -> None:
    points: set[tuple[str, str]] = set()
    trace.listen(lambda point, side: points.add((point, side)))
    try:
        made = await whole(nodes)
        await made.appender.birth([b"birth"])
        for number in range(1, 6):
            made.appender.submit([b"%d" % number])
        await made.confirmed(5)
        made.appender.publish()
        await made.heard.until(lambda: made.heard.published == 5)
        lost = made.bookie(1)
        lost.is_up = False
        made.link(1).down()
        made.appender.submit([b"6"])
        await made.confirmed(6)
        await until(lambda: made.ensemble == ("a", "d", "c"))
        stored = await nodes.read(made.appender.ledger_id)
        first = stored.metadata.fragments[-1].first_entry_id
        assert stored.metadata.fragments[-1].ensemble == ("a", "d", "c")
        await until(lambda: made.links.bookies["d"].entries == list(range(first, 7)))
        assert await made.appender.close() == ClosedLedger(6, 5 + 6)
    finally:
        trace.listen(None)
    names = {"sent", "change_stored", "resent", "checked", "published", "closed"}
    assert points >= {(f"bookie.{name}", side) for name in names for side in ("before", "after")}


@pytest.mark.parametrize("avoided", ["d", "e", "f", "de", "df", "ef", "def"])
async def test_a_lost_bookie_is_replaced_by_one_in_quarantine_only_if_no_other_is_left(
    nodes: LedgerNodes, avoided: str
) -> None:
    made = await whole(nodes, spares=3)
    made.links.in_quarantine = set(avoided)
    await made.appender.birth([b"birth"])
    made.bookie(1).is_up = False
    made.link(1).down()
    made.appender.submit([b"1"])
    await made.confirmed(1)
    await until(lambda: made.ensemble[1] != "b")
    assert made.ensemble[1] in (set("def") - set(avoided) or set("def"))
    await made.appender.close()


@pytest.mark.parametrize("ending", ["abandon", "close"])
async def test_nothing_waits_for_a_bookie_behind_the_end(nodes: LedgerNodes, ending: str) -> None:
    class Hanging(TestLinks):
        async def data(self, bookie_id: str) -> TestLink:
            if self.bookies[bookie_id].is_silent:
                await asyncio.Event().wait()
            return await super().data(bookie_id)

        control = data

    links = Hanging("a", "b", "c", "d")
    links.bookies["d"].is_silent = True
    made = await whole(nodes, links=links)
    await made.appender.birth([b"birth"])
    made.bookie(1).is_up = False
    made.link(1).down()
    made.appender.submit([b"1"])
    await made.confirmed(1)
    before = asyncio.all_tasks()
    assert len(before) > 1, "it waits for d"
    if ending == "close":
        await made.appender.close()
    else:
        made.appender.abandon()
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def test_time_goes_faster_when_something_is_awaited(nodes: LedgerNodes) -> None:
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    made.appender.core.tick_ms = 1_000.0
    made.link(0).down()
    assert made.appender.core.tick_ms == 25.0
    await ended(made)


async def test_a_change_begins_with_what_is_known(nodes: LedgerNodes, meta: Meddling) -> None:
    made = await whole(nodes, spares=2)
    await made.appender.birth([b"birth"])
    made.link(0).down()
    await until(lambda: made.ensemble[0] != "a")
    puts, looks = meta.count_of("put"), meta.count_of("sync")
    assert await made.appender.close() == ClosedLedger(0, 5)
    assert (meta.count_of("put"), meta.count_of("sync")) == (puts + 1, looks)


async def test_links_that_were_there_before_the_ledger_need_no_look(
    nodes: LedgerNodes, meta: Meddling
) -> None:
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    await ended(made)
    looks = meta.count_of("sync")
    assert looks > 0
    again = await whole(nodes, links=made.links)
    await again.appender.birth([b"birth"])
    assert meta.count_of("sync") == looks
    await ended(again)


# --- Close


async def test_two_closes_are_one(nodes: LedgerNodes, meta: Meddling) -> None:
    """close_race_two_closers."""
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    puts = meta.count_of("put")
    closes = await asyncio.gather(*(made.appender.close() for _ in range(3)))
    assert closes == [ClosedLedger(0, 5)] * 3
    assert await made.appender.close() == ClosedLedger(0, 5)
    assert meta.count_of("put") == puts + 1
    await until(lambda: made.let_go)
    made.appender.abandon()
    assert made.let_go == [made.appender]
    with pytest.raises(WriterClosed) as raised:
        made.appender.submit([b"late"])
    assert raised.value.outcome is Outcome.NOT_HAPPENED, "it may be sent elsewhere"


@pytest.mark.parametrize("lost", ["lost_replies", "lost_requests"])
async def test_a_close_without_an_answer_is_resolved(
    nodes: LedgerNodes, meta: Meddling, lost: str
) -> None:
    """close_connection_loss."""
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    getattr(meta, lost).append("put")
    assert await made.appender.close() == ClosedLedger(0, 5)
    assert (await nodes.read(made.appender.ledger_id)).metadata.state is LedgerState.CLOSED


async def test_a_close_may_be_asked_again(nodes: LedgerNodes, meta: Meddling) -> None:
    nodes = LedgerNodes(meta, timeout_ms=20)
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    meta.away = {"put", "sync"}
    for _ in range(2):
        with pytest.raises(Exception, match="away"):
            await made.appender.close()
    meta.away = set()
    assert await made.appender.close() == ClosedLedger(0, 5)


async def test_nobody_closes_over_a_recovery(nodes: LedgerNodes) -> None:
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    stored = await nodes.read(made.appender.ledger_id)
    await nodes.change(stored, marked)
    closes = (made.appender.close(), made.appender.close())
    first, second = await asyncio.gather(*closes, return_exceptions=True)
    assert isinstance(first, Fenced)
    assert isinstance(second, Fenced)
    assert first is not second, "an error collects the traces of one who raises it"
    assert (await nodes.read(stored.ledger_id)).metadata.state is LedgerState.IN_RECOVERY
    assert made.let_go == [made.appender]


async def test_a_close_after_a_failed_add_ends_at_what_was_confirmed(nodes: LedgerNodes) -> None:
    """close_after_failed_add."""
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    made.bookie(0).answer = made.bookie(1).answer = Answer.ILLEGAL
    made.appender.submit([b"it is on one bookie"])
    await made.heard.until_failed()
    assert await made.appender.close() == ClosedLedger(0, 5)


async def test_a_close_waits_for_no_laggard_and_leaves_none_without(nodes: LedgerNodes) -> None:
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    slow = made.link(2)
    slow.has_room = False
    made.appender.submit([b"1"])
    await made.confirmed(1)
    assert await made.appender.close() == ClosedLedger(1, 6)
    assert not made.let_go
    slow.has_room = True
    made.appender.on_room(slow)
    await until(lambda: made.let_go)
    assert slow.bookie.entries == [0, 1]
    assert not slow.sinks


async def test_a_laggard_is_not_served_for_ever(nodes: LedgerNodes) -> None:
    made = await whole(nodes, add_timeout_ms=50)
    await made.appender.birth([b"birth"])
    made.bookie(2).is_silent = True
    made.appender.submit([b"1"])
    await made.confirmed(1)
    await made.appender.close()
    await until(lambda: made.let_go)
    await made.appender.wait_ended()


async def test_a_close_after_a_failure_lets_go(nodes: LedgerNodes) -> None:
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    made.link(0).sinks[made.appender.ledger_id].on_adds(made.link(0), Answer.FENCED, [1])
    await made.heard.until_failed()
    assert await made.appender.close() == ClosedLedger(0, 5)
    assert made.let_go == [made.appender]


async def test_a_deleted_ledger_is_fenced(nodes: LedgerNodes) -> None:
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    await nodes.delete(made.appender.ledger_id)
    with pytest.raises(Fenced):
        await made.appender.close()


async def test_a_close_in_the_middle_of_a_change(nodes: LedgerNodes, meta: Meddling) -> None:
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await go_on.wait()

    meta.before["put"].append(hold)
    made.link(0).down()
    await reached.wait()
    closing = asyncio.create_task(made.appender.close())
    await asyncio.sleep(0)
    go_on.set()
    assert await closing == ClosedLedger(0, 5)
    await made.appender.wait_ended()


async def test_what_an_abandoned_close_did_is_unknown(nodes: LedgerNodes, meta: Meddling) -> None:
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    reached = asyncio.Event()

    async def hold() -> None:
        reached.set()
        await asyncio.Event().wait()

    meta.before["put"].append(hold)
    closing = asyncio.create_task(made.appender.close())
    await reached.wait()
    made.appender.abandon()
    for close in (closing, made.appender.close()):
        with pytest.raises(WriterClosed) as raised:
            await close
        assert raised.value.outcome is Outcome.UNKNOWN
    await made.appender.wait_ended()


async def test_a_policy_that_raises_ends_the_appender(
    nodes: LedgerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a tick, and by a link: neither may be the one that stops."""
    for is_by_link in (True, False):
        made = await whole(nodes, laggard_ms=0.0, add_timeout_ms=0.0)
        await made.appender.birth([b"birth"])

        def replacement(**about: object) -> str:
            raise KeyError("rack")

        monkeypatch.setattr(made.appender._placement, "replacement", replacement)
        if is_by_link:
            made.link(0).down()
        else:
            made.bookie(0).is_silent = True
            made.appender.submit([b"1"])
        await made.heard.until_failed()
        assert isinstance(made.heard.failed, Broken)
        await ended(made)


@pytest.mark.parametrize("name", ["take_run", "send_end", "has_to_send", "on_adds"])
async def test_a_defect_behind_the_caller_is_told(
    nodes: LedgerNodes, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What the loop and the links call: whoever waits for entries would wait for ever."""
    made = await whole(nodes)
    await made.appender.birth([b"birth"])
    real, left = getattr(made.appender.core, name), [KeyError("a defect of ours")]

    def fail(*about: object) -> object:
        if left:
            raise left.pop()
        return real(*about)

    made.appender.submit([b"1"])
    monkeypatch.setattr(made.appender.core, name, fail)
    await made.heard.until_failed()
    assert isinstance(made.heard.failed, Broken)
    assert "a defect of ours" in made.heard.failed.message
    await ended(made)


async def test_others_change_older_fragments_under_us(nodes: LedgerNodes, meta: Meddling) -> None:
    """metadata_overwritten: what a repair wrote meanwhile stays."""
    made = await whole(nodes, spares=2)
    await made.appender.birth([b"birth"])
    made.link(0).down()
    await until(lambda: made.ensemble[0] != "a")
    made.appender.submit([b"1"])
    await made.confirmed(1)
    stored = await nodes.read(made.appender.ledger_id)

    def repaired(metadata: object) -> object:
        first, *rest = metadata.fragments  # type: ignore[attr-defined]
        ensemble = ("repaired", *first.ensemble[1:])
        # type: ignore[type-var]
        return replace(metadata, fragments=(replace(first, ensemble=ensemble), *rest))

    await nodes.change(stored, repaired)  # type: ignore[arg-type]
    made.link(1).down()
    await until(lambda: made.ensemble[1] != "b")
    stored = await nodes.read(made.appender.ledger_id)
    assert stored.metadata.fragments[0].ensemble[0] == "repaired"
    assert len(stored.metadata.fragments) == 3
    assert await made.appender.close() == ClosedLedger(1, 6)
    stored = await nodes.read(made.appender.ledger_id)
    assert stored.metadata.fragments[0].ensemble[0] == "repaired"


@pytest.mark.parametrize("steps", range(12))
async def test_abandoned_at_any_moment_nothing_is_left(nodes: LedgerNodes, steps: int) -> None:
    made = await whole(nodes)
    made.appender.submit([b"0"])
    for step in range(steps):
        if step == 5:
            link = made.links.data_now("a")
            if link is not None:
                link.down()
        if step == 8:
            made.appender.publish()
        await asyncio.sleep(0)
    closing = asyncio.create_task(made.appender.close()) if steps % 2 else None
    await asyncio.sleep(0)
    facts = len(made.heard.facts)
    made.appender.abandon()
    made.appender.abandon()
    await made.appender.wait_ended()
    assert made.let_go == [made.appender]
    if closing is not None:
        with pytest.raises(WriterClosed):
            await closing
    for link in made.links.up.values():
        assert not link.sinks
    await asyncio.sleep(0)
    assert len(made.heard.facts) == facts
