"""What was published into a log, by key: of each query its last batch.

A job that publishes its segments names the batch that they are (a query, and a number that rises),
so that a batch that is published again is known for what it is. The table is bounded: queries that
published longest ago are forgotten, and a filter of their names is kept (`dlog.forgotten`). A query
that is in it is refused at every number, 0 too; one that is not was never heard of.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from dlog import limits
from dlog.errors import FormatError, NotFound, check
from dlog.forgotten import ALL_NAMES, ForgottenNames
from dlog.meta.json_fields import (
    flat,
    optional_str,
    the_bool,
    the_dict,
    the_int,
    the_list,
    the_value,
)

# A query whose name begins so publishes one batch, under a name that is drawn for it. What protects
# that batch are its segments, which are listed once; so it takes no room from other queries.
ONE_OFF = "one-off:"
NOT_NEEDED = -1  # no table of producers stands before segments that were published


@dataclass(frozen=True, slots=True)
class PublishedBatch:
    """The last batch of one query, and where its messages stand."""

    query: str
    number: int
    token: str  # of whoever published it
    epoch: int
    base_seq: int
    next_seq: int

    @property
    def is_one_off(self) -> bool:
        return self.query.startswith(ONE_OFF)


@dataclass(frozen=True, slots=True)
class Published:
    """`batches` begin with the query that published longest ago."""

    batches: tuple[PublishedBatch, ...] = ()
    forgot: bool = False  # some query, in the log's life
    # The number of the newest segment before published ones where the numbers of producers stand:
    # it and what is behind it stay in the list.
    producers_at: int = NOT_NEEDED
    # The names of the queries that were forgotten; empty where some were and it is not known which.
    forgotten: ForgottenNames = field(default_factory=ForgottenNames)

    def of(self, query: str) -> PublishedBatch | None:
        return next((each for each in self.batches if each.query == query), None)

    def has(self, query: str, number: int) -> PublishedBatch | None:
        """The last batch of the query, if this one is it or was before it. `NotFound` where nobody
        can tell."""
        last = self.of(query)
        if last is not None:
            return last if number <= last.number else None
        if query.startswith(ONE_OFF):
            return None
        if self.forgot and query in (self.forgotten or ALL_NAMES):
            known = f"the last batch of the {limits.PUBLISHED_QUERIES_MAX} that published last"
            raise NotFound(
                f"the query {query!r} is not known any more: this log remembers {known}, and this "
                f"one may be among those that it forgot. Whether its batch {number} is there, it "
                "cannot tell. Read the log to find out, and go on under a name of a query that was "
                "never used here"
            )
        return None

    def noted(self, batch: PublishedBatch) -> Published:
        last = self.of(batch.query)
        check(last is None or last.number < batch.number, "batches of a query rise", last, batch)
        there = (*(each for each in self.batches if each.query != batch.query), batch)
        one_off = [each for each in there if each.is_one_off]
        gone = set(one_off[: -limits.PUBLISHED_ONE_OFF_MAX])
        queries = [each for each in there if not each.is_one_off]
        dropped = queries[: -limits.PUBLISHED_QUERIES_MAX]
        kept = tuple(each for each in there if each not in gone and each not in dropped)
        if not dropped:
            return dataclasses.replace(self, batches=kept)
        forgotten = self.forgotten or (ALL_NAMES if self.forgot else ForgottenNames())
        for each in dropped:
            forgotten = forgotten.with_name(each.query)
        return dataclasses.replace(self, batches=kept, forgot=True, forgotten=forgotten)

    def fields(self) -> dict[str, Any]:
        fields = {**flat(self), "batches": [flat(each) for each in self.batches]}
        del fields["forgotten"]
        if self.forgotten:
            fields["forgotten"] = self.forgotten.to_text()
        return fields

    @classmethod
    def from_fields(cls, raw: object, where: str) -> Published:
        fields = the_dict({"published": raw}, "published", where)
        batches = tuple(
            the_value(PublishedBatch, each, where) for each in the_list(fields, "batches", where)
        )
        if len({each.query for each in batches}) != len(batches):
            raise FormatError(f"{where}: two last batches of one query")
        forgotten = optional_str(fields, "forgotten", where)
        return cls(
            batches,
            the_bool(fields, "forgot", where),
            the_int(fields, "producers_at", where),
            ForgottenNames() if forgotten is None else ForgottenNames.from_text(forgotten, where),
        )
