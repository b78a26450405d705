"""What was published into a log, by key: of each query its last batch.

A job that publishes its segments names the batch that they are (a query, and a number that rises),
so that a batch that is published again is known for what it is. The table is bounded: queries that
published longest ago are forgotten, and a log that forgot some says so. From then on a query that
it does not know may begin with number 0 only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from dlog import limits
from dlog.errors import FormatError, NotFound, check
from dlog.meta.json_fields import flat, the_bool, the_dict, the_int, the_list, the_value

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


@dataclass(frozen=True, slots=True)
class Published:
    """`batches` begin with the query that published longest ago."""

    batches: tuple[PublishedBatch, ...] = ()
    forgot: bool = False  # some query, in the log's life
    # The number of the newest segment before published ones where the numbers of producers stand:
    # it and what is behind it stay in the list.
    producers_at: int = NOT_NEEDED

    def of(self, query: str) -> PublishedBatch | None:
        return next((each for each in self.batches if each.query == query), None)

    def has(self, query: str, number: int) -> PublishedBatch | None:
        """The last batch of the query, if this one is it or was before it. `NotFound` where nobody
        can tell."""
        last = self.of(query)
        if last is not None:
            return last if number <= last.number else None
        if self.forgot and number > 0:
            raise NotFound(
                f"the query {query!r} is not known: this log remembers the "
                f"{limits.PUBLISHED_QUERIES_MAX} that published last, and others begin with number "
                f"0; whether its batch {number} is there, it cannot tell"
            )
        return None

    def noted(self, batch: PublishedBatch) -> Published:
        last = self.of(batch.query)
        check(last is None or last.number < batch.number, "batches of a query rise", last, batch)
        others = tuple(each for each in self.batches if each.query != batch.query)
        kept = (*others, batch)[-limits.PUBLISHED_QUERIES_MAX :]
        forgot = self.forgot or len(kept) <= len(others)
        return dataclasses.replace(self, batches=kept, forgot=forgot)

    def fields(self) -> dict[str, Any]:
        return {**flat(self), "batches": [flat(each) for each in self.batches]}

    @classmethod
    def from_fields(cls, raw: object, where: str) -> Published:
        fields = the_dict({"published": raw}, "published", where)
        batches = tuple(
            the_value(PublishedBatch, each, where) for each in the_list(fields, "batches", where)
        )
        if len({each.query for each in batches}) != len(batches):
            raise FormatError(f"{where}: two last batches of one query")
        return cls(
            batches, the_bool(fields, "forgot", where), the_int(fields, "producers_at", where)
        )
