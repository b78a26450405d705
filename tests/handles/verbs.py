"""Calls that are complete in themselves, as a program makes them: after an error, once more. The
same call then completes what the failed one left half done, or says what is so.
"""

from __future__ import annotations

import contextlib
from typing import Any

from dlog.errors import AlreadyExists, Conflict, DlogError, NotFound
from dlog.options import LogOptions
from dlog.reader.resolve import Present
from dlog.reason import Reason
from tests.handles.lives import LOG, TURN_S, Life


class Calling(Life):
    """`call` is made again until it returns; `check` looks with a client whose stores are well."""

    WORKS_S = 30.0  # a call that has not returned
    LOSES_ANSWERS = True
    SAYS_SO: tuple[type[DlogError], ...] = ()
    """What a call is told, behind one that failed, where that one had done it."""

    async def begin(self) -> None:
        self.well = self.sim.connect()
        self._wants = self._has_failed = False
        await self.prepare()

    async def prepare(self) -> None:
        pass

    async def get_ready(self) -> None:
        await self.make_ready()

    async def make_ready(self) -> None:
        """Something new to do it to."""

    async def news(self) -> None:
        self._wants, self._has_failed = True, False

    @property
    def is_well(self) -> bool:
        return not self._wants

    async def turn(self) -> None:
        if not self._wants:
            await self.sim.pass_time(TURN_S)
            return
        again, self._has_failed = self._has_failed, True
        try:
            await self.call()
        except self.SAYS_SO:
            assert again, "nothing of it was done before"
        await self.check()
        self._wants = False

    async def call(self) -> None:
        raise NotImplementedError

    async def check(self) -> None:
        pass

    def why(self) -> Reason | None:
        return None


# --- logs


class LookingAtLogs(Calling):
    LOSES_ANSWERS = False  # nothing is changed

    async def prepare(self) -> None:
        self.log = await self.sim.open_writer(LOG)
        await self.log.append(b"one")
        await self.log.rotate()
        ticket = await self.log.submit(b"two")
        self.last_id, self.token = await ticket, ticket.token
        await self.well.admin.hold(LOG, "h", "earliest")

    async def call(self) -> None:
        admin = self.client.admin
        assert [each.name for each in await admin.list()] == [LOG]
        assert (await admin.describe(LOG)).state == "open"
        assert len(await admin.segments(LOG)) == 2
        assert (await admin.status(LOG)).next_seq == 2


class LookingIntoALog(LookingAtLogs):
    async def call(self) -> None:
        admin = self.client.admin
        await admin.why(LOG)
        assert await admin.tail(LOG) == self.last_id
        assert await self.client.resolve(LOG, self.token) == Present(self.last_id)
        assert [each.name for each in await admin.holds(LOG)] == ["h"]
        assert await admin.plan_ranges(LOG)


class MakingALog(Calling):
    SAYS_SO = (AlreadyExists,)

    async def prepare(self) -> None:
        await self.well.admin.create(LOG)

    async def make_ready(self) -> None:
        await self.well.admin.remove(LOG)

    async def call(self) -> None:
        await self.client.admin.create(LOG)

    async def check(self) -> None:
        assert (await self.well.admin.describe(LOG)).state == "open"


class RemovingALog(Calling):
    SAYS_SO = (NotFound,)

    async def prepare(self) -> None:
        await self.make_ready()

    async def make_ready(self) -> None:
        async with self.well.open_writer(LOG) as log:
            await log.append(b"one")

    async def call(self) -> None:
        await self.client.admin.remove(LOG)

    async def check(self) -> None:
        assert await self.well.admin.list() == []


class EndingALog(RemovingALog):
    """Its writer died."""

    SAYS_SO = ()

    async def make_ready(self) -> None:
        if await self.well.admin.list():
            await self.well.admin.remove(LOG)
        self.log = await self.sim.open_writer(LOG)
        await self.log.append(b"one")

    async def call(self) -> None:
        await self.client.admin.terminate(LOG)

    async def check(self) -> None:
        assert (await self.well.admin.describe(LOG)).state == "terminated"


class TruncatingALog(Calling):
    """A hold stands, and what it does not keep goes. Another log for each time."""

    async def prepare(self) -> None:
        self._number = 0

    async def make_ready(self) -> None:
        self._number += 1
        self.name = f"{LOG}-{self._number}"
        create = LogOptions(deletion_grace_s=0)
        async with self.well.open_writer(self.name, create=create) as log:
            await log.append(b"one")
            await log.rotate()
            await log.append(b"two")

    async def call(self) -> None:
        admin = self.client.admin
        await admin.hold(self.name, "h", 1)
        await admin.truncate(self.name, 1)
        while (await admin.collect(self.name)).problems:  # the next pass tries again
            await self.sim.pass_time(TURN_S)

    async def check(self) -> None:
        about = await self.well.admin.describe(self.name)
        assert (about.head_seq, about.deleting) == (1, ())


