"""Files of ledgers: bit flips, cuts, splices of other files and of other places of the same file.

The input is a file as a crash, a disk or a stranger left it, behind one byte that says what is
known of its end. Recovery finds a valid prefix of what was written, with all that was known to be
confirmed, or names a bad offset; it never invents an entry. The same for reading what a closed end
announces. The file stands in memory: what is fuzzed is what is made of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from struct import pack, unpack_from
from typing import Any, TypeVar

from dlog.clock import SYSTEM_CLOCK
from dlog.errors import Broken, Corrupt, FormatError
from dlog.ledger.embedded.file import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FrameWriter,
    encode_file_header,
    salt_of,
)
from dlog.ledger.embedded.nodes import EMPTY, End, Node
from dlog.ledger.embedded.reader import EmbeddedReader
from dlog.ledger.embedded.recovery import find_end
from dlog.ledger.store import LedgerSpec
from dlog.wire.crc32c import crc32c
from tests.fuzz.log_targets import done
from tests.fuzz.mutation import Mutator
from tests.fuzz.reference import Refused
from tests.fuzz.target import Target, require
from tests.fuzz.wire_targets import verdict

T = TypeVar("T")

LEDGER = 3
UID = bytes(range(100, 116))
PATH = "/nowhere/0000000003.ledger"
ENTRIES = [b"", b"first", b"second entry" * 5, b"\xd1ogf" * 8, b"x" * 7, b"seven", b"last one"]


class Image:
    """One file as it was written, and where its frames stand."""

    def __init__(
        self,
        entries: Sequence[bytes] = ENTRIES,
        *,
        ledger_id: int = LEDGER,
        uid: bytes = UID,
        lag: int = 1,
    ) -> None:
        raw = bytearray(encode_file_header(ledger_id, uid, 0))
        writer = FrameWriter(ledger_id, uid)
        self.offsets: list[int] = []
        for number, entry in enumerate(entries):
            raw += b"".join(writer.add([entry], len(entry), max(-1, number - lag)))
            self.offsets.append(writer.last_offset)
        self.raw = bytes(raw)
        self.entries = list(entries)

    def end(self, last_entry: int) -> End:
        if last_entry < 0:
            return EMPTY
        size = sum(map(len, self.entries[: last_entry + 1]))
        return End(last_entry, size, self.offsets[last_entry])


class MemoryFile:
    """As `DataFile`, without a file."""

    def __init__(self, raw: bytes, ledger_id: int = LEDGER) -> None:
        self.path = PATH
        self.ledger_id = ledger_id
        self._raw = raw

    def size(self) -> int:
        return len(self._raw)

    def next_data(self, offset: int) -> int | None:
        return offset if offset < len(self._raw) else None

    def read(self, offset: int, size: int, *, wait: bool) -> bytearray:
        if offset < 0 or offset + size >> 63:
            raise OSError(22, "Invalid argument")
        return bytearray(self._raw[offset : offset + size])

    async def run(self, step: Callable[[bool], T]) -> T:
        return step(True)

    def close(self) -> None:
        pass


@cache
def image() -> Image:
    return Image()


def _write(kind: int, raw: bytes) -> bytes:
    return bytes([kind]) + raw


class SegmentFiles(Target):
    """Byte 0: 0xff, no entry is known to be confirmed; else up to which one it is."""

    name = "segment"
    dictionary = (
        FRAME_MAGIC,
        b"DLOGLEDG",
        bytes(8),
        bytes(64),
        *(pack("<q", number) for number in (LEDGER, -1, 0, 1, 64, 128, 6)),
        *(pack("<I", number) for number in (0, 5, 64, 5_238_248, 5_238_249, 0xFFFFFFFF)),
    )
    input_bytes_max = 1 << 13
    # Read in chunks that begin with 64 KiB.
    memory_slack_bytes = 256 << 10

    def seeds(self) -> list[bytes]:
        raw = image().raw
        seeds = [_write(known, raw) for known in (0xFF, 0xFF, 0, 3, 6)]
        seeds += [_write(0xFF, raw + bytes(100)), _write(2, raw[: image().offsets[4]])]
        return [*seeds, _write(0xFF, raw[:FILE_HEADER_BYTES]), _write(0xFF, b"")]

    @cache  # noqa: B019 - targets live as long as the process
    def _strangers(self) -> list[bytes]:
        """Other files: the same entries under another id or uid, and other entries."""
        others = [b"stranger %d" % number for number in range(7)]
        return [
            Image(ledger_id=4).raw,
            Image(uid=bytes(16)).raw,
            Image(others, uid=bytes(range(16))).raw,
            Image(others, ledger_id=9).raw,
        ]

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        drawn = mutator.random()
        if drawn < 0.15:
            return raw[: mutator.below(len(raw)) + 1]
        if drawn < 0.3:  # a frame from elsewhere, where one may stand
            strangers = [image().raw, *self._strangers()]
            other = strangers[mutator.below(len(strangers))]
            begin = image().offsets[mutator.below(7)]
            at = 1 + image().offsets[mutator.below(7)]
            size = (64, 72, 128, 400)[mutator.below(4)]
            return raw[:at] + other[begin : begin + size] + raw[at + size :]
        if drawn < 0.4:  # a hole, as a disk leaves it
            at = 1 + 8 * mutator.below(len(raw) // 8 + 1)
            size = (8, 64, 512, 128)[mutator.below(4)]
            return raw[:at] + bytes(len(raw[at : at + size])) + raw[at + size :]
        if drawn < 0.5:
            return bytes([(0xFF, *range(8))[mutator.below(9)]]) + raw[1:]
        return mutator.mutate(raw, corpus)

    def check(self, raw: bytes) -> str:
        known = raw[0] if raw else 0xFF
        known = known if known < len(ENTRIES) else -1
        contents, written = raw[1:], image()
        stand = self._standing(contents)
        offset = written.offsets[known] if known >= 0 else 0
        file: Any = MemoryFile(contents)
        try:
            end = find_end(file, UID, confirmed_offset=offset, only_confirmed=False)
        except Corrupt as error:
            at = error.offset
            require(type(at) is int and 0 <= at <= max(len(contents), offset), "a place", error)
            require(not all(stand), "a file is refused for a reason", error)
            raise
        last = end.last_entry
        require(end == written.end(last), "the end is one that was written", end)
        require(last >= known, "no confirmed entry is lost", last, known)
        # What stands before a frame that is known to be confirmed is not looked at here.
        require(all(stand[max(0, known) : last + 1]), "no entry is invented", last, stand)
        # Each frame names the one before it as confirmed.
        require(True not in stand[last + 1 :][1:], "no confirmed entry is dropped", last, stand)
        require(
            not stand[last + 1 : last + 2] == [True] or not self._header_fits(contents),
            "no whole entry is dropped",
            last,
            stand,
        )
        if all(stand[: last + 1]):
            self._read(contents, end)
        return f"end {last} {known}".replace("-1", "none")

    def _header_fits(self, contents: bytes) -> bool:
        return contents[:FILE_HEADER_BYTES] == image().raw[:FILE_HEADER_BYTES]

    def _standing(self, contents: bytes) -> list[bool]:
        """Of each frame, whether it stands as it was written, where it was written."""
        written = image()
        if not self._header_fits(contents):
            return [False] * len(ENTRIES)
        bounds = [*written.offsets, len(written.raw)]
        return [contents[begin:end] == written.raw[begin:end] for begin, end in pairwise(bounds)]

    def _read(self, contents: bytes, end: End) -> None:
        entries = read_all(contents, end)
        require(entries == image().entries[: len(entries)], "entries are as written", entries)
        require(len(entries) == end.last_entry + 1, "all of them", len(entries))


class _OneLedger:
    """The metadata of a closed ledger."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def read(self, ledger_id: int, *, fresh: bool = True) -> Node:
        return self._node


