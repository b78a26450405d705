"""What workers of a group do, in a world without faults: LH-02, LH-09 to LH-12, LH-23 to LH-27,
LH-36 to LH-39, LH-48, LH-51 to LH-59, flaws 4, 5, 7, 8, 9 and 10."""

from __future__ import annotations

import pytest

from dlog.errors import Broken, LeaseLost
from dlog.groups import asks
from dlog.groups.consumer import ShardConsumer, ShardState, StopReason, StopStep
from dlog.groups.core import WorkerCore
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.membership import GroupOptions, Phase
from dlog.groups.presence import SeenWorker
from dlog.groups.shards import GroupShard
from dlog.groups.store import Held
from dlog.groups.view import WorkerId
from dlog.groups.workers import WorkerNode
from dlog.ids import Position
from tests.unit.groups.calm import TIMEOUT_MS, CalmGroup

ME = WorkerId("me", "0" * 32)


def at(seq: int) -> Checkpoint:
    return Checkpoint(Position("u", seq, None))


# --- beginning


def test_lh_23_26_a_worker_registers_renews_and_takes_what_nobody_has() -> None:
    """LH-53: each lease that the worker holds has one consumer."""
    group = CalmGroup(shards=3)
    group.start()
    group.run(20)
    kinds = [type(what) for _, what in group.told]
    assert kinds[:3] == [asks.Register, asks.Renew, asks.ReadGroup]
    assert group.owners() == {"s0": "w0", "s1": "w0", "s2": "w0"}
    assert all(lease.epoch == 1 for lease in group.oracle.leases.values())
    started = [what.shard for _, what in group.told if isinstance(what, asks.StartShard)]
    assert sorted(started) == ["s0", "s1", "s2"]


def test_lh_20_24_25_flaw_2_who_has_nothing_is_seen_and_the_dead_do_not_count() -> None:
    """The list of shards and all that is taken are read at the start. A second worker of one shard
    has no lease, and is there all the same: when the first one dies, and every lease with it, it
    divides by the living, itself among them."""
    group = CalmGroup(shards=1, messages=0)
    group.start()
    group.run(20)
    idle = group.start()
    group.run(20)
    assert sorted(idle.core.graph.shards) == ["s0"]
    (other,) = idle.core.member.others.values()
    assert other.holds == ("s0",)
    assert idle.core.consumers == {}
    first = next(each for each in group.scene.living() if each is not idle)
    assert idle.id in first.core.member.others
    group.scene.weather.restarts = 0.0
    first.crash()
    group.run(2 * TIMEOUT_MS)
    assert group.owners() == {"s0": "w1"}


def test_lh_10_22_a_newcomer_gets_its_share_and_nobody_else_moves() -> None:
    group = CalmGroup(shards=5, messages=0)
    for _ in range(2):
        group.start()
    group.run(60)
    before = group.owners()
    group.start()
    group.run(60)
    after = group.owners()
    counts = sorted(list(after.values()).count(name) for name in ("w0", "w1", "w2"))
    assert counts == [1, 2, 2]
    assert {after[s] for s in after if after[s] != before[s]} == {"w2"}


def test_lh_flaw_8_nobody_waits_for_a_timer() -> None:
    """All of it in a fraction of a time-out, where the written rule has twice a time-out."""
    group = CalmGroup(shards=4, messages=0)
    group.start()
    group.run(30)
    group.start()
    group.run(TIMEOUT_MS / 4)
    assert sorted(group.owners().values()) == ["w0", "w0", "w1", "w1"]  # type: ignore[type-var]


def test_p36_a_group_without_watches_comes_to_the_same() -> None:
    group = CalmGroup(shards=4, messages=0, watches=False)
    group.start()
    group.run(30)
    group.start()
    group.run(4 * TIMEOUT_MS)
    assert sorted(group.owners().values()) == ["w0", "w0", "w1", "w1"]  # type: ignore[type-var]


def test_lh_09_a_shard_that_is_added_is_taken() -> None:
    """LH-21: the stream lists it, and nothing else says that it is there."""
    group = CalmGroup(shards=1)
    group.start()
    group.run(30)
    group.scene.shards["s9"] = type(group.scene.shards["s0"])("s9")
    group.scene.store_shards()
    group.run(30)
    assert group.owners() == {"s0": "w0", "s9": "w0"}


