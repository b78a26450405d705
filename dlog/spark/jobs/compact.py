"""The latest message of each key, as Parquet or as a new log: what a log comes to if later messages
replace earlier ones. A key whose last message is a tombstone (no value) is left out; messages
without a key are all kept, since nothing replaces them. In a new log they stand in the order that
they had. Of a stream of shards a key's later messages are in a later shard, whose number is higher:
a new log has the shards one after the other.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dlog.spark.jobs.session import access_in, access_of, options_of, parser, session

COLUMNS = "key,value,topic,partition,offset,timestamp,timestampType,headers,eventTime"
_ORDER = ("partition", "offset")


def latest(spark: Any, options: Mapping[str, str], log: str) -> Any:
    """A DataFrame with the columns of the source, a row for each key, in no order."""
    from pyspark.sql import functions as f

    messages = spark.read.format("dlog").options(**options).option("columns", COLUMNS).load(log)
    keyed = messages.where("key is not null")
    last = keyed.groupBy("key").agg(
        f.max_by(f.struct(*messages.columns), f.struct(*_ORDER)).alias("last")
    )
    kept = last.select("last.*").where("value is not null")
    return kept.unionByName(messages.where("key is null"))


def to_log(spark: Any, options: Mapping[str, str], log: str, target: str) -> None:
    """All at once, or not at all; a log that is there already is refused."""
    client = access_in(options).connect()
    client.stream(log).shards()  # `NotFound` before anything is made
    client.admin.create(target)
    try:
        ordered = latest(spark, options, log).repartition(1).sortWithinPartitions(*_ORDER)
        messages = ordered.select("value", "key", "headers", "eventTime")
        writer = messages.write.format("dlog").mode("append").options(**options)
        writer.option("topic", target).save()
    except BaseException:  # also Ctrl-C: the next run would be refused
        if client.admin.status(target).next_seq == 0:
            client.admin.remove(target)
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser("compact", __doc__ or "")
    args.add_argument("log")
    args.add_argument("target", help="a directory that is not there yet")
    args.add_argument("--log", action="store_true", dest="as_log", help="target is a log instead")
    chosen = args.parse_args(arguments)
    options = options_of(access_of(chosen))
    with session("compact", chosen.master) as spark:
        if chosen.as_log:
            to_log(spark, options, chosen.log, chosen.target)
            kept = spark.read.format("dlog").options(**options).load(chosen.target).count()
        else:
            latest(spark, options, chosen.log).write.mode("error").parquet(chosen.target)
            kept = spark.read.parquet(chosen.target).count()
        sys.stdout.write(f"{kept} messages of {chosen.log} are left in {chosen.target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
