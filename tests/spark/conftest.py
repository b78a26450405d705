"""One short local session of Spark for all tests of this folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlog.spark.access import close_all
from tests.launcher import Launcher

pyspark = pytest.importorskip("pyspark", reason="the package pyspark is not installed")

# A session of minutes is over before the optimizing compiler pays.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
# Tables of a few rows are read before code for them is generated.
CONF = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


# What Spark starts as a process of its own for each query, and in a daemon that forks.
WORKERS = (
    "pyspark.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
)
IMPORTS = (
    *WORKERS,
    "pyarrow",
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "dlog.spark.batch",
    "dlog.spark.sink",
    "dlog.spark.stream",
)


@pytest.fixture(scope="session", autouse=True)
def quick_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Also for programs that tests start. Spark imports all of itself, Arrow and dlog in each of
    its Python processes: here they are forks of one that did."""
    if shutil.which("java") is None:
        yield
        return
    launcher = Launcher(tmp_path_factory.mktemp("launcher"), WORKERS, IMPORTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(launcher.path))
        patch.setenv("SPARK_SUBMIT_OPTS", SHORT_LIVED)
        yield
    launcher.end()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, quick_start: None) -> Iterator[Any]:
    if shutil.which("java") is None:
        pytest.skip("no Java for Spark")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["TZ"] = "UTC"
    builder = pyspark.sql.SparkSession.builder.master("local[2]").appName("dlog tests")
    warehouse = tmp_path_factory.mktemp("warehouse")
    for name, value in {**CONF, "spark.sql.warehouse.dir": str(warehouse)}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def clients_of_the_driver_end() -> Iterator[None]:
    """What a job opened in this process stays open until the process ends, also when the servers
    are gone."""
    yield
    close_all()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'data'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(180))
