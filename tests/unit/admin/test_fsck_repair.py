"""What each step of a repair asks its stores for, and what is said of the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dlog import aio, backends
from dlog.admin.fsck.repair import repair
from dlog.admin.fsck.report import Action, Ended, Step, Where
from dlog.drive import Stores
from dlog.errors import Conflict, Corrupt, DlogError, NotFound, Unavailable
from dlog.ledger.memory import MemoryLedgers, MemoryLedgerStore
from dlog.meta.listed import CopyOf
from dlog.meta.log_meta import LogMeta
from tests.api.planting import change_meta, meta_of, with_segment

PLACE, NAME = "repair-steps", "log"


class WithCopies(MemoryLedgerStore):
    """A store in memory that says that it keeps each entry several times."""

    def __init__(self, ledgers: MemoryLedgers) -> None:
        super().__init__(ledgers)
        self.asked: list[tuple[Any, ...]] = []
        self.answer: Any = None

    def _told(self, *asked: Any) -> Any:
        self.asked.append(asked)
        if isinstance(self.answer, DlogError):
            raise self.answer
        return self.answer

    async def copies_of(self, ledger_id: int) -> Any:
        raise AssertionError("nobody needs it here")

    def check_copies(self, ledger_id: int, *, digest: str, last_entry: int) -> Any:
        raise AssertionError("nobody needs it here")

    async def mend_copy(
        self, ledger_id: int, keeper: str, first_entry: int, last_entry: int, *, digest: str
    ) -> Any:
        return self._told("mend", ledger_id, keeper, first_entry, last_entry, digest)

    async def move_copies(self, ledger_id: int, first_entry: int, lost: str, *, digest: str) -> Any:
        return self._told("move", ledger_id, first_entry, lost, digest)

    async def amend_end(self, ledger_id: int, last_entry: int, bytes: int, *, digest: str) -> Any:
        return self._told("amend", ledger_id, last_entry, bytes, digest)


@dataclasses.dataclass
class Scene:
    plain: Stores
    copies: WithCopies

    @property
    def stores(self) -> Stores:
        return dataclasses.replace(self.plain, ledgers=self.copies)

    async def meta(self) -> LogMeta:
        return await meta_of(self.plain, NAME)

    async def one(self, action: Action, *, copies: bool = True, **where: Any) -> tuple[Ended, str]:
        """How a step of this kind ended."""
        step = Step(action, Where(log=NAME, **where), "planned")
        report = await repair(self.stores if copies else self.plain, [step])
        (done,) = report.steps
        return done.ended, done.told


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A closed log of three segments."""
    url = f"memory:{PLACE}"
    try:
        async with aio.connect(url) as client:
            async with client.open_writer(NAME) as writer:
                for number in range(3):
                    await writer.append(b"message %d" % number)
                    if number < 2:
                        await writer.rotate()
            plain = await client._stores(False)
            yield Scene(plain, WithCopies(backends._memory_worlds[PLACE][1]))
    finally:
        backends._memory_worlds.pop(PLACE, None)


COPY: dict[str, Any] = {"ledger_id": 7, "bookie": "b", "first_entry": 2, "last_entry": 5}


async def test_a_copy_is_mended_from_the_first_entry_to_the_last_one(scene: Scene) -> None:
    digest = (await scene.meta()).digest
    for count, ended in ((4, Ended.DONE), (0, Ended.NOT_NEEDED)):
        scene.copies.answer = count
        assert (await scene.one(Action.MEND_COPY, **COPY))[0] is ended
        assert scene.copies.asked.pop() == ("mend", 7, "b", 2, 5, digest)


async def test_copies_are_moved_from_the_lost_bookie(scene: Scene) -> None:
    digest = (await scene.meta()).digest
    scene.copies.answer = "c"
    ended, told = await scene.one(Action.MOVE_COPIES, **COPY)
    assert (ended, told) == (Ended.DONE, "on bookie c")
    assert scene.copies.asked.pop() == ("move", 7, 2, "b", digest)
    scene.copies.answer = None
    ended, told = await scene.one(Action.MOVE_COPIES, **COPY)
    assert ended is Ended.NOT_NEEDED
    assert told.startswith("b is back")


@pytest.mark.parametrize("action", [Action.MEND_COPY, Action.MOVE_COPIES])
@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (NotFound("gone"), Ended.NOT_NEEDED),
        (Corrupt("no good one"), Ended.REFUSED),
        (Unavailable("away"), Ended.FAILED),
    ],
    ids=["gone", "no proof", "away"],
)
async def test_a_step_says_why_it_could_not_be_done(
    scene: Scene, action: Action, error: DlogError, ended: Ended
) -> None:
    scene.copies.answer = error
    assert await scene.one(action, **COPY) == (ended, error.message)


@pytest.mark.parametrize("action", [Action.MEND_COPY, Action.MOVE_COPIES])
async def test_a_store_with_one_copy_has_none_to_mend(scene: Scene, action: Action) -> None:
    ended, told = await scene.one(action, copies=False, **COPY)
    assert (ended, told) == (Ended.REFUSED, "this store keeps one copy of each entry")


