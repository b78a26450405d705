"""Where logs are kept, by the scheme of a URL. Backends are known by name here only, and each is
imported when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dlog import uri
from dlog.chance import SYSTEM_CHANCE
from dlog.clock import SYSTEM_CLOCK
from dlog.drive import Sessions, Stores
from dlog.errors import (
    AlreadyExists,
    AuthError,
    ConfigError,
    Corrupt,
    FormatError,
    NotFound,
    Unavailable,
    Unsupported,
)
from dlog.meta.attended import AttendedMetaStore
from dlog.meta.layout import FORMAT_VERSION, Layout
from dlog.metrics import Metrics

if TYPE_CHECKING:
    from dlog.ledger.memory import MemoryLedgers
    from dlog.ledger.store import LedgerStore
    from dlog.meta.memory import MemoryTree
    from dlog.meta.store import MetaStore

_memory_worlds: dict[str, tuple[MemoryTree, MemoryLedgers]] = {}


@runtime_checkable
class WarmsUp(Protocol):
    def warm_up(self) -> None: ...


def open_stores(url: uri.Url, metrics: Metrics, *, create: bool) -> Stores:
    """`create` makes the place itself, where that is possible."""
    match url.scheme:
        case "memory":
            return _open_memory(url, metrics)
        case "zk":
            return _open_cluster(url, metrics)
        case _:
            return _open_file(url, metrics, create=create)


def _open_memory(url: uri.Url, metrics: Metrics) -> Stores:
    from dlog.ledger.memory import MemoryLedgers, MemoryLedgerStore
    from dlog.meta.memory import MemoryMetaStore, MemoryTree

    tree, ledgers = _memory_worlds.setdefault(url.place, (MemoryTree(), MemoryLedgers()))
    return _stores(lambda: MemoryMetaStore(tree), lambda meta: MemoryLedgerStore(ledgers), metrics)


def _open_file(url: uri.Url, metrics: Metrics, *, create: bool) -> Stores:
    from dlog.ledger.embedded import EmbeddedLedgerStore
    from dlog.meta.sqlite import DATABASE_NAME, SqliteMetaStore

    directory = Path(url.place)
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is no directory", path=str(directory))
    if not (directory / DATABASE_NAME).exists():
        _refuse_left(directory / "ledgers", directory / DATABASE_NAME)
        if not create:
            raise NotFound(f"no logs are kept at {url}", path=str(directory))
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except PermissionError as error:
        raise AuthError(f"no permission to make {directory}", path=str(directory)) from error
    except NotADirectoryError as error:
        raise ConfigError(f"{directory} is below a file", path=str(directory)) from error
    except OSError as error:
        raise Unavailable(f"cannot make {directory}: {error}", path=str(directory)) from error
    return _stores(
        lambda: SqliteMetaStore(directory, timeout_ms=url.options.meta_timeout_ms),
        lambda meta: EmbeddedLedgerStore(directory, meta),
        metrics,
    )


def _refuse_left(ledgers: Path, database: Path) -> None:
    """Ledgers are made when their metadata is there: where they are alone it was lost. Without it
    nobody knows which logs they are, and with an empty one in its place nobody would ask."""
    from dlog.ledger.embedded.left import left_in

    left = left_in(ledgers)
    if left is None or database.exists():  # made just now, by somebody who comes first
        return
    raise Corrupt(
        f"{left.told}, and their metadata, {database}, is not there: put it back from a copy, or "
        "move the ledgers away",
        path=str(database),
        left=left.marks,
    )


def _open_cluster(url: uri.Url, metrics: Metrics) -> Stores:
    from dlog.ledger.bookkeeper.auth import DigestMd5
    from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
    from dlog.streams.health.bookies import BookieQuarantine

    try:
        from dlog.meta.zookeeper import ZooKeeperMetaStore
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kazoo":
            raise
        raise Unsupported("zk: URLs need kazoo; install dlog[zookeeper]") from error

    options = url.options

    def open_meta() -> MetaStore:
        return ZooKeeperMetaStore(
            url.hosts,
            root=url.root,
            timeout_ms=options.meta_timeout_ms,
            session_timeout_ms=options.session_timeout_ms,
            auth=options.zk_auth,
            tls=options.tls_options(),
            acl=options.zk_acl,
            unsafe_open_nodes=options.unsafe_open_nodes,
        )

    def open_ledgers(meta: MetaStore) -> LedgerStore:
        who = options.bookie_auth
        return BookKeeperLedgerStore(
            meta,
            ledgers_root=options.ledgers,
            meta_timeout_ms=options.meta_timeout_ms,
            password=options.password,
            digest=options.digest,
            tls=options.tls_options(),
            auth=None if who is None else DigestMd5.of(who),
            health=BookieQuarantine(metrics=metrics),
            metrics=metrics,
        )

    return _stores(open_meta, open_ledgers, metrics, Layout(url.root))


def _stores(
    open_meta: Callable[[], MetaStore],
    open_ledgers: Callable[[MetaStore], LedgerStore],
    metrics: Metrics,
    layout: Layout | None = None,
) -> Stores:
    own = open_meta()
    meta = AttendedMetaStore(own, SYSTEM_CLOCK, metrics)
    return Stores(
        meta,
        open_ledgers(meta),
        layout or Layout(),
        SYSTEM_CLOCK,
        SYSTEM_CHANCE,
        Sessions(own, open_meta),
        metrics,
    )


async def check_format(stores: Stores, url: uri.Url, *, create: bool) -> None:
    """The format node guards everything below the root: what a newer version wrote is refused."""
    path = stores.layout.format
    try:
        found = (await stores.meta.get(path)).value
    except NotFound:
        if url.scheme == "zk" and not create:  # whoever only looks writes nothing
            raise NotFound(f"no logs are kept at {url}", path=path) from None
        try:
            await stores.meta.create(path, str(FORMAT_VERSION).encode())
            return
        except AlreadyExists:
            found = (await stores.meta.get(path)).value
    if found != str(FORMAT_VERSION).encode():
        raise FormatError(
            f"the logs at {url} are kept in format {found[:20]!r}; this version knows "
            f"{FORMAT_VERSION}",
            path=path,
        )


async def close_stores(stores: Stores) -> None:
    await stores.ledgers.close()
    if stores.sessions is not None:
        await stores.sessions.close()
    await stores.meta.close()
