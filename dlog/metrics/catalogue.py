"""Every metric there is: its name, kind, unit, labels and meaning. What is told has to stand here,
and what stands here has to be told: both are tests, and so is the table of docs/how-to/observe.md.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    COUNTER = "counter"
    LEVEL = "level"
    DISTRIBUTION = "distribution"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    unit: str  # as UCUM has it: "s", "By", and "1" for what is counted
    labels: tuple[str, ...]
    meaning: str


_LOG = ("log",)
# Levels are forgotten with their handle, and a program may write and read one log.
_HANDLE = ("log", "role")
_CALLS = ("call",)


def _counter(name: str, unit: str, labels: tuple[str, ...], meaning: str) -> Metric:
    return Metric(name, Kind.COUNTER, unit, labels, meaning)


def _level(name: str, unit: str, labels: tuple[str, ...], meaning: str) -> Metric:
    return Metric(name, Kind.LEVEL, unit, labels, meaning)


def _distribution(name: str, unit: str, labels: tuple[str, ...], meaning: str) -> Metric:
    return Metric(name, Kind.DISTRIBUTION, unit, labels, meaning)


WRITER_MESSAGES = _counter("dlog.writer.messages", "1", _LOG, "messages sent")
WRITER_BYTES = _counter(
    "dlog.writer.bytes", "By", _LOG, "bytes of these: values, keys, headers, and 16 for each"
)
WRITER_ENTRIES = _counter("dlog.writer.entries", "1", _LOG, "entries that they travelled in")
WRITER_ACKED = _counter("dlog.writer.acked", "1", _LOG, "messages acknowledged")
WRITER_FAILED = _counter(
    "dlog.writer.failed", "1", _LOG, "messages whose append failed, or whose fate is unknown"
)
WRITER_APPEND = _distribution(
    "dlog.writer.append",
    "s",
    _LOG,
    "from the sending of an entry to the acknowledgement of its messages, once for each entry",
)
WRITER_IN_FLIGHT = _level("dlog.writer.in_flight", "By", _HANDLE, "bytes taken, not acknowledged")
WRITER_WINDOW = _level("dlog.writer.window", "By", _HANDLE, "how many bytes these may be")
WRITER_ROTATIONS = _counter("dlog.writer.rotations", "1", _LOG, "segments begun after the first")
WRITER_STALLS = _counter(
    "dlog.writer.stalls", "1", ("log", "reason"), "waits longer than `stall_after_ms`, by reason"
)
WRITER_STALLED = _level("dlog.writer.stalled", "1", _HANDLE, "1 during such a wait, else 0")
WRITER_EPOCH = _level("dlog.writer.epoch", "1", _HANDLE, "the epoch of the open writer")
TAKEOVERS = _counter("dlog.takeover.count", "1", _LOG, "writers opened")
TAKEOVER_STEP = _distribution(
    "dlog.takeover.step",
    "s",
    ("log", "step"),
    "how long opening took: detect, claim, fence, recover, birth, commit, seam, and total",
)
READER_MESSAGES = _counter("dlog.reader.messages", "1", _LOG, "messages read")
READER_BYTES = _counter("dlog.reader.bytes", "By", _LOG, "bytes of entries read")
READER_ENTRIES = _counter("dlog.reader.entries", "1", _LOG, "entries read")
READER_READ_AHEAD = _level(
    "dlog.reader.read_ahead", "By", _HANDLE, "bytes of entries read and not yet taken"
)
READER_LAG_MESSAGES = _level(
    "dlog.reader.lag.messages", "1", _HANDLE, "messages readable by now and not handed out"
)
READER_LAG_BYTES = _level("dlog.reader.lag.bytes", "By", _HANDLE, "bytes of these, about")
READER_LAG_SECONDS = _level(
    "dlog.reader.lag.seconds", "s", _HANDLE, "how long the oldest of these has been in the log"
)
READER_STALLS = _counter(
    "dlog.reader.stalls", "1", ("log", "reason"), "waits longer than `stall_after_ms`, by reason"
)
READER_STALLED = _level("dlog.reader.stalled", "1", _HANDLE, "1 during such a wait, else 0")
META_CALLS = _counter("dlog.meta.calls", "1", _CALLS, "calls of the metadata store")
META_ERRORS = _counter(
    "dlog.meta.errors", "1", ("call", "error"), "of these, those that it refused or left unanswered"
)
META_CALL = _distribution("dlog.meta.call", "s", _CALLS, "how long they took")
LEDGER_CALLS = _counter(
    "dlog.ledger.calls", "1", _CALLS, "calls of the ledger store; adds are not among them"
)
LEDGER_ERRORS = _counter(
    "dlog.ledger.errors", "1", ("call", "error"), "of these, those that failed"
)
LEDGER_CALL = _distribution("dlog.ledger.call", "s", _CALLS, "how long they took")
BOOKIE_ADDS = _counter("dlog.bookie.adds", "1", ("bookie",), "entries sent to a bookie")
BOOKIE_ADD_BYTES = _counter("dlog.bookie.add_bytes", "By", ("bookie",), "bytes of these")
BOOKIE_REPLACED = _counter(
    "dlog.bookie.replaced", "1", ("bookie",), "ensembles that went on without this bookie"
)
_CONFIG = ("config",)
CONFIG_VERSION = _level("dlog.config.version", "1", _CONFIG, "the version in force of a document")
CONFIG_LOOKS = _counter("dlog.config.looks", "1", _CONFIG, "questions for a newer version")
CONFIG_FETCHES = _counter("dlog.config.fetches", "1", _CONFIG, "of these, those that found one")
CONFIG_SWAPS = _counter(
    "dlog.config.swaps", "1", ("config", "part"), "parts made anew, because they had changed"
)
CONFIG_REFUSED = _counter(
    "dlog.config.refused", "1", _CONFIG, "versions refused; the one before stayed in force"
)
HEALTH_PINGS = _counter("dlog.health.pings", "1", ("endpoint",), "probes sent to an endpoint")
HEALTH_ISOLATIONS = _counter(
    "dlog.health.isolations", "1", ("endpoint",), "times that this endpoint was isolated"
)
HEALTH_RECOVERIES = _counter(
    "dlog.health.recoveries", "1", ("endpoint",), "times that it was used again"
)
_SHARD = ("group", "log")
GROUP_SHARDS = _level("dlog.group.shards", "1", ("group",), "shards that a worker has")
GROUP_MESSAGES = _counter("dlog.group.messages", "1", _SHARD, "messages processed")
GROUP_FAILURES = _counter("dlog.group.failures", "1", _SHARD, "calls of a processor that raised")
GROUP_DEAD_LETTERS = _counter(
    "dlog.group.dead_letters", "1", _SHARD, "messages that went to the dead letters"
)
GROUP_PAUSES = _counter(
    "dlog.group.pauses", "1", _SHARD, "times that nothing was delivered for want of a renewal"
)
GROUP_STALLS = _counter(
    "dlog.group.stalls",
    "1",
    ("group", "reason"),
    "processors, or event loops, that took longer than `stall_after_ms`",
)

CATALOGUE: dict[str, Metric] = {
    metric.name: metric for metric in list(globals().values()) if isinstance(metric, Metric)
}
