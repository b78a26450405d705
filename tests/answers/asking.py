"""What is asked, what the plain reader answers, and how another way's answer is held against it.

A way is asked log by log (`of_logs`) or once for the name (`of_names`), a stream by all its shards.
It says beforehand which facts it tells; an answer with others, or without one of them, fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import dlog
from dlog.clock import us_datetime
from tests.answers.states import STATES, Content, Headers, World, by_key

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
ONE_DAY = datetime(2200, 1, 1, tzinfo=UTC)
LAST = 5
FACTS = ("rows", "head", "end", "count", "last_time_us")


class Row(NamedTuple):
    """One message, or what a way tells of it."""

    seq: int | None = None
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp_us: int | None = None
    event_time_us: int | None = None
    id: tuple[int, int, int] | None = None
    epoch: int | None = None


ALL_FIELDS = Row._fields
SENT = ("key", "value", "headers", "event_time_us")
CONTENT = ("seq", "key", "value", "headers", "timestamp_us", "event_time_us")
WITH_ID = (*CONTENT, "id")


def row_of(message: dlog.Message) -> Row:
    headers = tuple((name, bytes(value)) for name, value in message.headers)
    key = None if message.key is None else bytes(message.key)
    value = None if message.value is None else bytes(message.value)
    times = (message.timestamp_us, message.event_time_us)
    return Row(message.seq, key, value, headers, *times, tuple(message.id), message.epoch)


@dataclass(frozen=True)
class Answer:
    """Of one log. `head` is the seq where reading begins, `end` the one where it stops."""

    facts: Mapping[str, Any]
    error: str | None = None

    @classmethod
    def of(cls, **facts: Any) -> Answer:
        return cls(facts)

    @classmethod
    def failed(cls, error: dlog.DlogError) -> Answer:
        return cls({}, type(error).__name__)


Answers = dict[int, Answer]
"""By shard."""


# --- what is asked


@dataclass(frozen=True)
class Where:
    """A filter. Unlike a place to begin with, it may ask for what was truncated."""

    since: datetime | None = None
    until: datetime | None = None
    first_seq: int | None = None
    end_seq: int | None = None
    shard: int | None = None

    def holds(self, shard: int, row: Row) -> bool:
        assert row.timestamp_us is not None
        assert row.seq is not None
        at = us_datetime(row.timestamp_us)
        return (
            (self.since is None or at >= self.since)
            and (self.until is None or at < self.until)
            and (self.first_seq is None or row.seq >= self.first_seq)
            and (self.end_seq is None or row.seq < self.end_seq)
            and self.shard in (None, shard)
        )


@dataclass(frozen=True)
class Asked:
    """A question of one name: from where to where in each of its logs, `end` exclusive."""

    world: World
    name: str
    question: str
    start: Any = "earliest"
    end: Any = None
    last: int | None = None
    """Only so many, the youngest of all."""
    where: Where | None = None
    """Of all there is, only those of which this holds."""
    left: bool = False
    """What was truncated is not wanted."""

    @property
    def is_stream(self) -> bool:
        return self.world.stories[self.name].is_stream

    @property
    def logs(self) -> dict[int, str]:
        return self.world.shards(self.name)


def _all(asked: Asked, rows: list[Row]) -> Asked:
    return asked


def _middle(rows: list[Row]) -> datetime:
    """In whole milliseconds, since Spark knows no finer ones."""
    if not rows:
        return ONE_DAY
    times = sorted(row.timestamp_us or 0 for row in rows)
    return us_datetime(-(-times[len(times) // 2] // 1000) * 1000)


def _since(asked: Asked, rows: list[Row]) -> Asked:
    return _with(asked, start=_middle(rows))


def _since_long_ago(asked: Asked, rows: list[Row]) -> Asked:
    return _with(asked, start=LONG_AGO)


def _until(asked: Asked, rows: list[Row]) -> Asked:
    return _with(asked, end=_middle(rows))


def _seqs(asked: Asked, rows: list[Row]) -> Asked:
    first, end = _third(rows)
    return _with(asked, start=first, end=end)


def _third(rows: list[Row]) -> tuple[int, int]:
    seqs = sorted(row.seq or 0 for row in rows) or [0]
    return seqs[len(seqs) // 3], seqs[2 * len(seqs) // 3]


def _from_zero(asked: Asked, rows: list[Row]) -> Asked:
    return _with(asked, start=0)


def _left_since_long_ago(asked: Asked, rows: list[Row]) -> Asked:
    return _with(asked, start=LONG_AGO, left=True)


def _left_from_zero(asked: Asked, rows: list[Row]) -> Asked:
    return _with(asked, start=0, left=True)


def _last(asked: Asked, rows: list[Row]) -> Asked:
    return _with(asked, last=LAST)


def _where_since(asked: Asked, rows: list[Row]) -> Asked:
    return _with(asked, where=Where(since=_middle(rows)))


def _where_since_long_ago(asked: Asked, rows: list[Row]) -> Asked:
    return _with(asked, where=Where(since=LONG_AGO))


def _where_until(asked: Asked, rows: list[Row]) -> Asked:
    return _with(asked, where=Where(until=_middle(rows)))


def _where_seqs(asked: Asked, rows: list[Row]) -> Asked:
    first, end = _third(rows)
    return _with(asked, where=Where(first_seq=first, end_seq=end))


def _where_first_seqs(asked: Asked, rows: list[Row]) -> Asked:
    return _with(asked, where=Where(end_seq=10))


def _where_shard(asked: Asked, rows: list[Row]) -> Asked:
    return _with(asked, where=Where(shard=1 if asked.is_stream else 0))


_PARTS = ("start", "end", "last", "where", "left")


def _with(asked: Asked, **changed: Any) -> Asked:
    fields = {name: getattr(asked, name) for name in _PARTS}
    return Asked(asked.world, asked.name, asked.question, **{**fields, **changed})


QUESTIONS: dict[str, Callable[[Asked, list[Row]], Asked]] = {
    "all": _all,
    "since": _since,
    "since long ago": _since_long_ago,
    "until": _until,
    "seqs": _seqs,
    "from zero": _from_zero,
    "what is left since long ago": _left_since_long_ago,
    "what is left from zero": _left_from_zero,
    "last": _last,
    "where since": _where_since,
    "where since long ago": _where_since_long_ago,
    "where until": _where_until,
    "where seqs": _where_seqs,
    "where first seqs": _where_first_seqs,
    "where shard": _where_shard,
}
WHERE = tuple(name for name in QUESTIONS if name.startswith("where"))
LEFT = ("what is left since long ago", "what is left from zero")
OF_STREAM = ("all", "since", "since long ago", LEFT[0])
BY_TIME = (*OF_STREAM, "until")
BY_SEQ = ("seqs", "from zero", LEFT[1])
OF_ONE_LOG = (*BY_TIME, *BY_SEQ)


# --- the plain reader


class Plain:
    """The plain reader's answers, each asked for once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._known: dict[tuple[str, Any, Any, bool], Answer] = {}

    def of_log(
        self, log: str, start: Any = "earliest", end: Any = None, left: bool = False
    ) -> Answer:
        key = log, start, end, left
        if key not in self._known:
            self._known[key] = read_plainly(self.world.client, *key)
        return self._known[key]

    def of_logs(self, asked: Asked) -> Answers:
        """A log that is not made yet has nothing."""
        found = {
            number: self.of_log(log, asked.start, asked.end, asked.left)
            for number, log in asked.logs.items()
        }
        kept = {n: each for n, each in found.items() if each.error != "NotFound"}
        if asked.where is not None:
            return {n: _filtered(asked.where, n, each) for n, each in kept.items()}
        if asked.last is None:
            return kept
        tagged = [
            ((row.timestamp_us, number, row.seq), number, row)
            for number, each in kept.items()
            for row in each.facts["rows"]
        ]
        rows = rows_by_shard(
            (number, row)
            for _, number, row in sorted(tagged, key=lambda each: each[0])[-asked.last :]
        )
        return {number: Answer.of(rows=rows.get(number, [])) for number in kept}

    def of_name(self, asked: Asked) -> Answers:
        """Of all its logs at once. Which messages from a time on were in shards that are trimmed,
        nobody can say by the shards that are left."""
        found = self.of_logs(asked)
        if asked.left or not (asked.is_stream and isinstance(asked.start, datetime)):
            return found
        try:
            self.world.client.stream(asked.name).open_reader(start=asked.start).close()
        except dlog.Truncated as error:
            return dict.fromkeys(found or {0: None}, Answer.failed(error))
        return found

    def asked(self, name: str, question: str) -> Asked:
        plainly = self.of_logs(Asked(self.world, name, question))
        rows = [row for each in plainly.values() for row in each.facts["rows"]]
        return QUESTIONS[question](Asked(self.world, name, question), rows)


