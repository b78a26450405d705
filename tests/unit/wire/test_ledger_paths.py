"""Layouts, paths of ledgers both ways, and names that make ids."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError, FormatError, Unsupported
from dlog.wire.ledger_paths import (
    LEDGER_ID_END,
    SHORT_ID_END,
    TREES,
    Manager,
    high_bits_name,
    ledger_id_of,
    ledger_path,
    long_id,
    pack_layout,
    parse_generated_id,
    parse_high_bits,
    parse_layout,
)
from tests.unit.wire.bookie_tools import UNHURRIED, vectors

SHORT, LONG = Manager.LEGACY_HIERARCHICAL, Manager.LONG_HIERARCHICAL
LEDGER_ID = st.integers(0, LEDGER_ID_END - 1) | st.integers(0, 1 << 33)
CLASSES = "org.apache.bookkeeper.meta."


@pytest.mark.parametrize(
    ("manager", "ledger_id", "path"),
    [
        (Manager.FLAT, 1, "/L0000000001"),
        (Manager.FLAT, 2147483646, "/L2147483646"),
        (Manager.FLAT, 2147483647, "/L2147483647"),
        (Manager.FLAT, 4294967296, "/L4294967296"),
        (SHORT, 1, "/00/0000/L0001"),
        (SHORT, 2147483646, "/21/4748/L3646"),
        (LONG, 1, "/000/0000/0000/0000/L0001"),
        (LONG, 2147483646, "/000/0000/0021/4748/L3646"),
        (LONG, 2147483647, "/000/0000/0021/4748/L3647"),
        (LONG, 4294967296, "/000/0000/0042/9496/L7296"),
        (Manager.HIERARCHICAL, 1, "/00/0000/L0001"),
        (Manager.HIERARCHICAL, 123456, "/00/0012/L3456"),
        (Manager.HIERARCHICAL, 2147483646, "/21/4748/L3646"),
        (Manager.HIERARCHICAL, 2147483647, "/000/0000/0021/4748/L3647"),
        (Manager.HIERARCHICAL, 4294967296, "/000/0000/0042/9496/L7296"),
        (LONG, (1 << 63) - 1, "/922/3372/0368/5477/L5807"),
        (Manager.FLAT, 0, "/L0000000000"),
    ],
)
def test_paths(manager: Manager, ledger_id: int, path: str) -> None:
    assert ledger_path(manager, ledger_id) == path
    assert ledger_id_of(manager, path) == ledger_id


@UNHURRIED
@given(st.sampled_from(list(Manager)), LEDGER_ID)
def test_round_trip(manager: Manager, ledger_id: int) -> None:
    if manager is SHORT and ledger_id >= SHORT_ID_END:
        with pytest.raises(ConfigError):
            ledger_path(manager, ledger_id)
        return
    path = ledger_path(manager, ledger_id)
    assert ledger_id_of(manager, path) == ledger_id
    levels = path[1:].split("/")
    assert any(
        len(tree) == len(levels) and all(map(re.fullmatch, tree, levels)) for tree in TREES[manager]
    )


@pytest.mark.parametrize("ledger_id", [-1, LEDGER_ID_END])
def test_ids_out_of_range_have_no_path(ledger_id: int) -> None:
    with pytest.raises(ConfigError):
        ledger_path(Manager.HIERARCHICAL, ledger_id)


@pytest.mark.parametrize(
    ("manager", "path"),
    [
        (Manager.FLAT, "/L1"),
        (Manager.FLAT, "/L00000000001"),
        (Manager.FLAT, "/ID-0000000001"),
        (Manager.FLAT, "/L9999999999999999999"),
        (Manager.FLAT, "/L000000000\u0661"),
        (SHORT, "/21/4748/L3647"),
        (SHORT, "/99/9999/L9999"),
        (SHORT, "/00/0000/0001"),
        (SHORT, "/00/0000/L0001/"),
        (SHORT, "00/0000/L0001"),
        (LONG, "/00/0000/L0001"),
        (LONG, "/999/9999/9999/9999/L9999"),
        (Manager.HIERARCHICAL, "/000/0000/0000/0000/L0001"),
        (Manager.HIERARCHICAL, "/21/4748/L3647"),
        (Manager.HIERARCHICAL, ""),
    ],
)
def test_paths_that_no_formula_writes(manager: Manager, path: str) -> None:
    with pytest.raises(FormatError):
        ledger_id_of(manager, path)


def test_the_layout_of_a_new_cluster() -> None:
    raw = vectors("ledgers")["layout"].encode()
    assert len(raw) == 63
    assert pack_layout(Manager.HIERARCHICAL) == raw
    for manager in Manager:
        assert parse_layout(pack_layout(manager), where="LAYOUT") is manager


@pytest.mark.parametrize(
    ("text", "manager"),
    [
        ("1\nflat:1", Manager.FLAT),
        ("1\nhierarchical:1", Manager.HIERARCHICAL),
        (f"2\ndlshade.{CLASSES}HierarchicalLedgerManagerFactory:1", Manager.HIERARCHICAL),
        (f"2\n{CLASSES}LongHierarchicalLedgerManagerFactory:1\n", LONG),
    ],
)
def test_other_layouts(text: str, manager: Manager) -> None:
    assert parse_layout(text.encode(), where="LAYOUT") is manager


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", FormatError),
        ("2", FormatError),
        ("2\n", FormatError),
        ("2\nx", FormatError),
        (f"3\n{CLASSES}FlatLedgerManagerFactory:1", FormatError),
        (f"0\n{CLASSES}FlatLedgerManagerFactory:1", FormatError),
        (f"2\n{CLASSES}FlatLedgerManagerFactory:2", FormatError),
        (f"2\n{CLASSES}FlatLedgerManagerFactory:1\nx", FormatError),
        (f"2\n{CLASSES}MSLedgerManagerFactory:1", Unsupported),
        ("2\nflat:1", Unsupported),
        (f"1\n{CLASSES}FlatLedgerManagerFactory:1", Unsupported),
        ("2\n" + "x" * 2000 + ":1", FormatError),
        ("2\n\u00e9:1", FormatError),
    ],
)
def test_what_is_no_layout_of_ours(text: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="LAYOUT"):
        parse_layout(text.encode(), where="LAYOUT")


def test_generated_ids() -> None:
    assert parse_generated_id("/ledgers/idgen/ID-0000000000") == 0
    assert parse_generated_id("/ledgers/ID-0000000012") == 12
    assert parse_generated_id("/ID-/ID-2147483646") == 2147483646
    for overflow in ("ID-2147483647", "ID--2147483648", "ID--000000001", "ID-9999999999"):
        assert parse_generated_id(overflow) is None
    for wrong in ("", "ID-", "ID--", "ID-x", "0000000012", "ID-1 ", "ID-\u0661", "ID-00000000001"):
        with pytest.raises(FormatError):
            parse_generated_id(wrong)


def test_long_ids() -> None:
    assert high_bits_name(1) == "HOB-0000000001"
    assert parse_high_bits(["HOB-0000000009", "x", "HOB-0000000010"]) == [9, 10]
    assert parse_high_bits([]) == []
    assert long_id(1, 5) == 4294967301
    assert long_id((1 << 31) - 1, SHORT_ID_END - 1) < LEDGER_ID_END
    for wrong in ("HOB-", "HOB-1", "HOB-0000000000", "HOB-2147483648", "HOB--000000001"):
        with pytest.raises(FormatError):
            parse_high_bits([wrong])
    for high_bits in (0, -1, 1 << 31):
        with pytest.raises(ConfigError):
            high_bits_name(high_bits)
