"""LH-17 to LH-19, LH-36 to LH-39, LH-42, LH-47, LH-52: leases, their changes and bytes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog import limits
from dlog.chance import SYSTEM_CHANCE
from dlog.effects import ReadNode, ReplaceNode
from dlog.errors import (
    AuthError,
    Conflict,
    DlogError,
    FormatError,
    LeaseLost,
    Outcome,
    Retry,
    TooLarge,
    Unavailable,
)
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.meta_leases import MetaLeases
from dlog.groups.places import GroupPlaces
from dlog.groups.store import Held
from dlog.groups.view import WorkerId
from dlog.groups.workers import WorkerNode, codes_and_causes, with_cause
from dlog.ids import MessageId, Position
from dlog.meta.layout import Layout
from dlog.meta.store import Versioned

ANA, BOB = WorkerId("ana", "a" * 32), WorkerId("bob", "b" * 32)


def at(seq: int, app: bytes = b"") -> Checkpoint:
    return Checkpoint(Position("a-log", seq, MessageId(3, seq, 0)), app)


def test_lh_18_26_a_new_lease_is_nobodys_and_free_at_once() -> None:
    lease = Lease("s")
    assert (lease.epoch, lease.owner, lease.consumer) == (0, None, None)
    assert lease.taken(ANA, 1).epoch == 1


def test_lh_36_a_lease_that_is_taken_has_both_owners() -> None:
    lease = Lease("s").taken(ANA, 1)
    assert lease.owner == lease.consumer == ANA
    assert not lease.is_handed_over


def test_lh_37_a_lease_that_is_stolen_changes_its_owner_and_nothing_else() -> None:
    before = Lease("s").taken(ANA, 1).saved(ANA, 1, at(4), 2)
    lease = before.announced(BOB, 3)
    assert (lease.owner, lease.consumer, lease.epoch) == (BOB, ANA, 1)
    assert lease.checkpoint == before.checkpoint
    assert lease.is_handed_over
    with pytest.raises(Conflict):
        Lease("s").announced(BOB, 1)  # nobody has it: it is taken, not stolen
    with pytest.raises(Conflict):
        before.announced(ANA, 3)


def test_lh_39_two_phases_and_an_epoch_for_each_consumer() -> None:
    lease = Lease("s").taken(ANA, 1).announced(BOB, 2).released(ANA, 1, at(9), 3)
    assert (lease.owner, lease.consumer, lease.epoch) == (BOB, None, 1)
    lease = lease.taken(BOB, 4)
    assert (lease.consumer, lease.epoch, lease.checkpoint) == (BOB, 2, at(9))


def test_lh_52_the_consumer_saves_whoever_owns_the_lease() -> None:
    lease = Lease("s").taken(ANA, 1).announced(BOB, 2)
    assert lease.saved(ANA, 1, at(5), 3).checkpoint == at(5)
    with pytest.raises(LeaseLost):
        lease.saved(BOB, 1, at(5), 3)


def test_i20_an_old_epoch_changes_nothing() -> None:
    lease = Lease("s").taken(ANA, 1).released(ANA, 1, None, 2).taken(ANA, 3)
    for refused in (
        lambda: lease.saved(ANA, 1, at(1), 4),
        lambda: lease.released(ANA, 1, None, 4),
        lambda: lease.finished(ANA, 1, None, 4),
    ):
        with pytest.raises(LeaseLost):
            refused()
    with pytest.raises(Conflict):
        lease.taken(BOB, 5, epoch=lease.epoch)


def test_i21_a_checkpoint_does_not_go_back_but_by_a_person() -> None:
    lease = Lease("s").taken(ANA, 1).saved(ANA, 1, at(5), 2)
    with pytest.raises(Conflict):
        lease.saved(ANA, 1, at(4), 3)
    with pytest.raises(Conflict):
        lease.reset(at(1), 3)
    put_back = lease.reset(at(1), 3, forced=True)
    assert (put_back.checkpoint, put_back.consumer, put_back.epoch) == (at(1), None, 2)
    with pytest.raises(LeaseLost):
        put_back.saved(ANA, 1, at(6), 4)


def test_a_checkpoint_of_a_log_made_anew_has_no_order_with_the_one_before() -> None:
    """The log was removed and made again: its seqs are smaller, and go ahead all the same."""
    old, anew = at(5), Checkpoint(Position("anew", 2, None))
    for one in (old, anew, at(6), Checkpoint(Position("anew", 3, None))):
        for other in (old, anew):
            is_older = one.position.log_uid == other.position.log_uid
            assert one.is_before(other) == (is_older and one.next_seq < other.next_seq)
    assert not old.is_before(None)
    assert old.is_before(at(6))
    lease = Lease("s").taken(ANA, 1).saved(ANA, 1, old, 2)
    assert lease.saved(ANA, 1, anew, 3).checkpoint == anew
    assert lease.released(ANA, 1, anew, 3).checkpoint == anew
    assert lease.saved(ANA, 1, at(5, b"more"), 3).checkpoint == at(5, b"more")


def test_a_change_that_is_lawful_stamps_its_time_and_keeps_the_rest() -> None:
    """A table of all lawful changes, field by field."""
    start = dataclasses.replace(Lease("s").taken(ANA, 1), checkpoint=at(4))
    handed = start.announced(BOB, 2)
    rows = [
        (start, ANA, ANA, 1, 4, False, 1),
        (handed, BOB, ANA, 1, 4, False, 2),
        (handed.renounced(BOB, 3), ANA, ANA, 1, 4, False, 3),
        (handed.saved(ANA, 1, at(5), 3), BOB, ANA, 1, 5, False, 3),
        (handed.released(ANA, 1, None, 3), BOB, None, 1, 4, False, 3),
        (handed.released(ANA, 1, at(6), 3), BOB, None, 1, 6, False, 3),
        (start.released(ANA, 1, None, 3), None, None, 1, 4, False, 3),
        (handed.released(ANA, 1, None, 3).renounced(BOB, 4), None, None, 1, 4, False, 4),
        (handed.released(ANA, 1, None, 3).taken(BOB, 4), BOB, BOB, 2, 4, False, 4),
        (start.taken(BOB, 4, epoch=9), BOB, BOB, 9, 4, False, 4),
        (handed.finished(ANA, 1, at(7), 3), None, None, 1, 7, True, 3),
        (handed.reset(None, 3, forced=True), None, None, 2, None, False, 3),
        (start.released(ANA, 1, None, 3).reset(at(1), 4), None, None, 2, 1, False, 4),
    ]
    for lease, owner, consumer, epoch, seq, is_finished, at_us in rows:
        assert lease.shard == "s"
        kept = None if lease.checkpoint is None else lease.checkpoint.next_seq
        assert (lease.owner, lease.consumer, lease.epoch) == (owner, consumer, epoch)
        assert (kept, lease.is_finished, lease.updated_us) == (seq, is_finished, at_us)


def test_lh_flaw_7_what_is_finished_is_nobodys_and_stays_so() -> None:
    lease = Lease("s").taken(ANA, 1).announced(BOB, 2).finished(ANA, 1, at(7), 3)
    assert (lease.is_finished, lease.owner, lease.consumer) == (True, None, None)
    for refused in (lambda: lease.taken(BOB, 4), lambda: lease.announced(BOB, 4)):
        with pytest.raises(Conflict):
            refused()


def test_a_thief_changes_its_mind_and_nothing_else_does() -> None:
    lease = Lease("s").taken(ANA, 1).announced(BOB, 2)
    assert lease.renounced(BOB, 3).owner == ANA
    assert lease.renounced(ANA, 3) is lease


def test_lh_18_no_change_looks_at_a_stored_time() -> None:
    """Clocks that are off by hours change nothing but what people read."""
    hours_us = 7 * 3_600_000_000
    there = Lease("s").taken(ANA, hours_us).announced(BOB, 0).released(ANA, 1, at(3), -1 + 1)
    here = Lease("s").taken(ANA, 0).announced(BOB, hours_us).released(ANA, 1, at(3), hours_us)
    assert (there.owner, there.consumer, there.epoch) == (here.owner, here.consumer, here.epoch)
    assert there.taken(BOB, 0).epoch == here.taken(BOB, hours_us).epoch


def test_lh_47_bytes_of_a_program_have_a_bound() -> None:
    assert at(1, bytes(limits.GROUP_APP_BYTES_MAX)).app
    with pytest.raises(TooLarge):
        at(1, bytes(limits.GROUP_APP_BYTES_MAX + 1))


LEASES = st.builds(
    Lease,
    st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable()),
    st.integers(0, 1 << 60),
    st.sampled_from([None, ANA, BOB]),
    st.sampled_from([None, ANA, BOB]),
    st.one_of(st.none(), st.builds(at, st.integers(0, 1 << 60), st.binary(max_size=40))),
    st.booleans(),
    st.integers(0, 1 << 60),
)


@given(LEASES)
def test_what_is_stored_is_what_was(lease: Lease) -> None:
    assert Lease.from_bytes(lease.to_bytes(), where="here") == lease


def test_fields_of_later_versions_survive_a_change() -> None:
    raw = json.loads(Lease("s").taken(ANA, 1).to_bytes())
    lease = Lease.from_bytes(json.dumps({**raw, "later": [1]}).encode(), where="here")
    assert json.loads(lease.announced(BOB, 2).to_bytes())["later"] == [1]


VECTORS = Path(__file__).parents[2] / "vectors" / "groups"
CHECKPOINT = Checkpoint(Position("a-log", 6, MessageId(3, 5, 0)), b"\x00\xff")
GOLDEN = (VECTORS / "lease.json").read_bytes().strip()


def test_the_bytes_of_a_lease() -> None:
    lease = Lease("s1", 7, WorkerId("bob", "bb"), WorkerId("ana", "aa"), CHECKPOINT, False, 12)
    assert lease.to_bytes() == GOLDEN
    assert Lease.from_bytes(GOLDEN, where="here") == lease


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"format":1', b'"format":2'),
        (b'"epoch":7', b'"epoch":-1'),
        (b'"epoch":7', b'"epoch":"7"'),
        (b'"finished":false', b'"finished":0'),
        (b'"shard":"s1"', b'"shard":""'),
        (b'"next_seq":6', b'"next_seq":-1'),
        (b'"AP8="', b'"!"'),
        (b'"AP8="', b"7"),
        (b'"AP8="', b'"' + b"A" * 5464 + b'"'),
        (b'"checkpoint":{', b'"checkpoint":[],"old":{'),
        (b'"3:5:0"', b'"3:5"'),
        (b'"3:5:0"', b"3"),
        (b'{"incarnation":"aa","worker":"ana"}', b'"ana"'),
        (b'"incarnation":"aa"', b'"incarnation":"' + b"a" * 65 + b'"'),
        (GOLDEN, b"[]"),
        (GOLDEN, b" " * limits.GROUP_LEASE_BYTES_MAX + GOLDEN),
    ],
)
def test_a_lease_that_is_garbled_is_refused_by_name(old: bytes, new: bytes) -> None:
    raw = GOLDEN.replace(old, new)
    assert raw != GOLDEN
    with pytest.raises(DlogError):
        Lease.from_bytes(raw, where="here")


# --- workers


WORKER = (VECTORS / "worker.json").read_bytes().strip()


def test_the_bytes_of_a_worker() -> None:
    node = WorkerNode(ANA, 4, "zone-1", ("old",), ("s0", "s1"), ("s2",), ("s1",), 2)
    assert node.to_bytes() == WORKER
    assert WorkerNode.from_bytes(WORKER, ANA, where="here") == node
    waiting = dataclasses.replace(node, waits={"s1": "processing_failed", "": "loop_blocked"})
    assert WorkerNode.from_bytes(waiting.to_bytes(), ANA, where="here") == waiting
    assert waiting.renewed(5, (), (), (), {}).waits == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"format":1', b'"format":2'),
        (b'"counter":4', b'"counter":4.5'),
        (b'["s2"]', b'[""]'),
        (b'["s2"]', b"[1]"),
        (b'["s2"]', b"null"),
        (b'"counter":4', b'"counter":4,"waits":[]'),
        (b'"counter":4', b'"counter":4,"waits":{"s0":7}'),
        (b'"counter":4', b'"counter":4,"waits":{"s0":""}'),
        (b'["s2"]', json.dumps(["s"] * (limits.GROUP_SHARDS_MAX + 1)).encode()),
    ],
)
def test_a_worker_that_is_garbled_is_refused_by_name(old: bytes, new: bytes) -> None:
    with pytest.raises(FormatError, match="here"):
        WorkerNode.from_bytes(WORKER.replace(old, new), ANA, where="here")


def test_what_is_asked_of_a_worker_is_bounded() -> None:
    node = WorkerNode(ANA)
    for number in range(limits.GROUP_SHARDS_MAX + 10):
        node = node.rung([f"{number}"]) if number % 1000 == 0 else node
    node = node.rung([f"{n}" for n in range(limits.GROUP_SHARDS_MAX + 10)])
    assert len(node.wanted) == limits.GROUP_SHARDS_MAX


@given(st.text(min_size=1, max_size=30).filter(lambda text: text.isprintable()))
def test_lh_flaw_10_the_node_of_a_worker_names_its_incarnation(name: str) -> None:
    worker = WorkerId(name, "0123abcd")
    assert WorkerId.from_node(worker.to_node()) == worker
    assert "/" not in worker.to_node()
    assert worker.to_node() != WorkerId(name, "4567").to_node()


@pytest.mark.parametrize("node", ["", "ana", "~x", "ana~", "ana~" + "x" * 65])
def test_what_is_no_worker_is_refused(node: str) -> None:
    with pytest.raises(FormatError):
        WorkerId.from_node(node)


def test_a_lease_that_others_write_all_the_time_is_not_lost() -> None:
    """Each try meets another version. That says nothing of whose it is: whoever has it tries
    later, and keeps the shard."""
    leases = MetaLeases(GroupPlaces(Layout(), "readers", "orders"), SYSTEM_CHANCE, lambda: 0)
    ours = Lease("s1", 3, ANA, ANA)
    saving = leases.save(Held(ours, 1, 3), ANA, Checkpoint(Position("uid", 7, None)))
    effect = next(saving)
    with pytest.raises(Unavailable) as told:  # noqa: PT012 — a conversation
        for version in range(100):
            match effect:
                case ReplaceNode():
                    effect = saving.throw(Conflict("another version"))
                case ReadNode():
                    effect = saving.send(Versioned(ours.to_bytes(), version))
                case _:
                    effect = saving.send(None)
    assert told.value.outcome is Outcome.NOT_HAPPENED


def test_a_write_that_nobody_knows_of_stays_unknown_when_the_next_is_refused() -> None:
    """The first try may still come true: its reply is lost, and a later one failed for good."""
    leases = MetaLeases(GroupPlaces(Layout(), "readers", "orders"), SYSTEM_CHANCE, lambda: 0)
    ours = Lease("s1", 3, ANA, ANA)
    saving = leases.save(Held(ours, 1, 3), ANA, Checkpoint(Position("uid", 7, None)))
    lost = Unavailable("no answer", outcome=Outcome.UNKNOWN, retry=Retry.NOW)
    refused = AuthError("not yours any more", outcome=Outcome.NOT_HAPPENED)
    failures = iter((lost, refused))
    effect = next(saving)
    with pytest.raises(AuthError) as told:  # noqa: PT012 — a conversation
        for _ in range(10):
            match effect:
                case ReplaceNode():
                    effect = saving.throw(next(failures))
                case ReadNode():
                    effect = saving.send(Versioned(ours.to_bytes(), 1))
                case _:
                    effect = saving.send(None)
    assert told.value is refused
    assert told.value.outcome is Outcome.UNKNOWN


def test_a_wait_may_say_its_cause_behind_its_code() -> None:
    """As others read it: a node of before has codes alone."""
    waits = {"s1": with_cause("refused", "it said: no"), "s2": "processing_failed"}
    node = dataclasses.replace(WorkerNode(WorkerId("w", "1")), waits=waits)
    there = WorkerNode.from_bytes(node.to_bytes(), node.id, where="here").waits
    assert codes_and_causes(there) == (
        {"s1": "refused", "s2": "processing_failed"},
        {"s1": "it said: no"},
    )
