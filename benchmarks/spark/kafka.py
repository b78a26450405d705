"""The peer: Spark's own Kafka source, on a broker of one node on this machine. Jars come from Maven
Central; the broker keeps its data in the page cache, as ours does."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlog.errors import Unavailable
from dlog.testing.cluster import jars
from dlog.testing.cluster.ports import LOOPBACK, Port
from dlog.testing.cluster.process import JavaCommand, JavaProcess

BROKER: tuple[jars.Artifact, ...] = (
    ("org.apache.kafka", "kafka_2.13", "4.3.1"),
    ("org.apache.kafka", "kafka-tools", "4.3.1"),
)
# The connector has no release of its own for each of Spark's; this one runs with 4.3.
CONNECTOR: tuple[jars.Artifact, ...] = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
TOPIC, SHARDS = "orders", 4
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
_CONFIG = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
num.partitions={shards}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def class_path(wanted: Sequence[jars.Artifact], *, alone: bool = False) -> list[str]:
    """Of these, and unless they are wanted alone of all that they need."""
    maven = jars.find_maven()
    if maven is None:
        raise Unavailable("no mvn on PATH", missing=["mvn"])
    every = "<groupId>*</groupId><artifactId>*</artifactId>"
    none = f"<exclusions><exclusion>{every}</exclusion></exclusions>"
    lines = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version>{none if alone else ''}</dependency>"
        for group, name, version in wanted
    )
    with tempfile.TemporaryDirectory(prefix="dlog-pom-") as directory:
        pom, told = Path(directory) / "pom.xml", Path(directory) / "classpath"
        pom.write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>dlog</groupId>"
            "<artifactId>peer</artifactId><version>1</version><packaging>pom</packaging>"
            f"<dependencies>{lines}</dependencies></project>"
        )
        command = [str(maven), "-B", "-q", "-f", str(pom), _GOAL, f"-Dmdep.outputFile={told}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise Unavailable(f"Maven could not bring {wanted[0][1]}", missing=["jars"])
        return told.read_text().strip().split(":")


class Broker(JavaProcess):
    def __init__(self, directory: Path) -> None:
        self._class_path = ":".join(class_path(BROKER))
        self.port, self._controller = Port(), Port()
        directory.mkdir(parents=True, exist_ok=True)
        self._config = directory / "server.properties"
        self._config.write_text(
            _CONFIG.format(
                host=LOOPBACK,
                port=self.port.number,
                controller=self._controller.number,
                data=directory / "data",
                shards=SHARDS,
            )
        )
        self._format()
        super().__init__("Kafka", directory, self._command, self._serves)

    def _format(self) -> None:
        java = jars.find_java()
        if java is None:
            raise Unavailable("no java on PATH", missing=["java"])
        command = [str(java), "-cp", self._class_path, "kafka.tools.StorageTool", "format"]
        command += ["-t", str(uuid.uuid4()), "-c", str(self._config)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    def _command(self) -> JavaCommand:
        arguments = [str(self._config)]
        return JavaCommand("kafka.Kafka", arguments, self._class_path, heap_mb=1024, quick=False)

    def _serves(self) -> bool:
        try:
            socket.create_connection((LOOPBACK, self.port.number), 1.0).close()
        except OSError:
            return False
        return True

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port.number}"


@contextmanager
def broker(scratch: Path) -> Iterator[str]:
    made = Broker(scratch / "kafka")
    made.start()
    try:
        made.wait_until_serving()
        yield made.address
    finally:
        made.kill()


def frame(spark: Any, address: str, topic: str) -> Any:
    given = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}
    return spark.read.format("kafka").options(**given).load()
