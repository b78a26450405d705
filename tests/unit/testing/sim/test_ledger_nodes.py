"""Ledger metadata at its waist: changed once or never, whatever becomes of replies."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from dlog.errors import DlogError, Fenced, NotFound, Outcome, Unavailable
from dlog.ledger.bookkeeper.info import new_metadata
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.ledger.store import LedgerSpec
from dlog.testing.sim.ledger_nodes import NodeManners, SimLedgerNodes
from dlog.testing.sim.process import Process
from dlog.testing.sim.tape import of_seed
from dlog.testing.sim.world import World
from dlog.wire.ledger_metadata import CustomPair, LedgerMetadata, LedgerState

NEW = new_metadata(LedgerSpec(), ("b0", "b1", "b2"), b"secret")


class Scene:
    def __init__(self, seed: int = 1, **manners: float) -> None:
        self.world = World(of_seed(seed))
        self.nodes = SimLedgerNodes(self.world, NodeManners(**manners))  # type: ignore[arg-type]
        self.client = Process(self.world, "client")
        self.told: list[tuple[StoredLedger | None, DlogError | None]] = []

    def tell(self, stored: StoredLedger | None, error: DlogError | None) -> None:
        self.told.append((stored, error))

    def create(self) -> StoredLedger:
        self.nodes.create(self.client, NEW, self.tell)
        self.world.run()
        stored, error = self.told.pop()
        assert error is None
        assert stored is not None
        return stored


def one_more(metadata: LedgerMetadata) -> LedgerMetadata:
    return replace(metadata, ctime_ms=(metadata.ctime_ms or 0) + 1)


def by(name: int, metadata: LedgerMetadata) -> LedgerMetadata | None:
    """A change that knows itself again, as those of the cores do."""
    if metadata.custom_value(str(name)) is not None:
        return None
    custom = (*metadata.custom, CustomPair(str(name), b""))
    return replace(one_more(metadata), custom=custom)


@pytest.mark.parametrize("seed", range(20))
def test_racing_changes_are_each_applied_once(seed: int) -> None:
    """Also where replies are lost, late or never: known again, and not done twice."""
    scene = Scene(seed, lost=0.4, slow=0.2)
    known = scene.create()
    for number in range(6):
        scene.nodes.change(scene.client, known, partial(by, number), scene.tell)
    scene.world.run()
    assert len(scene.told) == 6
    assert all(error is None for _, error in scene.told)
    truth = scene.nodes.truth(known.ledger_id)
    assert truth is not None
    assert truth.ctime_ms == 6
    assert sorted(pair.key for pair in truth.custom) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("seed", range(20))
def test_a_lost_create_makes_no_second_ledger(seed: int) -> None:
    scene = Scene(seed, lost=0.5)
    first, second = scene.create(), scene.create()
    assert first.ledger_id < second.ledger_id
    assert scene.nodes.ids() == [first.ledger_id, second.ledger_id]
    assert first.metadata.creator_token != second.metadata.creator_token


def test_whoever_gives_up_says_whether_it_may_have_been_applied() -> None:
    outcomes = set()
    for seed in range(30):
        scene = Scene(seed, away=0.5, lost=0.6, tries_max=2)
        scene.nodes.manners.away = scene.nodes.manners.lost = 0.0
        known = scene.create()
        scene.nodes.manners.away, scene.nodes.manners.lost = 0.5, 0.6
        scene.nodes.change(scene.client, known, one_more, scene.tell)
        scene.world.run()
        _, error = scene.told.pop()
        truth = scene.nodes.truth(known.ledger_id)
        assert truth is not None
        if error is not None and error.outcome is Outcome.NOT_HAPPENED:
            assert truth.ctime_ms is None
        outcomes.add(None if error is None else error.outcome)
    assert outcomes == {None, Outcome.NOT_HAPPENED, Outcome.UNKNOWN}


def test_a_change_that_may_not_be_made_is_not_tried_again() -> None:
    scene = Scene()
    known = scene.create()
    asked: list[LedgerMetadata] = []

    def refuse(metadata: LedgerMetadata) -> LedgerMetadata:
        asked.append(metadata)
        raise Fenced("no more")

    scene.nodes.change(scene.client, known, refuse, scene.tell)
    scene.world.run()
    assert len(asked) == 1
    assert isinstance(scene.told[0][1], Fenced)


def test_plain_reads_may_be_old_and_fresh_ones_are_not() -> None:
    scene = Scene(stale=1.0, stale_by=2)
    known = scene.create()
    for _ in range(5):
        truth = scene.nodes.truth(known.ledger_id)
        assert truth is not None
        scene.nodes.put(known.ledger_id, one_more(truth))
    for fresh in (True, False):
        for _ in range(10):
            scene.nodes.read(scene.client, known.ledger_id, scene.tell, fresh=fresh)
        scene.world.run()
        ages = {5 - (stored.metadata.ctime_ms or 0) for stored, _ in scene.told if stored}
        assert ages == ({0} if fresh else {1, 2})
        scene.told.clear()


def test_a_pause_holds_everything_and_a_deleted_ledger_is_gone() -> None:
    scene = Scene()
    known = scene.create()
    scene.nodes.pause(500.0)
    scene.nodes.delete(scene.client, known.ledger_id, scene.tell)
    scene.world.run(until_ms=400.0)
    assert scene.told == []
    scene.world.run()
    assert scene.told == [(None, None)]
    assert scene.nodes.ids() == []
    scene.nodes.delete(scene.client, known.ledger_id, scene.tell)
    scene.world.run()
    assert scene.told[1:] == [(None, None)], "of a missing ledger: nothing"
    scene.nodes.read(scene.client, known.ledger_id, scene.tell, fresh=True)
    scene.world.run()
    assert isinstance(scene.told[2][1], NotFound)


def test_a_watch_fires_once_and_may_be_lost() -> None:
    scene = Scene()
    known = scene.create()
    fired: list[int] = []
    scene.nodes.watch(scene.client, known.ledger_id, lambda: fired.append(1))
    scene.world.run()
    for _ in range(2):
        scene.nodes.put(known.ledger_id, one_more(scene.nodes.truth(known.ledger_id) or NEW))
        scene.world.run()
    assert fired == [1]
    scene.nodes.manners.watch_lost = 1.0
    scene.nodes.watch(scene.client, known.ledger_id, lambda: fired.append(2))
    scene.world.run()
    scene.nodes.put(known.ledger_id, replace(NEW, state=LedgerState.IN_RECOVERY))
    scene.world.run()
    assert fired == [1]


def test_while_it_is_away_nothing_happens() -> None:
    scene = Scene(tries_max=3)
    known = scene.create()
    scene.nodes.manners.away = 1.0
    scene.nodes.change(scene.client, known, one_more, scene.tell)
    scene.nodes.read(scene.client, known.ledger_id, scene.tell, fresh=True)
    scene.world.run()
    assert [type(error) for _, error in scene.told] == [Unavailable, Unavailable]
    truth = scene.nodes.truth(known.ledger_id)
    assert truth == known.metadata
