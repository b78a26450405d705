"""The rows of the table: each beside the same Arrow batches from memory, in the same rounds."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dlog
from benchmarks.bookkeeper.stage import DIRECT_MB, HEAP_MB
from benchmarks.common import (
    MIB,
    Finding,
    Setting,
    interleaved,
    median,
    median_ratio,
    random_values,
)
from benchmarks.spark import kafka
from benchmarks.spark.once import once
from benchmarks.spark.session import session
from dlog.testing.cluster import Cluster

LOG = "orders"
PARTS = 4
SIZES = {1024: 700_000, 100: 4_000_000}  # bytes of a value: messages
SHARE_MIN = 0.70
SCALING_MIN = 0.9
EXPORT_PARTS = 20  # as many as the export has by itself, of 128 MiB
PEER_MIN = {1024: 2.0, 100: 2.5}
PEER_BOOKIES_MIN = 1.2
SINK_MIN, MICRO_BATCH_MAX, EXPORT_MIN = 0.60, 1.15, 0.80


def write_log(
    url: str, size: int, count: int, segment_bytes: int = 64 * MIB, name: str = LOG
) -> None:
    values = random_values(min(count, 64 * MIB // size), size)
    options = dlog.LogOptions(segment_bytes=segment_bytes)
    with dlog.open_writer(name, url=url, create=options) as log:
        left = count
        while left > 0:
            run = values[:left]
            log.append_many(run)
            left -= len(run)


def _timed(work: Callable[[], Any]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


ACTIONS: dict[str, Callable[[Any], Any]] = {
    "noop": lambda df: df.write.format("noop").mode("overwrite").save(),
    "count": lambda df: df.count(),
    "sum(length(value))": lambda df: df.selectExpr("sum(length(value))").collect(),
}


def read(setting: Setting) -> list[Finding]:
    findings = []
    with setting.scratch() as scratch, session(scratch) as spark:
        for size, full in SIZES.items():
            count = setting.pick(full, 20_000)
            url = f"file:{scratch / str(size)}"
            write_log(url, size, count)
            for name, action in ACTIONS.items():
                ours, ceiling = _sources(spark, url, size, count)
                cases = {
                    "ours": lambda a=action, d=ours: _timed(lambda: a(d())),
                    "memory": lambda a=action, d=ceiling: _timed(lambda: a(d())),
                }
                interleaved(1, cases)  # workers and their clients are there
                times = interleaved(setting.rounds, cases)
                findings.append(_share("read", f"{name}, {size} B", size, count, times))
    return findings


def peer(setting: Setting) -> list[Finding]:
    """Spark's own Kafka source, on a broker of this machine, beside logs in files."""
    with setting.scratch() as scratch:
        return _beside_kafka(setting, scratch, f"file:{scratch}/logs", "peer", PEER_MIN, SIZES)


