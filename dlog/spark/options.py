"""The options of the source, as values. Names and words are those of Spark's Kafka source; Spark
keeps names without regard to case and all values as text. An option that nobody knows, that is
given twice in other words, or that does nothing where it stands is refused."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dlog.errors import ConfigError
from dlog.ids import check_hold_name, check_log_name
from dlog.options import OnTruncated
from dlog.spark.access import PREFIX, Access
from dlog.spark.places import SHARD, Place, Places, moment, offsets, timestamps

Kind = Literal["batch", "stream", "sink"]
LateStart = Literal["error", "latest"]

_LOGS = ("subscribe", "subscribePattern", "assign", "path")
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_BOTH = (
    "url",
    *_LOGS,
    *_STARTS,
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "targetPartitionBytes",
    "maxRecordsPerPartition",
    "includeHeaders",
    "includePosition",
    "columns",
    "failOnDataLoss",
)
_BATCH = (*_BOTH, *_ENDS, "pushdown")
_STREAM = (
    *_BOTH,
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "group",
)
ONE_OFF = "one-off:"  # the log keeps no room for such names: see `admin.publish_segments`
_SINK = ("url", "topic", "path", "delivery", "createLogs", "codec", "query", "turnTimeout")
_KNOWN: Mapping[Kind, tuple[str, ...]] = {"batch": _BATCH, "stream": _STREAM, "sink": _SINK}
_FOR = {"batch": "batch queries", "stream": "streaming queries", "sink": "writing"}
_SPARKS = frozenset(("checkpointlocation", "queryname"))  # what it puts among those of a sink
_SIZE = re.compile(r"([0-9]{1,18})\s*([kmgt]?)b?")
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = re.compile(r"([0-9]{1,9})\s*(ms|s|m|min|h|d|)")
_DURATIONS_MS = {
    "ms": 1,
    "": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_TURN_TIMEOUT = "10m"
_TRIGGER_DELAY = "15m"  # as Kafka's source
# As Spark's own for files. A task costs about 60 ms before its first message, in which a core reads
# some 40 MB.
_PART_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large parts of a log are."""

    target_bytes: int = _PART_BYTES
    min_ranges: int = 1
    max_messages: int | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """How much of what there is goes into one micro-batch."""

    max_messages: int | None = None
    max_bytes: int | None = None
    min_messages: int | None = None
    max_delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class SourceOptions:
    access: Access
    logs: tuple[str, ...]
    pattern: str | None
    start: Places
    end: Places
    late_start: LateStart
    sizes: Sizes
    on_truncated: OnTruncated
    pushdown: bool
    pace: Pace
    group: str | None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    access: Access
    log: str | None
    exactly_once: bool
    creates: bool
    codec: str
    query: str | None
    turn_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Which columns there are, where no schema is given."""

    names: tuple[str, ...] | None
    headers: bool
    position: bool


class _Given:
    """What the user wrote, by names as they are documented."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._by_name = {name.lower(): value for name, value in given.items()}
        self._taken: set[str] = set()

    def text(self, name: str) -> str | None:
        self._taken.add(name.lower())
        text = self._by_name.get(name.lower())
        if text is not None and not text.strip():
            raise ConfigError(f"the option {name} is empty: leave it out, or say what it is")
        return text

    def number(self, name: str, low: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < low:
            raise ConfigError(f"{name} is a whole number from {low}, not {text[:80]!r}")
        return int(text)

    def truth(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name} is true or false, not {text[:80]!r}")
        return text.lower() == "true"

    def size(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        found = _SIZE.fullmatch(text.strip().lower())
        if found is None or int(found[1]) == 0:
            raise ConfigError(f"{name} is a size, as 64m or 67108864, not {text[:80]!r}")
        return int(found[1]) * _SIZES[found[2]]

    def duration_ms(self, name: str, default: str) -> int:
        text = self.text(name) or default
        found = _DURATION.fullmatch(text.strip().lower())
        if found is None:
            raise ConfigError(f"{name} is a duration, as 15m or 500ms, not {text[:80]!r}")
        return int(found[1]) * _DURATIONS_MS[found[2]]

    def one_of(self, names: tuple[str, ...]) -> tuple[str, str] | None:
        there = [(name, text) for name in names if (text := self.text(name)) is not None]
        if len(there) > 1:
            told = " and ".join(name for name, _ in there)
            raise ConfigError(f"{told} say the same thing twice: give one of them")
        return there[0] if there else None

    def check(self, kind: Kind) -> None:
        known = {name.lower(): name for name in _KNOWN[kind]}
        elsewhere = {name.lower(): _FOR[other] for other, names in _KNOWN.items() for name in names}
        for name in sorted(self._by_name):
            if name in known or name.startswith(PREFIX):
                continue
            if kind == "sink" and name in _SPARKS:
                continue
            if name in elsewhere:
                raise ConfigError(f"the option {name} is for {elsewhere[name]} only")
            near = difflib.get_close_matches(name, known, 1)
            told = f"; did you mean {known[near[0]]}?" if near else ""
            raise ConfigError(f"unknown option {name}{told}")

    def client_options(self) -> dict[str, str]:
        return {
            name.removeprefix(PREFIX): value
            for name, value in self._by_name.items()
            if name.startswith(PREFIX)
        }


def source_options(options: Mapping[str, str], kind: Kind) -> SourceOptions:
    given = _Given(options)
    given.check(kind)
    logs, pattern = _logs(given)
    start = _start(given, Places("earliest" if kind == "batch" else "latest"))
    end = _end(given) if kind == "batch" else Places("latest")
    late = (given.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if late not in ("error", "latest"):
        raise ConfigError(
            f"startingOffsetsByTimestampStrategy is error or latest, not {late[:80]!r}"
        )
    sizes = Sizes(
        given.size("targetPartitionBytes") or _PART_BYTES,
        given.number("minPartitions", 1) or 1,
        given.number("maxRecordsPerPartition", 1),
    )
    for places, option in ((start, "start"), (end, "end")):
        strange = [log for log, _ in places.by_log if logs and log not in logs]
        if strange:
            raise ConfigError(f"{option}: nobody asked for the log {strange[0]!r}")
        if logs:
            for log in logs:
                places.of(log)
    group = given.text("group") if kind == "stream" else None
    return SourceOptions(
        access=Access.of(given.text("url"), given.client_options()),
        logs=logs,
        pattern=pattern,
        start=start,
        end=end,
        late_start="error" if late == "error" else "latest",
        sizes=sizes,
        on_truncated="raise" if given.truth("failOnDataLoss", True) else "jump",
        pushdown=kind == "batch" and given.truth("pushdown", False),
        pace=_pace(given) if kind == "stream" else Pace(),
        group=None if group is None else check_hold_name(group),
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    given = _Given(options)
    given.check("sink")
    delivery = (given.text("delivery") or "exactlyOnce").lower()
    if delivery not in ("exactlyonce", "atleastonce"):
        raise ConfigError(f"delivery is exactlyOnce or atLeastOnce, not {delivery[:80]!r}")
    if delivery == "exactlyonce" and given.text("turnTimeout") is not None:
        raise ConfigError("turnTimeout does nothing with delivery=exactlyOnce: nobody waits")
    query = given.text("query")
    if query is not None and query.startswith(ONE_OFF):
        raise ConfigError(f"query does not begin with {ONE_OFF}: such a name is not remembered")
    found = given.one_of(("topic", "path"))
    return SinkOptions(
        access=Access.of(given.text("url"), given.client_options()),
        log=None if found is None else check_log_name(found[1]),
        exactly_once=delivery == "exactlyonce",
        creates=given.truth("createLogs", True),
        codec=given.text("codec") or "none",
        query=query,
        turn_timeout_ms=given.duration_ms("turnTimeout", _TURN_TIMEOUT),
    )


def shape(options: Mapping[str, str]) -> Shape:
    given = _Given(options)
    text = given.text("columns")
    names = None if text is None else tuple(name.strip() for name in text.split(","))
    headers, position = given.truth("includeHeaders", False), given.truth("includePosition", False)
    if names is not None and (headers or position):
        raise ConfigError("columns names all columns: includeHeaders and includePosition add none")
    return Shape(names, headers, position)


def _logs(given: _Given) -> tuple[tuple[str, ...], str | None]:
    found = given.one_of(_LOGS)
    if found is None:
        raise ConfigError(
            'which log? Give one of subscribe, subscribePattern, assign, or .load("orders")'
        )
    option, text = found
    if option == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"{option}: {text!r} is no pattern ({error})") from None
        return (), text
    names = _assigned(text) if option == "assign" else [name.strip() for name in text.split(",")]
    return tuple(map(check_log_name, dict.fromkeys(names))), None


def _assigned(text: str) -> list[str]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigError(f'assign: {error}; it is written as {{"orders": [0]}}') from None
    if not isinstance(given, dict) or not given:
        raise ConfigError('assign is written as {"orders": [0]}')
    for log, shards in given.items():
        if shards != [int(SHARD)]:
            raise ConfigError(f"assign: log {log!r} is a plain log and has shard 0 alone")
    return list(given)


def _start(given: _Given, default: Places) -> Places:
    found = given.one_of(_STARTS)
    if found is None:
        return default
    option, text = found
    if option == "startingOffsets":
        return offsets(text, option)
    return _at_times(option, text)


def _end(given: _Given) -> Places:
    found = given.one_of(_ENDS)
    if found is None:
        return Places("latest")
    option, text = found
    if option == "endingOffsets":
        return offsets(text, option, is_end=True)
    return _at_times(option, text)


def _at_times(option: str, text: str) -> Places:
    if option.endswith("ByTimestamp"):
        return timestamps(text, option)
    place: Place = moment(text, option)
    return Places(place)


def _pace(given: _Given) -> Pace:
    min_messages = given.number("minOffsetsPerTrigger", 1)
    if min_messages is None and given.text("maxTriggerDelay") is not None:
        raise ConfigError("maxTriggerDelay does nothing without minOffsetsPerTrigger")
    pace = Pace(
        given.number("maxOffsetsPerTrigger", 1),
        given.size("maxBytesPerTrigger"),
        min_messages,
        given.duration_ms("maxTriggerDelay", _TRIGGER_DELAY) if min_messages else 0,
    )
    if pace.min_messages and pace.max_messages and pace.min_messages > pace.max_messages:
        raise ConfigError("minOffsetsPerTrigger is above maxOffsetsPerTrigger: nothing would go")
    return pace
