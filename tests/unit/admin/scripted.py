"""A small log on which procedures that change it run to their end, with trouble at chosen steps."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dlog.effects import (
    BirthLedger,
    CreateLedger,
    CreateNode,
    DeleteLedger,
    DeleteNode,
    Effect,
    ListNodes,
    LookAtLedger,
    Pause,
    Procedure,
    ReadNode,
    RecoverLedger,
    ReplaceNode,
    Together,
)
from dlog.errors import AlreadyExists, Conflict, DlogError, NotFound
from dlog.ledger.store import ClosedLedger, LedgerInfo
from dlog.meta.log_meta import LogMeta
from dlog.meta.store import Versioned
from tests.unit.reader.small_log import LAYOUT, NAME, SmallLog

PATH = LAYOUT.log(NAME)
READ = "the log is read"

Hook = Callable[[Effect], Any]


@dataclass(slots=True)
class Scripted(SmallLog):
    """Each hook of a step, named by its crash point or `READ`, takes the place of one effect there;
    the effects behind it happen as they are."""

    hooks: dict[str, list[Hook]] = field(default_factory=lambda: defaultdict(list))
    custom: dict[int, dict[str, bytes]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    done: list[Effect] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, log: SmallLog) -> Scripted:
        found = cls(log.meta, log.ledgers, log.closed, log.nodes, log.messages)
        for name in ("_next_seq", "_base_seq", "_first_us", "_last_us"):
            setattr(found, name, getattr(log, name))
        return found

    # --- trouble

    def lose(self, step: str, error: DlogError, *, applied: bool = False) -> None:
        """The reply to the next effect of this step."""

        def hook(effect: Effect) -> Any:
            if applied:
                self.really(effect)
            raise error

        self.hooks[step].append(hook)

    def before(self, step: str, happens: Callable[[], object]) -> None:
        def hook(effect: Effect) -> Any:
            happens()
            return self.really(effect)

        self.hooks[step].append(hook)

    def change(self, **changes: Any) -> None:
        """Somebody else changes the log."""
        self.put(dataclasses.replace(self.meta, **changes))

    def put(self, meta: LogMeta) -> None:
        self.meta = meta
        self.versions[PATH] = self.versions.get(PATH, 1) + 1

    # --- effects

    def run(self, procedure: Procedure[Any]) -> Any:
        answer: Any = None
        error: DlogError | None = None
        while True:
            try:
                effect = procedure.send(answer) if error is None else procedure.throw(error)
            except StopIteration as stop:
                return stop.value
            answer, error = None, None
            try:
                answer = self.perform(effect)
            except DlogError as failed:
                error = failed

    def perform(self, effect: Effect) -> Any:
        self.done.append(effect)
        is_read = isinstance(effect, ReadNode) and effect.path == PATH
        hooks = self.hooks[READ if is_read else effect.point]
        return hooks.pop(0)(effect) if hooks else self.really(effect)

    def really(self, effect: Effect) -> Any:
        match effect:
            case Together(procedures=procedures):
                return [self.run(each) for each in procedures]
            case Pause():
                return None
            case ReadNode(path=path):
                return Versioned(self._node(path), self.versions.get(path, 1))
            case ListNodes(path=path):
                below = [each for each in self.nodes if each.startswith(path + "/")]
                if not below:
                    raise NotFound(f"no {path}")
                return sorted(each[len(path) + 1 :].split("/")[0] for each in below)
            case CreateNode(path=path, value=value):
                if path in self.nodes:
                    raise AlreadyExists(f"there is {path}")
                return self._keep(path, value)
            case ReplaceNode(path=path, value=value, version=version):
                self._check(path, version)
                return self._keep(path, value)
            case DeleteNode(path=path, version=version):
                self._check(path, version)
                del self.nodes[path]
                return None
            case RecoverLedger(ledger_id=ledger_id, fenced=fenced):
                entries = self._ledger(ledger_id)
                self.closed.add(ledger_id)
                if fenced is not None:
                    fenced()
                return ClosedLedger(len(entries) - 1, sum(map(len, entries)))
            case CreateLedger():
                ledger_id = max([*self.ledgers, self.meta.ledger_floor]) + 10
                self.ledgers[ledger_id] = []
                return ledger_id
            case BirthLedger(ledger_id=ledger_id, buffers=buffers):
                self.ledgers[ledger_id].append(b"".join(buffers))
                return None
            case DeleteLedger(ledger_id=ledger_id):
                if self.ledgers.pop(ledger_id, None) is not None:
                    self.deleted.append(ledger_id)
                return None
            case LookAtLedger(ledger_id=ledger_id):
                return self._info(ledger_id)
            case _:
                return SmallLog.perform(self, effect)

    def _info(self, ledger_id: int) -> LedgerInfo:
        info = SmallLog._info(self, ledger_id)
        custom = self.custom.get(ledger_id, {})
        return dataclasses.replace(info, spec=dataclasses.replace(info.spec, custom=custom))

    def _node(self, path: str) -> bytes:
        if path == PATH:
            return self.meta.to_bytes()
        if path not in self.nodes:
            raise NotFound(f"no {path}")
        return self.nodes[path]

    def _check(self, path: str, version: int) -> None:
        self._node(path)
        if self.versions.get(path, 1) != version:
            raise Conflict(f"{path} is another one by now")

    def _keep(self, path: str, value: bytes) -> int:
        if path == PATH:
            self.put(LogMeta.from_bytes(value, where=path))
        else:
            self.nodes[path] = value
            self.versions[path] = self.versions.get(path, 0) + 1
        return self.versions[path]
