"""What the batch source does on files, on bookies; and a bookie that dies under a job."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path
from typing import Any

import dlog
from dlog.testing.cluster import Cluster
from tests.spark.test_batch import (
    WHOLE,
    expect_equal,
    frame,
    test_every_message_in_every_field,
    test_from_an_id_and_a_time,
    test_several_logs,
    test_the_open_ledger_of_a_writer_that_died,
    test_the_open_ledger_of_a_writer_that_lives,
    test_truncation_is_told_or_jumped_over,
)

__all__ = [
    "test_every_message_in_every_field",
    "test_from_an_id_and_a_time",
    "test_several_logs",
    "test_the_open_ledger_of_a_writer_that_died",
    "test_the_open_ledger_of_a_writer_that_lives",
    "test_truncation_is_told_or_jumped_over",
]


def test_a_bookie_dies_in_the_middle_of_a_job(
    spark: Any, url: str, cluster: Cluster, tmp_path: Path
) -> None:
    """Each task stops at its first message until the bookie is dead; then all of them read on."""
    small = dlog.LogOptions(segment_bytes=1 << 20)
    with dlog.open_writer("orders", url=url, create=small) as log:
        log.append_many([b"%07d" % i * 30 for i in range(30_000)])
    flags = str(tmp_path)
    df = frame(spark, url, columns=WHOLE, maxRecordsPerPartition=5_000)
    parts = df.rdd.getNumPartitions()
    assert parts >= 6

    def slowly(rows: Any) -> Any:
        import fcntl
        import pathlib

        for number, row in enumerate(rows):
            if number == 1:
                pathlib.Path(flags, "begun").touch()
                with pathlib.Path(flags, "held").open() as held:
                    fcntl.flock(held, fcntl.LOCK_SH)  # until the test lets go of it
            yield row["offset"]

    held = (tmp_path / "held").open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    found: list[int] = []
    job = threading.Thread(target=lambda: found.extend(df.rdd.mapPartitions(slowly).collect()))
    job.start()
    victim = cluster.bookies[0]
    try:
        while not (tmp_path / "begun").exists():
            job.join(0.05)
            assert job.is_alive()
        victim.kill()
        held.close()
        job.join(120)
        assert sorted(found) == list(range(30_000))
        assert expect_equal(frame(spark, url, columns=WHOLE), url) == 30_000
    finally:
        held.close()
        victim.start()
        victim.wait_until_serving()
