"""Damage in the files of a log: what is lost is named by entries and seqs."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlog
from tests.api.adapter import Api
from tests.api.planting import checked, kinds
from tests.api.test_corruption import flip, garble
from tests.api.test_corruption import ledger_file as file_of_ledger_0


@pytest.fixture
async def damaged_file(file_api: Api) -> list[dlog.MessageId]:
    async with file_api.open_writer() as log:
        return [await log.append(b"message %d" % number * 10) for number in range(40)]


@pytest.mark.parametrize("damage", [flip, garble])
async def test_a_damaged_entry_is_named_with_the_seqs_that_are_lost(
    file_api: Api, damaged_file: list[dlog.MessageId], damage: object
) -> None:
    for seq in (11, 12, 39):
        damage(file_api, damaged_file[seq].entry_id)  # type: ignore[operator]
    report = await checked(file_api, deep=True)
    assert kinds(report) == ["entry_damaged", "entry_damaged"]
    wheres = [finding.where for finding in report.damage]
    found = [(w.ledger_id, w.first_entry, w.last_entry, w.first_seq, w.next_seq) for w in wheres]
    entry = damaged_file[11].entry_id
    last = damaged_file[39].entry_id
    assert found == [(0, entry, entry + 1, 11, 13), (0, last, last, 39, 40)]
    assert not report.plan, "there is one copy, and it is damaged"


async def test_a_sample_meets_the_first_the_last_and_some_between(
    file_api: Api, damaged_file: list[dlog.MessageId]
) -> None:
    flip(file_api, damaged_file[0].entry_id)
    flip(file_api, damaged_file[39].entry_id)
    flip(file_api, damaged_file[23].entry_id)
    ends = await checked(file_api, samples=0)
    assert [finding.where.first_seq for finding in ends.damage] == [39]
    many = await checked(file_api, samples=30)
    assert [finding.where.first_seq for finding in many.damage] == [0, 23, 39]
    assert ends.entries < many.entries


async def test_a_file_that_no_ledger_has(file_api: Api, damaged_file: object) -> None:
    path = file_of_ledger_0(file_api)
    stray = path.with_name("0000000077.ledger")
    stray.write_bytes(b"once")
    other = path.with_name("notes.txt")
    other.write_text("?")
    report = await checked(file_api)
    assert [(f.kind.value, Path(f.where.path)) for f in report.damage] == [
        ("stray_file", stray),
        ("stray_file", other),
    ]
    assert not report.plan
    assert stray.exists()


async def test_the_file_of_a_ledger_is_gone(
    file_api: Api, damaged_file: list[dlog.MessageId]
) -> None:
    file_of_ledger_0(file_api).unlink()
    report = await checked(file_api)
    assert set(kinds(report)) == {"entry_damaged"}
    assert {finding.where.ledger_id for finding in report.damage} == {0}
