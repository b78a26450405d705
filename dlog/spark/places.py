"""Where to begin and to end, as users of Spark's Kafka source write it.

Of one log, shard by shard: `{"orders": {"0": 123}}`. A place is a seq, `-2` for the head, `-1` for
the tail, or the text of a message id; times are milliseconds since 1970. A plain log has one
shard, 0. A log may carry `"uid"` beside its shard, as the offsets of a streaming query do: then a
log that was removed and made again under the same name is not taken for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from dlog.errors import ConfigError, FormatError
from dlog.ids import MessageId

SHARD = "0"  # of a plain log
UID = "uid"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Place = str | int | MessageId | datetime
"""Of one log: "earliest", "latest", a seq, an id or a time."""


@dataclass(frozen=True, slots=True)
class Places:
    """One place for all logs, or one for each."""

    everywhere: Place | None = None
    by_log: tuple[tuple[str, Place], ...] = ()
    uids: tuple[tuple[str, str], ...] = ()

    def of(self, log: str) -> Place:
        if self.everywhere is not None:
            return self.everywhere
        for name, place in self.by_log:
            if name == log:
                return place
        named = ", ".join(name for name, _ in self.by_log)
        raise ConfigError(f"where in log {log!r}? The option names {named} only")

    def uid(self, log: str) -> str | None:
        return dict(self.uids).get(log)


def shards_of(text: str, option: str) -> Mapping[str, Mapping[str, Any]]:
    """The JSON of an option, by log and shard."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}; {_shape(option)}") from None
    if not isinstance(given, dict) or not all(isinstance(each, dict) for each in given.values()):
        raise ConfigError(f"{option}: {_shape(option)}")
    if not given:
        raise ConfigError(f"{option} names no log")
    for log, shards in given.items():
        strange = sorted(shards.keys() - {SHARD, UID})
        if strange or SHARD not in shards:
            told = f"not {', '.join(strange)}" if strange else "which is missing"
            raise ConfigError(f"{option}: log {log!r} is a plain log and has shard 0, {told}")
    return given


def _shape(option: str) -> str:
    return f'it is written as {{"orders": {{"0": 123}}}}, not otherwise ({option})'


def offsets(text: str, option: str, *, is_end: bool = False) -> Places:
    """`earliest`, `latest`, or JSON of seqs and message ids."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        if is_end and word == "earliest":
            raise ConfigError(f"{option}: nothing ends at the beginning")
        return Places(word)
    by_log: list[tuple[str, Place]] = []
    uids: list[tuple[str, str]] = []
    for log, shards in shards_of(text, option).items():
        by_log.append((log, _offset(shards[SHARD], f"{option} of log {log!r}", is_end)))
        if UID in shards:
            uids.append((log, str(shards[UID])))
    return Places(None, tuple(by_log), tuple(uids))


def _offset(given: Any, option: str, is_end: bool) -> Place:
    if isinstance(given, str):
        try:
            return MessageId.parse(given)
        except FormatError as error:
            raise ConfigError(f"{option}: {error}") from None
    if type(given) is not int or given < -2 or (is_end and given == -2):
        low = "-1 (the tail)" if is_end else "-2 (the head), -1 (the tail)"
        raise ConfigError(f"{option} is a seq, a message id or {low}, not {given!r}")
    return {-2: "earliest", -1: "latest"}.get(given, given)


def timestamps(text: str, option: str) -> Places:
    """JSON of milliseconds."""
    return Places(
        None,
        tuple(
            (log, moment(shards[SHARD], f"{option} of log {log!r}"))
            for log, shards in shards_of(text, option).items()
        ),
    )


def moment(given: Any, option: str) -> datetime:
    """Milliseconds since 1970, as Spark's users write a time."""
    try:
        milliseconds = int(given)
        if isinstance(given, float) or milliseconds < 0:
            raise ValueError
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"{option} is a time in milliseconds since 1970, not {str(given)[:80]!r}"
        ) from None
