"""What is in a log: messages and bytes over time, sizes, and how unevenly keys have them.

A table on the terminal, and with --picture a drawing (SVG) of the same.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from dlog.spark.jobs.session import access_of, options_of, parser, session

KEYS_SHOWN = 10
SLICES = 24  # of time
_BAR = 40


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the time, in microseconds since 1970."""

    begin_us: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KeyCount:
    key: bytes | None
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    messages: int
    bytes: int
    tombstones: int
    keys: int
    first_us: int
    last_us: int
    sizes: tuple[int, ...]
    """The smallest value, the quartiles, the 99th of a hundred, the largest; in bytes."""
    slices: tuple[Slice, ...]
    heaviest: tuple[KeyCount, ...]

    @property
    def per_s(self) -> float:
        span_s = (self.last_us - self.first_us) / 1e6
        return self.messages / span_s if span_s > 0 else 0.0


def stats(spark: Any, options: Mapping[str, str], log: str) -> Stats:
    from pyspark.sql import functions as f

    read = spark.read.format("dlog").options(**options).option("columns", "key,value,timestamp")
    sized = (
        read.load(log)
        .select(
            "key",
            f.unix_micros("timestamp").alias("at_us"),
            f.length("value").cast("long").alias("size"),
        )
        .persist()
    )
    try:
        whole = sized.agg(
            f.count("*"),
            f.coalesce(f.sum("size"), f.lit(0)),
            f.count_if(f.col("size").isNull()),
            f.count_distinct("key"),
            f.coalesce(f.min("at_us"), f.lit(0)),
            f.coalesce(f.max("at_us"), f.lit(0)),
            f.percentile("size", [0.0, 0.25, 0.5, 0.75, 0.99, 1.0]),
        ).collect()[0]
        messages, size, tombstones, keys, first_us, last_us, sizes = whole
        width_us = max(1, -(-(last_us - first_us + 1) // SLICES))
        slice_of = ((f.col("at_us") - first_us) / width_us).cast("long")
        by_slice = sized.groupBy(slice_of.alias("slice")).agg(
            f.count("*"), f.coalesce(f.sum("size"), f.lit(0))
        )
        slices = {row[0]: row for row in by_slice.collect()}
        heaviest = (
            sized.groupBy("key")
            .agg(f.count("*").alias("messages"), f.coalesce(f.sum("size"), f.lit(0)).alias("size"))
            .orderBy(f.desc("messages"), "key")
            .limit(KEYS_SHOWN)
            .collect()
        )
    finally:
        sized.unpersist()
    return Stats(
        messages,
        size,
        tombstones,
        keys,
        first_us,
        last_us,
        tuple(int(each) for each in sizes or ()),
        tuple(
            Slice(first_us + i * width_us, *(slices[i][1:] if i in slices else (0, 0)))
            for i in range(SLICES if messages else 0)
        ),
        tuple(KeyCount(None if key is None else bytes(key), *rest) for key, *rest in heaviest),
    )


# --- telling


def lines(log: str, found: Stats) -> list[str]:
    told = [
        f"log {log}: {found.messages} messages, {found.bytes} bytes of values, "
        f"{found.tombstones} tombstones, {found.keys} keys"
    ]
    if not found.messages:
        return told
    told += [f"  {found.per_s:.1f} messages/s from the first to the last", ""]
    if found.sizes:
        names = ("smallest", "25 %", "median", "75 %", "99 %", "largest")
        pairs = (f"{name} {size}" for name, size in zip(names, found.sizes, strict=True))
        told += [f"  value, bytes: {', '.join(pairs)}", ""]
    most = max(each.messages for each in found.slices)
    for each in found.slices:
        bar = "█" * round(_BAR * each.messages / most)
        told.append(f"  {_moment(each.begin_us)}  {each.messages:>12}  {bar}")
    told += ["", "  keys with the most messages"]
    for count in found.heaviest:
        share = count.messages / found.messages
        told.append(f"  {_key(count.key):<24}  {count.messages:>12}  {share:6.1%}")
    return told


def _moment(at_us: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _key(key: bytes | None) -> str:
    if key is None:
        return "(no key)"
    text = key.decode("utf-8", "backslashreplace")
    return text if text.isprintable() and len(text) <= 24 else repr(key)[2:25]


def picture(log: str, found: Stats) -> str:
    """Two bar charts, one below the other: messages over time, messages of the heaviest keys."""
    bars = [(_moment(each.begin_us), each.messages) for each in found.slices]
    keys = [(_key(each.key), each.messages) for each in found.heaviest]
    height = 60 + 18 * (len(bars) + len(keys) + 3)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="20" y="24" font-size="16">{escape(log)}: {found.messages} messages</text>',
    ]
    y = 50
    for title, chart in (("over time (UTC)", bars), ("by key", keys)):
        drawn.append(f'<text x="20" y="{y}" fill="#555">{title}</text>')
        most = max((count for _, count in chart), default=1)
        for name, count in chart:
            y += 18
            width = max(1, round(460 * count / most))
            drawn.append(f'<text x="20" y="{y + 11}">{escape(name)}</text>')
            drawn.append(f'<rect x="190" y="{y}" width="{width}" height="14" fill="#4878a8"/>')
            drawn.append(f'<text x="{196 + width}" y="{y + 11}">{count}</text>')
        y += 36
    return "\n".join([*drawn, "</svg>", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser("stats", __doc__ or "")
    args.add_argument("log")
    args.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw it, too")
    chosen = args.parse_args(arguments)
    with session("stats", chosen.master) as spark:
        found = stats(spark, options_of(access_of(chosen)), chosen.log)
    sys.stdout.write("\n".join(lines(chosen.log, found)) + "\n")
    if chosen.picture is not None:
        chosen.picture.write_text(picture(chosen.log, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
