"""The corpus: histories that once noticed a planted bug, played without it. They are the shortest
proof that the simulator has, because a real bug of the same kind shows in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dlog.testing.sim import corpus
from dlog.testing.sim.corpus import NoLongerTelling, Telling, hunt_from_telling
from dlog.testing.sim.planted import all_plants, planted
from dlog.testing.sim.runs import run_many
from dlog.testing.sim.worlds import WORLDS

pytestmark = pytest.mark.tier("check")

PLANTS = all_plants()
RECORDED = corpus.recorded()
SLICE_EVENTS = 60_000  # of one item: a second or two
# The first histories of each world, for worlds without planted bugs, too.
FIRST_HISTORIES = {"workers": 1, "drivers": 5, "log-life-bookies": 5, "streams-life": 5}
PLANT = "a_dead_writer_comes_back"


def _slices() -> Iterator[tuple[str, list[Telling]]]:
    """Slices of each world's corpus, which can run side by side."""
    for world in sorted(WORLDS):
        number, events, slice_ = 0, 0, []
        for telling in corpus.corpus(world):
            if slice_ and events + telling.events > SLICE_EVENTS:
                yield f"{world}-{number}", slice_
                number, events, slice_ = number + 1, 0, []
            slice_.append(telling)
            events += telling.events
        if slice_:
            yield f"{world}-{number}", slice_


SLICES = dict(_slices())


@pytest.mark.parametrize("name", SLICES)
def test_no_history_that_noticed_a_bug_breaks_a_promise(name: str) -> None:
    for telling in SLICES[name]:
        finding = corpus.play(telling)
        assert finding is None, f"{finding}\nin the weather of {telling.name}: {telling.fixed}"


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_the_first_histories_break_no_promise(world: str) -> None:
    run_many(world, count=FIRST_HISTORIES.get(world, 10)).check()


def test_each_bug_that_histories_notice_has_a_recorded_history() -> None:
    """`python -m dlog.testing.sim plants --record` records those that are missing."""
    caught = {name for name, plant in PLANTS.items() if plant.survives is None}
    missing = [name for name in caught if not corpus.is_current(RECORDED.get(name), PLANTS[name])]
    assert not missing, f"not recorded, or in other weather: {sorted(missing)}"
    assert not RECORDED.keys() - caught, "these are no planted bugs that histories notice"
    covered = {each.by for each in RECORDED.values() if each.by is not None}
    assert all(RECORDED[by].is_played for by in covered)


def test_a_bug_in_the_code_fails_the_corpus() -> None:
    telling = RECORDED[PLANT]
    assert corpus.play(telling) is None
    with planted(PLANTS[PLANT]):
        finding = corpus.play(telling)
    assert finding is not None
    assert (finding.world, finding.seed) == (telling.world, telling.seed)


def test_a_record_that_tells_nothing_is_named_and_others_are_hunted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant = PLANTS[PLANT]
    with planted(plant):
        noticing = {
            seed for seed in range(20) if run_many(plant.world, seed, 1, **plant.fixed).findings
        }
    silent = min(set(range(20)) - noticing)
    stale = {PLANT: replace(RECORDED[PLANT], seed=silent)}
    monkeypatch.setattr(corpus, "recorded", lambda: stale)
    with pytest.warns(NoLongerTelling, match=f"seed {silent} does not notice {PLANT} any more"):
        found = hunt_from_telling(plant, count=50)
    assert found.finding is not None
    assert found.histories == min(noticing) + 1


def test_what_is_saved_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "telling.json"
    tellings = [
        Telling("b", "ledger", 7, 40, {"quorums": (3, 3, 2), "striped": False}),
        Telling("a", "ledger", 3, 50, {}, by="b"),
    ]
    corpus.save(tellings, path)
    assert len(path.read_text().splitlines()) == 2 + len(tellings)
    assert corpus.load(path) == {each.name: each for each in tellings}
