"""What happened, as text: time goes down, one column for each process.

║ writes · stands by ≈ is frozen, ✗ was killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_WIDTH = 44
_AFTER = {  # how a process looks from then on
    "stands by": "·",
    "writes": "║",
    "handed over": "·",
    "killed": " ",
    "frozen": "≈",
    "wakes": "║",
    "refused by the database": "·",
    "fenced": "·",
    "ends": " ",
}
_SHOWN = {"killed": "✗", "frozen": "≈", "ends": "─"}


@dataclass(frozen=True)
class Moment:
    at_s: float
    who: str
    what: str
    about: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, told: dict[str, Any]) -> Moment:
        rest = {name: value for name, value in told.items() if name not in ("at", "who", "what")}
        return cls(told["at"], told["who"], told["what"], rest)

    @property
    def words(self) -> str:
        about = self.about
        match self.what:
            case "writes":
                left = f", paid {about['left']}" if about["left"] else ""
                return f"writes, epoch {about['epoch']}, after {about['total_ms']:.0f} ms{left}"
            case "stands by":
                return "stands by, a ledger ready" if about["ready"] else "stands by"
            case "holds":
                return f"order {about['number']} is in the log, not paid"
            case "refused by the database":
                return f"refused: {about['why']}"
            case "killed":
                return "kill -9"
            case _:
                return self.what


def draw(moments: Sequence[Moment], who: Sequence[str]) -> Iterator[str]:
    moments = sorted(moments, key=lambda moment: moment.at_s)
    began_s = moments[0].at_s
    yield "      ms  " + "".join(f"{name:{_WIDTH}}" for name in who).rstrip()
    looks = dict.fromkeys(who, " ")
    for moment in moments:
        before, after = looks[moment.who], _AFTER.get(moment.what, looks[moment.who])
        looks[moment.who] = after
        cells = []
        for name in who:
            if name == moment.who:
                mark = _SHOWN.get(moment.what, after if after != " " else before)
                cells.append(f"{mark} {moment.words}"[: _WIDTH - 1])
            else:
                cells.append(looks[name])
        row = "".join(f"{cell:{_WIDTH}}" for cell in cells).rstrip()
        yield f"{(moment.at_s - began_s) * 1000:8.0f}  {row}"
