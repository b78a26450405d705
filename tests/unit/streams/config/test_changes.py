"""Changes of a document, reply by reply and step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dlog import limits
from dlog.effects import (
    CreateNode,
    DeleteNode,
    Effect,
    ListNodes,
    Pause,
    Procedure,
    ReadNode,
    ReplaceNode,
)
from dlog.errors import Conflict, Corrupt, DlogError, NotFound, Outcome, Retry, Timeout, Unavailable
from dlog.meta.memory import MemoryTree
from dlog.streams.config.changes import (
    change_document,
    history_path,
    old_path,
    read_document,
    read_version,
    roll_back,
)
from dlog.streams.config.document import Content, Document, Stamp, with_values

PATH = "/dlog/config/prod"


class Even:
    def fraction(self) -> float:
        return 0.5

    def token(self) -> str:
        return "t"


class Store:
    """Performs effects on a tree, at once; `meddle(effect, number)` may raise, or do more."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.asked: list[Effect] = []
        self.meddle: Callable[[Effect, int], None] = lambda effect, number: None
        self.after: Callable[[Effect, int], None] = lambda effect, number: None

    def run(self, procedure: Any) -> Any:
        answer: Any = None
        error: DlogError | None = None
        while True:
            try:
                effect = procedure.send(answer) if error is None else procedure.throw(error)
            except StopIteration as stop:
                return stop.value
            answer, error = None, None
            self.asked.append(effect)
            number = len(self.asked)
            try:
                self.meddle(effect, number)
                answer = self.perform(effect)
                self.after(effect, number)
            except DlogError as refused:
                error = refused

    def perform(self, effect: Effect) -> Any:
        tree = self.tree
        match effect:
            case ReadNode(path=path):
                return tree.get(path)
            case CreateNode(path=path, value=value):
                return tree.create(path, value, owner=None, sequential=False).version
            case ReplaceNode(path=path, value=value, version=version):
                return tree.put(path, value, version)
            case DeleteNode(path=path, version=version):
                return tree.delete(path, version)
            case ListNodes(path=path):
                return tree.children(path)
            case Pause():
                return None
        raise AssertionError(effect)

    def set(self, values: dict[str, Any], token: str, **options: Any) -> Document:
        found = self.run(
            change_document(PATH, stamp(token), setting(values), chance=Even(), **options)
        )
        assert isinstance(found, Document)
        return found

    def now(self) -> Document:
        return self.run(read_document(PATH)).document

    def kept(self) -> list[int]:
        return [int(name) for name in self.tree.children(history_path(PATH))]


def stamp(token: str) -> Stamp:
    return Stamp(token, "ana", 7)


def setting(values: dict[str, Any]) -> Callable[[Content], Content]:
    return lambda content: with_values(content, "writer", values)


@pytest.fixture
def store() -> Store:
    return Store()


def test_each_change_makes_the_next_version_and_keeps_the_one_before(store: Store) -> None:
    for number in (1, 2, 3):
        assert store.set({"linger_ms": number}, f"t{number}").version == number
    assert store.now().content == {"writer": {"linger_ms": 3}}
    assert store.kept() == [1, 2]
    old = store.run(read_version(PATH, 2))
    assert (old.version, old.content, old.token) == (2, {"writer": {"linger_ms": 2}}, "t2")
    assert store.run(read_version(PATH, 3)) == store.now()


def test_what_says_nothing_new_makes_no_version(store: Store) -> None:
    store.set({"linger_ms": 1}, "t1")
    assert store.set({"linger_ms": 1}, "t2").version == 1
    assert store.set({"linger_ms": True}, "t3").version == 2  # true is not 1


def test_the_older_version_is_written_before_the_document_names_it(store: Store) -> None:
    store.set({"linger_ms": 1}, "t1")
    store.asked.clear()
    store.set({"linger_ms": 2}, "t2")
    writes = [each.path for each in store.asked if isinstance(each, CreateNode | ReplaceNode)]
    assert writes == [old_path(PATH, 1), PATH]


def test_who_dies_between_leaves_nothing_half(store: Store) -> None:
    store.set({"linger_ms": 1}, "t1")

    class Died(BaseException):
        pass

    def die(effect: Effect, number: int) -> None:
        if isinstance(effect, ReplaceNode):
            raise Died

    store.meddle = die
    with pytest.raises(Died):
        store.set({"linger_ms": 2}, "t2")
    store.meddle = lambda effect, number: None
    assert store.now().version == 1
    assert store.kept() == [1]
    assert store.set({"linger_ms": 3}, "t3").version == 2
    assert [kept.version for kept in store.now().history] == [1]
    assert store.run(read_version(PATH, 1)).content == {"writer": {"linger_ms": 1}}


