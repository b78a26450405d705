"""From the fence to the end: what a recovery does at the bookies, once the ledger is marked.

    fencing ──covered──► searching and writing back, both at once ──► (sizing) ──► `found`

It begins with the metadata as the mark left it and never looks at another: everything is read from
those bookies. `Fencing`, `EndSearch` and `WriteBack` hold the rules; here they are put in a row. If
nothing was found behind what is known to be confirmed, the size of the ledger stands in the header
of the last confirmed entry, maybe in an earlier fragment: that one is read last ("sizing").

Facts come in by the `on_` methods and `tick`, what is to be done is fetched by `take`. Any of them
may raise: then this try is over, the ledger stays in recovery, and another try may do better. A
lost connection and a busy bookie are no answers yet: the same question is put again, a few times,
and without batches to a bookie that may not know them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dlog.errors import Unavailable, Unsupported
from dlog.ledger.bookkeeper.core.end_search import EndSearch, Evidence
from dlog.ledger.bookkeeper.core.fencing import Fencing
from dlog.ledger.bookkeeper.core.recovery_requests import Ask, Request
from dlog.ledger.bookkeeper.core.write_back import Choose, WriteBack
from dlog.wire import Buffer
from dlog.wire.bookie_codes import Answer, Call, Reaction, reaction
from dlog.wire.bookie_digest import EntryDigest, master_key
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata

_TRIES_MAX: Final = 3  # of one bookie, when it was no answer
_ASK_AGAIN_S: Final = (0.0, 0.1, 0.2)
assert len(_ASK_AGAIN_S) == _TRIES_MAX


@dataclass(frozen=True, slots=True)
class FoundEnd:
    last_entry: int
    bytes: int
    # What takes the place of the last fragment; None if no bookie was replaced.
    fragments: tuple[Fragment, ...] | None
    evidence: Evidence


def digest_of(ledger_id: int, metadata: LedgerMetadata) -> tuple[EntryDigest, bytes]:
    """And the key that fences."""
    if metadata.digest_type is None or metadata.password is None:
        raise Unsupported(
            f"ledger {ledger_id} was made before metadata named digest and password: only a client "
            "that is told them can recover it",
            ledger_id=ledger_id,
        )
    return EntryDigest(metadata.digest_type, metadata.password), master_key(metadata.password)


class TailRecovery:
    def __init__(
        self, ledger_id: int, metadata: LedgerMetadata, choose: Choose, *, now_s: float
    ) -> None:
        self.found: FoundEnd | None = None
        self.is_covered = False
        self.fence_key: bytes
        self._digest, self.fence_key = digest_of(ledger_id, metadata)
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._choose = choose
        self._fencing = Fencing(ledger_id, metadata, self._digest)
        self._search: EndSearch | None = None
        self._write_back: WriteBack | None = None
        self._sizing: EndSearch | None = None
        self._began_at = -1  # the last entry known to be confirmed when the search began
        self._bytes = 0
        self._requests: list[Request] = list(self._fencing.asks())
        self._tries: dict[str, int] = {}
        self._later: list[tuple[float, Ask]] = []

    def take(self) -> list[Request]:
        requests, self._requests = self._requests, []
        return requests

    def why(self) -> str:
        """What it is waiting for, when the time is over."""
        if not self.is_covered:
            return f"to be fenced by {', '.join(self._fencing.silent())}"
        search, write_back = self._search, self._write_back
        if search is None or write_back is None or self._sizing is not None:
            return f"to read entry {self._began_at}"
        if search.is_over:
            return f"to write entry {write_back.written_to + 1} back"
        return f"to learn whether entry {search.position} exists"

    # --- facts

    def on_read(self, ask: Ask, answer: Answer, entries: Sequence[Buffer], *, now_s: float) -> None:
        if self.found is not None:
            return
        if reaction(Call.RECOVERY_READ, answer) is Reaction.STOP:
            raise Unavailable(
                f"the recovery of ledger {self._ledger_id} ended: {answer.value}",
                ledger_id=self._ledger_id,
                missing=[ask.bookie_id],
            )
        if self._is_asked_again(ask, answer, now_s):
            return
        if ask.is_fence:
            self._on_fence(ask, answer, entries)
        else:
            self._reader_of(ask).on_answer(ask, answer, entries, now_s=now_s)
        self._go_on(now_s)

    def on_adds(
        self, bookie_id: str, answer: Answer, entry_ids: Sequence[int], *, now_s: float
    ) -> None:
        if self._write_back is not None and self.found is None:
            self._write_back.on_adds(bookie_id, answer, entry_ids, now_s=now_s)
            self._go_on(now_s)

    def on_down(self, bookie_id: str, *, now_s: float) -> None:
        """The connection that adds went over is gone, or there was none to be had."""
        if self._write_back is not None and self.found is None:
            self._write_back.on_down(bookie_id, now_s=now_s)
            self._go_on(now_s)

    def tick(self, now_s: float) -> None:
        if self.found is not None:
            return
        due = [ask for due_s, ask in self._later if due_s <= now_s]
        self._later = [(due_s, ask) for due_s, ask in self._later if due_s > now_s]
        for ask in due:
            if ask.is_fence or self._reader_of(ask).position <= ask.first_entry:
                self._requests.append(ask)
            else:
                self._reader_of(ask).forget(ask)
        if self._write_back is not None:
            self._write_back.tick(now_s)
        self._go_on(now_s)

    # --- inside

    def _on_fence(self, ask: Ask, answer: Answer, entries: Sequence[Buffer]) -> None:
        if self._search is None:
            self._fencing.on_answer(ask.bookie_id, answer, entries)
        elif answer is Answer.OK:
            # Too late to decide anything, but not to contradict it.
            self._fencing.on_answer(ask.bookie_id, answer, entries)
            self._search.saw_confirmed(self._fencing.last_confirmed)

    def _reader_of(self, ask: Ask) -> EndSearch:
        """Sizing reads stand below all that is searched."""
        reader = self._sizing if ask.first_entry <= self._began_at else self._search
        assert reader is not None
        return reader

    def _is_asked_again(self, ask: Ask, answer: Answer, now_s: float) -> bool:
        if answer not in (Answer.DISCONNECTED, Answer.BUSY):
            return False
        tries = self._tries.get(ask.bookie_id, 0)
        if tries >= _TRIES_MAX:
            return False
        self._tries[ask.bookie_id] = tries + 1
        if ask.is_batch and answer is Answer.DISCONNECTED:
            self._reader_of(ask).go_singly(ask.bookie_id)
            ask = ask._replace(count_max=1, is_batch=False)
        self._later.append((now_s + _ASK_AGAIN_S[tries], ask))
        return True

    def _go_on(self, now_s: float) -> None:
        if self._search is None:
            if not self._fencing.is_covered:
                return
            self._begin_search(now_s)
        search, write_back = self._search, self._write_back
        assert search is not None
        assert write_back is not None
        entries = search.take()
        if entries:
            self._bytes = entries[-1].ledger_bytes
            write_back.write(entries, now_s=now_s)
        self._requests += write_back.take()
        if write_back.has_room:
            self._requests += search.asks(now_s)
        if search.evidence is not None and write_back.written_to == search.position - 1:
            self._end(search.evidence, write_back, now_s)

    def _begin_search(self, now_s: float) -> None:
        self.is_covered = True
        fencing, metadata = self._fencing, self._metadata
        self._began_at = began_at = fencing.last_confirmed
        probe_entry = fencing.last_seen + 1
        self._search = EndSearch(
            self._ledger_id,
            metadata,
            metadata.fragments[-1],
            self._digest,
            first_entry=began_at + 1,
            confirmed=began_at,
            probe_entry=probe_entry if probe_entry > began_at + 1 else None,
            now_s=now_s,
        )
        self._write_back = WriteBack(
            self._ledger_id,
            metadata,
            self._digest,
            self.fence_key,
            self._choose,
            last_confirmed=began_at,
        )

    def _end(self, evidence: Evidence, write_back: WriteBack, now_s: float) -> None:
        last_entry = evidence.entry_id - 1
        if last_entry == self._began_at >= 0 and not self._is_sized(now_s):
            return
        is_changed = write_back.fragments != self._metadata.fragments
        kept = len(self._metadata.fragments) - 1
        fragments = write_back.fragments[kept:] if is_changed else None
        self.found = FoundEnd(last_entry, self._bytes, fragments, evidence)

    def _is_sized(self, now_s: float) -> bool:
        """Whether the size at the last confirmed entry is known by now; if not it is asked for."""
        entry_id = self._began_at
        if self._sizing is None:
            self._sizing = EndSearch(
                self._ledger_id,
                self._metadata,
                self._metadata.fragment_of(entry_id),
                self._digest,
                first_entry=entry_id,
                confirmed=entry_id,
                count_max=1,
                now_s=now_s,
            )
        sizing = self._sizing
        if sizing.position > entry_id:
            self._bytes = sizing.take()[0].ledger_bytes
            return True
        self._requests += [ask for ask in sizing.asks(now_s) if ask.first_entry == entry_id]
        return False
