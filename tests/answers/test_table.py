"""Each way to ask gets what the plain reader gets, of logs and streams in each state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.answers import ways
from tests.answers.asking import (
    QUESTIONS,
    WAYS,
    WHERE,
    Asked,
    Plain,
    told_otherwise,
    was_sent,
)
from tests.answers.states import STATES, made_world
from tests.unit.cli.conftest import own_logger

__all__ = ["own_logger", "ways"]
pytestmark = pytest.mark.timeout(300)  # of each way, in all states


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    with made_world(tmp_path_factory.mktemp("answers"), "memory") as world:
        yield Plain(world)


def test_the_plain_reader_gets_what_was_sent_and_is_left(plain: Plain) -> None:
    wrong = []
    for name in STATES:
        answers = plain.of_logs(Asked(plain.world, name, "all"))
        rows = [row for _, each in sorted(answers.items()) for row in each.facts["rows"]]
        if not was_sent(plain.world, name, rows):
            wrong.append(name)
    assert wrong == []


@pytest.mark.usefixtures("own_logger")
@pytest.mark.parametrize("way", WAYS)
def test_each_way_gets_what_the_plain_reader_gets(plain: Plain, way: str) -> None:
    told = told_otherwise(WAYS[way], plain)
    assert told == [], "\n".join(told)


def test_the_table_is_large_enough() -> None:
    assert len(STATES) >= 15
    assert len(WAYS) >= 12
    asked = {question for way in WAYS.values() for question in way.questions}
    assert asked | set(WHERE) == QUESTIONS.keys()
