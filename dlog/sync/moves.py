"""The part of the sync admin that moves the metadata of logs between metadata stores."""

from __future__ import annotations

from dlog.admin.moves import MetaMoves as AsyncMetaMoves
from dlog.admin.summary import LogMove
from dlog.sync.portal import Portal


class MetaMoves:
    def __init__(self, moves: AsyncMetaMoves, portal: Portal) -> None:
        self._moves = moves
        self._portal = portal

    def export_meta(self, name: str) -> bytes:
        """The metadata of the log as one JSON document: node, pages, holds. Changes nothing."""
        return self._portal.run(self._moves.export_meta(name))

    def move_meta(self, name: str, to: str, *, retarget: bool = False) -> bytes:
        """Let the log leave for the place that the URL `to` names; its metadata, for `import_meta`
        there. See `dlog.aio`."""
        return self._portal.run(self._moves.move_meta(name, to, retarget=retarget))

    def import_meta(self, document: bytes, *, dry_run: bool = False) -> LogMove:
        """Bring a log here that left for this place. See `dlog.aio`."""
        return self._portal.run(self._moves.import_meta(document, dry_run=dry_run))
