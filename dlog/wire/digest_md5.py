"""DIGEST-MD5 (RFC 2831) as bookies speak it: from a challenge to a response, and the proof that the
other side knows the password as well. Authentication only, without the mechanism's own integrity
and encryption: those are weak, and TLS is there.

Whoever records one dialogue may try passwords on it at home; MD5 makes that cheap.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

from dlog.errors import AuthError, FormatError

CHALLENGE_BYTES_MAX: Final = 2048  # the mechanism's own limit
_PAIR: Final = re.compile(r'\s*([A-Za-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^",\s]+))\s*(?:,|$)')
_ONCE: Final = frozenset({"nonce", "algorithm", "charset", "rspauth", "stale", "maxbuf"})


class DigestMd5Dialogue:
    """One, from our side: `respond` to the challenge, then `verify` what comes back."""

    def __init__(self, user: str, password: str, *, uri: str, client_nonce: str) -> None:
        if not user or any(not char.isprintable() for char in user):
            raise AuthError("the name of a user is printable text")
        self._user = user
        self._password = password
        self._uri = uri
        self._client_nonce = client_nonce
        self._wanted: bytes | None = None  # the other side's proof

    def respond(self, challenge: bytes, where: str) -> bytes:
        pairs = _pairs(challenge, where)
        nonce = _one(pairs, "nonce")
        if not nonce or _one(pairs, "algorithm") != "md5-sess":
            raise FormatError(f"{where}: a challenge that is not DIGEST-MD5's")
        if "auth" not in [each.strip() for each in ",".join(pairs.get("qop", ["auth"])).split(",")]:
            raise AuthError(f"{where} wants more of DIGEST-MD5 than authentication; TLS does that")
        realm = pairs.get("realm", [""])[0]
        is_utf8 = (_one(pairs, "charset") or "").lower() == "utf-8"
        secret = b":".join(_hashed(part) for part in (self._user, realm, self._password))
        session = hashlib.md5(secret, usedforsecurity=False).digest()
        session += f":{nonce}:{self._client_nonce}".encode()
        key = _hex(session)
        between = f"{nonce}:00000001:{self._client_nonce}:auth"
        ours = _hex(f"{key}:{between}:{_hex(f'AUTHENTICATE:{self._uri}'.encode())}".encode())
        theirs = _hex(f"{key}:{between}:{_hex(f':{self._uri}'.encode())}".encode())
        self._wanted = theirs.encode()
        self._password = ""
        fields = [
            *(["charset=utf-8"] if is_utf8 else []),
            f"username={_quoted(self._user)}",
            f"realm={_quoted(realm)}",
            f"nonce={_quoted(nonce)}",
            "nc=00000001",
            f"cnonce={_quoted(self._client_nonce)}",
            f"digest-uri={_quoted(self._uri)}",
            "qop=auth",
            f"response={ours}",
        ]
        return ",".join(fields).encode("utf-8" if is_utf8 else "latin-1", "strict")

    def verify(self, answer: bytes, where: str) -> None:
        proof = _one(_pairs(answer, where), "rspauth") if answer else None
        if self._wanted is None or proof is None:
            raise AuthError(f"{where} did not prove that it knows the password")
        if not hmac.compare_digest(proof.encode(), self._wanted):
            raise AuthError(f"{where} does not know the password that it took")


def _pairs(raw: bytes, where: str) -> dict[str, list[str]]:
    if len(raw) > CHALLENGE_BYTES_MAX:
        raise FormatError(f"{where}: a challenge of {len(raw)} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise FormatError(f"{where}: a challenge that is no text") from None
    found: dict[str, list[str]] = {}
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            raise FormatError(f"{where}: a challenge that is no list of fields")
        at = pair.end()
        quoted, token = pair[2], pair[3]
        value = re.sub(r"\\(.)", r"\1", quoted) if token is None else token
        values = found.setdefault(pair[1].lower(), [])
        values.append(value)
        if len(values) > 1 and pair[1].lower() in _ONCE:
            raise FormatError(f"{where}: a challenge that says {pair[1].lower()} twice")
    return found


def _one(pairs: dict[str, list[str]], name: str) -> str | None:
    return pairs.get(name, [None])[0]


def _hashed(text: str) -> bytes:
    """The mechanism hashes Latin-1 wherever the text has it, whatever travels."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _hex(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _quoted(text: str) -> str:
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return f'"{escaped}"'
