"""Whoever becomes the writer of a log after somebody else: by opening it, or from a standby that
has read along. By the sync API, with a client that was connected before."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import dlog
from benchmarks.common import KIB, random_values
from benchmarks.log.load import number_of, numbers_in
from dlog.options import Takeover


class Successor:
    def __init__(self, client: dlog.Client) -> None:
        self._client = client
        self._learners: dict[str, Learner] = {}

    def stand_by(self, log: str) -> Any:
        self._learners[log] = Learner(self._client.open_standby(log))
        return True

    def succeed(self, log: str, takeover: Takeover) -> Any:
        """From the call to the first acknowledgement, on the clock that all processes share."""
        (value,) = random_values(1, KIB)
        learner = self._learners.pop(log, None)
        began_s = time.monotonic()
        if learner is None:
            writer = self._client.open_writer(log, takeover=takeover)
        else:
            writer = learner.standby.take_over(takeover)
        opened_s = time.monotonic()
        writer.append(value)
        acked_s = time.monotonic()
        if learner is not None:
            learner.end()
        writer.close()
        return {
            "began_s": began_s,
            "opened_s": opened_s,
            "acked_s": acked_s,
            "steps_ms": dataclasses.asdict(writer.takeover_times),
        }

    def look_for(self, log: str, book: str) -> Any:
        """Every message that was acknowledged before a kill is looked for."""
        acked = numbers_in(book)
        with self._client.open_reader(log) as messages:
            found = {number_of(message) for message in messages}
        return {"acked": len(acked), "lost": len(acked - found)}


class Learner:
    """Reads along, as a service does that stands by."""

    def __init__(self, standby: dlog.Standby) -> None:
        self.standby = standby
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def end(self) -> None:
        """It has read all that was there before the writer that took over."""
        self._reading.join()
        self.standby.close()

    def _read(self) -> None:
        for message in self.standby.messages():
            number_of(message)
