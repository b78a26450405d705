"""Which states of the cores met which inputs, over all histories that were watched.

Each core is watched from outside: the calls that bring it facts are counted by the state that they
found and by what they said. `TABLES` says which pairs there are; `impossible` says which of
them cannot be, and why, and one that is met all the same is a violation. So a table is covered
when every pair was either met or is known to be impossible, and nothing else happened.

    with watching() as seen:
        run histories
    for line in report(seen): print(line)
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from dlog.ledger.bookkeeper.core.appender import AppenderCore
from dlog.ledger.bookkeeper.core.control_connection import ControlConnection
from dlog.ledger.bookkeeper.core.data_connection import DataConnection
from dlog.ledger.bookkeeper.core.entry_read import EntryRead
from dlog.ledger.bookkeeper.core.slots import Slot
from dlog.ledger.bookkeeper.core.tail_read import TailRead
from dlog.ledger.bookkeeper.core.tail_recovery import TailRecovery
from dlog.reader.horizon import Horizon
from dlog.standby.core import StandbyCore
from dlog.testing.sim.impossible import why_impossible
from dlog.testing.sim.world import Violation
from dlog.wire.bookie_codes import Answer, Call, Reaction, reaction
from dlog.writer.core import WriterCore
from dlog.writer.ready import ReadyLedger


class Pair(NamedTuple):
    table: str
    state: str
    said: str


@dataclass(frozen=True, slots=True)
class Table:
    """One core, or one side of it. `inputs`: of a method, what may be said by it, and how to tell;
    `state` is of the core, before the call."""

    name: str
    core: type
    states: tuple[str, ...]
    state: Callable[[Any, tuple[Any, ...]], str]
    inputs: Mapping[str, tuple[tuple[str, ...], Callable[[tuple[Any, ...]], str]]]

    def pairs(self) -> Iterator[Pair]:
        for state in self.states:
            for labels, _ in self.inputs.values():
                for label in labels:
                    yield Pair(self.name, state, label)


def _always(label: str) -> tuple[tuple[str, ...], Callable[[tuple[Any, ...]], str]]:
    return (label,), lambda about: label


# --- the appender: a bookie's place, and the whole


def _phase(core: AppenderCore) -> str:
    if core.failure is not None:
        return "failed"
    return "stopped" if core.standing.is_stopped else "open"


def _place(core: AppenderCore, about: tuple[Any, ...]) -> str:
    """Of the slot that a fact is about; `gone` if it is not in its place any more."""
    what = about[0]
    slot = what if isinstance(what, Slot) else core.places.slot_of(what)
    if slot is None or not core.places.is_current(slot):
        return f"{_phase(core)}, gone"
    return f"{_phase(core)}, {slot.state.value}"


def _adds_said(about: tuple[Any, ...]) -> str:
    answer = about[1]
    if answer is Answer.OK:
        return "acks"
    what = reaction(Call.ADD, answer)
    if what is Reaction.RESEND_LATER:
        return "busy"
    return "fatal refusal" if what is Reaction.STOP else "refusal"


def _lac_said(about: tuple[Any, ...]) -> str:
    answer = about[2]
    if answer is Answer.OK:
        return "LAC written"
    lost = (Answer.DISCONNECTED, Answer.TIMED_OUT, Answer.BUSY)
    return "LAC lost" if answer in lost else "LAC refused"


_PLACE_STATES = ("connecting", "preparing", "ready", "naming", "live", "vacant", "gone")

_PLACES = Table(
    "appender's place",
    AppenderCore,
    tuple(
        f"{phase}, {state}" for phase in ("open", "stopped", "failed") for state in _PLACE_STATES
    ),
    _place,
    {
        "on_link": _always("link"),
        "on_no_link": _always("no link"),
        "on_down": _always("down"),
        "on_adds": (("acks", "busy", "refusal", "fatal refusal"), _adds_said),
        "on_lac_written": (("LAC written", "LAC lost", "LAC refused"), _lac_said),
    },
)


def _appender(core: AppenderCore, about: tuple[Any, ...]) -> str:
    phase = _phase(core)
    if phase != "open":
        return phase
    if core._birth_pending:
        phase = "being born"
    if core.places.change is not None:
        phase += ", changing"
    return phase


_APPENDER = Table(
    "appender",
    AppenderCore,
    ("open", "open, changing", "being born", "being born, changing", "stopped", "failed"),
    _appender,
    {
        "put": _always("put"),
        "publish": _always("publish"),
        "on_changed": _always("changed"),
        "on_not_changed": (
            ("not changed for now", "not changed for good"),
            lambda about: f"not changed for {_lasting(about[0])}",
        ),
        "on_looked": _always("looked"),
        "on_not_looked": (
            ("not looked for now", "not looked for good"),
            lambda about: f"not looked for {_lasting(about[0])}",
        ),
        "on_tick": _always("tick"),
        "stop": _always("stop"),
    },
)


def _lasting(error: Any) -> str:
    return "now" if error.retry.value == "now" else "good"


# --- the recovery


def _recovery(core: TailRecovery, about: tuple[Any, ...]) -> str:
    if core.found is not None:
        return "found"
    if core._search is None:
        return "fencing"
    if core._sizing is not None:
        return "sizing"
    return "writing back" if core._search.is_over else "searching"


def _read_said(about: tuple[Any, ...]) -> str:
    ask, answer = about[0], about[1]
    what = "fence" if ask.is_fence else "read"
    if answer is Answer.OK:
        return f"{what}: entries"
    meaning = reaction(Call.FENCE if ask.is_fence else Call.RECOVERY_READ, answer)
    if meaning in (Reaction.COUNT_MISSING, Reaction.COVERED):
        return f"{what}: none here"
    return f"{what}: unknown"


_RECOVERY = Table(
    "recovery",
    TailRecovery,
    ("fencing", "searching", "writing back", "sizing", "found"),
    _recovery,
    {
        "on_read": (
            tuple(
                f"{what}: {said}"
                for what in ("fence", "read")
                for said in ("entries", "none here", "unknown")
            ),
            _read_said,
        ),
        "on_adds": (
            ("acks", "busy", "refusal"),
            lambda about: (
                "acks"
                if about[1] is Answer.OK
                else "busy"
                if about[1] is Answer.BUSY
                else "refusal"
            ),
        ),
        "on_down": _always("down"),
        "tick": _always("tick"),
    },
)


# --- reading


def _entry_read(core: EntryRead, about: tuple[Any, ...]) -> str:
    if core.is_over:
        return "over"
    return "hedging" if len(core.asking) > 1 else "asking"


def _entries_said(about: tuple[Any, ...]) -> str:
    answer = about[1]
    if answer is Answer.OK:
        return "entries"
    return "none here" if answer in (Answer.NO_ENTRY, Answer.NO_LEDGER) else "trouble"


_ENTRY_READ = Table(
    "entry read",
    EntryRead,
    ("asking", "hedging", "over"),
    _entry_read,
    {
        "on_answer": (("entries", "none here", "trouble"), _entries_said),
        "on_unreached": _always("unreached"),
    },
)


def _tail_read(core: TailRead, about: tuple[Any, ...]) -> str:
    if core.is_deleted:
        return "deleted"
    return core.metadata.state.name.lower().replace("_", " ")


_TAIL_READ = Table(
    "tail read",
    TailRead,
    ("open", "in recovery", "closed", "deleted"),
    _tail_read,
    {
        "on_metadata": (
            ("metadata: open", "metadata: in recovery", "metadata: closed"),
            lambda about: f"metadata: {about[0].state.name.lower().replace('_', ' ')}",
        ),
        "on_deleted": _always("deleted"),
        "on_lac_answer": _always("LAC"),
        "on_poll": (
            ("poll answered", "poll failed"),
            lambda about: "poll answered" if about[1] is Answer.OK else "poll failed",
        ),
        "on_proof_answer": _always("proof"),
    },
)


# --- connections


def _connection(core: DataConnection | ControlConnection, about: tuple[Any, ...]) -> str:
    if not core.is_up:
        return "down"
    return "idle" if core.is_idle() else "waiting"


_DATA = Table(
    "data connection",
    DataConnection,
    ("idle", "waiting", "down"),
    _connection,
    {
        "send_adds": _always("adds"),
        "receive": _always("bytes"),
        "sweep": _always("sweep"),
        "down": _always("down"),
    },
)
_CONTROL = Table(
    "control connection",
    ControlConnection,
    ("idle", "waiting", "down"),
    _connection,
    {
        "ask": _always("question"),
        "receive": _always("bytes"),
        "sweep": _always("sweep"),
        "down": _always("down"),
    },
)


# --- the writer


_WRITER = Table(
    "writer",
    WriterCore,
    ("open", "healing", "closing", "closed", "dead"),
    lambda core, about: str(core.state.value),
    {
        "push": _always("push"),
        "push_again": _always("push again"),
        "on_confirmed": _always("confirmed"),
        "on_published": _always("published"),
        "on_failed": _always("failed"),
        "on_closed": _always("ledger closed"),
        "die": _always("die"),
    },
)

# --- a standby, and what it keeps ready


def _standby(core: StandbyCore, about: tuple[Any, ...]) -> str:
    if core.taking_over:
        return "taking over"
    if core.seen is None:
        return "beginning"
    return "ready" if core.is_ready else "not ready"


_STANDBY = Table(
    "standby",
    StandbyCore,
    ("beginning", "ready", "not ready", "taking over"),
    _standby,
    {
        "look": _always("look"),
        "prepare": _always("prepare"),
        "on_failed": _always("failed"),
        "brings": _always("brings"),
        "leave": _always("leave"),
    },
)

_READY = Table(
    "ready ledger",
    ReadyLedger,
    ("none", "ready", "taken", "offered", "given"),
    lambda core, about: str(core.state.value),
    {
        "made": _always("made"),
        "take": _always("take"),
        "put_back": _always("put back"),
        "offered": _always("offered"),
        "refused": _always("refused"),
        "given": _always("given"),
        "let_go": _always("let go"),
    },
)


# --- how far a strict reader believes


def _believed(core: Horizon, about: tuple[Any, ...]) -> str:
    seen = about[1]
    if seen.refused > seen.accepted:
        return "refused"
    return "nothing yet" if seen.accepted < 0 else "accepted"


_HORIZON = Table(
    "strict horizon",
    Horizon,
    ("nothing yet", "accepted", "refused"),
    _believed,
    {
        "_try": (
            ("to be asked", "told by a wait"),
            lambda about: "told by a wait" if about[2:] not in ((), (None,)) else "to be asked",
        )
    },
)

TABLES = (
    _PLACES,
    _APPENDER,
    _RECOVERY,
    _ENTRY_READ,
    _TAIL_READ,
    _DATA,
    _CONTROL,
    _WRITER,
    _STANDBY,
    _READY,
    _HORIZON,
)


@contextmanager
def watching() -> Iterator[Counter[Pair]]:
    """Counts pairs while it lasts. A pair that cannot be raises `Violation`."""
    seen: Counter[Pair] = Counter()
    replaced: list[tuple[type, str, Any]] = []
    try:
        for table in TABLES:
            for method, (_, label_of) in table.inputs.items():
                genuine = getattr(table.core, method)
                own = table.core.__dict__.get(method)
                replaced.append((table.core, method, own))
                setattr(table.core, method, _watched(table, genuine, label_of, seen))
        yield seen
    finally:
        for core, method, own in reversed(replaced):
            if own is None:
                delattr(core, method)
            else:
                setattr(core, method, own)


def _watched(
    table: Table,
    genuine: Callable[..., Any],
    label_of: Callable[[tuple[Any, ...]], str],
    seen: Counter[Pair],
) -> Callable[..., Any]:
    @functools.wraps(genuine)
    def call(core: Any, *about: Any, **named: Any) -> Any:
        pair = Pair(table.name, table.state(core, about), label_of(about))
        seen[pair] += 1
        if seen[pair] == 1:
            reason = why_impossible(*pair)
            if reason is not None:
                raise Violation("coverage", f"{pair} was met, which cannot be: {reason}")
        return genuine(core, *about, **named)

    return call


def missing(seen: Counter[Pair]) -> list[Pair]:
    """Neither met nor known to be impossible."""
    return [
        pair
        for table in TABLES
        for pair in table.pairs()
        if not seen[pair] and why_impossible(*pair) is None
    ]


def report(seen: Counter[Pair]) -> list[str]:
    lines = []
    for table in TABLES:
        pairs = list(table.pairs())
        met = sum(bool(seen[pair]) for pair in pairs)
        cannot = sum(why_impossible(*pair) is not None for pair in pairs)
        lines.append(
            f"{table.name}: {met} of {len(pairs)} pairs met, {cannot} impossible, "
            f"{len(pairs) - met - cannot} missing"
        )
    lines += [
        f"  missing: {pair.table}: {pair.said!r} while {pair.state!r}" for pair in missing(seen)
    ]
    return lines
