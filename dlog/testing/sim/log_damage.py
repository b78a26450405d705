"""Damage to the list of a simulated log, done behind everybody's back: a page node is lost, does
not say any more what its reference says, or says nothing that anybody can read; a sealed end is
listed wrongly. Of the kinds that `fsck` can repair, and one page at a time: with two of them gone
neither may be provable.

Whoever reads such a log is told `Corrupt`, by name, or reads what is left; nobody is told anything
else, and nothing is lost, moved or skipped. The oracle goes on with the list as it truly is: what
was damaged counts as what stood there before, until somebody stores what did.
"""

from __future__ import annotations

import dataclasses

from dlog.admin.fsck.report import Finding, Kind
from dlog.errors import Corrupt, DlogError, FormatError
from dlog.meta.listed import PageRef, Sealed, Segment
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.pages import page_from_bytes, page_to_bytes, refs_from_bytes
from dlog.testing.sim.clients import Scene
from dlog.testing.sim.log_oracle import LAYOUT, NAME, PATH
from dlog.testing.sim.world import require

GARBAGE = b'{"format": 1, "segm'
_PAGES = frozenset({Kind.PAGE_MISSING, Kind.PAGE_STALE, Kind.PAGE_UNREADABLE})
_ENDS = frozenset({Kind.END_DIFFERS, Kind.SEAM_DIFFERS})