def test_older_versions_are_bounded_and_swept(store: Store) -> None:
    count = limits.CONFIG_HISTORY_MAX + 5
    for number in range(1, count + 1):
        store.set({"linger_ms": number}, f"t{number}")
    oldest = count - limits.CONFIG_HISTORY_MAX
    assert store.kept() == list(range(oldest, count))
    with pytest.raises(NotFound, match=f"there is {oldest} to {count}"):
        store.run(read_version(PATH, oldest - 1))


def test_a_foreign_node_among_older_versions_stays_and_stops_no_sweep(store: Store) -> None:
    store.set({"linger_ms": 0}, "t0")
    store.set({"linger_ms": 1}, "t1")
    foreign = f"{history_path(PATH)}/0-notes"
    store.run(_made(foreign))
    count = limits.CONFIG_HISTORY_MAX + 5
    for number in range(2, count):
        store.set({"linger_ms": number}, f"t{number}")
    names = store.run(_listed(history_path(PATH)))
    assert "0-notes" in names
    assert len(names) == limits.CONFIG_HISTORY_MAX + 1


def _made(path: str) -> Procedure[object]:
    return (yield CreateNode(path, b"of somebody else"))


def _listed(path: str) -> Procedure[list[str]]:
    return (yield ListNodes(path))


def test_a_sweep_that_fails_is_made_up_for(store: Store) -> None:
    def away(effect: Effect, number: int) -> None:
        if isinstance(effect, DeleteNode | ListNodes):
            raise Unavailable("away")

    store.meddle = away
    count = limits.CONFIG_HISTORY_MAX + 3
    for number in range(1, count + 1):
        store.set({"linger_ms": number}, f"t{number}")
    assert len(store.kept()) == count - 1
    store.meddle = lambda effect, number: None
    store.set({"linger_ms": 0}, "last")
    assert len(store.kept()) == limits.CONFIG_HISTORY_MAX


def test_a_rollback_is_a_new_version(store: Store) -> None:
    for number in (1, 2, 3):
        store.set({"linger_ms": number}, f"t{number}")
    back = store.run(roll_back(PATH, stamp("back"), 1, chance=Even()))
    assert (back.version, back.restores) == (4, 1)
    assert back.content == {"writer": {"linger_ms": 1}}
    assert [kept.version for kept in back.history] == [1, 2, 3]
    with pytest.raises(NotFound):
        store.run(roll_back(PATH, stamp("back"), 9, chance=Even()))


def test_a_version_that_says_something_else_is_corrupt(store: Store) -> None:
    for number in (1, 2):
        store.set({"linger_ms": number}, f"t{number}")
    _, at = store.tree.get(old_path(PATH, 1))
    other = Document().changed({"writer": {}}, stamp("other")).old_bytes()
    store.tree.put(old_path(PATH, 1), other, at)
    with pytest.raises(Corrupt):
        store.run(read_version(PATH, 1))


# --- two at once


def test_no_change_is_lost_to_another(store: Store) -> None:
    """Lost updates: who loses the compare-and-set makes the change again on what is there."""
    store.set({"linger_ms": 1}, "t1")

    def rival(effect: Effect, number: int) -> None:
        if isinstance(effect, ReplaceNode):
            store.meddle = lambda effect, number: None
            store.set({"window_entries": 5}, "rival")

    store.meddle = rival
    assert store.set({"linger_ms": 2}, "ours").version == 3
    assert store.now().content == {"writer": {"linger_ms": 2, "window_entries": 5}}


def test_if_version_is_refused_for_good(store: Store) -> None:
    store.set({"linger_ms": 1}, "t1", if_version=0)
    with pytest.raises(Conflict) as refused:
        store.set({"linger_ms": 2}, "t2", if_version=0)
    assert (refused.value.retry, refused.value.outcome) == (Retry.NEVER, Outcome.NOT_HAPPENED)
    assert store.set({"linger_ms": 2}, "t2", if_version=1).version == 2


def test_two_make_the_document_at_once(store: Store) -> None:
    def rival(effect: Effect, number: int) -> None:
        if isinstance(effect, CreateNode):
            store.meddle = lambda effect, number: None
            store.set({"window_entries": 5}, "rival")

    store.meddle = rival
    assert store.set({"linger_ms": 2}, "ours").version == 2
    assert store.now().content == {"writer": {"linger_ms": 2, "window_entries": 5}}


# --- replies that are lost


