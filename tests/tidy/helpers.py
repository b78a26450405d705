"""The public helpers of `dlog.testing`, read from its modules, and for each one a test in which it
is handed something that fails, and must fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.source import ROOT

TESTING = ROOT / "dlog" / "testing"
# Modules whose public functions and classes tests call; of others a package names its own.
_MODULES = (
    *sorted(path.relative_to(TESTING) for path in TESTING.glob("[!_]*.py")),
    *(Path("sim") / f"{name}.py" for name in ("corpus", "coverage", "runs", "shrink", "tiers")),
    Path("sim/users.py"),
    Path("sim/planted/__init__.py"),
    Path("sim/planted/shown.py"),
)
_CLASSES = {Path("sim/simulation.py"): ("Elsewhere", "Simulation")}
_PACKAGES = (Path("cluster/__init__.py"), Path("sim/__init__.py"))
_SUITES = (Path("conformance/ledger_store.py"), Path("conformance/meta_store.py"))
# Values and errors hold what they are given, and promise nothing.
_VALUES = {"Enum", "Exception", "NamedTuple", "Protocol", "UserWarning", "AssertionError"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_helpers() -> set[str]:
    found = {f"python -m {name}" for name in _commands()}
    found |= {f"pytest {option}" for option in _pytest_options()}
    for path in _MODULES:
        found |= {f"{_dotted(path)}.{node.name}" for node in _public(path)}
    for path, classes in _CLASSES.items():
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef) and node.name in classes:
                methods = (each for each in node.body if isinstance(each, Function))
                found |= {f"{node.name}.{each.name}" for each in methods if each.name[0] != "_"}
    for path in _PACKAGES:
        found |= {f"{_dotted(path)}.{name}" for name in _listed(path) if name != name.upper()}
    for path in (*_SUITES, Path("conformance/leases.py")):
        found.add(_dotted(path))
    return found


def _tree(path: Path) -> ast.Module:
    return ast.parse((TESTING / path).read_text(encoding="utf-8"))


def _dotted(path: Path) -> str:
    parts = [*path.parent.parts, *([] if path.stem == "__init__" else [path.stem])]
    return ".".join(parts)


def _public(path: Path) -> Iterator[Function | ast.ClassDef]:
    for node in _tree(path).body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            if not (isinstance(node, ast.ClassDef) and _is_value(node)):
                yield node


def _is_value(node: ast.ClassDef) -> bool:
    bases = {ast.unparse(each).rpartition(".")[2] for each in node.bases}
    decorated = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    methods = [each for each in node.body if isinstance(each, Function)]
    checks = any(each.name in ("__post_init__", "check") for each in methods)
    return bool(bases & _VALUES) or (decorated and not checks)


def _listed(path: Path) -> list[str]:
    (names,) = (
        node.value
        for node in _tree(path).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    found: list[str] = ast.literal_eval(names)
    return found


def _commands() -> Iterator[str]:
    """Each module that can be run, and each verb that it has. `keeper` and `janitor` are run by
    their file, by the cluster alone."""
    for path in sorted(TESTING.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if '__name__ == "__main__"' not in text or path.stem in ("keeper", "janitor"):
            continue
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        verbs = [
            ast.literal_eval(node.args[0])
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_parser")
        ]
        yield from (f"{dotted} {verb}" for verb in verbs) if verbs else (dotted,)


def _pytest_options() -> Iterator[str]:
    for node in ast.walk(_tree(Path("pytest_plugin.py"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".addoption"):
            yield ast.literal_eval(node.args[0])


_UNIT = "tests/unit/testing/"
_CHILDREN = f"{_UNIT}test_children.py"
_CHECKERS = f"{_UNIT}test_checkers.py"
_SERVERS = f"{_UNIT}test_cluster_servers.py"
_PLANS = f"{_UNIT}test_group_plans.py"
_PROXY = f"{_UNIT}test_faulty_proxy.py"
_RAW = f"{_UNIT}test_raw_ledgers.py"
_CANARIES = f"{_UNIT}test_canaries.py"
_USERS = "tests/sim/test_users.py"
_UNHEARD = "tests/sim/test_users_unheard.py"
_NOTHING = "tests/sim/test_nothing_proven.py"
_BROKEN = "tests/conformance/test_broken_backends.py"

# A proof for each helper that judges, waits, strikes or can be asked for what is not there.
MUST_FAIL: dict[str, str] = {
    # simulated tests
    "sim.simulate": f"{_UNHEARD}::test_what_was_started_and_raised_fails",
    "sim.users.simulate": f"{_USERS}::test_what_would_run_nothing_is_refused",
    "sim.users.Plan": f"{_UNHEARD}::test_a_plan_of_no_histories_is_refused",
    "sim.users.read_tape": f"{_UNHEARD}::test_a_tape_that_says_nothing_is_refused",
    "sim.Simulation": f"{_UNHEARD}::test_what_was_started_and_raised_fails",
    "Simulation.connect": f"{_UNHEARD}::test_the_sync_api_is_refused",
    "Simulation.open_writer": (
        f"{_UNHEARD}::test_an_append_that_failed_and_was_not_waited_for_fails"
    ),
    "Simulation.run": f"{_UNHEARD}::test_a_failure_is_told_before_that_of_a_close",
    "Simulation.start": (
        f"{_UNHEARD}::test_a_process_that_raised_and_has_a_successor_of_its_name_fails"
    ),
    "Elsewhere.result": f"{_UNHEARD}::test_the_result_of_what_was_killed_raises",
    "Elsewhere.freeze": f"{_UNHEARD}::test_a_process_is_frozen_for_some_time",
    **dict.fromkeys(
        [
            f"Simulation.{each}"
            for each in (
                "lose_bookie",
                "lose_replies",
                "oversleep",
                "pass_time",
                "slow_bookie",
                "stop_bookie",
                "take_over",
            )
        ],
        f"{_UNHEARD}::test_trouble_that_cannot_be_is_refused",
    ),
    "pytest --dlog-histories": f"{_USERS}::test_options_that_would_run_nothing_are_refused",
    "pytest --dlog-seed": f"{_USERS}::test_a_failure_tells_what_broke_and_how_to_see_it_again",
    "pytest --dlog-tape": f"{_UNHEARD}::test_a_tape_that_says_nothing_is_refused",
    "pytest --dlog-shrink": f"{_USERS}::test_a_failure_tells_what_broke_and_how_to_see_it_again",
    # commands
    **{
        f"python -m dlog.testing.sim {verb}": f"{_NOTHING}::{test}"
        for verb, test in {
            "run": "test_a_history_that_breaks_a_promise_fails_the_command",
            "tell": "test_a_tape_of_another_world_is_refused",
            "shrink": "test_shrink_of_a_history_with_nothing_wrong_fails",
            "plants": "test_a_bug_whose_test_does_not_show_it_is_unexplained",
            "shrinkage": "test_a_bug_that_is_not_found_fails_the_shrinkage",
            "digest": "test_a_history_that_breaks_a_promise_fails_the_command",
        }.items()
    },
    "python -m dlog.testing.cluster": (
        f"{_SERVERS}::test_the_command_fails_where_no_cluster_can_run"
    ),
    "python -m dlog.testing.canaries": (
        f"{_CANARIES}::test_directories_are_searched_and_places_are_named"
    ),
    # histories of many worlds
    "sim.runs.Tally": f"{_NOTHING}::test_no_history_proves_nothing",
    "sim.runs.run_many": f"{_NOTHING}::test_no_history_proves_nothing",
    "sim.runs.hunt": f"{_NOTHING}::test_a_bug_that_does_not_fit_the_code_is_stale",
    "sim.runs.load_tape": f"{_NOTHING}::test_a_tape_that_is_cut_is_refused",
    "sim.runs.run_one": f"{_NOTHING}::test_a_history_that_breaks_a_promise_fails_the_command",
    "sim.runs.run_seed": "tests/sim/test_corpus.py::test_a_bug_in_the_code_fails_the_corpus",
    "sim.runs.shrink_tape": f"{_NOTHING}::test_shrink_of_a_history_with_nothing_wrong_fails",
    "sim.shrink.shrink": f"{_NOTHING}::test_shrink_of_a_history_with_nothing_wrong_fails",
    "sim.corpus.load": f"{_NOTHING}::test_a_corpus_that_is_not_there_is_no_empty_one",
    "sim.corpus.corpus": f"{_NOTHING}::test_a_corpus_that_is_not_there_is_no_empty_one",
    "sim.corpus.play": "tests/sim/test_corpus.py::test_a_bug_in_the_code_fails_the_corpus",
    "sim.corpus.hunt_from_telling": f"{_NOTHING}::test_a_bug_that_plants_nothing_is_not_noticed",
    "sim.corpus.find_telling": f"{_NOTHING}::test_a_bug_that_no_history_tells_fails_the_record",
    "sim.tiers.death_of": (
        "tests/sim/test_sim_command.py::test_a_bug_that_the_corpus_overlooks_dies_by_its_hunt"
    ),
    "sim.coverage.watching": (
        "tests/sim/test_core_coverage.py::test_a_pair_that_cannot_be_is_a_violation"
    ),
    "sim.coverage.missing": f"{_NOTHING}::test_what_was_never_watched_is_missing",
    "sim.coverage.report": f"{_NOTHING}::test_what_was_never_watched_is_missing",
    "sim.planted.Plants": f"{_NOTHING}::test_two_bugs_of_one_name_are_refused",
    "sim.planted.all_plants": f"{_NOTHING}::test_a_room_of_bugs_that_is_gone_is_missed",
    "sim.planted.planted": (
        "tests/sim/test_planted.py::test_a_bug_in_a_name_that_is_gone_is_refused"
    ),
    "sim.planted.shown.show": (
        "tests/sim/test_sim_command.py::test_a_test_that_does_not_notice_shows_nothing"
    ),
    "sim.planted.shown.pytest_configure": (
        f"{_NOTHING}::test_a_run_that_is_to_plant_no_bug_that_there_is_is_refused"
    ),
    # contracts
    "conformance.ledger_store": f"{_BROKEN}::test_a_broken_backend_fails_each_check",
    "conformance.meta_store": f"{_BROKEN}::test_a_broken_backend_fails_each_check",
    "conformance.leases": f"{_BROKEN}::test_a_broken_backend_fails_each_check",
    # histories of processes
    **{
        f"checkers.{name}": f"{_CHECKERS}::test_every_checker_objects_to_something"
        for name in (
            "acked_is_durable",
            "acked_is_visible",
            "no_phantom",
            "delivery_is_repeatable",
            "acks_are_in_order",
            "prefixes_survive",
            "ids_only_grow",
            "one_effective_writer",
            "closed_is_closed",
            "recovery_loses_nothing",
            "list_is_well_formed",
            "readers_are_exact",
            "outcomes_are_honest",
        )
    },
    "checkers.Story": f"{_CHECKERS}::test_a_final_read_that_failed_is_refused",
    "checkers.violations": f"{_CHECKERS}::test_a_bad_history_is_refused",
    "checkers.assert_holds": f"{_CHECKERS}::test_a_history_without_an_append_proves_nothing",
    "history.Recorder": f"{_CHECKERS}::test_a_recorder_that_cannot_write_fails",
    "history.load": f"{_CHECKERS}::test_a_history_that_is_not_there_or_damaged_fails",
    "children.CrashPoint": f"{_CHILDREN}::test_a_crash_that_cannot_come_is_refused",
    "children.arm": f"{_CHILDREN}::test_a_crash_that_cannot_come_is_refused",
    "children.Child": f"{_CHILDREN}::test_what_is_not_said_is_not_waited_for",
    "children.Children": f"{_CHILDREN}::test_a_program_that_fails_unheard_fails_its_test",
    "children.start_interpreter": f"{_CHILDREN}::test_success_is_asked_for",
    # servers and connections
    "faulty_proxy.Direction": f"{_PROXY}::test_a_slice_that_would_lose_everything_is_refused",
    "faulty_proxy.FaultyProxy": f"{_PROXY}::test_a_proxy_that_was_not_started_has_no_address",
    "raw_ledgers.head_of": f"{_RAW}::test_a_frame_without_a_head_is_refused",
    "raw_ledgers.RawBookie": f"{_RAW}::test_an_answer_to_another_question_is_refused",
    "raw_ledgers.connected": f"{_RAW}::test_an_answer_to_another_question_is_refused",
    "raw_ledgers.stored_entry": f"{_RAW}::test_a_refusal_does_not_say_that_there_is_none",
    "raw_ledgers.metadata_of": f"{_RAW}::test_what_is_no_metadata_is_refused",
    "cluster.Cluster": f"{_SERVERS}::test_a_cluster_that_cannot_be_is_refused",
    "cluster.Bookie": f"{_SERVERS}::test_a_cluster_that_cannot_be_is_refused",
    "cluster.DetachedCluster": (
        f"{_UNIT}test_detached.py::test_a_damaged_state_is_told_and_is_not_in_the_way"
    ),
    "cluster.JavaProcess": f"{_SERVERS}::test_what_has_ended_is_not_frozen",
    "cluster.ZooKeeper": f"{_SERVERS}::test_a_zookeeper_that_says_nothing_does_not_say_no",
    "cluster.class_path": f"{_SERVERS}::test_a_release_that_is_not_known_is_refused",
    "cluster.why_not": f"{_SERVERS}::test_a_release_that_is_not_known_is_refused",
    "cluster.why_not_brought": f"{_SERVERS}::test_a_release_that_is_not_known_is_refused",
    "cluster.scratch_directory": f"{_UNIT}test_scratch.py::test_a_directory_is_nobody_elses",
    # others
    "canaries.canary": f"{_CANARIES}::test_a_name_that_no_canary_has_is_refused",
    "canaries.found_in": f"{_CANARIES}::test_a_canary_is_found_in_every_disguise",
    "canaries.files_that_show": f"{_CANARIES}::test_directories_are_searched_and_places_are_named",
    "canaries.main": f"{_CANARIES}::test_a_place_with_nothing_in_it_is_refused",
    **{
        f"group_plans.{name}": f"{_PLANS}::test_a_wrong_plan_is_refused"
        for name in ("check_plan_by_count", "check_plan_by_weight", "check_plan_over_domains")
    },
}

# What only computes, opens or tells. It judges nothing, and what it is given cannot be wrong.
PROMISES_NOTHING: dict[str, str] = {
    "Simulation.open_reader": "opens a log as every client does",
    "Simulation.open_standby": "opens a log as every client does",
    "Simulation.note": "a line of the story",
    "Simulation.nothing": "no trouble",
    "Simulation.trouble": "one of the troubles, each of which has its row",
    "Simulation.break_connections": "takes nothing",
    "Simulation.heal": "takes nothing",
    "Elsewhere.name": "a name",
    "Elsewhere.kill": "takes nothing; of one that has ended nothing is left to kill",
    "pytest_plugin.pytest_addoption": "its options have rows",
    "pytest_plugin.pytest_runtest_call": "its options have rows",
    "pytest_plugin.pytest_runtest_makereport": "shows a failure",
    "sim.users.tape_text": "text of a tape",
    "sim.runs.collected_here": "collects garbage",
    "sim.corpus.recorded": "`load`, once",
    "sim.corpus.save": "writes a file",
    "sim.corpus.is_current": "compares two values",
    "sim.corpus.reduce": "computes a cover",
    "sim.tiers.summary": "text of a table",
    "children.pause": "waits",
    "history.digest_of": "a digest",
    "raw_ledgers.node_path": "a path",
    "cluster.find_java": "a path, or None",
    "group_plans.worker_ids": "makes what is judged",
    "group_plans.view_of": "makes what is judged",
    "group_plans.after": "makes what is judged",
    "group_plans.counts_of": "counts",
    "group_plans.loads_of": "counts",
    "group_plans.fewest_moves": "counts",
    "group_plans.starts": "makes what is judged",
    "group_plans.random_start": "makes what is judged",
}
