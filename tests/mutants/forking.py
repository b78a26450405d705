"""A pytest plugin that collects once, and then forks for each run that it is asked for.

Loading the library and the tests takes longer than most mutants live. In the fork the functions
that an edit changes get their new code, and the chosen tests run; the process that forked knows
of nothing. A command is the path of a file; the answers are lines, too.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.mutants.chosen import Chosen, draw_the_same_examples
from tests.mutants.patching import changed_code, patch
from tests.mutants.priority import keep_priority


class Forking:
    def __init__(self, tree: Path, commands: int, answers: int) -> None:
        self._tree = tree
        self._commands = commands
        self._answers = answers
        self._functions: dict[str, list[FunctionType]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                self._functions.setdefault(found.__code__.co_filename, []).append(found)
        gc.collect()
        gc.freeze()
        self._answer(f"ready {len(session.items)}")
        with os.fdopen(self._commands) as commands:
            for line in commands:
                child = os.fork()
                if child == 0:
                    os.setsid()
                    keep_priority()
                    try:
                        self._run(session, Path(line.strip()))
                    finally:
                        os._exit(0)
                self._answer(f"forked {child}")
                os.waitpid(child, 0)
                self._answer("ended")
        return True

    def _run(self, session: pytest.Session, asked_in: Path) -> None:
        asked = json.loads(asked_in.read_text(encoding="utf-8"))
        os.environ["TMPDIR"] = str(asked_in.parent)
        tempfile.tempdir = None
        chosen = Chosen(asked["limits"], asked["without"], asked_in.parent / "told")
        if asked["path"] and not self._changed(asked):
            chosen.tell("unpatchable", asked["path"])
            return
        session.config.pluginmanager.register(chosen, "mutants-chosen")
        items = chosen.arranged(session.items)
        hook = session.config.hook
        for item, following in zip(items, [*items[1:], None], strict=True):
            hook.pytest_runtest_protocol(item=item, nextitem=following)
            if chosen.has_failed:
                break
        chosen.tell("done", "")

    def _changed(self, asked: dict[str, Any]) -> bool:
        """Whether the fork runs the mutant. A module that is not loaded yet will be, from its file,
        which is the mutant's."""
        if asked["modules"][0] not in sys.modules:
            return True
        changed = changed_code(asked["path"], asked["source"], asked["mutated"])
        path = str(self._tree / asked["path"])
        return changed is not None and patch(self._functions.get(path, ()), changed)

    def _answer(self, text: str) -> None:
        os.write(self._answers, f"{text}\n".encode())


def pytest_configure(config: pytest.Config) -> None:
    draw_the_same_examples()
    commands, answers = (int(each) for each in os.environ["MUTANTS_PIPES"].split(","))
    config.pluginmanager.register(Forking(config.rootpath, commands, answers), "mutants-forking")
