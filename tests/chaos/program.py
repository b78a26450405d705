"""The programs that are killed and frozen: `python -m tests.chaos.program NAME PLACE HISTORY
PROCESS [--crash POINT:SIDE:HIT:WHAT] [--plant BUG] [ARGUMENTS…]`. Each writes its history and says
`hits …` at its end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
from pathlib import Path

from dlog import Message
from dlog.errors import DlogError, Fenced, Timeout, Unavailable
from dlog.options import LogOptions, TailMode
from dlog.testing.children import CrashPoint, arm, pause
from tests.chaos import planted
from tests.chaos.actors import LOG, SMALL, THE_END, VALUE_BYTES, RecordedWriter, Stage


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def hear() -> str:
    line = await asyncio.to_thread(sys.stdin.readline)
    return line.strip()


async def life(stage: Stage) -> None:
    """All that happens to a log: made, appended to, rotated, handed over, taken over, read."""
    first = await stage.open_writer()
    await first.append(5)
    await first.append_together(12)
    await first.rotate()
    await first.append(2)
    await first.close(hand_over=True)
    second = await stage.open_writer()
    await second.append(2)
    third = await stage.open_writer()
    await third.append(2)
    try:
        await second.append()
    except Fenced as lost:
        say("lost", lost.winner.name)
    await third.append_together(10)
    await stage.read()
    await third.close()


async def numbers(stage: Stage) -> None:
    """Messages with the numbers of a producer: the first of the log, over a rotation, a hand-over
    and a takeover."""
    first = await stage.open_writer()
    await first.append(1)
    await first.append(2, numbered=True)
    await first.rotate()
    await first.append_together(4, numbered=True)
    await first.close(hand_over=True)
    second = await stage.open_writer()
    await second.append(2, numbered=True)
    third = await stage.open_writer()
    await third.append(2, numbered=True)
    with contextlib.suppress(Fenced):
        await second.append()
    await stage.read()
    await third.close()


async def stand(stage: Stage) -> None:
    """A standby follows two rotations and takes over; another one leaves as it came."""
    first = await stage.open_writer()
    await first.append(3)
    standby = await stage.client.open_standby(LOG, create=SMALL, owner="standby")
    idle = await stage.client.open_standby(LOG, create=False)
    for _ in range(2):
        kept = standby.ledger_id
        await first.rotate()
        await first.append(2)
        while standby.ledger_id == kept or not standby.ready:
            await pause(0.002)
    await idle.close()
    second = await stage.open_writer(standby=standby)
    await second.append(2)
    await second.rotate()
    await second.append(2)
    await second.close()
    await standby.close()
    await stage.read()


async def heal(stage: Stage) -> None:
    """Somebody recovers the ledger under us; the log stays ours. Small messages: no rotation."""
    writer = await stage.open_writer()
    await writer.append(3, size=40)
    say("recover")
    await hear()
    await writer.append_together(6, size=40)
    await writer.append(2, size=40)
    await writer.close()


async def remove(stage: Stage) -> None:
    writer = await stage.open_writer()
    await writer.append(2)
    await writer.rotate()
    await writer.append(2)
    await writer.close()
    say("removing")
    await stage.client.admin.remove(LOG)
    say("removed")


async def write(
    stage: Stage, most: str = "400", together: str = "1", size: str = str(VALUE_BYTES)
) -> None:
    """Appends until it is fenced, and tells by whom."""
    writer = await stage.open_writer()
    say("open", writer.writer.epoch)
    await _append_until_lost(writer, int(most), int(together), int(size))
    await writer.close()


async def _append_until_lost(
    writer: RecordedWriter, most: int, together: int, size: int = VALUE_BYTES
) -> None:
    try:
        for number in range(most):
            await writer.append_together(together, size=size)
            if number == 4:
                say("running")
    except Fenced as lost:
        say("lost", lost.winner.epoch, lost.winner.name)
    except DlogError as error:
        say("failed", type(error).__name__, error.outcome.value, error.message)


async def idle(stage: Stage, size: str = str(VALUE_BYTES)) -> None:
    writer = await stage.open_writer()
    await writer.append(4, size=int(size))
    say("idle")
    await hear()
    await _append_until_lost(writer, 3, 1)
    await writer.close()


async def opener(stage: Stage) -> None:
    """Opens once, and says how that went."""
    try:
        writer = await stage.open_writer()
    except DlogError as error:
        say("failed", type(error).__name__, error.pid)
        return
    say("open", writer.writer.epoch)
    await _append_until_lost(writer, 2, 1)
    await writer.close()


async def race(stage: Stage, least_s: str, most_s: str) -> None:
    """Open, append a few, and again, for `least_s`, and until it had its turns or `most_s` are
    over; a fence is no reason to give up."""
    chance = random.Random(stage.recorder.process)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    opened = acked = 0
    while (took_s := loop.time() - began_s) < float(least_s) or (
        took_s < float(most_s) and (opened < 2 or acked < 1)
    ):
        try:
            writer = await stage.open_writer()
            opened += 1
            for _ in range(chance.randint(1, 8)):
                await writer.append_together(chance.randint(1, 4))
                acked += 1
            if chance.random() < 0.3:
                await writer.close(hand_over=chance.random() < 0.5)
        except (Fenced, Unavailable, Timeout) as error:
            say("lost", type(error).__name__)
        await pause(0.03 * chance.random())
    say("raced", opened, acked)


async def follow(stage: Stage, tail: TailMode = "normal") -> None:
    """Tails until the message that ends it all."""
    say("following")
    read = await stage.read(until=THE_END, tail=tail)
    say("read", len(read))


async def chase(stage: Stage, tail: TailMode = "normal") -> None:
    """Tails as `follow` does, where servers go away: whatever ends a reading, another one begins
    behind what was delivered."""
    say("chasing")
    next_seq = begun = 0
    while True:
        taken: list[Message] = []
        begun += 1
        try:
            await stage.read(
                start=next_seq, first_seq=next_seq, until=THE_END, tail=tail, taken=taken
            )
            break
        except (Unavailable, Timeout) as error:
            say("again", type(error).__name__, error.message)
            await pause(0.1)
        next_seq = taken[-1].seq + 1 if taken else next_seq
    say("read", begun)


async def wild(stage: Stage, seed: str, steps: str) -> None:
    """A writer's random walk."""
    chance = random.Random(seed)
    writer: RecordedWriter | None = None
    for _ in range(int(steps)):
        try:
            if writer is None:
                writer = await stage.open_writer(
                    entry_bytes=chance.choice((1, 600, 1 << 18)),
                    window_entries=chance.choice((1, 3, 2_000)),
                )
            match chance.randrange(12):
                case 0:
                    await writer.rotate()
                case 1:
                    await writer.close(hand_over=chance.random() < 0.5)
                    writer = None
                case 2 | 3:
                    await stage.read(batches=chance.random() < 0.5)
                case 4:
                    await pause(0.02 * chance.random())
                case _:
                    await writer.append_together(chance.randint(1, 9), size=chance.randint(8, 900))
        except (Fenced, Unavailable, Timeout) as error:
            say("lost", type(error).__name__)
            writer = None
    if writer is not None:
        await writer.close()


