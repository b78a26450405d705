"""Who does something in a history of ledgers: a writer, readers, recoverers. Each is a process, and
one that dies may come again as another; what they decide is what programs decide, no more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dlog.errors import (
    AuthError,
    Conflict,
    Corrupt,
    DlogError,
    Fenced,
    NotFound,
    Outcome,
    Timeout,
    Unavailable,
)
from dlog.ledger.store import ClosedLedger, LedgerSpec
from dlog.testing.sim.appending import SimAppender
from dlog.testing.sim.flow import Flow, pause, run
from dlog.testing.sim.ledger_client import ClientLedgers
from dlog.testing.sim.reading import SimReader
from dlog.testing.sim.world import Violation

if TYPE_CHECKING:
    from dlog.testing.sim.ledger_world import LedgerWorld

TRIES_MAX = 6  # of a recoverer
WAIT_MS = 3_000.0
ASK_MS = 30.0
AGAIN_MS = 50.0
_PASSING = (Unavailable, Timeout, Conflict)
SIZES = (20, 0, 1, 5, 60)


class Writer:
    """Makes a ledger, adds to it in bursts, publishes, and maybe closes it."""

    def __init__(self, world: LedgerWorld, name: str = "writer") -> None:
        swarm = world.swarm
        self.world = world
        self.process = world.new_process(name, mortal=True)
        self.ledger_id: int | None = None
        self.appender: SimAppender | None = None
        self.failure: DlogError | None = None
        self.close_error: DlogError | None = None
        self.left = swarm.appends
        self.last_call = False  # one more entry, published, once all is calm
        self._is_closing = False
        self._tries = 0
        self._create()

    @property
    def is_alive(self) -> bool:
        return self.process.is_alive

    @property
    def is_over(self) -> bool:
        """Nothing more will come from here."""
        appender = self.appender
        if not self.is_alive or self.failure is not None:
            return True
        if appender is None:
            return False
        if self._is_closing:
            return appender.closed is not None or self.close_error is not None
        return self.left == 0 and appender.core.failure is not None

    @property
    def is_quiet(self) -> bool:
        """Whatever it was to do is done."""
        appender = self.appender
        if self.is_over:
            return True
        if appender is None or self.left > 0 or self._is_closing:
            return False
        core = appender.core
        return core.last_confirmed == core.outbox.end - 1 and not core.is_busy

    # --- its ledger

    def _create(self) -> None:
        size, write, ack = self.world.swarm.cluster.quorums
        spec = LedgerSpec(ensemble=size, write_quorum=write, ack_quorum=ack)
        run(self.world.ledgers.of(self.process).create(spec), self._created)

    def _created(self, appender: SimAppender | None, error: DlogError | None) -> None:
        if appender is None:
            self.world.mark("no ledger is made")
            self.process.after(AGAIN_MS, self._create)
            return
        self.appender, self.ledger_id = appender, appender.ledger_id
        appender.listener = self
        self.world.on_ledger(appender.ledger_id)
        self._idle(self.world.swarm.idle_troubles)

    def _idle(self, troubles: int) -> None:
        if troubles > 0 and not self.world.is_calm:
            self.world.trouble()
            self.process.after(self.world.chance.delay(50.0), lambda: self._idle(troubles - 1))
        else:
            self._begin()

    def _begin(self) -> None:
        appender = self.appender
        assert appender is not None
        if self.world.swarm.birth:
            self.left -= 1
            appender.birth((self._payload(),), self._born)
        else:
            self._put()

    def _born(self, _: None, error: DlogError | None) -> None:
        if error is not None:
            self.failure = error
            self._check_failure(error)
            return
        self._put()

    # --- entries

    def _payload(self) -> bytes:
        chance = self.world.chance
        assert self.appender is not None
        size = chance.pick(SIZES, "bytes of an entry")
        return (b"%d " % self.appender.next_entry * (size // 2 + 1))[:size]

    def _put(self) -> None:
        appender, swarm, world = self.appender, self.world.swarm, self.world
        assert appender is not None
        core = appender.core
        if core.is_over or self._is_closing:
            return
        if swarm.writer_dies and world.strikes(0.05, "the writer dies"):
            self.process.crash()
            return
        # A caller has a window of its own, on what is confirmed.
        if core.outbox.end - core.last_confirmed <= 4 * swarm.burst and self.left > 0:
            count = min(self.left, 1 + world.chance.randrange(swarm.burst))
            self.left -= count
            world.trouble()
            for _ in range(count):
                appender.submit((self._payload(),))
        if self.left > 0 or not swarm.closes:
            if self.left > 0:
                self.process.after(world.chance.delay(swarm.rests_ms), self._put)
        elif not self._is_closing:
            self.process.after(world.chance.delay(50.0), self._close)

    def say_more(self) -> None:
        """In calm weather: one more entry, confirmed and published."""
        self.last_call = True
        appender = self.appender
        if appender is None or appender.core.is_over or self._is_closing or not self.is_alive:
            return
        if not self.world.swarm.birth or appender.core.is_born:
            appender.submit((self._payload(),))
            appender.publish()

    # --- facts

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        appender = self.appender
        if appender is None or appender.core.is_over:
            return
        if (
            self.last_call
            or self.world.chance.hits(1.0 - self.world.swarm.publishing, "not published") is False
        ):
            appender.publish()

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        pass

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        self.failure = error
        self._check_failure(error)

    def _check_failure(self, error: DlogError) -> None:
        """Faults end long before an appender may give up, except at a birth."""
        world, appender = self.world, self.appender
        assert appender is not None
        world.mark(f"the writer fails: {type(error).__name__}")
        if isinstance(error, Fenced):
            # Who fences ahead may die before the mark.
            is_ahead = world.swarm.cluster.fences_ahead and world.marks["recoveries"] > 0
            if world.is_open(appender.ledger_id) and not is_ahead:
                raise Violation("I24", f"fenced by nobody: {error}")
        elif world.bookies.wiped and isinstance(error, (AuthError, Unavailable)):
            world.mark("too few bookies are left")  # one that lost its disks takes no more of it
        elif not isinstance(error, Unavailable) or appender.core.is_born or not world.swarm.birth:
            raise Violation("I27", f"the appender failed for no reason: {error!r}")
        elif world.swarm.cluster.is_mild and not world.swarm.freeze:
            raise Violation("I27", f"not born for no reason: {error}")

    # --- the end

    def _close(self) -> None:
        appender = self.appender
        if appender is None or (self._is_closing and self.close_error is not None):
            return
        self._is_closing = True
        self.world.oracle.on_close_asked(appender.ledger_id)
        appender.close(self._closed)

    def _closed(self, closed: ClosedLedger | None, error: DlogError | None) -> None:
        appender = self.appender
        assert appender is not None
        if error is None:
            self.world.mark("its writer closed it")
            return
        self.world.oracle.on_close_failed(appender.ledger_id, error)
        self._tries += 1
        if isinstance(error, Fenced):
            self.world.mark("a close comes too late")
            self.close_error = error
        elif isinstance(error, _PASSING) or error.outcome is Outcome.UNKNOWN:
            self.process.after(AGAIN_MS, self._close)
        else:
            raise Violation("I24", f"a close fails for no reason: {error!r}")


class TailReader:
    """Reads from the beginning and follows, or asks again and again; one that dies begins anew."""

    def __init__(
        self,
        world: LedgerWorld,
        name: str,
        ledger_id: int,
        *,
        mortal: bool = True,
        asks_only: bool = False,
    ) -> None:
        self.world = world
        self.name = name
        self.ledger_id = ledger_id
        self.mortal = mortal
        self.asks_only = asks_only
        self.read_to = -1
        self.has_ended = False
        self.readable = -1
        self.begin()

    def begin(self) -> None:
        self.process = self.world.new_process(self.name, mortal=self.mortal, on_end=self._on_death)
        self.read_to = -1
        run(self._follow(self.world.ledgers.of(self.process)), self._over)

    def _on_death(self) -> None:
        self.world.after(self.world.chance.delay(200.0), self.begin)

    def _over(self, _: None, error: DlogError | None) -> None:
        if error is not None:
            raise Violation("I24", f"a reader ends with {error!r}")

    def _follow(self, ledgers: ClientLedgers) -> Flow[None]:
        reader: SimReader | None = None
        while True:
            try:
                if reader is None:
                    reader = yield from ledgers.reader(self.ledger_id)
                yield from self._go_on(reader)
            except (Unavailable, Timeout) as error:
                self.world.mark(f"a reader waits: {type(error).__name__}")
                yield pause(self.process.after, AGAIN_MS)
            except Corrupt:
                self.world.mark("a reader meets damaged entries")
                yield pause(self.process.after, AGAIN_MS)
            except NotFound:
                return
            if self.has_ended:
                return

    def _go_on(self, reader: SimReader) -> Flow[None]:
        readable: int
        if self.asks_only:
            yield pause(self.process.after, self.world.chance.delay(ASK_MS))
            readable = yield reader.last_readable
        else:
            readable = yield partial(reader.wait_past, self.read_to, WAIT_MS)
        self.readable = max(self.readable, readable)
        while self.read_to < readable:
            first = self.read_to + 1
            payloads: Sequence[bytes] = yield partial(reader.read, first, readable)
            self.read_to += len(payloads)
        if reader.core.is_ended and self.read_to >= reader.core.readable:
            self.has_ended = True
            self.world.mark("read to the end")


class Recoverer:
    """Recovers, dies anywhere, tries again, until it has an end."""

    def __init__(
        self,
        world: LedgerWorld,
        name: str,
        ledger_id: int,
        *,
        mortal: bool = True,
        rising_lacs: bool = False,
    ) -> None:
        self.world = world
        self.name = name
        self.ledger_id = ledger_id
        self.mortal = mortal
        self.rising_lacs = rising_lacs
        self.end: ClosedLedger | None = None
        self.errors: list[DlogError] = []
        self.tries = 0
        self.begin()

    @property
    def is_over(self) -> bool:
        return self.end is not None or (self.tries >= TRIES_MAX and self.mortal)

    def begin(self) -> None:
        self.tries += 1
        self.process = self.world.new_process(self.name, mortal=self.mortal, on_end=self._again)
        self.world.mark("recoveries")
        ledgers = self.world.ledgers.of(self.process)
        ledgers.around.rising_lacs = self.rising_lacs
        run(ledgers.recover(self.ledger_id), self._over)

    def _over(self, closed: Any, error: DlogError | None) -> None:
        if error is None:
            self.end = closed
            return
        self.errors.append(error)
        self.world.mark(f"a recovery fails: {type(error).__name__}")
        if not isinstance(error, (Unavailable, Timeout, Corrupt, Conflict)):
            raise Violation("I27", f"a recovery fails for no reason: {error!r}") from error
        self._again()

    def _again(self) -> None:
        if not self.is_over:
            process = self.process
            process.is_alive = False
            self.world.ledgers.drop(process)
            self.world.after(self.world.chance.delay(300.0), self.begin)
