"""Streams on bookies."""

from __future__ import annotations

from tests.spark.test_stream import (
    test_a_batch_that_failed_is_run_again_as_it_was,
    test_a_group_holds_what_was_not_committed,
    test_a_log_that_was_made_again_is_not_taken_for_the_old_one,
    test_each_message_once_over_restarts_rotations_and_takeovers,
    test_truncation_under_a_query,
)

__all__ = [
    "test_a_batch_that_failed_is_run_again_as_it_was",
    "test_a_group_holds_what_was_not_committed",
    "test_a_log_that_was_made_again_is_not_taken_for_the_old_one",
    "test_each_message_once_over_restarts_rotations_and_takeovers",
    "test_truncation_under_a_query",
]
