"""Which mutants a seed draws: a line at random, then an operator of those that its module knows,
then a place. So the few calls of `min` have as good a chance as the many comparisons."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.mutants.candidates import candidates, compiles
from tests.mutants.edits import Edit

TRIES_MAX = 50  # for one mutant, before it is given up
_COMMENT = ("#", '"""')


@dataclass(frozen=True, slots=True)
class Mutant:
    number: int  # from 1, in the order of drawing
    edit: Edit
    source: str

    @property
    def where(self) -> str:
        return f"{self.edit.path}:{self.edit.line}"

    @property
    def room(self) -> str:
        return PurePosixPath(self.edit.path).with_suffix("").parts[:2][-1]

    @property
    def diff(self) -> str:
        return self.edit.diff(self.source)


def modules(root: Path, rooms: Sequence[str], package: str = "dlog") -> dict[str, str]:
    """The text of each module of these rooms, by its path."""
    found: dict[str, str] = {}
    for room in rooms:
        place = root / package / room
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        for path in files:
            found[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
    return found


def draw(sources: dict[str, str], seed: str, count: int) -> list[Mutant]:
    """The first ones of a seed are the same, however many are asked for."""
    chance = random.Random(seed)
    known: dict[str, list[Edit]] = {}
    paths = list(sources)
    weights = [_lines(sources[path]) for path in paths]
    drawn: list[Mutant] = []
    taken: set[Edit] = set()
    tries = 0
    while len(drawn) < count and tries < TRIES_MAX * count and any(weights):
        tries += 1
        path = chance.choices(paths, weights)[0]
        if path not in known:
            known[path] = candidates(path, sources[path])
        edit = _one_of(known[path], chance)
        if edit is None or edit in taken or not compiles(edit, sources[path]):
            continue
        taken.add(edit)
        drawn.append(Mutant(len(drawn) + 1, edit, sources[path]))
    return drawn


def _one_of(edits: Sequence[Edit], chance: random.Random) -> Edit | None:
    by_operator: dict[str, list[Edit]] = defaultdict(list)
    for edit in edits:
        by_operator[edit.operator].append(edit)
    if not by_operator:
        return None
    return chance.choice(by_operator[chance.choice(sorted(by_operator))])


def _lines(source: str) -> int:
    lines = (line.strip() for line in source.splitlines())
    return sum(1 for line in lines if line and not line.startswith(_COMMENT))