# --- handing over


def hand_over(**weather: object) -> CalmGroup:
    group = CalmGroup(shards=2, **weather)
    group.start()
    group.run(30)
    group.start()
    return group


def test_lh_37_39_48_flaw_4_a_hand_over_takes_as_long_as_its_victim() -> None:
    group = hand_over(messages=9, process_ms=0.0, batch=1)
    group.run(40)
    (stopped,) = group.of(asks.ShardStopped, "w0")
    assert stopped.reason is StopReason.HANDED_OVER
    (started,) = group.of(asks.StartShard, "w1")
    (released,) = group.of(asks.Release, "w0")
    assert started.shard == stopped.shard
    assert started.epoch == 2
    assert started.checkpoint == (released.checkpoint or released.held.lease.checkpoint)
    group.run(200)
    assert all(count == 1 for count in group.oracle.processed.values())


def test_lh_flaw_4_with_the_fixed_wait_the_shard_would_idle_for_a_time_out() -> None:
    """From the announcement to the first message of the thief, against one time-out."""
    group = hand_over(messages=0)
    before_ms = group.world.now_ms
    while not group.of(asks.StartShard, "w1"):
        group.run(1)
    assert group.world.now_ms - before_ms < TIMEOUT_MS / 5


def test_lh_11_51_a_rebalance_processes_nothing_twice_whatever_is_in_memory() -> None:
    group = hand_over(messages=9, batch=1, checkpoints="late")
    group.run(3 * TIMEOUT_MS)
    assert set(group.owners().values()) == {"w0", "w1"}
    assert len(group.oracle.processed) == 18
    assert set(group.oracle.processed.values()) == {1}


def test_lh_03_what_does_not_move_is_not_stopped() -> None:
    group = hand_over(messages=3)
    group.run(100)
    assert len(group.of(asks.StopFetch, "w0")) == 1


# --- the order of an end


def order_of(group: CalmGroup, worker: str, shard: str) -> list[str]:
    """Steps of one shard's end, and the end of its worker."""
    kinds = (asks.StopFetch, asks.Shutdown, asks.Release, asks.ShardStopped, asks.Leave)
    return [
        type(what).__name__
        for name, what in group.told
        if name == worker and isinstance(what, kinds) and getattr(what, "shard", shard) == shard
    ]


ORDER = ["StopFetch", "Shutdown", "Release", "ShardStopped"]


def test_lh_flaw_9_lh_57_stop_finish_flush_release_and_the_renewal_last() -> None:
    group = CalmGroup(shards=1, messages=5, batch=1, checkpoints="late")
    member = group.start()
    group.run(26)
    processor = member.processors["s0"]
    at_then = processor.at
    member.leave()
    assert order_of(group, "w0", "s0") == ["StopFetch"], "it is at work still"
    group.run(TIMEOUT_MS)
    assert order_of(group, "w0", "s0") == [*ORDER, "Leave"]
    (shutdown,) = group.of(asks.Shutdown)
    assert shutdown.reason is StopReason.CLOSING
    kept = group.oracle.kept["s0"].checkpoint
    assert kept is not None
    assert kept.next_seq >= at_then
    assert group.owners() == {"s0": None}
    assert group.scene.meta.below(group.scene.places.workers) == []
    (ended,) = group.of(asks.WorkerEnded)
    assert not ended.is_lost


def test_lh_51_a_shard_is_given_up_with_what_was_only_in_memory() -> None:
    group = CalmGroup(shards=1, messages=2, checkpoints="memory")
    member = group.start()
    group.run(40)
    member.leave()
    group.run(20)
    (released,) = group.of(asks.Release)
    assert released.checkpoint is not None
    assert released.checkpoint.next_seq == 2
    assert group.oracle.kept["s0"].checkpoint == released.checkpoint


def test_lh_flaw_7_the_end_of_a_shard_lets_its_children_begin() -> None:
    group = CalmGroup(shards=1, messages=3)
    group.start()
    group.run(30)
    parent = group.scene.shards["s0"]
    kind = type(parent)
    for side in "ab":
        group.scene.shards[f"s0{side}"] = kind(f"s0{side}", ("s0",), total=2)
    group.scene.store_shards()
    group.run(30)
    assert set(group.owners()) == {"s0"}, "their parent is open"
    parent.is_sealed = True
    parent.wake()
    group.run(60)
    assert group.oracle.leases["s0"].is_finished
    assert group.owners() == {"s0": None, "s0a": "w0", "s0b": "w0"}
    (ended,) = [s for s in group.of(asks.ShardStopped) if s.shard == "s0"]
    assert ended.reason is StopReason.ENDED


