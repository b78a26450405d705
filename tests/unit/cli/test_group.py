"""`dlog group` and `dlog top --group`, as processes, with workers in this one."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import dlog
from dlog.cli.group_top import GroupLook, GroupPicture, GroupWatch, show_group
from dlog.cli.group_waits import show_waits, waits_of
from dlog.groups.leases import Checkpoint
from dlog.ids import Position
from dlog.reader.lag import Lag
from tests.pace import Deadline
from tests.unit.cli.conftest import Shell

DEADLINE_S = 20.0
A, B = dlog.WorkerId("ann", "1"), dlog.WorkerId("bob", "2")


@pytest.fixture
def orders(shell: Shell) -> Shell:
    """A stream of three shards, with ten messages in each."""
    with (
        dlog.connect(shell.url) as client,
        client.create_stream("orders", shards=3).open_writer() as writer,
    ):
        by_shard: dict[int, int] = {}
        number = 0
        while by_shard != {0: 10, 1: 10, 2: 10}:
            key = b"key %d" % number
            shard = writer.shard_of(key)
            if by_shard.get(shard, 0) < 10:
                writer.append(b"%d" % number, key=key)
                by_shard[shard] = by_shard.get(shard, 0) + 1
            number += 1
    return shell


def nothing(batch: Any) -> None:
    """A program that is content."""


@contextmanager
def at_work(shell: Shell, name: str = "ann", process: Any = nothing) -> Iterator[dlog.Worker]:
    with (
        dlog.connect(shell.url) as client,
        client.open_worker(
            "billing", "orders", process, name=name, timeout_ms=2_000, flush_ms=20
        ) as worker,
    ):
        yield worker


def until(fact: Callable[[], bool]) -> None:
    """Each look takes its time."""
    deadline = Deadline(DEADLINE_S)
    while not fact():
        assert not deadline.passed(), "it did not happen"


def done(shell: Shell, **wanted: Any) -> None:
    """Until all of the stream is done, and the workers have so many shards each."""
    with dlog.connect(shell.url) as client:
        group = client.group("billing", "orders")

        def fact() -> bool:
            found = group.describe()
            has = {each.id.name: len(each.shards) for each in found.members}
            states = {shard.state for shard in found.shards}
            return found.lag_messages == 0 and has == wanted and states == {"consumed"}

        until(fact)


def objects(shell: Shell, *words: str, expect: int = 0) -> list[Any]:
    return [json.loads(line) for line in shell.dlog(*words, "-o", "json", expect=expect).lines]


def lag(shell: Shell) -> int:
    with dlog.connect(shell.url) as client:
        return client.group("billing", "orders").describe().lag_messages


@pytest.fixture
def billing(orders: Shell) -> Shell:
    """A group that is done with all there is, and has no workers now."""
    with at_work(orders):
        done(orders, ann=3)
    return orders


def test_a_group_at_work_is_listed_and_described(orders: Shell) -> None:
    """Who has what, and how far it is, from outside."""
    assert orders.dlog("group", "ls").lines == ["GROUP  STREAM"]
    with at_work(orders):
        done(orders, ann=3)
        assert orders.dlog("group", "ls").lines[1:] == ["billing  orders"]
        assert objects(orders, "group", "ls", "orders") == [
            {"group": "billing", "stream": "orders"}
        ]
        assert objects(orders, "group", "ls", "others") == []
        (told,) = objects(orders, "group", "describe", "billing", "orders")
        assert [shard["state"] for shard in told["shards"]] == ["consumed"] * 3
        assert {shard["consumer"]["name"] for shard in told["shards"]} == {"ann"}
        assert {shard["checkpoint"]["position"]["next_seq"] for shard in told["shards"]} == {10}
        assert (told["lag_messages"], told["timeout_ms"], told["waits"]) == (0, 2_000, [])
        shown = orders.dlog("group", "describe", "billing", "orders").out.decode()
        assert "billing of orders, goes on" in shown
        assert shown.count("ann~") == 3
        (member,) = objects(orders, "group", "members", "billing", "orders")
        assert member["id"]["name"] == "ann"
        assert sorted(member["shards"]) == ["orders/0", "orders/1", "orders/2"]
        assert "silent" not in member
        assert (
            "orders/0 orders/1" in orders.dlog("group", "members", "billing", "orders").out.decode()
        )


def test_a_group_that_is_not_there_is_looked_for_among_groups(orders: Shell) -> None:
    for words in (
        ("group", "describe", "billing", "orders"),
        ("group", "lag", "billing", "nothing"),
        ("group", "reset", "billing", "orders", "earliest", "--yes"),
        ("group", "rm", "billing", "orders", "--yes"),
        ("top", "orders", "--group", "billing", "-n", "1"),
    ):
        told = orders.dlog(*words, expect=3)
        assert "`dlog group ls` lists the groups there are" in told.err
        assert "`dlog ls`" not in told.err


def test_who_renews_lives_and_who_does_not_is_silent(orders: Shell) -> None:
    """One look cannot tell; two can."""
    words = ("group", "members", "billing", "orders", "--watch", "1500ms")
    with at_work(orders) as worker:
        (member,) = objects(orders, *words)
        assert (member["id"]["name"], member["silent"]) == ("ann", False)
        # As if its process had died.
        worker._closed = worker._inner._closed = True
        worker._portal.loop.call_soon_threadsafe(worker._inner.drop)
        (member,) = objects(orders, *words)
        assert (member["id"]["name"], member["silent"]) == ("ann", True)
        assert "ann~" in (said := orders.dlog(*words).err)
        assert "did not renew" in said


def to_shard_1(shell: Shell, *values: bytes) -> None:
    """Of three: the one that has the key `key 0`."""
    lines = b"".join(b"key 0:%s\n" % value for value in values)
    shell.dlog("produce", "orders", "-q", "-k", ":", feed=lines)


def test_the_lag_of_each_shard_and_of_all(billing: Shell) -> None:
    to_shard_1(billing, b"a", b"b", b"c")
    told = objects(billing, "group", "lag", "billing", "orders")
    assert [(each["shard"], each["messages"]) for each in told] == [
        (0, 0),
        (1, 3),
        (2, 0),
        (None, 3),
    ]
    assert told[1]["bytes"] > 0
    assert told[1]["next_seq"] == 10
    assert told[3]["seconds"] == told[1]["seconds"] > 0
    lines = [line.split() for line in billing.dlog("group", "lag", "billing", "orders").lines]
    assert lines[2][:4] == ["1", "-", "10", "3"]
    assert lines[4][:2] == ["all", "3"]
    shown = billing.dlog("group", "describe", "billing", "orders").out.decode()
    assert "no_workers  shard 0: the group has no workers" in shown
    assert "3 messages" in shown


def test_what_would_move_if(orders: Shell) -> None:
    """C17: the plan that workers make, before there is reason to."""
    words = ("group", "plan", "billing", "orders")
    with at_work(orders):
        done(orders, ann=3)
        settled = orders.dlog(*words)
        assert (settled.out, settled.err) == (b"", "dlog: nothing would move\n")
        moves = objects(orders, *words, "--what-if", "+1", "--what-if", "+bob", "--domain", "b")
        assert sorted(move["taker"]["name"] for move in moves) == ["bob", "new-1"]
        assert {move["victim"]["name"] for move in moves} == {"ann"}
        moved = orders.dlog(*words, "--what-if", "-ann", "--what-if", "+2").lines
        assert len(moved) == 4
        assert all("nobody" in line and "new-" in line for line in moved[1:])
        orders.dlog(*words, "--what-if", "-bob", expect=3)
        for wrong in ("bob", "+", "+2000", "+" + "9" * 5_000):
            orders.dlog(*words, "--what-if", wrong, expect=2)
        done(orders, ann=3)


def test_a_group_is_put_back(billing: Shell) -> None:
    """It shows, asks, and says what stayed."""
    words = ("group", "reset", "billing", "orders")
    told = objects(billing, *words, "earliest", "--dry-run")
    assert [
        (each["before"]["position"]["next_seq"], each["after"]["next_seq"]) for each in told
    ] == [(10, 0)] * 3
    refused = billing.dlog(*words, "earliest", expect=2)
    assert "orders/0 would go from seq 10 to seq 0" in refused.err
    assert "nothing was put elsewhere; add --yes" in refused.err
    assert billing.on_a_terminal(*words, "earliest", types=b"n\n", expect=1)
    assert lag(billing) == 0
    put = billing.dlog(*words, "earliest", "--shard", "0", "--shard", "2", "--yes")
    assert [line.split() for line in put.lines[1:]] == [
        ["orders/0", "10", "0", "-"],
        ["orders/2", "10", "0", "-"],
    ]
    assert lag(billing) == 20
    billing.dlog(*words, "4", "--yes", expect=2)
    billing.dlog(*words, "4", "--shard", "1", "--yes")
    assert lag(billing) == 26
    billing.dlog(*words, "latest", "--yes")
    assert lag(billing) == 0
    billing.dlog(*words, "1h", "--yes")
    assert lag(billing) == 30
    billing.dlog(*words, "earliest", "--shard", "9", expect=3)


def test_what_a_worker_has_is_put_back_by_force_alone(orders: Shell) -> None:
    """One that is idle hears of it, too: it has nothing to save, and would not see that it was
    fenced."""
    seen: list[bytes] = []
    all_again = threading.Event()

    def process(batch: Any) -> None:
        seen.extend(batch.values())
        if len(seen) == 60:
            all_again.set()

    words = ("billing", "orders", "--yes")
    with at_work(orders, process=process):
        done(orders, ann=3)
        refused = orders.dlog("group", "reset", *words, "earliest", expect=1)
        assert "orders/0' is consumed by ann~" in refused.out.decode()
        assert "3 of 3 shards stay" in refused.err
        refused = orders.dlog("group", "set-checkpoint", *words, "1", "2", expect=1)
        assert "is consumed by ann~" in refused.err
        assert len(seen) == 30
        orders.dlog("group", "reset", *words, "earliest", "--force")
        assert all_again.wait(DEADLINE_S)
        done(orders, ann=3)


def test_a_checkpoint_is_set_with_what_the_program_finds_there(billing: Shell) -> None:
    """D-24."""
    words = ("group", "set-checkpoint", "billing", "orders", "1")
    assert "nothing was set" in billing.dlog(*words, "7", expect=2).err
    billing.dlog(*words, "7", "--app", "state", "--yes")
    (told,) = objects(billing, "group", "describe", "billing", "orders")
    assert told["shards"][1]["checkpoint"]["app"] == "state"
    assert told["shards"][1]["lag"]["messages"] == 3
    again = billing.dlog(*words, "8", "--app", "AAE=", "--base64", "--yes")
    assert "orders/1 would go from seq 7 to seq 8; 5 bytes that the program kept" in again.err
    assert again.lines[1].split() == ["orders/1", "7", "8", "-"]
    with dlog.connect(billing.url) as client:
        checkpoint = client.group("billing", "orders").describe().shards[1].checkpoint
        assert checkpoint is not None
        assert (checkpoint.next_seq, checkpoint.app) == (8, b"\x00\x01")
    billing.dlog(*words, "7", "--app", "%", "--base64", "--yes", expect=2)
    billing.dlog(*words, "0", "--app", "x" * 5_000, "--yes", expect=1)
    (hold,) = objects(billing, "hold", "ls", "orders/1")
    assert hold["seq"] == 8
    billing.dlog("group", "set-checkpoint", "billing", "orders", "9", "7", "--yes", expect=3)


def test_a_group_is_forgotten_when_its_workers_left(orders: Shell) -> None:
    words = ("group", "rm", "billing", "orders")
    with at_work(orders):
        done(orders, ann=3)
        assert "has workers" in orders.dlog(*words, "--yes", expect=1).err
    refused = orders.dlog(*words, expect=2)
    assert "3 checkpoints" in refused.err
    assert objects(orders, "group", "ls") != []
    orders.dlog(*words, "--yes")
    assert objects(orders, "group", "ls") == []
    assert objects(orders, "hold", "ls", "orders/0") == []
    for command in ("describe", "lag", "members", "plan"):
        orders.dlog("group", command, "billing", "orders", expect=3)
    orders.dlog("group", "reset", "billing", "orders", "earliest", expect=3)


def test_a_group_is_forgotten_when_its_stream_is_gone(orders: Shell) -> None:
    with at_work(orders):
        pass
    with dlog.connect(orders.url) as client:
        client.stream("orders").remove()
    assert "its stream is gone" in orders.dlog("group", "rm", "billing", "orders", "--yes").err
    assert objects(orders, "group", "ls") == []
    orders.dlog("group", "rm", "billing", "orders", "--yes", expect=3)


def test_names_that_a_terminal_would_obey_are_shown_as_escapes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of workers: the one name here that somebody else chose freely."""
    evil = dlog.WorkerId("\x1b[2J", "1")
    show_waits(waits_of(_group([_standing("consumed", evil, evil)], A)))
    shown = capsys.readouterr().out
    assert "worker_gone  shard 0: \\x1b[2J~1 has it" in shown
    assert "\x1b" not in shown


