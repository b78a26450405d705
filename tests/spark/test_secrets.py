"""No secret shows where Spark shows things: options, plans, the event log, pickles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dlog.testing.canaries import canary, found_in
from tests.spark.conftest import SHORT_LIVED

PASSWORD = canary("spark-password")
# In a session of its own, since events are logged from the first moment on or not at all.
PROGRAM = """
import os, pickle, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
events, place = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.dir", events)
    .config("spark.eventLog.compress", "false")
    .config("spark.sql.warehouse.dir", place)
    .getOrCreate()
)
# Nobody answers there; what matters is all that is told on the way.
url = "zk://127.0.0.1:1/logs?meta_timeout_ms=500&session_timeout_ms=500"
options = {"url": url, "dlog.zk_auth": "env:WHO", "dlog.password": "env:PASSWORD"}
df = spark.read.format("dlog").options(**options).load("orders")
print(df._jdf.queryExecution().toString())
try:
    df.count()
except Exception as error:
    print(error)
try:
    spark.range(5).selectExpr("cast(id as string) as value").write.format("dlog").mode(
        "append"
    ).options(**options).option("topic", "out").save()
except Exception as error:
    print(error)
try:
    spark.read.format("dlog").option("url", url).option(
        "dlog.password", os.environ["PASSWORD"]
    ).load("orders").count()
except Exception as error:
    told = str(error)
    assert "say where it stands" in told, told
    print("refused", file=sys.stderr)
from dlog.spark.options import source_options, sink_options
from dlog.spark.batch import BatchReader
from pyspark import cloudpickle
reader = BatchReader(source_options({**options, "path": "orders"}, "batch"), ("value",))
sys.stdout.buffer.write(cloudpickle.dumps(reader))
sys.stdout.buffer.write(cloudpickle.dumps(sink_options({**options, "topic": "out"})))
spark.stop()
"""


def test_no_secret_in_options_plans_events_and_pickles(tmp_path: Path) -> None:
    events, place = tmp_path / "events", tmp_path / "place"
    events.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(events), str(place)],
        env={
            "PATH": "/usr/bin:/bin:/usr/local/bin",
            "HOME": str(tmp_path),
            "WHO": f"ana:{PASSWORD}",
            "PASSWORD": PASSWORD,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": SHORT_LIVED,
        },
        capture_output=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert b"refused" in done.stderr
    assert b"env:PASSWORD" in done.stdout, "the place does show"
    logged = b"".join(path.read_bytes() for path in events.rglob("*") if path.is_file())
    assert b"SparkListenerSQLExecutionStart" in logged
    for what, told in (("output", done.stdout + done.stderr), ("events", logged)):
        assert not found_in(told), f"a secret shows in the {what}"
