"""A service that takes orders and pays them, exactly once, whichever of two processes does it.

An order is written to the log first; that decides it. Then it is paid in the database, with the
writer's epoch. Whoever takes over reads the log to its end before it writes, pays what its
predecessor had ordered and not paid any more, and only then takes orders of its own. While another
process does the work, it stands by: with a ledger ready, and all orders so far in its head.

    python -m examples.handover.service NAME URL DATABASE

It tells what it does on stdout, in lines of JSON, and listens for words on stdin: `take` (over now,
whoever is there), `leave` (hand over on purpose), `hold` (stop between the log and the database),
`go` (on), `quit`.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dlog
from examples.handover.payments import Payment, Payments, Zombie

LOG = "orders"
BETWEEN_ORDERS_S = 0.01
LOOK_S = 0.05
OTHERS_FIRST_S = 10.0  # so long one who handed over leaves it to whoever stands by


class Service:
    def __init__(self, name: str, url: str, database: Path) -> None:
        self.name = name
        self.client = dlog.connect(url)
        self.payments = Payments(database)
        self.orders: list[tuple[int, int]] = []  # seq and cents; an order's number is its place
        self.holds = False
        self.words: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self) -> None:
        others_first_s = 0.0
        while True:
            writer = self.stand_by(others_first_s)
            if writer is None:
                return
            others_first_s = 0.0
            try:
                goes_on = self.work(writer)
                others_first_s = OTHERS_FIRST_S
            except Zombie as refused:
                self.say("refused by the database", why=str(refused))
                goes_on = True
            except dlog.Fenced as lost:
                self.say("fenced", epoch=writer.epoch, why=lost.message)
                goes_on = True
            finally:
                self._let_go(writer)
            if not goes_on:
                return

    # --- standing by

    def stand_by(self, others_first_s: float) -> dlog.Writer | None:
        """The writer once it is our turn, with all before it read and paid; None to end."""
        willing_at_s = time.monotonic() + others_first_s
        with self.client.open_standby(LOG, start=self._next_seq(), owner=self.name) as standby:
            self.say("stands by", ready=standby.ready)
            while True:
                word = self._word()
                if word == "quit":
                    return None
                for message in standby.reader.read(timeout=LOOK_S):
                    self._learn(message)
                if standby.holder is not None:  # somebody took it
                    willing_at_s = 0.0
                try:
                    if word == "take":
                        writer = standby.take_over()
                    elif time.monotonic() >= willing_at_s and standby.wait(timeout=0):
                        writer = standby.take_over("if_dead")
                    else:
                        continue
                except (dlog.Conflict, dlog.Fenced):
                    continue  # the other one was faster
                for message in standby.messages():  # all up to where our writer begins
                    self._learn(message)
                return writer

    def _learn(self, message: dlog.Message) -> None:
        assert message.value is not None
        order = json.loads(message.value)
        assert order["number"] == len(self.orders), "orders are numbered without gaps"
        self.orders.append((message.seq, order["cents"]))

    def _next_seq(self) -> int:
        return self.orders[-1][0] + 1 if self.orders else 0

    # --- working

    def work(self, writer: dlog.Writer) -> bool:
        """Take orders until we are told to leave. False: the end of the service."""
        self.payments.guard(writer.epoch)
        left = self._pay_what_is_left(writer)
        times = writer.takeover_times
        self.say("writes", epoch=writer.epoch, left=left, total_ms=times.total_ms, times=str(times))
        while True:
            word = self._word()
            if word in ("leave", "quit"):
                writer.hand_over("whoever stands by")
                self.say("handed over", epoch=writer.epoch)
                return word == "leave"
            self.holds = self.holds or word == "hold"
            self._order(writer)
            time.sleep(BETWEEN_ORDERS_S)

    def _pay_what_is_left(self, writer: dlog.Writer) -> int:
        """What was ordered before us; the database knows how far it came."""
        paid_seq = self.payments.last_seq()
        left = 0
        for number, (seq, cents) in enumerate(self.orders):
            if seq > paid_seq:
                left += self.payments.pay(Payment(number, cents, seq, writer.epoch))
        return left

    def _order(self, writer: dlog.Writer) -> None:
        number, seq = len(self.orders), self._next_seq()
        cents = 100 + 37 * number % 900
        order = {"number": number, "cents": cents, "by": self.name, "epoch": writer.epoch}
        writer.append(json.dumps(order).encode())
        self.orders.append((seq, cents))
        self.say("ordered", quiet=True, number=number)
        if self.holds:
            self.say("holds", number=number)
            while self._word(wait=True) != "go":
                pass
            self.holds = False
            self.say("goes on", number=number)
        self.payments.pay(Payment(number, cents, seq, writer.epoch))

    def _let_go(self, writer: dlog.Writer) -> None:
        try:
            writer.close()
        except dlog.DlogError:
            pass  # it was told already

    # --- the outside

    def _listen(self) -> None:
        for line in sys.stdin:
            self.words.put(line.strip())
        self.words.put("quit")

    def _word(self, *, wait: bool = False) -> str | None:
        try:
            return self.words.get(block=wait)
        except queue.Empty:
            return None

    def say(self, what: str, *, quiet: bool = False, **about: Any) -> None:
        told = {"at": time.time(), "who": self.name, "what": what, "quiet": quiet, **about}
        print(json.dumps(told), flush=True)


def main() -> None:
    name, url, database = sys.argv[1:]
    service = Service(name, url, Path(database))
    service.run()
    service.say("ends")
    service.payments.close()
    service.client.close()


if __name__ == "__main__":
    main()
