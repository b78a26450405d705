"""Until when a certificate is good. Python's `ssl` tells that of a peer's certificate only, and not
of the files we were given, so the few bytes of DER in front of it are walked here. What it cannot
walk it calls unknown: the handshake, not this module, decides what is trusted."""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path

from dlog.findings import State

DAYS_LOW = 21  # time enough to get another one
CERTIFICATE_FILE_BYTES_MAX = 1 << 20
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0


def ends_of_file(path: str | Path) -> list[datetime]:
    """Of each certificate in a PEM file. OSError."""
    with open(path, "rb") as file:
        text = file.read(CERTIFICATE_FILE_BYTES_MAX).decode("ascii", "replace")
    found = []
    for pem in _PEM.findall(text):
        try:
            end = end_of(ssl.PEM_cert_to_DER_cert(pem))
        except ValueError:  # no base64
            continue
        if end is not None:
            found.append(end)
    return found


def end_of(der: bytes) -> datetime | None:
    """The moment after which nobody should take it; None if these bytes do not tell."""
    try:
        _, certificate, _ = _element(der)
        _, signed, _ = _element(certificate)
        tag, _, rest = _element(signed)
        if tag == _VERSION:
            _, _, rest = _element(rest)  # the serial number
        _, _, rest = _element(rest)  # how it is signed
        _, _, rest = _element(rest)  # by whom
        tag, validity, _ = _element(rest)
        if tag != _SEQUENCE:
            return None
        _, _, rest = _element(validity)
        tag, end, _ = _element(rest)
        text = end.decode("ascii")
        if tag == _UTC_TIME:  # two digits of the year, from 1950 on
            text = ("20" if text[:2] < "50" else "19") + text
        elif tag != _GENERALIZED_TIME:
            return None
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except (IndexError, ValueError):
        return None


def lifetime(end: datetime | None, now: datetime) -> tuple[State, str]:
    """How good it is that it ends then, and in words."""
    if end is None:
        return State.NOTE, "does not tell until when it is good"
    days = (end - now).days
    if days < 0:
        return State.BAD, f"ended on {end:%Y-%m-%d}"
    state = State.WARNING if days < DAYS_LOW else State.FINE
    return state, f"good for {days} more days"


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Tag and contents of the first element, and what stands behind it."""
    size, at = der[1], 2
    if size & 0x80:
        at += size & 0x7F
        size = int.from_bytes(der[2:at], "big")
    if at + size > len(der):
        raise ValueError("cut off")
    return der[0], der[at : at + size], der[at + size :]
