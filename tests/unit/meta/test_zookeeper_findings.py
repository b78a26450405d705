"""What is thought of a ZooKeeper, from facts about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from dlog.findings import Rights, State, is_loopback
from dlog.meta.zookeeper_examine import host_and_port, is_private, rights_of
from dlog.meta.zookeeper_findings import (
    SKEW_MS_MAX,
    ClockFacts,
    ServerFacts,
    of_access,
    of_certificates,
    of_clock,
    of_files,
    of_servers,
)

NOW = datetime(2031, 5, 1, tzinfo=UTC)
SRVR = "Zookeeper version: 3.9.5-293c, built on 2026-02-11\nLatency min/avg/max: 0/2/10\nMode: {}\n"


def serving(host: str, mode: str = "follower", read_ms: float = 1.0) -> ServerFacts:
    return ServerFacts(host, of_itself=SRVR.format(mode), session_ms=9, read_ms=read_ms)


def judged(*servers: ServerFacts, is_private: bool = False) -> dict[str, State]:
    return {f.check: f.state for f in of_servers(servers, is_private=is_private)}


def test_servers_that_serve_are_fine() -> None:
    servers = [serving("a:1", "leader"), serving("b:1"), serving("c:1")]
    found = {f.check: f for f in of_servers(servers, is_private=False)}
    assert {f.state for f in found.values()} == {State.FINE}
    assert found["zookeeper a:1"].told == "version 3.9.5, leader, session after 9 ms, read 1.0 ms"
    assert found["zookeeper"].told == "3 of 3 addresses serve"


def test_one_of_three_away_is_a_warning_and_all_away_is_bad() -> None:
    away = ServerFacts("b:1", "cannot be reached: Connection refused")
    found = judged(serving("a:1"), away, serving("c:1"))
    assert found["zookeeper b:1"] is found["zookeeper"] is State.WARNING
    assert judged(away)["zookeeper"] is State.BAD


def test_a_slow_server_is_a_warning() -> None:
    assert judged(serving("a:1", read_ms=150.0))["zookeeper a:1"] is State.WARNING


@pytest.mark.parametrize(("private", "state"), [(True, State.NOTE), (False, State.WARNING)])
def test_a_server_alone_is_said(private: bool, state: State) -> None:
    assert judged(serving("a:1", "standalone"), is_private=private)["zookeeper"] is state


def test_a_server_that_does_not_tell_its_version_is_fine() -> None:
    told = "srvr is not executed because it is not in the whitelist."
    (found, _) = of_servers([ServerFacts("a:1", of_itself=told, read_ms=1)], is_private=True)
    assert (found.state, found.told) == (State.FINE, "version not told, read 1.0 ms")


@pytest.mark.parametrize(
    ("ahead_ms", "doubt_ms", "state", "told"),
    [
        (999.0, 0.0, State.FINE, "999 ms ahead of"),
        (-1_001.0, 0.0, State.WARNING, "1001 ms behind"),
        (-4_000.0, 3_500.0, State.FINE, "4000 ms behind"),  # it may be the way there
        (7_200_000.0, 5.0, State.WARNING, "2:00:00 ahead of"),
    ],
)
def test_clocks(ahead_ms: float, doubt_ms: float, state: State, told: str) -> None:
    (clock, write) = of_clock(ClockFacts(ahead_ms, doubt_ms, 12.0))
    assert clock.state is state
    assert told in clock.told
    assert write.told == "12.0 ms"


@pytest.mark.parametrize(
    ("private", "tls", "credentials", "states"),
    [
        (False, True, True, (State.FINE, State.FINE)),
        (False, False, True, (State.WARNING, State.FINE)),
        (False, True, False, (State.FINE, State.WARNING)),
        (True, False, False, (State.NOTE, State.NOTE)),
    ],
)
def test_what_is_off_is_a_warning_unless_all_is_this_machine(
    private: bool, tls: bool, credentials: bool, states: tuple[State, State]
) -> None:
    found = of_access(is_private=private, has_tls=tls, owns_nodes=credentials)
    assert tuple(finding.state for finding in found) == states


def test_certificates() -> None:
    def seen(host: str, days: int) -> ServerFacts:
        return ServerFacts(host, certificate_end=NOW + timedelta(days=days))

    (found,) = of_certificates([seen("a:1", 90), ServerFacts("b:1"), seen("c:1", 5)], NOW)
    assert found.state is State.WARNING
    assert "5 more days (c:1" in found.told
    assert list(of_certificates([ServerFacts("a:1")], NOW)) == []
    (ours,) = of_files([("/etc/ours.pem", NOW - timedelta(days=3))], NOW)
    assert (ours.check, ours.state) == ("certificate /etc/ours.pem", State.BAD)


@pytest.mark.parametrize(
    ("hosts", "private"),
    [
        ("127.0.0.1:2181", True),
        ("localhost:2181,[::1]:2181", True),
        ("127.0.0.1:2181,zk2:2181", False),
        ("10.0.0.1:2181", False),
        ("localhost.example.org:2181", False),
    ],
)
def test_who_is_this_machine(hosts: str, private: bool) -> None:
    assert is_private(hosts) is private


def test_addresses() -> None:
    assert host_and_port("zk1:2182") == ("zk1", 2182)
    assert host_and_port("zk1") == ("zk1", 2181)
    assert host_and_port("[::1]:2182") == ("::1", 2182)
    assert host_and_port("[::1]") == ("::1", 2181)
    assert is_loopback("[::1]")


def acl(scheme: str, who: str, perms: int) -> SimpleNamespace:
    return SimpleNamespace(perms=perms, id=SimpleNamespace(scheme=scheme, id=who))


@pytest.mark.parametrize(
    ("acls", "rights"),
    [
        ([("world", "anyone", 31)], Rights(True, True)),
        ([("world", "anyone", 1)], Rights(True, False)),
        ([("world", "anyone", 8)], Rights(False, True)),
        ([("digest", "ana:x", 31)], Rights(False, False)),
        (
            [("digest", "ana:x", 31), ("world", "anyone", 1), ("world", "anyone", 2)],
            Rights(True, True),
        ),
        ([], Rights(False, False)),
    ],
)
def test_rights(acls: list[tuple[str, str, int]], rights: Rights) -> None:
    assert rights_of([acl(*each) for each in acls]) == rights


@pytest.mark.parametrize("side", [1, -1], ids=["ahead", "behind"])
@pytest.mark.parametrize(
    ("beyond_ms", "state"), [(-1, State.FINE), (0, State.FINE), (1, State.WARNING)]
)
def test_a_clock_that_is_off_for_certain_is_a_warning(
    side: int, beyond_ms: int, state: State
) -> None:
    """By more than what is not known of it."""
    clock = ClockFacts(ahead_ms=side * (SKEW_MS_MAX + 40 + beyond_ms), doubt_ms=40, write_ms=2.5)
    found = {f.check: f for f in of_clock(clock)}
    assert found["clock"].state is state
    assert ("ahead of" in found["clock"].told) == (side > 0)
    assert found["zookeeper write"].told == "2.5 ms"
