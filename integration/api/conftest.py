"""`zk://` URLs for the tests of the APIs, each with a root of its own on the shared cluster.

The synchronous face drives the same client from a thread. Every test of it runs on memory and files
in `make check`; on a cluster `make test` has the asyncio face, and `make full` both. What is about
lists and pages alone, which are the same bytes in every store, is for `make full`, too.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from dlog.testing.cluster import Cluster
from tests.api.cancelling import Moment
from tests.api.conftest import api, file_api, file_url, make_api, nothing_is_left

__all__ = ["api", "file_api", "file_url", "make_api", "nothing_is_left", "url"]

_roots = itertools.count()
HERE = Path(__file__).parent

# Of these modules `make test` has on a cluster what is named, and of other modules everything.
IN_TEST = {
    "test_fsck": {
        "test_nothing_is_found_where_nothing_is_wrong",
        "test_orphans_are_found_and_deleted",
        "test_the_tail_of_a_writer_that_is_not_there_any_more",
        "test_what_is_left_of_a_removed_log",
        "test_page_nodes_that_nothing_refers_to",
        "test_who_meets_another_page_is_told_so_and_goes_by_nothing_in_it",
        "test_a_sealed_segment_whose_ledger_is_open",
        "test_a_ledger_is_gone",
        "test_a_ledger_of_another_log",
        "test_a_ledger_that_has_more_than_the_list_says_is_not_cut",
    },
    # What programs do when they end, fork or crowd is the same everywhere, but for what is open.
    "test_exit": {
        "test_everything_left_open_with_nothing_lost",
        "test_an_async_program_that_forgets_to_close",
    },
    "test_fork": {"test_a_child_opens_its_own_and_ends_as_programs_do"},
    "test_window": {"test_a_run_longer_than_the_window_goes_through"},
}
# Of these, not what is named.
NOT_IN_TEST = {
    "test_publish": {
        "test_places_are_found_in_what_was_published",
        "test_a_list_that_is_wrong_about_a_published_segment",
        "test_many_segments_go_to_pages",
        "test_the_clock_of_the_log_does_not_go_back",
        "test_a_page_of_a_list_that_never_comes_back_is_replaced",
        "test_what_published_segments_do_not_tell_is_not_written_again",
        "test_a_log_that_forgot_queries_says_so",
        "test_a_key_is_a_query_and_a_number",
    },
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and (is_sync(item) or is_for_full(item)):
            item.add_marker(pytest.mark.tier("full", seconds=1.5))


def is_for_full(item: pytest.Item) -> bool:
    module, test = item.path.stem, item.name.partition("[")[0]
    if module == "test_cancellation":
        return not is_the_one_variant(item)
    return test not in IN_TEST.get(module, {test}) or test in NOT_IN_TEST.get(module, ())


def is_the_one_variant(item: pytest.Item) -> bool:
    """Given up when the answer is there already; openings, by a client that others use, too, of a
    log that somebody else has."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    is_woken = params.get("moment") in (None, Moment.WOKEN)
    return (
        is_woken and params.get("contended", True) and not ("contended" in params and params["own"])
    )


def is_sync(item: pytest.Item) -> bool:
    params = getattr(getattr(item, "callspec", None), "params", {})
    return bool(params.get("make_api") == "sync")


@pytest.fixture
def url(cluster: Cluster, tmp_path: Path) -> str:
    zookeeper = cluster.zookeeper.hosts
    return f"zk://{zookeeper}/api-{next(_roots)}?ledgers={cluster.ledgers_root}"
