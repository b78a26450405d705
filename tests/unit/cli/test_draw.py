"""Tables: aligned where plain, safe everywhere."""

from __future__ import annotations

import io

import pytest

from dlog.cli import draw

COLUMNS = (draw.Column("LOG"), draw.Column("MESSAGES", number=True), draw.Column("WRITER"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_tables_are_aligned_and_safe() -> None:
    out = io.StringIO()
    draw.table(COLUMNS, [("orders", 12, "-"), ("a\x1b[2J", 3456, "me")], stream=out)
    assert out.getvalue().splitlines() == [
        "LOG       MESSAGES  WRITER",
        "orders          12  -",
        "a\\x1b[2J      3456  me",
    ]


def test_a_table_without_rows_shows_its_titles() -> None:
    out = io.StringIO()
    draw.table(COLUMNS, [], stream=out)
    assert out.getvalue() == "LOG  MESSAGES  WRITER\n"


def test_a_terminal_gets_a_drawn_table_with_nothing_obeyed() -> None:
    out = Terminal()
    draw.table(COLUMNS, [("[red]orders[/red]", 12, "w\x1b[2J")], stream=out)
    told = out.getvalue()
    assert "[red]orders[/red]" in told  # somebody's name, not markup
    assert "\x1b[2J" not in told
    assert told != "".join(draw.plain_table(COLUMNS, [("[red]orders[/red]", "12", "w")]))


def test_without_rich_a_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "find_spec", lambda name: None)
    out = Terminal()
    draw.table(COLUMNS, [], stream=out)
    assert out.getvalue() == "LOG  MESSAGES  WRITER\n"


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, shown in ((io.StringIO(), ""), (Terminal(), "\rhalf\\x07\r        \r")):
        monkeypatch.setattr("sys.stderr", stream)
        progress = draw.Progress()
        progress.show("half\x07")
        progress.done()
        assert stream.getvalue() == shown


def test_fields_are_aligned_and_safe() -> None:
    out = io.StringIO()
    draw.fields([("log", "orders"), ("next seq", 5), ("writer", "")], stream=out)
    assert out.getvalue() == "log       orders\nnext seq  5\nwriter\n"
