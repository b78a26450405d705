"""The node by which others see that a writer or a job is alive: making it and taking it away, as
procedures. Who keeps it there, for as long as a handle lives, is `dlog.writer.presence`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dlog.chance import Chance, backoff_s
from dlog.effects import CreateNode, DeleteNode, Pause, Procedure, ReadNode
from dlog.errors import AlreadyExists, DlogError, ForkedHandle, NotFound, Retry, WriterClosed
from dlog.meta.cas import read_log

_log = logging.getLogger("dlog.writer")

# To make it, before the log may name us: one to two seconds, or the time-out of one call.
TRIES = 9
TRIES_S = 2.0
PAUSE_S_MAX = 5.0  # between two tries to take it away


def be_present(
    path: str, value: str, chance: Chance, now_s: Callable[[], float]
) -> Procedure[None]:
    """Make the node where polite openers, standbys and repairs look for us. Tried again for one to
    two seconds. After that the work goes on without it, and the handle goes on trying: presence is
    advice only."""
    began_s = now_s()
    for attempt in range(TRIES):
        if attempt > 0:
            yield Pause(backoff_s(attempt, chance, base_s=0.02, limit_s=1))
        try:
            yield CreateNode(path, value.encode(), ephemeral=True)
            return
        except AlreadyExists:
            return  # from a try before
        except DlogError as error:
            refused = error
            if error.retry is not Retry.NOW or now_s() - began_s >= TRIES_S:
                break
    _log.warning("not present at %s yet, others may take us for dead: %s", path, refused)


def is_lost(path: str, token: str) -> Procedure[bool]:
    """The log at `path` is gone, or names another writer than the one with this token."""
    try:
        meta = (yield from read_log(path)).meta
    except NotFound:
        return True
    return not meta.owned_by(token)


def withdraw(path: str, chance: Chance, asked: Callable[[], None]) -> Procedure[None]:
    """Take our name from where they look: nobody is there any more, and polite openers would wait
    for us as long as our session lives. `asked` is called once the store was, whatever it said. It
    is asked until the node is gone: also when it refuses us, for permissions may come back while
    our session lives. Only a closed store ends that, and the session with it."""
    failures = 0
    while True:
        try:
            present = yield ReadNode(path)
            yield DeleteNode(path, present.version)
            return
        except NotFound:
            return
        except DlogError as error:
            if isinstance(error, (WriterClosed, ForkedHandle)):
                raise
            if failures == 0:
                _log.info("%s stays until it can be taken away: %s", path, error)
        asked()
        yield Pause(backoff_s(failures, chance, base_s=0.1, limit_s=PAUSE_S_MAX))
        failures += 1
