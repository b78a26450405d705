"""Histories of one ledger on simulated bookies: an appender in bad weather, then heal, then all
must come right."""

from __future__ import annotations

import dataclasses
from collections import Counter

from dlog.ledger.bookkeeper.core.appender import AppenderCore
from dlog.wire.ledger_metadata import LedgerState
from tests.sim.bookies import (
    HEAL_MS,
    BookieWorld,
    SimBookie,
    SimRecoverer,
    new_bookie_world,
)


def run_bookie_history(seed: int, *, noted: bool = False, **weather: object) -> BookieWorld:
    world = new_bookie_world(seed, noted=noted, **weather)
    try:
        play(world)
    except Exception as error:
        # The weather and the seed are what it takes to see it again.
        error.add_note(f"seed {seed}: {world.sky}")
        if world.notes is not None:
            error.add_note("\n".join(world.notes))
        raise
    return world


def run_bookie_histories(count: int, *, first: int = 0, **weather: object) -> Counter[str]:
    """How they ended."""
    ends: Counter[str] = Counter()
    for seed in range(first, first + count):
        ends[end_of(run_bookie_history(seed, **weather))] += 1
    return ends


def end_of(world: BookieWorld) -> str:
    appender = world.appender
    if appender.closed is not None:
        return "closed"
    if appender.close_error is not None:
        return "close refused"
    failure = appender.core.failure
    return "open" if failure is None else type(failure).__name__


def play(world: BookieWorld) -> None:
    appender, sky, core = world.appender, world.sky, world.appender.core
    left = sky.appends
    for _ in range(sky.idle_troubles):  # before there is any entry
        trouble(world)
        world.run(until_ms=world.now_ms + world.delay(100.0))
    if sky.birth and not core.is_over:
        core.begin_birth()
        appender.put(1)

    def put() -> None:
        nonlocal left
        if core.is_over or appender.is_closing:
            return
        if sky.birth and not core.is_born:
            world.after(world.delay(5.0), put)
            return
        # A caller has a window of its own, on what is confirmed.
        if core.outbox.end - core.last_confirmed < 4 * sky.burst:
            count = min(left, 1 + world.chance.randrange(sky.burst))
            left -= count
            trouble(world)
            appender.put(count)
        if left > 0:
            world.after(world.delay(20.0), put)
        elif sky.close:
            world.after(world.delay(200.0), appender.close)

    put()
    world.run(until_ms=sky.faults_ms)
    heal(world)
    if left == 0 and not appender.is_closing and not core.is_over:
        appender.put(1)
        core.publish()
        appender.after_fact()
    world.run(until_ms=world.now_ms + HEAL_MS, done=lambda: is_quiet(world, core, left))
    world.oracle.at_the_end()


def is_quiet(world: BookieWorld, core: AppenderCore, left: int) -> bool:
    appender = world.appender
    if appender.is_closing:
        return appender.closed is not None or appender.close_error is not None
    return core.is_over or (left == 0 and not core.is_busy)


def trouble(world: BookieWorld) -> None:
    """What may befall the bookies, and us."""
    sky, chance = world.sky, world.chance
    bookies = sorted(world.bookies.values(), key=lambda bookie: bookie.bookie_id)
    if world.strikes(sky.kills):
        bookie = chance.choice(bookies)
        world.note(f"{bookie.bookie_id} is killed")
        bookie.kill()
        world.after(world.delay(300.0), lambda: setattr(bookie, "is_up", True))
    if world.strikes(sky.deaf):
        bookie = chance.choice(bookies)
        world.note(f"{bookie.bookie_id} is stopped")
        bookie.is_deaf = bookie.is_up
        world.after(world.delay(1_500.0), lambda: hear_again(bookie))
    if world.strikes(sky.read_only):
        bookie = chance.choice(bookies)
        bookie.is_read_only = True
        world.after(world.delay(1_000.0), lambda: setattr(bookie, "is_read_only", False))
    if world.strikes(sky.cuts):
        bookie = chance.choice(bookies)
        world.note(f"the connection to {bookie.bookie_id} is cut")
        for link in list(bookie.links):
            link.down()
    if world.strikes(sky.freezes):
        world.appender.frozen_until_ms = world.now_ms + world.delay(700.0)
    if world.strikes(sky.rewrites):
        rewrite(world)
    if world.strikes(sky.recovery):
        SimRecoverer(world, world.bookies, world.nodes)


def hear_again(bookie: SimBookie) -> None:
    bookie.is_deaf = False
    pile, bookie.pile = bookie.pile, []
    for heard in pile:
        heard()


def rewrite(world: BookieWorld) -> None:
    """Somebody copies an older fragment to another bookie, as a repair does."""
    metadata = world.nodes.metadata
    if metadata.state is not LedgerState.OPEN or len(metadata.fragments) < 2:
        return
    number = world.chance.randrange(len(metadata.fragments) - 1)
    fragment, end = metadata.fragments[number], metadata.fragments[number + 1].first_entry_id
    others = sorted(world.bookies.keys() - set(fragment.ensemble))
    if not others:
        return
    place, other = world.chance.randrange(len(fragment.ensemble)), world.chance.choice(others)
    ensemble = list(fragment.ensemble)
    ensemble[place] = other
    for entry_id in range(fragment.first_entry_id, end):
        for bookie_id in fragment.ensemble:
            held = world.bookies[bookie_id].entries.get(entry_id)
            if held is not None and held.is_durable:
                world.bookies[other].entries[entry_id] = dataclasses.replace(held)
                break
    fragments = list(metadata.fragments)
    fragments[number] = dataclasses.replace(fragment, ensemble=tuple(ensemble))
    world.mark("rewritten")
    world.nodes.put(dataclasses.replace(metadata, fragments=tuple(fragments)))


def heal(world: BookieWorld) -> None:
    world.is_calm = True
    world.note("all is well from here on")
    for bookie in world.bookies.values():
        bookie.is_up, bookie.is_read_only = True, False
        hear_again(bookie)
