"""What is true at the end of a history of `streams-life`: all that was sent and not truncated is
there, and where everything was removed nothing is left."""

from __future__ import annotations

from dlog.client import Client
from dlog.errors import NotFound
from dlog.meta.layout import Layout
from dlog.meta.log_meta import LogMeta, LogState
from dlog.testing.sim.streams_life_scene import Scene
from dlog.testing.sim.streams_life_truth import KEPT, LEFT, NEVER, STREAM, Name


async def check_what_is_there(scene: Scene, client: Client) -> None:
    truth = scene.truth
    if truth.now is None or truth.now.removed != NEVER:
        return
    try:
        async with client.stream(STREAM).open_reader() as reader:
            found = [Name.of(each.message.value) async for each in reader]
    except NotFound:
        return
    wanted = {
        (sent.producer, sent.number) for sent in truth.of(truth.now.uid) if sent.gone == NEVER
    }
    there = {(name.producer, name.number) for name in found}
    truth.require(len(there) == len(found), KEPT, "a message is read twice")
    lost, more = sorted(wanted - there), sorted(there - wanted)
    truth.require(not lost, KEPT, "what was sent and not truncated is not read", *lost[:5])
    truth.require(not more, KEPT, "what was truncated is read", *more[:5])


def check_nothing_is_left(scene: Scene) -> None:
    """Of a removed stream: but tombstones, and empty nodes above what was there. What
    a request wrote that came late may be from before the removal: `fsck` tells of it."""
    truth, tree, layout = scene.truth, scene.tree, Layout()
    is_late = layout.stream(STREAM) in tree.written_late
    truth.require(truth.now is None or is_late, LEFT, "the stream is there")
    dead = {process.name for process in scene.processes if not process.is_alive}
    leaving = {  # when their sessions end
        path
        for path, node in tree._nodes.items()
        if node.owner is not None and node.owner.name.partition("/")[0] in dead
    }
    left = []
    buried: set[str] = set()
    for path in sorted(tree.paths()):
        value = tree.value(path) or b""
        if path in leaving:
            continue
        if path in tree.written_late:
            scene.world.mark("a write came in behind a removal")
            continue
        if not value or path == layout.format:
            continue
        if path.startswith(f"{layout.logs}/") and path.count("/") == layout.logs.count("/") + 1:
            if LogMeta.from_bytes(value, where=path).state is LogState.DELETED:
                buried.add(path)
                continue
        if path.partition("/holds/")[0] in buried:  # counts for nothing, and goes with a new log
            scene.world.mark("a hold came in behind the removal of its log")
            continue
        left.append(path)
    truth.require(not left, LEFT, "nodes are left", *sorted(left)[:5])
    ledgers = [each for each in scene.ledgers.ids() if not truth.unlisted(each)]
    truth.require(not ledgers, LEFT, "ledgers are left that a log listed", *ledgers[:5])
