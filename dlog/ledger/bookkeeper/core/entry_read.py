"""Reading entries that may be read: which bookie is asked, when the next one is, what is taken.

One `EntryRead` is one read of a run of entries that the same bookies hold. It asks the bookie that
the reader is at home with, and another one when that one fails, or is silent for longer than
answers usually take (a *hedge*): the first right answer wins, whoever gave it.

    asking ──► answered: the run is taken as far as it is right
       │  ▲
       ▼  │    nothing right in the answer, or silence: the next bookie
    asking ──► failed: every bookie was asked, or the deadline is over

What is right is decided by digests alone: entries with the expected ids, of this ledger, as its
writer made them. A run that goes wrong in the middle is cut there, and the next read meets the bad
entry first; a short answer is an answer. The core knows nothing about what may be read: whoever
asks keeps within the published and within one fragment, because bookies hold more than that and
give it away. "Not found" is never concluded from bookies, only from metadata.

`BookieHabits` is what reads teach about bookies, shared by all readers of a store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from dlog.errors import AuthError, Corrupt, DlogError, ReaderClosed, Unavailable, check
from dlog.limits import BOOKIE_FRAME_BYTES_MAX, READ_TIMEOUT_MS_DEFAULT
from dlog.wire.bookie_codes import Answer, Call, Reaction, reaction, worse_of
from dlog.wire.bookie_digest import EntryDigest

READ_DEADLINE_MS: Final = 2.0 * READ_TIMEOUT_MS_DEFAULT  # of one read, all its bookies together
RUN_ENTRIES_MAX: Final = 1 << 14  # verified in one turn of the loop: some 15 ms

HEDGE_MS_FIRST: Final = 250.0  # while too little is known
HEDGE_MS_MIN: Final = 20.0
HEDGE_MS_MAX: Final = 2_000.0
_TIMES_KEPT: Final = 128
_TIMES_NEEDED: Final = 16
_USUAL: Final = 0.99

TROUBLED_S: Final = 10.0  # how long a bookie that failed or was slow is asked last
SINGLES_S: Final = 600.0  # how long a bookie that hung up on batch reads is spared them

# Before the first entry of an answer, and before each.
_BATCH_FRONT_BYTES: Final = 36
_ENTRY_FRONT_BYTES: Final = 4

_TROUBLE: Final = frozenset({Answer.TIMED_OUT, Answer.DISCONNECTED, Answer.BUSY, Answer.IO_FAILED})
_NOT_HERE: Final = frozenset({Answer.NO_ENTRY, Answer.NO_LEDGER})


class BookieHabits:
    """Advice only: in which order to ask, for how long to wait, and whether in batches."""

    def __init__(self) -> None:
        self._times_ms: deque[float] = deque(maxlen=_TIMES_KEPT)
        self._hedge_ms = HEDGE_MS_FIRST
        self._unsorted = 0
        self._troubled_until_s: dict[str, float] = {}
        self._singles_until_s: dict[str, float] = {}
        self._batches_well: set[str] = set()
        self._lost_at_s: dict[str, float] = {}  # of those that were seen to know batches

    @property
    def hedge_ms(self) -> float:
        """Hardly any answer takes longer."""
        return self._hedge_ms

    def note_time(self, took_ms: float) -> None:
        self._times_ms.append(took_ms)
        self._unsorted += 1
        if self._unsorted >= _TIMES_NEEDED:
            self._unsorted = 0
            usual_ms = sorted(self._times_ms)[int((len(self._times_ms) - 1) * _USUAL)]
            self._hedge_ms = min(max(usual_ms, HEDGE_MS_MIN), HEDGE_MS_MAX)

    def note_trouble(self, bookie_id: str, now_s: float) -> None:
        self._troubled_until_s[bookie_id] = now_s + TROUBLED_S

    def is_troubled(self, bookie_id: str, now_s: float) -> bool:
        return self._troubled_until_s.get(bookie_id, now_s) > now_s

    def note_batch(
        self, bookie_id: str, answer: Answer, *, asked_at_s: float, now_s: float
    ) -> None:
        """A bookie older than batch reads closes the connection on one. So does one that dies: a
        bookie that was seen to know them is believed a second time. All that it was asked before it
        was lost is lost with it, and counts once."""
        if answer is Answer.OK:
            self._batches_well.add(bookie_id)
        elif answer is Answer.DISCONNECTED:
            if bookie_id in self._batches_well:
                self._batches_well.discard(bookie_id)
                self._lost_at_s[bookie_id] = now_s
            elif asked_at_s > self._lost_at_s.get(bookie_id, float("-inf")):
                self._singles_until_s[bookie_id] = now_s + SINGLES_S

    def reads_batches(self, bookie_id: str, now_s: float) -> bool:
        return self._singles_until_s.get(bookie_id, now_s) <= now_s


def asking_order(
    bookies: Sequence[str],
    *,
    home: str | None,
    in_flight: Mapping[str, int],
    habits: BookieHabits,
    now_s: float,
) -> list[str]:
    """The bookies that hold an entry, best first: those without trouble; of them those with the
    fewest reads of this reader in flight; of them `home`, where the last read was answered, and
    then as they stand behind it. A bookie reads ahead, so a reader with one read at a time stays
    where it is; one with several at a time spreads over all.
    """
    start = bookies.index(home) if home in bookies else 0
    turned = [*bookies[start:], *bookies[:start]]
    return sorted(turned, key=lambda id: (habits.is_troubled(id, now_s), in_flight.get(id, 0)))


class Ask(NamedTuple):
    """One request to one bookie: a batch, or `count_max` single reads side by side."""

    bookie_id: str
    count_max: int
    frame_bytes_max: int
    as_batch: bool
    timeout_ms: float
    asked_at_s: float


class EntryRead:
    """`bookies` in the order in which to ask them. Not `in_batches` where no bookie has every
    entry; a bookie that knows no batches is asked for `singles_max` entries side by side."""

    def __init__(
        self,
        ledger_id: int,
        first_entry: int,
        last_entry: int,
        *,
        bytes_max: int,
        bookies: Sequence[str],
        in_batches: bool,
        singles_max: int,
        digest: EntryDigest,
        habits: BookieHabits,
        deadline_s: float,
    ) -> None:
        check(0 <= first_entry <= last_entry, "a read has an entry", first_entry, last_entry)
        self.ledger_id = ledger_id
        self.first_entry = first_entry
        self.payloads: list[memoryview] = []  # what was read, once `is_over` and nothing failed
        self.winner: str | None = None
        self.hedges = 0
        self._count_max = min(last_entry - first_entry + 1, RUN_ENTRIES_MAX)
        self._bytes_max = max(bytes_max, 1)
        self._to_ask = list(reversed(bookies))
        self._in_batches = in_batches
        self._singles_max = singles_max
        self._digest = digest
        self._habits = habits
        self._deadline_s = deadline_s
        self._hedge_at_s = 0.0
        self.asking: dict[str, Ask] = {}  # bookies that owe an answer
        self.failed: dict[str, Answer] = {}
        self._worst = Answer.OK
        self._stopped: Answer | None = None

    @property
    def is_over(self) -> bool:
        return (
            self.winner is not None
            or self._stopped is not None
            or (not self.asking and not self._to_ask)
        )

    @property
    def is_hedged(self) -> bool:
        """One bookie was not enough."""
        return self.hedges > 0

    @property
    def damaged_at(self) -> list[str]:
        """The bookies that gave a first entry that its writer did not make."""
        return [id for id, answer in self.failed.items() if answer is Answer.BAD_DIGEST]

    def asks(self, now_s: float) -> Ask | None:
        """What to send now, if anything. Looks at the time: call again at `look_again_s`."""
        if self.is_over:
            return None
        if now_s >= self._deadline_s:
            self._give_up(now_s)
            return None
        if not self._to_ask or (self.asking and now_s < self._hedge_at_s):
            return None
        bookie_id = self._to_ask.pop()
        self.hedges += bool(self.asking)
        self._hedge_at_s = now_s + self._habits.hedge_ms / 1000
        ask = self._ask(bookie_id, now_s)
        self.asking[bookie_id] = ask
        return ask

    def look_again_s(self) -> float:
        """When silence means something."""
        if self._to_ask:
            return min(self._hedge_at_s, self._deadline_s)
        return self._deadline_s

    def on_stall(self, lasted_s: float) -> None:
        """We stood still: nobody else was slow for so long."""
        self._deadline_s += lasted_s
        self._hedge_at_s += lasted_s

    def on_unreached(self, ask: Ask, now_s: float) -> None:
        """There was no connection, and nothing was sent."""
        self._habits.note_trouble(ask.bookie_id, now_s)
        if not self.is_over and self.asking.pop(ask.bookie_id, None) is not None:
            self._fail(ask.bookie_id, Answer.DISCONNECTED)

    def on_answer(
        self, ask: Ask, answer: Answer, entries: Sequence[memoryview], now_s: float
    ) -> None:
        """Entries from the first one on, if the answer is OK. An answer that comes after the end
        only teaches."""
        if ask.as_batch:
            self._habits.note_batch(ask.bookie_id, answer, asked_at_s=ask.asked_at_s, now_s=now_s)
        if answer in _TROUBLE:
            self._habits.note_trouble(ask.bookie_id, now_s)
        else:
            self._habits.note_time((now_s - ask.asked_at_s) * 1000)
        if self.is_over or self.asking.pop(ask.bookie_id, None) is None:
            return
        if reaction(Call.READ, answer) is Reaction.TAKE:
            answer = self._take(ask, entries)
            if answer is Answer.OK:
                self.winner = ask.bookie_id
                for other in self.asking.values():
                    if other.asked_at_s < ask.asked_at_s:  # overtaken
                        self._habits.note_trouble(other.bookie_id, now_s)
                return
        if reaction(Call.READ, answer) is Reaction.STOP:
            self._stopped = answer
        self._fail(ask.bookie_id, answer)
        if ask.as_batch and not self._habits.reads_batches(ask.bookie_id, now_s):
            self._to_ask.insert(0, ask.bookie_id)  # once more, in its own way, after the others

    def error(self) -> DlogError:
        """Why there is nothing, once it `is_over` without a winner."""
        entry = f"entry {self.first_entry} of ledger {self.ledger_id}"
        about: dict[str, Any] = {"ledger_id": self.ledger_id, "entry_id": self.first_entry}
        if self._stopped is not None:
            return ReaderClosed(f"{entry} was being read when the store closed", **about)
        told = ", ".join(f"{id}: {answer.value}" for id, answer in self.failed.items())
        answers = set(self.failed.values())
        if Answer.BAD_DIGEST in answers and answers <= _NOT_HERE | {Answer.BAD_DIGEST}:
            return Corrupt(f"no bookie has {entry} as it was written ({told})", **about)
        if self._worst is Answer.UNAUTHORIZED:
            return AuthError(f"{entry} may not be read ({told})", **about)
        return Unavailable(
            f"{entry} cannot be read now ({told})",
            missing=list(self.failed),
            needed=1,
            **about,
        )

    # --- inside

    def _ask(self, bookie_id: str, now_s: float) -> Ask:
        as_batch = self._in_batches and self._habits.reads_batches(bookie_id, now_s)
        count_max = self._count_max
        if not as_batch:
            count_max = min(count_max, self._singles_max if self._in_batches else 1)
        # Room for one entry of just so many bytes, so that payloads never add up to more.
        front_bytes = _BATCH_FRONT_BYTES + _ENTRY_FRONT_BYTES + self._digest.head_bytes
        frame_bytes_max = min(self._bytes_max + front_bytes, BOOKIE_FRAME_BYTES_MAX)
        left_ms = (self._deadline_s - now_s) * 1000
        timeout_ms = min(float(READ_TIMEOUT_MS_DEFAULT), left_ms)
        return Ask(bookie_id, count_max, frame_bytes_max, as_batch, timeout_ms, now_s)

    def _take(self, ask: Ask, entries: Sequence[memoryview]) -> Answer:
        """BAD_DIGEST if not even the first one is right."""
        if len(entries) == 0:
            return Answer.NO_ENTRY
        try:
            payloads = self._digest.verify_run(
                entries[: ask.count_max],
                ledger_id=self.ledger_id,
                first_entry=self.first_entry,
                where=ask.bookie_id,
            )
        except Corrupt:
            return Answer.BAD_DIGEST
        self.payloads = payloads if ask.as_batch else _within(payloads, self._bytes_max)
        return Answer.OK

    def _fail(self, bookie_id: str, answer: Answer) -> None:
        self.failed[bookie_id] = answer
        self._worst = worse_of(self._worst, answer)

    def _give_up(self, now_s: float) -> None:
        for bookie_id in self.asking:
            self._habits.note_trouble(bookie_id, now_s)
            self._fail(bookie_id, Answer.TIMED_OUT)
        self.asking.clear()
        self._to_ask.clear()


def _within(payloads: list[memoryview], bytes_max: int) -> list[memoryview]:
    taken_bytes = 0
    for count, payload in enumerate(payloads):
        taken_bytes += len(payload)
        if count > 0 and taken_bytes > bytes_max:
            return payloads[:count]
    return payloads
