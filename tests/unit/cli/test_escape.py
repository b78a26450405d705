"""What reaches a terminal is only what can be printed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.cli.escape import json_text, printable, printable_bytes


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("zürich 東京 🙂", "zürich 東京 🙂"),
        ("a b\u00a0c", "a b\u00a0c"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x7f\x9b\x00", "\\x7f\\x9b\\x00"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2028\ufeff", "\\u2028\\ufeff"),
        ("\U000e0041", "\\U000e0041"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_only_what_prints_stays(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_bytes_that_are_not_text_are_written_out() -> None:
    assert printable_bytes(b"ok \xff\xc3") == "ok \\xff\\xc3"
    assert printable_bytes("ü".encode()) == "ü"


@given(st.text())
def test_nothing_a_terminal_obeys_gets_through(text: str) -> None:
    for character in printable(text):
        assert character.isprintable() or character in "\u00a0\u1680\u202f\u205f\u3000" + "".join(
            map(chr, range(0x2000, 0x200B))
        )


@given(st.text())
def test_json_stays_the_same_value_and_is_safe(text: str) -> None:
    told = json_text(json.dumps({"value": text}, ensure_ascii=False))
    assert json.loads(told) == {"value": text}
    assert "\x1b" not in told
    assert "\u202e" not in told
    assert "\x9b" not in told
