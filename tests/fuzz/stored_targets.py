"""What stands in the metadata store of a cluster: the metadata of ledgers in three formats, what
bookies say of themselves, the layout, the names of nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from dlog.errors import ConfigError, Corrupt, FormatError, Unsupported
from dlog.limits import ENSEMBLE_BOOKIES_MAX
from dlog.wire import ledger_paths
from dlog.wire.bookie_digest import DigestType
from dlog.wire.bookie_service_info import (
    BOOKIE_RPC,
    BookieServiceInfo,
    Endpoint,
    is_bookie_id,
    legacy_address,
    resolve,
)
from dlog.wire.ledger_metadata import CustomPair, Fragment, LedgerMetadata, LedgerState
from dlog.wire.ledger_metadata_format import pack_ledger_metadata, parse_ledger_metadata
from dlog.wire.ledger_paths import Manager
from tests.fuzz import reference
from tests.fuzz.mutation import Mutator, varint
from tests.fuzz.reference import BYTES, NUMBER, Refused, as_text, read_message
from tests.fuzz.target import Target, must, require
from tests.fuzz.wire_targets import field

HERE = "the fuzzed node"
_SECRET = b"open sesame"
_FRONT = b"BookieMetadataFormatVersion\t3\n"
_B = ("b1:3181", "b2:3181", "b3:3181", "b4:3181")

_TEXT = b"""BookieMetadataFormatVersion\t2
quorumSize: 2
ensembleSize: 3
length: 99
lastEntryId: 7
state: CLOSED
segment {
  ensembleMember: "b1:3181"
  ensembleMember: "b2:3181"
  ensembleMember: "b3:3181"
  firstEntryId: 0
}
segment <
  ensembleMember: "b1:3181" ensembleMember: 'b4:3181' ensembleMember: "b3:" "3181"
  firstEntryId: 4  # moved
