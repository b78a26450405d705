"""What is to be thought of a BookKeeper cluster: facts about its bookies in, findings out. No IO;
who asks the bookies is `examine`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from dlog.certificates import lifetime
from dlog.findings import Finding, State, Wish, is_loopback, named, open_to_all

FREE_SHARE_LOW = 0.10
SLOW_ANSWER_MS = 500.0
MISSING_MAX = 20
NEEDED = "4.17.4 or later of that line, or 4.18.0 or later"
WHY_NEEDED = "older ones can lose an entry while a writer is fenced (K7)"
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class BookieFacts:
    """Of one that is registered. What it did not tell is None or empty."""

    bookie_id: str
    is_writable: bool
    host: str = ""
    port: int = 0
    trouble: str = ""  # why it is of no use to us
    offers_tls: bool = False
    version: str = ""  # in what it registered; stock bookies say nothing there
    answer_ms: float | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    reads_batches: bool | None = None  # bookies do from 4.17.0 on
    certificate_end: datetime | None = None


def of_bookies(bookies: Sequence[BookieFacts]) -> Iterator[Finding]:
    for bookie in bookies:
        yield _of_bookie(bookie)


def of_missing(bookie_ids: Sequence[str]) -> Iterator[Finding]:
    """That were here once, as their cookies say."""
    for bookie_id in bookie_ids[:MISSING_MAX]:
        told = "not registered: it is down, or was taken out and left its cookie"
        yield Finding(f"bookie {bookie_id}", State.WARNING, told)
    if len(bookie_ids) > MISSING_MAX:
        told = f"{len(bookie_ids) - MISSING_MAX} more are not registered"
        yield Finding("bookies", State.WARNING, told)


def of_quorums(bookies: Sequence[BookieFacts], wish: Wish) -> Finding:
    count = sum(bookie.is_writable and not bookie.trouble for bookie in bookies)
    told = (
        f"{count} bookies take entries; a ledger has {wish.ensemble}, and "
        f"{wish.ack_quorum} of them acknowledge"
    )
    if count > wish.ensemble:
        return Finding("quorums", State.FINE, f"{told}: one may be lost")
    if count == wish.ensemble:
        told += ": none to spare. With one lost no log is made, taken over or rotated"
        return Finding("quorums", State.WARNING, told)
    told += f": {wish.ensemble - count} too few to make, take over or rotate a log"
    return Finding("quorums", State.BAD, told)


def of_versions(bookies: Sequence[BookieFacts]) -> Finding:
    old = [
        f"{b.bookie_id} ({b.version or 'before 4.17'})"
        for b in bookies
        if _is_old(b.version) or b.reads_batches is False
    ]
    silent = [b.bookie_id for b in bookies if not _VERSION.match(b.version)]
    check = "bookie versions"
    if old:
        return Finding(check, State.WARNING, f"{named(old)}: needs {NEEDED}; {WHY_NEEDED}")
    if silent:
        probed = any(b.reads_batches for b in bookies)
        told = "not told by bookies" + (", by what they can do 4.17 or later" if probed else "")
        return Finding(check, State.NOTE, f"{told}; needed is {NEEDED}: {WHY_NEEDED}")
    return Finding(check, State.FINE, ", ".join(sorted({b.version for b in bookies})))


def of_access(
    bookies: Sequence[BookieFacts], *, has_tls: bool, has_auth: bool, now: datetime
) -> Iterator[Finding]:
    private = all(is_loopback(bookie.host) for bookie in bookies if bookie.host)
    if has_tls:
        yield Finding("bookie tls", State.FINE, "required")
        ends = [(b.certificate_end, b.bookie_id) for b in bookies if b.certificate_end is not None]
        if ends:
            end, first = min(ends)
            state, told = lifetime(end, now)
            yield Finding("bookie certificates", state, f"{told} ({first} is the first)")
    else:
        offering = [bookie.bookie_id for bookie in bookies if bookie.offers_tls]
        told = "off: who is on the way reads and changes entries"
        if offering:
            told += f"; offered by {named(offering)}"
        yield Finding("bookie tls", open_to_all(private), told)
    serves_us = any(not bookie.trouble for bookie in bookies)
    if has_auth and serves_us:
        yield Finding("bookie auth", State.FINE, "bookie_auth is given, and proved by both sides")
    elif not serves_us:
        told = "is given" if has_auth else "is not given"
        yield Finding("bookie auth", State.NOTE, f"bookie_auth {told}; no bookie serves us")
    else:
        told = "none (bookie_auth): bookies serve whoever reaches them"
        yield Finding("bookie auth", open_to_all(private), told)


def of_passwords(count: int, refused: Sequence[str], *, is_given: bool) -> Finding:
    """`refused`: what was said of ledgers that cannot be opened."""
    whose = "of the option password" if is_given else "one for each ledger"
    told = f"{whose}; whoever may read ledger nodes in ZooKeeper reads them there"
    if refused:
        return Finding("ledger passwords", State.BAD, f"{named(refused)} ({told})")
    looked = f"; {count} ledgers looked at" if count else ""
    return Finding("ledger passwords", State.NOTE, told + looked)


def _of_bookie(bookie: BookieFacts) -> Finding:
    check = f"bookie {bookie.bookie_id}"
    where = f"at {bookie.host}:{bookie.port}" if bookie.host else "somewhere"
    if bookie.trouble:
        return Finding(check, State.WARNING, f"{where}: {bookie.trouble}")
    state = State.FINE
    told = [where, "writable" if bookie.is_writable else "read-only: its disk may be full"]
    if not bookie.is_writable:
        state = State.WARNING
    if bookie.answer_ms is not None:
        told.append(f"answers in {bookie.answer_ms:.1f} ms")
        if bookie.answer_ms > SLOW_ANSWER_MS:
            state = State.WARNING
    if bookie.free_bytes is not None and bookie.total_bytes:
        share = bookie.free_bytes / bookie.total_bytes
        told.append(f"{share:.0%} of {bookie.total_bytes / (1 << 30):.1f} GiB free")
        if share < FREE_SHARE_LOW:
            state = State.WARNING
    return Finding(check, state, ", ".join(told))


def _is_old(version: str) -> bool:
    found = _VERSION.match(version)
    if found is None:
        return False
    numbers = tuple(map(int, found.groups()))
    return numbers < (4, 17, 4)
