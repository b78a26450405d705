"""Who may do what with the nodes that we make.

Whoever comes with credentials owns its nodes, and nobody else may touch them; others are let in by
name, in the words of ZooKeeper's own shell: `digest:ana:HASH:r,x509:CN=bookie:cdrwa`. The world is
nobody's name: what everybody may read everybody may write, since a ledger's password stands in its
node. Without credentials everything is everybody's, for there is nobody to own it.
"""

from __future__ import annotations

import re

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id, Permissions

from dlog.errors import ConfigError
from dlog.limits import ZOOKEEPER_ACL_MAX

# An id may hold colons (digest) and commas (x509), so an entry ends where its permissions do.
_ENTRY = re.compile(r"([a-z0-9]+):([^\s]*?):([a-z]+)(?:,(?!$)|$)", re.ASCII)
_LETTERS = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}
# The shell makes hashes of passwords; a password in its place would be stored with every node.
_DIGEST_ID = re.compile(r"[^:]+:[A-Za-z0-9+/]{27}=", re.ASCII)
_EXAMPLE = "digest:USER:HASH:cdrwa, x509:CN=NAME:r or sasl:NAME:r, with commas between them"


def acl_of(*, has_credentials: bool, others: str | None, unsafe_open: bool) -> list[ACL]:
    """`others` may do what stands there; the creator may do everything."""
    if unsafe_open or not has_credentials:
        if others is not None:
            raise ConfigError(
                "an ACL is for nodes that are owned: give zk_auth or a certificate, and no "
                "unsafe_open_nodes"
            )
        return list(OPEN_ACL_UNSAFE)
    return [*CREATOR_ALL_ACL, *_parsed(others or "")]


def _parsed(text: str) -> list[ACL]:
    entries: list[ACL] = []
    at = 0
    while at < len(text):
        found = _ENTRY.match(text, at)
        if found is None:
            # Whatever it is, somebody's password may be in it.
            raise ConfigError(f"an ACL is {_EXAMPLE}")
        scheme, name, letters = found.groups()
        if scheme == "world":
            raise ConfigError(
                "no node is open to the world where there are credentials: whoever reads the "
                "metadata of a ledger can write it"
            )
        if (scheme == "digest" and not _DIGEST_ID.fullmatch(name)) or not name:
            raise ConfigError(f"an ACL names somebody: {_EXAMPLE}")
        if set(letters) - _LETTERS.keys() or len(set(letters)) < len(letters):
            raise ConfigError(f"an ACL permits some of {''.join(_LETTERS)}, each once")
        entries.append(ACL(sum(_LETTERS[letter] for letter in letters), Id(scheme, name)))
        at = found.end()
    if len(entries) > ZOOKEEPER_ACL_MAX:
        raise ConfigError(f"an ACL of more than {ZOOKEEPER_ACL_MAX} entries")
    return entries
