"""Ledgers made by dlog that no log lists, in a store that serves one root: the metadata of their
logs was lost. Where several roots share the ledgers of a cluster, this cannot be told."""

from __future__ import annotations

from collections.abc import Sequence

from dlog.admin.fsck.orphans import mark_of
from dlog.drive import Driver, Stores
from dlog.errors import DlogError, FormatError, NotFound
from dlog.ledger.copies import ServesOneRoot
from dlog.meta.cas import read_log
from dlog.meta.layout import unescape
from dlog.writer.segments import SEAM_ENTRY


async def unlisted(stores: Stores) -> dict[str, list[int]]:
    """Ledgers that have messages, by the uid of their log, which is not known here. Empty where
    several roots may share the ledgers."""
    if not isinstance(stores.ledgers, ServesOneRoot):
        return {}
    found: dict[str, list[int]] = {}
    async for ledger_id in stores.ledgers.scan_ids():  # before the lists
        try:
            mark = mark_of(await stores.ledgers.info(ledger_id), 0)
        except NotFound:
            continue
        if mark is not None:
            found.setdefault(mark.uid, []).append(ledger_id)
    known = await _uids(stores) if found else set()
    if known is None:
        return {}
    return {
        uid: ledger_ids
        for uid, ledger_ids in found.items()
        if uid not in known and await have_messages(stores, ledger_ids)
    }


async def _uids(stores: Stores) -> set[str] | None:
    """Of all logs. None where one cannot be read: it may be whose they are."""
    driver = Driver(stores.meta, stores.ledgers)
    try:
        nodes = await stores.meta.children(stores.layout.logs)
    except NotFound:
        return set()
    found = set()
    for node in nodes:
        try:
            found.add((await driver.run(read_log(stores.layout.log(unescape(node))))).meta.uid)
        except NotFound:
            continue
        except FormatError:
            return None
    return found


async def have_messages(stores: Stores, ledger_ids: Sequence[int]) -> bool:
    """One of them has more than what it was made with, and only this root can have listed it."""
    if not isinstance(stores.ledgers, ServesOneRoot):
        return False
    for ledger_id in ledger_ids:
        try:
            info = await stores.ledgers.info(ledger_id)
            if info.closed is not None:
                last = info.closed.last_entry
            else:
                reader = await stores.ledgers.open(ledger_id, digest=info.spec.digest)
                try:
                    last = await reader.last_readable()
                finally:
                    await reader.close()
        except DlogError:
            continue  # gone, or not to be had: the others tell
        if last >= SEAM_ENTRY:
            return True
    return False