def reader_of(contents: bytes, end: End | None) -> EmbeddedReader:
    node = Node(LEDGER, UID, 0, LedgerSpec(), end, 0, {})
    reader = EmbeddedReader(
        node,
        data_path=PATH,
        words_path="/nowhere/words",
        nodes=_OneLedger(node),  # type: ignore[arg-type]
        clock=SYSTEM_CLOCK,
        on_closed=lambda _: None,
    )
    reader._data = MemoryFile(contents)  # type: ignore[assignment]
    return reader


def read_all(contents: bytes, end: End) -> list[bytes]:
    """Entry by entry, in runs, as a reader of the log does."""
    reader = reader_of(contents, end)
    entries: list[bytes] = []
    while len(entries) <= end.last_entry:
        run = done(reader.read(len(entries), end.last_entry, bytes_max=1 << 16))
        require(bool(run), "a read brings an entry")
        entries += map(bytes, run)
    return entries


class ClosedFiles(SegmentFiles):
    """A reader of a file that was closed at its last entry, and damaged since. Byte 0: where it
    begins to read, and how much it asks for."""

    name = "segment-read"

    def check(self, raw: bytes) -> str:
        drawn = raw[0] if raw else 0
        first, bytes_max = drawn % len(ENTRIES), (1, 16, 1 << 16)[drawn >> 4 & 1]
        written, contents = image(), raw[1:]
        last = len(ENTRIES) - 1
        reader = reader_of(contents, written.end(last))
        try:
            entries = done(reader.read(first, last, bytes_max=bytes_max))
        except Corrupt as error:
            require(contents != written.raw, "a whole file is read", error)
            at = error.offset
            require(type(at) is int and 0 <= at < 1 << 63, "a place", error)
            raise
        told = [bytes(each) for each in entries]
        require(bool(told), "a read brings an entry")
        require(told == written.entries[first : first + len(told)], "entries as written", told)
        return f"read {first} {len(told)}"


