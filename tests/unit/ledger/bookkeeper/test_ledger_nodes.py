"""Ledger metadata in the store: made once, changed by compare-and-set whatever is lost, deleted
with the empty nodes above, listed in order."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from dlog.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    Fenced,
    NotFound,
    Outcome,
    Unavailable,
    Unsupported,
)
from dlog.ledger.bookkeeper.core.changes import marked
from dlog.ledger.bookkeeper.ledger_nodes import LedgerNodes, StoredLedger
from dlog.meta.memory import MemoryTree
from dlog.wire.bookie_digest import DigestType
from dlog.wire.ledger_metadata import CustomPair, Fragment, LedgerMetadata, LedgerState
from dlog.wire.ledger_metadata_format import pack_ledger_metadata, parse_ledger_metadata
from dlog.wire.ledger_paths import Manager, pack_layout
from tests.unit.ledger.bookkeeper.meddling import Meddling

NEW = LedgerMetadata(
    3, 3, 2, (Fragment(0, ("b1:1", "b2:1", "b3:1")),), digest_type=DigestType.CRC32C, password=b""
)
LAYOUT = "/ledgers/LAYOUT"


@pytest.fixture
def meta() -> Meddling:
    return Meddling(MemoryTree())


@pytest.fixture
def nodes(meta: Meddling) -> LedgerNodes:
    return LedgerNodes(meta)


def closed(metadata: LedgerMetadata) -> LedgerMetadata:
    return replace(metadata, state=LedgerState.CLOSED, last_entry_id=4, length_bytes=20)


def noted(key: str) -> CustomPair:
    return CustomPair(key, b"")


def note(metadata: LedgerMetadata, key: str) -> LedgerMetadata | None:
    if metadata.custom_value(key) is not None:
        return None
    return replace(metadata, custom=(*metadata.custom, noted(key)))


async def ids_of(nodes: LedgerNodes) -> list[int]:
    return [ledger_id async for ledger_id in nodes.scan_ids()]


# --- Layout


async def test_a_new_cluster_gets_the_layout_of_the_stock_client(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    await nodes.create(NEW)
    assert (await meta.get(LAYOUT)).value == (
        b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    )


async def test_who_only_looks_makes_nothing(meta: Meddling, nodes: LedgerNodes) -> None:
    assert await ids_of(nodes) == []
    await nodes.delete(5)
    with pytest.raises(NotFound):
        await nodes.read(5)
    with pytest.raises(NotFound):
        await nodes.read_fresh(5)
    assert await meta.children("/") == []


async def test_the_layout_that_is_there_holds(meta: Meddling, nodes: LedgerNodes) -> None:
    await meta.create(LAYOUT, pack_layout(Manager.LONG_HIERARCHICAL))
    await nodes.create(NEW)
    assert await meta.get("/ledgers/000/0000/0000/0000/L0000")


async def test_a_layout_made_by_somebody_faster_holds(meta: Meddling, nodes: LedgerNodes) -> None:
    async def be_faster() -> None:
        await Meddling(meta._tree).create(LAYOUT, pack_layout(Manager.FLAT))

    meta.before["create"].append(be_faster)
    await nodes.create(NEW)
    assert await meta.get("/ledgers/L0000000000")


async def test_an_unknown_layout_is_refused_by_every_call(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    await meta.create(LAYOUT, b"2\norg.example.SomeLedgerManagerFactory:1")
    with pytest.raises(Unsupported, match="SomeLedgerManagerFactory"):
        await nodes.create(NEW)
    for call in (nodes.read(1), nodes.delete(1), ids_of(nodes)):
        with pytest.raises(Unsupported):
            await call
    assert await meta.children("/ledgers") == ["LAYOUT"]


async def test_the_root_of_the_tree_may_be_the_root_of_ledgers(meta: Meddling) -> None:
    nodes = LedgerNodes(meta, "/")
    stored = await nodes.create(NEW)
    assert await meta.get("/00/0000/L0000")
    assert await ids_of(nodes) == [stored.ledger_id]
    await nodes.delete(stored.ledger_id)
    assert await meta.children("/") == ["LAYOUT", "idgen"]


# --- Create


async def test_what_is_created_is_read_back(meta: Meddling, nodes: LedgerNodes) -> None:
    stored = await nodes.create(NEW)
    assert stored.metadata == replace(NEW, creator_token=stored.metadata.creator_token)
    assert stored.metadata.creator_token is not None
    assert 0 <= stored.metadata.creator_token < 1 << 63
    assert await nodes.read(stored.ledger_id) == stored
    assert (await meta.get("/ledgers/00/0000/L0000")).value == pack_ledger_metadata(stored.metadata)


async def test_two_clients_create_at_once(meta: Meddling, nodes: LedgerNodes) -> None:
    other = LedgerNodes(Meddling(meta._tree))
    first = await nodes.create(NEW)
    made = await asyncio.gather(*((nodes, other)[turn % 2].create(NEW) for turn in range(20)))
    assert {stored.ledger_id for stored in (first, *made)} == set(range(21))
    assert len({stored.metadata.creator_token for stored in made}) == 20


async def test_create_connection_loss(meta: Meddling, nodes: LedgerNodes) -> None:
    """The reply is lost, the next try finds the node: it is ours, and the only one."""
    await nodes.create(NEW)
    meta.lost_replies.append("create")
    stored = await nodes.create(NEW)
    assert await ids_of(nodes) == [0, 1]
    assert stored.ledger_id == 1
    assert await nodes.read(1) == stored


async def test_a_create_that_did_not_arrive_is_sent_again(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    await nodes.create(NEW)
    meta.lost_requests.append("create")
    assert (await nodes.create(NEW)).ledger_id == 1
    assert await ids_of(nodes) == [0, 1]


async def test_a_ledger_changed_since_its_lost_reply_is_not_taken(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    await nodes.create(NEW)
    others = LedgerNodes(Meddling(meta._tree))

    async def recover() -> None:
        await others.change(await others.read(1), marked)

    meta.lost_replies.append("create")
    meta.before["sync"].append(recover)
    stored = await nodes.create(NEW)
    assert (stored.ledger_id, stored.metadata.state) == (2, LedgerState.OPEN)


async def test_an_id_that_is_taken_is_passed_over(meta: Meddling, nodes: LedgerNodes) -> None:
    theirs = await nodes.create(NEW, ledger_id=0)
    assert (await nodes.create(NEW)).ledger_id == 1
    assert await nodes.read(0) == theirs


async def test_an_id_of_ones_own_choice(meta: Meddling, nodes: LedgerNodes) -> None:
    big = (5 << 32) + 7
    stored = await nodes.create(NEW, ledger_id=big)
    assert stored.ledger_id == big
    assert await meta.get("/ledgers/000/0000/0214/7483/L6487")
    with pytest.raises(AlreadyExists):
        await nodes.create(NEW, ledger_id=big)
    assert await nodes.read(big) == stored
    assert meta.count_of("draw") == 0


async def test_a_lost_number_is_followed_by_the_next(meta: Meddling, nodes: LedgerNodes) -> None:
    meta.lost_replies.append("draw")
    assert (await nodes.create(NEW)).ledger_id == 1


async def test_a_lost_number_leaves_no_doubt_about_a_ledger(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    await nodes.create(NEW)

    async def go_away() -> None:
        meta.away.add("draw")

    meta.lost_replies.append("draw")
    meta.before["draw"].append(go_away)
    with pytest.raises(Unavailable) as caught:
        await LedgerNodes(meta, timeout_ms=30).create(NEW)
    assert caught.value.outcome is Outcome.NOT_HAPPENED


async def test_a_create_in_vain_says_that_nothing_is_there(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    await nodes.create(NEW)
    meta.away.add("create")
    with pytest.raises(Unavailable) as caught:
        await LedgerNodes(meta, timeout_ms=0).create(NEW)
    assert caught.value.outcome is Outcome.NOT_HAPPENED


async def test_a_create_that_may_be_there_says_so(meta: Meddling, nodes: LedgerNodes) -> None:
    await nodes.create(NEW)

    async def go_away() -> None:
        meta.away.add("create")

    meta.lost_replies.append("create")
    meta.before["create"].append(go_away)
    with pytest.raises(Unavailable) as caught:
        await LedgerNodes(meta, timeout_ms=30).create(NEW)
    assert caught.value.outcome is Outcome.UNKNOWN


# --- Read


async def test_a_fresh_read_sees_what_a_plain_one_may_not(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    first = await nodes.create(NEW)
    path = "/ledgers/00/0000/L0000"
    before = await meta.get(path)
    now = await nodes.change(first, closed_once)
    meta.old[path] = before
    assert await nodes.read(0) == first
    assert await nodes.read_fresh(0) == now


def closed_once(metadata: LedgerMetadata) -> LedgerMetadata | None:
    return None if metadata.state is LedgerState.CLOSED else closed(metadata)


async def test_bytes_that_are_no_metadata_name_the_ledger(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    await nodes.create(NEW)
    await meta.create("/ledgers/00/0000/L0009", b"?")
    with pytest.raises(Corrupt, match="ledger 9"):
        await nodes.read(9)


# --- Change


async def test_a_change_begins_with_what_is_known(meta: Meddling, nodes: LedgerNodes) -> None:
    stored = await nodes.create(NEW)
    meta.calls.clear()
    changed = await nodes.change(stored, marked)
    assert changed.metadata.state is LedgerState.IN_RECOVERY
    assert [name for name, _ in meta.calls] == ["put"]
    assert await nodes.read(0) == changed


async def test_nothing_to_do_is_nothing_written(meta: Meddling, nodes: LedgerNodes) -> None:
    stored = await nodes.create(NEW)
    meta.calls.clear()
    assert await nodes.change(stored, lambda metadata: None) is stored
    assert meta.calls == []


async def test_who_is_late_changes_what_is_there_now(meta: Meddling, nodes: LedgerNodes) -> None:
    stored = await nodes.create(NEW)
    await nodes.change(stored, lambda metadata: note(metadata, "theirs"))
    changed = await nodes.change(stored, lambda metadata: note(metadata, "ours"))
    assert changed.metadata.custom == (noted("theirs"), noted("ours"))
    assert await nodes.read(0) == changed


@pytest.mark.parametrize("lost", ["lost_replies", "lost_requests"])
async def test_a_change_survives_what_is_lost(
    meta: Meddling, nodes: LedgerNodes, lost: str
) -> None:
    stored = await nodes.create(NEW)
    asked: list[LedgerMetadata] = []

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        asked.append(metadata)
        return note(metadata, "ours")

    getattr(meta, lost).append("put")
    changed = await nodes.change(stored, change)
    assert changed.metadata.custom == (noted("ours"),)
    assert await nodes.read(0) == changed
    assert meta.count_of("put") == (1 if lost == "lost_replies" else 2)
    assert meta.count_of("sync") >= 1, "what is read after a lost reply is not old"
    assert len(asked) == 2


async def test_a_change_that_may_not_be_made_any_more_raises(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    stored = await nodes.create(NEW)

    def only_while_open(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if metadata.state is not LedgerState.OPEN:
            raise Fenced("too late")
        return note(metadata, "ours")

    await nodes.change(stored, marked)
    with pytest.raises(Fenced):
        await nodes.change(stored, only_while_open)
    assert (await nodes.read(0)).metadata.custom == ()


@pytest.mark.parametrize("first_look", [True, False])
async def test_a_deleted_ledger_is_not_changed(
    meta: Meddling, nodes: LedgerNodes, first_look: bool
) -> None:
    stored = await nodes.create(NEW)
    if not first_look:
        await nodes.change(stored, lambda metadata: note(metadata, "theirs"))
        meta.before["sync"].append(lambda: nodes.delete(0))
    else:
        await nodes.delete(0)
    with pytest.raises(NotFound) as caught:
        await nodes.change(stored, marked)
    assert caught.value.ledger_id == 0


async def test_a_change_that_always_loses_ends(meta: Meddling, nodes: LedgerNodes) -> None:
    stored = await nodes.create(NEW)
    other, path = Meddling(meta._tree), "/ledgers/00/0000/L0000"

    async def write() -> None:
        found = await other.get(path)
        await other.put(path, found.value, found.version)

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        meta.before["put"].append(write)
        return note(metadata, "ours")

    with pytest.raises(Conflict) as caught:
        await LedgerNodes(meta, timeout_ms=30).change(stored, change)
    assert caught.value.outcome is Outcome.NOT_HAPPENED


async def test_a_change_that_may_be_there_says_so(meta: Meddling, nodes: LedgerNodes) -> None:
    stored = await nodes.create(NEW)

    async def go_away() -> None:
        meta.away |= {"sync", "get", "put"}

    meta.before["put"].append(go_away)
    meta.lost_replies.append("put")
    with pytest.raises(Unavailable) as caught:
        await LedgerNodes(meta, timeout_ms=30).change(stored, marked)
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_old_formats_are_read_and_deleted_but_not_changed(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    await nodes.create(NEW)
    old = b"BookieMetadataFormatVersion\t1\n3\n3\n0\n0\tb1:1\tb2:1\tb3:1\n"
    await meta.create("/ledgers/00/0000/L0004", old)
    stored = await nodes.read(4)
    assert stored.metadata.format_version == 1
    with pytest.raises(Unsupported):
        await nodes.change(stored, marked)
    assert (await meta.get("/ledgers/00/0000/L0004")).value == old
    await nodes.delete(4)
    assert await ids_of(nodes) == [0]


async def test_what_others_wrote_into_the_metadata_stays(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    """Fields of a later version, and the token of who made it."""
    theirs = replace(NEW, creator_token=77, unknown=b"\xfa\x01\x03new")
    await nodes.create(NEW)
    await meta.create("/ledgers/00/0000/L0005", pack_ledger_metadata(theirs))
    await nodes.change(await nodes.read(5), marked)
    raw = (await meta.get("/ledgers/00/0000/L0005")).value
    found = parse_ledger_metadata(raw, where="test")
    assert found == replace(theirs, state=LedgerState.IN_RECOVERY)


# --- Delete


@pytest.mark.parametrize("change", [None, marked, closed_once])
async def test_deletion_in_any_state_leaves_no_empty_node(
    meta: Meddling, nodes: LedgerNodes, change: object
) -> None:
    stored = await nodes.create(NEW)
    if change is not None:
        await nodes.change(stored, change)  # type: ignore[arg-type]
    await nodes.delete(0)
    await nodes.delete(0)
    with pytest.raises(NotFound):
        await nodes.read(0)
    await nodes.close()
    assert await meta.children("/ledgers") == ["LAYOUT", "idgen"]


@pytest.mark.parametrize("manager", [Manager.HIERARCHICAL, Manager.LONG_HIERARCHICAL])
async def test_deletion_leaves_no_empty_node_in_layouts_with_directories(
    meta: Meddling, nodes: LedgerNodes, manager: Manager
) -> None:
    await meta.create(LAYOUT, pack_layout(manager))
    stored = await nodes.create(NEW)
    path = await nodes.path_of(stored.ledger_id)
    assert path.count("/") > 3
    await nodes.delete(stored.ledger_id)
    while (path := path.rsplit("/", 1)[0]) != "/ledgers":
        with pytest.raises(NotFound):
            await meta.get(path)


async def test_deletion_leaves_the_neighbours(
    meta: Meddling, nodes: LedgerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for ledger_id in (1, 10_000, 10_001, 2**31 + 5):
        await nodes.create(NEW, ledger_id=ledger_id)
    await nodes.delete(10_001)
    assert await ids_of(nodes) == [1, 10_000, 2**31 + 5]
    await nodes.delete(10_000)
    assert await meta.children("/ledgers/00") == ["0000"]
    await nodes.delete(2**31 + 5)
    assert await meta.children("/ledgers") == ["00", "LAYOUT"]
    assert caplog.text == "", "a node that is in use is nothing to tell"
    meta.calls.clear()
    await nodes.delete(1)
    deleted = [path for name, path in meta.calls if name == "delete"]
    assert deleted == ["/ledgers/00/0000/L0001", "/ledgers/00/0000", "/ledgers/00"]


async def test_deletion_looks_first_whether_a_ledger_was_made_just_now(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    await nodes.create(NEW)
    meta.old["/ledgers/00/0000/L0000"] = None
    await nodes.delete(0)
    assert await ids_of(nodes) == []


@pytest.mark.parametrize("lost", ["lost_replies", "lost_requests"])
async def test_deletion_survives_what_is_lost(
    meta: Meddling, nodes: LedgerNodes, lost: str
) -> None:
    await nodes.create(NEW, ledger_id=3)
    getattr(meta, lost).append("delete")
    await nodes.delete(3)
    assert await ids_of(nodes) == []


async def test_deletion_wins_against_a_change(meta: Meddling, nodes: LedgerNodes) -> None:
    stored = await nodes.create(NEW, ledger_id=3)

    async def change() -> None:
        await LedgerNodes(Meddling(meta._tree)).change(stored, marked)

    meta.before["delete"].append(change)
    await nodes.delete(3)
    assert await ids_of(nodes) == []


async def test_an_empty_node_that_cannot_be_pruned_is_no_failure(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    await nodes.create(NEW, ledger_id=3)

    async def then_go_away() -> None:
        async def go_away() -> None:
            meta.away.add("delete")

        meta.before["get"].append(go_away)

    meta.before["delete"].append(then_go_away)
    await nodes.delete(3)
    assert await ids_of(nodes) == []
    assert await meta.children("/ledgers/00") == ["0000"], "it was in the way of nobody"


async def test_a_ledger_put_below_a_node_that_is_pruned_stays(
    meta: Meddling, nodes: LedgerNodes
) -> None:
    await nodes.create(NEW, ledger_id=3)

    async def prunes_meet_this() -> None:
        async def put() -> None:
            await LedgerNodes(Meddling(meta._tree)).create(NEW, ledger_id=4)

        meta.before["delete"].append(put)

    meta.before["delete"].append(prunes_meet_this)
    await nodes.delete(3)
    assert await ids_of(nodes) == [4]


@pytest.mark.parametrize(
    ("manager", "left"),
    [(Manager.FLAT, ["LAYOUT"]), (Manager.LEGACY_HIERARCHICAL, ["00", "LAYOUT"])],
)
async def test_other_layouts_are_not_pruned(
    meta: Meddling, nodes: LedgerNodes, manager: Manager, left: list[str]
) -> None:
    await meta.create(LAYOUT, pack_layout(manager))
    await nodes.create(NEW, ledger_id=3)
    meta.calls.clear()
    await nodes.delete(3)
    assert meta.count_of("delete") == 1
    assert await meta.children("/ledgers") == left


# --- Scan


async def test_ids_come_in_rising_order_over_both_trees(
    meta: Meddling, nodes: LedgerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = [0, 7, 9_999, 10_000, 123_456, 2**31 - 2, 2**31 - 1, 2**31, 1 << 32, (1 << 62) + 3]
    for ledger_id in reversed(wanted):
        await nodes.create(NEW, ledger_id=ledger_id)
    for alien in (
        "available/b1:1",
        "cookies/b1:1",
        "underreplication/ledgers",
        "disableHealthCheck",
    ):
        await meta.create(f"/ledgers/{alien}", b"")
    for alien in ("notes", "L00001", "L1", "l0001", "xL0001"):
        await meta.create(f"/ledgers/00/0000/{alien}", b"")
    await meta.create("/ledgers/00/99999", b"")
    assert await ids_of(nodes) == wanted
    assert caplog.text == ""


async def test_flat_ids_come_in_the_order_of_numbers(meta: Meddling, nodes: LedgerNodes) -> None:
    await meta.create(LAYOUT, pack_layout(Manager.FLAT))
    wanted = [3, 9_999_999_999, 10_000_000_000]
    for ledger_id in wanted:
        await nodes.create(NEW, ledger_id=ledger_id)
    assert await ids_of(nodes) == wanted


async def test_a_name_that_only_looks_like_a_ledger_is_passed_over_by_name(
    meta: Meddling, nodes: LedgerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    await nodes.create(NEW)
    await meta.create("/ledgers/99/9999/L9999", b"")
    assert await ids_of(nodes) == [0]
    assert "/99/9999/L9999" in caplog.text


async def test_what_is_pruned_under_a_scan_is_empty(meta: Meddling, nodes: LedgerNodes) -> None:
    for ledger_id in (1, 10_001, 20_001):
        await nodes.create(NEW, ledger_id=ledger_id)
    seen = []
    async for ledger_id in nodes.scan_ids():
        seen.append(ledger_id)
        if ledger_id == 1:
            await nodes.delete(10_001)
    assert seen == [1, 20_001]


async def test_a_scan_is_not_older_than_its_start(meta: Meddling, nodes: LedgerNodes) -> None:
    await nodes.create(NEW)
    meta.calls.clear()
    await ids_of(nodes)
    assert meta.calls[0][0] == "sync"


# --- Watch


async def test_a_watch_hears_of_changes(nodes: LedgerNodes) -> None:
    stored = await nodes.create(NEW)
    async with nodes.watch(0) as watch:
        assert not await watch.wait(1)
        await nodes.change(stored, marked)
        assert await watch.wait(10_000)
        await nodes.delete(0)
        assert await watch.wait(10_000)


def test_a_stored_ledger_shows_no_password() -> None:
    stored = StoredLedger(1, replace(NEW, password=b"secret"), 0)
    assert "secret" not in repr(stored)
