"""Two streaming queries, one behind the other: `orders` to Parquet, and that into the log `again`.

Both keep their place in a checkpoint. The file sink lists a file only when its batch is complete,
and the log takes a batch only once: so it does not matter when this program dies.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dlog.spark.jobs.session import session

SCHEMA = "seq bigint, key binary, value binary"


def to_parquet(spark: Any, url: str, place: Path) -> Any:
    orders = (
        spark.readStream.format("dlog")
        .option("url", url)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 500)
        .load("orders")
    )
    rows = orders.selectExpr("offset as seq", "key", "value").writeStream.format("parquet")
    rows = rows.option("path", str(place / "lake"))
    return rows.option("checkpointLocation", str(place / "to_parquet"))


def to_log(spark: Any, url: str, place: Path) -> Any:
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2)
    messages = rows.parquet(str(place / "lake")).select("key", "value").writeStream.format("dlog")
    messages = messages.option("url", url).option("topic", "again")
    return messages.option("checkpointLocation", str(place / "to_log"))


def main(url: str, place: Path) -> None:
    (place / "lake").mkdir(parents=True, exist_ok=True)
    with session("pipeline", "local[2]") as spark:
        while True:
            for query in (to_parquet(spark, url, place), to_log(spark, url, place)):
                query.trigger(availableNow=True).start().awaitTermination()
            print("round", flush=True)
            if not sys.stdin.readline():  # whoever started us wants no more rounds
                return


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
