"""What is thought of a BookKeeper cluster, from facts about its bookies."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dlog.findings import Finding, State, Wish
from dlog.ledger.bookkeeper.findings import (
    MISSING_MAX,
    BookieFacts,
    of_access,
    of_bookies,
    of_missing,
    of_passwords,
    of_quorums,
    of_versions,
)

NOW = datetime(2031, 5, 1, tzinfo=UTC)
GOOD = BookieFacts(
    "b1", True, "10.0.0.1", 3181, answer_ms=1.0, free_bytes=30 << 30, total_bytes=40 << 30,
    reads_batches=True,
)  # fmt: skip
WISH = Wish(ensemble=3, ack_quorum=2)


def bookie(**changes: object) -> Finding:
    (found,) = of_bookies([replace(GOOD, **changes)])  # type: ignore[arg-type]
    return found


def test_a_good_bookie() -> None:
    found = bookie()
    assert (found.check, found.state) == ("bookie b1", State.FINE)
    assert found.told == "at 10.0.0.1:3181, writable, answers in 1.0 ms, 75% of 40.0 GiB free"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"trouble": "hung up"}, "hung up"),
        ({"is_writable": False}, "read-only"),
        ({"answer_ms": 900.0}, "900.0 ms"),
        ({"free_bytes": 3 << 30}, "8% of"),
    ],
)
def test_a_bookie_that_wants_a_look(changes: dict[str, object], told: str) -> None:
    found = bookie(**changes)
    assert found.state is State.WARNING
    assert told in found.told


@pytest.mark.parametrize(
    ("good", "silent", "read_only", "state", "told"),
    [
        (4, 0, 0, State.FINE, "one may be lost"),
        (3, 0, 0, State.WARNING, "none to spare"),
        (3, 1, 0, State.WARNING, "none to spare"),
        (3, 0, 1, State.WARNING, "none to spare"),
        (2, 2, 0, State.BAD, "1 too few"),
        (0, 0, 0, State.BAD, "3 too few"),
    ],
)
def test_quorums_count_bookies_that_serve(
    good: int, silent: int, read_only: int, state: State, told: str
) -> None:
    bookies = [GOOD] * good + [replace(GOOD, trouble="silent")] * silent
    bookies += [replace(GOOD, is_writable=False)] * read_only
    found = of_quorums(bookies, WISH)
    assert found.state is state
    assert told in found.told


def test_quorums_are_those_of_the_log_that_wants_the_most() -> None:
    assert of_quorums([GOOD] * 4, Wish(5, 3)).state is State.BAD


@pytest.mark.parametrize(
    ("version", "batches", "state"),
    [
        ("", True, State.NOTE),
        ("", None, State.NOTE),
        ("", False, State.WARNING),
        ("4.16.7", None, State.WARNING),
        ("4.17.3", True, State.WARNING),
        ("4.17.4", True, State.FINE),
        ("4.18.0-SNAPSHOT", True, State.FINE),
        ("5.0.0", True, State.FINE),
        ("of today", True, State.NOTE),
    ],
)
def test_versions(version: str, batches: bool | None, state: State) -> None:
    found = of_versions([replace(GOOD, version=version, reads_batches=batches)])
    assert found.state is state
    assert ("4.17.4" in found.told) is (state is not State.FINE or version == "4.17.4")


def test_one_old_bookie_among_many_is_named() -> None:
    old = replace(GOOD, bookie_id="b9", version="4.17.3")
    found = of_versions([replace(GOOD, version="4.18.0"), old])
    assert "b9 (4.17.3)" in found.told


def access(*bookies: BookieFacts, tls: bool, auth: bool) -> dict[str, Finding]:
    return {f.check: f for f in of_access(bookies, has_tls=tls, has_auth=auth, now=NOW)}


def test_what_is_off_is_a_warning_unless_all_is_this_machine() -> None:
    here = replace(GOOD, host="127.0.0.1")
    for state, bookies in ((State.WARNING, (here, GOOD)), (State.NOTE, (here, here))):
        found = access(*bookies, tls=False, auth=False)
        assert {f.state for f in found.values()} == {state}
    offered = access(replace(GOOD, offers_tls=True), tls=False, auth=True)
    assert "offered by b1" in offered["bookie tls"].told
    assert offered["bookie auth"].state is State.FINE


def test_certificates_and_who_is_the_first() -> None:
    late = replace(GOOD, certificate_end=NOW + timedelta(days=90))
    soon = replace(GOOD, bookie_id="b2", certificate_end=NOW + timedelta(days=2))
    found = access(late, soon, tls=True, auth=True)
    assert found["bookie tls"].state is State.FINE
    assert found["bookie certificates"].state is State.WARNING
    assert "2 more days (b2" in found["bookie certificates"].told


def test_nobody_says_that_credentials_work_when_no_bookie_took_them() -> None:
    for auth, told in ((True, "is given"), (False, "is not given")):
        found = access(replace(GOOD, trouble="hung up"), tls=True, auth=auth)
        assert found["bookie auth"].state is State.NOTE
        assert told in found["bookie auth"].told


def test_passwords() -> None:
    noted = of_passwords(2, [], is_given=False)
    assert noted.state is State.NOTE
    assert "whoever may read ledger nodes" in noted.told
    refused = of_passwords(1, [f"ledger {n} has another password" for n in range(5)], is_given=True)
    assert refused.state is State.BAD
    assert "ledger 2" in refused.told
    assert "and 2 more" in refused.told


def test_those_that_are_missing_are_named_up_to_a_bound() -> None:
    found = list(of_missing([f"b{n}" for n in range(MISSING_MAX + 7)]))
    assert len(found) == MISSING_MAX + 1
    assert {f.state for f in found} == {State.WARNING}
    assert found[0].check == "bookie b0"
    assert found[-1].told.startswith("7 more")
