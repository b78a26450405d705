"""The one message of every authentication dialogue with a bookie; both protocols carry it.

What stands in the payload is the business of the plugin that is named. A bookie that has no
authentication answers with the name `AUTH_DISABLED`; whether that is good enough is for the policy
to say, never for a codec.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dlog.errors import TooLarge
from dlog.limits import BOOKIE_AUTH_BYTES_MAX
from dlog.wire import Buffer, protobuf
from dlog.wire.protobuf import BYTES, Fields, Message

AUTH_DISABLED: Final = "AuthDisabledPlugin"

_PLUGIN, _PAYLOAD = 1, 2
AUTH_FIELDS: Final = Fields({_PLUGIN: BYTES, _PAYLOAD: BYTES})


@dataclass(frozen=True, slots=True)
class AuthMessage:
    plugin: str
    payload: bytes = field(repr=False)  # may hold credentials

    def to_bytes(self) -> bytes:
        packed = protobuf.pack_text(_PLUGIN, self.plugin)
        packed += protobuf.pack_bytes(_PAYLOAD, self.payload)
        if len(packed) > BOOKIE_AUTH_BYTES_MAX:
            raise TooLarge(f"an authentication message of {len(packed)} bytes")
        return packed

    @classmethod
    def from_bytes(cls, raw: Buffer, where: str) -> AuthMessage:
        return cls.from_message(Message(raw, AUTH_FIELDS, where))

    @classmethod
    def from_message(cls, message: Message) -> AuthMessage:
        return cls(message.text(_PLUGIN), bytes(message.bytes(_PAYLOAD)))
