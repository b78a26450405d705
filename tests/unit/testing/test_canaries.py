"""Canaries are found in whatever disguise, nothing else is taken for one, and what a run of the
tests leaves behind is searched for them."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from dlog.testing.canaries import canary, found_in, main
from tests.tidy.source import ROOT

ONE, TWO = canary("password"), canary("of-the-key")


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "abcd"])
@pytest.mark.parametrize("after", ["", "-", "z9", "\n"])
def test_a_canary_is_found_in_every_disguise(before: str, after: str) -> None:
    text = f"{before}{ONE}{after}"
    raw = text.encode()
    shown = [
        text,
        repr(text),
        repr(raw),
        raw.hex(),
        raw.hex().upper(),
        text.encode("utf-16").decode("latin-1"),
        f"x={base64.b64encode(raw).decode()},",
        f"/{base64.urlsafe_b64encode(raw).decode().rstrip('=')}",
        f"{text} {TWO}",
    ]
    for each in shown:
        assert "password" in found_in(each), each
        assert "password" in found_in(b"\xff\xfe" + each.encode("latin-1")), each
    assert found_in(shown[-1]) == {"password", "of-the-key"}


def test_nothing_else_is_taken_for_one() -> None:
    for other in ("canary-password", f"{ONE[:-1]}x", ONE.replace("pass", "past"), "canary--", ""):
        assert found_in(other) == set(), other
        assert found_in(base64.b64encode(other.encode())) == set(), other
    for label in ("", "With", "a b", "a-", "1"):
        with pytest.raises(ValueError, match="no name"):
            canary(label)


def test_directories_are_searched_and_places_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "clean").write_text("nothing")
    assert main([str(tmp_path)]) == 0
    (tmp_path / "deep" / "er.log").write_bytes(b"\0" * 100 + ONE.encode())
    (tmp_path / TWO).touch()
    assert main([str(tmp_path / "clean")]) == 0
    assert main([str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "er.log shows password" in told
    assert "shows of-the-key" in told
    assert ONE not in told
    assert main([]) == main([str(tmp_path / "gone")]) == 2


def test_what_a_run_leaves_behind_is_searched_before_it_is_kept(tmp_path: Path) -> None:
    transcript, scratch = tmp_path / "transcript", tmp_path / "scratch"
    scratch.mkdir()

    def kept() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / ".ci" / "kept"), str(transcript)],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    transcript.write_text("1 passed in 1s\n")
    assert kept().returncode == 0
    transcript.write_text(f"E  assert {ONE!r}\n")
    assert kept().returncode == 1
    transcript.write_text(f"1 failed in 1s\nscratch files: {scratch}\n")
    assert kept().returncode == 0
    (scratch / "history.jsonl").write_text(f'{{"error": "{TWO}"}}\n')
    done = kept()
    assert done.returncode == 1
    assert "history.jsonl shows of-the-key" in done.stderr
    step = (ROOT / ".ci" / "run").read_text()
    assert step.index("make -k test") < step.index('if ! .ci/kept "$transcript"')


@pytest.mark.parametrize("label", ["", "Upper", "with space", "-dash", "digit1"])
def test_a_name_that_no_canary_has_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match="no name of a canary"):
        canary(label)


def test_a_place_with_nothing_in_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([], [str(tmp_path / "nowhere")], [str(tmp_path)]):
        assert main(words) == 2
        assert "nothing to look at" in capsys.readouterr().err
    (tmp_path / "told").write_text("nothing of it")
    assert main([str(tmp_path)]) == 0
    (tmp_path / canary("password")).mkdir()
    assert main([str(tmp_path)]) == 1, "a directory's name shows, too"
