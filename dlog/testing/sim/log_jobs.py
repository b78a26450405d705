"""Simulated jobs: each query runs its batches one after another, and each batch until it is told
that it is there: fills segments, publishes them, and discards what earlier tries left. Its notes
survive its crashes, and sometimes a second process runs the same batch beside the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from dlog.admin.discard import Discarding, discard
from dlog.admin.publish import Publication, Publishing, publish
from dlog.effects import CloseLedger, CreateLedger, Effect, Procedure
from dlog.errors import (
    ConfigError,
    Conflict,
    DlogError,
    Fenced,
    NotFound,
    Outcome,
    Unavailable,
    Unsupported,
)
from dlog.meta.cas import read_log
from dlog.meta.listed import WriterMark
from dlog.meta.log_meta import LogMeta
from dlog.reader.message import Message
from dlog.testing.sim.clients import Scene, SimClient
from dlog.testing.sim.log_job_oracle import OF_A_JOB
from dlog.testing.sim.log_oracle import LAYOUT, NAME, PATH, Handle, Sent
from dlog.testing.sim.log_readers import may_be_told
from dlog.testing.sim.metadata import Answered
from dlog.testing.sim.world import require
from dlog.wire.batch import encode
from dlog.writer.filled import FilledSegment
from dlog.writer.segments import job_ledger
from dlog.writer.takeover import Opening, refuse_unless_open
from dlog.writer.times import Stopwatch

AGAIN_MIN_MS, AGAIN_MS = 5.0, 80.0


@dataclass(slots=True, eq=False)
class Attempt:
    """One try at a batch, in the log of this uid."""

    uid: str
    query: str
    number: int
    sent: list[Sent] = field(default_factory=list)  # in the order of their ledgers
    filled: list[FilledSegment] = field(default_factory=list)
    ledgers: list[int] = field(default_factory=list)
    told: Publication | None = None


@dataclass(slots=True, eq=False)
class Query:
    """What is written down where no crash of a job reaches it."""

    name: str
    number: int = 0  # of the batch that is to be run
    attempts: list[Attempt] = field(default_factory=list)
    answered: set[tuple[str, int]] = field(default_factory=set)  # uid and batch


class SimJob(SimClient):
    """One process that runs the batch of a query that is due."""

    def __init__(self, scene: Scene, name: str, query: Query) -> None:
        super().__init__(scene, name)
        self.oracle = scene.oracle
        self.query = query
        self.is_done = False
        self.error: DlogError | None = None
        self._attempt: Attempt | None = None
        self._wanted: dict[int, int] = {}  # the last entry of each ledger that is being filled
        self._confirmed: dict[int, int] = {}
        self._closing = False
        self._last_us = 0

    def begin(self) -> None:
        self.run(self._make(), self._made)

    # --- filling

    def _make(self) -> Procedure[tuple[LogMeta, list[int]]]:
        for old in list(self.query.attempts):
            if old.told is None and old.ledgers:
                work = Discarding(NAME, old.uid, LAYOUT, self.now_us(), self)
                done = yield from discard(work, tuple(old.ledgers))
                self.world.mark("a segment was discarded" if done.deleted else "none was discarded")
        seen = yield from read_log(PATH)
        refuse_unless_open(seen.meta, NAME)
        ledger_ids = []
        for _ in range(self.world.chance.pick((1, 1, 2), "segments of a batch")):
            made = yield from job_ledger(seen.meta, token=self.token(), now_us=self.now_us())
            ledger_ids.append(made)
        return seen.meta, ledger_ids

    def perform(self, effect: Effect, answer: Answered) -> None:
        if isinstance(effect, CreateLedger):
            super().perform(effect, lambda made, error: self._created(made, error, answer))
        else:
            super().perform(effect, answer)

    def _created(self, ledger_id: int | None, error: DlogError | None, answer: Answered) -> None:
        if ledger_id is not None:
            self.oracle.jobs.ledgers.add(ledger_id)
            self.ledgers.listen(ledger_id, self)
        answer(ledger_id, error)

    def _made(self, made: tuple[LogMeta, list[int]] | None, error: DlogError | None) -> None:
        if made is None:
            self._over(error)
            return
        if self.is_done:  # one of them failed meanwhile
            return
        meta, ledger_ids = made
        query = self.query
        attempt = self._attempt = Attempt(meta.uid, query.name, query.number)
        attempt.ledgers = sorted(ledger_ids)
        query.attempts.append(attempt)
        handle = Handle(self.name, OF_A_JOB, meta.uid)
        self._last_us = meta.end.last_time_us
        for ledger_id in attempt.ledgers:
            self._fill(attempt, handle, ledger_id)
        if self.world.chance.hits(0.1, f"{self.name} does not wait until it is closed"):
            self._publish()

    def _fill(self, attempt: Attempt, handle: Handle, ledger_id: int) -> None:
        chance, messages, first_us = self.world.chance, 0, 0
        entries = chance.pick((1, 2, 3), "entries of a segment")
        for _ in range(entries):
            count = chance.pick((1, 1, 3), "messages of an entry")
            values = [
                f"{self.name}.{attempt.number}.{ledger_id}.{messages + i}".encode()
                for i in range(count)
            ]
            attempt.sent += self.oracle.jobs.filled(handle, values, Sent)
            self._last_us = max(self.now_us(), self._last_us)
            first_us = first_us or self._last_us
            buffers = encode(list(values), first_seq=messages, timestamp_us=self._last_us)
            self.ledgers.submit(ledger_id, buffers)
            messages += count
        self._wanted[ledger_id] = entries
        attempt.filled.append(
            FilledSegment(
                NAME, attempt.uid, self.name, ledger_id, entries, messages, 0, first_us,
                self._last_us,
            )
        )  # fmt: skip

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        self._confirmed[ledger_id] = last_entry
        is_full = all(self._confirmed.get(each) == last for each, last in self._wanted.items())
        if self._wanted and is_full and not self._closing and not self.is_done:
            self._closing = True
            self.after(0.0, lambda: self.run(self._close(), self._closed))

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        pass

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        if not self._closing:
            self._over(error)

    def _close(self) -> Procedure[dict[int, int]]:
        found = {}
        for ledger_id, last in self._wanted.items():
            closed = yield CloseLedger(ledger_id, point="job.closed")
            if closed.last_entry != last:
                raise Conflict("somebody else closed it")
            found[ledger_id] = closed.bytes
        return found

    def _closed(self, found: dict[int, int] | None, error: DlogError | None) -> None:
        if found is None:
            self._over(error)
            return
        attempt = self._attempt
        assert attempt is not None
        attempt.filled = [
            FilledSegment(
                NAME, attempt.uid, self.name, each.ledger_id, each.last_entry, each.messages,
                found[each.ledger_id], each.first_time_us, each.last_time_us,
            )
            for each in attempt.filled
        ]  # fmt: skip
        self._publish()

    # --- publishing

    def _publish(self) -> None:
        attempt = self._attempt
        assert attempt is not None
        self._closing = True
        opening = Opening(
            NAME,
            LAYOUT,
            WriterMark(self.token(), self.name, 0),
            "always",
            None,
            "",
            self.now_us,
            self,
            Stopwatch(self.now_s),
        )
        publishing = Publishing(
            opening, attempt.query, attempt.number, tuple(attempt.filled), attempt.uid
        )
        self.run(publish(publishing), self._published)

    def _published(self, told: Publication | None, error: DlogError | None) -> None:
        attempt, query = self._attempt, self.query
        assert attempt is not None
        if told is None:
            assert error is not None
            if error.outcome is Outcome.NOT_HAPPENED and not _is_about_metadata(error):
                self.oracle.jobs.refused(attempt.sent, error)
            self._over(error)
            return
        self.world.mark("published" if told.published else "published before")
        self.world.note(f"{self.name}: {told}")
        query.answered.add((attempt.uid, attempt.number))
        if told.published:
            attempt.told = told
            assert told.next_seq is not None
            self.oracle.jobs.published(attempt.uid, told.next_seq - 1)
        query.number = max(query.number, attempt.number + 1)
        self._over(None)

    def _over(self, error: DlogError | None) -> None:
        if self.is_done:
            return
        self.is_done, self.error = True, error
        for ledger_id in self.ledgers.held():
            self.ledgers.let_go(ledger_id)
        if error is None:
            return
        self.world.note(f"{self.name}: {error}")
        if isinstance(error, Conflict):
            self.world.mark("a batch is to be run again")
        honest = isinstance(error, (NotFound, Unsupported, Conflict, ConfigError, Fenced))
        gave_up = isinstance(error, Unavailable)  # an appender does, for good
        honest = honest or gave_up or may_be_told(self.scene, error)
        require(honest, "I24", self.name, "was told", error)


def _is_about_metadata(error: DlogError) -> bool:
    """Of such an error nobody concludes anything."""
    return not isinstance(error, (Conflict, ConfigError))


def check_jobs(uid: str, queries: Sequence[Query], log: list[Message], head_seq: int) -> None:
    """Each batch is there once, whole and in order, or not at all."""
    at = {message.value: message for message in log}
    attempts = [each for query in queries for each in query.attempts if each.uid == uid]
    attempts.sort(key=lambda each: (each.query, each.number))
    for (query, number), tries in itertools.groupby(
        attempts, key=lambda each: (each.query, each.number)
    ):
        there = []
        for each in tries:
            found = [at.get(sent.value) for sent in each.sent]
            seqs = [message.seq for message in found if message is not None]
            whole = len(seqs) == len(found) or (head_seq > 0 and found[-1] is not None)
            require(not seqs or whole, "I15", "a batch is there in part", query, number, seqs)
            in_a_row = all(b == a + 1 for a, b in itertools.pairwise(seqs))
            require(in_a_row, "I5", "a batch is not in order", query, number, seqs)
            if seqs:
                there.append(each)
            told = each.told
            kept = told is not None and told.next_seq is not None and told.next_seq > head_seq
            require(bool(seqs) or not kept, "I1", "a published batch is lost", query, number, told)
        require(len(there) <= 1, "I5", "a batch is there twice", query, number)
    for asked in queries:
        for of, number in asked.answered:
            if of != uid or head_seq > 0:
                continue
            found_one = any(
                a.number == number and a.sent and a.sent[0].value in at
                for a in asked.attempts
                if a.uid == uid
            )
            require(found_one, "I1", "a batch was told to be there, and is not", asked.name, number)
