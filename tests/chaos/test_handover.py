"""`python -m examples.handover`: three acts with two processes, checked by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.source import ROOT

ACTS = ("handed over", "kill -9", "frozen", "wakes", "refused: epoch")


def play(tmp_path: Path, *words: str, timeout_s: float = 50) -> str:
    """What it says; nothing of it stays in its scratch directory."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DLOG")}
    done = subprocess.run(
        [sys.executable, "-m", "examples.handover", *words],
        cwd=ROOT,
        env=kept | {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr  # one that was frozen may say what it woke up to
    assert list(tmp_path.iterdir()) == []
    return done.stdout


@pytest.mark.chaos
def test_two_services_hand_one_log_over(tmp_path: Path) -> None:
    told = play(tmp_path)
    assert [act for act in ACTS if act not in told] == []
    assert told.count("  ok  ") == 7, "each claim holds"


def test_a_claim_that_does_not_hold_ends_the_story() -> None:
    from examples.handover import story

    with pytest.raises(SystemExit, match="it is not so: one is two"):
        story.claim("one is two", False)


def test_a_database_refuses_a_smaller_token(tmp_path: Path) -> None:
    from examples.handover.payments import Payment, Payments, Zombie

    payments = Payments(tmp_path / "payments.db")
    payments.guard(3)
    assert payments.pay(Payment(0, 100, 7, epoch=3))
    assert not payments.pay(Payment(0, 100, 7, epoch=4)), "paid once, whoever is told to"
    with pytest.raises(Zombie, match="epoch 3 is refused: 4 was here"):
        payments.pay(Payment(1, 100, 8, epoch=3))
    assert [paid.number for paid in payments.all()] == [0]
    assert payments.last_seq() == 7
    payments.close()
