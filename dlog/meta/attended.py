"""A metadata store that somebody looks after: since when it gives no answer, and how its calls go.

It adds nothing to the contract and takes nothing from it. Every handle of a client asks through one
of these, so that what one of them meets all of them know.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from dlog.clock import Clock
from dlog.errors import DlogError, Timeout, Unavailable
from dlog.meta.store import Created, MetaStore, Session, Versioned, Watch
from dlog.metrics import NO_METRICS, Metrics, catalogue

Answer = TypeVar("Answer")

# A call may hang for as long as a time-out allows; long before that nobody would call it answered.
HANGS_S = 1.0


class AttendedMetaStore:
    def __init__(self, inner: MetaStore, clock: Clock, metrics: Metrics = NO_METRICS) -> None:
        self.inner = inner
        self._clock = clock
        self._metrics = metrics
        self._unanswered_since_s: float | None = None  # the first call since the last answer
        self._failed = False  # one of these

    @property
    def silent_since_s(self) -> float | None:
        """Since when it gives no answer (monotonic); None: it does, as far as anybody asked."""
        since_s = self._unanswered_since_s
        if since_s is None or self._failed:
            return since_s
        return since_s if self._clock.monotonic_s() - since_s >= HANGS_S else None

    @property
    def session_timeout_s(self) -> float:
        """How long the store believes in a silent client; 0: until that client's process ends."""
        timeout_s: float = getattr(self.inner, "session_timeout_s", 0.0)  # of `LosesSessions`
        return timeout_s

    async def _ask(self, call: str, answer: Awaitable[Answer]) -> Answer:
        began_s = self._clock.monotonic_s()
        self._unanswered(began_s)
        try:
            found = await answer
        except DlogError as error:
            if isinstance(error, (Timeout, Unavailable)):
                self._unanswered(began_s)  # again: another call was answered meanwhile
                self._failed = True
            else:
                self._answered()
            self._measure(call, began_s, error)
            raise
        self._answered()
        if self._metrics is not NO_METRICS:
            self._measure(call, began_s, None)
        return found

    def _unanswered(self, began_s: float) -> None:
        if self._unanswered_since_s is None:
            self._unanswered_since_s = began_s

    def _answered(self) -> None:
        self._unanswered_since_s = None
        self._failed = False

    def _measure(self, call: str, began_s: float, error: DlogError | None) -> None:
        metrics = self._metrics
        if metrics is NO_METRICS:
            return
        labels = {"call": call}
        metrics.count(catalogue.META_CALLS.name, 1, labels)
        metrics.observe(catalogue.META_CALL.name, self._clock.monotonic_s() - began_s, labels)
        if error is not None:
            told = {**labels, "error": type(error).__name__}
            metrics.count(catalogue.META_ERRORS.name, 1, told)

    # --- the contract

    async def get(self, path: str) -> Versioned:
        return await self._ask("get", self.inner.get(path))

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> Created:
        creating = self.inner.create(path, value, ephemeral=ephemeral, sequential=sequential)
        return await self._ask("create", creating)

    async def put(self, path: str, value: bytes, version: int) -> int:
        return await self._ask("put", self.inner.put(path, value, version))

    async def delete(self, path: str, version: int) -> None:
        return await self._ask("delete", self.inner.delete(path, version))

    async def children(self, path: str) -> list[str]:
        return await self._ask("children", self.inner.children(path))

    def watch(self, path: str) -> Watch:
        return self.inner.watch(path)

    async def sync(self) -> None:
        return await self._ask("sync", self.inner.sync())

    async def session(self) -> Session:
        return await self._ask("session", self.inner.session())

    async def close(self) -> None:
        await self.inner.close()


def unattended(store: MetaStore) -> MetaStore:
    """The backend itself, which may be able to tell more than the contract asks for."""
    return store.inner if isinstance(store, AttendedMetaStore) else store
