"""What comes over a connection to a bookie: the stream of frames, messages of protobuf, answers of
both protocols, authentication, entries and the proofs of LACs."""

from __future__ import annotations

import hashlib
import hmac
import zlib
from collections.abc import Iterator, Sequence
from struct import error, pack, unpack_from

import google_crc32c

from dlog.errors import Corrupt, FormatError
from dlog.wire import bookie_v2, bookie_v3
from dlog.wire.bookie_auth import AUTH_DISABLED, AuthMessage
from dlog.wire.bookie_codes import (
    ReturnCode,
    StatusCode,
    answer_of_return_code,
    answer_of_status_code,
)
from dlog.wire.bookie_digest import DigestType, EntryDigest, mac_key
from dlog.wire.bookie_frame import FrameRun, FrameSplitter
from dlog.wire.bookie_v2 import AddReplies, ReadReply
from dlog.wire.bookie_v3_replies import Response, parse_response
from dlog.wire.protobuf import Fields, Kind, Message
from tests.fuzz import reference
from tests.fuzz.mutation import Mutator, varint
from tests.fuzz.reference import BYTES, NUMBER, Refused, as_text, read_message
from tests.fuzz.target import Target, must, require

HERE = "the fuzzed bookie"
SMALL_CAP = 100
LEDGER = 7


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value % (1 << 64))
    return varint(number << 3 | 2) + varint(len(value)) + value


