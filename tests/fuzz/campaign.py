"""The loop: draw an input, let the target judge it, keep what is new, report.

Three things are watched for every input: that nothing but a documented error comes out, that the
target's own oracle holds, and that no input takes longer than 50 ms for each KiB of it. Time is
read once a block; only where a block took longer than one of its inputs may are they timed again,
one by one. It is the time of the processor, so that a busy machine is no slow decoder. Memory is
measured on a sample.

New is what was never seen at the same place: an input is kept in the corpus when it was refused at
a line, or accepted with a word, that no input before led to. That costs nothing and finds its way
through most decoders. A small share runs under `sys.settrace`, which tells new lines apart even
where the verdict is the same.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any

from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Finding, Target

BLOCK = 256
SECONDS_PER_KIB_MAX = 0.050
TRIES = 3
CORPUS_MAX = 2_000
TRACED_EVERY = 64  # blocks; of such a one, this many inputs are traced:
TRACED_INPUTS = 8
STRETCHED_EVERY = 256  # blocks; with such a one goes an input with a piece repeated up to this:
STRETCHED_BYTES = 64 << 10
MEASURED_EVERY = 8  # blocks; of such a one, one input's memory is measured
FINDINGS_MAX = 20  # of one target; the first of each kind


@dataclass
class Found:
    """A finding, with the input that shows it."""

    raw: bytes
    told: str
    where: str

    def __str__(self) -> str:
        return f"{self.told}\n    at {self.where}\n    input {self.raw[:400].hex()}"


@dataclass
class Report:
    target: str
    executions: int = 0
    traced: int = 0
    seconds: float = 0.0
    verdicts: Counter[str] = field(default_factory=Counter)
    corpus: int = 0
    places: int = 0
    lines: int = 0
    peak_bytes: int = 0  # the most memory over an input that was measured
    slowest_s_per_kib: float = 0.0
    findings: dict[str, Found] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.executions / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        accepted = sum(n for word, n in self.verdicts.items() if word.islower())
        return (
            f"{self.target:<18} {self.executions:>10,} executions {self.rate:>8,.0f}/s  "
            f"{accepted / max(1, self.executions):>4.0%} accepted  corpus {self.corpus:>5,}  "
            f"places {self.places:>3}  lines {self.lines:>4}  findings {len(self.findings)}"
        )


class Campaign:
    """One target, one seed."""

    def __init__(self, target: Target, seed: int = 0) -> None:
        self.target = target
        chance = random.Random(f"{target.name} {seed}")
        self._random = chance.random
        self._mutator = Mutator(chance, target.dictionary)
        self.corpus: list[bytes] = list(dict.fromkeys(target.seeds()))
        self._places: set[object] = set()
        self._lines: set[tuple[CodeType, int, int]] = set()
        self._blocks = 0
        self.report = Report(target.name)
        for raw in self.corpus:
            self._judge(raw)

    def run(self, *, executions: int | None = None, seconds: float | None = None) -> Report:
        """Until so many, or for so long; whichever comes first."""
        report, began = self.report, time.perf_counter()
        end = None if executions is None else report.executions + executions
        # Rates are told in processor time of this process: others use the machine, too.
        busy = time.process_time()
        while len(report.findings) < FINDINGS_MAX:
            if end is not None and report.executions >= end:
                break
            if seconds is not None and time.perf_counter() - began >= seconds:
                break
            self.block(BLOCK if end is None else min(BLOCK, end - report.executions))
        report.seconds += time.process_time() - busy
        report.corpus, report.places, report.lines = (
            len(self.corpus),
            len(self._places),
            len(self._lines),
        )
        return report

    def block(self, count: int) -> None:
        inputs = self.inputs(count)
        self._blocks += 1
        if self._blocks % TRACED_EVERY == 1:
            for raw in inputs[:TRACED_INPUTS]:
                self._trace(raw)
        judge = self._judge
        began = time.process_time()
        for raw in inputs:
            judge(raw)
        took = time.process_time() - began
        # The shortest allowance of any input is that of one KiB: shorter ones are rounded up.
        if took > SECONDS_PER_KIB_MAX:
            self._look_for_slow(inputs)
        if self._blocks % STRETCHED_EVERY == 1:
            self._look_for_slow([self._stretched(inputs[0])])
        if self._blocks % MEASURED_EVERY == 1:
            self._measure(inputs[0])
        self.report.executions += count

    def inputs(self, count: int) -> list[bytes]:
        mutate, bytes_max = self.target.mutate, self.target.input_bytes_max
        corpus, random, mutator = self.corpus, self._random, self._mutator
        return [
            mutate(mutator, corpus[int(random() * len(corpus))], corpus)[:bytes_max]
            for _ in range(count)
        ]

    def _judge(self, raw: bytes) -> None:
        target = self.target
        try:
            place: object = target.check(raw)
            word = place
        except target.refusals as refused:
            trace = refused.__traceback__
            assert trace is not None
            while trace.tb_next is not None:
                trace = trace.tb_next
            word = type(refused).__name__
            place = trace.tb_frame.f_code, trace.tb_lineno
        except Exception as error:
            self._found(raw, error)
            return
        self.report.verdicts[word] += 1  # type: ignore[index]
        if place not in self._places:
            self._places.add(place)
            self._keep(raw)

    def _keep(self, raw: bytes) -> None:
        if len(self.corpus) < CORPUS_MAX:
            self.corpus.append(raw[: self.target.input_bytes_max])

    def _found(self, raw: bytes, error: BaseException) -> None:
        where = _innermost(error.__traceback__)
        kind = f"{type(error).__name__} {where}"
        if isinstance(error, Finding):
            kind = str(error).partition(":")[0]
        if kind not in self.report.findings:
            told = "".join(traceback.format_exception_only(error)).strip()[:1000]
            self.report.findings[kind] = Found(raw, told, where)

    def _stretched(self, raw: bytes) -> bytes:
        """Long inputs show what takes more than its share: most are short, for speed."""
        begin = int(self._random() * (len(raw) + 1))
        end = min(len(raw), begin + 1 + int(self._random() * 40))
        piece = raw[begin:end] or b"\0"
        long = raw[:begin] + piece * (STRETCHED_BYTES // len(piece)) + raw[end:]
        self._judge(long)
        return long

    def _look_for_slow(self, inputs: list[bytes]) -> None:
        for raw in inputs:
            if (took := self._seconds(raw)) <= self._allowed_s(raw):
                continue
            took = min(took, *(self._seconds(raw) for _ in range(TRIES - 1)))
            per_kib = took / max(1.0, len(raw) / 1024)
            self.report.slowest_s_per_kib = max(self.report.slowest_s_per_kib, per_kib)
            if took > self._allowed_s(raw):
                self._found(raw, Finding(f"slow: {took * 1000:.0f} ms for {len(raw)} bytes"))

    def _allowed_s(self, raw: bytes) -> float:
        return SECONDS_PER_KIB_MAX * max(1.0, len(raw) / 1024)

    def _seconds(self, raw: bytes) -> float:
        began = time.process_time()
        try:
            self.target.check(raw)
        except Exception:
            pass  # judged before
        return time.process_time() - began

    def _measure(self, raw: bytes) -> None:
        """A second call is measured: what the first one loads or caches is not the input's."""
        self._seconds(raw)
        tracemalloc.start()
        try:
            self._seconds(raw)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        self.report.peak_bytes = max(self.report.peak_bytes, peak)
        allowed = self.target.memory_factor * len(raw) + self.target.memory_slack_bytes
        if peak > allowed:
            self._found(raw, Finding(f"memory: {peak} bytes for an input of {len(raw)}"))

    def _trace(self, raw: bytes) -> None:
        """The lines of the product that an input leads through, with how often, roughly: once,
        twice, more."""
        counts: Counter[tuple[CodeType, int]] = Counter()

        def on_line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                counts[frame.f_code, frame.f_lineno] += 1
            return on_line

        def on_call(frame: FrameType, event: str, _: Any) -> Any:
            return on_line if "/dlog/" in frame.f_code.co_filename else None

        before = sys.gettrace()
        sys.settrace(on_call)
        try:
            self._seconds(raw)
        finally:
            sys.settrace(before)
        self.report.traced += 1
        seen = {(code, line, min(3, count)) for (code, line), count in counts.items()}
        if not seen <= self._lines:
            self._lines |= seen
            self._keep(raw)


def _innermost(trace: TracebackType | None) -> str:
    """The last line of the product that an error went through."""
    where = "nowhere"
    for frame in traceback.extract_tb(trace):
        if "/dlog/" in frame.filename or where == "nowhere":
            where = f"{frame.filename.rpartition('/dlog/')[2]}:{frame.lineno}"
    return where


def shrunk(raw: bytes, fails: Callable[[bytes], bool], tries: int = 3_000) -> bytes:
    """A shorter input that fails still: pieces taken out, bytes set to zero."""
    left = tries

    def smaller(raw: bytes) -> Iterator[bytes]:
        size = max(1, len(raw) // 2)
        while True:
            for at in range(0, len(raw), size):
                yield raw[:at] + raw[at + size :]
            if size == 1:
                break
            size //= 2
        for at in range(len(raw)):
            if raw[at]:
                yield raw[:at] + b"\0" + raw[at + 1 :]

    progress = True
    while progress and left > 0:
        progress = False
        for each in smaller(raw):
            left -= 1
            if left <= 0:
                break
            if fails(each):
                raw, progress = each, True
                break
    return raw
