"""What an oracle of logs knows of jobs: which ledgers they fill, and what became of it. Nobody
holds the log for them, and until a batch is published nobody knows its epoch and its seqs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlog.errors import DlogError
from dlog.ids import Token

if TYPE_CHECKING:
    from dlog.testing.sim.log_oracle import Handle, LogOracle, Sent


OF_A_JOB = -1  # instead of the epoch of a handle


class JobOracle:
    def __init__(self, oracle: LogOracle) -> None:
        self._oracle = oracle
        self.ledgers: set[int] = set()  # that were made for jobs

    def base_seq(self, ledger_id: int) -> int | None:
        """Of what a job filled, only the list knows."""
        oracle = self._oracle
        if ledger_id not in self.ledgers:
            return None
        sealed = oracle._sealed.get(oracle._number_of.get(ledger_id, -1))
        return None if sealed is None else sealed.base_seq

    def filled(self, handle: Handle, values: list[bytes], make: type[Sent]) -> list[Sent]:
        """In order; perhaps they are published."""
        oracle, token = self._oracle, Token(handle.uid, 1, 0)
        sent = [make(value, handle, at, oracle.acked_id, token) for at, value in enumerate(values)]
        oracle.by_value.update((each.value, each) for each in sent)
        return sent

    def refused(self, sents: list[Sent], error: DlogError) -> None:
        """For certain: none of them is in the log, nor ever will be."""
        for sent in sents:
            sent.error = error
            self._oracle.check_phantom(sent)

    def published(self, uid: str, last_seq: int) -> None:
        """Anybody may read it from now on."""
        acked_seq = self._oracle.acked_seq
        acked_seq[uid] = max(last_seq, acked_seq.get(uid, -1))