class DroppingAHold(Calling):
    SAYS_SO = (NotFound,)

    async def prepare(self) -> None:
        await self.well.admin.create(LOG)
        await self.make_ready()

    async def make_ready(self) -> None:
        await self.well.admin.hold(LOG, "h", "earliest")

    async def call(self) -> None:
        await self.client.admin.drop_hold(LOG, "h")

    async def check(self) -> None:
        assert await self.well.admin.holds(LOG) == ()


# --- streams


class LookingAtAStream(Calling):
    LOSES_ANSWERS = False

    async def prepare(self) -> None:
        await self.well.create_stream("s", shards=2)
        async with self.well.stream("s").open_writer() as log:
            await log.append(b"one", key=b"k")
        await self.well.stream("s").hold("h")

    async def call(self) -> None:
        stream = self.client.stream("s")
        assert sum(each.next_seq or 0 for each in (await stream.describe()).shards) == 1
        assert len(await stream.shards()) == 2
        assert sum(each.next_seq for each in await stream.tails()) == 1
        assert [each.name for each in await stream.holds()] == ["h"]
        assert await self.client.streams() == ["s"]


class MakingAStream(Calling):
    SAYS_SO = (AlreadyExists,)

    async def prepare(self) -> None:
        await self.well.create_stream("s")

    async def make_ready(self) -> None:
        await self.well.stream("s").remove()

    async def call(self) -> None:
        await self.client.create_stream("s", shards=2)

    async def check(self) -> None:
        assert await self.well.streams() == ["s"]
        async with self.well.stream("s").open_writer() as log:
            await log.append(b"one", key=b"k")


class Resharding(Calling):
    """Nobody writes the stream any more. Whether the call said that it was done, or that it is so:
    the old shards are at their end."""

    SAYS_SO = (Conflict,)

    async def prepare(self) -> None:
        await self.make_ready()

    async def make_ready(self) -> None:
        self.stream = self.well.stream("s")
        with contextlib.suppress(NotFound):
            await self.stream.remove()
        await self.well.create_stream("s", shards=2)
        async with self.stream.open_writer() as log:
            await log.append(b"one", key=b"k")
            self.has_key = log.shard_of(b"k")

    async def call(self) -> None:
        await self.client.stream("s").split(self.has_key)

    async def check(self) -> None:
        shards = await self.stream.shards()
        states = {each.state.value for each in shards if not each.is_open}
        assert states == {"ended"}, states


class Merging(Resharding):
    async def call(self) -> None:
        await self.client.stream("s").merge(0, 1)


class Pinning(Resharding):
    async def call(self) -> None:
        await self.client.stream("s").pin(b"k", 1 - self.has_key)

    async def check(self) -> None:
        await super().check()
        assert b"k" in (await self.stream.describe()).pins


class Unpinning(Pinning):
    SAYS_SO = (Conflict, NotFound)

    async def make_ready(self) -> None:
        await super().make_ready()
        await self.stream.pin(b"k", 1 - self.has_key)

    async def call(self) -> None:
        await self.client.stream("s").unpin(b"k")

    async def check(self) -> None:
        await Resharding.check(self)
        assert b"k" not in (await self.stream.describe()).pins


class EndingAStream(Resharding):
    SAYS_SO = ()

    async def call(self) -> None:
        await self.client.stream("s").terminate()


class RemovingAStream(Resharding):
    SAYS_SO = (NotFound,)

    async def call(self) -> None:
        await self.client.stream("s").remove()

    async def check(self) -> None:
        assert await self.well.streams() == []
        assert await self.well.admin.list() == []


class Trimming(Resharding):
    SAYS_SO = ()

    async def make_ready(self) -> None:
        await super().make_ready()
        await self.stream.split(self.has_key)
        (ended,) = [s for s in (await self.stream.describe()).shards if s.state == "ended"]
        await self.well.admin.truncate(ended.log, 1)

    async def call(self) -> None:
        await self.client.stream("s").trim()

    async def check(self) -> None:
        shards = await self.stream.shards()
        assert all(each.is_open for each in shards)
        assert {each.name for each in await self.well.admin.list()} <= {s.log for s in shards}


class HoldingAStream(Calling):
    SAYS_SO = (NotFound,)

    async def prepare(self) -> None:
        await self.well.create_stream("s", shards=2)
        async with self.well.stream("s").open_writer() as log:
            await log.append(b"one", key=b"k")

    async def call(self) -> None:
        stream = self.client.stream("s")
        await stream.hold("h")
        logs = [each.name for each in await self.well.admin.list()]
        assert all([await self.well.admin.holds(each) for each in logs])
        await stream.drop_hold("h")

    async def check(self) -> None:
        assert await self.well.stream("s").holds() == ()
        for each in await self.well.admin.list():
            assert await self.well.admin.holds(each.name) == ()


