"""What a writer and a reader count of themselves, figure by figure."""

from __future__ import annotations

from collections.abc import Mapping

from dlog.reader.lag import Lag
from dlog.reader.message import MessageBatch
from dlog.reader.meter import ReaderMeter
from dlog.reason import ReasonCode, Wait
from dlog.wire.batch import decode, encode
from dlog.writer import meter as writer_meter
from dlog.writer.batch import Batch
from dlog.writer.meter import WriterMeter
from dlog.writer.times import TakeoverTimes

WAIT = Wait(ReasonCode.CLOSED, "it was closed")


class Told:
    """Every figure, by its name without `dlog.`, and the labels behind the log's."""

    def __init__(self) -> None:
        self.figures: list[tuple[str, float, str]] = []
        self.forgotten: list[str] = []

    def count(self, name: str, n: float, labels: Mapping[str, str]) -> None:
        assert labels["log"] == "orders"
        self._tell(name, n, labels)

    def level(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._tell(name, value, labels)

    observe = level

    def _tell(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        rest = [each for key, each in labels.items() if key != "log"]
        self.figures.append((name.removeprefix("dlog."), value, " ".join(rest)))

    def forget(self, labels: Mapping[str, str]) -> None:
        self.forgotten.append(" ".join(labels.values()))

    def taken(self) -> list[tuple[str, float, str]]:
        told, self.figures = self.figures, []
        return told


def batch(*values: bytes, sent_s: float = 0.0) -> Batch:
    made = Batch(list(values), sum(map(len, values)))
    made.sent_s = sent_s
    return made


async def test_a_writer_counts_what_it_sent_and_what_was_acknowledged() -> None:
    told, now_s = Told(), [10.0]
    meter = WriterMeter(told, "orders", lambda: now_s[0])
    first, second = batch(b"a", b"bcd", sent_s=7.0), batch(b"xy", sent_s=9.5)
    meter.sent([first, second])
    assert told.taken() == [], "once a second"
    meter.acked([first, second], taken_bytes=77)
    meter._flusher.now()
    assert told.taken() == [
        ("writer.messages", 3, ""),
        ("writer.bytes", 6, ""),
        ("writer.entries", 2, ""),
        ("writer.acked", 3, ""),
        ("writer.in_flight", 77, "writer"),
        ("writer.append", 3.0, ""),
        ("writer.append", 0.5, ""),
    ]
    meter.sent([batch(b"z")])
    meter._flusher.now()
    counts = told.taken()
    assert [value for _, value, _ in counts] == [1, 1, 1, 0, 77]
    meter.closed()
    assert told.taken() == [], "nothing was left to tell"
    assert told.forgotten == ["orders writer"]


async def test_what_was_gathered_is_told_when_the_writer_closes_or_there_is_much() -> None:
    told = Told()
    meter = WriterMeter(told, "orders", lambda: 1.0)
    most = writer_meter.TIMES_MAX
    meter.acked([batch(b"a")] * (most - 1), 5)
    assert told.taken() == []
    meter.acked([batch(b"a")], 4)
    assert len(told.taken()) == 5 + most
    meter.sent([batch(b"b")])
    meter.closed()
    assert ("writer.messages", 1, "") in told.taken()


async def test_the_single_events_of_a_writer() -> None:
    told = Told()
    meter = WriterMeter(told, "orders", lambda: 0.0)
    meter.opened(7, TakeoverTimes(1, 2, 3, 4, 5, 6, 100), 4096)
    assert told.taken() == [
        ("takeover.count", 1, ""),
        ("writer.epoch", 7, "writer"),
        ("writer.window", 4096, "writer"),
        ("takeover.step", 0.001, "detect"),
        ("takeover.step", 0.002, "claim"),
        ("takeover.step", 0.003, "fence"),
        ("takeover.step", 0.004, "recover"),
        ("takeover.step", 0.005, "commit"),
        ("takeover.step", 0.006, "seam"),
        ("takeover.step", 0.1, "birth"),
        ("takeover.step", 0.021, "total"),
    ]
    meter.window(99)
    meter.failed([batch(b"a", b"b"), batch(b"c")])
    meter.rotated()
    meter.stalled(WAIT)
    meter.stalled(None)
    assert told.taken() == [
        ("writer.window", 99, "writer"),
        ("writer.failed", 3, ""),
        ("writer.rotations", 1, ""),
        ("writer.stalled", 1, "writer"),
        ("writer.stalls", 1, WAIT.code.value),
        ("writer.stalled", 0, "writer"),
    ]


async def test_a_reader_counts_what_it_read_and_what_nobody_took() -> None:
    told = Told()
    meter = ReaderMeter(told, "orders")
    raw = b"".join(encode([b"a", b"b", b"c"], first_seq=0, timestamp_us=0))
    entry = decode(raw, where="here")
    batches = [
        MessageBatch(
            entry, ledger_id=1, entry_id=2, epoch=1, entry_seq=0, start=start, end=3, size=size
        )
        for start, size in ((0, 60), (1, 40))
    ]
    meter.read(batches, 100)
    assert told.taken() == []
    meter._flusher.now()
    assert told.taken() == [
        ("reader.messages", 5, ""),
        ("reader.bytes", 100, ""),
        ("reader.entries", 2, ""),
        ("reader.read_ahead", 100, "reader"),
    ]
    meter.taken()
    meter._flusher.now()
    assert [value for _, value, _ in told.taken()] == [0, 0, 0, 0]
    meter.lags(Lag(3, 40, 1.5))
    meter.stalled(WAIT)
    meter.stalled(None)
    assert told.taken() == [
        ("reader.lag.messages", 3, "reader"),
        ("reader.lag.bytes", 40, "reader"),
        ("reader.lag.seconds", 1.5, "reader"),
        ("reader.stalled", 1, "reader"),
        ("reader.stalls", 1, WAIT.code.value),
        ("reader.stalled", 0, "reader"),
    ]
    meter.read(batches[:1], 60)
    meter.closed()
    assert ("reader.messages", 3, "") in told.taken()
    assert told.forgotten == ["orders reader"]
