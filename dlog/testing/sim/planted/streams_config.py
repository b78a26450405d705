"""Bugs in documents that change while programs run: in their changes, and in who follows them."""

from __future__ import annotations

from typing import Any

from dlog.effects import DeleteNode, ListNodes, Pause, Procedure, ReadNode
from dlog.errors import DlogError, Outcome
from dlog.streams.config import changes, document, following
from dlog.streams.config.document import Document
from dlog.streams.config.following import Following, NodeSource, Ready, Taken, UntilTold
from dlog.testing.sim import streams_config as world
from dlog.testing.sim.planted import Patch, Plants

plants = Plants("streams-config")
PLANTS = plants.by_name


def _none(*_: Any, **__: Any) -> Procedure[None]:
    yield from ()


# --- changes


@plants("CF-1, CF-3", meta_reply_lost=0.3)
def a_lost_reply_is_taken_as_refused(patch: Patch) -> None:
    patch.setattr(changes, "_is_made", lambda now, sent, path: False)


@plants("CF-3", meta_reply_lost=0.3, meta_request_lost=0.3, editors=3)
def a_lost_reply_is_taken_as_made(patch: Patch) -> None:
    patch.setattr(changes, "_is_made", lambda now, sent, path: True)


@plants("CF-3", meta_request_lost=0.3, editors=3)
def a_version_is_ours_because_it_is_there(patch: Patch) -> None:
    patch.setattr(changes, "_is_made", lambda now, sent, path: now.version >= sent.version)


@plants("CF-1", meta_reply_lost=0.3, editors=3, changes=3)
def only_the_newest_version_is_looked_at_for_ours(patch: Patch) -> None:
    patch.setattr(changes, "_is_made", lambda now, sent, path: now.token == sent.token)


@plants("CF-1", meta_reply_lost=0.3, editors=3, changes=3, history_max=1)
def what_is_forgotten_was_not_made(patch: Patch) -> None:
    def is_made(now: Document, sent: Document, path: str) -> bool:
        return now.token_of(sent.version) == sent.token

    patch.setattr(changes, "_is_made", is_made)


@plants("CF-3", meta_reply_lost=0.3, editors=3, changes=3, history_max=1)
def what_nobody_knows_is_told_as_not_happened(patch: Patch) -> None:
    genuine = changes.change_document

    def change_document(*arguments: Any, **options: Any) -> Procedure[Document]:
        try:
            return (yield from genuine(*arguments, **options))
        except DlogError as error:
            error.outcome = Outcome.NOT_HAPPENED
            raise

    patch.setattr(world, "change_document", change_document)


@plants("CF-1")
def the_version_that_was_meant_is_not_compared(patch: Patch) -> None:
    patch.setattr(changes, "_check_version", lambda document, if_version, path: None)


@plants("CF-1")
def whoever_loses_sends_what_they_had(patch: Patch) -> None:
    """The content is made once, and not again on what is there."""
    genuine = changes.change_document

    def change_document(path: str, stamp: Any, change: Any, **options: Any) -> Procedure[Document]:
        made: list[Any] = []

        def once(content: Any) -> Any:
            if not made:
                made.append(change(content))
            return made[0]

        return genuine(path, stamp, once, **options)

    patch.setattr(world, "change_document", change_document)


@plants("CF-3", meta_stale=1.0)
def editors_read_what_is_at_hand(patch: Patch) -> None:
    genuine = changes.read_document
    patch.setattr(changes, "read_document", lambda path, fresh=True: genuine(path, fresh=False))


@plants("CF-2")
def the_older_version_is_not_kept(patch: Patch) -> None:
    patch.setattr(changes, "_keep", _none)


@plants("CF-2")
def the_older_version_is_kept_afterwards(patch: Patch) -> None:
    keep, sweep = changes._keep, changes._sweep
    due: list[Document] = []

    def later(path: str, old: Document) -> Procedure[None]:
        due.append(old)
        yield from ()

    def kept_by_now(path: str, new: Document) -> Procedure[None]:
        while due:
            yield from keep(path, due.pop())
        yield from sweep(path, new)

    patch.setattr(changes, "_keep", later)
    patch.setattr(changes, "_sweep", kept_by_now)


@plants("CF-2")
def one_version_too_many_is_swept(patch: Patch) -> None:
    patch.setattr(Document, "oldest", property(lambda self: self.version))


@plants("CF-2")
def nothing_is_swept(patch: Patch) -> None:
    patch.setattr(changes, "_sweep", _none)


@plants("CF-2", editors=3, changes=3, slow=10.0)
def whatever_is_not_named_is_swept(patch: Patch) -> None:
    """Also what another one has just kept, and is about to name."""

    def sweep(path: str, new: Document) -> Procedure[None]:
        try:
            for name in (yield ListNodes(changes.history_path(path))):
                if new.kept(int(name)) is None:
                    old = changes.old_path(path, int(name))
                    there = yield ReadNode(old)
                    yield DeleteNode(old, there.version)
        except DlogError:
            return

    patch.setattr(changes, "_sweep", sweep)


@plants("CL-01")
def a_rollback_has_its_old_number_again(patch: Patch) -> None:
    import dataclasses

    genuine = Document.changed

    def changed(self: Document, content: Any, stamp: Any, *, restores: int | None = None) -> Any:
        made = genuine(self, content, stamp, restores=restores)
        return made if restores is None else dataclasses.replace(made, version=restores, history=())

    patch.setattr(Document, "changed", changed)


