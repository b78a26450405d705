"""Openings that cannot succeed beside a writer that works, on real drivers and simulated bookies in
virtual time: what can be known before the claim is looked at before it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import dlog
from dlog import LogOptions
from dlog.client import Client
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.testing.sim import Simulation, simulate
from dlog.testing.sim.bookie import Mode
from dlog.writer.writer import Writer

ELSEWHERE = "/ledgerz"


async def _begin(sim: Simulation) -> Writer:
    writer = await sim.open_writer("orders", owner="works", create=LogOptions())
    await writer.append(b"one")
    return writer


async def _still_works(sim: Simulation, writer: Writer) -> None:
    """Also over a rotation, which is where a claim by another ends it."""
    await writer.append(b"two")
    await writer.rotate()
    await writer.append(b"three")
    await writer.close()


async def _client_with(sim: Simulation, **options: Any) -> Client:
    """One whose ledger store was given these options."""
    client = sim.connect()
    stores = await client._stores(True)
    await stores.ledgers.close()
    given = {"password": b"secret", "clock": stores.clock, "chance": stores.chance} | options
    ledgers = BookKeeperLedgerStore(stores.meta, **given)
    client._opened = dataclasses.replace(stores, ledgers=ledgers)
    return client


async def _register_elsewhere(sim: Simulation) -> None:
    """The same bookies below another root, as if of another cluster."""
    meta = (await sim.connect()._stores(True)).meta
    for server in sim.cluster.servers.values():
        found = await meta.get(f"/ledgers/available/{server.bookie_id}")
        await meta.create(f"{ELSEWHERE}/available/{server.bookie_id}", found.value)


async def _refused(client: Client, how: Any, kind: type[BaseException]) -> Any:
    with pytest.raises(kind) as caught:
        await _open(client, how)
    return caught.value


async def _open(client: Client, how: Any) -> None:
    if how != "standby":
        await client.open_writer("orders", takeover=how)
        return
    async with client.open_standby("orders") as standby:
        await standby.take_over()


WAYS = ("always", "wait", "standby")


@simulate(histories=3, troubles="none", bookies=3)
async def test_where_no_ledger_can_be_born_nobody_is_ended_for_it(sim: Simulation) -> None:
    """Of three bookies one is dead: a writer goes on with two, and a birth needs all three."""
    writer = await _begin(sim)
    server = sim.cluster.servers["b0"]
    sim.cluster.kill(server)
    for seconds in (0.0, 5.0):  # first it is said to be there, then it is not
        await sim.pass_time(seconds)
        for how in ("always", "standby"):
            error = await _refused(sim.connect(), how, dlog.DlogError)
            assert error.retry is not dlog.Retry.NEVER, error
            await writer.append(b"beside")
    sim.cluster.start(server)
    await _still_works(sim, writer)
    later = await sim.open_writer("orders")
    await later.append(b"four")


@simulate(histories=3, troubles="none", bookies=3)
async def test_beside_a_bookie_that_is_frozen_nobody_is_ended(sim: Simulation) -> None:
    """It is registered, takes connections, and answers nothing."""
    writer = await _begin(sim)
    sim.cluster.servers["b1"].stop()
    opening = sim.connect().open_writer("orders", open_timeout_ms=3_000)
    with pytest.raises(dlog.DlogError):
        await opening
    await writer.append(b"beside")
    sim.cluster.servers["b1"].go_on()
    await _still_works(sim, writer)


@simulate(histories=3, troubles="none")
async def test_where_bookies_take_no_new_ledger_nobody_is_ended(sim: Simulation) -> None:
    writer = await _begin(sim)
    for server in sim.cluster.servers.values():
        sim.cluster.turn(server, Mode.READ_ONLY)
    await sim.pass_time(1.0)
    await _refused(sim.connect(), "always", dlog.Unavailable)
    for server in sim.cluster.servers.values():
        sim.cluster.turn(server, Mode.WRITABLE)
    await sim.pass_time(11.0)
    await _still_works(sim, writer)


@simulate(histories=3, troubles="none")
async def test_another_password_is_refused_before_anybody_is_ended(sim: Simulation) -> None:
    writer = await _begin(sim)
    for how in WAYS:
        client = await _client_with(sim, password=b"another")
        error = await _refused(client, how, dlog.AuthError)
        assert "has another password" in str(error)
    await _still_works(sim, writer)


@simulate(histories=3, troubles="none")
async def test_another_digest_is_refused_before_anybody_is_ended(sim: Simulation) -> None:
    writer = await _begin(sim)
    for how in WAYS:
        client = await _client_with(sim, digest="hmac")
        await _refused(client, how, dlog.AuthError)
    await _still_works(sim, writer)


@simulate(histories=3, troubles="none")
async def test_a_wrong_root_of_ledgers_is_told_as_what_it_is(sim: Simulation) -> None:
    """Whether nothing is there, or a cluster that keeps none of the log's ledgers."""
    writer = await _begin(sim)
    for is_cluster in (False, True):
        if is_cluster:
            await _register_elsewhere(sim)
        for how in WAYS:
            client = await _client_with(sim, ledgers_root=ELSEWHERE)
            error = await _refused(client, how, dlog.ConfigError)
            assert f"ledgers='{ELSEWHERE}'" in str(error), error
    await _still_works(sim, writer)


@simulate(histories=3, troubles="none")
async def test_the_root_of_another_cluster_is_told_by_whose_ledgers_it_has(sim: Simulation) -> None:
    """The ids of its ledgers are the same, and they belong to another log."""
    writer = await _begin(sim)
    await _register_elsewhere(sim)
    other = await _client_with(sim, ledgers_root=ELSEWHERE)
    async with other.open_writer("another") as log:
        await log.append(b"elsewhere")
    for how in WAYS:
        client = await _client_with(sim, ledgers_root=ELSEWHERE)
        error = await _refused(client, how, dlog.ConfigError)
        assert f"ledgers='{ELSEWHERE}'" in str(error), error
    await _still_works(sim, writer)


@simulate(histories=3, troubles="none")
async def test_a_log_that_was_left_sealed_is_not_gone_on_with_elsewhere(sim: Simulation) -> None:
    """Its next ledger would be where no other client looks for it."""
    writer = await _begin(sim)
    await writer.close()
    await _register_elsewhere(sim)
    client = await _client_with(sim, ledgers_root=ELSEWHERE)
    await _refused(client, "always", dlog.ConfigError)
    await _still_works(sim, await sim.open_writer("orders"))


@simulate(histories=3, troubles="none")
async def test_one_ledger_that_is_missing_among_others_is_no_wrong_option(sim: Simulation) -> None:
    writer = await _begin(sim)
    await writer.rotate()
    await writer.append(b"two")
    await writer.rotate()
    client = sim.connect()
    described = await client.admin.describe("orders")
    stores = await client._stores(True)
    await stores.ledgers.delete(described.segments[-1].ledger_id)
    error = await _refused(sim.connect(), "always", dlog.Corrupt)
    assert "not in the ledger store at ledgers='/ledgers'" in str(error)