def _filtered(where: Where, number: int, answer: Answer) -> Answer:
    return Answer.of(rows=[row for row in answer.facts["rows"] if where.holds(number, row)])


def read_plainly(client: Any, log: str, start: Any, end: Any, left: bool) -> Answer:
    try:
        with client.open_reader(log, start=start, end=end, on_truncated=lenience(left)) as reader:
            head = reader.position.next_seq
            rows = [row_of(message) for message in reader]
            return Answer.of(
                rows=rows,
                head=head,
                end=reader.position.next_seq,
                count=len(rows),
                last_time_us=rows[-1].timestamp_us if rows else None,
            )
    except dlog.DlogError as error:
        return Answer.failed(error)


def lenience(left: bool) -> str:
    return "jump" if left else "raise"


def rows_by_shard(found: Iterable[tuple[int, Row]]) -> dict[int, list[Row]]:
    rows: dict[int, list[Row]] = defaultdict(list)
    for number, row in found:
        rows[number].append(row)
    return rows


def shard_answers(found: Iterable[tuple[int, Row]]) -> Answers:
    """Of what tells rows and nothing else."""
    return {number: Answer.of(rows=rows) for number, rows in rows_by_shard(found).items()}


def was_sent(world: World, name: str, rows: Iterable[Row]) -> bool:
    """Does what was read say what was sent and is left, each key in its order?"""
    story = world.stories[name]
    read = [Content(row.value, row.key, row.headers, row.event_time_us) for row in rows]
    if story.is_stream:
        return by_key(read) == by_key(story.left)
    return read == list(story.left)


