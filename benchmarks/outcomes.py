"""python -m benchmarks.outcomes [--kills 1000] [--by numbers|tails] [--url URL | --cluster]
[--seconds S] [--json FILE]

Retrying without guessing, with kill -9 again and again. A parent has messages to append and keeps
what was not answered; a child opens the writer, appends what it is told and answers. The child dies
at a random crash point, or whenever it pleases the parent; the next one is told everything that was
not answered, again. At the end the log is read: each message is there once, in order, where the
answers said.

- `numbers`: three producers, many messages on their way at once, each with its producer's number.
- `tails`: one message at a time, appended only if the last one is the one before it.

`--cluster` starts ZooKeeper and four bookies of its own, and kills (-9) and freezes the bookies,
too, one at a time, while children die. `--seconds` ends it early, with as many kills as there were.

Exit code 1 if a message was lost or is there twice, or if a child was told of anything but servers
that do not answer (`Unavailable`, `Timeout`). That is counted: one bookie of four is little to fail
for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import dlog
from benchmarks.bookie_kills import BookieKills
from benchmarks.common import ROOT
from dlog import trace
from dlog.testing.cluster import Cluster

LOG = "outcomes"
PRODUCERS = 3
ON_THEIR_WAY = 40  # messages of each producer that the child is told before the first is answered
ON_THEIR_WAY_THERE = 12  # on a cluster, where lives are long: what was answered is kept in memory
POINTS_MAX = 300  # the child dies at one of so many crash points, if it dies there
LIFE_S_MAX = 0.25  # and else after so long
PATIENCE_S = 60.0
TICK_S = 0.05  # at most so long nobody looks after the bookies
SMALL = {"segment_bytes": 1 << 14}  # so that most lives see a rotation
JSON_PATH = ROOT / "build" / "benchmarks" / "outcomes.json"


@dataclass
class Tally:
    by: str
    kills: int = 0
    messages: int = 0
    sent: int = 0  # each try counts
    there: int = 0  # tries that were told: it is there
    lost: int = 0
    doubled: int = 0
    misplaced: int = 0
    took_s: float = 0.0
    bookie_kills: int = 0
    bookie_freezes: int = 0
    points: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)  # children were told: no answer
    refusals: Counter[str] = field(default_factory=Counter)  # and of anything else

    @property
    def is_right(self) -> bool:
        return self.lost == self.doubled == self.misplaced == 0 and not self.refusals


# --- the child: a writer that is told what to append


class Service:
    """Lines in, lines out: `producer number tail` to append; `ok|there producer number id`."""

    def __init__(self, url: str, by: str, requests: int, answers: int, dies_at: int) -> None:
        self._url, self._by = url, by
        self._requests, self._answers = requests, answers
        self._left = dies_at
        self._lock = threading.Lock()
        trace.listen(self._on_point)

    def _on_point(self, point: str, side: str) -> None:
        with self._lock:
            self._left -= 1
            dies = self._left == 0
        if dies:
            self._say(f"dying {point}:{side}")
            os.kill(os.getpid(), signal.SIGKILL)

    def _say(self, line: str) -> None:
        os.write(self._answers, f"{line}\n".encode())

    def serve(self) -> None:
        create = dlog.LogOptions(**SMALL)
        with dlog.open_writer(LOG, self._url, create=create, entry_bytes=600) as log:
            self._say("open")
            pending = b""
            while more := os.read(self._requests, 1 << 16):
                *lines, pending = (pending + more).split(b"\n")
                for line in lines:
                    producer, number, tail = line.decode().split()
                    self._append(log, int(producer), int(number), tail)
        self._say("closed")

    def _append(self, log: dlog.Writer, producer: int, number: int, tail: str) -> None:
        where = f"{producer} {number}"
        value = where.encode()

        def answer(ticket: dlog.Ticket) -> None:
            try:
                self._say(f"ok {where} {ticket.result(0)}")
            except dlog.DlogError as error:  # not answered: it will be sent again
                self._say(_told_of(error))

        try:
            if self._by == "numbers":
                ticket = log.submit(value, producer=(producer, number))
            else:
                if_tail = "empty" if tail == "empty" else dlog.MessageId.parse(tail)
                ticket = log.submit(value, if_tail=if_tail)
        except dlog.AlreadyExists as there:
            self._say(f"there {where} {there.id}")
        except dlog.Conflict as other:
            # Nobody else appends: what stands behind that tail is this very message.
            self._say(f"there {where} {other.tail}")
        else:
            ticket.add_done_callback(answer)


def _told_of(error: Exception) -> str:
    passes = isinstance(error, (dlog.Unavailable, dlog.Timeout))
    return f"{'failed' if passes else 'refused'} {type(error).__name__}"


# --- the parent: what it has to append, and what it was told


KILLS_MAX = 10  # times as many as asked for, until something had to be sent again


class Source:
    def __init__(self, by: str, tally: Tally, room: int) -> None:
        self._by, self._tally, self.room = by, tally, room
        self.answers: dict[tuple[int, int], str] = {}
        self._next = [0] * (PRODUCERS if by == "numbers" else 1)
        self._tail = "empty"
        self._waiting: list[tuple[int, int]] = []  # sent and not answered, in their order

    @property
    def unanswered(self) -> int:
        return sum(self._next) - len(self.answers)

    @property
    def has_sent_again(self) -> bool:
        """Or will: what is not answered is sent to the next child."""
        return self.unanswered > 0 or self._tally.sent > sum(self._next)

    @property
    def sent(self) -> list[tuple[int, int]]:
        return [(p, number) for p, end in enumerate(self._next) for number in range(end)]

    def begin(self) -> list[str]:
        """For a new child: all that was not answered, oldest first, and then more."""
        return [self._line(each) for each in self._waiting] + self.more()

    def more(self) -> list[str]:
        lines = []
        for producer, number in enumerate(self._next):
            room = self.room if self._by == "numbers" else 1
            room -= sum(each[0] == producer for each in self._waiting)
            fresh = [(producer, number + i) for i in range(room)]
            self._next[producer] += len(fresh)
            self._waiting += fresh
            lines += [self._line(each) for each in fresh]
        return lines

    def _line(self, message: tuple[int, int]) -> str:
        self._tally.sent += 1
        return f"{message[0]} {message[1]} {self._tail}"

    def hear(self, line: str) -> None:
        what, *words = line.split()
        if what not in ("ok", "there"):
            if what == "dying":
                self._tally.points[words[0]] += 1
            elif what == "failed":
                self._tally.failures[words[0]] += 1
            elif what == "refused":
                self._tally.refusals[words[0]] += 1
            return
        message = int(words[0]), int(words[1])
        self._tally.there += what == "there"
        if words[2] != "None":
            before = self.answers.setdefault(message, words[2])
            if before in ("None", words[2]):
                self.answers[message] = words[2]
            else:
                self._tally.misplaced += 1
            self._tail = words[2]
        self.answers.setdefault(message, "None")
        if message in self._waiting:
            self._waiting.remove(message)


class Child:
    def __init__(self, url: str, by: str, dies_at: int) -> None:
        their_requests, self.requests = os.pipe()
        self.answers, their_answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.requests)
            os.close(self.answers)
            status = 3
            try:
                Service(url, by, their_requests, their_answers, dies_at).serve()
                status = 0
            except (dlog.DlogError, OSError) as error:
                sys.stderr.write(f"a child ended: {error!r}\n")
                os.write(their_answers, f"{_told_of(error)}\n".encode())
            finally:
                os._exit(status)
        os.close(their_requests)
        os.close(their_answers)
        self._pending = b""
        self.closing = False

    def tell(self, lines: list[str]) -> None:
        try:
            os.write(self.requests, "".join(f"{line}\n" for line in lines).encode())
        except BrokenPipeError:
            pass  # it is dead: the next one is told

    def hear(self, until_s: float) -> list[str] | None:
        """What it said by then; None once it ended."""
        ready, _, _ = select.select([self.answers], [], [], max(until_s - time.monotonic(), 0.0))
        if not ready:
            return []
        more = os.read(self.answers, 1 << 16)
        if not more:
            return None
        *lines, self._pending = (self._pending + more).split(b"\n")
        return [line.decode() for line in lines]

    def close(self) -> None:
        """No more requests: it closes its log and ends."""
        if not self.closing:
            self.closing = True
            os.close(self.requests)

    def end(self) -> bool:
        """Whether it was killed."""
        os.close(self.answers)
        self.close()
        _, status = os.waitpid(self.pid, 0)
        return os.WIFSIGNALED(status)


def _load(url: str) -> None:
    """What children need, before they are forked: a life is shorter than the imports."""
    modules = ["sync.client", "ledger.embedded", "meta.sqlite"]
    if url.startswith("zk:"):
        modules = ["sync.client", "ledger.bookkeeper.store", "meta.zookeeper"]
    for module in modules:
        import_module(f"dlog.{module}")


def run(
    url: str,
    kills: int,
    by: str,
    seed: str,
    say: Callable[[str], None],
    *,
    seconds: float = float("inf"),
    bookies: BookieKills | None = None,
) -> Tally:
    _load(url)
    tally = Tally(by)
    source = Source(by, tally, _room(url))
    chance = random.Random(seed)
    began_s = time.monotonic()
    lives = 0
    while time.monotonic() - began_s < seconds:
        # A few kills may all strike where nothing is on its way, and then show nothing.
        if tally.kills >= (kills if source.has_sent_again else KILLS_MAX * kills):
            break
        at_a_point = chance.random() < 0.7
        # Low numbers more often: opening has few points, and each shall have its turn.
        dies_at = int(POINTS_MAX ** chance.random()) if at_a_point else -1
        child = Child(url, by, dies_at)
        life_s = PATIENCE_S if at_a_point else chance.random() * LIFE_S_MAX * _slowness(url)
        closes = chance.random() < 0.2
        _live(child, source, time.monotonic() + life_s, bookies, closes=closes)
        if not at_a_point:
            os.kill(child.pid, signal.SIGKILL)
            tally.points["any time"] += 1
        tally.kills += child.end()
        lives += 1
        if lives % 100 == 0:
            say(f"{tally.kills} kills, {len(source.answers)} answered, {source.unanswered} not")
            if bookies is not None:
                say(f"{bookies.kills} kills of bookies, {bookies.freezes} frozen")
    if bookies is not None:
        bookies.heal()
        tally.bookie_kills, tally.bookie_freezes = bookies.kills, bookies.freezes
    last = Child(url, by, -1)
    deadline_s = time.monotonic() + PATIENCE_S
    last.tell(source.begin())
    while source.unanswered and (lines := last.hear(deadline_s)):
        for line in lines:
            source.hear(line)
    last.close()
    while last.hear(deadline_s):
        pass
    last.end()
    tally.took_s = time.monotonic() - began_s
    _judge(url, source, tally)
    return tally


def _room(url: str) -> int:
    return ON_THEIR_WAY if url.startswith("file:") else ON_THEIR_WAY_THERE


def _slowness(url: str) -> float:
    return 1.0 if url.startswith("file:") else 8.0


def _live(
    child: Child, source: Source, until_s: float, bookies: BookieKills | None, *, closes: bool
) -> None:
    """Until it died, or its time is over. One that `closes` is told to, half-way, and may die at
    that."""
    is_open = False
    answered = 0
    while (lines := child.hear(_soon(until_s, bookies))) is not None:
        if bookies is not None:
            bookies.tick()
        if not lines and time.monotonic() >= until_s:
            return
        for line in lines:
            source.hear(line)
            if line == "open":
                is_open = True
                child.tell(source.begin())
            answered += line.startswith(("ok", "there"))
        if not child.closing and is_open:
            if closes and answered > source.room:
                child.close()
            else:
                child.tell(source.more())


def _soon(until_s: float, bookies: BookieKills | None) -> float:
    return until_s if bookies is None else min(until_s, time.monotonic() + TICK_S)


def _judge(url: str, source: Source, tally: Tally) -> None:
    with dlog.open_reader(LOG, url) as log:
        there = [(message.value, str(message.id)) for message in log]
    where: dict[bytes | None, str] = dict(there)
    counts = Counter(value for value, _ in there)
    tally.messages = len(counts)
    tally.doubled = sum(count - 1 for count in counts.values())
    for message in source.sent:
        value = f"{message[0]} {message[1]}".encode()
        tally.lost += value not in where
        told = source.answers.get(message, "None")
        tally.misplaced += value in where and told not in ("None", where[value])
    order = [tuple(map(int, (value or b"").split())) for value, _ in there]
    for producer in {each[0] for each in order}:
        numbers = [number for of, number in order if of == producer]
        tally.misplaced += numbers != sorted(numbers)


@contextlib.contextmanager
def _place(chosen: argparse.Namespace) -> Iterator[tuple[str, BookieKills | None]]:
    """Where the log is kept, and who breaks that."""
    if chosen.cluster:
        with Cluster() as cluster:
            yield cluster.url, BookieKills(cluster, chosen.seed)
    elif chosen.url:
        yield chosen.url, None
    else:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="dlog-bench-") as directory:
            yield f"file:{directory}/data", None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outcomes", description=__doc__)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--by", choices=("numbers", "tails"), default="numbers")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--url", help="of logs to be made; a directory of its own by default")
    place.add_argument(
        "--cluster", action="store_true", help="a cluster of its own, whose bookies die, too"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="kill for so long only")
    parser.add_argument("--seed", default="0", help="of when children die")
    parser.add_argument("--json", type=Path, default=JSON_PATH)
    chosen = parser.parse_args()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with _place(chosen) as (url, bookies):
        tally = run(
            url,
            chosen.kills,
            chosen.by,
            chosen.seed,
            say,
            seconds=chosen.seconds,
            bookies=bookies,
        )
    if bookies is not None:
        print(f"{tally.bookie_kills} kills of bookies, {tally.bookie_freezes} frozen")
    for failure, count in (tally.failures + tally.refusals).items():
        print(f"{count} times a child was told of {failure}")
    print(
        f"{tally.kills} kills at {len(tally.points)} places, {tally.messages} messages in "
        f"{tally.sent} tries, {tally.there} of which were there, in {tally.took_s:.0f} s: "
        f"{tally.lost} lost, {tally.doubled} there twice, {tally.misplaced} elsewhere than told"
    )
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(vars(tally), indent=1))
    sys.exit(0 if tally.is_right else 1)


if __name__ == "__main__":
    main()
