"""All metadata of one log as one JSON document: its node, the pages of its history, its holds.

What the nodes hold is taken as it is, fields of later versions too. A checksum over the whole says
that it is complete and unchanged: a list of ledgers that lost its end would lose messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dlog import limits
from dlog.errors import Corrupt, FormatError
from dlog.ids import check_log_name
from dlog.meta.json_fields import dump, load, the_dict, the_int, the_str
from dlog.meta.listed import DoomedPage, PageRef, Segment
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import page_from_bytes, refs_from_bytes

FORMAT = 1
KIND = "metadata of a dlog log"

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogDocument:
    """`pages` and `holds` by the names of their nodes."""

    name: str
    place: str  # where it was kept
    written_us: int
    node: Fields
    pages: Mapping[str, Fields]
    holds: Mapping[str, Fields]

    @property
    def meta(self) -> LogMeta:
        return LogMeta.from_bytes(dump(dict(self.node)), where=f"the document of {self.name!r}")

    def segments(self) -> Iterable[Segment]:
        """All that are listed, oldest first; not those that wait for their deletion."""
        meta, met = self.meta, set[str]()
        for ref in meta.pages:
            yield from self._below(ref, met)
        yield from meta.segments

    def _below(
        self, ref: PageRef | DoomedPage, met: set[str], *, is_doomed: bool = False
    ) -> Iterable[Segment]:
        """Each page is met once: bytes of a file may say anything, in circles, too. A doomed one
        that is missing was deleted already, with all below it."""
        node = page_node(ref.number, ref.level)
        where = f"page {node} in the document of {self.name!r}"
        if node not in self.pages:
            if is_doomed:
                return
            raise Corrupt(f"{where} is missing")
        if node in met:
            raise Corrupt(f"{where} is listed twice")
        met.add(node)
        raw = dump(dict(self.pages[node]))
        if ref.level == 0:
            yield from page_from_bytes(raw, where=where)
            return
        for below in refs_from_bytes(raw, where=where):
            if below.level >= ref.level:
                raise Corrupt(f"{where} lists one that is not below it")
            yield from self._below(below, met, is_doomed=is_doomed)

    def check(self) -> None:
        """Everything that is listed is there, and all that is there is what it should be."""
        for _ in self.segments():
            pass
        met = set[str]()
        for doomed in self.meta.deleting_pages:
            for _ in self._below(doomed, met, is_doomed=True):
                pass

    def to_bytes(self) -> bytes:
        fields = {
            "format": FORMAT,
            "kind": KIND,
            "log": self.name,
            "place": self.place,
            "written_us": self.written_us,
            "node": dict(self.node),
            "pages": {name: dict(page) for name, page in self.pages.items()},
            "holds": {name: dict(hold) for name, hold in self.holds.items()},
        }
        return dump({**fields, "sha256": checksum_of(fields)}) + b"\n"

    @classmethod
    def from_bytes(cls, raw: bytes, *, where: str) -> LogDocument:
        if len(raw) > limits.META_DOCUMENT_BYTES_MAX:
            raise FormatError(
                f"{where} has {len(raw)} bytes, more than {limits.META_DOCUMENT_BYTES_MAX}"
            )
        fields = load(raw, where)
        if fields.get("kind") != KIND:
            raise FormatError(f"{where} is not what `dlog meta export` writes")
        if the_int(fields, "format", where) != FORMAT:
            raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
        checksum = the_str(fields, "sha256", where)
        if checksum != checksum_of({k: v for k, v in fields.items() if k != "sha256"}):
            raise Corrupt(f"{where} was changed or cut: its checksum is another")
        found = cls(
            check_log_name(the_str(fields, "log", where)),
            the_str(fields, "place", where),
            the_int(fields, "written_us", where),
            the_dict(fields, "node", where),
            _nodes(fields, "pages", where),
            _nodes(fields, "holds", where),
        )
        found.check()
        return found


def page_node(number: int, level: int) -> str:
    """The name of a page's node; see `Layout.page`."""
    return f"{number:010d}" + (f".{level}" if level else "")


def _nodes(fields: dict[str, Any], name: str, where: str) -> dict[str, Fields]:
    nodes = the_dict(fields, name, where)
    for each in nodes:
        if not each or "/" in each:
            raise FormatError(f"{where}: {each[:80]!r} is no name of a node")
        the_dict(nodes, each, where)
    return nodes


def checksum_of(fields: dict[str, Any]) -> str:
    """Over all fields but the checksum itself."""
    return hashlib.sha256(dump(fields)).hexdigest()
