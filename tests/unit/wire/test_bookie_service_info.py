"""What bookies register, and how their ids become addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import Corrupt, FormatError
from dlog.wire import protobuf
from dlog.wire.bookie_service_info import (
    SERVICE_INFO_BYTES_MAX,
    Address,
    BookieServiceInfo,
    Endpoint,
    is_bookie_id,
    legacy_address,
    resolve,
)
from tests.unit.wire.bookie_tools import DOCUMENTED, UNHURRIED, vectors, verdicts

RPC = Endpoint(id="bookie", host="127.0.0.1", port=3181, protocol="bookie-rpc")
HTTP = Endpoint(id="httpserver", host="127.0.0.1", port=8080, protocol="http")
TEXT = st.text(max_size=6)
HOST = st.from_regex(r"[a-z0-9.-]{1,12}", fullmatch=True)


def test_the_vector() -> None:
    raw = bytes.fromhex(vectors("ledgers")["service_info"])
    info = BookieServiceInfo((RPC,))
    assert BookieServiceInfo.from_bytes(raw, where="b1") == info
    assert info.to_bytes() == raw
    assert resolve("b1", raw, where="b1") == RPC


@UNHURRIED
@given(
    st.lists(
        st.builds(
            Endpoint,
            id=TEXT,
            host=HOST,
            port=st.integers(1, 65535),
            protocol=TEXT,
            auth=st.lists(TEXT, max_size=2).map(tuple),
            extensions=st.lists(TEXT, max_size=2).map(tuple),
        ),
        max_size=4,
    ).map(tuple),
    st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
)
def test_round_trip(
    endpoints: tuple[Endpoint, ...], properties: tuple[tuple[str, str], ...]
) -> None:
    info = BookieServiceInfo(endpoints, properties)
    assert BookieServiceInfo.from_bytes(info.to_bytes(), where="b1") == info


def test_the_first_endpoint_for_entries_counts() -> None:
    raw = BookieServiceInfo((HTTP, RPC, HTTP)).to_bytes()
    assert resolve("b1", raw, where="b1") == RPC
    with pytest.raises(FormatError, match="bookie-rpc"):
        resolve("b1", BookieServiceInfo((HTTP,)).to_bytes(), where="b1")


def test_an_old_bookie_is_its_id() -> None:
    assert resolve("10.0.0.1:3181", b"", where="b1") == Endpoint(
        "bookie", "10.0.0.1", 3181, "bookie-rpc"
    )
    assert legacy_address("bookie-1.example:65535") == Address("bookie-1.example", 65535)


@pytest.mark.parametrize(
    "name",
    [
        "b1",
        "b1:",
        ":3181",
        "b1:0",
        "b1:65536",
        "b1:03181",
        "b1:+1",
        "::1:3181",
        "b1:1:2",
        "b1:\u0663",
    ],
)
def test_ids_that_are_no_address(name: str) -> None:
    with pytest.raises(FormatError):
        legacy_address(name)


def test_names_of_bookies() -> None:
    for name in ("b1", "10.0.0.1:3181", "a_b-c.d", "<=>?@[]^\\;", "x" * 255):
        assert is_bookie_id(name)
    for name in ("", "readonly", "READONLY", "a/b", "a b", "b\u00e9", "a\n", "x" * 256):
        assert not is_bookie_id(name)


@pytest.mark.parametrize("port", [0, -1, 65536, 1 << 31])
def test_there_are_no_such_ports(port: int) -> None:
    endpoint = protobuf.pack_text(1, "bookie") + protobuf.pack_number(2, port)
    endpoint += protobuf.pack_text(3, "h") + protobuf.pack_text(4, "bookie-rpc")
    with pytest.raises(Corrupt):
        BookieServiceInfo.from_bytes(protobuf.pack_bytes(6, endpoint), where="b1")


def test_a_property_may_be_half_empty() -> None:
    raw = protobuf.pack_bytes(7, protobuf.pack_text(1, "k")) + protobuf.pack_bytes(7, b"")
    assert BookieServiceInfo.from_bytes(raw, where="b1").properties == (("k", ""), ("", ""))


def test_harmed_and_huge() -> None:
    raw = BookieServiceInfo((HTTP, RPC), (("k", "v"),)).to_bytes()
    _, refused = verdicts(lambda each: BookieServiceInfo.from_bytes(each, where="b1"), raw)
    assert refused > 0
    with pytest.raises(Corrupt):
        BookieServiceInfo.from_bytes(bytes(SERVICE_INFO_BYTES_MAX + 1), where="b1")


@UNHURRIED
@given(st.binary(max_size=100))
def test_anything(raw: bytes) -> None:
    try:
        resolve("b1:1", raw, where="b1")
    except DOCUMENTED:
        return
