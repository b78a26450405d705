"""What a job filled: a closed ledger that a log may list. Names and numbers, no secrets; it can be
pickled, and travels from whoever filled it to whoever publishes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FilledSegment:
    """One closed ledger of a job. Without messages there is nothing to publish: its ledger is gone
    already."""

    log: str
    log_uid: str
    job: str  # who filled it, for people
    ledger_id: int
    last_entry: int
    messages: int
    bytes: int  # of all its entries
    first_time_us: int
    last_time_us: int
