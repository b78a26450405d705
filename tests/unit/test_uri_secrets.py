"""Secrets and TLS in what `connect` is given: by keyword, from the environment, never in a URL."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from dlog.errors import ConfigError
from dlog.options import SECRET_OPTIONS, ClientOptions
from dlog.secret import Secret
from dlog.uri import parse, resolve

CANARY = "canary-4b1d"
URL = "zk://zk1:2181/dlog"
SECURE = f"{URL}?tls=required&tls_ca=/etc/ca.pem"


@pytest.fixture(autouse=True)
def _no_secrets_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRET_OPTIONS:
        for variable in (f"DLOG_{name.upper()}", f"DLOG_{name.upper()}_FILE"):
            monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("name", SECRET_OPTIONS)
def test_no_url_has_a_secret(name: str) -> None:
    for scheme in (SECURE + "&", "file:./data?", "memory:x?"):
        with pytest.raises(ConfigError, match=f"DLOG_{name.upper()}_FILE") as caught:
            parse(f"{scheme}{name}={CANARY}")
        assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", SECRET_OPTIONS)
def test_a_secret_comes_from_where_it_was_put(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def found(**given: Any) -> bytes | None:
        secret = getattr(resolve(SECURE, given).options, name)
        return None if secret is None else secret.reveal()

    assert found() is None
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_bytes(b"of the file\n")
    monkeypatch.setenv(f"DLOG_{name.upper()}_FILE", str(path))
    assert found() == b"of the file"
    assert found(**{name: b"given"}) == b"given"
    assert found(**{name: Secret(b"given")}) == b"given"
    assert found(**{name: f"file:{path}"}) == b"of the file"
    monkeypatch.setenv(f"DLOG_{name.upper()}", CANARY)
    with pytest.raises(ConfigError, match="both"):
        found()
    monkeypatch.delenv(f"DLOG_{name.upper()}_FILE")
    assert found() == CANARY.encode()
    url = resolve(SECURE)
    assert CANARY not in f"{url} {url!r} {url.options}"
    with pytest.raises(ConfigError) as caught:
        found(**{name: CANARY})
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    path.chmod(0o644)
    monkeypatch.delenv(f"DLOG_{name.upper()}")
    monkeypatch.setenv(f"DLOG_{name.upper()}_FILE", str(path))
    with pytest.raises(ConfigError, match="chmod"):
        found()


def test_only_clusters_have_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRET_OPTIONS:
        monkeypatch.setenv(f"DLOG_{name.upper()}", CANARY)
        with pytest.raises(ConfigError, match="only clusters"):
            resolve("memory:x", {name: b"x"})
    assert resolve("memory:x").options == ClientOptions()
    # The passphrase of a key waits for a URL with TLS; the others are the cluster's.
    plain = resolve(URL).options
    assert plain.tls_key_passphrase is None
    assert plain.password is not None


def test_tls_is_asked_for_in_the_url_and_shown_there() -> None:
    url = parse(f"{SECURE}&tls_cert=/c.pem&tls_key=/k.pem&ledgers=/l")
    tls = url.options.tls_options()
    assert tls is not None
    assert (tls.ca_file, tls.cert_file, tls.key_file) == ("/etc/ca.pem", "/c.pem", "/k.pem")
    assert not tls.unsafe_any_host_name
    assert parse(str(url)) == url
    system = parse(f"{URL}?tls=required&tls_system_cas=true")
    assert parse(str(system)) == system
    assert parse(URL).options.tls_options() is None


@pytest.mark.parametrize(
    "parameters",
    [
        "tls=maybe",
        "tls=required",  # and whom to trust?
        "tls_ca=/ca.pem",  # and nothing would be encrypted
        "tls=off&tls_cert=/c.pem",
        "tls=required&tls_system_cas=yes",
        "tls=required&tls_ca=/ca.pem&tls_key=/k.pem",
        "tls=required&tls_ca=/ca.pem&tls_unsafe_any_host_name=true",
    ],
)
def test_parameters_that_make_no_sense(parameters: str) -> None:
    with pytest.raises(ConfigError):
        parse(f"{URL}?{parameters}")


def test_secrets_are_secrets() -> None:
    for name in SECRET_OPTIONS:
        with pytest.raises(ConfigError, match="is a secret"):
            ClientOptions(**{"tls": "required", "tls_ca": "x", name: CANARY})
