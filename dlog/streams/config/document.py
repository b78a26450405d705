"""A document that changes while programs run, as a value: versions that only grow, what they say,
and which older ones are kept.

One node holds the newest version and is the unit of compare-and-set; older versions are immutable
nodes below it, each written before the document names it. `content` has parts by name, each a JSON
object that its own room understands: this module knows none of them. Fields that this version of
dlog does not know survive a change; a name in `needs` that it does not know refuses the document.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlog import limits
from dlog.errors import ConfigError, FormatError, TooLarge
from dlog.meta.json_fields import (
    dump,
    flat,
    load,
    optional_str,
    the_dict,
    the_int,
    the_list,
    the_str,
)

FORMAT = 1
Content = Mapping[str, Mapping[str, Any]]
_KNOWN_NEEDS: frozenset[str] = frozenset()
_PART_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_WHO_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who makes a change, and when by their clock. The token tells it from all others."""

    token: str
    who: str
    at_us: int
    note: str | None = None

    def __post_init__(self) -> None:
        if not (0 < len(self.who) <= _WHO_CHARACTERS_MAX and self.who.isprintable()):
            raise ConfigError(f"who changes is printable text of 1 to {_WHO_CHARACTERS_MAX}")
        most = limits.CONFIG_NOTE_CHARACTERS_MAX
        if self.note is not None and not (
            isinstance(self.note, str) and 0 < len(self.note) <= most and self.note.isprintable()
        ):
            raise ConfigError(f"a note is printable text of 1 to {most} characters")


@dataclass(frozen=True, slots=True)
class Kept:
    """An older version, in a node of its own."""

    version: int
    token: str
    who: str
    at_us: int
    bytes: int
    note: str | None = None
    restores: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def fields(self) -> dict[str, Any]:
        fields = {**self.extra, **flat(self)}
        del fields["extra"]
        return fields

    @classmethod
    def from_fields(cls, raw: object, where: str) -> Kept:
        if not isinstance(raw, dict):
            raise FormatError(f"{where}: a kept version is an object, not {raw!r}")
        return cls(
            version=the_int(raw, "version", where),
            token=the_str(raw, "token", where),
            who=the_str(raw, "who", where),
            at_us=the_int(raw, "at_us", where),
            bytes=the_int(raw, "bytes", where),
            note=optional_str(raw, "note", where),
            restores=_optional_int(raw, "restores", where),
            extra={k: v for k, v in raw.items() if k not in _KEPT_FIELDS},
        )


@dataclass(frozen=True, slots=True)
class Document:
    """One version. Version 0 is that of a document that nobody made yet."""

    version: int = 0
    content: Content = field(default_factory=dict)
    token: str = ""
    who: str = ""
    at_us: int = 0
    note: str | None = None
    restores: int | None = None  # the version whose content it has again
    history: tuple[Kept, ...] = ()  # the older ones that are kept, oldest first
    extra: Mapping[str, Any] = field(default_factory=dict)

    # --- what it says

    @property
    def oldest(self) -> int:
        """Of the versions that can still be read."""
        return self.history[0].version if self.history else self.version

    def kept(self, version: int) -> Kept | None:
        return next((each for each in self.history if each.version == version), None)

    def token_of(self, version: int) -> str | None:
        """Who made that version; None where nobody knows any more."""
        if version == self.version:
            return self.token
        kept = self.kept(version)
        return None if kept is None else kept.token

    # --- changes

    def changed(self, content: Content, stamp: Stamp, *, restores: int | None = None) -> Document:
        """The next version. This one joins the history, out of which the oldest go."""
        history = self.history
        if self.version > 0:
            history = _bounded((*history, self.as_kept()))
        return dataclasses.replace(
            self,
            version=self.version + 1,
            content=content,
            token=stamp.token,
            who=stamp.who,
            at_us=stamp.at_us,
            note=stamp.note,
            restores=restores,
            history=history,
        )

    def as_kept(self) -> Kept:
        size = len(self.old_bytes())
        told = (self.version, self.token, self.who, self.at_us, size, self.note, self.restores)
        return Kept(*told)

    # --- bytes

    def to_bytes(self) -> bytes:
        size = len(self.old_bytes())
        if size > limits.CONFIG_BYTES_MAX:
            raise TooLarge(
                f"the document would take {size} bytes, more than {limits.CONFIG_BYTES_MAX}"
            )
        return self._bytes([each.fields() for each in self.history])

    def old_bytes(self) -> bytes:
        """As it is kept when it is no longer the newest."""
        return self._bytes([])

    def _bytes(self, history: list[dict[str, Any]]) -> bytes:
        return dump(
            {
                **self.extra,
                "format": FORMAT,
                "needs": [],
                "version": self.version,
                "token": self.token,
                "who": self.who,
                "at_us": self.at_us,
                "note": self.note,
                "restores": self.restores,
                "content": self.content,
                "history": history,
            }
        )

    @classmethod
    def from_bytes(cls, raw: bytes, *, where: str) -> Document:
        fields = load(raw, where)
        if the_int(fields, "format", where) != FORMAT:
            raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
        strange = {str(name) for name in the_list(fields, "needs", where)} - _KNOWN_NEEDS
        if strange:
            names = ", ".join(sorted(strange))
            raise FormatError(f"{where} needs {names}, which this version lacks")
        content = the_dict(fields, "content", where)
        try:
            _check_depth(raw, fields)
            check_content(content)
        except ConfigError as error:
            raise FormatError(f"{where}: {error}") from None
        version = the_int(fields, "version", where)
        history = tuple(
            Kept.from_fields(each, where) for each in the_list(fields, "history", where)
        )
        numbers = [each.version for each in history]
        if version < 1 or (numbers and numbers != list(range(version - len(numbers), version))):
            raise FormatError(f"{where}: version {version} does not follow {numbers}")
        return cls(
            version=version,
            content=content,
            token=the_str(fields, "token", where),
            who=the_str(fields, "who", where),
            at_us=the_int(fields, "at_us", where),
            note=optional_str(fields, "note", where),
            restores=_optional_int(fields, "restores", where),
            history=history,
            extra={k: v for k, v in fields.items() if k not in _FIELDS},
        )


