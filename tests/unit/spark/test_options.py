"""Options as users of Spark's Kafka source write them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dlog.errors import ConfigError
from dlog.ids import MessageId
from dlog.spark.access import Access, close_all
from dlog.spark.options import Pace, Sizes, source_options
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
        ({"subscribe": "a", "group": ""}, "hold"),
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
