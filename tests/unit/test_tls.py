"""What TLS is asked for, and which context a connection gets."""

from __future__ import annotations

import contextlib
import logging
import shutil
import ssl
import warnings
from pathlib import Path
from typing import Any

import pytest

from dlog.errors import ConfigError
from dlog.secret import Secret
from dlog.testing.cluster.authority import Authority
from dlog.tls import TlsContexts, TlsOptions

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on PATH")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [
        (ssl.TLSVersion.TLSv1, False),
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_3, True),
    ],
)
def test_nothing_below_1_2_is_spoken(
    authority: Authority, version: ssl.TLSVersion, is_taken: bool
) -> None:
    """With a server that speaks this version only, and ciphers that would allow old ones: it is
    our own rule that forbids them."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.issue("server").both_file)
    client = TlsContexts(TlsOptions(ca_file=authority.ca_file)).current()
    for context in (server, client):
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        server.minimum_version = server.maximum_version = version
    ends = [ssl.MemoryBIO() for _ in range(4)]
    theirs = server.wrap_bio(ends[0], ends[1], server_side=True)
    ours = client.wrap_bio(ends[2], ends[3], server_hostname="127.0.0.1")
    spoken = None
    try:
        for _ in range(6):
            for side in (ours, theirs):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
                ends[0].write(ends[3].read())
                ends[2].write(ends[1].read())
        spoken = ours.version()
    except ssl.SSLError:
        pass
    assert spoken == (f"TLSv1.{version.name[-1]}" if is_taken else None)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"cert_file": "c"},
        {"ca_file": "a", "key_file": "k"},
        {"ca_file": "a", "key_passphrase": b"x"},
    ],
)
def test_options_that_make_no_sense(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TlsOptions(**given)


def test_the_rules_are_strict_unless_said_otherwise(authority: Authority) -> None:
    context = TlsContexts(TlsOptions(ca_file=authority.ca_file)).current()
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert len(context.get_ca_certs()) == 1, "the operating system's authorities do not count"
    loose = TlsOptions(ca_file=authority.ca_file, unsafe_any_host_name=True)
    context = TlsContexts(loose).current()
    assert not context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_the_authorities_of_the_system_count_where_that_is_asked_for(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))
    monkeypatch.setenv("SSL_CERT_DIR", "/nonexistent")
    assert len(TlsContexts(TlsOptions(system_cas=True)).current().get_ca_certs()) == 1
    other = Authority(authority.directory / "other", "another")
    both = TlsContexts(TlsOptions(system_cas=True, ca_file=other.ca_file)).current()
    assert len(both.get_ca_certs()) == 2


def test_files_of_no_use_are_named_and_no_passphrase_is_shown(
    authority: Authority, tmp_path: Path
) -> None:
    locked = authority.issue("locked", passphrase="of the key")
    empty = tmp_path / "empty.pem"
    empty.touch()
    bad = [
        ({"ca_file": tmp_path / "none.pem"}, "none.pem"),
        ({"ca_file": empty}, "empty.pem"),
        ({"cert_file": tmp_path / "none.pem"}, "none.pem"),
        ({"cert_file": locked.cert_file, "key_file": locked.key_file}, "locked.pem"),
        (
            {
                "cert_file": locked.cert_file,
                "key_file": locked.key_file,
                "key_passphrase": Secret(b"canary"),
            },
            "locked.pem",
        ),
        ({"cert_file": authority.issue("a").cert_file, "key_file": locked.both_file}, "a.pem"),
    ]
    for changes, named in bad:
        given: dict[str, Any] = {"ca_file": authority.ca_file, **changes}
        with pytest.raises(ConfigError, match=named) as caught:
            TlsContexts(TlsOptions(**given))
        assert "canary" not in str(caught.value)
        assert "canary" not in repr(TlsOptions(**given))
    TlsContexts(
        TlsOptions(
            ca_file=authority.ca_file,
            cert_file=locked.cert_file,
            key_file=locked.key_file,
            key_passphrase=Secret(b"of the key"),
        )
    )


def test_files_that_change_are_read_for_the_next_connection(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca_file = tmp_path / "ca.pem"
    shutil.copy(authority.ca_file, ca_file)
    contexts = TlsContexts(TlsOptions(ca_file=ca_file))
    first = contexts.current()
    assert contexts.current() is first
    ca_file.write_text("half a fi", encoding="ascii")
    with caplog.at_level(logging.WARNING, "dlog.tls"):
        assert contexts.current() is first
    assert "stay in use" in caplog.text
    ca_file.unlink()
    assert contexts.current() is first
    other = Authority(tmp_path / "other", "another")
    shutil.copy(other.ca_file, ca_file)
    second = contexts.current()
    assert second is not first
    assert second.get_ca_certs() != first.get_ca_certs()
