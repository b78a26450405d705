"""Is a log whole? Every copy of every entry is read and checked, and seqs follow each other.

The segments of a log are shared out: each task looks over some of them as `dlog fsck --deep` does,
and names each damage. Then every message is read as a reader gets it, and counted: seqs from the
head to the tail, each once. Exit code 1 if anything is wrong or could not be looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlog.spark.jobs.session import access_in, access_of, options_of, parser, session

SEGMENTS_OF_A_TASK = 4

_Part = tuple[int, int, int, list[str], list[str]]


@dataclass(frozen=True, slots=True)
class Verified:
    ledgers: int
    entries: int
    copies: int
    messages: int
    damages: tuple[str, ...]
    not_checked: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        return not self.damages and not self.not_checked


def verify(spark: Any, options: Mapping[str, str], log: str) -> Verified:
    access = access_in(options)
    client = access.connect()
    numbers = [segment.number for segment in client.admin.segments(log)]
    shares = [
        range(some[0], some[-1] + 1)
        for some in (
            numbers[at : at + SEGMENTS_OF_A_TASK]
            for at in range(0, len(numbers), SEGMENTS_OF_A_TASK)
        )
    ]

    def check(share: range) -> _Part:
        report = access.connect().admin.fsck(log, deep=True, segments=share)
        return (
            report.ledgers,
            report.entries,
            report.copies,
            [told_of(each) for each in report.findings if each.is_damage],
            [f"{each.where}: {each.why}" for each in report.not_checked],
        )

    lists_told = check(range(0))  # the list itself, also where it has no segments
    found = spark.sparkContext.parallelize(shares, max(1, len(shares))).map(check).collect()
    # What is wrong with the list itself is told by all.
    damages = list(dict.fromkeys(told for part in [lists_told, *found] for told in part[3]))
    not_checked = list(dict.fromkeys(told for part in [lists_told, *found] for told in part[4]))
    status = client.admin.status(log)
    expected = status.next_seq - status.head_seq
    messages = 0
    if not damages and not not_checked:  # else a reader may not get through
        messages, gaps = _seqs(spark, options, log, status.head_seq, status.next_seq)
        if gaps or messages != expected:
            damages.append(
                f"{messages} of {expected} messages came, with {gaps} gaps in their seqs"
            )
    return Verified(
        sum(part[0] for part in found),
        sum(part[1] for part in found),
        sum(part[2] for part in found),
        messages,
        tuple(damages),
        tuple(not_checked),
    )


def _seqs(
    spark: Any, options: Mapping[str, str], log: str, first: int, end: int
) -> tuple[int, int]:
    """How many there are, and how often one does not follow the one before it."""
    seqs = (
        spark.read.format("dlog")
        .options(**options)
        .option("columns", "offset")
        .option("endingOffsets", f'{{"{log}": {{"0": {end}}}}}')
        .load(log)
    )

    def runs(rows: Iterator[Any]) -> Iterator[tuple[int, int, int, int]]:
        begin = last = None
        count = gaps = 0
        for row in rows:
            seq = row["offset"]
            if last is not None and seq != last + 1:
                gaps += 1
            begin = seq if begin is None else begin
            last, count = seq, count + 1
        if begin is not None and last is not None:
            yield begin, last + 1, count, gaps

    found = sorted(seqs.rdd.mapPartitions(runs).collect())
    edges = [first, *(edge for run in found for edge in run[:2]), end]
    between = sum(edges[i] != edges[i + 1] for i in range(0, len(edges), 2))
    return sum(run[2] for run in found), sum(run[3] for run in found) + between


def told_of(finding: Any) -> str:
    return f"{finding.kind.value}: {finding.where}: {finding.told}"


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser("verify", __doc__ or "")
    args.add_argument("log")
    chosen = args.parse_args(arguments)
    with session("verify", chosen.master) as spark:
        found = verify(spark, options_of(access_of(chosen)), chosen.log)
    for line in (*found.damages, *found.not_checked):
        sys.stdout.write(f"{line}\n")
    state = "whole" if found.is_whole else "NOT whole"
    sys.stdout.write(
        f"log {chosen.log} is {state}: {found.messages} messages in {found.ledgers} ledgers, "
        f"{found.entries} entries, {found.copies} copies of them read beside\n"
    )
    return 0 if found.is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