def framed(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


# --- Answers of the binary protocol


def v2_add(code: int, ledger_id: int, entry_id: int) -> bytes:
    return pack(">BBHiqq", 2, 1, 0, code, ledger_id, entry_id)


def v2_read(code: int, ledger_id: int, entry_id: int, entry: bytes = b"") -> bytes:
    return pack(">BBHiqq", 2, 2, 0, code, ledger_id, entry_id) + entry


def v2_batch(code: int, first: int, request_id: int, entries: Sequence[bytes] = ()) -> bytes:
    front = pack(">BBHiqqq", 2, 7, 0, code, LEDGER, first, request_id)
    return front + b"".join(pack(">i", len(each)) + each for each in entries)


def v2_auth(plugin: str, payload: bytes) -> bytes:
    return pack(">BBH", 2, 3, 0) + field(1, plugin.encode()) + field(2, payload)


CRC32C = EntryDigest(DigestType.CRC32C, b"secret")


def stored(
    entry_id: int, payload: bytes, digest: EntryDigest = CRC32C, *, lac: int | None = None
) -> bytes:
    lac = entry_id - 1 if lac is None else lac
    return digest.pack_head(LEDGER, entry_id, lac, 100 + len(payload), [payload]) + payload


def v2_bodies() -> list[bytes]:
    bodies = [v2_add(code, LEDGER, 3) for code in (0, 101, 104, 106, 107)]
    bodies += [v2_read(0, LEDGER, 3, stored(3, b"hello")), v2_read(0, LEDGER, -1, stored(5, b""))]
    bodies += [v2_read(code, LEDGER, 3) for code in (1, 2, 102, 107)]
    bodies += [
        v2_batch(0, 0, 1, [stored(0, b"a"), stored(1, b"bc" * 9), stored(2, b"")]),
        v2_batch(0, 4, 2, [stored(4, b"a")]),
        v2_batch(2, 0, 1),
        v2_auth(AUTH_DISABLED, b""),
        v2_auth("some.Plugin", b"\x00\xff" * 10),
    ]
    return bodies


V2_WORDS = [
    *(bytes([2, opcode, 0, 0]) for opcode in range(9)),
    *(pack(">i", code) for code in (*ReturnCode, 3, -1, 99)),
    *(pack(">q", number) for number in (LEDGER, 3, -1, 1, 2, 8, 0, 1 << 62)),
    pack(">i", 24),
]


def naive_frames(stream: bytes, cap: int) -> tuple[list[bytes], bool]:
    """The bodies that stand whole in the stream, and whether one cannot be."""
    bodies: list[bytes] = []
    at = 0
    while at + 4 <= len(stream):
        size = int.from_bytes(stream[at : at + 4], "big", signed=True)
        if not 4 <= size <= cap:
            return bodies, True
        if at + 4 + size > len(stream):
            break
        bodies.append(stream[at + 4 : at + 4 + size])
        at += 4 + size
    return bodies, False


def cuts_of(raw: bytes) -> Iterator[bytes]:
    """The bytes in pieces; which ones is drawn from the bytes themselves."""
    chance = zlib.crc32(raw)
    at, end = 0, len(raw)
    while at < end:
        chance = (chance * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        # Tiny ones, such that end in the middle of a length, and long ones.
        size = (1, 2, 3, 5, 12, 28, 31, 60, 64, 200)[(chance >> 8) % 10]
        yield raw[at : at + size]
        at += size


class Frames(Target):
    """The same frames for any cut; never more held than the cap and a length; nothing after a fatal
    error, but the same error."""

    name = "frame"
    dictionary = (
        *V2_WORDS,
        framed(v2_add(0, LEDGER, 9)),
        *(pack(">i", n) for n in (3, 4, 5, 28, SMALL_CAP, SMALL_CAP + 1, -1, 1 << 24)),
    )

    def seeds(self) -> list[bytes]:
        bodies = v2_bodies()
        adds = [framed(v2_add(0, LEDGER, entry)) for entry in range(6)]
        streams = [b"".join(adds), b"".join(map(framed, bodies[:4])), adds[0]]
        streams += [b"".join(map(framed, bodies[at : at + 3])) for at in range(0, 15, 3)]
        streams += [framed(bytes(SMALL_CAP)) + framed(bytes(4)), framed(b"abcd") * 3]
        streams += [b"".join(adds[:2]) + framed(v2_add(104, LEDGER, 9)) + b"".join(adds[3:])]
        return streams

    def check(self, raw: bytes) -> str:
        cap = SMALL_CAP if zlib.crc32(raw) & 1 else 1 << 20
        bodies, fatal = naive_frames(raw, cap)
        whole = self._feed((raw,), cap, fatal)
        require(whole == bodies, "the splitter gives the frames that stand there", whole, bodies)
        cut = self._feed(cuts_of(raw), cap, fatal)
        require(cut == bodies, "the frames are the same for any cut", cut, bodies)
        return f"{'fatal' if fatal else 'frames'} {min(3, len(bodies))}"

    def _feed(
        self, chunks: Sequence[bytes] | Iterator[bytes], cap: int, fatal: bool
    ) -> list[bytes]:
        splitter = FrameSplitter(HERE, body_bytes_max=cap)
        bodies: list[bytes] = []
        fed = handed_out = 0
        told: str | None = None
        for chunk in chunks:
            fed += len(chunk)
            splitter.feed(chunk)
            while True:
                try:
                    run = splitter.next_run()
                except FormatError as error:
                    require(told in (None, str(error)), "the same error for ever", told, error)
                    told = str(error)
                    require(splitter.waiting_bytes == 0, "a broken stream holds nothing")
                    break
                if run is None:
                    break
                require(told is None, "no frame after a fatal error")
                self._look_at(run)
                bodies += map(bytes, run.bodies())
                handed_out += len(run.view)
            if told is None:
                held = splitter.waiting_bytes
                require(held == fed - handed_out, "what came is held or handed out", held, fed)
                require(held < 4 + cap, "no more is held than the cap and a length", held)
        require((told is not None) == fatal, "an impossible length is told, and no other", told)
        return bodies

    def _look_at(self, run: FrameRun) -> None:
        view, size = bytes(run.view), run.frame_bytes
        require(len(view) == size * run.frame_count > 0, "a run is whole frames", size, len(view))
        if run.frame_count > 1:
            heads = {view[at : at + 12] for at in range(0, len(view), size)}
            require(len(heads) == 1, "the frames of a run look alike", heads)


# --- Protobuf

OUTER = {1: NUMBER, 2: BYTES, 3: NUMBER, 6: BYTES, 15: NUMBER, 100: BYTES}
INNER = {1: NUMBER, 2: BYTES, 3: BYTES}


def product_fields(kinds: dict[int, int]) -> Fields:
    return Fields({number: Kind(kind) for number, kind in kinds.items()})


_OUTER, _INNER = product_fields(OUTER), product_fields(INNER)


class Protobuf(Target):
    """Another reader, written for this, takes and refuses the same, and reads the same values."""

    name = "protobuf"
    dictionary = (
        *(varint(number << 3 | kind) for number in (1, 2, 3, 6, 7, 15, 100) for kind in range(6)),
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        varint((1 << 29) << 3),
        b"\x4b" * 16 + b"\x4c" * 16,
        b"\x4b" * 17 + b"\x4c" * 17,
        b"\x4b" * 1100 + b"\x4c" * 1100,
        b"\x4b\x1c",
        field(6, field(1, 5)),
    )

    def seeds(self) -> list[bytes]:
        inner = field(1, 9) + field(2, b"in") + field(9, 1)
        plain = field(1, 5) + field(2, b"text") + field(3, -1) + field(6, inner)
        return [
            plain,
            plain + field(6, field(1, 11) + field(3, b"more")) + field(100, b"x" * 200),
            field(9, 77) + field(1, 1) + field(20, b"unknown") + field(2, "größe".encode()),
            field(1, 1 << 40) + field(15, (1 << 31)) + b"\x4b\x08\x01\x4c" + b"\x4d" + bytes(4),
            field(3, 3) * 3 + field(2, b"a") * 2 + b"\x49" + bytes(8) + field(6, b""),
            b"",
        ]

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        if mutator.random() < 0.4:
            return mutator.mutate_fields(raw)
        return mutator.mutate(raw, corpus)

    def check(self, raw: bytes) -> str:
        try:
            told = read_message(raw, OUTER)
        except Refused:
            told = None
        try:
            message = Message(raw, _OUTER, HERE)
        except (Corrupt, FormatError):
            require(told is None, "a message is refused for a reason", raw)
            raise
        if told is None:
            require(False, "what is no message is refused", raw)
            return ""
        require(message.unknown == told.unknown, "unknown fields are kept", message.unknown)
        for number, kind in OUTER.items():
            there = number in told.numbers or number in told.strings
            require((number in message) == there, "a field is there or not", number)
            if not there:
                continue
            if kind == NUMBER:
                require(message.uint64(number) == told.numbers[number], "numbers", number)
                require(message.int64(number) == told.int64(number), "signed numbers", number)
                self._same(lambda n=number: message.int32(n), lambda n=number: told.int32(n))
            else:
                require(bytes(message.bytes(number)) == told.last(number), "strings", number)
        if 2 in told.strings:
            self._same(lambda: message.text(2), lambda: as_text(told.last(2)))
        if 100 in told.strings:
            self._same(lambda: list(message.texts(100)), lambda: [*map(as_text, told.strings[100])])
        if 6 in told.strings:
            self._same(lambda: self._merged(message), lambda: self._plain(told))
        return "message"

    def _merged(self, message: Message) -> tuple[object, ...]:
        inner = message.message(6, _INNER, "inner")
        return (
            inner.optional_int64(1),
            *(None if (b := inner.optional_bytes(n)) is None else bytes(b) for n in (2, 3)),
            inner.unknown,
        )

    def _plain(self, told: reference.Told) -> tuple[object, ...]:
        inner = told.merged(6, INNER)
        return (
            inner.int64(1) if 1 in inner.numbers else None,
            *(inner.strings[n][-1] if n in inner.strings else None for n in (2, 3)),
            inner.unknown,
        )

    def _same(self, ours: object, theirs: object) -> None:
        require(verdict(ours) == verdict(theirs), "both readers say the same")


def verdict(read: object) -> object:
    """What a call gives, or that it refuses."""
    try:
        return read()  # type: ignore[operator]
    except (Corrupt, FormatError, Refused):
        return Refused


# --- Answers


class BinaryReplies(Target):
    """What is accepted says exactly what stands there: packed again it is the same bytes."""

    name = "v2-reply"
    dictionary = tuple(V2_WORDS)

    def seeds(self) -> list[bytes]:
        return v2_bodies()

    def check(self, raw: bytes) -> str:
        reply = bookie_v2.parse_reply(memoryview(raw), HERE)
        code = int.from_bytes(raw[4:8], "big", signed=True)
        if isinstance(reply, AuthMessage):
            told = read_message(raw[4:], {1: BYTES, 2: BYTES})
            require(reply.plugin == as_text(told.last(1)), "the plugin that is named")
            require(reply.payload == told.last(2), "its payload")
            return "auth"
        require(reply.answer is answer_of_return_code(code, HERE), "the code that stands there")
        if isinstance(reply, AddReplies):
            require(
                v2_add(code, reply.ledger_ids[0], reply.entry_ids[0]) == raw
                and len(reply.ledger_ids) == len(reply.entry_ids) == 1,
                "an answer to an add",
                reply,
            )
            frame = framed(raw) * 3
            run = FrameRun(memoryview(frame), len(frame) // 3, 3)
            adds = must(lambda: bookie_v2.parse_adds(run, HERE), "a run of what was accepted")
            require(
                adds == (reply.answer, reply.ledger_ids * 3, reply.entry_ids * 3),
                "a run of answers says the same as each",
                adds,
            )
            return f"add {code}"
        if isinstance(reply, ReadReply):
            require((reply.entry is not None) == (code == 0), "an entry comes with OK only")
            entry = b"" if reply.entry is None else bytes(reply.entry)
            require(code != 0 or len(entry) >= 32, "an entry has its numbers", entry)
            packed = v2_read(code, reply.ledger_id, reply.entry_id, entry)
            require(packed == raw, "an answer to a read", reply)
            return f"read {code}"
        require(bool(reply.entries) == (code == 0), "entries come with OK only")
        entries = [bytes(each) for each in reply.entries]
        require(all(len(each) >= 32 for each in entries), "each has its numbers", entries)
        front = pack(
            ">BBHiqqq", 2, 7, 0, code, reply.ledger_id, reply.first_entry, reply.request_id
        )
        packed = front + b"".join(pack(">i", len(each)) + each for each in entries)
        require(packed == raw, "an answer to a batch read", reply)
        return f"batch {code} {min(3, len(entries))}"


def v3_reply(operation: int, txn_id: int, status: int, body: bytes | None) -> bytes:
    header = field(1, 3) + field(2, operation) + field(3, txn_id)
    reply = field(1, header) + field(2, status)
    if body is not None:
        reply += field(bookie_v3.BODY_FIELDS[bookie_v3.Operation(operation)], body)
    return reply


def v3_bodies() -> list[bytes]:
    three = field(1, 0) + field(2, LEDGER) + field(3, 3)
    return [
        v3_reply(1, 1, 0, three + field(4, stored(3, b"hello")) + field(5, 2) + field(6, 99)),
        v3_reply(1, 2, 0, field(1, 0) + field(2, LEDGER) + field(3, -1) + field(5, 4)),
        v3_reply(1, 2, 0, field(1, 403) + field(2, LEDGER) + field(3, 3)),
        v3_reply(2, 3, 0, three),
        v3_reply(2, 3, 504, field(1, 504) + field(2, LEDGER) + field(3, 3)),
        v3_reply(5, 4, 0, field(1, AUTH_DISABLED.encode()) + field(2, b"")),
        v3_reply(6, 5, 0, field(1, 0) + field(2, LEDGER)),
        v3_reply(
            7,
            6,
            0,
            field(1, 0)
            + field(2, LEDGER)
            + field(3, CRC32C.pack_lac(LEDGER, 2))
            + field(4, stored(3, b"x")),
        ),
        v3_reply(8, 7, 0, field(1, 0) + field(2, 1 << 40) + field(3, 1 << 39)),
        v3_reply(9, 8, 0, b""),
        v3_reply(10, 9, 0, field(1, 0) + field(2, LEDGER)),
        v3_reply(10, 9, 505, None),
    ]


V3_WORDS = [
    *(varint(number << 3 | kind) for number in (1, 2, 3, 4, 5, 6) for kind in (0, 2, 3, 5)),
    *(varint(number << 3 | 2) for number in range(100, 109)),
    *(varint(code) for code in (*StatusCode, 401, 508)),
    field(1, 3), field(1, 2), field(2, 0), field(2, 506), field(2, 12),
    v3_reply(10, 9, 0, field(1, 0) + field(2, LEDGER)),
]  # fmt: skip

# Of each operation: fields of its body, which of them are required numbers.
_V3_BODIES: dict[int, tuple[int, dict[int, int], tuple[int, ...]]] = {
    1: (100, {1: NUMBER, 2: NUMBER, 3: NUMBER, 4: BYTES, 5: NUMBER, 6: NUMBER}, (2, 3)),
    2: (101, {1: NUMBER, 2: NUMBER, 3: NUMBER}, (2, 3)),
    5: (102, {1: BYTES, 2: BYTES}, ()),
    6: (103, {1: NUMBER, 2: NUMBER}, (2,)),
    7: (104, {1: NUMBER, 2: NUMBER, 3: BYTES, 4: BYTES}, (2,)),
    8: (105, {1: NUMBER, 2: NUMBER, 3: NUMBER}, ()),
    9: (106, {}, ()),
    10: (107, {1: NUMBER, 2: NUMBER}, (2,)),
}
_STATUS = {int(code): code for code in StatusCode}


def expected_v3(raw: bytes) -> tuple[object, ...]:
    """What an answer says, by the other reader; `Refused`."""
    outer = read_message(raw, {1: BYTES, 2: NUMBER} | dict.fromkeys(range(100, 108), BYTES))
    header = outer.merged(1, {1: NUMBER, 2: NUMBER, 3: NUMBER})
    if header.numbers.get(1) != 3 or 3 not in header.numbers:
        raise Refused
    operation, status = header.numbers.get(2), outer.int32(2)
    if operation not in _V3_BODIES or status not in _STATUS:
        raise Refused
    number, kinds, required = _V3_BODIES[operation]
    there = [other for other in outer.strings if other >= 100]
    if there not in ([], [number]) or (not there and status == 0):
        raise Refused
    told: tuple[object, ...] | None = None
    if there:
        body = outer.merged(number, kinds)
        if status == 0 and operation not in (5, 9):
            status = body.int32(1)
            if status not in _STATUS:
                raise Refused
        told = tuple(body.int64(each) for each in required)
        if operation == 1:
            entry = _entry_of(body)
            if status == 0 and entry is None and body.int64(3) >= 0:
                raise Refused
            told += (entry, _maybe(body, 5), _maybe(body, 6))
        elif operation == 5:
            told = as_text(body.last(1)), body.last(2)
        elif operation == 7:
            told += (body.last(3) if 3 in body.strings else None, _entry_of(body))
        elif operation == 8:
            told = _maybe(body, 2), _maybe(body, 3)
    return header.numbers[3], operation, answer_of_status_code(status, HERE), told


def _entry_of(body: reference.Told) -> bytes | None:
    if 4 not in body.strings:
        return None
    if len(body.last(4)) < 32:
        raise Refused
    return body.last(4)


def _maybe(body: reference.Told, number: int) -> int | None:
    return body.int64(number) if number in body.numbers else None


def told_v3(response: Response) -> tuple[object, ...]:
    body = response.body
    told: tuple[object, ...] | None = None
    if isinstance(body, AuthMessage):
        told = body.plugin, body.payload
    elif body is not None:
        told = tuple(bytes(each) if isinstance(each, memoryview) else each for each in body)
    return response.txn_id, int(response.operation), response.answer, told


class ProtobufReplies(Target):
    """The other reader takes and refuses the same answers, and reads the same out of them."""

    name = "v3-reply"
    dictionary = tuple(V3_WORDS)

    def seeds(self) -> list[bytes]:
        return v3_bodies()

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        if mutator.random() < 0.6:
            return mutator.mutate_fields(raw)
        return mutator.mutate(raw, corpus)

    def check(self, raw: bytes) -> str:
        try:
            expected = expected_v3(raw)
        except Refused:
            expected = None
        try:
            response = parse_response(raw, HERE)
        except (Corrupt, FormatError):
            require(expected is None, "an answer is refused for a reason", raw, expected)
            raise
        told = told_v3(response)
        require(told == expected, "an answer says what stands there", told, expected)
        body = "no body" if response.body is None else "body"
        return f"{response.operation.name.lower()} {response.answer.value} {body}"


class Authentication(Target):
    name = "auth"
    dictionary = tuple(V3_WORDS)

    def seeds(self) -> list[bytes]:
        plugins = (AUTH_DISABLED, "", "org.apache.Plugin", "größe")
        return [AuthMessage(each, b"\x00\xff" * 5).to_bytes() for each in plugins]

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        if mutator.random() < 0.4:
            return mutator.mutate_fields(raw)
        return mutator.mutate(raw, corpus)

    def check(self, raw: bytes) -> str:
        message = AuthMessage.from_bytes(raw, HERE)
        told = read_message(raw, {1: BYTES, 2: BYTES})
        require(message.plugin == as_text(told.last(1)), "the plugin that is named", message)
        require(message.payload == told.last(2), "the payload that stands there")
        require(repr(message.payload) not in repr(message), "no payload is shown", message)
        again = must(lambda: AuthMessage.from_bytes(message.to_bytes(), HERE), "there and back")
        require(again == message, "there and back", again)
        return "disabled" if message.plugin == AUTH_DISABLED else "message"


# --- Entries and LACs

DIGESTS = (DigestType.CRC32C, DigestType.HMAC, DigestType.CRC32, DigestType.DUMMY)
_OURS = {type: EntryDigest(type, b"secret") for type in DIGESTS}
_SIZES = {DigestType.CRC32C: 4, DigestType.HMAC: 20, DigestType.CRC32: 8, DigestType.DUMMY: 0}


def digest_of(type: DigestType, covered: bytes) -> bytes:
    """By other code than the product's, as far as there is any."""
    if type is DigestType.CRC32C:
        return pack(">I", google_crc32c.value(covered))
    if type is DigestType.CRC32:
        return pack(">Q", zlib.crc32(covered))
    if type is DigestType.HMAC:
        return hmac.digest(mac_key(b"secret"), covered, hashlib.sha1)
    return b""


class Entries(Target):
    """Asked for entry 3 of ledger 7. The first byte of an input says which digest."""

    name = "entry"
    dictionary = (*(pack(">q", n) for n in (LEDGER, 3, 2, -1, -2, 0, 8, 4, 105, (1 << 63) - 1)),)
    entry_id = 3

    def seeds(self) -> list[bytes]:
        seeds = []
        for index, type in enumerate(DIGESTS):
            digest = _OURS[type]
            for entry_id, payload in ((3, b"hello"), (3, b""), (4, b"other"), (3, b"x" * 200)):
                seeds.append(bytes([index]) + stored(entry_id, payload, digest))
            seeds.append(bytes([index]) + stored(3, b"first", digest, lac=-1))
        return seeds

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        raw = mutator.mutate(raw, corpus)
        if mutator.random() < 0.5 and raw:
            return self._mended(raw)
        return raw

    def _mended(self, raw: bytes) -> bytes:
        """With a digest that is right, so that the numbers are looked at."""
        type, packet = DIGESTS[raw[0] & 3], raw[1:]
        payload_at = 32 + _SIZES[type]
        if len(packet) < payload_at:
            return raw
        covered = packet[:32] + packet[payload_at:]
        return raw[:1] + packet[:32] + digest_of(type, covered) + packet[payload_at:]

    def check(self, raw: bytes) -> str:
        if not raw:
            return "nothing"
        type, packet = DIGESTS[raw[0] & 3], raw[1:]
        digest = _OURS[type]
        expected = self._expected(type, packet)
        run = verdict(
            lambda: digest.verify_run([packet], ledger_id=LEDGER, first_entry=3, where=HERE)
        )
        last = verdict(lambda: digest.verify_last(packet, ledger_id=LEDGER, where=HERE))
        self._look_at_last(type, packet, last)
        try:
            entry = digest.verify(packet, ledger_id=LEDGER, entry_id=3, where=HERE)
        except Corrupt:
            require(expected is None, "an entry is refused for a reason", packet)
            require(run is Refused, "a run refuses what is refused alone", packet)
            raise
        require(expected is not None, "no byte whose digest was not checked", packet)
        told = (entry.entry_id, entry.last_confirmed, entry.ledger_bytes, bytes(entry.payload))
        require(told == expected, "an entry says what stands there", told, expected)
        require(run == [entry.payload], "a run gives what is given alone", run)
        return f"entry {type.name.lower()} {'no lac' if entry.last_confirmed == -1 else 'lac'}"

    def _expected(self, type: DigestType, packet: bytes) -> tuple[int, int, int, bytes] | None:
        told = self._numbers(type, packet)
        if told is None or told[0] != 3:
            return None
        entry_id, lac, ledger_bytes, payload = told
        return entry_id, lac if lac < entry_id else -1, ledger_bytes, payload

    def _numbers(self, type: DigestType, packet: bytes) -> tuple[int, int, int, bytes] | None:
        try:
            ledger_id, entry_id, lac, ledger_bytes = unpack_from(">qqqq", packet)
        except error:
            return None
        size = _SIZES[type]
        payload = packet[32 + size :]
        if len(packet) < 32 + size or packet[32 : 32 + size] != digest_of(
            type, packet[:32] + payload
        ):
            return None
        if ledger_id != LEDGER or entry_id < 0 or lac < -1 or ledger_bytes < len(payload):
            return None
        return entry_id, lac, ledger_bytes, payload

    def _look_at_last(self, type: DigestType, packet: bytes, last: object) -> None:
        told = self._numbers(type, packet)
        if told is None or told[1] >= told[0]:
            require(last is Refused, "no LAC that is not proven", last)
        else:
            require(last == told, "the last entry says what stands there", last, told)


class LacProofs(Target):
    name = "lac"
    dictionary = Entries.dictionary

    def seeds(self) -> list[bytes]:
        return [
            bytes([index]) + _OURS[type].pack_lac(LEDGER, lac)
            for index, type in enumerate(DIGESTS)
            for lac in (-1, 0, 99)
        ]

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        raw = mutator.mutate(raw, corpus)
        if mutator.random() < 0.5 and len(raw) >= 17:
            return raw[:17] + digest_of(DIGESTS[raw[0] & 3], raw[1:17])
        return raw

    def check(self, raw: bytes) -> str:
        if not raw:
            return "nothing"
        type, proof = DIGESTS[raw[0] & 3], raw[1:]
        expected = None
        if len(proof) == 16 + _SIZES[type] and proof[16:] == digest_of(type, proof[:16]):
            ledger_id, lac = unpack_from(">qq", proof)
            expected = lac if ledger_id == LEDGER and lac >= -1 else None
        try:
            told = _OURS[type].verify_lac(proof, ledger_id=LEDGER, where=HERE)
        except Corrupt:
            require(expected is None, "a LAC is refused for a reason", proof)
            raise
        require(told == expected, "a LAC is what is proven", told, expected)
        return f"lac {type.name.lower()}"


TARGETS = (
    Frames(),
    Protobuf(),
    BinaryReplies(),
    ProtobufReplies(),
    Authentication(),
    Entries(),
    LacProofs(),
)