def peer_bookies(setting: Setting) -> list[Finding]:
    """The same beside logs on three bookies, all on the same cores."""
    fewer = {size: count // 2 for size, count in SIZES.items()}
    least = dict.fromkeys(SIZES, PEER_BOOKIES_MIN)
    # Java as it is meant to run: with its optimising compiler, and memory enough.
    made = Cluster(bookies=3, quick=setting.quick, heap_mb=HEAP_MB, direct_mb=DIRECT_MB)
    with setting.scratch() as scratch, made as cluster:
        url = f"zk://{cluster.zookeeper.hosts}/dlog?ledgers={cluster.ledgers_root}"
        return _beside_kafka(setting, scratch, url, "peer_bookies", least, fewer)


def _beside_kafka(
    setting: Setting,
    scratch: Path,
    url: str,
    row: str,
    least: Mapping[int, float],
    sizes: Mapping[int, int],
) -> list[Finding]:
    connector = ",".join(kafka.class_path(kafka.CONNECTOR, alone=True))
    findings = []
    with (
        kafka.broker(scratch) as address,
        session(scratch, **{"spark.jars": connector}) as spark,
    ):
        for size, full in sizes.items():
            count = setting.pick(full, 20_000)
            topic = f"{kafka.TOPIC}-{size}"
            write_log(url, size, count, name=topic)
            ours, memory = _sources(spark, url, size, count, name=topic)
            memory().select("value").write.format("kafka").options(
                **{"kafka.bootstrap.servers": address, "topic": topic}
            ).save()
            for name, action in ACTIONS.items():
                cases = {
                    "ours": lambda a=action, d=ours: _timed(lambda: a(d())),
                    "kafka": lambda a=action, t=topic: _timed(
                        lambda: a(kafka.frame(spark, address, t))
                    ),
                }
                interleaved(1, cases)
                times = interleaved(setting.rounds, cases)
                ratio = median_ratio(times["kafka"], times["ours"])
                findings.append(
                    Finding(
                        row,
                        f"{name}, {size} B",
                        f"{count / median(times['ours']) / 1e6:.2f} M/s, {ratio:.2f} x Kafka's",
                        f"≥ {least[size]} x",
                        ratio >= least[size],
                        f"Kafka's source {count / median(times['kafka']) / 1e6:.2f} M/s",
                        {"ratio": ratio},
                        times,
                    )
                )
    return findings


def _sources(
    spark: Any, url: str, size: int, count: int, parts: int = PARTS, name: str = LOG
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    def ours() -> Any:
        given = {"url": url, "minPartitions": parts, "targetPartitionBytes": "1g"}
        return spark.read.format("dlog").options(**given).load(name)

    def memory() -> Any:
        given = {"rows": count, "size": size, "parts": parts}
        return spark.read.format("from_memory").options(**given).load()

    return ours, memory


def _share(row: str, what: str, size: int, count: int, times: dict[str, list[float]]) -> Finding:
    share = median_ratio(times["memory"], times["ours"])
    rate = count / median(times["ours"])
    return Finding(
        row,
        what,
        f"{rate / 1e6:.2f} M/s = {rate * size / 1e6:.0f} MB/s, {share:.0%} of the ceiling",
        f"≥ {SHARE_MIN:.0%} of the ceiling",
        share >= SHARE_MIN,
        f"from memory {count / median(times['memory']) / 1e6:.2f} M/s",
        {"share": share, "rows_per_s": rate},
        times,
    )


def scaling(setting: Setting) -> list[Finding]:
    """One huge ledger, with one core and with two."""
    size, count = 1024, setting.pick(400_000, 20_000)
    with setting.scratch() as scratch:
        url = f"file:{scratch / 'log'}"
        write_log(url, size, count, segment_bytes=1 << 34)
        took: dict[str, dict[int, list[float]]] = {"ours": {}, "memory": {}}
        for cores in (1, 2):
            with session(scratch, cores=cores) as spark:
                ours, memory = _sources(spark, url, size, count, PARTS)
                cases = {
                    "ours": lambda d=ours: _timed(lambda: ACTIONS["noop"](d())),
                    "memory": lambda d=memory: _timed(lambda: ACTIONS["noop"](d())),
                }
                interleaved(1, cases)
                for name, times in interleaved(setting.rounds, cases).items():
                    took[name][cores] = times
    gains = {name: median(times[1]) / median(times[2]) for name, times in took.items()}
    ratio = gains["ours"] / gains["memory"]
    return [
        Finding(
            "scaling",
            "one ledger, 1 → 2 cores",
            f"{gains['ours']:.2f} x, {ratio:.2f} of the gain from memory",
            f"≥ {SCALING_MIN} of it",
            ratio >= SCALING_MIN,
            f"from memory {gains['memory']:.2f} x",
            {"ratio": ratio},
        )
    ]


def sink(setting: Setting) -> list[Finding]:
    """Rows of 100 bytes from memory, into a log and into nothing."""
    size, count = 100, setting.pick(1_000_000, 20_000)
    with setting.scratch() as scratch, session(scratch) as spark:
        url = f"file:{scratch / 'out'}"

        def rows() -> Any:
            given = {"rows": count, "size": size, "parts": 2}
            return spark.read.format("from_memory").options(**given).load().select("value")

        def ours() -> None:
            rows().write.format("dlog").mode("append").options(url=url, topic=LOG).save()

        def discarded() -> None:
            rows().write.format("from_memory").mode("append").save()

        cases = {"ours": lambda: _timed(ours), "discarded": lambda: _timed(discarded)}
        interleaved(1, cases)
        times = interleaved(setting.rounds, cases)
    share = median_ratio(times["discarded"], times["ours"])
    return [
        Finding(
            "sink",
            "rows of 100 B into a log",
            f"{count / median(times['ours']) / 1e6:.2f} M/s, {share:.0%} of a sink that discards",
            f"≥ {SINK_MIN:.0%}",
            share >= SINK_MIN,
            f"discarded {count / median(times['discarded']) / 1e6:.2f} M/s",
            {"share": share},
            times,
        )
    ]


def micro_batch(setting: Setting) -> list[Finding]:
    """What a trigger takes, with a thousand messages of 100 bytes, into nothing."""
    size, step, triggers = 100, 1_000, setting.pick(20, 4)
    with setting.scratch() as scratch, session(scratch) as spark:
        url = f"file:{scratch / 'log'}"
        write_log(url, size, step * triggers)
        number = itertools.count()

        def took_ms(reader: Any) -> float:
            query = (
                reader.load()
                .writeStream.format("noop")
                .option("checkpointLocation", str(scratch / f"checkpoint-{next(number)}"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            progress = [each for each in query.recentProgress if each.numInputRows]
            if len(progress) < triggers:
                raise RuntimeError(f"{len(progress)} of {triggers} triggers")
            return median([each.durationMs["triggerExecution"] for each in progress[1:]])

        def ours() -> float:
            reader = spark.readStream.format("dlog").option("url", url).option("subscribe", LOG)
            places = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": step}
            return took_ms(reader.options(**places))

        def memory() -> float:
            given = {"rows": step * triggers, "size": size, "parts": 1, "step": step}
            return took_ms(spark.readStream.format("from_memory").options(**given))

        cases = {"ours": ours, "memory": memory}
        interleaved(1, cases)
        times = interleaved(setting.rounds, cases)
    ratio = median_ratio(times["ours"], times["memory"])
    return [
        Finding(
            "micro_batch",
            "a trigger of 1,000 messages, p50",
            f"{median(times['ours']):.0f} ms, {ratio:.2f} x a source in memory",
            f"≤ {MICRO_BATCH_MAX} x",
            ratio <= MICRO_BATCH_MAX,
            f"from memory {median(times['memory']):.0f} ms",
            {"ratio": ratio},
            times,
        )
    ]


def export(setting: Setting) -> list[Finding]:
    """The export job, and the same rows to Parquet from memory."""
    from dlog.spark.jobs.export import export as export_log

    size, count = 1024, setting.pick(2_500_000, 20_000)
    with setting.scratch() as scratch, session(scratch) as spark:
        url = f"file:{scratch / 'log'}"
        write_log(url, size, count)
        number = itertools.count()

        def ours() -> float:
            target = scratch / f"ours-{next(number)}"
            took_s = _timed(lambda: export_log(spark, {"url": url}, LOG, str(target)))
            shutil.rmtree(target)
            return took_s

        def memory() -> float:
            given = {"rows": count, "size": size, "parts": EXPORT_PARTS}
            rows = spark.read.format("from_memory").options(**given).load()
            rows = rows.selectExpr(
                "to_date(timestamp) as day",
                "partition as shard",
                "topic as log",
                "offset as seq",
                "timestamp",
                "cast(null as timestamp) as event_time",
                "key",
                "value",
                "cast(null as array<struct<key:string,value:binary>>) as headers",
            )
            target = scratch / f"memory-{next(number)}"
            took_s = _timed(lambda: rows.write.partitionBy("day", "shard").parquet(str(target)))
            shutil.rmtree(target)
            return took_s

        cases = {"ours": ours, "memory": memory}
        interleaved(1, cases)
        times = interleaved(setting.rounds, cases)
    share = median_ratio(times["memory"], times["ours"])
    return [
        Finding(
            "export",
            "1 KB to Parquet",
            f"{count * size / median(times['ours']) / 1e6:.0f} MB/s, {share:.0%} of from memory",
            f"≥ {EXPORT_MIN:.0%}",
            share >= EXPORT_MIN,
            f"from memory {count * size / median(times['memory']) / 1e6:.0f} MB/s",
            {"share": share},
            times,
        )
    ]


ROWS: dict[str, Callable[[Setting], list[Finding]]] = {
    "read": read,
    "peer": peer,
    "peer_bookies": peer_bookies,
    "scaling": scaling,
    "sink": sink,
    "micro_batch": micro_batch,
    "export": export,
    "once": once,
}
