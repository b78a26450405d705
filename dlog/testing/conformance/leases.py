"""The contract of lease stores as checks: `CHECKS` is all of them.

A check gets a `Bench`: members of one group, each with a store of its own on one tree that is empty
when the check begins. A member is registered, and dies when it is buried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from dlog.effects import Procedure
from dlog.errors import Conflict, DlogError, LeaseLost, TooLarge
from dlog.groups import presence
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.store import Held, LeaseStore, take
from dlog.groups.view import WorkerId
from dlog.ids import MessageId, Position


class Member(Protocol):
    id: WorkerId
    store: LeaseStore

    async def run(self, procedure: Procedure[Any]) -> Any: ...


class Bench(Protocol):
    async def member(self) -> Member:
        """A new one; nothing is registered yet."""
        ...


Check = Callable[[Bench], Awaitable[None]]
CHECKS: list[Check] = []
APP_BYTES = b"\x00what the program keeps\xff"


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def at(seq: int, app: bytes = b"") -> Checkpoint:
    after = MessageId(7, seq, 0) if seq else None
    return Checkpoint(Position("a-log", seq, after), app)


async def join(bench: Bench) -> Member:
    member = await bench.member()
    await member.run(presence.register(member.store.places, member.id, None))
    return member


async def bury(by: Member, dead: Member) -> None:
    seen = await by.run(presence.read_worker(by.store.places, dead.id))
    if seen is not None:
        await by.run(presence.bury(by.store.places, dead.id, seen.node.counter))


async def claim(member: Member, shard: str = "s", **more: Any) -> Held:
    held: Held = await member.run(member.store.claim(shard, member.id, **more))
    return held


async def look(member: Member, shard: str = "s") -> Lease:
    seen: Held = await member.run(member.store.look(shard))
    return seen.lease


async def read(member: Member, shard: str = "s") -> Lease:
    lease: Lease = await member.run(member.store.read(shard))
    return lease


async def save(member: Member, held: Held, seq: int) -> Held:
    saved: Held = await member.run(member.store.save(held, member.id, at(seq)))
    return saved


async def release(member: Member, held: Held, seq: int | None = None) -> None:
    last = None if seq is None else at(seq)
    await member.run(member.store.release(held, member.id, last))


async def refused(call: Awaitable[Any], *kinds: type[DlogError]) -> None:
    try:
        answer = await call
    except kinds:
        return
    raise AssertionError(f"answered {answer!r}")


@check
async def lh_26_42_a_shard_that_nobody_had_is_free(bench: Bench) -> None:
    member = await join(bench)
    assert await look(member) == Lease("s")
    held = await claim(member)
    assert held.lease.epoch > 0
    assert held.lease.checkpoint is None
    found = await look(member)
    assert found.owner == found.consumer == member.id


@check
async def lh_19_46_of_many_that_claim_one_wins(bench: Bench) -> None:
    members = [await join(bench) for _ in range(4)]
    for turn in range(3):
        calls = [claim(each, f"s{turn}") for each in members]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        won = [each for each in answers if isinstance(each, Held)]
        others = [each for each in answers if not isinstance(each, Held)]
        assert len(won) == 1, f"{len(won)} won"
        assert all(isinstance(each, Conflict) for each in others), others
        assert (await look(members[0], f"s{turn}")).consumer == won[0].lease.consumer


@check
async def lh_01_a_living_consumer_is_not_robbed(bench: Bench) -> None:
    first, second = await join(bench), await join(bench)
    held = await claim(first)
    await refused(claim(second), Conflict)
    assert (await save(first, held, 3)).lease.epoch == held.lease.epoch


@check
async def lh_36_the_lease_of_a_dead_one_is_taken_at_once(bench: Bench) -> None:
    first, second = await join(bench), await join(bench)
    held = await save(first, await claim(first), 5)
    await bury(second, first)
    taken = await claim(second)
    assert taken.lease.epoch > held.lease.epoch
    assert taken.lease.checkpoint == at(5)
    found = await look(second)
    assert found.owner == found.consumer == second.id


@check
async def i20_lh_52_a_zombie_changes_nothing(bench: Bench) -> None:
    first, second = await join(bench), await join(bench)
    held = await save(first, await claim(first), 5)
    await bury(second, first)
    taken = await claim(second)
    await refused(save(first, held, 6), LeaseLost)
    await refused(release(first, held, 7), LeaseLost)
    await refused(first.run(first.store.finish(held, first.id, at(8))), LeaseLost)
    await refused(first.run(first.store.prove(held, first.id)), LeaseLost)
    assert (await read(second)).checkpoint == at(5)
    assert (await save(second, taken, 6)).lease.checkpoint == at(6)


@check
async def lh_37_a_thief_announces_itself_and_the_victim_goes_on(bench: Bench) -> None:
    victim, thief = await join(bench), await join(bench)
    held = await claim(victim)
    lease: Lease = await thief.run(thief.store.announce("s", thief.id))
    assert (lease.owner, lease.consumer) == (thief.id, victim.id)
    await refused(claim(thief), Conflict)
    held = await save(victim, held, 4)
    assert held.lease.checkpoint == at(4)
    again: Lease = await thief.run(thief.store.announce("s", thief.id))
    assert again.owner == thief.id


@check
async def lh_48_flaw_4_a_release_is_the_thiefs_turn_with_the_last_checkpoint(bench: Bench) -> None:
    victim, thief, other = await join(bench), await join(bench), await join(bench)
    held = await save(victim, await claim(victim), 4)
    await thief.run(thief.store.announce("s", thief.id))
    await release(victim, held, 9)
    found = await look(other)
    assert (found.owner, found.consumer) == (thief.id, None)
    await refused(claim(other), Conflict)
    taken = await claim(thief)
    assert taken.lease.checkpoint == at(9)
    assert taken.lease.epoch > held.lease.epoch


@check
async def a_released_lease_whose_thief_died_is_free(bench: Bench) -> None:
    victim, thief, other = await join(bench), await join(bench), await join(bench)
    held = await claim(victim)
    await thief.run(thief.store.announce("s", thief.id))
    await release(victim, held, 2)
    await bury(other, thief)
    assert (await claim(other)).lease.checkpoint == at(2)


@check
async def a_released_lease_is_free_for_all(bench: Bench) -> None:
    first, second = await join(bench), await join(bench)
    await release(first, await claim(first), 2)
    found = await look(second)
    assert (found.owner, found.consumer) == (None, None)
    await claim(second)


@check
async def a_release_that_is_made_twice_is_one(bench: Bench) -> None:
    """Its answer may get lost."""
    member, other = await join(bench), await join(bench)
    held = await claim(member)
    await release(member, held, 2)
    await release(member, held, 2)
    assert (await claim(other)).lease.checkpoint == at(2)


@check
async def a_thief_may_change_its_mind(bench: Bench) -> None:
    victim, thief = await join(bench), await join(bench)
    held = await claim(victim)
    await thief.run(thief.store.announce("s", thief.id))
    await thief.run(thief.store.renounce("s", thief.id))
    assert (await look(victim)).owner == victim.id
    await release(victim, held, 1)
    await claim(thief)


@check
async def a_victim_that_had_its_time_is_fenced(bench: Bench) -> None:
    victim, thief, other = await join(bench), await join(bench), await join(bench)
    held = await save(victim, await claim(victim), 4)
    await refused(claim(other, over=victim.id), Conflict)  # it announced nothing
    await thief.run(thief.store.announce("s", thief.id))
    await refused(claim(other, over=victim.id), Conflict)
    taken = await claim(thief, over=victim.id)
    assert taken.lease.checkpoint == at(4)
    await refused(save(victim, held, 5), LeaseLost)


@check
async def i20_each_grant_has_a_higher_epoch(bench: Bench) -> None:
    members, epochs = [await join(bench) for _ in range(2)], [0]
    for turn in range(6):
        member = members[turn % 2]
        held = await claim(member)
        epochs.append(held.lease.epoch)
        await release(member, held)
    assert epochs == sorted(set(epochs)), epochs


@check
async def lh_flaw_10_what_names_us_and_we_do_not_know_of_is_claimed_anew(bench: Bench) -> None:
    """As when the answer of a claim was lost."""
    member = await join(bench)
    held = await save(member, await claim(member), 3)
    again = await claim(member)
    assert again.lease.epoch > held.lease.epoch
    assert again.lease.checkpoint == at(3)
    await refused(save(member, held, 4), LeaseLost)


@check
async def lh_flaw_10_another_incarnation_is_another_worker(bench: Bench) -> None:
    first, second = await join(bench), await join(bench)
    second.id = WorkerId(first.id.name, "another")
    await second.run(presence.register(second.store.places, second.id, None))
    held = await claim(first)
    await refused(claim(second), Conflict)
    await refused(second.run(second.store.save(held, second.id, at(1))), LeaseLost)


@check
async def i21_a_checkpoint_does_not_go_back(bench: Bench) -> None:
    member = await join(bench)
    held = await save(member, await claim(member), 9)
    await refused(save(member, held, 8), Conflict)
    assert (await read(member)).checkpoint == at(9)
    assert (await save(member, held, 9)).lease.checkpoint == at(9)


@check
async def lh_47_a_checkpoint_carries_bytes_of_the_program(bench: Bench) -> None:
    member = await join(bench)
    held = await claim(member)
    held = await member.run(member.store.save(held, member.id, at(1, APP_BYTES)))
    kept = (await read(await join(bench))).checkpoint
    assert kept == at(1, APP_BYTES)
    try:
        at(2, bytes(1 << 20))
    except TooLarge:
        return
    raise AssertionError("there is no bound")


@check
async def lh_50_many_checkpoints_leave_the_last(bench: Bench) -> None:
    member = await join(bench)
    held = await claim(member)
    for seq in range(1, 40):
        held = await save(member, held, seq)
    assert (await read(member)).checkpoint == at(39)


@check
async def lh_39_a_lease_is_proven_without_a_change_of_it(bench: Bench) -> None:
    member = await join(bench)
    held = await save(member, await claim(member), 3)
    proven: Held = await member.run(member.store.prove(held, member.id))
    assert (proven.lease.epoch, proven.lease.checkpoint) == (held.lease.epoch, at(3))
    await save(member, proven, 4)


@check
async def lh_flaw_7_an_end_is_for_ever(bench: Bench) -> None:
    member, other = await join(bench), await join(bench)
    held = await claim(member)
    await member.run(member.store.finish(held, member.id, at(12)))
    found = await read(other)
    assert found.is_finished
    assert found.checkpoint == at(12)
    await refused(claim(other), Conflict)
    await refused(claim(member), Conflict)
    assert (await look(other)).is_finished


@check
async def what_names_us_can_be_dropped(bench: Bench) -> None:
    member, other = await join(bench), await join(bench)
    held = await save(member, await claim(member), 6)
    seen: Held = await member.run(member.store.look("s"))
    await member.run(member.store.drop(seen, member.id))
    taken = await claim(other)
    assert taken.lease.checkpoint == at(6)
    await refused(save(member, held, 7), LeaseLost)


@check
async def a_person_puts_a_shard_somewhere_else(bench: Bench) -> None:
    member = await join(bench)
    held = await save(member, await claim(member), 6)
    await refused(member.run(member.store.reset("s", at(2))), Conflict)
    await release(member, held)
    await member.run(member.store.reset("s", at(2)))
    taken = await claim(member)
    assert taken.lease.checkpoint == at(2)
    await member.run(member.store.reset("s", None, forced=True))
    await refused(save(member, taken, 7), LeaseLost)
    assert (await claim(member)).lease.checkpoint is None


@check
async def lh_36_37_taking_is_claiming_or_announcing(bench: Bench) -> None:
    victim, thief = await join(bench), await join(bench)
    held = await victim.run(take(victim.store, "s", victim.id))
    assert isinstance(held, Held)
    seen = await thief.run(take(thief.store, "s", thief.id))  # of nobody, as its plan had it
    assert isinstance(seen, Lease)
    assert seen.owner == victim.id
    coming = await thief.run(take(thief.store, "s", thief.id, victim=victim.id))
    assert isinstance(coming, Lease)
    assert coming.owner == thief.id
    again = await thief.run(take(thief.store, "s", thief.id, victim=victim.id, again=True))
    assert isinstance(again, Lease)
    await release(victim, held, 3)
    taken = await thief.run(take(thief.store, "s", thief.id, victim=victim.id, again=True))
    assert isinstance(taken, Held)
    assert taken.lease.checkpoint == at(3)


@check
async def shards_do_not_mind_each_other(bench: Bench) -> None:
    member, other = await join(bench), await join(bench)
    first, second = await claim(member, "a/b"), await claim(other, "a.b%")
    await save(member, first, 1)
    await save(other, second, 2)
    assert (await read(member, "a/b")).checkpoint == at(1)
    assert (await read(member, "a.b%")).checkpoint == at(2)
