"""The first step at the bookies: fence all of the last fragment, and hear from where to go on.

Each bookie is asked, with the fence, for the entry that it holds last; its header carries a LAC.
The answers of *enough* bookies do (`quorum.is_covered`): from then on the writer can complete
nothing at the others alone. Nobody waits for the rest; each later read fences, too.

The LAC is a hint. It was true once, so a larger one saves work, and a bookie that lost its entries,
or answers from a cache, may well give a smaller one: that costs work and nothing else. Never below
the floor, though: where the last fragment begins, everything before it had been confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlog.errors import AuthError, Corrupt, Unavailable
from dlog.ledger.bookkeeper.core.quorum import is_covered
from dlog.ledger.bookkeeper.core.recovery_requests import Ask
from dlog.wire import Buffer
from dlog.wire.bookie_codes import Answer, Call, Reaction, reaction
from dlog.wire.bookie_digest import EntryDigest
from dlog.wire.bookie_v2 import LAST_ENTRY
from dlog.wire.ledger_metadata import LedgerMetadata

_ENTRY_ID = slice(8, 16)  # only the bookie knows which of its entries is the last one


class Fencing:
    """`last_confirmed` and `last_seen` grow with each answer, also after coverage."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata, digest: EntryDigest) -> None:
        last = metadata.fragments[-1]
        self.last_confirmed = last.first_entry_id - 1
        self.last_seen = -1
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._digest = digest
        self._place_of = {bookie_id: place for place, bookie_id in enumerate(last.ensemble)}
        self._known: set[int] = set()
        self._unknown: dict[str, Answer] = {}

    def asks(self) -> list[Ask]:
        return [Ask(bookie_id, LAST_ENTRY) for bookie_id in self._place_of]

    @property
    def is_covered(self) -> bool:
        return is_covered(self._metadata, self._known)

    def on_answer(self, bookie_id: str, answer: Answer, entries: Sequence[Buffer]) -> None:
        """`AuthError`; `Unavailable` when all have answered and too few of them said anything."""
        if answer is Answer.OK:
            answer = self._look_at(bookie_id, entries[0])
        what = reaction(Call.FENCE, answer)
        if what is Reaction.COVERED:
            self._known.add(self._place_of[bookie_id])
        elif answer is Answer.UNAUTHORIZED:
            raise AuthError(
                f"bookie {bookie_id} does not accept the password of ledger {self._ledger_id}",
                ledger_id=self._ledger_id,
            )
        else:
            self._unknown[bookie_id] = answer
        if len(self._known) + len(self._unknown) == len(self._place_of) and not self.is_covered:
            raise self._uncovered()

    def _look_at(self, bookie_id: str, raw: Buffer) -> Answer:
        """The LAC of a header that confirms its own entry or a later one is not believed: it would
        close a ledger where it never ended. `verify` gives none for it. Such headers are real, in
        copies that stock replicators made, and the bookie that holds one last is fenced like any
        other; one that returns damaged bytes said nothing."""
        try:
            entry = self._digest.verify(
                raw,
                ledger_id=self._ledger_id,
                entry_id=int.from_bytes(raw[_ENTRY_ID], "big", signed=True),
                where=f"bookie {bookie_id}",
            )
        except Corrupt:
            return Answer.BAD_DIGEST
        self.last_confirmed = max(self.last_confirmed, entry.last_confirmed)
        self.last_seen = max(self.last_seen, entry.entry_id)
        return Answer.OK

    def silent(self) -> list[str]:
        """Who has said nothing that counts."""
        return [each for each, place in self._place_of.items() if place not in self._known]

    def _uncovered(self) -> Unavailable:
        metadata = self._metadata
        # Any so many of the ensemble cover; of a striped one, fewer might.
        needed = metadata.ensemble_size - metadata.ack_quorum + 1 - len(self._known)
        why = ", ".join(f"{each}: {answer.value}" for each, answer in self._unknown.items())
        return Unavailable(
            f"ledger {self._ledger_id} cannot be fenced: {needed} more bookies would do ({why})",
            ledger_id=self._ledger_id,
            missing=list(self._unknown),
            needed=needed,
        )
