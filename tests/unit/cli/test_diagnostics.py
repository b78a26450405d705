"""What the library logs reaches standard error, safe to show, and never standard output."""

from __future__ import annotations

import logging

import pytest

from dlog.cli import diagnostics

pytestmark = pytest.mark.usefixtures("own_logger")


@pytest.mark.parametrize("structured", [True, False])
def test_warnings_go_to_standard_error_with_their_fields(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, structured: bool
) -> None:
    if not structured:
        monkeypatch.setattr(diagnostics, "find_spec", lambda name: None)
    diagnostics.start(0)
    logger = logging.getLogger("dlog.writer")
    logger.warning("rotation waits", extra={"log_name": "or\x1b[2Jders", "segment": 3})
    logger.info("not shown")
    told = capsys.readouterr()
    assert told.out == ""
    assert "rotation waits" in told.err
    assert "segment=3" in told.err
    assert "\x1b[2J" not in told.err
    assert "not shown" not in told.err


def test_more_is_said_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    diagnostics.start(1)
    logging.getLogger("dlog.reader").info("entered a segment")
    logging.getLogger("dlog.reader").debug("detail")
    diagnostics.start(2)
    logging.getLogger("dlog.reader").debug("more detail")
    told = capsys.readouterr().err
    assert told.count("\n") == 2  # one line each, though started twice
    assert "entered a segment" in told
    assert "more detail" in told


def test_an_error_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    diagnostics.start(0)
    try:
        raise OSError("disk\nfull")
    except OSError:
        logging.getLogger("dlog").exception("could not rotate")
    told = capsys.readouterr().err
    assert "could not rotate" in told
    assert "OSError" in told
    assert told.count("\n") == 1
