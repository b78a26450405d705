"""A log as Parquet files, by day and shard; run again, it adds what came since.

A streaming query that ends when it has read what there is: its checkpoint below the target says how
far it came, and Spark's file sink lists a file only when its batch is complete. So a run that was
killed leaves nothing half, and nothing twice, for whoever reads the directory with Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dlog.spark.jobs.session import access_of, options_of, parser, session

COLUMNS = "key,value,topic,partition,offset,timestamp,headers,eventTime"
BATCH_BYTES = "4g"


def export(
    spark: Any, options: Mapping[str, str], log: str, target: str, batch_bytes: str = BATCH_BYTES
) -> int:
    """What this run added, in messages."""
    messages = (
        spark.readStream.format("dlog")
        .options(**options)
        .option("subscribe", log)
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", batch_bytes)
        .option("columns", COLUMNS)
        .load()
    )
    by_day = messages.selectExpr(
        "to_date(timestamp) as day",
        "partition as shard",
        "topic as log",
        "offset as seq",
        "timestamp",
        "eventTime as event_time",
        "key",
        "value",
        "headers",
    )
    query = (
        by_day.writeStream.format("parquet")
        .partitionBy("day", "shard")
        .option("path", target)
        .option("checkpointLocation", f"{target}/_checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress.numInputRows for progress in query.recentProgress)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser("export", __doc__ or "")
    args.add_argument("log")
    args.add_argument("target", help="a directory, or what else Spark writes files to")
    args.add_argument(
        "--batch-bytes", default=BATCH_BYTES, help="of a batch, about (default: %(default)s)"
    )
    chosen = args.parse_args(arguments)
    options = options_of(access_of(chosen))
    with session("export", chosen.master) as spark:
        added = export(spark, options, chosen.log, chosen.target, chosen.batch_bytes)
        sys.stdout.write(f"{added} messages added to {chosen.target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
