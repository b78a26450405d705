"""A place looked over: what its stores find about themselves, and what stands in them of ours.

The two contracts promise nothing about servers, disks and rights; a backend that can tell has the
methods of `dlog.findings`. Here it is said what to ask them about: the logs there are, a few of
them with their newest ledgers, and who may read and change the nodes of these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from dlog.drive import Stores
from dlog.errors import AuthError, Corrupt, DlogError, FormatError, NotFound
from dlog.findings import (
    ExaminesLedgers,
    ExaminesMeta,
    Finding,
    Rights,
    State,
    TellsRights,
    Wish,
    named,
    open_to_all,
)
from dlog.limits import EXAMINE_LEDGERS_PER_LOG_MAX, EXAMINE_LOGS_MAX, EXAMINE_TIMEOUT_MS
from dlog.meta.attended import unattended
from dlog.meta.layout import FORMAT_VERSION
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.store import MetaStore, parent_of
from dlog.options import LogOptions
from dlog.together import together

TIMEOUT_S = EXAMINE_TIMEOUT_MS / 1000


@dataclass(slots=True)
class _Sample:
    """Of what stands in the metadata store."""

    nodes: list[str] = field(default_factory=list)
    ledger_ids: list[int] = field(default_factory=list)
    options: LogOptions = field(default_factory=LogOptions)  # those that want the most bookies
    logs: int = 0
    trouble: list[str] = field(default_factory=list)
    is_out_of_reach: bool = False  # and with it all else that stands there


async def examine(stores: Stores) -> list[Finding]:
    sample = _Sample()
    meta = unattended(stores.meta)
    found: list[Finding]
    found, logs = await together(_of_meta(meta), _logs_in_time(stores, sample))
    found.append(logs)
    if sample.is_out_of_reach:
        return found
    if isinstance(stores.ledgers, ExaminesLedgers):
        wish = Wish(sample.options.ensemble, sample.options.ack_quorum)
        found += await stores.ledgers.examine(wish, sample.ledger_ids)
        if isinstance(meta, TellsRights):
            ledgers = await _ledger_nodes(stores.ledgers, sample.ledger_ids)
            found += await _rights(meta, "log nodes", sample.nodes)
            found += await _rights(meta, "ledger nodes", ledgers)
    return found


async def _of_meta(meta: MetaStore) -> list[Finding]:
    return [*await meta.examine()] if isinstance(meta, ExaminesMeta) else []


async def _logs_in_time(stores: Stores, sample: _Sample) -> Finding:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _logs(stores, sample)
    except (DlogError, TimeoutError) as error:
        sample.is_out_of_reach = True
        return Finding("logs", State.BAD, _not_to_be_had("what there is", error))


def _not_to_be_had(what: str, error: Exception) -> str:
    return f"{what} is not to be had: {str(error) or 'no answer in time'}"


async def _logs(stores: Stores, sample: _Sample) -> Finding:
    """Are there logs, of a format that we know, and may we read them?"""
    layout = stores.layout
    try:
        value = (await stores.meta.get(layout.format)).value
        sample.nodes += [layout.root, layout.format]
        if value != str(FORMAT_VERSION).encode():
            told = f"kept in format {value[:20]!r}; this version knows {FORMAT_VERSION}"
            return Finding("logs", State.BAD, told)
        names = await stores.meta.children(layout.logs)
    except NotFound:
        return Finding("logs", State.NOTE, f"none are kept at {layout.root} yet")
    except AuthError:
        told = f"no permission for {layout.root}: made with other credentials (zk_auth, tls_cert)"
        return Finding("logs", State.BAD, told)
    sample.nodes.append(layout.logs)
    for name in names[:EXAMINE_LOGS_MAX]:
        await _look(stores, f"{layout.logs}/{name}", sample)
    if sample.trouble:
        return Finding("logs", State.BAD, named(sample.trouble))
    unseen = len(names) > EXAMINE_LOGS_MAX  # a removed log leaves its node
    told = f"up to {len(names)}" if unseen else str(sample.logs)
    return Finding("logs", State.FINE, f"{told} logs, format {FORMAT_VERSION}")


async def _look(stores: Stores, path: str, sample: _Sample) -> None:
    """At one log."""
    try:
        meta = LogMeta.from_bytes((await stores.meta.get(path)).value, where=path)
    except NotFound:
        return  # removed meanwhile
    except (AuthError, Corrupt, FormatError) as error:
        sample.trouble.append(error.message)
        return
    sample.nodes.append(path)
    if meta.state in (LogState.DELETING, LogState.DELETED):
        return
    sample.logs += 1
    newest = meta.segments[-EXAMINE_LEDGERS_PER_LOG_MAX:]
    sample.ledger_ids += [segment.ledger_id for segment in newest]
    if meta.options.ensemble > sample.options.ensemble:
        sample.options = meta.options


async def _ledger_nodes(ledgers: ExaminesLedgers, ledger_ids: Sequence[int]) -> list[str]:
    """And the directories they are in: who may change those may take them out."""
    found: dict[str, None] = {}
    try:
        async with asyncio.timeout(TIMEOUT_S):
            for ledger_id in ledger_ids:
                node = await ledgers.node_of(ledger_id)
                found |= {parent_of(node): None, node: None}
    except (DlogError, TimeoutError):
        return []  # what kept them from us is said already
    return list(found)


async def _rights(meta: TellsRights, check: str, paths: Sequence[str]) -> list[Finding]:
    """May anybody read or change them? One that we may not even ask about is nobody's but its
    owner's."""
    rights: dict[str, Rights] = {}
    try:
        async with asyncio.timeout(TIMEOUT_S):
            for path in paths:
                try:
                    rights[path] = await meta.rights(path)
                except (AuthError, NotFound):
                    continue
    except (DlogError, TimeoutError) as error:
        told = _not_to_be_had("who may read and change them", error)
        return [Finding(check, State.WARNING, told)]
    if not paths:
        return []
    changed = [path for path, rights in rights.items() if rights.anyone_changes]
    read = [path for path, rights in rights.items() if rights.anyone_reads]
    looked = f"{len(rights)} nodes looked at"
    if changed:
        state = State.BAD if meta.owns_nodes else open_to_all(meta.is_private)
        told = f"anybody may change {named(changed)} ({len(changed)} of {looked})"
    elif read:
        state = State.WARNING if meta.owns_nodes else open_to_all(meta.is_private)
        told = f"anybody may read {named(read)} ({len(read)} of {looked})"
    else:
        return [Finding(check, State.FINE, f"{looked}, none open to the world")]
    return [Finding(check, state, told)]