def _standing(
    state: str,
    owner: dlog.WorkerId | None = None,
    consumer: dlog.WorkerId | None = None,
    *,
    number: int = 0,
    parents: tuple[str, ...] = (),
    next_seq: int = 0,
    lag: int = 0,
) -> dlog.ShardStanding:
    place = Checkpoint(Position("uid", next_seq, None))
    standing = Lag(lag, 10 * lag, 1.0)
    log = f"orders/{number}"
    return dlog.ShardStanding(
        number, log, state, owner, consumer, 1, place, standing, parents, 1, 100
    )


def _group(shards: list[dlog.ShardStanding], *workers: dlog.WorkerId) -> dlog.GroupDescription:
    members = tuple(dlog.Member(each, None, 1, (), (), {}) for each in workers)
    given = "billing", "orders", "nodes", 1_000, False, "count"
    return dlog.GroupDescription(*given, members, tuple(shards))


@pytest.mark.parametrize(
    ("shard", "workers", "code", "says"),
    [
        (_standing("consumed", A, A), (A,), None, ""),
        (_standing("finished"), (), None, ""),
        (_standing("consumed", A, A), (B,), "worker_gone", "another worker takes it"),
        (_standing("handed_over", B, A), (B,), "worker_gone", "bob~2 takes it"),
        (_standing("consumed", A, A), (), "worker_gone", "the group has no workers"),
        (_standing("handed_over", B, A), (A, B), "hand_over", "hands it over to bob~2"),
        (_standing("handed_over", B, A), (A,), "hand_over", "not registered"),
        (_standing("free"), (), "no_workers", ""),
        (_standing("free"), (A,), "unclaimed", "one of the workers"),
        (_standing("free", B), (A, B), "unclaimed", "bob~2 is about to take it"),
    ],
)
def test_each_wait_has_its_reason(
    shard: dlog.ShardStanding, workers: tuple[dlog.WorkerId, ...], code: str | None, says: str
) -> None:
    waits = waits_of(_group([shard], *workers))
    assert [wait.code for wait in waits] == ([] if code is None else [code])
    assert all(says in wait.sentence for wait in waits)


