"""The import graph is the architecture: every edge between rooms is allowed by the table in
`rooms`, and a cheap import stays cheap."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.tidy.rooms import EXTRA_EDGES, ONLY_IN, ROOMS, room_of
from tests.tidy.source import ROOT, Source, imports, modules, sources

HEAVY = (
    "kazoo pyarrow numpy structlog grpc pyspark click rich sqlite3 fastcrc google_crc32c crcmod "
    "lz4 zstandard prometheus_client opentelemetry"
).split()


def _edges(source: Source) -> list[tuple[str, int]]:
    return [edge for edge in imports(source) if edge[0].split(".")[0] == "dlog"]


def test_every_module_has_a_room() -> None:
    homeless = sorted(module for module in modules() if room_of(module) is None)
    assert not homeless, f"no room of tests/tidy/rooms.py holds {homeless}"


def _forbidden_edges(source: Source) -> list[str]:
    room = room_of(source.module)
    assert room is not None, source.where
    found = []
    for target, line in sorted(set(_edges(source))):
        other = room_of(target)
        allowed = other is not None and (other is room or other.name in room.may)
        if not allowed and (source.module, target) not in EXTRA_EDGES:
            there = other.name if other else "no room"
            found.append(
                f"{source.where}:{line}: {source.module} ({room.name}) imports {target} ({there})"
            )
    return found


def test_every_edge_between_rooms_is_allowed() -> None:
    offending = [edge for source in sources("dlog") for edge in _forbidden_edges(source)]
    assert not offending, "\n" + "\n".join(offending)


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("dlog/writer/core.py", "from dlog.meta.sqlite import SqliteMetaStore"),
        ("dlog/writer/writer.py", "def f():\n    import dlog.ledger.embedded.store"),
        ("dlog/meta/store.py", "from dlog.meta import memory"),
        ("dlog/wire/batch.py", "from dlog.ledger.store import Buffer"),
        ("dlog/ids.py", "from .wire import batch"),
        ("dlog/ledger/memory.py", "from dlog.ledger import embedded"),
        ("dlog/cli/main.py", "from dlog.writer import core"),
        ("dlog/client.py", "import dlog.cli.main"),
    ],
)
def test_a_planted_edge_is_named(module: str, statement: str) -> None:
    planted = Source(ROOT / module, statement)
    (told,) = _forbidden_edges(planted)
    assert told.startswith(f"{module}:")


def test_pure_rooms_import_nothing_that_acts() -> None:
    offending = []
    for source in sources("dlog"):
        room = room_of(source.module)
        assert room is not None, source.where
        offending += [
            f"{source.where}:{line}: {room.name} imports {target}"
            for target, line in imports(source)
            if target.split(".")[0] in room.never
        ]
    assert not offending, "\n" + "\n".join(offending)


def test_each_outside_package_has_its_place() -> None:
    offending = []
    for source in sources("dlog"):
        for target, line in imports(source):
            package = target.split(".")[0]
            if package in ("dlog", "__future__") or package in sys.stdlib_module_names:
                if package not in ONLY_IN:
                    continue
            place = ONLY_IN.get(package)
            if place is None or not re.fullmatch(place, source.module):
                offending.append(f"{source.where}:{line}: {package} is not for this module")
    assert not offending, "\n" + "\n".join(offending)


def test_the_table_names_only_rooms_that_it_has() -> None:
    names = {room.name for room in ROOMS}
    assert not {other for room in ROOMS for other in room.may} - names


def test_every_extra_edge_is_still_there() -> None:
    edges = {(source.module, target) for source in sources("dlog") for target, _ in _edges(source)}
    assert not EXTRA_EDGES.keys() - edges


def test_the_import_walk_sees_every_kind_of_import() -> None:
    text = (
        "import dlog.errors\nfrom dlog import limits\nfrom dlog.wire import batch as b\n"
        "def f():\n    from . import core\n    from .core import Core\n    import os.path\n"
    )
    probe = Source(ROOT / "dlog" / "writer" / "probe.py", text)
    seen = [target for target, _ in imports(probe)]
    assert seen == [
        "dlog.errors",
        "dlog.limits",
        "dlog.wire.batch",
        "dlog.writer.core",
        "dlog.writer.core",
        "os.path",
    ]


def _loaded_after(statement: str) -> set[str]:
    """Top-level names of the modules a fresh interpreter holds after one statement."""
    program = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_import_dlog_stays_light() -> None:
    heavy = _loaded_after("import dlog") & set(HEAVY)
    assert not heavy, f"import dlog loads {sorted(heavy)}"


def test_the_light_import_test_can_fail() -> None:
    assert "sqlite3" in _loaded_after("import sqlite3") & set(HEAVY)


def test_help_of_the_command_line_loads_click_and_nothing_else() -> None:
    script = (
        "import contextlib, io\nfrom dlog.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    code = main(['--help'])\n"
        "assert code == 0"
    )
    loaded = _loaded_after(script)
    outside = {
        name
        for name in loaded - _loaded_after("pass")
        if name not in sys.stdlib_module_names and not name.startswith("_")
    }
    assert outside == {"click", "dlog"}
    assert not loaded & {"sqlite3", "asyncio"}
