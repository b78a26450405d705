"""What is promised of a document that changes while programs run, held against every write of it
and against what each follower has in force.

It hears each write as it is applied, and looks at a follower whenever that asks for something:
there others of its process could see it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlog import limits
from dlog.errors import Conflict, DlogError, Outcome, Retry
from dlog.streams.config.changes import history_path, old_path
from dlog.streams.config.document import NOBODYS, Content, Document, same
from dlog.streams.config.following import Refused, Taken
from dlog.testing.sim.metadata import SimMeta
from dlog.testing.sim.world import Violation, World, require

if TYPE_CHECKING:
    from dlog.testing.sim.streams_config import Follower

PATH = "/dlog/config/prod"
PARTS = ("a", "b", "c")
BAD, BREAKS = "bad", "breaks"

GROWS = "CL-01: versions strictly grow"
WHOLE = "CL-08: one version whole"
UNTOUCHED = "CL-02: what did not change is not touched"
UPDATES = "CF-1: no update is lost or made twice"
HISTORY = "CF-2: history is exact"
TOLD = "CF-3: what editors are told is true"
REACHED = "CF-4: the newest valid version comes into force"


@dataclass(frozen=True, slots=True)
class Edit:
    """A change as its editor means it."""

    token: str
    change: Callable[[Content], Content]
    if_version: int | None
    since: int  # the newest version when it was begun
    rolls_back_to: int | None = None


class ConfigOracle:
    def __init__(self, world: World, meta: SimMeta) -> None:
        self.world = world
        self.meta = meta
        self.documents: dict[int, Document] = {0: NOBODYS}
        self.newest = NOBODYS
        self.edits: dict[str, Edit] = {}
        self.made: dict[str, int] = {}  # version by token
        self.never: set[str] = set()  # tokens of which editors were told that nothing happened
        meta.audit = self.on_write

    # --- the document

    def on_write(self, path: str, value: bytes) -> None:
        if path != PATH:
            return
        document = Document.from_bytes(value, where=path)
        before = self.newest
        if document.version == before.version:
            require(value == before.to_bytes(), UPDATES, "a version became another", document)
            return
        require(
            document.version == before.version + 1, UPDATES, "a version was passed over", document
        )
        token = document.token
        require(token not in self.made, UPDATES, "a change was made twice", token)
        edit = self.edits[token]
        wanted = edit.change(before.content)
        require(
            same(document.content, wanted), UPDATES, "a change of others was lost", before, document
        )
        require(not same(wanted, before.content), UPDATES, "a version that says nothing new")
        if edit.if_version is not None:
            require(before.version == edit.if_version, UPDATES, "made over another version")
        require(document.restores == edit.rolls_back_to, HISTORY, "what it restores", document)
        self.made[token] = document.version
        self.documents[document.version] = self.newest = document
        self._check_history()
        self.world.mark("changed")

    def _check_history(self) -> None:
        document = self.newest
        first = max(document.version - limits.CONFIG_HISTORY_MAX, 1)
        kept = [(each.version, each.token, each.who) for each in document.history]
        wanted = [
            (each.version, each.token, each.who)
            for each in (self.documents[n] for n in range(first, document.version))
        ]
        require(kept == wanted, HISTORY, "the history is another", kept, wanted)
        self.check_kept()

    def check_kept(self) -> None:
        """Whatever the document names can be read, as it was."""
        for each in self.newest.history:
            raw = self.meta.value(old_path(PATH, each.version))
            require(raw is not None, HISTORY, "a version that is named is not there", each)
            assert raw is not None
            wanted = self.documents[each.version].old_bytes()
            require(raw == wanted, HISTORY, "a version is kept as another", each)

    def check_swept(self) -> None:
        numbers = {int(name) for name in self.meta.below(history_path(PATH))}
        kept = {each.version for each in self.newest.history}
        require(numbers == kept, HISTORY, "nodes that nothing names are left", numbers, kept)

    # --- editors

    def on_edit(self, edit: Edit) -> None:
        self.edits[edit.token] = edit

    def on_told(self, edit: Edit, document: Document | None, error: DlogError | None) -> None:
        version = self.made.get(edit.token)
        if document is not None:
            there = self.documents.get(document.version)
            require(there is not None, TOLD, "told of a version that there never was", document)
            assert there is not None
            require(same(there.content, document.content), TOLD, "told of another content")
            if document.token == edit.token:
                require(version == document.version, TOLD, "told of a change that was not made")
            else:
                require(version is None, TOLD, "made, and told of another one's")
                require(document.version >= edit.since, TOLD, "told of what stood there before")
                told = edit.change(document.content)
                require(same(told, document.content), TOLD, "told that nothing was to do")
                self.world.mark("nothing new")
            return
        assert error is not None
        self.world.mark(f"told {type(error).__name__}")
        if error.outcome is Outcome.NOT_HAPPENED:
            require(version is None, TOLD, "made, and told that it was not", edit.token, error)
            self.never.add(edit.token)
        if isinstance(error, Conflict):
            refused = edit.if_version is not None and error.retry is Retry.NEVER
            require(refused, TOLD, "refused over another version, which nobody asked for", error)
            there_was = not edit.if_version == edit.since == self.newest.version
            require(there_was, TOLD, "refused over another version that there was not", error)

    # --- followers

    def on_prepare(self, follower: Follower, part: str, value: Any) -> None:
        """Told at the next look: whatever a part raises, it only refuses."""
        before = follower.before.get(part)
        if follower.is_begun and same(None if before is None else dict(before), value):
            follower.fault = f"{follower} prepares {part}, which did not change"

    def on_heard(self, follower: Follower, event: Taken | Refused | None) -> None:
        follower.news += event is not None
        if isinstance(event, Taken):
            self.world.mark("in force")
            require(
                event.version > follower.seen_version,
                GROWS,
                f"{follower} goes from {follower.seen_version} to {event.version}",
            )
            document = self.documents[event.version]
            changed = [
                part
                for part in PARTS
                if not same(follower.before.get(part), document.content.get(part))
            ]
            require(
                list(event.parts) == changed, UNTOUCHED, f"{follower} made {event.parts}", changed
            )
            follower.seen_version, follower.before = event.version, document.content
        elif isinstance(event, Refused):
            self.world.mark("refused")
            require(event.version is not None, REACHED, "a document that cannot be read", event)
            assert event.version is not None
            require(not is_valid(self.documents[event.version]), REACHED, "refused", event)
        self.look_at(follower)

    def look_at(self, follower: Follower) -> None:
        """As everybody else in its process could, whenever it waits for something."""
        in_force = follower.core.in_force
        if in_force.version != follower.seen_version:
            told = f"{follower} has {in_force.version} in force, told {follower.seen_version}"
            raise Violation(GROWS, told)
        content = self.documents[in_force.version].content
        for part in follower.parts:
            wanted = content.get(part.name)
            if part.now != wanted or in_force.values.get(part.name) != wanted:
                raise Violation(
                    WHOLE,
                    f"{follower}: {part.name} is not that of version {in_force.version}: "
                    f"{part.now!r}, {wanted!r}",
                )
        if follower.fault:
            raise Violation(UNTOUCHED, follower.fault)
        if follower.core.fetches > follower.news:
            raise Violation(UNTOUCHED, f"{follower} fetched what was no news")

    def check_reached(self, follower: Follower) -> None:
        newest = self.newest
        require(
            follower.core.version == newest.version,
            REACHED,
            f"{follower} has {follower.core.version} in force, not {newest.version}",
            follower.core.refused,
            follower.core.trouble,
        )
        require(follower.core.refused is None, REACHED, "refused nevertheless")

    def check_end(self) -> None:
        late = sorted(self.never & self.made.keys())
        require(not late, TOLD, "told that it was not made, and it came late", late)
        self.check_kept()
        self.check_swept()


def is_valid(document: Document) -> bool:
    return document.content.get("b", {}).get("x") not in (BAD, BREAKS)
