"""TLS to ZooKeeper: real servers that show good and bad certificates, and want one of ours."""

from __future__ import annotations

import asyncio
import functools
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dlog.errors import AuthError, ConfigError, Timeout, Unavailable
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.secret import Secret
from dlog.testing.cluster import ZooKeeper, scratch_directory
from dlog.testing.cluster.authority import Authority, Identity
from dlog.testing.cluster.secure import zookeeper_tls
from dlog.testing.faulty_proxy import FaultyProxy
from dlog.tls import TlsOptions
from integration.bookkeeper.secure_tools import plain_bytes
from integration.conftest import MakeStore
from tests.tiers import in_full

CANARY = "canary-of-zookeeper"


class Servers:
    """ZooKeepers of one test module, each with its own certificate."""

    def __init__(self, jars: str, authority: Authority, ending: ExitStack) -> None:
        self.authority = authority
        self._jars, self._ending = jars, ending
        self.client = authority.issue("client")

    def start(self, identity: Identity, **options: Any) -> ZooKeeper:
        directory = self._ending.enter_context(scratch_directory())
        tls = zookeeper_tls(identity, self.authority.ca_file, **options)
        server = ZooKeeper(directory, self._jars, tls=tls)
        self._ending.callback(server.release)
        self._ending.callback(server.kill)
        server.start()
        return server

    @staticmethod
    def wait_until_serving(server: ZooKeeper) -> None:
        """The first handshake of a virtual machine takes seconds, so it is not a test's."""
        server.wait_until_serving()
        host, port = server.secure_hosts.split(":")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection((host, int(port)), 30) as end:
            context.wrap_socket(end).close()

    def options(self, **changes: Any) -> TlsOptions:
        return TlsOptions(**{"ca_file": self.authority.ca_file, **changes})


