"""What has arrived of one key: the last number of each client, so that a message which comes again
is known for what it is.

For services that keep what they take in a place of their own. The table belongs into that place,
in the same write as the messages: a table that is lost, or older than they are, lets messages in
twice. A log has one of its own, and so has no need of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dlog.errors import NotFound
from dlog.limits import ARRIVALS_CLIENTS_MAX
from dlog.streams.routing.flight import Numbered


class Arrivals:
    """The clients that were silent longest are forgotten. From then on a client that is not known
    may only begin with number 0: whether anything else was there nobody can tell."""

    def __init__(
        self,
        last_numbers: Mapping[int, int] | None = None,
        *,
        has_forgotten: bool = False,
        clients_max: int = ARRIVALS_CLIENTS_MAX,
    ) -> None:
        self._last = dict(last_numbers or {})
        self._clients_max = clients_max
        self.has_forgotten = has_forgotten

    def new_of(self, client_id: int, messages: Iterable[Numbered]) -> list[Numbered]:
        """Those that are not here yet, in their order. `NotFound` if nobody can tell."""
        last = self._last.get(client_id, -1)
        new = [each for each in messages if each.number > last]
        if last < 0 and self.has_forgotten and new and new[0].number:
            raise NotFound(f"client {client_id} was forgotten, or is new and does not begin with 0")
        return new

    def note(self, client_id: int, number: int) -> None:
        """It is here now, and so are all before it."""
        last = self._last.pop(client_id, -1)
        self._last[client_id] = max(last, number)
        if len(self._last) > self._clients_max:
            del self._last[next(iter(self._last))]
            self.has_forgotten = True

    def last_numbers(self) -> dict[int, int]:
        """To be stored; those that were silent longest come first."""
        return dict(self._last)
