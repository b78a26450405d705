"""What a worker says once it has ended by itself: to whoever asks without waiting, as well."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import dlog
from tests.api.adapter import Api
from tests.api.grouping import Seen, a_group, why, work
from tests.api.waiting import until


async def test_who_asks_without_waiting_hears_of_the_end_of_a_job(api: Api) -> None:
    async with a_group(api, shards=1, messages=20) as (client, _, __):
        async with work(client, Seen().process, stop_at_end=True, stall_after_ms=1) as worker:

            async def has_ended() -> bool:
                return await worker.wait(0) == "all shards are done"

            await until(has_ended)
            assert await worker.wait(0) == "all shards are done"
            reason = await why(worker)
            assert reason is not None
            assert reason.code is dlog.ReasonCode.ENDED
            assert "all shards are done" in reason.sentence


async def test_who_asks_without_waiting_hears_nothing_of_a_worker_that_goes_on(api: Api) -> None:
    go_on = threading.Event()

    def process(batch: Any, tracker: Any) -> None:
        go_on.wait()

    async with a_group(api, shards=1, messages=20) as (client, _, __):
        async with work(client, process) as worker:
            assert await worker.wait(0) is None
            go_on.set()
        assert await worker.wait(0) == "closed"


async def test_a_job_that_failed_says_so_each_time_that_it_is_asked(api: Api) -> None:
    async def process(batch: Any, tracker: Any) -> None:
        raise ValueError("poison")

    async with a_group(api, shards=1, messages=20) as (client, _, __):
        options = {"stop_at_end": True, "on_error": "stop", "stall_after_ms": 1}
        async with work(client, process, **options) as worker:

            async def has_failed() -> bool:
                try:
                    return await worker.wait(0) is not None
                except ValueError:
                    return True

            await until(has_failed)
            for _ in range(2):
                with pytest.raises(ValueError, match="poison"):
                    await worker.wait(0)
            reason = await why(worker)
            assert reason is not None
            assert reason.code is dlog.ReasonCode.LOST
            assert "poison" in reason.sentence
