"""What a simulated bookie knows, keeps over a kill, and says."""

from __future__ import annotations

from functools import partial

import pytest

from dlog.testing.sim.bookie import LAST_ENTRY, Mode, SimBookie, Watch
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest, master_key

LEDGER = 3
KEY, OTHER_KEY = master_key(b"secret"), master_key(b"another")
DIGEST = EntryDigest(DigestType.CRC32C, b"secret")


def packet(entry_id: int, lac: int = -1) -> bytes:
    return DIGEST.pack_head(LEDGER, entry_id, lac, 1, (b"x",)) + b"x"


def add(
    bookie: SimBookie, entry_id: int, lac: int = -1, *, key: bytes = KEY, is_recovery: bool = False
) -> Answer:
    raw = packet(entry_id, lac)
    return bookie.add(LEDGER, entry_id, raw, key=key, is_recovery=is_recovery)


def fence(bookie: SimBookie, key: bytes = KEY) -> Answer:
    return bookie.read(LEDGER, LAST_ENTRY, fence_key=key)[0]


def last(bookie: SimBookie) -> int:
    answer, raw = bookie.read(LEDGER, LAST_ENTRY)
    assert answer is Answer.OK
    assert raw is not None
    return DIGEST.verify_last(raw, ledger_id=LEDGER).entry_id


@pytest.fixture
def bookie() -> SimBookie:
    return SimBookie("b0")


# --- memory and journal


def test_a_kill_forgets_what_was_not_synced_from_some_record_on(bookie: SimBookie) -> None:
    add(bookie, 0)
    bookie.sync()
    for entry_id in (1, 2, 3):
        add(bookie, entry_id)
    assert bookie.read(LEDGER, 3)[0] is Answer.OK, "it is read before it is durable"
    assert bookie.holds_for_good(LEDGER, 3) is None
    bookie.kill(kept=2)
    assert not bookie.is_up
    bookie.start()
    found = [bookie.read(LEDGER, entry_id)[0] for entry_id in range(4)]
    assert found == [Answer.OK, Answer.OK, Answer.OK, Answer.NO_ENTRY]


def test_a_shutdown_forgets_nothing(bookie: SimBookie) -> None:
    fence(bookie)
    add(bookie, 0, is_recovery=True)
    bookie.stop()
    bookie.start()
    assert bookie.read(LEDGER, 0)[0] is Answer.OK
    assert bookie.is_fenced(LEDGER)


def test_a_read_only_bookie_takes_no_adds_and_serves_reads(bookie: SimBookie) -> None:
    add(bookie, 0)
    bookie.mode = Mode.READ_ONLY
    assert add(bookie, 1) is Answer.READ_ONLY
    assert bookie.read(LEDGER, 0)[0] is Answer.OK
    assert fence(bookie) is Answer.OK


# --- fences and keys


def test_a_fence_refuses_adds_but_not_those_of_a_recovery(bookie: SimBookie) -> None:
    add(bookie, 0)
    assert fence(bookie) is Answer.OK
    assert add(bookie, 1) is Answer.FENCED
    assert add(bookie, 1, is_recovery=True) is Answer.OK


@pytest.mark.parametrize(
    ("before", "survives"), [(None, False), (True, False), (False, True)], ids=str
)
def test_a_fence_survives_a_kill_behind_an_ordinary_entry_only(
    bookie: SimBookie, before: bool | None, survives: bool
) -> None:
    if before is not None:
        add(bookie, 0, is_recovery=before)
    fence(bookie)
    bookie.sync()
    bookie.kill()
    bookie.start()
    assert bookie.is_fenced(LEDGER) is survives


def test_a_fence_that_was_not_synced_may_be_forgotten(bookie: SimBookie) -> None:
    add(bookie, 0)
    bookie.sync()
    fence(bookie)
    bookie.kill(kept=0)
    bookie.start()
    assert not bookie.is_fenced(LEDGER)


@pytest.mark.parametrize("by_fence", [False, True], ids=["add", "fence"])
def test_the_first_add_or_fence_decides_the_key(bookie: SimBookie, by_fence: bool) -> None:
    if by_fence:
        fence(bookie)
    else:
        add(bookie, 0)
    assert add(bookie, 1, key=OTHER_KEY) is Answer.UNAUTHORIZED
    assert fence(bookie, OTHER_KEY) is Answer.UNAUTHORIZED
    lac = bookie.write_lac(LEDGER, 0, DIGEST.pack_lac(LEDGER, 0), OTHER_KEY)
    assert lac is Answer.UNAUTHORIZED


# --- reads


def test_nothing_is_said_in_two_ways_and_denials_behind_a_fence_are_kept(
    bookie: SimBookie,
) -> None:
    assert bookie.read(LEDGER, 0)[0] is Answer.NO_LEDGER
    add(bookie, 0)
    assert bookie.read(LEDGER, 1)[0] is Answer.NO_ENTRY
    assert bookie.denied == set()
    bookie.read(LEDGER, 1, fence_key=KEY)
    assert bookie.denied == {(LEDGER, 1)}


