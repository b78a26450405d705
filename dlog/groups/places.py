"""Where the nodes of one group stand."""

from __future__ import annotations

from dlog.errors import ConfigError
from dlog.groups.view import WorkerId
from dlog.ids import NAME_BYTES_MAX, check_log_name
from dlog.meta.layout import Layout, escape

SHARD_DIGITS = 6


class GroupPlaces:
    def __init__(self, layout: Layout, group: str, stream: str) -> None:
        self.group = group
        self.stream = stream
        self._check()
        self.root = layout.group(group, stream)
        self.charter = f"{self.root}/charter"
        self.leases = f"{self.root}/leases"
        self.weights = f"{self.root}/weights"
        self.workers = f"{self.root}/workers"

    def _check(self) -> None:
        """All names that are made of these two fit: none is cut off, or two groups could meet."""
        longest = self._lease_log(f"{self.stream}/{'9' * SHARD_DIGITS}")
        too_much = len(longest.encode("utf-8", "surrogatepass")) - NAME_BYTES_MAX
        if too_much > 0:
            raise ConfigError(
                f"the names of group and stream are {too_much} bytes too long, together: "
                f"{self.group[:40]!r} and {self.stream[:40]!r}"
            )

    def lease(self, shard: str) -> str:
        return f"{self.leases}/{escape(check_log_name(shard))}"

    def worker(self, worker: WorkerId) -> str:
        return f"{self.workers}/{worker.to_node()}"

    def lease_log(self, shard: str) -> str:
        """The name of the log that keeps a shard's checkpoints, where logs do."""
        return check_log_name(self._lease_log(shard))

    def _lease_log(self, shard: str) -> str:
        return f"{self.group}/{self.stream}/leases/{shard}"


def check_worker_name(name: str) -> str:
    """As of a log, and short: it is part of a node's name, and of each lease's."""
    check_log_name(name)
    if len(name) > 128:
        raise ConfigError(f"a worker's name has at most 128 characters: {name[:40]!r}…")
    return name
