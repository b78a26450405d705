"""A place looked over: which logs are sampled, what is told of them, who may read and change their
nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from dlog.admin.examine import examine
from dlog.chance import SYSTEM_CHANCE
from dlog.clock import SYSTEM_CLOCK
from dlog.drive import Stores
from dlog.errors import AuthError, NotFound, Unavailable
from dlog.findings import Finding, Rights, State, Wish
from dlog.ledger.memory import MemoryLedgers, MemoryLedgerStore
from dlog.limits import EXAMINE_LEDGERS_PER_LOG_MAX, EXAMINE_LOGS_MAX
from dlog.meta.layout import Layout
from dlog.meta.log_meta import LogMeta, LogState, Segment
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.meta.store import Versioned
from dlog.options import LogOptions

CLOSED, READABLE, OPEN = Rights(False, False), Rights(True, False), Rights(True, True)


class Meta(MemoryMetaStore):
    """A store that tells rights, and refuses what it is told to."""

    def __init__(self) -> None:
        super().__init__(MemoryTree())
        self.is_private = False
        self.owns_nodes = True
        self.acls: dict[str, Rights] = {}
        self.hidden: set[str] = set()
        self.refused: set[str] = set()
        self.is_away = False
        self.rights_failure: Exception | None = None
        self.asked: list[str] = []

    async def examine(self) -> Sequence[Finding]:
        return [Finding("servers", State.FINE, "all")]

    async def rights(self, path: str) -> Rights:
        self.asked.append(path)
        if self.rights_failure is not None:
            raise self.rights_failure
        if path in self.hidden:
            raise AuthError(f"no permission for {path}")
        return self.acls.get(path, CLOSED)

    async def get(self, path: str) -> Versioned:
        if self.is_away:
            raise Unavailable("ZooKeeper is away")
        if path in self.refused:
            raise AuthError(f"no permission for {path}")
        return await super().get(path)


class Ledgers(MemoryLedgerStore):
    def __init__(self) -> None:
        super().__init__(MemoryLedgers())
        self.wish: Wish | None = None
        self.ledger_ids: Sequence[int] = ()

    async def examine(self, wish: Wish, ledger_ids: Sequence[int]) -> Sequence[Finding]:
        self.wish, self.ledger_ids = wish, ledger_ids
        return [Finding("bookies", State.FINE, "all")]

    async def node_of(self, ledger_id: int) -> str:
        if ledger_id == 98:
            raise Unavailable("ZooKeeper went away")
        if ledger_id == 99:
            raise NotFound("there is no ledger 99")
        return f"/ledgers/{ledger_id // 10}/{ledger_id}"


class Place:
    def __init__(self) -> None:
        self.meta = Meta()
        self.ledgers = Ledgers()
        self.layout = Layout()
        self.stores = Stores(self.meta, self.ledgers, self.layout, SYSTEM_CLOCK, SYSTEM_CHANCE)

    async def log(
        self, name: str, *ledger_ids: int, ensemble: int = 3, state: LogState = LogState.OPEN
    ) -> None:
        segments = tuple(Segment(n, each, 1) for n, each in enumerate(ledger_ids, 1))
        options = LogOptions(ensemble=ensemble, write_quorum=ensemble)
        meta = LogMeta(uid=name, options=options, segments=segments, state=state)
        await self.meta.create(self.layout.log(name), meta.to_bytes())

    async def found(self) -> dict[str, Finding]:
        return {finding.check: finding for finding in await examine(self.stores)}


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    await place.meta.create(place.layout.format, b"1")
    yield place
    await place.ledgers.close()
    await place.meta.close()


async def test_stores_are_asked_about_what_stands_in_them(place: Place) -> None:
    await place.log("a", 11, 12, 13)
    await place.log("b", 20, ensemble=5)
    await place.log("gone", 30, state=LogState.DELETED)
    found = await place.found()
    assert {"servers", "bookies"} < found.keys()
    assert found["logs"].told == "2 logs, format 1"
    assert place.ledgers.ledger_ids == [12, 13, 20], "the newest of each"
    assert place.ledgers.wish == Wish(5, 2), "of the log that wants the most"
    assert found["log nodes"].state is found["ledger nodes"].state is State.FINE
    assert {"/dlog", "/dlog/logs/a", "/dlog/logs/gone"} < set(place.meta.asked)
    assert {"/ledgers/1", "/ledgers/1/13", "/ledgers/2"} < set(place.meta.asked), "and above them"


async def test_of_many_logs_a_few_are_looked_at(place: Place) -> None:
    for number in range(3 * EXAMINE_LOGS_MAX):
        await place.log(f"{number:03}", 10 * number, 10 * number + 1, ensemble=3)
    found = await place.found()
    assert found["logs"].told.startswith(f"up to {3 * EXAMINE_LOGS_MAX} logs")
    assert len(place.ledgers.ledger_ids) == EXAMINE_LOGS_MAX * EXAMINE_LEDGERS_PER_LOG_MAX
    assert len(place.meta.asked) < 50


@pytest.mark.parametrize(
    ("rights", "credentials", "private", "state"),
    [
        (OPEN, True, False, State.BAD),
        (OPEN, True, True, State.BAD),  # with credentials nothing of ours is everybody's
        (READABLE, True, False, State.WARNING),
        (OPEN, False, False, State.WARNING),
        (OPEN, False, True, State.NOTE),
        (READABLE, False, True, State.NOTE),
    ],
)
async def test_nodes_that_are_open_to_the_world_are_named(
    place: Place, rights: Rights, credentials: bool, private: bool, state: State
) -> None:
    await place.log("a", 11)
    place.meta.owns_nodes, place.meta.is_private = credentials, private
    place.meta.acls = {"/dlog/logs/a": rights, "/ledgers/1/11": rights}
    found = await place.found()
    for check, path in (("log nodes", "/dlog/logs/a"), ("ledger nodes", "/ledgers/1/11")):
        assert found[check].state is state
        verb = "change" if rights.anyone_changes else "read"
        assert f"anybody may {verb} {path} (1 of " in found[check].told


async def test_what_we_may_not_even_ask_about_is_not_open(place: Place) -> None:
    await place.log("a", 99)
    place.meta.hidden = {"/dlog", "/dlog/logs/a"}
    found = await place.found()
    assert found["log nodes"].state is State.FINE
    assert "ledger nodes" not in found, "and a ledger that went is not missed"


async def test_no_logs_yet(place: Place) -> None:
    await place.meta.delete("/dlog/format", (await place.meta.get("/dlog/format")).version)
    found = await place.found()
    assert found["logs"].state is State.NOTE
    assert "bookies" in found, "that there are none says nothing against the place"


async def test_another_format(place: Place) -> None:
    node = await place.meta.get("/dlog/format")
    await place.meta.put("/dlog/format", b"7", node.version)
    found = (await place.found())["logs"]
    assert (found.state, found.told) == (State.BAD, "kept in format b'7'; this version knows 1")


async def test_logs_of_somebody_else(place: Place) -> None:
    await place.log("a", 11)
    place.meta.refused = {"/dlog/logs/a"}
    found = await place.found()
    assert found["logs"] == Finding("logs", State.BAD, "no permission for /dlog/logs/a")
    assert "bookies" in found
    place.meta.refused = {"/dlog/format"}
    found = await place.found()
    assert found["logs"].state is State.BAD
    assert "other credentials" in found["logs"].told


async def test_a_log_that_cannot_be_read_is_named(place: Place) -> None:
    await place.log("a", 11)
    await place.meta.create("/dlog/logs/b", b"{")
    found = await place.found()
    assert found["logs"].state is State.BAD
    assert "/dlog/logs/b" in found["logs"].told


async def test_without_the_metadata_store_nothing_else_is_asked(place: Place) -> None:
    place.meta.is_away = True
    found = await place.found()
    assert found["logs"].state is State.BAD
    assert "ZooKeeper is away" in found["logs"].told
    assert found.keys() == {"servers", "logs"}


@pytest.mark.parametrize(
    ("error", "why"),
    [(Unavailable("ZooKeeper went away"), "went away"), (TimeoutError(), "no answer in time")],
    ids=["away", "slow"],
)
async def test_rights_that_nobody_tells_are_a_warning(
    place: Place, error: Exception, why: str
) -> None:
    await place.log("a", 11)
    place.meta.rights_failure = error
    found = await place.found()
    for check in ("log nodes", "ledger nodes"):
        assert found[check].state is State.WARNING
        assert found[check].told.startswith("who may read and change them is not to be had")
        assert why in found[check].told
    assert found["logs"].state is State.FINE


@pytest.mark.parametrize("ledger_id", [98, 99])
async def test_ledgers_whose_nodes_are_not_to_be_had_have_no_finding(
    place: Place, ledger_id: int
) -> None:
    """Nor is any other asked for then."""
    await place.log("a", 11, ledger_id)
    found = await place.found()
    assert "ledger nodes" not in found
    assert found["log nodes"].state is State.FINE


async def test_a_node_that_went_or_may_not_be_asked_about_is_passed_over(place: Place) -> None:
    await place.log("a", 11)
    await place.log("b", 21)
    place.meta.hidden = {"/dlog/logs/a"}
    place.meta.acls = {"/dlog/logs/b": OPEN}
    found = (await place.found())["log nodes"]
    assert found.state is State.BAD
    looked = set(place.meta.asked) & {
        "/dlog",
        "/dlog/format",
        "/dlog/logs",
        "/dlog/logs/a",
        "/dlog/logs/b",
    }
    assert len(looked) == 5
    assert found.told == "anybody may change /dlog/logs/b (1 of 4 nodes looked at)"


async def test_as_many_logs_as_are_looked_at_are_counted(place: Place) -> None:
    for number in range(EXAMINE_LOGS_MAX):
        await place.log(f"{number:03}", 10 * number)
    await place.meta.create("/dlog/logs/000/holds", b"")
    assert (await place.found())["logs"].told == f"{EXAMINE_LOGS_MAX} logs, format 1"


async def test_a_log_that_is_being_removed_has_no_ledgers_to_look_at(place: Place) -> None:
    await place.log("a", 11, state=LogState.DELETING)
    await place.log("b", 21, ensemble=4)
    await place.log("c", 31, ensemble=3)
    found = await place.found()
    assert found["logs"].told == "2 logs, format 1"
    assert place.ledgers.ledger_ids == [21, 31]
    assert place.ledgers.wish == Wish(4, 2)


async def test_a_store_that_is_away_while_logs_are_read_is_named(place: Place) -> None:
    place.meta.is_away = True
    place.meta.owns_nodes = False
    told = (await place.found())["logs"].told
    assert told == "what there is is not to be had: ZooKeeper is away"
