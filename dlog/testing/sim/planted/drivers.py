"""Bugs of the asyncio drivers: cancellation, time-outs, watches, connections, and what is left
behind when everything was closed."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from dlog.calls import Calls
from dlog.client import Client
from dlog.errors import (
    DlogError,
    LeaseLost,
    Outcome,
    Timeout,
    Unavailable,
)
from dlog.ledger.bookkeeper import ledger_ids, registry
from dlog.ledger.bookkeeper.core.control_connection import ControlConnection
from dlog.ledger.bookkeeper.core.places import Places
from dlog.ledger.bookkeeper.core.slots import Slot
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.ledger.bookkeeper.passwords import Passwords
from dlog.ledger.bookkeeper.pool import BookieLinks
from dlog.ledger.bookkeeper.registry import BookieRegistry
from dlog.ledger.bookkeeper.transport import Link
from dlog.reader.feed import Feed, ReaderDriver
from dlog.reader.reader import Reader
from dlog.testing.sim.planted import Patch, Plants
from dlog.wire.bookie_digest import EntryDigest
from dlog.wire.bookie_frame import FrameRun
from dlog.wire.bookie_v3_replies import parse_response
from dlog.writer import writer as writer_driver
from dlog.writer.engine import Engine
from dlog.writer.ready import ReadyLedger, ReadyState
from dlog.writer.run import Run
from dlog.writer.writer import Writer

_TESTS = "tests/unit/ledger/bookkeeper"
_STANDBYS = "tests/sim/test_standby_stories.py"

plants = Plants("drivers")
PLANTS = plants.by_name

# Weather that brings together what most of these need.
BUSY_PROGRAMS: dict[str, Any] = {"appends": 16, "cancelled": 0.4, "window_bytes": 1 << 20}


# --- what a caller is told


@plants("P41: a cancelled call is told to have done nothing", **BUSY_PROGRAMS)
def cancellation_reported_as_refused(patch: Patch) -> None:
    real = Writer.append

    async def append(self: Writer, *args: Any, **options: Any) -> Any:
        try:
            return await real(self, *args, **options)
        except asyncio.CancelledError:
            raise Unavailable("given up", outcome=Outcome.NOT_HAPPENED) from None

    patch.setattr(Writer, "append", append)


@plants("P42: what is unknown is told to have not happened", writers=2, hurried=0.0)
def unknown_reported_as_refused(patch: Patch) -> None:
    real = Engine._bury

    def bury(self: Engine) -> None:
        real(self)
        for batch in self.failed_batches:
            if batch.error is not None:
                batch.error.outcome = Outcome.NOT_HAPPENED

    patch.setattr(Engine, "_bury", bury)


@plants("P42: a time-out of a wait is told to have stopped the append", hurried=0.5)
def timeout_reported_as_refused(patch: Patch) -> None:
    async def within(
        deadline: float | None, wait: Any, timeout: float | None, in_the_way: Any = None
    ) -> Any:
        if deadline is None:
            return await wait
        try:
            async with asyncio.timeout_at(deadline):
                return await wait
        except TimeoutError as error:
            if isinstance(error, Timeout):
                raise
            raise Unavailable("not in time", outcome=Outcome.NOT_HAPPENED) from None

    patch.setattr(writer_driver, "within", within)


@plants("I24: one closer's time-out cancels the others", under_load=0.5, hurried=0.5)
def closers_cancel_each_other(patch: Patch) -> None:
    async def end(
        self: Writer, ending: Any, timeout: float | None, *, hand_over_to: str | None = None
    ) -> Any:
        self._closed = True
        if self._ending is None:
            self._ending = self._loop.create_task(self._shut_down(ending, hand_over_to))
        try:
            return await writer_driver.within(
                self._deadline(timeout), asyncio.shield(self._ending), timeout
            )
        except Timeout:
            self._engine.abandon(Timeout("closed before all was acknowledged"))
            self._ending.cancel()
            raise

    patch.setattr(Writer, "_end", end)


@plants(
    "I27: what was being opened when its client closed is given away",
    under_load=1.0,
    shared=1.0,
    writers=3,
    survives="mostly: these programs open one log, so who opens it fences whoever would hold up "
    "the close; with two logs it is noticed",
    shown_by="tests/sim/test_drivers.py::test_an_opening_ends_with_its_client",
)
def openings_outlive_their_client(patch: Patch) -> None:
    async def unless_closed(self: Client, opening: Any) -> Any:
        return await opening

    patch.setattr(Client, "_unless_closed", unless_closed)


@plants(
    "log-protocol: never delete a ledger whose listing was sent",
    standbys=2,
    under_load=1.0,
)
def takeovers_outlive_their_standby(patch: Patch) -> None:
    async def cut_short(self: Calls) -> None:
        pass

    patch.setattr(Calls, "cut_short", cut_short)


@plants(
    "log-protocol: never delete what a takeover took",
    standbys=2,
    under_load=1.0,
    survives="a takeover ends before its standby deletes anything",
    shown_by="tests/unit/standby/test_core.py::test_only_what_nobody_took_may_be_deleted",
)
def what_a_takeover_took_is_let_go(patch: Patch) -> None:
    def let_go(self: ReadyLedger) -> int | None:
        may_be = self.state in (ReadyState.READY, ReadyState.TAKEN)
        gone = self.ledger_id if may_be else None
        self.state, self.ledger_id = ReadyState.NONE, None
        return gone

    patch.setattr(ReadyLedger, "let_go", let_go)


@plants(
    "I2: a run of appends is refused behind messages that are on their way",
    many=0.7,
    window_bytes=1 << 10,
    on_full="raise",
    under_load=1.0,
    appends=40,
)
def begun_run_is_refused(patch: Patch) -> None:
    def cut_short(self: Run, error: DlogError) -> DlogError:
        return error

    patch.setattr(Run, "cut_short", cut_short)


# --- cancellation inside


@plants("I17: a read that is cancelled takes messages with it", cancelled=0.5, readers=2)
def cancelled_read_loses_messages(patch: Patch) -> None:
    real = Feed.take

    async def take(self: Feed, *, wait: bool = True) -> Any:
        taken = await real(self, wait=wait)
        await asyncio.sleep(0.005)
        return taken

    patch.setattr(Feed, "take", take)


@plants("I27: a close that is cancelled closes nothing", cancelled=0.5)
def cancelled_close_is_no_close(patch: Patch) -> None:
    async def close(self: Reader) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.sleep(0)
        await self._shut_down()

    patch.setattr(Reader, "close", close)

    async def close_client(self: Client) -> None:
        if self._closed:
            return
        self._closed = True
        await self._shut_down()

    patch.setattr(Client, "close", close_client)


@plants("I27: who gives up waiting for a connection takes it from the others", cancelled=0.5)
def connection_dies_with_who_asked_first(patch: Patch) -> None:
    patch.setattr(asyncio, "shield", lambda work: work)


# --- what is left behind


@plants("I25: the list of bookies is kept for ever")
def registry_is_not_closed(patch: Patch) -> None:
    async def close(self: BookieRegistry) -> None:
        pass

    patch.setattr(BookieRegistry, "close", close)


@plants("I25: a timer of a writer outlives it")
def age_timer_is_left(patch: Patch) -> None:
    def let_go(self: Engine) -> None:
        self._driver.let_all_go()

    patch.setattr(Engine, "_let_go", let_go)


@plants(
    "I25: a writer that rests outlives its close",
    under_load=1.0,
    appends=40,
    rotated=0.5,
    trouble_read_only_ms=30.0,
    trouble_lasts_ms=8_000.0,
    trouble_down_max=1,
    copies=3,
    acks=2,
    bookies=3,
)
def rest_timer_is_left(patch: Patch) -> None:
    real = Engine._let_go

    def let_go(self: Engine) -> None:
        self._rest_timer = None
        real(self)

    patch.setattr(Engine, "_let_go", let_go)


@plants(
    "I25: what is asked together runs on when one of it failed",
    under_load=1.0,
    meta_refused=0.5,
    meta_ms=20.0,
    rotated=0.5,
)
def others_run_on(patch: Patch) -> None:
    patch.setattr(registry, "together", asyncio.gather)


@plants("I25: connections stay open")
def links_are_not_closed(patch: Patch) -> None:
    async def close(self: BookieLinks) -> None:
        self._closed = True

    patch.setattr(BookieLinks, "close", close)


@plants("I25: the sweep of a connection goes on", under_load=1.0, appends=40)
def sweeper_is_left(patch: Patch) -> None:
    real = Link.take_down

    def take_down(self: Link, *args: Any, **options: Any) -> None:
        sweeper, self._sweeper = self._sweeper, None
        real(self, *args, **options)
        self._sweeper = sweeper

    patch.setattr(Link, "take_down", take_down)


@plants("I25: the walk of a reader goes on after its close")
def feed_task_is_left(patch: Patch) -> None:
    async def close(self: Feed) -> None:
        self._ended = True
        self._progress.tell()

    patch.setattr(Feed, "close", close)


# --- metadata


@plants(
    "P35: a session that ended is not minded", meta_session_ends=0.05, rotated=0.5, incarnations=2
)
def session_event_ignored(patch: Patch) -> None:
    class Never(LeaseLost):
        pass

    patch.setattr(ledger_ids, "LeaseLost", Never)


@plants(
    "P36: a watch is taken for sure",
    meta_watch_lost=1.0,
    trouble_kill_ms=300.0,
    trouble_lasts_ms=300.0,
    rotated=0.5,
    survives="a store that finds too few bookies lists them once more before it gives up",
    shown_by=f"{_TESTS}/test_registry.py::test_while_the_metadata_store_is_away_the_last_list_stands",
)
def watch_assumed_reliable(patch: Patch) -> None:
    real = BookieRegistry.__init__

    def begin(self: BookieRegistry, *args: Any, **options: Any) -> None:
        real(self, *args, **{**options, "poll_ms": 10_000_000_000.0})

    patch.setattr(BookieRegistry, "__init__", begin)


@plants("P36: a follower trusts its watch of the log", meta_watch_lost=0.5, rotated=0.5)
def follower_trusts_its_watch(patch: Patch) -> None:
    async def wait(
        self: ReaderDriver, ledger_id: int, last: int, timeout_ms: float, path: str | None
    ) -> None:
        ledger = await self._ledger(ledger_id)
        if path is None:
            await ledger.wait_past(last, timeout_ms)
            return
        async with self.meta.watch(path) as watch:
            await watch.wait(10_000_000_000.0)

    patch.setattr(ReaderDriver, "_wait", wait)


# --- passwords


@plants("P46: the password of one log serves for another", stranger=True)
def password_is_not_compared(patch: Patch) -> None:
    def digest_of(self: Passwords, stored: StoredLedger, pinned: str | None = None) -> EntryDigest:
        assert stored.metadata.digest_type is not None
        return EntryDigest(stored.metadata.digest_type, self.of_new())

    patch.setattr(Passwords, "digest_of", digest_of)


# --- connections


@plants(
    "P43: a question that is asked again has the number of the one before",
    shared=1.0,
    readers=2,
    appends=40,
)
def retry_keeps_old_txn_id(patch: Patch) -> None:
    real = ControlConnection.ask

    def ask(self: ControlConnection, *args: Any, **options: Any) -> None:
        self._txn_id = 0
        real(self, *args, **options)

    patch.setattr(ControlConnection, "ask", ask)


@plants(
    "P44: an answer that comes late is given to who asks next",
    bookie_late=0.2,
    trouble_stop_ms=500.0,
    trouble_lasts_ms=8_000.0,
    readers=2,
    shared=1.0,
    survives="who asked looks at the operation and the ledger of an answer, and what it says of a "
    "LAC is true whenever it was asked",
    shown_by=f"{_TESTS}/test_connection.py::test_a_response_to_something_else_is_not_believed",
)
def late_reply_credited_to_new_request(patch: Patch) -> None:
    def take(self: ControlConnection, run: FrameRun) -> None:
        for body in run.bodies():
            response = parse_response(body, self.where)
            first = next(iter(self._asks), None)
            if first is None:
                continue
            ask = self._asks.pop(first)
            ask.on_answer(response)

    patch.setattr(ControlConnection, "_take", take)


@plants(
    "P45: a bookie that came back, and forgot, counts without a look at the metadata",
    survives="weather that brings this together breaks histories without the bug, too",
    shown_by=f"{_TESTS}/test_appender_core.py"
    "::test_the_same_bookie_goes_on_behind_what_is_confirmed_once_it_is_proven",
)
def reconnect_is_not_checked(patch: Patch) -> None:
    real = Places.on_link

    def on_link(self: Places, slot: Slot, link: Any, *, is_proven: bool) -> bool:
        return real(self, slot, link, is_proven=True)

    patch.setattr(Places, "on_link", on_link)


@plants("I27: who was told to pause is never told to go on", stream_kernel_bytes=64, appends=40)
def writing_is_not_resumed(patch: Patch) -> None:
    def resume_writing(self: Link) -> None:
        pass

    patch.setattr(Link, "resume_writing", resume_writing)


@plants("I27: a connection that broke is handed out again", trouble_reset_ms=200.0)
def broken_link_is_handed_out(patch: Patch) -> None:
    real = BookieLinks.on_link_down

    def on_link_down(self: BookieLinks, link: Link, error: DlogError | None) -> None:
        kept = dict(self._links)
        real(self, link, error)
        self._links.update(kept)

    patch.setattr(BookieLinks, "on_link_down", on_link_down)


@plants("I27: a bookie that refused once is left alone for good", trouble_kill_ms=400.0)
def patience_never_ends(patch: Patch) -> None:
    real = BookieLinks._failed

    def failed(self: BookieLinks, bookie_id: str, why: str) -> None:
        real(self, bookie_id, why)
        self._troubles[bookie_id].until_s = math.inf

    patch.setattr(BookieLinks, "_failed", failed)
    patch.setattr(BookieLinks, "on_bookies", lambda self, came, gone: None)
