"""How the demo speaks: chapters, lines, and claims that are checked before they are made."""

from __future__ import annotations


def chapter(title: str, code: str) -> None:
    print(f"\n── {title} {'─' * max(2, 60 - len(title))} {code}")


def say(line: str) -> None:
    print(f"   {line}".rstrip(), flush=True)


def check(holds: bool, claim: str, evidence: object = "") -> None:
    if not holds:
        raise SystemExit(f"the demo failed: {claim}, but: {evidence}")
