"""A key becomes a number: the first four bytes of its MD5, least significant byte first.

It is the hash that twemproxy calls `md5`, so a ring with it sends each key where twemproxy's
`hash: md5` with `distribution: ketama` sends it. Hash ranges use the same one. Nothing secret rests
on MD5 here: it spreads keys evenly, and everybody has it.
"""

from __future__ import annotations

import hashlib
from struct import Struct

KEY_HASH_MAX = 2**32 - 1

_md5 = hashlib.md5
_four = Struct("<4I").unpack


def key_hash(key: bytes) -> int:
    """From 0 to `KEY_HASH_MAX`, the same everywhere and for ever."""
    return int.from_bytes(_md5(key, usedforsecurity=False).digest()[:4], "little")


def four_hashes(label: bytes) -> tuple[int, ...]:
    """All sixteen bytes of its MD5, in fours: the first is its `key_hash`."""
    return _four(_md5(label, usedforsecurity=False).digest())
