"""Where bugs of ledgers on bookies are registered, weather that brings their faults together, and
what protects where one of them alone does no harm."""

from __future__ import annotations

from typing import Any

from dlog.testing.sim.planted import Plants

# Recoveries are judged by what comes of them, not by the evidence that they give: of most.
plants = Plants("ledger", audits=False)
# What comes of these needs so much luck that it is seen once in thousands of histories; the
# evidence shows it at once.
RARELY_HARMFUL: dict[str, Any] = {}

# Weather for bugs that want their faults together to show within seconds.
OURS: dict[str, Any] = {"is_striped": False, "quorums": (3, 3, 2)}
ZOMBIES: dict[str, Any] = {
    **OURS,
    "spares": 0,
    "birth": False,
    "idle_troubles": 8,
    "troubles__kills": 0.9,
    "recoverers": 1,
    "recovery_from": 0.0,
    "appends": 20,
}
ZOMBIE_LOOKS = {
    **ZOMBIES,
    "nodes__travel_ms": 100.0,
    "nodes__away": 0.0,
    "burst": 3,
    "manners__serve_ms": 0.2,
    "slow": 0.0,
    "nodes__lost": 0.0,
    "nodes__slow": 0.0,
    "roads__far": 0.0,
    "crash": 0.0,
    "freeze": 0.0,
    "closes": False,
    "writer_dies": False,
    "readers": 0,
    "troubles__wipes": 0,
}
LOST_CHANGES: dict[str, Any] = {
    **OURS,
    "spares": 2,
    "troubles__kills": 0.2,
    "nodes__lost": 0.5,
    "nodes__travel_ms": 3.0,
    "nodes__tries_max": 3,
    "recoverers": 0,
}
CHANGES: dict[str, Any] = {
    **OURS,
    "spares": 3,
    "troubles__kills": 0.2,
    "nodes__travel_ms": 3.0,
    "recoverers": 0,
    "closes": False,
    "writer_dies": False,
    "crash": 0.0,
    "appends": 20,
    "burst": 8,
}
LOOKS: dict[str, Any] = {
    **OURS,
    "readers": 2,
    "troubles__read_only": 0.3,
    "publishing": 1.0,
    "closes": False,
    "recoverers": 0,
    "appends": 20,
}
LATE_RECOVERY: dict[str, Any] = {
    **OURS,
    "recoverers": 1,
    "recovery_from": 0.5,
    "fences_ahead": False,
    "appends": 20,
    "burst": 3,
    "manners__late": 0.3,
    "manners__io_failed": 0.1,
}
LIMBO = {**LATE_RECOVERY, "troubles__wipes": 1, "troubles__kills": 0.5}
SILENCE: dict[str, Any] = {
    "is_striped": False,
    "quorums": (2, 2, 2),
    "spares": 1,
    "recoverers": 2,
    "recovery_from": 0.5,
    "fences_ahead": False,
    "appends": 8,
    "burst": 3,
    "rests_ms": 5.0,
    "readers": 0,
    "crash": 0.0,
    "writer_dies": False,
    "closes": False,
    "troubles__kills": 0.0,
    "troubles__stops": 0.2,
    "troubles__away_ms": 8_000.0,
    "faults_ms": 20_000.0,
    "manners__read_failed": 0.4,
    "manners__io_failed": 0.0,
}
UNREACHED = {**LATE_RECOVERY, "troubles__kills": 0.3, "troubles__away_ms": 1_000.0}
UNFENCED = {
    **LATE_RECOVERY,
    "roads__travel_ms": 10.0,
    "manners__read_failed": 0.3,
    "manners__io_failed": 0.0,
    "recoverers": 2,
    "rests_ms": 20.0,
}
DENIALS = {**LATE_RECOVERY, "manners__broken": 0.2}
CHANGING_RECOVERY = {
    **LATE_RECOVERY,
    "spares": 2,
    "troubles__kills": 0.3,
    "manners__busy": 0.2,
    "manners__read_failed": 0.3,
    "recoverers": 2,
    "burst": 8,
    "crash": 0.0,
    "freeze": 0.0,
    "closes": False,
    "writer_dies": False,
    "readers": 0,
    "roads__far": 0.0,
    "roads__travel_ms": 1.0,
}

# What protects where one bug alone does no harm, and where that is shown.
APPENDER_TESTS = "tests/unit/ledger/bookkeeper/test_appender_core.py"
RECOVERY_TESTS = "tests/unit/ledger/bookkeeper/test_recovery.py"
LOST_LAC = "a bookie that does not take the LAC for as long as an add may take is replaced"
FORMER_LINK = (
    "a late answer tells the truth about a bookie that keeps what it acked, and cursors take none "
    "that was not asked for"
)
ONLY_A_FAILURE = (
    "whoever replaces a bookie, or comes back to it, asks metadata, which recovery marked before "
    "it fenced"
)
EVERY_READ_FENCES = (
    "every read fences, so the denials that end a ledger fence a covering part of that entry's "
    "write set by themselves"
)
LATE_CONFIRMATIONS = (
    "they contradict an end only where bookies lost what they had acknowledged, which the rules "
    "exclude"
)
