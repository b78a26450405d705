"""TLS to stock bookies: what travels, and who is refused. One cluster offers TLS and wants a
client's certificate; whose certificate the bookies show is changed under them."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dlog.errors import ConfigError, DlogError, Unavailable
from dlog.ledger.bookkeeper.pool import Kind
from dlog.secret import Secret
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.cluster.authority import Authority, Identity
from dlog.testing.cluster.secure import bookie_tls
from dlog.testing.conformance.ledger_tools import read_all
from dlog.testing.conformance.meta_tools import until
from dlog.tls import TlsOptions
from dlog.wire.bookie_digest import mac_key, master_key
from dlog.wire.bookie_v2 import pack_read
from integration.bookkeeper.secure_tools import (
    SPEC,
    START_TLS,
    MakeLedgers,
    a_ledger,
    behind_proxies,
    maker,
    plain_bytes,
    read_and_recover,
)

ENTRIES = [b"first", *(b"%d" % number * 1000 for number in range(50)), bytes(1 << 20)]


@dataclass
class Secured:
    cluster: Cluster
    authority: Authority
    shown: Identity  # what the bookies show
    client: Identity

    def options(self, **changes: object) -> TlsOptions:
        given: dict[str, object] = {
            "ca_file": self.authority.ca_file,
            "cert_file": self.client.cert_file,
            "key_file": self.client.key_file,
        }
        return TlsOptions(**{**given, **changes})  # type: ignore[arg-type]

    async def show(self, identity: Identity) -> None:
        """Until each bookie's next handshake is with this certificate."""
        shutil.copy(identity.key_file, self.shown.key_file)
        shutil.copy(identity.cert_file, self.shown.cert_file)
        wanted = ssl.PEM_cert_to_DER_cert(identity.cert_file.read_text("ascii"))

        async def is_shown() -> bool:
            found = [await asyncio.to_thread(self._shown_by, b) for b in self.cluster.bookies]
            return found == [wanted] * len(found)

        await until(is_shown, "the bookies show it")

    def _shown_by(self, bookie: Bookie) -> bytes | None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with socket.create_connection(("127.0.0.1", bookie.port), 5) as end:
                end.sendall(START_TLS)
                end.recv(1000)
                with context.wrap_socket(end) as secure:
                    return secure.getpeercert(binary_form=True)
        except OSError:
            return None  # in the middle of two files that do not fit each other


