"""LH-16, LH-28, LH-40 to LH-46, flaw 10: being a member, and until when."""

from __future__ import annotations

import math

import pytest

from dlog.errors import LeaseLost, Unavailable
from dlog.groups.asks import Ask, Bury, LookAtWorker, Register, Renew
from dlog.groups.expiry import Expiry
from dlog.groups.membership import GroupOptions, Membership, Phase
from dlog.groups.presence import SeenWorker
from dlog.groups.view import WorkerId
from dlog.groups.workers import WorkerNode

ME = WorkerId("me", "0" * 32)
OPTIONS = GroupOptions(timeout_s=20.0, neighbours=2)


def other(number: int) -> WorkerId:
    return WorkerId(f"w{number}", f"{number:032x}")


def seen(worker: WorkerId, counter: int = 0, version: int = 1, **more: object) -> SeenWorker:
    return SeenWorker(WorkerNode(worker, counter, **more), version)  # type: ignore[arg-type]


def due(member: Membership, now_s: float) -> list[Ask]:
    return member.asks(now_s, (), ())


def joined(now_s: float = 0.0, options: GroupOptions = OPTIONS) -> Membership:
    member = Membership(ME, options, now_s)
    assert due(member, now_s) == [Register(ME, None)]
    member.on_registered(seen(ME), now_s)
    (first,) = due(member, now_s)
    assert isinstance(first, Renew)
    assert not member.is_member, "nothing is claimed before the first renewal"
    member.on_renewed(first, seen(ME, first.counter, 2), now_s)
    assert member.is_member
    return member


def renew(member: Membership, now_s: float) -> Renew:
    (ask,) = [each for each in due(member, now_s) if isinstance(each, Renew)]
    return ask


# --- expiry, by our own clock


def test_lh_40_41_43_44_45_a_counter_that_does_not_change_for_a_time_out() -> None:
    expiry, worker = Expiry(20.0), other(1)
    assert not expiry.is_expired(worker, 1e9), "who was never seen"
    expiry.see(worker, 7, 1000.0)  # first sight is now, whatever the counter says
    assert not expiry.is_expired(worker, 1020.0)
    assert expiry.is_expired(worker, 1020.1)
    expiry.see(worker, 7, 1010.0)
    assert expiry.expires_s(worker) == 1020.0, "unchanged: as before"
    expiry.see(worker, 8, 1015.0)
    assert not expiry.is_expired(worker, 1035.0)
    assert expiry.quiet_s(worker, 1035.0) == 20.0
    expiry.see(worker, 3, 1036.0)
    assert not expiry.is_expired(worker, 1050.0), "any change is one"


# --- renewing


def test_lh_28_a_renewal_comes_in_less_than_half_a_time_out() -> None:
    member = joined()
    assert OPTIONS.renew_s < OPTIONS.timeout_s / 2
    assert due(member, OPTIONS.renew_s - 0.01) == []
    assert renew(member, OPTIONS.renew_s).counter == 2
    assert due(member, OPTIONS.renew_s) == [], "one at a time"


def test_lh_16_the_deadline_counts_from_when_the_last_confirmed_renewal_was_sent() -> None:
    member = joined()
    ask = renew(member, 7.0)
    assert member.deadline_s == pytest.approx(19.0)
    member.on_renewed(ask, seen(ME, 2, 3), 12.0)  # the answer took five seconds
    assert member.deadline_s == pytest.approx(26.0)


def test_lh_16_a_renewal_that_failed_moves_no_deadline_and_is_tried_soon() -> None:
    member = joined()
    ask = renew(member, 7.0)
    member.on_not_renewed(Unavailable("away"), 9.0, is_lost=False)
    assert member.deadline_s == pytest.approx(19.0)
    again = renew(member, 9.0 + OPTIONS.retry_s)
    assert again.counter > ask.counter
    assert member.is_member, "an outage is no loss"


def test_p35_who_was_buried_has_no_deadline_any_more() -> None:
    member = joined()
    renew(member, 7.0)
    member.on_not_renewed(LeaseLost("taken for dead"), 8.0, is_lost=True)
    assert member.phase is Phase.LOST
    assert member.deadline_s == -math.inf
    assert due(member, 100.0) == []


