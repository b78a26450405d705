"""Logs that are shards of a stream. Each has the uid of its stream in its log meta, so that it is
opened, ended and removed through that stream only, and a stream never touches the logs of another
stream that had, or will have, its name."""

from __future__ import annotations

from typing import NamedTuple

from dlog.errors import ConfigError, NotFound
from dlog.meta.log_meta import LogMeta, LogState

ENDS = "ends the shard, epoch "  # how the writer is named that terminates a shard's log


class ShardLog(NamedTuple):
    """The log of a shard. `uid` is the log's own; "" in streams that were made before shards had
    one, which take whatever log has the name."""

    name: str
    uid: str
    stream: str
    stream_uid: str

    def is_log(self, meta: LogMeta) -> bool:
        return meta.stream in (None, self.stream_uid) and self.uid in ("", meta.uid)

    @property
    def mark(self) -> str:
        """What the log meta says of its stream."""
        return self.stream_uid


def has_ended(meta: LogMeta) -> bool:
    """A shard that takes no more messages: those that did not get in go to the shards behind it."""
    is_being_ended = meta.writer is not None and meta.writer.name.startswith(ENDS)
    return meta.stream is not None and (meta.state is LogState.TERMINATED or is_being_ended)


def refuse_unless_shard(meta: LogMeta, shard: ShardLog | None, name: str) -> None:
    """`ConfigError` for a plain use (`shard` is None) of a shard's log, or by another stream,
    `NotFound` for a log that is not the shard's any more."""
    if shard is not None and shard.is_log(meta):
        return
    if shard is None and (meta.stream is None or meta.is_removed):
        return
    if shard is None or (meta.stream is not None and meta.uid == shard.uid):
        raise ConfigError(
            f"the log {name!r} is a shard of a stream: write, terminate or remove it through its "
            "stream",
            log=name,
        )
    raise NotFound(
        f"the log {name!r} of stream {shard.stream!r} was removed, and another one made", log=name
    )
