"""The entry format, from outside: messages in, buffers out, and back.

    buffers = encode([b"a", b"b"], first_seq=0, timestamp_us=clock.wall_us())
    entry = decode(b"".join(buffers), where="ledger 12 entry 5")
    entry.values()  # [b"a", b"b"]

This is all the rest of the program needs to know. Inside, `layout` has the header and its
bounds, `columns` the packing of whole columns, `encode` and `decode` the two directions, `copying`
entries on their way into another ledger, `arrow` the arrays, `compress` the codecs, `control` what
control entries say.
"""

from dlog.wire.compress import Codec, check_installed
from dlog.wire.control import Birth, ControlKind, ProducerRow, ProducerTable, Seam
from dlog.wire.copying import copied
from dlog.wire.decode import Entry, decode
from dlog.wire.encode import Headers, encode, encode_control
from dlog.wire.layout import (
    ENTRY_OVERHEAD_BYTES_MAX,
    HEADER_PAIR_OVERHEAD_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_OVERHEAD_BYTES_MAX,
    Header,
    decode_header,
    encoded_bytes_max,
)

__all__ = [
    "ENTRY_OVERHEAD_BYTES_MAX",
    "HEADER_PAIR_OVERHEAD_BYTES_MAX",
    "MESSAGE_BYTES_MAX",
    "MESSAGE_OVERHEAD_BYTES_MAX",
    "Birth",
    "Codec",
    "ControlKind",
    "Entry",
    "Header",
    "Headers",
    "ProducerRow",
    "ProducerTable",
    "Seam",
    "check_installed",
    "copied",
    "decode",
    "decode_header",
    "encode",
    "encode_control",
    "encoded_bytes_max",
]
