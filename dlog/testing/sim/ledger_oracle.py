"""Sees the truth of ledgers on bookies, and raises at the event that breaks a promise.

The truth is what bookies would keep over a kill, and what metadata says. The oracle hears what each
client does and is told (`LedgerAudit`) and every change of metadata (`NodeAudit`), and keeps what
nobody may contradict any more: what was confirmed, published, delivered, and each ledger's end.

What a history may excuse, it says: bookies that lost their disks within the assumptions (A3) hold
nothing of what they held; an *amnesiac* one (A2 is broken) may cost what was confirmed; a recoverer
whose write-backs carry a rising LAC, as the stock client's do, may publish what is gone later (H1,
H2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dlog.errors import DlogError, Fenced, Outcome
from dlog.ledger.bookkeeper.core.quorum import missing_needed, write_set
from dlog.ledger.bookkeeper.core.tail_recovery import FoundEnd
from dlog.ledger.store import ClosedLedger
from dlog.testing.sim.bookies import SimBookies
from dlog.testing.sim.ledger_nodes import SimLedgerNodes
from dlog.testing.sim.surroundings import keys_of
from dlog.testing.sim.world import World, require
from dlog.wire.bookie_digest import NUMBERS_BYTES, EntryDigest
from dlog.wire.ledger_metadata import LedgerMetadata, LedgerState


@dataclass(slots=True)
class Truth:
    """Of one ledger: what its writer did, and what anybody was told."""

    payloads: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=lambda: [0])  # bytes before each entry
    born: bool = False
    confirmed: int = -1
    published: int = -1
    delivered: int = -1
    end: ClosedLedger | None = None
    close_refused: bool = False  # for certain, and not asked again since

    def bytes_through(self, entry_id: int) -> int:
        return self.sizes[entry_id + 1]


class LedgerOracle:
    """`on_confirmed_too` and `on_closed_too` pass facts on to whoever watches the log above."""

    def __init__(self, world: World, bookies: SimBookies, nodes: SimLedgerNodes) -> None:
        self.ledgers: dict[int, Truth] = {}
        self.births = True  # entry 0 is on all bookies when it is told to be born
        self.rising_lacs = False
        self.audits = True  # the evidence that recoveries give, beside what comes of them
        self.after_close: Callable[[int, ClosedLedger], None] = lambda ledger_id, closed: None
        self._world = world
        self._bookies = bookies
        self._nodes = nodes
        nodes.audit = self

    def truth(self, ledger_id: int) -> Truth:
        found = self.ledgers.get(ledger_id)
        if found is None:
            found = self.ledgers[ledger_id] = Truth()
        return found

    # --- what the writer does

    def on_submit(self, ledger_id: int, entry_id: int, payload: bytes) -> None:
        truth = self.truth(ledger_id)
        require(entry_id == len(truth.payloads), "I6", "entries are numbered in order", entry_id)
        truth.payloads.append(payload)
        truth.sizes.append(truth.sizes[-1] + len(payload))

    def on_born(self, ledger_id: int) -> None:
        self.truth(ledger_id).born = True

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        truth = self.truth(ledger_id)
        if self._world.is_told:
            self._world.note(f"ledger {ledger_id}: {last_entry} is confirmed")
        before, truth.confirmed = truth.confirmed, last_entry
        require(before < last_entry, "I4a", "confirmations rise", before, last_entry)
        end = truth.end
        require(
            end is None or last_entry <= end.last_entry,
            "I7",
            "nothing is confirmed above the end",
            last_entry,
            end,
        )
        metadata = self._nodes.truth(ledger_id)
        if metadata is not None:
            self._check_held(ledger_id, metadata, before + 1, last_entry)

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        truth = self.truth(ledger_id)
        truth.published = max(truth.published, last_entry)
        require(last_entry <= truth.confirmed, "I3a", "what is published was confirmed", last_entry)
        self._check_published(ledger_id)

    def on_own_close(self, ledger_id: int, closed: ClosedLedger) -> None:
        self._world.note(f"ledger {ledger_id}: its writer closed it: {closed}")
        metadata, truth = self._nodes.truth(ledger_id), self.truth(ledger_id)
        require(closed.last_entry == truth.confirmed, "I8", "a close is at the confirmed", closed)
        if metadata is not None:
            require(_end_of(metadata) == closed, "I24", "a close that is told stands", closed)

    def on_close_asked(self, ledger_id: int) -> None:
        self.truth(ledger_id).close_refused = False

    def on_close_failed(self, ledger_id: int, error: DlogError) -> None:
        certain = error.outcome is Outcome.NOT_HAPPENED and not isinstance(error, Fenced)
        self.truth(ledger_id).close_refused = certain

    # --- recoveries

    def on_found_end(self, ledger_id: int, began: LedgerMetadata, found: FoundEnd) -> None:
        """The end is justified by denials that were really given, each with the fence."""
        if not self.audits:
            return
        entry_id, denied_by, needed = found.evidence
        ensemble = began.fragments[-1].ensemble
        places = write_set(began, entry_id)
        require(
            entry_id == found.last_entry + 1
            and needed == missing_needed(began)
            and len(set(denied_by)) >= needed
            and {ensemble[place] for place in places}.issuperset(denied_by),
            "I14",
            "an end has enough denials of the right bookies",
            found,
        )
        for bookie_id in denied_by:
            require(
                (ledger_id, entry_id) in self._bookies[bookie_id].denied,
                "I14",
                f"{bookie_id} denied entry {entry_id}",
                found,
            )

    def on_recovered(self, ledger_id: int, closed: ClosedLedger) -> None:
        self._world.note(f"ledger {ledger_id}: a recovery says {closed}")
        metadata = self._nodes.truth(ledger_id)
        if metadata is not None:
            stands = _end_of(metadata)
            require(stands == closed, "I10", "recoveries agree", closed, stands)

    # --- readers

    def readable_now(self, ledger_id: int) -> int:
        """While a recovery writes back, its headers may take the place of those that told more."""
        truth = self.truth(ledger_id)
        if truth.end is not None:
            return truth.end.last_entry
        return -1 if self._bookies.wiped or not self._is_open(ledger_id) else truth.published

    def _is_open(self, ledger_id: int) -> bool:
        metadata = self._nodes.truth(ledger_id)
        return metadata is not None and metadata.state is LedgerState.OPEN

    def on_readable(
        self, ledger_id: int, last_entry: int, *, is_closed: bool, at_least: int = -1
    ) -> None:
        truth = self.truth(ledger_id)
        end = truth.end
        if is_closed or self._is_open(ledger_id) or at_least > truth.published:
            told = "an answer is not older than the question"
            require(last_entry >= at_least, "I3c", told, last_entry, at_least)
        if is_closed:
            require(
                end is not None and last_entry == end.last_entry,
                "I8",
                "a closed ledger is readable to its end",
                last_entry,
                end,
            )
        elif not self.rising_lacs:
            upto = truth.confirmed if end is None else max(truth.confirmed, end.last_entry)
            require(
                last_entry <= upto,
                "I3a",
                "only what its writer confirmed may be read",
                last_entry,
                upto,
            )
        if last_entry > truth.delivered:
            truth.delivered = last_entry
            self._world.mark("delivered")

    def on_read(self, ledger_id: int, first_entry: int, payloads: Sequence[bytes]) -> None:
        truth = self.truth(ledger_id)
        last_entry = first_entry + len(payloads) - 1
        require(len(payloads) > 0, "I17", "a read brings an entry", first_entry)
        require(
            last_entry <= truth.delivered, "I3a", "what is read may be read", last_entry, truth.end
        )
        for entry_id, payload in enumerate(payloads, first_entry):
            require(
                payload == truth.payloads[entry_id],
                "I13",
                "bytes that are read are bytes that were appended",
                entry_id,
            )

    # --- metadata

    def on_stored(
        self, ledger_id: int, before: LedgerMetadata | None, after: LedgerMetadata
    ) -> None:
        self._check_fragments(ledger_id, before, after)
        truth = self.truth(ledger_id)
        if before is not None:
            require(after.state >= before.state, "I8", "states do not go back", before.state, after)
            if before.state is LedgerState.CLOSED:
                require(_end_of(before) == _end_of(after), "I8", "closed is closed", after)
            if before.state is LedgerState.OPEN and after.state is LedgerState.CLOSED:
                require(not truth.close_refused, "I24", "a close that was refused does not happen")
        if after.state is LedgerState.CLOSED:
            if truth.end is None:
                self._on_end(ledger_id, truth, after)
            self._check_stands(ledger_id, after)
        elif after.state is LedgerState.OPEN:
            self._check_held(ledger_id, after, 0, truth.confirmed)
            self._check_published(ledger_id)

    def on_deleted(self, ledger_id: int) -> None:
        pass

    def _on_end(self, ledger_id: int, truth: Truth, metadata: LedgerMetadata) -> None:
        end = truth.end = _end_of(metadata)
        assert end is not None
        require(
            end.last_entry < len(truth.payloads), "I2", "an end has entries", end, truth.confirmed
        )
        if not self._bookies.wiped_unnoticed:
            require(
                end.last_entry >= truth.confirmed,
                "I9",
                "an end is not below what was confirmed",
                end,
                truth.confirmed,
            )
        if not (self._bookies.wiped_unnoticed or self.rising_lacs):
            require(
                end.last_entry >= truth.delivered,
                "I9",
                "an end is not below what was delivered",
                end,
                truth.delivered,
            )
        require(
            end.bytes == truth.bytes_through(end.last_entry),
            "I8",
            "a closed ledger has the size of its entries",
            end,
            truth.bytes_through(end.last_entry),
        )
        if end.last_entry > truth.confirmed:
            self._world.mark("recovered more than was confirmed")
        self.after_close(ledger_id, end)

    def _check_fragments(
        self, ledger_id: int, before: LedgerMetadata | None, after: LedgerMetadata
    ) -> None:
        """That they begin at 0 and rise is checked wherever metadata is made."""
        truth = self.truth(ledger_id)
        if after.state is not LedgerState.OPEN:
            return
        last = after.fragments[-1]
        require(
            last.first_entry_id <= truth.confirmed + 1,
            "I12",
            "a fragment begins not behind what is confirmed",
            last,
            truth.confirmed,
        )

    # --- what bookies hold

    def holders(self, ledger_id: int, metadata: LedgerMetadata, entry_id: int) -> list[str]:
        """The named bookies that would have the entry after a kill, as it was appended."""
        ensemble = metadata.fragment_of(entry_id).ensemble
        payload = self.truth(ledger_id).payloads[entry_id]
        found = []
        for place in write_set(metadata, entry_id):
            raw = self._bookies[ensemble[place]].holds_for_good(ledger_id, entry_id)
            if raw is None:
                continue
            head_bytes = NUMBERS_BYTES + keys_of(metadata)[0].digest_bytes
            require(
                raw[head_bytes:] == payload, "I13", "what is stored is what was appended", entry_id
            )
            found.append(ensemble[place])
        return found

    def is_hollow(self, ledger_id: int) -> bool:
        """The stock client's rising LACs may close a ledger over entries that nobody has."""
        metadata = self._nodes.truth(ledger_id)
        return (
            self.rising_lacs
            and metadata is not None
            and any(
                not self.holders(ledger_id, metadata, entry_id)
                for entry_id in range(metadata.last_entry_id + 1)
            )
        )

    def _needed(self, metadata: LedgerMetadata, entry_id: int, quorum: int) -> int:
        """So many copies; those that disks took along within the assumptions are not asked for."""
        ensemble, wiped = metadata.fragment_of(entry_id).ensemble, self._bookies.wiped
        if not wiped:
            return quorum
        lost = sum(ensemble[place] in wiped for place in write_set(metadata, entry_id))
        return quorum - lost

    def _check_held(self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> None:
        if self._bookies.wiped_unnoticed:
            return
        truth = self.truth(ledger_id)
        for entry_id in range(first, last + 1):
            quorum = metadata.ack_quorum
            is_birth = entry_id == 0 and first == 0 and not truth.born
            if is_birth and self.births and metadata.state is LedgerState.OPEN:
                quorum = metadata.write_quorum
            holders = self.holders(ledger_id, metadata, entry_id)
            require(
                len(holders) >= self._needed(metadata, entry_id, quorum),
                "I11",
                "bookies that metadata names hold what is confirmed",
                entry_id,
                holders,
                metadata.fragments,
            )

    def _check_stands(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """Every entry of a closed ledger is on enough of its bookies."""
        if self._bookies.wiped_unnoticed:
            return
        truth = self.truth(ledger_id)
        for entry_id in range(metadata.last_entry_id + 1):
            if self.rising_lacs and entry_id > truth.confirmed:
                break  # believed to be confirmed, on bookies that nobody named (H2)
            holders = self.holders(ledger_id, metadata, entry_id)
            needed = max(self._needed(metadata, entry_id, metadata.ack_quorum), 1)
            require(
                len(holders) >= needed,
                "I8",
                "bookies that metadata names hold what is closed",
                entry_id,
                holders,
                metadata.fragments,
            )

    def _check_published(self, ledger_id: int) -> None:
        """Any reader that asks enough bookies sees it."""
        metadata, published = self._nodes.truth(ledger_id), self.truth(ledger_id).published
        if metadata is None or metadata.state is not LedgerState.OPEN or published < 0:
            return
        if self._bookies.wiped_unnoticed or metadata.write_quorum < metadata.ensemble_size:
            return
        ensemble = metadata.fragments[-1].ensemble
        digest = keys_of(metadata)[0]
        showing = [
            each
            for each in ensemble
            if each in self._bookies.wiped or self._shows(digest, each, ledger_id) >= published
        ]
        require(
            len(showing) >= metadata.ack_quorum,
            "I3c",
            "bookies enough show what is published",
            published,
            showing,
            ensemble,
        )

    def _shows(self, digest: EntryDigest, bookie_id: str, ledger_id: int) -> int:
        bookie = self._bookies[bookie_id]
        held = (bookie.ledgers if bookie.is_up else bookie.durable).get(ledger_id)
        if held is None:
            return -1
        shown = -1 if held.proof is None else digest.verify_lac(held.proof, ledger_id=ledger_id)
        if held.entries:
            shown = max(shown, held.entries[max(held.entries)].last_confirmed)
        return shown


def _end_of(metadata: LedgerMetadata) -> ClosedLedger | None:
    if metadata.state is not LedgerState.CLOSED:
        return None
    return ClosedLedger(metadata.last_entry_id, metadata.length_bytes)
