"""What workers of a group agree on: its bytes, and who is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dlog.errors import ConfigError, FormatError
from dlog.groups.charter import Charter, Mark
from dlog.meta.json_fields import dump, load

CHARTER = Charter(
    "uid",
    "logs",
    2_000,
    begin={0: Mark(7, is_final=True)},
    end={3: Mark(0, is_final=False)},
)


def test_its_bytes_come_back_and_keep_what_they_do_not_know() -> None:
    raw = dump({**load(CHARTER.to_bytes(), "x"), "later": 1})
    found = Charter.from_bytes(raw, where="x")
    assert found == CHARTER
    assert found.to_bytes() == raw


def test_a_group_that_was_made_anew_is_told_from_the_one_before() -> None:
    """Groups of older versions have no uid."""
    known = dataclasses.replace(CHARTER, uid="u" * 32)
    assert Charter.from_bytes(known.to_bytes(), where="x") == known != CHARTER
    assert "uid" not in load(CHARTER.to_bytes(), "x")


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": 2},
        {"leases": "stars"},
        {"timeout_ms": 0},
        {"stream": ""},
        {"weigh": "mood"},
        {"begin": {"1" * 5_000: [1, True]}},
        {"begin": {"x": [1, True]}},
        {"begin": {"1": [-1, True]}},
        {"end": {"1": [True, True]}},
        {"end": {"1": 7}},
        {"end": []},
    ],
)
def test_what_is_no_charter_is_refused(wrong: dict[str, Any]) -> None:
    raw = dump({**load(CHARTER.to_bytes(), "x"), **wrong})
    with pytest.raises(FormatError):
        Charter.from_bytes(raw, where="x")


def test_a_charter_of_half_a_megabyte_is_refused() -> None:
    with pytest.raises(FormatError, match="more than a charter"):
        Charter.from_bytes(b" " * (1 << 19), where="x")


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (Charter("uid", "nodes", 2_000, end={}), "leases"),
        (Charter("uid", "logs", 1_000, end={}), "timeout_ms"),
        (Charter("uid", "logs", 2_000), "stop_at_end"),
        (Charter("uid", "logs", 2_000, "lag", end={}), "weigh"),
        (Charter("other", "logs", 2_000, end={}), "another stream"),
    ],
)
def test_who_differs_is_refused(wanted: Charter, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        CHARTER.check_agrees(wanted, "billing")


def test_where_it_began_is_not_asked_again() -> None:
    CHARTER.check_agrees(Charter("uid", "logs", 2_000, end={}), "billing")
