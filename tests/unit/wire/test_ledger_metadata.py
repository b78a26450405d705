"""Ledger metadata: three formats, unknown fields, bounds, and a password that nobody sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError, Corrupt, FormatError, TooLarge, Unsupported
from dlog.limits import LEDGER_METADATA_BYTES_MAX
from dlog.wire import protobuf
from dlog.wire.bookie_digest import DigestType
from dlog.wire.ledger_metadata import CustomPair, Fragment, LedgerMetadata, LedgerState
from dlog.wire.ledger_metadata_format import pack_ledger_metadata, parse_ledger_metadata
from tests.unit.wire.bookie_tools import DOCUMENTED, UNHURRIED, vectors, verdicts

FRONT = b"BookieMetadataFormatVersion\t"
BOOKIES = ("127.0.0.1:3181", "127.0.0.1:3182", "127.0.0.1:3183")
DEMO = LedgerMetadata(
    ensemble_size=3,
    write_quorum=2,
    ack_quorum=2,
    fragments=(Fragment(0, BOOKIES),),
    digest_type=DigestType.CRC32C,
    password=b"secret",
    custom=(CustomPair("app", b"demo"),),
    creator_token=0x1122334455667788,
)
TEN = ("10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181")
OLD = (Fragment(0, TEN), Fragment(17, ("10.0.0.4:3181", *TEN[1:])))


def parse(raw: bytes) -> LedgerMetadata:
    return parse_ledger_metadata(raw, where="ledger 7")


def v3(body: bytes) -> bytes:
    return FRONT + b"3\n" + protobuf.pack_varint(len(body)) + body


def body_of(raw: bytes) -> bytes:
    _, at = protobuf.read_varint(memoryview(raw), 30, "here")
    return raw[at:]


def test_format_3_is_what_a_stock_client_writes() -> None:
    raw = bytes.fromhex(vectors("ledgers")["v3"])
    assert len(raw) == 137
    assert parse(raw) == DEMO
    assert pack_ledger_metadata(DEMO) == raw


def test_format_2() -> None:
    raw = vectors("ledgers")["v2"].encode()
    assert parse(raw) == LedgerMetadata(
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=1,
        fragments=OLD,
        state=LedgerState.CLOSED,
        last_entry_id=41,
        length_bytes=4096,
        digest_type=DigestType.HMAC,
        password="s\u00e9cret\n".encode(),
        custom=(CustomPair("app", b"demo"),),
        ctime_ms=1_500_000_000_000,
        format_version=2,
    )


def test_format_1() -> None:
    raw = vectors("ledgers")["v1"].encode()
    closed = LedgerMetadata(
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        fragments=OLD,
        state=LedgerState.CLOSED,
        last_entry_id=41,
        length_bytes=4096,
        format_version=1,
    )
    assert parse(raw) == closed
    in_recovery = replace(closed, state=LedgerState.IN_RECOVERY, last_entry_id=-1, length_bytes=0)
    assert parse(raw.replace(b"41\tCLOSED", b"-102\tCLOSED")) == in_recovery
    still_open = replace(in_recovery, state=LedgerState.OPEN)
    assert parse(raw.replace(b"41\tCLOSED", b"")) == still_open


@pytest.mark.parametrize(
    "end", ["41\tCLOSED\tb2:3181\tb3:3181\n41\tCLOSED", "41\tCLOSED\tb2:3181\tb3:3181"]
)
def test_format_1_ends_once(end: str) -> None:
    """As a fragment of three bookies, the first of which is called CLOSED, it would fit."""
    raw = vectors("ledgers")["v1"].replace("41\tCLOSED", end).encode()
    with pytest.raises(Corrupt, match="goes on behind its end"):
        parse(raw)


def test_old_formats_are_not_written() -> None:
    for version in (1, 2):
        with pytest.raises(Unsupported):
            pack_ledger_metadata(replace(DEMO, format_version=version))


NAMES = st.from_regex(r"[a-z][a-z0-9.:_-]{0,20}", fullmatch=True).filter(lambda s: s != "readonly")
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
UNKNOWN = st.lists(st.tuples(st.integers(100, 9999), st.binary(max_size=5)), max_size=3).map(
    lambda fields: b"".join(protobuf.pack_bytes(number, value) for number, value in fields)
)


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 5))
    write = draw(st.integers(1, size))
    starts = sorted({0, *draw(st.lists(st.integers(0, (1 << 63) - 1), max_size=4))})
    ensembles = st.lists(NAMES, min_size=size, max_size=size, unique=True).map(tuple)
    closed = draw(st.booleans())
    keys = draw(st.lists(st.text(max_size=5), unique=True, max_size=3))
    return LedgerMetadata(
        ensemble_size=size,
        write_quorum=write,
        ack_quorum=draw(st.integers(1, write)),
        fragments=tuple(Fragment(start, draw(ensembles), draw(UNKNOWN)) for start in starts),
        state=LedgerState.CLOSED
        if closed
        else draw(st.sampled_from((LedgerState.OPEN, LedgerState.IN_RECOVERY))),
        last_entry_id=draw(st.integers(-1, (1 << 63) - 1)) if closed else -1,
        length_bytes=draw(st.integers(0, (1 << 63) - 1)) if closed else 0,
        digest_type=draw(st.none() | st.sampled_from(list(DigestType))),
        password=draw(st.none() | st.binary(max_size=9)),
        custom=tuple(CustomPair(key, draw(st.binary(max_size=9)), draw(UNKNOWN)) for key in keys),
        ctime_ms=draw(st.none() | INT64),
        creator_token=draw(st.none() | INT64),
        unknown=draw(UNKNOWN),
    )


@UNHURRIED
@given(ledgers())
def test_round_trip(metadata: LedgerMetadata) -> None:
    raw = pack_ledger_metadata(metadata)
    assert parse(raw) == metadata
    assert pack_ledger_metadata(parse(raw)) == raw


def test_unknown_fields_survive_a_change() -> None:
    new, in_pair = protobuf.pack_number(77, 5), protobuf.pack_bytes(9, b"x")
    pair = protobuf.pack_text(1, "k") + protobuf.pack_bytes(2, b"v") + in_pair
    raw = v3(body_of(pack_ledger_metadata(DEMO)) + new + protobuf.pack_bytes(11, pair))
    changed = replace(parse(raw), state=LedgerState.CLOSED, last_entry_id=5, length_bytes=50)
    again = pack_ledger_metadata(changed)
    assert new in again
    assert in_pair in again
    assert parse(again) == changed


def test_what_stock_clients_leave_out() -> None:
    bare = b"".join(
        (
            *(
                protobuf.pack_number(number, value)
                for number, value in ((1, 2), (2, 3), (3, 0), (5, 1))
            ),
            protobuf.pack_bytes(
                6,
                b"".join(protobuf.pack_text(1, each) for each in BOOKIES)
                + protobuf.pack_number(2, 0),
            ),
        )
    )
    found = parse(v3(bare))
    assert (found.ack_quorum, found.digest_type, found.password) == (2, None, None)
    # Closed, and nobody says where: no default can be right.
    with pytest.raises(Corrupt):
        parse(v3(bare.replace(b"\x28\x01", b"\x28\x03")))


def test_length_and_end_mean_nothing_before_the_close() -> None:
    body = body_of(pack_ledger_metadata(DEMO)).replace(b"\x18\x00", b"\x18\x63", 1)
    assert parse(v3(body)) == DEMO


@pytest.mark.parametrize(
    "changes",
    [
        {"ack_quorum": 0},
        {"ack_quorum": 3},
        {"write_quorum": 4},
        {"ensemble_size": 4},
        {"ensemble_size": 1 << 20},
        {"fragments": ()},
        {"fragments": (Fragment(1, BOOKIES),)},
        {"fragments": (Fragment(0, BOOKIES), Fragment(0, BOOKIES))},
        {"fragments": (Fragment(0, BOOKIES), Fragment(9, BOOKIES), Fragment(8, BOOKIES))},
        {"fragments": (Fragment(0, BOOKIES), Fragment(1 << 63, BOOKIES))},
        {"fragments": (Fragment(0, BOOKIES[:2]),)},
        {"fragments": (Fragment(0, (*BOOKIES[:2], BOOKIES[0])),)},
        {"fragments": (Fragment(0, (*BOOKIES[:2], "a/b")),)},
        {"fragments": (Fragment(0, (*BOOKIES[:2], "ReadOnly")),)},
        {"fragments": (Fragment(0, (*BOOKIES[:2], "")),)},
        {"fragments": (Fragment(0, (*BOOKIES[:2], "x" * 256)),)},
        {"last_entry_id": 5},
        {"length_bytes": 5},
        {"state": LedgerState.CLOSED, "last_entry_id": -2},
        {"state": LedgerState.CLOSED, "length_bytes": -1},
        {"custom": (CustomPair("a", b""), CustomPair("a", b""))},
        {"ctime_ms": 1 << 63},
    ],
)
def test_no_wrong_metadata_can_be_made(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(DEMO, **changes)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", Corrupt),
        (FRONT + b"3", Corrupt),
        (FRONT + b"x\n", Corrupt),
        (FRONT + b"12345678901\n", Corrupt),
        (FRONT + b"0\n", FormatError),
        (FRONT + b"4\n", FormatError),
        (FRONT + b"3\n", Corrupt),
        (FRONT + b"3\n\x05", Corrupt),
        (FRONT + b"3\n\x00", Corrupt),
        (FRONT + b"3\n" + b"\xff" * 11, Corrupt),
        (FRONT + b"2\n", Corrupt),
        (FRONT + b"1\n", Corrupt),
        (FRONT + b"1\n2\n3\nx\n0\ta\tb\tc\n", Corrupt),
        (FRONT + b"1\n2\n3\n0\n0\ta\tb\n", Corrupt),
        (FRONT + b"1\n\xff", Corrupt),
        (bytes(LEDGER_METADATA_BYTES_MAX + 1), Corrupt),
    ],
)
def test_what_is_no_metadata(raw: bytes, error: type[Exception]) -> None:
    with pytest.raises(error, match="ledger 7"):
        parse(raw)


@pytest.mark.parametrize(("number", "what"), [(5, "state"), (7, "digest")])
def test_unknown_states_and_digests_are_nothing_else(number: int, what: str) -> None:
    raw = v3(body_of(pack_ledger_metadata(DEMO)) + protobuf.pack_number(number, 5))
    with pytest.raises(FormatError, match=what):
        parse(raw)


def test_something_behind_the_message_is_refused() -> None:
    with pytest.raises(Corrupt):
        parse(pack_ledger_metadata(DEMO) + b"\0")


@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
def test_harmed_metadata(version: str) -> None:
    text = vectors("ledgers")[version]
    raw = bytes.fromhex(text) if version == "v3" else text.encode()
    taken, refused = verdicts(parse, raw)
    assert refused > taken > 0


@UNHURRIED
@given(st.binary(max_size=150), st.sampled_from([b"1\n", b"2\n", b"3\n"]))
def test_anything_behind_the_header(rest: bytes, version: bytes) -> None:
    try:
        parse(FRONT + version + rest)
    except DOCUMENTED:
        return


def test_metadata_too_large_to_be_stored_is_not_written() -> None:
    huge = replace(DEMO, custom=(CustomPair("x", bytes(LEDGER_METADATA_BYTES_MAX)),))
    with pytest.raises(TooLarge):
        pack_ledger_metadata(huge)


def test_what_could_not_be_read_back_is_not_written() -> None:
    pairs = tuple(CustomPair(str(at), b"") for at in range(protobuf.FIELDS_MAX))
    with pytest.raises(ConfigError):
        pack_ledger_metadata(replace(DEMO, custom=pairs))


def test_where_an_entry_stands() -> None:
    metadata = replace(DEMO, fragments=(Fragment(0, BOOKIES), Fragment(17, BOOKIES[::-1])))
    starts = [metadata.fragment_of(entry_id).first_entry_id for entry_id in (0, 16, 17, 1 << 62)]
    assert starts == [0, 0, 17, 17]
    with pytest.raises(ConfigError):
        metadata.fragment_of(-1)
    assert metadata.custom_value("app") == b"demo"
    assert metadata.custom_value("none") is None


def test_the_password_is_in_no_text() -> None:
    metadata = replace(DEMO, password=b"canary")
    assert "canary" not in repr(metadata)
    assert "canary" not in str(metadata)
    raw = pack_ledger_metadata(metadata)
    text = b'2\nquorumSize: 2\nensembleSize: 2\npassword: "canary" "\\q" '
    for harmed in (raw[:-1], raw.replace(b"canary", b"\xffcanar"), FRONT + text, FRONT + text[:-6]):
        try:
            parse(harmed)
        except DOCUMENTED as error:
            told = f"{error!r} {error.about} {error.__cause__!r}"
        else:
            told = ""
        assert "canary" not in told
