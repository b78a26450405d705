"""Where the servers come from: a pom with pinned versions, resolved once by the Maven of this
machine. The class path is kept in the user's cache under the digest of the pom, so a second start
asks nobody; a jar that has gone since makes Maven come again."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from dlog.errors import ConfigError, Unavailable

BOOKKEEPER_DEFAULT = "4.18.0"
JAVA_RELEASE_MIN = 17
RESOLVE_TIMEOUT_S = 600.0  # about 120 MB, once
ANSWER_TIMEOUT_S = 30.0  # of `java -version`

# BookKeeper's release -> what its ZooKeeper needs to run as a server and the pom does not bring.
# slf4j and log4j come with BookKeeper itself.
Artifact = tuple[str, str, str]  # group, name, version
BOOKKEEPER_VERSIONS: dict[str, tuple[Artifact, ...]] = {
    version: (
        ("org.apache.bookkeeper", "bookkeeper-server", version),
        ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
        ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
    )
    for version in ("4.18.0", "4.17.4", "4.17.3")
}
_CLASS_PATH_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"

_POM = """<?xml version="1.0" encoding="UTF-8"?>
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>dlog</groupId>
  <artifactId>cluster</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""


def pom_text(version: str, more: Sequence[Artifact] = ()) -> str:
    try:
        wanted = BOOKKEEPER_VERSIONS[version]
    except KeyError:
        known = ", ".join(BOOKKEEPER_VERSIONS)
        raise ConfigError(f"no cluster of BookKeeper {version!r}; known are {known}") from None
    return _POM.format(
        dependencies="\n".join(
            f"    <dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{number}</version></dependency>"
            for group, name, number in (*wanted, *more)
        )
    )


def find_java() -> Path | None:
    """The `java` of JAVA_HOME, else of PATH."""
    return find_program("java", os.environ.get("JAVA_HOME"))


def find_maven() -> Path | None:
    """The `mvn` of MAVEN_HOME, else of PATH."""
    return find_program("mvn", os.environ.get("MAVEN_HOME"))


def why_not(version: str = BOOKKEEPER_DEFAULT) -> str | None:
    """One sentence that says what is missing for a cluster here; None when nothing is."""
    kept_in = cache_directory(version)  # a release that is not known is refused
    java = find_java()
    if java is None:
        return "no java on PATH (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless maven)"
    release = _java_release(java)
    if release is None or release < JAVA_RELEASE_MIN:
        told = "of an unknown release" if release is None else f"release {release}"
        return f"{java} is {told}; BookKeeper needs Java {JAVA_RELEASE_MIN} or newer"
    if find_maven() is None and _kept(kept_in) is None:
        return "no mvn on PATH (Debian, Ubuntu: apt-get install maven)"
    return None


def class_path(version: str = BOOKKEEPER_DEFAULT, more: Sequence[Artifact] = ()) -> str:
    """Every jar of the servers, for `java -cp`, and `more` with all that they need. Brings them
    first if they are not there."""
    directory = cache_directory(version, more)
    kept = _kept(directory)
    if kept is not None:
        return kept
    directory.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(directory / "lock"):
        return _kept(directory) or _resolve(directory, version, more)


@functools.cache
def why_not_brought(version: str = BOOKKEEPER_DEFAULT) -> str | None:
    """Brings the jars if need be. None when they are there, else one sentence that says why not;
    found out once, since Maven asks the network."""
    missing = why_not(version)
    if missing is None:
        try:
            class_path(version)
        except Unavailable as error:
            return error.message
    return missing


def _resolve(directory: Path, version: str, more: Sequence[Artifact]) -> str:
    maven = find_maven()
    if maven is None:
        raise Unavailable(why_not(version) or "no mvn on PATH", missing=["mvn"])
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        pom, told = Path(scratch) / "pom.xml", Path(scratch) / "classpath.txt"
        pom.write_text(pom_text(version, more), encoding="utf-8")
        # -U: ask again for what was missing before; Maven would remember that for a day.
        command = [str(maven), "-B", "-q", "-U", "-f", str(pom), _CLASS_PATH_GOAL]
        command.append(f"-Dmdep.outputFile={told}")
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"Maven did not bring the jars of BookKeeper {version} "
                f"in {RESOLVE_TIMEOUT_S:.0f} s",
                missing=["jars"],
            ) from error
        if done.returncode != 0 or not told.is_file():
            complaint = _first_error(done.stdout)
            raise Unavailable(
                f"Maven could not bring the jars of BookKeeper {version}: {complaint}",
                missing=["jars"],
            )
        told.replace(directory / "classpath.txt")
    return (directory / "classpath.txt").read_text(encoding="utf-8").strip()


def _first_error(told: str) -> str:
    """The last cause in Maven's first complaint, without its colours and addresses."""
    plain = re.sub(r"\x1b\[[0-9;]*m| \(https?://[^)]*\)| -> \[Help \d+\]", "", told).splitlines()
    complaints = (line.rpartition(": ")[2] for line in plain if line.startswith("[ERROR]"))
    return next(complaints, "no reason given")


def _kept(directory: Path) -> str | None:
    try:
        told = (directory / "classpath.txt").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    return told if all(map(os.path.exists, told.split(os.pathsep))) else None


def cache_directory(version: str, more: Sequence[Artifact] = ()) -> Path:
    digest = hashlib.sha256(pom_text(version, more).encode()).hexdigest()[:16]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dlog" / "cluster" / f"{version}-{digest}"


def find_program(name: str, home: str | None) -> Path | None:
    found = None if home is None else shutil.which(name, path=str(Path(home) / "bin"))
    found = found or shutil.which(name)
    return None if found is None else Path(found)


@functools.cache
def _java_release(java: Path) -> int | None:
    try:
        done = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # a stub that starts nothing: as good as no Java
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return None if found is None else int(found[1])


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Two test runs that start together shall not do the same twice."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
