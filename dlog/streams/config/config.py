"""One document, for who reads and changes it: what `client.config(name)` gives.

A change is looked over before it is written, as far as somebody here knows its parts; whoever
follows the document looks it over once more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dlog.drive import Driver, Stores
from dlog.effects import Procedure
from dlog.errors import ConfigError
from dlog.ids import check_log_name
from dlog.limits import CONFIG_POLL_MS_DEFAULT
from dlog.streams.config.changes import change_document, read_document, read_version, roll_back
from dlog.streams.config.document import (
    Content,
    Document,
    Stamp,
    changed_parts,
    check_part_name,
    content_from,
    with_values,
)
from dlog.streams.config.following import Part
from dlog.streams.config.hot import HotConfig
from dlog.streams.config.sections import check_known
from dlog.streams.config.values import ConfigChange, ConfigVersion, history_of
from dlog.writer.owner import default_owner

GetStores = Callable[[bool], Awaitable[Stores]]


class Config:
    def __init__(self, name: str, get_stores: GetStores, keep: Callable[[HotConfig], None]) -> None:
        self.name = check_log_name(name)
        self._get_stores = get_stores
        self._keep = keep  # what is followed ends with the client

    # --- what it says

    async def get(self, version: int | None = None) -> ConfigVersion:
        """The newest version, or an older one that is kept. Of a document that nobody made, version
        0, which says nothing."""
        stores = await self._get_stores(False)
        path = stores.layout.config(self.name)
        if version is None:
            document = (await _run(stores, read_document(path))).document
        else:
            document = await _run(stores, read_version(path, _number("version", version)))
        return ConfigVersion.of(self.name, document)

    async def history(self) -> tuple[ConfigChange, ...]:
        """Who made which version and when, newest first, as far back as they are kept."""
        stores = await self._get_stores(False)
        return history_of(
            (await _run(stores, read_document(stores.layout.config(self.name)))).document
        )

    # --- changes

    async def set(
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
        """Set these values in a part, take others out of it, and leave the rest as it is, whoever
        else changes that at the same moment. With `if_version` only over that version: `Conflict`
        otherwise. What says nothing new makes no version. A part that nobody here knows is refused
        unless `unchecked`."""
        check_part_name(part)
        given = content_from({part: dict(values or {})})[part]
        without = tuple(unset)
        if not given and not without:
            raise ConfigError("nothing is set and nothing is unset")

        def change(content: Content) -> Content:
            changed = with_values(content, part, given, without)
            return _checked(content, changed, unchecked=unchecked)

        return await self._change(change, if_version, note, who)

    async def replace(
        self,
        content: Mapping[str, Mapping[str, Any]],
        *,
        if_version: int | None = None,
        note: str | None = None,
        who: str | None = None,
        unchecked: bool = False,
    ) -> ConfigVersion:
        """Let the document say this, all of it. Otherwise as `set`."""
        wanted = content_from(content)
        check_known(wanted, unchecked=unchecked)
        return await self._change(lambda _: wanted, if_version, note, who)

    async def rollback(
        self,
        to: int,
        *,
        if_version: int | None = None,
        note: str | None = None,
        who: str | None = None,
    ) -> ConfigVersion:
        """A new version that says what version `to` said. `NotFound` when that is not kept any
        more."""
        _number("to", to)
        stores, stamp = await self._stamp(note, who)
        path, version = stores.layout.config(self.name), _optional("if_version", if_version)
        document = await _run(
            stores, roll_back(path, stamp, to, chance=stores.chance, if_version=version)
        )
        return ConfigVersion.of(self.name, document)

    async def _change(
        self,
        change: Callable[[Content], Content],
        if_version: int | None,
        note: str | None,
        who: str | None,
    ) -> ConfigVersion:
        stores, stamp = await self._stamp(note, who)
        path, version = stores.layout.config(self.name), _optional("if_version", if_version)
        document: Document = await _run(
            stores,
            change_document(path, stamp, change, chance=stores.chance, if_version=version),
        )
        return ConfigVersion.of(self.name, document)

    async def _stamp(self, note: str | None, who: str | None) -> tuple[Stores, Stamp]:
        stores = await self._get_stores(True)
        token, now_us = stores.chance.token(), stores.clock.wall_us()
        return stores, Stamp(token, who or default_owner(), now_us, note)

    # --- following

    async def follow(self, *parts: Part, poll_ms: int = CONFIG_POLL_MS_DEFAULT) -> HotConfig:
        """Keep these parts at the newest version that suits all of them. It is asked for by the
        time this returns; close it, or use it in `async with`. Without parts of your own, see
        `dlog.connect(config=…)`."""
        hot = HotConfig(await self._get_stores(False), self.name, parts, poll_ms=poll_ms)
        self._keep(hot)
        await hot.ready()
        return hot

    def __repr__(self) -> str:
        return f"<Config {self.name!r}>"


async def _run(stores: Stores, procedure: Procedure[Any]) -> Any:
    driver = Driver(stores.meta, stores.ledgers, clock=stores.clock, metrics=stores.metrics)
    return await driver.run(procedure)


def _checked(before: Content, after: Content, *, unchecked: bool) -> Content:
    """Only what changes is looked over: an older version of dlog may know less of the rest."""
    check_known(
        {name: after[name] for name in changed_parts(before, after) if name in after},
        unchecked=unchecked,
    )
    return after


def _number(what: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise ConfigError(f"{what} is the number of a version, not {value!r}")
    return value


def _optional(what: str, value: object) -> int | None:
    return None if value is None else _number(what, value)
