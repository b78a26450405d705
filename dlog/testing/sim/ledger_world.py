"""The world of one ledger on bookies: the production's cores against everything that may happen.

    world = run_ledger_history(of_seed(7))

A writer adds to it, readers follow, recoverers come, each of them dies or freezes anywhere;
bookies, network and metadata fail as the swarm has it. Then all is well: what was promised must
come true within a bound, the ledger gets one end, and everything that was confirmed is read to the
end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from dlog.testing.sim.bookie import Mode
from dlog.testing.sim.ledger_actors import Recoverer, TailReader, Writer
from dlog.testing.sim.ledger_client import BookieLedgers
from dlog.testing.sim.ledger_nodes import SimLedgerNodes
from dlog.testing.sim.ledger_oracle import LedgerOracle
from dlog.testing.sim.ledger_swarm import LedgerSwarm, draw_ledger_swarm
from dlog.testing.sim.process import Process
from dlog.testing.sim.striped_writer import StripedWriter
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.world import Violation, World, require
from dlog.wire.ledger_metadata import LedgerState

HEAL_MS = 90_000.0  # all must come right within this
MOMENT_MIN_MS = 1.0
LATE_MS = 12_000.0  # what is still on its way after the end may change nothing


class LedgerWorld(World):
    def __init__(self, chance: Chance, swarm: LedgerSwarm, *, told: bool = False) -> None:
        super().__init__(chance, told=told)
        self.swarm = swarm
        cluster = swarm.cluster
        self.bookies = cluster.bookies(self)
        self.nodes = SimLedgerNodes(self, cluster.nodes)
        self.oracle = LedgerOracle(self, self.bookies, self.nodes)
        self.oracle.births = swarm.birth and not swarm.is_striped
        self.oracle.rising_lacs = swarm.rising_lacs
        self.oracle.audits = swarm.audits
        self.ledgers = BookieLedgers(
            self,
            self.bookies,
            self.nodes,
            audit=self.oracle,
            options=cluster.options(),
            policy_errs=cluster.policy_errs,
            fences_ahead=cluster.fences_ahead,
            cuts=cluster.cuts,
        )
        self.processes: list[Process] = []
        self.readers: list[TailReader] = []
        self.recoverers: list[Recoverer] = []
        self.writer: Any = StripedWriter(self) if swarm.is_striped else Writer(self)

    # --- who lives here

    def new_process(
        self, name: str, *, mortal: bool, on_end: Callable[[], None] | None = None
    ) -> Process:
        crash, freeze = (self.swarm.crash, self.swarm.freeze) if mortal else (0.0, 0.0)
        process = Process(self, name, crash=crash, freeze=freeze)
        process.on_end.append(lambda: self.ledgers.drop(process))
        if on_end is not None:
            process.on_end.append(on_end)
        self.processes = [each for each in self.processes if each.is_alive]
        self.processes.append(process)
        return process

    def on_ledger(self, ledger_id: int) -> None:
        """It is made: others hear of it."""
        swarm, chance = self.swarm, self.chance

        lasts_ms = swarm.appends / max(swarm.burst, 1) * (swarm.rests_ms + 2.0)
        for number in range(swarm.readers):
            self.after(chance.delay(20.0), partial(self._reader_comes, number, ledger_id))
        for number in range(swarm.recoverers):
            comes_ms = swarm.recovery_from * lasts_ms + chance.delay(20.0)
            self.after(comes_ms, partial(self._recoverer_comes, number, ledger_id))

    def _reader_comes(self, number: int, ledger_id: int) -> None:
        asks_only = number % 2 == 1
        self.readers.append(TailReader(self, f"reader {number}", ledger_id, asks_only=asks_only))

    def _recoverer_comes(self, number: int, ledger_id: int) -> None:
        rises = self.swarm.rising_lacs and number == 0
        recoverer = Recoverer(self, f"recoverer {number}", ledger_id, rising_lacs=rises)
        self.recoverers.append(recoverer)

    def is_open(self, ledger_id: int) -> bool:
        metadata = self.nodes.truth(ledger_id)
        return metadata is not None and metadata.state is LedgerState.OPEN

    def trouble(self) -> None:
        if self.is_calm:
            return
        living = [each for each in self.processes if each.is_alive]
        self.bookies.trouble(living, self.nodes.last_id)
        if self.strikes(self.swarm.rewrites, "a fragment is rewritten"):
            self._rewrite()

    def _rewrite(self) -> None:
        """Somebody copies an older fragment to another bookie, as a repair does."""
        ledger_id = self.writer.ledger_id
        metadata = None if ledger_id is None else self.nodes.truth(ledger_id)
        if ledger_id is None or metadata is None or len(metadata.fragments) < 2:
            return
        number = self.chance.randrange(len(metadata.fragments) - 1)
        fragment, end = metadata.fragments[number], metadata.fragments[number + 1].first_entry_id
        others = [each for each in self.bookies.names if each not in fragment.ensemble]
        others = [
            each
            for each in others
            if self.bookies[each].is_up and self.bookies[each].mode is Mode.WRITABLE
        ]
        if not others:
            return
        place = self.chance.randrange(len(fragment.ensemble))
        other = self.chance.pick(others, "the new bookie")
        for entry_id in range(fragment.first_entry_id, end):
            if not any(
                self.bookies.copy(ledger_id, entry_id, bookie_id, other)
                for bookie_id in fragment.ensemble
            ):
                return  # nobody has it for good yet
        ensemble = list(fragment.ensemble)
        ensemble[place] = other
        fragments = list(metadata.fragments)
        fragments[number] = replace(fragment, ensemble=tuple(ensemble))
        self.mark("a fragment is rewritten")
        self.nodes.put(ledger_id, replace(metadata, fragments=tuple(fragments)))

    # --- its history

    def play(self) -> None:
        self._moments()
        self.run(until_ms=self.swarm.faults_ms, done=self._is_settled)
        self._heal()
        self._live_on()
        self._end()

    def _moments(self) -> None:
        """Troubles come also while nobody writes."""
        if not self.is_calm:
            self.trouble()
            self.after(MOMENT_MIN_MS + self.chance.delay(60.0), self._moments)

    def _is_settled(self) -> bool:
        return (
            self.writer.is_quiet
            and len(self.recoverers) == self.swarm.recoverers
            and all(each.is_over for each in self.recoverers)
            and len(self.readers) == self.swarm.readers
        )

    def _heal(self) -> None:
        self.note("all is well from here on")
        self.is_calm = True
        self.nodes.heal()
        self.bookies.heal()
        for process in self.processes:
            process.thaw()

    def _live_on(self) -> None:
        """A writer that lives confirms and publishes what it has; readers come to see it."""
        writer = self.writer
        by_ms = self.now_ms + HEAL_MS
        self.run(until_ms=by_ms, done=lambda: writer.is_quiet)
        require(writer.is_quiet, "I27", "a writer that lives gets through", writer.appender)
        writer.say_more()
        self.run(until_ms=by_ms, done=lambda: writer.is_quiet and self._have_caught_up())
        require(writer.is_quiet, "I27", "a writer that lives goes on", writer.appender)
        require(self._have_caught_up(), "I27", "readers catch up", *self._behind())
        appender, ledger_id = writer.appender, writer.ledger_id
        if appender is None or ledger_id is None or writer.is_over or not self.is_open(ledger_id):
            return
        core = appender.core
        require(core.last_confirmed == core.outbox.end - 1, "I27", "all is confirmed", core.slots)
        require(not core.degraded, "I27", "every place is filled", core.slots)
        metadata = self.nodes.truth(ledger_id)
        assert metadata is not None
        if not self.bookies.wiped:
            appender.check_slots(
                metadata,
                lambda bookie_id, entry_id: (
                    self.bookies[bookie_id].holds_for_good(ledger_id, entry_id) is not None
                ),
            )

    def _have_caught_up(self) -> bool:
        return not self._behind()

    def _behind(self) -> list[str]:
        ledger_id = self.writer.ledger_id
        if ledger_id is None:
            return []
        if self.oracle.is_hollow(ledger_id):
            return []
        truth = self.oracle.truth(ledger_id)
        if truth.end is None and not self.is_open(ledger_id):
            return []  # a dead recovery's copies hide the LAC until another one ends: see `_end`
        upto = truth.published if truth.end is None else truth.end.last_entry
        return [
            f"{each.name} is at {each.read_to} of {upto}"
            for each in self.readers
            if each.read_to < upto
        ]

    def _end(self) -> None:
        """The ledger gets its end, and everybody sees it and all that is below."""
        ledger_id = self.writer.ledger_id
        if ledger_id is None:
            return
        last = Recoverer(self, "the last recoverer", ledger_id, mortal=False)
        by_ms = self.now_ms + HEAL_MS
        self.run(until_ms=by_ms, done=lambda: last.is_over)
        if last.end is None:
            if self.bookies.wiped_unnoticed or self.swarm.rising_lacs:
                self.mark("no end")
                return
            raise Violation("I27", f"no end in calm weather: {last.errors}")
        reader = TailReader(self, "the last reader", ledger_id, mortal=False)
        self.readers.append(reader)
        if self.bookies.wiped_unnoticed or self.oracle.is_hollow(ledger_id):
            return
        self.run(
            until_ms=by_ms,
            done=lambda: (
                all(each.has_ended for each in self.readers)
                and all(each.is_over or not each.process.is_alive for each in self.recoverers)
            ),
        )
        for each in self.readers:
            require(each.has_ended, "I27", "readers come to the end", each.name, each.read_to)
        for recoverer in self.recoverers:
            require(
                recoverer.end in (None, last.end),
                "I10",
                "all recoveries say the same",
                recoverer.end,
                last.end,
            )


def run_ledger_history(chance: Chance, told: bool = False, **options: Any) -> LedgerWorld:
    """`options` are fields of the swarm, or of its parts (`troubles__kills`), instead of what the
    tape has."""
    world = LedgerWorld(chance, _with_options(draw_ledger_swarm(chance), options), told=told)
    world.play()
    return world


def _with_options(swarm: LedgerSwarm, options: dict[str, Any]) -> LedgerSwarm:
    for name, value in options.items():
        part, _, of_part = name.partition("__")
        if of_part:
            setattr(getattr(swarm.cluster, part), of_part, value)
        elif hasattr(swarm, name):
            setattr(swarm, name, value)
        else:
            require(hasattr(swarm.cluster, name), "options", "a swarm has this", name)
            setattr(swarm.cluster, name, value)
    return swarm
