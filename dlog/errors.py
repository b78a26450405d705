"""One tree of errors. Every error answers three questions, so that nobody parses text:

- `retry`: may another try help? `NEVER`, `NOW` (same handle), `AFTER_REOPEN` (with a new handle);
- `outcome`: may it have happened? `NOT_HAPPENED` for certain, or `UNKNOWN`;
- `handle`: is the handle that raised it still `USABLE`, or `DEAD`?

The class gives the usual answer; a raiser that knows better says so by keyword. What the error is
about (log, ledger, entry, file, winner …) travels in `about`, readable as attributes too:
`error.ledger_id`.
"""

from __future__ import annotations

import builtins
import enum
from typing import Any, ClassVar, NamedTuple


class Retry(enum.Enum):
    NEVER = "never"
    NOW = "now"
    AFTER_REOPEN = "after_reopen"


class Outcome(enum.Enum):
    NOT_HAPPENED = "not_happened"
    UNKNOWN = "unknown"


class Handle(enum.Enum):
    USABLE = "usable"
    DEAD = "dead"


class Winner(NamedTuple):
    """Who took a log over, with which epoch, and when by their clock."""

    name: str
    epoch: int
    since_us: int


class DlogError(Exception):
    """The root. Never raised itself: each failure has a leaf below."""

    retry: Retry = Retry.NEVER
    outcome: Outcome = Outcome.NOT_HAPPENED
    handle: Handle = Handle.USABLE
    _about_keys: ClassVar[frozenset[str]] = frozenset(
        "log ledger_id entry_id path offset epoch winner elapsed_ms attempt missing needed "
        "new_head pid raw token id tail producer place stream left".split()
    )

    def __init__(
        self,
        message: str,
        *,
        retry: Retry | None = None,
        outcome: Outcome | None = None,
        handle: Handle | None = None,
        **about: Any,
    ) -> None:
        unknown = about.keys() - self._about_keys
        if unknown:
            raise TypeError(f"an error carries no {', '.join(sorted(unknown))}")
        super().__init__(message)
        self.retry = retry or type(self).retry
        self.outcome = outcome or type(self).outcome
        self.handle = handle or type(self).handle
        self.about = about

    def __getattr__(self, name: str) -> Any:
        if name in DlogError._about_keys:
            return self.__dict__.get("about", {}).get(name)
        raise AttributeError(name)

    @property
    def message(self) -> str:
        return str(self.args[0])

    def again(self, *, outcome: Outcome | None = None, handle: Handle | None = None) -> DlogError:
        """A fresh copy to raise elsewhere: an exception object must not collect the tracebacks of
        many raisers. `outcome` and `handle` are what is so for those it is told to there."""
        twin = type(self)(
            self.message,
            retry=self.retry,
            outcome=outcome or self.outcome,
            handle=handle or self.handle,
            **self.about,
        )
        twin.__cause__ = self.__cause__
        return twin


class Fenced(DlogError):
    """Another writer took the log over. `winner` says who, with which epoch, and when; it is None
    when somebody who did not claim the log ended a ledger of ours that nothing could replace."""

    retry, outcome, handle = Retry.AFTER_REOPEN, Outcome.UNKNOWN, Handle.DEAD


class WriterClosed(DlogError):
    """The handle was closed before; nothing was sent."""

    retry, handle = Retry.AFTER_REOPEN, Handle.DEAD


class ReaderClosed(DlogError):
    """The handle was closed before."""

    retry, handle = Retry.AFTER_REOPEN, Handle.DEAD


class Timeout(DlogError, builtins.TimeoutError):
    """No answer in time. What was asked may still come true."""

    retry, outcome = Retry.NOW, Outcome.UNKNOWN


class Unavailable(DlogError):
    """Something needed is away; `missing` names it and `needed` how many would do."""

    retry = Retry.NOW


class NotFound(DlogError):
    """There is no such log, ledger, entry, node or message."""


class Moved(DlogError):
    """The log is kept elsewhere now, with all its ids: `place` says where."""


class AlreadyExists(DlogError):
    """There is one under this name already."""


class Truncated(DlogError):
    """The wanted place was truncated; `new_head` is the seq that the log begins with now."""


class Corrupt(DlogError):
    """Stored bytes are not what was written; the error names where."""


class Conflict(DlogError):
    """A compare-and-set lost, for certain: the version seen is not the version there."""

    retry = Retry.NOW


class TooLarge(DlogError):
    """More bytes than a limit allows; nothing was sent."""


class BufferFull(DlogError):
    """The window is full and `on_full="raise"` was chosen; nothing was sent."""

    retry = Retry.NOW


class LeaseLost(DlogError):
    """A lease or session this work depended on is gone."""

    retry, handle = Retry.AFTER_REOPEN, Handle.DEAD


class AuthError(DlogError):
    """Credentials or permissions do not allow this."""


class ConfigError(DlogError, ValueError):
    """An option, URL or argument makes no sense; the message says what would."""


class FormatError(DlogError, ValueError):
    """Bytes or text are not in a format this version knows."""


class Unsupported(DlogError):
    """A thing this backend or version does not offer."""


class ForkedHandle(DlogError):
    """This handle was made in another process, before a fork; it may not be used here. Open a new
    one."""

    retry, handle = Retry.AFTER_REOPEN, Handle.DEAD


class Broken(DlogError):
    """A promise inside dlog did not hold. The handle stops before it can do harm; please report
    this."""

    outcome, handle = Outcome.UNKNOWN, Handle.DEAD


def check(holds: bool, promise: str, *evidence: object) -> None:
    """An assertion that survives `python -O` and poisons the handle: for promises the data depends
    on."""
    if not holds:
        raise Broken(f"{promise}: {', '.join(map(repr, evidence))}" if evidence else promise)


def unknown(error: DlogError) -> bool:
    return error.outcome is Outcome.UNKNOWN


def as_broken(error: BaseException, who: str, **about: Any) -> DlogError:
    """The error that tells of a defect of ours: `Broken`, unless it is one of ours already."""
    if isinstance(error, DlogError):
        return error
    broken = Broken(f"{who} broke: {error!r}", **about)
    broken.__cause__ = error
    return broken
