"""Who may import whom: the table of docs/ARCHITECTURE.md as data.

A module belongs to the first room one of whose patterns matches its name. A room may import itself
and the rooms it lists, and never the outside modules it lists under `never`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NO_IO = frozenset(
    "asyncio socket select selectors ssl threading multiprocessing subprocess concurrent "
    "time random secrets os pathlib tempfile mmap fcntl signal kazoo sqlite3".split()
)


@dataclass(frozen=True)
class Room:
    name: str
    patterns: tuple[str, ...]
    may: frozenset[str]
    never: frozenset[str] = frozenset()

    def holds(self, module: str) -> bool:
        return any(re.fullmatch(pattern, module) for pattern in self.patterns)


def _may(*rooms: str) -> frozenset[str]:
    return frozenset(rooms)


# What stands below the three rooms of one log.
_WAIST = _may("floor", "wire", "contracts", "meta values", "effects", "driver", "cores")
_BACKENDS = _may(
    "attended", "sqlite", "zookeeper", "memory meta", "embedded", "bookkeeper", "memory ledgers"
)

ROOMS = (
    Room(
        "floor",
        (
            r"dlog\.(ids|errors|limits|options|uri|clock|chance|trace|nudge|calls|patience|progress|together|opening|_version)",
            r"dlog\.(secret|tls|certificates|findings|forgotten|reason|stalls)",
            r"dlog\.metrics(\.(sink|catalogue|flusher))?",
        ),
        _may(),
    ),
    # Of the packages outside each adapts one; nobody imports them but whoever chose one.
    Room("metric adapters", (r"dlog\.metrics\..*",), _may("floor")),
    Room("wire", (r"dlog\.wire(\..*)?",), _may("floor"), (_NO_IO | {"logging"}) - {"threading"}),
    # What a core may ask of the world, as values; and the one place that does what was asked.
    Room("effects", (r"dlog\.(effects|awaited)",), _may("floor", "contracts"), _NO_IO),
    Room("driver", (r"dlog\.drive",), _may("floor", "contracts", "effects", "meta values")),
    # A core decides: it takes facts and returns effects. A policy prefers. Neither does anything.
    Room(
        "cores",
        (
            r"dlog\..*\.(core|policy)",
            r"dlog\..*\.core\..*",
            r"dlog\.writer\.(batch|filled|healing|pipe|producers|ready|reasons|retaining|rotation)",
            r"dlog\.writer\.(preconditions|present|segments|takeover|times)",
            r"dlog\.reader\.(horizon|lag|message|places|ranges|reasons|resolve|segments)",
            r"dlog\.admin\.(plan|publish)",
            r"dlog\.streams\.routing(\..*)?",
            r"dlog\.streams\.(document|lanes|making|merge|numbers|places|removal|reshard|routes)",
            r"dlog\.streams\.trimmed",
            r"dlog\.streams\.config\.(document|changes|following|sections)",
            r"dlog\.groups\.(plan|view|leases|asks|consumer|errands|expiry|lease_nodes|log_leases)",
            r"dlog\.groups\.(membership|meta_leases|outlook|places|presence|shards|store|tracker)",
            r"dlog\.groups\.(agenda|charter|troubles|underway|weights|workers)",
        ),
        _may("floor", "wire", "contracts", "effects", "meta values", "links"),
        _NO_IO,
    ),
    Room("contracts", (r"dlog\.(meta|ledger)(\.(store|copies))?",), _may("floor")),
    Room(
        "meta values",
        (
            r"dlog\.meta\.(json_fields|layout|listed|pages|published|log_meta|cas|document)",
            r"dlog\.meta\.(holds|stream_holds|shards|sweep|retention|truncation)",
        ),
        _may("floor", "contracts", "effects"),
        _NO_IO,
    ),
    Room("attended", (r"dlog\.meta\.attended",), _may("floor", "contracts")),
    Room("own trees", (r"dlog\.meta\.nodes",), _may("floor", "contracts"), _NO_IO),
    Room("sqlite", (r"dlog\.meta\.sqlite.*",), _may("floor", "wire", "contracts", "own trees")),
    Room("zookeeper", (r"dlog\.meta\.zookeeper.*",), _may("floor", "contracts")),
    Room(
        "memory meta",
        (r"dlog\.meta\.memory.*",),
        _may("floor", "wire", "contracts", "own trees"),
    ),
    Room(
        "embedded",
        (r"dlog\.ledger\.embedded(\..*)?",),
        _may("floor", "wire", "contracts"),
    ),
    # The contract of connections: what the connection's core tells of, and its driver keeps.
    Room(
        "links", (r"dlog\.ledger\.bookkeeper\.links",), _may("floor", "wire", "contracts"), _NO_IO
    ),
    # Its cores and its policy are in the room of cores. A MetaStore is handed in.
    Room(
        "bookkeeper",
        (r"dlog\.ledger\.bookkeeper(\..*)?",),
        _may("floor", "wire", "contracts", "links", "cores"),
    ),
    Room("memory ledgers", (r"dlog\.ledger\.memory.*",), _may("floor", "wire", "contracts")),
    Room("writer", (r"dlog\.writer(\..*)?",), _WAIST),
    Room("reader", (r"dlog\.reader(\..*)?",), _WAIST),
    Room("admin", (r"dlog\.admin(\..*)?",), _WAIST | _may("reader", "writer", "attended")),
    Room("standby", (r"dlog\.standby(\..*)?",), _WAIST | _may("reader", "writer")),
    Room("copying", (r"dlog\.copying(\..*)?",), _WAIST | _may("reader", "writer")),
    Room("streams", (r"dlog\.streams(\..*)?",), _WAIST | _may("reader", "writer", "admin")),
    Room(
        "groups",
        (r"dlog\.groups(\..*)?",),
        _WAIST | _may("reader", "writer", "admin", "streams"),
    ),
    # The front door: the only place that knows which URL scheme is which backend.
    Room(
        "front",
        (r"dlog", r"dlog\.(backends|client|copies|aio)", r"dlog\.sync(\..*)?"),
        _WAIST
        | _BACKENDS
        | _may("writer", "reader", "admin", "standby", "copying", "streams", "groups"),
    ),
    Room("cli", (r"dlog\.cli(\..*)?", r"dlog\.__main__"), _may("floor", "front")),
    # Stands on public names; the package is what Spark looks for by its name.
    Room("spark", (r"dlog\.spark(\..*)?", r"pyspark_dlog"), _may("floor", "front")),
    Room(
        "testing",
        (r"dlog\.testing(\..*)?",),
        _WAIST
        | _BACKENDS
        | _may("writer", "reader", "admin", "standby", "copying", "front", "own trees")
        | _may("streams", "groups"),
    ),
)

# Edges the table forbids and that stand nevertheless, each with its reason.
EXTRA_EDGES = {
    ("dlog.cli.commands.doctor", "dlog.wire.crc32c"): "doctor reports which CRC32C was chosen",
    ("dlog.cli.commands.dev", "dlog.testing.cluster"): "`dlog dev` is the test cluster, for people",
    ("dlog.reader.message", "dlog.reader.arrow"): "loaded when to_arrow() is called",
    ("dlog.cli.commands.why", "dlog.admin.why"): "what it shows, by its type alone",
    ("dlog.cli.commands.top", "dlog.admin.why"): "what it shows, by its type alone",
    ("dlog.cli.commands.top", "dlog.admin.status"): "what it shows, by its type alone",
    ("dlog.cli.commands.spark_shell", "dlog.spark.jobs.session"): "loaded for a session of Spark",
    ("dlog.cli.commands.export", "dlog.reader.parquet"): "loaded for Parquet, which needs an extra",
}

# Outside packages, and the only modules that may import each.
ONLY_IN = {
    "click": r"dlog\.cli(\..*)?",
    "rich": r"dlog\.cli(\..*)?",
    "structlog": r"dlog\.cli(\..*)?",
    "sqlite3": r"dlog\.(meta\.sqlite.*|cli\.commands\.doctor)",
    "kazoo": r"dlog\.meta\.zookeeper_(acl|client|errors)",
    "fastcrc": r"dlog\.wire\.crc32c",
    "google_crc32c": r"dlog\.wire\.crc32c",
    "crcmod": r"dlog\.wire\.crc32c",
    "lz4": r"dlog\.wire\..*",
    "zstandard": r"dlog\.wire\..*",
    "numpy": r"dlog\.(wire|reader|testing|spark)\..*",
    "pyarrow": r"dlog\.(wire|reader|testing|spark)\..*",
    "pyspark": r"dlog\.spark\..*",
    "prometheus_client": r"dlog\.metrics\.prometheus",
    "opentelemetry": r"dlog\.metrics\.opentelemetry",
    "pytest": r"dlog\.testing(\..*)?",
    "hypothesis": r"dlog\.testing(\..*)?",
}


def room_of(module: str) -> Room | None:
    return next((room for room in ROOMS if room.holds(module)), None)