def test_a_job_ends_when_every_shard_is_at_its_end() -> None:
    group = CalmGroup(shards=3, messages=2, seals=True)
    for shard in group.scene.shards.values():
        shard.is_sealed = True
    group.start()
    group.start()
    group.run(4 * TIMEOUT_MS)
    assert group.scene.living() == []
    assert all(lease.is_finished for lease in group.oracle.leases.values())


# --- death


def test_lh_02_12_who_dies_is_replaced_behind_one_time_out() -> None:
    group = CalmGroup(shards=2, messages=3)
    first = group.start()
    group.run(30)
    group.start()
    group.run(30)
    group.scene.weather.restarts = 0.0
    first.crash()
    group.run(TIMEOUT_MS - 40)
    assert "w0" in group.owners().values(), "nobody may be sure yet"
    group.run(TIMEOUT_MS / 3 + 60)
    assert set(group.owners().values()) == {"w1"}


def test_lh_16_20_a_worker_without_metadata_goes_on_for_a_time_out_and_no_longer() -> None:
    group = CalmGroup(shards=1, messages=0)
    member = group.start()
    group.run(100)
    member.is_cut = True
    core, epoch = member.core, group.oracle.leases["s0"].epoch
    deadline_s = core.member.deadline_s
    assert core.may_deliver("s0", epoch, deadline_s - 0.001)
    assert core.still_owner("s0", epoch, deadline_s - 0.001)
    assert not core.may_deliver("s0", epoch, deadline_s)
    assert not core.still_owner("s0", epoch, deadline_s)
    group.run(2 * TIMEOUT_MS)
    assert not core.may_deliver("s0", epoch, member.now_s())
    member.is_cut = False
    group.run(TIMEOUT_MS / 2)
    assert core.may_deliver("s0", epoch, member.now_s()), "nobody was there to take it"
    assert len(group.of(asks.StartShard)) == 1


def test_i22_lh_flaw_5_a_zombie_is_told_by_every_way_it_can_ask() -> None:
    group = CalmGroup(shards=1, messages=2, checkpoints="late")
    first = group.start()
    group.run(40)
    group.start()
    group.scene.weather.restarts = 0.0
    first.frozen = True
    group.run(2 * TIMEOUT_MS)
    assert group.owners() == {"s0": "w1"}
    core = first.core
    assert not core.still_owner("s0", 1, first.now_s())
    first.thaw()
    group.run(50)
    (stopped,) = group.of(asks.ShardStopped, "w0")
    assert stopped.reason is StopReason.LOST
    (ended,) = group.of(asks.WorkerEnded, "w0")
    assert ended.is_lost
    with pytest.raises(LeaseLost):
        core.on_checkpoint("s0", 1, at(2), at_once=True, now_s=first.now_s())


def test_lh_flaw_10_lh_27_two_processes_of_one_name_are_two_workers_and_the_first_goes() -> None:
    group = CalmGroup(shards=2, messages=3)
    first = group.start("w7")
    group.run(40)
    second = group.start("w7")
    group.run(2 * TIMEOUT_MS)
    assert not first.alive
    (ended,) = group.of(asks.WorkerEnded)
    assert not ended.is_lost
    assert "name" in ended.why
    assert {lease.consumer for lease in group.oracle.leases.values()} == {second.id}
    assert {lease.epoch for lease in group.oracle.leases.values()} == {2}
    assert set(group.oracle.processed.values()) == {1}


@pytest.mark.parametrize("trusts", [True, False])
def test_lh_27_a_restart_keeps_its_shards_at_once_where_the_name_is_proof(trusts: bool) -> None:
    group = CalmGroup(shards=4, messages=0, trusts_name=trusts)
    first = group.start("w0")
    group.run(30)
    group.start("w1")
    group.run(60)
    before = {s for s, name in group.owners().items() if name == "w0"}
    group.scene.weather.restarts = 0.0
    first.crash()
    second = group.start("w0")
    group.run(50 if trusts else 2 * TIMEOUT_MS)
    kept = {s for s, lease in group.oracle.leases.items() if lease.consumer == second.id}
    assert kept == before
    assert not group.of(asks.StopFetch, "w1"), "nothing else moved"


