"""What follows a document decides: which version is in force, and what has to be made anew for the
next one. No IO.

    version known ──not newer──► nothing is done (CL-02)
         │ newer
         ▼
    every part that changed prepares ──one refuses──► the old version stays, and it is said why
         │ all did
         ▼
    all of them swap, in one turn ──one raises──► what was in force is swapped back

`in_force` is one value that is replaced once: whoever took it, on whatever thread, has all of a
version. A refused version is not looked at again; the next one is compared with what is in force,
not with what was refused. An older version, out of a stale read, is never taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from dlog.chance import Chance, backoff_s
from dlog.effects import Effect, Pause, Procedure, ReadNode
from dlog.errors import ConfigError, DlogError, FormatError, NotFound, check
from dlog.limits import CONFIG_AWAY_S_MAX
from dlog.reason import ReasonCode, Wait
from dlog.streams.config.document import NOBODYS, Content, Document, same


class Prepared(Protocol):
    """A part of a version, looked over and ready."""

    @property
    def value(self) -> object:
        """What it is, immutable, for whoever asks for the version that is in force."""
        ...

    def swap(self) -> None:
        """Put it in force: at once, without failing. Perhaps a second time, if another part's
        raised after all."""
        ...


class Part(Protocol):
    """What a program hangs on one part of a document."""

    @property
    def name(self) -> str: ...

    def prepare(self, content: Mapping[str, Any] | None) -> Prepared:
        """Look the part over and make ready what it says; None: the document has no such part.
        Changes nothing that is in force. `ConfigError` refuses the whole document."""
        ...


class Plain:
    """A part that is its own value: for who looks at `in_force` and holds nothing."""

    def __init__(
        self, name: str, read: Callable[[Mapping[str, Any]], object] | None = None
    ) -> None:
        self.name = name
        self._read = read or (lambda content: MappingProxyType(dict(content)))

    def prepare(self, content: Mapping[str, Any] | None) -> Prepared:
        return Ready(self._read(content or {}))


@dataclass(frozen=True, slots=True)
class Ready:
    """Prepared: a value, and what puts it in force beside being it."""

    value: object
    put: Callable[[], None] = lambda: None

    def swap(self) -> None:
        self.put()


@dataclass(frozen=True, slots=True)
class InForce:
    """One version, whole."""

    version: int = 0
    document: Document = NOBODYS
    values: Mapping[str, object] = field(default_factory=dict)

    def __getitem__(self, part: str) -> Any:
        if part not in self.values:
            there = ", ".join(sorted(self.values)) or "none"
            raise ConfigError(f"part {part!r} is not followed here; what is: {there}")
        return self.values[part]

    @property
    def unfollowed(self) -> tuple[str, ...]:
        """Parts of the document that nobody follows here."""
        return tuple(name for name in self.document.content if name not in self.values)


@dataclass(frozen=True, slots=True)
class Taken:
    """A version came into force; these parts were made anew."""

    version: int
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A version was refused: the one before stays in force. `version` is None where it cannot even
    be read, `part` where that is not to blame."""

    version: int | None
    part: str | None
    why: str


@dataclass(frozen=True, slots=True)
class UntilTold(Effect):
    """Until the node may have changed since the last time, or the time is over → whether it may
    have."""

    path: str
    timeout_ms: float


class Source(Protocol):
    """Where a document is asked for, in two questions."""

    def version(self, *, fresh: bool) -> Procedure[int]:
        """The newest one's, 0 where there is none; as old as it may be unless it is to be
        `fresh`."""
        ...

    def get(self) -> Procedure[Document]:
        """That version, or a newer one."""
        ...


