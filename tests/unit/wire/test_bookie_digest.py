"""Entries and LAC proofs: vectors that a stock client agrees with, and nothing unverified."""

from __future__ import annotations

import hmac
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import Broken, Corrupt
from dlog.wire.bookie_digest import (
    DIGEST_BYTES,
    DigestType,
    EntryDigest,
    StoredEntry,
    mac_key,
    master_key,
)
from tests.unit.wire.bookie_tools import UNHURRIED, harmed, vectors

TYPES = list(DigestType)
ID = st.integers(0, (1 << 63) - 1)


def digest_of(vector: dict[str, Any], name: str) -> EntryDigest:
    return EntryDigest(DigestType[name], vector["password"].encode())


@pytest.mark.parametrize("vector", vectors("digests")["keys"])
def test_keys(vector: dict[str, str]) -> None:
    password = vector["password"].encode()
    assert master_key(password).hex() == vector["master_key"]
    assert mac_key(password).hex() == vector["mac_key"]


@pytest.mark.parametrize("name", [each.name for each in TYPES])
@pytest.mark.parametrize("vector", vectors("digests")["entries"])
def test_entries(vector: dict[str, Any], name: str) -> None:
    digest = digest_of(vector, name)
    payload = bytes.fromhex(vector["payload"])
    head = digest.pack_head(
        vector["ledger_id"],
        vector["entry_id"],
        vector["last_confirmed"],
        vector["ledger_bytes"],
        [payload],
    )
    assert head.hex() == vector["numbers"] + vector["digests"][name]
    assert len(head) == digest.head_bytes == 32 + DIGEST_BYTES[DigestType[name]]
    raw = head + payload
    entry = digest.verify(raw, ledger_id=vector["ledger_id"], entry_id=vector["entry_id"])
    wanted = (vector["entry_id"], vector["last_confirmed"], vector["ledger_bytes"], payload)
    assert entry == wanted
    assert entry.payload.obj is raw


@pytest.mark.parametrize("name", [each.name for each in TYPES])
@pytest.mark.parametrize("vector", vectors("digests")["lacs"])
def test_lac_proofs(vector: dict[str, Any], name: str) -> None:
    digest = digest_of(vector, name)
    proof = digest.pack_lac(vector["ledger_id"], vector["last_confirmed"])
    assert proof.hex() == vector["numbers"] + vector["digests"][name]
    assert digest.verify_lac(proof, ledger_id=7) == 3
    with pytest.raises(Corrupt):
        digest.verify_lac(proof, ledger_id=8)


@UNHURRIED
@given(st.sampled_from(TYPES), st.binary(max_size=20), ID, st.data())
def test_round_trip_of_any_buffers(
    type: DigestType, password: bytes, ledger_id: int, data: st.DataObject
) -> None:
    entry_id = data.draw(ID)
    last_confirmed = data.draw(st.integers(-1, entry_id - 1))
    payload = data.draw(st.binary(max_size=60))
    ledger_bytes = data.draw(st.integers(len(payload), (1 << 63) - 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(payload)), max_size=4)))
    pieces = [payload[a:b] for a, b in pairwise([0, *cuts, len(payload)])]
    buffers = [data.draw(st.sampled_from((bytes, bytearray, memoryview)))(p) for p in pieces]
    digest = EntryDigest(type, password)
    head = digest.pack_head(ledger_id, entry_id, last_confirmed, ledger_bytes, buffers)
    assert head == digest.pack_head(ledger_id, entry_id, last_confirmed, ledger_bytes, [payload])
    raw = memoryview(b"front" + head + payload)[5:]
    wanted = StoredEntry(entry_id, last_confirmed, ledger_bytes, memoryview(payload))
    assert digest.verify(raw, ledger_id=ledger_id, entry_id=entry_id) == wanted
    assert digest.verify_last(raw, ledger_id=ledger_id) == wanted


