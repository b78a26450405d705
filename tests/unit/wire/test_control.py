from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError, Corrupt, FormatError
from dlog.forgotten import ForgottenIds
from dlog.wire.control import (
    CONTROL_JSON_BYTES_MAX,
    Birth,
    ControlKind,
    ProducerRow,
    ProducerTable,
    Seam,
)

BIRTH = Birth("u1", "segment", 3, 7, "t0")
SEAM = Seam(-1, -1, 0, 1, 1, "u1")

numbers = st.integers(0, (1 << 63) - 1)
texts = st.text(min_size=1, max_size=40)


def test_the_kinds_keep_their_numbers() -> None:
    assert {kind.name: int(kind) for kind in ControlKind} == {
        "BIRTH": 1,
        "SEAM": 2,
        "PRODUCERS": 3,
    }


def test_birth_is_canonical_json() -> None:
    raw = BIRTH.to_bytes()
    assert raw == b'{"epoch":7,"log_uid":"u1","number":3,"role":"segment","token":"t0"}'
    assert Birth.from_bytes(raw, where="here") == BIRTH


def test_seam_is_canonical_json() -> None:
    raw = SEAM.to_bytes()
    assert raw == (
        b'{"base_seq":0,"epoch":1,"log_uid":"u1","number":1,'
        b'"predecessor_last":-1,"predecessor_ledger":-1}'
    )
    assert Seam.from_bytes(raw, where="here") == SEAM


@given(uid=texts, number=numbers, epoch=numbers, token=texts)
def test_births_round_trip(uid: str, number: int, epoch: int, token: str) -> None:
    for birth in (
        Birth(uid, "segment", number, epoch, token),
        Birth(uid, "standby", None, None, token),
        Birth(uid, "job", None, None, token),
    ):
        assert Birth.from_bytes(birth.to_bytes(), where="here") == birth


@given(st.tuples(st.integers(-1, 1 << 62), st.integers(-1, 1 << 62), numbers, numbers, numbers))
def test_seams_round_trip(fields: tuple[int, int, int, int, int]) -> None:
    seam = Seam(*fields, log_uid="u")
    assert Seam.from_bytes(seam.to_bytes(), where="here") == seam


BOUNDS = {"epoch": 0, "number": 0, "base_seq": 0, "predecessor_ledger": -1, "predecessor_last": -1}


@pytest.mark.parametrize("kind", [BIRTH, SEAM], ids=["birth", "seam"])
def test_every_field_is_taken_up_to_its_bounds_and_not_beyond(kind: Birth | Seam) -> None:
    raw = kind.to_bytes()
    for name in json.loads(raw):
        if name == "role":
            continue
        if name in BOUNDS:
            within: list[Any] = [BOUNDS[name], BOUNDS[name] + 1, (1 << 63) - 1]
            beyond: list[Any] = [BOUNDS[name] - 1, 1 << 63, True, 1.0, "1", None]
        else:
            within, beyond = ["x", "x" * 256], ["", "x" * 257, 1, None]
        for value in within:
            read = type(kind).from_bytes(changed(raw, **{name: value}), where="here")
            assert getattr(read, name) == value
        for value in beyond:
            with pytest.raises(Corrupt, match=f"here: {name} is"):
                type(kind).from_bytes(changed(raw, **{name: value}), where="here")
        fields = json.loads(raw)
        del fields[name]
        with pytest.raises(Corrupt, match=f"here: the field {name} is missing"):
            type(kind).from_bytes(json.dumps(fields).encode(), where="here")


def changed(raw: bytes, **changes: Any) -> bytes:
    return json.dumps(json.loads(raw) | changes).encode()


def test_unknown_fields_are_ignored() -> None:
    assert Birth.from_bytes(changed(BIRTH.to_bytes(), later={"x": [1]}), where="here") == BIRTH
    assert Seam.from_bytes(changed(SEAM.to_bytes(), later=None), where="here") == SEAM


@pytest.mark.parametrize("kind", [BIRTH, SEAM])
def test_a_missing_field_is_named(kind: Birth | Seam) -> None:
    fields = json.loads(kind.to_bytes())
    for name in fields:
        rest = {key: value for key, value in fields.items() if key != name}
        with pytest.raises(Corrupt, match=f"ledger 4 entry 1: the field {name} is missing"):
            type(kind).from_bytes(json.dumps(rest).encode(), where="ledger 4 entry 1")


@pytest.mark.parametrize("name", ["base_seq", "epoch", "number"])
@pytest.mark.parametrize("value", [-1, 1 << 63, 1.0, True, "1", None, [1]])
def test_numbers_are_whole_and_in_range(name: str, value: object) -> None:
    with pytest.raises(Corrupt, match=name):
        Seam.from_bytes(changed(SEAM.to_bytes(), **{name: value}), where="here")


@pytest.mark.parametrize("name", ["predecessor_ledger", "predecessor_last"])
def test_a_predecessor_may_be_none_but_not_less(name: str) -> None:
    with pytest.raises(Corrupt, match=name):
        Seam.from_bytes(changed(SEAM.to_bytes(), **{name: -2}), where="here")


@pytest.mark.parametrize("name", ["log_uid", "token"])
@pytest.mark.parametrize("value", ["", "x" * 257, 1, None])
def test_texts_are_bounded(name: str, value: object) -> None:
    with pytest.raises(Corrupt, match=name):
        Birth.from_bytes(changed(BIRTH.to_bytes(), **{name: value}), where="here")