class Damage:
    """All of it, of one history."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._world = scene.world
        self._meta = scene.meta
        self._lost: dict[str, bytes] = {}  # pages that are damaged now: what they should say
        self._hurt: set[str] = set()  # pages that ever were
        self._put_there: set[tuple[str, bytes]] = set()
        self._is_mended = False  # nothing is wrong any more, and nothing more is done
        self._wrong: dict[int, dict[Sealed, Sealed]] = {}  # by segment: what was listed, the truth
        scene.oracle.damage = self

    # --- doing it

    def strike(self) -> None:
        oracle = self._scene.oracle
        meta = oracle.now
        if self._world.is_calm or meta is None:
            return
        if meta.state not in (LogState.OPEN, LogState.TERMINATED):
            return
        if self._world.chance.hits(0.4, "an end is listed wrongly"):
            self._strike_end()
        else:
            self._strike_page(meta)

    def _strike_page(self, meta: LogMeta) -> None:
        if any(self._is_wrong(path) for path in self._lost):
            return
        self._lost.clear()
        paths = self._named(meta.pages)
        if not paths:
            return
        chance = self._world.chance
        path = chance.pick(paths, "the page that is damaged")
        value = self._meta.value(path)
        assert value is not None
        how = chance.pick(("lost", "shorter", "garbage", "later"), "how it is damaged")
        is_leaf = path.rpartition("/")[2].isdigit()
        wrong = GARBAGE
        if how in ("shorter", "later"):
            held = (page_from_bytes if is_leaf else refs_from_bytes)(value, where=path)
            rest = held[:-1] if how == "shorter" else held[1:]
            wrong = page_to_bytes(rest) if rest else GARBAGE
        self._lost[path] = value
        self._hurt.add(path)
        self._world.note(f"{path} is damaged: {how}")
        self._world.mark(f"damage: a page is {how}")
        self._put_there.add((path, wrong))
        self._put(path, None if how == "lost" else wrong)

    def _named(self, refs: tuple[PageRef, ...]) -> list[str]:
        found = []
        for ref in refs:
            path = LAYOUT.page(NAME, ref.number, ref.level)
            raw = self._meta.value(path)
            if raw is None:
                continue
            found.append(path)
            if ref.level > 0:
                found += self._named(refs_from_bytes(raw, where=path))
        return found

    def _strike_end(self) -> None:
        """Of a segment behind which another one is sealed: a takeover goes by the newest end there
        is, and what it drops then, no repair brings back."""
        raw = self._meta.value(PATH)
        assert raw is not None
        meta = LogMeta.from_bytes(raw, where=PATH)
        sealed = [each for each in meta.segments if each.sealed is not None][:-1]
        sealed = [each for each in sealed if each.number not in self._wrong]
        if not sealed:
            return
        chance = self._world.chance
        segment = chance.pick(sealed, "the segment whose end is listed wrongly")
        end = segment.sealed
        assert end is not None
        how = chance.pick(("too short", "bytes"), "how it is listed wrongly")
        if how == "too short" and end.last_entry > 1:
            back = 1 + int(chance.random() * (end.last_entry - 1))
            wrong = dataclasses.replace(end, last_entry=end.last_entry - back)
        else:
            wrong = dataclasses.replace(end, bytes=end.bytes + 7)
        self._wrong.setdefault(segment.number, {})[wrong] = end
        self._world.note(f"segment {segment.number} is listed wrongly: {wrong}, not {end}")
        self._world.mark("damage: an end is listed wrongly")
        damaged = dataclasses.replace(segment, sealed=wrong)
        self._put(PATH, _with(meta, damaged).to_bytes())

    def _put(self, path: str, value: bytes | None) -> None:
        """Nobody hears of it."""
        audit, self._meta.audit = self._meta.audit, lambda path, value: None
        try:
            if value is None:
                self._meta.lose(path)
            else:
                self._meta.store(path, value)
        finally:
            self._meta.audit = audit

    # --- as it truly is

    def truth(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        if not self._wrong:
            return segments
        return tuple(map(self._right, segments))

    def _right(self, segment: Segment) -> Segment:
        wrong = self._wrong.get(segment.number)
        if wrong is None or segment.sealed is None:
            return segment
        return dataclasses.replace(segment, sealed=wrong.get(segment.sealed, segment.sealed))

    def is_of(self, path: str, raw: bytes) -> bool:
        """Are these bytes our doing? A stranger may have stored them again."""
        return (path, raw) in self._put_there

    def spoils(self, ref: PageRef) -> bool:
        """Does the reference sum up what was listed wrongly?"""
        return any(ref.number <= number <= ref.last_number for number in self._wrong)

    def _is_wrong(self, path: str) -> bool:
        meta = self._scene.oracle.now
        assert meta is not None
        if path not in self._all_named(meta):
            return False
        raw, right = self._meta.value(path), self._lost[path]
        return raw is None or (raw != right and not _differ_by_times_only(path, raw, right))

    def _all_named(self, meta: LogMeta) -> set[str]:
        """Also through pages that are lost."""
        found: set[str] = set()
        waiting = list(meta.pages)
        while waiting:
            ref = waiting.pop()
            path = LAYOUT.page(NAME, ref.number, ref.level)
            found.add(path)
            raw = self._lost.get(path) or self._meta.value(path)
            if ref.level > 0 and raw is not None:
                waiting += refs_from_bytes(raw, where=path)
        return found

    # --- what may be told of it

    def may_be_told(self, error: DlogError) -> bool:
        """By name, and only as long as there is something."""
        about = isinstance(error, (Corrupt, FormatError))
        return about and not self._is_mended and bool(self._hurt or self._wrong)

    def justifies(self, finding: Finding) -> bool:
        if finding.kind in _PAGES:
            return finding.where.path in self._hurt
        if finding.kind in _ENDS:
            number = finding.where.segment
            assert number is not None
            before = self._scene.oracle.sealed_before(number)
            return number in self._wrong or before in self._wrong
        return False

    def has_hurt(self) -> bool:
        return bool(self._hurt)

    # --- at the end

    def restore(self) -> None:
        """What no repair brings back, since a page was made of it before anybody looked: a wrong
        end, and the references that sum it up. Somebody does it by hand."""
        raw = self._meta.value(PATH)
        if raw is None:
            return
        meta = LogMeta.from_bytes(raw, where=PATH)
        buried = {number for number in self._wrong if meta.segment(number) is None}
        if not buried:
            return
        refs = tuple(self._restored(ref) for ref in meta.pages)
        if refs != meta.pages:
            self._put(PATH, dataclasses.replace(meta, pages=refs).to_bytes())

    def _restored(self, ref: PageRef) -> PageRef:
        path = LAYOUT.page(NAME, ref.number, ref.level)
        is_damaged = path in self._lost and self._is_wrong(path)
        raw = self._lost[path] if is_damaged else self._meta.value(path)
        assert raw is not None
        held: tuple[Segment, ...] | tuple[PageRef, ...]
        if ref.level > 0:
            held = tuple(self._restored(each) for each in refs_from_bytes(raw, where=path))
            right = PageRef.of_pages(held)
        else:
            held = self.truth(page_from_bytes(raw, where=path))
            right = PageRef.of_segments(held)
        if self.spoils(ref) and page_to_bytes(held) != raw:
            self._world.mark("a wrong end was buried in a page")
            self._put(path, page_to_bytes(held))
            self._lost.pop(path, None)
        return right if self.spoils(ref) else ref

    def check_end(self) -> None:
        """Everything says again what it said."""
        raw = self._meta.value(PATH)
        self._is_mended = True
        if raw is None:
            return
        for path in self._lost:
            require(not self._is_wrong(path), "I24", "a damaged page was not repaired", path)
        meta = LogMeta.from_bytes(raw, where=PATH)
        wrong = [s for s, right in zip(meta.segments, self.truth(meta.segments), strict=True)
                 if s != right]  # fmt: skip
        require(not wrong, "I24", "a wrong end was not repaired", wrong)


def _with(meta: LogMeta, segment: Segment) -> LogMeta:
    segments = (segment if each.number == segment.number else each for each in meta.segments)
    return dataclasses.replace(meta, segments=tuple(segments))


def _differ_by_times_only(path: str, raw: bytes, right: bytes) -> bool:
    """Some ends are listed later than their ledgers tell: no repair finds that again."""
    if raw == GARBAGE or not path.rpartition("/")[2].isdigit():
        return False
    found, wanted = (page_from_bytes(each, where=path) for each in (raw, right))
    return tuple(map(timeless, found)) == tuple(map(timeless, wanted))


def timeless(segment: Segment) -> Segment:
    """Without the time that it ends at."""
    sealed = segment.sealed
    assert sealed is not None
    return dataclasses.replace(segment, sealed=dataclasses.replace(sealed, last_time_us=0))
