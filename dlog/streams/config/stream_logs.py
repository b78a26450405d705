"""What a document says of logs, stored with a stream: in its node, for the shards to come, and in
the logs of the shards that have ended, which no writer tells any more. The logs of open shards are
told by their writers, as any log is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from dlog.effects import Procedure
from dlog.errors import NotFound
from dlog.meta.cas import change_log, read_log
from dlog.meta.layout import Layout
from dlog.meta.log_meta import LogMeta, LogState
from dlog.options import LogOptions
from dlog.streams.config.sections import Sections
from dlog.streams.document import Shard, StreamMeta, StreamState, shard_log
from dlog.streams.reshard import Site, change_stream, read_stream

GetSections = Callable[[], Sections]


def tell_stream(site: Site, layout: Layout, sections: GetSections) -> Procedure[None]:
    """Changes what is not stored yet; nothing where all of it is. The `sections` are asked for
    again at each step: they may change meanwhile."""
    seen = yield from read_stream(site)
    if seen.version is not None and seen.meta.state is not StreamState.DELETING:

        def told(meta: StreamMeta) -> LogOptions:
            coming = shard_log(site.name, meta.next_number)
            return sections().applied(meta.options, coming, frozenset(), site.name)

        if told(seen.meta) != seen.meta.options:
            seen = yield from change_stream(
                site,
                lambda meta: dataclasses.replace(meta, options=told(meta)),
                is_done=lambda meta: told(meta) == meta.options,
                point="",
            )
    for shard in seen.meta.shards:
        if not shard.is_open:
            yield from _tell_ended(site, layout, shard, sections)


def _tell_ended(site: Site, layout: Layout, shard: Shard, sections: GetSections) -> Procedure[None]:
    path = layout.log(shard.log)
    try:
        seen = yield from read_log(path)
    except NotFound:
        return
    uid = seen.meta.uid

    def told(meta: LogMeta) -> LogOptions:
        return sections().applied(meta.options, shard.log, frozenset(), site.name)

    def is_done(meta: LogMeta) -> bool:
        """Or it is not its turn: nobody wrote it for the last time yet, or it is another log."""
        is_over = meta.state is LogState.TERMINATED and meta.uid == uid
        return not is_over or told(meta) == meta.options

    if is_done(seen.meta):
        return

    def change(meta: LogMeta) -> LogMeta:
        return meta if is_done(meta) else meta.with_options(told(meta))

    try:
        yield from change_log(path, seen, change, is_done=is_done, chance=site.chance)
    except NotFound:
        return
