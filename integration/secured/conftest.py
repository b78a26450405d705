"""The cluster, once for all modules here, and clients of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl_credential

from dlog.aio import Client, connect
from dlog.testing.cluster import Cluster, scratch_directory
from dlog.testing.cluster.authority import Authority
from dlog.testing.cluster.secure import SASL_SETTINGS, bookie_tls, bookie_users, zookeeper_tls
from integration.secured.tools import BOOKIE_PASSWORD, BOOKIE_USER, PASSPHRASE, SECRETS, Secured

GC_MS = 1_000
SUPER_USER = "super:of all nodes"


@pytest.fixture(scope="package")
def secured(jars: str) -> Iterator[Secured]:
    # Not below pytest's own directories: those are kept when a test fails, and in what is kept the
    # secrets of tests are looked for.
    with scratch_directory() as directory:
        authority = Authority(directory / "authority")
        ca_file = authority.ca_file
        us = authority.issue("client", passphrase=PASSPHRASE)
        settings = {
            **bookie_tls(authority.issue("bookie"), ca_file, wants_certificate=True),
            **SASL_SETTINGS,
            "gcWaitTime": str(GC_MS),
        }
        users = bookie_users({BOOKIE_USER: BOOKIE_PASSWORD}, directory / "jaas.conf")
        tls = {
            **zookeeper_tls(authority.issue("zookeeper"), ca_file, wants_certificate=True),
            "DigestAuthenticationProvider.superDigest": make_digest_acl_credential(
                *SUPER_USER.split(":")
            ),
        }
        with Cluster(bookies=4, settings=settings, properties=users, zookeeper_tls=tls) as cluster:
            files = f"tls_ca={ca_file}&tls_cert={us.cert_file}&tls_key={us.key_file}"
            yield Secured(cluster, authority, cluster.zookeeper.secure_hosts, files)


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
async def client(secured: Secured, secrets: None) -> AsyncIterator[Client]:
    async with connect(secured.url) as client:
        yield client


@pytest.fixture
def raw(secured: Secured) -> Iterator[KazooClient]:
    """A client of ZooKeeper's plain port, as its super user: it may do everything, whose nodes they
    may be. (kazoo writes credentials to its log.)"""
    logger = logging.getLogger("tests.silent")
    logger.setLevel(logging.WARNING)
    zk = KazooClient(secured.cluster.zookeeper.hosts, logger=logger)
    zk.start()
    zk.add_auth("digest", SUPER_USER)
    yield zk
    zk.stop()
    zk.close()
