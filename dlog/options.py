"""Options of a log, a writer and a reader: frozen values, checked when made.

`LogOptions` are stored with the log and hold for every writer of it. `WriterOptions` and
`ReaderOptions` belong to one handle. Each field says what it bounds and what happens at the bound;
an unknown name is an error that lists the known.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from dlog import limits
from dlog.errors import ConfigError

Takeover = Literal["always", "if_dead", "never", "wait"]
OnFull = Literal["wait", "raise"]
OnTruncated = Literal["raise", "jump"]
CodecName = Literal["none", "lz4", "zstd"]

ON_ACK = "on_ack"
_WITHIN = re.compile(r"within:([1-9][0-9]{0,5})ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Fixed when the log is created; stored in its log meta."""

    segment_bytes: int = limits.SEGMENT_BYTES_DEFAULT
    """A segment that reached this many payload bytes is rotated (late if need be, at twice this at
    the latest)."""
    segment_age_s: int = limits.SEGMENT_AGE_S_DEFAULT
    """A segment that holds messages is rotated when it is this old."""
    ensemble: int = 3
    """Bookies of a ledger. A log keeps each entry on all of them, so it equals `write_quorum`."""
    write_quorum: int = 3
    """Copies sent of each entry. Backends with one copy (file, memory) keep the number for the day
    of a move."""
    ack_quorum: int = 2
    """Copies confirmed before an append is acknowledged."""

    def __post_init__(self) -> None:
        _in_range("segment_bytes", self.segment_bytes, 4 * limits.KIB, 1 << 40)
        _in_range("segment_age_s", self.segment_age_s, 1, 10 * 366 * 24 * 3600)
        _in_range("ensemble", self.ensemble, 1, 20)
        _in_range("ack_quorum", self.ack_quorum, 1, 20)
        if not self.ensemble == self.write_quorum >= self.ack_quorum:
            raise ConfigError(
                "a log needs ensemble = write_quorum >= ack_quorum, not "
                f"{self.ensemble}/{self.write_quorum}/{self.ack_quorum}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """One writer's ways; another writer of the same log may have others."""

    takeover: Takeover = "always"
    """What to do about a present writer: fence it, only if its presence is gone, refuse, or wait
    until it left."""
    owner: str | None = None
    """Who we are, told to whoever we fence and shown by describe; user@host:pid when not given."""
    visible: str = ON_ACK
    """`on_ack`: an acknowledged message is readable by anyone. `within:50ms`: readable that much
    later at most."""
    on_full: OnFull = "wait"
    """What submit does when the window is full: wait for room, or raise `BufferFull`."""
    linger_ms: int = 0
    """How long a lone message may wait for company. 0: an idle writer sends at once."""
    entry_bytes: int = limits.ENTRY_BYTES_DEFAULT
    """Where batching stops: raw bytes of messages that travel in one entry. A larger message
    travels alone."""
    window_bytes: int = limits.WINDOW_BYTES_DEFAULT
    """Raw bytes taken and not yet acknowledged; more wait, or are refused (`on_full`)."""
    window_entries: int = limits.WINDOW_ENTRIES_DEFAULT
    """Entries sent and not yet confirmed; while there are as many, messages gather in the next
    ones."""
    codec: CodecName = "none"
    """Compression of entries; lz4 and zstd need their extras."""
    open_timeout_ms: int = limits.OPEN_TIMEOUT_MS_DEFAULT
    """How long opening may take, waiting for another writer (`takeover="wait"`) included."""

    def __post_init__(self) -> None:
        _one_of("takeover", self.takeover, ("always", "if_dead", "never", "wait"))
        _one_of("on_full", self.on_full, ("wait", "raise"))
        _one_of("codec", self.codec, ("none", "lz4", "zstd"))
        visible_within_ms(self.visible)
        _in_range("linger_ms", self.linger_ms, 0, 60_000)
        _in_range("entry_bytes", self.entry_bytes, 1, limits.LEDGER_ENTRY_BYTES_MAX // 2)
        _in_range("window_bytes", self.window_bytes, limits.KIB, limits.WINDOW_BYTES_MAX)
        _in_range("window_entries", self.window_entries, 1, 1 << 16)
        _in_range("open_timeout_ms", self.open_timeout_ms, 1, 24 * 3600 * 1000)
        if self.owner is not None and not (0 < len(self.owner) <= 200 and self.owner.isprintable()):
            raise ConfigError("owner is printable text of 1 to 200 characters")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """One reader's ways."""

    follow: bool = False
    """Go on at the tail as it grows; without it the end is the tail seen at open or seek."""
    on_truncated: OnTruncated = "raise"
    """When the wanted place was truncated away: raise `Truncated`, or go on at the new head."""
    read_run_bytes: int = limits.READ_RUN_BYTES_DEFAULT
    """Bytes asked of a ledger at a time."""
    read_ahead_bytes: int = limits.READ_AHEAD_BYTES_DEFAULT
    """Bytes read and not yet taken; the reader rests while there are more."""

    def __post_init__(self) -> None:
        if type(self.follow) is not bool:
            raise ConfigError(f"follow is True or False, not {self.follow!r}")
        _one_of("on_truncated", self.on_truncated, ("raise", "jump"))
        _in_range("read_run_bytes", self.read_run_bytes, 1, 64 * limits.MIB)
        _in_range("read_ahead_bytes", self.read_ahead_bytes, 1, limits.WINDOW_BYTES_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """One client's ways."""

    meta_timeout_ms: int = limits.META_TIMEOUT_MS_DEFAULT
    """How long one call to the metadata store may take, waiting for other processes included."""

    def __post_init__(self) -> None:
        _in_range("meta_timeout_ms", self.meta_timeout_ms, 1, 600_000)


_Options = TypeVar("_Options", LogOptions, WriterOptions, ReaderOptions, ClientOptions)


def options_from(kind: type[_Options], given: Mapping[str, Any]) -> _Options:
    """Options by keyword; an unknown one is an error that lists the known ones."""
    known = sorted(field.name for field in dataclasses.fields(kind))
    strange = sorted(given.keys() - set(known))
    if strange:
        raise ConfigError(f"unknown option {', '.join(strange)}; known are {', '.join(known)}")
    return kind(**given)


def visible_within_ms(visible: str) -> int | None:
    """None for `on_ack`, else the bound in milliseconds."""
    if visible == ON_ACK:
        return None
    found = _WITHIN.fullmatch(visible) if isinstance(visible, str) else None
    if found is None:
        raise ConfigError(
            f"visible is 'on_ack' or 'within:<n>ms' (as 'within:50ms'), not {visible!r}"
        )
    return int(found[1])


def _in_range(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(f"{name} is a whole number from {low} to {high}, not {value!r}")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} is one of {', '.join(known)}, not {value!r}")
