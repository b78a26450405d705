"""A short run of the fuzzer for each decoder, all inputs that ever failed, and what the fuzzer is
worth: the bugs it must notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import campaign as campaign_module
from tests.fuzz.__main__ import CRASHES, main
from tests.fuzz.campaign import Campaign, shrunk
from tests.fuzz.planted import PLANTS, planted
from tests.fuzz.registry import TARGETS
from tests.fuzz.target import Finding, Target, require
from tests.tidy.source import ROOT

EXECUTIONS = 4_000  # of each target: a sixth of a second
LONG = pytest.param(150_000, marks=(pytest.mark.tier("full"), pytest.mark.timeout(600)))
PLANT_EXECUTIONS_MAX = 200_000
# Bombs, another entry than was asked for, an answer to another question: each on purpose.
SEEDS_REFUSED = {
    "entry": 4,
    "control-connection": 1,
    "codec": 9,
    "cluster-names": 1,
    "url": 1,
    "segment-read": 3,
    "segment-forged": 3,
}
CRASHED = sorted(path for path in CRASHES.glob("*/*"))


@pytest.mark.parametrize("executions", [EXECUTIONS, LONG])
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_found(name: str, executions: int) -> None:
    report = Campaign(TARGETS[name]).run(executions=executions)
    assert report.executions == executions
    assert not report.findings, "\n".join(map(str, report.findings.values()))


@pytest.mark.parametrize("name", TARGETS)
def test_what_it_begins_with_is_valid(name: str) -> None:
    target, refused = TARGETS[name], 0
    for raw in target.seeds():
        try:
            target.check(raw)
        except target.refusals:
            refused += 1
    assert refused == SEEDS_REFUSED.get(name, 0)


@pytest.mark.parametrize("path", CRASHED, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_once_failed_is_refused_or_right(path: Path) -> None:
    target = TARGETS[path.parent.name]
    try:
        target.check(path.read_bytes())
    except target.refusals:
        pass


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    plant = PLANTS[name]
    with planted(plant):
        campaign = Campaign(TARGETS[plant.target], seed=1)
        while not campaign.report.findings:
            assert campaign.report.executions < PLANT_EXECUTIONS_MAX, "it survives"
            campaign.block(256)
    assert not Campaign(TARGETS[plant.target], seed=1).report.findings, "the bug is still there"


def test_a_seed_is_a_run() -> None:
    first, again = (Campaign(TARGETS["v3-reply"], seed=5) for _ in range(2))
    first.run(executions=3_000)
    again.run(executions=3_000)
    assert first.corpus == again.corpus
    assert first.report.verdicts == again.report.verdicts
    other = Campaign(TARGETS["v3-reply"], seed=6)
    other.run(executions=3_000)
    assert other.report.verdicts != first.report.verdicts


class _Sloppy(Target):
    """Fails on what holds a zero byte."""

    name = "sloppy"

    def seeds(self) -> list[bytes]:
        return [b"abc\x01def"]

    def check(self, raw: bytes) -> str:
        require(0 not in raw, "no zero byte")
        return "fine"


class _Greedy(_Sloppy):
    def check(self, raw: bytes) -> str:
        bytearray(1 << 20)
        return "fine"


class _Slow(_Sloppy):
    def check(self, raw: bytes) -> str:
        sum(range(400_000))
        return "fine"


def test_a_finding_is_kept_and_shrunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "sloppy", _Sloppy())
    monkeypatch.setattr("tests.fuzz.__main__.CRASHES", tmp_path)
    assert main(["sloppy", "--executions", "2000"]) == 1
    [kept] = tmp_path.glob("sloppy/*")
    assert kept.read_bytes() == b"\0"


def test_too_much_memory_is_a_finding() -> None:
    report = Campaign(_Greedy()).run(executions=300)
    assert [*report.findings] == ["memory"]


def test_too_much_time_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_module, "SECONDS_PER_KIB_MAX", 0.001)
    campaign = Campaign(_Slow())
    campaign.block(2)
    assert [*campaign.report.findings] == ["slow"]


def test_shrinking_takes_out_what_does_not_matter() -> None:
    def fails(raw: bytes) -> bool:
        return b"x" in raw and raw.endswith(b"z")

    assert shrunk(bytes(range(1, 90)) + b"x" * 9 + b"yyyz", fails) == b"xz"


def test_what_a_target_says_wrong_is_told() -> None:
    with pytest.raises(Finding, match="nothing is lost: 1, 'a'"):
        require(False, "nothing is lost", 1, "a")


def test_the_page_lists_every_target() -> None:
    page = (ROOT / "docs" / "FUZZING.md").read_text()
    missing = [name for name in TARGETS if f"\n| {name} | " not in page]
    assert not missing, f"docs/FUZZING.md does not list {missing}"
    assert f"plants {len(PLANTS)} bugs" in page
