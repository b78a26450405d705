"""Between what a program says of a ledger (`LedgerSpec`, `LedgerInfo`) and what stands in its
metadata. What was asked for comes back exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dlog.errors import ConfigError
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.ledger.store import ClosedLedger, LedgerInfo, LedgerSpec, LedgerState
from dlog.wire import ledger_metadata
from dlog.wire.bookie_digest import DigestType
from dlog.wire.ledger_metadata import CustomPair, Fragment, LedgerMetadata

DIGESTS: Final = {
    "crc32c": DigestType.CRC32C,
    "crc32": DigestType.CRC32,
    "hmac": DigestType.HMAC,
    "dummy": DigestType.DUMMY,
}
_NAMES: Final = {digest: name for name, digest in DIGESTS.items()}
NO_DIGEST: Final = "none"  # of ledgers older than digests; none is made so
_STATES: Final = {
    ledger_metadata.LedgerState.OPEN: LedgerState.OPEN,
    ledger_metadata.LedgerState.IN_RECOVERY: LedgerState.IN_RECOVERY,
    ledger_metadata.LedgerState.CLOSED: LedgerState.CLOSED,
}


def new_metadata(
    spec: LedgerSpec, ensemble: Sequence[str], password: bytes, ctime_ms: int | None = None
) -> LedgerMetadata:
    """Of an open, empty ledger on these bookies."""
    return LedgerMetadata(
        ensemble_size=spec.ensemble,
        write_quorum=spec.write_quorum,
        ack_quorum=spec.ack_quorum,
        fragments=(Fragment(0, tuple(ensemble)),),
        digest_type=digest_of(spec),
        password=password,
        custom=tuple(CustomPair(key, bytes(value)) for key, value in spec.custom.items()),
        ctime_ms=ctime_ms,
    )


def digest_of(spec: LedgerSpec) -> DigestType:
    found = DIGESTS.get(spec.digest)
    if found is None:
        raise ConfigError(f"a digest is one of {', '.join(DIGESTS)}, not {spec.digest!r}")
    return found


def name_of(digest: DigestType | None) -> str:
    return NO_DIGEST if digest is None else _NAMES[digest]


def info_of(stored: StoredLedger) -> LedgerInfo:
    metadata = stored.metadata
    spec = LedgerSpec(
        ensemble=metadata.ensemble_size,
        write_quorum=metadata.write_quorum,
        ack_quorum=metadata.ack_quorum,
        digest=name_of(metadata.digest_type),
        custom={pair.key: pair.value for pair in metadata.custom},
    )
    made_us = None if metadata.ctime_ms is None else metadata.ctime_ms * 1000
    return LedgerInfo(stored.ledger_id, _STATES[metadata.state], end_of(metadata), spec, made_us)


def end_of(metadata: LedgerMetadata) -> ClosedLedger | None:
    """Exactly when the ledger is closed."""
    if metadata.state is not ledger_metadata.LedgerState.CLOSED:
        return None
    return ClosedLedger(metadata.last_entry_id, metadata.length_bytes)
