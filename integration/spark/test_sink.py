"""The sink on bookies."""

from __future__ import annotations

from tests.spark.test_sink import (
    test_a_batch_that_was_published_and_not_noted_is_not_published_again,
    test_a_stream_into_a_second_log,
    test_a_task_that_fails_leaves_nothing,
    test_a_writer_that_lives_is_fenced,
    test_at_least_once_appends_through_writers_in_turn,
    test_every_field,
)

__all__ = [
    "test_a_batch_that_was_published_and_not_noted_is_not_published_again",
    "test_a_stream_into_a_second_log",
    "test_a_task_that_fails_leaves_nothing",
    "test_a_writer_that_lives_is_fenced",
    "test_at_least_once_appends_through_writers_in_turn",
    "test_every_field",
]
