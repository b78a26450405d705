"""Rules that our own trees (memory, sqlite) share about one node: its value and its number."""

from __future__ import annotations

from dlog.errors import TooLarge
from dlog.meta.store import NODE_BYTES_MAX, check_path

SEQUENTIAL_END = 10**10  # ten digits: one more would no longer sort as text


def check_value(path: str, value: bytes) -> None:
    if len(value) > NODE_BYTES_MAX:
        raise TooLarge(
            f"a metadata node has at most {NODE_BYTES_MAX:,} bytes, not {len(value):,}: {path}",
            path=path,
        )


def sequential_path(path: str, number: int) -> str:
    if number >= SEQUENTIAL_END:
        raise TooLarge(f"the ten digits of sequential nodes are used up: {path}", path=path)
    return check_path(f"{path}{number:010d}")