@pytest.fixture(scope="module")
def servers(jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as ending:
        yield Servers(jars, Authority(tmp_path_factory.mktemp("authority")), ending)


@pytest.fixture(scope="module")
def server(servers: Servers) -> ZooKeeper:
    started = servers.start(servers.authority.issue("server"))
    servers.wait_until_serving(started)
    return started


# What is wrong with a certificate, in the words of who refuses it.
BAD: dict[str, Callable[[Authority], Identity]] = {
    "mismatch": lambda by: by.issue("wrong-name", ("DNS:elsewhere", "IP:127.0.0.2")),
    "expired": lambda by: by.issue("expired", expired=True),
    "self.signed": lambda by: by.issue("self-signed", self_signed=True),
    "local issuer": lambda by: Authority(by.directory / "stranger", "another").issue("stranger"),
}


@pytest.fixture(scope="module")
def bad(servers: Servers) -> Callable[[str], ZooKeeper]:
    """The server with a certificate of which that is wrong."""

    @functools.cache
    def started(why: str) -> ZooKeeper:
        server = servers.start(BAD[why](servers.authority))
        servers.wait_until_serving(server)
        return server

    return started


async def test_everything_goes_through_tls(
    servers: Servers, server: ZooKeeper, make_store: MakeStore
) -> None:
    secure_port = int(server.secure_hosts.rpartition(":")[2])
    async with FaultyProxy(secure_port) as proxy:
        proxy.to_server.heard, proxy.to_client.heard = [], []
        auth = f"ana:{CANARY}".encode()
        store = make_store(proxy.address + "/all", tls=servers.options(), auth=auth)
        await store.create("/a/b", b"x" * 100_000)
        assert (await store.get("/a/b")).value == b"x" * 100_000
        together = [store.create(f"/a/b/{number}", b"y" * 1_000) for number in range(200)]
        await asyncio.gather(*together)
        assert len(await store.children("/a/b")) == 200
        for streams in (proxy.to_server.heard, proxy.to_client.heard):
            assert sum(map(len, streams)) > 100_000
            assert all(plain_bytes(bytes(stream)) == b"" for stream in streams)


@pytest.mark.parametrize("why", in_full(BAD, but=["mismatch", "expired"], seconds=4))
async def test_who_is_not_who_we_called_is_refused(
    servers: Servers, bad: Callable[[str], ZooKeeper], make_store: MakeStore, why: str
) -> None:
    shows = bad(why).secure_hosts
    with pytest.raises(Unavailable, match=why):
        await make_store(shows, timeout_ms=3_000, tls=servers.options()).open()
    any_name = make_store(shows, timeout_ms=3_000, tls=servers.options(unsafe_any_host_name=True))
    if why == "mismatch":
        await any_name.open()
    else:
        with pytest.raises(Unavailable, match=why):
            await any_name.open()


async def test_only_the_authority_that_was_named_counts(
    servers: Servers, server: ZooKeeper, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kazoo's own TLS would also take what the operating system trusts."""
    other = Authority(servers.authority.directory / "other", "another authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(servers.authority.ca_file))
    store = make_store(
        server.secure_hosts, timeout_ms=3_000, tls=servers.options(ca_file=other.ca_file)
    )
    with pytest.raises(Unavailable, match="local issuer"):
        await store.open()
    asked_for = TlsOptions(ca_file=other.ca_file, system_cas=True)
    await make_store(server.secure_hosts, tls=asked_for).open()


async def test_each_of_several_addresses_is_checked_by_its_own_name(
    servers: Servers, bad: Callable[[str], ZooKeeper], make_store: MakeStore
) -> None:
    by_name = servers.start(servers.authority.issue("by-name", ("DNS:localhost",)))
    await asyncio.to_thread(servers.wait_until_serving, by_name)
    port = by_name.secure_hosts.rpartition(":")[2]
    strangers = [bad("mismatch").secure_hosts, bad("expired").secure_hosts]
    for number in range(4):  # kazoo tries them in any order
        hosts = ",".join([*strangers, f"localhost:{port}"])
        store = make_store(hosts, tls=servers.options())
        await store.create(f"/several-{number}", b"")
    raw = ZooKeeperMetaStore(by_name.hosts)
    assert len([n for n in await raw.children("/") if n.startswith("several-")]) == 4
    await raw.close()
    store = make_store(f"127.0.0.1:{port}", timeout_ms=3_000, tls=servers.options())
    with pytest.raises(Unavailable, match="mismatch"):
        await store.open()


async def test_a_server_that_wants_a_certificate_gets_one(
    servers: Servers, make_store: MakeStore
) -> None:
    server = servers.start(servers.authority.issue("wanting"), wants_certificate=True)
    await asyncio.to_thread(servers.wait_until_serving, server)
    refused = make_store(server.secure_hosts, timeout_ms=3_000, tls=servers.options())
    with pytest.raises(Unavailable):
        await refused.open()
    locked = servers.authority.issue("locked", passphrase="of the key")
    for files in (
        {"cert_file": servers.client.both_file},
        {"cert_file": servers.client.cert_file, "key_file": servers.client.key_file},
        {
            "cert_file": locked.cert_file,
            "key_file": locked.key_file,
            "key_passphrase": Secret(b"of the key"),
        },
    ):
        await make_store(server.secure_hosts, tls=servers.options(**files)).open()


async def test_certificates_are_renewed_under_a_running_program(
    servers: Servers, server: ZooKeeper, make_store: MakeStore, tmp_path: Path
) -> None:
    secure_port = int(server.secure_hosts.rpartition(":")[2])
    ca_file = tmp_path / "ca.pem"
    shutil.copy(servers.authority.ca_file, ca_file)
    other = Authority(tmp_path / "other", "another authority")
    async with FaultyProxy(secure_port) as proxy:
        store = make_store(
            proxy.address,
            timeout_ms=4_000,
            session_timeout_ms=8_000,
            tls=TlsOptions(ca_file=ca_file),
        )
        await store.open()
        shutil.copy(other.ca_file, ca_file)
        proxy.cut()
        with pytest.raises(
            (Unavailable, Timeout)
        ):  # the call that was lost with the connection, or the next
            await store.get("/")
        with pytest.raises(Unavailable, match="local issuer"):
            await store.get("/")
        shutil.copy(servers.authority.ca_file, ca_file)
        await store.get("/")


async def test_a_server_that_speaks_no_tls_is_sent_none(
    servers: Servers, server: ZooKeeper, make_store: MakeStore
) -> None:
    async with FaultyProxy(server.port) as proxy:
        proxy.to_server.heard = []
        auth = f"ana:{CANARY}".encode()
        store = make_store(proxy.address, timeout_ms=3_000, tls=servers.options(), auth=auth)
        with pytest.raises(Unavailable):
            await store.open()
        assert proxy.to_server.heard
        assert all(plain_bytes(bytes(stream)) == b"" for stream in proxy.to_server.heard)


async def is_reached(store: ZooKeeperMetaStore) -> bool:
    """Once there is a connection: whether its user may read the node."""
    async with asyncio.timeout(30):
        while True:
            try:
                await store.get("/a")
            except AuthError:
                return False
            except (Unavailable, Timeout):
                continue
            else:
                return True


async def test_credentials_are_asked_for_at_each_connection(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come from where they are kept, and go nowhere if they are not there any more."""
    monkeypatch.setenv("TEST_ZK_AUTH", f"ana:{CANARY}")
    async with FaultyProxy(zookeeper.port) as proxy:
        store = make_store(
            proxy.address + place,
            timeout_ms=2_000,
            session_timeout_ms=20_000,
            auth="env:TEST_ZK_AUTH",
        )
        await store.create("/a", b"")
        assert store._home is not None
        assert CANARY not in repr(vars(store._home._client))
        monkeypatch.delenv("TEST_ZK_AUTH")
        proxy.cut()
        told = ""
        async with asyncio.timeout(30):
            while "under TEST_ZK_AUTH" not in told:  # some are lost with their connection
                with pytest.raises((Unavailable, Timeout)) as caught:
                    await store.get("/a")
                told = str(caught.value)
                assert CANARY not in told
        # Another user now, to whom the node is closed; and who made it, again.
        for user, is_let_in in (("ben", False), ("ana", True)):
            monkeypatch.setenv("TEST_ZK_AUTH", f"{user}:{CANARY}")
            proxy.cut()
            assert await is_reached(store) is is_let_in
    for given in ("env:TEST_ZK_NONE", b"nobody", b":x", b"ana:"):
        with pytest.raises(ConfigError):
            make_store(zookeeper.hosts, auth=given)
