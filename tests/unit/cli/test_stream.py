"""`dlog stream`, and `dlog produce` and `dlog tail` of a stream, as processes."""

from __future__ import annotations

import json

import pytest

import dlog
from tests.unit.cli.conftest import Shell, read_lines

LINES = b"".join(b"k%d:v%d\n" % (number, number) for number in range(20))


def _values(shell: Shell, *words: str) -> list[str]:
    return shell.dlog("tail", "orders", *words).lines


@pytest.fixture
def orders(shell: Shell) -> Shell:
    shell.dlog("stream", "create", "orders", "--shards", "3", "--pin", "vip=2")
    done = shell.dlog("produce", "orders", "-k", ":", feed=LINES)
    assert done.err == "dlog: 20 of 20 messages acknowledged\n"
    return shell


def test_what_is_produced_to_a_stream_is_in_the_shards_of_its_keys(orders: Shell) -> None:
    with dlog.connect(orders.url) as client, client.stream("orders").open_reader() as reader:
        found = {message.key: (shard, message.value) for shard, message in reader}
    assert {key: value for key, (_, value) in found.items()} == {
        b"k%d" % number: b"v%d" % number for number in range(20)
    }
    assert {shard for shard, _ in found.values()} == {0, 1, 2}


def test_a_stream_is_changed_and_described(orders: Shell) -> None:
    assert orders.dlog("stream", "split", "orders", "0").lines == [
        "shard 3  00000000-2aaaaaa9  from 0",
        "shard 4  2aaaaaaa-55555554  from 0",
    ]
    (merged,) = orders.dlog("stream", "merge", "orders", "2", "1", "-o", "json").lines
    assert json.loads(merged)["parents"] == [1, 2]
    cut = orders.dlog("stream", "split", "orders", "5", "--at", "0x80000000", "--at", "4026531840")
    assert len(cut.lines) == 3
    assert len(orders.dlog("stream", "pin", "orders", "k1", "3").lines) in (0, 2)
    orders.dlog("stream", "unpin", "orders", "azE=", "--base64")
    orders.dlog("stream", "unpin", "orders", "k1", expect=3)
    told = json.loads(orders.dlog("stream", "describe", "orders", "-o", "json").out)
    assert sum(shard["share"] for shard in told["shards"]) == pytest.approx(1)
    (pin,) = told["pins"]
    assert pin["key"] == "vip"
    shown = orders.dlog("stream", "describe", "orders").out.decode()
    assert "pin vip" in shown
    assert "###" in shown
    assert "---" in shown
    assert sorted(_values(orders, "-n", "100")) == sorted(f"v{n}" for n in range(20))


def test_streams_are_listed_and_logs_are_not(orders: Shell) -> None:
    orders.dlog("create", "plain")
    assert orders.dlog("stream", "ls").lines == ["orders"]
    assert orders.dlog("stream", "ls", "x").lines == []
    assert json.loads(orders.dlog("stream", "ls", "-o", "json").out) == {"name": "orders"}
    assert "a plain log" in orders.dlog("stream", "describe", "plain").out.decode()
    assert len(orders.dlog("stream", "split", "plain", "0").lines) == 2
    assert orders.dlog("stream", "ls").lines == ["orders", "plain"]


def test_tail_merges_the_shards_by_time(orders: Shell) -> None:
    orders.dlog("stream", "merge", "orders", "0", "1")
    for number in range(20, 24):
        orders.dlog("produce", "orders", "-k", ":", "-q", feed=b"k0:v%d\n" % number)
    assert _values(orders, "-n", "3") == ["v21", "v22", "v23"]
    assert _values(orders, "--since", "1h")[-4:] == ["v20", "v21", "v22", "v23"]
    assert len(_values(orders, "--since", "1h", "-n", "7")) == 7
    assert _values(orders, "--since", "1h", "--until", "30m") == []
    lines = [json.loads(line) for line in _values(orders, "-n", "2", "-o", "json")]
    assert [line["value"] for line in lines] == ["v22", "v23"]
    assert {line["shard"] for line in lines} <= {2, 3}
    again = "\n".join(json.dumps(line) for line in lines)
    orders.dlog("produce", "again", "--json", feed=again.encode())
    orders.dlog("tail", "orders", "--seqs", "0:1", expect=2)
    assert orders.dlog("tail", "orders/0", "--seqs", "0:1").lines


