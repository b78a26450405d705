"""What may be read of a ledger, and how news of it is heard.

Three facts make an entry readable, and nothing else does:

- the writer's word for it (a *LAC*), in a proof or in the header of an entry, verified by digest. A
  bookie also tells its LAC as a bare number, which no digest covers and which one damaged header
  can drive up for ever; that number only says that it is time to ask for the word itself;
- a later fragment: its writer began it behind what was confirmed, and no recovery ends below it.
  Bookies that came with the fragment may know no LAC at all;
- the closed end, which then is the answer whatever else was heard.

`TailRead` holds these for one reader; what it says never falls while the ledger is open. `LacRound`
is the question to a whole ensemble, for an answer not older than the question: it has one as soon
as no other bookies could have acknowledged a LAC (`quorum.is_covered`). It decides no end, ever.

Between questions stand *polls*, one at each bookie of the current ensemble, which the bookie
answers when its LAC rises. Why at each: a poll is woken once and by any rise, also one that it did
not wait for, and then sleeps on to its end. Hence three rules: a poll waits for more than *its own*
bookie last told, it lasts a second at most, and whatever is missed is heard then. A poll that comes
back early and empty was woken by a fence: metadata knows more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from dlog.errors import AuthError, Corrupt, DlogError, Unavailable
from dlog.ledger.bookkeeper.core.quorum import is_covered
from dlog.wire.bookie_codes import Answer, Call, Reaction, reaction
from dlog.wire.bookie_digest import EntryDigest
from dlog.wire.bookie_v3_replies import Body, ReadBody, ReadLacBody
from dlog.wire.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState

POLL_MS: Final = 1_000
POLL_EARLY_MS: Final = 800.0  # an empty answer before this was not the time's doing
PROOF_HEDGE_MS: Final = 20.0  # then a second bookie that told of more is asked as well
HEARD_S: Final = 2 * POLL_MS / 1000  # a bookie that is polled and well is heard within this
PAUSE_MS_FIRST: Final = 20.0
PAUSE_MS_MAX: Final = 1_000.0
_LAC_MAX: Final = (1 << 63) - 2  # one more is still an entry id


class LacAnswer(NamedTuple):
    """What one answer to READ_LAC proves. With another `answer` than OK the LAC, if there is one,
    is true all the same, but this bookie may know more."""

    answer: Answer
    last_confirmed: int


def read_lac_answer(
    answer: Answer, body: Body | None, *, ledger_id: int, digest: EntryDigest, where: str
) -> LacAnswer:
    lac = NO_ENTRY
    if isinstance(body, ReadLacBody) and body.ledger_id == ledger_id:
        try:
            if body.proof is not None:
                lac = digest.verify_lac(body.proof, ledger_id=ledger_id, where=where)
                if body.last_entry is None and answer is Answer.IO_FAILED:
                    answer = Answer.OK  # how a bookie says that it has a proof and no entry
            if body.last_entry is not None:
                last = digest.verify_last(body.last_entry, ledger_id=ledger_id, where=where)
                lac = max(lac, last.last_confirmed)
        except Corrupt:
            answer = Answer.BAD_DIGEST
    elif answer is Answer.OK:
        answer = Answer.BAD_REQUEST  # it answered something else
    return LacAnswer(answer, lac)


class LacRound:
    """One question to all bookies of the last fragment."""

    def __init__(self, metadata: LedgerMetadata, *, ledger_id: int) -> None:
        self.bookies = metadata.fragments[-1].ensemble
        self.last_confirmed = NO_ENTRY
        self.refused: Answer | None = None
        self._metadata = metadata
        self._ledger_id = ledger_id
        self._known: set[int] = set()
        self._unknown: dict[int, Answer] = {}

    @property
    def is_covered(self) -> bool:
        return self.refused is None and is_covered(self._metadata, self._known)

    @property
    def is_over(self) -> bool:
        heard = len(self._known) + len(self._unknown)
        return self.refused is not None or self.is_covered or heard == len(self.bookies)

    def on_answer(self, place: int, lac: LacAnswer) -> None:
        self.last_confirmed = max(self.last_confirmed, lac.last_confirmed)
        meaning = reaction(Call.FENCE, lac.answer)
        if meaning is Reaction.COVERED:
            self._known.add(place)
        else:
            self._unknown[place] = lac.answer
            if meaning is Reaction.STOP:
                self.refused = lac.answer

    def error(self) -> DlogError:
        """Why there is no answer: too few bookies gave one, or one refused for good."""
        told = ", ".join(
            f"{bookie}: {self._unknown.get(place, Answer.TIMED_OUT).value}"
            for place, bookie in enumerate(self.bookies)
            if place not in self._known
        )
        message = f"what of ledger {self._ledger_id} may be read is not known now ({told})"
        if self.refused is Answer.UNAUTHORIZED:
            return AuthError(message, ledger_id=self._ledger_id)
        wanted = self._metadata.ensemble_size - self._metadata.ack_quorum + 1
        return Unavailable(
            message,
            ledger_id=self._ledger_id,
            missing=[each for place, each in enumerate(self.bookies) if place not in self._known],
            needed=max(1, wanted - len(self._known)),
        )


@dataclass(slots=True, eq=False)
class Poll:
    """The polls at one bookie, one after the other."""

    bookie_id: str
    told: int | None = None  # its LAC by its own word, which is no proof
    heard_at_s: float = float("-inf")
    waits_past: int = NO_ENTRY
    is_standing: bool = False
    asked_at_s: float = 0.0
    pause_ms: float = 0.0
    not_before_s: float = 0.0
    # The proof of what it told:
    is_proving: bool = False
    proof_pause_ms: float = 0.0
    proof_not_before_s: float = 0.0


class TailRead:
    """What one reader knows, and what it should send to hear of more."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.is_deleted = False
        self.wants_metadata = False  # something happened that only metadata explains
        self._published = NO_ENTRY
        self._polls: dict[str, Poll] = {}
        self._proof_asked_at_s = 0.0
        self._brought: tuple[int, memoryview] | None = None
        self._follow(metadata)

    # --- what may be read

    @property
    def readable(self) -> int:
        if self.is_deleted:
            return NO_ENTRY
        if self.metadata.state is LedgerState.CLOSED:
            return self.metadata.last_entry_id
        return self._published

    @property
    def is_ended(self) -> bool:
        """There will be nothing more."""
        return self.is_deleted or self.metadata.state is LedgerState.CLOSED

    @property
    def is_in_recovery(self) -> bool:
        return self.metadata.state is LedgerState.IN_RECOVERY

    def on_metadata(self, metadata: LedgerMetadata) -> None:
        """As read now, or a while ago: states do not go back."""
        if metadata.state >= self.metadata.state:
            self._follow(metadata)

    def on_deleted(self) -> None:
        self.is_deleted = True
        self._polls.clear()
        self._brought = None

    def on_lac_answer(self, bookie_id: str, lac: LacAnswer, now_s: float) -> None:
        """From any bookie: what a digest proves is true wherever it stands."""
        self._published = max(self._published, lac.last_confirmed)
        poll = self._polls.get(bookie_id)
        if poll is not None and reaction(Call.FENCE, lac.answer) is Reaction.COVERED:
            poll.heard_at_s = now_s
            if poll.told is None:
                poll.told = lac.last_confirmed  # a first poll need not be woken for what is known

    def take_brought(self, entry_id: int) -> memoryview | None:
        """The payload of an entry that came with a poll, once."""
        if self._brought is None or self._brought[0] != entry_id or entry_id > self.readable:
            return None
        payload = self._brought[1]
        self._brought = None
        return payload

    def _follow(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        last = metadata.fragments[-1]
        self._published = max(self._published, last.first_entry_id - 1)
        if self.is_ended:
            self._polls.clear()
            return
        self._polls = {id: self._polls.get(id) or Poll(id) for id in last.ensemble}

    # --- polls

    def asks(self, now_s: float) -> tuple[list[Poll], list[Poll]]:
        """The polls to send now, each waiting for more than `waits_past`, and those of whose
        bookies a proof is to be asked."""
        polls = []
        for poll in self._polls.values():
            if not poll.is_standing and now_s >= poll.not_before_s:
                poll.is_standing, poll.asked_at_s = True, now_s
                poll.waits_past = self.readable if poll.told is None else poll.told
                polls.append(poll)
        proofs = []
        for poll in self._claiming():
            if now_s >= self._may_prove_at_s(poll):
                poll.is_proving, self._proof_asked_at_s = True, now_s
                proofs.append(poll)
        return polls, proofs

    def look_again_s(self) -> float:
        """When there may be more to send although nothing was heard."""
        times = [each.not_before_s for each in self._polls.values() if not each.is_standing]
        times += map(self._may_prove_at_s, self._claiming())
        return min(times, default=float("inf"))

    def is_heard(self, now_s: float) -> bool:
        """Bookies enough were heard lately, so that polls go on from what is known."""
        ensemble = self.metadata.fragments[-1].ensemble
        heard = {
            place
            for place, bookie_id in enumerate(ensemble)
            if (poll := self._polls.get(bookie_id)) and now_s - poll.heard_at_s <= HEARD_S
        }
        return is_covered(self.metadata, heard)

    def on_poll(
        self, poll: Poll, answer: Answer, body: Body | None, digest: EntryDigest, now_s: float
    ) -> None:
        poll.is_standing = False
        if reaction(Call.FENCE, answer) is Reaction.COVERED:
            poll.heard_at_s = now_s
        if (
            answer is not Answer.OK
            or not isinstance(body, ReadBody)
            or body.ledger_id != self.ledger_id
            or body.last_confirmed is None
        ):
            self._pause(poll, now_s)
            return
        told = min(max(body.last_confirmed, NO_ENTRY), _LAC_MAX)
        if told != poll.told:
            poll.told = told
            poll.proof_pause_ms = poll.proof_not_before_s = 0.0
        if told > poll.waits_past:
            poll.pause_ms = 0.0
            self._bring(poll, body, digest)
        elif (now_s - poll.asked_at_s) * 1000 < POLL_EARLY_MS:
            self.wants_metadata = True
            self._pause(poll, now_s)
        else:
            poll.pause_ms = 0.0

    def on_proof_answer(self, poll: Poll, lac: LacAnswer, now_s: float) -> None:
        """Less than was told: it may have been too early, or a number that nothing proves."""
        poll.is_proving = False
        self.on_lac_answer(poll.bookie_id, lac, now_s)
        if poll.told is not None and poll.told > self.readable:
            poll.proof_pause_ms = _longer(poll.proof_pause_ms)
            poll.proof_not_before_s = now_s + poll.proof_pause_ms / 1000

    def _claiming(self) -> list[Poll]:
        readable = self.readable
        return [
            poll
            for poll in self._polls.values()
            if poll.told is not None and poll.told > readable and not poll.is_proving
        ]

    def _may_prove_at_s(self, poll: Poll) -> float:
        if any(each.is_proving for each in self._polls.values()):
            return max(poll.proof_not_before_s, self._proof_asked_at_s + PROOF_HEDGE_MS / 1000)
        return poll.proof_not_before_s

    def _pause(self, poll: Poll, now_s: float) -> None:
        poll.pause_ms = _longer(poll.pause_ms)
        poll.not_before_s = now_s + poll.pause_ms / 1000

    def _bring(self, poll: Poll, body: ReadBody, digest: EntryDigest) -> None:
        """Kept until it is proven to be readable and read; one at a time. Each bookie brings the
        same one."""
        entry_id = poll.waits_past + 1
        if body.entry is None or body.entry_id != entry_id or entry_id <= self.readable:
            return
        if self._brought is not None and self._brought[0] == entry_id:
            return
        try:
            entry = digest.verify(
                body.entry, ledger_id=self.ledger_id, entry_id=entry_id, where=poll.bookie_id
            )
        except Corrupt:
            return  # the read of this entry will say so, if every bookie has it like this
        self._brought = (entry_id, entry.payload)


def _longer(pause_ms: float) -> float:
    return min(max(PAUSE_MS_FIRST, 2 * pause_ms), PAUSE_MS_MAX)
