"""How the modules about histories play them: until what must happen has happened, and no further
than they say."""

from __future__ import annotations

import pytest

from tests.sim.histories import MORE, Stretch, play_and_meet

EARLY, LATE = "a client crashes", "hold.moved"  # in the histories 2 and 34 of this world
WORLD = "log-cuts"


def test_no_more_histories_are_played_than_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    play_and_meet(WORLD, Stretch(0, 3), [EARLY], within=3 + MORE)
    assert capsys.readouterr().out.count("histories of") == 1
    play_and_meet(WORLD, Stretch(0, 3), [EARLY], [LATE], within=3 + MORE)
    assert capsys.readouterr().out.count("histories of") == 2


def test_histories_that_are_too_tame_fail() -> None:
    with pytest.raises(AssertionError, match=rf"none of 5 histories met \['{LATE}'\]"):
        play_and_meet(WORLD, Stretch(0, 3), [EARLY], [LATE], within=5)
