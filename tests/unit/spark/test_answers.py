"""Spark's source gets what the plain reader gets, of logs and streams in each state: by batches,
filters that are pushed down, and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.answers.asking import WHERE, Plain, told_otherwise
from tests.answers.source_ways import SOURCE_WAYS
from tests.answers.states import made_world

pytestmark = pytest.mark.timeout(300)  # of each way, in all states


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    from dlog.spark.access import close_all

    with made_world(tmp_path_factory.mktemp("answers")) as world:
        yield Plain(world)
    close_all()


@pytest.mark.parametrize("way", SOURCE_WAYS)
def test_each_way_gets_what_the_plain_reader_gets(plain: Plain, way: str) -> None:
    told = told_otherwise(SOURCE_WAYS[way], plain)
    assert told == [], "\n".join(told)


def test_each_filter_is_asked() -> None:
    asked = {question for way in SOURCE_WAYS.values() for question in way.questions}
    assert asked >= set(WHERE)
