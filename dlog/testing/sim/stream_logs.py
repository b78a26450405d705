"""Abstract logs for the world of streams: each as loose as what one log promises, and no kinder.

Whoever opens a log fences its writer before, who learns of it when something of his is refused, or
never. What he had on its way by then may still have got in before, and the reply may be lost. A
terminated log takes nothing more, whoever asks. A message with a number that the log has is refused
by its writer, who knows the numbers from opening on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dlog.errors import DlogError, Fenced, NotFound, Outcome, Timeout, Unavailable, Unsupported
from dlog.testing.sim.metadata import Answered
from dlog.testing.sim.world import World

TRAVEL_MIN_MS = 0.05
OPEN_MS = 3.0


@dataclass(slots=True)
class LogManners:
    """Rates are per request; 0 is off."""

    fails: float = 0.0  # before anything happened
    reply_lost: float = 0.0  # of an opening or an ending
    slow_entries: float = 0.0  # an append takes long


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as the log has it."""

    key: bytes | None
    producer: tuple[int, int] | None
    value: bytes | None


@dataclass(slots=True)
class AbstractLog:
    name: str
    epoch: int = 0
    last_writer: int = 0  # the epoch of whoever wrote it last, or could
    is_terminated: bool = False
    stored: list[Stored] = field(default_factory=list)
    waiting: list[Callable[[], None]] = field(default_factory=list)  # readers at the tail

    def numbers(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for message in self.stored:
            if message.producer is not None:
                producer_id, number = message.producer
                last.pop(producer_id, None)
                last[producer_id] = number
        return last

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


class AbstractLogs:
    def __init__(self, world: World, manners: LogManners) -> None:
        self.world = world
        self.manners = manners
        self.logs: dict[str, AbstractLog] = {}
        self.on_stored: Callable[[AbstractLog, Stored], None] = lambda log, stored: None

    def find(self, name: str) -> AbstractLog:
        log = self.logs.get(name)
        if log is None:
            raise NotFound(f"there is no log {name!r}", log=name)
        return log

    def make(self, name: str) -> AbstractLog:
        return self.logs.setdefault(name, AbstractLog(name))

    # --- requests of clients

    def open(self, client: Any, name: str, answer: Answered) -> None:
        """Become its writer → the new epoch."""

        def arrive() -> None:
            log = self.make(name)
            if log.is_terminated:
                self._reply(client, answer, None, Unsupported(f"log {name!r} is terminated"))
                return
            log.epoch += 1
            log.last_writer = log.epoch
            self._maybe_lose(client, answer, log.epoch)

        self._ask(client, answer, arrive, OPEN_MS)

    def end(self, client: Any, name: str, answer: Answered) -> None:
        def arrive() -> None:
            log = self.make(name)
            log.epoch += 1
            log.is_terminated = True
            log.wake()
            self._maybe_lose(client, answer, None)

        self._ask(client, answer, arrive, OPEN_MS)

    def count(self, client: Any, name: str, answer: Answered) -> None:
        def arrive() -> None:
            self._reply(client, answer, self.find(name).numbers(), None)

        self._ask(client, answer, arrive, 0.5)

    def append(
        self, client: Any, name: str, epoch: int, message: Stored, told: Answered, delay_ms: float
    ) -> None:
        """Arrives `delay_ms` from now: a writer's appends arrive in their order."""
        log = self.find(name)

        def arrive() -> None:
            if log.epoch != epoch or log.is_terminated:
                error = Fenced(f"log {name!r} has another writer", log=name)
                self._reply(client, told, None, error)
                return
            log.stored.append(message)
            self.on_stored(log, message)
            log.wake()
            self._reply(client, told, len(log.stored) - 1, None)

        self.world.after(delay_ms, arrive)

    # --- inside

    def _ask(
        self, client: Any, answer: Answered, arrive: Callable[[], None], mean_ms: float
    ) -> None:
        def there() -> None:
            if self.world.strikes(self.manners.fails, "logs: a request fails"):
                error = Unavailable("no bookies", outcome=Outcome.NOT_HAPPENED)
                self._reply(client, answer, None, error)
            else:
                arrive()

        self.world.after(TRAVEL_MIN_MS + self.world.chance.delay(mean_ms), there)

    def _maybe_lose(self, client: Any, answer: Answered, value: Any) -> None:
        error: DlogError | None = None
        if self.world.strikes(self.manners.reply_lost, "logs: a reply is lost"):
            value, error = None, Timeout("no reply in time")
        self._reply(client, answer, value, error)

    def _reply(self, client: Any, answer: Answered, value: Any, error: DlogError | None) -> None:
        self.world.after(
            self.world.chance.delay(client.ledger_ms),
            lambda: client.receive(lambda: answer(value, error)),
        )