def test_a_worker_that_cannot_keep_a_dead_letter_says_what_its_log_said() -> None:
    log, cause = "orders/0", "log 'dead' takes no dead letter of seq 7: it is terminated"
    found = _group([_standing("consumed", A, A)], A)
    member = dlog.Member(A, None, 1, (log,), (), {log: "dead_letter_refused"}, {log: cause})
    (wait,) = waits_of(dataclasses.replace(found, members=(member,)))
    assert (wait.shard, wait.code) == (0, "dead_letter_refused")
    assert wait.sentence.endswith(f"cannot keep a dead letter of it: {cause}")


def test_a_child_waits_for_those_of_its_parents_that_are_not_done() -> None:
    """A parent that was truncated away blocks nobody."""
    parents = ("orders/0", "orders/1", "orders/7")
    shards = [
        _standing("finished", number=0),
        _standing("consumed", A, A, number=1),
        _standing("waiting", number=2, parents=parents),
    ]
    (wait,) = waits_of(_group(shards, A))
    assert (wait.shard, wait.code) == (2, "parents")
    assert wait.sentence == "it comes after shard 1, which has to be done to the end first"


def _watched(
    *seen: tuple[float, dlog.GroupDescription | None],
) -> list[GroupPicture]:
    watch = GroupWatch("billing", "orders")
    away = dlog.Unavailable("it is away")
    return [
        watch.take(GroupLook(at_s, round(at_s * 1e6), found, None if found else away))
        for at_s, found in seen
    ]


