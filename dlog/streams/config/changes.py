"""Changing a document, reading its older versions, and going back to one, as procedures.

The order of a change: the version that stands is kept as a node of its own, then the document is
replaced by one that names it, then nodes that nothing names any more are deleted. Who dies between
leaves at most a node of a version that the document still has, which the next change finds there.
A reply that was lost is resolved by reading whose version follows the one that was seen: nobody
makes a change twice, and nobody takes another one's for theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from dlog import limits
from dlog.chance import Chance, backoff_s
from dlog.effects import (
    CreateNode,
    DeleteNode,
    Effect,
    ListNodes,
    Pause,
    Procedure,
    ReadNode,
    ReplaceNode,
)
from dlog.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    DlogError,
    NotFound,
    Outcome,
    Retry,
    Timeout,
)
from dlog.streams.config.document import NOBODYS, Content, Document, Stamp, same

_log = logging.getLogger("dlog.config")

Change = Callable[[Content], Content]


class Seen(NamedTuple):
    """A document, and the version of its node; None: there is no node."""

    document: Document
    version: int | None


def history_path(path: str) -> str:
    """Apart from the document, whose watchers are told of what comes and goes right below it."""
    return f"{path}/history"


def old_path(path: str, version: int) -> str:
    return f"{history_path(path)}/{version:010d}"


def read_document(path: str, *, fresh: bool = True) -> Procedure[Seen]:
    try:
        value, version = yield ReadNode(path, fresh=fresh)
    except NotFound:
        return Seen(NOBODYS, None)
    return Seen(Document.from_bytes(value, where=path), version)


def change_document(
    path: str,
    stamp: Stamp,
    change: Change,
    *,
    chance: Chance,
    if_version: int | None = None,
    restores: int | None = None,
) -> Procedure[Document]:
    """The version that this change made, or the one that says already what it wants.

    `change` may be called several times, each time with the newest content; it raises when the
    change may not be made. With `if_version` it is made only over that version (0: of nobody).
    """
    sent: Document | None = None  # what a write whose reply was lost has made, if anything
    sent_at: int | None = None  # the version of the node that it was to replace
    refused: DlogError | None = None
    for attempt in range(limits.META_ATTEMPTS_MAX):
        try:
            seen = yield from read_document(path)
            if sent is not None and seen.version != sent_at:
                if _is_made(seen.document, sent, path):
                    yield from _sweep(path, sent)
                    return sent
                sent = None  # another one's stands there: ours was refused, and cannot come late
            _check_version(seen.document, if_version, path)
            content = change(seen.document.content)
            if same(content, seen.document.content):
                return seen.document
            wanted = seen.document.changed(content, stamp, restores=restores)
            write = _write_of(path, wanted, seen.version)
            yield from _keep(path, seen.document)
            try:
                yield write
            except (Conflict, AlreadyExists, NotFound) as lost:
                refused = lost  # to another one, or to our own that came late
            except DlogError as error:
                if error.outcome is Outcome.UNKNOWN:
                    sent, sent_at = wanted, seen.version
                raise
            else:
                yield from _sweep(path, wanted)
                return wanted
        except DlogError as error:
            error.outcome = Outcome.NOT_HAPPENED if sent is None else Outcome.UNKNOWN
            if error.retry is not Retry.NOW:
                raise
            refused = error
        yield Pause(backoff_s(attempt, chance))
    assert refused is not None
    raise refused


def _is_made(now: Document, sent: Document, path: str) -> bool:
    """Did a version that we sent come about? The node is another one since."""
    if now.version < sent.version:
        return False
    token = now.token_of(sent.version)
    if token is None:
        raise Timeout(
            f"{path}: no reply to what would have been version {sent.version}, and of the versions "
            f"before {now.oldest} nobody knows any more who made them",
            path=path,
            retry=Retry.NEVER,
        )
    return token == sent.token


def _check_version(document: Document, if_version: int | None, path: str) -> None:
    if if_version is not None and document.version != if_version:
        raise Conflict(
            f"{path} is at version {document.version}, not {if_version}; nothing was changed",
            path=path,
            retry=Retry.NEVER,
        )


def _write_of(path: str, document: Document, version: int | None) -> Effect:
    raw = document.to_bytes()
    if version is None:
        return CreateNode(path, raw, point="config.changed")
    return ReplaceNode(path, raw, version, point="config.changed")


def _keep(path: str, document: Document) -> Procedure[None]:
    """The version that is about to become an older one, as a node of its own."""
    if document.version == 0:
        return
    raw, path = document.old_bytes(), old_path(path, document.version)
    try:
        try:
            yield CreateNode(path, raw, point="config.kept")
        except AlreadyExists:  # of a change that got no further, or of a document before this one
            there = yield ReadNode(path)
            if there.value != raw:
                yield ReplaceNode(path, raw, there.version)
    except DlogError as error:
        error.outcome = Outcome.NOT_HAPPENED  # to the document
        if isinstance(error, NotFound):  # somebody swept it: then the document is another by now
            error.retry = Retry.NOW
        raise


def _sweep(path: str, document: Document) -> Procedure[None]:
    """Delete older versions that no document will name again. Whatever stays for now, the next
    change takes along."""
    try:
        names = yield ListNodes(history_path(path))
        for name in names:
            if not name.isdigit() or int(name) >= document.oldest:
                continue
            old = f"{history_path(path)}/{name}"
            try:
                there = yield ReadNode(old, fresh=False)
                yield DeleteNode(old, there.version, point="config.swept")
            except NotFound:
                continue
    except NotFound:  # it is the first version
        return
    except DlogError as error:
        _log.info("%s: older versions stay until the next change: %s", path, error)


def read_version(path: str, version: int) -> Procedure[Document]:
    """An older version, or the newest one; `NotFound` if it is not kept any more, or not yet
    there."""
    document = (yield from read_document(path)).document
    if version == document.version and version > 0:
        return document
    kept = document.kept(version)
    if kept is None:
        there = f"{document.oldest} to {document.version}" if document.version else "none"
        raise NotFound(f"{path} has no version {version}; there is {there}", path=path)
    where = old_path(path, version)
    try:
        value, _ = yield ReadNode(where)
    except NotFound:
        raise NotFound(f"version {version} of {path} is not kept any more", path=where) from None
    old = Document.from_bytes(value, where=where)
    if (old.version, old.token) != (version, kept.token):
        raise Corrupt(f"{where} is not version {version} of {path}", path=where)
    return old


def roll_back(
    path: str, stamp: Stamp, to: int, *, chance: Chance, if_version: int | None = None
) -> Procedure[Document]:
    """A new version that says what version `to` said."""
    old = yield from read_version(path, to)
    return (
        yield from change_document(
            path,
            stamp,
            lambda _: old.content,
            chance=chance,
            if_version=if_version,
            restores=to,
        )
    )
