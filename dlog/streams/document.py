"""A stream as a value: its shards, which keys each has, who came from whom, and the lawful changes.

One node per stream is the unit of compare-and-set. Shards are never changed in place: a change
*seals* some open shards and makes new ones that go on where those ended, all at once. A new shard
has as *parents* every shard that may hold an earlier message of any of its keys, so whoever reads
the parents to their end before the child, and appends to the child only when the parents' logs have
ended, keeps the order of each key. Splitting, merging and pinning are three ways to make such a
change; none has rules of its own.

A shard is `OPEN`, then `SEALED` (decided: it gets no more, though its log may still be open), then
`ENDED` (its log, and the logs of all shards before it, are known to be terminated).
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dlog import limits
from dlog.errors import ConfigError, Conflict, FormatError, NotFound, Retry, TooLarge, Unsupported
from dlog.ids import check_log_name
from dlog.meta.json_fields import (
    dump,
    flat,
    load,
    optional_str,
    the_dict,
    the_int,
    the_list,
    the_str,
)
from dlog.meta.log_meta import LogMeta
from dlog.meta.shards import ShardLog
from dlog.options import LogOptions
from dlog.streams.routing.hashing import key_hash
from dlog.streams.routing.ranges import WHOLE_SPACE, HashRange, even_ranges

FORMAT = 1
UID_CHARS = 12  # of a token: enough to tell the changes of one stream apart
Routing = Literal["ranges", "ketama"]
ROUTINGS: tuple[Routing, ...] = ("ranges", "ketama")


class StreamState(enum.Enum):
    OPEN = "open"
    TERMINATED = "terminated"  # every shard ends, and none follows
    DELETING = "deleting"  # being removed, with its logs


class ShardState(enum.Enum):
    OPEN = "open"
    SEALED = "sealed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Shard:
    number: int
    log: str
    range: HashRange  # in a stream routed by ketama, the whole space
    parents: tuple[int, ...] = ()
    state: ShardState = ShardState.OPEN
    made_by: str = ""  # token of the change that made it
    weight: int = 1  # for ketama
    # Pinned keys, and the parent that their earlier messages are in.
    pinned_in: tuple[tuple[bytes, int], ...] = ()
    log_uid: str = ""  # "" in streams of older versions, which take whatever log has the name

    def came_from(self, key: bytes) -> int | None:
        """The parent that a pinned key was in."""
        return next((parent for pinned, parent in self.pinned_in if pinned == key), None)

    @property
    def is_open(self) -> bool:
        return self.state is ShardState.OPEN


@dataclass(frozen=True, slots=True)
class StreamMeta:
    uid: str
    options: LogOptions
    shards: tuple[Shard, ...]
    routing: Routing = "ranges"
    state: StreamState = StreamState.OPEN
    version: int = 1  # grows with every change of who has which key
    next_number: int = 0
    pins: Mapping[bytes, int] = field(default_factory=dict)  # key: number of its open shard
    trimmed: tuple[Shard, ...] = ()  # listed no more; their logs are being removed
    # Shards have uids of their logs. Older versions keep this, and drop the uids.
    has_uids: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    # --- questions

    def shard(self, number: int) -> Shard:
        for shard in self.shards:
            if shard.number == number:
                return shard
        raise NotFound(f"the stream has no shard {number}")

    def log_of(self, shard: Shard, name: str) -> ShardLog:
        """`name` is the stream's."""
        return ShardLog(shard.log, shard.log_uid, name, self.uid)

    def has(self, number: int) -> bool:
        return any(shard.number == number for shard in self.shards)

    @property
    def open_shards(self) -> tuple[Shard, ...]:
        return tuple(shard for shard in self.shards if shard.is_open)

    def children(self, number: int) -> tuple[Shard, ...]:
        return tuple(shard for shard in self.shards if number in shard.parents)

    def before(self, numbers: Iterable[int]) -> tuple[Shard, ...]:
        """The listed shards that come before these, and these, oldest first."""
        found: set[int] = set()
        wanted = list(numbers)
        by_number = {shard.number: shard for shard in self.shards}
        while wanted:
            number = wanted.pop()
            if number in by_number and number not in found:
                found.add(number)
                wanted.extend(by_number[number].parents)
        return tuple(shard for shard in self.shards if shard.number in found)

    def made_in(self, token: str) -> tuple[Shard, ...]:
        return tuple(shard for shard in self.shards if shard.made_by == token[-UID_CHARS:])

    # --- changes

    def split(self, name: str, number: int, at: Sequence[int], token: str) -> StreamMeta:
        """A shard's keys go on in several: the first has what is below the first hash of `at`, and
        so on."""
        shard = self._to_replace(number)
        parts = [shard.range]
        for hash in sorted(set(at)):
            parts[-1:] = parts[-1].split_at(hash)
        if len(parts) < 2:
            raise ConfigError("a split needs a hash to split at")
        return self._replaced(name, (shard,), [(part, (number,), 0) for part in parts], token)

    def merged(self, name: str, numbers: Sequence[int], token: str) -> StreamMeta:
        """The keys of neighbours go on in one shard."""
        if len(set(numbers)) < 2:
            raise ConfigError("a merge needs two shards or more")
        shards = sorted((self._to_replace(n) for n in set(numbers)), key=lambda s: s.range)
        joined = shards[0].range
        for shard in shards[1:]:
            joined = joined.joined(shard.range)
        parents = tuple(shard.number for shard in shards)
        return self._replaced(name, shards, [(joined, parents, 0)], token)

    def pinned(self, name: str, key: bytes, to: int | None, token: str) -> StreamMeta:
        """From now on `key` belongs to what follows shard `to`, or (None) to whoever has its hash.
        The shard that had it ends as well as the one that gets it: so no message of the key in the
        new place can be read before those in the old one."""
        check_pin(key)
        had = self.owner_of(key)
        gets = self._owner_by_hash(key) if to is None else self._to_replace(to)
        if had.number == gets.number:
            if to is None and key not in self.pins:
                raise NotFound(f"key {key!r} is not pinned")
            # It stays where it is, by another rule: nothing has to end for that.
            pins = {k: n for k, n in self.pins.items() if k != key}
            if to is not None:
                pins[key] = to
            return self._checked(dataclasses.replace(self, pins=pins, version=self.version + 1))
        self._to_replace(had.number)
        new = [
            (had.range, (had.number,), had.weight),
            (gets.range, (gets.number, had.number), gets.weight),
        ]
        changed = self._replaced(name, (had, gets), new, token)
        pins = {k: n for k, n in changed.pins.items() if k != key}
        if to is not None:
            pins[key] = changed.next_number - 1
        last = changed.shards[-1]
        others = tuple(each for each in last.pinned_in if each[0] != key)
        last = dataclasses.replace(last, pinned_in=(*others, (key, had.number)))
        return self._checked(
            dataclasses.replace(changed, pins=pins, shards=(*changed.shards[:-1], last))
        )

    def terminated(self) -> StreamMeta:
        """No shard gets more, and none follows."""
        sealed = tuple(
            dataclasses.replace(shard, state=ShardState.SEALED) if shard.is_open else shard
            for shard in self.shards
        )
        return dataclasses.replace(
            self, shards=sealed, state=StreamState.TERMINATED, version=self.version + 1
        )

    def ended(self, numbers: Iterable[int]) -> StreamMeta:
        """The logs of these sealed shards, and of all before them, are known to be terminated."""
        ended = {shard.number for shard in self.before(numbers)}
        return dataclasses.replace(
            self,
            shards=tuple(
                dataclasses.replace(shard, state=ShardState.ENDED)
                if shard.number in ended and shard.state is ShardState.SEALED
                else shard
                for shard in self.shards
            ),
        )

    def forgotten(self, numbers: Iterable[int]) -> StreamMeta:
        """Without these ended shards, all of whose messages are gone, oldest first."""
        gone = set(numbers)
        for shard in self.before(gone):
            if shard.number not in gone or shard.state is not ShardState.ENDED:
                raise Conflict(
                    f"shard {shard.number} is {shard.state.value}, and goes before or not at all",
                    retry=Retry.NEVER,
                )
        return dataclasses.replace(
            self,
            shards=tuple(shard for shard in self.shards if shard.number not in gone),
            trimmed=(*self.trimmed, *(self.shard(number) for number in sorted(gone))),
        )

    def cleared(self, numbers: Iterable[int]) -> StreamMeta:
        """The logs of these trimmed shards are removed."""
        gone = set(numbers)
        kept = tuple(shard for shard in self.trimmed if shard.number not in gone)
        return dataclasses.replace(self, trimmed=kept)

    def _replaced(
        self,
        name: str,
        gone: Sequence[Shard],
        new: Sequence[tuple[HashRange, tuple[int, ...], int]],
        token: str,
    ) -> StreamMeta:
        """Seal `gone`, go on in shards of these ranges, parents and weights. A pinned key follows
        into the first child of its shard."""
        gone_numbers = {shard.number for shard in gone}
        shards = [
            dataclasses.replace(shard, state=ShardState.SEALED)
            if shard.number in gone_numbers
            else shard
            for shard in self.shards
        ]
        number = self.next_number
        heirs: dict[int, int] = {}
        for range, parents, weight in new:
            shards.append(
                Shard(
                    number,
                    shard_log(name, number),
                    range,
                    parents,
                    made_by=token[-UID_CHARS:],
                    weight=weight or gone[0].weight,
                    log_uid=log_uid(token, number),
                    pinned_in=tuple((k, n) for k, n in self.pins.items() if n in parents),
                )
            )
            heirs.setdefault(parents[0], number)
            for parent in parents:
                heirs.setdefault(parent, number)
            number += 1
        pins = {key: heirs.get(owner, owner) for key, owner in self.pins.items()}
        changed = dataclasses.replace(
            self,
            shards=tuple(shards),
            next_number=number,
            pins=pins,
            version=self.version + 1,
        )
        return self._checked(changed)

    @staticmethod
    def _checked(changed: StreamMeta) -> StreamMeta:
        if len(changed.shards) > limits.SHARDS_MAX:
            raise TooLarge(
                f"a stream lists at most {limits.SHARDS_MAX} shards, those that ended included; "
                "trim it first"
            )
        if len(changed.pins) > limits.STREAM_PINS_MAX:
            raise TooLarge(f"a stream has at most {limits.STREAM_PINS_MAX} pinned keys")
        return changed

    def _to_replace(self, number: int) -> Shard:
        if self.state is not StreamState.OPEN:
            raise Conflict(f"the stream is {self.state.value}", retry=Retry.NEVER)
        if self.routing != "ranges":
            raise Unsupported(
                f"a stream routed by {self.routing} keeps its shards: where a key goes rests on "
                "all of them"
            )
        shard = self.shard(number)
        if not shard.is_open:
            behind = ", ".join(str(s.number) for s in self.shards if number in s.parents)
            goes_on = f": its keys go on in shard {behind}" if behind else ""
            raise Conflict(
                f"shard {number} is {shard.state.value} already{goes_on}", retry=Retry.NEVER
            )
        return shard

    def owner_of(self, key: bytes) -> Shard:
        """Of a stream routed by ranges, or of a pinned key. See `routes` for all others."""
        pinned = self.pins.get(key)
        return self._owner_by_hash(key) if pinned is None else self.shard(pinned)

    def _owner_by_hash(self, key: bytes) -> Shard:
        hash = key_hash(key)
        found = [shard for shard in self.open_shards if shard.range.contains(hash)]
        if not found:
            raise Conflict(f"the stream is {self.state.value}", retry=Retry.NEVER)
        return found[0]

    # --- bytes

    def to_bytes(self) -> bytes:
        options = flat(self.options)
        del options["unsafe_single_copy"]  # said by the quorum itself
        more: dict[str, Any] = {"uids": True} if self.has_uids else {}
        if self.trimmed:
            more["trimmed"] = [_shard_fields(shard) for shard in self.trimmed]
        raw = dump(
            {
                **self.extra,
                **more,
                "format": FORMAT,
                "uid": self.uid,
                "state": self.state.value,
                "routing": self.routing,
                "version": self.version,
                "next_number": self.next_number,
                "options": options,
                "pins": [_pin_fields(*each) for each in sorted(self.pins.items())],
                "shards": [_shard_fields(shard) for shard in self.shards],
            }
        )
        # To end and to remove a stream that is full takes a little more.
        spare = 1 if self.state is StreamState.OPEN else 2
        if len(raw) > spare * limits.META_NODE_BYTES_MAX:
            raise TooLarge(
                f"the stream would take {len(raw)} bytes in its node, more than "
                f"{limits.META_NODE_BYTES_MAX}: trim it first"
            )
        return raw

    @classmethod
    def from_bytes(cls, raw: bytes, where: str) -> StreamMeta:
        fields = load(raw, where)
        if the_int(fields, "format", where) != FORMAT:
            raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
        options = the_dict(fields, "options", where)
        if options.get("ack_quorum") == 1:
            options = {**options, "unsafe_single_copy": True}
        known = {f.name for f in dataclasses.fields(LogOptions)}
        has_uids = fields.get("uids") is True
        try:
            made = cls(
                uid=the_str(fields, "uid", where),
                options=LogOptions(**{k: v for k, v in options.items() if k in known}),
                shards=tuple(
                    _shard(each, where, has_uids) for each in the_list(fields, "shards", where)
                ),
                routing=_one_of(ROUTINGS, fields.get("routing"), where),
                state=StreamState(fields.get("state")),
                version=the_int(fields, "version", where),
                next_number=the_int(fields, "next_number", where),
                pins=dict(_pin(each, where) for each in the_list(fields, "pins", where)),
                trimmed=tuple(
                    _shard(each, where, has_uids)
                    for each in (the_list(fields, "trimmed", where) if "trimmed" in fields else ())
                ),
                has_uids=has_uids,
                extra={k: v for k, v in fields.items() if k not in _FIELDS},
            )
        except (ConfigError, ValueError) as error:
            raise FormatError(f"{where}: {error}") from None
        made._check_whole(where)
        return made

    def _check_whole(self, where: str) -> None:
        numbers = [shard.number for shard in self.shards]
        if numbers != sorted(set(numbers)) or (numbers and numbers[-1] >= self.next_number):
            raise FormatError(f"{where}: the numbers of shards grow, below next_number")
        for shard in self.shards:
            if any(parent >= shard.number for parent in shard.parents):
                raise FormatError(f"{where}: shard {shard.number} is older than its parents")
        open_numbers = {shard.number for shard in self.open_shards}
        if self.state is StreamState.OPEN and not set(self.pins.values()) <= open_numbers:
            raise FormatError(f"{where}: a key is pinned to a shard that is not open")
        if self.state is StreamState.OPEN and self.routing == "ranges":
            next_hash = 0
            for range in sorted(shard.range for shard in self.open_shards):
                if range.first_hash != next_hash:
                    raise FormatError(f"{where}: the ranges of open shards leave gaps, or overlap")
                next_hash = range.last_hash + 1
            if next_hash != len(WHOLE_SPACE):
                raise FormatError(f"{where}: the ranges of open shards leave a gap at the end")