def _at(next_seq: int, lag: int) -> dlog.GroupDescription:
    return _group([_standing("consumed", A, A, next_seq=next_seq, lag=lag)], A)


def test_rates_and_the_time_to_catch_up() -> None:
    first, *_, last = _watched((0.0, _at(0, 100)), (5.0, _at(0, 110)), (10.0, _at(60, 60)))
    assert (first.come_s, first.done_s, first.catch_up_s, first.lag) == (None, None, None, 100)
    assert (last.come_s, last.done_s, last.lag, last.catch_up_s) == (2.0, 6.0, 60, 15.0)
    assert last.shards[0].catch_up_s == 15.0
    assert [wait for wait in last.waits if wait.shard == 0] == []
    (_, over) = _watched((0.0, _at(0, 10)), (2.0, _at(10, 0)))
    assert (over.lag, over.catch_up_s) == (0, 0.0)
    (_, worse) = _watched((0.0, _at(0, 10)), (2.0, _at(2, 20)))
    assert worse.catch_up_s is None


def test_rates_forget_what_is_long_ago_and_what_was_put_back() -> None:
    *_, last = _watched((0.0, _at(0, 0)), (20.0, _at(1000, 0)), (50.0, _at(1300, 0)))
    assert last.done_s == 10.0
    *_, last = _watched((0.0, _at(900, 0)), (5.0, _at(0, 900)), (10.0, _at(50, 850)))
    assert last.done_s == 10.0


