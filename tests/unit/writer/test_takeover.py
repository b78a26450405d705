"""Opening a log while replies are lost and other writers open it, too."""

from __future__ import annotations

from typing import Any

import pytest

from dlog import limits
from dlog.effects import DeleteLedger
from dlog.errors import Conflict, DlogError, Fenced, NotFound, Outcome, Timeout, Unsupported
from dlog.meta.listed import WriterMark
from dlog.meta.log_meta import LogState
from dlog.options import LogOptions, Takeover
from dlog.wire.batch import Birth, ControlKind, encode_control
from dlog.writer.takeover import Opened, Opening, take_over
from dlog.writer.times import Stopwatch
from tests.scenarios.by_hand import NoChance
from tests.unit.admin.scripted import Scripted
from tests.unit.reader.small_log import LAYOUT, NAME, SmallLog

CLAIMED, COMMITTED = "takeover.claimed", "takeover.committed"
OURS, OTHER = WriterMark("ours", "we", 0), WriterMark("theirs", "they", 0)
LOST = Timeout("no reply")


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "META_ATTEMPTS_MAX", 5)


def small(*, sealed: bool) -> Scripted:
    """Two segments of two messages each; the last one is open or sealed. Its writer went."""
    log = SmallLog()
    for number in (1, 2):
        ledger_id = log.begin(at_us=100 * number)
        body = Birth("uid", "segment", number, log.meta.epoch, "t").to_bytes()
        entry = encode_control(ControlKind.BIRTH, body, first_seq=0, timestamp_us=1)
        log.ledgers[ledger_id][0] = b"".join(entry)
        log.write(100 * number, 100 * number + 9)
        if sealed or number == 1:
            log.seal()
    return Scripted.of(log)


def opening(policy: Takeover = "always", create: LogOptions | None = None) -> Opening:
    return Opening(
        NAME, LAYOUT, OURS, policy, create, "new", lambda: 1_000, NoChance(), Stopwatch(lambda: 0.0)
    )


def opened(log: Scripted, policy: Takeover = "always") -> Opened:
    found: Opened = log.run(take_over(opening(policy)))
    return found


def check_ours(log: Scripted, found: Opened) -> None:
    """The log is ours, as it was told, and ends where its last message does."""
    assert log.meta.owned_by("ours")
    assert found.seen.meta == log.meta
    newest = log.meta.segments[-1]
    assert (newest.number, newest.ledger_id, newest.epoch) == (
        found.number,
        found.ledger_id,
        log.meta.epoch,
    )
    assert (found.end.next_seq, found.end.ledger_id) == (4, 20)
    assert found.ledger_id in log.ledgers
    assert [each.ledger_id for each in log.meta.unsealed] == [found.ledger_id]


@pytest.fixture(params=[True, False], ids=["sealed", "open"])
def log(request: pytest.FixtureRequest) -> Scripted:
    return small(sealed=request.param)


def test_an_opener_gets_the_log_with_the_next_epoch(log: Scripted) -> None:
    epoch = log.meta.epoch
    check_ours(log, opened(log))
    assert log.meta.epoch == epoch + 1


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("step", [CLAIMED, COMMITTED])
def test_a_lost_reply_costs_no_second_epoch(step: str, applied: bool) -> None:
    log = small(sealed=False)
    epoch = log.meta.epoch
    log.lose(step, LOST, applied=applied)
    check_ours(log, opened(log))
    assert log.meta.epoch == epoch + 1


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_reply_to_the_commit_of_a_sealed_log_is_resolved(applied: bool) -> None:
    log = small(sealed=True)
    log.lose(COMMITTED, LOST, applied=applied)
    check_ours(log, opened(log))


def other_claims(log: Scripted, *, with_error: DlogError | None) -> Any:
    def hook(effect: Any) -> Any:
        log.put(log.meta.claimed(OTHER))
        if with_error is not None:
            raise with_error
        return log.really(effect)

    return hook


@pytest.mark.parametrize("error", [None, LOST], ids=["refused", "lost"])
def test_an_opener_that_always_takes_over_claims_again_behind_another_one(
    error: DlogError | None,
) -> None:
    """The epoch that it meets behind a lost reply is the other's."""
    log = small(sealed=False)
    epoch = log.meta.epoch
    log.hooks[CLAIMED].append(other_claims(log, with_error=error))
    check_ours(log, opened(log))
    assert log.meta.epoch == epoch + 2


