"""What the metadata store says of one ledger, as a value: quorums, state, fragments, digest, key.

A `LedgerMetadata` cannot be wrong in itself: its numbers are in range, its fragments begin at entry
0, rise, and have as many bookies as the ensemble is large, each once. That is checked wherever one
is made, so also before one is written. Ids of entries count from 0 and -1 is "none"; the end and
the length mean something in a closed ledger only, and are -1 and 0 until then.

Changes are new values, by `dataclasses.replace`; fields that a later version of the format adds are
carried along and written back. The password stands here because the format has it; no text of ours
ever shows it. The bytes are the business of `ledger_metadata_format`.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from dlog.errors import ConfigError
from dlog.limits import ENSEMBLE_BOOKIES_MAX
from dlog.wire.bookie_digest import DigestType
from dlog.wire.bookie_service_info import is_bookie_id

NO_ENTRY: Final = -1
_INT64_END = 1 << 63


class LedgerState(enum.IntEnum):
    """As the format numbers them."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries from `first_entry_id` up to the next fragment stand on these bookies. The order
    matters: it decides who holds which entry of a striped ledger."""

    first_entry_id: int
    ensemble: tuple[str, ...]
    unknown: bytes = b""


class CustomPair(NamedTuple):
    key: str
    value: bytes
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = NO_ENTRY
    length_bytes: int = 0  # of all payloads
    digest_type: DigestType | None = None  # None in ledgers older than digests
    password: bytes | None = field(default=None, repr=False)  # b"" is one; None in old ledgers
    custom: tuple[CustomPair, ...] = ()
    ctime_ms: int | None = None
    creator_token: int | None = None
    format_version: int = 3  # the one it was read in
    unknown: bytes = b""

    def __post_init__(self) -> None:
        wrong = _numbers_wrong(self) or _fragments_wrong(self) or _custom_wrong(self)
        if wrong:
            raise ConfigError(f"no ledger has {wrong}")

    def fragment_of(self, entry_id: int) -> Fragment:
        """The one that holds the entry, or will hold it."""
        if entry_id < 0:
            raise ConfigError(f"an entry id counts from 0, not {entry_id}")
        after = bisect_right(self.fragments, entry_id, key=attrgetter("first_entry_id"))
        return self.fragments[after - 1]

    def custom_value(self, key: str) -> bytes | None:
        return next((pair.value for pair in self.custom if pair.key == key), None)


def _numbers_wrong(metadata: LedgerMetadata) -> str | None:
    ensemble, write, ack = metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
    if not ENSEMBLE_BOOKIES_MAX >= ensemble >= write >= ack >= 1:
        return f"ensemble {ensemble}, write quorum {write} and ack quorum {ack}"
    last, length = metadata.last_entry_id, metadata.length_bytes
    if metadata.state is LedgerState.CLOSED:
        if not -1 <= last < _INT64_END or not 0 <= length < _INT64_END:
            return f"a last entry {last} and {length} bytes"
    elif (last, length) != (NO_ENTRY, 0):
        return f"an end at entry {last} and {length} bytes in the state {metadata.state.name}"
    for name in ("ctime_ms", "creator_token"):
        number = getattr(metadata, name)
        if number is not None and not -_INT64_END <= number < _INT64_END:
            return f"a {name} of more than 64 bits"
    return None


def _fragments_wrong(metadata: LedgerMetadata) -> str | None:
    fragments = metadata.fragments
    if not fragments or fragments[0].first_entry_id != 0:
        return "no fragment that begins at entry 0"
    if fragments[-1].first_entry_id >= _INT64_END:
        return f"a fragment at entry {fragments[-1].first_entry_id}"
    for before, after in pairwise(fragments):
        if before.first_entry_id >= after.first_entry_id:
            return f"a fragment at entry {after.first_entry_id} behind {before.first_entry_id}"
    for each in fragments:
        bookies = each.ensemble
        # One bookie in two places would count twice towards a quorum that it is not.
        if not len(bookies) == len(set(bookies)) == metadata.ensemble_size:
            return f"a fragment on {len(set(bookies))} bookies for {metadata.ensemble_size}"
        for bookie_id in bookies:
            if not is_bookie_id(bookie_id):
                return f"a bookie {bookie_id[:80]!r}"
    return None


def _custom_wrong(metadata: LedgerMetadata) -> str | None:
    keys = [pair.key for pair in metadata.custom]
    return "one custom key twice" if len(set(keys)) != len(keys) else None
