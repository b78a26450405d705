"""Checks of a MetaStore's sessions: presence that ends with its owner, also against its will."""

from __future__ import annotations

from dlog.errors import AlreadyExists, Conflict, DlogError, LeaseLost, NotFound, WriterClosed
from dlog.testing.conformance.meta_tools import (
    Lose,
    Make,
    check,
    exists,
    loss_check,
    refused,
    until,
)

# --- Sessions and ephemeral nodes ---


@check
async def sessions_have_different_ids(make: Make) -> None:
    first, second = await make(), await make()
    session = await first.session()
    assert session.id == (await first.session()).id
    assert session.id != (await second.session()).id
    assert not session.lost.is_set()


@check
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


@check
async def the_end_of_another_session_does_not_matter(make: Make) -> None:
    owner, other = await make(), await make()
    created = await owner.create("/e", b"mine", ephemeral=True)
    await other.create("/f", b"theirs", ephemeral=True)
    version = await other.put("/e", b"touched by another", created.version)
    await other.close()
    third = await make()
    assert await third.get("/e") == (b"touched by another", version)


@check
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


@check
async def an_ephemeral_node_can_be_deleted_by_anybody(make: Make) -> None:
    owner, other = await make(), await make()
    created = await owner.create("/e", b"", ephemeral=True)
    await other.delete("/e", created.version)
    await owner.sync()
    await refused(owner.get("/e"), NotFound)
    again = await owner.create("/e", b"", ephemeral=True)
    assert again.version != created.version


@check
async def an_ephemeral_node_has_no_children(make: Make) -> None:
    store = await make()
    await store.create("/e", b"", ephemeral=True)
    await refused(store.create("/e/c", b""), Conflict)
    await refused(store.create("/e/c/d", b""), Conflict)
    assert await store.children("/e") == []


@check
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


@check
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


@check
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


# --- Lost sessions ---


@loss_check
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


@loss_check
async def a_lost_session_owns_nothing_any_more(make: Make, lose: Lose) -> None:
    owner, other = await make(), await make()
    await owner.create("/e", b"", ephemeral=True)
    await lose(owner)
    error = await refused(owner.create("/f", b"", ephemeral=True), LeaseLost)
    assert error.path is None or error.path == "/f"
    assert not await exists(other, "/f")
    again = await other.create("/f", b"", ephemeral=True)
    assert again.path == "/f"