def test_who_does_not_get_on_is_told() -> None:
    """Not before checkpoints must have been written; and not of one that has nothing to do."""
    quiet, told = _watched((0.0, _at(5, 10)), (14.0, _at(5, 10)), (16.0, _at(5, 10)))[1:]
    assert [wait.code for wait in quiet.waits if wait.shard == 0] == []
    assert [wait.code for wait in told.waits if wait.shard == 0] == ["no_progress"]
    assert "ann~1 is at one batch" in told.waits[0].sentence
    *_, idle = _watched((0.0, _at(5, 0)), (16.0, _at(5, 3)))
    assert "no_progress" not in [wait.code for wait in idle.waits]
    *_, behind = _watched((0.0, _at(5, 10)), (16.0, _at(21, 26)))
    assert [wait.sentence for wait in behind.waits if wait.shard == 0] == [
        "2.0 messages/s come, and 1.0 are done"
    ]
    *_, ahead = _watched((0.0, _at(5, 10)), (16.0, _at(37, 6)))
    assert "falls_behind" not in [wait.code for wait in ahead.waits]


def test_a_worker_that_does_not_renew_is_silent() -> None:
    first, last = _watched((0.0, _at(5, 0)), (1.5, _at(5, 0)))
    assert (first.waits, first.workers[0].silent_s) == ((), 0.0)
    assert ([wait.code for wait in last.waits], last.workers[0].silent_s) == (["silent"], 1.5)


def test_stores_that_are_away_are_a_reason_and_not_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, away, back = _watched((0.0, _at(0, 10)), (1.0, None), (2.0, _at(10, 0)))
    assert (away.lag, [wait.code for wait in away.waits]) == (None, ["metadata_away"])
    assert back.done_s == 5.0
    show_group(away)
    assert "metadata_away  the stores give no answer: it is away" in capsys.readouterr().out


def test_top_shows_a_group(orders: Shell) -> None:
    words = ("top", "orders", "--group", "billing", "--interval", "200ms")
    with at_work(orders):
        done(orders, ann=3)
        told = objects(orders, *words, "-n", "2")
        assert len(told) == 2
        assert [shard["done_s"] for shard in told[0]["shards"]] == [0.0] * 3
        assert (told[1]["lag"], told[1]["catch_up_s"]) == (0, 0.0)
        (worker,) = told[1]["workers"]
        assert (worker["id"]["name"], worker["shards"]) == ("ann", 3)
    to_shard_1(orders, b"a", b"b")
    shown = orders.dlog(*words, "-n", "1").out.decode()
    assert "lag    2 messages, no time to catch up in can be told" in shown
    assert "no_workers  shard 1: the group has no workers" in shown
    assert "\x1b" not in shown
    orders.dlog("top", "orders", "--group", "others", "-n", "1", expect=3)
