"""Options of a log, a writer and a reader: frozen values, checked when made.

`LogOptions` are stored with the log and hold for every writer of it. `WriterOptions` and
`ReaderOptions` belong to one handle. Each field says what it bounds and what happens at the bound;
an unknown name is an error that lists the known.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from dlog import limits
from dlog.errors import ConfigError
from dlog.secret import Secret
from dlog.tls import TlsOptions

Takeover = Literal["always", "if_dead", "never", "wait"]
OnFull = Literal["wait", "raise"]
OnTruncated = Literal["raise", "jump"]
Tls = Literal["off", "required"]
CodecName = Literal["none", "lz4", "zstd"]
TailMode = Literal["normal", "strict"]
Digest = Literal["crc32c", "hmac"]

ON_ACK = "on_ack"
DIGESTS = ("crc32c", "hmac")
YEARS_100_S = 100 * 366 * 24 * 3600
# Options that hold secrets: no URL has them, and the environment only on purpose.
SECRET_OPTIONS = ("password", "zk_auth", "bookie_auth", "tls_key_passphrase")
_WITH_TLS = ("tls_ca", "tls_system_cas", "tls_cert", "tls_key", "tls_key_passphrase")
LEDGERS_ROOT_DEFAULT = "/ledgers"
_WITHIN = re.compile(r"within:([1-9][0-9]{0,5})ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Fixed when the log is created; stored in its log meta."""

    segment_bytes: int = limits.SEGMENT_BYTES_DEFAULT
    """A segment that reached this many payload bytes is rotated (late if need be, at twice this at
    the latest)."""
    segment_age_s: int = limits.SEGMENT_AGE_S_DEFAULT
    """A segment that holds messages is rotated when it is this old."""
    ensemble: int = 3
    """Bookies of a ledger. A log keeps each entry on all of them, so it equals `write_quorum`."""
    write_quorum: int = 3
    """Copies sent of each entry. Backends with one copy (file, memory) keep the number for the day
    of a move."""
    ack_quorum: int = 2
    """Copies confirmed before an append is acknowledged: the loss of one less loses nothing."""
    digest: Digest = "crc32c"
    """How bookies' entries are checked when they are read: `crc32c` finds damage, `hmac` also
    entries that were made by somebody who does not know the password of the ledger. A backend
    without bookies checks as it always does, and keeps the name for the day of a move."""
    unsafe_single_copy: bool = False
    """Allow `ack_quorum=1`: an acknowledged message may then be on one disk only."""
    retention_age_s: int | None = None
    """Segments whose last message is older are truncated, unless a hold keeps them. None: kept."""
    retention_bytes: int | None = None
    """The oldest segments are truncated as long as so many bytes are left without them, unless a
    hold keeps them. None: kept."""
    deletion_grace_s: int = limits.DELETION_GRACE_S_DEFAULT
    """What was truncated can be read so much longer by whoever is reading it already; then it is
    deleted."""

    def __post_init__(self) -> None:
        _in_range("segment_bytes", self.segment_bytes, 4 * limits.KIB, 1 << 40)
        _in_range("segment_age_s", self.segment_age_s, 1, 10 * 366 * 24 * 3600)
        if self.retention_age_s is not None:
            _in_range("retention_age_s", self.retention_age_s, 1, YEARS_100_S)
        if self.retention_bytes is not None:
            _in_range("retention_bytes", self.retention_bytes, 0, 1 << 60)
        _in_range("deletion_grace_s", self.deletion_grace_s, 0, YEARS_100_S)
        _in_range("ensemble", self.ensemble, 1, 20)
        _in_range("ack_quorum", self.ack_quorum, 1, 20)
        if not self.ensemble == self.write_quorum >= self.ack_quorum:
            raise ConfigError(
                "a log needs ensemble = write_quorum >= ack_quorum, not "
                f"{self.ensemble}/{self.write_quorum}/{self.ack_quorum}"
            )
        _one_of("digest", self.digest, DIGESTS)
        if type(self.unsafe_single_copy) is not bool:
            raise ConfigError("unsafe_single_copy is True or False")
        if self.ack_quorum == 1 and not self.unsafe_single_copy:
            raise ConfigError(
                "ack_quorum=1 acknowledges what one disk holds, and loses it with that disk; say "
                "unsafe_single_copy=True if that is meant"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """One writer's ways; another writer of the same log may have others."""

    takeover: Takeover = "always"
    """What to do about a present writer: fence it, only if its presence is gone, refuse, or wait
    until it left."""
    owner: str | None = None
    """Who we are, told to whoever we fence and shown by describe; user@host:pid when not given."""
    visible: str = ON_ACK
    """`on_ack`: an acknowledged message is readable by anyone. `within:50ms`: readable that much
    later at most."""
    on_full: OnFull = "wait"
    """What submit does when the window is full: wait for room, or raise `BufferFull`."""
    linger_ms: int = 0
    """How long a lone message may wait for company. 0: an idle writer sends at once."""
    entry_bytes: int = limits.ENTRY_BYTES_DEFAULT
    """Where batching stops: raw bytes of messages that travel in one entry. A larger message
    travels alone."""
    window_bytes: int = limits.WINDOW_BYTES_DEFAULT
    """Raw bytes taken and not yet acknowledged; more wait, or are refused (`on_full`). Only the
    last message taken, or atomic run, may exceed it."""
    window_entries: int = limits.WINDOW_ENTRIES_DEFAULT
    """Entries sent and not yet confirmed; while there are as many, messages gather in the next
    ones."""
    codec: CodecName = "none"
    """Compression of entries; lz4 and zstd need their extras."""
    open_timeout_ms: int = limits.OPEN_TIMEOUT_MS_DEFAULT
    """How long opening may take, waiting for another writer (`takeover="wait"`) included."""
    stall_after_ms: int = limits.STALL_AFTER_MS_DEFAULT
    """A wait that lasts longer is logged as a warning, and counted. 0: never."""

    def __post_init__(self) -> None:
        _one_of("takeover", self.takeover, ("always", "if_dead", "never", "wait"))
        _one_of("on_full", self.on_full, ("wait", "raise"))
        _one_of("codec", self.codec, ("none", "lz4", "zstd"))
        visible_within_ms(self.visible)
        _in_range("linger_ms", self.linger_ms, 0, 60_000)
        _in_range("entry_bytes", self.entry_bytes, 1, limits.LEDGER_ENTRY_BYTES_MAX // 2)
        _in_range("window_bytes", self.window_bytes, limits.KIB, limits.WINDOW_BYTES_MAX)
        _in_range("window_entries", self.window_entries, 1, 1 << 16)
        _in_range("open_timeout_ms", self.open_timeout_ms, 1, 24 * 3600 * 1000)
        _in_range("stall_after_ms", self.stall_after_ms, 0, 24 * 3600 * 1000)
        if self.owner is not None and not (0 < len(self.owner) <= 200 and self.owner.isprintable()):
            raise ConfigError("owner is printable text of 1 to 200 characters")


@dataclass(frozen=True, slots=True, kw_only=True)
class FillOptions:
    """How a job fills its segment: what these say of a writer, they say of it."""

    entry_bytes: int = limits.ENTRY_BYTES_DEFAULT
    window_bytes: int = limits.WINDOW_BYTES_DEFAULT
    window_entries: int = limits.WINDOW_ENTRIES_DEFAULT
    codec: CodecName = "none"

    def __post_init__(self) -> None:
        WriterOptions(**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """One reader's ways."""

    follow: bool = False
    """Go on at the tail as it grows; without it the end is the tail seen at open or seek."""
    on_truncated: OnTruncated = "raise"
    """When the wanted place was truncated away: raise `Truncated`, or go on at the new head."""
    tail: TailMode = "normal"
    """How the tail of an open ledger is believed: `strict`, where strangers such as Java's
    auto-recovery may recover ledgers, looks at metadata once for each advance."""
    read_run_bytes: int = limits.READ_RUN_BYTES_DEFAULT
    """Bytes asked of a ledger at a time."""
    read_ahead_bytes: int = limits.READ_AHEAD_BYTES_DEFAULT
    """Bytes read and not yet taken; the reader rests while there are more."""
    stall_after_ms: int = limits.STALL_AFTER_MS_DEFAULT
    """A wait for anything but messages that lasts longer is logged as a warning, and counted. 0:
    never."""

    def __post_init__(self) -> None:
        if type(self.follow) is not bool:
            raise ConfigError(f"follow is True or False, not {self.follow!r}")
        _one_of("on_truncated", self.on_truncated, ("raise", "jump"))
        _one_of("tail", self.tail, ("normal", "strict"))
        _in_range("read_run_bytes", self.read_run_bytes, 1, 64 * limits.MIB)
        _in_range("read_ahead_bytes", self.read_ahead_bytes, 1, limits.WINDOW_BYTES_MAX)
        _in_range("stall_after_ms", self.stall_after_ms, 0, 24 * 3600 * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """One client's ways."""

    meta_timeout_ms: int = limits.META_TIMEOUT_MS_DEFAULT
    """How long one call to the metadata store may take, waiting for other processes included."""
    session_timeout_ms: int = limits.SESSION_TIMEOUT_MS_DEFAULT
    """zk: only. How long ZooKeeper believes in us without a word of ours: the presence of a killed
    writer (`takeover="if_dead"`) goes away that late. Servers have bounds of their own."""
    ledgers: str = LEDGERS_ROOT_DEFAULT
    """zk: only. Where the BookKeeper cluster keeps its own metadata."""
    tls: Tls = "off"
    """zk: only. `required`: no byte goes to ZooKeeper or to a bookie but under TLS."""
    tls_ca: str | None = None
    """With TLS: PEM file of the authorities that may sign a server's certificate."""
    tls_system_cas: bool = False
    """With TLS: those that the operating system trusts may, too."""
    tls_cert: str | None = None
    """With TLS: PEM file of our own certificate, for servers that want one."""
    tls_key: str | None = None
    """With TLS: PEM file of its key, where that is not in `tls_cert`."""
    tls_key_passphrase: Secret | None = None
    """With TLS: what opens the key, if it is locked."""
    password: Secret | None = None
    """zk: only. Of the ledgers; without it each has one of its own. Either way whoever reads
    ZooKeeper reads it."""
    digest: Digest | None = None
    """zk: only. The digest that every log here has (see `LogOptions`): new ones get it, and a log
    or a ledger that claims another one is refused, whatever metadata says."""
    zk_auth: Secret | None = None
    """zk: only. user:password for ZooKeeper; the nodes that are made are this user's alone."""
    zk_acl: str | None = None
    """zk: only. Who else may do what with the nodes that are made, as `digest:ana:HASH:r` with
    commas between them; they are their creator's where there is zk_auth or tls_cert."""
    unsafe_open_nodes: bool = False
    """zk: only. Nodes are everybody's, in spite of zk_auth or tls_cert."""
    bookie_auth: Secret | None = None
    """zk: only. user:password for bookies that want to know (SASL, DIGEST-MD5); with TLS only."""

    def __post_init__(self) -> None:
        _in_range("meta_timeout_ms", self.meta_timeout_ms, 1, 600_000)
        _in_range("session_timeout_ms", self.session_timeout_ms, 100, 600_000)
        check_node_path("ledgers", self.ledgers)
        _one_of("tls", self.tls, ("off", "required"))
        if self.digest is not None:
            _one_of("digest", self.digest, DIGESTS)
        if type(self.tls_system_cas) is not bool:
            raise ConfigError(f"tls_system_cas is True or False, not {self.tls_system_cas!r}")
        if type(self.unsafe_open_nodes) is not bool:
            raise ConfigError("unsafe_open_nodes is True or False")
        for name in SECRET_OPTIONS:
            if not isinstance(getattr(self, name), Secret | None):
                raise ConfigError(f"{name} is a secret: Secret(...), bytes, or where it stands")
        given = [n for n in _WITH_TLS if getattr(self, n) not in (None, False)]
        if self.tls == "off" and given:
            raise ConfigError(f"{', '.join(given)}: without tls='required' this does nothing")
        self.tls_options()  # its own rules

    def tls_options(self) -> TlsOptions | None:
        if self.tls == "off":
            return None
        return TlsOptions(
            ca_file=self.tls_ca,
            system_cas=self.tls_system_cas,
            cert_file=self.tls_cert,
            key_file=self.tls_key,
            key_passphrase=self.tls_key_passphrase,
        )


class _Fields(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


_Options = TypeVar("_Options", bound=_Fields)


def options_from(kind: type[_Options], given: Mapping[str, Any]) -> _Options:
    """Options by keyword; an unknown one is an error that lists the known ones."""
    known = sorted(field.name for field in dataclasses.fields(kind))
    strange = sorted(given.keys() - set(known))
    if strange:
        raise ConfigError(f"unknown option {', '.join(strange)}; known are {', '.join(known)}")
    return kind(**given)


def visible_within_ms(visible: str) -> int | None:
    """None for `on_ack`, else the bound in milliseconds."""
    if visible == ON_ACK:
        return None
    found = _WITHIN.fullmatch(visible) if isinstance(visible, str) else None
    if found is None:
        raise ConfigError(
            f"visible is 'on_ack' or 'within:<n>ms' (as 'within:50ms'), not {visible!r}"
        )
    return int(found[1])


def check_node_path(what: str, path: object) -> None:
    """An absolute path of ZooKeeper: segments of printable text, none of them `.` or `..`."""
    names = path.split("/")[1:] if isinstance(path, str) and path.startswith("/") else [""]
    bad = [name for name in names if name in ("", ".", "..") or not name.isprintable()]
    if bad or len(str(path)) > 400:
        raise ConfigError(f"{what} is a path of ZooKeeper, as /ledgers, not {str(path)[:80]!r}")


def _in_range(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(f"{name} is a whole number from {low} to {high}, not {value!r}")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} is one of {', '.join(known)}, not {value!r}")
