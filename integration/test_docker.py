"""The images of docker/ are built and started as its compose file says, and the quickstart of the
README runs against them: as a program on the host, and as a shell session in the image of the
command line. Where no Docker daemon runs, one is started for these tests; where that is impossible,
they are skipped by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import dlog
from dlog.testing.cluster.ports import Port
from integration.docker_tools import ROOT, Project, daemon, fill
from tests.tidy.pages import blocks, shell_lines

pytestmark = [
    pytest.mark.timeout(1800),  # with a base image and two others to be made
    pytest.mark.tier("full", seconds=400),
]
BOOKIES = 4


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    names = ["ZOOKEEPER_PORT", *(f"BOOKIE_{n}_PORT" for n in range(1, BOOKIES + 1))]
    with ExitStack() as held:
        yield {name: held.enter_context(Port()).number for name in names}


@pytest.fixture(scope="module")
def project(ports: dict[str, int], jars: str) -> Iterator[Project]:
    with ExitStack() as ending:
        client = ending.enter_context(daemon())
        fill()
        made = Project(client, f"test-{uuid.uuid4().hex[:8]}", ports)
        ending.callback(made.down, volumes=True)
        made.build()
        made.up()
        yield made


@pytest.fixture
def url(project: Project) -> str:
    return str(project.services["dlog"]["environment"]["DLOG_URL"])


def test_the_quickstart_runs_as_a_program_on_the_host(url: str) -> None:
    (program,) = [block.text for block in blocks(ROOT / "README.md") if block.language == "python"]
    done = subprocess.run(
        [sys.executable, "-c", program.replace("file:./data", url)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == [
        "b'paid'", "b'shipped'", "b'a'", "b'b'", "b'c'",
    ]  # fmt: skip


def test_the_quickstart_runs_in_the_image_of_the_command_line(project: Project) -> None:
    session = next(block for block in blocks(ROOT / "README.md") if block.language == "console")
    lines = [line for line in shell_lines(session) if not line.startswith("export ")]
    shown = project.run("dlog", "-euxc", "\n".join(lines), entrypoint=["bash"])
    assert "paid" in shown
    assert "fine" in shown  # `dlog doctor`


def test_what_was_written_outlives_the_containers(project: Project, url: str) -> None:
    with dlog.open_writer("kept", url=url) as log:
        log.append(b"before")
    project.down(volumes=False)
    project.up()
    with dlog.open_writer("kept", url=url) as log:
        log.append(b"after")
    shown = project.run("dlog", "tail", "kept", "-o", "json")
    assert [json.loads(line)["value"] for line in shown.splitlines()] == ["before", "after"]


def test_appends_go_on_without_one_bookie(project: Project, url: str) -> None:
    with dlog.open_writer("robust", url=url) as log:
        log.append(b"with four")
        project.kill("bookie-2")
        log.append(b"with three")
        assert log.epoch == 1
