"""Where ledgers stand in the metadata store: the layout node, paths and ids, names that make ids.

Paths here begin below the ledgers' root, as `/00/0012/L3456`. Each manager has its own formula;
which one a cluster uses stands in its `LAYOUT` node, for all clients alike, and one that we do not
know is refused: a ledger looked for in the wrong place would seem to be deleted. Ids are read from
paths strictly, and only as the formula would write them.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import Final

from dlog.errors import ConfigError, FormatError, Unsupported

LAYOUT_NODE: Final = "LAYOUT"
AVAILABLE_NODE: Final = "available"
READ_ONLY_NODE: Final = "readonly"  # a child of `available`, beside the writable bookies
DISABLE_HEALTH_CHECK_NODE: Final = "disableHealthCheck"  # while it is there, nobody is quarantined
INSTANCE_ID_NODE: Final = "INSTANCEID"
COOKIES_NODE: Final = "cookies"  # of every bookie that was ever here
SHORT_IDS_NODE: Final = "idgen"
LONG_IDS_NODE: Final = "idgen-long"
ID_PREFIX: Final = "ID-"
HIGH_BITS_PREFIX: Final = "HOB-"
# Below the root, and no ledgers; nor is what begins with `ID_PREFIX`.
OTHER_NODES: Final = frozenset(
    {
        LAYOUT_NODE,
        AVAILABLE_NODE,
        INSTANCE_ID_NODE,
        SHORT_IDS_NODE,
        LONG_IDS_NODE,
        COOKIES_NODE,
        "underreplication",
        DISABLE_HEALTH_CHECK_NODE,
    }
)

LEDGER_ID_END: Final = 1 << 63
SHORT_ID_END: Final = (1 << 31) - 1  # an id from here on needs the long form
_HIGH_BITS_END = 1 << 31
_LAYOUT_BYTES_MAX = 1024
_FACTORY_PACKAGE = "org.apache.bookkeeper.meta."
_LAYOUT = re.compile(r"([0-9]{1,9})\n([A-Za-z0-9_.$]+):([0-9]{1,9})\n?", re.ASCII)


class Manager(enum.Enum):
    """Who decides where ledgers stand. The values are the short names of service URIs."""

    FLAT = "flat"
    LEGACY_HIERARCHICAL = "legacyhierarchical"
    HIERARCHICAL = "hierarchical"  # of every new cluster: short form for short ids, else long
    LONG_HIERARCHICAL = "longhierarchical"


_FACTORIES: Final = {
    "FlatLedgerManagerFactory": Manager.FLAT,
    "LegacyHierarchicalLedgerManagerFactory": Manager.LEGACY_HIERARCHICAL,
    "HierarchicalLedgerManagerFactory": Manager.HIERARCHICAL,
    "LongHierarchicalLedgerManagerFactory": Manager.LONG_HIERARCHICAL,
}
_FACTORY_OF: Final = {manager: name for name, manager in _FACTORIES.items()}
_SHORT_NAMES: Final = {"flat": Manager.FLAT, "hierarchical": Manager.HIERARCHICAL}

_SHORT_TREE = (r"[0-9]{2}", r"[0-9]{4}", r"L[0-9]{4}")
_LONG_TREE = (r"[0-9]{3}", r"[0-9]{4}", r"[0-9]{4}", r"[0-9]{4}", r"L[0-9]{4}")
# What the names of each level look like, for a walk over all ledgers in rising order of ids.
TREES: Final[dict[Manager, tuple[tuple[str, ...], ...]]] = {
    Manager.FLAT: ((r"L[0-9]{10,19}",),),
    Manager.LEGACY_HIERARCHICAL: (_SHORT_TREE,),
    Manager.HIERARCHICAL: (_SHORT_TREE, _LONG_TREE),
    Manager.LONG_HIERARCHICAL: (_LONG_TREE,),
}
_PATHS: Final = {
    manager: re.compile("|".join("".join("/" + level for level in tree) for tree in trees))
    for manager, trees in TREES.items()
}


def pack_layout(manager: Manager) -> bytes:
    """The node of a new cluster, byte for byte as the stock client writes it."""
    return f"2\n{_FACTORY_PACKAGE}{_FACTORY_OF[manager]}:1".encode()


def parse_layout(raw: bytes, *, where: str) -> Manager:
    found = None
    if len(raw) <= _LAYOUT_BYTES_MAX and raw.isascii():
        found = _LAYOUT.fullmatch(raw.decode())
    if found is None:
        raise FormatError(f"{where}: no ledger layout: {bytes(raw[:80])!r}")
    layout_version, factory, manager_version = int(found[1]), found[2], int(found[3])
    if layout_version not in (1, 2) or manager_version != 1:
        raise FormatError(
            f"{where}: a layout of version {layout_version}, {factory} {manager_version}"
        )
    # The class alone decides: repackaged servers put a prefix before its package.
    known = _SHORT_NAMES if layout_version == 1 else _FACTORIES
    manager = known.get(factory if layout_version == 1 else factory.rpartition(".")[2])
    if manager is None:
        raise Unsupported(f"{where}: ledgers are managed by {factory}, which dlog does not know")
    return manager


def ledger_path(manager: Manager, ledger_id: int) -> str:
    if not 0 <= ledger_id < LEDGER_ID_END:
        raise ConfigError(f"a ledger id counts from 0, in 63 bits: {ledger_id}")
    if manager is Manager.FLAT:
        return f"/L{ledger_id:010d}"
    if manager is not Manager.LONG_HIERARCHICAL and ledger_id < SHORT_ID_END:
        digits = f"{ledger_id:010d}"
        return f"/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    if manager is Manager.LEGACY_HIERARCHICAL:
        raise ConfigError(f"this layout has no place for the ledger id {ledger_id}")
    digits = f"{ledger_id:019d}"
    return f"/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def ledger_id_of(manager: Manager, path: str) -> int:
    """The id of the ledger at `path`; `FormatError` unless its path is exactly that."""
    if _PATHS[manager].fullmatch(path):
        ledger_id = int(path.replace("/", "").replace("L", ""))
        # What matches but would be written otherwise: a long form of a short id, 20 digits.
        if ledger_id < LEDGER_ID_END and _is_written_so(manager, ledger_id, path):
            return ledger_id
    raise FormatError(f"{path[:80]!r} is no path of a ledger under the manager {manager.value}")


def _is_written_so(manager: Manager, ledger_id: int, path: str) -> bool:
    if manager is Manager.LEGACY_HIERARCHICAL and ledger_id >= SHORT_ID_END:
        return False
    return ledger_path(manager, ledger_id) == path


def parse_generated_id(path: str) -> int | None:
    """The number at the end of a sequential node's path; None when the counter has overflowed, and
    ids must come from elsewhere. 0 is an id."""
    _, prefix, digits = path.rpartition(ID_PREFIX)
    number = _parse_digits(digits, digits_min=1, signed=True)
    if not prefix or number is None:
        raise FormatError(f"{path[:80]!r} names no generated ledger id")
    return number if 0 <= number < SHORT_ID_END else None


def high_bits_name(high_bits: int) -> str:
    """Of the directory that counts the lower half of ids with these upper 32 bits."""
    if not 0 < high_bits < _HIGH_BITS_END:
        raise ConfigError(f"the upper half of a long ledger id is from 1, in 31 bits: {high_bits}")
    return f"{HIGH_BITS_PREFIX}{high_bits:010d}"


def parse_high_bits(names: Iterable[str]) -> list[int]:
    """Of all such directories among `names`, rising; other names are nobody's business here."""
    found = []
    for name in names:
        if name.startswith(HIGH_BITS_PREFIX):
            number = _parse_digits(name[len(HIGH_BITS_PREFIX) :], digits_min=10)
            if number is None or not 0 < number < _HIGH_BITS_END:
                raise FormatError(f"{name[:80]!r} names no upper half of ledger ids")
            found.append(number)
    return sorted(found)


def long_id(high_bits: int, low_bits: int) -> int:
    return high_bits << 32 | low_bits


def _parse_digits(digits: str, *, digits_min: int, signed: bool = False) -> int | None:
    unsigned = digits.removeprefix("-") if signed else digits
    if not digits_min <= len(unsigned) <= 10 or not (unsigned.isascii() and unsigned.isdigit()):
        return None
    return int(digits)
