"""Where the logs are, as a value that may travel and show; and one client for it in each process.

Spark's Python workers live on over tasks and queries, so a client that was opened once serves all
that follow. Secrets never stand in options: an option names the place of a secret (`env:NAME`,
`file:PATH`), and the process that needs it looks there.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dlog
from dlog import uri
from dlog.errors import ConfigError
from dlog.options import SECRET_OPTIONS, ClientOptions
from dlog.secret import Secret

PREFIX = "dlog."
_FIELDS = {field.name: field for field in dataclasses.fields(ClientOptions)}


@dataclass(frozen=True, slots=True)
class Access:
    """A URL, and options of a client as text: what `connect` gets in each process."""

    url: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, url: str | None, given: Mapping[str, str]) -> Access:
        """The URL of the environment where none is given, so that executors need none. Wrong
        options are refused here, on the driver."""
        text = url or os.environ.get(uri.ENV_URL)
        if not text:
            raise ConfigError(f"where are the logs? Give the option url, or {uri.ENV_URL}")
        parsed = uri.parse(text)
        if parsed.scheme == "memory":
            raise ConfigError("memory: is of one process, and Spark has several: use file: or zk:")
        if parsed.scheme == "file":  # executors may stand in other directories
            query = text.partition("?")[2]
            text = parsed.where + (f"?{query}" if query else "")
        for name, value in given.items():
            if name not in _FIELDS:
                known = ", ".join(sorted(PREFIX + each for each in _FIELDS))
                raise ConfigError(f"unknown option {PREFIX}{name}; known are {known}")
            if name in SECRET_OPTIONS and not value.startswith(("env:", "file:")):
                raise ConfigError(
                    f"{PREFIX}{name} shows in plans and logs: say where it stands, as env:NAME or "
                    "file:PATH, for each executor to look there"
                )
        made = cls(text, tuple(sorted(given.items())))
        uri.resolve(made.url, made._typed())
        return made

    def _typed(self) -> dict[str, Any]:
        return {name: _value(name, text) for name, text in self.options}

    def connect(self) -> dlog.Client:
        """The client of this process, which is closed when the process ends."""
        with _lock:
            key = (os.getpid(), self)
            client = _clients.get(key)
            if client is None:
                client = _clients[key] = dlog.connect(self.url, **self._typed())
            return client


# A fork has locks and clients of its parent: the number of the process tells them apart.
_clients: dict[tuple[int, Access], dlog.Client] = {}
_lock = threading.Lock()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


@atexit.register
def close_all() -> None:
    """Those of this process; of a fork's parent there is nothing to close here."""
    with _lock:
        for key in [key for key in _clients if key[0] == os.getpid()]:
            _clients.pop(key).close()


def _value(name: str, text: str) -> Any:
    if name in SECRET_OPTIONS:
        return Secret.at(text)
    default = _FIELDS[name].default
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ConfigError(f"{PREFIX}{name} is true or false, not {text[:80]!r}")
        return text == "true"
    if isinstance(default, int):
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{PREFIX}{name} is a number, not {text[:80]!r}") from None
    return text
