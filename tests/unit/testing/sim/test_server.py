"""When a simulated bookie does what, over connections that keep the order of each direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dlog.testing.sim.bookie import LAST_ENTRY, SimBookie
from dlog.testing.sim.links import SimLink, SimLinks
from dlog.testing.sim.network import Network, Roads
from dlog.testing.sim.process import Process
from dlog.testing.sim.server import WARM_UP_MS, Manners, Server
from dlog.testing.sim.tape import of_seed, of_tape
from dlog.testing.sim.world import Violation, World
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest, master_key
from dlog.wire.bookie_v2 import Flag, pack_add

LEDGER = 3
KEY = master_key(b"secret")
NO_FLAGS = Flag(0)
DIGEST = EntryDigest(DigestType.CRC32C, b"secret")


def frames(*entry_ids: int, flags: Flag = NO_FLAGS) -> bytes:
    parts = []
    for entry_id in entry_ids:
        head = DIGEST.pack_head(LEDGER, entry_id, entry_id - 1, entry_id + 1, (b"x",))
        parts.append(pack_add(head, payload_bytes=1, master_key=KEY, flags=flags) + b"x")
    return b"".join(parts)


class Sink:
    def __init__(self) -> None:
        self.told: list[tuple[Answer, list[int]]] = []
        self.downs = 0

    def on_adds(self, link: Any, answer: Answer, entry_ids: list[int]) -> None:
        self.told.append((answer, entry_ids))

    def on_room(self, link: Any) -> None:
        pass

    def on_down(self, link: Any, answer: Answer) -> None:
        assert answer is Answer.DISCONNECTED
        self.downs += 1


class Scene:
    def __init__(self, seed: int | None = None, **manners: float) -> None:
        self.world = World(of_tape(()) if seed is None else of_seed(seed))
        self.bookie = SimBookie("b0")
        self.server = Server(self.world, self.bookie, Manners(**manners))
        self.network = Network(self.world, {"b0": self.server}, Roads())
        self.client = Process(self.world, "client")
        self.links = SimLinks(self.world, self.network, self.client)
        self.sink = Sink()

    def connect(self, *, recovery: bool = False) -> SimLink:
        found: list[SimLink | None] = []
        self.links.get("b0", found.append, recovery=recovery)
        self.go_on(5.0)
        assert found[0] is not None
        return found[0]

    def go_on(self, ms: float) -> None:
        self.world.run(until_ms=self.world.now_ms + ms)

    def send(self, link: SimLink, *entry_ids: int) -> None:
        run = frames(*entry_ids)
        link.send_adds(LEDGER, run, entries=len(entry_ids), bytes=len(run))

    def ask(self, link: SimLink, entry_id: int, fence_key: bytes | None = None) -> list[Answer]:
        told: list[Answer] = []
        link.ask_read(
            LEDGER,
            entry_id,
            lambda answer, raw: told.append(answer),
            timeout_ms=5_000.0,
            fence_key=fence_key,
        )
        return told


def test_adds_are_acknowledged_once_they_are_durable() -> None:
    scene = Scene(seed=1)
    link = scene.connect()
    link.attach(LEDGER, scene.sink)
    for entry_id in range(20):
        scene.send(link, entry_id)
        scene.go_on(0.5)
        for _, entry_ids in scene.sink.told:
            for each in entry_ids:
                assert scene.bookie.holds_for_good(LEDGER, each) is not None
    scene.go_on(100.0)
    told = [each for _, entry_ids in scene.sink.told for each in entry_ids]
    assert sorted(told) == list(range(20))


def test_refusals_in_the_middle_of_a_burst_are_told_one_by_one() -> None:
    scene = Scene(seed=3, busy=0.5)
    link = scene.connect()
    link.attach(LEDGER, scene.sink)
    scene.send(link, *range(10))
    scene.go_on(100.0)
    refused = [ids for answer, ids in scene.sink.told if answer is Answer.BUSY]
    assert all(len(ids) == 1 for ids in refused)
    assert 0 < len(refused) < 10
    assert sorted(each for _, ids in scene.sink.told for each in ids) == list(range(10))


def test_a_fencing_read_that_finds_something_is_told_when_the_fence_is_durable() -> None:
    scene = Scene(seed=5, journal_ms=50.0, serve_ms=0.1)
    plain, recovery = scene.connect(), scene.connect(recovery=True)
    plain.attach(LEDGER, scene.sink)
    scene.send(plain, 0)
    scene.go_on(500.0)
    told = scene.ask(recovery, LAST_ENTRY, KEY)
    while not told:
        scene.go_on(0.5)
        if told:
            assert scene.bookie.durable[LEDGER].fence is not None
    assert told == [Answer.OK]
    nothing = scene.ask(recovery, 7, KEY)
    scene.go_on(5.0)
    assert nothing == [Answer.NO_ENTRY], "one that finds nothing is told at once"


def test_a_kill_breaks_connections_and_leaves_reads_without_an_answer() -> None:
    scene = Scene(serve_ms=5.0, seed=2)
    link = scene.connect()
    link.attach(LEDGER, scene.sink)
    told = scene.ask(link, 0)
    scene.go_on(0.0)
    scene.server.kill()
    scene.go_on(10.0)
    assert (told, scene.sink.downs, link.is_up) == ([Answer.DISCONNECTED], 1, False)
    assert scene.links.now("b0") is None


def test_while_it_starts_it_accepts_and_resets() -> None:
    scene = Scene()
    scene.server.kill()
    scene.server.start()
    link = scene.connect()
    assert scene.ask(link, 0) == []
    told = scene.ask(link, 0)
    scene.go_on(1.0)
    assert told == [Answer.DISCONNECTED]
    scene.go_on(WARM_UP_MS)
    told = scene.ask(scene.connect(), 0)
    scene.go_on(1.0)
    assert told == [Answer.NO_LEDGER]


def test_a_stopped_one_hears_everything_when_it_goes_on() -> None:
    scene = Scene()
    link = scene.connect()
    link.attach(LEDGER, scene.sink)
    scene.server.stop()
    scene.send(link, 0, 1)
    told = scene.ask(link, 0)
    scene.go_on(1_000.0)
    assert (told, scene.sink.told) == ([], [])
    scene.server.go_on()
    scene.go_on(10.0)
    assert (told, scene.sink.told) == ([Answer.OK], [(Answer.OK, [0, 1])])


def test_silence_ends_by_the_clock() -> None:
    scene = Scene()
    link = scene.connect()
    scene.server.stop()
    told = scene.ask(link, 0)
    scene.go_on(4_999.0)
    assert told == []
    scene.go_on(2.0)
    assert told == [Answer.TIMED_OUT]
    scene.server.go_on()
    scene.go_on(10.0)
    assert told == [Answer.TIMED_OUT], "once"


def test_nobody_is_reached_where_nobody_listens() -> None:
    scene = Scene()
    scene.server.kill()
    found: list[SimLink | None] = []
    scene.links.get("b0", found.append)
    scene.go_on(5.0)
    assert found == [None]


@pytest.mark.parametrize(("there", "back"), [(True, False), (False, True)], ids=["there", "back"])
def test_a_cut_holds_what_is_sent_until_it_is_mended(there: bool, back: bool) -> None:
    scene = Scene()
    link = scene.connect()
    link.attach(LEDGER, scene.sink)
    scene.network.cut(scene.client, "b0", there=there, back=back)
    for entry_id in range(3):
        scene.send(link, entry_id)
    scene.go_on(100.0)
    assert scene.sink.told == []
    assert (scene.bookie.holds_for_good(LEDGER, 2) is None) is there
    scene.network.mend(scene.client, "b0")
    scene.go_on(100.0)
    told = [entry_id for _, entry_ids in scene.sink.told for entry_id in entry_ids]
    assert told == [0, 1, 2]


def test_what_is_for_a_dead_or_frozen_client() -> None:
    scene = Scene()
    link = scene.connect()
    told = scene.ask(link, 0)
    scene.client.freeze(50.0)
    scene.go_on(10.0)
    assert told == []
    scene.go_on(50.0)
    assert told == [Answer.NO_LEDGER], "kept while it is frozen"
    told = scene.ask(link, 0)
    scene.client.crash()
    scene.go_on(10_000.0)
    assert told == [], "lost when it is dead"


def test_a_client_that_is_started_again_is_heard() -> None:
    scene = Scene()
    scene.connect()
    scene.client.crash()
    scene.client = Process(scene.world, "client")
    scene.links = SimLinks(scene.world, scene.network, scene.client)
    told = scene.ask(scene.connect(), 0)
    scene.go_on(10.0)
    assert told == [Answer.NO_LEDGER]


def _plain_fence(scene: Scene) -> None:
    scene.ask(scene.connect(), 0, KEY)


def _recovery_add_on_a_plain_link(scene: Scene) -> None:
    link, run = scene.connect(), frames(0, flags=Flag.RECOVERY_ADD)
    link.attach(LEDGER, scene.sink)
    link.send_adds(LEDGER, run, entries=1, bytes=len(run))


def _two_sinks(scene: Scene) -> None:
    link = scene.connect()
    link.attach(LEDGER, scene.sink)
    link.attach(LEDGER, Sink())


def _unattached(scene: Scene) -> None:
    scene.send(scene.connect(), 0)


def _wrong_count(scene: Scene) -> None:
    link, run = scene.connect(), frames(0, 1)
    link.attach(LEDGER, scene.sink)
    link.send_adds(LEDGER, run, entries=1, bytes=len(run))


@pytest.mark.parametrize(
    "misuse",
    [_plain_fence, _recovery_add_on_a_plain_link, _two_sinks, _unattached, _wrong_count],
    ids=lambda misuse: misuse.__name__[1:],
)
def test_misuse_of_a_link_is_a_violation(misuse: Callable[[Scene], None]) -> None:
    with pytest.raises(Violation, match="links"):
        misuse(Scene())


def test_a_connection_that_breaks_on_its_way_is_none() -> None:
    """It was accepted, and lost before the client heard of it."""
    scene = Scene(seed=4)
    found: list[SimLink | None] = []
    scene.links.get("b0", found.append)
    while not scene.server.callers:
        scene.world.run(until_ms=scene.world.now_ms + 0.01)
    assert found == []
    scene.client.freeze(50.0)
    scene.server.kill()
    scene.go_on(100.0)
    assert len(found) == 1
    assert found[0] is None or not found[0].is_up
