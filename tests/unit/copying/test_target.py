"""Which log may be copied into, step by step: replies that are lost, and others who are faster."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dlog.chance import SYSTEM_CHANCE
from dlog.copying.target import Target, begin_copy
from dlog.effects import CreateNode, Pause, ReadNode, ReplaceNode
from dlog.errors import AlreadyExists, Conflict, DlogError, NotFound, Outcome, Timeout, Unsupported
from dlog.meta.listed import CopyOf, WriterMark
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.store import Versioned
from dlog.options import LogOptions

OF = CopyOf("other", "orders", 40)
MARK = WriterMark("token", "w", 0)
TARGET = Target("log", "/dlog/logs/log", OF, 30, LogOptions(segment_age_s=5), "new uid")
BLANK = LogMeta("uid", LogOptions())
COPY = BLANK.as_copy(OF, 30)


class Node:
    """One node, and what becomes of the next writes to it: done, refused, lost, lost and done."""

    def __init__(self, meta: LogMeta | None, *fates: str) -> None:
        self.meta = meta
        self.version = 1
        self.fates = list(fates)
        self.rival: LogMeta | None = None  # comes in before the next write

    def answer(self, effect: Any) -> Any:
        match effect:
            case ReadNode():
                if self.meta is None:
                    raise NotFound("nothing here")
                return Versioned(self.meta.to_bytes(), self.version)
            case Pause():
                return None
        if self.rival is not None:
            self.meta, self.rival = self.rival, None
            self.version += 1
        fate = self.fates.pop(0) if self.fates else "done"
        if isinstance(effect, CreateNode) and self.meta is not None:
            raise AlreadyExists("there is one")
        if isinstance(effect, ReplaceNode) and effect.version != self.version:
            raise Conflict("another version")
        if fate != "lost":
            self.meta = LogMeta.from_bytes(bytes(effect.value), where="node")
            self.version += 1
        if fate != "done":
            raise Timeout("no answer", outcome=Outcome.UNKNOWN)
        return self.version

    def begin(self) -> CopyOf:
        procedure = begin_copy(TARGET, SYSTEM_CHANCE)
        answer, error = None, None
        try:
            while True:
                effect = procedure.send(answer) if error is None else procedure.throw(error)
                answer, error = None, None
                try:
                    answer = self.answer(effect)
                except DlogError as refused:
                    error = refused
        except StopIteration as stop:
            done: CopyOf = stop.value
            return done


def removed(epoch: int = 4) -> LogMeta:
    return dataclasses.replace(
        BLANK, state=LogState.DELETED, epoch=epoch, next_number=9, ledger_floor=30
    )


@pytest.mark.parametrize("fates", [(), ("lost",), ("lost and done",), ("lost", "lost and done")])
@pytest.mark.parametrize("before", [None, BLANK, removed()], ids=["none", "blank", "removed"])
def test_it_becomes_the_copy(before: LogMeta | None, fates: tuple[str, ...]) -> None:
    node = Node(before, *fates)
    assert node.begin() == OF
    meta = node.meta
    assert meta is not None
    assert (meta.copy_of, meta.end.next_seq, meta.end.last_time_us) == (OF, 40, 30)
    assert meta.truncate_before.seq == 40
    if before is BLANK:
        assert (meta.uid, meta.options) == (BLANK.uid, BLANK.options), "as it was made"
    else:
        assert (meta.uid, meta.options) == ("new uid", TARGET.options)
    if before is not None:
        assert (meta.epoch, meta.next_number) == (before.epoch, before.next_number)


def test_a_copy_that_is_there_is_left_as_it_is() -> None:
    node = Node(COPY.claimed(MARK, copies="other").listed(5))
    assert node.begin() == OF
    assert node.version == 1


@pytest.mark.parametrize("before", [None, BLANK])
def test_another_copier_may_be_faster(before: LogMeta | None) -> None:
    node = Node(before)
    node.rival = COPY.claimed(MARK, copies="other").listed(5)
    assert node.begin() == OF


@pytest.mark.parametrize(
    ("there", "error"),
    [
        (BLANK.claimed(MARK).listed(5), AlreadyExists),
        (BLANK.claimed(MARK), AlreadyExists),
        (BLANK.as_copy(CopyOf("third", "x", 0), 0), AlreadyExists),
        (COPY.claimed(MARK), AlreadyExists),
        (BLANK.terminated(), Unsupported),
        (dataclasses.replace(BLANK, state=LogState.DELETING), NotFound),
    ],
)
@pytest.mark.parametrize("comes", ["first", "meanwhile"])
def test_what_is_refused(there: LogMeta, error: type[DlogError], comes: str) -> None:
    node = Node(there if comes == "first" else None)
    node.rival = None if comes == "first" else there
    with pytest.raises(error):
        node.begin()
    assert node.meta == there, "nothing was changed"
