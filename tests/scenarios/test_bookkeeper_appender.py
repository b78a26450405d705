"""What went wrong elsewhere, played with the appender on simulated bookies: fine weather, where
each test makes its own trouble. The oracle of the simulator watches all the while: whatever is
confirmed is on enough bookies that metadata names."""

from __future__ import annotations

import pytest

from dlog.ledger.bookkeeper.core.changes import replaced
from dlog.ledger.bookkeeper.core.slots import State
from dlog.ledger.store import ClosedLedger
from dlog.wire.ledger_metadata import LedgerState
from tests.scenarios.ledger_scene import Scene


def test_ack_before_metadata() -> None:
    """Acks went on while the change of the ensemble was stuck. Here only those go on that a reader
    finds whatever is stored: by the bookies that stay."""
    scene = Scene()
    scene.put(3)
    scene.all_is_confirmed()
    scene.slow_metadata(2_000.0)
    scene.kill(scene.named(0))
    scene.until(lambda: scene.core.places.change is not None)
    scene.put(5)
    scene.go_on(50.0)
    assert (scene.confirmed, scene.core.places.change is None) == (7, False)
    other = scene.named(1)
    other.stop()
    scene.put(5)
    scene.go_on(100.0)
    assert scene.confirmed == 7, "one that stays, and the new one that nobody named yet"
    scene.until(lambda: scene.core.places.change is None)
    other.go_on()
    scene.slow_metadata(0.3)
    scene.all_is_confirmed()
    assert [fragment.first_entry_id for fragment in scene.metadata.fragments][1] == 3


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_slow_metadata_store_stops_nobody(is_stored: bool) -> None:
    """It held the window, because all of it was kept for a bookie that nobody named yet. What the
    others confirm meanwhile a recovery finds: without the one that was lost, or, if the change was
    stored after all, from one that stays and the newcomer, which has nothing."""
    scene = Scene(window_entries=4, spares=1)
    scene.put(3)
    scene.all_is_confirmed()
    scene.slow_metadata(1e9)
    scene.kill(scene.named(0))
    scene.until(lambda: scene.core.places.change is not None)
    scene.put(30)
    scene.go_on(2_000.0)
    assert (scene.confirmed, scene.core.places.change is None) == (32, False)
    nodes, change = scene.nodes, scene.core.places.change
    assert change is not None
    if is_stored:
        lost = scene.named(0)
        stored = replaced(
            scene.metadata,
            ledger_id=scene.ledger_id,
            first_entry=change.first_entry,
            places=change.places,
        )
        assert stored is not None
        nodes.put(scene.ledger_id, stored)
        assert (scene.named(0) is lost, scene.entries(scene.named(0))) == (False, {})
        scene.kill(scene.named(1))
    scene.slow_metadata(0.3)
    scene.recover()
    scene.until(lambda: scene.metadata.state is LedgerState.CLOSED)
    assert (scene.metadata.last_entry_id, scene.confirmed) == (32, 32)


def test_fragment_start_after_pipeline() -> None:
    """The new fragment began behind what was sent, while adds completed on the old set."""
    scene = Scene(travel_ms=5.0, window_entries=8)
    scene.put(40)
    scene.until(lambda: scene.confirmed >= 0)
    confirmed = scene.confirmed
    assert 0 <= confirmed < 39, "in the middle of it"
    scene.kill(scene.named(2))
    scene.all_is_confirmed()
    first, last = scene.metadata.fragments
    assert first.first_entry_id == 0
    assert confirmed < last.first_entry_id <= 39
    successor = scene.named(2)
    assert sorted(scene.entries(successor)) == list(range(last.first_entry_id, 40))


def test_double_ensemble_change() -> None:
    """Two changes in a row: data went to some, metadata named others."""
    scene = Scene(spares=3, travel_ms=3.0)
    scene.put(10)
    scene.all_is_confirmed()
    scene.slow_metadata(300.0)
    lost = [scene.named(0), scene.named(1)]
    scene.kill(lost[0])
    scene.put(10)
    scene.until(lambda: scene.core.places.change is not None)
    scene.kill(lost[1])
    candidate = next(slot for slot in scene.core.slots if slot.state is State.NAMING)
    scene.kill(scene.bookies.servers[candidate.bookie_id])
    scene.put(10)
    scene.all_is_confirmed()
    assert not {server.bookie_id for server in lost} & set(scene.ensemble)
    assert candidate.bookie_id not in scene.ensemble
    for place in range(3):
        assert set(range(20, 30)) <= scene.entries(scene.named(place)).keys()


def test_completion_revoked() -> None:
    """An entry was complete, then one of those that counted was replaced."""
    scene = Scene()
    scene.named(2).stop()
    scene.put(3)
    scene.until(lambda: scene.confirmed == 2)
    slow = scene.named(1)
    slow.stop()
    scene.put(3)
    scene.go_on(20.0)
    scene.kill(scene.named(0))
    slow.go_on()
    scene.go_on(30.0)
    scene.all_is_confirmed()
    for entry_id in range(3, 6):
        assert len(scene.oracle.holders(scene.ledger_id, scene.metadata, entry_id)) >= 2