# --- force


def test_lh_37_a_victim_that_takes_longer_than_it_may_is_fenced() -> None:
    group = hand_over(messages=1, force=True)
    victim = next(each for each in group.scene.living() if each.name == "w0")
    for processor in victim.processors.values():
        processor.is_busy = True  # for ever
    group.run(TIMEOUT_MS / 2)
    assert not group.of(asks.StartShard, "w1")
    group.run(TIMEOUT_MS)
    (started,) = group.of(asks.StartShard, "w1")
    assert started.epoch == 2
    assert victim.alive
    assert group.oracle.forced == {started.shard}
    at_start = group.told.index(("w1", started))
    rung = [what for _, what in group.told[at_start:] if isinstance(what, asks.Ring)]
    assert started.shard in rung[0].shards, "who was fenced is told so, though it was asked before"


def test_i22_two_that_say_to_have_one_shard_look() -> None:
    """Whoever was fenced, and was not told, has nothing to save, and would never learn it."""
    core = renewing()
    core.member.phase = Phase.MEMBER
    core.graph.update([GroupShard("s")])
    other = WorkerId("other", "1" * 32)
    core.member.others[other] = WorkerNode(other, holds=("s",))
    core.agenda.soon(1.0)
    core.on_time(5.0)
    (read,) = [each for each in core.take() if isinstance(each, asks.ReadGroup)]
    workers = {other: SeenWorker(core.member.others[other], 1)}
    core.answered(read, ([GroupShard("s")], workers), None, 5.0)
    (look,) = [each for each in core.take() if isinstance(each, asks.Look)]
    core.answered(look, Held(Lease("s", 5, other, other), 1, 5), None, 5.1)
    assert core.consumers["s"].reason is StopReason.LOST


# --- one shard


def held(epoch: int = 1) -> Held:
    return Held(Lease("s", epoch, ME, ME, at(3)), 1, epoch)


def test_lh_54_55_56_states_have_an_order() -> None:
    consumer = ShardConsumer("s", held(), 5.0, 0.0)
    assert consumer.state is ShardState.INITIALIZING
    with pytest.raises(Broken):
        consumer.delivered(at(4).position)
    with pytest.raises(Broken):
        consumer.completed()
    consumer.initialized()
    assert consumer.state is ShardState.PROCESSING
    assert consumer.stop(StopReason.CLOSING)
    assert not consumer.stop(StopReason.ENDED), "it stops once, for the first reason"
    consumer.initialized()
    assert consumer.state is ShardState.STOPPING
    for wrong in (consumer.shut_down, consumer.releasing, consumer.completed):
        with pytest.raises(Broken):
            wrong()
    consumer.finished_work()
    with pytest.raises(Broken):
        consumer.finished_work()
    consumer.shut_down()
    consumer.releasing()
    assert consumer.step is StopStep.RELEASING
    consumer.completed()
    assert consumer.state is ShardState.STOP_COMPLETED
    assert consumer.reason is StopReason.CLOSING
    with pytest.raises(Broken):
        consumer.completed()


def test_lh_48_58_it_begins_at_the_checkpoint_of_its_lease() -> None:
    consumer = ShardConsumer("s", held(), 5.0, 0.0)
    assert consumer.start == at(3)
    assert consumer.epoch == 1


def test_lh_59_nothing_is_delivered_before_it_is_initialized_or_with_another_epoch() -> None:
    core = WorkerCore(ME, 0.0, options=GroupOptions(timeout_s=20.0))
    core.member.confirmed_s = 0.0
    core.consumers["s"] = ShardConsumer("s", held(4), 5.0, 0.0)
    assert not core.may_deliver("s", 4, 1.0)
    core.consumers["s"].initialized()
    assert core.may_deliver("s", 4, 1.0)
    assert not core.may_deliver("s", 3, 1.0)
    assert not core.may_deliver("another", 4, 1.0)
    core.consumers["s"].stop(StopReason.HANDED_OVER)
    assert not core.may_deliver("s", 4, 1.0)
    assert core.still_owner("s", 4, 1.0), "it may finish what it is at"


