"""Bugs where features of streams meet: a stream that is made again under its name, numbers behind a
trim, holds of groups over splits, readers over truncated children."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from dlog.errors import NotFound
from dlog.groups import founding
from dlog.groups.charter import Charter
from dlog.groups.holding import GroupHolds
from dlog.meta import truncation
from dlog.meta.cas import read_log
from dlog.meta.holds import read_holds
from dlog.meta.shards import ShardLog
from dlog.reader.looks import Looks
from dlog.streams import driver, lanes, making, removal, reshard, sources, starts, stream
from dlog.streams.document import ShardState, StreamMeta, StreamState
from dlog.streams.driver import StreamDriver
from dlog.streams.following import Following
from dlog.streams.gaps import Gaps
from dlog.streams.listing import ShardList
from dlog.streams.numbers import Inherited, Numbers
from dlog.streams.places import ReadOrder
from dlog.streams.reshard import Site
from dlog.streams.writer import StreamIds, StreamWriter, rows
from dlog.testing.sim.planted import Plants
from dlog.writer.producers import Dedup

plants = Plants("streams-life")
PLANTS = plants.by_name

CALM: dict[str, Any] = {
    "meta_refused": 0.0,
    "meta_request_lost": 0.0,
    "meta_late": 0.0,
    "meta_torn": 0.0,
    "ledgers_refused": 0.0,
    "forgets": False,
    "workers": 0,
    "job": False,
    "readers": 0,
}
MADE_AGAIN: dict[str, Any] = {
    **CALM,
    "sleeps": 0.6,
    "ends_late": False,
    "changes": ("again", "split", "again", "truncate", "again", "merge", "again", "again"),
}
TRIMMED: dict[str, Any] = {
    **CALM,
    "changes": ("split", "trim", "merge", "trim", "split", "trim", "trim"),
    "again": 0.6,
    "messages": 16,
}
READ: dict[str, Any] = {
    **CALM,
    "readers": 2,
    "bounded": 0.0,
    "order": "arrival",
    "changes": ("split", "truncate", "merge", "truncate", "trim", "split", "truncate"),
}
GROUPED: dict[str, Any] = {
    **CALM,
    "workers": 1,
    "leaves": 0.5,
    "sleeps": 0.0,
    "dies": 0.0,
    "shards": 1,
    "group_start": "earliest",
    "changes": ("split", "truncate", "truncate", "merge", "truncate", "trim", "truncate"),
}


# --- whose stream it is


@plants("the uid of a stream is not looked at", **MADE_AGAIN)
def a_stream_is_known_by_its_name(patch: Any) -> None:
    def check_is(site: Site, meta: StreamMeta, *, is_removing: bool = False) -> None:
        if meta.state is StreamState.DELETING and not is_removing:
            raise NotFound("removed")

    patch.setattr(reshard, "check_is", check_is)


@plants("a removal that slept deletes the logs of a later stream", **MADE_AGAIN)
def logs_are_removed_by_name(patch: Any) -> None:
    async def remove(self: StreamDriver, shard: ShardLog) -> None:
        with contextlib.suppress(NotFound):
            there = (await self.run(read_log(self.stores.layout.log(shard.name)))).meta
            shard = shard._replace(uid="", stream_uid=there.stream or "")
        await genuine(self, shard)

    genuine = StreamDriver.remove
    patch.setattr(StreamDriver, "remove", remove)


@plants("a removal that slept deletes the node of a later stream", **MADE_AGAIN)
def the_node_of_whatever_stream_goes(patch: Any) -> None:
    genuine = removal._delete_document
    patch.setattr(removal, "_delete_document", lambda site: genuine(site._replace(uid=None)))


@plants("a log is a shard's by its name", **MADE_AGAIN)
def a_log_is_a_shards_by_its_name(patch: Any) -> None:
    patch.setattr(ShardLog, "is_log", lambda self, meta: True)


@plants("a log is made without a second look at the list", **MADE_AGAIN)
def a_log_is_made_without_a_second_look(patch: Any) -> None:
    def make_log(site: Any, path: str, shard: ShardLog, options: Any) -> Any:
        for _ in range(10):
            yield from making._is_listed(site, shard)
            if (yield from making._made(site, path, shard, options)):
                return True
        return False

    patch.setattr(driver, "make_log", make_log)


@plants("the log of a trimmed shard is made again", **{**TRIMMED, "sleeps": 0.6})
def the_log_of_a_trimmed_shard_is_made_again(patch: Any) -> None:
    def is_listed(site: Any, shard: ShardLog) -> Any:
        yield from reshard.read_stream(site)
        return True

    patch.setattr(making, "_is_listed", is_listed)


@plants(
    "a reader goes on in the stream that has the name now",
    **{**MADE_AGAIN, "readers": 2},
    survives="mostly: the logs of the stream that was removed are gone, and end the reader first",
    shown_by="tests/unit/streams/test_listing.py::test_a_list_is_of_the_stream_that_was_read_first",
)
def a_reader_follows_a_name(patch: Any) -> None:
    genuine = ShardList._read

    async def read(self: ShardList) -> StreamMeta:
        self._uid = None
        return await genuine(self)

    patch.setattr(ShardList, "_read", read)


@plants("a position of another stream is taken", **{**MADE_AGAIN, "readers": 2, "saves": 0.9})
def a_position_of_another_stream_is_taken(patch: Any) -> None:
    genuine = ReadOrder.__init__

    def init(self: ReadOrder, meta: StreamMeta, at: Any, **how: Any) -> None:
        genuine(self, meta, dataclasses.replace(at, stream_uid=meta.uid), **how)

    patch.setattr(ReadOrder, "__init__", init)


@plants(
    "a group goes on in the stream that has the name now",
    **{**MADE_AGAIN, "workers": 2, "leaves": 0.9},
)
def a_group_goes_on_in_a_later_stream(patch: Any) -> None:
    patch.setattr(Charter, "check_stream", lambda self, uid, group: None)


@plants("what was made and removed comes back", **{**MADE_AGAIN, "sleeps": 0.9, "meta_late": 0.1})
def what_was_made_and_removed_comes_back(patch: Any) -> None:
    genuine = reshard.make_stream

    def make_stream(site: Site, draw: Any) -> Any:
        meta = draw()
        return genuine(site, lambda: meta)

    patch.setattr(stream, "make_stream", make_stream)


# --- numbers


@plants(
    "numbers are kept by the number of a shard, and stay behind a removal",
    **{**CALM, "changes": ("split", "split", "again", "split", "again", "split", "split")},
)
def numbers_are_kept_by_the_number_of_a_shard(patch: Any) -> None:
    def sweep(site: Site, meta: StreamMeta) -> Any:
        yield from ()

    def left(site: Site) -> Any:
        yield from ()
        return []

    patch.setattr(removal, "_sweep_numbers", sweep)
    patch.setattr(stream, "left_numbers", left)

    def inherited(self: Site, uid: str, shard: Any) -> str:
        return f"{self.path}/numbers/{shard.number}"

    patch.setattr(Site, "inherited", inherited)


@plants("what a child inherited is not read where no parent is listed", **TRIMMED)
def what_was_inherited_goes_with_the_parents(patch: Any) -> None:
    genuine = lanes.read_inherited

    def read_inherited(site: Site, meta: StreamMeta, shard: Any) -> Any:
        if not any(meta.has(parent) for parent in shard.parents):
            return Inherited()
        return (yield from genuine(site, meta, shard))

    patch.setattr(lanes, "read_inherited", read_inherited)


@plants("a parent is trimmed before its children stored what they inherit", **TRIMMED)
def nothing_is_stored_before_shards_go(patch: Any) -> None:
    def read_inherited(site: Site, meta: StreamMeta, shard: Any) -> Any:
        yield from ()
        return Inherited()

    genuine = lanes._inherit

    def inherit(site: Site, meta: StreamMeta, shard: Any) -> Any:
        try:
            return (yield from genuine(site, meta, shard))
        except NotFound:
            return Inherited()

    patch.setattr(removal, "read_inherited", read_inherited)
    patch.setattr(lanes, "_inherit", inherit)


@plants("the table of an ended shard is dropped", **TRIMMED)
def the_table_of_an_ended_shard_is_dropped(patch: Any) -> None:
    async def count(self: StreamDriver, shard: ShardLog) -> Numbers:
        return Numbers()

    patch.setattr(StreamDriver, "_count", count)


@plants("a merged shard inherits from its first parent only", **{**TRIMMED, "shards": 3})
def a_merge_inherits_from_one_parent(patch: Any) -> None:
    genuine: Callable[..., Inherited] = vars(lanes)["inherit"]

    def inherit(meta: StreamMeta, shard: Any, ends: Any) -> Inherited:
        return genuine(meta, shard, dict(list(ends.items())[:1]))

    patch.setattr(lanes, "inherit", inherit)


@plants(
    "a number goes before one that failed",
    survives="mostly: a writer that failed is seldom sent more before its producer begins anew",
    shown_by="tests/api/test_stream_identity.py"
    "::test_behind_a_number_that_failed_no_later_one_is_taken",
    **{**TRIMMED, "shards": 3},
)
def a_number_goes_before_one_that_failed(patch: Any) -> None:
    patch.setattr(Gaps, "error", lambda self, producer: None)


@plants("what a shard inherited is not asked", **TRIMMED)
def what_was_inherited_is_not_asked(patch: Any) -> None:
    patch.setattr(Inherited, "refuse_known", lambda self, *args: None)


@plants(
    "number 0 of a forgotten producer is taken",
    **{**CALM, "forgets": True, "producers": 4, "again": 0.9, "changes": ("split",)},
)
def number_0_of_a_forgotten_producer_is_taken(patch: Any) -> None:
    genuine = Dedup.find

    def find(self: Dedup, producer_id: int, number: int) -> Any:
        try:
            return genuine(self, producer_id, number)
        except NotFound:
            if number == 0:
                return None
            raise

    patch.setattr(Dedup, "find", find)


@plants("a run that is sent again ends at what is known", **{**CALM, "many": 1.0, "heirs": 0.9})
def a_run_ends_at_what_is_known(patch: Any) -> None:
    async def append_many(self: StreamWriter, values: Any, **how: Any) -> StreamIds:
        producer_id, first = how["producer"]
        tickets = []
        for index, (value, key, _) in enumerate(rows(values, how["keys"], None)):
            numbered = (producer_id, first + index)
            tickets.append(await self.submit(value, key=key, producer=numbered))
        ids = StreamIds()
        for ticket in tickets:
            ids.append(await ticket)
        return ids

    patch.setattr(StreamWriter, "append_many", append_many)


@plants(
    "a token of a message that a split moved says never",
    survives="mostly: few ask for a message whose fate they know, or that stays unknown for long",
    shown_by="tests/api/test_streams_numbers.py"
    "::test_a_token_of_a_message_that_a_split_moved_never_says_send_it_again",
    **{**TRIMMED, "ledgers_slow": 0.5},
)
def a_token_that_moved_says_never(patch: Any) -> None:
    genuine = Looks.resolve

    async def resolve(self: Looks, token: Any, *, only_here: bool = False) -> Any:
        return await genuine(self, token, only_here=True)

    patch.setattr(Looks, "resolve", resolve)


@plants(
    "what a trim took away while it was counted counts as there",
    **{
        **TRIMMED,
        "ledgers_append_ms": 4.0,
        "ledgers_slow": 0.5,
        "sleeps": 0.3,
        "changes": ("split", "trim", "merge", "trim", "split", "trim", "trim", "trim"),
    },
)
def what_is_gone_counts_as_there(patch: Any) -> None:
    count, ask = Following._count_there, Following._was_last

    async def count_there(self: Following, lane: Any, sent: Any) -> tuple[int, bool]:
        vars(lane.writer)["was_last"] = await ask(self, lane)
        return await count(self, lane, sent)

    async def was_last(self: Following, lane: Any) -> bool:
        found: bool = vars(lane.writer)["was_last"]
        return found

    patch.setattr(Following, "_count_there", count_there)
    patch.setattr(Following, "_was_last", was_last)


# --- what a consumer misses


@plants("a truncation does not ask for holds on the stream", **GROUPED)
def holds_on_streams_count_for_nothing(patch: Any) -> None:
    def read_all(layout: Any, log: str, meta: Any) -> Any:
        return (yield from read_holds(layout, log, meta.uid))

    patch.setattr(truncation, "read_all_holds", read_all)


@plants("who founds a group holds nothing", **GROUPED)
def a_founder_holds_nothing(patch: Any) -> None:
    async def hold_stream(*_: Any) -> None:
        pass

    patch.setattr(founding, "_hold_stream", hold_stream)


@plants("who founds a group holds the shards that are there", **GROUPED)
def a_founder_holds_the_shards_that_are_there(patch: Any) -> None:
    async def hold_stream(stores: Any, drive: Any, admin: Any, places: Any, charter: Any) -> None:
        meta = await founding._read(stores, drive, places)
        await founding._hold_shards(stores.layout, drive, admin, places, charter, meta)

    patch.setattr(founding, "_hold_stream", hold_stream)


@plants("a group holds each shard from its end on", **GROUPED)
def a_hold_is_put_to_the_end(patch: Any) -> None:
    genuine = GroupHolds._put

    async def put(self: GroupHolds, log: str, at: Any) -> None:
        await genuine(self, log, "latest")

    patch.setattr(GroupHolds, "_put", put)


@plants("a founder holds its job's shards not before it begins", **{**GROUPED, "job": True})
def a_job_holds_nothing(patch: Any) -> None:
    async def hold_shards(*_: Any) -> list[str]:
        return []

    patch.setattr(founding, "_hold_shards", hold_shards)


@plants("a reader begins a child at its head, and says nothing", **READ)
def a_child_is_begun_at_its_head(patch: Any) -> None:
    patch.setattr(sources, "first_seq_of", lambda meta: 1 << 60)


@plants("a shard that was trimmed unread is passed over", **{**READ, "sleeps": 0.6})
def what_was_trimmed_unread_is_passed_over(patch: Any) -> None:
    patch.setattr(ReadOrder, "refuse_missed", ReadOrder.skip_missed)


@plants(
    "a shard that is to be ended is taken for ended", **{**READ, "starts": ("latest", "latest")}
)
def sealed_is_taken_for_ended(patch: Any) -> None:
    patch.setattr(starts, "_has_ended", lambda shard: shard.state is not ShardState.OPEN)


# --- what is left


@plants("logs of trimmed shards stay", **TRIMMED)
def logs_of_trimmed_shards_stay(patch: Any) -> None:
    genuine = StreamMeta.forgotten

    def forgotten(self: StreamMeta, numbers: Any) -> StreamMeta:
        return dataclasses.replace(genuine(self, numbers), trimmed=())

    patch.setattr(StreamMeta, "forgotten", forgotten)


@plants("numbers that shards inherited stay", **TRIMMED)
def numbers_stay(patch: Any) -> None:
    def sweep(site: Site, meta: StreamMeta) -> Any:
        yield from ()

    patch.setattr(removal, "_sweep_numbers", sweep)


@plants("a shard that has messages is trimmed", **TRIMMED)
def a_shard_that_has_messages_is_trimmed(patch: Any) -> None:
    async def status(*_: Any) -> None:
        await asyncio.sleep(0)

    patch.setattr(stream, "log_status", status)


@plants("a child is opened before its parents are ended", **{**TRIMMED, "ledgers_slow": 0.5})
def a_child_is_opened_before_its_parents_are_ended(patch: Any) -> None:
    def end_before(site: Site, seen: Any, numbers: Any) -> Any:
        yield from ()
        return seen

    patch.setattr(lanes, "end_before", end_before)
    patch.setattr(reshard, "end_before", end_before)
