"""Paths for ZooKeeper, both ways, and requests that would be too large: without a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError, TooLarge
from dlog.meta.zookeeper_names import (
    ESCAPE,
    REQUEST_BYTES_MAX,
    check_request,
    from_wire,
    name_from_wire,
    split_hosts,
    to_wire,
)

NAMES = st.text(min_size=1).filter(lambda text: text.isprintable() and "/" not in text)


@given(NAMES, st.sampled_from(["", "/c", "/c/d"]))
def test_every_name_comes_back(name: str, chroot: str) -> None:
    assert from_wire(chroot, to_wire(chroot, f"/a/{name}")) == f"/a/{name}"


@given(NAMES, NAMES)
def test_two_names_stay_two(first: str, second: str) -> None:
    assert (to_wire("", first) == to_wire("", second)) == (first == second)


@given(NAMES)
def test_no_character_goes_out_that_zookeeper_refuses(name: str) -> None:
    units = to_wire("", name).encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        unit = high << 8 | low
        assert not 0xD800 <= unit <= 0xF8FF
        assert unit < 0xFFF0


def test_ordinary_names_stay_readable() -> None:
    assert to_wire("", "/logs/a%2Fb ä 世界") == "/logs/a%2Fb ä 世界"
    assert to_wire("", "/🙂") == f"/{ESCAPE}1f642;"
    assert to_wire("/c", "/") == "/c"
    assert to_wire("", "/") == "/"


def test_names_that_only_look_escaped_stay_as_they_are() -> None:
    for name in (f"{ESCAPE}ffffff;", f"{ESCAPE}123456789;", f"{ESCAPE};", f"{ESCAPE}zz;"):
        assert name_from_wire(name) == name


def test_hosts_and_chroot() -> None:
    assert split_hosts("h1:2181,h2") == ("h1:2181,h2", "")
    assert split_hosts("[::1]:2181,h/a/b") == ("[::1]:2181,h", "/a/b")
    assert split_hosts("h:1/") == ("h:1", "")


@pytest.mark.parametrize(
    "hosts", ["", ",", "a b:1", "h:x", "h:1,", "http://h:1", "h:1//x", "h/../x", "u@h:1"]
)
def test_hosts_that_are_none(hosts: str) -> None:
    with pytest.raises(ConfigError):
        split_hosts(hosts)


def test_a_request_keeps_below_the_servers_bound() -> None:
    check_request("/a", "/a", "/", bytes(1000))
    with pytest.raises(TooLarge) as caught:
        check_request("/a", "/a", "/", bytes(REQUEST_BYTES_MAX))
    assert caught.value.path == "/a"