def new_stream(
    name: str,
    uid: str,
    options: LogOptions,
    *,
    shards: int = 1,
    routing: Routing = "ranges",
    pins: Mapping[bytes, int] | None = None,
    weights: Sequence[int] | None = None,
) -> StreamMeta:
    if type(shards) is not int or not 1 <= shards <= limits.SHARDS_MAX // 2:
        raise ConfigError(f"a stream has 1 to {limits.SHARDS_MAX // 2} shards, not {shards!r}")
    if routing not in ROUTINGS:
        raise ConfigError(f"routing is one of {', '.join(ROUTINGS)}, not {routing!r}")
    if weights is not None and (routing != "ketama" or len(weights) != shards):
        raise ConfigError("weights are for ketama, one for each shard")
    if weights is not None and any(type(w) is not int or not 1 <= w <= 1000 for w in weights):
        raise ConfigError("a weight is a whole number from 1 to 1000")
    ranges = even_ranges(shards) if routing == "ranges" else (WHOLE_SPACE,) * shards
    check_log_name(shard_log(name, limits.SHARDS_MAX * 1000))
    for key, number in (pins or {}).items():
        check_pin(key)
        if type(number) is not int or not 0 <= number < shards:
            raise ConfigError(f"key {key!r} is pinned to {number!r}, which is no shard")
    made = tuple(
        Shard(
            number,
            shard_log(name, number),
            range,
            made_by=uid[-UID_CHARS:],
            weight=1 if weights is None else weights[number],
            log_uid=log_uid(uid, number),
        )
        for number, range in enumerate(ranges)
    )
    return StreamMeta._checked(
        StreamMeta(
            uid,
            options,
            made,
            routing,
            next_number=shards,
            pins=dict(pins or {}),
            has_uids=True,
        )
    )


