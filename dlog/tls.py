"""TLS as users ask for it (`TlsOptions`), and what a connection is made with (`TlsContexts`).

One set of rules for bookies and for ZooKeeper: a server proves itself with a certificate for the
name it was called by, signed by an authority that was named here; the authorities of the operating
system count only where that is asked for; nothing below TLS 1.2. Files that change are read again
for the next connection, so that certificates are renewed under a running program. Where the new
files cannot be used (half written, a key that does not fit) the ones before go on, loudly.
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass

from dlog.errors import ConfigError
from dlog.secret import Secret

_log = logging.getLogger("dlog.tls")

# Of each file: it is another one, or another text.
_Signature = tuple[tuple[int, int, int, int] | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    ca_file: str | os.PathLike[str] | None = None
    """PEM file of the authorities that may sign a server's certificate."""
    system_cas: bool = False
    """Those that the operating system trusts may, too."""
    cert_file: str | os.PathLike[str] | None = None
    """PEM file of our own certificate, with what is between it and its authority, for servers that
    ask who we are."""
    key_file: str | os.PathLike[str] | None = None
    """PEM file of the key to it, when it is not in `cert_file`."""
    key_passphrase: Secret | None = None
    unsafe_any_host_name: bool = False
    """Take a certificate of any name. Whoever has one of that authority can play any server."""

    def __post_init__(self) -> None:
        if self.ca_file is None and self.system_cas is not True:
            raise ConfigError(
                "TLS needs to know whom to trust: name the authority's file (ca_file), or trust "
                "those of the operating system (system_cas=True)"
            )
        if self.key_file is not None and self.cert_file is None:
            raise ConfigError("a key (key_file) belongs to a certificate (cert_file)")
        if self.key_passphrase is not None and not isinstance(self.key_passphrase, Secret):
            raise ConfigError("a passphrase is a Secret")

    @property
    def files(self) -> tuple[str, ...]:
        given = (self.ca_file, self.cert_file, self.key_file)
        return tuple(os.fspath(path) for path in given if path is not None)


class TlsContexts:
    """The context for the next connection. A mistake in the files is a `ConfigError` at once."""

    def __init__(self, options: TlsOptions) -> None:
        self.options = options
        self._signature = _signature_of(options.files)
        self._context = _new_context(options)

    def current(self) -> ssl.SSLContext:
        signature = _signature_of(self.options.files)
        if signature != self._signature:
            try:
                self._context = _new_context(self.options)
            except ConfigError as error:
                _log.warning("the certificates that were read before stay in use: %s", error)
            else:
                _log.info("certificates were read anew: %s", ", ".join(self.options.files))
                self._signature = signature
        return self._context


def _new_context(options: TlsOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # wants a certificate, and checks its name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.unsafe_any_host_name:
        context.check_hostname = False
    if options.system_cas:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    at = options.ca_file
    try:
        if options.ca_file is not None:
            context.load_verify_locations(cafile=options.ca_file)
        at = options.cert_file
        if options.cert_file is not None:
            secret = options.key_passphrase
            context.load_cert_chain(
                options.cert_file,
                options.key_file,
                # Without an answer OpenSSL would ask whoever sits at the terminal.
                password=lambda: b"" if secret is None else secret.reveal(),
            )
    except OSError as error:  # also of `ssl`
        reason = getattr(error, "reason", None) or error.strerror
        raise ConfigError(
            f"certificate or key of no use in {os.fspath(at or '')}: {reason}"
        ) from None
    return context


def _signature_of(paths: tuple[str, ...]) -> _Signature:
    return tuple(map(_signature_of_one, paths))


def _signature_of_one(path: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
