"""What went wrong in recoveries of others, as short plays: each names where it was seen. Bookies
answer at once here, in the order they were asked, unless a play says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dlog.effects import LastReadable
from dlog.errors import Unavailable
from dlog.ledger import store as ledgers
from dlog.ledger.bookkeeper.core.recovery import (
    ChangeLedger,
    FenceAhead,
    FindEnd,
    ReadLedger,
    recover,
)
from dlog.ledger.bookkeeper.core.recovery_requests import Add, Ask, Request
from dlog.ledger.bookkeeper.core.tail_recovery import FoundEnd, TailRecovery
from dlog.ledger.store import ClosedLedger
from dlog.options import TailMode
from dlog.reader.horizon import Horizon
from dlog.testing.sim.planted import planted
from dlog.testing.sim.planted.ledger import PLANTS
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v2 import Flag
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from tests.unit.ledger.bookkeeper.recovery_tools import (
    ABC,
    DIGEST,
    LEDGER_ID,
    bytes_to,
    metadata,
    packet,
    poisoned,
    split,
)


class Bookie:
    """`says` and `refuses` override what it answers to reads and adds; a silent one answers
    nothing."""

    def __init__(self, *entries: bytes) -> None:
        self.entries = {entry_of(raw): raw for raw in entries}
        self.is_fenced = False
        self.is_silent = False
        self.reads = 0
        self.has_old_cache = False  # "the last entry" is not the last
        self.says: Answer | None = None
        self.refuses: Answer | None = None

    def read(self, first_entry: int, count_max: int) -> tuple[Answer, list[bytes]]:
        self.reads += 1
        if self.says is not None:
            return self.says, []
        self.is_fenced = True
        if first_entry < 0 and self.entries:
            last = min(self.entries) if self.has_old_cache else max(self.entries)
            return Answer.OK, [self.entries[last]]
        raws: list[bytes] = []
        while first_entry in self.entries and len(raws) < count_max:
            raws.append(self.entries[first_entry])
            first_entry += 1
        return (Answer.OK, raws) if raws else (Answer.NO_ENTRY, [])

    def add(self, raw: bytes, flags: Flag = Flag.NONE) -> Answer:
        if self.refuses is not None:
            return self.refuses
        if self.is_fenced and not flags & Flag.RECOVERY_ADD:
            return Answer.FENCED
        self.entries[entry_of(raw)] = raw
        return Answer.OK

    def last_confirmed(self) -> int:
        """What a tailing reader learns here."""
        headers = [DIGEST.verify_last(raw, ledger_id=LEDGER_ID) for raw in self.entries.values()]
        return max((each.last_confirmed for each in headers), default=-1)


def entry_of(raw: bytes) -> int:
    return int.from_bytes(raw[8:16], "big")


class Play:
    def __init__(self, stored: LedgerMetadata | None = None, **bookies: Bookie) -> None:
        self.stored = stored or metadata()
        self.bookies = bookies
        self.now_s = 0.0
        self.requests: list[Request] = []  # of the recovery that goes on

    def choose(self, ensemble: Sequence[str], failed: Any) -> str | None:
        return next(
            (each for each in self.bookies if each not in ensemble and each not in failed), None
        )

    def begin(self, until: Callable[[], bool] = lambda: False) -> TailRecovery:
        """A recovery, as far as it goes while nothing changes, or until it dies."""
        core = TailRecovery(LEDGER_ID, self.stored, self.choose, now_s=self.now_s)
        self.requests = []
        self.go_on(core, until)
        return core

    def go_on(self, core: TailRecovery, until: Callable[[], bool] = lambda: False) -> None:
        self.requests += core.take()
        while self.requests and not until():
            request = self.requests.pop(0)
            bookie = self.bookies[request.bookie_id]
            if bookie.is_silent:
                continue
            if isinstance(request, Ask):
                answer, raws = bookie.read(request.first_entry, request.count_max)
                core.on_read(request, answer, raws, now_s=self.now_s)
            elif isinstance(request, Add):
                for flags, entry in split(request.frames):
                    head = DIGEST.pack_head(
                        LEDGER_ID,
                        entry.entry_id,
                        entry.last_confirmed,
                        entry.ledger_bytes,
                        (entry.payload,),
                    )
                    answer = bookie.add(head + bytes(entry.payload), flags)
                    core.on_adds(request.bookie_id, answer, [entry.entry_id], now_s=self.now_s)
            self.requests += core.take()

    def later(self, core: TailRecovery, seconds: float) -> None:
        self.now_s += seconds
        core.tick(self.now_s)
        self.go_on(core)

    def end(self) -> FoundEnd:
        found = self.begin().found
        assert found is not None
        return found

    def tail(self) -> int:
        """What a reader that asks everybody may deliver."""
        return max(bookie.last_confirmed() for bookie in self.bookies.values())


def test_recovery_read_must_fence() -> None:
    """apache/bookkeeper 2614. c's fence failed; it denies entry 1 and gets it afterwards, which
    with a makes the quorum that acknowledges it."""
    play = Play(a=Bookie(packet(0), packet(1, -1)), b=Bookie(packet(0)), c=Bookie(packet(0)))
    play.bookies["c"].says = Answer.IO_FAILED
    core = play.begin(until=lambda: play.bookies["c"].reads == 1)
    play.bookies["a"].is_silent = True
    play.bookies["c"].says = None
    play.go_on(core)
    assert core.found is not None
    assert core.found.last_entry == 0
    assert play.bookies["c"].add(packet(1, 0)) is Answer.FENCED


def test_recovery_floor() -> None:
    """2615. The bookies of a last fragment that holds nothing know no LAC, or an old one."""
    stored = metadata((0, ABC), (6, ("a", "b", "d")))
    whole = [packet(entry_id, min(entry_id - 1, 2)) for entry_id in range(6)]
    play = Play(stored, a=Bookie(*whole), b=Bookie(*whole), c=Bookie(*whole), d=Bookie())
    found = play.end()
    assert (found.last_entry, found.bytes) == (5, bytes_to(5))
    assert play.bookies["d"].entries == {}, "nothing of the first fragment is written to the last"


def test_negative_needs_quorum() -> None:
    """2908. Entry 0 stands on a and c; b was sent it and did not keep it."""
    play = Play(a=Bookie(packet(0)), b=Bookie(), c=Bookie(packet(0)))
    core = play.begin(until=lambda: play.bookies["c"].is_fenced)
    play.bookies["a"].is_silent = play.bookies["c"].is_silent = True
    play.go_on(core)
    assert play.bookies["b"].reads >= 2, "it has denied the entry"
    assert core.found is None
    assert play.bookies["b"].entries == {}
    play.bookies["a"].is_silent = play.bookies["c"].is_silent = False
    assert play.end().last_entry == 0


def test_a_hung_bookie_does_not_hold_up_a_recovery() -> None:
    """1067."""
    whole = [packet(entry_id) for entry_id in range(5)]
    play = Play(a=Bookie(), b=Bookie(*whole), c=Bookie(*whole))
    play.bookies["a"].is_silent = True
    assert play.end().last_entry == 4


def test_lac_is_a_hint() -> None:
    """2612. A bookie that lost everything lowers the LAC that is read, and nothing else."""
    whole = [packet(entry_id) for entry_id in range(5)]
    for wiped in ABC:
        play = Play(a=Bookie(*whole), b=Bookie(*whole), c=Bookie(*whole))
        play.bookies[wiped].entries = {}
        assert play.end().last_entry == 4


def test_the_lac_of_a_bookie_may_go_down() -> None:
    """A bookie that was written back to answers from what it was sent last."""
    whole = [packet(entry_id) for entry_id in range(5)]
    play = Play(a=Bookie(*whole), b=Bookie(*whole), c=Bookie(*whole[:3]))
    for bookie in play.bookies.values():
        bookie.has_old_cache = True
    assert play.end().last_entry == 4


def test_a_close_over_a_recovery_takes_nothing_back_from_readers() -> None:
    """H1. The stock client closes over IN_RECOVERY at what it confirmed: here before 3 and 4, which
    the recovery is about to write back."""
    confirmed = [packet(entry_id) for entry_id in range(3)]
    play = Play(
        a=Bookie(*confirmed, packet(3), packet(4, 2)),
        b=Bookie(*confirmed),
        c=Bookie(*confirmed),
    )
    before = play.tail()
    core = play.begin()
    assert core.found is not None
    assert core.found.last_entry == 4
    assert sorted(play.bookies["b"].entries) == [0, 1, 2, 3, 4]
    assert play.tail() == before == 2


def test_a_dead_recovery_takes_nothing_back_from_readers() -> None:
    """H2. The first recovery replaces c for itself, writes 3 and 4 back on b and d, and dies; the
    second one asks a and c, which never had 3, and that is right."""
    confirmed = [packet(entry_id) for entry_id in range(3)]
    play = Play(
        a=Bookie(*confirmed),
        b=Bookie(*confirmed, packet(3), packet(4, 2)),
        c=Bookie(*confirmed),
        d=Bookie(),
    )
    play.bookies["a"].refuses = play.bookies["c"].refuses = Answer.IO_FAILED
    play.begin()  # and dies before it closes
    assert sorted(play.bookies["d"].entries) == [3, 4]
    delivered = play.tail()
    play.bookies["a"].refuses = play.bookies["c"].refuses = None
    play.bookies["b"].is_silent = True
    assert play.end().last_entry == 2 >= delivered


@pytest.mark.parametrize(("tail", "delivers"), [("normal", 3), ("strict", 2)])
def test_a_dead_recovery_by_the_stock_client_fools_a_normal_tail_only(
    tail: TailMode, delivers: int
) -> None:
    """H2 again, by a recovery whose write-backs carry a LAC that rises: entry 3 is shown, and 2 is
    the end."""
    confirmed = [packet(entry_id) for entry_id in range(3)]
    play = Play(
        a=Bookie(*confirmed),
        b=Bookie(*confirmed, packet(3), packet(4, 2)),
        c=Bookie(*confirmed),
        d=Bookie(),
    )
    horizon = Horizon(tail)
    horizon.waits_for_recoveries = False
    assert _may_deliver(horizon, play.tail(), ledgers.LedgerState.OPEN) == 2
    play.bookies["a"].refuses = play.bookies["c"].refuses = Answer.IO_FAILED
    with planted(PLANTS["lac_on_recovery_adds"]):
        play.begin()  # marks the ledger first, and dies before it closes
    assert play.tail() == 3
    assert _may_deliver(horizon, play.tail(), ledgers.LedgerState.IN_RECOVERY) == delivers
    play.bookies["a"].refuses = play.bookies["c"].refuses = None
    play.bookies["b"].is_silent = True
    assert play.end().last_entry == 2


def _may_deliver(horizon: Horizon, shown: int, state: ledgers.LedgerState) -> int:
    asking = horizon.last_entry(LEDGER_ID)
    effect = next(asking)
    try:
        while True:
            look = ledgers.LedgerInfo(LEDGER_ID, state, None, ledgers.LedgerSpec())
            effect = asking.send(shown if isinstance(effect, LastReadable) else look)
    except StopIteration as stop:
        return int(stop.value)


def test_recovery_flag_lost_on_resend() -> None:
    """4163. Two bookies are too busy at first."""
    play = Play(a=Bookie(packet(0), packet(1, -1)), b=Bookie(), c=Bookie())
    play.bookies["b"].refuses = play.bookies["c"].refuses = Answer.BUSY
    core = play.begin()
    assert core.found is None
    play.bookies["b"].refuses = play.bookies["c"].refuses = None
    play.later(core, 0.1)
    assert all(bookie.is_fenced for bookie in play.bookies.values())
    assert all(sorted(bookie.entries) == [0, 1] for bookie in play.bookies.values())
    assert core.found is not None


def test_recovery_flag_lost_on_resend_to_another_bookie() -> None:
    """4163. The other one is fenced, too, by a recovery that died."""
    stored = metadata((0, ("c", "a", "b")))
    play = Play(stored, a=Bookie(packet(0), packet(1, -1)), b=Bookie(), c=Bookie(), d=Bookie())
    play.bookies["c"].refuses = Answer.IO_FAILED
    play.bookies["d"].is_fenced = True
    found = play.end()
    assert found.fragments == (Fragment(0, ("d", "a", "b")),)
    assert sorted(play.bookies["d"].entries) == [0, 1]


@pytest.mark.parametrize("answer", [Answer.LIMBO, Answer.TIMED_OUT, Answer.IO_FAILED])
def test_limbo_answer(answer: Answer) -> None:
    """BP-46. Entry 0 stood on a and b; a is away, b came back without its journal."""
    play = Play(a=Bookie(packet(0)), b=Bookie(), c=Bookie())
    core = play.begin(until=lambda: play.bookies["c"].is_fenced)
    play.bookies["a"].says = play.bookies["b"].says = answer
    with pytest.raises(Unavailable) as caught:
        play.go_on(core)
    assert sorted(caught.value.missing) == ["a", "b"]
    play.bookies["a"].says = None
    assert play.end().last_entry == 0, "a later try finds it"


def test_an_empty_newcomer_is_never_asked() -> None:
    """BOOKKEEPER-355. c is replaced while 1 is written back."""
    stored = metadata((0, ("c", "a", "b")))
    play = Play(stored, a=Bookie(packet(0)), b=Bookie(packet(0)), c=Bookie(packet(0)), d=Bookie())
    play.bookies["c"].refuses = Answer.IO_FAILED
    play.bookies["b"].entries[1] = play.bookies["c"].entries[1] = packet(1)
    found = play.end()
    assert found.last_entry == 1
    assert found.fragments == (Fragment(0, ("c", "a", "b")), Fragment(1, ("d", "a", "b")))
    assert play.bookies["d"].reads == 0


def test_a_poisoned_lac_closes_nothing_too_high() -> None:
    """One header with LAC 1000 among five made the stock client close at 1000."""
    whole = [packet(entry_id) for entry_id in range(5)]
    play = Play(a=Bookie(*whole), b=Bookie(*whole), c=Bookie(*whole[:4]))
    play.bookies["c"].entries[4] = poisoned(4, 1000)
    assert play.end().last_entry == 4
    assert play.bookies["c"].last_confirmed() <= 3, "a good copy has taken its place"


def test_the_first_close_is_the_end() -> None:
    """1712. Two recoveries find different ends: entry 2 shows to one of them only. Both are right
    until one has closed."""
    node = [metadata(state=LedgerState.OPEN)]
    play = Play(
        a=Bookie(packet(0), packet(1)),
        b=Bookie(packet(0), packet(1)),
        c=Bookie(packet(0), packet(1), packet(2)),
    )

    def run(procedure: Any, answer: Any = None) -> Any:
        """Up to its close, which is left to the play."""
        while True:
            step = procedure.send(answer)
            if isinstance(step, ReadLedger):
                answer = node[0]
            elif isinstance(step, FenceAhead):
                answer = None
            elif isinstance(step, FindEnd):
                play.stored = step.metadata
                answer = play.end()
            elif step.point == "recovery.closed":
                return step
            else:
                answer = change(step)

    def change(step: ChangeLedger) -> LedgerMetadata:
        node[0] = step.change(node[0]) or node[0]
        return node[0]

    first, second = recover(LEDGER_ID), recover(LEDGER_ID)
    play.bookies["c"].is_silent = True
    one = run(first)
    play.bookies["c"].is_silent = False
    play.bookies["a"].is_silent = True
    other = run(second)
    change(other)
    with pytest.raises(StopIteration) as told:
        second.send(node[0])
    assert told.value.value == ClosedLedger(2, bytes_to(2))
    with pytest.raises(StopIteration) as told:
        first.send(change(one))
    assert told.value.value == ClosedLedger(2, bytes_to(2))
