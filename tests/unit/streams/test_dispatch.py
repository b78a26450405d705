"""Messages that are really brought: over virtual time to services that die, hang and lie in wait,
and with real logs as what the services share. CL-05 to CL-08, CL-20."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

import dlog
from dlog.errors import ConfigError, Unavailable, WriterClosed
from dlog.streams.health.core import HealthOptions
from dlog.streams.health.dispatch import Dispatcher, Refusal
from dlog.streams.health.receive import LogsOfKeys, Receiver
from dlog.streams.routing.flight import FlightOptions, Numbered
from dlog.streams.routing.router import Router, Routes
from tests.sim.virtual_loop import LoopClock, pass_time, run_virtually
from tests.unit.streams.health_tools import Fixed

FLEET = ["a", "b", "c"]
QUICK = HealthOptions(interval_s=1.0, idle_s=5.0, isolation_s=5.0, isolation_s_max=20.0)
KEY = b"user-1"


class Service:
    """One of several that write what they take to logs. Killed, it is not there; frozen, what it
    got stays in it, and goes on when it thaws."""

    def __init__(self, name: str, client: dlog.aio.Client) -> None:
        self.name = name
        self.client = client
        self.is_up = True
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.receiver = self._new_receiver()

    def _new_receiver(self) -> Receiver:
        def open_writer(key: bytes) -> Any:
            return self.client.open_writer(f"of-{key.decode()}", owner=self.name)

        return Receiver(LogsOfKeys(open_writer))

    async def kill(self) -> None:
        self.is_up = False
        await self.receiver.close()

    def start(self) -> None:
        self.is_up = True
        self.receiver = self._new_receiver()

    def freeze(self) -> None:
        self.thawed.clear()

    def thaw(self) -> None:
        self.thawed.set()

    async def probe(self) -> None:
        if not self.is_up:
            raise ConnectionRefusedError(self.name)
        await self.thawed.wait()

    async def take(self, client_id: int, key: bytes, messages: Sequence[Numbered]) -> int:
        await self.probe()
        return await self.receiver.take(client_id, key, messages)


class Fleet:
    def __init__(self, client: dlog.aio.Client) -> None:
        self.client = client
        self.services = {name: Service(name, client) for name in FLEET}
        self.routes = Routes(Router.of(FLEET))
        self.loses = 0.0  # answers
        self.draw = random.Random("answers")
        self.late: list[asyncio.Task[Any]] = []

    async def probe(self, endpoint: str) -> None:
        await self.services[endpoint].probe()

    async def bring(
        self, endpoint: str, client_id: int, key: bytes, messages: Sequence[Numbered]
    ) -> int:
        # Whoever gives up waiting takes back nothing of what is on its way.
        work = self.services[endpoint].take(client_id, key, messages)
        task = asyncio.get_running_loop().create_task(work)
        self.late.append(task)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        taken = await asyncio.shield(task)
        if self.draw.random() < self.loses:
            raise ConnectionResetError("the answer was lost")
        return taken

    def dispatcher(self, client_id: int = 1, **more: Any) -> Dispatcher:
        more = {"probe": self.probe, "health": QUICK, **more}
        return Dispatcher(
            self.routes,
            self.bring,
            client_id=client_id,
            options=FlightOptions(answer_s=1.0),
            clock=LoopClock(asyncio.get_running_loop()),
            chance=Fixed(0.5),
            **more,
        )

    async def read(self, key: bytes) -> list[bytes]:
        async with self.client.open_reader(f"of-{key.decode()}") as reader:
            return [message.value async for message in reader if message.value is not None]

    async def close(self) -> None:
        for service in self.services.values():
            service.thaw()
        for task in self.late:
            task.cancel()
        await asyncio.gather(*self.late, return_exceptions=True)
        for service in self.services.values():
            await service.receiver.close()


def with_fleet(story: Any) -> Any:
    def test() -> None:
        async def run() -> None:
            async with dlog.aio.connect(f"memory:{story.__name__}") as client:
                fleet = Fleet(client)
                try:
                    await story(fleet)
                finally:
                    await fleet.close()

        run_virtually(run())

    test.__doc__ = story.__doc__
    return test


@with_fleet
async def test_messages_are_in_the_log_in_their_order(fleet: Fleet) -> None:
    async with fleet.dispatcher() as messages:
        settled = [(await messages.submit(KEY, b"%d" % number))[1] for number in range(100)]
        await asyncio.gather(*settled)
        assert messages.next_number == 100
    assert await fleet.read(KEY) == [b"%d" % number for number in range(100)]


@with_fleet
async def test_cl07_kills_lose_nothing_and_double_nothing(fleet: Fleet) -> None:
    """Every service dies again and again, in turn and at once; one in five answers is lost."""
    fleet.loses = 0.2
    keys = [b"k%d" % number for number in range(6)]
    sent: dict[bytes, list[bytes]] = defaultdict(list)

    async def send(messages: Dispatcher, key: bytes) -> None:
        for number in range(60):
            value = b"%d/%d" % (messages.client_id, number)
            await messages.send(key, value)
            sent[key].append(value)
            await pass_time(0.3)

    async def harm() -> None:
        draw = random.Random("harm")
        while True:
            service = fleet.services[draw.choice(FLEET)]
            await pass_time(draw.uniform(0.1, 4.0))
            await service.kill()
            await pass_time(draw.uniform(0.1, 8.0))
            service.start()

    async with fleet.dispatcher() as messages:
        harming = asyncio.get_running_loop().create_task(harm())
        await asyncio.gather(*(send(messages, key) for key in keys))
        harming.cancel()
        await asyncio.gather(harming, return_exceptions=True)
    for key in keys:
        assert await fleet.read(key) == sent[key] == [b"1/%d" % number for number in range(60)]


@with_fleet
async def test_cl07_a_service_that_was_frozen_finds_itself_fenced(fleet: Fleet) -> None:
    """It has messages in hand, is isolated, and goes on when others have long taken them."""
    async with fleet.dispatcher() as messages:
        await messages.send(KEY, b"0")
        home = fleet.services[fleet.routes.now.owner_of(KEY)]
        home.freeze()
        settled = [(await messages.submit(KEY, b"%d" % number))[1] for number in range(1, 10)]
        await asyncio.gather(*settled)
        assert home.name in fleet.routes.now.isolated
        home.thaw()
        await pass_time(60)
        assert fleet.routes.now.isolated == frozenset()
        await messages.send(KEY, b"10")  # at home again
    assert await fleet.read(KEY) == [b"%d" % number for number in range(11)]


@with_fleet
async def test_cl06_cl08_isolation_and_recovery_change_the_routes(fleet: Fleet) -> None:
    async with fleet.dispatcher() as messages:
        home = fleet.services[fleet.routes.now.owner_of(KEY)]
        version = fleet.routes.now.version
        await home.kill()
        await messages.send(KEY, b"0")
        assert fleet.routes.now.isolated == {home.name}
        assert fleet.routes.now.version == version + 1
        home.start()
        await pass_time(30)
        assert fleet.routes.now.isolated == frozenset()
        assert fleet.routes.now.version == version + 2


@with_fleet
async def test_cl05_sending_waits_for_nobody(fleet: Fleet) -> None:
    """With every service silent: to submit takes no time, until the room is full."""
    for service in fleet.services.values():
        service.freeze()
    async with fleet.dispatcher() as messages:
        begun_s = asyncio.get_running_loop().time()
        for number in range(200):
            await messages.submit(b"k%d" % (number % 7), b"")
        assert asyncio.get_running_loop().time() == begun_s


@with_fleet
async def test_cl20_servers_come_and_go_in_the_middle_of_it(fleet: Fleet) -> None:
    async with fleet.dispatcher() as messages:
        for number in range(30):
            if number % 5 == 0:
                servers = FLEET if number % 2 else FLEET[:1]
                fleet.routes.change(servers=servers)
                messages.routes_changed()
            await messages.send(KEY, b"%d" % number)
    assert await fleet.read(KEY) == [b"%d" % number for number in range(30)]


@with_fleet
async def test_two_clients_that_disagree_about_who_is_well(fleet: Fleet) -> None:
    """Each has routes of its own; the services fence each other, and nothing is lost or doubled."""
    other_routes = Routes(Router.of(FLEET))
    async with fleet.dispatcher(1, probe=None) as one:
        other = Dispatcher(
            other_routes,
            fleet.bring,
            client_id=2,
            options=FlightOptions(answer_s=1.0),
            clock=LoopClock(asyncio.get_running_loop()),
            chance=Fixed(0.5),
        )
        async with other:
            other_routes.change(isolated={other_routes.now.owner_of(KEY)})
            for number in range(20):
                await asyncio.gather(
                    one.send(KEY, b"1/%d" % number), other.send(KEY, b"2/%d" % number)
                )
    found = await fleet.read(KEY)
    for client in (b"1", b"2"):
        of_client = [value for value in found if value.startswith(client)]
        assert of_client == [client + b"/%d" % number for number in range(20)]


@with_fleet
async def test_a_service_that_answers_probes_and_takes_nothing_is_isolated(fleet: Fleet) -> None:
    home = fleet.services[fleet.routes.now.owner_of(KEY)]

    async def breaks(*_: Any) -> int:
        raise Unavailable("its disk is gone")

    home.take = breaks  # type: ignore[method-assign]
    async with fleet.dispatcher() as messages:
        await asyncio.wait_for(messages.send(KEY, b"0"), 30)
        assert fleet.routes.now.isolated == {home.name}
    assert await fleet.read(KEY) == [b"0"]


@with_fleet
async def test_a_message_that_is_refused_says_so_and_the_next_goes_on(fleet: Fleet) -> None:
    async with fleet.dispatcher() as messages:
        await messages.send(KEY, b"0")
        with pytest.raises(ConfigError, match="refused"):
            await messages.send(KEY, b"." * 6_000_000)
        await messages.send(KEY, b"2")
    assert await fleet.read(KEY) == [b"0", b"2"]


@with_fleet
async def test_whoever_sends_waits_for_room(fleet: Fleet) -> None:
    small = FlightOptions(answer_s=1.0, messages_max=2)
    messages = Dispatcher(
        fleet.routes,
        fleet.bring,
        client_id=1,
        options=small,
        clock=LoopClock(asyncio.get_running_loop()),
    )
    async with messages:
        await asyncio.gather(*(messages.send(b"k%d" % number, b"") for number in range(20)))
        assert messages.next_number == 20


@with_fleet
async def test_closing_tells_whoever_waits_that_it_is_unknown(fleet: Fleet) -> None:
    for service in fleet.services.values():
        service.freeze()
    messages = fleet.dispatcher()
    _, settled = await messages.submit(KEY, b"0")
    await pass_time(0.1)
    await messages.close()
    await messages.close()
    with pytest.raises(WriterClosed) as told:
        await settled
    assert told.value.outcome is dlog.Outcome.UNKNOWN
    with pytest.raises(WriterClosed) as told:
        await messages.send(KEY, b"1")
    assert told.value.outcome is dlog.Outcome.NOT_HAPPENED


@with_fleet
async def test_a_client_goes_on_with_its_numbers_and_sends_again_what_it_does_not_know(
    fleet: Fleet,
) -> None:
    async with fleet.dispatcher() as messages:
        for number in range(5):
            await messages.send(KEY, b"%d" % number)
    async with fleet.dispatcher(first_number=3) as messages:  # it kept less than it sent
        for number in range(3, 8):
            assert await messages.send(KEY, b"%d" % number) == number
    assert await fleet.read(KEY) == [b"%d" % number for number in range(8)]


@with_fleet
async def test_a_receiver_lets_go_of_what_was_idle_longest(fleet: Fleet) -> None:
    held: list[str] = []

    class Held:
        def __init__(self, key: bytes) -> None:
            self.key = key.decode()
            held.append(self.key)

        async def submit(self, client_id: int, message: Numbered) -> Any:
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done

        async def close(self) -> None:
            held.remove(self.key)

    async def hold(key: bytes) -> Held:
        return Held(key)

    receiver = Receiver(hold, keys_max=2)
    for key in (b"a", b"b", b"a", b"c"):
        assert await receiver.take(1, key, [Numbered(0, b"")]) == 1
    assert sorted(held) == ["a", "c"]
    await receiver.close()
    assert held == []
    with pytest.raises(WriterClosed):
        await receiver.take(1, b"a", [])


@with_fleet
async def test_a_receiver_counts_what_the_log_has_and_stops_at_what_it_refuses(
    fleet: Fleet,
) -> None:
    receiver = fleet.services["a"].receiver
    first = [Numbered(0, b"0"), Numbered(1, b"1")]
    assert await receiver.take(1, KEY, first) == 2
    assert await receiver.take(1, KEY, first) == 2
    bad = [Numbered(1, b"1"), Numbered(2, b"." * 6_000_000), Numbered(3, b"3")]
    with pytest.raises(Refusal) as refused:
        await receiver.take(1, KEY, bad)
    assert refused.value.taken == 1
    assert await fleet.read(KEY) == [b"0", b"1"]


def bare(transport: Any, **options: Any) -> Dispatcher:
    """Without probes, to one endpoint."""
    return Dispatcher(
        Routes(Router.of(["a"])),
        transport,
        client_id=1,
        options=FlightOptions(answer_s=60.0, **options),
        clock=LoopClock(asyncio.get_running_loop()),
        chance=Fixed(0.5),
    )


def test_what_comes_next_goes_as_soon_as_the_answer_is_there() -> None:
    """No timer is waited for: the messages of a key go one call after the other."""

    async def story() -> None:
        async def take(endpoint: str, client_id: int, key: bytes, messages: Any) -> int:
            await pass_time(0.1)
            return 1

        loop = asyncio.get_running_loop()
        async with bare(take, call_messages_max=1) as messages:
            settled = [(await messages.submit(KEY, b"%d" % number))[1] for number in range(5)]
            await asyncio.gather(*settled)
            assert loop.time() == pytest.approx(0.5)

    run_virtually(story())


def test_a_call_that_is_on_its_way_ends_with_its_dispatcher() -> None:
    async def story() -> None:
        begun: list[bytes] = []

        async def hang(endpoint: str, client_id: int, key: bytes, messages: Any) -> int:
            begun.append(key)
            await asyncio.Event().wait()
            return 0

        messages = bare(hang)
        _, settled = await messages.submit(KEY, b"0")
        await pass_time(0.1)
        assert begun == [KEY]
        await messages.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(WriterClosed):
            await settled

    run_virtually(story())


def test_an_endpoint_that_takes_nothing_is_isolated_after_two_intervals() -> None:
    """It answers probes. The messages go elsewhere no earlier, and hardly later."""

    async def story() -> None:
        async def take(endpoint: str, client_id: int, key: bytes, messages: Any) -> int:
            if endpoint == home:
                raise Unavailable("its disk is gone")
            return len(messages)

        async def is_well(endpoint: str) -> None:
            await pass_time(0.01)

        loop = asyncio.get_running_loop()
        routes = Routes(Router.of(["a", "b"]))
        home = routes.now.owner_of(KEY)
        async with Dispatcher(
            routes,
            take,
            client_id=1,
            probe=is_well,
            health=QUICK,
            options=FlightOptions(retry_s_max=0.1),
            clock=LoopClock(loop),
            chance=Fixed(0.5),
        ) as messages:
            await messages.send(KEY, b"0")
            assert routes.now.isolated == {home}
            assert 2 * QUICK.interval_s <= loop.time() < 2 * QUICK.interval_s + 0.2

    run_virtually(story())


def test_whoever_waits_for_room_is_told_of_the_end() -> None:
    """Closed, or broken by a defect: nobody waits for ever."""

    async def story() -> None:
        async def hang(*_: Any) -> int:
            await asyncio.Event().wait()
            return 0

        for is_broken in (False, True):
            messages = bare(hang, messages_max=1)
            _, settled = await messages.submit(KEY, b"0")
            waiting = asyncio.ensure_future(messages.submit(KEY, b"1"))
            await pass_time(0.1)
            assert not waiting.done()
            if is_broken:
                messages._flight.pulse = None  # type: ignore[method-assign, assignment]
                messages.routes_changed()
                await pass_time(0.1)
            else:
                await messages.close()
            with pytest.raises(TypeError if is_broken else WriterClosed):
                await waiting
            with pytest.raises(TypeError if is_broken else WriterClosed):
                await settled
            await messages.close()

    run_virtually(story())


class HeldKey:
    """The log of a key, that answers when the test says so, or fails."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: Exception | None = None
        self.is_closed = False

    async def submit(self, client_id: int, message: Numbered) -> Any:
        if self.error is not None:
            raise self.error
        return self.answer

    async def close(self) -> None:
        self.is_closed = True