@plants("CF-2")
def history_ends_at_its_bound(patch: Patch) -> None:
    """The newest one is left out where it is full, instead of the oldest."""
    from dlog import limits

    patch.setattr(document, "_bounded", lambda history: history[: limits.CONFIG_HISTORY_MAX])


@plants("CF-1")
def what_says_nothing_new_is_a_version(patch: Patch) -> None:
    patch.setattr(changes, "same", lambda one, other: False)


# --- followers


@plants("CL-02", meta_stale=1.0)
def any_other_version_is_news(patch: Patch) -> None:
    patch.setattr(Following, "_is_news", lambda self, version: version != self.version)


@plants("CL-02")
def the_same_version_is_news(patch: Patch) -> None:
    patch.setattr(Following, "_is_news", lambda self, version: version >= self.version)


@plants("CL-02", bad=0.5)
def what_was_refused_is_news_again(patch: Patch) -> None:
    patch.setattr(Following, "_is_news", lambda self, version: version > self.version)


@plants("CF-4", bad=0.5)
def who_refused_once_follows_no_more(patch: Patch) -> None:
    genuine = Following._is_news

    def is_news(self: Following, version: int) -> bool:
        return self.refused is None and genuine(self, version)

    patch.setattr(Following, "_is_news", is_news)


@plants("CL-02")
def every_part_is_made_anew(patch: Patch) -> None:
    patch.setattr(following, "same", lambda one, other: False)


@plants("CL-08", bad=0.5)
def each_part_is_swapped_when_it_is_prepared(patch: Patch) -> None:
    genuine = Following._prepare

    def prepare(self: Following, part: Any, content: Any) -> Any:
        ready = genuine(self, part, content)
        if part.name in self._parts:
            ready.swap()
        return ready

    patch.setattr(Following, "_prepare", prepare)


@plants("CL-08")
def parts_are_swapped_in_turn_after_turn(patch: Patch) -> None:
    genuine = Following._swap

    def look(self: Following, *, fresh: bool = True) -> Procedure[Any]:
        self.looks += 1
        version = yield from self._source.version(fresh=fresh)
        self.trouble = None
        if not self._is_news(version):
            return None
        self.fetches += 1
        held: list[Any] = []
        self._swap = held.append  # type: ignore[method-assign, assignment]
        shown, self._show = self._show, lambda document: None  # type: ignore[method-assign]
        told = self.take((yield from self._source.get()))
        del self._swap, self._show
        if isinstance(told, Taken):
            for name, ready in held[0].items():
                genuine(self, {name: ready})
                yield Pause(0.001)
            shown(self._source._document)  # type: ignore[attr-defined]
        return told

    patch.setattr(Following, "look", look)


@plants("CL-08", bad=0.5)
def a_swap_that_failed_is_not_undone(patch: Patch) -> None:
    patch.setattr(Following, "_swap_back", lambda self, names: [])


@plants("CL-08", bad=0.5)
def the_part_that_failed_stays_as_it_is(patch: Patch) -> None:
    genuine = Following._swap_back
    patch.setattr(Following, "_swap_back", lambda self, names: genuine(self, names[:-1]))


@plants("CL-08", bad=0.5)
def news_is_compared_with_what_was_refused(patch: Patch) -> None:
    genuine = Following._refuse

    def refuse(self: Following, refused: Any) -> Any:
        import dataclasses

        source = self._source
        assert isinstance(source, NodeSource)
        content = source._document.content
        shown = dataclasses.replace(self.in_force.document, content=content)
        self.in_force = dataclasses.replace(self.in_force, document=shown)
        return genuine(self, refused)

    patch.setattr(Following, "_refuse", refuse)


@plants("CL-08")
def a_version_is_shown_without_its_parts(patch: Patch) -> None:
    genuine = Following._show

    def show(self: Following, document: Document) -> None:
        values = dict(self.in_force.values)
        genuine(self, document)
        if values:
            force = self.in_force
            self.in_force = following.InForce(force.version, force.document, values)

    patch.setattr(Following, "_show", show)


@plants("CF-4", meta_watch_lost=0.9)
def only_watches_are_gone_by(patch: Patch) -> None:
    genuine = following.follow

    def follow(core: Any, path: str, **options: Any) -> Procedure[None]:
        return genuine(core, path, **{**options, "poll_ms": 1e6})

    patch.setattr(world, "follow", follow)


@plants("CF-4", meta_refused=0.3)
def a_store_that_is_away_ends_it(patch: Patch) -> None:
    def follow(core: Following, path: str, *, poll_ms: float, chance: Any, heard: Any) -> Any:
        while True:
            try:
                heard((yield from core.look()))
            except DlogError:
                yield Pause(1e6)
            yield UntilTold(path, poll_ms)

    patch.setattr(world, "follow", follow)


@plants("CF-4")
def a_document_that_is_known_is_given_for_its_node(patch: Patch) -> None:
    """Whatever is stored there by now."""
    genuine = NodeSource.version

    def version(self: NodeSource, *, fresh: bool) -> Procedure[int]:
        if self.parsed:
            yield ReadNode(self.path, fresh=fresh)
            return self._document.version
        return (yield from genuine(self, fresh=fresh))

    patch.setattr(NodeSource, "version", version)


@plants("CL-08", bad=0.5)
def what_cannot_be_is_let_through(patch: Patch) -> None:
    """The part that refuses is left as it is, and the rest goes on."""
    genuine = Following._prepare

    def prepare(self: Following, part: Any, content: Any) -> Any:
        try:
            return genuine(self, part, content)
        except DlogError:
            return Ready(None)

    patch.setattr(Following, "_prepare", prepare)
