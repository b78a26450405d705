"""What is to be thought of a ZooKeeper: facts about its servers in, findings out. No IO; who asks
the servers is `zookeeper_examine`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dlog.certificates import lifetime
from dlog.findings import Finding, State, open_to_all

SKEW_MS_MAX = 1_000.0
SLOW_READ_MS = 100.0
_VERSION = re.compile(r"version: ([0-9][0-9A-Za-z.]*)")
_MODE = re.compile(r"^Mode: (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Of one address. What the server did not tell is None or empty."""

    host: str
    trouble: str = ""  # why it cannot be used
    of_itself: str = ""  # its answer to `srvr`
    session_ms: float | None = None
    read_ms: float | None = None
    certificate_end: datetime | None = None


@dataclass(frozen=True, slots=True)
class ClockFacts:
    ahead_ms: float  # of our clock; below 0 it is behind
    doubt_ms: float  # how much of that may be the way there and back
    write_ms: float


def of_servers(servers: Sequence[ServerFacts], *, is_private: bool) -> Iterator[Finding]:
    serving = [server for server in servers if not server.trouble]
    for server in servers:
        yield _of_server(server)
    told = f"{len(serving)} of {len(servers)} addresses serve"
    if not serving:
        told += ": nothing can be opened, taken over or rotated; what is open goes on"
        yield Finding("zookeeper", State.BAD, told)
    elif {_mode_of(server) for server in serving} == {"standalone"}:
        told += "; one server alone: while it is down nothing is opened, taken over or rotated"
        yield Finding("zookeeper", open_to_all(is_private), told)
    else:
        state = State.FINE if len(serving) == len(servers) else State.WARNING
        yield Finding("zookeeper", state, told)


def of_clock(clock: ClockFacts) -> Iterator[Finding]:
    where = "ahead of" if clock.ahead_ms > 0 else "behind"
    told = (
        f"ZooKeeper's is {_amount(abs(clock.ahead_ms))} {where} this machine's "
        f"(give or take {_amount(clock.doubt_ms)})"
    )
    if abs(clock.ahead_ms) - clock.doubt_ms > SKEW_MS_MAX:
        told += ": stamps and --since mislead; no promise rests on clocks"
        yield Finding("clock", State.WARNING, told)
    else:
        yield Finding("clock", State.FINE, told)
    yield Finding("zookeeper write", State.FINE, f"{clock.write_ms:.1f} ms")


def of_access(*, is_private: bool, has_tls: bool, owns_nodes: bool) -> Iterator[Finding]:
    if has_tls:
        yield Finding("zookeeper tls", State.FINE, "required")
    else:
        told = "off: who is on the way reads and changes what we say"
        yield Finding("zookeeper tls", open_to_all(is_private), told)
    if owns_nodes:
        told = "what we make is ours, and of those whom zk_acl names"
        yield Finding("zookeeper auth", State.FINE, told)
    else:
        told = "what we make is everybody's who reaches ZooKeeper (zk_auth, tls_cert)"
        yield Finding("zookeeper auth", open_to_all(is_private), told)


def of_files(ends: Sequence[tuple[str, datetime | None]], now: datetime) -> Iterator[Finding]:
    """Our own certificates, and those of authorities: none of them is seen in a handshake."""
    for path, end in ends:
        state, told = lifetime(end, now)
        yield Finding(f"certificate {path}", state, told)


def of_certificates(servers: Sequence[ServerFacts], now: datetime) -> Iterator[Finding]:
    ends = [(s.certificate_end, s.host) for s in servers if s.certificate_end is not None]
    if ends:
        end, host = min(ends)
        state, told = lifetime(end, now)
        yield Finding("zookeeper certificate", state, f"{told} ({host} is the first)")


def _of_server(server: ServerFacts) -> Finding:
    check = f"zookeeper {server.host}"
    version = _VERSION.search(server.of_itself)
    told = [f"version {version[1]}" if version else "version not told"]
    if mode := _mode_of(server):
        told.append(mode)
    if server.trouble:
        return Finding(check, State.WARNING, server.trouble)
    if server.session_ms is not None:
        told.append(f"session after {_amount(server.session_ms)}")
    if server.read_ms is not None:
        told.append(f"read {server.read_ms:.1f} ms")
    is_slow = server.read_ms is not None and server.read_ms > SLOW_READ_MS
    return Finding(check, State.WARNING if is_slow else State.FINE, ", ".join(told))


def _mode_of(server: ServerFacts) -> str:
    mode = _MODE.search(server.of_itself)
    return mode[1] if mode else ""


def _amount(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 10_000 else str(timedelta(seconds=round(ms / 1000)))
