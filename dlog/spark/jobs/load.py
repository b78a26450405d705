"""Parquet files as messages of a log: `dlog spark import`. All of them, at once and whole, or none.

Rows go in the order of `--order-by`, if that is given (then one task writes), else each task's rows
in their order. `seq` in an export of several shards is shard by shard: a key's later messages are
in a later shard. The columns are those of an export, of this one or of `dlog export`: `value`,
`key`, `headers`, `event_time`; all others are left out. `--batch` names the import: run again under
the same name it adds nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dlog.spark.jobs.session import access_of, options_of, parser, session

_OURS = {"value": "value", "key": "key", "headers": "headers", "event_time": "eventTime"}


def load(
    spark: Any,
    options: Mapping[str, str],
    source: str,
    log: str,
    *,
    order_by: str | None = None,
    batch: str | None = None,
) -> None:
    rows = spark.read.parquet(source)
    if order_by is not None:
        by = [name.strip() for name in order_by.split(",")]
        if by == ["seq"] and "shard" in rows.columns:
            by = ["shard", "seq"]
        rows = rows.repartition(1).sortWithinPartitions(*by)
    there = [
        f"{_read(rows, name)} as {ours}" for name, ours in _OURS.items() if name in rows.columns
    ]
    writer = rows.selectExpr(*there).write.format("dlog").mode("append")
    if batch is not None:
        writer = writer.option("query", batch)
    writer.options(**options).option("topic", log).save()


def _read(rows: Any, name: str) -> str:
    """`dlog export` calls a header's name what it is, Spark's columns call it a key."""
    if name == "headers" and "name" in rows.schema[name].dataType.elementType.fieldNames():
        return "transform(headers, each -> struct(each.name as key, each.value as value))"
    return name


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser("import", __doc__ or "")
    args.add_argument("source", help="a directory of Parquet files")
    args.add_argument("log")
    args.add_argument("--order-by", metavar="COLUMNS", help="or several, as shard,seq")
    args.add_argument("--batch", metavar="NAME", help="adds nothing if it was imported before")
    chosen = args.parse_args(arguments)
    access = access_of(chosen)
    with session("import", chosen.master) as spark:
        options = options_of(access)
        load(
            spark,
            options,
            chosen.source,
            chosen.log,
            order_by=chosen.order_by,
            batch=chosen.batch,
        )
    status = access.connect().admin.status(chosen.log)
    sys.stdout.write(f"log {chosen.log} has messages {status.head_seq} to {status.next_seq - 1}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
