"""Which number of each producer stands in the shards that came before: a message that is sent again
after a split or a merge goes to another log than the first time, and must still be known.

The logs before have ended, so what they know of producers is final, and whoever asks gets the same
answer. It comes in *pieces*, one for the keys of each shard that came before: numbers grow within a
shard only, so the tables of two shards that were merged may not be thrown together. A piece gives
way to the next generation's as producers go on there, and equal ones are joined.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dlog import limits
from dlog.errors import AlreadyExists, FormatError, NotFound
from dlog.forgotten import ALL_IDS, ForgottenIds
from dlog.meta.json_fields import dump, load, the_bool, the_int, the_list
from dlog.streams.document import Shard, StreamMeta
from dlog.streams.routing.hashing import key_hash
from dlog.streams.routing.ranges import WHOLE_SPACE, HashRange

FORMAT = 1


class Numbers(NamedTuple):
    """The last number of each producer in one log, who was silent longest first."""

    last: Mapping[int, int] = {}
    forgotten: ForgottenIds = ForgottenIds()  # of those with a last number, that counts

    def followed_by(self, later: Numbers) -> Numbers:
        """The higher number counts, also where it stands before: after a merge, what one of the
        shards lacked of a producer may be sent when the other is far past it."""
        last = {id: number for id, number in self.last.items() if id not in later.last}
        last |= {id: max(number, self.last.get(id, -1)) for id, number in later.last.items()}
        return Numbers(last, self.forgotten.joined(later.forgotten))


@dataclass(frozen=True, slots=True)
class Piece:
    """Of the keys in this range, or (None) of no others than some that are pinned."""

    range: HashRange | None
    numbers: Numbers
    keys: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a shard knows of producers from those before it."""

    pieces: tuple[Piece, ...] = ()
    _pinned: dict[bytes, Numbers] = field(init=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._pinned.update((key, p.numbers) for p in self.pieces for key in p.keys)

    def __bool__(self) -> bool:
        return any(piece.numbers.last or piece.numbers.forgotten for piece in self.pieces)

    def of(self, key: bytes) -> Numbers:
        pinned = self._pinned.get(key)
        if pinned is not None:
            return pinned
        hash = key_hash(key)
        return next((p.numbers for p in self.pieces if p.range and p.range.contains(hash)), _NOBODY)

    def refuse_known(self, key: bytes, producer_id: int, number: int) -> None:
        """`AlreadyExists` if a shard before this one has the message, or was past its number."""
        numbers = self.of(key)
        last = numbers.last.get(producer_id)
        if last is not None and number <= last:
            raise AlreadyExists(
                f"producer {producer_id} is past number {number} in the shard that had this key "
                "before: it was taken there, or left out",
                producer=producer_id,
            )
        if last is None and producer_id in numbers.forgotten:
            free = numbers.forgotten.widest_free
            instead = "" if free is None else f"; no producer from {free[0]} to {free[1]} was"
            raise NotFound(
                f"producer {producer_id} may have been forgotten by the shard that had this key "
                f"before: whether number {number} is there, it cannot tell{instead}",
                producer=producer_id,
            )

    def to_bytes(self) -> bytes:
        return dump({"format": FORMAT, "pieces": [_piece_fields(p) for p in self.pieces]})

    @classmethod
    def from_bytes(cls, raw: bytes, where: str) -> Inherited:
        fields = load(raw, where)
        if the_int(fields, "format", where) != FORMAT:
            raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
        return cls(tuple(_piece(each, where) for each in the_list(fields, "pieces", where)))


_NOBODY = Numbers()


def inherit(
    meta: StreamMeta, shard: Shard, ends: Mapping[int, tuple[Inherited, Numbers]]
) -> Inherited:
    """For a shard, from what each of its parents had inherited and what its log ended with."""
    pieces: list[Piece] = []
    came_from = dict(shard.pinned_in)
    for parent, (inherited, last) in ends.items():
        range = meta.shard(parent).range
        before = inherited.pieces or (Piece(range, Numbers()),)
        after = [Piece(p.range, p.numbers.followed_by(last), p.keys) for p in before]
        came = {key for key, where in came_from.items() if where == parent}
        for key in came - {key for piece in after for key in piece.keys}:
            # Pinned here since the beginning, or by its hash in what this parent had inherited.
            hash = key_hash(key)
            by_hash = (p.numbers for p in after if p.range and p.range.contains(hash))
            after.append(Piece(None, next(by_hash, last), frozenset((key,))))
        # A key that was pinned once stands by itself for ever: its past is not that of its hash. It
        # comes from the parent that has its hash; what another one says of it is out of date.
        part = _common(range, shard.range)
        came |= {
            key
            for piece in after
            for key in piece.keys
            if key not in came_from and part is not None and part.contains(key_hash(key))
        }
        for piece in after:
            part = piece.range and _common(piece.range, shard.range)
            keys = piece.keys & came
            if part is not None or keys:
                pieces.append(Piece(part, piece.numbers, keys))
    return Inherited(tuple(_bounded(_joined(pieces))))


def _common(one: HashRange, other: HashRange) -> HashRange | None:
    first = max(one.first_hash, other.first_hash)
    last = min(one.last_hash, other.last_hash)
    return HashRange(first, last) if first <= last else None


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours that know the same are one piece."""
    joined: list[Piece] = []
    alone = [piece for piece in pieces if piece.range is None]
    for piece in sorted((p for p in pieces if p.range), key=lambda each: each.range or WHOLE_SPACE):
        last = joined[-1] if joined else None
        if last is not None and last.range and piece.range and last.numbers == piece.numbers:
            if last.range.last_hash + 1 == piece.range.first_hash:
                joined[-1] = Piece(
                    last.range.joined(piece.range), last.numbers, last.keys | piece.keys
                )
                continue
        joined.append(piece)
    return joined + alone


def _bounded(pieces: Sequence[Piece]) -> list[Piece]:
    """Who was silent longest is forgotten, and that is said."""
    rows_max = limits.INHERITED_ROWS_MAX // max(1, len(pieces))
    ranges_max = limits.INHERITED_RANGES_MAX // max(1, len(pieces))
    kept: list[Piece] = []
    for piece in pieces:
        numbers = piece.numbers
        if len(numbers.last) > rows_max:
            rows = list(numbers.last.items())
            cut = len(rows) - rows_max
            forgotten = ForgottenIds.of(id for id, _ in rows[:cut])
            numbers = Numbers(dict(rows[cut:]), numbers.forgotten.joined(forgotten))
        numbers = Numbers(numbers.last, numbers.forgotten.coarser(ranges_max))
        kept.append(dataclasses.replace(piece, numbers=numbers))
    return kept


def _piece_fields(piece: Piece) -> dict[str, Any]:
    range = piece.range and [piece.range.first_hash, piece.range.last_hash]
    return {
        "range": range,
        "forgot": bool(piece.numbers.forgotten),
        "forgotten": [list(each) for each in piece.numbers.forgotten.ranges],
        "keys": [base64.b64encode(key).decode() for key in sorted(piece.keys)],
        "numbers": [list(row) for row in piece.numbers.last.items()],
    }


def _piece(raw: object, where: str) -> Piece:
    if not isinstance(raw, dict):
        raise FormatError(f"{where}: a piece is an object, not {raw!r}")
    rows = the_list(raw, "numbers", where)
    for row in rows:
        is_row = isinstance(row, list) and len(row) == 2 and all(type(n) is int for n in row)
        if not is_row:
            raise FormatError(f"{where}: a row is a producer and its last number, not {row!r}")
    try:
        keys = [base64.b64decode(key, validate=True) for key in the_list(raw, "keys", where)]
        range = None if raw.get("range") is None else HashRange(*the_list(raw, "range", where))
    except (TypeError, ValueError) as error:
        raise FormatError(f"{where}: {error}") from None
    forgotten = ForgottenIds()
    if the_bool(raw, "forgot", where):  # who, older versions did not say
        stored = raw.get("forgotten")
        forgotten = ALL_IDS if stored is None else ForgottenIds.from_stored(stored, where)
    numbers = Numbers({row[0]: row[1] for row in rows}, forgotten)
    return Piece(range, numbers, frozenset(keys))
