"""Documents as values: versions, history, bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlog import limits
from dlog.errors import ConfigError, FormatError, TooLarge
from dlog.streams.config.document import (
    NOBODYS,
    Document,
    Stamp,
    changed_parts,
    check_part_name,
    content_from,
    same,
    with_values,
)

VECTORS = Path(__file__).parents[3] / "vectors" / "config"


def stamp(number: int = 0, note: str | None = None) -> Stamp:
    return Stamp(f"t{number}", "ana@host:1", 1_000 + number, note)


def version(count: int, content: dict[str, dict[str, object]] | None = None) -> Document:
    document = NOBODYS
    for number in range(1, count + 1):
        document = document.changed(content or {"writer": {"linger_ms": number}}, stamp(number))
    return document


def test_a_version_grows_by_one_with_each_change_and_keeps_the_one_before() -> None:
    document = version(3)
    assert (document.version, document.token, document.at_us) == (3, "t3", 1_003)
    assert [kept.version for kept in document.history] == [1, 2]
    assert document.oldest == 1
    assert document.token_of(2) == "t2"
    assert document.token_of(4) is None


def test_versions_go_on_growing_when_history_is_trimmed() -> None:
    document = version(limits.CONFIG_HISTORY_MAX + 10)
    assert document.version == limits.CONFIG_HISTORY_MAX + 10
    assert len(document.history) == limits.CONFIG_HISTORY_MAX
    assert document.oldest == 10
    assert document.token_of(9) is None


def test_history_is_bounded_in_bytes() -> None:
    large = {"writer": {"text": "x" * 60_000}}
    document = version(30, large)
    size = sum(kept.bytes for kept in document.history)
    assert limits.CONFIG_HISTORY_BYTES_MAX - 61_000 < size <= limits.CONFIG_HISTORY_BYTES_MAX


def test_the_node_is_bounded_whatever_the_notes_say() -> None:
    document = NOBODYS
    for number in range(40):
        at = Stamp(f"t{number}", "ana", number, "ü" * limits.CONFIG_NOTE_CHARACTERS_MAX)
        document = document.changed({"writer": {"text": "x" * 60_000}}, at)
    raw = document.to_bytes()
    assert len(raw) < limits.CONFIG_BYTES_MAX + limits.CONFIG_HISTORY_LIST_BYTES_MAX + 4096
    with pytest.raises(TooLarge):
        version(1, {"writer": {"text": "x" * limits.CONFIG_BYTES_MAX}}).to_bytes()


def test_bytes_come_back_as_they_were() -> None:
    document = version(3)
    assert Document.from_bytes(document.to_bytes(), where="/x") == document
    old = Document.from_bytes(document.old_bytes(), where="/x")
    assert (old.version, old.content, old.history) == (3, document.content, ())


@pytest.mark.parametrize("name", ["first", "rolled_back", "kept"])
def test_stored_bytes_are_still_the_same(name: str) -> None:
    raw = (VECTORS / f"{name}.json").read_bytes()
    assert Document.from_bytes(raw, where=name).to_bytes() == raw


def test_the_history_of_documents_in_vectors() -> None:
    """A version, the next one as it is kept, and a rollback to the first."""
    first, kept, back = (
        Document.from_bytes((VECTORS / f"{name}.json").read_bytes(), where=name)
        for name in ("first", "kept", "rolled_back")
    )
    assert [first.version, kept.version, back.version] == [1, 2, 3]
    assert (back.content, back.restores) == (first.content, 1)
    assert [(each.version, each.bytes) for each in back.history] == [
        (1, len(first.old_bytes())),
        (2, len(kept.old_bytes())),
    ]


def test_fields_that_nobody_here_knows_survive_a_change() -> None:
    fields = json.loads(version(2).to_bytes())
    fields["newer"] = {"a": 1}
    fields["history"][0]["newer"] = 2
    fields["content"]["unknown"] = {"x": [1, {"y": None}]}
    document = Document.from_bytes(json.dumps(fields).encode(), where="/x")
    content = with_values(document.content, "writer", {"linger_ms": 9})
    again = json.loads(document.changed(content, stamp(3)).to_bytes())
    assert again["newer"] == {"a": 1}
    assert again["history"][0]["newer"] == 2
    assert again["content"]["unknown"] == {"x": [1, {"y": None}]}
    assert again["version"] == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 2),
        ("needs", ["more"]),
        ("version", 0),
        ("version", "3"),
        ("version", 9),  # the history does not lead there
        ("content", []),
        ("content", {"writer": 3}),
        ("content", {"Writer": {}}),
        ("token", ""),
        ("history", [{"version": 2}]),
        ("restores", "1"),
    ],
)
def test_what_is_no_document_is_refused(field: str, value: object) -> None:
    fields = json.loads(version(3).to_bytes())
    fields[field] = value
    with pytest.raises(FormatError):
        Document.from_bytes(json.dumps(fields).encode(), where="/x")


def test_content_is_a_copy_in_the_terms_of_json() -> None:
    given = {"writer": {"a": (1, 2)}}
    content = content_from(given)
    assert content == {"writer": {"a": [1, 2]}}
    for wrong in ({"writer": {"a": object()}}, {"writer": {"a": float("nan")}}, [1], {"a": 1}):
        with pytest.raises(ConfigError):
            content_from(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        content_from({"a": {"x": "\ud800"}})
    deep: object = 1
    for _ in range(limits.CONFIG_DEPTH_MAX + 1):
        deep = [deep]
    with pytest.raises(ConfigError):
        content_from({"a": {"x": deep}})
    with pytest.raises(ConfigError):
        content_from({f"p{n}": {} for n in range(limits.CONFIG_PARTS_MAX + 1)})


def test_true_is_not_one() -> None:
    assert same({"a": [1]}, {"a": [1]})
    assert not same({"a": [1]}, {"a": [True]})
    assert not same({}, None)
    assert changed_parts({"a": {"x": 1}, "b": {}}, {"a": {"x": True}, "c": {}}) == ["a", "b", "c"]


def test_values_are_set_and_unset_and_an_empty_part_is_gone() -> None:
    content = {"writer": {"a": 1, "b": 2}, "log": {"c": 3}}
    assert with_values(content, "writer", {"a": 5}, ("b",)) == {"writer": {"a": 5}, "log": {"c": 3}}
    assert with_values(content, "log", {}, ("c",)) == {"writer": {"a": 1, "b": 2}}
    assert content["log"] == {"c": 3}
    with pytest.raises(ConfigError):
        with_values(content, "writer", {"a": 1}, ("a",))


@pytest.mark.parametrize("name", ["", "Writer", "1a", "a" * 65, "a/b", None])
def test_a_part_has_a_plain_name(name: object) -> None:
    with pytest.raises(ConfigError):
        check_part_name(name)


@pytest.mark.parametrize(("who", "note"), [("", None), ("a\n", None), ("a", ""), ("a", "x" * 501)])
def test_who_and_note_are_short_plain_text(who: str, note: str | None) -> None:
    with pytest.raises(ConfigError):
        Stamp("t", who, 0, note)


def nested(levels: int) -> dict[str, object]:
    """A document of so many levels, its own among them."""
    inner: dict[str, object] = {}
    for _ in range(levels - 2):
        inner = {"x": inner}
    return {"part": inner}


def test_a_document_has_so_many_levels_and_no_more() -> None:
    most = limits.CONFIG_DEPTH_MAX
    assert content_from(nested(most)) == nested(most)
    with pytest.raises(ConfigError, match=f"at most {most} levels"):
        content_from(nested(most + 1))
    wide: dict[str, dict[str, object]] = {"part": {f"k{n}": [] for n in range(2 * most)}}
    assert content_from(wide) == wide, "many beside each other are not deep"


def test_a_version_says_who_made_it_when_and_why() -> None:
    document = NOBODYS.changed({"a": {"x": 1}}, Stamp("t1", "ana@host:1", 7, "to begin with"))
    document = document.changed({"a": {"x": 2}}, Stamp("t2", "bob@host:2", 9, None), restores=1)
    assert (document.who, document.at_us, document.note) == ("bob@host:2", 9, None)
    assert document.restores == 1
    (kept,) = document.history
    assert (kept.who, kept.at_us, kept.note) == ("ana@host:1", 7, "to begin with")
    assert (kept.token, kept.restores) == ("t1", None)
