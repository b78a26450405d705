"""Where things stand below the root of the metadata tree. Log names are escaped, so that logs list
flat, by prefix."""

from __future__ import annotations

from urllib.parse import quote, unquote

from dlog.ids import check_log_name

ROOT_DEFAULT = "/dlog"
FORMAT_VERSION = 1


class Layout:
    """Paths of one root."""

    def __init__(self, root: str = ROOT_DEFAULT) -> None:
        self.root = root
        self.format = f"{root}/format"
        self.logs = f"{root}/logs"

    def log(self, name: str) -> str:
        return f"{self.logs}/{escape(check_log_name(name))}"

    def page(self, name: str, number: int) -> str:
        """The page of sealed history that begins with segment `number`."""
        return f"{self.log(name)}/pages/{number:010d}"

    def pages(self, name: str) -> str:
        return f"{self.log(name)}/pages"

    def presence(self, name: str, token: str) -> str:
        """Ephemeral, of one writer handle: it is there as long as that handle's process is."""
        return f"{self.log(name)}/writer/{token}"


def escape(name: str) -> str:
    """Slashes, percent signs and a leading dot are escaped; everything else stays readable."""
    escaped = quote(name, safe=" !\"#$&'()*+,-.:;<=>?@[\\]^_`{|}~", encoding="utf-8")
    return "%2E" + escaped[1:] if escaped.startswith(".") else escaped


def unescape(node: str) -> str:
    return unquote(node, encoding="utf-8", errors="strict")