class ForgedFiles(SegmentFiles):
    """Frames whose checksums are right and whose numbers are not, as no damage makes them: nobody
    is protected from that, but it ends, with an entry or an error of ours. Byte 0: where reading
    begins."""

    name = "segment-forged"
    refusals = (Corrupt, FormatError, Broken)

    def mutate(self, mutator: Mutator, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        data = bytearray(mutator.mutate(raw, corpus) if mutator.random() < 0.3 else raw)
        for _ in range(1 + mutator.below(3)):
            at = 1 + image().offsets[mutator.below(len(ENTRIES))]
            if len(data) < at + FRAME_HEADER_BYTES:
                continue
            word = at + 8 + 8 * mutator.below(7)
            number = _PLACES[mutator.below(len(_PLACES))] + mutator.below(3) - 1
            data[word : word + 8] = pack("<Q", number % (1 << 64))
            covered = bytes(data[at + 8 : at + 64]) + pack("<Q", at - 1)
            data[at + 4 : at + 8] = pack("<I", crc32c(covered, salt_of(UID)))
        return bytes(data)

    def check(self, raw: bytes) -> str:
        first, contents = (raw[0] if raw else 0) % len(ENTRIES), raw[1:]
        file: Any = MemoryFile(contents)
        told = verdict(lambda: find_end(file, UID, confirmed_offset=0, only_confirmed=False))
        if isinstance(told, End):
            require(told.last_entry < len(contents) // FRAME_HEADER_BYTES, "an end", told)
        reader = reader_of(contents, image().end(len(ENTRIES) - 1))
        entries = done(reader.read(first, len(ENTRIES) - 1, bytes_max=1 << 16))
        require(bool(entries), "a read brings an entry")
        return f"read {first} {len(entries)}"


_PLACES: tuple[int, ...] = (
    0,
    1,
    2,
    5,
    8,
    64,
    128,
    1 << 20,
    1 << 32,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
_PLACES += tuple(image().offsets)


class _Words:
    """As `Words`, without a map."""

    def __init__(self, published: int) -> None:
        self.published_offset = published
        self.ending = self.deleting = self.fenced = False


class WordsFiles(Target):
    """What the words say of a whole file that is open: where its newest confirmed and its newest
    published entry begin, and whether the disk failed. Any other place is damage, and is named."""

    name = "words"
    dictionary = (
        *(pack("<q", n) for n in (0, -1, 8, 63, 64, 1 << 40, (1 << 63) - 1, -(1 << 63))),
        *(pack("<q", offset) for offset in image().offsets),
        pack("<q", len(image().raw)),
        pack("<q", len(image().raw) - 8),
    )
    memory_slack_bytes = 256 << 10

    def seeds(self) -> list[bytes]:
        offsets = image().offsets
        return [
            pack("<qqB", offsets[3], offsets[5], 0),
            pack("<qqB", offsets[6], offsets[6], 1),
            pack("<qqB", 0, 0, 0),
        ]

    def check(self, raw: bytes) -> str:
        if len(raw) < 17:
            return "no words"
        published, confirmed, failed = unpack_from("<qq?", raw)
        told = verdict(lambda: self._end(confirmed, failed))
        known = {0: -1} | {offset: entry for entry, offset in enumerate(image().offsets)}
        if confirmed not in known:
            require(told is Refused, "a place that is none is no end", confirmed, told)
        else:
            last = known[confirmed] if failed else len(ENTRIES) - 1
            require(told == image().end(last), "the end that is known", confirmed, told)
        reader = reader_of(image().raw, None)
        reader._words = _Words(published)  # type: ignore[assignment]
        last_readable = done(reader.last_readable())
        require(last_readable == known.get(published), "what is published", last_readable)
        return f"published {min(1, last_readable + 1)} {'kept' if told is not Refused else 'lost'}"

    def _end(self, confirmed: int, failed: bool) -> End:
        file: Any = MemoryFile(image().raw)
        return find_end(file, UID, confirmed_offset=confirmed, only_confirmed=failed)


TARGETS = (SegmentFiles(), ClosedFiles(), ForgedFiles(), WordsFiles())
