"""Who we are, to stock bookies that want to know (SASL, DIGEST-MD5), under TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace

import pytest

from dlog.errors import ConfigError, Unavailable
from dlog.ledger.bookkeeper.auth import DigestMd5
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.secret import Secret
from dlog.testing.cluster import Cluster
from dlog.testing.cluster.authority import Authority
from dlog.testing.cluster.secure import SASL_SETTINGS, bookie_tls, bookie_users
from dlog.testing.conformance.ledger_tools import read_all
from dlog.tls import TlsOptions
from dlog.wire.bookie_codes import Answer
from integration.bookkeeper.secure_tools import (
    MakeLedgers,
    a_ledger,
    behind_proxies,
    maker,
    read_and_recover,
)

USER, PASSWORD = "bookkeeper-tests", "canary-of-the-user"
WHO = DigestMd5(USER, Secret(PASSWORD.encode()))
ENTRIES = [b"first", *(b"%d" % number * 1000 for number in range(50))]


@dataclass
class Secured:
    cluster: Cluster
    tls: TlsOptions


@pytest.fixture(scope="module")
def secured(jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("authority")
    authority = Authority(directory)
    settings = {**bookie_tls(authority.issue("bookie"), authority.ca_file), **SASL_SETTINGS}
    users = bookie_users({USER: PASSWORD, "stranger": PASSWORD}, directory / "jaas.conf")
    with Cluster(bookies=3, settings=settings, properties=users) as cluster:
        yield Secured(cluster, TlsOptions(ca_file=authority.ca_file))


@pytest.fixture
async def make(secured: Secured) -> AsyncIterator[MakeLedgers]:
    async with maker(secured.cluster) as make:
        yield make


async def test_whom_bookies_know_is_let_in_on_links_of_every_kind(
    secured: Secured, make: MakeLedgers
) -> None:
    writer, other = (make(tls=secured.tls, auth=WHO, password=b"x") for _ in range(2))
    ledger_id = await a_ledger(writer, ENTRIES)
    assert await read_all(await other.open(ledger_id), len(ENTRIES) - 1) == ENTRIES
    await read_and_recover(other, writer)


async def is_refused(secured: Secured, store: BookKeeperLedgerStore, why: str) -> None:
    await store._ready()
    for connect in (store._links.data, store._links.control, store._links.recovery):
        bookie_id = secured.cluster.bookies[0].bookie_id
        with pytest.raises(Unavailable, match=why) as caught:
            await connect(bookie_id)
        assert PASSWORD not in str(caught.value)


async def test_whom_bookies_do_not_know_stays_out(secured: Secured, make: MakeLedgers) -> None:
    for who in (
        replace(WHO, password=Secret(b"guessed")),
        replace(WHO, user="bookkeeper-nobody"),
        replace(WHO, user="stranger"),  # known, and not let in: it has not the product's name
    ):
        await is_refused(
            secured,
            make(tls=secured.tls, auth=who, connect_timeout_ms=1_500),
            "may know no such user",
        )


async def test_nobody_is_no_user(secured: Secured, make: MakeLedgers) -> None:
    """Without a name the connection is made, and whatever goes over it is refused: stock bookies
    complain of that already when TLS has begun, in words that the binary protocol has not."""
    store = make(tls=secured.tls)
    await store._ready()
    link = await store._links.data(secured.cluster.bookies[0].bookie_id)
    reply = await link.read(1 << 50, 0, timeout_ms=5_000)
    assert reply.answer in (Answer.UNAUTHORIZED, Answer.DISCONNECTED)


async def test_without_tls_a_name_goes_out_only_if_that_is_said(
    secured: Secured, make: MakeLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="use TLS"):
        make(auth=WHO)
    async with behind_proxies(secured.cluster.bookies, monkeypatch) as (proxies, lead):
        store = make(auth=replace(WHO, unsafe_without_tls=True))
        lead(store)
        await a_ledger(store, ENTRIES)
        streams = b"".join(b"".join(proxy.to_server.heard or []) for proxy in proxies.values())
        assert USER.encode() in streams
        assert PASSWORD.encode() not in streams


async def test_a_cluster_that_wants_no_names_is_not_the_one(
    cluster: Cluster,
) -> None:
    """A bookie that lets everybody in may be somebody else's."""
    async with maker(cluster) as make:
        store = make(auth=replace(WHO, unsafe_without_tls=True))
        await store._ready()
        with pytest.raises(Unavailable, match="wants no authentication"):
            await store._links.data(cluster.bookies[0].bookie_id)
