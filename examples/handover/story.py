"""Three acts with two services: a planned hand-over, a crash, and one that is frozen and comes back
too late. Then everything is checked, and drawn."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import dlog
from examples.handover.payments import Payments
from examples.handover.picture import Moment, draw
from examples.handover.process import Process
from examples.handover.service import LOG

ORDERS = 15  # in each act, at least


class Story:
    def __init__(self, url: str, database: Path) -> None:
        self.url = url
        self.database = database
        self.moments: list[Moment] = []
        self.ordered: list[int] = []  # what a service said was in the log
        self.services: dict[str, Process] = {}

    def start(self, name: str) -> Process:
        service = Process(name, self.url, str(self.database), self._hear)
        self.services[name] = service
        return service

    def _hear(self, told: dict[str, object]) -> None:
        if told["what"] == "ordered":
            self.ordered.append(int(str(told["number"])))
        if not told["quiet"]:
            self.moments.append(Moment.of(told))

    def note(self, who: str, what: str) -> None:
        self.moments.append(Moment(time.time(), who, what))

    # --- the acts

    def play(self) -> None:
        north = self.start("north")
        north.wait_for("writes")
        south = self.start("south")
        south.wait_for("stands by")
        north.wait_orders(ORDERS)
        self.planned(north, south)
        self.crash(south)
        north.wait_for("writes")
        north.wait_orders(ORDERS)
        south = self.start("south")
        south.wait_for("stands by")
        self.frozen(north, south)
        south.tell("quit")
        south.wait_for("ends")
        north.tell("quit")
        north.wait_for("ends")

    def planned(self, north: Process, south: Process) -> None:
        north.tell("leave")
        north.wait_for("handed over")
        south.wait_for("writes")
        south.wait_orders(ORDERS)
        north.wait_for("stands by")

    def crash(self, south: Process) -> None:
        """Nobody tells the other one: it sees that the writer's session is gone."""
        south.kill()
        self.note("south", "killed")

    def frozen(self, north: Process, south: Process) -> None:
        """It is stopped after an order went to the log and before it is paid."""
        north.tell("hold")
        north.wait_for("holds")
        north.freeze()
        self.note("north", "frozen")
        south.tell("take")
        south.wait_for("writes")
        south.wait_orders(ORDERS)
        north.tell("go")
        north.thaw()
        self.note("north", "wakes")
        north.wait_for("refused by the database", "fenced")
        north.wait_for("stands by")

    # --- what must be so

    def check(self) -> None:
        with dlog.open_reader(LOG, url=self.url) as reader:
            log = [(message.seq, message.epoch, json.loads(message.value)) for message in reader]
        payments = Payments(self.database)
        paid = payments.all()
        payments.close()
        numbers = [order["number"] for _, _, order in log]
        claim("no order is lost or doubled in the log", numbers == list(range(len(log))))
        claim("what a service said was ordered is there", set(self.ordered) <= set(numbers))
        claim(
            "each order is paid exactly once, as the log says",
            [(p.number, p.cents, p.seq) for p in paid]
            == [(order["number"], order["cents"], seq) for seq, _, order in log],
        )
        epochs = [epoch for _, epoch, _ in log]
        claim("epochs never go back in the log", epochs == sorted(epochs))
        tokens = [payment.epoch for payment in paid]
        claim("tokens never go back in the database", tokens == sorted(tokens))
        refused = [m for m in self.moments if m.what == "refused by the database"]
        claim("the zombie's payment was refused", len(refused) == 1)
        assert all(payment.epoch >= epoch for payment, (_, epoch, _) in zip(paid, log, strict=True))
        held = next(moment for moment in self.moments if moment.what == "holds")
        number = int(str(held.about["number"]))
        claim("and paid by its successor", tokens[number] > epochs[number])
        count = Counter(epochs)
        say(f"\n{len(log)} orders: " + ", ".join(f"{n} with epoch {e}" for e, n in count.items()))
        for moment in self.moments:
            if moment.what == "writes":
                say(f"  {moment.who}, epoch {moment.about['epoch']}: {moment.about['times']}")


def claim(what: str, holds: bool) -> None:
    if not holds:
        raise SystemExit(f"it is not so: {what}")
    say(f"  ok  {what}")


def say(line: str) -> None:
    print(line, flush=True)


def main(arguments: list[str]) -> int:
    if not hasattr(signal, "SIGSTOP"):
        say("this example freezes processes, which this system cannot")
        return 0
    with tempfile.TemporaryDirectory(prefix="dlog-handover-") as scratch:
        given = arguments[0] if arguments else os.environ.get("DLOG_URL")
        url = given or f"file:{scratch}/data"
        say(f"orders are kept at {url}\n")
        story = Story(url, Path(scratch) / "payments.db")
        try:
            story.play()
        finally:
            for service in story.services.values():
                service.end()
        for line in draw(story.moments, ("north", "south")):
            say(line)
        say("")
        story.check()
    return 0
