"""What a worker asks of the log of a shard before it consumes it, and which answers stop it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dlog.drive import Stores
from dlog.effects import Procedure
from dlog.errors import (
    Broken,
    ConfigError,
    DlogError,
    Moved,
    NotFound,
    Retry,
    Truncated,
    Unavailable,
)
from dlog.ids import Position
from dlog.meta.cas import read_log
from dlog.meta.layout import Layout
from dlog.reader.reader import Reader
from dlog.streams.driver import StreamDriver
from dlog.streams.reshard import Site, read_stream
from dlog.streams.tails import first_seq_of

if TYPE_CHECKING:
    from dlog.groups.heart import Heart
    from dlog.groups.parents import Parents
    from dlog.groups.shard_run import ShardRun

LOOK_AGAIN_MS = 1_000.0
UNWATCHED_S = 0.5  # before it is looked again


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


async def check_whole(reader: Reader, heart: Heart, parents: Parents) -> None:
    """`Truncated` where the shard begins behind what the group held before anybody began it, or a
    shard before it is gone that the group had not consumed: no policy took that, somebody did by
    force."""
    if reader.on_truncated == "jump":
        return
    assert heart.charter is not None
    await parents.refuse_missed(heart.numbers[reader.log], heart.charter)
    here = reader.position
    first_seq = first_seq_of(reader._feed.core.view.meta)
    if here.next_seq <= first_seq:
        return
    assert heart.holds is not None
    held_seq = await heart.home.run(heart.holds.held_from(reader.log))
    if held_seq is None or here.next_seq <= max(first_seq, held_seq):
        return
    raise Truncated(
        f"messages {max(first_seq, held_seq)} to {here.next_seq - 1} of log {reader.log!r} were "
        "truncated before the group began this shard, though it held them: put it elsewhere by "
        "`group.reset`",
        log=reader.log,
        new_head=here.next_seq,
    )


def check_end(log: str, at: Position, end_seq: int | None) -> None:
    """`Unavailable` where a reader came to the end of what it can see before the end of a bounded
    job, `end_seq`: what was there when the job began may be out of sight for a while."""
    if end_seq is not None and at.next_seq < end_seq:
        raise Unavailable(
            f"log {log!r} can be read up to seq {at.next_seq - 1} now, and the job goes up to "
            f"{end_seq - 1}",
            log=log,
        )


def raise_if_for_good(error: DlogError, *, is_job: bool) -> None:
    """Raises what stops a shard that cannot be read, for somebody to decide. All else may pass, if
    only because somebody mends it: rights that are given, a list that is repaired. Who waits for a
    bounded job shall not wait for that."""
    if isinstance(error, (Broken, ConfigError, Moved, Truncated)):
        raise error
    if is_no_log(error):
        raise error
    if is_job:
        raise_never(error)


def is_no_log(error: DlogError) -> bool:
    """The log itself is not there, and not only something in it."""
    return isinstance(error, NotFound) and error.ledger_id is None


def raise_never(error: DlogError) -> None:
    """Raises what no other try heals."""
    if error.retry is Retry.NEVER:
        raise error


async def log_may_be_made(stores: Stores, log: str) -> None:
    """Something happened to it, or it is time to look again. Without a watch that is soon."""
    try:
        async with stores.meta.watch(stores.layout.log(log)) as watch:
            await watch.wait(LOOK_AGAIN_MS)
    except DlogError:
        await asyncio.sleep(UNWATCHED_S)


def why_unread(run: ShardRun) -> str | None:
    """What keeps the shard's log from being read now: we try again, or its reader waits it out."""
    reader = run._reader
    if run.unread is not None or reader is None:
        return run.unread
    core = reader._feed.core
    trouble = core.trouble or core.unsure
    return None if trouble is None else trouble.sentence
