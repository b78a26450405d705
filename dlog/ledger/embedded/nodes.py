"""Ledger metadata as JSON nodes in the MetaStore: one node per ledger, made in one write.

The node is a sequential one and its number *is* the ledger id, so ids only grow and none is used
twice. A node is open until one compare-and-set closes it at an end, for ever; fields this version
does not know survive that. The parent node carries the uid of the store, so that a directory of
files is never taken for the files of another metadata store.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, NoReturn

from dlog.chance import Chance, backoff_s
from dlog.errors import AlreadyExists, Conflict, FormatError, NotFound, Unavailable
from dlog.ledger.embedded.file import UID_BYTES
from dlog.ledger.store import ClosedLedger, LedgerInfo, LedgerSpec, LedgerState
from dlog.limits import META_ATTEMPTS_MAX
from dlog.meta.store import MetaStore, check_path

FORMAT = 1
_PREFIX = "ledger-"
_NUMBER_END = 1 << 63


@dataclass(frozen=True, slots=True)
class End:
    """Where a ledger ends, and where its last frame begins in the file (0 when it is empty)."""

    last_entry: int
    bytes: int
    offset: int

    @property
    def closed(self) -> ClosedLedger:
        return ClosedLedger(self.last_entry, self.bytes)


EMPTY = End(-1, 0, 0)


@dataclass(frozen=True, slots=True)
class Node:
    """One ledger's metadata as it was read."""

    ledger_id: int
    uid: bytes
    created_us: int
    spec: LedgerSpec
    end: End | None  # None while the ledger is open
    version: int
    fields: dict[str, Any]  # as stored, also what this version does not know

    @property
    def info(self) -> LedgerInfo:
        if self.end is None:
            return LedgerInfo(self.ledger_id, LedgerState.OPEN, None, self.spec, self.created_us)
        return LedgerInfo(
            self.ledger_id, LedgerState.CLOSED, self.end.closed, self.spec, self.created_us
        )


class LedgerNodes:
    def __init__(self, meta: MetaStore, root: str, chance: Chance) -> None:
        self._meta = meta
        self._root = check_path(root)
        self._chance = chance

    def path_of(self, ledger_id: int) -> str:
        return f"{self._root}/{_PREFIX}{ledger_id:010d}"

    async def store_uid(self) -> str:
        """The uid of the store that lives below the root; the first to ask draws it."""
        drawn = {"format": FORMAT, "store": self._chance.token()}
        for _ in range(META_ATTEMPTS_MAX):
            try:
                found = await self._meta.get(self._root)
                if found.value:  # an empty one was made as a parent, and is filled in now
                    fields = _object(found.value, self._root)
                    uid = fields.get("store")
                    if not isinstance(uid, str):
                        _refuse(self._root, "has no store uid")
                    return uid
                await self._meta.put(self._root, _dump(drawn), found.version)
            except NotFound:
                try:
                    await self._meta.create(self._root, _dump(drawn))
                except AlreadyExists:
                    pass  # somebody was faster; the next round reads what they drew
            except Conflict:
                pass  # likewise
        raise _worn_out(self._root)

    async def create(self, spec: LedgerSpec, created_us: int) -> Node:
        uid = self._chance.token()
        fields = {
            "created_us": created_us,
            "format": FORMAT,
            "spec": {
                "ack_quorum": spec.ack_quorum,
                "custom": {
                    name: base64.b64encode(value).decode() for name, value in spec.custom.items()
                },
                "digest": spec.digest,
                "ensemble": spec.ensemble,
                "write_quorum": spec.write_quorum,
            },
            "state": LedgerState.OPEN.value,
            "uid": uid,
        }
        made = await self._meta.create(f"{self._root}/{_PREFIX}", _dump(fields), sequential=True)
        ledger_id = _id_of(made.path.rsplit("/", 1)[1])
        if ledger_id is None:
            raise FormatError(f"a sequential node was named {made.path!r}", path=made.path)
        return Node(ledger_id, bytes.fromhex(uid), created_us, spec, None, made.version, fields)

    async def read(self, ledger_id: int, *, fresh: bool = True) -> Node:
        """`NotFound`. `fresh`: not older than the call."""
        if fresh:
            await self._meta.sync()
        path = self.path_of(ledger_id)
        try:
            found = await self._meta.get(path)
        except NotFound:
            raise NotFound(f"there is no ledger {ledger_id}", ledger_id=ledger_id) from None
        return _parse(ledger_id, _object(found.value, path), found.version, path)

    async def decide_end(self, ledger_id: int, end: End, *, seen: Node | None = None) -> End:
        """Close the ledger at `end`, unless it is closed already; where it ends now. `NotFound`. A
        failure of unknown outcome may be asked again. `seen`: the node as it was read before; if it
        changed since, the compare-and-set says so."""
        for attempt in range(META_ATTEMPTS_MAX):
            if seen is None or attempt > 0:
                seen = await self.read(ledger_id, fresh=attempt > 0)
            node = seen
            if node.end is not None:
                return node.end
            closed = {"bytes": end.bytes, "last_entry": end.last_entry, "offset": end.offset}
            fields = {**node.fields, "state": LedgerState.CLOSED.value, "closed": closed}
            try:
                await self._meta.put(self.path_of(ledger_id), _dump(fields), node.version)
            except Conflict:
                await _back_off(attempt, self._chance)
            except NotFound:
                raise NotFound(f"there is no ledger {ledger_id}", ledger_id=ledger_id) from None
            else:
                return end
        raise _worn_out(self.path_of(ledger_id))

    async def delete(self, ledger_id: int) -> None:
        """Whatever its state; a missing one is no matter."""
        path = self.path_of(ledger_id)
        for attempt in range(META_ATTEMPTS_MAX):
            try:
                if attempt > 0:
                    await self._meta.sync()
                found = await self._meta.get(path)
                await self._meta.delete(path, found.version)
            except NotFound:
                return
            except Conflict:
                await _back_off(attempt, self._chance)
            else:
                return
        raise _worn_out(path)

    async def ids(self) -> list[int]:
        await self._meta.sync()
        try:
            names = await self._meta.children(self._root)
        except NotFound:
            return []
        return sorted(found for found in map(_id_of, names) if found is not None)