def test_lh_38_what_we_have_is_told_with_the_next_renewal() -> None:
    member = joined()
    member.is_stale = True
    (ask,) = member.asks(1.0, ["s2", "s1"], ["s3"])
    assert isinstance(ask, Renew)
    assert (ask.holds, ask.coming) == (("s1", "s2"), ("s3",))


# --- neighbours


def group(count: int, counter: int = 1) -> dict[WorkerId, SeenWorker]:
    return {other(n): seen(other(n), counter) for n in range(1, count + 1)}


def looks(asks: list[Ask]) -> set[WorkerId]:
    return {each.worker for each in asks if isinstance(each, LookAtWorker)}


def test_each_watches_the_next_few_of_a_ring() -> None:
    member = joined()
    member.on_group(group(5), 1.0)
    assert set(member.watched()) == {ME, other(1), other(2)}
    assert looks(due(member, 1.0)) == {other(1), other(2)}


def quiet_group(member: Membership, until_s: float, living: set[WorkerId]) -> list[Ask]:
    """Looks are answered: the living renew at each, the others never."""
    now_s, counter, found = 1.0, 10, list[Ask]()
    while now_s < until_s:
        now_s += 0.5
        counter += 1
        for ask in due(member, now_s):
            found.append(ask)
            if isinstance(ask, LookAtWorker):
                count = counter if ask.worker in living else 1
                member.on_looked(ask.worker, seen(ask.worker, count), now_s)
            elif isinstance(ask, Renew):
                member.on_renewed(ask, seen(ME, ask.counter), now_s)
            elif isinstance(ask, Bury):
                member.on_looked(ask.worker, None, now_s)
    return found


def test_lh_12_45_who_is_silent_for_a_time_out_is_buried_and_nobody_else() -> None:
    member = joined()
    member.on_group(group(5), 1.0)
    living = {other(n) for n in (2, 3, 4, 5)}
    asks = quiet_group(member, 20.0, living)
    assert not [each for each in asks if isinstance(each, Bury)]
    asks = quiet_group(member, 60.0, living)
    assert {each.worker for each in asks if isinstance(each, Bury)} == {other(1)}


def test_many_that_die_together_are_found_together() -> None:
    """All are looked at from when one is late until each is known to live, or not."""
    member = joined()
    member.on_group(group(9), 1.0)
    asks = quiet_group(member, 1.0 + 20.0 + 2 * OPTIONS.renew_s + 2.0, {other(9)})
    assert {each.worker for each in asks if isinstance(each, Bury)} == {
        other(n) for n in range(1, 9)
    }


def test_an_outage_of_ours_buries_nobody() -> None:
    """What did not change while we could not look may have changed all along."""
    member = joined()
    member.on_group(group(1), 1.0)
    (look,) = [each for each in due(member, 1.0) if isinstance(each, LookAtWorker)]
    member.on_looked(look.worker, seen(look.worker, 1), 1.0)
    for ask in due(member, 50.0):
        if isinstance(ask, LookAtWorker):
            member.on_looked(ask.worker, seen(ask.worker, 1), 50.0)
    assert not [each for each in due(member, 50.0) if isinstance(each, Bury)]
    assert not [each for each in due(member, 60.0) if isinstance(each, Bury)]


def test_a_hint_brings_a_look_in_sooner() -> None:
    member = joined()
    member.on_group(group(1), 1.0)
    for ask in due(member, 1.0):
        assert isinstance(ask, LookAtWorker)
        member.hint(other(1), 1.1)  # while the look is under way, which may be older
        member.on_looked(ask.worker, seen(ask.worker, 1), 1.2)
    assert looks(due(member, 1.2)) == {other(1)}


# --- names


def test_lh_flaw_10_one_that_comes_after_us_under_our_name_replaces_us() -> None:
    member = joined()
    twin = WorkerId(ME.name, "e" * 32)
    member.on_group({twin: seen(twin, 1, after=(ME.incarnation,))}, 2.0)
    assert member.is_replaced()
    assert member.replaced() == {ME}


