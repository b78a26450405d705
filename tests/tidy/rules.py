"""The rules of the design and which tests name them: what docs/RULES.md is made of.

A test names a rule in its name (`test_dl_28_…`, `test_lh_20_24_flaw_2_…`, `test_cl06_cl08_…`) or in
its docstring ("DL-28, LH-30 to LH-35, LH flaw 4"). The page keeps the words of each rule, and the
decision that speaks against it if there is one; this program writes the tests beside them.

    python -m tests.tidy.rules --write
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.tidy.proofs import Proof, in_files_with
from tests.tidy.source import ROOT

PAGE = ROOT / "docs" / "RULES.md"
_LETTERS = {"DL-03": "ab", "DL-36": "abcdef"}
_LAST = {"DL": 37, "LH": 63, "CL": 21}
_FLAWS = {"DL": 9, "LH": 10, "CL": 7}
_ROW = re.compile(r"^\| (?P<rule>(?:DL|LH|CL)[^|]*?) \| (?P<words>[^|]+?) \|(?P<proof>[^|]*)\|$")
_ADR = re.compile(r"\[ADR \d+\]\(adr/(\d{4}-[\w-]+\.md)(?:#[\w-]+)?\)")
_RULE = re.compile(r"\b(DL|LH|CL)-(\d+[a-z]?)(?:(?:\.\.| to )(?:\1-)?(\d+[a-z]?)\b)?")
_FLAW = re.compile(r"\b(DL|LH|CL) flaws? (\d+(?:(?:, | and )\d+(?![\w-]))*)")
_NAMED = re.compile(r"\b(?:DL|LH|CL)[- ]|(?:_|\b)(?:dl|lh|cl)(?:_|\d)|(?:_|\b)flaws?_\d")
_PROMISE = re.compile(r"\bI(\d{1,2}[abc]?)\b(?: to I(\d{1,2})\b)?")


def _with_letters(rule: str) -> list[str]:
    return [rule + letter for letter in _LETTERS.get(rule, "")] or [rule]


ALL = tuple(
    rule
    for design in _LAST
    for rule in (
        *(each for n in range(1, _LAST[design] + 1) for each in _with_letters(f"{design}-{n:02}")),
        *(f"{design} flaw {n}" for n in range(1, _FLAWS[design] + 1)),
    )
)


def rules_in_text(text: str) -> Iterator[str]:
    """Every rule that a docstring names, ranges written out."""
    text = " ".join(text.split())
    for design, first, last in _RULE.findall(text):
        begin = _with_letters(f"{design}-{first}")
        end = _with_letters(f"{design}-{last}") if last else []
        if end and begin[0] in ALL and end[-1] in ALL:
            yield from ALL[ALL.index(begin[0]) : ALL.index(end[-1]) + 1]
        else:
            yield from begin + end
    for design, numbers in _FLAW.findall(text):
        yield from (f"{design} flaw {number}" for number in re.findall(r"\d+", numbers))


def rules_in_name(name: str) -> Iterator[str]:
    """Every rule that the name of a test names: numbers count while they follow a design."""
    design, flaw = "", False
    for part in name.split("_"):
        begins = re.fullmatch(r"(dl|lh|cl)(\d\d[a-f]?)?", part)
        if begins:
            design, flaw = begins[1].upper(), False
            if begins[2]:
                yield from _with_letters(f"{design}-{begins[2]}")
        elif part in ("flaw", "flaws"):
            flaw = True
        elif re.fullmatch(r"\d+[a-f]?", part) and flaw:
            yield f"{design} flaw {part}".strip()
        elif re.fullmatch(r"\d\d[a-f]?", part) and design:
            yield from _with_letters(f"{design}-{part}")
        else:
            design, flaw = "", False


def rules_of(proof: Proof) -> set[str]:
    return {*rules_in_name(proof.name), *rules_in_text(proof.docstring)}


def that_name_rules() -> list[Proof]:
    """The tests of every file in which a rule may be named."""
    return in_files_with(_NAMED)


def promises_in_text(text: str) -> Iterator[str]:
    """Every promise of docs/INVARIANTS.md that a docstring names, ranges written out."""
    for first, last in _PROMISE.findall(" ".join(text.split())):
        if last:
            yield from (f"I{number}" for number in range(int(first), int(last) + 1))
        else:
            yield f"I{first}"


@dataclass(frozen=True, slots=True)
class Row:
    rule: str
    words: str
    proof: str

    @property
    def decisions(self) -> list[str]:
        """The links to decisions that the row has, which the program leaves as they are."""
        return [found[0] for found in _ADR.finditer(self.proof)]

    def __str__(self) -> str:
        return f"| {self.rule} | {self.words} | {self.proof} |"


def rows(text: str) -> dict[str, Row]:
    found = (_ROW.match(line) for line in text.splitlines())
    made = (Row(row["rule"], row["words"], row["proof"].strip()) for row in found if row)
    return {row.rule: row for row in made}


def tests_by_rule(proofs: Iterable[Proof]) -> dict[str, list[Proof]]:
    named: dict[str, list[Proof]] = {}
    for proof in sorted(proofs, key=lambda each: each.full_name):
        for rule in rules_of(proof):
            named.setdefault(rule, []).append(proof)
    return named


def written(text: str, proofs: Iterable[Proof]) -> str:
    """The page with the tests of each rule as they are now."""
    named = tests_by_rule(proofs)
    lines = []
    for line in text.splitlines():
        row = rows(line)
        if not row:
            lines.append(line)
            continue
        (old,) = row.values()
        told = [*old.decisions, *(f"`{each.full_name}`" for each in named.get(old.rule, ()))]
        lines.append(str(Row(old.rule, old.words, ", ".join(told))))
    return "\n".join(lines) + "\n"


def faults(text: str, proofs: Iterable[Proof]) -> list[str]:
    """What is wrong between the page and the tests, one sentence each."""
    proofs = list(proofs)
    listed, named = rows(text), tests_by_rule(proofs)
    found = [f"{rule} has no row" for rule in ALL if rule not in listed]
    found += [f"{rule} has a row and is no rule" for rule in listed if rule not in ALL]
    found += [
        f"{each.full_name} names {rule}, which is no rule"
        for rule in sorted(named.keys() - set(ALL))
        for each in named[rule]
    ]
    found += [
        f"{rule} has neither a test in `make test` nor a decision that says why not"
        for rule, row in listed.items()
        if not row.decisions and not any(each.in_make_test for each in named.get(rule, ()))
    ]
    if written(text, proofs) != text:
        found.append("docs/RULES.md is stale: run `python -m tests.tidy.rules --write`")
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tidy.rules", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tests of each rule")
    proofs = that_name_rules()
    if parser.parse_args(arguments).write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), proofs), encoding="utf-8")
    for fault in (found := faults(PAGE.read_text(encoding="utf-8"), proofs)):
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
