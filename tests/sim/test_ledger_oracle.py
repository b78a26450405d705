"""A silent checker is the worst bug: each check of the ledger oracle refuses a history made to
break it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dlog.errors import Outcome, Unavailable
from dlog.ledger.bookkeeper.core.end_search import Evidence
from dlog.ledger.bookkeeper.core.tail_recovery import FoundEnd
from dlog.ledger.bookkeeper.info import new_metadata
from dlog.ledger.store import ClosedLedger, LedgerSpec
from dlog.testing.sim.ledger_client import PASSWORD
from dlog.testing.sim.ledger_nodes import SimLedgerNodes
from dlog.testing.sim.ledger_oracle import LedgerOracle
from dlog.testing.sim.ledger_swarm import draw_cluster
from dlog.testing.sim.process import Process
from dlog.testing.sim.surroundings import keys_of
from dlog.testing.sim.tape import of_tape
from dlog.testing.sim.world import Violation, World
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata, LedgerState

LEDGER = 0
NAMED = ("b0", "b1", "b2")


class Scene:
    """Ledger 0 on three of four bookies; entries 0 and 1 are on all three, and confirmed."""

    def __init__(self) -> None:
        self.world = World(of_tape(()))
        cluster = draw_cluster(self.world.chance)
        self.bookies = cluster.bookies(self.world)
        self.nodes = SimLedgerNodes(self.world)
        self.oracle = LedgerOracle(self.world, self.bookies, self.nodes)
        client = Process(self.world, "writer")
        self.nodes.create(client, new_metadata(LedgerSpec(), NAMED, PASSWORD), lambda *told: None)
        self.world.run()
        for _ in range(2):
            self.submit()
        for bookie_id in NAMED:
            self.hold(bookie_id, 0)
            self.hold(bookie_id, 1)
        self.oracle.on_confirmed(LEDGER, 0)
        self.oracle.on_born(LEDGER)
        self.oracle.on_confirmed(LEDGER, 1)

    @property
    def metadata(self) -> LedgerMetadata:
        found = self.nodes.truth(LEDGER)
        assert found is not None
        return found

    def submit(self) -> None:
        entry_id = len(self.oracle.truth(LEDGER).payloads)
        self.oracle.on_submit(LEDGER, entry_id, b"payload")

    def hold(
        self, bookie_id: str, entry_id: int, payload: bytes = b"payload", lac: int | None = None
    ) -> None:
        digest, key = keys_of(self.metadata)
        lac = entry_id - 1 if lac is None else lac
        head = digest.pack_head(LEDGER, entry_id, lac, 7 * (entry_id + 1), (payload,))
        bookie = self.bookies[bookie_id]
        bookie.add(LEDGER, entry_id, head + payload, key=key, is_recovery=False)
        bookie.sync()

    def put(self, **changes: object) -> None:
        self.nodes.put(LEDGER, replace(self.metadata, **changes))  # type: ignore[arg-type]

    def close(self, last_entry: int, size: int | None = None) -> None:
        size = 7 * (last_entry + 1) if size is None else size
        self.put(state=LedgerState.CLOSED, last_entry_id=last_entry, length_bytes=size)

    def recover(self) -> None:
        self.put(state=LedgerState.IN_RECOVERY)

    def found(self, *denied_by: str, entry_id: int = 2) -> None:
        evidence = Evidence(entry_id, denied_by, 2)
        self.oracle.on_found_end(LEDGER, self.metadata, FoundEnd(1, 14, None, evidence))

    def deny(self, *bookies: str) -> None:
        for bookie_id in bookies:
            self.bookies[bookie_id].read(LEDGER, 2, fence_key=keys_of(self.metadata)[1])


def _numbered_twice(scene: Scene) -> None:
    scene.oracle.on_submit(LEDGER, 1, b"again")


def _confirmed_above_the_end(scene: Scene) -> None:
    scene.recover()
    scene.close(1)
    scene.submit()
    scene.oracle.on_confirmed(LEDGER, 2)


def _confirmed_on_one(scene: Scene) -> None:
    scene.submit()
    scene.hold("b0", 2)
    scene.oracle.on_confirmed(LEDGER, 2)


def _confirmed_in_memory(scene: Scene) -> None:
    scene.submit()
    scene.hold("b0", 2)
    digest, key = keys_of(scene.metadata)
    raw = digest.pack_head(LEDGER, 2, 1, 21, (b"payload",)) + b"payload"
    scene.bookies["b1"].add(LEDGER, 2, raw, key=key, is_recovery=False)
    scene.oracle.on_confirmed(LEDGER, 2)


def _confirmed_again(scene: Scene) -> None:
    scene.oracle.on_confirmed(LEDGER, 1)


def _published_before_confirmed(scene: Scene) -> None:
    scene.oracle.on_published(LEDGER, 2)


def _published_and_not_shown(scene: Scene) -> None:
    scene.oracle.on_published(LEDGER, 1)


def _lost_by_an_ensemble_change(scene: Scene) -> None:
    scene.put(fragments=(Fragment(0, ("b0", "b3", "b2")),))
    scene.put(fragments=(Fragment(0, ("b3", "b1", "b2")),))
    scene.bookies["b1"].wipe(is_noticed=True)
    scene.put(fragments=(Fragment(0, ("b3", "b1", "b2")), Fragment(2, ("b0", "b1", "b2"))))


def _fragment_behind_the_confirmed(scene: Scene) -> None:
    scene.put(fragments=(*scene.metadata.fragments, Fragment(3, ("b3", "b1", "b2"))))


def _own_close_elsewhere(scene: Scene) -> None:
    scene.oracle.on_own_close(LEDGER, ClosedLedger(0, 7))


def _own_close_that_does_not_stand(scene: Scene) -> None:
    scene.oracle.on_own_close(LEDGER, ClosedLedger(1, 14))


def _close_below_the_confirmed(scene: Scene) -> None:
    scene.recover()
    scene.close(0)


def _close_below_the_delivered(scene: Scene) -> None:
    scene.submit()
    scene.hold("b0", 2)
    scene.hold("b1", 2)
    scene.oracle.on_confirmed(LEDGER, 2)
    scene.oracle.truth(LEDGER).confirmed = 1
    scene.oracle.truth(LEDGER).delivered = 2
    scene.recover()
    scene.close(1)


def _close_above_everything(scene: Scene) -> None:
    scene.recover()
    scene.close(7)


def _close_of_another_size(scene: Scene) -> None:
    scene.recover()
    scene.close(1, 15)


def _close_of_what_nobody_holds(scene: Scene) -> None:
    scene.submit()
    scene.hold("b0", 2)
    scene.recover()
    scene.close(2)


def _closed_twice(scene: Scene) -> None:
    scene.submit()
    for bookie_id in NAMED:
        scene.hold(bookie_id, 2)
    scene.recover()
    scene.close(1)
    scene.close(2)


def _opened_again(scene: Scene) -> None:
    scene.recover()
    scene.put(state=LedgerState.OPEN)


def _a_refused_close_happens(scene: Scene) -> None:
    away = Unavailable("away", outcome=Outcome.NOT_HAPPENED)
    scene.oracle.on_close_asked(LEDGER)
    scene.oracle.on_close_failed(LEDGER, away)
    scene.close(1)


def _recoveries_disagree(scene: Scene) -> None:
    scene.recover()
    scene.close(1)
    scene.oracle.on_recovered(LEDGER, ClosedLedger(0, 7))


def _recovered_and_not_closed(scene: Scene) -> None:
    scene.oracle.on_recovered(LEDGER, ClosedLedger(1, 14))


def _end_with_one_denial(scene: Scene) -> None:
    scene.deny("b0", "b1")
    scene.found("b0")


def _end_denied_by_a_stranger(scene: Scene) -> None:
    scene.deny("b0", "b3")
    scene.found("b0", "b3")


def _end_that_was_never_denied(scene: Scene) -> None:
    scene.deny("b0")
    scene.found("b0", "b1")


def _end_denied_without_a_fence(scene: Scene) -> None:
    scene.deny("b0")
    scene.bookies["b1"].read(LEDGER, 2)
    scene.found("b0", "b1")


def _end_of_another_entry(scene: Scene) -> None:
    scene.deny("b0", "b1")
    scene.found("b0", "b1", entry_id=3)


def _readable_above_the_confirmed(scene: Scene) -> None:
    scene.oracle.on_readable(LEDGER, 2, is_closed=False)


def _readable_beyond_the_end(scene: Scene) -> None:
    scene.recover()
    scene.close(1)
    scene.oracle.on_readable(LEDGER, 0, is_closed=True)


def _older_than_the_question(scene: Scene) -> None:
    scene.oracle.truth(LEDGER).published = 1
    at_least = scene.oracle.readable_now(LEDGER)
    scene.oracle.on_readable(LEDGER, 0, is_closed=False, at_least=at_least)


def _read_before_it_may_be(scene: Scene) -> None:
    scene.oracle.on_readable(LEDGER, 0, is_closed=False)
    scene.oracle.on_read(LEDGER, 0, [b"payload", b"payload"])


def _read_something_else(scene: Scene) -> None:
    scene.oracle.on_readable(LEDGER, 1, is_closed=False)
    scene.oracle.on_read(LEDGER, 0, [b"payload", b"paylaod"])


def _stored_something_else(scene: Scene) -> None:
    scene.hold("b1", 1, b"paylaod")
    scene.put(custom=())


BAD: list[tuple[str, Callable[[Scene], None]]] = [
    ("I6", _numbered_twice),
    ("I7", _confirmed_above_the_end),
    ("I11", _confirmed_on_one),
    ("I11", _confirmed_in_memory),
    ("I4a", _confirmed_again),
    ("I3a", _published_before_confirmed),
    ("I3c", _published_and_not_shown),
    ("I11", _lost_by_an_ensemble_change),
    ("I12", _fragment_behind_the_confirmed),
    ("I8", _own_close_elsewhere),
    ("I24", _own_close_that_does_not_stand),
    ("I9", _close_below_the_confirmed),
    ("I9", _close_below_the_delivered),
    ("I2", _close_above_everything),
    ("I8", _close_of_another_size),
    ("I8", _close_of_what_nobody_holds),
    ("I8", _closed_twice),
    ("I8", _opened_again),
    ("I24", _a_refused_close_happens),
    ("I10", _recoveries_disagree),
    ("I10", _recovered_and_not_closed),
    ("I14", _end_with_one_denial),
    ("I14", _end_denied_by_a_stranger),
    ("I14", _end_that_was_never_denied),
    ("I14", _end_denied_without_a_fence),
    ("I14", _end_of_another_entry),
    ("I3a", _readable_above_the_confirmed),
    ("I8", _readable_beyond_the_end),
    ("I3c", _older_than_the_question),
    ("I3a", _read_before_it_may_be),
    ("I13", _read_something_else),
    ("I13", _stored_something_else),
]


@pytest.mark.parametrize(
    ("promise", "history"), BAD, ids=[history.__name__[1:] for _, history in BAD]
)
def test_a_bad_history_is_refused(promise: str, history: Callable[[Scene], None]) -> None:
    scene = Scene()
    with pytest.raises(Violation) as raised:
        history(scene)
    assert raised.value.promise == promise


def test_a_good_history_is_not() -> None:
    scene = Scene()
    scene.submit()
    for bookie_id in NAMED:
        scene.hold(bookie_id, 2)
    scene.oracle.on_confirmed(LEDGER, 2)
    scene.oracle.on_published(LEDGER, 1)
    scene.oracle.on_readable(LEDGER, 1, is_closed=False, at_least=scene.oracle.readable_now(LEDGER))
    scene.oracle.on_read(LEDGER, 0, [b"payload"])
    scene.put(fragments=(*scene.metadata.fragments, Fragment(3, ("b3", "b1", "b2"))))
    scene.close(2)
    scene.oracle.on_own_close(LEDGER, ClosedLedger(2, 21))
    scene.oracle.on_recovered(LEDGER, ClosedLedger(2, 21))
    scene.oracle.on_readable(LEDGER, 2, is_closed=True, at_least=2)
