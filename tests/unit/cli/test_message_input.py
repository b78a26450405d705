"""What is fed to `dlog produce`: each refusal names its line, and nothing is guessed."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.cli import message_input
from dlog.cli.message_input import BadInput, Draft, drafts, json_line, plain_line, separated_line


def _all(raw: bytes, parse: message_input.Parse) -> list[Draft]:
    return list(drafts(io.BytesIO(raw), "in", parse, message_input.At()))


@given(st.lists(st.binary().map(lambda raw: raw.replace(b"\n", b""))))
def test_lines_are_kept_byte_by_byte(lines: list[bytes]) -> None:
    raw = b"".join(line + b"\n" for line in lines)
    assert [draft.value for draft in _all(raw, plain_line)] == lines


def test_a_last_line_without_its_end_counts() -> None:
    assert _all(b"a\n\nb", plain_line) == [Draft(b"a"), Draft(b""), Draft(b"b")]


def test_carriage_returns_are_part_of_the_line() -> None:
    assert _all(b"a\r\n", plain_line) == [Draft(b"a\r")]


def test_a_line_without_end_is_refused_before_it_fills_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_input, "LINE_BYTES_MAX", 8)
    assert _all(b"1234567\n", plain_line) == [Draft(b"1234567")]
    with pytest.raises(BadInput, match="in, line 2: longer than 8 bytes"):
        _all(b"1\n123456789\n", plain_line)
    with pytest.raises(BadInput, match="in: longer than 8 bytes"):
        list(message_input.whole(io.BytesIO(b"12345678"), "in", message_input.At()))


def test_the_first_separator_splits() -> None:
    assert _all(b"k::v::w\n::v\n", separated_line(b"::")) == [
        Draft(b"v::w", b"k"),
        Draft(b"v", b""),
    ]
    with pytest.raises(BadInput, match=r"in, line 1: there is no '::' after a key"):
        _all(b"kv\n", separated_line(b"::"))


def test_json_in_full() -> None:
    line = json.dumps(
        {
            "id": "1:2:3", "seq": 9, "epoch": 1, "timestamp_us": 5, "time": "…",
            "key_base64": "/w==", "value": "paid", "event_time": "1970-01-01T00:00:01+00:00",
            "headers": [["by", "web"], ["by", {"base64": "AA=="}]],
        }
    ).encode()  # fmt: skip
    assert json_line(line) == Draft(b"paid", b"\xff", [("by", b"web"), ("by", b"\0")], 1_000_000)
    assert json_line(b'{"value": null, "headers": {"a": "b"}, "event_time_us": -5}') == Draft(
        None, None, [("a", b"b")], -5
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nonsense", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "object"),
        ("{}", "no value"),
        ('{"value": 1}', "value is text or null"),
        ('{"value": {"a": 1}}', "value is text or null"),
        ('{"value": "a", "value_base64": "YQ=="}', "exclude"),
        ('{"value_base64": "*"}', "not base64"),
        ('{"value_base64": null}', "not base64"),
        ('{"value": "a", "valeu": "b"}', "unknown field 'valeu'"),
        ('{"value": "\\ud800"}', "half a character"),
        ('{"value": "a", "headers": 1}', "headers"),
        ('{"value": "a", "headers": [["a"]]}', "header"),
        ('{"value": "a", "headers": [[1, "b"]]}', "header"),
        ('{"value": "a", "headers": {"a": null}}', "header a"),
        ('{"value": "a", "event_time_us": 1.5}', "event_time_us"),
        ('{"value": "a", "event_time_us": true}', "event_time_us"),
        ('{"value": "a", "event_time": "soon"}', "ISO 8601"),
        ('{"value": "a", "event_time": 5}', "ISO 8601"),
        ('{"value": "a", "event_time": "2025-03-01T12:00"}', "zone"),
        ('{"value": "a", "event_time": "2025-03-01", "event_time_us": 1}', "exclude"),
    ],
)
def test_bad_json_says_what_is_wrong_and_where(line: str, told: str) -> None:
    with pytest.raises(BadInput, match="in, line 2: ") as caught:
        _all(b'{"value": "ok"}\n' + line.encode() + b"\n", json_line)
    assert told in str(caught.value)


def test_headers_of_the_command_line() -> None:
    assert message_input.parse_header("by=web=x") == ("by", b"web=x")
    assert message_input.parse_header("by=") == ("by", b"")
    for bad in ("by", "=web", ""):
        with pytest.raises(ValueError, match="name=value"):
            message_input.parse_header(bad)
