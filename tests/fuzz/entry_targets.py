"""The entry format: batches of messages, control entries, and the codecs with their bombs."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache
from struct import pack, pack_into

import lz4.block
import zstandard

from dlog.errors import Corrupt, FormatError, Unsupported
from dlog.limits import DECOMPRESS_RATIO_MAX, LEDGER_ENTRY_BYTES_MAX
from dlog.wire import columns
from dlog.wire.batch import (
    Birth,
    Codec,
    ControlKind,
    ProducerRow,
    ProducerTable,
    Seam,
    decode,
    decode_header,
)
from dlog.wire.compress import decompress
from dlog.wire.decode import Entry
from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Target, must, require
from tests.unit.wire.samples import (
    FULL,
    Refused,
    all_of,
    control_of,
    entry_of,
    reference,
    small_entries,
)

HERE = "the fuzzed entry"


@cache
def _seeds() -> list[bytes]:
    many: list[bytes | None] = [b"%d" % number * (number % 4) for number in range(30)]
    return [
        *small_entries().values(),
        entry_of(many),
        entry_of(many, keys=[each or None for each in many], event_times_us=[None, 5] * 15),
        entry_of([b"a"] * 140, timestamps_us=list(range(140))),  # long enough for numpy
        entry_of(**{**FULL, "codec": Codec.ZSTD}),
        entry_of([b"x" * 300, None], codec=Codec.LZ4, keys=[b"k" * 90, None]),
        control_of(ControlKind.SEAM, b"x" * 40),
    ]


class Batches(Target):
    """A decoder written from docs/FORMATS.md alone takes and refuses the same entries and reads the
    same out of them; so do numpy and the standard library."""

    name = "batch"
    refusals = (Corrupt, FormatError, Unsupported)
    dictionary = (
        b"\xd1",
        *(pack("<I", n) for n in (0, 1, 2, 3, 7, 8, 40, 56, 140, 0x7FFFFFFF, 0xFFFFFFFF)),
        *(pack("<H", 1 << bit) for bit in range(16)),
        *(pack("<q", n) for n in (-1, 0, 10, 12, (1 << 63) - 1, -(1 << 63))),
    )
    # The columns as Python lists; a bomb is bounded by its own cap.
    memory_factor = 64.0
    memory_slack_bytes = 256 << 10

    def seeds(self) -> list[bytes]:
        return _seeds()

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        drawn = mutator.random()
        if drawn < 0.3 and len(raw) > 40:
            # The body alone, and then sizes that are right: what is behind the header is reached.
            data = bytearray(
                raw[:40] + mutator.mutate(raw[40:], [each[40:] for each in corpus[:8]])
            )
            self._set_sizes(data)
            return bytes(data)
        mutated = mutator.mutate(raw, corpus)
        if drawn < 0.6 and len(mutated) > 40:
            data = bytearray(mutated)
            self._set_sizes(data)
            return bytes(data)
        return mutated

    def _set_sizes(self, data: bytearray) -> None:
        size = len(data) - (data[3] if data[3] in (40, 56) else 40)
        pack_into("<I", data, 24, max(0, size))
        if not data[1] & 3:
            pack_into("<I", data, 28, max(0, size))

    def check(self, raw: bytes) -> str:
        drawn = zlib.crc32(raw)
        deeply = drawn & 15 == 0
        try:
            entry = decode(raw, where=HERE)
        except self.refusals as error:
            require(str(error).startswith(HERE), "an error says where", error)
            if deeply:
                require(self._reference(raw) is None, "an entry is refused for a reason", raw)
            raise
        told = all_of(entry)
        self._look_at(entry, raw)
        if deeply or drawn & 3 == 1:
            expected = self._reference(raw)
            if not entry.attributes >> 14:  # the other decoder ignores nothing
                require(told == expected, "an entry says what stands there", told, expected)
        if deeply:
            self._look_at_ways(raw, told)
            if entry.control is None:
                self._look_at_arrow(entry)
        codec = entry.codec.name.lower()
        if entry.control is not None:
            return f"control {entry.control.name.lower()}"
        return f"batch {codec} {entry.attributes >> 3 & 31} {min(3, entry.count)}"

    def _reference(self, raw: bytes) -> dict[str, object] | None:
        try:
            return reference(raw)
        except (Refused, Corrupt):
            return None

    def _look_at(self, entry: Entry, raw: bytes) -> None:
        header = must(lambda: decode_header(raw, where=HERE), "an entry has a header")
        require(
            (header.count, header.first_seq, header.next_seq)
            == (entry.count, entry.first_seq, entry.next_seq),
            "a header says the same as the entry",
        )
        if entry.control is None:
            values = entry.values()
            require(len(values) == entry.count, "as many values as it says", len(values))
            total = sum(len(each) for each in values if each)
            require(total <= entry.raw_bytes, "no byte comes from elsewhere", total)
            times = entry.timestamps_us()
            require(times == sorted(times) and len(times) == entry.count, "times never fall", times)

    def _look_at_ways(self, raw: bytes, told: dict[str, object]) -> None:
        for count_min in (0, 1 << 30):
            before, columns.NUMPY_COUNT_MIN = columns.NUMPY_COUNT_MIN, count_min
            try:
                again = must(lambda: all_of(decode(raw, where=HERE)), "another way")
            finally:
                columns.NUMPY_COUNT_MIN = before
            require(again == told, "numpy and the standard library say the same", again, told)

    def _look_at_arrow(self, entry: Entry) -> None:
        batch = entry.to_arrow()
        batch.validate(full=True)  # pyarrow.ArrowInvalid, which nothing documents
        require(batch["value"].to_pylist() == entry.values(), "Arrow says the same", batch)


def _raw_entry(codec: Codec, stored: bytes, raw_bytes: int, count: int = 1) -> bytes:
    head = pack("<BHBIqqIIq", 0xD1, codec, 40, count, 0, 0, len(stored), raw_bytes, 0)
    return head + stored


@cache
def _bombs() -> list[bytes]:
    zeros = bytes(LEDGER_ENTRY_BYTES_MAX)
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=True)
    large_zstd = compressor.compress(zeros)
    unsized = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(zeros[:9000])
    large_lz4 = lz4.block.compress(zeros[:400_000], store_size=False)
    tiny_offsets = pack("<I", 0) * 1001
    tiny = tiny_offsets + bytes(-len(tiny_offsets) % 8)
    return [
        _raw_entry(Codec.ZSTD, large_zstd, len(zeros)),
        _raw_entry(Codec.ZSTD, large_zstd, 4096),
        _raw_entry(Codec.ZSTD, unsized, 9000),
        _raw_entry(Codec.ZSTD, compressor.compress(large_zstd), len(large_zstd)),
        _raw_entry(Codec.ZSTD, b"\x50\x2a\x4d\x18\x08\x00\x00\x00" + bytes(8), 8),
        _raw_entry(Codec.LZ4, large_lz4, 400_000),
        _raw_entry(Codec.LZ4, large_lz4, 1000),
        _raw_entry(Codec.LZ4, b"", 0),
        _raw_entry(Codec.ZSTD, compressor.compress(tiny), len(tiny), 1000),
        _raw_entry(Codec.LZ4, lz4.block.compress(tiny, store_size=False), len(tiny), 1000),
    ]


class Codecs(Target):
    """Bombs and lies: what comes out is what the header says, within the cap and the ratio, or
    nothing does."""

    name = "codec"
    refusals = (Corrupt, FormatError, Unsupported)
    dictionary = (
        b"\x28\xb5\x2f\xfd",
        b"\x50\x2a\x4d\x18",
        b"\xff" * 16,
        b"\x0f" + b"\xff" * 8,
        *(pack("<I", n) for n in (0, 8, 4096, LEDGER_ENTRY_BYTES_MAX, 1 << 30, 0xFFFFFFFF)),
    )
    memory_factor = float(DECOMPRESS_RATIO_MAX * 12)  # by its cap: bytes, and lists of them
    memory_slack_bytes = 256 << 10

    def seeds(self) -> list[bytes]:
        return [*(raw for raw in _seeds() if raw[1] & 3), *_bombs()]

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        data = bytearray(mutator.mutate(raw, corpus))
        if mutator.random() < 0.8 and len(data) >= 40:
            data[0:4] = b"\xd1" + bytes([1 + (data[1] & 1), 0, 40])
            pack_into("<I", data, 24, len(data) - 40)
        return bytes(data)

    def check(self, raw: bytes) -> str:
        if len(raw) < 40 or raw[1] & 3 not in (1, 2):
            return "no codec"
        codec, body = Codec(raw[1] & 3), raw[40:]
        raw_bytes = int.from_bytes(raw[28:32], "little")
        try:
            out = decompress(codec, body, raw_bytes, where=HERE)
        except Corrupt:
            with_header = None
            try:
                with_header = decode(raw, where=HERE)
            except self.refusals:
                pass
            if raw[3] == 40:
                require(with_header is None, "a body that is refused is no entry")
            raise
        require(len(out) == raw_bytes, "as many bytes as it says", len(out), raw_bytes)
        require(len(out) <= LEDGER_ENTRY_BYTES_MAX, "no more than an entry may have", len(out))
        require(len(out) <= len(body) * DECOMPRESS_RATIO_MAX, "no bomb", len(out), len(body))
        decode(raw, where=HERE)
        return f"body {codec.name.lower()}"


class Controls(Target):
    """Births, seams and tables of producers: what is read can be written, and is the same then."""

    name = "control"
    dictionary = (
        b'"log_uid":',
        b'"number":',
        b"null",
        b"true",
        b"-1",
        b"9223372036854775808",
        b"1e5",
        b"NaN",
        b'"\\ud800"',
        b"[" * 2000,
        b'{"a":' * 700,
        b'"segment"',
        b'"standby"',
        b"\xed\xa0\x80",
        b"9" * 4400,
    )
    memory_factor = 64.0  # JSON as Python objects

    def seeds(self) -> list[bytes]:
        return [
            b"\0" + Birth("uid", "segment", 3, 7, "token").to_bytes(),
            b"\0" + Birth("uid", "standby", None, None, "token").to_bytes(),
            b"\1" + Seam(-1, -1, 0, 1, 1, "uid").to_bytes(),
            b"\1" + Seam(12, 99, 1 << 40, 8, 3, "größe").to_bytes(),
            b"\1" + Seam(12, 99, 1, 8, 3, "u").to_bytes()[:-1] + b',"later":[1,{"a":null}]}',
            b"\2" + ProducerTable().to_bytes(),
            b"\2" + ProducerTable((ProducerRow(3, 1000, 12, 5, 0),), forgot=True).to_bytes(),
            b"\2" + ProducerTable(tuple(ProducerRow(i, i, i, i, i) for i in range(9))).to_bytes(),
        ]

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        if raw[:1] != b"\2" and mutator.random() < 0.5:
            return raw[:1] + mutator.mutate_json(raw[1:])
        return mutator.mutate(raw, corpus)

    def check(self, raw: bytes) -> str:
        if raw[:1] == b"\2":
            return self._check_table(raw[1:])
        kind = Seam if raw[:1] == b"\1" else Birth
        told = kind.from_bytes(raw[1:], where=HERE)
        again = must(lambda: kind.from_bytes(told.to_bytes(), where=HERE), "there and back")
        require(again == told, "there and back", told)
        if isinstance(told, Birth):
            numbers = [told.number, told.epoch]
            require((told.role == "segment") == (None not in numbers), "numbers of a segment", told)
            return f"birth {told.role}"
        numbers = [told.predecessor_ledger + 1, told.predecessor_last + 1, told.base_seq]
        require(min(n for n in numbers if n is not None) >= 0, "numbers count from 0", told)
        return "seam"

    def _check_table(self, raw: bytes) -> str:
        table = ProducerTable.from_bytes(raw, where=HERE)
        again = ProducerTable.from_bytes(table.to_bytes(), where=HERE)
        require(again == table, "there and back", table)
        ids = {row.producer_id for row in table.rows}
        require(len(ids) == len(table.rows), "a producer stands in it once", table)
        require(all(min(row) >= 0 for row in table.rows), "numbers count from 0", table)
        return f"producers {min(len(ids), 3)} {table.forgot}"


TARGETS = (Batches(), Codecs(), Controls())