@pytest.mark.parametrize("type", [each for each in TYPES if each is not DigestType.DUMMY])
def test_no_harmed_entry_is_returned(type: DigestType) -> None:
    digest = EntryDigest(type, b"secret")
    raw = digest.pack_head(7, 3, 2, 25, [b"hello"]) + b"hello"
    proof = digest.pack_lac(7, 3)
    for each in harmed(raw):
        with pytest.raises(Corrupt):
            digest.verify_last(each, ledger_id=7)
    for each in harmed(proof):
        with pytest.raises(Corrupt):
            digest.verify_lac(each, ledger_id=7)


def test_without_a_digest_the_numbers_are_all_there_is_to_check() -> None:
    digest = EntryDigest(DigestType.DUMMY, b"")
    raw = digest.pack_head(7, 3, 2, 25, [b"hello"]) + b"hello"
    for end in range(32):
        with pytest.raises(Corrupt):
            digest.verify_last(raw[:end], ledger_id=7)


@pytest.mark.parametrize("type", TYPES)
def test_an_entry_is_only_what_was_asked_for(type: DigestType) -> None:
    digest = EntryDigest(type, b"secret")
    raw = digest.pack_head(7, 3, 2, 25, [b"hello"]) + b"hello"
    with pytest.raises(Corrupt, match="entry 3") as caught:
        digest.verify(raw, ledger_id=7, entry_id=4, where="bookie b1")
    assert (caught.value.ledger_id, caught.value.entry_id) == (7, 4)
    assert "bookie b1" in str(caught.value)
    with pytest.raises(Corrupt, match="ledger 7"):
        digest.verify(raw, ledger_id=8, entry_id=3)


@pytest.mark.parametrize(
    ("entry_id", "last_confirmed", "ledger_bytes"),
    [(3, 3, 25), (3, 1000, 25), (0, 0, 25), (3, -2, 25), (3, 2, 4), (3, 2, -1), (-1, -1, 25)],
)
def test_numbers_out_of_order_are_not_believed(
    entry_id: int, last_confirmed: int, ledger_bytes: int
) -> None:
    """Also under a digest that is right: somebody made such an entry."""
    import struct

    digest = EntryDigest(DigestType.CRC32C, b"")
    numbers = struct.pack(">qqqq", 7, entry_id, last_confirmed, ledger_bytes)
    raw = numbers + digest._sum(numbers, [b"hello"]) + b"hello"
    with pytest.raises(Corrupt):
        digest.verify_last(raw, ledger_id=7)


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("last_confirmed", [3, 1000])
def test_a_replicators_copy_is_read_and_proves_no_lac(
    type: DigestType, last_confirmed: int
) -> None:
    """Stock auto-recovery writes the LAC of the moment into every entry that it copies."""
    digest = EntryDigest(type, b"secret")
    copy = _forged(digest, 7, 3, last_confirmed, 25)
    entry = digest.verify(copy, ledger_id=7, entry_id=3)
    assert (entry.last_confirmed, entry.ledger_bytes, bytes(entry.payload)) == (-1, 25, b"7")
    assert digest.verify_run([copy], ledger_id=7, first_entry=3) == [b"7"]
    with pytest.raises(Corrupt, match=f"confirms entry {last_confirmed}"):
        digest.verify_last(copy, ledger_id=7)