def test_lh_flaw_10_one_that_was_there_before_us_is_replaced() -> None:
    member = joined()
    twin = WorkerId(ME.name, "f" * 32)
    member.seen = seen(ME, 1, 2, after=(twin.incarnation,))
    member.on_group({twin: seen(twin, 1)}, 2.0)
    assert not member.is_replaced()
    assert member.replaced() == {twin}


def test_lh_flaw_10_of_two_that_came_at_once_under_one_name_one_leaves() -> None:
    """Neither was there when the other looked who was there before it."""
    member = joined()
    twin = WorkerId(ME.name, "f" * 32)
    member.on_group({twin: seen(twin, 1)}, 2.0)
    assert member.is_replaced()
    assert member.replaced() == {ME}
    one, other = WorkerId("another", "1" * 32), WorkerId("another", "2" * 32)
    member.on_group({one: seen(one, 1), other: seen(other, 1)}, 3.0)
    assert not member.is_replaced()
    assert member.replaced() == {one}


def test_lh_27_a_name_that_is_trusted_is_taken_over_at_once() -> None:
    former = WorkerId(ME.name, "e" * 32)
    for trusts, buried in ((False, []), (True, [Bury(former, 4)])):
        options = GroupOptions(timeout_s=20.0, trusts_name=trusts)
        member = joined(options=options)
        member.seen = seen(ME, 1, 2, after=(former.incarnation,))
        member.on_group({former: seen(former, 4)}, 1.0)
        assert member.bury_namesakes() == buried


# --- being asked


def test_what_is_asked_again_is_looked_at_again() -> None:
    member = joined()
    ask = renew(member, 7.0)
    member.on_renewed(ask, seen(ME, 2, 3, wanted=("s1",), rings=1), 7.1)
    assert member.wanted == {"s1"}
    member.looked_into("s1")
    assert member.wanted == set()
    answer = renew(member, 7.2)  # at once: whoever rings knows that it was heard
    assert (answer.done, answer.rings) == (("s1",), 1)
    member.on_renewed(answer, seen(ME, 3, 5, wanted=("s1",), rings=2), 7.3)
    assert member.wanted == {"s1"}


# --- how many are looked at


def looked(member: Membership, worker: WorkerId, counter: int, now_s: float) -> None:
    member.on_looked(worker, seen(worker, counter), now_s)


def watching(member: Membership) -> set[WorkerId]:
    return set(member.watched()) - {ME}


FEW = {other(1), other(2)}
ALL = {other(number) for number in range(1, 6)}


def test_while_all_renew_in_time_only_a_few_are_looked_at() -> None:
    """Each of them may be late by a little: for the look, and for the way."""
    member = joined()
    member.on_group(group(5), 1.0)
    now_s = 1.0
    for counter in range(2, 20):
        for later_s in (0.0, 1.2 * OPTIONS.renew_s):  # and at the second look not again yet
            for worker in FEW:
                looked(member, worker, counter, now_s + later_s)
                assert watching(member) == FEW
        now_s += later_s


def test_one_that_is_late_has_all_looked_at_until_each_is_known_to_live() -> None:
    member = joined()
    member.on_group(group(5), 1.0)
    for worker in FEW:
        looked(member, worker, 2, 1.0)
    late_s = 1.0 + 1.3 * OPTIONS.renew_s
    looked(member, other(2), 3, late_s)
    assert watching(member) == ALL, "the first has not renewed for longer than it should"
    assert looks(due(member, late_s)) == ALL - {other(2)}
    for number in (1, 3, 4, 5):
        looked(member, other(number), 2, late_s)
        assert watching(member) == ALL
    for number in range(1, 5):
        looked(member, other(number), 10, late_s + 1.0)
        assert watching(member) == ALL, "the last one was not seen to renew"
    looked(member, other(5), 10, late_s + 1.0)
    assert watching(member) == FEW


def test_one_that_is_gone_is_looked_at_no_more() -> None:
    member = joined()
    member.on_group(group(5), 1.0)
    assert member.on_looked(other(1), None, 2.0)
    member.on_group({other(n): seen(other(n), 2) for n in (2, 3, 4, 5)}, 2.0)
    assert watching(member) == {other(2), other(3)}
