"""What a bookie says of itself in the metadata store, and how its id becomes an address.

A bookie id is an opaque name. The node that the bookie keeps under it lists its endpoints; bookies
older than that left the node empty, and their ids were `host:port`. A bookie without a node has no
address, also if its id looks like one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from dlog.errors import Corrupt, FormatError
from dlog.limits import KIB
from dlog.wire import protobuf
from dlog.wire.protobuf import BYTES, NUMBER, Fields, Message

SERVICE_INFO_BYTES_MAX: Final = 64 * KIB
BOOKIE_ID_CHARS_MAX: Final = 255
BOOKIE_RPC: Final = "bookie-rpc"
TLS_EXTENSION: Final = "tls"

_BOOKIE_ID = re.compile(r"[A-Za-z0-9:;<=>?@\[\\\]^_.\-]+", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_PORT_END = 1 << 16

_INFO: Final = Fields({6: BYTES, 7: BYTES})
_ENDPOINT: Final = Fields({1: BYTES, 2: NUMBER, 3: BYTES, 4: BYTES, 5: BYTES, 6: BYTES})
_PROPERTY: Final = Fields({1: BYTES, 2: BYTES})


class Address(NamedTuple):
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    endpoints: tuple[Endpoint, ...]
    properties: tuple[tuple[str, str], ...] = ()

    def to_bytes(self) -> bytes:
        packed = [protobuf.pack_bytes(6, _pack_endpoint(endpoint)) for endpoint in self.endpoints]
        packed += [
            protobuf.pack_bytes(7, protobuf.pack_text(1, key) + protobuf.pack_text(2, value))
            for key, value in self.properties
        ]
        return b"".join(packed)

    @classmethod
    def from_bytes(cls, raw: bytes, *, where: str) -> BookieServiceInfo:
        if len(raw) > SERVICE_INFO_BYTES_MAX:
            raise Corrupt(f"{where}: {len(raw)} bytes; {SERVICE_INFO_BYTES_MAX} is the most")
        message = Message(raw, _INFO, where)
        return cls(
            tuple(_endpoint_of(each, where) for each in message.messages(6, _ENDPOINT, "endpoint")),
            tuple(_property_of(each) for each in message.messages(7, _PROPERTY, "property")),
        )

    def rpc_endpoint(self) -> Endpoint | None:
        """Where entries are sent: the first one that speaks the bookie protocol."""
        return next((each for each in self.endpoints if each.protocol == BOOKIE_RPC), None)


def resolve(bookie_id: str, raw: bytes, *, where: str) -> Endpoint:
    """The endpoint for entries, from what stands in the bookie's node."""
    if not raw:
        host, port = legacy_address(bookie_id)
        return Endpoint(id="bookie", host=host, port=port, protocol=BOOKIE_RPC)
    endpoint = BookieServiceInfo.from_bytes(raw, where=where).rpc_endpoint()
    if endpoint is None:
        raise FormatError(f"{where}: the bookie {bookie_id} names no {BOOKIE_RPC} endpoint")
    return endpoint


def legacy_address(bookie_id: str) -> Address:
    """Of `host:port`. IPv6 literals cannot be written so: they have colons of their own."""
    host, _, port = bookie_id.partition(":")
    if not host or not _PORT.fullmatch(port) or int(port) >= _PORT_END:
        raise FormatError(f"the bookie id {bookie_id[:80]!r} is not host:port")
    return Address(host, int(port))


def is_bookie_id(name: str) -> bool:
    """`readonly` is none: it is the name of a node that stands beside those of bookies."""
    return (
        len(name) <= BOOKIE_ID_CHARS_MAX
        and _BOOKIE_ID.fullmatch(name) is not None
        and name.lower() != "readonly"
    )


def _pack_endpoint(endpoint: Endpoint) -> bytes:
    packed = [
        protobuf.pack_text(1, endpoint.id),
        protobuf.pack_number(2, endpoint.port),
        protobuf.pack_text(3, endpoint.host),
        protobuf.pack_text(4, endpoint.protocol),
    ]
    packed += [protobuf.pack_text(5, each) for each in endpoint.auth]
    packed += [protobuf.pack_text(6, each) for each in endpoint.extensions]
    return b"".join(packed)


def _endpoint_of(message: Message, where: str) -> Endpoint:
    port = message.int32(2)
    if not 0 < port < _PORT_END:
        raise Corrupt(f"{where}: there is no port {port}")
    host = message.text(3)
    if not host or not host.isprintable():
        raise Corrupt(f"{where}: {host[:80]!r} is no host")
    return Endpoint(
        id=message.text(1),
        host=host,
        port=port,
        protocol=message.text(4),
        auth=tuple(message.texts(5)),
        extensions=tuple(message.texts(6)),
    )


def _property_of(message: Message) -> tuple[str, str]:
    """A key or value that is empty may be left out, as the map of a proto2 message allows."""
    key = message.text(1) if 1 in message else ""
    value = message.text(2) if 2 in message else ""
    return key, value
