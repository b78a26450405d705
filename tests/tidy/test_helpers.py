"""A test helper of ours that is given something that fails, fails. Each has a test in which it
must, and a new one needs one."""

from __future__ import annotations

from tests.tidy.helpers import MUST_FAIL, PROMISES_NOTHING, public_helpers
from tests.tidy.proofs import Named


def test_every_public_helper_has_a_test_in_which_it_must_fail() -> None:
    helpers = public_helpers()
    missing = sorted(helpers - MUST_FAIL.keys() - PROMISES_NOTHING.keys())
    assert not missing, f"no test says that these can fail: {missing}"
    gone = sorted((MUST_FAIL.keys() | PROMISES_NOTHING.keys()) - helpers)
    assert not gone, f"these are no public helpers: {gone}"
    assert not MUST_FAIL.keys() & PROMISES_NOTHING.keys()


def test_each_of_these_tests_is_there_and_runs() -> None:
    named = [Named(*each.partition("::")[::2], "") for each in sorted(set(MUST_FAIL.values()))]
    gone = [str(each) for each in named if each.proof is None or not each.proof.in_make_test]
    assert not gone, f"no tests that `make test` runs: {gone}"


def test_helpers_are_found() -> None:
    found = public_helpers()
    for name in ("sim.simulate", "children.Children", "python -m dlog.testing.sim run"):
        assert name in found
    assert {"pytest --dlog-seed", "Simulation.trouble", "cluster.Cluster"} <= found
