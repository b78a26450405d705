"""What stock servers are told so that they want TLS, certificates of clients, and names: settings
and files, made of an `Authority`'s certificates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dlog.errors import ConfigError
from dlog.testing.cluster.authority import Identity


def bookie_tls(
    identity: Identity, ca_file: Path, *, wants_certificate: bool = False
) -> dict[str, str]:
    """A bookie offers TLS and goes on to serve those who do not ask for it."""
    return {
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(identity.key_file),
        "tlsCertificatePath": str(identity.cert_file),
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": str(ca_file),
        "tlsClientAuthentication": str(wants_certificate).lower(),
    }


def zookeeper_tls(
    identity: Identity, ca_file: Path, *, wants_certificate: bool = False
) -> dict[str, str]:
    """A second port, behind TLS; the first stays for bookies and for questions."""
    return {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(identity.both_file),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(ca_file),
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need" if wants_certificate else "none",
    }


SASL_SETTINGS: Mapping[str, str] = {
    "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
}


def bookie_users(users: Mapping[str, str], at: Path) -> tuple[str, ...]:
    """Writes the JAAS file of bookies that want DIGEST-MD5 (with `SASL_SETTINGS`); the properties
    of the virtual machine that name it. Names and passwords have no quotes."""
    if any(char in word for pair in users.items() for word in pair for char in '"\\\n'):
        raise ConfigError("a name or password has a quote, a backslash or a line break")
    lines = "".join(f'    user_{user}="{password}"\n' for user, password in users.items())
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    at.touch(0o600)
    at.write_text(f"Bookie {{\n  {module} required\n{lines}  ;\n}};\n", encoding="utf-8")
    return (f"java.security.auth.login.config={at}",)
