"""Entries and whole ledgers made by the codecs alone, past every client: what a writer leaves that
died, and what a writer sends that should have."""

from __future__ import annotations

import os
from collections.abc import Sequence

from benchmarks.common import KIB
from dlog.testing.cluster import Cluster
from dlog.testing.raw_ledgers import connected
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest, master_key
from dlog.wire.bookie_v2 import pack_add

RUN_ENTRIES = 500  # sent at once; far below what a bookie has room for
_DIGEST, _KEY = EntryDigest(DigestType.CRC32C, b""), master_key(b"")


def frame_of(ledger_id: int, entry_id: int, *, confirmed: int, size: int) -> bytes:
    """An add. All entries of its ledger have this size."""
    payload = os.urandom(size)
    head = _DIGEST.pack_head(ledger_id, entry_id, confirmed, (entry_id + 1) * size, [payload])
    return pack_add(head, payload_bytes=size, master_key=_KEY) + payload


def frames_of(ledger_id: int, *, entries: int, outstanding: int, size: int) -> list[bytes]:
    """Each entry confirms the one before it, but the last `outstanding` ones, which were all sent
    before any of them was acknowledged."""
    return [
        frame_of(ledger_id, entry_id, confirmed=min(entry_id, entries - outstanding) - 1, size=size)
        for entry_id in range(entries)
    ]


def make_tail(
    cluster: Cluster,
    ledger_id: int,
    bookies: Sequence[str],
    *,
    entries: int,
    outstanding: int,
    size: int = KIB,
) -> None:
    """Fill an empty ledger, on all of its bookies."""
    frames = frames_of(ledger_id, entries=entries, outstanding=outstanding, size=size)
    for bookie_id in bookies:
        with connected(cluster.bookie(bookie_id)) as bookie:
            for at in range(0, entries, RUN_ENTRIES):
                run = frames[at : at + RUN_ENTRIES]
                replies = bookie.send_adds(b"".join(run), len(run))
                assert all(reply.answer is Answer.OK for reply in replies)