def of_one_log(log: str, uid: str, options: LogOptions, *, is_over: bool = False) -> StreamMeta:
    """A log that was never made a stream is one of a single shard. `is_over`: it is terminated."""
    state = ShardState.ENDED if is_over else ShardState.OPEN
    shard = Shard(0, log, WHOLE_SPACE, state=state, log_uid=uid)
    of_stream = StreamState.TERMINATED if is_over else StreamState.OPEN
    return StreamMeta(uid, options, (shard,), state=of_stream, next_number=1, has_uids=True)


def log_uid(token: str, number: int) -> str:
    """Of the log of a new shard, by the token of the change that makes the shard: so whoever makes
    the log makes the same one."""
    return f"{token[-UID_CHARS:]}-{number}"


def was_removed(shard: Shard, raw: bytes, where: str) -> bool:
    """Whether this node says that the very log of the shard was made, and removed again."""
    meta = LogMeta.from_bytes(raw, where=where)
    return meta.is_removed and meta.uid == shard.log_uid


def shard_log(name: str, number: int) -> str:
    """The name of the log that a shard is."""
    return f"{name}/{number}"


def check_pin(key: object) -> None:
    if not isinstance(key, bytes) or len(key) > limits.STREAM_PIN_BYTES_MAX:
        raise ConfigError(f"a pinned key is at most {limits.STREAM_PIN_BYTES_MAX} bytes: {key!r}")