def test_tail_follows_a_stream_over_a_split(orders: Shell) -> None:
    following = orders.start("tail", "orders", "-f", "-n", "1")
    read_lines(following, 1)  # from here on it follows
    with dlog.connect(orders.url) as client:
        stream = client.stream("orders")
        with stream.open_writer() as writer:
            for number in range(10):
                if number == 5:
                    stream.split(writer.shard_of(b"k"))
                writer.append(b"%d" % number, key=b"k")
    assert read_lines(following, 10) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("create", "orders"), 1),
        (("create", "x", "--pin", "nothing"), 2),
        (("create", "x", "--routing", "ketama", "--shards", "2", "--weights", "a,b"), 2),
        (("create", "x", "--shards", "0"), 2),
        (("describe", "nobody"), 3),
        (("split", "orders", "9"), 3),
        (("split", "orders", "0", "--at", "x"), 2),
        (("merge", "orders", "0"), 2),
        (("merge", "orders", "0", "2"), 2),
        (("pin", "orders", "%", "0", "--base64"), 2),
        (("trim", "nobody"), 3),
        (("rm", "orders"), 2),
        (("terminate", "orders"), 2),
    ],
)
def test_what_cannot_be_is_refused(orders: Shell, words: tuple[str, ...], code: int) -> None:
    orders.dlog("stream", *words, expect=code)
    assert orders.dlog("stream", "ls").lines == ["orders"]


def test_a_stream_comes_to_its_end(orders: Shell) -> None:
    orders.dlog("stream", "create", "orders", "--exist-ok")
    assert "no shard of orders" in orders.dlog("stream", "trim", "orders").err
    orders.dlog("stream", "split", "orders", "0")
    orders.dlog("truncate", "orders/0", "latest", "--yes")
    orders.dlog("stream", "trim", "orders", expect=2)
    assert orders.dlog("stream", "trim", "orders", "--yes").lines == ["0"]
    orders.dlog("stream", "terminate", "orders", "--yes")
    orders.dlog("produce", "orders", "-k", ":", feed=b"k:v\n", expect=2)
    done = orders.dlog("stream", "rm", "orders", "--yes")
    assert "messages in 4 shards" in done.err
    assert orders.dlog("stream", "ls").lines == []
    assert orders.dlog("ls").lines[1:] == []


def test_tail_since_a_time_says_what_trimmed_shards_may_have_had(orders: Shell) -> None:
    orders.dlog("stream", "split", "orders", "0")
    orders.dlog("truncate", "orders/0", "latest", "--yes")
    orders.dlog("stream", "trim", "orders", "--yes")
    with dlog.connect(orders.url) as client, client.stream("orders").open_reader() as reader:
        left = sorted(message.value.decode() for _, message in reader)
    done = orders.dlog("tail", "orders", "--since", "1h")
    assert sorted(done.lines) == left
    assert "shards [0] of the stream, which were trimmed; what is left" in done.err


def test_tail_since_a_time_says_what_was_truncated_and_goes_on(orders: Shell) -> None:
    """A shard that is still listed: its reader meets that behind the opening of the stream's."""
    before = set(_values(orders, "--since", "1h"))
    with dlog.connect(orders.url) as client, client.open_reader("orders/0") as reader:
        gone = {(message.value or b"").decode() for message in reader}
    assert gone
    assert gone < before
    orders.dlog("truncate", "orders/0", "latest", "--yes")
    done = orders.dlog("tail", "orders", "--since", "1h")
    assert done.err.count("what is left of the stream follows") == 1
    assert set(done.lines) == before - gone


def test_a_ketama_stream(shell: Shell) -> None:
    words = ("--routing", "ketama", "--shards", "2", "--weights", "1,3")
    shell.dlog("stream", "create", "orders", *words)
    shell.dlog("produce", "orders", feed=b"a\nb\n")
    shown = shell.dlog("stream", "describe", "orders").out.decode()
    assert "weight 3" in shown
    shell.dlog("stream", "split", "orders", "0", expect=2)
