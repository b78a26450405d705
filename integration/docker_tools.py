"""The images and the compose file of docker/, by way of the `docker` package: what `docker compose`
would do with them, on any daemon that runs on this machine.

Where no registry can be reached, a base image made with debootstrap takes the place of the stock
ones: the Dockerfiles are the same."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml
from docker.errors import DockerException, ImageNotFound

from dlog.testing.cluster import scratch_directory
from tests.pace import Deadline

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "docker"
REQUEST_TIMEOUT_S = 300
DAEMON_S = 60
SERVING_S = 120
DEBIAN_OF_PYTHON = {(3, 11): "bookworm", (3, 13): "trixie"}
BASE_PACKAGES = "openjdk-17-jre-headless,python3-venv"
SERVICE_KEYS = {
    "build", "command", "depends_on", "environment", "image", "network_mode", "profiles",
    "restart", "volumes",
}  # fmt: skip


@contextmanager
def daemon() -> Iterator[docker.DockerClient]:
    """A client of a Docker daemon on this machine: of the one that runs, else of one that is
    started for the tests; where neither is possible, a skip that says why."""
    with ExitStack() as ending:
        client = _reached()
        if isinstance(client, str):
            host = ending.enter_context(_own_daemon(client))
            client = _reached(host)
        if isinstance(client, str):
            pytest.skip(f"the Docker daemon that was started cannot be reached: {client}")
        ending.callback(client.close)
        name = client.info()["Name"]
        if name != socket.gethostname():
            pytest.skip(f"the Docker daemon is on {name}: its loopback is not ours")
        yield client


def _reached(host: str | None = None) -> docker.DockerClient | str:
    """A client of the daemon that answers at `host` or, without one, where the environment says."""
    with warnings.catch_warnings():
        # The package leaves the socket open on which no daemon answered.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            if host is None:
                return docker.from_env(timeout=REQUEST_TIMEOUT_S)
            return docker.DockerClient(host, timeout=REQUEST_TIMEOUT_S)
        except DockerException as error:
            return str(error).splitlines()[0][:120]
        finally:
            gc.collect()


@contextmanager
def _own_daemon(why: str) -> Iterator[str]:
    """The address of a daemon with directories of its own, which ends with the block."""
    program = shutil.which("dockerd")
    if program is None or os.getuid() != 0:
        pytest.skip(
            f"no Docker daemon can be reached ({why}), and to start one takes root and dockerd "
            "(Debian, Ubuntu: apt-get install docker.io)"
        )
    with scratch_directory() as scratch:
        address = scratch / "docker.sock"
        command = [program, "--host", f"unix://{address}", "--pidfile", str(scratch / "pid")]
        command += ["--data-root", str(scratch / "data"), "--exec-root", str(scratch / "exec")]
        with (scratch / "log").open("wb") as log:
            started = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = Deadline(DAEMON_S)
            while isinstance(client := _reached(f"unix://{address}"), str):
                if started.poll() is not None or deadline.passed():
                    last = (scratch / "log").read_text(errors="replace").splitlines()[-1:]
                    pytest.skip(f"dockerd does not start on this machine: {last}")
            client.close()
            yield f"unix://{address}"
        finally:
            started.terminate()
            started.wait(DAEMON_S)


def fill() -> None:
    """Jars and wheels beside the Dockerfiles."""
    done = subprocess.run(
        [PLACE / "fill"],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"docker/fill could not bring jars and wheels: {done.stderr.strip()[-200:]}")


class Project:
    """What docker/compose.yaml says, under a name of its own. `ports` go where the file asks the
    environment; a key of the file that this class does not know is an error."""

    def __init__(self, client: docker.DockerClient, name: str, ports: Mapping[str, int]) -> None:
        self._client = client
        self._name = name
        text = (PLACE / "compose.yaml").read_text(encoding="utf-8")
        filled = re.sub(r"\$\{(\w+):-\d+\}", lambda found: str(ports[found[1]]), text)
        self.services: dict[str, dict[str, Any]] = yaml.safe_load(filled)["services"]
        for service, told in self.services.items():
            assert told.keys() <= SERVICE_KEYS, f"{service}: {told.keys() - SERVICE_KEYS}"
        self._running: dict[str, Any] = {}
        self._volumes: set[str] = set()

    def build(self) -> None:
        for told in {each["image"]: each for each in self.services.values()}.values():
            dockerfile = told["build"]["dockerfile"]
            self._client.images.build(
                path=str(PLACE),
                dockerfile=dockerfile,
                tag=self._tag(told["image"]),
                buildargs={"BASE": base_image(self._client, PLACE / dockerfile)},
                network_mode="none",
                rm=True,
            )

    def up(self) -> None:
        """Every service without a profile, in the order of their needs."""
        wanted = {name: each for name, each in self.services.items() if "profiles" not in each}
        while missing := wanted.keys() - self._running.keys():
            ready = [n for n in wanted if n in missing and self._needs(n).isdisjoint(missing)]
            assert ready, f"in a circle: {missing}"
            for name in ready:
                for needed, how in wanted[name].get("depends_on", {}).items():
                    self._wait(needed, how["condition"])
                self._running[name] = self._start(name)
        for name in wanted.keys() - {"format"}:
            self._wait(name, "service_healthy")

    def down(self, *, volumes: bool) -> None:
        for container in self._running.values():
            container.remove(force=True)
        self._running.clear()
        if volumes:
            for volume in self._volumes:
                self._client.volumes.get(volume).remove()
            for image in {each["image"] for each in self.services.values()}:
                self._client.images.remove(self._tag(image))

    def run(self, service: str, *words: str, entrypoint: list[str] | None = None) -> str:
        """One command in a new container of the service; what it printed."""
        container = self._start(service, command=list(words), entrypoint=entrypoint)
        try:
            code = container.wait(timeout=SERVING_S)["StatusCode"]
            told = container.logs(stdout=True, stderr=False).decode()
            assert code == 0, f"{words} ended with {code}: {container.logs().decode()[-2000:]}"
            return str(told)
        finally:
            container.remove(force=True)

    def kill(self, service: str) -> None:
        self._running[service].kill()

    def _needs(self, service: str) -> set[str]:
        return set(self.services[service].get("depends_on", {}))

    def _start(self, service: str, **options: Any) -> Any:
        told = self.services[service]
        volumes = {}
        for each in told.get("volumes", []):
            name, _, where = each.partition(":")
            volumes[f"{self._name}-{name}"] = {"bind": where, "mode": "rw"}
        self._volumes |= volumes.keys()
        return self._client.containers.run(
            self._tag(told["image"]),
            detach=True,
            environment=told["environment"],
            network_mode=told["network_mode"],
            volumes=volumes,
            **({"command": told.get("command")} | options),
        )

    def _wait(self, service: str, condition: str) -> None:
        """Until it is so, by the daemon's own news of the container."""
        container = self._running[service]
        now = int(time.time())
        news = self._client.events(
            filters={"container": container.id},
            since=now - REQUEST_TIMEOUT_S,  # also what came before we asked
            until=now + SERVING_S,
            decode=True,
        )
        for _ in news:
            container.reload()
            state = container.attrs["State"]
            if state["Status"] == "exited":
                if condition == "service_completed_successfully" and state["ExitCode"] == 0:
                    return
                break
            if condition == "service_healthy" and state["Health"]["Status"] == "healthy":
                return
        log = container.logs().decode(errors="replace")[-3000:]
        raise AssertionError(f"{service} is not {condition}: {json.dumps(state)}\n{log}")

    def _tag(self, image: str) -> str:
        return f"{image}:{self._name}"