def test_a_receiver_lets_no_key_go_that_somebody_waits_for() -> None:
    """It has more than it should, for so long."""

    async def story() -> None:
        held: dict[bytes, HeldKey] = {}

        async def hold(key: bytes) -> HeldKey:
            return held.setdefault(key, HeldKey())

        receiver = Receiver(hold, keys_max=1)
        taking = [
            asyncio.ensure_future(receiver.take(1, key, [Numbered(0, b"")])) for key in (b"a", b"b")
        ]
        await pass_time(0.1)
        held[b"a"].answer.set_result(None)
        assert await taking[0] == 1
        assert [held[key].is_closed for key in (b"a", b"b")] == [True, False]
        held[b"b"].answer.set_result(None)
        assert await taking[1] == 1
        assert not held[b"b"].is_closed, "it is the one that there is room for"
        await receiver.close()
        assert held[b"b"].is_closed

    run_virtually(story())


def test_a_key_that_was_lost_is_let_go_and_had_again_for_the_next_message() -> None:
    async def story() -> None:
        held: list[HeldKey] = []

        async def hold(key: bytes) -> HeldKey:
            held.append(HeldKey())
            held[-1].answer.set_result(None)
            return held[-1]

        receiver = Receiver(hold)
        assert await receiver.take(1, KEY, [Numbered(0, b""), Numbered(1, b"")]) == 2
        held[0].error = dlog.Fenced("by another endpoint")
        assert await receiver.take(1, KEY, [Numbered(2, b"")]) == 0
        assert held[0].is_closed
        assert await receiver.take(1, KEY, [Numbered(2, b"")]) == 1
        assert len(held) == 2
        held[1].answer = asyncio.get_running_loop().create_future()
        held[1].answer.set_exception(dlog.Fenced("by another endpoint"))
        assert await receiver.take(1, KEY, [Numbered(3, b"")]) == 0, "it failed on its way"
        assert held[1].is_closed
        await receiver.close()

    run_virtually(story())
