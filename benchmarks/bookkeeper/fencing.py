"""Whether a fence holds over crashes of the bookies that were fenced: `fence_crash`.

A writer with a ledger is frozen (SIGSTOP); another process recovers the ledger; all three bookies
are killed (-9) and started again; the writer is woken and adds at once, knowing nothing, while for
a moment ZooKeeper does not answer (or its look at the metadata would be faster than any add). Every
acknowledgement it is given is a *zombie ack*; there may be none. There is no fourth bookie: to name
it in the metadata would tell the writer what it must find out otherwise. A bookie that holds no
entry of a ledger forgets its fence, so:

- *reconnect check alone*: the ledger is empty. The bookies would take the adds (they are asked past
  every client, and the count stands beside); only the writer's look at the metadata stops it.
- *first entry acked by all*: the bookies themselves must refuse: never as many as an ack quorum may
  take an add. (A recovery goes on once enough are fenced, so one may die before the fence reached
  it.) They are asked past every client, and then through the writer.
"""

from __future__ import annotations

import os
import signal
import time

from benchmarks.bookkeeper.stage import Stage, Stages
from benchmarks.bookkeeper.tails import frame_of
from benchmarks.common import Finding
from dlog.testing.cluster.conversation import Program
from dlog.testing.raw_ledgers import connected
from dlog.wire.bookie_codes import Answer

KILLS = 51  # of each kind, three at a time
ACK_QUORUM = 2
PATIENCE_S = 60.0
LOOK_S = 1.5  # no bookie loses its session over that
ENTRIES = {"reconnect check alone": 0, "first entry acked by all": 5}


def fence_crash(stages: Stages) -> list[Finding]:
    rounds = stages.setting.pick(KILLS // 3, 1)
    with stages.stage(bookies=3) as stage:
        other = stage.new_ours()
        return [_variant(stage, other, what, entries, rounds) for what, entries in ENTRIES.items()]


def _variant(stage: Stage, other: Program, what: str, entries: int, rounds: int) -> Finding:
    kills = zombie_acks = 0
    raw_acks: list[int] = []
    writer_pid = stage.ours.pid
    assert writer_pid is not None
    for _ in range(rounds):
        ledger_id = stage.ours.tell("zombie", entries=entries)["ledger"]
        bookies = stage.ours.tell("bookies", ledger=ledger_id)
        os.kill(writer_pid, signal.SIGSTOP)
        # It finds the question when it wakes, together with the connections that were lost.
        adding = stage.ours.ask("zombie_adds", ledger=ledger_id, entries=10, seconds=PATIENCE_S)
        closed = other.tell("recover", ledger=ledger_id)
        assert closed["last"] == entries - 1, closed
        members = [stage.cluster.bookie(each) for each in bookies]
        for bookie in members:
            bookie.kill()
        kills += len(members)
        for bookie in members:
            bookie.start()
        for bookie in members:
            bookie.wait_until_serving()
        raw_acks.append(_raw_acks(stage, ledger_id, bookies, entries))
        stage.cluster.zookeeper.freeze()
        os.kill(writer_pid, signal.SIGCONT)
        time.sleep(LOOK_S)
        stage.cluster.zookeeper.thaw()
        told = adding.result(2 * PATIENCE_S)
        assert (told["failure"] or "Fenced").startswith("Fenced"), told["failure"]
        zombie_acks += told["acked"]
    forgot = entries == 0
    return Finding(
        "fence_crash",
        what,
        f"{zombie_acks} zombie acks over {kills} kills",
        "0 zombie acks",
        zombie_acks == 0 and (forgot or max(raw_acks) < ACK_QUORUM),
        beside=f"{sum(raw_acks)} of {kills} bookies took an add past every client, "
        f"at most {max(raw_acks)} of a ledger",
        values={"zombie_acks": zombie_acks, "kills": kills, "raw_acks": sum(raw_acks)},
        rounds={"raw acks of a ledger": list(map(float, raw_acks))},
    )


def _raw_acks(stage: Stage, ledger_id: int, bookies: list[str], entries: int) -> int:
    """How many bookies take an ordinary add of an entry far behind the end."""
    frame = frame_of(ledger_id, entries + 100, confirmed=entries - 1, size=100)
    taken = 0
    for bookie_id in bookies:
        with connected(stage.cluster.bookie(bookie_id)) as bookie:
            (reply,) = bookie.send_adds(frame, 1)
            taken += reply.answer is Answer.OK
    return taken
