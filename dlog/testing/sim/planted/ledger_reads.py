"""Bugs of readers on bookies: what may be read, and what is taken."""

from __future__ import annotations

from typing import Any

from dlog.ledger.bookkeeper.core import (
    tail_read,
)
from dlog.ledger.bookkeeper.core.entry_read import EntryRead
from dlog.ledger.bookkeeper.core.tail_read import LacRound, TailRead
from dlog.testing.sim.planted import Patch
from dlog.testing.sim.planted.ledger_weather import LOOKS, plants
from dlog.wire.bookie_digest import EntryDigest
from dlog.wire.ledger_metadata import LedgerMetadata


@plants("P38", manners__wrong=0.2, readers=2)
def any_entry_of_the_ledger_will_do(patch: Patch) -> None:
    def verify_run(self: EntryDigest, run: Any, *, ledger_id: int, **about: Any) -> Any:
        return [self._verify(raw, ledger_id, "").payload for raw in run]

    patch.setattr(EntryDigest, "verify_run", verify_run)


@plants("I3a", readers=2, manners__lies=0.2)
def the_bare_word_is_proof(patch: Patch) -> None:
    real = TailRead.on_poll

    def on_poll(self: TailRead, poll: Any, answer: Any, body: Any, *rest: Any) -> None:
        real(self, poll, answer, body, *rest)
        if poll.told is not None:
            self._published = max(self._published, poll.told)

    patch.setattr(TailRead, "on_poll", on_poll)


@plants("I3a", readers=2)
def a_fragment_publishes_its_own_first_entry(patch: Patch) -> None:
    real = TailRead._follow

    def follow(self: TailRead, metadata: LedgerMetadata) -> None:
        real(self, metadata)
        if len(metadata.fragments) > 1:
            self._published = max(self._published, metadata.fragments[-1].first_entry_id)

    patch.setattr(TailRead, "_follow", follow)


@plants("I3c", **LOOKS)
def one_bookie_knows_the_lac(patch: Patch) -> None:
    patch.setattr(tail_read, "is_covered", lambda metadata, known: len(known) >= 1)


@plants("I3c", **LOOKS, manners__io_failed=0.1)
def silence_is_an_answer_about_the_lac(patch: Patch) -> None:
    real = LacRound.on_answer

    def on_answer(self: LacRound, place: int, lac: Any) -> None:
        real(self, place, lac)
        self._known.add(place)

    patch.setattr(LacRound, "on_answer", on_answer)


@plants("I8", readers=2, recoverers=2)
def a_closed_ledger_is_read_as_it_was_published(patch: Patch) -> None:
    def readable(self: TailRead) -> int:
        return self._published

    patch.setattr(TailRead, "readable", property(readable))


@plants("I13", readers=2, manners__broken=0.2)
def a_reader_believes_what_it_gets(patch: Patch) -> None:
    def trust(self: EntryDigest, run: Any, **about: Any) -> Any:
        return [memoryview(raw)[self.head_bytes :] for raw in run]

    patch.setattr(EntryDigest, "verify_run", trust)


@plants("I27", readers=2)
def a_failed_read_asks_nobody_else(patch: Patch) -> None:
    real = EntryRead.__init__

    def init(self: Any, *args: Any, bookies: Any, **options: Any) -> None:
        real(self, *args, bookies=bookies[:1], **options)

    patch.setattr(EntryRead, "__init__", init)
