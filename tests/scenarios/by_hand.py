"""Procedures step by step, by hand: each stands where a test left it, with the effect in hand that
it asks for next, while others go on. Metadata is a tree that is always there; ledgers are closed
ones, without bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlog.admin.collect import collect
from dlog.admin.holds import Holding, drop_hold, put_hold
from dlog.admin.remove import remove
from dlog.admin.summary import Collection, Truncation
from dlog.admin.truncate import truncate
from dlog.effects import (
    CreateNode,
    DeleteLedger,
    DeleteNode,
    Effect,
    LastReadable,
    ListNodes,
    LookAtLedger,
    Pause,
    Procedure,
    ReadNode,
    ReadRun,
    RecoverLedger,
    ReplaceNode,
)
from dlog.errors import AlreadyExists, Conflict, DlogError, NotFound, Unavailable
from dlog.ids import MessageId, Position
from dlog.ledger.store import ClosedLedger
from dlog.meta.holds import Hold
from dlog.meta.layout import Layout
from dlog.meta.listed import Sealed, WriterMark
from dlog.meta.log_meta import LogMeta
from dlog.meta.store import Versioned
from dlog.meta.sweep import Site
from dlog.options import LogOptions
from dlog.reader.places import Start
from dlog.reader.segments import SegmentView

LAYOUT, NAME = Layout(), "orders"
PATH = LAYOUT.log(NAME)
MARK = WriterMark("token", "w", 0)
SECOND_US = 1_000_000


class NoChance:
    def fraction(self) -> float:
        return 0.0

    def token(self) -> str:
        return "token"


class ByHand:
    """A log of sealed segments: ten messages each, in ledgers 10, 20, 30 …, written in seconds 0 to
    9, 10 to 19 …; its writer is somewhere else."""

    def __init__(self, segments: int = 0, **options: Any) -> None:
        self.nodes: dict[str, Versioned] = {}
        self.ledgers: set[int] = set()
        self.deleted: list[int] = []
        self.now_us = 1_000_000 * SECOND_US
        self._serial = 0
        self.store(PATH, LogMeta("uid", LogOptions(**options)).claimed(MARK).to_bytes())
        for _ in range(segments):
            self.rotate()

    # --- what is so

    @property
    def meta(self) -> LogMeta:
        return LogMeta.from_bytes(self.nodes[PATH].value, where=PATH)

    def store(self, path: str, value: bytes) -> int:
        self._serial += 1
        self.nodes[path] = Versioned(value, self._serial)
        return self._serial

    def rotate(self) -> None:
        meta = self.meta
        number = meta.next_number
        meta = meta.listed(10 * number)
        self.ledgers.add(10 * number)
        seq = meta.end.next_seq
        first_us = seq * SECOND_US
        last_us = first_us + 9 * SECOND_US
        meta = meta.sealed(number, Sealed(9, 100, seq, seq + 10, first_us, last_us))
        written = {}
        planned = meta
        while (cut := planned.next_cut()) is not None:
            self.store(LAYOUT.page(NAME, cut.ref.number, cut.ref.level), cut.to_bytes())
            written[cut.ref.level, cut.ref.number] = cut.held
            planned = planned.without(cut)
        self.store(PATH, meta.paged(written).to_bytes())

    def pages(self) -> list[str]:
        below = LAYOUT.pages(NAME) + "/"
        return sorted(path[len(below) :] for path in self.nodes if path.startswith(below))

    def hold_nodes(self) -> list[str]:
        below = LAYOUT.holds(NAME) + "/"
        return sorted(path[len(below) :] for path in self.nodes if path.startswith(below))

    # --- procedures

    def site(self) -> Site:
        return Site(NAME, LAYOUT, self.meta.uid, NoChance())

    def truncating(self, before: Start, **how: Any) -> Steps:
        view = SegmentView(NAME, LAYOUT)
        return Steps(self, truncate(view, LAYOUT, before, self.now_us, NoChance(), **how))

    def truncated(self, before: Start, **how: Any) -> Truncation:
        told: Truncation = self.truncating(before, **how).end()
        return told

    def holding(self, at: Start, name: str = "h", note: str | None = None) -> Steps:
        def work() -> Procedure[Hold]:
            view = SegmentView(NAME, LAYOUT)
            yield from view.refresh()
            holding = Holding(self.site(), name, "me", note, lambda: self.now_us)
            return (yield from put_hold(view, holding, at))

        return Steps(self, work())

    def held(self, at: Start, name: str = "h", note: str | None = None) -> Hold:
        hold: Hold = self.holding(at, name, note).end()
        return hold

    def dropped(self, name: str = "h") -> None:
        Steps(self, drop_hold(Holding(self.site(), name, "", None, lambda: 0))).end()

    def collecting(self) -> Steps:
        def work() -> Procedure[Collection]:
            view = SegmentView(NAME, LAYOUT)
            yield from view.refresh()
            return (yield from collect(view, self.site(), lambda: self.now_us))

        return Steps(self, work())

    def collected(self) -> Collection:
        told: Collection = self.collecting().end()
        return told

    def removing(self) -> Steps:
        mark = WriterMark("remover", "r", self.now_us)
        return Steps(self, remove(NAME, LAYOUT, mark, self.now_us, NoChance()))

    def remade(self) -> None:
        """Another log, in the place of one that was removed."""
        self.store(PATH, self.meta.reborn("another", LogOptions()).claimed(MARK).to_bytes())

    # --- effects

    def perform(self, effect: Effect) -> Any:
        match effect:
            case ReadNode(path=path):
                return self._node(path)
            case CreateNode(path=path, value=value):
                if path in self.nodes:
                    raise AlreadyExists(f"there is {path}")
                return self.store(path, value)
            case ReplaceNode(path=path, value=value, version=version):
                self._check(path, version)
                return self.store(path, value)
            case DeleteNode(path=path, version=version):
                self._check(path, version)
                del self.nodes[path]
                return None
            case ListNodes(path=path):
                below = [each for each in self.nodes if each.startswith(path + "/")]
                if not below:
                    raise NotFound(f"no {path}")
                return sorted({each[len(path) + 1 :].split("/")[0] for each in below})
            case RecoverLedger(ledger_id=ledger_id):
                if ledger_id not in self.ledgers:
                    raise NotFound(f"no ledger {ledger_id}", ledger_id=ledger_id)
                return ClosedLedger(9, 100)
            case DeleteLedger(ledger_id=ledger_id):
                if ledger_id in self.ledgers:
                    self.ledgers.remove(ledger_id)
                    self.deleted.append(ledger_id)
                return None
            case Pause():
                return None
            case LastReadable() | LookAtLedger() | ReadRun():
                raise Unavailable("no bookie answers")
            case _:
                raise AssertionError(effect)

    def _node(self, path: str) -> Versioned:
        if path not in self.nodes:
            raise NotFound(f"no {path}")
        return self.nodes[path]

    def _check(self, path: str, version: int) -> None:
        if self._node(path).version != version:
            raise Conflict(f"{path} is another one by now")


class Steps:
    """One procedure."""

    def __init__(self, world: ByHand, procedure: Procedure[Any]) -> None:
        self._world = world
        self._procedure = procedure
        self.is_over = False
        self.result: Any = None
        self.effect: Effect | None = None
        self._go_on(None, None)

    def _go_on(self, answer: Any, error: DlogError | None) -> None:
        try:
            if error is None:
                self.effect = self._procedure.send(answer)
            else:
                self.effect = self._procedure.throw(error)
        except StopIteration as stop:
            self.is_over, self.result, self.effect = True, stop.value, None

    def step(self) -> None:
        """What is asked for is done, and answered."""
        assert self.effect is not None
        try:
            answer = self._world.perform(self.effect)
        except DlogError as error:
            self._go_on(None, error)
        else:
            self._go_on(answer, None)

    def lose(self, error: DlogError) -> None:
        """What is asked for is done, and the answer lost."""
        assert self.effect is not None
        self._world.perform(self.effect)
        self._go_on(None, error)

    def until(self, wanted: str | Callable[[Effect], bool]) -> Steps:
        """To a crash point, with its effect still to be done."""
        while self.effect is not None:
            if self.effect.point == wanted if isinstance(wanted, str) else wanted(self.effect):
                return self
            self.step()
        raise AssertionError(f"it ended before {wanted}: {self.result}")

    def end(self) -> Any:
        while not self.is_over:
            self.step()
        return self.result


def position(next_seq: int, ledger_id: int, entry_id: int) -> Position:
    return Position("uid", next_seq, MessageId(ledger_id, entry_id, 0))
