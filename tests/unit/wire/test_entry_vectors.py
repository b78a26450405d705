"""Golden vectors: bytes that every later version must read, and this one must write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dlog.limits import DECOMPRESS_RATIO_MAX, LEDGER_ENTRY_BYTES_MAX
from dlog.wire.batch import (
    ENTRY_OVERHEAD_BYTES_MAX,
    HEADER_PAIR_OVERHEAD_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_OVERHEAD_BYTES_MAX,
    Codec,
    ControlKind,
    Entry,
    ProducerRow,
    ProducerTable,
    decode,
    encode,
    encode_control,
)
from tests.unit.wire.samples import WAYS, columns_of, way_of

ROOT = Path(__file__).parents[3]
VECTORS = {path.stem: path for path in sorted((ROOT / "tests/vectors/entry").glob("*.json"))}
CONTROL = ["birth", "seam", "producers"]
DATA = [name for name in VECTORS if name not in CONTROL]


def load(name: str) -> dict[str, Any]:
    vector: dict[str, Any] = json.loads(VECTORS[name].read_text(encoding="utf-8"))
    return vector


def plain(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def arguments_of(fields: dict[str, Any]) -> dict[str, Any]:
    keys, headers, producer = fields["keys"], fields["headers"], fields["producer"]
    return fields | {
        "values": [plain(value) for value in fields["values"]],
        "keys": keys and [plain(key) for key in keys],
        "headers": headers
        and [
            pairs and tuple((name, bytes.fromhex(value)) for name, value in pairs)
            for pairs in headers
        ],
        "codec": Codec[fields["codec"].upper()],
        "producer": producer and tuple(producer),
    }


def check(entry: Entry, wanted: dict[str, Any]) -> None:
    count = len(wanted["values"])
    stamps = wanted["timestamps_us"] or [wanted["timestamp_us"]] * count
    headers = wanted["headers"]
    assert columns_of(entry) == {
        "values": wanted["values"],
        "keys": wanted["keys"],
        "headers": headers and [pairs or () for pairs in headers],
        "event_times": wanted["event_times_us"],
        "timestamps": stamps,
    }
    assert entry.codec is wanted["codec"]
    assert entry.producer == wanted["producer"]
    assert (entry.count, entry.first_seq) == (count, wanted["first_seq"])
    assert (entry.base_timestamp_us, entry.last_timestamp_us) == (stamps[0], stamps[-1])


def test_there_is_a_vector_for_every_feature() -> None:
    assert len(DATA) == 11
    assert {load(name)["fields"]["codec"] for name in DATA} == {"none", "lz4", "zstd"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DATA)
def test_data_vectors(name: str, way: str) -> None:
    vector = load(name)
    raw = bytes.fromhex(vector["hex"])
    arguments = arguments_of(vector["fields"])
    with way_of(way):
        check(decode(raw, where=name), arguments)
        written = b"".join(encode(**arguments))
        check(decode(written, where=name), arguments)
    if vector["exact"]:
        assert written.hex() == vector["hex"]


@pytest.mark.parametrize("name", CONTROL)
def test_control_vectors(name: str) -> None:
    vector = load(name)
    control = vector["control"]
    kind, body = ControlKind(control.pop("kind")), control.pop("body").encode()
    if kind is ControlKind.PRODUCERS:  # in hex: it is binary
        body = bytes.fromhex(body.decode())
        rows = tuple(ProducerRow(*row) for row in vector["rows"])
        assert ProducerTable(rows, vector["forgot"]).to_bytes() == body
        assert ProducerTable.from_bytes(body, where=name).rows == rows
    assert b"".join(encode_control(kind, body, **control)).hex() == vector["hex"]
    entry = decode(bytes.fromhex(vector["hex"]), where=name)
    assert (entry.control, entry.control_body) == (kind, body)
    assert (entry.count, entry.first_seq) == (0, control["first_seq"])


def test_the_worked_example_in_the_docs_is_a_vector() -> None:
    text = (ROOT / "docs/FORMATS.md").read_text(encoding="utf-8")
    example = text.split("### Worked example", 1)[1].split("\n#", 1)[0]
    lines = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} )+)", example, re.MULTILINE)
    written = ""
    for at, line in lines:
        assert int(at, 16) == len(written) // 2
        written += line.replace(" ", "")
    assert written == load("three")["hex"]


def test_the_numbers_in_the_docs_are_those_of_the_code() -> None:
    text = (ROOT / "docs/FORMATS.md").read_text(encoding="utf-8")
    assert f"{LEDGER_ENTRY_BYTES_MAX:,}" in text
    assert f"up to {MESSAGE_BYTES_MAX:,} bytes" in text
    assert f"{DECOMPRESS_RATIO_MAX:,} times" in text
    times = "\N{MULTIPLICATION SIGN}"
    assert (
        f"{ENTRY_OVERHEAD_BYTES_MAX} + {MESSAGE_OVERHEAD_BYTES_MAX} {times} messages + "
        f"{HEADER_PAIR_OVERHEAD_BYTES_MAX} {times} header pairs"
    ) in text
