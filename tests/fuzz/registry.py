"""All targets, by name."""

from __future__ import annotations

from tests.fuzz import (
    connection_targets,
    entry_targets,
    log_targets,
    people_targets,
    segment_targets,
    stored_targets,
    wire_targets,
)
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        *wire_targets.TARGETS,
        *connection_targets.TARGETS,
        *entry_targets.TARGETS,
        *stored_targets.TARGETS,
        *log_targets.TARGETS,
        *segment_targets.TARGETS,
        *people_targets.TARGETS,
    )
}
