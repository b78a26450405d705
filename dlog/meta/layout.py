"""Where things stand below the root of the metadata tree. Log names are escaped, so that logs list
flat, by prefix."""

from __future__ import annotations

import functools
from urllib.parse import quote, unquote

from dlog.ids import check_hold_name, check_log_name

ROOT_DEFAULT = "/dlog"
FORMAT_VERSION = 1
LOGS_KEPT = 256  # names whose nodes are known: every step of a log asks


class Layout:
    """Paths of one root."""

    def __init__(self, root: str = ROOT_DEFAULT) -> None:
        self.root = root
        self.format = f"{root}/format"
        self.clock = f"{root}/clock-"  # a number follows; gone at once
        self.logs = f"{root}/logs"
        self.streams = f"{root}/streams"
        self.stream_holders = f"{root}/stream_holds"
        self.inherited = f"{root}/stream_numbers"
        self.groups = f"{root}/groups"
        self.configs = f"{root}/config"

    def log(self, name: str) -> str:
        return f"{self.logs}/{_log_node(name)}"

    def page(self, name: str, number: int, level: int = 0) -> str:
        """The page of sealed history that begins with segment `number`; of a level above 0, of
        pages."""
        return f"{self.pages(name)}/{number:010d}" + (f".{level}" if level else "")

    def pages(self, name: str) -> str:
        return f"{self.log(name)}/pages"

    def holds(self, name: str) -> str:
        return f"{self.log(name)}/holds"

    def hold(self, name: str, hold: str) -> str:
        """Somebody's place: what is behind it, no policy truncates."""
        return f"{self.holds(name)}/{escape(check_hold_name(hold))}"

    def presence(self, name: str, token: str) -> str:
        """Ephemeral, of one writer handle: it is there as long as that handle's process is."""
        return f"{self.log(name)}/writer/{token}"

    def jobs(self, name: str) -> str:
        return f"{self.log(name)}/jobs"

    def job(self, name: str, token: str) -> str:
        """Ephemeral, of a job that fills a ledger of the log, or has yet to publish it."""
        return f"{self.jobs(name)}/{token}"

    def stream(self, name: str) -> str:
        return f"{self.streams}/{_log_node(name)}"

    def stream_holds(self, name: str) -> str:
        """Who holds all shards of a stream, those to come included."""
        return f"{self.stream_holders}/{_log_node(name)}"

    def stream_numbers(self, name: str) -> str:
        """What shards of a stream inherited of producers' numbers."""
        return f"{self.inherited}/{_log_node(name)}"

    def stream_hold(self, name: str, hold: str) -> str:
        return f"{self.stream_holds(name)}/{escape(check_hold_name(hold))}"

    def group(self, group: str, stream: str) -> str:
        """What the workers of a group share about one stream."""
        return f"{self.groups}/{_log_node(group)}/{_log_node(stream)}"

    def config(self, name: str) -> str:
        """A document that changes while programs run."""
        return f"{self.configs}/{_log_node(name)}"


@functools.lru_cache(maxsize=LOGS_KEPT)
def _log_node(name: str) -> str:
    return escape(check_log_name(name))


def escape(name: str) -> str:
    """Slashes, percent signs and a leading dot are escaped; everything else stays readable."""
    escaped = quote(name, safe=" !\"#$&'()*+,-.:;<=>?@[\\]^_`{|}~", encoding="utf-8")
    return "%2E" + escaped[1:] if escaped.startswith(".") else escaped


def unescape(node: str) -> str:
    return unquote(node, encoding="utf-8", errors="strict")