async def test_all_steps_are_done_though_one_fails(scene: Scene) -> None:
    scene.copies.answer = Unavailable("away")
    steps = [Step(Action.MEND_COPY, Where(log=NAME, **COPY), "planned") for _ in range(3)]
    report = await repair(scene.stores, steps)
    assert [each.step for each in report.steps] == steps
    assert len(scene.copies.asked) == 3


# --- ends


async def wrongly_listed(scene: Scene) -> tuple[int, dict[str, int]]:
    """The ledger of segment 2, and how the list ends it now: with other bytes."""
    segment = (await scene.meta()).segment(2)
    assert segment is not None
    assert segment.sealed is not None
    await change_meta(scene.plain, with_segment(2, bytes=1), NAME)
    return segment.ledger_id, {"last_entry": segment.sealed.last_entry, "bytes": 1}


async def test_metadata_that_contradicts_the_list_and_the_ledger_is_amended(scene: Scene) -> None:
    """Then the list was right, and stays."""
    ledger_id, listed = await wrongly_listed(scene)
    before = await scene.meta()
    scene.copies.answer = True
    ended, told = await scene.one(Action.RESEAL, segment=2, ledger_id=ledger_id)
    assert ended is Ended.DONE
    assert "metadata says again" in told
    assert scene.copies.asked == [
        ("amend", ledger_id, listed["last_entry"], listed["bytes"], before.digest)
    ]
    assert await scene.meta() == before


@pytest.mark.parametrize("answer", [False, Corrupt("the entry says something else")])
async def test_a_list_that_the_ledger_contradicts_is_corrected(scene: Scene, answer: Any) -> None:
    was = await scene.meta()
    ledger_id, _ = await wrongly_listed(scene)
    scene.copies.answer = answer
    assert (await scene.one(Action.RESEAL, segment=2, ledger_id=ledger_id))[0] is Ended.DONE
    assert (await scene.meta()).segments == was.segments


async def test_a_store_with_one_copy_has_its_list_corrected(scene: Scene) -> None:
    was = await scene.meta()
    ledger_id, _ = await wrongly_listed(scene)
    done = await scene.one(Action.RESEAL, copies=False, segment=2, ledger_id=ledger_id)
    assert done[0] is Ended.DONE
    assert (await scene.meta()).segments == was.segments


async def test_a_list_that_is_cut_too_short_is_never_made_so_in_the_ledger(scene: Scene) -> None:
    """Its ledger has more, and nobody continues the listed end: nothing is amended."""
    was = await scene.meta()
    last = was.segments[-1]
    assert last.sealed is not None
    number = last.number
    wrong = with_segment(number, last_entry=last.sealed.last_entry - 1)
    await change_meta(scene.plain, wrong, NAME)
    scene.copies.answer = True
    ended, _ = await scene.one(Action.RESEAL, segment=number, ledger_id=last.ledger_id)
    assert ended is Ended.DONE
    assert scene.copies.asked == []
    assert (await scene.meta()).segments == was.segments


async def test_a_segment_of_another_ledger_is_not_touched(scene: Scene) -> None:
    ledger_id, _ = await wrongly_listed(scene)
    before = await scene.meta()
    ended, _ = await scene.one(Action.RESEAL, segment=2, ledger_id=ledger_id + 1)
    assert ended is Ended.REFUSED
    assert await scene.meta() == before


# --- tails


async def test_a_tail_is_sealed_and_left(scene: Scene) -> None:
    async with aio.connect(f"memory:{PLACE}") as client:
        writer = await client.open_writer(NAME)
        await writer.append(b"the last one")
        writer._engine.abandon(Conflict("it died"))
    assert (await scene.meta()).unsealed
    ended, _ = await scene.one(Action.SEAL_TAIL, copies=False)
    assert ended is Ended.DONE
    meta = await scene.meta()
    assert not meta.unsealed
    assert meta.end.next_seq == 4
    assert meta.writer is None


async def test_a_copy_whose_tail_is_sealed_stays_a_copy(scene: Scene) -> None:
    """So that it can be gone on with."""
    async with aio.connect(f"memory:{PLACE}") as client:
        writer = await client.open_writer(NAME)
        await writer.append(b"the last one")
        writer._engine.abandon(Conflict("it died"))
    copy_of = CopyOf("another", "original", 0)
    await change_meta(scene.plain, lambda meta: dataclasses.replace(meta, copy_of=copy_of), NAME)
    assert (await scene.one(Action.SEAL_TAIL, copies=False))[0] is Ended.DONE
    meta = await scene.meta()
    assert (meta.unsealed, meta.copy_of) == ((), copy_of)


async def test_the_tail_of_a_writer_that_is_there_is_left_alone(scene: Scene) -> None:
    async with aio.connect(f"memory:{PLACE}") as client, client.open_writer(NAME) as writer:
        await writer.append(b"mine")
        before = await scene.meta()
        assert (await scene.one(Action.SEAL_TAIL, copies=False))[0] is Ended.NOT_NEEDED
        assert await scene.meta() == before
        await writer.append(b"still mine")
