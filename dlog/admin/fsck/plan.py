"""What can be done about what was found, in the order in which to do it.

First the list, by which all else is judged; then copies, which let entries be read; then orphans,
which nothing needs. Each step stands for itself, and looks again before it does anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dlog.admin.fsck.report import Action, Finding, Step

_ORDER: Final = (
    Action.WRITE_PAGE,
    Action.RESEAL,
    Action.MEND_COPY,
    Action.MOVE_COPIES,
    Action.SEAL_TAIL,
    Action.DELETE_PAGE,
    Action.DELETE_LEDGER,
)
_TOLD: Final = {
    Action.WRITE_PAGE: "write the page again as its ledgers, or the pages below it, prove it",
    Action.RESEAL: "write the end that the entries prove: into the list, or the ledger's metadata",
    Action.MEND_COPY: "write these copies again as a good one has them",
    Action.MOVE_COPIES: "copy these entries to another bookie, which takes the place of this one",
    Action.SEAL_TAIL: "take the log over, seal what its last writer left, and leave it",
    Action.DELETE_PAGE: "delete the page node",
    Action.DELETE_LEDGER: "fence the ledger, and delete it",
}


def plan_of(findings: Iterable[Finding]) -> tuple[Step, ...]:
    """Each thing once."""
    steps = dict.fromkeys(
        Step(finding.action, finding.where, _TOLD[finding.action])
        for finding in findings
        if finding.action is not None
    )
    return tuple(sorted(steps, key=lambda step: _ORDER.index(step.action)))