@pytest.fixture(scope="module")
def secured(jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    shown = authority.issue("shown")
    settings = bookie_tls(shown, authority.ca_file, wants_certificate=True)
    settings["tlsCertFilesRefreshDurationSeconds"] = "1"
    with Cluster(bookies=3, settings=settings) as cluster:
        yield Secured(cluster, authority, shown, authority.issue("client"))


@pytest.fixture
async def make(secured: Secured) -> AsyncIterator[MakeLedgers]:
    async with maker(secured.cluster) as make:
        yield make


async def test_nothing_but_the_start_request_goes_out_in_the_clear(
    secured: Secured, make: MakeLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written, published, followed and recovered: on links of every kind, and looked at from
    outside."""
    async with behind_proxies(secured.cluster.bookies, monkeypatch) as (proxies, lead):
        writer, other = (make(tls=secured.options(), password=b"canary-1") for _ in range(2))
        lead(writer)
        lead(other)
        ledger_id = await a_ledger(writer, ENTRIES)
        assert await read_all(await other.open(ledger_id), len(ENTRIES) - 1) == ENTRIES
        await read_and_recover(other, writer)
        kinds = {kind for store in (writer, other) for _, kind in store._links._links}
        assert kinds == set(Kind)
        streams = [bytes(each) for proxy in proxies.values() for each in proxy.to_server.heard]
        answers = [bytes(each) for proxy in proxies.values() for each in proxy.to_client.heard]
        assert len(streams) >= 9
        for stream in streams:
            assert stream.startswith(START_TLS)
            assert plain_bytes(stream[len(START_TLS) :]) == b""
        assert len({plain_bytes(stream) for stream in answers}) == 1, "all agree, and say no more"
        assert any(len(stream) > 1 << 20 for stream in streams), "the proxies were on the way"


async def test_without_tls_the_same_look_sees_everything(
    secured: Secured, make: MakeLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master key, too, which opens the ledger to whoever listens; but never the key of the
    HMAC, nor the password that both come from."""
    async with behind_proxies(secured.cluster.bookies, monkeypatch) as (proxies, lead):
        store = make(password=b"canary-of-ledgers")
        lead(store)
        await a_ledger(store, [b"canary-2", b"1"], spec=replace(SPEC, digest="hmac"))
        await read_and_recover(store, store)
        streams = [bytes(each) for proxy in proxies.values() for each in proxy.to_server.heard]
        assert any(b"canary-2" in plain_bytes(stream) for stream in streams)
        together = b"".join(streams)
        assert master_key(b"canary-of-ledgers") in together
        assert mac_key(b"canary-of-ledgers") not in together
        assert b"canary-of-ledgers" not in together


async def test_a_bookie_that_offers_no_tls_is_sent_nothing(
    cluster: Cluster, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And another try is no other: it does not go without."""
    async with (
        maker(cluster) as make,
        behind_proxies(cluster.bookies, monkeypatch) as (proxies, lead),
    ):
        store = make(tls=secured.options(), password=b"canary-3")
        lead(store)
        await store._ready()
        bookie_id = cluster.bookies[0].bookie_id
        for _ in range(2):
            for connect in (store._links.data, store._links.control, store._links.recovery):
                with pytest.raises(Unavailable, match="offers no TLS"):
                    await connect(bookie_id)
                store._links._troubles.clear()  # or the next try would wait
        with pytest.raises(DlogError):
            await a_ledger(store, [b"canary-3"])
        streams = [bytes(each) for proxy in proxies.values() for each in proxy.to_server.heard]
        assert len(streams) >= 6
        assert set(streams) == {START_TLS}


async def refused(secured: Secured, make: MakeLedgers, tls: TlsOptions, why: str) -> None:
    """By links of every kind, and nothing but a handshake was sent."""
    with pytest.MonkeyPatch.context() as patch:
        async with behind_proxies(secured.cluster.bookies, patch) as (proxies, lead):
            for bookie in secured.cluster.bookies:
                store = make(tls=tls)
                lead(store)
                await store._ready()
                for connect in (store._links.data, store._links.control, store._links.recovery):
                    with pytest.raises(Unavailable, match=why):
                        await connect(bookie.bookie_id)
                assert not store._links._open
            streams = [bytes(each) for proxy in proxies.values() for each in proxy.to_server.heard]
            assert len(streams) >= len(secured.cluster.bookies)
            for stream in streams:
                assert stream.startswith(START_TLS)
                assert plain_bytes(stream[len(START_TLS) :]) == b""


async def test_who_is_not_who_we_called_is_refused(secured: Secured, make: MakeLedgers) -> None:
    stranger = Authority(secured.authority.directory / "stranger", "another authority")
    bad = [
        (secured.authority.issue("wrong-name", ("DNS:elsewhere", "IP:127.0.0.2")), "mismatch"),
        (secured.authority.issue("expired", expired=True), "expired"),
        (secured.authority.issue("self-signed", self_signed=True), "self.signed"),
        (stranger.issue("stranger"), "unable to get local issuer"),
    ]
    good = secured.authority.issue("good")
    try:
        for identity, why in bad:
            await secured.show(identity)
            await refused(secured, make, secured.options(), why)
        await secured.show(bad[0][0])
        unchecked = make(tls=secured.options(unsafe_any_host_name=True))
        await a_ledger(unchecked, ENTRIES[:3])
    finally:
        await secured.show(good)
    await a_ledger(make(tls=secured.options()), ENTRIES[:3])


async def test_only_the_authority_that_was_named_counts(
    secured: Secured, make: MakeLedgers
) -> None:
    other = Authority(secured.authority.directory / "other", "another authority")
    await refused(secured, make, secured.options(ca_file=other.ca_file), "local issuer")
    system = secured.options(ca_file=None, system_cas=True)
    await refused(secured, make, system, "local issuer")


async def test_a_bookie_that_wants_a_certificate_gets_one(
    secured: Secured, make: MakeLedgers
) -> None:
    bookie_id = secured.cluster.bookies[0].bookie_id
    for cert in (None, Authority(secured.authority.directory / "third").issue("third")):
        files = {
            "cert_file": None if cert is None else cert.cert_file,
            "key_file": None if cert is None else cert.key_file,
        }
        store = make(tls=secured.options(**files))
        await store._ready()
        # Under TLS 1.3 the client is done before the bookie has looked at its certificate.
        link = await store._links.control(bookie_id)
        async with asyncio.timeout(10):
            await link.wait_gone()
        assert not link.has_answered
        with pytest.raises(Unavailable, match="client's certificate"):
            await store._links.control(bookie_id)
    locked = secured.authority.issue("locked", passphrase="of the key")
    with pytest.raises(ConfigError, match="of no use"):
        make(tls=secured.options(cert_file=locked.cert_file, key_file=locked.key_file))
    options = secured.options(
        cert_file=locked.cert_file, key_file=locked.key_file, key_passphrase=Secret(b"of the key")
    )
    await a_ledger(make(tls=options), ENTRIES[:3])


async def test_certificates_are_renewed_under_a_running_program(
    secured: Secured, make: MakeLedgers, tmp_path: Path
) -> None:
    """The authority and our own certificate change; the next connection is made with the new ones,
    and half a change with the old."""
    ca_file, both_file = tmp_path / "ca.pem", tmp_path / "client.pem"
    shutil.copy(secured.authority.ca_file, ca_file)
    shutil.copy(secured.client.both_file, both_file)
    tls = TlsOptions(ca_file=ca_file, cert_file=both_file)
    store = make(tls=tls)
    await a_ledger(store, ENTRIES[:3])
    bookie_id = secured.cluster.bookies[0].bookie_id

    async def connected_anew() -> None:
        link = await store._links.recovery(bookie_id)
        reply = await link.read(1 << 50, 0, timeout_ms=5_000)
        assert reply.ledger_id == 1 << 50
        link.take_down(link._core.end)
        await link.wait_gone()

    await connected_anew()
    both_file.write_text("half a fi", encoding="ascii")
    await connected_anew()
    shutil.copy(secured.authority.issue("renewed").both_file, both_file)
    await connected_anew()
    other = Authority(tmp_path / "other")
    shutil.copy(other.ca_file, ca_file)
    with pytest.raises(Unavailable, match="local issuer"):
        await connected_anew()
    shutil.copy(secured.authority.ca_file, ca_file)

    async def is_connected_anew() -> bool:
        try:
            await connected_anew()
        except Unavailable:  # left alone for a moment
            return False
        return True

    await until(is_connected_anew, "connected")


async def test_tls_of_each_version_that_is_safe_and_of_no_other(
    secured: Secured, make: MakeLedgers
) -> None:
    for version, is_spoken in (("TLSv1.1", False), ("TLSv1.2", True)):
        bookie = secured.cluster.add_bookie(settings={"tlsEnabledProtocols": version})
        bookie.start()
        try:
            await asyncio.to_thread(bookie.wait_until_serving)
            store = make(tls=secured.options())
            await store._ready()
            if is_spoken:
                link = await store._links.control(bookie.bookie_id)
                spoken = link._transport.get_extra_info("ssl_object").version()
                assert spoken == version
            else:
                with pytest.raises(Unavailable, match=r"TLS|hung up"):
                    await store._links.control(bookie.bookie_id)
        finally:
            bookie.kill()
            secured.cluster.bookies.remove(bookie)


async def test_both_protocols_are_spoken_under_tls(secured: Secured, make: MakeLedgers) -> None:
    """What the design of the links rests on: a stock bookie tells the protocols apart per frame,
    under TLS as without."""
    store = make(tls=secured.options())
    await store._ready()
    link = await store._links.data(secured.cluster.bookies[0].bookie_id)
    reply = await link.read(1 << 50, 0, timeout_ms=5_000)
    assert (reply.ledger_id, reply.entry_id) == (1 << 50, 0)
    assert pack_read(1 << 50, 0)[4] == 2, "the binary protocol"
