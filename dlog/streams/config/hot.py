"""A document that is followed: the driver of `following`, and what a program sees of it.

It watches the node, and looks by itself after a while in case the watch was lost. Whatever happens
to the metadata store meanwhile, the version in force stays in force, and `why()` says since when
nothing newer can be known.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from dlog.drive import Driver, Stores
from dlog.effects import Effect, ReadNode
from dlog.errors import ConfigError, DlogError, Timeout
from dlog.limits import CONFIG_POLL_MS_DEFAULT
from dlog.meta.store import Watch
from dlog.metrics import catalogue
from dlog.reason import Reason, ReasonCode, Wait, time_text, told_of
from dlog.streams.config.document import Content
from dlog.streams.config.following import (
    Following,
    InForce,
    NodeSource,
    Part,
    Refused,
    Source,
    Taken,
    UntilTold,
    follow,
)

_log = logging.getLogger("dlog.config")

REST_S = 1.0  # before a watch that failed is begun again
POLL_MS_MIN, POLL_MS_MAX = 50, 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class PartStatus:
    name: str
    prepared: int  # so often it was looked over
    swapped: int  # … and put in force


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """What one process has in force of a document, and why not a newer version."""

    name: str
    version: int
    content: Content
    parts: tuple[PartStatus, ...]
    looks: int
    fetches: int
    refused_version: int | None
    refused_part: str | None
    reason: str | None
    since_us: int | None
    unfollowed: tuple[str, ...] = ()
    """Parts that the document has and that nobody follows here: they change nothing."""


class HotConfig:
    """Follows one document for the parts that it was given. Belongs to one event loop."""

    def __init__(
        self,
        stores: Stores,
        name: str,
        parts: tuple[Part, ...] = (),
        *,
        poll_ms: int = CONFIG_POLL_MS_DEFAULT,
        source: Source | None = None,
    ) -> None:
        if type(poll_ms) is not int or not POLL_MS_MIN <= poll_ms <= POLL_MS_MAX:
            raise ConfigError(f"poll_ms is a whole number from {POLL_MS_MIN} to {POLL_MS_MAX}")
        self.name = name
        self.path = stores.layout.config(name)
        self._stores = stores
        self._poll_ms = poll_ms
        self._labels = {"config": name}
        self._core = Following(source or NodeSource(self.path), parts)
        self._driver = _FollowingDriver(stores, self.path)
        self._task: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()  # at least once, whatever came of it
        self._waiters: list[asyncio.Future[None]] = []
        self._told_looks = self._told_fetches = 0
        self._told_unfollowed: set[str] = set()
        self._troubled_s: float | None = None
        self._refused_s: float | None = None
        self._closed = False
        self._defect: Exception | None = None

    # --- what is in force

    @property
    def current(self) -> InForce:
        """The version in force, whole: one value, from any thread. `current["routing"]` is what
        its part of that name became."""
        return self._core.in_force

    @property
    def version(self) -> int:
        return self._core.version

    def status(self) -> ConfigStatus:
        core, reason = self._core, self.why()
        refused = core.refused
        return ConfigStatus(
            self.name,
            core.version,
            core.in_force.document.content,
            tuple(PartStatus(n, core.prepared[n], core.swapped[n]) for n in core.parts),
            core.looks,
            core.fetches,
            None if refused is None else refused.version,
            None if refused is None else refused.part,
            None if reason is None else reason.sentence,
            None if reason is None else reason.since_us,
            core.in_force.unfollowed,
        )

    def why(self) -> Reason | None:
        """Why no newer version is in force, if that can be: the metadata store is away, or the
        newest version was refused. None: as far as anybody told us, this is the newest."""
        core, clock = self._core, self._stores.clock
        now_s, now_us = clock.monotonic_s(), clock.wall_us()
        wait: Wait | None = None
        if self._closed:
            wait = Wait(ReasonCode.CLOSED, f"document {self.name!r} is not followed any more")
        elif self._defect is not None:
            told = f"document {self.name!r} is not followed any more: {self._defect!r}"
            wait = Wait(ReasonCode.LOST, told, {"version": core.version})
        elif core.trouble is not None:
            since_s = self._troubled_s if self._troubled_s is not None else now_s
            wait = Wait(
                ReasonCode.METADATA_AWAY,
                f"document {self.name!r} could not be read for {time_text(now_s - since_s)}; "
                f"version {core.version} stays in force: {core.trouble.message}",
                {**told_of(core.trouble), "version": core.version},
                since_s,
            )
        elif (unwatched := self._driver.unwatched) is not None:
            since_s, error = unwatched
            wait = Wait(
                ReasonCode.METADATA_AWAY,
                f"document {self.name!r} could not be watched for {time_text(now_s - since_s)}, "
                f"and is read again and again: {error.message}",
                {**told_of(error), "version": core.version},
                since_s,
            )
        elif core.refused is not None:
            wait = Wait(
                ReasonCode.CONFIG_REFUSED,
                self._sentence(core.refused),
                {
                    "version": core.version,
                    "refused": core.refused.version,
                    "part": core.refused.part,
                    "why": core.refused.why,
                },
                self._refused_s,
            )
        return None if wait is None else wait.told(now_s=now_s, now_us=now_us)

    def _sentence(self, refused: Refused) -> str:
        which = "its newest version" if refused.version is None else f"version {refused.version}"
        blamed = "" if refused.part is None else f"part {refused.part!r}: "
        return (
            f"document {self.name!r}: {which} was refused, version {self.version} stays in "
            f"force: {blamed}{refused.why}"
        )

    # --- parts

    def add(self, part: Part) -> None:
        """Follow the document for this part, too, beginning with what is in force."""
        self._core.add(part)

    def drop(self, name: str) -> None:
        """The part stays as it is, and hears of no other version."""
        self._core.drop(name)

    # --- life

    def start(self) -> None:
        """Idempotent."""
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._follow())

    async def ready(self, timeout: float | None = None) -> None:
        """Until it was asked for once, whatever came of that."""
        self.start()
        try:
            async with asyncio.timeout(timeout):
                await self._looked.wait()
        except TimeoutError:
            if timeout is None:
                raise

    async def wait_for(self, version: int, timeout: float | None = None) -> InForce:
        """Until this version, or a newer one, is in force; `Timeout` says what keeps it."""
        self.start()
        try:
            async with asyncio.timeout(timeout):
                while self.version < version:
                    self._check_open()
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters.append(waiter)
                    await waiter
        except TimeoutError:
            reason = self.why()
            because = "" if reason is None else f": {reason}"
            raise Timeout(
                f"version {version} of document {self.name!r} did not come into force within "
                f"{timeout} s{because}"
            ) from None
        return self.current

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError(f"document {self.name!r} is not followed any more")

    async def close(self) -> None:
        """What is in force stays so. Idempotent."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._stores.metrics.forget(self._labels)
        self._wake()

    async def __aenter__(self) -> HotConfig:
        await self.ready()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<HotConfig {self.name!r}, version {self.version}>"

    # --- inside

    async def _follow(self) -> None:
        chance = self._stores.chance
        try:
            await self._driver.run(
                follow(
                    self._core,
                    self.path,
                    poll_ms=self._poll_ms,
                    chance=chance,
                    heard=self._heard,
                )
            )
        except Exception as error:  # noqa: BLE001 - the task ends here, and nobody awaits it
            # Of the stores, when they are closed under us; else a defect, which is told at least.
            level = logging.DEBUG if isinstance(error, DlogError) else logging.ERROR
            _log.log(level, "document %s is not followed any more", self.name, exc_info=error)
            self._defect = error
        finally:
            self._looked.set()
            self._wake()
            await asyncio.shield(self._driver.close())

    def _heard(self, event: Taken | Refused | None) -> None:
        core, now_s = self._core, self._stores.clock.monotonic_s()
        if core.trouble is None:
            if self._troubled_s is not None:
                lasted = time_text(now_s - self._troubled_s)
                _log.warning("document %s can be read again, after %s", self.name, lasted)
            self._troubled_s = None
        elif self._troubled_s is None:
            self._troubled_s = now_s
            _log.warning(
                "document %s: version %d stays in force: %s", self.name, core.version, core.trouble
            )
        if core.refused is None:
            self._refused_s = None
        self._measure(event)
        if isinstance(event, Taken):
            told = ", ".join(event.parts) or "no part that is followed here"
            _log.info("document %s: version %d in force, new: %s", self.name, event.version, told)
            self._tell_unfollowed()
        elif isinstance(event, Refused):
            self._refused_s = now_s
            _log.warning("config.refused: %s", self._sentence(event))
        self._looked.set()
        self._wake()

    def _tell_unfollowed(self) -> None:
        """Once for each part: it may be there for other programs, or somebody waits for nothing."""
        unfollowed = set(self._core.in_force.unfollowed)
        for part in sorted(unfollowed - self._told_unfollowed):
            _log.warning(
                "config.unfollowed: document %s: nobody follows its part %r here: it changes "
                "nothing in this program",
                self.name,
                part,
            )
        self._told_unfollowed = unfollowed

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _measure(self, event: Taken | Refused | None) -> None:
        core, metrics, labels = self._core, self._stores.metrics, self._labels
        metrics.count(catalogue.CONFIG_LOOKS.name, core.looks - self._told_looks, labels)
        self._told_looks = core.looks
        if core.fetches > self._told_fetches:
            metrics.count(catalogue.CONFIG_FETCHES.name, core.fetches - self._told_fetches, labels)
            self._told_fetches = core.fetches
        metrics.level(catalogue.CONFIG_VERSION.name, core.version, labels)
        if isinstance(event, Taken):
            for part in event.parts:
                metrics.count(catalogue.CONFIG_SWAPS.name, 1, {**labels, "part": part})
        elif isinstance(event, Refused):
            metrics.count(catalogue.CONFIG_REFUSED.name, 1, labels)


