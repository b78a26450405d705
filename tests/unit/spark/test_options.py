"""Options as users of Spark's Kafka source write them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dlog.errors import ConfigError
from dlog.ids import MessageId
from dlog.spark.access import Access, close_all
from dlog.spark.options import Pace, Shape, Sizes, shape, sink_options, source_options
from dlog.spark.places import Places, moment, offsets, timestamps

URL = {"url": "file:/somewhere"}


def test_words_and_defaults_are_those_of_kafkas_source() -> None:
    batch = source_options({**URL, "path": "orders"}, "batch")
    assert (batch.start, batch.end) == (Places("earliest"), Places("latest"))
    assert (batch.on_truncated, batch.late_start, batch.pushdown) == ("raise", "error", False)
    assert batch.sizes == Sizes()
    stream = source_options({**URL, "SUBSCRIBE": "a,b"}, "stream")
    assert (stream.start, stream.logs, stream.pace) == (Places("latest"), ("a", "b"), Pace())


def test_paces_and_sizes() -> None:
    given = {
        "maxOffsetsPerTrigger": "100",
        "maxBytesPerTrigger": "64m",
        "minOffsetsPerTrigger": "10",
        "maxTriggerDelay": "2s",
        "targetPartitionBytes": "2k",
        "minPartitions": "3",
    }
    options = source_options({**URL, "path": "orders", **given}, "stream")
    assert options.pace == Pace(100, 64 << 20, 10, 2000)
    assert options.sizes == Sizes(2048, 3)
    del given["maxTriggerDelay"]
    waits = source_options({**URL, "path": "orders", **given}, "stream").pace
    assert waits.max_delay_ms == 15 * 60_000


def test_places() -> None:
    told = '{"a": {"0": 5}, "b": {"0": -2}, "c": {"0": -1}, "d": {"0": "7:8:9", "uid": "u"}}'
    places = offsets(told, "startingOffsets")
    assert [places.of(log) for log in "abc"] == [5, "earliest", "latest"]
    assert places.of("d") == MessageId(7, 8, 9)
    assert (places.uid("d"), places.uid("a")) == ("u", None)
    with pytest.raises(ConfigError, match="where in log 'e'"):
        places.of("e")
    assert offsets(" Earliest ", "x").of("whatever") == "earliest"
    assert timestamps('{"a": {"0": 1500}}', "x").of("a") == datetime(
        1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "[]",
        "{}",
        '{"a": 5}',
        '{"a": {}}',
        '{"a": {"0": 5, "1": 6}}',
        '{"a": {"0": -3}}',
        '{"a": {"0": true}}',
        '{"a": {"0": 1.5}}',
        '{"a": {"0": "7:8"}}',
        '{"a": {"0": null}}',
    ],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="startingOffsets"):
        offsets(text, "startingOffsets")


@pytest.mark.parametrize("given", ["", "x", "-1", 1.5, None, "9" * 30])
def test_what_is_no_time_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="milliseconds"):
        moment(given, "startingTimestamp")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "which log"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "same thing twice"),
        ({"subscribe": "a,,b"}, "name"),
        ({"subscribePattern": "("}, "no pattern"),
        ({"assign": '{"a": [1]}'}, "shard 0 alone"),
        ({"assign": "a"}, "assign"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "true or false"),
        ({"subscribe": "a", "minPartitions": "0"}, "whole number from 1"),
        ({"subscribe": "a", "maxTriggerDelay": "1s"}, "does nothing without"),
        ({"subscribe": "a", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "nothing"),
        ({"subscribe": "a", "endingOffsets": "latest"}, "batch queries only"),
        ({"subscribe": "a", "group": ""}, "option group is empty"),
        ({"subscribe": "a,b", "startingOffsets": '{"a": {"0": 1}}'}, "where in log 'b'"),
    ],
)
def test_what_nobody_means_is_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        source_options({**URL, **options}, "stream")


def test_an_access_travels_and_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"zk_auth": "env:WHO", "session_timeout_ms": "5000"}
    access = Access.of("zk://h:1/logs", given)
    assert pickle.loads(pickle.dumps(access)) == access  # noqa: S301
    monkeypatch.setenv("WHO", "ana:swordfish")
    assert "swordfish" not in repr(access)
    assert b"swordfish" not in pickle.dumps(access)
    with pytest.raises(ConfigError, match="say where it stands") as caught:
        Access.of("zk://h:1/logs", {"zk_auth": "ana:swordfish"})
    assert "swordfish" not in str(caught.value)


def test_an_access_is_the_same_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        Access.of("file:./data?meta_timeout_ms=5", {}).url
        == f"file:{tmp_path}/data?meta_timeout_ms=5"
    )
    monkeypatch.delenv("DLOG_URL", raising=False)
    with pytest.raises(ConfigError, match="where are the logs"):
        Access.of(None, {})
    monkeypatch.setenv("DLOG_URL", "zk://h:1")
    assert Access.of(None, {}).url == "zk://h:1"
    with pytest.raises(ConfigError, match="of one process"):
        Access.of("memory:here", {})
    with pytest.raises(ConfigError, match="only clusters"):
        Access.of("file:/somewhere", {"zk_auth": "env:WHO"})


def test_one_client_for_each_process_and_place(tmp_path: Path) -> None:
    access, other = Access.of(f"file:{tmp_path}/a", {}), Access.of(f"file:{tmp_path}/b", {})
    client = access.connect()
    try:
        assert access.connect() is client
        assert Access.of(f"file:{tmp_path}/a", {}).connect() is client
        assert other.connect() is not client
    finally:
        close_all()


def sized(text: str) -> int:
    return source_options(
        {**URL, "path": "a", "targetPartitionBytes": text}, "batch"
    ).sizes.target_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("7b", 7),
        ("3k", 3 << 10),
        (" 3 KB ", 3 << 10),
        ("3m", 3 << 20),
        ("3G", 3 << 30),
        ("3t", 3 << 40),
    ],
)
def test_sizes_have_units_of_1024(text: str, size: int) -> None:
    assert sized(text) == size


@pytest.mark.parametrize("text", ["0", "0k", "-1", "1.5m", "k", "3 x", "", "1" * 19])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"targetPartitionBytes is (a size|empty)"):
        sized(text)


def delayed(text: str) -> int:
    given = {**URL, "path": "a", "minOffsetsPerTrigger": "1", "maxTriggerDelay": text}
    return source_options(given, "stream").pace.max_delay_ms


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        ("7", 7),
        ("7ms", 7),
        ("7s", 7_000),
        ("7m", 420_000),
        (" 7 MIN ", 420_000),
        ("7h", 25_200_000),
        ("7d", 604_800_000),
    ],
)
def test_durations_have_units(text: str, delay_ms: int) -> None:
    assert delayed(text) == delay_ms


@pytest.mark.parametrize("text", ["-1", "1.5s", "s", "3 weeks", "1" * 10])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="maxTriggerDelay is a duration"):
        delayed(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "1" * 19, "٣"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="whole number from 1"):
        source_options({**URL, "path": "a", "maxRecordsPerPartition": text}, "batch")


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "minPartitions"])
def test_nothing_is_asked_for_in_parts_of_none(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is a whole number from 1"):
        source_options({**URL, "path": "a", name: "0"}, "stream")


def test_the_least_number_is_taken() -> None:
    given = {**URL, "path": "a", "maxRecordsPerPartition": "1", "minPartitions": "1"}
    assert source_options(given, "batch").sizes == Sizes(max_messages=1)
    pace = {**URL, "path": "a", "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "5"}
    assert source_options(pace, "stream").pace.min_messages == 5


def test_options_of_a_batch_query() -> None:
    given = {
        "subscribePattern": "a.*",
        "endingOffsets": '{"a": {"0": 7}}',
        "startingOffsetsByTimestamp": '{"a": {"0": 1500}}',
        "startingOffsetsByTimestampStrategy": "Latest",
        "failOnDataLoss": "FALSE",
        "pushdown": "true",
    }
    options = source_options({**URL, **given}, "batch")
    assert (options.logs, options.pattern) == ((), "a.*")
    assert (options.on_truncated, options.late_start, options.pushdown) == ("jump", "latest", True)
    assert options.end.of("a") == 7
    assert options.start.of("a") == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert options.pace == Pace()
    assert options.group is None
    by_time = {"endingOffsetsByTimestamp": '{"a": {"0": 1500}}'}
    assert source_options({**URL, "path": "a", **by_time}, "batch").end.of("a") == (
        options.start.of("a")
    )
    moved = {"startingTimestamp": "1500", "endingTimestamp": "2500"}
    both = source_options({**URL, "path": "a", **moved}, "batch")
    assert both.start.of("a") == options.start.of("a")
    assert both.end.of("b") == datetime(1970, 1, 1, 0, 0, 2, 500_000, tzinfo=UTC)
    assert source_options({**URL, "assign": '{"b": [0], "a": [0]}'}, "batch").logs == ("b", "a")
    assert source_options({**URL, "subscribe": "b, a,b"}, "batch").logs == ("b", "a")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"path": "a", "startingOffsets": '{"b": {"0": 1}}'}, "nobody asked for the log 'b'"),
        ({"path": "a", "endingOffsets": '{"b": {"0": 1}}'}, "nobody asked for the log 'b'"),
        ({"path": "a,b", "endingOffsets": '{"a": {"0": 1}}'}, "name"),
        ({"subscribe": "a,b", "endingOffsets": '{"a": {"0": 1}}'}, "where in log 'b'"),
        ({"path": "a", "endingOffsets": "earliest"}, "nothing ends at the beginning"),
        ({"path": "a", "endingOffsets": '{"a": {"0": -2}}'}, "-1 \\(the tail\\), not -2"),
        ({"path": "a", "startingOffsets": '{"a": {"0": -3}}'}, "-2 \\(the head\\)"),
        ({"path": "a", "startingOffsetsByTimestampStrategy": "never"}, "error or latest"),
        ({"path": "a", "maxOffsetsPerTrigger": "1"}, "for streaming queries only"),
        ({"path": "a", "delivery": "exactlyOnce"}, "for writing only"),
        ({"path": "a", "checkpointLocation": "/x"}, "unknown option"),
        ({"path": "a", "nothingLikeIt": "1"}, "unknown option nothinglikeit"),
        ({"path": "a", "startingOfsets": "1"}, "did you mean startingOffsets"),
        ({"assign": "{}"}, "assign is written as"),
        ({"assign": "[0]"}, "assign is written as"),
    ],
)
def test_what_no_batch_query_means_is_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        source_options({**URL, **options}, "batch")


def test_options_of_the_sink() -> None:
    plain = sink_options({**URL, "checkpointLocation": "/x", "queryName": "q"})
    assert (plain.log, plain.exactly_once, plain.creates) == (None, True, True)
    assert (plain.codec, plain.query, plain.turn_timeout_ms) == ("none", None, 600_000)
    given = {"path": "out", "delivery": "ATLEASTONCE", "createLogs": "false", "codec": "zstd"}
    more = sink_options({**URL, **given, "query": "daily", "turnTimeout": "3s"})
    assert (more.log, more.exactly_once, more.creates) == ("out", False, False)
    assert (more.codec, more.query, more.turn_timeout_ms) == ("zstd", "daily", 3000)
    for options, told in (
        ({"delivery": "twice"}, "exactlyOnce or atLeastOnce"),
        ({"turnTimeout": "3s"}, "turnTimeout does nothing"),
        ({"topic": "a", "path": "b"}, "same thing twice"),
        ({"topic": ""}, "option topic is empty"),
        ({"query": ""}, "option query is empty"),
        ({"codec": " "}, "option codec is empty"),
        ({"startingOffsets": "earliest"}, "only"),
    ):
        with pytest.raises(ConfigError, match=told):
            sink_options({**URL, **options})


def test_which_columns() -> None:
    assert shape({}) == Shape(None, headers=False, position=False)
    assert shape({"includeHeaders": "true"}) == Shape(None, headers=True, position=False)
    assert shape({"includePosition": "true"}) == Shape(None, headers=False, position=True)
    assert shape({"columns": "value, key"}) == Shape(("value", "key"), False, False)
    for name in ("includeHeaders", "includePosition"):
        with pytest.raises(ConfigError, match="columns names all columns"):
            shape({"columns": "value", name: "true"})


def test_times_are_milliseconds() -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert moment(0, "x") == epoch
    assert moment("1001", "x") == epoch.replace(second=1, microsecond=1000)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sesame": "1"}, "unknown option dlog.sesame"),
        ({"meta_timeout_ms": "soon"}, "dlog.meta_timeout_ms is a number"),
        ({"zk_auth": "ana:swordfish"}, "say where it stands"),
    ],
)
def test_wrong_options_of_a_client_are_refused_on_the_driver(
    options: dict[str, str], told: str
) -> None:
    given = {**URL, "path": "a", **{f"dlog.{name}": value for name, value in options.items()}}
    with pytest.raises(ConfigError, match=told):
        source_options(given, "batch")


def test_options_of_a_client_reach_it() -> None:
    given = {**URL, "path": "a", "dlog.meta_timeout_ms": "5000"}
    assert source_options(given, "batch").access.options == (("meta_timeout_ms", "5000"),)
