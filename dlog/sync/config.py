"""Documents that change while programs run, for programs without an event loop. What is followed
swaps on dlog's own thread; `current` is one value, which any thread may take."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from dlog.limits import CONFIG_POLL_MS_DEFAULT
from dlog.reason import Reason
from dlog.streams.config import config as aio
from dlog.streams.config import hot
from dlog.streams.config.following import InForce, Part
from dlog.streams.config.hot import ConfigStatus
from dlog.streams.config.values import ConfigChange, ConfigVersion
from dlog.sync.portal import Portal


class Config:
    """One document, for who reads and changes it."""

    def __init__(self, inner: aio.Config, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal
        self.name = inner.name

    def get(self, version: int | None = None) -> ConfigVersion:
        """The newest version, or an older one that is kept. Of a document that nobody made, version
        0, which says nothing."""
        return self._portal.run(self._inner.get(version))

    def history(self) -> tuple[ConfigChange, ...]:
        """Who made which version and when, newest first, as far back as they are kept."""
        return self._portal.run(self._inner.history())

    def set(
        self,
        part: str,
        values: Mapping[str, Any] | None = None,
        *,
        unset: tuple[str, ...] | list[str] = (),
        if_version: int | None = None,
        note: str | None = None,
        who: str | None = None,
        unchecked: bool = False,
    ) -> ConfigVersion:
        """Set these values in a part, take others out of it, and leave the rest as it is. With
        `if_version` only over that version: `Conflict` otherwise. See `dlog.aio`."""
        return self._portal.run(
            self._inner.set(
                part,
                values,
                unset=unset,
                if_version=if_version,
                note=note,
                who=who,
                unchecked=unchecked,
            )
        )

    def replace(
        self,
        content: Mapping[str, Mapping[str, Any]],
        *,
        if_version: int | None = None,
        note: str | None = None,
        who: str | None = None,
        unchecked: bool = False,
    ) -> ConfigVersion:
        """Let the document say this, all of it. Otherwise as `set`."""
        return self._portal.run(
            self._inner.replace(
                content, if_version=if_version, note=note, who=who, unchecked=unchecked
            )
        )

    def rollback(
        self,
        to: int,
        *,
        if_version: int | None = None,
        note: str | None = None,
        who: str | None = None,
    ) -> ConfigVersion:
        """A new version that says what version `to` said."""
        return self._portal.run(self._inner.rollback(to, if_version=if_version, note=note, who=who))

    def follow(self, *parts: Part, poll_ms: int = CONFIG_POLL_MS_DEFAULT) -> HotConfig:
        """Keep these parts at the newest version that suits all of them. They are swapped on dlog's
        own thread."""
        return HotConfig(
            self._portal.run(self._inner.follow(*parts, poll_ms=poll_ms)), self._portal
        )

    def __repr__(self) -> str:
        return repr(self._inner)


class HotConfig:
    """A document that is followed."""

    def __init__(self, inner: hot.HotConfig, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal
        self.name = inner.name

    @property
    def current(self) -> InForce:
        """The version in force, whole: one value, from any thread. `current["routing"]` is what
        its part of that name became."""
        return self._inner.current

    @property
    def version(self) -> int:
        return self._inner.version

    def status(self) -> ConfigStatus:
        return self._portal.ask(self._inner.status)

    def why(self) -> Reason | None:
        """Why no newer version is in force, if that can be."""
        return self._portal.ask(self._inner.why)

    def add(self, part: Part) -> None:
        """Follow the document for this part, too, beginning with what is in force."""
        self._portal.ask(lambda: self._inner.add(part))

    def drop(self, name: str) -> None:
        """The part stays as it is, and hears of no other version."""
        self._portal.ask(lambda: self._inner.drop(name))

    def wait_for(self, version: int, timeout: float | None = None) -> InForce:
        """Until this version, or a newer one, is in force; `Timeout` says what keeps it."""
        return self._portal.run(self._inner.wait_for(version, timeout))

    def close(self) -> None:
        """What is in force stays so. Idempotent."""
        if self._portal.usable:
            self._portal.run(self._inner.close())

    def __enter__(self) -> HotConfig:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner)
