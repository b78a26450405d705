"""Until when certificates are good: as `openssl` made them, and bytes that are none."""

from __future__ import annotations

import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dlog.certificates import DAYS_LOW, end_of, ends_of_file, lifetime
from dlog.findings import State
from dlog.testing.cluster.authority import Authority

NOW = datetime(2031, 5, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on PATH")
    return Authority(tmp_path_factory.mktemp("authority"))


def ends_by_ssl(authority: Authority) -> float:
    """What Python's own reader says of the authority's certificate."""
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    (found,) = context.get_ca_certs()
    return ssl.cert_time_to_seconds(str(found["notAfter"]))


def test_a_file_tells_what_the_library_tells(authority: Authority) -> None:
    (end,) = ends_of_file(authority.ca_file)
    assert end.timestamp() == ends_by_ssl(authority)


def test_a_file_with_a_key_and_a_chain(authority: Authority, tmp_path: Path) -> None:
    ours, expired = authority.issue("ours"), authority.issue("old", expired=True)
    both = tmp_path / "both.pem"
    texts = [ours.both_file.read_text(), "a word between\n", expired.cert_file.read_text()]
    both.write_text("".join(texts))
    good, bad = ends_of_file(both)
    assert bad < datetime.now(UTC) < good
    assert ends_of_file(ours.key_file) == []


def der(tag: int, *contents: bytes) -> bytes:
    body = b"".join(contents)
    size = len(body).to_bytes(2, "big")
    return bytes([tag, 0x82]) + size + body


def certificate(time_tag: int, end: str, *, version: bool = True) -> bytes:
    """As much of one as is walked."""
    begin = der(0x17, b"200101000000Z")
    parts = [der(0xA0, der(2, b"\2"))] if version else []
    parts += [der(2, b"\1"), der(0x30, b"alg"), der(0x30, b"issuer")]
    parts += [der(0x30, begin, der(time_tag, end.encode())), der(0x30, b"subject")]
    return der(0x30, der(0x30, *parts), der(0x30, b"alg"))


@pytest.mark.parametrize(
    ("tag", "text", "year"),
    [
        (0x17, "310501120000Z", 2031),
        (0x17, "500101000000Z", 1950),
        (0x18, "20510501120000Z", 2051),
        (0x18, "99991231235959Z", 9999),
    ],
)
def test_both_ways_to_write_a_time(tag: int, text: str, year: int) -> None:
    for version in (True, False):
        end = end_of(certificate(tag, text, version=version))
        assert end is not None
        assert end.year == year


@pytest.mark.parametrize(
    ("tag", "text"), [(0x17, "3105"), (0x18, "never"), (0x0C, "310501120000Z")]
)
def test_a_time_that_is_none_is_unknown(tag: int, text: str) -> None:
    assert end_of(certificate(tag, text)) is None


def test_what_is_cut_or_changed_is_unknown_or_read_and_never_an_error() -> None:
    whole = certificate(0x17, "310501120000Z")
    for at in range(len(whole)):
        assert end_of(whole[:at]) is None, at
        for change in (0x00, 0x7F, 0x80, 0xFF):
            end_of(whole[:at] + bytes([change]) + whole[at + 1 :])


def test_how_good_it_is() -> None:
    def state(**after: int) -> State:
        return lifetime(NOW + timedelta(**after), NOW)[0]

    assert state(days=DAYS_LOW) is State.FINE
    assert state(days=DAYS_LOW, seconds=-1) is State.WARNING
    assert state(days=0) is State.WARNING
    assert state(seconds=-1) is State.BAD
    assert lifetime(None, NOW)[0] is State.NOTE
    assert "2031-04-30" in lifetime(NOW - timedelta(seconds=1), NOW)[1]
