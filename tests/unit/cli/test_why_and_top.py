"""`dlog why` and `dlog top`, as processes."""

from __future__ import annotations

import json

import dlog
from tests.unit.cli.conftest import Shell


def test_why_of_a_log_that_is_well(shell: Shell) -> None:
    with dlog.open_writer("orders", url=shell.url, owner="ana") as log:
        log.append(b"first")
        told = json.loads(shell.dlog("why", "orders", "-o", "json").out)
        assert (told["writer"]["name"], told["present"]) == ("ana", True)
        assert told["reasons"] == []
        (ledger,) = told["ledgers"]
        assert (ledger["state"], ledger["may_be_entered"]) == ("open", True)
        shown = shell.dlog("why", "orders").out.decode()
        assert "ana (present)" in shown
        assert "nothing is in the way" in shown
    told = json.loads(shell.dlog("why", "orders", "-o", "json").out)
    assert (told["writer"], told["ledgers"]) == (None, [])
    shell.dlog("why", "nothing", expect=3)


def test_top_shows_rates_and_ends(shell: Shell) -> None:
    with dlog.open_writer("orders", url=shell.url, owner="ana") as log:
        log.append(b"first")
        asked = shell.dlog("top", "orders", "-o", "json", "-n", "2", "--interval", "200ms")
        first, second = map(json.loads, asked.lines)
        assert first["messages_s"] == first["bytes_s"] == 0.0
        assert (first["writer"], first["next_seq"], first["segments"]) == ("ana", 1, 1)
        assert first["tail"] == str(log.last_id)
        assert second["at_us"] - first["at_us"] >= 200_000
        shown = shell.dlog("top", "orders", "--count", "1", "--interval", "100ms").out.decode()
        assert "0.0 messages/s" in shown
        assert "\x1b" not in shown
    shell.dlog("top", "orders", "--interval", "1ms", "--count", "1", expect=2)
    shell.dlog("top", "nothing", "--count", "1", expect=3)
