"""A list is read while others change it: what was on its way out is no finding."""

from __future__ import annotations

import pytest

from dlog.admin.fsck.lists import Walk, walk_list
from dlog.admin.fsck.report import Kind
from dlog.effects import ListNodes, ReadNode
from dlog.meta.layout import Layout
from dlog.meta.log_meta import LogMeta
from dlog.meta.store import Versioned
from dlog.options import LogOptions

LAYOUT = Layout("/dlog")
PAGE = LAYOUT.page("log", 7).rpartition("/")[2]


def walked(*listings: list[str]) -> Walk:
    """What is found of a log without pages, each time its pages are listed with other names."""
    told = iter(listings)
    procedure = walk_list("log", LAYOUT)
    answer: object = None
    try:
        while True:
            match procedure.send(answer):
                case ListNodes(path=path):
                    assert path == LAYOUT.pages("log")
                    answer = next(told)
                case ReadNode():
                    answer = Versioned(LogMeta("u", LogOptions(), next_number=10).to_bytes(), 3)
    except StopIteration as end:
        walk = end.value
    assert next(told, None) is None, "each listing was asked for"
    assert isinstance(walk, Walk)
    return walk


def test_a_page_that_nothing_refers_to_is_found() -> None:
    (finding,) = walked([PAGE], [PAGE]).findings
    assert finding.kind is Kind.PAGE_UNUSED


def test_a_page_that_was_deleted_meanwhile_is_not() -> None:
    assert walked([PAGE], []).findings == []


@pytest.mark.parametrize("kept", [0, 1])
def test_each_page_is_asked_for_by_itself(kept: int) -> None:
    names = [LAYOUT.page("log", number).rpartition("/")[2] for number in (7, 9)]
    (finding,) = walked(names, [names[kept]]).findings
    assert (finding.where.path or "").endswith(names[kept])
