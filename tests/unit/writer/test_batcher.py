"""The batcher: when messages gather, when the loop is woken, how the window makes callers wait in
turn, and that nobody is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog import limits
from dlog.clock import SYSTEM_CLOCK
from dlog.errors import ConfigError, Outcome, Timeout, TooLarge, WriterClosed
from dlog.writer.batch import Batch, Origin
from dlog.writer.batcher import MESSAGE_BYTES, RUN_BYTES, Batcher
from dlog.writer.producers import Producers

DEADLINE_S = 10.0


class Scene:
    def __init__(self, *, entry_bytes: int = 100, window_bytes: int = 300) -> None:
        self.wakes = 0
        self.batcher = Batcher(
            entry_bytes=entry_bytes, window_bytes=window_bytes, wake_loop=self._wake
        )

    def _wake(self) -> None:
        self.wakes += 1

    def fill(self) -> int:
        """Offer messages of 100 counted bytes until the window is full; how many it took."""
        taken = 0
        while self.batcher.offer(b"x" * (100 - MESSAGE_BYTES)) is not None:
            taken += 1
        return taken

    def take_all(self) -> list[Batch]:
        batches = []
        while (batch := self.batcher.take(partial=True)) is not None:
            batches.append(batch)
        return batches


def test_tickets_know_their_seqs_before_anything_is_sent() -> None:
    scene = Scene(window_bytes=10_000)
    scene.batcher.begin(Origin("uid", 3), 40, Producers())
    tickets = [scene.batcher.offer(b"x" * 30) for _ in range(5)]
    whole = Batch([b"a", b"b"], 40)
    assert scene.batcher.offer_whole(whole) is whole
    pieces: list[tuple[Batch, int, int]] = []
    scene.batcher.offer_run([b"y"] * 3, [17] * 3, 0, pieces)
    tickets.append(scene.batcher.offer(b"z"))
    seqs = [ticket.token.seq for ticket in tickets if ticket is not None]
    assert seqs == [40, 41, 42, 43, 44, 50]
    assert (whole.first_seq, pieces[0][0].first_seq) == (45, 47)
    assert all(ticket.token.epoch == 3 for ticket in tickets if ticket is not None)
    counts = [(batch.first_seq, len(batch.values)) for batch in scene.take_all()]
    assert [first for first, _ in counts] == [
        40 + sum(n for _, n in counts[:i]) for i in range(len(counts))
    ]


def test_a_batch_holds_one_producer_or_none() -> None:
    scene = Scene(entry_bytes=10_000, window_bytes=100_000)
    for number in (0, 1):
        scene.batcher.offer_marked(b"x", producer=(7, number))
    for _ in range(2):
        scene.batcher.offer(b"plain")
    scene.batcher.offer_marked(b"x", producer=(7, 2))
    scene.batcher.offer_run([b"y"] * 3, [17] * 3, 0, [])
    for producer in ((7, 9), (8, 10), (8, 11)):
        scene.batcher.offer_marked(b"x", producer=producer)
    assert [(batch.producer, len(batch.values)) for batch in scene.take_all()] == [
        ((7, 0), 2),
        (None, 2),
        ((7, 2), 1),
        (None, 3),
        ((7, 9), 1),
        ((8, 10), 2),
    ]
    assert scene.batcher.offer(b"quick again") is not None
    assert scene.batcher._quick_bytes == scene.batcher._quick_bytes_max


def test_many_small_batches_fill_the_window() -> None:
    """Producers that take turns make a batch each: what a batch costs is counted, too."""
    scene = Scene(entry_bytes=100_000, window_bytes=100 * RUN_BYTES)
    taken = 0
    while scene.batcher.offer_marked(b"", producer=(taken % 2, taken)) is not None:
        scene.batcher.take(partial=False)
        taken += 1
        assert taken < 1000
    assert 90 <= taken <= 101


def test_an_idle_loop_is_woken_once() -> None:
    scene = Scene()
    for _ in range(3):
        scene.batcher.offer(b"a")
    assert scene.wakes == 1
    assert scene.batcher.take(partial=True) is not None
    scene.batcher.offer(b"b")
    assert scene.wakes == 2


def test_a_busy_loop_is_woken_by_a_full_batch_only() -> None:
    scene = Scene()
    assert scene.batcher.set_hungry(False) is False
    scene.batcher.offer(b"a" * 40)
    assert scene.wakes == 0
    assert scene.batcher.take(partial=False) is None
    scene.batcher.offer(b"b" * 60)
    assert scene.wakes == 1
    batch = scene.batcher.take(partial=False)
    assert batch is not None
    assert batch.values == [b"a" * 40]


def test_turning_hungry_tells_what_is_here_already() -> None:
    scene = Scene()
    scene.batcher.set_hungry(False)
    scene.batcher.offer(b"a")
    assert scene.batcher.set_hungry(True) is True


def test_the_window_refuses_and_a_release_makes_room() -> None:
    """I25: less than one message more than the window."""
    scene = Scene()
    assert scene.fill() == 3
    batches = scene.take_all()
    assert scene.batcher.offer(b"x" * 84) is None
    scene.batcher.release(batches[0].bytes + batches[1].bytes)
    assert scene.batcher.offer(b"x" * 84) is not None


@pytest.mark.parametrize("entry_bytes", [100, 200])
@pytest.mark.parametrize("window_bytes", [1, 99, 100, 101, 200, 250, 300, 301, 1000])
def test_a_window_takes_as_much_as_it_holds(entry_bytes: int, window_bytes: int) -> None:
    """It is not looked at only where a batch ends: less than one message comes in too much."""
    taken_bytes = 100 * Scene(entry_bytes=entry_bytes, window_bytes=window_bytes).fill()
    assert window_bytes <= taken_bytes < window_bytes + 100


@pytest.mark.parametrize("window_bytes", [1024, 64 * 1024])
def test_a_window_smaller_than_a_batch_bounds_whatever_comes(window_bytes: int) -> None:
    """One by one, marked, and as a run; alike where the loop has taken some of it."""
    offers: list[Callable[[Batcher], bool]] = [
        lambda batcher: batcher.offer(b"x" * 84) is not None,
        lambda batcher: batcher.offer(b"x" * 83, key=b"k") is not None,
        lambda batcher: batcher.offer_run([b"x" * 84] * 1000, [100] * 1000, 0, []) == 1000,
        lambda batcher: batcher.offer_whole(Batch([b"x" * 84], 100)) is not None,
    ]
    for number, offer in enumerate(offers):
        scene = Scene(entry_bytes=256 * 1024, window_bytes=window_bytes)
        while offer(scene.batcher):
            scene.batcher.take(partial=number % 2 == 0)
        assert window_bytes <= scene.batcher.taken_bytes < window_bytes + 100
        assert scene.batcher.is_full


def test_a_batch_that_fills_the_window_alone_goes_out_as_it_is() -> None:
    """However long it may linger for company: nobody else has room."""
    scene = Scene(entry_bytes=1000, window_bytes=300)
    scene.batcher.set_hungry(False)
    assert scene.fill() == 3
    batch = scene.batcher.take(partial=False)
    assert batch is not None
    assert len(batch.values) == 3
    assert scene.wakes == 1


def test_waiters_come_in_turn_one_at_a_time() -> None:
    scene = Scene()
    scene.fill()
    order: list[str] = []
    for name in ("first", "second", "third"):
        scene.batcher.call_when_room(lambda name=name: order.append(name))
    batches = scene.take_all()
    assert order == []
    scene.batcher.release(batches[0].bytes)
    assert order == ["first"]
    scene.batcher.passed_on()
    assert order == ["first", "second"]


def test_a_waiter_that_gave_up_passes_its_turn_on() -> None:
    scene = Scene()
    scene.fill()
    order: list[str] = []

    def first() -> None:
        order.append("first")

    scene.batcher.call_when_room(first)
    scene.batcher.call_when_room(lambda: order.append("second"))
    batches = scene.take_all()
    scene.batcher.release(batches[0].bytes)
    scene.batcher.forget_waiter(first)  # it was woken, and does not come
    assert order == ["first", "second"]


def test_a_wait_that_times_out_leaves_no_waiter() -> None:
    scene = Scene()
    scene.fill()
    with pytest.raises(Timeout) as raised:
        scene.batcher.wait_room(SYSTEM_CLOCK.monotonic_s())
    assert raised.value.outcome is Outcome.NOT_HAPPENED
    assert not scene.batcher._waiting


def test_closing_wakes_everybody_and_refuses_from_then_on() -> None:
    scene = Scene()
    scene.fill()
    woken: list[int] = []
    for i in range(3):
        scene.batcher.call_when_room(lambda i=i: woken.append(i))
    scene.batcher.close(WriterClosed("closed"))
    assert woken == [0, 1, 2]
    with pytest.raises(WriterClosed):
        scene.batcher.offer(b"a")
    with pytest.raises(WriterClosed):
        scene.batcher.offer_whole(Batch([b"a"], 1))
    assert scene.take_all(), "what was taken by now still goes out"


def test_refusing_returns_what_was_not_taken() -> None:
    scene = Scene()
    ticket = scene.batcher.offer(b"a")
    left = scene.batcher.refuse(WriterClosed("gone"))
    assert [batch.values for batch in left] == [[b"a"]]
    assert ticket is not None
    assert not ticket.done
    assert scene.batcher.pending == []


def test_an_atomic_run_is_an_entry_of_its_own() -> None:
    scene = Scene()
    scene.batcher.offer(b"before")
    assert scene.batcher.offer_whole(Batch([b"x", b"y"], 40))
    scene.batcher.offer(b"after")
    assert [b.values for b in scene.take_all()] == [[b"before"], [b"x", b"y"], [b"after"]]


def test_a_message_larger_than_an_entry_travels_alone() -> None:
    scene = Scene(window_bytes=1000)
    scene.batcher.offer(b"a")
    scene.batcher.offer(b"b" * 500)
    scene.batcher.offer(b"c")
    assert [len(b.values) for b in scene.take_all()] == [1, 1, 1]


def test_a_message_larger_than_any_entry_is_refused() -> None:
    with pytest.raises(TooLarge):
        Scene().batcher.offer(b"x" * limits.LEDGER_ENTRY_BYTES_MAX)


@pytest.mark.parametrize("value", ["text", 7, [b"a"]])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ConfigError):
        Scene().batcher.offer(value)  # type: ignore[arg-type]


@given(
    sizes=st.lists(st.integers(0, 120), max_size=40),
    entry_bytes=st.integers(20, 200),
    at_once=st.booleans(),
)
def test_every_message_goes_out_once_and_in_order(
    sizes: list[int], entry_bytes: int, at_once: bool
) -> None:
    scene = Scene(entry_bytes=entry_bytes, window_bytes=1 << 20)
    values = [bytes([i % 256]) * size for i, size in enumerate(sizes)]
    pieces: list[tuple[Batch, int, int]] = []
    if at_once:
        counted = [len(value) + MESSAGE_BYTES for value in values]
        assert scene.batcher.offer_run(values, counted, 0, pieces) == len(values)
        named = [batch.values[i + k] for batch, i, count in pieces for k in range(count)]
        assert named == values
    else:
        for value in values:
            assert scene.batcher.offer(value) is not None
    batches = scene.take_all()
    assert [value for batch in batches for value in batch.values] == values
    for batch in batches:
        assert batch.bytes <= entry_bytes or len(batch.values) == 1
        assert batch.bytes == sum(len(v or b"") + MESSAGE_BYTES for v in batch.values)


def test_many_threads_lose_nothing() -> None:
    scene = Scene(entry_bytes=200, window_bytes=1000)
    per_thread, threads = 200, 4
    out: list[bytes | None] = []

    def produce(name: int) -> None:
        for i in range(per_thread):
            while scene.batcher.offer(b"%d:%d" % (name, i)) is None:
                scene.batcher.wait_room(SYSTEM_CLOCK.monotonic_s() + DEADLINE_S)
            scene.batcher.passed_on()

    workers = [threading.Thread(target=produce, args=(name,)) for name in range(threads)]
    for worker in workers:
        worker.start()
    ends_s = SYSTEM_CLOCK.monotonic_s() + DEADLINE_S
    while len(out) < per_thread * threads and SYSTEM_CLOCK.monotonic_s() < ends_s:
        for batch in scene.take_all():
            out += batch.values
            scene.batcher.release(batch.bytes)
    for worker in workers:
        worker.join(DEADLINE_S)
    assert len(out) == per_thread * threads
    for name in range(threads):
        mine = [value for value in out if value is not None and value.startswith(b"%d:" % name)]
        assert mine == [b"%d:%d" % (name, i) for i in range(per_thread)]
