"""ZooKeeper looked over: every address by itself, all at once, each within `EXAMINE_TIMEOUT_MS`.

A client is content with one server that serves, and so never hears of the others. Here each address
is asked who it is (`srvr`, the one of ZooKeeper's four-letter words that is allowed by default) and
gets a session of its own. Where our root is, one node that ends with its session is made in it: its
time stamp is the only word ZooKeeper says about its clock. Nothing else is written.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from dlog.certificates import end_of, ends_of_file
from dlog.chance import SYSTEM_CHANCE, Chance
from dlog.clock import SYSTEM_CLOCK, Clock, us_datetime
from dlog.errors import AuthError, DlogError, NotFound
from dlog.findings import Finding, Rights, State, is_loopback
from dlog.limits import EXAMINE_TIMEOUT_MS
from dlog.meta import zookeeper_findings
from dlog.meta.zookeeper_client import Link
from dlog.meta.zookeeper_findings import ClockFacts, ServerFacts
from dlog.tls import TlsContexts

READS = 5
ANSWER_BYTES_MAX = 64 << 10
PORT_DEFAULT = 2181
_READ = 1  # of the bits of a right; the others write, create, delete and administer
TIMEOUT_S = EXAMINE_TIMEOUT_MS / 1000

# A link to these hosts; of several, to whichever it reaches first.
MakeLink = Callable[[str], Link]


def is_private(hosts: str) -> bool:
    return all(is_loopback(host_and_port(each)[0]) for each in hosts.split(","))


async def examine(
    hosts: str,
    root: str,
    make_link: MakeLink,
    tls: TlsContexts | None,
    *,
    owns_nodes: bool,
    clock: Clock = SYSTEM_CLOCK,
    chance: Chance = SYSTEM_CHANCE,
) -> list[Finding]:
    """`root` as ZooKeeper takes it."""
    private = is_private(hosts)
    now = us_datetime(clock.wall_us())
    looks = (_look_at(each, make_link, tls, clock) for each in hosts.split(","))
    servers: Sequence[ServerFacts] = await asyncio.gather(*looks)
    found = [*zookeeper_findings.of_servers(servers, is_private=private)]
    if not all(server.trouble for server in servers):
        found += await _clock(hosts, root, make_link, clock, chance)
    found += zookeeper_findings.of_access(
        is_private=private, has_tls=tls is not None, owns_nodes=owns_nodes
    )
    found += zookeeper_findings.of_certificates(servers, now)
    if tls is not None:
        found += zookeeper_findings.of_files(_ends_of_files(tls), now)
    return found


async def _look_at(
    host: str, make_link: MakeLink, tls: TlsContexts | None, clock: Clock
) -> ServerFacts:
    asked = await _ask(host, tls)
    if asked.trouble:  # which a session would wait out, and could not name
        return asked
    used = await _use(host, make_link, clock)
    if used.trouble:
        return replace(asked, trouble=_why(asked.of_itself) or used.trouble)
    return replace(asked, session_ms=used.session_ms, read_ms=used.read_ms)


def _why(of_itself: str) -> str:
    """A server that has lost the others answers with one sentence."""
    return "" if "version" in of_itself else of_itself.strip()[:200]


async def _ask(host: str, tls: TlsContexts | None) -> ServerFacts:
    name, port = host_and_port(host)
    end: datetime | None = None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            async with _connected(name, port, tls) as (reader, writer):
                found = writer.get_extra_info("ssl_object")
                if found is not None:
                    end = end_of(found.getpeercert(binary_form=True) or b"")
                writer.write(b"srvr")
                answer = bytearray()
                while piece := await reader.read(ANSWER_BYTES_MAX):
                    answer += piece
                    if len(answer) > ANSWER_BYTES_MAX:
                        break
    except TimeoutError:
        why = f"takes no question, or answers none within {TIMEOUT_S:.0f} s"
        why += ": it hangs, or wants TLS" if tls is None else ""
        return ServerFacts(host, why, certificate_end=end)
    except ssl.SSLCertVerificationError as error:
        return ServerFacts(host, f"did not prove who it is: {error.verify_message}")
    except ssl.SSLError as error:
        return ServerFacts(host, f"ended the TLS handshake: {error.reason or error}")
    except (OSError, UnicodeError) as error:  # the second: it is no host's name
        number = getattr(error, "errno", None) or 0
        # asyncio puts a sentence of its own in front of the system's numbers.
        why = os.strerror(number) if number > 0 else str(error)
        return ServerFacts(host, f"cannot be reached: {why}")
    told = bytes(answer).decode("utf-8", "replace")
    return ServerFacts(host, of_itself=told, certificate_end=end)


@asynccontextmanager
async def _connected(
    name: str, port: int, tls: TlsContexts | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    context = None if tls is None else tls.current()
    reader, writer = await asyncio.open_connection(
        name, port, ssl=context, server_hostname=None if context is None else name
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()  # nothing of ours is left to be sent


async def _use(host: str, make_link: MakeLink, clock: Clock) -> ServerFacts:
    link = make_link(host)
    deadline_s = asyncio.get_running_loop().time() + TIMEOUT_S
    try:
        begin_s = clock.monotonic_s()
        await link.connected("/", deadline_s)
        session_ms = (clock.monotonic_s() - begin_s) * 1000
        reads_ms = []
        for _ in range(READS):
            begin_s = clock.monotonic_s()
            await link.ask(
                lambda zk: zk.exists_async("/"), path="/", writes=False, deadline_s=deadline_s
            )
            reads_ms.append((clock.monotonic_s() - begin_s) * 1000)
    except DlogError as error:
        return ServerFacts(host, error.message)
    finally:
        await link.close()
    return ServerFacts(host, session_ms=session_ms, read_ms=sorted(reads_ms)[READS // 2])


async def _clock(
    hosts: str, root: str, make_link: MakeLink, clock: Clock, chance: Chance
) -> list[Finding]:
    link = make_link(hosts)
    deadline_s = asyncio.get_running_loop().time() + TIMEOUT_S
    path = f"{root.rstrip('/')}/doctor-{chance.token()}"
    try:
        await link.connected(path, deadline_s)
        before_ms = clock.wall_us() / 1000
        begin_s = clock.monotonic_s()
        _, stat = await link.ask(
            lambda zk: zk.create_async(path, b"", link.acl, ephemeral=True, include_data=True),
            path=path,
            writes=True,
            deadline_s=deadline_s,
        )
        write_ms = (clock.monotonic_s() - begin_s) * 1000
    except NotFound:
        return [Finding("clock", State.NOTE, f"not compared: there is no node {root} yet")]
    except AuthError:
        told = f"not compared: these credentials may make no node in {root}"
        return [Finding("clock", State.NOTE, told)]
    except DlogError as error:
        return [Finding("clock", State.WARNING, f"not compared: {error.message}")]
    finally:
        await link.close()  # and the node goes
    ahead_ms = stat.ctime - (before_ms + write_ms / 2)
    return [*zookeeper_findings.of_clock(ClockFacts(ahead_ms, write_ms / 2, write_ms))]


def rights_of(acls: Iterable[Any]) -> Rights:
    """What a list of ZooKeeper's grants to whom it calls `world:anyone`."""
    anyone = 0
    for acl in acls:
        if (acl.id.scheme, acl.id.id) == ("world", "anyone"):
            anyone |= acl.perms
    return Rights(bool(anyone & _READ), bool(anyone & ~_READ))


def _ends_of_files(tls: TlsContexts) -> list[tuple[str, datetime | None]]:
    """Of each file, when the first of its certificates ends. Files without any are keys."""
    found: list[tuple[str, datetime | None]] = []
    for path in tls.options.files:
        try:
            ends = ends_of_file(path)
        except OSError:
            continue  # said already, by whoever could not use it
        if ends:
            found.append((path, min(ends)))
    return found


def host_and_port(host: str) -> tuple[str, int]:
    """Of one address as `split_hosts` allows it."""
    name, bracket, port = host.rpartition("]") if host.startswith("[") else ("", "", host)
    if bracket:
        return name.removeprefix("["), int(port.removeprefix(":") or PORT_DEFAULT)
    name, _, port = host.partition(":")
    return name, int(port or PORT_DEFAULT)
