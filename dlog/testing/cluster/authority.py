"""A certificate authority for tests, made with the `openssl` program: good certificates, and each
kind of bad one. Everything is PEM below one directory, which only its owner may read."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dlog.errors import Unavailable

LOOPBACK_NAMES = ("IP:127.0.0.1", "DNS:localhost")
OPENSSL_TIMEOUT_S = 30.0

_CONFIG = """[ca]
default_ca = here
[here]
database = {directory}/index.txt
new_certs_dir = {directory}
serial = {directory}/serial
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
[req]
distinguished_name = none
prompt = no
[none]
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, each in a file of its own, and both in a third."""

    cert_file: Path
    key_file: Path
    both_file: Path


class Authority:
    def __init__(self, directory: Path, name: str = "a test authority") -> None:
        self.directory = directory
        self.name = name
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        (directory / "index.txt").touch()
        (directory / "serial").write_text("01\n", encoding="ascii")
        self._config = directory / "openssl.cnf"
        self._config.write_text(_CONFIG.format(directory=directory), encoding="utf-8")
        self.ca_file = directory / "ca.pem"
        self._key = directory / "ca.key"
        self._new_key(self._key)
        self._self_sign(self._key, self.ca_file, name, "basicConstraints=critical,CA:TRUE")

    def issue(
        self,
        name: str,
        names: tuple[str, ...] = LOOPBACK_NAMES,
        *,
        expired: bool = False,
        self_signed: bool = False,
        passphrase: str | None = None,
    ) -> Identity:
        """`names` are those that the certificate is good for, as `IP:127.0.0.1` or `DNS:b1`."""
        cert, key, both = (self.directory / f"{name}.{kind}" for kind in ("pem", "key", "both"))
        self._new_key(key)
        alternatives = f"subjectAltName={','.join(names)}"
        if self_signed:
            self._self_sign(key, cert, name, alternatives)
        else:
            self._sign(key, cert, name, alternatives, expired=expired)
        both.touch(0o600)
        both.write_text(key.read_text("ascii") + cert.read_text("ascii"), encoding="ascii")
        if passphrase is not None:
            locked = self.directory / f"{name}.locked"
            _openssl(
                *("pkcs8", "-topk8", "-in", key, "-out", locked, "-passout", "stdin"),
                said=passphrase,
            )
            key = locked
        return Identity(cert, key, both)

    def _new_key(self, at: Path) -> None:
        at.touch(0o600)
        kind = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
        _openssl("genpkey", *kind, "-out", at)

    def _self_sign(self, key: Path, at: Path, name: str, extension: str) -> None:
        _openssl(
            *("req", "-x509", "-config", self._config, "-key", key, "-out", at),
            *("-days", "30", "-subj", f"/CN={name}", "-addext", extension),
        )

    def _sign(self, key: Path, cert: Path, name: str, extension: str, *, expired: bool) -> None:
        request, extensions = self.directory / f"{name}.csr", self.directory / f"{name}.ext"
        extensions.write_text(f"[here]\n{extension}\n", encoding="utf-8")
        _openssl(
            *("req", "-new", "-config", self._config, "-key", key, "-out", request),
            *("-subj", f"/CN={name}"),
        )
        long_ago = ("-startdate", "20200101000000Z", "-enddate", "20200201000000Z")
        _openssl(
            *("ca", "-batch", "-notext", "-config", self._config, "-in", request, "-out", cert),
            *("-cert", self.ca_file, "-keyfile", self._key, "-extfile", extensions),
            *("-extensions", "here", *(long_ago if expired else ("-days", "30"))),
        )


def _openssl(*words: str | Path, said: str = "") -> None:
    program = shutil.which("openssl")
    if program is None:
        raise Unavailable(
            "no openssl on PATH (Debian, Ubuntu: apt-get install openssl)", missing=["openssl"]
        )
    done = subprocess.run(
        [program, *words],
        input=said,
        capture_output=True,
        text=True,
        timeout=OPENSSL_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise Unavailable(
            f"openssl {words[0]} failed: {done.stderr.strip()[-500:]}", missing=["openssl"]
        )
