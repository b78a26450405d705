"""A history in words: the draws that were not benign as a table, then what happened as a chart,
one column for each actor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dlog.testing.sim.tape import Draw
from dlog.testing.sim.world import World

_NOTE = re.compile(r" *(?P<at>[\d.]+) ms  (?P<text>.*)", re.DOTALL)
# "w0a: …" and "w0a wakes" are of the actor w0a.
_ACTOR = re.compile(r"(?P<who>[a-z][\w-]*):? ")
_SPOKE = re.compile(r"(?P<who>[a-z][\w-]*)(: | (is|could|crashes|dies|wakes) ?)")
_WIDTH_MAX = 150
_COLUMNS_MAX = 7


def table(draws: Sequence[Draw]) -> str:
    """What was not benign, draw by draw."""
    if not draws:
        return "every draw was benign"
    lines = [f"{'draw':>6}  {'value':<7} what it was for"]
    lines += [f"{draw.at:>6}  {draw.value:<7.4f} {draw.what}" for draw in draws]
    return "\n".join(lines)


def transcript(world: World) -> str:
    return "\n".join(world.notes or ())


def chart(world: World, actors: Iterable[str] = ()) -> str:
    """A text sequence chart. Without `actors`, of all who spoke; the world has the last column."""
    notes = [match for note in world.notes or () if (match := _NOTE.match(note))]
    known = list(actors) or _actors(match["text"] for match in notes)
    if not known or len(known) > _COLUMNS_MAX:
        return transcript(world)
    columns = [*known, "the world"]
    width = max(12, (_WIDTH_MAX - 12) // len(columns) - 1)
    lines = [" " * 12 + " ".join(f"{name:<{width}}" for name in columns).rstrip()]
    for match in notes:
        who, text = _split(match["text"], known)
        column = columns.index(who)
        at = f"{match['at']:>9}   "
        for i, part in enumerate(_folded(text, width)):
            bars = ["|".ljust(width)] * len(columns)
            bars[column] = part.ljust(width)
            lines.append(((at if i == 0 else " " * 12) + " ".join(bars)).rstrip())
    return "\n".join(lines)


def _actors(texts: Iterable[str]) -> list[str]:
    """Who spoke or was spoken of, in order of appearance."""
    found = (match["who"] for text in texts if (match := _SPOKE.match(text)))
    return list(dict.fromkeys(who for who in found if who != "meta"))


def _split(text: str, known: Sequence[str]) -> tuple[str, str]:
    match = _ACTOR.match(text)
    if match is None or match["who"] not in known:
        return "the world", text
    return match["who"], text[match.end() :]


def _folded(text: str, width: int) -> list[str]:
    """In lines of this width, broken at spaces where there are some."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines += [word[i : i + width] for i in range(0, len(word), width)]
    return lines or [""]