async def stall(stage: Stage) -> None:
    """The first ledger's disk hangs, until told; the writer rotates and goes on in the next one.
    Nothing of that may be acknowledged, since the end of the first ledger is not known."""
    writer = await stage.open_writer(entry_bytes=VALUE_BYTES)  # each message travels alone
    await writer.append(2)
    works_again = planted.hang_the_disk()
    tasks = [asyncio.create_task(writer.append_together(1))]
    await pause(0)
    tasks.append(asyncio.create_task(writer.rotate()))
    while writer.writer._engine.core.current.number == 1:  # the parent's patience is the bound
        await pause(0.005)
    tasks.append(asyncio.create_task(writer.append_together(5)))
    await asyncio.wait(tasks, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
    say("stalled", sum(task.done() for task in tasks))
    await hear()
    works_again.set()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, DlogError):
            say("ended", type(ended).__name__, ended.outcome.value, ended.handle.value, ended)
        elif ended is not None:
            raise ended
    if writer.error is None:
        await writer.close()


async def fill(stage: Stage, when: str, final: str) -> None:
    """The disk fills up; then there is room again, and work goes on. The survey is made here, too:
    nobody else sees this disk."""
    assert isinstance(stage.place, Path)
    room = stage.place / "room"  # given back later
    writer = await stage.open_writer(create=LogOptions() if when == "append" else SMALL)
    await writer.append(3)
    if when != "append":
        take_all_room(stage.place / "ballast")
    try:
        match when:
            case "append":
                while True:
                    await writer.append_together(4, size=20_000)
            case "rotation":
                await writer.writer.rotate(timeout=1)
            case "takeover":
                await stage.open_writer(open_timeout_ms=1_000)
    except DlogError as error:
        say("full", type(error).__name__, error.outcome.value, error.message)
    room.unlink()
    if when == "rotation":
        await writer.append(4)
        await writer.close()
    await stage.survey(final)
    say("went on")


def take_all_room(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


PROGRAMS = {
    program.__name__: program
    for program in (
        life,
        numbers,
        stand,
        heal,
        remove,
        write,
        idle,
        opener,
        race,
        follow,
        chase,
        wild,
        stall,
        fill,
    )
}


def _place(text: str) -> Path | str:
    return text if text.startswith("zk://") else Path(text)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PROGRAMS)
    parser.add_argument("place", type=_place)
    parser.add_argument("history", type=Path)
    parser.add_argument("process")
    parser.add_argument("--crash", type=CrashPoint.parse)
    parser.add_argument("--plant", choices=planted.BUGS)
    parser.add_argument("--patience-ms", type=int, default=10_000)
    parser.add_argument("rest", nargs="*")
    given = parser.parse_args()
    hits = arm(given.crash)
    if given.plant is not None:
        planted.BUGS[given.plant]()
    stage = Stage(given.place, given.history, given.process, meta_timeout_ms=given.patience_ms)
    async with stage:
        await PROGRAMS[given.name](stage, *given.rest)  # type: ignore[operator]
    told = {f"{point}:{side}": count for (point, side), count in sorted(hits.items())}
    say("hits", json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main())
