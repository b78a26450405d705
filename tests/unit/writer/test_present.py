"""How long an opening tries to be seen, by tries and by time."""

from __future__ import annotations

import pytest

from dlog.effects import CreateNode, Pause
from dlog.errors import AuthError, DlogError, Unavailable
from dlog.writer.present import TRIES, TRIES_S, be_present
from tests.scenarios.by_hand import NoChance


def tries(error: DlogError, takes_s: float) -> int:
    """How often the node is asked for before the opening goes on without it."""
    now_s, asked = 0.0, 0
    procedure = be_present("/writer/token", "me", NoChance(), lambda: now_s)
    effect = next(procedure)
    while True:
        try:
            if isinstance(effect, Pause):
                effect = procedure.send(None)
                continue
            assert isinstance(effect, CreateNode)
            assert effect.ephemeral
            asked += 1
            now_s += takes_s
            effect = procedure.throw(error)
        except StopIteration:
            return asked


@pytest.mark.parametrize(
    ("takes_s", "expected"),
    [(0.001, TRIES), (0.5, 4), (TRIES_S - 0.01, 2), (10.0, 1)],
    ids=["refused at once", "half a second", "nearly all", "the time-out of a cluster"],
)
def test_a_store_that_answers_late_is_not_waited_for_again_and_again(
    takes_s: float, expected: int
) -> None:
    assert tries(Unavailable("away"), takes_s) == expected


def test_what_no_try_heals_is_tried_once() -> None:
    assert tries(AuthError("no"), 0.001) == 1
