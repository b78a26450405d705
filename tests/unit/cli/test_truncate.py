"""`dlog truncate`, `hold`, `gc` and `terminate`, as processes."""

from __future__ import annotations

import asyncio
import json

import pytest

import dlog
from dlog.ids import MessageId
from tests.unit.cli.conftest import Shell


@pytest.fixture
def ids(shell: Shell) -> list[MessageId]:
    """Of `orders`: four segments with five messages each."""
    shell.dlog("create", "orders", "--deletion-grace", "0s")
    found: list[MessageId] = []
    with dlog.open_writer("orders", url=shell.url) as log:
        for number in range(4):
            found += log.append_many([b"%d-%d" % (number, i) for i in range(5)])
            log.rotate()
    return found


def heads(shell: Shell) -> int:
    seq: int = json.loads(shell.dlog("describe", "orders", "-o", "json").out)["head_seq"]
    return seq


def test_a_plan_is_shown_first(shell: Shell, ids: list[MessageId]) -> None:
    refused = shell.dlog("truncate", "orders", "12", expect=2)
    assert "it would begin at seq 12; 2 ledgers" in refused.err
    assert "nothing was truncated; add --yes to do it" in refused.err
    assert heads(shell) == 0
    done = shell.dlog("truncate", "orders", "12", "--yes")
    assert done.out == b"orders begins at seq 12\n"
    assert heads(shell) == 12
    assert shell.dlog("tail", "orders", "-o", ":").lines[0] == "2-2"


def test_by_id_by_time_and_wholly(shell: Shell, ids: list[MessageId]) -> None:
    shell.dlog("truncate", "orders", str(ids[7]), "-y")
    assert heads(shell) == 7
    shell.dlog("truncate", "orders", "1h", "-y")
    assert heads(shell) == 7
    told = json.loads(shell.dlog("truncate", "orders", "latest", "-y", "-o", "json").out)
    assert (told["head_seq"], told["done"], told["forced"]) == (20, True, False)
    for bad in ("x", "-1", "1:2", "earliest"):
        shell.dlog("truncate", "orders", "-y", "--", bad, expect=2)
    shell.dlog("truncate", "nowhere", "5", "-y", expect=3)


def test_what_is_gone_is_said_when_asked_for(shell: Shell, ids: list[MessageId]) -> None:
    shell.dlog("truncate", "orders", "12", "-y")
    for where in (("-o", "3:"), ("--from", str(ids[3]))):
        told = shell.dlog("tail", "orders", *where, expect=1)
        assert "`dlog tail -o :` begins at the head" in told.err
    since = shell.dlog("tail", "orders", "--since", "1h")
    assert "orders begins at seq 12; older messages were truncated" in since.err
    assert len(since.lines) == 8
    assert len(shell.dlog("tail", "orders", "-n", "100").lines) == 8


def test_a_hold_on_a_log_and_on_what_follows_it_is_dropped_at_once(shell: Shell) -> None:
    with dlog.connect(shell.url) as client:
        client.admin.create("orders")
        client.stream("orders").hold("reports")
        shell.dlog("hold", "drop", "orders", "reports")
        assert client.stream("orders").holds() == ()
        assert client.admin.holds("orders") == ()


def test_holds(shell: Shell, ids: list[MessageId]) -> None:
    assert shell.dlog("hold", "ls", "orders", "-o", "json").out == b""
    shell.dlog("hold", "set", "orders", "billing", "6", "--note", "at night")
    shell.dlog("hold", "set", "orders", "audit", str(ids[11]))
    assert shell.dlog("hold", "set", "orders", "all").out == b"all holds orders from seq 0 on\n"
    shown = shell.dlog("hold", "ls", "orders").lines
    assert [line.split()[:2] for line in shown] == [
        ["HOLD", "SEQ"], ["all", "0"], ["audit", "11"], ["billing", "6"],
    ]  # fmt: skip
    assert "at night" in shell.dlog("describe", "orders").out.decode()
    shell.dlog("hold", "drop", "orders", "all")
    shell.dlog("hold", "drop", "orders", "all", expect=3)
    held = shell.dlog("truncate", "orders", "18", "-y")
    assert held.out == b"orders begins at seq 6\n"
    assert "the hold 'billing'" in held.err
    shell.dlog("hold", "set", "orders", "billing", "9")
    shell.dlog("hold", "set", "orders", "billing", "7", expect=2)
    forced = shell.dlog("truncate", "orders", "18", "-y", "--force")
    assert "over the holds of audit, billing" in forced.err
    assert heads(shell) == 18


def test_gc_deletes_what_was_truncated(shell: Shell, ids: list[MessageId]) -> None:
    shell.dlog("create", "kept", "--retention-bytes", "0")
    with dlog.open_writer("kept", url=shell.url) as log:
        log.append(b"x")
    shell.dlog("truncate", "orders", "12", "-y")
    refused = shell.dlog("gc", expect=2)
    assert "nothing was collected; add --yes to do it" in refused.err
    kept, orders = refused.err.splitlines()[:2]
    assert kept == "dlog: kept: 1 ledgers would leave the list; 1 wait for the end of their grace"
    assert orders.startswith("dlog: orders: 2 ledgers (")
    assert orders.endswith(") would be deleted")
    answered = shell.dlog("gc", "-y", "-o", "json")
    assert orders in answered.err, "it is shown all the same"
    told = {each["log"]: each for each in map(json.loads, answered.lines)}
    assert (told["orders"]["deleted"], told["orders"]["waiting"]) == (2, 0)
    assert (told["kept"]["truncated"], told["kept"]["waiting"]) == (1, 1)
    nothing = shell.dlog("gc", "orders")
    assert (len(nothing.lines), "nothing to collect now" in nothing.err) == (2, True)
    assert len(shell.dlog("gc", "orders", "kept", "--yes").lines) == 3
    shell.dlog("gc", "nowhere", "--yes", expect=3)


def test_gc_asks_on_a_terminal(shell: Shell, ids: list[MessageId]) -> None:
    shell.dlog("truncate", "orders", "12", "-y")
    assert b"nothing was collected" in shell.on_a_terminal("gc", types=b"n\n", expect=1)
    assert b"2 ledgers (" in shell.on_a_terminal("gc", "orders", types=b"y\n")
    assert "nothing would go" in shell.dlog("gc", "orders").err


def test_gc_of_all_goes_on_behind_one_that_fails(shell: Shell, ids: list[MessageId]) -> None:
    shell.dlog("create", "broken")
    asyncio.run(_plant_a_hold_of_no_meaning(shell.url))
    shell.dlog("truncate", "orders", "12", "-y")
    gone = shell.dlog("gc", "--yes", "-o", "json", expect=1)
    assert gone.err.startswith("dlog: broken: ")
    (told,) = map(json.loads, gone.lines)
    assert (told["log"], told["deleted"]) == ("orders", 2)


async def _plant_a_hold_of_no_meaning(url: str) -> None:
    async with dlog.aio.connect(url) as client:
        stores = await client._stores(False)
        await stores.meta.create(stores.layout.hold("broken", "h"), b"?")


def test_terminate(shell: Shell, ids: list[MessageId]) -> None:
    shell.dlog("terminate", "orders", expect=2)
    assert "20 messages stay" in shell.dlog("terminate", "orders", "--yes").err
    shell.dlog("produce", "orders", feed=b"late\n", expect=2)
    assert len(shell.dlog("tail", "orders", "-f", "-o", ":").lines) == 20