def base_image(client: docker.DockerClient, dockerfile: Path) -> str:
    """What the Dockerfile names, with the Python that the wheels were built for; else our own."""
    found = re.search(r"^ARG BASE=(\S+)$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, f"{dockerfile.name} names no base"
    python = "python:{}.{}-".format(*sys.version_info)
    wanted = re.sub(r"^python:3\.\d+-", python, found[1])
    try:
        client.images.pull(wanted)
    except DockerException:
        return _imported(client)
    return wanted


def _imported(client: docker.DockerClient) -> str:
    suite = DEBIAN_OF_PYTHON.get(sys.version_info[:2])
    name = f"dlog-base:{suite}"
    try:
        client.images.get(name)
    except ImageNotFound:
        pass
    else:
        return name
    if suite is None or shutil.which("debootstrap") is None or os.getuid() != 0:
        pytest.skip(
            "no image registry can be reached, and a base image of our own takes root, debootstrap "
            f"and Python {' or '.join(f'{a}.{b}' for a, b in DEBIAN_OF_PYTHON)}"
        )
    with scratch_directory() as scratch:
        tree, packed = scratch / "tree", scratch / "base.tar"
        debootstrap = ["debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", suite]
        for command in (
            [*debootstrap, str(tree)],
            [
                "tar",
                "-C",
                str(tree),
                "--exclude=./var/cache/apt/archives/*.deb",
                "-cf",
                packed,
                ".",
            ],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"no base image: {(done.stdout + done.stderr).strip()[-200:]}")
        client.api.import_image_from_file(
            str(packed), repository="dlog-base", tag=suite, changes=[]
        )
    return name
