"""A lease: who consumes a shard, how far it got, and the lawful changes of that, as pure functions.

Two owners: `owner` shall have the shard, `consumer` has it. They differ while it is handed over:
the thief announces itself as owner, the consumer comes to an end, keeps its right to a last
checkpoint (only the consumer may save), and releases it; then the thief consumes. The `epoch`
grows each time that somebody becomes the consumer: it is the token that fences whoever was it
before. No time in here is ever compared with a clock; `updated_us` is for people.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlog import limits
from dlog.errors import Conflict, FormatError, LeaseLost, TooLarge
from dlog.groups.view import INCARNATION_CHARS_MAX, WorkerId
from dlog.ids import MessageId, Position
from dlog.meta.json_fields import dump, load, the_bool, the_int, the_str

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a shard is done: the next message to deliver, and what the program keeps with it."""

    position: Position
    app: bytes = b""

    def __post_init__(self) -> None:
        if len(self.app) > limits.GROUP_APP_BYTES_MAX:
            raise TooLarge(
                f"a checkpoint carries at most {limits.GROUP_APP_BYTES_MAX} bytes of the "
                f"program's, not {len(self.app)}"
            )

    @property
    def next_seq(self) -> int:
        return self.position.next_seq

    def is_before(self, other: Checkpoint | None) -> bool:
        """Of the same log. What is about another log has no order with it."""
        return (
            other is not None
            and other.position.log_uid == self.position.log_uid
            and self.next_seq < other.next_seq
        )

    def fields(self) -> dict[str, Any]:
        after = self.position.after
        return {
            "log": self.position.log_uid,
            "next_seq": self.next_seq,
            "after": None if after is None else str(after),
            "app": base64.b64encode(self.app).decode(),
        }

    @classmethod
    def of_fields(cls, raw: object, where: str) -> Checkpoint | None:
        if raw is None:
            return None
        if not isinstance(raw, dict):
            raise FormatError(f"{where}: a checkpoint is an object, not {raw!r}")
        next_seq = the_int(raw, "next_seq", where)
        after, app = raw.get("after"), raw.get("app", "")
        if next_seq < 0 or not isinstance(app, str):
            raise FormatError(f"{where}: a checkpoint's next seq is from 0, its app bytes are text")
        try:
            kept = base64.b64decode(app, validate=True)
        except (binascii.Error, ValueError):
            raise FormatError(f"{where}: the app bytes of a checkpoint are not base64") from None
        if len(kept) > limits.GROUP_APP_BYTES_MAX:
            raise FormatError(f"{where}: {len(kept)} app bytes are more than a checkpoint carries")
        if after is not None and not isinstance(after, str):
            raise FormatError(f"{where}: `after` is a message id or null")
        last = None if after is None else MessageId.parse(after)
        return cls(Position(the_str(raw, "log", where), next_seq, last), kept)


