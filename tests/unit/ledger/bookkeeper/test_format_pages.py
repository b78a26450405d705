"""The worked examples of the pages on BookKeeper's formats are the golden vectors."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[4]
PAGES = ROOT / "docs" / "formats"
VECTORS = ROOT / "tests" / "vectors" / "bookie"

FRAMES = {
    "add": "add",
    "answer": "add_reply",
    "read": "read",
    "none there": "read_no_entry",
    "fencing read": "recovery_read",
    "batch read": "batch_read",
}


def block_behind(page: str, words: str) -> str:
    text = (PAGES / page).read_text(encoding="utf-8")
    found = re.search(r"```text\n(.*?)```", text[text.index(words) :], re.DOTALL)
    assert found is not None
    return found[1]


def test_frames() -> None:
    vectors = json.loads((VECTORS / "frames.json").read_text())["v2"]
    shown: dict[str, str] = {}
    name = ""
    for line in block_behind("bookie-protocol.md", "Ledger 7, entry 3").splitlines():
        name = line[:13].strip() or name
        shown[name] = shown.get(name, "") + line[13:].replace(" ", "")
    assert shown == {name: vectors[vector] for name, vector in FRAMES.items()}


def test_ledger_metadata() -> None:
    page = "bookkeeper-ledger.md"
    vector = bytes.fromhex(json.loads((VECTORS / "ledgers.json").read_text())["v3"])
    front = re.search(r"`(426f[0-9a-f]+)`", (PAGES / page).read_text(encoding="utf-8"))
    assert front is not None
    shown = bytes.fromhex(front[1])
    for line in block_behind(page, "The first 30 bytes").splitlines():
        for text, number in re.findall(r'"([^"]*)"|\b([0-9a-f]{2})\b', line[:55]):
            shown += text.encode() or bytes.fromhex(number)
    assert shown == vector


def test_layout() -> None:
    layout = json.loads((VECTORS / "ledgers.json").read_text())["layout"]
    assert block_behind("bookkeeper-ledger.md", "A new cluster gets") == layout + "\n"