@pytest.mark.parametrize("birth", [False, True])
def test_fence_forgotten(birth: bool) -> None:
    """A bookie that held nothing loses its fence when it is killed, and takes adds again. Who comes
    back to it looks at metadata first. One that holds the birth keeps its fence."""
    scene = Scene(spares=0, birth=birth)
    born = scene.confirmed
    # The zombie sleeps through all of it.
    scene.process.freeze(5_000.0)
    scene.recovered()
    for place in range(3):
        scene.kill(scene.named(place), again_after_ms=10.0)
        assert scene.is_fenced(scene.named(place)) == birth
    scene.slow_metadata(3_000.0)
    scene.go_on(6_000.0)
    if not scene.core.is_over:
        scene.put(3)  # before it has seen metadata, that is
    scene.fenced()
    assert scene.confirmed == born == scene.metadata.last_entry_id


def test_bookie_reborn_same_address() -> None:
    """Its disks are gone, its fence with them; under the same id it takes what it is given."""
    scene = Scene(spares=0, birth=True)
    scene.process.freeze(5_000.0)
    scene.recovered()
    for place in range(3):
        bookie = scene.named(place)
        bookie.lose_disks(is_noticed=False, last_ledger=scene.ledger_id)
        scene.world.after(10.0, bookie.start)
    scene.slow_metadata(3_000.0)
    scene.go_on(6_000.0)
    if not scene.core.is_over:
        scene.put(3)  # before it has seen metadata, that is
    scene.fenced()
    assert scene.confirmed == 0


def test_a_fence_during_a_change() -> None:
    """Somebody recovers the ledger while a bookie is being replaced: one of both changes wins."""
    for delay_ms in (0.0, 1.0, 2.0, 5.0, 10.0):
        scene = Scene(birth=True)
        scene.put(10)
        scene.kill(scene.named(0))
        scene.go_on(delay_ms)
        scene.recovered()
        scene.put(5)
        scene.fenced()
        metadata = scene.metadata
        assert metadata.state is LedgerState.CLOSED
        assert scene.confirmed <= metadata.last_entry_id


def test_stuck_adds() -> None:
    """After two changes some callbacks never came."""
    scene = Scene(spares=3, travel_ms=3.0, window_entries=8)
    scene.put(60)
    scene.go_on(5.0)
    scene.kill(scene.named(0))
    scene.go_on(4.0)
    scene.kill(scene.named(1), again_after_ms=50.0)
    scene.go_on(4.0)
    scene.named(2).stop()
    scene.all_is_confirmed()
    assert scene.confirmed == 59


def test_close_after_failed_add() -> None:
    """A close after an add that failed ended the ledger in the wrong place."""
    scene = Scene(spares=0)
    scene.put(4)
    scene.all_is_confirmed()
    for place in (0, 1):
        scene.kill(scene.named(place))
    scene.put(4)
    scene.go_on(100.0)
    assert 4 in scene.entries(scene.named(2))
    scene.appender.close(lambda closed, error: None)
    scene.until(lambda: scene.appender.closed is not None)
    metadata = scene.metadata
    end = ClosedLedger(metadata.last_entry_id, metadata.length_bytes)
    assert end == scene.appender.closed
    assert metadata.last_entry_id == 3 == scene.confirmed


def test_entry_zero_is_falsy() -> None:
    scene = Scene(publishes=True)
    scene.put(1)
    scene.until(lambda: scene.core.last_published == 0)
    scene.kill(scene.named(0))
    scene.put(1)
    scene.all_is_confirmed()
    assert scene.metadata.fragments[-1].first_entry_id in (1, 2)
    fresh = Scene()
    fresh.kill(fresh.named(1))
    fresh.put(1)
    fresh.all_is_confirmed()
    assert [each.first_entry_id for each in fresh.metadata.fragments] in ([0], [0, 1])


def test_a_storm_of_refusals() -> None:
    """Bookies that take two of three entries, at most: pressure, no loss, no hole."""
    scene = Scene(busy=0.5, travel_ms=2.0)
    for _ in range(5):
        scene.put(60)
        scene.go_on(100.0)
    scene.all_is_confirmed()
    assert len(scene.metadata.fragments) == 1, "nobody was replaced for being busy"
    for place in range(3):
        assert sorted(scene.entries(scene.named(place))) == list(range(300))


def test_a_frozen_bookie_is_replaced_within_a_second() -> None:
    scene = Scene(window_entries=4)
    scene.put(1)
    scene.all_is_confirmed()
    scene.named(1).stop()
    began_ms = scene.world.now_ms
    scene.put(20)
    scene.all_is_confirmed()
    assert scene.world.now_ms - began_ms < 1_000.0


def test_a_killed_bookie_stops_nobody() -> None:
    scene = Scene(window_entries=4)
    scene.put(1)
    scene.all_is_confirmed()
    scene.kill(scene.named(1))
    began_ms = scene.world.now_ms
    scene.put(20)
    scene.until(lambda: scene.confirmed == 20)
    assert scene.world.now_ms - began_ms < 100.0


def test_a_frozen_appender_blames_nobody() -> None:
    """A pause of the process is not the silence of its bookies."""
    scene = Scene(window_entries=4)
    scene.put(20)
    scene.go_on(2.0)
    scene.process.freeze(30_000.0)
    scene.go_on(31_000.0)
    scene.all_is_confirmed()
    assert len(scene.metadata.fragments) == 1


def test_what_was_published_stays_published() -> None:
    """A reader that asks enough bookies sees it, also while one is being replaced: the oracle looks
    at every change of metadata."""
    scene = Scene(spares=3, publishes=True)
    for round_number in range(4):
        scene.put(5)
        scene.until(lambda: scene.core.last_published == scene.core.outbox.end - 1)
        scene.kill(scene.named(round_number % 3), again_after_ms=500.0)
        scene.go_on(50.0)
    scene.all_is_confirmed()
    assert len(scene.metadata.fragments) > 2
