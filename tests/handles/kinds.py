"""The life of every kind of handle that has a row in the table."""

from __future__ import annotations

from collections.abc import Callable

from dlog.testing.sim import Simulation
from tests.handles import consuming, lives, writing
from tests.handles.faults import Faults
from tests.handles.lives import Life

LIVES: dict[str, Callable[[Simulation, Faults], Life]] = {
    "Client.read_range": consuming.ReadingARange,
    "HotConfig": consuming.FollowingADocument,
    "HotConfig: begins": consuming.BeginningToFollow,
    "JobSegment: is filled": writing.FillingASegment,
    "JobSegment: stays empty": writing.FillingNothing,
    "JobSegment: is given up": writing.GivingASegmentUp,
    "Reader: follows": lives.Following,
    "Reader: to an end": lives.ReadingToAnEnd,
    "Spark reader": consuming.ATaskOfSpark,
    "Standby: stands by": lives.StandingBy,
    "Standby: takes over": lives.TakingOver,
    "StreamReader: follows": lives.FollowingAStream,
    "StreamWriter": writing.WritingAStream,
    "Tracker": consuming.Checkpointing,
    "Worker": consuming.Working,
    "Writer": writing.Writing,
    "Writer: hands over": writing.HandingOver,
    "Writer: heals": writing.Healing,
}
