"""States that logs and streams of shards get into, each made once in one place, and what was sent
that must still be there.

`STATES` is the table: a builder for each name, found by its decorator. A builder makes the log or
stream of its state's name and gives back the messages that are left: of a log in their order, of a
stream in the order in which each key was sent.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import dlog
from dlog import backends

KEYS = [b"key %d" % number for number in range(8)]
SMALL = dlog.LogOptions(segment_bytes=1 << 14)
Place = Literal["file", "memory"]
Headers = tuple[tuple[str, bytes], ...]


class Content(NamedTuple):
    """What was sent. Everything else about a message was decided by the log."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    event_time_us: int | None = None


@dataclass
class Making:
    """Where states are made."""

    client: Any
    elsewhere: Any
    """A client of another place."""
    open: ExitStack = field(default_factory=ExitStack)
    """What stays open while questions are asked."""


Builder = Callable[[Making, str], list[Content]]


class State(NamedTuple):
    name: str
    is_stream: bool
    build: Builder


STATES: dict[str, State] = {}


def _state(name: str, *, is_stream: bool) -> Callable[[Builder], Builder]:
    def add(build: Builder) -> Builder:
        assert name not in STATES, name
        STATES[name] = State(name, is_stream, build)
        return build

    return add


def log(name: str) -> Callable[[Builder], Builder]:
    return _state(name, is_stream=False)


def stream(name: str) -> Callable[[Builder], Builder]:
    return _state(name, is_stream=True)


@dataclass(frozen=True)
class Story:
    """A state that was made."""

    name: str
    is_stream: bool
    left: tuple[Content, ...]


@dataclass
class World:
    """One place with a log or stream in each state."""

    url: str
    client: Any
    stories: dict[str, Story]
    scratch: Path
    """For files that answers are written to."""
    copies: Any
    """A client of another place, for copies; and its URL."""
    copies_url: str
    _counts: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self) -> str:
        """A name that nothing has yet: of a file, a group, or a copy in another place."""
        return f"fresh-{next(self._counts)}"

    def shards(self, name: str) -> dict[int, str]:
        """The logs of what has this name, by the numbers of their shards, made or not."""
        if not self.stories[name].is_stream:
            return {0: name}
        return {shard.number: shard.log for shard in self.client.stream(name).shards()}


@contextmanager
def made_world(scratch: Path, place: Place = "file") -> Iterator[World]:
    """In files below `scratch`, or in this process."""
    urls = [_url(place, scratch, name) for name in ("place", "elsewhere", "copies")]
    with ExitStack() as kept:
        client, elsewhere, copies = (kept.enter_context(dlog.connect(url)) for url in urls)
        making = Making(client, elsewhere, kept)
        stories = {
            state.name: Story(state.name, state.is_stream, tuple(state.build(making, state.name)))
            for state in STATES.values()
        }
        yield World(urls[0], client, stories, scratch, copies, urls[2])
    for url in urls:
        backends._memory_worlds.pop(url.removeprefix("memory:"), None)


def _url(place: Place, scratch: Path, name: str) -> str:
    return f"file:{scratch / name}" if place == "file" else f"memory:{scratch.name}-{name}"


# --- parts of builders


def numbered(first: int, end: int, size: int = 40) -> list[Content]:
    return [
        Content((b"%d " % n).ljust(size, b"."), KEYS[n % len(KEYS)] if n % 5 else None)
        for n in range(first, end)
    ]


def append(writer: Any, contents: Iterable[Content], *, run: int = 10) -> list[Content]:
    """In runs of one entry each."""
    sent = list(contents)
    for at in range(0, len(sent), run):
        some = sent[at : at + run]
        writer.append_many([each.value for each in some], keys=[each.key for each in some])
    return sent


def append_singly(writer: Any, contents: Iterable[Content]) -> list[Content]:
    sent = list(contents)
    for each in sent:
        writer.append(each.value, key=each.key, headers=each.headers, event_time=each.event_time_us)
    return sent


def write(making: Making, name: str, contents: Iterable[Content], **options: Any) -> list[Content]:
    with making.client.open_writer(name, **options) as writer:
        return append(writer, contents)