class NodeSource:
    """The node of a document: one read answers both questions, and what is read again unchanged is
    not looked at again."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.parsed = 0  # documents that were taken apart
        self._node_version: int | None = None
        self._document = NOBODYS
        self._unreadable: FormatError | None = None

    def version(self, *, fresh: bool) -> Procedure[int]:
        try:
            value, version = yield ReadNode(self.path, fresh=fresh)
        except NotFound:
            return 0
        if version != self._node_version:
            self.parsed += 1
            self._unreadable = None
            try:
                self._document = Document.from_bytes(value, where=self.path)
            except FormatError as error:
                self._unreadable = error
            self._node_version = version
        if self._unreadable is not None:
            raise self._unreadable.again()
        return self._document.version

    def get(self) -> Procedure[Document]:
        yield from ()  # a procedure like any other
        return self._document


class Following:
    def __init__(self, source: Source, parts: tuple[Part, ...] = ()) -> None:
        self.in_force = InForce()
        self.refused: Refused | None = None  # newer than what is in force
        self.trouble: DlogError | None = None  # the last question was not answered
        self.looks = 0  # questions for the version
        self.fetches = 0  # and of those that were followed by one for the document
        self.prepared: Counter[str] = Counter()
        self.swapped: Counter[str] = Counter()
        self._source = source
        self._parts: dict[str, Part] = {}
        self._ready: dict[str, Prepared] = {}
        for part in parts:
            self.add(part)

    @property
    def version(self) -> int:
        return self.in_force.version

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self._parts)

    # --- parts

    def add(self, part: Part) -> None:
        """From now on this part is followed, too, beginning with what is in force. `ConfigError`
        if that is not for it, and then it is not followed."""
        if part.name in self._parts:
            raise ConfigError(f"part {part.name!r} is followed already")
        document = self.in_force.document
        ready = self._prepare(part, document.content)
        self._swap({part.name: ready})
        self._parts[part.name] = part
        self._show(document)

    def drop(self, name: str) -> None:
        """It stays as it is, and hears of no other version."""
        if self._parts.pop(name, None) is not None:
            del self._ready[name]
            self._show(self.in_force.document)

    def _prepare(self, part: Part, content: Content) -> Prepared:
        self.prepared[part.name] += 1
        return part.prepare(content.get(part.name))

    # --- a version

    def look(self, *, fresh: bool = True) -> Procedure[Taken | Refused | None]:
        """Ask for the version and, only if it is newer, for the document (CL-01). None: nothing
        to do."""
        self.looks += 1
        try:
            version = yield from self._source.version(fresh=fresh)
            self.trouble = None
            if not self._is_news(version):
                return self._not_newer(version, fresh=fresh)
            self.fetches += 1
            document = yield from self._source.get()
        except FormatError as error:
            return self._refuse(Refused(None, None, error.message))
        return self.take(document)

    def _is_news(self, version: int) -> bool:
        refused = self.refused
        known = self.version
        if refused is not None and refused.version is not None:
            known = max(known, refused.version)
        return version > known

    def _not_newer(self, version: int, *, fresh: bool) -> Refused | None:
        """Nothing is done. That an older version is *the* version can only be if somebody removed
        the document by hand: it is never gone back to, and not kept quiet about either."""
        if fresh and version < self.version:
            return self._refuse(Refused(version, None, "it is older: the document was made anew"))
        refused = None if self.refused is None else self.refused.version
        if version == self.version and refused is not None and refused < version:
            self.refused = None  # it is there again
        return None

    def take(self, document: Document) -> Taken | Refused | None:
        """All of it, or nothing."""
        if not self._is_news(document.version):
            return None
        before, after = self.in_force.document.content, document.content
        ready: dict[str, Prepared] = {}
        for name, part in self._parts.items():
            if same(before.get(name), after.get(name)):
                continue
            try:
                ready[name] = self._prepare(part, after)
            except Exception as error:  # noqa: BLE001 - whatever a part raises, it refuses
                why = error.message if isinstance(error, DlogError) else repr(error)
                return self._refuse(Refused(document.version, name, why))
        try:
            self._swap(ready)
        except _SwapFailed as failed:
            return self._refuse(Refused(document.version, failed.part, failed.why))
        self._show(document)
        self.refused = None
        return Taken(document.version, tuple(ready))

    def _swap(self, ready: Mapping[str, Prepared]) -> None:
        """In one turn: nothing here waits for anything."""
        done: list[str] = []
        for name, each in ready.items():
            done.append(name)
            try:
                each.swap()
            except Exception as error:  # it may not; then nothing of this is kept
                raise _SwapFailed(name, repr(error), self._swap_back(done)) from error
        self._ready.update(ready)
        self.swapped.update(ready.keys())

    def _swap_back(self, names: list[str]) -> list[str]:
        """Those that could not even be put back."""
        lost = []
        for name in names:
            before = self._ready.get(name)
            if before is None:
                continue
            try:
                before.swap()
            except Exception:  # noqa: BLE001 - a defect of the part; the others shall not suffer
                lost.append(name)
        return lost

    def _show(self, document: Document) -> None:
        values = {name: ready.value for name, ready in self._ready.items()}
        self.in_force = InForce(document.version, document, values)

    def _refuse(self, refused: Refused) -> Refused | None:
        if refused == self.refused:
            return None
        self.refused = refused
        return refused


class _SwapFailed(ConfigError):
    def __init__(self, part: str, error: str, lost: list[str]) -> None:
        self.part = part
        self.why = f"it was prepared, and could not be put in force all the same: {error}"
        if lost:
            self.why += f"; {', '.join(lost)} could not be put back"
        super().__init__(f"part {part!r}: {self.why}")


Heard = Callable[[Taken | Refused | None], None]


def follow(
    core: Following, path: str, *, poll_ms: float, chance: Chance, heard: Heard
) -> Procedure[None]:
    """For ever: look, wait to be told, or until it is time to look without. What was told is read
    as it is at hand, which is behind it; what nobody told of is asked for afresh.

    A metadata store that gives no answer changes nothing: what is in force stays, and is asked
    about again, soon at first."""
    check(poll_ms > 0, "there is a time to look without being told", poll_ms)
    failures = 0
    fresh = True
    while True:
        try:
            heard((yield from core.look(fresh=fresh)))
        except DlogError as error:
            core.trouble = error
            heard(None)
            failures += 1
            limit_s = min(poll_ms / 1000, CONFIG_AWAY_S_MAX)
            pause_s = max(backoff_s(failures, chance, base_s=0.1, limit_s=limit_s), limit_s / 50)
            yield Pause(pause_s, wait=_AWAY)
            fresh = True
            continue
        failures = 0
        # All of them at the same moment would be many: so each a little before its time, and none
        # so late that the answer is.
        rest_ms = poll_ms * (0.95 - chance.fraction() / 4)
        fresh = not (yield UntilTold(path, rest_ms, wait=_WATCHING))


_WATCHING = Wait(ReasonCode.METADATA, "the document is to change", {})
_AWAY = Wait(ReasonCode.CONTENTION, "a pause, before the document is asked for again", {})
