"""What users see of a document: its newest version, and what is kept of the older ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dlog.errors import ConfigError
from dlog.streams.config.document import Document, Kept
from dlog.streams.config.sections import check_known


@dataclass(frozen=True, slots=True)
class ConfigVersion:
    """A version with what it says. Version 0: nobody made the document yet."""

    name: str
    version: int
    content: dict[str, dict[str, Any]]
    who: str | None
    at_us: int | None
    note: str | None
    restores: int | None
    """The version whose content this one has again."""
    refused: str | None = None
    """Why programs of this release would not take it, as far as parts are known here."""

    @classmethod
    def of(cls, name: str, document: Document) -> ConfigVersion:
        content = {part: dict(values) for part, values in document.content.items()}
        there = document.version > 0
        return cls(
            name,
            document.version,
            content,
            document.who if there else None,
            document.at_us if there else None,
            document.note,
            document.restores,
            _refusal(document),
        )


def _refusal(document: Document) -> str | None:
    try:
        check_known(document.content, unchecked=True)
    except ConfigError as error:
        return error.message
    return None


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One line of the history: a version without what it says."""

    version: int
    who: str
    at_us: int
    note: str | None
    restores: int | None


def history_of(document: Document) -> tuple[ConfigChange, ...]:
    """Newest first, those that can still be read."""
    if document.version == 0:
        return ()
    newest_first: tuple[Document | Kept, ...] = (document, *reversed(document.history))
    return tuple(
        ConfigChange(each.version, each.who, each.at_us, each.note, each.restores)
        for each in newest_first
    )
