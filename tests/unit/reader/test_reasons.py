"""Every wait of a reader has a code and a sentence, by state of its core."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.errors import Unavailable
from dlog.ledger.store import LedgerState
from dlog.meta.layout import Layout
from dlog.meta.listed import Segment, WriterMark
from dlog.meta.log_meta import LogMeta
from dlog.options import LogOptions, ReaderOptions
from dlog.reader.core import ReaderCore, ReaderState, _all_read, _in_recovery, _not_enterable
from dlog.reader.places import Place
from dlog.reader.reasons import ReaderFacts, why_reader
from dlog.reader.segments import SegmentView
from dlog.reason import ReasonCode, Wait

SEGMENT = Segment(3, 17, 2)
READING = Wait(ReasonCode.READING, "ledger 17 is being read", {"ledger_id": 17}, 4.0)


def core_in(state: ReaderState, **known: Any) -> ReaderCore:
    core = ReaderCore(SegmentView("log", Layout()), ReaderOptions())
    core.state = state
    core.place = Place(3, 8, 0, 41)
    for name, value in known.items():
        setattr(core, name, value)
    return core


def told(core: ReaderCore, **known: Any) -> Wait:
    wait = why_reader(core, facts(**known))
    assert wait is not None
    assert wait.sentence
    return wait


def facts(**known: Any) -> ReaderFacts:
    nothing: dict[str, Any] = {
        "ended_by": None,
        "is_closed": False,
        "ahead_bytes": 0,
        "ahead_bytes_max": 100,
        "is_full": False,
        "has_messages": False,
        "awaited": None,
    }
    return ReaderFacts(**{**nothing, **known})


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (ReaderState.FINDING, ReasonCode.FINDING),
        (ReaderState.READING, ReasonCode.READING),
        (ReaderState.TAILING, ReasonCode.AT_TAIL),
        (ReaderState.CROSSING, ReasonCode.FINDING),
        (ReaderState.ENDED, ReasonCode.ENDED),
    ],
)
def test_every_state_has_its_reason(state: ReaderState, code: ReasonCode) -> None:
    assert told(core_in(state)).code is code


def test_no_state_is_missing_above() -> None:
    assert all(why_reader(core_in(state), facts()) is not None for state in ReaderState)


def test_where_the_tail_is() -> None:
    assert told(core_in(ReaderState.TAILING)).evidence == {
        "segment": 3,
        "last_entry": 7,
        "next_seq": 41,
    }


def test_what_is_read() -> None:
    wait = told(core_in(ReaderState.READING), awaited=READING)
    assert wait.evidence == {"segment": 3, "entry_id": 8, "ledger_id": 17}


def test_what_is_looked_for_waits_for_the_store() -> None:
    metadata = Wait(ReasonCode.METADATA, "the metadata store is to read /x", {"path": "/x"}, 1.0)
    wait = told(core_in(ReaderState.CROSSING), awaited=metadata)
    assert wait.code is ReasonCode.FINDING
    assert metadata.sentence in wait.sentence


@pytest.mark.parametrize("has_no_seam", [True, False])
@pytest.mark.parametrize("state", [ReaderState.FINDING, ReaderState.CROSSING])
def test_a_segment_that_may_not_be_entered(state: ReaderState, has_no_seam: bool) -> None:
    blocked = _not_enterable(SEGMENT, LedgerState.OPEN, has_no_seam)
    wait = told(core_in(state, blocked=blocked))
    assert wait.code is ReasonCode.SEGMENT_NOT_ENTERABLE
    assert wait.evidence["has_seam"] is not has_no_seam
    assert ("seam cannot be read" in wait.sentence) is has_no_seam


def test_whoever_recovers_is_named() -> None:
    meta = LogMeta("uid", LogOptions(), epoch=2)
    nobody = _in_recovery(SEGMENT, meta)  # who did not claim the log
    assert "recovered_by" not in nobody.evidence
    claimed = _in_recovery(SEGMENT, meta.claimed(WriterMark("token", "ben", 0)))
    wait = told(core_in(ReaderState.TAILING, recovering=claimed))
    assert wait.code is ReasonCode.IN_RECOVERY
    assert (wait.evidence["recovered_by"], wait.evidence["epoch"]) == ("ben", 3)
    assert _in_recovery(SEGMENT, None).code is ReasonCode.IN_RECOVERY


def test_behind_the_last_segment() -> None:
    meta = LogMeta("uid", LogOptions())
    assert "no writer" in _all_read(SEGMENT, meta).sentence
    held = _all_read(SEGMENT, meta.claimed(WriterMark("token", "ben", 0)))
    assert (held.code, held.evidence["writer"]) == (ReasonCode.AT_TAIL, "ben")


def test_what_does_not_depend_on_the_state() -> None:
    core = core_in(ReaderState.READING)
    full = told(core, is_full=True, has_messages=True, ahead_bytes=200)
    assert full.code is ReasonCode.READ_AHEAD_FULL
    assert (full.evidence["read_ahead_bytes"], full.evidence["read_ahead_bytes_max"]) == (200, 100)
    assert why_reader(core, facts(has_messages=True)) is None
    lost = told(core, ended_by=Unavailable("b1 is away", missing=["b1"]))
    assert (lost.code, lost.evidence["missing"]) == (ReasonCode.LOST, ("b1",))
    assert told(core, is_closed=True, is_full=True).code is ReasonCode.CLOSED