def lost(store: Store, *, then: Callable[[], object] = lambda: None, applied: bool = True) -> None:
    """The reply to the next write of the document is lost; it was applied, or not."""

    def before(effect: Effect, number: int) -> None:
        if _writes_document(effect) and not applied:
            store.meddle = lambda effect, number: None
            then()
            raise Timeout("no reply")

    def after(effect: Effect, number: int) -> None:
        if _writes_document(effect) and applied:
            store.after = lambda effect, number: None
            then()
            raise Timeout("no reply")

    store.meddle, store.after = before, after


def _writes_document(effect: Effect) -> bool:
    return isinstance(effect, CreateNode | ReplaceNode) and effect.path == PATH


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_lost_reply_is_resolved_by_reading(store: Store, applied: bool, before: int) -> None:
    for number in range(before):
        store.set({"linger_ms": number}, f"t{number}")
    lost(store, applied=applied)
    assert store.set({"linger_ms": 9}, "ours").version == before + 1
    assert store.now().version == before + 1
    assert store.now().token == "ours"


def test_a_lost_reply_is_recognised_below_the_changes_of_others(store: Store) -> None:
    store.set({"linger_ms": 1}, "t1")

    def others() -> None:
        for number in range(3):
            store.set({"window_entries": 10 + number}, f"other{number}")

    lost(store, then=others)
    assert store.set({"linger_ms": 9}, "ours").version == 2
    assert store.now().version == 5
    assert store.now().content == {"writer": {"linger_ms": 9, "window_entries": 12}}


def test_a_lost_reply_below_too_many_changes_is_told_as_unknown(store: Store) -> None:
    store.set({"linger_ms": 1}, "t1")

    def others() -> None:
        for number in range(limits.CONFIG_HISTORY_MAX + 2):
            store.set({"window_entries": 10 + number}, f"other{number}")

    lost(store, then=others)
    with pytest.raises(Timeout) as told:
        store.set({"linger_ms": 9}, "ours")
    assert told.value.outcome is Outcome.UNKNOWN


def test_a_write_that_comes_late_is_not_made_twice(store: Store) -> None:
    """It is sent again; the first one arrives just before the second, which is refused."""
    store.set({"linger_ms": 1}, "t1")
    writes: list[ReplaceNode] = []

    def late(effect: Effect, number: int) -> None:
        if isinstance(effect, ReplaceNode) and effect.path == PATH:
            writes.append(effect)
            if len(writes) == 1:
                raise Timeout("no reply")
            if len(writes) == 2:
                store.perform(writes[0])

    store.meddle = late
    assert store.set({"linger_ms": 9}, "ours").version == 2
    assert store.now().version == 2


def test_a_change_that_was_refused_is_not_taken_for_another_one(store: Store) -> None:
    store.set({"linger_ms": 1}, "t1")
    lost(store, applied=False, then=lambda: store.set({"linger_ms": 5}, "rival"))
    assert store.set({"linger_ms": 9}, "ours").version == 3
    assert [kept.token for kept in store.now().history] == ["t1", "rival"]


@pytest.mark.parametrize("kind", [ReadNode, CreateNode])
def test_what_did_not_reach_the_document_did_not_happen(store: Store, kind: type[Effect]) -> None:
    """A read, or the keeping of the older version, that gets no answer for good."""
    store.set({"linger_ms": 1}, "t1")

    def away(effect: Effect, number: int) -> None:
        if isinstance(effect, kind):
            raise Timeout("no reply")

    store.meddle = away
    with pytest.raises(Timeout) as told:
        store.set({"linger_ms": 2}, "t2")
    assert told.value.outcome is Outcome.NOT_HAPPENED


def test_what_may_have_happened_is_told_so(store: Store) -> None:
    store.set({"linger_ms": 1}, "t1")
    sent = False

    def away(effect: Effect, number: int) -> None:
        nonlocal sent
        sent = sent or _writes_document(effect)
        if sent and not isinstance(effect, Pause):
            raise Timeout("no reply") if _writes_document(effect) else Unavailable("away")

    store.meddle = away
    with pytest.raises(Unavailable) as told:
        store.set({"linger_ms": 2}, "t2")
    assert told.value.outcome is Outcome.UNKNOWN


def test_a_node_that_another_life_of_the_document_left_is_replaced(store: Store) -> None:
    store.set({"linger_ms": 1}, "t1")
    store.tree.create(old_path(PATH, 1), b"{}", owner=None, sequential=False)
    assert store.set({"linger_ms": 2}, "t2").version == 2
    assert store.run(read_version(PATH, 1)).token == "t1"


def test_reading_says_where_nobody_made_it(store: Store) -> None:
    found = store.run(read_document(PATH))
    assert (found.document.version, found.version) == (0, None)
    with pytest.raises(NotFound):
        store.run(read_version(PATH, 0))
