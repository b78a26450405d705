"""JSON objects as metadata nodes keep them: canonical to write, strict to read. Every field that is
asked for is there, of its type and in its range, or the node is refused by name (`FormatError`)."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dlog.errors import FormatError

_INT_MAX = (1 << 63) - 1
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
_Kind = TypeVar("_Kind")


def flat(value: Any) -> dict[str, Any]:
    """The fields of a flat dataclass. `dataclasses.asdict` copies deeply, which is slow."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def dump(fields: dict[str, Any]) -> bytes:
    return _ENCODER.encode(fields).encode()


def load(raw: bytes, where: str) -> dict[str, Any]:
    try:
        # As text: from bytes, `json` would take other encodings, and halves of surrogate pairs.
        fields = json.loads(str(raw, "utf-8"))
    except (ValueError, RecursionError):
        raise FormatError(f"{where} is not JSON") from None
    if not isinstance(fields, dict):
        raise FormatError(f"{where} is not a JSON object")
    if b"\\u" in raw:  # half a surrogate pair: text that could not be written again
        try:
            dump(fields)
        except UnicodeEncodeError:
            raise FormatError(f"{where} holds text that is not Unicode") from None
    return fields


def the_int(fields: Mapping[str, Any], name: str, where: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not -1 <= value <= _INT_MAX:
        raise FormatError(f"{where}: {name} is a whole number from -1, not {value!r}")
    return value


def the_bool(fields: Mapping[str, Any], name: str, where: str) -> bool:
    value = fields.get(name)
    if type(value) is not bool:
        raise FormatError(f"{where}: {name} is true or false, not {value!r}")
    return value


def the_str(fields: Mapping[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise FormatError(f"{where}: {name} is text, not {value!r}")
    return value


def optional_str(fields: Mapping[str, Any], name: str, where: str) -> str | None:
    return None if fields.get(name) is None else the_str(fields, name, where)


def the_list(fields: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise FormatError(f"{where}: {name} is a list, not {value!r}")
    return value


def the_dict(fields: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise FormatError(f"{where}: {name} is an object, not {value!r}")
    return value


def the_value(kind: type[_Kind], raw: object, where: str) -> _Kind:
    """A flat dataclass of numbers and texts; fields that are missing or of the wrong type are
    refused."""
    if not isinstance(raw, dict):
        raise FormatError(f"{where}: a {kind.__name__} is an object, not {raw!r}")
    return kind(*[check(raw, name, where) for name, check in _checks_of(kind)])  # type: ignore[arg-type]


@functools.cache
def _checks_of(kind: type[Any]) -> tuple[tuple[str, Callable[..., Any]], ...]:
    checks: dict[str, Callable[..., Any]] = {"int": the_int, "str": the_str}
    return tuple((each.name, checks[str(each.type)]) for each in dataclasses.fields(kind))
