"""What a writer should do next besides appending: core's choice of procedure, one at a time."""

from __future__ import annotations

import enum

from dlog.effects import Procedure
from dlog.errors import Fenced
from dlog.writer.core import WriterCore, WriterState
from dlog.writer.healing import heal
from dlog.writer.policy import Advice
from dlog.writer.retaining import retain_log
from dlog.writer.rotation import allow_numbers, drop_spare, prepare, rotate, tell_options


class Duty(enum.Enum):
    HEAL = "heal"
    ROTATE = "rotate"
    PREPARE = "prepare"
    NUMBERS = "numbers"
    OPTIONS = "options"
    RETAIN = "retain"


def next_duty(core: WriterCore, *, rotation_asked: bool, resting: bool) -> Duty | None:
    """`resting` after a failure: only healing does not wait for its turn."""
    if core.state is WriterState.HEALING:
        return Duty.HEAL
    if core.state is not WriterState.OPEN or len(core.pipes) > 1 or resting:
        return None
    if core.numbers_asked and not core.seen.meta.producers:
        return Duty.NUMBERS
    if rotation_asked:
        return Duty.ROTATE
    match core.advice():
        case Advice.ROTATE | Advice.WAIT:
            return Duty.ROTATE
        case Advice.PREPARE if core.spare is None:
            return Duty.PREPARE
        case _ if core.options_wanted is not None:
            return Duty.OPTIONS
        case _:
            return Duty.RETAIN if core.retention_due else None


def procedure_of(duty: Duty, core: WriterCore) -> Procedure[None]:
    """A writer that turns out to be fenced leaves no spare ledger behind."""
    try:
        yield from _procedure_of(duty, core)
    except Fenced:
        yield from drop_spare(core)
        raise
    if core.state is WriterState.DEAD and isinstance(core.error, Fenced):
        yield from drop_spare(core)


def _procedure_of(duty: Duty, core: WriterCore) -> Procedure[None]:
    match duty:
        case Duty.HEAL:
            return heal(core)
        case Duty.ROTATE:
            return rotate(core)
        case Duty.PREPARE:
            return prepare(core)
        case Duty.NUMBERS:
            return allow_numbers(core)
        case Duty.OPTIONS:
            return tell_options(core)
        case Duty.RETAIN:
            return retain_log(core)
