"""Deleting what left a log's list: ledgers, and pages with all the ledgers in them. Procedures that
can be run again after a crash at any step: what is gone already is passed over."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.effects import DeleteLedger, DeleteNode, Procedure, ReadNode, RecoverLedger
from dlog.errors import NotFound
from dlog.meta.layout import Layout
from dlog.meta.pages import page_from_bytes, refs_from_bytes


@dataclass(frozen=True, slots=True)
class Gone:
    """How much of what was to be deleted was there."""

    ledgers: int = 0
    bytes: int = 0

    def __add__(self, other: Gone) -> Gone:
        return Gone(self.ledgers + other.ledgers, self.bytes + other.bytes)


def delete_ledger(ledger_id: int, digest: str, point: str) -> Procedure[Gone]:
    """Fenced and closed first: a writer that still holds it must hear of it."""
    try:
        closed = yield RecoverLedger(ledger_id, digest)
    except NotFound:
        return Gone()
    yield DeleteLedger(ledger_id, point=point)
    return Gone(1, closed.bytes)


def delete_page(
    name: str, layout: Layout, number: int, level: int, digest: str, point: str
) -> Procedure[Gone]:
    """All ledgers below the page, then the page: a crash between leaves what names the rest."""
    path = layout.page(name, number, level)
    try:
        node = yield ReadNode(path)
    except NotFound:
        return Gone()
    gone = Gone()
    if level > 0:
        for ref in refs_from_bytes(node.value, where=path):
            gone += yield from delete_page(name, layout, ref.number, ref.level, digest, point)
    else:
        for segment in page_from_bytes(node.value, where=path):
            gone += yield from delete_ledger(segment.ledger_id, digest, point)
    try:
        yield DeleteNode(path, node.version)
    except NotFound:
        pass  # somebody else was faster
    return gone
