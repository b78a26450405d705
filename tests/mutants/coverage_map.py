"""The coverage map: which test ran which lines of which module, and how long each test took.

It is one SQLite file. A module is stored with its text as it was when it was traced, so that a
line of the module as it is now can be looked up although lines moved since.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.tiers import TIERS

_SHAPE = 2  # of the tables; a map of another shape is made anew
_TABLES = """
CREATE TABLE IF NOT EXISTS sources
    (id INTEGER PRIMARY KEY, path TEXT, digest TEXT, text BLOB, UNIQUE (path, digest));
CREATE TABLE IF NOT EXISTS test_files
    (id INTEGER PRIMARY KEY, path TEXT UNIQUE, digest TEXT, tier TEXT, complete INTEGER);
CREATE TABLE IF NOT EXISTS tests
    (id INTEGER PRIMARY KEY, file INTEGER, name TEXT UNIQUE, seconds REAL, passed INTEGER,
     tier TEXT);
CREATE TABLE IF NOT EXISTS spans (id INTEGER PRIMARY KEY, bits BLOB UNIQUE);
CREATE TABLE IF NOT EXISTS touched
    (source INTEGER, test INTEGER, span INTEGER, PRIMARY KEY (source, test)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS touched_by ON touched (test);
CREATE INDEX IF NOT EXISTS tests_of ON tests (file);
"""


@dataclass(frozen=True, slots=True)
class MappedTest:
    """A test as pytest names it, its seconds under the tracer, and how many modules it touches."""

    name: str
    seconds: float
    passed: bool
    breadth: int
    tier: str = TIERS[0]

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]

    @property
    def function(self) -> str:
        """The name without its parameters."""
        return self.name.partition("[")[0]


@dataclass(frozen=True, slots=True)
class TracedTest:
    name: str
    seconds: float
    passed: bool
    lines: Mapping[str, frozenset[int]]  # by module path
    tier: str = TIERS[0]


def tiers_up_to(tier: str) -> tuple[str, ...]:
    return TIERS[: TIERS.index(tier) + 1]


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def to_bits(lines: Iterable[int]) -> bytes:
    number = sum(1 << line for line in set(lines))
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


def to_lines(bits: bytes) -> set[int]:
    return {
        8 * place + bit for place, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1
    }


class CoverageMap:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, timeout=60, check_same_thread=False)
        if self._db.execute("PRAGMA user_version").fetchone() != (_SHAPE,):
            tables = "sources test_files tests spans touched".split()
            self._db.executescript("".join(f"DROP TABLE IF EXISTS {name};" for name in tables))
            self._db.execute(f"PRAGMA user_version = {_SHAPE}")
        self._db.executescript(_TABLES)
        self._span = functools.lru_cache(100_000)(self._new_span)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._db:
            yield

    def complete_files(self, tier: str = TIERS[0]) -> dict[str, str]:
        """Each test file whose tests of this tier are all mapped, with the digest of its text."""
        rows = self._db.execute("SELECT path, digest, tier FROM test_files WHERE complete")
        return {path: digest for path, digest, mapped in rows if tier in tiers_up_to(mapped)}

    def forget_file(self, path: str) -> None:
        with self._db:
            mine = "SELECT id FROM tests WHERE file = (SELECT id FROM test_files WHERE path = ?)"
            self._db.execute(f"DELETE FROM touched WHERE test IN ({mine})", (path,))
            self._db.execute(f"DELETE FROM tests WHERE id IN ({mine})", (path,))
            self._db.execute("DELETE FROM test_files WHERE path = ?", (path,))

    def store_file(
        self,
        root: Path,
        path: str,
        tests: Iterable[TracedTest],
        *,
        complete: bool,
        tier: str = TIERS[-1],
    ) -> None:
        """Replace what is known of a test file by its tests up to this tier."""
        self.forget_file(path)
        with self._db:
            file = self._db.execute(
                "INSERT INTO test_files (path, digest, tier, complete) VALUES (?, ?, ?, ?)",
                (path, digest((root / path).read_bytes()), tier, complete),
            ).lastrowid
            for test in tests:
                number = self._db.execute(
                    "INSERT OR REPLACE INTO tests (file, name, seconds, passed, tier)"
                    " VALUES (?, ?, ?, ?, ?)",
                    (file, test.name, test.seconds, test.passed, test.tier),
                ).lastrowid
                self._db.executemany(
                    "INSERT OR REPLACE INTO touched VALUES (?, ?, ?)",
                    [
                        (self._source(root, module), number, self._span(to_bits(lines)))
                        for module, lines in test.lines.items()
                        if lines
                    ],
                )

    def tests_of(self, path: str, text: str, lines: Iterable[int]) -> list[MappedTest]:
        """The tests that ran one of these lines of a module, numbered as in `text`."""
        wanted = set(lines)
        found: set[int] = set()
        for source, then in self._versions(path):
            moved = then_lines(then, text, wanted)
            for test, bits in self._db.execute(
                "SELECT test, bits FROM touched JOIN spans ON span = spans.id WHERE source = ?",
                (source,),
            ):
                number = int.from_bytes(bits, "little")
                if any(number >> line & 1 for line in moved):
                    found.add(test)
        return [self._tests[number] for number in found if number in self._tests]

    def tests_in(self, folder: str) -> list[MappedTest]:
        return [test for test in self._tests.values() if test.name.startswith(folder)]

    @functools.cached_property
    def _tests(self) -> dict[int, MappedTest]:
        breadths = dict(self._db.execute("SELECT test, count(*) FROM touched GROUP BY test"))
        rows = self._db.execute("SELECT id, name, seconds, passed, tier FROM tests")
        return {
            number: MappedTest(name, seconds, bool(passed), breadths.get(number, 0), tier)
            for number, name, seconds, passed, tier in rows
        }

    def _versions(self, path: str) -> list[tuple[int, str]]:
        rows = self._db.execute("SELECT id, text FROM sources WHERE path = ?", (path,))
        return [(number, zlib.decompress(text).decode()) for number, text in rows]

    def _source(self, root: Path, path: str) -> int:
        return self._new_source(path, (root / path).read_bytes())

    def _new_source(self, path: str, text: bytes) -> int:
        key = (path, digest(text))
        known = self._db.execute("SELECT id FROM sources WHERE (path, digest) = (?, ?)", key)
        for (number,) in known:
            return int(number)
        row = (*key, zlib.compress(text))
        added = self._db.execute("INSERT INTO sources (path, digest, text) VALUES (?, ?, ?)", row)
        return int(added.lastrowid or 0)

    def _new_span(self, bits: bytes) -> int:
        for (number,) in self._db.execute("SELECT id FROM spans WHERE bits = ?", (bits,)):
            return int(number)
        added = self._db.execute("INSERT INTO spans (bits) VALUES (?)", (bits,))
        return int(added.lastrowid or 0)


def then_lines(then: str, now: str, lines: set[int]) -> set[int]:
    """Where these lines of `now` stood in `then`. A new line stands for its neighbours."""
    if then == now:
        return lines
    before = then.splitlines()
    found: set[int] = set()
    for _, start, end, first, last in _differences(then, now):
        here = {line for line in lines if first < line <= last}
        if end - start == last - first:
            found |= {line - first + start for line in here}
        elif here:
            found |= set(range(max(1, start), min(len(before), end + 1) + 1))
    return found


@functools.lru_cache(1_000)
def _differences(then: str, now: str) -> list[tuple[str, int, int, int, int]]:
    before, after = then.splitlines(), now.splitlines()
    return difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
