"""The compare-and-set loop, reply by reply: a refusal is rebuilt on what is there, an unknown reply
is looked into, never guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dlog import limits
from dlog.effects import Effect, Pause, ReadNode, ReplaceNode
from dlog.errors import (
    Conflict,
    DlogError,
    Fenced,
    NotFound,
    Outcome,
    Retry,
    Timeout,
    Unavailable,
)
from dlog.meta.cas import Seen, change_log
from dlog.meta.listed import WriterMark
from dlog.meta.log_meta import LogMeta
from dlog.meta.store import Versioned
from dlog.options import LogOptions

META = LogMeta("uid", LogOptions())
OURS = META.claimed(WriterMark("ours", "we", 0))
THEIRS = META.claimed(WriterMark("theirs", "they", 0))
Reply = DlogError | int | Versioned


class Even:
    def fraction(self) -> float:
        return 0.5

    def token(self) -> str:
        return "ours"


def claim(meta: LogMeta) -> LogMeta:
    if meta.writer is not None and meta.writer.token != "ours":
        raise Fenced("lost", outcome=Outcome.NOT_HAPPENED)
    return meta.claimed(WriterMark("ours", "we", 0))


def play(
    replies: list[Reply],
    *,
    seen: Seen | None = Seen(META, 4),  # noqa: B008 - a value
    change: Callable[[LogMeta], LogMeta] = claim,
) -> tuple[Any, list[str]]:
    """Answers each effect but pauses by the next reply: what came of it, and what was asked."""
    procedure = change_log(
        "/log", seen, change, is_done=lambda meta: meta.owned_by("ours"), chance=Even()
    )
    asked: list[str] = []
    answer: Any = None
    error: DlogError | None = None
    while True:
        try:
            effect = procedure.send(answer) if error is None else procedure.throw(error)
        except StopIteration as stop:
            assert not replies, "not all replies were wanted"
            return stop.value, asked
        except DlogError as raised:
            return raised, asked
        answer, error = None, None
        if not isinstance(effect, Pause):
            asked.append(_told(effect))
            reply = replies.pop(0)
            answer, error = (None, reply) if isinstance(reply, DlogError) else (reply, None)


def _told(effect: Effect) -> str:
    if isinstance(effect, ReplaceNode):
        return f"replace {effect.version}"
    assert isinstance(effect, ReadNode)
    assert effect.fresh, "what decides is read behind a sync"
    return "read"


def node(meta: LogMeta, version: int) -> Versioned:
    return Versioned(meta.to_bytes(), version)


def test_applied_at_once() -> None:
    assert play([5]) == (Seen(OURS, 5), ["replace 4"])


def test_reads_first_when_nothing_was_seen() -> None:
    assert play([node(META, 7), 8], seen=None) == (Seen(OURS, 8), ["read", "replace 7"])


def test_a_conflict_rebuilds_on_what_is_there() -> None:
    """A truncation or a collector changed the node: the change is made again, on the new value."""
    other = META.handed_over("somebody")
    outcome, asked = play([Conflict("moved"), node(other, 6), 7])
    assert outcome == Seen(other.claimed(WriterMark("ours", "we", 0)), 7)
    assert asked == ["replace 4", "read", "replace 6"]


def test_an_unknown_reply_that_was_applied_is_done() -> None:
    outcome, asked = play([Timeout("no reply"), node(OURS, 5)])
    assert outcome == Seen(OURS, 5)
    assert asked == ["replace 4", "read"]


def test_an_unknown_reply_at_an_unchanged_version_is_sent_again() -> None:
    """Never taken as "not applied": it may still arrive, and then the second one conflicts."""
    outcome, asked = play([Timeout("no reply"), node(META, 4), Conflict("late"), node(OURS, 5)])
    assert outcome == Seen(OURS, 5)
    assert asked == ["replace 4", "read", "replace 4", "read"]


def test_a_loss_for_certain_is_certain() -> None:
    """DL-30."""
    error, _ = play([Conflict("moved"), node(THEIRS, 5)])
    assert isinstance(error, Fenced)
    assert error.outcome is Outcome.NOT_HAPPENED


def test_a_loss_after_an_unknown_reply_is_unknown() -> None:
    """Ours may have been applied, and overwritten since: its ledger may not be deleted."""
    error, _ = play([Timeout("no reply"), node(THEIRS, 6)])
    assert isinstance(error, Fenced)
    assert error.outcome is Outcome.UNKNOWN


def test_a_store_that_refuses_for_good_is_asked_once() -> None:
    error, asked = play([NotFound("no node")])
    assert isinstance(error, NotFound)
    assert asked == ["replace 4"]


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Unavailable("away"), Outcome.NOT_HAPPENED),
        (Timeout("no reply"), Outcome.UNKNOWN),
    ],
)
def test_tries_are_bounded(
    reply: DlogError, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "META_ATTEMPTS_MAX", 3)
    error, asked = play([reply.again(), Unavailable("away"), Unavailable("away")])
    assert asked == ["replace 4", "read", "read"]
    assert isinstance(error, Unavailable)
    assert error.retry is Retry.NOW
    assert error.outcome is outcome