# --- documents and groups


class ChangingADocument(Calling):
    async def prepare(self) -> None:
        self._limit = 0

    async def call(self) -> None:
        config = self.client.config("c")
        self._limit += 1
        made = await config.set("mine", {"limit": self._limit}, unchecked=True)
        assert (await config.get()).version == made.version
        assert (await config.history())[0].version == made.version

    async def check(self) -> None:
        assert (await self.well.config("c").get()).content["mine"]["limit"] == self._limit


class RollingADocumentBack(Calling):
    async def prepare(self) -> None:
        for limit in range(2):
            await self.well.config("c").set("mine", {"limit": limit}, unchecked=True)

    async def make_ready(self) -> None:
        await self.well.config("c").replace({"mine": {"limit": 1}}, unchecked=True)

    async def call(self) -> None:
        await self.client.config("c").rollback(1)

    async def check(self) -> None:
        assert (await self.well.config("c").get()).content["mine"]["limit"] == 0


class LookingAtAGroup(Calling):
    LOSES_ANSWERS = False
    LEASES = "nodes"

    async def prepare(self) -> None:
        await self.well.create_stream("s", shards=2)
        async with self.well.stream("s").open_writer() as log:
            await log.append(b"one", key=b"k")
            self.shard = log.shard_of(b"k")
        options: dict[str, Any] = {"heart": "loop", "threads": 0, "leases": self.LEASES}
        self._processed = 0
        async with self.well.open_worker("g", "s", self._process, **options):
            while not self._processed:
                await self.sim.pass_time(TURN_S)

    async def _process(self, batch: Any) -> None:
        self._processed += 1

    async def call(self) -> None:
        group = self.client.group("g", "s")
        assert (await group.describe()).lag_messages == 0
        assert await group.members() == ()
        assert (await group.charter()).leases == self.LEASES
        assert await group.plan(add=1)
        assert await self.client.groups() == [("g", "s")]


class ResettingAGroup(LookingAtAGroup):
    LOSES_ANSWERS = True

    async def make_ready(self) -> None:
        await self.well.group("g", "s").reset("latest")

    async def call(self) -> None:
        told = await self.client.group("g", "s").reset("earliest", shards=[self.shard])
        if told[0].refused is not None:
            raise Conflict(told[0].refused)

    async def check(self) -> None:
        assert (await self.well.group("g", "s").describe()).lag_messages == 1


class RemovingAGroup(LookingAtAGroup):
    LOSES_ANSWERS = True
    SAYS_SO = (NotFound,)

    async def make_ready(self) -> None:
        with contextlib.suppress(NotFound):
            await self.well.group("g", "s").remove()
        await self.well.stream("s").remove()
        await self.prepare()

    async def call(self) -> None:
        await self.client.group("g", "s").remove()

    async def check(self) -> None:
        assert await self.well.groups() == []
        assert await self.well.stream("s").holds() == ()


class LookingAtAGroupWithLogs(LookingAtAGroup):
    """Its leases are kept in logs."""

    LEASES = "logs"


class ResettingAGroupWithLogs(ResettingAGroup):
    LEASES = "logs"


class OpeningHandles(Calling):
    async def call(self) -> None:
        async with self.client.open_writer(LOG) as log:
            await log.append(b"one")
        async with self.client.open_reader(LOG) as reader:
            assert (await reader.read(1))[0].value == b"one"


# By the methods that they are about; all else is in `test_verbs`.
VERBS: dict[str, type[Calling]] = {
    "Admin: list describe segments status": LookingAtLogs,
    "Admin: why tail resolve holds plan_ranges": LookingIntoALog,
    "Admin: create": MakingALog,
    "Admin: remove": RemovingALog,
    "Admin: terminate": EndingALog,
    "Admin: truncate hold collect": TruncatingALog,
    "Admin: drop_hold": DroppingAHold,
    "Client: open_writer open_reader": OpeningHandles,
    "Client: create_stream": MakingAStream,
    "Config: get history set": ChangingADocument,
    "Config: replace rollback": RollingADocumentBack,
    "Group: charter describe members plan": LookingAtAGroup,
    "Group: charter describe members plan, leases in logs": LookingAtAGroupWithLogs,
    "Group: reset": ResettingAGroup,
    "Group: reset, leases in logs": ResettingAGroupWithLogs,
    "Group: remove": RemovingAGroup,
    "Stream: shards tails describe holds": LookingAtAStream,
    "Stream: split": Resharding,
    "Stream: merge": Merging,
    "Stream: pin": Pinning,
    "Stream: unpin": Unpinning,
    "Stream: terminate": EndingAStream,
    "Stream: remove": RemovingAStream,
    "Stream: trim": Trimming,
    "Stream: hold drop_hold": HoldingAStream,
}