def _shard_fields(shard: Shard) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "number": shard.number,
        "log": shard.log,
        "first_hash": shard.range.first_hash,
        "last_hash": shard.range.last_hash,
        "state": shard.state.value,
    }
    if shard.parents:
        fields["parents"] = list(shard.parents)
    if shard.made_by:
        fields["made_by"] = shard.made_by
    if shard.weight != 1:
        fields["weight"] = shard.weight
    if shard.log_uid and shard.log_uid == log_uid(shard.made_by, shard.number):
        fields["log_uid"] = True
    elif shard.log_uid:
        fields["log_uid"] = shard.log_uid
    if shard.pinned_in:
        fields["pinned_in"] = [_pin_fields(*each) for each in shard.pinned_in]
    return fields


def _pin_fields(key: bytes, number: int) -> dict[str, Any]:
    return {"key": base64.b64encode(key).decode(), "shard": number}


def _shard(raw: object, where: str, has_uids: bool) -> Shard:
    if not isinstance(raw, dict):
        raise FormatError(f"{where}: a shard is an object, not {raw!r}")
    parents = raw.get("parents", [])
    if not isinstance(parents, list) or not all(type(p) is int and p >= 0 for p in parents):
        raise FormatError(f"{where}: parents are numbers of shards, not {parents!r}")
    weight, made_by = raw.get("weight", 1), raw.get("made_by", "")
    if type(weight) is not int or weight < 1 or not isinstance(made_by, str):
        raise FormatError(f"{where}: a shard with weight {weight!r}, made by {made_by!r}")
    number = the_int(raw, "number", where)
    is_made_by = raw.get("log_uid", has_uids and made_by != "") is True
    uid = "" if is_made_by else optional_str(raw, "log_uid", where) or ""
    return Shard(
        number,
        check_log_name(the_str(raw, "log", where)),
        HashRange(the_int(raw, "first_hash", where), the_int(raw, "last_hash", where)),
        tuple(parents),
        ShardState(raw.get("state")),
        made_by,
        weight,
        tuple(_pin(each, where) for each in the_list({"p": raw.get("pinned_in", [])}, "p", where)),
        log_uid(made_by, number) if is_made_by else uid,
    )


def _pin(raw: object, where: str) -> tuple[bytes, int]:
    if not isinstance(raw, dict):
        raise FormatError(f"{where}: a pin is an object, not {raw!r}")
    try:
        key = base64.b64decode(the_str({"key": raw.get("key") or "="}, "key", where), validate=True)
    except binascii.Error:
        key = b""
        if raw.get("key") != "":
            raise FormatError(f"{where}: a pinned key is base64, not {raw.get('key')!r}") from None
    return key, the_int(raw, "shard", where)


def _one_of(known: tuple[Routing, ...], value: object, where: str) -> Routing:
    for each in known:
        if each == value:
            return each
    raise FormatError(f"{where}: routing is one of {', '.join(known)}, not {value!r}")


_FIELDS = frozenset(
    "format uid state routing version next_number options pins shards trimmed uids".split()
)