def test_a_batch_ends_at_a_hole_and_at_its_size(bookie: SimBookie) -> None:
    for entry_id in (0, 1, 2, 4):
        add(bookie, entry_id)
    size = len(packet(0))

    def batch(first: int, count: int, room: int) -> int:
        answer, found = bookie.batch_read(
            LEDGER, first, count_max=count, frame_bytes_max=36 + room * (4 + size)
        )
        assert (answer is Answer.OK) == bool(found)
        return len(found)

    assert batch(0, 10, 10) == 3
    assert batch(0, 2, 10) == 2
    assert batch(0, 10, 2) == 2
    assert batch(0, 10, 0) == 1, "one always fits"
    assert batch(3, 10, 10) == 0


def test_the_last_entry_is_another_while_the_cache_holds_one_that_came_again(
    bookie: SimBookie,
) -> None:
    for entry_id in range(3):
        add(bookie, entry_id)
    assert last(bookie) == 2
    bookie.flush_cache()
    add(bookie, 1, is_recovery=True)
    assert last(bookie) == 1
    bookie.flush_cache()
    assert last(bookie) == 2


# --- LACs


def test_of_explicit_lacs_the_packet_that_came_last_is_kept(bookie: SimBookie) -> None:
    for lac in (5, 4):
        bookie.write_lac(LEDGER, lac, DIGEST.pack_lac(LEDGER, lac), KEY)
    answer, proof, entry = bookie.read_lac(LEDGER)
    assert (answer, entry) == (Answer.IO_FAILED, None), "how it says: a proof and no entry"
    assert proof is not None
    assert DIGEST.verify_lac(proof, ledger_id=LEDGER) == 4
    assert bookie.polled(LEDGER, 0)[3] == 5, "its own word stays at the highest"


def test_any_rise_consumes_a_watch_and_wakes_who_waited_for_it(bookie: SimBookie) -> None:
    add(bookie, 0)
    woken: list[int] = []
    for waits_past in (-1, 5):
        assert bookie.watch(LEDGER, Watch(waits_past, partial(woken.append, waits_past)))
    add(bookie, 1, 0)
    assert woken == [-1]
    add(bookie, 8, 7)
    assert woken == [-1], "whoever waited for more was forgotten"


def test_a_fence_wakes_all_and_a_watch_for_what_is_known_is_none(bookie: SimBookie) -> None:
    add(bookie, 1, 0)
    woken: list[int] = []
    assert not bookie.watch(LEDGER, Watch(-1, lambda: woken.append(-1)))
    assert bookie.watch(LEDGER, Watch(9, lambda: woken.append(9)))
    fence(bookie)
    assert woken == [9]
    assert not bookie.watch(LEDGER + 1, Watch(0, lambda: None)), "of a ledger it does not know"


def test_a_poll_brings_the_next_entry_if_it_is_there(bookie: SimBookie) -> None:
    add(bookie, 0)
    add(bookie, 1, 0)
    assert bookie.polled(LEDGER, -1)[:2] == (Answer.OK, 0)
    assert bookie.polled(LEDGER, 0) == (Answer.OK, LAST_ENTRY, None, 0)
    assert bookie.polled(LEDGER + 1, 0)[0] is Answer.NO_LEDGER


# --- disks that are lost


def test_in_limbo_it_denies_nothing_and_takes_no_ordinary_adds(bookie: SimBookie) -> None:
    add(bookie, 0)
    bookie.sync()
    bookie.wipe(is_noticed=True, last_ledger=LEDGER)
    bookie.start()
    assert bookie.read(LEDGER, 0, fence_key=KEY)[0] is Answer.LIMBO
    assert bookie.read_lac(LEDGER)[0] is Answer.LIMBO
    assert bookie.polled(LEDGER, 0)[0] is Answer.LIMBO
    assert add(bookie, 1) is Answer.UNAUTHORIZED
    assert bookie.denied == set()
    assert add(bookie, 0, is_recovery=True) is Answer.OK
    assert bookie.read(LEDGER, 0)[0] is Answer.OK
    later = bookie.add(LEDGER + 1, 0, packet(0), key=KEY, is_recovery=False)
    assert later is Answer.OK, "a ledger made since it was never asked for before"


def test_an_amnesiac_denies_what_it_had(bookie: SimBookie) -> None:
    add(bookie, 0)
    fence(bookie)
    bookie.sync()
    bookie.wipe(is_noticed=False)
    bookie.start()
    assert bookie.read(LEDGER, 0)[0] is Answer.NO_LEDGER
    assert add(bookie, 1) is Answer.OK