# --- other ways


AskLog = Callable[[Asked, str], Answer]
AskName = Callable[[Asked], Answers]
But = Callable[[Asked, str], bool]


@dataclass(frozen=True)
class Way:
    """One way to ask. Of rows it tells `fields`."""

    name: str
    questions: tuple[str, ...]
    tells: frozenset[str]
    fields: tuple[str, ...]
    ask: AskName
    by_log: bool
    but: But
    """Logs that it cannot name."""


WAYS: dict[str, Way] = {}


def _none(asked: Asked, log: str) -> bool:
    return False


def is_a_stream_too(asked: Asked, log: str) -> bool:
    """The first shard of a log that was split: by the name of its log the stream is meant."""
    return asked.is_stream and log == asked.name


def of_names(
    name: str,
    *questions: str,
    tells: str = "rows",
    fields: tuple[str, ...] = ALL_FIELDS,
    ways: dict[str, Way] = WAYS,
    by_log: bool = False,
    but: But = _none,
) -> Callable[[AskName], AskName]:
    def add(ask: AskName) -> AskName:
        assert name not in ways, name
        assert set(questions) <= QUESTIONS.keys(), name
        facts = frozenset(tells.split())
        assert facts <= set(FACTS), name
        ways[name] = Way(name, questions or ("all",), facts, fields, ask, by_log, but)
        return ask

    return add


def of_logs(
    name: str, *questions: str, but: But = _none, **said: Any
) -> Callable[[AskLog], AskLog]:
    """Asked of each log, and of each shard by the name of its log."""

    def add(ask: AskLog) -> AskLog:
        def ask_each(asked: Asked) -> Answers:
            found: Answers = {}
            for number, log in asked.logs.items():
                if but(asked, log):
                    continue
                try:
                    found[number] = ask(asked, log)
                except dlog.NotFound:
                    continue
                except dlog.DlogError as error:
                    found[number] = Answer.failed(error)
            return found

        of_names(name, *questions, by_log=True, but=but, **said)(ask_each)
        return ask

    return add


def told_otherwise(way: Way, plain: Plain) -> list[str]:
    """In which states, asked what, a way answers otherwise than the plain reader."""
    return [
        f"{name}, {question}: {each}"
        for name in STATES
        for question in way.questions
        for each in differences(way, plain.asked(name, question), plain)
    ]


def differences(way: Way, asked: Asked, plain: Plain) -> list[str]:
    """What a way answers otherwise than the plain reader."""
    expected = plain.of_logs(asked) if way.by_log else plain.of_name(asked)
    expected = {
        n: each for n, each in expected.items() if not way.but(asked, asked.logs.get(n, ""))
    }
    failures = {each.error for each in expected.values()} - {None}
    try:
        told = way.ask(asked)
    except dlog.DlogError as error:
        # One question of all shards fails where one of them does.
        is_expected = not way.by_log and type(error).__name__ in failures
        return [] if is_expected else [f"{type(error).__name__}: {error}"]
    if failures and not way.by_log:
        return [f"an answer in place of {failures}"]
    return list(differ(expected, told, way.tells, way.fields))


def differ(
    expected: Answers, told: Answers, tells: frozenset[str], fields: tuple[str, ...]
) -> Iterator[str]:
    """Of each shard. One without messages may be missing where only messages are told."""
    nothing = Answer.of(rows=[]) if tells == {"rows"} else None
    for number in sorted(expected.keys() | told.keys()):
        want, got = expected.get(number, nothing), told.get(number, nothing)
        where = f"shard {number}"
        if want is None or got is None:
            yield f"{where}: {got} in place of {want}"
        elif want.error != got.error:
            yield f"{where}: error {got.error} in place of {want.error}"
        elif got.error is None and got.facts.keys() != tells:
            yield f"{where}: it tells {sorted(got.facts)}, not {sorted(tells)}"
        elif got.error is None:
            for fact, value in got.facts.items():
                if fact == "rows":
                    yield from _rows_differ(where, fields, want.facts["rows"], value)
                elif value != want.facts[fact]:
                    yield f"{where}: {fact} {value} in place of {want.facts[fact]}"


def _rows_differ(
    where: str, fields: tuple[str, ...], expected: list[Row], got: list[Row]
) -> Iterator[str]:
    if len(got) != len(expected):
        yield f"{where}: {len(got)} rows in place of {len(expected)}"
        return
    for want, row in zip(expected, got, strict=True):
        for name in fields:
            if getattr(want, name) != getattr(row, name):
                with suppress(TypeError):
                    yield (
                        f"{where}, seq {want.seq}: {name} is {getattr(row, name)!r:.80}, "
                        f"not {getattr(want, name)!r:.80}"
                    )
                return
