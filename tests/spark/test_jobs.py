"""The ready-made jobs, each run as its users run it or by the function that they would copy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import dlog
from dlog.spark.jobs import compact, export, load, stats, verify

SMALL = dlog.LogOptions(segment_bytes=1 << 14)


def fill(url: str, count: int, first: int = 0) -> None:
    with dlog.open_writer("orders", url=url, create=SMALL) as writer:
        for i in range(first, first + count):
            writer.append(b"%d" % i * 100, key=b"k%d" % (i % 7), headers=[("n", b"%d" % i)])


def test_an_export_adds_what_came_since(spark: Any, url: str, tmp_path: Path) -> None:
    target = str(tmp_path / "lake")
    options = {"url": url}
    fill(url, 300)
    assert export.export(spark, options, "orders", target, "100k") == 300
    assert export.export(spark, options, "orders", target) == 0
    fill(url, 50, first=300)
    assert export.export(spark, options, "orders", target) == 50
    rows = spark.read.parquet(target).orderBy("seq").collect()
    assert [row["seq"] for row in rows] == list(range(350))
    assert all(bytes(row["value"]) == b"%d" % row["seq"] * 100 for row in rows)
    assert all(bytes(row["key"]) == b"k%d" % (row["seq"] % 7) for row in rows)
    assert [bytes(row["headers"][0]["value"]) for row in rows[:3]] == [b"0", b"1", b"2"]
    assert {row["shard"] for row in rows} == {0}
    assert list((tmp_path / "lake").glob("day=*/shard=0/*.parquet"))


def test_there_and_back(spark: Any, url: str, tmp_path: Path) -> None:
    fill(url, 300)
    target, options = str(tmp_path / "lake"), {"url": url}
    export.export(spark, options, "orders", target, "30k")
    load.load(spark, options, target, "again", order_by="seq", batch="monday")
    load.load(spark, options, target, "again", order_by="seq", batch="monday")
    with dlog.connect(url) as client:
        with client.open_reader("orders") as first, client.open_reader("again") as second:
            there = [(m.seq, m.key, m.value, m.headers, m.event_time_us) for m in first]
            assert [(m.seq, m.key, m.value, m.headers, m.event_time_us) for m in second] == there


def test_a_new_log_of_the_latest(spark: Any, url: str) -> None:
    fill(url, 100)
    compact.to_log(spark, {"url": url}, "orders", "latest")
    with dlog.open_reader("latest", url=url) as reader:
        assert [m.value for m in reader] == [b"%d" % i * 100 for i in range(93, 100)]
    with pytest.raises(dlog.AlreadyExists):
        compact.to_log(spark, {"url": url}, "orders", "latest")


def test_a_log_that_is_whole(spark: Any, url: str) -> None:
    fill(url, 300)
    found = verify.verify(spark, {"url": url}, "orders")
    assert found.is_whole, found
    assert found.messages == 300
    assert found.ledgers >= 3
    assert found.entries >= 300


def test_a_damage_is_named(spark: Any, url: str) -> None:
    fill(url, 300)
    with dlog.connect(url) as client:
        damaged = client.admin.segments("orders")[1]
    (path,) = Path(url.removeprefix("file:")).rglob(f"*{damaged.ledger_id:x}*.ledger")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    found = verify.verify(spark, {"url": url}, "orders")
    assert not found.is_whole
    assert any(f"segment {damaged.number}" in told for told in found.damages), found


def test_the_latest_of_each_key(spark: Any, url: str) -> None:
    fill(url, 100)
    with dlog.open_writer("orders", url=url) as writer:
        writer.append(None, key=b"k3")
        writer.append(b"without a key")
    found = {
        None if row["key"] is None else bytes(row["key"]): (row["offset"], bytes(row["value"]))
        for row in compact.latest(spark, {"url": url}, "orders").collect()
    }
    assert found.pop(None) == (101, b"without a key")
    expected = {b"k%d" % (i % 7): (i, b"%d" % i * 100) for i in range(100)}
    del expected[b"k3"]
    assert found == expected


EVENT_US = 1_700_000_000_000_000


def changed_over_a_split(url: str, name: str = "shop") -> dict[bytes, tuple[bytes, int]]:
    """A stream whose keys change before and after a split, most of all in the parent, some of them
    to nothing: what each is at last, with its event time."""
    last: dict[bytes, tuple[bytes, int]] = {}
    with dlog.connect(url) as client:
        stream = client.create_stream(name, shards=1)
        with stream.open_writer() as writer:
            for number in range(200):
                writer.submit(b"old", key=b"k%d" % (number % 10), event_time=EVENT_US)
            writer.flush()
            stream.split(0)
            for number in range(10):
                key, event_us = b"k%d" % number, EVENT_US + number
                value = None if number % 3 == 0 else b"new %d" % number
                writer.submit(value, key=key, headers=[("n", b"%d" % number)], event_time=event_us)
                if value is not None:
                    last[key] = value, event_us
            writer.flush()
    return last


def test_the_latest_of_each_key_of_a_stream_that_was_split(spark: Any, url: str) -> None:
    last = changed_over_a_split(url)
    compact.to_log(spark, {"url": url}, "shop", "latest")
    with dlog.open_reader("latest", url=url) as reader:
        assert {m.key: (m.value, m.event_time_us) for m in reader} == last


def test_an_export_of_a_stream_comes_back_with_each_key_in_order(
    spark: Any, url: str, tmp_path: Path
) -> None:
    last = changed_over_a_split(url)
    target, options = str(tmp_path / "lake"), {"url": url}
    assert export.export(spark, options, "shop", target) == 210
    load.load(spark, options, target, "again", order_by="seq")
    with dlog.open_reader("again", url=url) as reader:
        found = {message.key: (message.value, message.event_time_us) for message in reader}
    assert {key: told for key, told in found.items() if told[0] is not None} == last


def test_what_the_command_exports_is_imported(spark: Any, url: str, tmp_path: Path) -> None:
    fill(url, 30)
    with dlog.open_writer("orders", url=url) as writer:
        writer.append(None)
        writer.append(b"x", headers=[("a", b"1"), ("a", b"2")], event_time=EVENT_US)
    file = str(tmp_path / "orders.parquet")
    command = [sys.executable, "-m", "dlog", "export", "orders", "-o", file, "--url", url]
    subprocess.run(command, check=True, timeout=60)
    load.load(spark, {"url": url}, file, "again", order_by="seq")
    with dlog.connect(url) as client:
        with client.open_reader("orders") as first, client.open_reader("again") as second:
            there = [(m.key, m.value, m.headers, m.event_time_us) for m in first]
            assert [(m.key, m.value, m.headers, m.event_time_us) for m in second] == there


def test_what_is_in_a_log(spark: Any, url: str, tmp_path: Path) -> None:
    with dlog.open_writer("orders", url=url) as writer:
        writer.append_many([b"x" * 10] * 70, keys=[b"often"] * 70)
        writer.append_many([b"x" * 30] * 29, keys=[b"k%d" % i for i in range(29)])
        writer.append(None)
    found = stats.stats(spark, {"url": url}, "orders")
    assert (found.messages, found.bytes, found.tombstones, found.keys) == (100, 1570, 1, 30)
    assert found.sizes == (10, 10, 10, 30, 30, 30)
    assert sum(each.messages for each in found.slices) == 100
    assert sum(each.bytes for each in found.slices) == 1570
    assert (found.heaviest[0].key, found.heaviest[0].messages) == (b"often", 70)
    told = "\n".join(stats.lines("orders", found))
    assert "100 messages" in told
    assert "often" in told
    ElementTree.fromstring(stats.picture("a<b", found))


def test_what_is_in_an_empty_log(spark: Any, url: str) -> None:
    with dlog.open_writer("orders", url=url):
        pass
    found = stats.stats(spark, {"url": url}, "orders")
    assert found.messages == 0
    assert stats.lines("orders", found) == [
        "log orders: 0 messages, 0 bytes of values, 0 tombstones, 0 keys"
    ]


def test_from_the_command_line(spark: Any, url: str, tmp_path: Path) -> None:
    """In a session of its own, as a user has it."""
    fill(url, 30)
    command = [
        sys.executable,
        "-m",
        "dlog",
        "spark",
        "export",
        "--url",
        url,
        "--master",
        "local[1]",
    ]
    done = subprocess.run(
        [*command, "orders", str(tmp_path / "lake")], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"30 messages added to {tmp_path / 'lake'}"
    assert spark.read.parquet(str(tmp_path / "lake")).count() == 30


@pytest.mark.parametrize("job", [export, load, verify, stats, compact])
def test_each_job_says_what_it_does(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        job.main(["--help"])
    assert ended.value.code == 0
    assert "where the logs are" in capsys.readouterr().out


def in_a_shell(url: str, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dlog", "spark-shell", "--url", url, "--master", "local[1]"]
    return subprocess.run(command, input=program, capture_output=True, text=True, timeout=150)


def test_a_shell_knows_the_logs(url: str) -> None:
    fill(url, 20)
    done = in_a_shell(url, "print('there are', logs('orders', columns='value').count())\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "there are 20"


@pytest.mark.tier("full", seconds=13)
def test_a_shell_whose_program_failed_has_failed(url: str) -> None:
    wrong = in_a_shell(url, "1 / 0")
    assert wrong.returncode == 1
    assert "ZeroDivisionError" in wrong.stderr