class Sent:
    """A stream that is written round by round: a message of each key in each round."""

    def __init__(self, making: Making, name: str, **options: Any) -> None:
        self.client, self.name = making.client, name
        self.left: list[Content] = []
        self._rounds = itertools.count()
        if options:
            making.client.create_stream(name, **options)

    @property
    def stream(self) -> Any:
        return self.client.stream(self.name)

    def rounds(self, count: int = 2) -> None:
        with self.stream.open_writer() as writer:
            for number in itertools.islice(self._rounds, count):
                for key in KEYS:
                    event_us = None if number % 2 else number * 1_000_000
                    writer.submit(b"%d" % number, key=key, event_time=event_us)
                    self.left.append(Content(b"%d" % number, key, (), event_us))
                writer.flush()

    def truncate(self, *numbers: int, trim: bool = False) -> None:
        """Wholly, what these shards have; and with `trim` the shards go, too."""
        logs = {shard.number: shard.log for shard in self.stream.shards()}
        for number in numbers:
            with self.client.open_reader(logs[number]) as reader:
                gone = {(message.key, message.value) for message in reader}
            self.left = [each for each in self.left if (each.key, each.value) not in gone]
            self.client.admin.truncate(logs[number], "latest")
        if trim:
            assert set(numbers) <= set(self.stream.trim())


# --- logs


@log("empty")
def _empty(making: Making, name: str) -> list[Content]:
    making.client.admin.create(name)
    return []


@log("opened")
def _opened(making: Making, name: str) -> list[Content]:
    """Writers came and went without a message."""
    for _ in range(2):
        making.client.open_writer(name).close()
    return []


@log("one")
def _one(making: Making, name: str) -> list[Content]:
    return write(making, name, [Content(b"alone", b"k")])


@log("segments")
def _segments(making: Making, name: str) -> list[Content]:
    sent = write(making, name, numbered(0, 300, 200), create=SMALL)
    assert len(making.client.admin.segments(name)) >= 3
    return sent


@log("tail-open")
def _tail_open(making: Making, name: str) -> list[Content]:
    sent = write(making, name, numbered(0, 30))
    writer = making.open.enter_context(making.client.open_writer(name))
    return sent + append(writer, numbered(30, 60))


@log("taken-over")
def _taken_over(making: Making, name: str) -> list[Content]:
    """Three writers, each fenced by the next one, and no ledger was closed by its own."""
    sent: list[Content] = []
    for first in range(0, 60, 20):
        writer = making.open.enter_context(making.client.open_writer(name))
        sent += append(writer, numbered(first, first + 20))
    return sent


@log("truncated-between")
def _truncated_between(making: Making, name: str) -> list[Content]:
    sent = write(making, name, numbered(0, 400, 200), create=SMALL)
    second = making.client.admin.segments(name)[1]
    making.client.admin.truncate(name, before=second.base_seq)
    return sent[second.base_seq :]


@log("truncated-inside")
def _truncated_inside(making: Making, name: str) -> list[Content]:
    """In the middle of an entry."""
    sent = write(making, name, numbered(0, 60))
    making.client.admin.truncate(name, before=27)
    with making.client.open_reader(name) as reader:
        assert next(iter(reader)).batch_idx > 0
    return sent[27:]


@log("truncated-wholly")
def _truncated_wholly(making: Making, name: str) -> list[Content]:
    write(making, name, numbered(0, 60))
    making.client.admin.truncate(name, "latest")
    return []


@log("goes-on-truncated")
def _goes_on_truncated(making: Making, name: str) -> list[Content]:
    """After everything had been truncated."""
    write(making, name, numbered(0, 60))
    making.client.admin.truncate(name, "latest")
    return write(making, name, numbered(60, 75))


@log("collected")
def _collected(making: Making, name: str) -> list[Content]:
    sent = write(making, name, numbered(0, 400, 200), create=SMALL)
    making.client.admin.truncate(name, before=250)
    making.client.admin.collect(name)
    return sent[250:]


