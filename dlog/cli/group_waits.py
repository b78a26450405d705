"""What the shards of a group wait for, as it can be seen from outside: a code for programs, and a
sentence for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlog.cli.escape import printable

if TYPE_CHECKING:
    from dlog import GroupDescription, Member, ShardStanding, WorkerId


@dataclass(frozen=True, slots=True)
class GroupWait:
    shard: int | None
    """None: a worker waits, or the whole group."""
    code: str
    sentence: str


def waits_of(found: GroupDescription) -> list[GroupWait]:
    """Of one look. What only time tells (who is silent, what does not get on) `dlog top` adds."""
    numbers = {shard.log: shard.number for shard in found.shards}
    over = {shard.log for shard in found.shards if shard.state == "finished"}
    alive = {member.id for member in found.members}
    return [
        GroupWait(shard.number, *told)
        for shard in found.shards
        for told in _of_shard(shard, numbers, over, alive)
    ] + [wait for member in found.members for wait in _told_by(member, numbers)]


TOLD = {
    "processing_failed": "its processing fails at {worker}, which says what with in its log",
    "dead_letter_refused": "{worker} cannot keep a dead letter of it: {cause}",
    "reading": "{worker} cannot read it now, and tries again; its log says why",
    "processing_stalled": "the processor of {worker} is at one call for long; the worker lives",
    "loop_blocked": "the event loop of {worker} takes no turn; the worker lives",
}


def _told_by(member: Member, numbers: dict[str, int]) -> Iterator[GroupWait]:
    for log, code in sorted(member.waits.items()):
        cause = member.causes.get(log, "its log says why")
        sentence = TOLD.get(code, "so says {worker}").format(worker=member.id, cause=cause)
        yield GroupWait(numbers.get(log), code, sentence)


def _of_shard(
    shard: ShardStanding, numbers: dict[str, int], over: set[str], alive: set[WorkerId]
) -> Iterator[tuple[str, str]]:
    if shard.state == "waiting":
        parents = [numbers[each] for each in shard.parents if each in numbers and each not in over]
        named = f"shard{'s' if len(parents) > 1 else ''} {', '.join(map(str, parents))}"
        yield "parents", f"it comes after {named}, which has to be done to the end first"
    elif shard.consumer is not None and shard.consumer not in alive:
        gone = f"{shard.consumer} has it and is not registered any more"
        heir = "another worker" if shard.owner not in alive else str(shard.owner)
        then = f"{heir} takes it" if alive else "the group has no workers"
        yield "worker_gone", f"{gone}; {then}"
    elif shard.state == "handed_over":
        heir = str(shard.owner)
        if shard.owner not in alive:
            heir += ", which is not registered any more"
        yield "hand_over", f"{shard.consumer} comes to an end with it, and hands it over to {heir}"
    elif shard.state == "free" and not alive:
        yield "no_workers", "the group has no workers"
    elif shard.state == "free":
        if shard.owner in alive:
            yield "unclaimed", f"it was released, and {shard.owner} is about to take it"
        else:
            yield "unclaimed", "nobody has it yet; one of the workers is about to take it"


def show_waits(waits: Sequence[GroupWait]) -> None:
    if waits:
        print()
    for wait in waits:
        where = "" if wait.shard is None else f"shard {wait.shard}: "
        print(printable(f"{wait.code}  {where}{wait.sentence}"))
