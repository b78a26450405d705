"""What a real bookie of 4.18.0 said, word by word;
`integration/bookkeeper/test_simulated_bookie.py` asks it again where servers can run."""

from __future__ import annotations

from pathlib import Path

from dlog.testing.sim.transcripts import SimSubject, play, written

RECORDED = Path(__file__).parent / "transcripts" / "bookie-4.18.0.txt"


def test_the_simulated_bookie_says_what_the_real_one_said() -> None:
    told = RECORDED.read_text(encoding="utf-8").splitlines()
    assert play(written(1_000), SimSubject()) == told
    assert len(told) > 60


def test_every_answer_that_matters_is_in_it() -> None:
    text = RECORDED.read_text(encoding="utf-8")
    for answer in ("ok", "no ledger", "no entry", "unauthorized", "fenced"):
        assert f"→ {answer}" in text