>
digestType: CRC32C
password: "open sesame\\001\\x7f\\n"
ackQuorumSize: 2
ctime: 1700000000000
customMetadata { key: "a" value: "\\377b" }
"""
_LINES = (
    b"BookieMetadataFormatVersion\t1\n2\n3\n99\n"
    b"0\tb1:3181\tb2:3181\tb3:3181\n5\tb1:3181\tb4:3181\tb3:3181\n7\tCLOSED\n"
)


def metadata_seeds() -> list[LedgerMetadata]:
    first, second = Fragment(0, _B[:3]), Fragment(5, (_B[0], _B[3], _B[2]))
    plain = LedgerMetadata(3, 3, 2, (first,), digest_type=DigestType.CRC32C, password=_SECRET)
    closed = LedgerState.CLOSED
    custom = (CustomPair("application", b"dlog"), CustomPair("", b"\x00\xff"))
    unknown = field(13, 5) + field(200, b"later")
    return [
        plain,
        LedgerMetadata(3, 3, 2, (first, second), LedgerState.IN_RECOVERY, creator_token=1 << 62),
        LedgerMetadata(
            3, 2, 2, (first, second), closed, 9, 99, DigestType.HMAC, _SECRET, custom, 1
        ),
        LedgerMetadata(1, 1, 1, (Fragment(0, ("b1",), field(9, 1)),), closed, -1, unknown=unknown),
    ]


_KINDS = {number: NUMBER for number in (1, 2, 3, 4, 5, 7, 9, 10, 12)} | {
    6: BYTES,
    8: BYTES,
    11: BYTES,
}


def expected_metadata(raw: bytes) -> dict[str, object]:
    """Of format 3, by the other reader; `Refused`."""
    front = re.match(rb"BookieMetadataFormatVersion\t0{0,8}3\n", raw)
    if front is None:
        raise Refused
    rest = raw[front.end() :]
    size, at = reference.read_varint(rest, 0)
    if size != len(rest) - at:
        raise Refused
    told = read_message(rest[at:], _KINDS)
    write, ensemble, state = told.int32(1), told.int32(2), told.int32(5)
    length = told.int64(3)
    ack = told.int32(9) if 9 in told.numbers else write
    digest = told.int32(7) if 7 in told.numbers else None
    if state not in (1, 2, 3) or digest not in (None, 1, 2, 3, 4):
        raise Refused
    last = told.int64(4) if state == 3 else -1
    if not 1024 >= ensemble >= write >= ack >= 1:
        raise Refused
    if state == 3 and (last < -1 or length < 0):
        raise Refused
    fragments = []
    for piece in told.strings.get(6, []):
        inner = read_message(piece, {1: BYTES, 2: NUMBER}, 1)
        bookies = tuple(as_text(each) for each in inner.strings.get(1, []))
        fragments.append((inner.int64(2), bookies, inner.unknown))
    pairs = []
    for piece in told.strings.get(11, []):
        inner = read_message(piece, {1: BYTES, 2: BYTES}, 1)
        key = as_text(inner.last(1)) if 1 in inner.strings else ""
        value = inner.last(2) if 2 in inner.strings else b""
        pairs.append((key, value, inner.unknown))
    if not fragments or fragments[0][0] != 0:
        raise Refused
    if any(one[0] >= two[0] for one, two in pairwise(fragments)):
        raise Refused
    for _, bookies, _ in fragments:
        if len(bookies) != ensemble or len(set(bookies)) != ensemble:
            raise Refused
        if not all(is_bookie_id(each) for each in bookies):
            raise Refused
    if len({pair[0] for pair in pairs}) != len(pairs):
        raise Refused
    return {
        "quorums": (ensemble, write, ack),
        "state": state,
        "end": (last, length if state == 3 else 0),
        "digest": digest,
        "password": told.last(8) if 8 in told.strings else None,
        "fragments": fragments,
        "custom": pairs,
        "times": tuple(told.int64(n) if n in told.numbers else None for n in (10, 12)),
        "unknown": told.unknown,
    }


def told_metadata(metadata: LedgerMetadata) -> dict[str, object]:
    return {
        "quorums": (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum),
        "state": int(metadata.state),
        "end": (metadata.last_entry_id, metadata.length_bytes),
        "digest": None if metadata.digest_type is None else int(metadata.digest_type),
        "password": metadata.password,
        "fragments": [
            (each.first_entry_id, each.ensemble, each.unknown) for each in metadata.fragments
        ],
        "custom": [tuple(pair) for pair in metadata.custom],
        "times": (metadata.ctime_ms, metadata.creator_token),
        "unknown": metadata.unknown,
    }


class Metadata(Target):
    """The other reader takes and refuses the same of format 3; written again it is the same value
    with the same unknown fields; no error shows the password."""

    name = "ledger-metadata"
    dictionary = (
        _FRONT,
        b"BookieMetadataFormatVersion\t",
        *(varint(number << 3 | kind) for number in range(1, 14) for kind in (0, 2)),
        b"b4:3181",
        b"readonly",
        varint((1 << 64) - 102),
        field(2, 0),
        field(9, 3),
    )

    def seeds(self) -> list[bytes]:
        return [pack_ledger_metadata(each) for each in metadata_seeds()]

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        if mutator.random() < 0.75 and raw.startswith(_FRONT):
            rest = raw[len(_FRONT) :]
            try:
                _, at = reference.read_varint(rest, 0)
            except Refused:
                return mutator.mutate(raw, corpus)
            body = mutator.mutate_fields(rest[at:])
            return _FRONT + varint(len(body)) + body
        return mutator.mutate(raw, corpus)

    def check(self, raw: bytes) -> str:
        try:
            expected = expected_metadata(raw)
        except Refused:
            expected = None
        metadata = self._parsed(raw, expected is None)
        if metadata.format_version != 3:
            return f"format {metadata.format_version}"
        told = told_metadata(metadata)
        require(told == expected, "metadata says what stands there", told, expected)
        packed = must(lambda: pack_ledger_metadata(metadata), "what is read can be written")
        again = must(lambda: parse_ledger_metadata(packed, where=HERE), "there and back")
        require(again == metadata, "there and back, unknown fields, too", again, metadata)
        return f"ledger {metadata.state.name.lower()} {min(3, len(metadata.fragments))}"

    def _parsed(self, raw: bytes, refused: bool) -> LedgerMetadata:
        try:
            return parse_ledger_metadata(raw, where=HERE)
        except (Corrupt, FormatError) as error:
            require(refused or not raw.startswith(_FRONT), "refused for a reason", raw, error)
            # A bookie's name is shown, and a mutation may have put anything there.
            shows = "sesame" in str(error) and " a bookie " not in str(error)
            require(not shows, "no error shows the password", error)
            raise


class TextMetadata(Metadata):
    """Formats 1 and 2: what is accepted makes sense, and is never written."""

    name = "metadata-text"
    dictionary = (
        b"BookieMetadataFormatVersion\t1\n",
        b"BookieMetadataFormatVersion\t2\n",
        b"segment {",
        b"segment <",
        b"}",
        b">",
        b"<" * 40,
        b"x{" * 16 + b"}" * 16,
        b"x{" * 600 + b"}" * 600,
        b"-102",
        b"CLOSED",
        b"\t",
        b"\n",
        b'"',
        b"\\",
        b"#",
        b"\\x4",
        b"\\777",
        b"firstEntryId: ",
        b"password: ",
        b"9223372036854775808",
        b"0x10",
        b"1e3",
        b" " * 60,
        b"# " * 30,
    )
    memory_factor = 64.0  # a dict of lists for each message

    def seeds(self) -> list[bytes]:
        open_lines = _LINES.removesuffix(b"7\tCLOSED\n")
        return [
            _TEXT,
            _LINES,
            open_lines,
            open_lines + b"-102\tCLOSED\n",
            _TEXT.replace(b"\n", b" ", 0),
        ]

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        front, line, rest = raw.partition(b"\n")
        if mutator.random() < 0.9 and line:
            if mutator.random() < 0.4:
                rows = rest.split(b"\n")
                at, other = mutator.below(len(rows)), mutator.below(len(rows))
                rows[at], rows[other] = rows[other], rows[at]
                if mutator.random() < 0.1:
                    rows.insert(at, b"6\tCLOSED\tb2:3181\tb3:3181")
                if mutator.random() < 0.5:
                    rows[at : at + mutator.below(3)] = [rows[other]] * mutator.below(3)
                return front + line + b"\n".join(rows)
            return front + line + mutator.mutate(rest, corpus)
        return mutator.mutate(raw, corpus)

    def check(self, raw: bytes) -> str:
        metadata = self._parsed(raw, True)
        made: Mapping[str, object] = told_metadata(metadata)
        ensemble, write, ack = metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        require(ENSEMBLE_BOOKIES_MAX >= ensemble >= write >= ack >= 1, "quorums", made)
        firsts = [each.first_entry_id for each in metadata.fragments]
        require(
            firsts[0] == 0 and all(one < two for one, two in pairwise(firsts)),
            "fragments rise from 0",
            firsts,
        )
        for each in metadata.fragments:
            require(len(set(each.ensemble)) == ensemble, "each bookie once", each)
        if metadata.format_version == 1:
            told = any(each.ensemble[0] == "CLOSED" for each in metadata.fragments)
            require(not told, "the word for the end is no bookie", made)
        is_closed = metadata.state is LedgerState.CLOSED
        require(is_closed or metadata.last_entry_id == -1, "an end means closed", made)
        if metadata.format_version != 3:
            try:
                pack_ledger_metadata(metadata)
            except Unsupported:
                pass
            else:
                require(False, "old formats are not written")
        return f"format {metadata.format_version} {metadata.state.name.lower()}"


class ServiceInfo(Target):
    name = "service-info"
    dictionary = (
        *(varint(number << 3 | kind) for number in range(1, 8) for kind in (0, 2)),
        BOOKIE_RPC.encode(),
        varint(65_536),
        b"\xe2\x80\xae",
    )

    def seeds(self) -> list[bytes]:
        endpoint = Endpoint("bookie", "host.example", 3181, BOOKIE_RPC)
        http = Endpoint("http", "::1", 8080, "http", ("a", "b"), ("tls",))
        return [
            BookieServiceInfo((endpoint,)).to_bytes(),
            BookieServiceInfo((http, endpoint), (("k", "v"), ("", ""))).to_bytes(),
            b"",
        ]

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        if mutator.random() < 0.6:
            return mutator.mutate_fields(raw)
        return mutator.mutate(raw, corpus)

    def check(self, raw: bytes) -> str:
        info = BookieServiceInfo.from_bytes(raw, where=HERE)
        packed = info.to_bytes()
        again = must(lambda: BookieServiceInfo.from_bytes(packed, where=HERE), "there and back")
        require(again == info, "there and back", again)
        for each in info.endpoints:
            require(0 < each.port < 1 << 16 and each.host.isprintable(), "an address", each)
        endpoint = resolve("b1:3181", raw, where=HERE)
        require(endpoint.protocol == BOOKIE_RPC, "an endpoint for entries", endpoint)
        return "bookie" if raw else "legacy"


class Names(Target):
    """Layouts, paths and ids: what is read is written so, and by no other text. The first byte of
    an input says what it is."""

    name = "cluster-names"
    refusals = (FormatError, Unsupported)
    dictionary = (
        b"\n",
        b":",
        b"org.apache.bookkeeper.meta.",
        b"HierarchicalLedgerManagerFactory",
        b"LongHierarchicalLedgerManagerFactory",
        b"/",
        b"L",
        b"ID-",
        b"HOB-",
        b"-1",
        "\u0663".encode(),
        b"2147483647",
        b"9223372036854775807",
        b"65536",
        b"readonly",
        b"0000",
    )

    def seeds(self) -> list[bytes]:
        seeds = [b"\0" + ledger_paths.pack_layout(manager) for manager in Manager]
        seeds += [b"\0" + b"1\nflat:1", b"\0" + b"1\nhierarchical:1"]
        for number, manager in enumerate(Manager, 1):
            for ledger_id in (0, 7, 1 << 30, (1 << 31) - 1, 1 << 40, (1 << 63) - 1):
                try:
                    path = ledger_paths.ledger_path(manager, ledger_id)
                except ConfigError:
                    continue
                seeds.append(bytes([number]) + path.encode())
        seeds += [b"\5/ledgers/idgen/ID-0000000007", b"\5/ledgers/idgen/ID--2147483648"]
        return [*seeds, b"\6HOB-0000000001", b"\7host.example:3181", b"\7b1"]

    def check(self, raw: bytes) -> str:
        kind, text = (raw[0] & 7 if raw else 0), raw[1:].decode("utf-8", "surrogateescape")
        if kind == 0:
            manager = ledger_paths.parse_layout(raw[1:], where=HERE)
            again = ledger_paths.parse_layout(ledger_paths.pack_layout(manager), where=HERE)
            require(again is manager, "there and back", manager)
            return f"layout {manager.value}"
        if kind < 5:
            manager = [*Manager][kind - 1]
            ledger_id = ledger_paths.ledger_id_of(manager, text)
            path = must(lambda: ledger_paths.ledger_path(manager, ledger_id), "an id has a path")
            require(path == text, "one path", text, path)
            require(0 <= ledger_id < 1 << 63, "an id", ledger_id)
            return f"path {manager.value}"
        if kind == 5:
            number = ledger_paths.parse_generated_id(text)
            require(number is None or 0 <= number < (1 << 31) - 1, "a short id", number)
            return f"id {'none' if number is None else 'some'}"
        if kind == 6:
            bits = ledger_paths.parse_high_bits([text, "other"])
            require(
                all(ledger_paths.high_bits_name(each) == text for each in bits), "one name", text
            )
            return f"bits {len(bits)}"
        if is_bookie_id(text):
            require(text.isascii() and text.isprintable() and "/" not in text, "a node", text)
        address = legacy_address(text)
        require(f"{address.host}:{address.port}" == text, "an address as it stands", text)
        return "address"


TARGETS = (Metadata(), TextMetadata(), ServiceInfo(), Names())