@log("held")
def _held(making: Making, name: str) -> list[Content]:
    """A truncation stopped at a hold."""
    sent = write(making, name, numbered(0, 60))
    making.client.admin.hold(name, "reports", 12)
    assert making.client.admin.truncate(name, before=50).head_seq == 12
    return sent[12:]


@log("terminated")
def _terminated(making: Making, name: str) -> list[Content]:
    sent = write(making, name, numbered(0, 60))
    making.client.admin.terminate(name)
    return sent


@log("terminated-wholly-truncated")
def _terminated_wholly_truncated(making: Making, name: str) -> list[Content]:
    _terminated(making, name)
    making.client.admin.truncate(name, "latest")
    return []


@log("odd-messages")
def _odd_messages(making: Making, name: str) -> list[Content]:
    """Tombstones, nothing at all, bytes that are no text, headers of one name."""
    odd = [
        Content(None, b"k"),
        Content(None),
        Content(b"", b""),
        Content(b"\xff\x00\n", b"\xfe"),
        Content("schön".encode(), "ключ".encode(), (("h", b"1"), ("h", b""), ("ü", b"\xff"))),
        Content(b"plain"),
        Content(b"last", b"k", (("h", b"x" * 300),)),
    ]
    with making.client.open_writer(name) as writer:
        return append_singly(writer, odd * 5)


@log("event-times")
def _event_times(making: Making, name: str) -> list[Content]:
    """Before 1970, of years that Python has no datetime for, and none."""
    times = [None, 0, -7, 1_580_702_645_000_006, -62_000_000_000_000_000, 1 << 60, -(1 << 60)]
    with making.client.open_writer(name) as writer:
        return append_singly(
            writer, [Content(b"%d" % n, b"k", (), at) for n, at in enumerate(times)]
        )


@log("large-values")
def _large_values(making: Making, name: str) -> list[Content]:
    with making.client.open_writer(name, create=SMALL) as writer:
        return append_singly(writer, [Content(b"%d" % n * 200_000, b"k") for n in range(4)])


@log("compressed")
def _compressed(making: Making, name: str) -> list[Content]:
    """By each codec, in one log."""
    sent: list[Content] = []
    for at, codec in enumerate(("zstd", "none", "lz4")):
        sent += write(making, name, numbered(30 * at, 30 * at + 30), codec=codec)
    return sent


@log("copied")
def _copied(making: Making, name: str) -> list[Content]:
    """From elsewhere, where a part of it had been truncated."""
    with making.elsewhere.open_writer("source", create=SMALL) as writer:
        sent = append(writer, numbered(0, 300, 200))
    making.elsewhere.admin.truncate("source", before=105)
    dlog.copy_log(making.elsewhere, "source", making.client, name)
    return sent[105:]


@log("made-again")
def _made_again(making: Making, name: str) -> list[Content]:
    write(making, name, numbered(0, 60))
    making.client.admin.remove(name)
    return write(making, name, numbered(100, 130))


@log("published")
def _published(making: Making, name: str) -> list[Content]:
    """Jobs filled two segments beside it, of which one stayed empty."""
    sent = write(making, name, numbered(0, 20))
    filled = []
    for contents in (numbered(20, 45), []):
        with making.client.admin.open_segment(name, job="job") as segment:
            sent += append(segment, contents)
            filled.append(segment.close())
    making.client.admin.publish_segments(name, filled, key=("query", 0))
    return sent + write(making, name, numbered(45, 50))


# --- streams of shards


@stream("unwritten")
def _unwritten(making: Making, name: str) -> list[Content]:
    """No shard has a log yet."""
    making.client.create_stream(name, shards=3)
    return []


@stream("shards")
def _shards(making: Making, name: str) -> list[Content]:
    sent = Sent(making, name, shards=3)
    sent.rounds()
    return sent.left


@stream("ketama")
def _ketama(making: Making, name: str) -> list[Content]:
    sent = Sent(making, name, shards=3, routing="ketama", weights=[1, 2, 3])
    sent.rounds()
    return sent.left