class _FollowingDriver(Driver):
    """Keeps one watch, begun before the first read and again whenever it could not be."""

    def __init__(self, stores: Stores, path: str) -> None:
        super().__init__(stores.meta, stores.ledgers, clock=stores.clock, metrics=stores.metrics)
        self._path = path
        self.unwatched: tuple[float, DlogError] | None = None  # since when, and why
        self._watch: Watch | None = None
        self._ending = AsyncExitStack()

    async def perform(self, effect: Effect) -> Any:
        if isinstance(effect, UntilTold):
            return await self._until_told(effect.timeout_ms)
        if isinstance(effect, ReadNode) and self._watch is None:
            await self._begin()
        return await super().perform(effect)

    async def _begin(self) -> None:
        try:
            self._watch = await self._ending.enter_async_context(self.meta.watch(self._path))
            self.unwatched = None
        except DlogError as error:
            self._not_watched(error)

    def _not_watched(self, error: DlogError) -> None:
        _log.debug("%s is not watched: %s", self._path, error)
        since_s = self._clock.monotonic_s() if self.unwatched is None else self.unwatched[0]
        self.unwatched = since_s, error

    async def _until_told(self, timeout_ms: float) -> bool:
        """Without a watch it is soon time to look, and to begin another one."""
        if self._watch is not None:
            try:
                return await self._watch.wait(timeout_ms)
            except DlogError as error:
                self._not_watched(error)
                await self.close()
        await asyncio.sleep(min(timeout_ms / 1000, REST_S))
        return False

    async def close(self) -> None:
        self._watch = None
        ending, self._ending = self._ending, AsyncExitStack()
        with contextlib.suppress(DlogError):
            await ending.aclose()
