"""Which shard is read when, and what it is called."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import dlog
from dlog.errors import ConfigError, Unsupported
from dlog.spark.places import Places
from dlog.spark.shards import column_of, may_begin, place_of, refuse_streams, tails_of


def at(seq: int, uid: str = "u", **more: Any) -> dict[str, Any]:
    return {"0": seq, "uid": uid, **more}


@pytest.mark.parametrize(
    ("parent", "read", "may"),
    [
        (at(5, over=True), at(5), True),
        (at(5, over=True), at(6), True),
        (at(5, over=True), at(4), False),  # not read to its end
        (at(5, over=True), None, False),  # not read at all
        (at(0, over=True), None, True),  # nothing to read
        (at(5, over=True), at(9, "of another log"), False),
        (at(0, over=True), at(9, "of another log"), True),
        (at(5), at(5), False),  # may still get messages
    ],
)
def test_a_shard_begins_when_its_parents_were_read_to_their_end(
    parent: dict[str, Any], read: dict[str, Any] | None, may: bool
) -> None:
    start = {} if read is None else {"p": read}
    child = at(0, parents=("p", "trimmed long ago"))
    assert may_begin(child, start, {"p": parent, "c": child}) is may
    other = at(0, over=True)
    both = at(0, parents=("other", "p"))
    assert may_begin(both, start, {"p": parent, "other": other, "c": both}) is may
    assert may_begin(at(0), start, {"p": parent})


def test_columns_of_shards_and_of_logs() -> None:
    assert column_of("orders/3", ["orders"]) == ("orders", 3)
    assert column_of("orders", ["orders"]) == ("orders", 0)
    assert column_of("orders/3", ["orders", "orders/3"]) == ("orders/3", 0)
    assert column_of("orders/3", ["others"]) == ("orders/3", 0)
    assert column_of("orders/x", ["orders"]) == ("orders/x", 0)
    assert column_of("orders/3", []) == ("orders/3", 0)


def test_a_stream_has_one_place_for_all_its_shards() -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    for place in ("earliest", "latest", moment):
        assert place_of(Places(place), "orders") == place
    with pytest.raises(ConfigError, match="'orders' is a stream of shards"):
        place_of(Places(None, (("orders", 5),)), "orders")


def test_a_plain_log_has_no_shards_and_may_be_written(url: str) -> None:
    with dlog.connect(url) as client:
        client.admin.create("plain")
        client.create_stream("stream", shards=3)
        with client.stream("stream").open_writer() as writer:
            for number in range(20):
                writer.submit(b"x", key=b"%d" % number)
        assert tails_of(client, "plain") == ()
        assert len(tails_of(client, "stream")) == 3
        refuse_streams(client, "plain")
        refuse_streams(client, "not there yet")
        with pytest.raises(Unsupported, match="'stream' is a stream of shards"):
            refuse_streams(client, "stream")
