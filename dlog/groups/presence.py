"""Being a member: procedures around the nodes of workers.

Each is one try. It looks into what it does not know (a reply that was lost, a node that somebody
rang), and raises what it cannot help; whoever asked tries again later, by its own clock.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dlog.effects import (
    CreateNode,
    DeleteNode,
    ListNodes,
    Pause,
    Procedure,
    ReadNode,
    ReplaceNode,
    Together,
)
from dlog.errors import (
    AlreadyExists,
    Conflict,
    DlogError,
    FormatError,
    LeaseLost,
    NotFound,
    unknown,
)
from dlog.groups.places import GroupPlaces
from dlog.groups.view import WorkerId
from dlog.groups.workers import WorkerNode

TRIES = 4
RENEW_TRIES = 8
RING_TRIES = 16  # many may ring one worker, as when another one begins
READS_AT_ONCE = 16
LOOKS = 8  # in one time-out, for a sign of life
NOBODY = WorkerId("", "nobody")  # that reads and is no member


class SeenWorker(NamedTuple):
    node: WorkerNode
    version: int


def read_worker(
    places: GroupPlaces, worker: WorkerId, *, fresh: bool = True
) -> Procedure[SeenWorker | None]:
    """None: it is dead, or was never there."""
    path = places.worker(worker)
    try:
        value, version = yield ReadNode(path, fresh=fresh)
    except NotFound:
        return None
    return SeenWorker(WorkerNode.from_bytes(value, worker, where=path), version)


def register(places: GroupPlaces, me: WorkerId, domain: str | None) -> Procedure[SeenWorker]:
    others = yield from _listed(places)
    after = tuple(each.incarnation for each in others if each.name == me.name and each != me)
    node = WorkerNode(me, domain=domain, after=after)
    failure: DlogError | None = None
    for _ in range(TRIES):
        try:
            version = yield CreateNode(places.worker(me), node.to_bytes(), point="group.registered")
            return SeenWorker(node, version)
        except AlreadyExists as error:
            failure = error
        except DlogError as error:
            if not unknown(error):
                raise
            failure = error
        seen = yield from read_worker(places, me)
        if seen is not None:
            return seen  # nobody else has our incarnation
    assert failure is not None
    raise failure


def beat(
    places: GroupPlaces,
    seen: SeenWorker,
    counter: int,
    holds: Sequence[str],
    coming: Sequence[str],
    done: Iterable[str],
    rings: int,
    waits: Mapping[str, str],
) -> Procedure[SeenWorker]:
    """Renew our node. `done`: what we looked into behind so many `rings`; who rang since wants it
    looked at once more. `LeaseLost`: it is gone, or is not the one that we renewed last: somebody
    took us for dead."""
    path = places.worker(seen.node.id)
    least, done = seen.node.counter, tuple(done)
    failure: DlogError | None = None
    for _ in range(RENEW_TRIES):
        answered = done if seen.node.rings == rings else ()
        node = seen.node.renewed(counter, holds, coming, answered, waits)
        try:
            version = yield ReplaceNode(path, node.to_bytes(), seen.version, point="group.renewed")
            return SeenWorker(node, version)
        except NotFound:
            raise _dead(seen.node.id) from None
        except Conflict as refused:
            failure = refused  # somebody rang
        except DlogError as error:
            if not unknown(error):
                raise
            failure = error
        found = yield from read_worker(places, seen.node.id)
        if found is None or not least <= found.node.counter <= counter:
            raise _dead(seen.node.id)
        if found.node.counter == counter:
            return found
        seen = found
    assert failure is not None
    raise failure


def _dead(me: WorkerId) -> LeaseLost:
    return LeaseLost(f"worker {me} was taken for dead by another worker of its group")


def bury(places: GroupPlaces, worker: WorkerId, counter: int) -> Procedure[SeenWorker | None]:
    """Declare a worker dead that did not renew `counter`. None: it is. Else how it was found:
    alive, if the counter is another one."""
    for _ in range(TRIES):
        seen = yield from read_worker(places, worker)
        if seen is None or seen.node.counter != counter:
            return seen
        try:
            # At the version that we saw: so nobody renewed it in between.
            yield DeleteNode(places.worker(worker), seen.version, point="group.buried")
            return None
        except (Conflict, NotFound):
            pass
        except DlogError as error:
            if not unknown(error):
                raise
    return seen


def living(places: GroupPlaces, timeout_s: float) -> Procedure[list[WorkerId]]:
    """Workers of the group that renew, as soon as one of them does. Those that do not, for one
    time-out of our clock, are dead and are deleted: where the group has no other worker, nobody
    else would do that."""
    seen = yield from read_workers(places, NOBODY)
    for _ in range(LOOKS):
        if not seen:
            return []
        yield Pause(timeout_s / LOOKS)
        now = yield from read_workers(places, NOBODY)
        renewed = [
            worker
            for worker, each in now.items()
            if worker not in seen or seen[worker].node.counter != each.node.counter
        ]
        if renewed:
            return renewed
        seen = now
    found: list[WorkerId] = []
    for worker, each in seen.items():
        if (yield from bury(places, worker, each.node.counter)) is not None:
            found.append(worker)
    return found


def leave(places: GroupPlaces, me: WorkerId) -> Procedure[None]:
    """The last thing that a worker does: until then nobody takes it for dead."""
    while True:
        seen = yield from read_worker(places, me)
        if seen is None:
            return
        try:
            yield DeleteNode(places.worker(me), seen.version, point="group.left")
            return
        except NotFound:
            return
        except Conflict:
            pass
        except DlogError as error:
            if not unknown(error):
                raise


class Rung(enum.Enum):
    HEARD = "heard"  # it will be, by its next renewal
    ASKED = "asked"  # before, by somebody: it may have looked already, and not said so yet
    GONE = "gone"


def ring(places: GroupPlaces, worker: WorkerId, shards: Sequence[str]) -> Procedure[Rung]:
    """Ask a worker to look at shards. What it was asked is not written again before it answered:
    so of all that others write there is a bound between two of its renewals, which have to get
    in between."""
    failure: DlogError | None = None
    for _ in range(RING_TRIES):
        seen = yield from read_worker(places, worker)
        if seen is None:
            return Rung.GONE
        if set(seen.node.wanted).issuperset(shards):
            return Rung.ASKED
        node = seen.node.rung(shards)
        try:
            yield ReplaceNode(places.worker(worker), node.to_bytes(), seen.version)
            return Rung.HEARD
        except (Conflict, NotFound) as error:
            failure = error
        except DlogError as error:
            if not unknown(error):
                raise
            failure = error
    assert failure is not None
    raise failure


def read_workers(places: GroupPlaces, me: WorkerId) -> Procedure[dict[WorkerId, SeenWorker]]:
    """All that are registered, as fresh as the beginning of this."""
    mine = yield from read_worker(places, me)
    others = [each for each in (yield from _listed(places)) if each != me]
    found = {} if mine is None else {me: mine}
    for first in range(0, len(others), READS_AT_ONCE):
        some = others[first : first + READS_AT_ONCE]
        if len(some) == 1:
            answers = [(yield from read_worker(places, some[0], fresh=False))]
        else:
            answers = yield Together(tuple(read_worker(places, each, fresh=False) for each in some))
        pairs = zip(some, answers, strict=True)
        found.update((worker, seen) for worker, seen in pairs if seen is not None)
    return found


def _listed(places: GroupPlaces) -> Procedure[list[WorkerId]]:
    try:
        names = yield ListNodes(places.workers)
    except NotFound:
        return []
    return list(_ids_of(names))


def _ids_of(names: Iterable[str]) -> Iterator[WorkerId]:
    for name in names:
        try:
            yield WorkerId.from_node(name)
        except FormatError:
            continue  # nothing of ours
