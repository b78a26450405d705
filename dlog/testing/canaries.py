"""Secrets for tests that are known again wherever they show, and the search for them.

    PASSWORD = canary("password")              # canary-password-5f0c1d2e
    found_in(log_text)                         # {"password"} if it shows there, in any disguise
    python -m dlog.testing.canaries PATH...    # what a run leaves behind, before it is kept

A canary ends in a hash of its own name, so that nothing else is taken for one. It is found as it
is, as UTF-16, in hexadecimal and in base64, wherever that begins; in what is compressed or
encrypted it is not.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_PREFIX = b"canary-"
_CANARY = re.compile(rb"canary-([a-z]+(?:-[a-z]+)*)-([0-9a-f]{8})")
_HASH_CHARS = 8
_HEX = re.compile(rb"(?:63616e6172792d)(?:[0-9a-f]{2})+", re.IGNORECASE)
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{12,}")


def canary(label: str) -> str:
    """`label` is words of small letters, with dashes between them."""
    made = f"canary-{label}-{_hash_of(label.encode())}"
    if _CANARY.fullmatch(made.encode()) is None:
        raise ValueError(f"no name of a canary: {label!r}")
    return made


def found_in(data: bytes | str) -> set[str]:
    """The labels of all that show."""
    raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    return {label for form in _forms(raw) for label in _plain(form)}


def _hash_of(label: bytes) -> str:
    return hashlib.sha256(b"canary" + label).hexdigest()[:_HASH_CHARS]


def _plain(raw: bytes) -> Iterator[str]:
    for found in _CANARY.finditer(raw):
        if found[2].decode() == _hash_of(found[1]):
            yield found[1].decode()


def _forms(raw: bytes) -> Iterator[bytes]:
    yield raw
    if b"\0" in raw:
        yield raw.replace(b"\0", b"")  # UTF-16 of whichever order
    for found in _HEX.finditer(raw):
        yield binascii.unhexlify(found[0])
    for found in _BASE64.finditer(raw):
        run = found[0].replace(b"-", b"+").replace(b"_", b"/")
        for begin in range(4):  # nobody says where the encoding began
            whole = run[begin : begin + (len(run) - begin) // 4 * 4]
            decoded = base64.b64decode(whole)
            # What is left at the end are up to two bytes more.
            rest = run[begin + len(whole) :]
            if len(rest) > 1:
                decoded += base64.b64decode(rest + b"=" * (4 - len(rest)))
            if _PREFIX in decoded:
                yield decoded


def files_that_show(paths: list[Path]) -> Iterator[tuple[Path, set[str]]]:
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and (labels := found_in(file.read_bytes())):
                yield file, labels
            if labels := found_in(file.name):
                yield file, labels


def main(words: list[str]) -> int:
    paths = [Path(word) for word in words]
    missing = [str(path) for path in paths if not path.exists()]
    if missing or not paths:
        sys.stderr.write(f"canaries: nothing to look at: {', '.join(missing)}\n")
        return 2
    if not any(path.is_file() or any(path.rglob("*")) for path in paths):
        sys.stderr.write(f"canaries: nothing to look at in {', '.join(words)}\n")
        return 2
    shown = list(files_that_show(paths))
    for path, labels in shown:
        sys.stderr.write(f"canaries: {path} shows {', '.join(sorted(labels))}\n")
    return 1 if shown else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
