"""The MetaStore contract as checks. `CHECKS` is all of them; `LOSS_CHECKS` need a way to lose a
session behind its owner's back.

A check gets `make`, which returns a new store, a session of its own, on one tree that is empty when
the check begins; whoever runs the check closes what it made. Backends may deliver late, so what
needs time is waited for, up to `PATIENCE_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from dlog.errors import (
    AlreadyExists,
    ConfigError,
    Conflict,
    DlogError,
    LeaseLost,
    NotFound,
    Outcome,
    TooLarge,
    WriterClosed,
)
from dlog.limits import META_NODE_BYTES_MAX
from dlog.meta.store import NODE_BYTES_MAX, MetaStore, Watch

Make = Callable[[], Awaitable[MetaStore]]
Lose = Callable[[MetaStore], Awaitable[None]]
Check = Callable[[Make], Awaitable[None]]
LossCheck = Callable[[Make, Lose], Awaitable[None]]

CHECKS: list[Check] = []
LOSS_CHECKS: list[LossCheck] = []

PATIENCE_S = 10.0
QUIET_MS = 30.0


def _check(check: Check) -> Check:
    CHECKS.append(check)
    return check


def _loss_check(check: LossCheck) -> LossCheck:
    LOSS_CHECKS.append(check)
    return check


async def refused(call: Awaitable[Any], kind: type[DlogError]) -> DlogError:
    """The call ends in this error, which says that nothing happened."""
    try:
        answer = await call
    except kind as error:
        refusal = error
    else:
        raise AssertionError(f"answered {answer!r} instead of raising {kind.__name__}")
    assert refusal.outcome is Outcome.NOT_HAPPENED, f"{refusal!r} must be certain"
    return refusal


async def until(fact: Callable[[], Awaitable[bool]], what: str) -> None:
    """Ask again and again, for a bounded time, until it is so."""
    end_s = time.monotonic() + PATIENCE_S
    while not await fact():
        assert time.monotonic() < end_s, f"still not so after {PATIENCE_S} s: {what}"
        await asyncio.sleep(0.005)


async def exists(store: MetaStore, path: str) -> bool:
    await store.sync()
    try:
        await store.get(path)
    except NotFound:
        return False
    return True


# --- One node ---------------------------------------------------------------------------------


@_check
async def a_created_node_can_be_read(make: Make) -> None:
    store = await make()
    created = await store.create("/a", b"one")
    assert created.path == "/a"
    assert await store.get("/a") == (b"one", created.version)


@_check
async def a_missing_node_is_not_found(make: Make) -> None:
    store = await make()
    await refused(store.get("/a"), NotFound)
    await refused(store.put("/a", b"", 0), NotFound)
    await refused(store.delete("/a", 0), NotFound)
    await refused(store.children("/a"), NotFound)
    await store.create("/a", b"")
    await refused(store.get("/a/b"), NotFound)
    await refused(store.get("/aa"), NotFound)


@_check
async def a_second_create_is_refused_and_changes_nothing(make: Make) -> None:
    first, second = await make(), await make()
    created = await first.create("/a", b"first")
    await refused(second.create("/a", b"second"), AlreadyExists)
    await refused(first.create("/a", b"third", ephemeral=True), AlreadyExists)
    assert await first.get("/a") == (b"first", created.version)


@_check
async def missing_parents_are_made_empty(make: Make) -> None:
    store = await make()
    await store.create("/a/b/c", b"leaf")
    assert (await store.get("/a")).value == b""
    assert (await store.get("/a/b")).value == b""
    assert await store.children("/a") == ["b"]
    await refused(store.create("/a/b", b""), AlreadyExists)


@_check
async def a_parent_that_is_there_keeps_its_value_and_version(make: Make) -> None:
    store = await make()
    parent = await store.create("/a", b"parent")
    child = await store.create("/a/b", b"child")
    await store.put("/a/b", b"child again", child.version)
    assert await store.get("/a") == (b"parent", parent.version)


@_check
async def the_root_is_there_and_stays(make: Make) -> None:
    store = await make()
    root = await store.get("/")
    assert await store.children("/") == []
    await refused(store.create("/", b""), AlreadyExists)
    await refused(store.delete("/", root.version), ConfigError)
    await store.create("/a", b"")
    assert await store.children("/") == ["a"]


@_check
async def a_put_changes_value_and_version(make: Make) -> None:
    store = await make()
    seen = [(await store.create("/a", b"0")).version]
    for count in range(1, 6):
        seen.append(await store.put("/a", str(count).encode(), seen[-1]))
        assert await store.get("/a") == (str(count).encode(), seen[-1])
    assert len(set(seen)) == len(seen), f"a version came twice: {seen}"


@_check
async def a_put_of_the_same_value_changes_the_version(make: Make) -> None:
    store = await make()
    created = await store.create("/a", b"same")
    assert await store.put("/a", b"same", created.version) != created.version


@_check
async def a_put_at_an_old_version_is_a_conflict_and_changes_nothing(make: Make) -> None:
    first, second = await make(), await make()
    old = (await first.create("/a", b"0")).version
    now = await second.put("/a", b"1", old)
    await refused(first.put("/a", b"lost", old), Conflict)
    await first.sync()
    assert await first.get("/a") == (b"1", now)


@_check
async def no_version_number_means_any(make: Make) -> None:
    store = await make()
    version = (await store.create("/a", b"0")).version
    for number in (-1, -2, version + 1, version + 1000):
        await refused(store.put("/a", b"lost", number), Conflict)
        await refused(store.delete("/a", number), Conflict)
    assert await store.get("/a") == (b"0", version)


@_check
async def a_deleted_node_is_gone(make: Make) -> None:
    store = await make()
    version = (await store.create("/a/b", b"")).version
    await store.delete("/a/b", version)
    await refused(store.get("/a/b"), NotFound)
    await refused(store.delete("/a/b", version), NotFound)
    await refused(store.put("/a/b", b"", version), NotFound)
    assert await store.children("/a") == []


@_check
async def a_delete_at_an_old_version_is_a_conflict_and_changes_nothing(make: Make) -> None:
    store = await make()
    old = (await store.create("/a", b"0")).version
    now = await store.put("/a", b"1", old)
    await refused(store.delete("/a", old), Conflict)
    assert await store.get("/a") == (b"1", now)


@_check
async def a_node_with_children_cannot_be_deleted(make: Make) -> None:
    store = await make()
    parent = await store.create("/a", b"")
    child = await store.create("/a/b", b"")
    await refused(store.delete("/a", parent.version), Conflict)
    assert await store.children("/a") == ["b"]
    await store.delete("/a/b", child.version)
    await store.delete("/a", parent.version)
    await refused(store.get("/a"), NotFound)


@_check
async def a_node_made_again_never_repeats_a_version(make: Make) -> None:
    stores = [await make(), await make()]
    seen: list[int] = []
    for turn in range(6):
        store = stores[turn % 2]
        seen.append((await store.create("/a", b"")).version)
        for _ in range(5 - turn):  # fewer and fewer: a counter that starts again would meet them
            seen.append(await store.put("/a", b"", seen[-1]))
        await store.delete("/a", seen[-1])
    assert len(set(seen)) == len(seen), f"a version came twice: {seen}"


@_check
async def a_parent_made_again_never_repeats_a_version(make: Make) -> None:
    store = await make()
    await store.create("/a/b", b"")
    seen = [(await store.get("/a")).version]
    for _ in range(3):
        seen.append(await store.put("/a", b"", seen[-1]))
    await store.delete("/a/b", (await store.get("/a/b")).version)
    await store.delete("/a", seen[-1])
    await store.create("/a/b", b"")
    assert (await store.get("/a")).version not in seen


# --- Values and paths -------------------------------------------------------------------------


@_check
async def values_come_back_bit_for_bit(make: Make) -> None:
    store = await make()
    values = [b"", b"\0", bytes(range(256)), "Grüße, 世界".encode(), b"\xff\xfe\x00", b"NULL", b"0"]
    for index, value in enumerate(values):
        version = (await store.create(f"/v{index}", value)).version
        assert (await store.get(f"/v{index}")).value == value
        await store.put(f"/v{index}", value[::-1], version)
        assert (await store.get(f"/v{index}")).value == value[::-1]


@_check
async def a_value_as_large_as_the_largest_log_meta_fits(make: Make) -> None:
    store, other = await make(), await make()
    value = bytes(range(256)) * (META_NODE_BYTES_MAX // 256)
    version = (await store.create("/a", value)).version
    await other.sync()
    assert await other.get("/a") == (value, version)
    await other.put("/a", value[:-1] + b"!", version)
    await store.sync()
    assert (await store.get("/a")).value == value[:-1] + b"!"


@_check
async def a_value_over_the_limit_is_refused(make: Make) -> None:
    store = await make()
    version = (await store.create("/a", b"small")).version
    big = bytes(NODE_BYTES_MAX + 1)
    await refused(store.put("/a", big, version), TooLarge)
    await refused(store.create("/b", big), TooLarge)
    assert await store.get("/a") == (b"small", version)
    assert await store.children("/") == ["a"]


@_check
async def paths_may_hold_any_printable_text(make: Make) -> None:
    store = await make()
    names = ["ä", "世界", "🙂", "a b", "a%2Fb", "a'b\"c", "%_*?[]", "a.b", "...", "-", "NULL", "\\"]
    for name in names:
        await store.create(f"/dir/{name}", name.encode())
    assert await store.children("/dir") == sorted(names)
    for name in names:
        assert (await store.get(f"/dir/{name}")).value == name.encode()


@_check
async def two_spellings_of_a_letter_are_two_names(make: Make) -> None:
    store = await make()
    await store.create("/\u00e9", b"one code point")
    await store.create("/e\u0301", b"two code points")
    await store.create("/E\u0301", b"upper case")
    assert len(await store.children("/")) == 3


@_check
async def paths_that_are_none_are_refused(make: Make) -> None:
    store = await make()
    bad = ["", "a", "a/b", "//", "/a/", "/a//b", "/.", "/a/..", "/a/./b", "/a\nb", "/\0"]
    bad += ["/\ud800", "/" + "x" * 5000]
    for path in bad:
        await refused(store.get(path), ConfigError)
        await refused(store.create(path, b""), ConfigError)
        await refused(store.put(path, b"", 0), ConfigError)
        await refused(store.delete(path, 0), ConfigError)
        await refused(store.children(path), ConfigError)
        try:
            store.watch(path)
        except ConfigError:
            pass
        else:
            raise AssertionError(f"a watch took the path {path!r}")
    assert await store.children("/") == []


@_check
async def children_are_names_of_one_level_in_order(make: Make) -> None:
    store = await make()
    for name in ["b", "a", "C", "a-b", "a/b", "a/b/c", "10", "9", "ab", "ä"]:
        await store.create(f"/dir/{name}", b"")
    await store.create("/dirt", b"")
    expected = ["10", "9", "C", "a", "a-b", "ab", "b", "ä"]
    assert await store.children("/dir") == expected
    assert await store.children("/dir/a") == ["b"]
    assert await store.children("/dir/b") == []


# --- Sequential nodes -------------------------------------------------------------------------


@_check
async def sequential_nodes_get_growing_numbers_of_ten_digits(make: Make) -> None:
    first, second = await make(), await make()
    paths = []
    for turn in range(12):
        store = (first, second)[turn % 2]
        created = await store.create("/q/n-", str(turn).encode(), sequential=True)
        assert (await store.get(created.path)).value == str(turn).encode()
        paths.append(created.path)
    numbers = [path.removeprefix("/q/n-") for path in paths]
    assert all(len(number) == 10 and number.isdecimal() for number in numbers), numbers
    assert numbers == sorted(set(numbers)), f"numbers do not grow: {numbers}"
    await first.sync()
    assert await first.children("/q") == [path.removeprefix("/q/") for path in paths]


@_check
async def sequential_numbers_survive_deletions(make: Make) -> None:
    store = await make()
    last = ""
    for _ in range(5):
        created = await store.create("/q/n-", b"", sequential=True)
        assert created.path > last
        last = created.path
        await store.delete(created.path, created.version)


@_check
async def a_number_stands_alone_as_a_name(make: Make) -> None:
    store = await make()
    await store.create("/q", b"")
    created = await store.create("/q/0", b"", sequential=True)
    assert created.path.startswith("/q/0")
    assert len(created.path) == len("/q/0") + 10
    at_the_root = await store.create("/n", b"", sequential=True)
    assert len(at_the_root.path) == len("/n") + 10


@_check
async def racing_sequential_creates_get_different_numbers(make: Make) -> None:
    stores = [await make() for _ in range(4)]
    created = await asyncio.gather(
        *(store.create("/q/n-", b"", sequential=True) for store in stores for _ in range(10))
    )
    assert len({node.path for node in created}) == 40
    await stores[0].sync()
    assert len(await stores[0].children("/q")) == 40


# --- Races ------------------------------------------------------------------------------------


async def _increment(store: MetaStore, path: str) -> None:
    while True:
        await store.sync()
        seen = await store.get(path)
        try:
            await store.put(path, b"%d" % (int(seen.value) + 1), seen.version)
        except Conflict:
            continue
        return


@_check
async def racing_increments_lose_no_update(make: Make) -> None:
    stores = [await make() for _ in range(4)]
    await stores[0].create("/n", b"0")

    async def many(store: MetaStore) -> None:
        for _ in range(10):
            await _increment(store, "/n")

    await asyncio.gather(*(many(store) for store in stores for _ in range(2)))
    await stores[0].sync()
    assert (await stores[0].get("/n")).value == b"80"


async def _winners(calls: list[Coroutine[Any, Any, Any]], *kinds: type[DlogError]) -> list[int]:
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, kinds):
            raise answer
    return [i for i, answer in enumerate(answers) if not isinstance(answer, BaseException)]


@_check
async def one_of_many_creates_wins(make: Make) -> None:
    stores = [await make() for _ in range(4)]
    for turn in range(5):
        calls = [s.create(f"/deep/er/{turn}", b"%d" % i) for i, s in enumerate(stores)]
        winners = await _winners(list(calls), AlreadyExists)
        assert len(winners) == 1, f"{winners} all made the node"
        await stores[0].sync()
        assert (await stores[0].get(f"/deep/er/{turn}")).value == b"%d" % winners[0]


@_check
async def one_of_many_puts_at_a_version_wins(make: Make) -> None:
    stores = [await make() for _ in range(4)]
    version = (await stores[0].create("/a", b"")).version
    calls = [store.put("/a", b"%d" % i, version) for i, store in enumerate(stores)]
    winners = await _winners(list(calls), Conflict)
    assert len(winners) == 1, f"{winners} all put at version {version}"
    await stores[0].sync()
    assert (await stores[0].get("/a")).value == b"%d" % winners[0]


@_check
async def one_of_many_deletes_wins(make: Make) -> None:
    stores = [await make() for _ in range(4)]
    version = (await stores[0].create("/a", b"")).version
    winners = await _winners([store.delete("/a", version) for store in stores], NotFound)
    assert len(winners) == 1, f"{winners} all deleted the node"


@_check
async def a_delete_and_a_child_do_not_both_succeed(make: Make) -> None:
    first, second = await make(), await make()
    for turn in range(5):
        path = f"/p{turn}"
        version = (await first.create(path, b"parent")).version
        deleted, child = await asyncio.gather(
            first.delete(path, version), second.create(f"{path}/c", b""), return_exceptions=True
        )
        assert not isinstance(child, BaseException), child  # a missing parent would be made
        await first.sync()
        value = (await first.get(path)).value
        assert value == (b"parent" if isinstance(deleted, Conflict) else b"")


@_check
async def an_answered_write_is_seen_by_others_after_sync(make: Make) -> None:
    writer, reader = await make(), await make()
    version = (await writer.create("/a", b"0")).version
    for count in range(1, 20):
        version = await writer.put("/a", b"%d" % count, version)
        await reader.sync()
        assert await reader.get("/a") == (b"%d" % count, version)


@_check
async def what_was_written_outlives_the_store_that_wrote_it(make: Make) -> None:
    writer = await make()
    version = (await writer.create("/a/b", b"kept")).version
    await writer.close()
    reader = await make()
    assert await reader.get("/a/b") == (b"kept", version)


@_check
async def a_cancelled_call_leaves_the_store_usable(make: Make) -> None:
    store = await make()
    version = (await store.create("/a", b"0")).version
    for _ in range(5):
        call = asyncio.ensure_future(store.put("/a", b"1", version))
        await asyncio.sleep(0)
        call.cancel()
        try:
            version = await call
        except asyncio.CancelledError:
            await store.sync()
            version = (await store.get("/a")).version
    # A cancelled write may still be under way, so only the compare-and-set loop is sure to end.
    before = await store.get("/a")
    assert before.value in (b"0", b"1")
    await store.create("/n", b"7")
    await _increment(store, "/n")
    assert (await store.get("/n")).value == b"8"


# --- Sessions and ephemeral nodes -------------------------------------------------------------


@_check
async def sessions_have_different_ids(make: Make) -> None:
    first, second = await make(), await make()
    session = await first.session()
    assert session.id == (await first.session()).id
    assert session.id != (await second.session()).id
    assert not session.lost.is_set()


@_check
async def an_ephemeral_node_lives_as_long_as_its_session(make: Make) -> None:
    owner, other = await make(), await make()
    created = await owner.create("/dir/e", b"here", ephemeral=True)
    await owner.create("/dir/p", b"stays")
    await other.sync()
    assert await other.get("/dir/e") == (b"here", created.version)
    assert await other.children("/dir") == ["e", "p"]
    await owner.close()

    async def gone() -> bool:
        return not await exists(other, "/dir/e")

    await until(gone, "an ephemeral node goes with its session")
    assert await other.children("/dir") == ["p"]
    await refused(other.put("/dir/e", b"", created.version), NotFound)
    await refused(other.delete("/dir/e", created.version), NotFound)


@_check
async def the_end_of_another_session_does_not_matter(make: Make) -> None:
    owner, other = await make(), await make()
    created = await owner.create("/e", b"mine", ephemeral=True)
    await other.create("/f", b"theirs", ephemeral=True)
    version = await other.put("/e", b"touched by another", created.version)
    await other.close()
    third = await make()
    assert await third.get("/e") == (b"touched by another", version)


@_check
async def a_dead_sessions_path_can_be_taken_at_once_and_with_new_versions(make: Make) -> None:
    first, second, third = await make(), await make(), await make()
    created = await first.create("/e", b"1", ephemeral=True)
    versions = [created.version, await first.put("/e", b"2", created.version)]
    await first.close()

    async def taken() -> bool:
        try:
            versions.append((await second.create("/e", b"3", ephemeral=True)).version)
        except AlreadyExists:
            return False
        return True

    await until(taken, "the path of a dead session's node is free")
    assert len(set(versions)) == 3, f"a version came twice: {versions}"
    await third.sync()
    assert await third.get("/e") == (b"3", versions[-1])


@_check
async def an_ephemeral_node_can_be_deleted_by_anybody(make: Make) -> None:
    owner, other = await make(), await make()
    created = await owner.create("/e", b"", ephemeral=True)
    await other.delete("/e", created.version)
    await owner.sync()
    await refused(owner.get("/e"), NotFound)
    again = await owner.create("/e", b"", ephemeral=True)
    assert again.version != created.version


@_check
async def an_ephemeral_node_has_no_children(make: Make) -> None:
    store = await make()
    await store.create("/e", b"", ephemeral=True)
    await refused(store.create("/e/c", b""), Conflict)
    await refused(store.create("/e/c/d", b""), Conflict)
    assert await store.children("/e") == []


@_check
async def an_ephemeral_node_may_be_sequential(make: Make) -> None:
    owner, other = await make(), await make()
    first = await owner.create("/q/n-", b"", ephemeral=True, sequential=True)
    await owner.close()

    async def empty() -> bool:
        await other.sync()
        return await other.children("/q") == []

    await until(empty, "the node goes with its session")
    second = await other.create("/q/n-", b"", ephemeral=True, sequential=True)
    assert second.path > first.path


@_check
async def a_parent_whose_ephemeral_children_died_can_be_deleted(make: Make) -> None:
    owner, other = await make(), await make()
    version = (await other.create("/dir", b"")).version
    await owner.create("/dir/a", b"", ephemeral=True)
    await owner.create("/dir/b", b"", ephemeral=True)
    await refused(other.delete("/dir", version), Conflict)
    await owner.close()

    async def deleted() -> bool:
        try:
            await other.delete("/dir", version)
        except Conflict:
            return False
        return True

    await until(deleted, "dead children are no children")
    await refused(other.get("/dir"), NotFound)


@_check
async def a_closed_store_refuses_everything_and_closes_again(make: Make) -> None:
    store = await make()
    await store.create("/a", b"")
    await store.close()
    await store.close()
    await refused(store.get("/a"), WriterClosed)
    await refused(store.create("/b", b""), WriterClosed)
    await refused(store.put("/a", b"", 0), WriterClosed)
    await refused(store.delete("/a", 0), WriterClosed)
    await refused(store.children("/a"), WriterClosed)
    await refused(store.sync(), WriterClosed)


# --- Watches ----------------------------------------------------------------------------------


async def _told(watch: Watch) -> None:
    assert await watch.wait(PATIENCE_S * 1000), "nobody told of the change"


async def _quiet(watch: Watch) -> None:
    """Hints may come twice, so a quiet watch is one that becomes quiet."""
    for _ in range(20):
        if not await watch.wait(QUIET_MS):
            return
    raise AssertionError("a watch tells of changes where there are none")


@_check
async def a_watch_is_quiet_when_nothing_changes(make: Make) -> None:
    store, other = await make(), await make()
    await store.create("/a", b"")
    async with store.watch("/a") as watch, store.watch("/none") as none:
        await _quiet(watch)
        await _quiet(none)
        await other.create("/b", b"")
        await _quiet(watch)
        await _quiet(none)


@_check
async def a_watch_tells_of_each_kind_of_change(make: Make) -> None:
    store, other = await make(), await make()
    async with store.watch("/a") as watch:
        await _quiet(watch)
        version = (await other.create("/a", b"")).version
        await _told(watch)
        await _quiet(watch)
        version = await other.put("/a", b"1", version)
        await _told(watch)
        await _quiet(watch)
        child = await other.create("/a/b", b"")
        await _told(watch)
        await _quiet(watch)
        await other.delete("/a/b", child.version)
        await _told(watch)
        await _quiet(watch)
        await other.delete("/a", version)
        await _told(watch)
        await _quiet(watch)


@_check
async def a_watch_wakes_a_wait_that_began_before_the_change(make: Make) -> None:
    store, other = await make(), await make()
    version = (await other.create("/a", b"")).version
    await store.sync()
    async with store.watch("/a") as watch:
        await _quiet(watch)
        waiting = asyncio.ensure_future(watch.wait(PATIENCE_S * 1000))
        await other.put("/a", b"1", version)
        assert await waiting
        await store.sync()
        assert (await store.get("/a")).value == b"1"


@_check
async def a_change_between_the_begin_and_the_wait_is_not_missed(make: Make) -> None:
    store, other = await make(), await make()
    version = (await store.create("/a", b"")).version
    async with store.watch("/a") as watch:
        await other.sync()
        await other.put("/a", b"1", version)
        await _told(watch)


@_check
async def a_watch_tells_of_our_own_writes(make: Make) -> None:
    store = await make()
    version = (await store.create("/a", b"")).version
    async with store.watch("/a") as watch:
        waiting = asyncio.ensure_future(watch.wait(PATIENCE_S * 1000))
        await store.put("/a", b"1", version)
        assert await waiting


@_check
async def a_watch_tells_of_a_presence_that_ends(make: Make) -> None:
    owner, store = await make(), await make()
    await owner.create("/dir/e", b"", ephemeral=True)
    await store.sync()
    async with store.watch("/dir/e") as node, store.watch("/dir") as parent:
        await _quiet(node)
        await _quiet(parent)
        await owner.close()
        await _told(node)
        await _told(parent)


@_check
async def many_watches_hear_of_one_change(make: Make) -> None:
    store, other = await make(), await make()
    version = (await other.create("/a", b"")).version
    await store.sync()

    async def hear() -> None:
        async with store.watch("/a") as watch:
            await _told(watch)

    watches = [asyncio.ensure_future(hear()) for _ in range(10)]

    async def changed() -> bool:
        nonlocal version
        version = await other.put("/a", b"", version)
        return all(watch.done() for watch in watches)

    await until(changed, "every watch hears of a change")
    await asyncio.gather(*watches)


@_check
async def a_wait_ends_when_the_store_closes(make: Make) -> None:
    store = await make()
    await store.create("/a", b"")
    async with store.watch("/a") as watch:
        await _quiet(watch)
        waiting = asyncio.ensure_future(watch.wait(PATIENCE_S * 1000))
        await asyncio.sleep(0)
        await store.close()
        await refused(waiting, WriterClosed)


# --- Lost sessions ----------------------------------------------------------------------------


@_loss_check
async def a_lost_session_takes_its_nodes_along_and_its_owner_learns_of_it(
    make: Make, lose: Lose
) -> None:
    owner, other = await make(), await make()
    session = await owner.session()
    await owner.create("/e", b"", ephemeral=True)
    await owner.create("/p", b"")
    await lose(owner)

    async def gone() -> bool:
        return not await exists(other, "/e")

    async def told() -> bool:
        try:
            await owner.sync()
            await owner.get("/p")
        except DlogError:
            pass  # some backends lose the whole handle with the session
        return session.lost.is_set()

    await until(gone, "the nodes of a lost session go")
    await until(told, "the owner of a lost session is told")
    assert await exists(other, "/p")


@_loss_check
async def a_lost_session_owns_nothing_any_more(make: Make, lose: Lose) -> None:
    owner, other = await make(), await make()
    await owner.create("/e", b"", ephemeral=True)
    await lose(owner)
    error = await refused(owner.create("/f", b"", ephemeral=True), LeaseLost)
    assert error.path is None or error.path == "/f"
    assert not await exists(other, "/f")
    again = await other.create("/f", b"", ephemeral=True)
    assert again.path == "/f"
