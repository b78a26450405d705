"""The chapter of the demo on Spark: one log, its ledgers read in parallel, and what that says."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import dlog
from examples.demo.telling import chapter, check, say

LOG, COUNT, KEYS = "clicks", 200_000, 5


def missing() -> str | None:
    """What Spark would need and is not here."""
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            return f"the package {package} (pip install dlog[spark])"
    return None if shutil.which("java") else "Java 17"


@contextmanager
def silent_children() -> Iterator[None]:
    """What is started in here has nowhere to complain to; we have, afterwards."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def tell_spark(url: str) -> tuple[float, float] | None:
    """Seconds to set Spark up, and of the chapter itself; None where it cannot run."""
    chapter("And in parallel, with Spark", "spark.read.format('dlog')")
    if (what := missing()) is not None:
        say(f"left out: {what} is not here")
        return None
    from dlog.spark.jobs.session import session

    began_s = time.perf_counter()
    with ExitStack() as stack:
        with silent_children():  # Java tells a newcomer seven things that do not matter
            conf = {"spark.ui.showConsoleProgress": "false"}
            spark = stack.enter_context(session("demo", "local[2]", **conf))
        spark.range(1).collect()
        ready_s = time.perf_counter()
        pages = random.Random(7).choices(range(KEYS), [2**n for n in range(KEYS)], k=COUNT)
        keys = [b"page-%d" % page for page in pages]
        with dlog.open_writer(LOG, url=url, create=dlog.LogOptions(segment_bytes=1 << 20)) as log:
            log.append_many(
                [b"a click on %s, number %d" % (k, i) for i, k in enumerate(keys)], keys=keys
            )
        with dlog.connect(url) as client:
            ledgers = len(client.admin.segments(LOG))
        clicks = spark.read.format("dlog").option("url", url).option("minPartitions", 4).load(LOG)
        counted = clicks.groupBy("key").count().orderBy("count").collect()
        found = {bytes(row["key"]): row["count"] for row in counted}
        check(found == Counter(keys), "Spark counts what was written", found)
        say(
            f"{COUNT} messages in {ledgers} ledgers, read by {clicks.rdd.getNumPartitions()} tasks:"
        )
        for row in counted:
            say(
                f"  {bytes(row['key']).decode()}  {row['count']:>7}  {'▆' * (row['count'] // 4000)}"
            )
        done_s = time.perf_counter()
    return ready_s - began_s, done_s - ready_s
