"""Checks of a MetaStore, one client at a time: nodes, versions, values, paths, numbers."""

from __future__ import annotations

import asyncio

from dlog.clock import SYSTEM_CLOCK
from dlog.errors import AlreadyExists, ConfigError, Conflict, NotFound, TooLarge
from dlog.limits import META_NODE_BYTES_MAX
from dlog.meta.store import NODE_BYTES_MAX, TellsTime
from dlog.testing.conformance.meta_tools import Make, check, refused

# --- One node ---


@check
async def a_created_node_can_be_read(make: Make) -> None:
    store = await make()
    created = await store.create("/a", b"one")
    assert created.path == "/a"
    assert await store.get("/a") == (b"one", created.version)


@check
async def a_missing_node_is_not_found(make: Make) -> None:
    store = await make()
    await refused(store.get("/a"), NotFound)
    await refused(store.put("/a", b"", 0), NotFound)
    await refused(store.delete("/a", 0), NotFound)
    await refused(store.children("/a"), NotFound)
    await store.create("/a", b"")
    await refused(store.get("/a/b"), NotFound)
    await refused(store.get("/aa"), NotFound)


@check
async def a_second_create_is_refused_and_changes_nothing(make: Make) -> None:
    first, second = await make(), await make()
    created = await first.create("/a", b"first")
    await refused(second.create("/a", b"second"), AlreadyExists)
    await refused(first.create("/a", b"third", ephemeral=True), AlreadyExists)
    assert await first.get("/a") == (b"first", created.version)


@check
async def a_store_that_tells_the_time_leaves_no_node(make: Make) -> None:
    """One hour is a generous bound for two clocks; it is the unit that must be right."""
    store = await make()
    if not isinstance(store, TellsTime):
        return
    await store.create("/a", b"")
    first_us = await store.wall_us("/a/clock-")
    assert first_us <= await store.wall_us("/a/clock-")
    assert abs(first_us - SYSTEM_CLOCK.wall_us()) < 3_600_000_000
    assert await store.children("/a") == []


@check
async def missing_parents_are_made_empty(make: Make) -> None:
    store = await make()
    await store.create("/a/b/c", b"leaf")
    assert (await store.get("/a")).value == b""
    assert (await store.get("/a/b")).value == b""
    assert await store.children("/a") == ["b"]
    await refused(store.create("/a/b", b""), AlreadyExists)


@check
async def a_parent_that_is_there_keeps_its_value_and_version(make: Make) -> None:
    store = await make()
    parent = await store.create("/a", b"parent")
    child = await store.create("/a/b", b"child")
    await store.put("/a/b", b"child again", child.version)
    assert await store.get("/a") == (b"parent", parent.version)


@check
async def the_root_is_there_and_stays(make: Make) -> None:
    store = await make()
    root = await store.get("/")
    assert await store.children("/") == []
    await refused(store.create("/", b""), AlreadyExists)
    await refused(store.delete("/", root.version), ConfigError)
    await store.create("/a", b"")
    assert await store.children("/") == ["a"]


@check
async def a_put_changes_value_and_version(make: Make) -> None:
    store = await make()
    seen = [(await store.create("/a", b"0")).version]
    for count in range(1, 6):
        seen.append(await store.put("/a", str(count).encode(), seen[-1]))
        assert await store.get("/a") == (str(count).encode(), seen[-1])
    assert len(set(seen)) == len(seen), f"a version came twice: {seen}"


@check
async def a_put_of_the_same_value_changes_the_version(make: Make) -> None:
    store = await make()
    created = await store.create("/a", b"same")
    assert await store.put("/a", b"same", created.version) != created.version


@check
async def a_put_at_an_old_version_is_a_conflict_and_changes_nothing(make: Make) -> None:
    first, second = await make(), await make()
    old = (await first.create("/a", b"0")).version
    now = await second.put("/a", b"1", old)
    await refused(first.put("/a", b"lost", old), Conflict)
    await first.sync()
    assert await first.get("/a") == (b"1", now)


@check
async def no_version_number_means_any(make: Make) -> None:
    store = await make()
    version = (await store.create("/a", b"0")).version
    for number in (-1, -2, version + 1, version + 1000):
        await refused(store.put("/a", b"lost", number), Conflict)
        await refused(store.delete("/a", number), Conflict)
    assert await store.get("/a") == (b"0", version)


@check
async def a_deleted_node_is_gone(make: Make) -> None:
    store = await make()
    version = (await store.create("/a/b", b"")).version
    await store.delete("/a/b", version)
    await refused(store.get("/a/b"), NotFound)
    await refused(store.delete("/a/b", version), NotFound)
    await refused(store.put("/a/b", b"", version), NotFound)
    assert await store.children("/a") == []


