"""What jobs do in these tests: fill segments, and publish them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dlog
from tests.api.adapter import Api


def values_of(name: str, count: int) -> list[bytes]:
    return [b"%s %d" % (name.encode(), number) for number in range(count)]


async def fill(
    admin: Any, values: Sequence[bytes | None], *, job: str = "job", log: str = "log", **more: Any
) -> dlog.FilledSegment:
    columns = {name: more.pop(name) for name in ("keys", "headers", "event_times") if name in more}
    segment = await admin.open_segment(log, job=job, **more)
    await segment.append_many(values, **columns)
    return await segment.close()  # type: ignore[no-any-return]


async def publish(
    api: Api,
    *batches: Sequence[bytes],
    key: tuple[str, int] = ("query", 0),
    log: str = "log",
    **options: Any,
) -> dlog.Publication:
    """Each a segment."""
    async with api.connect() as client:
        filled = [await fill(client.admin, values, log=log, **options) for values in batches]
        return await client.admin.publish_segments(log, filled, key=key)  # type: ignore[no-any-return]
