"""What a worker asks of the log of a shard before it consumes it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from dlog.drive import Stores
from dlog.effects import Procedure
from dlog.errors import DlogError, NotFound, Truncated
from dlog.meta.cas import read_log
from dlog.meta.layout import Layout
from dlog.reader.reader import Reader
from dlog.streams.driver import StreamDriver
from dlog.streams.reshard import Site, read_stream
from dlog.streams.tails import first_seq_of

LOOK_AGAIN_MS = 1_000.0


def check_log(layout: Layout, log: str, uid: str | None) -> Procedure[None]:
    """`NotFound` where the log that has the name is another one, or none. Without a uid, any log
    will do."""
    if uid is None:
        return
    meta = (yield from read_log(layout.log(log))).meta
    if meta.is_removed or meta.uid != uid:
        raise NotFound(f"the log {log!r} of our shard was removed", log=log)


async def check_stream(stores: Stores, stream: str, uid: str) -> None:
    """`NotFound` where the stream is another one by now. A log that was opened by its name before
    this is of our stream."""
    site = Site.at(stores.layout, stream, stores.chance, uid)
    await StreamDriver(stores).run(read_stream(site))


async def check_whole(reader: Reader, held_from: Callable[[], Awaitable[int | None]]) -> None:
    """`Truncated` where the shard begins behind what the group held before anybody began it: no
    policy took that, somebody did by force."""
    here = reader.position
    first_seq = first_seq_of(reader._feed.core.view.meta)
    if here.next_seq <= first_seq or reader.on_truncated == "jump":
        return
    held_seq = await held_from()
    if held_seq is None or here.next_seq <= max(first_seq, held_seq):
        return
    raise Truncated(
        f"messages {max(first_seq, held_seq)} to {here.next_seq - 1} of log {reader.log!r} were "
        "truncated before the group began this shard, though it held them: put it elsewhere by "
        "`group.reset`",
        log=reader.log,
        new_head=here.next_seq,
    )


async def log_may_be_made(stores: Stores, log: str) -> None:
    """Something happened to it, or it is time to look again."""
    with contextlib.suppress(DlogError):
        async with stores.meta.watch(stores.layout.log(log)) as watch:
            await watch.wait(LOOK_AGAIN_MS)
