"""`dlog export`, as a process: what other programs read is what is in the log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dlog
from tests.unit.cli.conftest import Shell


def fill(shell: Shell) -> list[dlog.Message]:
    with dlog.open_writer("orders", url=shell.url) as log:
        log.append(b"paid", key=b"42", headers=[("by", b"ana"), ("by", b"\xff")], event_time=-7)
        log.append_many([b"\xff\x00", None, b""], keys=[b"\xfe", b"", None], atomic=True)
        log.append_many([b"%d" % i for i in range(500)])
    with dlog.open_reader("orders", url=shell.url) as log:
        return list(log)


def content(message: dlog.Message) -> tuple[object, ...]:
    return message.key, message.value, message.headers, message.event_time_us


def test_lines_are_those_of_tail_and_produce_reads_them(shell: Shell) -> None:
    messages = fill(shell)
    lines = shell.dlog("export", "orders").out
    assert lines == shell.dlog("tail", "orders", "-o", "json", "-o", ":").out
    assert lines.count(b"\n") == len(messages)
    shell.dlog("produce", "again", "--json", feed=lines)
    with dlog.open_reader("again", url=shell.url) as log:
        assert [content(each) for each in log] == [content(each) for each in messages]


@pytest.mark.parametrize(
    ("options", "seqs"),
    [
        (["--seqs", "2:5"], range(2, 5)),
        (["--seqs", "500:"], range(500, 504)),
        (["--since", "1h", "--seqs", ":2"], None),
        (["--since", "1h"], range(504)),
        (["--until", "1h"], range(0)),
    ],
)
def test_a_part_of_it(shell: Shell, options: list[str], seqs: range | None) -> None:
    messages = fill(shell)
    if seqs is None:  # a beginning, and an end of the other kind
        options, seqs = ["--from", str(messages[3].id), "--seqs", ":5"], range(3, 5)
        refused = shell.dlog("export", "orders", *options[:2], "--seqs", "4:5", expect=2)
        assert "one beginning" in refused.err
    done = shell.dlog("export", "orders", *options, "-o", "part.jsonl")
    lines = (shell.home / "part.jsonl").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(seqs)
    assert done.err == f"dlog: {len(seqs)} messages of orders are in part.jsonl\n"
    assert done.out == b""


def test_parquet_has_everything(shell: Shell) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    messages = fill(shell)
    shell.dlog("export", "orders", "-o", "orders.parquet")
    rows = parquet.read_table(shell.home / "orders.parquet").to_pylist()
    assert len(rows) == len(messages)
    for row, message in zip(rows, messages, strict=True):
        ids = (row["ledger_id"], row["entry_id"], row["batch_idx"])
        assert (*ids, row["seq"], row["epoch"]) == (*message.id, message.seq, message.epoch)
        assert (row["key"], row["value"]) == (message.key, message.value)
        headers = tuple((pair["name"], pair["value"]) for pair in row["headers"])
        assert headers == message.headers
        assert _us(row["timestamp"]) == message.timestamp_us
        assert _us(row["event_time"]) == message.event_time_us


def _us(moment: object) -> int | None:
    return None if moment is None else dlog_datetime_us(moment)


def dlog_datetime_us(moment: object) -> int:
    from datetime import datetime

    from dlog.clock import datetime_us

    assert isinstance(moment, datetime)
    return datetime_us(moment)


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from dlog.reader import parquet as ours

    monkeypatch.setattr(ours, "ROW_GROUP_BYTES", 4_000)
    with dlog.open_writer("log", url="memory:row-groups") as log:
        for i in range(20):
            log.append_many([b"%d" % i * 500] * 3, atomic=True)
    with (tmp_path / "x").open("wb") as file:
        made = ours.ParquetFile(file)
        with dlog.open_reader("log", url="memory:row-groups") as reader:
            for batch in reader.batches():
                made.add(batch)
                assert made._bytes < 4_000, "no more than that waits in memory"
        made.close()
    found = parquet.ParquetFile(tmp_path / "x")
    assert found.metadata.num_row_groups > 5
    assert found.read().column("seq").to_pylist() == list(range(60))


def test_a_log_without_messages(shell: Shell) -> None:
    shell.dlog("create", "orders")
    assert shell.dlog("export", "orders").out == b""
    shell.dlog("export", "orders", "-o", "none.jsonl")
    assert (shell.home / "none.jsonl").read_bytes() == b""
    parquet = pytest.importorskip("pyarrow.parquet")
    shell.dlog("export", "orders", "-o", "none", "--format", "parquet")
    assert parquet.read_table(shell.home / "none").num_rows == 0


def test_a_file_is_there_as_a_whole_or_not_at_all(shell: Shell) -> None:
    fill(shell)
    before = set(shell.home.iterdir())
    shell.dlog("export", "nothing", "-o", "out.jsonl", expect=3)
    ledger = next((shell.home / "logs" / "ledgers").glob("*.ledger"))
    raw = bytearray(ledger.read_bytes())
    raw[raw.rindex(b"499")] ^= 1
    whole = ledger.read_bytes()
    ledger.write_bytes(raw)
    shell.dlog("export", "orders", "-o", "out.jsonl", expect=1)
    assert set(shell.home.iterdir()) == before
    ledger.write_bytes(whole)
    shell.dlog("export", "orders", "-o", "out.jsonl")
    assert set(shell.home.iterdir()) == before | {shell.home / "out.jsonl"}


def test_a_file_that_is_there_is_not_replaced_unasked(shell: Shell) -> None:
    fill(shell)
    (shell.home / "out").write_bytes(b"mine")
    assert "--force" in shell.dlog("export", "orders", "-o", "out", expect=2).err
    assert (shell.home / "out").read_bytes() == b"mine"
    shell.dlog("export", "orders", "-o", "out", "--force")
    assert (shell.home / "out").read_bytes().count(b"\n") == 504


def test_parquet_wants_a_file(shell: Shell) -> None:
    assert "-o FILE" in shell.dlog("export", "orders", "--format", "parquet", expect=2).err
