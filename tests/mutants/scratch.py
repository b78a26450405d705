"""A scratch copy of the files of the working tree, in which one mutant at a time is made."""

from __future__ import annotations

import compileall
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.edits import Edit


def tracked_files(root: Path) -> list[str]:
    """What git tracks or would track, as it is in the working tree now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in listed.stdout.split("\0") if name and (root / name).is_file()]


def copy_tree(root: Path, names: list[str], target: Path, *, compiled: tuple[str, ...]) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target / name)
    for folder in compiled:
        compileall.compile_dir(target / folder, quiet=2)


class Scratch:
    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._made = 0

    @contextmanager
    def mutated(self, edit: Edit) -> Iterator[None]:
        """Python takes a compiled file for good if time and size of its source are the same. So
        each mutant gets a time of its own, and no compiled file of it stays."""
        path = self.tree / edit.path
        whole, stat = path.read_bytes(), path.stat()
        self._made += 1
        try:
            path.write_bytes(edit.apply(whole.decode()).encode())
            later = stat.st_mtime_ns + 2_000_000_000 * self._made
            os.utime(path, ns=(later, later))
            yield
        finally:
            path.write_bytes(whole)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
