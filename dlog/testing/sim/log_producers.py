"""A simulated program that numbers its messages and retries without guessing: whatever it was not
told of, it sends again, by whatever writer there is. Its own notes survive its crashes."""

from __future__ import annotations

from dlog import limits
from dlog.errors import AlreadyExists, NotFound
from dlog.testing.sim.clients import Scene
from dlog.testing.sim.log_writers import SimWriter
from dlog.testing.sim.world import require


class SimProducer:
    def __init__(self, scene: Scene, producer_id: int) -> None:
        self.world = scene.world
        self.oracle = scene.oracle
        self.id = producer_id
        self.next_number = 0
        self.unanswered: list[int] = []
        self.is_stuck = False  # forgotten: nobody can tell it any more what is there
        self._last_answered: int | None = None
        self._writer: SimWriter | None = None  # by which everything unanswered is on its way

    def send(self, writer: SimWriter, count: int) -> None:
        """What is unanswered, if it is not on its way yet, and so many new ones."""
        if self.is_stuck or not writer.allows_numbers():
            return
        if writer is not self._writer:
            self._writer = writer
            self._last_answered = None  # of this writer's log, nothing yet
            for number in list(self.unanswered):
                self._offer(writer, number)
        elif self.world.chance.hits(0.2, "a number is sent again"):
            known = [*self.unanswered, self._last_answered]
            again = self.world.chance.pick(known, "which one")
            if again is not None:
                self._offer(writer, again)
        first = self.next_number
        self.next_number += count
        self.unanswered += range(first, first + count)  # of one that is stuck, for good
        self._offer(writer, first, count)

    def finish(self, writer: SimWriter) -> None:
        """Everything unanswered, once more."""
        for number in list(self.unanswered):
            self._offer(writer, number)

    def _offer(self, writer: SimWriter, number: int, count: int = 1) -> None:
        assert writer.handle is not None
        if self.is_stuck or not writer.takes_messages:
            return
        try:
            found = writer.dedup.find(self.id, number)
        except AlreadyExists as there:
            self.world.mark("a number was there")
            self.oracle.told_there(writer.handle, (self.id, number), there.id)
            self._answered(number)
            return
        except NotFound:
            self.world.mark("a producer was forgotten")
            few = limits.PRODUCERS_MAX <= 2
            require(few, "I29", "a producer was forgotten", self.id, number)
            self.is_stuck = True
            return
        if found is None:
            writer.submit(count, (self.id, number), self._answered)
            return
        self.world.mark("a number was on its way")
        batch, idx = found
        assert batch.producer is not None
        same = (batch.producer[0], batch.producer[1] + idx) == (self.id, number)
        require(same, "I29", "another message's ticket", batch.producer, idx, number)

    def _answered(self, number: int) -> None:
        self._last_answered = number
        if number in self.unanswered:
            self.unanswered.remove(number)