def test_lh_56_a_shard_whose_program_failed_is_kept_and_fails_nowhere_else() -> None:
    group = CalmGroup(shards=1, messages=4, batch=2)
    member = group.start()
    group.run(25)
    member.core.on_failed("s0", member.now_s())
    member.pump()
    group.run(60)
    (stopped,) = group.of(asks.ShardStopped)
    assert stopped.reason is StopReason.FAILED
    assert group.owners() == {"s0": "w0"}
    assert "s0" in member.core.halted
    member.leave()
    group.run(60)
    assert group.owners() == {"s0": None}


# --- leases that are renewed one by one


def renewing() -> WorkerCore:
    core = WorkerCore(ME, 0.0, options=GroupOptions(timeout_s=20.0, prove_s=10.0))
    core.member.confirmed_s = 0.0
    core.consumers["s"] = ShardConsumer("s", held(4), 5.0, 0.0, prove_s=10.0)
    core.consumers["s"].initialized()
    return core


def proofs(core: WorkerCore) -> list[asks.Prove]:
    return [each for each in core.take() if isinstance(each, asks.Prove)]


def test_lh_39_a_lease_in_which_nothing_is_saved_is_renewed_in_its_store() -> None:
    core = renewing()
    core.on_time(9.9)
    assert proofs(core) == []
    core.on_time(10.0)
    (proof,) = proofs(core)
    core.on_time(15.0)
    assert proofs(core) == [], "one at a time"
    core.answered(proof, held(4), None, 15.0)
    core.on_time(24.9)
    assert proofs(core) == []
    core.on_time(25.0)
    assert len(proofs(core)) == 1


def test_lh_39_a_checkpoint_is_a_renewal() -> None:
    core = renewing()
    consumer = core.consumers["s"]
    consumer.delivered(at(5).position)
    core.on_checkpoint("s", 4, at(5), at_once=True, now_s=9.0)
    (save,) = [each for each in core.take() if isinstance(each, asks.Save)]
    core.answered(save, Held(Lease("s", 4, ME, ME, at(5)), 2, 4), None, 9.5)
    core.on_time(19.4)
    assert proofs(core) == []
    core.on_time(19.5)
    (proof,) = proofs(core)
    assert proof.held.lease.checkpoint == at(5), "a renewal takes nothing back"


def test_lh_52_whoever_was_fenced_learns_it_by_its_next_renewal() -> None:
    core = renewing()
    core.on_time(10.0)
    (proof,) = proofs(core)
    core.answered(proof, None, LeaseLost("the log was taken over"), 10.1)
    assert not core.still_owner("s", 4, 10.1)
    assert core.consumers["s"].reason is StopReason.LOST
    core.on_time(30.0)
    assert proofs(core) == [], "what is lost is not renewed"


def test_what_failed_here_goes_back_when_it_is_resumed() -> None:
    group = CalmGroup(shards=1, messages=4, batch=2)
    member = group.start()
    group.run(25)
    member.core.on_failed("s0", member.now_s())
    member.pump()
    group.run(60)
    assert "s0" in member.core.halted
    member.core.resume("another", member.now_s())
    member.core.resume("s0", member.now_s())
    member.pump()
    group.run(60)
    assert member.core.halted == {}
    first, again = group.of(asks.StartShard)
    assert again.epoch > first.epoch
    assert group.owners() == {"s0": "w0"}
    kept = group.oracle.kept["s0"].checkpoint
    assert kept is not None
    assert kept.next_seq == 4


def test_i21_a_checkpoint_that_comes_while_the_shard_is_released_is_refused() -> None:
    """A try to release it whose answer was lost may have been applied without it: it would be told
    as kept by the next one, which finds the shard released."""
    core = WorkerCore(ME, 0.0, options=GroupOptions(timeout_s=20.0))
    consumer = core.consumers["s"] = ShardConsumer("s", held(), 5.0, 0.0)
    consumer.initialized()
    core.on_delivered("s", at(9).position)
    consumer.stop(StopReason.CLOSING)
    consumer.finished_work()
    core.on_checkpoint("s", 1, at(8), at_once=False, now_s=1.0)
    consumer.shut_down()
    consumer.releasing()
    with pytest.raises(LeaseLost):
        core.on_checkpoint("s", 1, at(9), at_once=False, now_s=1.0)
