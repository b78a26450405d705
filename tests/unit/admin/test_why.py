"""What is told of a log from outside: a table of situations, and the reasons that each gives."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dlog.admin.why import OpenLedger, Outside, diagnose, located, look_at, no_metadata
from dlog.chance import SYSTEM_CHANCE
from dlog.clock import SYSTEM_CLOCK
from dlog.drive import Stores
from dlog.errors import Timeout, Unavailable
from dlog.ledger.memory import MemoryLedgers, MemoryLedgerStore
from dlog.ledger.store import LedgerInfo, Whereabouts
from dlog.meta.layout import Layout
from dlog.meta.log_meta import LogMeta, Segment, WriterMark
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.options import LogOptions
from dlog.reader.feed import look
from dlog.reader.segments import SegmentView
from dlog.reason import ReasonCode

MARK = WriterMark("token", "ana", 5)
META = LogMeta("u", LogOptions(), epoch=3, writer=MARK)
PLAIN = OpenLedger(2, 20, 3, "open", 7, True)


def codes(
    *ledgers: OpenLedger, present: bool | None = True, holds: tuple[str, ...] = (), meta: Any = META
) -> list[ReasonCode]:
    found = diagnose("log", Outside(meta, present, ledgers, holds), ledgers)
    assert (found.name, found.state, found.epoch) == ("log", "open", meta.epoch)
    assert (found.present, found.ledgers, found.holds) == (present, ledgers, holds)
    return [reason.code for reason in found.reasons]


def changed(**changes: Any) -> OpenLedger:
    return dataclasses.replace(PLAIN, **changes)


@pytest.mark.parametrize(
    ("ledger", "reasons"),
    [
        (PLAIN, []),
        (changed(state="in_recovery"), [ReasonCode.IN_RECOVERY]),
        (changed(state="unknown", last_readable=None, may_be_entered=None), []),
        (changed(state="gone", may_be_entered=False), [ReasonCode.SEGMENT_NOT_ENTERABLE]),
        (changed(missing=("b",)), [ReasonCode.BOOKIES_AWAY]),
        (changed(quarantined=("b",), read_only=("c",), bookies=("b", "c")), []),
        (
            changed(state="in_recovery", missing=("b",), may_be_entered=False),
            [ReasonCode.IN_RECOVERY, ReasonCode.BOOKIES_AWAY, ReasonCode.SEGMENT_NOT_ENTERABLE],
        ),
    ],
)
def test_what_a_ledger_tells(ledger: OpenLedger, reasons: list[ReasonCode]) -> None:
    assert codes(ledger) == reasons


def test_a_holder_is_gone_only_if_its_node_is() -> None:
    assert codes(PLAIN, present=False) == [ReasonCode.HOLDER_GONE]
    assert codes(PLAIN, present=True) == codes(PLAIN, present=None) == []
    nobody = dataclasses.replace(META, writer=None)
    assert codes(PLAIN, present=False, meta=nobody) == []
    found = diagnose("log", Outside(META, False, (PLAIN,), ()), (PLAIN,))
    assert found.writer is not None
    assert (found.writer.name, found.writer.token, found.writer.since_us) == ("ana", "token", 5)
    (reason,) = found.reasons
    assert reason.evidence == {"holder": "ana", "epoch": 3}
    assert str(reason).endswith("; whoever opens the log recovers ledger 20")
    (alone,) = diagnose("log", Outside(META, False, (), ()), ()).reasons
    assert str(alone).endswith("was cut off")


def test_each_hold_is_told() -> None:
    assert codes(holds=("a", "b")) == [ReasonCode.HELD, ReasonCode.HELD]


def test_missing_bookies_that_should_take_entries_are_named() -> None:
    where = Whereabouts(("a", "b", "c"), ("a", "b"), ("b", "c"), ("a",), ("d",))
    ledger = located(PLAIN, where)
    assert (ledger.bookies, ledger.missing) == (("a", "b"), ("b", "c"))
    assert (ledger.read_only, ledger.quarantined) == (("a",), ("d",))
    (reason,) = diagnose("log", Outside(META, True, (ledger,), ()), (ledger,)).reasons
    assert "needs b, c, not registered now; b should take its entries" in str(reason)
    assert reason.evidence["missing"] == ("b", "c")
    assert reason.evidence["quarantined"] == ("d",)
    old = dataclasses.replace(ledger, missing=("c",))
    (reason,) = diagnose("log", Outside(META, True, (old,), ()), (old,)).reasons
    assert "should take" not in str(reason)


def test_a_recovery_names_who_has_claimed_the_log() -> None:
    recovering = changed(state="in_recovery")
    for meta, who in ((META, "ana"), (dataclasses.replace(META, writer=None), "somebody")):
        (reason,) = diagnose("log", Outside(meta, True, (recovering,), ()), (recovering,)).reasons
        assert (reason.evidence["recovered_by"], reason.evidence["epoch"]) == (who, 3)


def test_a_metadata_store_that_is_away_is_the_reason() -> None:
    found = no_metadata("log", Unavailable("ZooKeeper is away", missing="zookeeper"))
    assert (found.name, found.state, found.epoch) == ("log", "unknown", 0)
    (reason,) = found.reasons
    assert reason.code is ReasonCode.METADATA_AWAY
    assert "ZooKeeper is away" in str(reason)


# Looking.


class Ledgers(MemoryLedgerStore):
    """Without any ledger; some are not gone but away."""

    def __init__(self) -> None:
        super().__init__(MemoryLedgers())
        self.errors: dict[int, Exception] = {}

    async def open(self, ledger_id: int, **options: Any) -> Any:
        if ledger_id in self.errors:
            raise self.errors[ledger_id]
        return await super().open(ledger_id, **options)

    async def info(self, ledger_id: int) -> LedgerInfo:
        if ledger_id in self.errors:
            raise self.errors[ledger_id]
        return await super().info(ledger_id)


async def seen(ledgers: Ledgers, *ids: int, present: bool = True) -> Outside:
    meta_store, layout = MemoryMetaStore(MemoryTree()), Layout()
    segments = tuple(Segment(number, each, 3) for number, each in enumerate(ids, 1))
    meta = dataclasses.replace(META, segments=segments)
    await meta_store.create(layout.log("log"), meta.to_bytes())
    if present:
        await meta_store.create(layout.presence("log", "token"), b"{}")
    stores = Stores(meta_store, ledgers, layout, SYSTEM_CLOCK, SYSTEM_CHANCE)
    view = SegmentView("log", layout)
    try:
        return await look(stores, view, look_at(view, layout))
    finally:
        await meta_store.close()


@pytest.mark.parametrize("present", [True, False])
async def test_the_node_of_the_holder_says_whether_it_is_there(present: bool) -> None:
    assert (await seen(Ledgers(), present=present)).present is present


@pytest.mark.parametrize(
    "error", [Unavailable("away", missing="bookies"), Timeout("no answer"), None]
)
async def test_what_nobody_could_be_asked_is_unknown(error: Exception | None) -> None:
    ledgers = Ledgers()
    if error is not None:
        ledgers.errors[20] = error
    (found,) = (await seen(ledgers, 20)).ledgers
    assert (found.segment, found.ledger_id, found.epoch) == (1, 20, 3)
    if error is None:  # its node is there, and the ledger is not
        assert (found.state, found.may_be_entered, found.last_readable) == ("gone", False, None)
    else:
        assert (found.state, found.may_be_entered, found.last_readable) == ("unknown", None, None)
