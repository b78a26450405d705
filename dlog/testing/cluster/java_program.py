"""A small Java program beside us that is asked things: for tests against the stock client, and for
benchmarks of it. Its sources are compiled here, against the jars of one release, and kept in the
user's cache under their digest; `Conversation.java` is compiled in, and `conversation` says how it
is asked."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dlog.errors import Unavailable
from dlog.testing.cluster.conversation import Program
from dlog.testing.cluster.jars import (
    BOOKKEEPER_DEFAULT,
    Artifact,
    cache_directory,
    class_path,
    find_program,
)
from dlog.testing.cluster.process import JavaCommand

COMPILE_TIMEOUT_S = 120.0
_CONVERSATION = Path(__file__).parent / "Conversation.java"


def why_not_compiled() -> str | None:
    """One sentence when nothing can be compiled here. The servers alone need no compiler."""
    if find_program("javac", os.environ.get("JAVA_HOME")) is None:
        return "no javac on PATH (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless)"
    return None


def compiled(
    sources: Sequence[Path], version: str = BOOKKEEPER_DEFAULT, more: Sequence[Artifact] = ()
) -> str:
    """The class path of a program: its own classes, then all jars of that release, and `more`."""
    jars = class_path(version, more)
    every = [_CONVERSATION, *sources]
    digest = hashlib.sha256(jars.encode())
    for source in every:
        digest.update(source.read_bytes())
    kept = cache_directory(version, more) / f"classes-{digest.hexdigest()[:16]}"
    if not kept.is_dir():
        _compile(every, jars, kept)
    return os.pathsep.join((str(kept), jars))


def _compile(sources: Sequence[Path], jars: str, kept: Path) -> None:
    javac = find_program("javac", os.environ.get("JAVA_HOME"))
    if javac is None:
        raise Unavailable(why_not_compiled() or "no javac on PATH", missing=["javac"])
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        made = Path(scratch) / "classes"
        command = [str(javac), "-proc:none", "-d", str(made), "-cp", jars, *map(str, sources)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise Unavailable(f"javac refused our sources:\n{done.stderr}")
        # Whole or not at all, also when two runs compile the same at once.
        with contextlib.suppress(OSError):
            made.rename(kept)


class JavaProgram(Program):
    """One JVM that answers."""

    def __init__(
        self,
        main: str,
        arguments: Sequence[str],
        *,
        sources: Sequence[Path],
        directory: Path,
        version: str = BOOKKEEPER_DEFAULT,
        heap_mb: int = 256,
        direct_mb: int | None = None,
        quick: bool = True,
        more: Sequence[Artifact] = (),
    ) -> None:
        def words() -> list[str]:
            return JavaCommand(
                main,
                arguments,
                compiled(sources, version, more),
                heap_mb=heap_mb,
                direct_mb=direct_mb,
                quick=quick,
            ).words(directory)

        super().__init__(f"Java program {main}", words, directory)
