"""What the library returns, as JSON that any language reads: dataclasses become objects, ids their
text, bytes text or base64."""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from dlog.cli.escape import json_text
from dlog.ids import MessageId, Position


def plain(value: object) -> Any:
    """The value in JSON's own terms; a kind nobody foresaw is an error, not a guess."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, MessageId):
        return str(value)
    if isinstance(value, Position):
        return json.loads(value.to_text())
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes(bytes(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(inner) for name, inner in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(inner) for inner in value]
    raise TypeError(f"there is no JSON for {type(value).__name__}")


def _bytes(raw: bytes) -> str | dict[str, str]:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def print_json(value: object) -> None:
    """One value, one line, on standard output, safe to show."""
    click.echo(json_text(json.dumps(plain(value), ensure_ascii=False)))
