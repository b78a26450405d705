"""What is in force: newer versions only, all of one, and nothing that did not change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dlog.effects import Effect, Pause, Procedure, ReadNode
from dlog.errors import ConfigError, NotFound, Unavailable
from dlog.meta.store import Versioned
from dlog.streams.config.document import Content, Document
from dlog.streams.config.following import (
    Following,
    NodeSource,
    Plain,
    Ready,
    Refused,
    Taken,
    UntilTold,
    follow,
)

PATH = "/dlog/config/prod"


def version(number: int, **content: Mapping[str, Any]) -> Document:
    return Document(version=number, content=content, token=f"t{number}", who="ana")


class Fixed:
    """A source that says what it is told to, and counts who asks."""

    def __init__(self) -> None:
        self.document = Document()
        self.asked: list[str] = []

    def version(self, *, fresh: bool) -> Procedure[int]:
        self.asked.append("version")
        yield from ()
        return self.document.version

    def get(self) -> Procedure[Document]:
        self.asked.append("get")
        yield from ()
        return self.document


class Recorder:
    """A part that keeps what it was told, and where it was told it."""

    def __init__(self, name: str, shared: list[str] | None = None) -> None:
        self.name = name
        self.now: Any = None
        self.calls: list[str] = [] if shared is None else shared
        self.refuses: Any = object()
        self.breaks: Any = object()

    def prepare(self, content: Mapping[str, Any] | None) -> Ready:
        value = (content or {}).get("x")
        self.calls.append(f"prepare {self.name} {value}")
        if value == self.refuses:
            raise ConfigError(f"x is not {value}")

        def put() -> None:
            self.calls.append(f"swap {self.name} {value}")
            self.now = value
            if value == self.breaks:
                raise RuntimeError("a defect")

        return Ready(value, put)


def run(procedure: Procedure[Any]) -> Any:
    try:
        while True:
            raise AssertionError(procedure.send(None))
    except StopIteration as stop:
        return stop.value


def followed(*parts: Any) -> tuple[Following, Fixed]:
    source = Fixed()
    return Following(source, parts), source


def test_newer_is_fetched_and_put_in_force() -> None:
    """CL-01: ask for the version; if it is newer, fetch the document and make the handle anew."""
    part = Recorder("routing")
    core, source = followed(part)
    source.document = version(3, routing={"x": 7})
    assert run(core.look()) == Taken(3, ("routing",))
    assert (core.version, part.now, core.in_force["routing"]) == (3, 7, 7)
    assert source.asked == ["version", "get"]


@pytest.mark.parametrize("number", [3, 2, 0])
def test_not_newer_does_nothing(number: int) -> None:
    """CL-02: no fetch, nothing prepared, nothing swapped; the same version, and an older one out
    of a stale read."""
    part = Recorder("routing")
    core, source = followed(part)
    source.document = version(3, routing={"x": 7})
    run(core.look())
    before = core.in_force
    source.asked.clear()
    part.calls.clear()
    source.document = version(number, routing={"x": 1})
    for _ in range(100):
        assert run(core.look(fresh=False)) is None
    assert source.asked == ["version"] * 100
    assert part.calls == []
    assert core.in_force is before
    assert (core.looks, core.fetches) == (101, 1)


def test_an_older_document_is_not_taken_either() -> None:
    """CL-02: also where the version was newer when it was asked for."""
    part = Recorder("routing")
    core, _ = followed(part)
    assert core.take(version(3, routing={"x": 7})) is not None
    assert core.take(version(2, routing={"x": 1})) is None
    assert core.take(version(3, routing={"x": 1})) is None
    assert part.now == 7


def test_only_parts_that_changed_are_made_anew() -> None:
    """CL-02 for each part: counted, and nobody else is touched."""
    ring, health = Recorder("routing"), Recorder("health")
    core, _ = followed(ring, health)
    core.take(version(1, routing={"x": 1}, health={"x": 1}))
    core.take(version(2, routing={"x": 2}, health={"x": 1}))
    core.take(version(3, routing={"x": 2}, health={"x": 1}, other={"x": 1}))
    assert core.take(version(4, routing={"x": 2})) == Taken(4, ("health",))
    assert dict(core.swapped) == {"routing": 3, "health": 3}  # with the one at their beginning
    assert dict(core.prepared) == {"routing": 3, "health": 3}
    assert (ring.now, health.now) == (2, None)


def test_the_ring_and_all_else_change_together() -> None:
    """CL-08, CL-20, CL flaw 6 ("config version swap is not atomic with the ring"): all parts are
    prepared before any is swapped, and the swaps follow each other with nothing between."""
    calls: list[str] = []
    ring, health = Recorder("routing", calls), Recorder("health", calls)
    core, _ = followed(ring, health)
    calls.clear()
    core.take(version(1, routing={"x": 1}, health={"x": 1}))
    assert calls == ["prepare routing 1", "prepare health 1", "swap routing 1", "swap health 1"]


def test_whoever_took_what_is_in_force_has_all_of_a_version() -> None:
    """CL-08: one value, replaced once, so that no thread sees half of it."""
    core, _ = followed(Plain("routing"), Plain("health"))
    core.take(version(1, routing={"x": 1}, health={"x": 1}))
    before = core.in_force
    core.take(version(2, routing={"x": 2}, health={"x": 2}))
    assert (before.version, before["routing"]["x"], before["health"]["x"]) == (1, 1, 1)
    after = core.in_force
    assert (after.version, after["routing"]["x"], after["health"]["x"]) == (2, 2, 2)


def test_a_refused_document_leaves_the_old_one_in_force_and_says_why() -> None:
    ring, health = Recorder("routing"), Recorder("health")
    health.refuses = 2
    core, _ = followed(ring, health)
    core.take(version(1, routing={"x": 1}, health={"x": 1}))
    refused = core.take(version(2, routing={"x": 2}, health={"x": 2}))
    assert refused == Refused(2, "health", "x is not 2")
    assert core.refused == refused
    assert (core.version, ring.now, health.now) == (1, 1, 1)
    assert "swap routing 2" not in ring.calls


def test_a_refused_version_is_not_looked_at_again_and_a_newer_one_is() -> None:
    """CL-02: a part that refuses is not asked at every look."""
    ring = Recorder("routing")
    ring.refuses = 2
    core, source = followed(ring)
    source.document = version(2, routing={"x": 2})
    assert isinstance(run(core.look()), Refused)
    count = len(ring.calls)
    for _ in range(10):
        assert run(core.look()) is None
    assert len(ring.calls) == count
    source.document = version(3, routing={"x": 3})
    assert run(core.look()) == Taken(3, ("routing",))
    assert core.refused is None


def test_what_follows_a_refused_version_is_compared_with_what_is_in_force() -> None:
    ring, health = Recorder("routing"), Recorder("health")
    health.refuses = 2
    core, _ = followed(ring, health)
    core.take(version(1, routing={"x": 1}, health={"x": 1}))
    core.take(version(2, routing={"x": 2}, health={"x": 2}))
    assert core.take(version(3, routing={"x": 2}, health={"x": 1})) == Taken(3, ("routing",))
    assert (ring.now, health.now) == (2, 1)


def test_a_part_that_fails_after_all_leaves_nothing_half() -> None:
    """Two phases: `swap` may not fail. One that does is undone, with all that went before it."""
    ring, health, last = Recorder("routing"), Recorder("health"), Recorder("last")
    health.breaks = 2
    core, _ = followed(ring, health, last)
    core.take(version(1, routing={"x": 1}, health={"x": 1}, last={"x": 1}))
    before = core.in_force
    refused = core.take(version(2, routing={"x": 2}, health={"x": 2}, last={"x": 2}))
    assert isinstance(refused, Refused)
    assert (refused.part, "a defect" in refused.why) == ("health", True)
    assert (ring.now, health.now, last.now) == (1, 1, 1)
    assert core.in_force is before
    assert core.take(version(3, routing={"x": 3})) is not None
    assert (ring.now, health.now, last.now) == (3, None, None)


def test_a_part_that_cannot_be_put_back_is_named_and_the_others_are() -> None:
    ring, health, last = Recorder("routing"), Recorder("health"), Recorder("last")
    core, _ = followed(ring, health, last)
    core.take(version(1, routing={"x": 1}, health={"x": 1}, last={"x": 1}))
    ring.breaks, last.breaks = 1, 2  # the first part's defect is seen when it is put back
    refused = core.take(version(2, routing={"x": 2}, health={"x": 2}, last={"x": 2}))
    assert isinstance(refused, Refused)
    assert refused.part == "last"
    assert "routing could not be put back" in refused.why
    assert "health" not in refused.why
    assert (health.now, last.now, core.version) == (1, 1, 1)


def test_what_can_be_put_back_is_not_said_to_be_lost() -> None:
    ring, health = Recorder("routing"), Recorder("health")
    core, _ = followed(ring, health)
    core.take(version(1, routing={"x": 1}, health={"x": 1}))
    health.breaks = 2
    refused = core.take(version(2, routing={"x": 2}, health={"x": 2}))
    assert isinstance(refused, Refused)
    assert refused.why.endswith("RuntimeError('a defect')")


def test_a_part_that_raises_anything_refuses() -> None:
    class Odd:
        name = "odd"

        def prepare(self, content: Mapping[str, Any] | None) -> Ready:
            return Ready((content or {"x": 1})["x"])

    core, _ = followed(Odd())
    refused = core.take(version(2, odd={"y": 1}))
    assert isinstance(refused, Refused)
    assert "KeyError" in refused.why


def test_a_part_that_comes_later_begins_with_what_is_in_force() -> None:
    core, _ = followed()
    core.take(version(4, routing={"x": 4}))
    ring = Recorder("routing")
    core.add(ring)
    assert (ring.now, core.in_force["routing"], core.version) == (4, 4, 4)
    with pytest.raises(ConfigError):
        core.add(Recorder("routing"))
    bad = Recorder("health")
    bad.refuses = None
    with pytest.raises(ConfigError):
        core.add(bad)
    assert core.parts == ("routing",)
    core.drop("routing")
    core.take(version(5, routing={"x": 5}))
    assert ring.now == 4


# --- the node


def reply(procedure: Procedure[Any], *answers: Any) -> tuple[Any, list[Effect]]:
    """Answers effects in turn, and what was asked for."""
    asked: list[Effect] = []
    left = list(answers)
    try:
        effect = next(procedure)
        while True:
            asked.append(effect)
            answer = left.pop(0)
            if isinstance(answer, Exception):
                effect = procedure.throw(answer)
            else:
                effect = procedure.send(answer)
    except StopIteration as stop:
        assert not left
        return stop.value, asked


def stored(number: int, at: int, content: Content | None = None) -> Versioned:
    return Versioned(version(number, **(content or {})).to_bytes(), at)


def test_a_node_that_is_not_there_is_version_0() -> None:
    source = NodeSource(PATH)
    found, _ = reply(source.version(fresh=True), NotFound("none"))
    assert found == 0


def test_a_node_that_was_not_written_is_not_taken_apart_again() -> None:
    """CL-02: one read for the version, none for a document that is known."""
    source = NodeSource(PATH)
    core = Following(source, (Recorder("routing"),))
    raw = stored(3, 17, {"routing": {"x": 1}})
    _, asked = reply(core.look(), raw)
    assert len(asked) == 1
    for _ in range(10):
        reply(core.look(), raw)
    assert (source.parsed, core.looks, core.fetches) == (1, 11, 1)
    reply(core.look(), raw._replace(version=18))  # stored again as it is, by a stranger
    assert (source.parsed, core.fetches) == (2, 1)


def test_a_document_that_cannot_be_read_is_refused_once() -> None:
    core = Following(NodeSource(PATH))
    reply(core.look(), stored(1, 5))
    refused, _ = reply(core.look(), Versioned(b"{", 6))
    assert isinstance(refused, Refused)
    assert (refused.version, core.version) == (None, 1)
    again, _ = reply(core.look(), Versioned(b"{", 6))
    assert again is None
    assert core.refused == refused
    taken, _ = reply(core.look(), stored(2, 7))
    assert taken == Taken(2, ())
    assert core.refused is None


def test_a_document_that_was_made_anew_is_told_and_not_gone_back_to() -> None:
    """CL-01: versions only grow, also where somebody removed the document by hand."""
    part = Recorder("routing")
    core = Following(NodeSource(PATH), (part,))
    reply(core.look(), stored(7, 5, {"routing": {"x": 7}}))
    stale, _ = reply(core.look(fresh=False), stored(6, 4, {"routing": {"x": 6}}))
    assert (stale, core.refused) == (None, None)  # an old read says nothing
    told, _ = reply(core.look(), stored(1, 9, {"routing": {"x": 1}}))
    assert isinstance(told, Refused)
    assert (told.version, core.version, part.now) == (1, 7, 7)
    again, _ = reply(core.look(), stored(1, 9, {"routing": {"x": 1}}))
    assert again is None
    gone, _ = reply(core.look(), NotFound("none"))
    assert isinstance(gone, Refused)
    reply(core.look(), stored(7, 5, {"routing": {"x": 7}}))
    assert core.refused is None
    taken, _ = reply(core.look(), stored(8, 11, {"routing": {"x": 8}}))
    assert taken == Taken(8, ("routing",))


# --- for ever


class Half:
    def fraction(self) -> float:
        return 0.5

    def token(self) -> str:
        return "t"


def test_it_looks_when_told_and_after_a_while_without() -> None:
    core = Following(NodeSource(PATH))
    heard: list[Any] = []
    going = follow(core, PATH, poll_ms=1000, chance=Half(), heard=heard.append)
    first = next(going)
    assert isinstance(first, ReadNode)
    assert first.fresh
    wait = going.send(stored(1, 5))
    assert isinstance(wait, UntilTold)
    assert 500 <= wait.timeout_ms <= 1000
    told = going.send(True)
    assert isinstance(told, ReadNode)
    assert not told.fresh  # what was told of is behind it
    assert isinstance(going.send(stored(2, 6)), UntilTold)
    poll = going.send(False)
    assert isinstance(poll, ReadNode)
    assert poll.fresh  # nobody told: what is at hand may be old
    assert heard == [Taken(1, ()), Taken(2, ())]


def test_a_store_that_is_away_changes_nothing_and_is_asked_again() -> None:
    core = Following(NodeSource(PATH))
    heard: list[Any] = []
    going = follow(core, PATH, poll_ms=1000, chance=Half(), heard=heard.append)
    next(going)
    going.send(stored(1, 5))
    going.send(True)
    for _ in range(20):
        pause = going.throw(Unavailable("away"))
        assert isinstance(pause, Pause)
        assert 0.01 < pause.seconds <= 1.0
        assert isinstance(core.trouble, Unavailable)
        assert core.version == 1
        read = going.send(None)
        assert isinstance(read, ReadNode)
        assert read.fresh
    going.send(stored(2, 6))
    assert core.trouble is None
    assert core.version == 2
    assert heard == [Taken(1, ()), *[None] * 20, Taken(2, ())]
