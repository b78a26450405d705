"""Paths of the contract as ZooKeeper takes them, and back.

ZooKeeper refuses a few characters that the contract allows: it looks at UTF-16 units, and takes
surrogates (so everything beyond the first 65,536 characters), private and special ones for none.
Those are escaped, and nothing else, so that other clients of the tree see the names people chose.
A chroot, written behind the hosts as ZooKeeper's users do, goes in front of every path.
"""

from __future__ import annotations

import re

from dlog.errors import ConfigError, TooLarge
from dlog.meta.store import check_path

ESCAPE = "\u241b"  # ␛: printable, and in nobody's names; itself escaped where it is
_REFUSED = re.compile(f"[{ESCAPE}\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")
_ESCAPED = re.compile(f"{ESCAPE}([0-9a-f]+);")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/,;\[\]@]+)(:[0-9]{1,5})?")

# The server's own bound (jute.maxbuffer) on a whole request. One byte more and it cuts the
# connection without a word, so what might not fit is never sent.
REQUEST_BYTES_MAX = 0xFFFFF
REQUEST_OVERHEAD_BYTES = 512  # headers, access rules, and the second operation of a put


def split_hosts(hosts: str) -> tuple[str, str]:
    """`h1:2181,h2:2181/chroot` as hosts and chroot (`""`: none)."""
    names, slash, chroot = hosts.partition("/")
    if not all(_HOST.fullmatch(name) for name in names.split(",")):
        raise ConfigError(f"ZooKeeper's hosts are HOST:PORT,HOST:PORT…, not {hosts[:80]!r}")
    return names, to_wire("", check_path(slash + chroot)) if chroot else ""


def to_wire(chroot: str, path: str) -> str:
    escaped = _REFUSED.sub(lambda found: f"{ESCAPE}{ord(found[0]):x};", path)
    return escaped if not chroot else chroot if path == "/" else chroot + escaped


def from_wire(chroot: str, path: str) -> str:
    return name_from_wire(path[len(chroot) :])


def name_from_wire(name: str) -> str:
    """A name that only looks escaped, made by somebody else, stays as it is."""

    def character(found: re.Match[str]) -> str:
        code = int(found[1], 16) if len(found[1]) <= 6 else -1
        return chr(code) if 0 <= code <= 0x10FFFF else found[0]

    return _ESCAPED.sub(character, name)


def check_request(path: str, wire_path: str, root: str, value: bytes) -> None:
    """Names the path as the caller knows it."""
    room = REQUEST_BYTES_MAX - REQUEST_OVERHEAD_BYTES
    room -= len(wire_path.encode()) + len(root.encode())
    if len(value) > room:
        raise TooLarge(
            f"a ZooKeeper node at this path has at most {room:,} bytes, not {len(value):,}: {path}",
            path=path,
        )
