"""What has to be true of a group, at each step and at the end of a history: it sees the truth of
the stores, what each worker delivers, and what its program did."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.view import WorkerId
from dlog.testing.sim.world import World, require

HELD, EXCLUSIVE, MONOTONE, ONE_OWNER, ONCE = "I19", "I20", "I21", "I22", "LH-11"
ORDER, PARENTS, FLUSHED = "LH flaw 9", "LH flaw 7", "LH-51"


class GroupOracle:
    def __init__(self, world: World, keeps_in_logs: bool) -> None:
        self.world = world
        self.keeps_in_logs = keeps_in_logs
        self.members: dict[WorkerId, Any] = {}
        self.shards: dict[str, Any] = {}
        self.leases: dict[str, Lease] = {}  # the truth of the nodes
        self.kept: dict[str, Lease] = {}  # the truth of the checkpoints
        self.granted: dict[str, int] = {}
        self.delivered: dict[tuple[str, int], int] = {}
        self.processed: Counter[tuple[str, int]] = Counter()
        self.said: dict[tuple[str, int], Checkpoint] = {}  # by the program of a grant
        self.forced: set[str] = set()
        self.robbed = False  # somebody crashed, was taken for dead, or was fenced by force
        self.fenced_late: set[str] = set()
        self.changes = 0  # of consumers
        self.let_go: set[tuple[str, WorkerId]] = set()

    # --- stores

    def on_node(self, lease: Lease) -> None:
        """A lease's node was written."""
        shard = lease.shard
        was = self.leases.get(shard, Lease(shard))
        self.leases[shard] = lease
        require(lease.epoch >= was.epoch, EXCLUSIVE, "an epoch went back", shard, was, lease)
        require(not was.is_finished or lease.is_finished, PARENTS, "an end was undone", shard)
        if lease.consumer is not None and (lease.consumer, lease.epoch) != (
            was.consumer,
            was.epoch,
        ):
            self.changes += 1
            require(lease.epoch > was.epoch, EXCLUSIVE, "a grant without an epoch", shard, lease)
            if was.consumer not in (None, lease.consumer):
                self._on_robbed(shard, was.consumer)
        if lease.consumer is None and was.consumer is not None:
            self.let_go.add((shard, was.consumer))
        if not self.keeps_in_logs:
            self._on_kept(lease, was)

    def on_opening(self, member: WorkerId, shard: str) -> None:
        """The log of a lease: whoever had it is fenced, also by one that slept behind its claim,
        was taken for dead, and finds out next."""
        lease = self.leases.get(shard)
        if lease is not None and lease.consumer not in (None, member):
            self.world.mark("a claim of the dead fences")
            self.fenced_late.add(shard)

    def on_appended(self, lease: Lease) -> None:
        """A message got into a lease's log."""
        self._on_kept(lease, self.kept.get(lease.shard, Lease(lease.shard)))

    def _on_robbed(self, shard: str, victim: WorkerId | None) -> None:
        """Nobody loses a shard while it may believe that it has it, unless by force."""
        member = None if victim is None else self.members.get(victim)
        if member is None or shard in self.forced or not member.alive or member.core.has_ended:
            return
        if shard not in member.core.consumers:
            return  # a claim of its that came true when it had left
        now_s, deadline_s = member.now_s(), member.core.member.deadline_s
        require(
            now_s >= deadline_s,
            ONE_OWNER,
            f"{shard} was taken from {victim}, which may have it for another "
            f"{1000 * (deadline_s - now_s):.1f} ms",
        )
        self.robbed = True

    def _on_kept(self, lease: Lease, was: Lease) -> None:
        shard = lease.shard
        self.kept[shard] = lease
        if lease.checkpoint != was.checkpoint:
            require(was.consumer is not None, MONOTONE, "a checkpoint of nobody", shard, lease)
            require(lease.epoch == was.epoch, MONOTONE, "a checkpoint of another epoch", shard)
            require(lease.checkpoint is not None, MONOTONE, "a checkpoint is gone", shard, was)
            assert lease.checkpoint is not None
            at = lease.checkpoint.next_seq
            before = 0 if was.checkpoint is None else was.checkpoint.next_seq
            require(at >= before, MONOTONE, "a checkpoint went back", shard, before, at)
            most = self.delivered.get((shard, lease.epoch), 0)
            require(at <= most, MONOTONE, "a checkpoint of what was not delivered", shard, at, most)
        if lease.is_finished and not was.is_finished:
            total = self.shards[shard].total
            at = 0 if lease.checkpoint is None else lease.checkpoint.next_seq
            require(at == total, PARENTS, "an end before its messages", shard, at, total)

    # --- workers

    def on_started(
        self, member: WorkerId, shard: str, epoch: int, checkpoint: Checkpoint | None
    ) -> None:
        most = self.granted.get(shard, 0)
        require(epoch > most, EXCLUSIVE, f"{shard}: {member} was granted {epoch} after {most}")
        self.granted[shard] = epoch
        start = 0 if checkpoint is None else checkpoint.next_seq
        self.delivered[shard, epoch] = start
        kept = self.kept.get(shard)
        if kept is not None and kept.epoch == epoch:
            require(kept.checkpoint == checkpoint, MONOTONE, "it begins elsewhere", shard, start)

    def on_delivered(self, member: Any, shard: str, epoch: int, first: int, end: int) -> None:
        node = self.leases[shard]
        whose = node.consumer == member.id and self.granted[shard] == epoch
        whose = whose and (self.keeps_in_logs or node.epoch == epoch)
        require(
            whose or shard in self.forced,
            ONE_OWNER,
            f"{member.id} delivers {shard} at epoch {epoch}; it is {node.consumer}'s, {node.epoch}",
        )
        for parent in self.shards[shard].parents:
            done = self.leases.get(parent)
            require(done is not None and done.is_finished, PARENTS, f"{shard} before {parent}")
        at = self.delivered[shard, epoch]
        require(first == at, "I17", f"{shard}: delivered {first}, not {at}")
        head = self.shards[shard].head
        require(first >= head, HELD, f"{shard}: {first} was truncated, up to {head}")
        self.delivered[shard, epoch] = end

    def on_processed(self, shard: str, first: int, end: int) -> None:
        for seq in range(first, end):
            self.processed[shard, seq] += 1

    def on_stopped(self, member: WorkerId, shard: str, epoch: int, *, is_lost: bool) -> None:
        """What the program said last is kept, unless the shard was lost."""
        if is_lost:
            require(
                self.robbed
                or shard in (*self.forced, *self.fenced_late)
                or (shard, member) in self.let_go,
                EXCLUSIVE,
                f"{shard} was lost with epoch {epoch}, and nobody took it",
            )
            return
        said, kept = self.said.get((shard, epoch)), self.kept.get(shard)
        if said is not None:
            at = -1 if kept is None or kept.checkpoint is None else kept.checkpoint.next_seq
            require(at >= said.next_seq, FLUSHED, f"{shard}: {said.next_seq} was lost, kept {at}")

    # --- the end

    def check_end(self) -> None:
        for name, shard in self.shards.items():
            for seq in range(shard.total):
                times = self.processed[name, seq]
                require(times > 0, "I27", f"{name}: {seq} was never processed")
                require(
                    times == 1 or self.robbed or bool(self.forced),
                    ONCE,
                    f"{name}: {seq} was processed {times} times, and nobody crashed",
                )
