"""Options: defaults that hold, bounds at both ends, unknown names that list the known ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dlog.errors import ConfigError
from dlog.options import (
    YEARS_100_S,
    ClientOptions,
    LogOptions,
    ReaderOptions,
    WriterOptions,
    options_from,
    visible_within_ms,
)

KINDS: list[Any] = [LogOptions, WriterOptions, ReaderOptions, ClientOptions]
BOUNDS = [
    (LogOptions, "segment_bytes", 4096, 1 << 40),
    (LogOptions, "segment_age_s", 1, 10 * 366 * 24 * 3600),
    (LogOptions, "retention_age_s", 1, YEARS_100_S),
    (LogOptions, "retention_bytes", 0, 1 << 60),
    (LogOptions, "deletion_grace_s", 0, YEARS_100_S),
    (WriterOptions, "linger_ms", 0, 60_000),
    (WriterOptions, "entry_bytes", 1, None),
    (WriterOptions, "window_bytes", 1024, 1 << 30),
    (WriterOptions, "window_entries", 1, 1 << 16),
    (WriterOptions, "open_timeout_ms", 1, 24 * 3600 * 1000),
    (WriterOptions, "stall_after_ms", 0, 24 * 3600 * 1000),
    (ReaderOptions, "stall_after_ms", 0, 24 * 3600 * 1000),
    (ReaderOptions, "read_run_bytes", 1, 64 << 20),
    (ReaderOptions, "read_ahead_bytes", 1, 1 << 30),
    (ClientOptions, "meta_timeout_ms", 1, 600_000),
    (ClientOptions, "session_timeout_ms", 100, 600_000),
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_has_a_default_and_a_sentence(kind: Any) -> None:
    import ast
    import inspect

    assert kind() == options_from(kind, {})
    body = ast.parse(inspect.getsource(kind)).body[0].body  # type: ignore[attr-defined]
    fields = [i for i, node in enumerate(body) if isinstance(node, ast.AnnAssign)]
    assert len(fields) == len(dataclasses.fields(kind))
    for i in fields:
        told = body[i + 1]
        assert isinstance(told, ast.Expr), "an option nobody explains"
        assert len(told.value.value) > 20  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kind", "name", "low", "high"), BOUNDS)
def test_bounds_hold_at_both_ends(kind: Any, name: str, low: int, high: int | None) -> None:
    for good in (low, high):
        if good is not None:
            assert getattr(options_from(kind, {name: good}), name) == good
    for bad in (low - 1, None if high is None else high + 1, float(low + 1), "7", True, None):
        if bad is None and (high is None or name.startswith("retention_")):
            continue
        with pytest.raises(ConfigError, match=name):
            options_from(kind, {name: bad})


def test_every_number_is_bounded() -> None:
    """I25: no numeric option is missing from the table above."""
    numbers = {
        (kind, field.name)
        for kind in KINDS
        for field in dataclasses.fields(kind)
        if type(field.default) is int
    }
    quorums = {(LogOptions, name) for name in ("ensemble", "write_quorum", "ack_quorum")}
    optional = {(LogOptions, "retention_age_s"), (LogOptions, "retention_bytes")}
    assert numbers | optional == {(kind, name) for kind, name, _, _ in BOUNDS} | quorums


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 5, 3), (20, 20, 20), (2, 2, 2)])
def test_a_log_keeps_each_entry_on_all_of_its_bookies(quorums: tuple[int, int, int]) -> None:
    names = dict(zip(("ensemble", "write_quorum", "ack_quorum"), quorums, strict=True))
    assert options_from(LogOptions, names).ensemble == quorums[0]


@pytest.mark.parametrize(
    "quorums", [(3, 2, 2), (2, 3, 2), (3, 3, 4), (0, 0, 0), (21, 21, 2), (3, 3, 0), (3.0, 3, 2)]
)
def test_other_quorums_are_refused(quorums: tuple[Any, Any, Any]) -> None:
    names = dict(zip(("ensemble", "write_quorum", "ack_quorum"), quorums, strict=True))
    with pytest.raises(ConfigError):
        options_from(LogOptions, names)


@pytest.mark.parametrize("quorums", [(1, 1, 1), (2, 2, 1), (3, 3, 1)])
def test_a_single_copy_has_to_be_asked_for_by_name(quorums: tuple[int, int, int]) -> None:
    """A7."""
    names: dict[str, Any] = dict(
        zip(("ensemble", "write_quorum", "ack_quorum"), quorums, strict=True)
    )
    with pytest.raises(ConfigError, match="unsafe_single_copy=True"):
        options_from(LogOptions, names)
    assert options_from(LogOptions, {**names, "unsafe_single_copy": True}).ack_quorum == 1
    with pytest.raises(ConfigError, match="unsafe_single_copy is True or False"):
        options_from(LogOptions, {**names, "unsafe_single_copy": "yes"})


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_option_lists_the_known_ones(kind: Any) -> None:
    known = sorted(field.name for field in dataclasses.fields(kind))
    with pytest.raises(ConfigError, match=f"colour.*{known[0]}"):
        options_from(kind, {"colour": "red"})


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (WriterOptions, "takeover"),
        (WriterOptions, "on_full"),
        (WriterOptions, "codec"),
        (ReaderOptions, "on_truncated"),
        (LogOptions, "digest"),
    ],
)
def test_a_choice_is_one_of_the_known(kind: Any, name: str) -> None:
    for bad in ("", "ALWAYS", None, 1):
        with pytest.raises(ConfigError, match=f"{name} is one of"):
            options_from(kind, {name: bad})


@pytest.mark.parametrize(
    ("visible", "within_ms"), [("on_ack", None), ("within:1ms", 1), ("within:999999ms", 999_999)]
)
def test_visibility(visible: str, within_ms: int | None) -> None:
    assert visible_within_ms(WriterOptions(visible=visible).visible) == within_ms


@pytest.mark.parametrize(
    "visible", ["", "on-ack", "within:0ms", "within:50", "within:1000000ms", "within:50ms ", 50]
)
def test_other_visibilities_are_refused(visible: Any) -> None:
    with pytest.raises(ConfigError, match="visible is"):
        WriterOptions(visible=visible)


@pytest.mark.parametrize("owner", ["", "a\nb", "x" * 201])
def test_an_owner_is_printable_and_short(owner: str) -> None:
    with pytest.raises(ConfigError, match="owner"):
        WriterOptions(owner=owner)
