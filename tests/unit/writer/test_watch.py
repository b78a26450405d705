"""A writer says which of its duties waits, for what, and since when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dlog import ReasonCode, aio, backends
from dlog.errors import Outcome, Unavailable
from dlog.ledger.memory import MemoryLedgerStore
from tests.api.waiting import eventually


async def test_a_rotation_that_cannot_be_done_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(self: Any, *_: Any, **__: Any) -> None:
        raise Unavailable("too few bookies", outcome=Outcome.NOT_HAPPENED)

    def is_told(log: aio.Writer) -> bool:
        reason = log.why()
        return reason is not None and reason.evidence.get("tries", 0) > 0

    try:
        async with aio.connect("memory:duties") as client, client.open_writer("log") as log:
            await log.append(b"1")
            assert log.why() is None
            monkeypatch.setattr(MemoryLedgerStore, "create", away)
            rotating = asyncio.create_task(log.rotate())
            await eventually(lambda: is_told(log))
            reason = log.why()
            assert reason is not None
            assert reason.code is ReasonCode.ROTATION
            assert "waits: too few bookies" in reason.sentence
            assert reason.since_us is not None
            monkeypatch.undo()
            await rotating
            await log.append(b"2")
            await eventually(lambda: log.why() is None)
    finally:
        backends._memory_worlds.pop("duties", None)
