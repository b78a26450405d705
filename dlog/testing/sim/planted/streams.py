"""Bugs of streams: a key out of order, a message lost or there twice, a writer that takes back what
is not its own any more."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from dlog.effects import Procedure
from dlog.streams import lanes, numbers, reshard
from dlog.streams.document import Shard, StreamMeta
from dlog.streams.lanes import Lanes, Left, Publish
from dlog.streams.numbers import Inherited, Numbers, Piece
from dlog.streams.places import ReadOrder, StreamPosition
from dlog.streams.reshard import SeenStream, Site
from dlog.streams.routing.hashing import key_hash
from dlog.testing.sim import stream_clients
from dlog.testing.sim.planted import Patch, Plants

plants = Plants("streams")
PLANTS = plants.by_name

BUSY: dict[str, Any] = {"changes": 6, "messages": 16, "logs_slow_entries": 0.3, "crash": 0.0}
RETRIES: dict[str, Any] = {**BUSY, "crash": 0.03, "incarnations": 3}
PINS: dict[str, Any] = {**RETRIES, "pins": 0.8}
READING: dict[str, Any] = {"changes": 6, "messages": 16, "readers": 2}
CROWD: dict[str, Any] = {
    **BUSY,
    "incarnations": 3,
    "zombies": 1.0,
    "freeze": 0.1,
    "sleepers": 1.0,
    "parted": False,
}


def _nothing_ends(site: Site, seen: SeenStream, wanted: Any) -> Procedure[SeenStream]:
    yield from ()
    return seen


# --- a child after its parents


@plants("I32: a child takes nothing before its parents have ended", **BUSY)
def children_begin_at_once(patch: Patch) -> None:
    patch.setattr(lanes, "end_before", _nothing_ends)
    patch.setattr(reshard, "end_before", _nothing_ends)


@plants("I32: all that comes before ends first", **{**BUSY, "changes": 8})
def only_the_parents_end(patch: Patch) -> None:
    """And what they came from may still be open."""

    def before(self: StreamMeta, wanted: Any) -> tuple[Shard, ...]:
        return tuple(shard for shard in self.shards if shard.number in set(wanted))

    def end_before(site: Site, seen: SeenStream, wanted: Any) -> Procedure[SeenStream]:
        for shard in before(seen.meta, wanted):
            if not shard.is_open:
                yield from reshard._end(site, seen.meta, shard)
        return seen

    patch.setattr(lanes, "end_before", end_before)
    patch.setattr(reshard, "end_before", _nothing_ends)


@plants("I32: what is listed as ended has ended", **BUSY)
def the_list_says_ended_first(patch: Patch) -> None:
    def end_before(site: Site, seen: SeenStream, wanted: Any) -> Procedure[SeenStream]:
        gone = tuple(wanted)
        seen = yield from reshard.change_stream(
            site, lambda meta: meta.ended(gone), is_done=lambda meta: False, point="stream.ended"
        )
        for shard in seen.meta.before(gone):
            if not shard.is_open:
                yield from reshard._end(site, seen.meta, shard)
        return seen

    patch.setattr(lanes, "end_before", end_before)
    patch.setattr(reshard, "end_before", end_before)


@plants("I32: a merged shard has all its parents", **READING)
def a_merged_shard_has_one_parent(patch: Patch) -> None:
    genuine = StreamMeta._replaced

    def replaced(self: Any, name: str, gone: Any, new: Any, token: str) -> Any:
        fewer = [(range, parents[:1], weight) for range, parents, weight in new]
        return genuine(self, name, gone, fewer, token)

    patch.setattr(StreamMeta, "_replaced", replaced)


@plants("I30: a pinned key comes behind where it was", **{**READING, "pins": 1.0})
def a_pin_seals_only_where_it_goes(patch: Patch) -> None:
    genuine = StreamMeta._replaced

    def replaced(self: Any, name: str, gone: Any, new: Any, token: str) -> Any:
        if len(new) == 2 and len(gone) == 2:  # a pin: the shard that had the key stays as it is
            (_, _, _), (range, parents, weight) = new
            made = genuine(self, name, gone[1:], [(range, parents[:1], weight)], token)
            return made
        return genuine(self, name, gone, new, token)

    patch.setattr(StreamMeta, "_replaced", replaced)


@plants("I34: what is sealed is not split again", **{**BUSY, "meta_reply_lost": 0.2})
def a_sealed_shard_is_split_again(patch: Patch) -> None:
    patch.setattr(StreamMeta, "_to_replace", lambda self, number: self.shard(number))


@plants("I34: whoever has a key is told by a version", **BUSY)
def a_change_keeps_the_version(patch: Patch) -> None:
    genuine = StreamMeta._replaced

    def replaced(self: Any, *args: Any) -> Any:
        return dataclasses.replace(genuine(self, *args), version=self.version)

    patch.setattr(StreamMeta, "_replaced", replaced)


@plants("I33: pinned keys follow their shard", **PINS)
def pins_are_dropped_by_a_split(patch: Patch) -> None:
    genuine = StreamMeta.split

    def split(self: Any, *args: Any) -> Any:
        return dataclasses.replace(genuine(self, *args), pins={})

    patch.setattr(StreamMeta, "split", split)


# --- what was on its way


@plants("I31: what was on its way is sent again", **BUSY)
def what_is_left_is_dropped(patch: Patch) -> None:
    patch.setattr(lanes, "in_order", lambda told: [])


@plants("I31: what a lane did not take is sent again", **{**BUSY, "changes": 10})
def what_a_dead_lane_did_not_take_is_dropped(patch: Patch) -> None:
    genuine = lanes._send_on

    def send_on(core: Lanes) -> Procedure[tuple[Left, ...]]:
        yield from genuine(core)
        return ()

    patch.setattr(lanes, "_send_on", send_on)


@plants("I30: what is sent again keeps its order", **BUSY)
def what_is_left_is_sent_backwards(patch: Patch) -> None:
    genuine = lanes.in_order
    patch.setattr(lanes, "in_order", lambda told: genuine(told)[::-1])


@plants("I31: of two lanes the numbers are kept in order", **BUSY)
def lanes_are_sent_one_after_the_other(patch: Patch) -> None:
    patch.setattr(lanes, "in_order", lambda told: [left for each in told for left in each])


@plants("I31: what was told apart before comes in its order, too", **{**BUSY, "changes": 10})
def what_is_told_later_goes_first(patch: Patch) -> None:
    """Found by this world."""
    genuine = lanes.in_order

    def in_order(told: Sequence[Sequence[Left]]) -> list[Left]:
        return [*genuine(told[:-1]), *told[-1]]

    patch.setattr(lanes, "in_order", in_order)


@plants("I30: nothing new goes before what is left", **BUSY)
def new_messages_go_first(patch: Patch) -> None:
    genuine = lanes._send_on

    def send_on(core: Lanes) -> Procedure[tuple[Left, ...]]:
        yield Publish()
        return (yield from genuine(core))

    patch.setattr(lanes, "_send_on", send_on)


@plants("I31: only what is not there is sent again", **BUSY)
def all_that_was_on_its_way_is_sent_again(patch: Patch) -> None:
    def tell_apart(self: Any, number: int) -> Any:
        lane = self.lanes[number]
        lane.is_dead = True
        left = list(lane.on_their_way.values())
        lane.on_their_way.clear()
        return lanes.Told(left, True)

    patch.setattr(stream_clients.SimStreamWriter, "_tell_apart", tell_apart)


@plants("I27: what was told apart is told once", **BUSY)
def a_lane_is_told_apart_for_ever(patch: Patch) -> None:
    patch.setattr(Lanes, "forget", lambda self, number: self.dead.discard(number))


# --- who has a shard


@plants("I27: a writer that slept takes nothing back", **CROWD)
def a_new_shard_is_taken_from_whoever_has_it(patch: Patch) -> None:
    patch.setattr(Lanes, "follows", lambda self, number: False)


@plants("I31: what somebody had between is not ours", **CROWD)
def shards_that_came_and_went_are_not_looked_at(patch: Patch) -> None:
    """Found by this world."""
    patch.setattr(Lanes, "unseen", lambda self: [])


@plants("I27: a lane that was not the last one is lost", **CROWD)
def whoever_had_it_last_does_not_count(patch: Patch) -> None:
    genuine = lanes._note

    def note(ours: Lanes, gone: Any, answers: Any, unseen: Any, others: Any) -> Any:
        answers = [each._replace(was_last=True) for each in answers]
        return genuine(ours, gone, answers, unseen, others)

    patch.setattr(lanes, "_note", note)


@plants("I27: a lane whose shard is open is lost", **CROWD)
def a_lost_lane_is_waited_for(patch: Patch) -> None:
    patch.setattr(Lanes, "lost_now", lambda self: [])


# --- numbers of producers


@plants("I31: a shard knows what those before it had", **RETRIES)
def nothing_is_inherited(patch: Patch) -> None:
    patch.setattr(Inherited, "refuse_known", lambda self, key, producer_id, number: None)


@plants("I31: of all parents", **RETRIES)
def the_first_parent_alone_is_asked(patch: Patch) -> None:
    genuine = numbers.inherit

    def inherit(meta: Any, shard: Shard, ends: Any) -> Inherited:
        return genuine(meta, shard, dict(list(ends.items())[:1]))

    patch.setattr(lanes, "inherit", inherit)


@plants("I31: and of those before them", **{**RETRIES, "changes": 10})
def grandparents_are_forgotten(patch: Patch) -> None:
    genuine = numbers.inherit

    def inherit(meta: Any, shard: Shard, ends: Any) -> Inherited:
        return genuine(meta, shard, {n: (Inherited(), last) for n, (_, last) in ends.items()})

    patch.setattr(lanes, "inherit", inherit)


@plants("I31: the higher number counts", **{**RETRIES, "changes": 10})
def the_later_number_counts(patch: Patch) -> None:
    """Found by this world."""

    def followed_by(self: Numbers, later: Numbers) -> Numbers:
        return Numbers({**self.last, **later.last}, self.forgotten.joined(later.forgotten))

    patch.setattr(Numbers, "followed_by", followed_by)


@plants("I31: tables of merged shards are kept apart", **RETRIES)
def tables_are_thrown_together(patch: Patch) -> None:
    genuine = numbers.inherit

    def inherit(meta: Any, shard: Shard, ends: Any) -> Inherited:
        found = genuine(meta, shard, ends)
        last: dict[int, int] = {}
        for piece in found.pieces:
            for producer_id, number in piece.numbers.last.items():
                last[producer_id] = max(number, last.get(producer_id, -1))
        together = Numbers(last)
        return Inherited(tuple(Piece(p.range, together, p.keys) for p in found.pieces))

    patch.setattr(lanes, "inherit", inherit)


@plants("I31: a pinned key is known where it was", **PINS)
def pinned_keys_are_looked_for_by_hash(patch: Patch) -> None:
    def of(self: Inherited, key: bytes) -> Numbers:
        hash = key_hash(key)
        pieces = (p.numbers for p in self.pieces if p.range and p.range.contains(hash))
        return next(pieces, Numbers())

    patch.setattr(Inherited, "of", of)


@plants("I31: a key that was pinned once has a past of its own", **{**PINS, "changes": 10})
def the_past_of_an_unpinned_key_is_lost(patch: Patch) -> None:
    """Found by this world."""
    genuine = numbers.inherit

    def inherit(meta: Any, shard: Shard, ends: Any) -> Inherited:
        found = genuine(meta, shard, ends)
        pinned = {key for key, _ in shard.pinned_in}
        pieces = (Piece(p.range, p.numbers, p.keys & pinned) for p in found.pieces)
        return Inherited(tuple(p for p in pieces if p.range or p.keys))

    patch.setattr(lanes, "inherit", inherit)


# --- readers


@plants("I32: a reader is in a child after its parents", **READING)
def all_shards_are_read_at_once(patch: Patch) -> None:
    def ready(self: ReadOrder) -> list[Shard]:
        return [
            shard
            for shard in self.meta.shards
            if shard.number not in self._begun and shard.number not in self._done
        ]

    patch.setattr(ReadOrder, "ready", ready)


@plants("I32: after all of its parents", **READING)
def one_parent_is_enough(patch: Patch) -> None:
    def ready(self: ReadOrder) -> list[Shard]:
        return [
            shard
            for shard in self.meta.shards
            if shard.number not in self._begun
            and shard.number not in self._done
            and (not shard.parents or any(parent in self._done for parent in shard.parents))
        ]

    patch.setattr(ReadOrder, "ready", ready)


@plants("I30: a place says what was read to its end", **{**READING, "crash": 0.02})
def a_place_forgets_what_is_done(patch: Patch) -> None:
    def position(self: ReadOrder) -> StreamPosition:
        return StreamPosition(self.meta.uid, dict(self._begun))

    patch.setattr(ReadOrder, "position", property(position))


@plants("I30: a place says what is behind what was begun", **{**READING, "crash": 0.02})
def what_is_before_a_begun_shard_is_read_again(patch: Patch) -> None:
    genuine = ReadOrder.__init__

    def init(self: Any, meta: Any, at: Any, *, only: Any) -> None:
        genuine(self, meta, at, only=only)
        self._done = set(at.done)

    patch.setattr(ReadOrder, "__init__", init)
