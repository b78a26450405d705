"""Ledger metadata from bytes and to bytes: all three formats are read, the newest is written.

Each begins with a line of its version. Version 1 is lines of text, 2 the text form of a protobuf
message, 3 the same message in binary form behind its length. What was read in format 3 and is
written unchanged comes out as the bytes it was, if a stock client wrote them. A ledger of format 1
or 2 stays as it is: clients old enough to write it could not read what we would make of it.

Bytes that are no metadata are `Corrupt`, versions, states and digests that we do not know are
`FormatError`. No error quotes the bytes: the password is among them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from dlog.errors import ConfigError, Corrupt, FormatError, TooLarge, Unsupported, check
from dlog.limits import LEDGER_METADATA_BYTES_MAX
from dlog.wire import protobuf
from dlog.wire.bookie_digest import DigestType
from dlog.wire.ledger_metadata import NO_ENTRY, CustomPair, Fragment, LedgerMetadata, LedgerState
from dlog.wire.protobuf import BYTES, NUMBER, Fields, Message
from dlog.wire.protobuf_text import TextMessage, read_text_message

FORMAT_VERSION: Final = 3

_HEADER = re.compile(rb"BookieMetadataFormatVersion\t([0-9]{1,9})\n")
_FRONT = b"BookieMetadataFormatVersion\t3\n"
_V1_IN_RECOVERY = -102  # the "last entry" of a ledger in recovery
_V1_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_INT64_END = 1 << 63

_FORMAT: Final = Fields(
    {number: NUMBER for number in (1, 2, 3, 4, 5, 7, 9, 10, 12)} | {6: BYTES, 8: BYTES, 11: BYTES}
)
_SEGMENT: Final = Fields({1: BYTES, 2: NUMBER})
_PAIR: Final = Fields({1: BYTES, 2: BYTES})

_STATES: Final = {int(state): state for state in LedgerState}
_DIGESTS: Final = {int(digest): digest for digest in DigestType}


def parse_ledger_metadata(raw: bytes, *, where: str) -> LedgerMetadata:
    if len(raw) > LEDGER_METADATA_BYTES_MAX:
        raise Corrupt(f"{where}: {len(raw)} bytes; {LEDGER_METADATA_BYTES_MAX} is the most")
    header = _HEADER.match(raw)
    if header is None:
        raise Corrupt(f"{where}: ledger metadata begins with a line of its version")
    version = int(header[1])
    parse = _PARSERS.get(version)
    if parse is None:
        raise FormatError(f"{where}: ledger metadata of format {version}; 1 to 3 are known")
    try:
        return parse(raw[header.end() :], where)
    except ConfigError as wrong:
        raise Corrupt(f"{where}: {wrong.message}") from None


def pack_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """In format 3, fields in the order of the stock client, unknown ones behind them."""
    if metadata.format_version != FORMAT_VERSION:
        raise Unsupported(f"ledger metadata of format {metadata.format_version} is only read")
    body = _pack_fields(metadata)
    packed = b"".join((_FRONT, protobuf.pack_varint(len(body)), body))
    if len(packed) > LEDGER_METADATA_BYTES_MAX:
        raise TooLarge(f"{len(packed)} bytes of metadata; {LEDGER_METADATA_BYTES_MAX} is the most")
    # What nobody can read back would lose the ledger.
    try:
        read = parse_ledger_metadata(packed, where="metadata about to be written")
    except (Corrupt, FormatError) as wrong:
        raise ConfigError(wrong.message) from None
    check(read == metadata, "ledger metadata is read as it was written", read, metadata)
    return packed


def _pack_fields(metadata: LedgerMetadata) -> bytes:
    number, string = protobuf.pack_number, protobuf.pack_bytes
    fields = [
        number(1, metadata.write_quorum),
        number(2, metadata.ensemble_size),
        number(3, metadata.length_bytes),
        number(4, metadata.last_entry_id),
        number(5, metadata.state),
    ]
    fields += [string(6, _pack_fragment(fragment)) for fragment in metadata.fragments]
    if metadata.digest_type is not None:
        fields.append(number(7, metadata.digest_type))
    if metadata.password is not None:
        fields.append(string(8, metadata.password))
    fields.append(number(9, metadata.ack_quorum))
    if metadata.ctime_ms is not None:
        fields.append(number(10, metadata.ctime_ms))
    for pair in metadata.custom:
        packed = protobuf.pack_text(1, pair.key) + string(2, pair.value) + pair.unknown
        fields.append(string(11, packed))
    if metadata.creator_token is not None:
        fields.append(number(12, metadata.creator_token))
    return b"".join((*fields, metadata.unknown))


def _pack_fragment(fragment: Fragment) -> bytes:
    fields = [protobuf.pack_text(1, bookie_id) for bookie_id in fragment.ensemble]
    fields.append(protobuf.pack_number(2, fragment.first_entry_id))
    return b"".join((*fields, fragment.unknown))


def _parse_v3(rest: bytes, where: str) -> LedgerMetadata:
    view = memoryview(rest)
    size, at = protobuf.read_varint(view, 0, where)
    if size != len(view) - at:
        raise Corrupt(f"{where}: {len(view) - at} bytes of a message of {size}")
    message = Message(view[at:], _FORMAT, where)
    write_quorum = message.int32(1)
    ack_quorum = message.optional_int32(9)
    state = _state_of(message.int32(5), where)
    length_bytes = message.int64(3)
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        write_quorum=write_quorum,
        ensemble_size=message.int32(2),
        ack_quorum=write_quorum if ack_quorum is None else ack_quorum,
        state=state,
        length_bytes=length_bytes if closed else 0,
        last_entry_id=message.int64(4) if closed else NO_ENTRY,
        fragments=tuple(map(_fragment_of, message.messages(6, _SEGMENT, "segment"))),
        digest_type=_digest_of(message.int32(7), where) if 7 in message else None,
        password=bytes(message.bytes(8)) if 8 in message else None,
        custom=tuple(map(_pair_of, message.messages(11, _PAIR, "custom pair"))),
        ctime_ms=message.optional_int64(10),
        creator_token=message.optional_int64(12),
        unknown=message.unknown,
    )


def _fragment_of(message: Message) -> Fragment:
    return Fragment(message.int64(2), tuple(message.texts(1)), message.unknown)


def _pair_of(message: Message) -> CustomPair:
    key = message.text(1) if 1 in message else ""  # both are optional, and empty if left out
    value = bytes(message.bytes(2)) if 2 in message else b""
    return CustomPair(key, value, message.unknown)


def _parse_v2(rest: bytes, where: str) -> LedgerMetadata:
    """Fields that we do not know are passed over: nothing is written back."""
    fields = _TextFields(read_text_message(rest, where), where)
    write_quorum = fields.number("quorumSize")
    state = fields.name("state", LedgerState)
    closed = state is LedgerState.CLOSED
    length_bytes = fields.number("length")
    return LedgerMetadata(
        write_quorum=write_quorum,
        ensemble_size=fields.number("ensembleSize"),
        ack_quorum=fields.number("ackQuorumSize", write_quorum),
        state=state,
        length_bytes=length_bytes if closed else 0,
        last_entry_id=fields.number("lastEntryId") if closed else NO_ENTRY,
        fragments=tuple(
            Fragment(each.number("firstEntryId"), tuple(each.texts("ensembleMember")))
            for each in fields.messages("segment")
        ),
        digest_type=fields.name("digestType", DigestType) if "digestType" in fields else None,
        password=fields.string("password") if "password" in fields else None,
        custom=tuple(
            CustomPair(
                each.text("key") if "key" in each else "",
                each.string("value") if "value" in each else b"",
            )
            for each in fields.messages("customMetadata")
        ),
        ctime_ms=fields.number("ctime") if "ctime" in fields else None,
        format_version=2,
    )


class _TextFields:
    """The fields of a text message, asked for one by one."""

    def __init__(self, message: TextMessage, where: str) -> None:
        self._message = message
        self._where = where

    def __contains__(self, name: str) -> bool:
        return name in self._message

    def _last(self, name: str, kind: type, what: str) -> Any:
        if name not in self._message:
            raise Corrupt(f"{self._where}: the required field {name} is missing")
        value = self._message[name][-1]
        if not isinstance(value, kind):
            raise Corrupt(f"{self._where}: {name} is not {what}")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        if default is not None and name not in self:
            return default
        return _number(self._last(name, str, "a number"), name, self._where)

    def name(self, name: str, kind: Any) -> Any:
        found = kind.__members__.get(self._last(name, str, "a name"))
        if found is None:
            raise FormatError(f"{self._where}: {name} has an unknown value")
        return found

    def string(self, name: str) -> bytes:
        value: bytes = self._last(name, bytes, "a string")
        return value

    def text(self, name: str) -> str:
        return self.texts(name)[-1]

    def texts(self, name: str) -> list[str]:
        values = self._message.get(name, [])
        try:
            return [str(value, "utf-8") for value in values]  # type: ignore[arg-type]
        except (TypeError, UnicodeDecodeError):
            raise Corrupt(f"{self._where}: {name} is not text") from None

    def messages(self, name: str) -> list[_TextFields]:
        values = self._message.get(name, [])
        if not all(isinstance(value, dict) for value in values):
            raise Corrupt(f"{self._where}: {name} is not a message")
        return [_TextFields(value, self._where) for value in values]  # type: ignore[arg-type]


def _parse_v1(rest: bytes, where: str) -> LedgerMetadata:
    """Quorum, ensemble and length, a line for each fragment, and one for the end if there is one.
    No digest, no password: they are older than this format knows."""
    try:
        text = str(rest, "utf-8")
    except UnicodeDecodeError:
        raise Corrupt(f"{where}: ledger metadata of format 1 is text") from None
    lines = text.removesuffix("\n").split("\n")
    if len(lines) < 4:
        raise Corrupt(f"{where}: ledger metadata of format 1 has four lines or more")
    quorum, ensemble_size, length_bytes = (_number(line, "a size", where) for line in lines[:3])
    rows = [line.split("\t") for line in lines[3:]]
    state, last_entry_id = LedgerState.OPEN, NO_ENTRY
    if rows[-1][1:] == ["CLOSED"]:
        last_entry_id = _number(rows.pop()[0], "the last entry", where)
        state = LedgerState.CLOSED
        if last_entry_id == _V1_IN_RECOVERY:
            state, last_entry_id = LedgerState.IN_RECOVERY, NO_ENTRY
    # A stock client reads no further than that word, and we would take it for a bookie.
    if any(row[1:2] == ["CLOSED"] for row in rows):
        raise Corrupt(f"{where}: ledger metadata of format 1 goes on behind its end")
    return LedgerMetadata(
        write_quorum=quorum,
        ensemble_size=ensemble_size,
        ack_quorum=quorum,
        state=state,
        length_bytes=length_bytes if state is LedgerState.CLOSED else 0,
        last_entry_id=last_entry_id,
        fragments=tuple(
            Fragment(_number(row[0], "an entry", where), tuple(row[1:])) for row in rows
        ),
        format_version=1,
    )


def _number(text: str, what: str, where: str) -> int:
    value = int(text) if _V1_NUMBER.fullmatch(text) else _INT64_END
    if not -_INT64_END <= value < _INT64_END:
        raise Corrupt(f"{where}: {what} is no number of 64 bits")
    return value


def _state_of(number: int, where: str) -> LedgerState:
    state = _STATES.get(number)
    if state is None:
        raise FormatError(f"{where}: unknown ledger state {number}")
    return state


def _digest_of(number: int, where: str) -> DigestType:
    digest = _DIGESTS.get(number)
    if digest is None:
        raise FormatError(f"{where}: unknown digest type {number}")
    return digest


_PARSERS: Final[dict[int, Callable[[bytes, str], LedgerMetadata]]] = {
    1: _parse_v1,
    2: _parse_v2,
    3: _parse_v3,
}
