"""What an appender or a read waits for, in words and numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dlog.errors import Timeout, Unavailable
from dlog.ledger.bookkeeper.core.append_effects import Change, Connect
from dlog.ledger.bookkeeper.core.reasons import why_appender, why_read
from dlog.reason import ReasonCode, Wait
from dlog.wire.bookie_codes import Answer
from tests.unit.ledger.bookkeeper.appender_tools import Bench


def why(bench: Bench, *quarantined: str) -> Wait:
    found = why_appender(bench.core, quarantined)
    assert found is not None
    return found


def with_entries(count: int, **options: Any) -> Bench:
    bench = Bench(**options)
    bench.put(count)
    bench.pump()
    return bench


def test_nothing_is_waited_for_when_all_bookies_have_everything() -> None:
    bench = with_entries(3)
    for bookie in "abc":
        bench.ack(bookie, 0, 1, 2)
    assert why_appender(bench.core, ()) is None
    bench.core.publish()
    assert bench.core.is_busy, "the confirmation is on its way"
    assert why_appender(bench.core, ()) is None


def test_the_slowest_bookie_is_named_with_how_far_it_is_behind() -> None:
    bench = with_entries(4)
    bench.ack("a", 0, 1, 2, 3)
    bench.ack("b", 0)
    bench.ack("c", 0, 1, 2)
    wait = why(bench)
    assert wait.code is ReasonCode.BOOKIE_SLOW
    assert wait.sentence == "the slowest bookie, b, is 3 entries behind"
    assert wait.evidence["slowest"] == "b"
    assert wait.evidence["slowest_behind_entries"] == 3
    assert wait.evidence["slowest_silent_ms"] == 0
    assert wait.evidence["ensemble"] == ("a", "b", "c")
    assert (wait.evidence["missing"], wait.evidence["needed"]) == ((), 0)
    bench.ticks(150)
    assert why(bench).evidence["slowest_silent_ms"] == 150
    assert "silent for 150 ms" in why(bench).sentence


def test_of_two_that_are_as_far_behind_the_more_silent_one_is_the_slowest() -> None:
    bench = with_entries(2)
    bench.ack("a", 0, 1)
    bench.ticks(100)
    bench.ack("b", 0)
    bench.ack("c", 0)
    bench.ticks(25)
    bench.say("b", Answer.BUSY, 1)
    assert why(bench).evidence["slowest"] == "c"


def test_a_bookie_that_is_away_is_the_slowest_only_if_no_other_one_is_behind() -> None:
    """Enough others take entries."""
    bench = with_entries(4, spares=())
    bench.ack("a", 0, 1, 2, 3)
    bench.ack("b", 0, 1)
    bench.ack("c", 0)
    bench.down("c")
    wait = why(bench)
    assert wait.code is ReasonCode.BOOKIE_SLOW
    assert (wait.evidence["slowest"], wait.evidence["slowest_behind_entries"]) == ("b", 2)
    bench.ack("b", 2, 3)
    wait = why(bench)
    assert wait.code is ReasonCode.BOOKIE_SLOW
    assert wait.evidence["slowest"] == "c"
    assert wait.evidence["missing"] == ("c",)


def test_too_few_bookies_are_counted_and_the_missing_ones_named() -> None:
    bench = with_entries(2, spares=())
    for bookie in "abc":
        bench.ack(bookie, 0)
    bench.down("b")
    bench.down("c")
    wait = why(bench, "c", "d")
    assert wait.code is ReasonCode.BOOKIES_AWAY
    assert wait.sentence == ("2 of a, b, c have to take an entry of ledger 7, 1 do; missing: b, c")
    assert wait.evidence["missing"] == ("b", "c")
    assert wait.evidence["needed"] == 1
    assert wait.evidence["quarantined"] == ("c",)
    assert wait.evidence["ledger_id"] == 7


def test_a_birth_needs_every_bookie() -> None:
    bench = Bench(linked=False)
    bench.core.begin_birth()
    bench.put()
    wait = why(bench)
    assert wait.code is ReasonCode.BOOKIES_AWAY
    assert wait.evidence["needed"] == 3
    assert wait.sentence.startswith("3 of a, b, c have to take")


def test_a_change_of_the_ensemble_is_told_with_what_metadata_says() -> None:
    bench = with_entries(1)
    bench.ack("a", 0)
    bench.ack("b", 0)
    bench.put()
    bench.pump()
    bench.down("b")
    bench.down("c")
    joined = bench.effects(Connect)[-1].slot
    bench.link(joined)
    assert bench.effects(Change)
    wait = why(bench)
    lost = bench.core.places.ensemble[joined.place]
    assert wait.code is ReasonCode.ENSEMBLE_CHANGE
    assert f"metadata is to name d for {lost} for ledger 7" in wait.sentence
    assert wait.sentence.endswith("does not yet")
    assert f"d for {lost}" in wait.evidence["changing"]  # type: ignore[operator]
    assert "metadata_error" not in wait.evidence
    bench.core.on_not_changed(Unavailable("the metadata store is away", missing="zookeeper"))
    assert why(bench).evidence["metadata_error"] == "the metadata store is away"


def test_a_change_that_may_be_stored_is_told_with_what_metadata_answered() -> None:
    bench = with_entries(1)
    bench.down("b")
    bench.down("c")
    bench.link(bench.effects(Connect)[0].slot)
    assert bench.effects(Change)
    assert why(bench).sentence.endswith("does not yet")
    bench.core.on_not_changed(Timeout("no answer in time"))
    wait = why(bench)
    assert wait.code is ReasonCode.ENSEMBLE_CHANGE
    assert wait.sentence.endswith("does not yet (no answer in time)")


def test_an_appender_that_is_over_waits_for_nothing() -> None:
    bench = with_entries(1)
    bench.core.fail(Unavailable("enough", missing="a"))
    assert why_appender(bench.core, ()) is None


def read(first_entry: int, **changes: Any) -> Any:
    """Of a read as much as the reason looks at."""
    plain: dict[str, Any] = {"ledger_id": 7, "failed": {}, "asking": {}, "is_hedged": False}
    return SimpleNamespace(first_entry=first_entry, **(plain | changes))


def asked(at_s: float) -> Any:
    return SimpleNamespace(asked_at_s=at_s)


def test_the_first_entry_that_was_not_given_is_told() -> None:
    assert why_read([], 100.0) is None
    assert why_read([read(3)], 100.0) is None
    wait = why_read([read(5, asking={"b": asked(1.0)}), read(3, asking={"a": asked(98.0)})], 100.0)
    assert wait is not None
    assert wait.code is ReasonCode.BOOKIE_SLOW
    assert wait.sentence == "a was asked for entry 3 of ledger 7"
    assert wait.evidence == {"ledger_id": 7, "entry_id": 3, "asked": ("a: no answer for 2.0 s",)}


def test_bookies_that_failed_or_were_hedged_are_away() -> None:
    failed = read(3, failed={"a": Answer.NO_ENTRY}, asking={"b": asked(98.0)})
    hedged = read(3, asking={"a": asked(90.0), "b": asked(98.0)}, is_hedged=True)
    for each, missing in ((failed, ("a", "b")), (hedged, ("a", "b"))):
        wait = why_read([each], 100.0)
        assert wait is not None
        assert wait.code is ReasonCode.BOOKIES_AWAY
        assert wait.evidence["missing"] == missing
        assert wait.sentence.startswith("nobody gave entry 3 of ledger 7 yet (a: ")
