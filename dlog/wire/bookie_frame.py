"""The byte stream of a bookie connection, cut into frames: a 32-bit length, then that many bytes.

`feed` takes what a read gave, in any cuts; `next_run` hands out whole frames until it returns None.
A *run* is one frame, or many that look alike: equally long and beginning with the same eight bytes.
A bookie coalesces its answers to adds, so one read often is a single run of hundreds of them, and
one look at its columns replaces one look at each frame.

Frames inside one read are views of it, without a copy; a view keeps the whole read alive. A frame
that was cut is gathered in a buffer of its own, which grows with the bytes that came, never with
the length that was claimed; that length is compared with the cap before anything else. After bytes
that cannot be a frame the stream has no next boundary: the splitter raises the same error for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from dlog.errors import FormatError, check
from dlog.limits import BOOKIE_REPLY_BYTES_MAX

LENGTH_BYTES: Final = 4
BODY_BYTES_MIN: Final = 4  # no frame of either protocol is shorter
# Of each frame of a run: its length and the eight bytes that a v2 answer has for what it answers
# and for its code.
ALIKE_BYTES: Final = 12

_LENGTH = Struct(">i")


class FrameRun(NamedTuple):
    """`frame_count` whole frames, back to back and with their lengths, each `frame_bytes` long; all
    begin with the same `ALIKE_BYTES` bytes."""

    view: memoryview
    frame_bytes: int
    frame_count: int

    def bodies(self) -> Iterator[memoryview]:
        """The frames one by one, without their lengths."""
        view, step = self.view, self.frame_bytes
        for at in range(0, self.frame_count * step, step):
            yield view[at + LENGTH_BYTES : at + step]


class FrameSplitter:
    """One per connection and direction. Not thread-safe."""

    __slots__ = ("_at", "_body_bytes_max", "_broken", "_chunk", "_cut", "_mixed", "_view", "_where")

    def __init__(self, where: str, *, body_bytes_max: int = BOOKIE_REPLY_BYTES_MAX) -> None:
        self._where = where
        self._body_bytes_max = body_bytes_max
        self._chunk = b""
        self._view = memoryview(b"")
        self._at = 0  # up to here the chunk was handed out
        self._mixed = False  # the chunk is known to hold more than one run
        self._cut = bytearray()  # the beginning of a frame that the chunks so far do not end
        self._broken: FormatError | None = None

    @property
    def waiting_bytes(self) -> int:
        """What is held for a frame that has not come whole."""
        return len(self._cut) + len(self._chunk) - self._at

    def limit_bodies(self, body_bytes_max: int) -> None:
        """From the next frame on: small while a peer has to prove itself, full after."""
        self._body_bytes_max = body_bytes_max

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the stream, once `next_run` returned None for those before."""
        if self._broken is not None:
            return
        check(self._at == len(self._chunk), "a splitter is drained before it is fed")
        self._chunk = chunk
        self._view = memoryview(chunk)
        self._at = 0
        self._mixed = False

    def next_run(self) -> FrameRun | None:
        """The next frames, or None: more bytes are needed. `FormatError` where a length cannot be,
        now and whenever asked again."""
        if self._broken is not None:
            raise self._broken.again()
        run = self._mended() if self._cut else self._whole()
        if run is None:
            self._set_aside()
        return run

    def _whole(self) -> FrameRun | None:
        """What stands whole in the chunk, without a copy."""
        chunk, at = self._chunk, self._at
        there = len(chunk) - at
        if there < LENGTH_BYTES:
            return None
        frame_bytes = self._frame_bytes(chunk, at)
        if frame_bytes > there:
            return None
        count = self._count_alike(chunk, at, frame_bytes)
        self._at = end = at + count * frame_bytes
        return FrameRun(self._view[at:end], frame_bytes, count)

    def _mended(self) -> FrameRun | None:
        """The cut frame, if the chunk ends it."""
        cut = self._cut
        self._take(LENGTH_BYTES - len(cut))
        if len(cut) < LENGTH_BYTES:
            return None
        frame_bytes = self._frame_bytes(cut, 0)
        self._take(frame_bytes - len(cut))
        if len(cut) < frame_bytes:
            return None
        self._cut = bytearray()  # the other one now belongs to whoever holds the frame
        return FrameRun(memoryview(cut), frame_bytes, 1)

    def _take(self, wanted: int) -> None:
        """Moves up to `wanted` bytes, if it is any, from the chunk to the cut frame."""
        end = min(self._at + max(wanted, 0), len(self._chunk))
        self._cut += self._view[self._at : end]
        self._at = end

    def _set_aside(self) -> None:
        """Keeps a copy of the rest of the chunk and lets go of the chunk."""
        self._cut += self._view[self._at :]
        self._chunk = b""
        self._view = memoryview(b"")
        self._at = 0

    def _frame_bytes(self, buffer: bytes | bytearray, at: int) -> int:
        (body_bytes,) = _LENGTH.unpack_from(buffer, at)
        if not BODY_BYTES_MIN <= body_bytes <= self._body_bytes_max:
            self._at = len(self._chunk)
            self._set_aside()
            self._cut = bytearray()
            self._broken = FormatError(
                f"{self._where}: a frame of {body_bytes} bytes; one has {BODY_BYTES_MIN} to "
                f"{self._body_bytes_max}"
            )
            raise self._broken.again()
        return LENGTH_BYTES + int(body_bytes)

    def _count_alike(self, chunk: bytes, at: int, frame_bytes: int) -> int:
        """How many frames from `at` on are one run."""
        head = chunk[at : at + ALIKE_BYTES]
        count = (len(chunk) - at) // frame_bytes
        # The next frame may look alike and not have come whole.
        if count == 1 or frame_bytes < ALIKE_BYTES or not chunk.startswith(head, at + frame_bytes):
            return 1
        if not self._mixed:
            # The usual case, at an eighth of the price: all that is left, column by column. Tried
            # once per chunk, or many short runs would each look at everything behind them.
            end = at + count * frame_bytes
            for column in range(ALIKE_BYTES):
                if chunk[at + column : end : frame_bytes] != head[column : column + 1] * count:
                    self._mixed = True
                    break
            else:
                return count
        alike = 2
        while alike < count and chunk.startswith(head, at + alike * frame_bytes):
            alike += 1
        return alike
