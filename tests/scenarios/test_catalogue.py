"""The list of bugs that clients of BookKeeper and logs above it are known to have had: which story
tells it, and which planted bug shows that ours would be noticed. Nothing here runs the stories: it
sees to it that none gets lost."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from dlog.testing.sim.planted import all_plants

ROOT = Path(__file__).parent.parent.parent
APPENDER = "tests/scenarios/test_bookkeeper_appender.py"
RECOVERY = "tests/scenarios/test_bookkeeper_recovery.py"
READING = "tests/scenarios/test_bookkeeper_reading.py"
TAKEOVER = "tests/scenarios/test_takeover.py"
ROTATION = "tests/scenarios/test_rotation.py"
LOGS = "tests/scenarios/test_known_bugs_of_logs.py"
LOG_READING = "tests/scenarios/test_reading.py"
HANDLE = "tests/unit/ledger/bookkeeper/test_appender.py"
NODES = "tests/unit/ledger/bookkeeper/test_ledger_nodes.py"
STORE = "tests/unit/ledger/bookkeeper/test_store.py"


class Row(NamedTuple):
    """`plants` may be of another name: what is planted is the mistake, not the story."""

    stories: tuple[str, ...]
    plants: tuple[str, ...]


ROWS: dict[str, Row] = {
    # --- clients of ledgers
    "recovery_read_must_fence (2614)": Row(
        (f"{RECOVERY}::test_recovery_read_must_fence",), ("recovery_read_must_fence",)
    ),
    "recovery_floor (2615)": Row((f"{RECOVERY}::test_recovery_floor",), ("recovery_floor",)),
    "negative_needs_quorum": Row(
        (f"{RECOVERY}::test_negative_needs_quorum",),
        ("negative_needs_quorum", "one_denial_too_few"),
    ),
    "lac_is_a_hint": Row(
        (f"{RECOVERY}::test_lac_is_a_hint", f"{READING}::test_lac_is_a_hint"),
        ("the_last_entry_seen_is_the_end",),
    ),
    "ack_before_metadata": Row(
        (f"{APPENDER}::test_ack_before_metadata",), ("ack_before_metadata",)
    ),
    "fragment_start_after_pipeline": Row(
        (f"{APPENDER}::test_fragment_start_after_pipeline",), ("fragment_start_after_pipeline",)
    ),
    "double_ensemble_change": Row(
        (f"{APPENDER}::test_double_ensemble_change",), ("unknown_change_taken_for_not_stored",)
    ),
    "completion_revoked": Row((f"{APPENDER}::test_completion_revoked",), ("completion_revoked",)),
    "lac_on_recovery_adds": Row(
        (f"{RECOVERY}::test_a_dead_recovery_takes_nothing_back_from_readers",),
        ("lac_on_recovery_adds",),
    ),
    "recovery_flag_lost_on_resend": Row(
        (
            f"{RECOVERY}::test_recovery_flag_lost_on_resend",
            f"{RECOVERY}::test_recovery_flag_lost_on_resend_to_another_bookie",
        ),
        ("recovery_flag_lost_on_resend",),
    ),
    "close_race_two_closers": Row(
        (f"{RECOVERY}::test_the_first_close_is_the_end", f"{HANDLE}::test_two_closes_are_one"),
        ("a_close_goes_over_a_close",),
    ),
    "close_connection_loss": Row(
        (f"{HANDLE}::test_a_close_without_an_answer_is_resolved",),
        ("unknown_close_taken_as_won",),
    ),
    "create_connection_loss": Row(
        (f"{NODES}::test_create_connection_loss",), ("token_not_compared",)
    ),
    "metadata_overwritten": Row(
        (f"{NODES}::test_who_is_late_changes_what_is_there_now",), ("a_close_goes_over_a_close",)
    ),
    "fence_forgotten, C1": Row(
        (
            f"{APPENDER}::test_fence_forgotten",
            "integration/bookkeeper/test_simulated_bookie.py::"
            "test_the_same_requests_get_the_same_answers",
        ),
        ("birth_of_a_quorum", "link_never_proven"),
    ),
    "bookie_reborn_same_address": Row(
        (f"{APPENDER}::test_bookie_reborn_same_address",),
        ("link_never_proven", "look_from_before_the_link"),
    ),
    "write_after_delete": Row(
        (
            f"{HANDLE}::test_a_deleted_ledger_is_fenced",
            f"{STORE}::test_an_open_ledger_is_fenced_or_says_that_it_was_not",
        ),
        ("failed_look_not_repeated",),
    ),
    "packet_loss_metadata": Row(
        (
            f"{NODES}::test_a_change_survives_what_is_lost",
            f"{NODES}::test_a_create_that_may_be_there_says_so",
        ),
        ("failed_change_not_repeated", "unknown_listing_taken_as_done"),
    ),
    "limbo_answer": Row((f"{RECOVERY}::test_limbo_answer",), ("limbo_answer",)),
    "stuck_adds": Row((f"{APPENDER}::test_stuck_adds",), ("paused_for_ever", "never_late")),
    "batch_read_hang": Row(
        (f"{READING}::test_batch_read_hang",), ("a_failed_read_asks_nobody_else",)
    ),
    "close_after_failed_add": Row(
        (
            f"{APPENDER}::test_close_after_failed_add",
            f"{HANDLE}::test_a_close_after_a_failed_add_ends_at_what_was_confirmed",
        ),
        ("close_at_the_last_pushed",),
    ),
    "entry_zero_is_falsy": Row(
        (f"{APPENDER}::test_entry_zero_is_falsy", f"{READING}::test_entry_zero_is_falsy"),
        ("entry_zero_is_falsy",),
    ),
    # --- logs
    "reader_skips_segment": Row(
        (f"{LOGS}::test_reader_skips_segment",),
        ("reader_enters_without_looking_at_the_predecessor", "reader_passes_what_is_published"),
    ),
    "empty_in_progress": Row(
        (f"{LOGS}::test_empty_in_progress",), ("number_of_a_dropped_segment_used_again",)
    ),
    "reader_without_recovery": Row(
        (f"{LOGS}::test_reader_without_recovery",), ("reader_passes_what_is_published",)
    ),
    "id_rollback_after_gc": Row(
        (f"{ROTATION}::test_a_ledger_at_or_below_the_floor_is_never_listed",),
        ("floor_not_checked",),
    ),
    "two_owners": Row(
        (
            f"{LOGS}::test_two_owners",
            f"{TAKEOVER}::test_a_frozen_writer_learns_who_won_and_never_comes_back",
        ),
        ("a_dead_writer_comes_back", "fence_only_the_last_segment"),
    ),
    "digest_mismatch": Row(
        (f"{STORE}::test_another_password_opens_and_recovers_nothing",),
        ("any_entry_of_the_ledger_will_do",),
    ),
    "lock_check_then_act": Row(
        (f"{LOGS}::test_lock_check_then_act", f"{TAKEOVER}::test_one_round_has_one_winner"),
        ("list_after_the_first_add", "token_not_compared"),
    ),
    # --- hazards that were derived
    "H1: closing over a recovery": Row(
        (
            f"{RECOVERY}::test_a_close_over_a_recovery_takes_nothing_back_from_readers",
            f"{HANDLE}::test_nobody_closes_over_a_recovery",
            "tests/scenarios/test_strict_tail.py::test_a_strict_tail_waits_for_the_end_and_takes_that",
        ),
        ("a_close_over_a_recovery_with_rising_lacs", "strict_tail_looks_without_a_sync"),
    ),
    "H2: a recovery that died with a private change": Row(
        (f"{RECOVERY}::test_a_dead_recovery_takes_nothing_back_from_readers",),
        ("lac_on_recovery_adds",),
    ),
    "H3: rotation and the prefix": Row(
        (
            f"{TAKEOVER}::test_a_segment_whose_predecessor_was_cut_is_dropped",
            f"{LOG_READING}::test_a_reader_waits_before_a_segment_that_a_takeover_may_drop",
        ),
        ("predecessor_last_ignored", "predecessor_last_not_written"),
    ),
}

# Sentences of the log's protocol that are there because something broke without them.
RULES: dict[str, Row] = {
    "the birth is acked by every bookie of its write set": Row(
        (f"{APPENDER}::test_fence_forgotten",), ("birth_of_a_quorum",)
    ),
    "a ledger is listed only above every id that was ever listed": Row(
        (f"{ROTATION}::test_a_ledger_at_or_below_the_floor_is_never_listed",),
        ("floor_not_checked",),
    ),
    "the compare-and-set that lists N+2 seals N": Row(
        (f"{ROTATION}::test_the_listing_seals_what_was_closed_before",),
        ("a_listing_seals_nothing",),
    ),
    "epoch and token still ours: the change is tried again on the new version": Row(
        (f"{ROTATION}::test_an_unknown_listing_is_looked_for_and_sent_again",),
        ("token_not_compared",),
    ),
    "an unknown reply at an unchanged version is never taken as not applied": Row(
        (f"{ROTATION}::test_an_unknown_listing_is_looked_for_and_sent_again",),
        ("unknown_listing_taken_as_refused",),
    ),
    "a ledger whose listing is not known to be refused is not deleted": Row(
        (f"{LOGS}::test_a_ledger_whose_listing_is_unknown_is_not_deleted",),
        ("a_ledger_is_deleted_though_its_listing_is_unknown",),
    ),
    "the switch only while the metadata store answers": Row(
        (f"{ROTATION}::test_no_switch_while_the_metadata_store_is_away",),
        ("seam_before_the_reply_to_the_listing",),
    ),
    "an explicit LAC when that ledger is idle, not when the whole pipe is": Row(
        (f"{ROTATION}::test_an_idle_old_ledger_is_published_though_the_pipe_is_not_idle",),
        ("the_whole_pipe_must_be_idle",),
    ),
    "a listed ledger that is gone: lost, or corrupt if the log is ours": Row(
        (f"{TAKEOVER}::test_a_listed_ledger_that_is_gone_is_corrupt_if_the_log_is_still_ours",),
        ("reader_takes_a_missing_ledger_for_the_end",),
    ),
    "the end is decided only once all are closed": Row(
        (f"{TAKEOVER}::test_nothing_is_decided_before_all_are_closed",),
        ("decide_before_all_are_closed",),
    ),
    "segments are decided in order": Row(
        (f"{TAKEOVER}::test_a_segment_is_kept_behind_one_that_got_no_seam",),
        ("segments_decided_out_of_order",),
    ),
    "a segment is entered only behind a predecessor closed at its seam's end": Row(
        (f"{LOG_READING}::test_a_reader_waits_before_a_segment_that_a_takeover_may_drop",),
        ("reader_enters_without_looking_at_the_predecessor",),
    ),
    "no seam, or no fit: wait for the ledger and for the list": Row(
        (
            f"{ROTATION}::test_readers_get_past_a_segment_that_was_closed_before_its_seam",
            f"{LOG_READING}::test_a_lost_watch_delays_and_loses_nothing",
        ),
        ("reader_enters_without_looking_at_the_predecessor",),
    ),
}
ROWS |= RULES

# Rows about deleted ledgers and checkpoints: what they need is not there yet.
LATER = {"orphan_after_cas_failure"}


@pytest.mark.parametrize("name", ROWS)
def test_each_row_has_a_story_and_a_planted_bug(name: str) -> None:
    row = ROWS[name]
    assert row.stories
    for story in row.stories:
        path, _, function = story.partition("::")
        assert function in _functions(path), story
    plants = all_plants()
    assert row.plants
    missing = [plant for plant in row.plants if plant not in plants]
    assert not missing
    assert any(plants[plant].survives is None for plant in row.plants), "one of them is noticed"


def test_no_row_is_in_both() -> None:
    assert not LATER & {name.partition(" ")[0] for name in ROWS}


@cache
def _functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, functions)}