@pytest.mark.parametrize("role", ["leader", "", None, 1, ["segment"]])
def test_an_unknown_role_is_no_default(role: object) -> None:
    with pytest.raises(FormatError, match="role"):
        Birth.from_bytes(changed(BIRTH.to_bytes(), role=role), where="here")


@pytest.mark.parametrize("role", ["standby", "job"])
@pytest.mark.parametrize("name", ["number", "epoch"])
def test_only_a_segment_knows_its_place(role: str, name: str) -> None:
    fields = {"role": role, "number": None, "epoch": None}
    Birth.from_bytes(changed(BIRTH.to_bytes(), **fields), where="here")
    with pytest.raises(Corrupt, match=name):
        Birth.from_bytes(changed(BIRTH.to_bytes(), **fields | {name: 1}), where="here")
    with pytest.raises(Corrupt, match=name):
        Birth.from_bytes(changed(BIRTH.to_bytes(), **{name: None}), where="here")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"epoch":1}'.decode().encode("utf-16"),
        b"[" * 4000,
        b'{"a":' * 800,
        b'{"epoch":' + b"9" * 4000,
        b'"' + b"x" * CONTROL_JSON_BYTES_MAX + b'"',
    ],
)
def test_what_is_no_object_is_corrupt(raw: bytes) -> None:
    with pytest.raises(Corrupt, match="here"):
        Birth.from_bytes(raw, where="here")


def test_a_body_may_be_as_long_as_the_limit_and_no_longer() -> None:
    raw = BIRTH.to_bytes()
    longest = raw + b" " * (CONTROL_JSON_BYTES_MAX - len(raw))
    assert Birth.from_bytes(longest, where="here") == BIRTH
    with pytest.raises(Corrupt, match="4097"):
        Birth.from_bytes(longest + b" ", where="here")


@pytest.mark.parametrize(
    "wrong",
    [
        Birth("u", "segment", None, 1, "t"),
        Birth("u", "job", None, 1, "t"),
        Birth("", "job", None, None, "t"),
        Seam(-2, -1, 0, 1, 1, "u"),
        Seam(-1, -1, -1, 1, 1, "u"),
    ],
)
def test_what_could_not_be_read_is_not_written(wrong: Birth | Seam) -> None:
    with pytest.raises(ConfigError, match="about to be written"):
        wrong.to_bytes()


ROW = ProducerRow(7, 41, 12, 5, 3)
FORGETFUL = ProducerTable((), True, ((1, 5), (8, 8)))
rows = st.builds(ProducerRow, numbers, numbers, numbers, numbers, st.integers(0, (1 << 32) - 1))


@given(
    st.lists(rows, unique_by=lambda row: row.producer_id, max_size=5),
    st.booleans(),
    st.none() | st.lists(numbers, min_size=1, max_size=5),
)
def test_tables_of_producers_round_trip(
    some: list[ProducerRow], forgot: bool, ids: list[int] | None
) -> None:
    ranges = ForgottenIds.of(ids).ranges if forgot and ids else None
    table = ProducerTable(tuple(some), forgot, ranges)
    assert ProducerTable.from_bytes(table.to_bytes(), where="here") == table


def test_a_table_has_forty_bytes_for_a_producer() -> None:
    assert ProducerTable().to_bytes() == bytes(8)
    assert ProducerTable((ROW,), forgot=True).to_bytes() == bytes.fromhex(
        "0100000001000000"
        "0700000000000000"
        "2900000000000000"
        "0c00000000000000"
        "0500000000000000"
        "0300000000000000"
    )


def test_ranges_of_forgotten_producers_stand_behind_the_rows() -> None:
    assert FORGETFUL.to_bytes() == bytes.fromhex(
        "0000000005000000"
        "0200000000000000"
        "01000000000000000500000000000000"
        "08000000000000000800000000000000"
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(7),
        bytes(9),
        b"\x01" + bytes(7),
        b"\x01" + bytes(46),
        ProducerTable((ROW,)).to_bytes() + b"\0",
        FORGETFUL.to_bytes() + b"\0",
        FORGETFUL.to_bytes()[:-1],
        FORGETFUL.to_bytes()[:-16],
        ProducerTable((), True, ()).to_bytes(),
        ProducerTable((), True, ((2, 1),)).to_bytes(),
        ProducerTable((), True, ((5, 6), (1, 2))).to_bytes(),
        b"\0\0\0\0\4" + FORGETFUL.to_bytes()[5:],
        ProducerTable((ROW, ROW)).to_bytes(),
        ProducerTable((ROW._replace(number=-1),)).to_bytes(),
        ProducerTable((ROW._replace(producer_id=-1),)).to_bytes(),
        ProducerTable((ROW._replace(ledger_id=-1),)).to_bytes(),
    ],
)
def test_what_is_no_table_of_producers_is_corrupt(raw: bytes) -> None:
    with pytest.raises(Corrupt, match="here"):
        ProducerTable.from_bytes(raw, where="here")


def test_an_unknown_flag_of_a_table_is_no_default() -> None:
    with pytest.raises(FormatError, match="here: unknown flags 0x2"):
        ProducerTable.from_bytes(bytes(4) + b"\x02" + bytes(3), where="here")