@check
async def a_delete_at_an_old_version_is_a_conflict_and_changes_nothing(make: Make) -> None:
    store = await make()
    old = (await store.create("/a", b"0")).version
    now = await store.put("/a", b"1", old)
    await refused(store.delete("/a", old), Conflict)
    assert await store.get("/a") == (b"1", now)


@check
async def a_node_with_children_cannot_be_deleted(make: Make) -> None:
    store = await make()
    parent = await store.create("/a", b"")
    child = await store.create("/a/b", b"")
    await refused(store.delete("/a", parent.version), Conflict)
    assert await store.children("/a") == ["b"]
    await store.delete("/a/b", child.version)
    await store.delete("/a", parent.version)
    await refused(store.get("/a"), NotFound)


@check
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


@check
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


# --- Values and paths ---


@check
async def values_come_back_bit_for_bit(make: Make) -> None:
    store = await make()
    values = [b"", b"\0", bytes(range(256)), "Grüße, 世界".encode(), b"\xff\xfe\x00", b"NULL", b"0"]
    for index, value in enumerate(values):
        version = (await store.create(f"/v{index}", value)).version
        assert (await store.get(f"/v{index}")).value == value
        await store.put(f"/v{index}", value[::-1], version)
        assert (await store.get(f"/v{index}")).value == value[::-1]


@check
async def a_value_as_large_as_the_largest_log_meta_fits(make: Make) -> None:
    store, other = await make(), await make()
    value = bytes(range(256)) * (META_NODE_BYTES_MAX // 256)
    version = (await store.create("/a", value)).version
    await other.sync()
    assert await other.get("/a") == (value, version)
    await other.put("/a", value[:-1] + b"!", version)
    await store.sync()
    assert (await store.get("/a")).value == value[:-1] + b"!"


@check
async def a_value_over_the_limit_is_refused(make: Make) -> None:
    store = await make()
    version = (await store.create("/a", b"small")).version
    big = bytes(NODE_BYTES_MAX + 1)
    await refused(store.put("/a", big, version), TooLarge)
    await refused(store.create("/b", big), TooLarge)
    assert await store.get("/a") == (b"small", version)
    assert await store.children("/") == ["a"]


@check
async def paths_may_hold_any_printable_text(make: Make) -> None:
    store = await make()
    names = ["ä", "世界", "🙂", "a b", "a%2Fb", "a'b\"c", "%_*?[]", "a.b", "...", "-", "NULL", "\\"]
    for name in names:
        await store.create(f"/dir/{name}", name.encode())
    assert await store.children("/dir") == sorted(names)
    for name in names:
        assert (await store.get(f"/dir/{name}")).value == name.encode()


@check
async def two_spellings_of_a_letter_are_two_names(make: Make) -> None:
    store = await make()
    await store.create("/\u00e9", b"one code point")
    await store.create("/e\u0301", b"two code points")
    await store.create("/E\u0301", b"upper case")
    assert len(await store.children("/")) == 3


@check
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


@check
async def children_are_names_of_one_level_in_order(make: Make) -> None:
    store = await make()
    for name in ["b", "a", "C", "a-b", "a/b", "a/b/c", "10", "9", "ab", "ä"]:
        await store.create(f"/dir/{name}", b"")
    await store.create("/dirt", b"")
    expected = ["10", "9", "C", "a", "a-b", "ab", "b", "ä"]
    assert await store.children("/dir") == expected
    assert await store.children("/dir/a") == ["b"]
    assert await store.children("/dir/b") == []


# --- Sequential nodes ---


@check
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


@check
async def sequential_numbers_survive_deletions(make: Make) -> None:
    store = await make()
    last = ""
    for _ in range(5):
        created = await store.create("/q/n-", b"", sequential=True)
        assert created.path > last
        last = created.path
        await store.delete(created.path, created.version)


@check
async def a_number_stands_alone_as_a_name(make: Make) -> None:
    store = await make()
    await store.create("/q", b"")
    created = await store.create("/q/0", b"", sequential=True)
    assert created.path.startswith("/q/0")
    assert len(created.path) == len("/q/0") + 10
    at_the_root = await store.create("/n", b"", sequential=True)
    assert len(at_the_root.path) == len("/n") + 10


@check
async def racing_sequential_creates_get_different_numbers(make: Make) -> None:
    stores = [await make() for _ in range(4)]
    created = await asyncio.gather(
        *(store.create("/q/n-", b"", sequential=True) for store in stores for _ in range(10))
    )
    assert len({node.path for node in created}) == 40
    await stores[0].sync()
    assert len(await stores[0].children("/q")) == 40
