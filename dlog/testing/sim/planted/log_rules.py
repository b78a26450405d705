"""Bugs in the rules of rotation and of starts that only whole histories show."""

from __future__ import annotations

from dlog.reader import core as reader_core
from dlog.testing.sim.planted import Patch, Plants
from dlog.writer.core import WriterCore

plants = Plants("log-abstract")
PLANTS = plants.by_name


@plants("I15: at most two segments are unsealed", rotate_every=1)
def a_listing_seals_nothing(patch: Patch) -> None:
    patch.setattr(WriterCore, "settled", lambda self, meta: meta)


@plants("I27: an idle ledger is published by itself", rotate_every=2)
def the_whole_pipe_must_be_idle(patch: Patch) -> None:
    genuine = WriterCore.is_ledger_idle

    def is_ledger_idle(self: WriterCore, ledger_id: int) -> bool:
        return self.is_idle and genuine(self, ledger_id)

    patch.setattr(WriterCore, "is_ledger_idle", is_ledger_idle)


@plants("I17: nothing before the seq that was asked for")
def a_seq_beyond_the_tail_is_the_tail(patch: Patch) -> None:
    patch.setattr(reader_core, "_seq_of_start", lambda start: 0)