@pytest.mark.parametrize("error", [None, LOST], ids=["refused", "lost"])
def test_an_opener_that_is_overtaken_before_its_commit_is_fenced_by_name(
    error: DlogError | None,
) -> None:
    """Its own ledger goes, if it certainly was not listed."""
    log = small(sealed=False)
    log.hooks[COMMITTED].append(other_claims(log, with_error=error))
    with pytest.raises(Fenced) as caught:
        opened(log)
    winner = caught.value.about["winner"]
    assert (winner.name, winner.epoch) == ("they", log.meta.epoch)
    assert caught.value.outcome is (Outcome.UNKNOWN if error else Outcome.NOT_HAPPENED)
    assert bool(log.deleted) == (error is None)
    assert log.meta.owned_by("theirs")


@pytest.mark.parametrize("error", [None, LOST], ids=["refused", "lost"])
def test_a_sealed_log_that_another_one_opened_meanwhile_is_looked_at_again(
    error: DlogError | None,
) -> None:
    log = small(sealed=True)
    epoch = log.meta.epoch
    log.hooks[COMMITTED].append(other_claims(log, with_error=error))
    found = opened(log)
    check_ours(log, found)
    assert log.meta.epoch == epoch + 2


def test_a_polite_opener_that_is_overtaken_looks_at_the_new_holder() -> None:
    """The writer that it looked for is gone; another one, which is there, claims first."""
    log = small(sealed=False)

    def claim() -> None:
        log.put(log.meta.claimed(OTHER))
        log.nodes[LAYOUT.presence(NAME, "theirs")] = b"they"

    log.before(CLAIMED, claim)
    with pytest.raises(Conflict) as caught:
        opened(log, "if_dead")
    assert caught.value.about["winner"].name == "they"
    assert log.meta.owned_by("theirs")


@pytest.mark.parametrize(
    ("state", "error"),
    [(LogState.TERMINATED, Unsupported), (LogState.DELETING, NotFound)],
    ids=str,
)
def test_a_log_that_ends_while_it_is_claimed_is_refused(
    state: LogState, error: type[DlogError]
) -> None:
    log = small(sealed=False)
    epoch = log.meta.epoch
    log.before(CLAIMED, lambda: log.change(state=state))
    with pytest.raises(error):
        opened(log)
    assert (log.meta.state, log.meta.epoch) == (state, epoch)


@pytest.mark.parametrize("policy", ["never", "if_dead"])
def test_a_polite_opener_is_refused_while_a_writer_is_there(policy: Takeover) -> None:
    log = small(sealed=False)
    log.put(log.meta.claimed(OTHER))
    log.nodes[LAYOUT.presence(NAME, "theirs")] = b"they"
    before = log.meta
    with pytest.raises(Conflict) as caught:
        opened(log, policy)
    assert caught.value.about["winner"].name == "they"
    assert log.meta == before
    del log.nodes[LAYOUT.presence(NAME, "theirs")]
    if policy == "if_dead":
        check_ours(log, opened(log, policy))
    else:
        with pytest.raises(Conflict):
            opened(log, policy)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"state": LogState.TERMINATED}, Unsupported),
        ({"state": LogState.DELETING}, NotFound),
        ({"state": LogState.DELETED}, NotFound),
    ],
    ids=str,
)
def test_a_log_that_takes_no_more_is_refused(
    log: Scripted, changes: dict[str, Any], error: type[DlogError]
) -> None:
    log.change(**changes)
    before = log.meta
    with pytest.raises(error):
        opened(log)
    assert log.meta == before
    assert not any(isinstance(each, DeleteLedger) for each in log.done)


def test_a_removed_log_is_made_anew_where_a_log_may_be_made() -> None:
    log = small(sealed=True)
    log.change(state=LogState.DELETED, segments=())
    removed = log.meta
    found: Opened = log.run(take_over(opening(create=LogOptions(segment_bytes=1 << 20))))
    assert (log.meta.uid, log.meta.state) == ("new", LogState.OPEN)
    assert log.meta.epoch == removed.epoch + 1
    assert found.number == removed.next_number
    assert log.meta.options.segment_bytes == 1 << 20
    assert found.end == log.meta.end


def test_the_uid_of_a_log_that_may_have_been_made_is_given_to_no_other() -> None:
    """A creation that nobody answered came late, and that log was removed meanwhile."""
    log = small(sealed=True)
    log.change(state=LogState.DELETED, segments=())
    log.before(COMMITTED, lambda: log.change(uid="made and removed"))
    opened_new = log.run(take_over(opening(create=LogOptions())))
    assert opened_new.seen.meta.uid == "token"


@pytest.mark.parametrize("policy", ["always", "if_dead"])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_writer_is_present_before_the_log_names_it(policy: Takeover, *, sealed: bool) -> None:
    log = small(sealed=sealed)
    presence = LAYOUT.presence(NAME, OURS.token)
    seen: list[bool] = []
    log.before(COMMITTED if sealed else CLAIMED, lambda: seen.append(presence in log.nodes))
    opened(log, policy)
    assert seen == [True]
