"""The metadata of a log as one document: there and back, and nothing missing unnoticed."""

from __future__ import annotations

import dataclasses
import json

import pytest

from dlog import limits
from dlog.errors import ConfigError, Corrupt, FormatError
from dlog.meta.document import LogDocument, checksum_of, page_node
from dlog.meta.json_fields import dump, flat, load
from dlog.meta.layout import Layout
from dlog.meta.listed import DoomedPage, PageRef, Sealed, Segment
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import page_to_bytes
from dlog.options import LogOptions

LEAVES = [
    tuple(
        Segment(n, n, 1, Sealed(3, 10, n * 5, n * 5 + 5, n, n + 1), {"newer": n})
        for n in range(first, first + 2)
    )
    for first in (1, 3, 5)
]
REFS = tuple(PageRef.of_segments(leaf) for leaf in LEAVES)
ABOVE = PageRef.of_pages(REFS[:2])
META = dataclasses.replace(
    LogMeta("uid", LogOptions()),
    pages=(ABOVE,),
    deleting_pages=(DoomedPage(5, 0, 7),),
    segments=(Segment(9, 9, 1),),
    extra={"of a later version": [1]},
)
PAGES = {
    "0000000001.1": page_to_bytes(REFS[:2]),
    **{f"{leaf[0].number:010d}": page_to_bytes(leaf) for leaf in LEAVES},
}
DOCUMENT = LogDocument(
    "a/b",
    "file:/here",
    5,
    load(META.to_bytes(), "node"),
    {name: load(raw, name) for name, raw in PAGES.items()},
    {"hold%2Fone": {"seq": 4, "later": {}}},
)


def test_there_and_back() -> None:
    raw = DOCUMENT.to_bytes()
    found = LogDocument.from_bytes(raw, where="here")
    assert found == DOCUMENT
    assert found.meta == META
    assert [each.number for each in found.segments()] == [1, 2, 3, 4, 9]
    assert found.to_bytes() == raw
    assert (
        LogDocument.from_bytes(json.dumps(json.loads(raw), indent=1).encode(), where="x") == found
    )


def test_names_of_pages_are_those_of_their_nodes() -> None:
    layout = Layout()
    for number, level in ((1, 0), (12, 3)):
        assert layout.page("x", number, level).endswith("/" + page_node(number, level))


def test_any_change_is_noticed() -> None:
    raw = DOCUMENT.to_bytes()
    with pytest.raises(Corrupt, match="checksum"):
        LogDocument.from_bytes(raw.replace(b'"next_seq":10', b'"next_seq":11', 1), where="here")
    for end in range(0, len(raw) - 2, 97):
        with pytest.raises((FormatError, Corrupt)):
            LogDocument.from_bytes(raw[:end], where="here")


DOOMED = "0000000005"


def without_page(gone: str) -> LogDocument:
    pages = {name: page for name, page in DOCUMENT.pages.items() if name != gone}
    return dataclasses.replace(DOCUMENT, pages=pages)


@pytest.mark.parametrize("gone", sorted(PAGES.keys() - {DOOMED}))
def test_every_page_that_is_listed_is_there(gone: str) -> None:
    short = without_page(gone)
    with pytest.raises(Corrupt, match="missing"):
        LogDocument.from_bytes(short.to_bytes(), where="here")


def test_a_doomed_page_may_be_deleted_already() -> None:
    short = without_page(DOOMED)
    assert LogDocument.from_bytes(short.to_bytes(), where="here") == short


def test_what_is_no_such_document(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = json.loads(DOCUMENT.to_bytes())
    for raw in (b"", b"[]", b"{}", b'{"kind":"another"}'):
        with pytest.raises(FormatError):
            LogDocument.from_bytes(raw, where="here")
    for name, wrong in (("format", 2), ("sha256", None), ("kind", "x")):
        with pytest.raises(FormatError):
            LogDocument.from_bytes(json.dumps({**fields, name: wrong}).encode(), where="here")
    for changed, error in (
        ({"name": "../x"}, ConfigError),
        ({"pages": {**DOCUMENT.pages, "a/b": {}}}, FormatError),
        ({"holds": {"x": 1}}, FormatError),
        ({"node": {}}, FormatError),
    ):
        bad = dataclasses.replace(DOCUMENT, holds={})
        object.__setattr__(bad, *next(iter(changed.items())))
        raw = bad.to_bytes() if "holds" not in changed else _with_holds(fields)
        with pytest.raises(error):
            LogDocument.from_bytes(raw, where="here")
    monkeypatch.setattr(limits, "META_DOCUMENT_BYTES_MAX", 100)
    with pytest.raises(FormatError, match="more than 100"):
        LogDocument.from_bytes(DOCUMENT.to_bytes(), where="here")


def _with_holds(fields: dict[str, object]) -> bytes:
    bare = {k: v for k, v in fields.items() if k != "sha256"} | {"holds": {"x": 1}}
    return json.dumps({**bare, "sha256": checksum_of(bare)}).encode()


def test_pages_in_circles() -> None:
    itself = page_to_bytes((dataclasses.replace(REFS[0], level=1), REFS[1]))
    twice = page_to_bytes((dataclasses.replace(REFS[0], number=3), REFS[2]))
    for raw, told in ((itself, "not below"), (twice, "twice")):
        pages = {**DOCUMENT.pages, "0000000001.1": load(raw, "page")}
        meta = dataclasses.replace(META, pages=(ABOVE, *([REFS[1]] if told == "twice" else [])))
        bad = dataclasses.replace(DOCUMENT, pages=pages, node=load(_raw(meta), "node"))
        with pytest.raises(Corrupt, match=told):
            LogDocument.from_bytes(bad.to_bytes(), where="here")


def _raw(meta: LogMeta) -> bytes:
    """Its pages as they are given, whether or not one follows the other."""
    fields = json.loads(dataclasses.replace(meta, pages=()).to_bytes())
    fields["pages"] = [flat(ref) for ref in meta.pages]
    if len(fields["pages"]) == 2:  # listed by the node as well: behind it, by its numbers
        fields["pages"][0] |= {"last_number": 2, "last_ledger": 2}
    return dump(fields)
