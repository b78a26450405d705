"""Where a chaos test happens: one data directory, the histories of everybody in it, and the survey
afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from dlog.testing.checkers import Story, Violation, assert_holds, violations
from dlog.testing.children import Child, Children, CrashPoint
from dlog.testing.history import Event, load
from tests.chaos.actors import Stage

PROGRAM = "tests.chaos.program"
FINAL = "final"


class Arena:
    def __init__(self, place: Path, children: Children, *, data: Path | str | None = None) -> None:
        """`data` is where the log is kept: a directory, or a URL."""
        self.data = data or place / "data"
        self.histories = place / "histories"
        self.histories.mkdir(parents=True)
        self._children = children
        self._names = itertools.count(1)

    def start(
        self,
        program: str,
        *rest: object,
        crash: CrashPoint | None = None,
        plant: str | None = None,
        patience_ms: int | None = None,
        through: Sequence[str] = (),
    ) -> Child:
        process = f"{program}{next(self._names)}"
        given: list[str] = []
        if crash is not None:
            given += ["--crash", str(crash)]
        if plant is not None:
            given += ["--plant", plant]
        if patience_ms is not None:
            given += ["--patience-ms", str(patience_ms)]
        given += [program, str(self.data), str(self.histories / process), process]
        return self._children.start(PROGRAM, *given, *map(str, rest), through=through)

    def stage(self, process: str, **parameters: int) -> Stage:
        """A place for the test's own process."""
        return Stage(self.data, self.histories / process, process, **parameters)

    def events(self) -> list[Event]:
        return load(sorted(self.histories.iterdir()))

    async def survey(self, follower: Child | None = None) -> Story:
        """All faults are over: open anew, append, read everything twice, resume; judge it all. A
        follower reads on until it met the survey's last message."""
        await self.look_after()
        if follower is not None:
            follower.wait_success()
        return assert_holds(self.events(), final=FINAL)

    async def objections(self) -> set[str]:
        """The invariants that did not hold."""
        await self.look_after()
        return {each.invariant for each in self.violations()}

    def violations(self) -> list[Violation]:
        return violations(self.events(), final=FINAL)

    async def look_after(self) -> None:
        async with self.stage("survey") as stage:
            await stage.survey(FINAL)