@stream("was-a-log")
def _was_a_log(making: Making, name: str) -> list[Content]:
    """A plain log that was split, and written again."""
    with making.client.open_writer(name) as writer:
        before = append(writer, [Content(b"log", key) for key in KEYS])
    sent = Sent(making, name)
    sent.stream.split(0)
    sent.rounds()
    return before + sent.left


@stream("was-an-empty-log")
def _was_an_empty_log(making: Making, name: str) -> list[Content]:
    making.client.admin.create(name)
    making.client.stream(name).split(0)
    return []


@stream("split")
def _split(making: Making, name: str) -> list[Content]:
    sent = Sent(making, name, shards=2)
    sent.rounds()
    sent.stream.split(0)
    sent.rounds()
    return sent.left


@stream("split-unwritten")
def _split_unwritten(making: Making, name: str) -> list[Content]:
    """Nobody wrote since it was split."""
    sent = Sent(making, name, shards=1)
    sent.rounds()
    sent.stream.split(0, parts=3)
    return sent.left


@stream("merged")
def _merged(making: Making, name: str) -> list[Content]:
    sent = Sent(making, name, shards=2)
    sent.rounds()
    sent.stream.merge(0, 1)
    sent.rounds()
    return sent.left


@stream("split-and-merged")
def _split_and_merged(making: Making, name: str) -> list[Content]:
    sent = Sent(making, name, shards=2)
    sent.rounds()
    _, high = sent.stream.split(0)
    sent.rounds()
    sent.stream.merge(high.number, 1)
    sent.rounds()
    return sent.left


@stream("split-and-trimmed")
def _split_and_trimmed(making: Making, name: str) -> list[Content]:
    sent = Sent(making, name, shards=2)
    sent.rounds()
    sent.stream.split(0)
    sent.rounds()
    sent.truncate(0, trim=True)
    return sent.left


@stream("trimmed-unwritten")
def _trimmed_unwritten(making: Making, name: str) -> list[Content]:
    """All that had messages is gone; what follows it has no log."""
    sent = Sent(making, name, shards=1)
    sent.rounds()
    sent.stream.split(0)
    sent.truncate(0, trim=True)
    assert sent.left == []
    return sent.left


@stream("trimmed-twice")
def _trimmed_twice(making: Making, name: str) -> list[Content]:
    """Two generations of shards, the later of which never had a message."""
    sent = Sent(making, name, shards=1)
    sent.rounds()
    low, _ = sent.stream.split(0)
    sent.stream.split(low.number)
    sent.rounds()
    sent.truncate(0, trim=True)
    return sent.left


@stream("shard-truncated")
def _shard_truncated(making: Making, name: str) -> list[Content]:
    sent = Sent(making, name, shards=2)
    sent.rounds()
    sent.truncate(0)
    sent.rounds()
    return sent.left


@stream("stream-made-again")
def _stream_made_again(making: Making, name: str) -> list[Content]:
    first = Sent(making, name, shards=2)
    first.rounds()
    first.stream.split(0)
    first.stream.remove()
    sent = Sent(making, name, shards=3)
    sent.rounds()
    return sent.left


@stream("log-made-a-stream-again")
def _log_made_a_stream_again(making: Making, name: str) -> list[Content]:
    """A plain log was removed, and a stream has its name."""
    write(making, name, numbered(0, 20))
    making.client.admin.remove(name)
    sent = Sent(making, name, shards=2)
    sent.rounds()
    return sent.left


@stream("pinned")
def _pinned(making: Making, name: str) -> list[Content]:
    sent = Sent(making, name, shards=2, pins={KEYS[0]: 1})
    sent.rounds()
    sent.stream.pin(KEYS[1], 0)
    sent.stream.pin(KEYS[2], 1)
    sent.rounds()
    return sent.left


@stream("terminated-stream")
def _terminated_stream(making: Making, name: str) -> list[Content]:
    sent = Sent(making, name, shards=2)
    sent.rounds()
    sent.stream.split(0)
    sent.rounds()
    sent.stream.terminate()
    return sent.left


def by_key(contents: Iterable[Content]) -> dict[bytes | None, list[Content]]:
    found: dict[bytes | None, list[Content]] = defaultdict(list)
    for each in contents:
        found[each.key].append(each)
    return found
