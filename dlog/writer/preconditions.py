"""What an opening proves before it claims the log. From the claim on, the writer that works can
list nothing more: a claim by an opener that cannot finish would end it for nothing.

- The ledgers in the list are there, belong to this log, and open with this client's password and
  digest. A client that looks for ledgers in the wrong place is told so (`ConfigError`); a single
  ledger that is missing among others is `Corrupt`.
- The opener's own ledger is made and born: as many bookies as it needs took its first entry. Its
  birth says `standby`, since its number and epoch are known only behind the claim.

A standby proves both before it stands by, so its takeover begins with the claim.
"""

from __future__ import annotations

import logging

from dlog.effects import DeleteLedger, LookAtLedger, Procedure, Together
from dlog.errors import ConfigError, Corrupt, DlogError, NotFound
from dlog.ledger.store import LedgerInfo
from dlog.meta.listed import Segment
from dlog.meta.log_meta import LogMeta
from dlog.writer.ready import ReadyLedger
from dlog.writer.segments import ledger_gone, standby_ledger

_log = logging.getLogger("dlog.writer")

SEALED_ASKED = 4  # the newest ones: enough to tell a lost ledger from a place without any


def check_ledgers(name: str, meta: LogMeta) -> Procedure[bool]:
    """Raise unless this client can recover what is unsealed. False when no ledger could tell.

    `AuthError`: another password or digest. `ConfigError`: the client looks for ledgers where this
    log has none. `Corrupt`: an unsealed ledger is missing. A change of the log meanwhile may cause
    the last two, so the caller reads the log again before it believes them.
    """
    unsealed = meta.unsealed
    sealed = tuple(each for each in meta.segments if each.sealed is not None)[-SEALED_ASKED:]
    asked = unsealed or sealed[-1:]
    if not asked:
        return False
    gone = yield from _find_gone(name, meta, asked)
    if not gone:
        return True
    segment, place = gone[0]
    if place is not None and len(gone) == len(asked):
        others_gone = yield from _find_gone(name, meta, sealed)
        if len(others_gone) == len(sealed):
            raise ConfigError(
                f"{place} holds no ledger of log {name!r}, which lists ledger "
                f"{segment.ledger_id}: it must name where the ledgers of this log are kept",
                log=name,
                ledger_id=segment.ledger_id,
            )
    if unsealed:
        raise ledger_gone(segment, name, place)
    return False


def _find_gone(
    name: str, meta: LogMeta, asked: tuple[Segment, ...]
) -> Procedure[list[tuple[Segment, str | None]]]:
    """The segments without a ledger, each with the option that says where ledgers are kept (None
    for a store that has no such option)."""
    looks = tuple(_look(name, meta, each) for each in asked)
    answers: list[NotFound | None] = yield Together(looks)
    return [(each, no.place) for each, no in zip(asked, answers, strict=True) if no is not None]


def _look(name: str, meta: LogMeta, segment: Segment) -> Procedure[NotFound | None]:
    digest = meta.digest if segment.sealed is None else None
    try:
        info = yield LookAtLedger(segment.ledger_id, digest)
    except NotFound as error:
        return error
    except ConfigError:
        raise
    except DlogError:
        if segment.sealed is None:
            raise
        return None  # a writer goes on behind a sealed segment that is damaged or out of reach
    _refuse_another_log(name, meta, info)
    return None


def _refuse_another_log(name: str, meta: LogMeta, info: LedgerInfo) -> None:
    owner = info.spec.custom.get("log")
    if owner is None or owner == meta.uid.encode():
        return
    told = f"log {name!r} lists ledger {info.ledger_id}, which belongs to another log here"
    if info.place is None:
        raise Corrupt(told, log=name, ledger_id=info.ledger_id)
    raise ConfigError(
        f"{told}: {info.place} must name where the ledgers of this log are kept",
        log=name,
        ledger_id=info.ledger_id,
    )


def prepare_ledger(
    ready: ReadyLedger, meta: LogMeta, *, token: str, now_us: int
) -> Procedure[None]:
    """Have a ledger ready that the log, as it was read, may list."""
    if ready.fits(meta):
        return
    yield from drop_ledger(ready)
    ledger_id = yield from standby_ledger(meta, token=token, now_us=now_us, room="takeover")
    ready.made(ledger_id, meta)


def drop_ledger(ready: ReadyLedger) -> Procedure[None]:
    """Delete a ledger that no list names. What may be listed stays."""
    ready.put_back()
    ledger_id = ready.let_go()
    if ledger_id is None:
        return
    try:
        yield DeleteLedger(ledger_id)
    except DlogError as error:
        _log.info("ledger %d stays, listed nowhere: %s", ledger_id, error)