@pytest.mark.parametrize(
    "numbers",
    [
        (-1, 3, 2, 25),
        (7, 3, 3, 25),
        (7, 3, -2, 25),
        (7, -1, -1, 0),
        (7, 3, 2, -1),
        (7, 1 << 63, 2, 1),
    ],
)
def test_such_entries_are_not_made(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(Broken):
        EntryDigest(DigestType.CRC32C, b"").pack_head(*numbers, [b"hello"])


def test_digests_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = EntryDigest(DigestType.HMAC, b"secret")
    raw = digest.pack_head(7, 3, 2, 25, [b"hello"]) + b"hello"
    compared = []

    def compare(made: bytes, there: memoryview) -> bool:
        compared.append(len(made))
        return True

    monkeypatch.setattr(hmac, "compare_digest", compare)
    digest.verify(raw, ledger_id=7, entry_id=3)
    digest.verify_lac(digest.pack_lac(7, 3), ledger_id=7)
    assert compared == [20, 20]


def test_no_key_in_any_text() -> None:
    digest = EntryDigest(DigestType.HMAC, b"canary")
    with pytest.raises(Corrupt) as caught:
        digest.verify(bytes(100), ledger_id=7, entry_id=3)
    for text in (repr(digest), str(caught.value), repr(caught.value.about)):
        assert "canary" not in text
        assert mac_key(b"canary").hex() not in text


@pytest.mark.parametrize("type", TYPES)
def test_a_run_is_verified_up_to_what_is_wrong(type: DigestType) -> None:
    digest = EntryDigest(type, b"secret")
    run = [
        digest.pack_head(7, entry_id, entry_id - 1, 10 * entry_id, [b"%d" % entry_id])
        + b"%d" % entry_id
        for entry_id in range(5, 10)
    ]
    good = digest.verify_run(run, ledger_id=7, first_entry=5)
    assert good == [b"5", b"6", b"7", b"8", b"9"]
    assert all(view.obj is raw for view, raw in zip(good, run, strict=True))
    head = digest.pack_head
    wrong = {
        "another ledger": head(8, 7, 6, 10, [b"7"]) + b"7",
        "another entry": head(7, 8, 6, 10, [b"7"]) + b"7",
        "fewer bytes than its own": head(7, 7, 6, 0, [b"7"]) + b"7",
        "a LAC that is no entry": _forged(digest, 7, 7, -2, 10),
        "cut off": run[2][:20],
    }
    if type is not DigestType.DUMMY:
        wrong["damaged"] = run[2][:-1] + b"x"
    for what, raw in wrong.items():
        assert digest.verify_run([*run[:2], raw, *run[3:]], ledger_id=7, first_entry=5) == [
            b"5",
            b"6",
        ], what
        with pytest.raises(Corrupt):
            digest.verify_run([raw, *run[3:]], ledger_id=7, first_entry=7)


def _forged(digest: EntryDigest, *numbers: int) -> bytes:
    """An entry with a right digest that no writer of ours would make."""
    head = struct.pack(">qqqq", *numbers)
    return head + digest._sum(head, [b"7"]) + b"7"


@pytest.mark.parametrize("name", [each.name for each in TYPES])
def test_a_lac_proof_of_another_size_is_refused(name: str) -> None:
    """Longer ones, too: with the digest that proves nothing, nothing else would notice."""
    digest = EntryDigest(DigestType[name], b"secret")
    for last_confirmed in (-1, 0, (1 << 63) - 1):
        proof = digest.pack_lac(7, last_confirmed)
        assert digest.verify_lac(proof, ledger_id=7) == last_confirmed
        for wrong in (*(proof[:end] for end in range(len(proof))), proof + b"\0", proof + proof):
            with pytest.raises(Corrupt, match=f"here: .*a LAC of {len(wrong)} bytes"):
                digest.verify_lac(wrong, ledger_id=7, where="here")


@pytest.mark.parametrize("name", [each.name for each in TYPES])
def test_a_lac_that_no_ledger_has_is_refused(name: str) -> None:
    """Though its digest is right."""
    digest = EntryDigest(DigestType[name], b"secret")
    numbers = struct.pack(">qq", 7, -2)
    assert digest.pack_lac(7, 3)[:16] == struct.pack(">qq", 7, 3)
    with pytest.raises(Corrupt, match=r"^here: an entry of ledger 7: LAC -2 of ledger 7$") as told:
        digest.verify_lac(numbers + digest._sum(numbers, ()), ledger_id=7, where="here")
    assert told.value.about["ledger_id"] == 7