NOBODYS = Document()


def _bounded(history: tuple[Kept, ...]) -> tuple[Kept, ...]:
    """The newest of them: so many, so large together, and so long to list."""
    first, stored, listed = len(history), 0, 0
    for kept in reversed(history):
        stored += kept.bytes
        listed += len(dump(kept.fields()))
        if (
            len(history) - first >= limits.CONFIG_HISTORY_MAX
            or stored > limits.CONFIG_HISTORY_BYTES_MAX
            or listed > limits.CONFIG_HISTORY_LIST_BYTES_MAX
        ):
            break
        first -= 1
    return history[first:]


def _optional_int(fields: Mapping[str, Any], name: str, where: str) -> int | None:
    return None if fields.get(name) is None else the_int(fields, name, where)


# --- content


def check_content(content: Mapping[str, Any]) -> None:
    """Parts by name, each of them a JSON object. What is in it, its own room says."""
    if len(content) > limits.CONFIG_PARTS_MAX:
        raise ConfigError(f"a document has {limits.CONFIG_PARTS_MAX} parts at most")
    for name, part in content.items():
        check_part_name(name)
        if not isinstance(part, Mapping):
            raise ConfigError(f"part {name!r} is a JSON object, not {part!r:.80}")


def _check_depth(raw: bytes, content: object) -> None:
    """What is deeper than anybody writes by hand could be read here, and not where the stack is
    deeper."""
    if raw.count(b"{") + raw.count(b"[") <= limits.CONFIG_DEPTH_MAX:
        return
    level, depth = [content], 0
    while level:
        depth += 1
        if depth > limits.CONFIG_DEPTH_MAX:
            raise ConfigError(f"a document is at most {limits.CONFIG_DEPTH_MAX} levels deep")
        inner = [each for each in level if isinstance(each, dict | list)]
        level = [
            below
            for each in inner
            for below in (each.values() if isinstance(each, dict) else each)
            if isinstance(below, dict | list)
        ]


def check_part_name(name: object) -> str:
    if not isinstance(name, str) or not _PART_NAME.fullmatch(name):
        raise ConfigError(f"a part has a name as 'writer': a-z, 0-9, - and _; not {name!r:.80}")
    return name


def content_from(given: Mapping[str, Any]) -> Content:
    """What a user gave, as it will be read again: a copy, in JSON's own terms."""
    try:
        text = json.dumps(given, allow_nan=False, ensure_ascii=False)
        raw = text.encode()
        content = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"a document holds what JSON can: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"a document has parts by name; it is no {type(given).__name__}")
    check_content(content)
    _check_depth(raw, content)
    return content


def same(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Do they say the same? Python would take true for 1."""
    if one is other or one is None or other is None:
        return one is other
    return one == other and dump(dict(one)) == dump(dict(other))


def changed_parts(before: Content, after: Content) -> list[str]:
    """The names of those that do not say the same, in order."""
    names = sorted(before.keys() | after.keys())
    return [name for name in names if not same(before.get(name), after.get(name))]


def with_values(
    content: Content, part: str, values: Mapping[str, Any], unset: tuple[str, ...] = ()
) -> Content:
    """With these values in a part, and without others. A part that is left empty is gone."""
    if both := sorted(values.keys() & set(unset)):
        raise ConfigError(f"{', '.join(both)}: set or unset, not both")
    fields = {k: v for k, v in content.get(part, {}).items() if k not in unset} | dict(values)
    others = {name: each for name, each in content.items() if name != part}
    return {**others, part: fields} if fields else others


_FIELDS = {each.name for each in dataclasses.fields(Document)} - {"extra"} | {"format", "needs"}
_KEPT_FIELDS = {each.name for each in dataclasses.fields(Kept)} - {"extra"}
