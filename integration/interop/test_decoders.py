"""The same bytes into our decoders and into those of the stock client: nearly valid ledger metadata
and answers, as the fuzzer draws them.

What both read, both read alike. What only we accept, and what only Java accepts, is of a kind that
is listed here, each with its reason: we refuse what would be guessed at, and Java what its
generated code happens not to know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from dlog.errors import Corrupt, FormatError
from dlog.testing.cluster.java_program import JavaProgram, why_not_compiled
from dlog.wire.bookie_auth import AuthMessage
from dlog.wire.bookie_v3_replies import Response, parse_response
from dlog.wire.ledger_metadata import LedgerMetadata
from dlog.wire.ledger_metadata_format import parse_ledger_metadata
from integration.conftest import each_release, or_skip
from integration.interop.java_ledgers import SOURCES
from tests.fuzz import reference
from tests.fuzz.campaign import Campaign
from tests.fuzz.registry import TARGETS
from tests.tiers import in_full

COUNTS = in_full([12_000, 60_000], but=[12_000], seconds=15)
AT_ONCE = 1_000
TAUGHT = 10_000  # executions at most before inputs are drawn from the corpus

# Where we are stricter than Java, by the words of our refusal.
STRICTER = re.compile(
    r"has wire type"  # Java takes a known field of another type for an unknown one
    r"|beyond 32 bits|more than 64 bits|more than 10 bytes|there is no field \d"  # … cuts it off
    r"|is not UTF-8|is text$"
    r"|bytes of a message of"  # … ignores what stands behind
    r"|unknown (ledger state|digest type|status code|operation)"  # … takes a default
    r"|the unknown operation|of protocol version"  # … looks later
    r"|no ledger has"  # metadata that cannot be: fragments that fall, a bookie twice, ends below -1
    r"|an entry of \d+ bytes|has no bytes|has no body|has the fields"  # answers that cannot be
    r"|is no number of 64 bits"  # … stops at the first line that closes
    # … likewise; … takes no such length for one
    r"|goes on behind its end|claims \d+ bytes|an escape beyond a byte"
    # … takes 0 for the last entry of a closed ledger
    r"|the required field (4|lastEntryId) is missing"
)
# 4.18 reads with code that is not protobuf's own: it knows no groups, takes neither tags nor
# lengths for what they are past their end, and merges no messages.
ONLY_4_18 = re.compile(
    r"the required field|is cut off|a colon is|the name of a field is|a group \d+ ends|unknown wire"
)
# What Java refuses: groups and pieces of messages (4.18), a password without a digest (4.18), an
# inner code that is missing beside an outer one that says why (4.17), unknown names in text (4.17).
JAVA_REFUSES = {
    "ledger-metadata": {
        "IllegalArgumentException",
        "IndexOutOfBoundsException",
        "NullPointerException",
    },
    "metadata-text": {"NullPointerException", "ParseException"},
    "v3-reply": {
        "IllegalArgumentException",
        "IllegalStateException",
        "IndexOutOfBoundsException",
        "InvalidProtocolBufferException",
    },
}
BODIES = {
    "ReadBody": ("ReadResponse", ("LedgerId", "EntryId", "Body", "MaxLAC", "LacUpdateTimestamp")),
    "AddBody": ("AddResponse", ("LedgerId", "EntryId")),
    "WriteLacBody": ("WriteLacResponse", ("LedgerId",)),
    "ReadLacBody": ("ReadLacResponse", ("LedgerId", "LacBody", "LastEntryBody")),
    "ForceBody": ("ForceLedgerResponse", ("LedgerId",)),
    "BookieInfoBody": ("GetBookieInfoResponse", ("TotalDiskCapacity", "FreeDiskSpace")),
    "StartTlsBody": ("StartTLSResponse", ()),
    "AuthMessage": ("AuthResponse", ("AuthPluginName", "Payload")),
}


@pytest.fixture(scope="module", params=each_release())
def decoders(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[JavaProgram, str]]:
    version = str(request.param)
    or_skip(version)
    if missing := why_not_compiled():
        pytest.skip(missing)
    directory = tmp_path_factory.mktemp("decoders")
    program = JavaProgram(
        "dlog.JavaDecoders", [], sources=SOURCES, directory=directory, version=version
    )
    with program:
        yield program, version


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", ["ledger-metadata", "metadata-text", "v3-reply"])
def test_the_same_bytes_are_the_same_value(
    decoders: tuple[JavaProgram, str], name: str, count: int
) -> None:
    program, version = decoders
    inputs = [raw for raw in drawn(name, count) if not starves_java(raw)]
    what = "reply" if name == "v3-reply" else "metadata"
    parse: Any = parse_response if what == "reply" else parse_ledger_metadata
    told: list[Any] = []
    for begin in range(0, len(inputs), AT_ONCE):
        piece = [raw.hex() for raw in inputs[begin : begin + AT_ONCE]]
        told += program.tell(what, inputs=piece)
    stricter = STRICTER
    if version.startswith("4.18"):
        stricter = re.compile(f"{STRICTER.pattern}|{ONLY_4_18.pattern}")
    both = 0
    for raw, theirs in zip(inputs, told, strict=True):
        try:
            ours = parse(raw, where="here")
        except (Corrupt, FormatError) as error:
            ours = str(error)
        if isinstance(ours, str):
            assert isinstance(theirs, str) or stricter.search(ours), (raw, ours, theirs)
        elif isinstance(theirs, str):
            assert theirs in JAVA_REFUSES[name], (raw, ours, theirs)
        elif isinstance(ours, Response):
            both += 1
            assert answer_of(ours) == answer_by_java(ours, theirs), (raw, ours, theirs)
        else:
            both += 1
            assert metadata_of(ours, theirs) == theirs, (raw, ours, theirs)
    assert both > 50


@cache
def drawn(name: str, count: int) -> list[bytes]:
    """Inputs that lead to different places, and so many drawn from them."""
    campaign = Campaign(TARGETS[name], seed=3)
    campaign.run(executions=min(TAUGHT, count))
    return [*campaign.corpus, *campaign.inputs(count)]


def starves_java(raw: bytes) -> bool:
    """It takes as much memory as it is told of, before it looks, and ends when there is none."""
    front = re.match(rb"BookieMetadataFormatVersion\t0*3\n", raw)
    if front is None:
        return re.search(rb"[0-9]{6}", raw[29:]) is not None
    try:
        size, _ = reference.read_varint(raw[front.end() :], 0)
    except reference.Refused:
        return False
    return 1 << 16 <= size % (1 << 32) < 1 << 31


def metadata_of(ours: LedgerMetadata, theirs: dict[str, Any]) -> dict[str, Any]:
    """As Java tells it. It knows a digest and a password only together, or takes a default."""
    digest = None if ours.digest_type is None else ours.digest_type.name
    together = ours.digest_type is not None and ours.password is not None
    return {
        "format": ours.format_version,
        "quorums": [ours.ensemble_size, ours.write_quorum, ours.ack_quorum],
        "state": ours.state.name,
        "end": [ours.last_entry_id, ours.length_bytes],
        "fragments": [[each.first_entry_id, list(each.ensemble)] for each in ours.fragments],
        "custom": {pair.key: pair.value.hex() for pair in ours.custom},
        "password": (ours.password or b"").hex(),
        "digest": {"HMAC": "MAC"}.get(str(digest), digest) if together else theirs["digest"],
    }


def answer_of(ours: Response) -> tuple[object, ...]:
    if ours.body is None:
        return ours.txn_id, None
    values = (
        (ours.body.plugin, ours.body.payload)
        if isinstance(ours.body, AuthMessage)
        else tuple(ours.body)
    )
    plain = [bytes(v).hex() if isinstance(v, bytes | memoryview) else v for v in values]
    return ours.txn_id, plain


def answer_by_java(ours: Response, theirs: dict[str, Any]) -> tuple[object, ...]:
    txn_id = theirs["txn"] % (1 << 64)  # Java's numbers have a sign
    if ours.body is None:
        return txn_id, None
    name, fields = BODIES[type(ours.body).__name__]
    return txn_id, [theirs[name][field] for field in fields]