@dataclass(frozen=True, slots=True)
class Lease:
    shard: str
    epoch: int = 0
    owner: WorkerId | None = None
    consumer: WorkerId | None = None
    checkpoint: Checkpoint | None = None
    is_finished: bool = False
    updated_us: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def is_handed_over(self) -> bool:
        return self.consumer is not None and self.owner != self.consumer

    # --- lawful changes. What may not be done raises; who is dead, only the store can tell.

    def taken(self, me: WorkerId, now_us: int, *, epoch: int | None = None) -> Lease:
        """We consume it from here on. `epoch`: what fences is counted elsewhere."""
        if self.is_finished:
            raise Conflict(f"shard {self.shard!r} is at its end")
        mine = self.epoch + 1 if epoch is None else epoch
        if mine <= self.epoch:
            raise Conflict(f"epoch {mine} of shard {self.shard!r} is not above {self.epoch}")
        return dataclasses.replace(self, owner=me, consumer=me, epoch=mine, updated_us=now_us)

    def announced(self, me: WorkerId, now_us: int) -> Lease:
        """We shall have it next; whoever consumes it goes on until it released it."""
        if self.is_finished or self.consumer is None or self.consumer == me:
            raise Conflict(f"shard {self.shard!r} has nobody that it could be taken from")
        return dataclasses.replace(self, owner=me, updated_us=now_us)

    def renounced(self, me: WorkerId, now_us: int) -> Lease:
        """We do not want it any more."""
        if self.owner != me or self.consumer == me:
            return self
        return dataclasses.replace(self, owner=self.consumer, updated_us=now_us)

    def saved(self, me: WorkerId, epoch: int, checkpoint: Checkpoint, now_us: int) -> Lease:
        """Also while it is handed over, but by nobody who is not the consumer."""
        self.check_consumer(me, epoch)
        if checkpoint.is_before(self.checkpoint):
            raise Conflict(f"the checkpoint of shard {self.shard!r} does not go back")
        return dataclasses.replace(self, checkpoint=checkpoint, updated_us=now_us)

    def released(
        self, me: WorkerId, epoch: int, checkpoint: Checkpoint | None, now_us: int
    ) -> Lease:
        """Nobody consumes it; who announced itself may, at once."""
        then = self if checkpoint is None else self.saved(me, epoch, checkpoint, now_us)
        then.check_consumer(me, epoch)
        owner = None if self.owner == me else self.owner
        return dataclasses.replace(then, owner=owner, consumer=None, updated_us=now_us)

    def finished(
        self, me: WorkerId, epoch: int, checkpoint: Checkpoint | None, now_us: int
    ) -> Lease:
        """All of the shard is done, for ever: its children may be consumed."""
        then = self.released(me, epoch, checkpoint, now_us)
        return dataclasses.replace(then, owner=None, is_finished=True)

    def reset(self, checkpoint: Checkpoint | None, now_us: int, *, forced: bool = False) -> Lease:
        """Put the shard somewhere else, back too: the verb of a person. `forced`: whoever consumes
        it is fenced."""
        if self.consumer is not None and not forced:
            raise Conflict(f"shard {self.shard!r} is consumed by {self.consumer}")
        return dataclasses.replace(
            self,
            epoch=self.epoch + 1,
            owner=None,
            consumer=None,
            checkpoint=checkpoint,
            is_finished=False,
            updated_us=now_us,
        )

    def check_consumer(self, me: WorkerId, epoch: int) -> None:
        if self.consumer != me or self.epoch != epoch:
            raise LeaseLost(
                f"shard {self.shard!r} is consumed by {self.consumer or 'nobody'} with epoch "
                f"{self.epoch}, not by {me} with epoch {epoch}",
                epoch=self.epoch,
            )

    # --- bytes

    def to_bytes(self) -> bytes:
        return dump(
            {
                **self.extra,
                "format": FORMAT,
                "shard": self.shard,
                "epoch": self.epoch,
                "owner": id_fields(self.owner),
                "consumer": id_fields(self.consumer),
                "checkpoint": None if self.checkpoint is None else self.checkpoint.fields(),
                "finished": self.is_finished,
                "updated_us": self.updated_us,
            }
        )

    @classmethod
    def from_bytes(cls, raw: bytes, *, where: str) -> Lease:
        if len(raw) > limits.GROUP_LEASE_BYTES_MAX:
            raise FormatError(f"{where} has {len(raw)} bytes, more than a lease can have")
        fields = load(raw, where)
        if the_int(fields, "format", where) != FORMAT:
            raise FormatError(f"{where} has format {fields['format']}; this version knows {FORMAT}")
        epoch = the_int(fields, "epoch", where)
        if epoch < 0:
            raise FormatError(f"{where}: an epoch is from 0")
        return cls(
            the_str(fields, "shard", where),
            epoch,
            id_of(fields.get("owner"), where),
            id_of(fields.get("consumer"), where),
            Checkpoint.of_fields(fields.get("checkpoint"), where),
            the_bool(fields, "finished", where),
            the_int(fields, "updated_us", where),
            extra={k: v for k, v in fields.items() if k not in _FIELDS},
        )


_FIELDS = frozenset("format shard epoch owner consumer checkpoint finished updated_us".split())


def id_fields(worker: WorkerId | None) -> dict[str, str] | None:
    return None if worker is None else {"worker": worker.name, "incarnation": worker.incarnation}


def id_of(raw: object, where: str) -> WorkerId | None:
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise FormatError(f"{where}: a worker is an object, not {raw!r}")
    incarnation = the_str(raw, "incarnation", where)
    if len(incarnation) > INCARNATION_CHARS_MAX:
        raise FormatError(f"{where}: no incarnation has {len(incarnation)} characters")
    return WorkerId(the_str(raw, "worker", where), incarnation)