def _id_of(name: str) -> int | None:
    digits = name.removeprefix(_PREFIX)
    if digits == name or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def _parse(ledger_id: int, fields: dict[str, Any], version: int, path: str) -> Node:
    try:
        state = LedgerState(fields["state"])
        spec = fields["spec"]
        custom = {name: base64.b64decode(text) for name, text in spec["custom"].items()}
        numbers = {name: _number(spec[name]) for name in ("ensemble", "write_quorum", "ack_quorum")}
        uid = bytes.fromhex(fields["uid"])
        if len(uid) != UID_BYTES:
            raise ValueError(f"a uid of {len(uid)} bytes")
        created_us = _number(fields["created_us"])
        end = None
        if state is LedgerState.CLOSED:
            end = _end_of(fields["closed"])
        digest = spec["digest"]
    except (KeyError, TypeError, AttributeError, ValueError, binascii.Error) as error:
        raise FormatError(f"{path} is not ledger metadata: {error!r}", path=path) from error
    made_with = LedgerSpec(**numbers, digest=digest, custom=custom)
    return Node(ledger_id, uid, created_us, made_with, end, version, fields)


def _end_of(closed: dict[str, Any]) -> End:
    end = End(*(_number(closed[name]) for name in ("last_entry", "bytes", "offset")))
    if end.last_entry < 0:
        fits = end == EMPTY
    else:
        fits = max(end.last_entry, end.bytes, end.offset) < _NUMBER_END
        fits = fits and end.bytes >= 0 and end.offset > 0
    if not fits:
        raise ValueError(f"{end} is no end")
    return end


def _number(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no number")
    return value


def _object(raw: bytes, path: str) -> dict[str, Any]:
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not JSON", path=path) from error
    if not isinstance(fields, dict) or type(fields.get("format")) is not int:
        _refuse(path, "has no format number")
    if not 1 <= fields["format"] <= FORMAT:
        _refuse(path, f"has format {fields['format']}; this release reads up to {FORMAT}")
    return fields


def _refuse(path: str, why: str) -> NoReturn:
    raise FormatError(f"{path} {why}", path=path)


def _dump(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def _worn_out(path: str) -> Unavailable:
    return Unavailable(f"{path} changed under us {META_ATTEMPTS_MAX} times", missing=path)


async def _back_off(attempt: int, chance: Chance) -> None:
    import asyncio

    await asyncio.sleep(backoff_s(attempt, chance))
