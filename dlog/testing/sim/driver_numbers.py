"""What the programs over the real drivers number, and ask for: notes that outlive their processes,
and how they are judged by what is in the log at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from dlog.ids import MessageId
from dlog.reader.resolve import Never, Present, Resolved, TooLate, Undecided
from dlog.testing.sim.world import World, require

Number = tuple[int, int]  # of a producer


@dataclass
class Numbers:
    """Of all producers: who sent what, and what was told of it."""

    world: World
    sent: dict[Number, list[str]] = field(default_factory=dict)  # names of the messages, per try
    answered: dict[Number, MessageId | None] = field(default_factory=dict)
    became: dict[str, Resolved] = field(default_factory=dict)  # by the name of the message

    def next_of(self, producer_id: int) -> int:
        return sum(of == producer_id for of, _ in self.sent)

    def unanswered(self, producer_id: int) -> list[int]:
        mine = [each for each in self.sent if each[0] == producer_id]
        return [number for of, number in mine if (of, number) not in self.answered]

    def answer(self, number: Number, id: MessageId | None) -> None:
        before = self.answered.setdefault(number, id)
        agrees = before is None or id is None or before == id
        require(agrees, "I29", "a number is told at two places", number, before, id)
        self.answered[number] = before or id

    def resolved(self, name: str, answer: Resolved, *, acked: MessageId | None) -> None:
        """`acked`: its id, if that was told before the question."""
        self.world.mark(f"resolved: {type(answer).__name__.lower()}")
        require(not isinstance(answer, TooLate), "I24", "too late to tell", name, answer)
        if acked is not None:
            require(answer == Present(acked), "I24", "another answer than the ack", name, answer)
        if not isinstance(answer, Undecided):
            before = self.became.setdefault(name, answer)
            require(before == answer, "I24", "another answer than before", name, before, answer)

    def judge(self, log: dict[str, MessageId]) -> None:
        """By the names in the log."""
        for number, names in self.sent.items():
            there = [log[name] for name in names if name in log]
            require(len(there) <= 1, "I29", "a number is there twice", number, there)
            if number in self.answered:
                id = self.answered[number]
                require(bool(there), "I29", "a number was answered and is lost", number)
                require(id in (None, there[0]), "I29", "a number is elsewhere", number, id, there)
        for name, answer in self.became.items():
            found = log.get(name)
            expected = Never() if found is None else Present(found)
            require(answer == expected, "I24", "resolved wrongly", name, answer, found)
