"""URLs of logs: `file:PATH` and `memory:NAME`, with parameters. What nobody knows is an error that
lists what is known."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from dlog.errors import ConfigError, Unsupported
from dlog.options import ClientOptions, options_from

ENV_URL = "DLOG_URL"
SCHEMES = ("file", "memory")
_INTEGERS = ("meta_timeout_ms",)


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed URL: which backend, where, and the client options it carries."""

    scheme: str
    place: str
    options: ClientOptions

    def __str__(self) -> str:
        return f"{self.scheme}:{self.place}"


def parse(text: str) -> Url:
    scheme, colon, rest = text.partition(":")
    if not colon or not scheme:
        raise ConfigError(
            f"a URL begins with its scheme ({', '.join(s + ':' for s in SCHEMES)}): {text[:80]!r}"
        )
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        raise Unsupported(
            f"no backend for {scheme}: URLs; there is {', '.join(s + ':' for s in SCHEMES)}"
        )
    place, _, query = rest.partition("?")
    if "#" in text:
        raise ConfigError(f"a URL of a log has no fragment (#): {text[:80]!r}")
    place = unquote(place)
    options = _parameters(query)
    if scheme == "file":
        return Url(scheme, str(_file_path(place)), options)
    if not place or not place.isprintable() or "/" in place:
        raise ConfigError(f"memory: takes a name, as memory:test, not {place!r}")
    return Url(scheme, place, options)


def _file_path(place: str) -> Path:
    if place.startswith("//"):
        host, slash, path = place[2:].partition("/")
        if host not in ("", "localhost"):
            raise ConfigError(
                f"file: URLs are of this machine, not of {host!r}; write file:./data or file:///data"
            )
        place = slash + path
    if not place or "\0" in place:
        raise ConfigError("file: takes a directory, as file:./data")
    try:
        return Path(place).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(f"file: there is no such home directory: {place!r}") from None


def _parameters(query: str) -> ClientOptions:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(
            f"the URL's parameters are not name=value pairs: {query[:80]!r}"
        ) from None
    given: dict[str, int] = {}
    for name, value in pairs:
        if name not in _INTEGERS:
            raise ConfigError(f"unknown URL parameter {name!r}; known are {', '.join(_INTEGERS)}")
        if name in given:
            raise ConfigError(f"the URL parameter {name!r} is given twice")
        if not value.isascii() or not value.isdigit():
            raise ConfigError(f"the URL parameter {name} is a number, not {value!r}")
        given[name] = int(value)
    return ClientOptions(**given)


def resolve(text: str | None, client_options: Mapping[str, Any] | None = None) -> Url:
    """What the user gave, else the environment's, else the user's own data directory. Options given
    by keyword win over the URL's."""
    url = parse(text or os.environ.get(ENV_URL) or f"file:{user_data_directory()}")
    if not client_options:
        return url
    given = {**dataclasses.asdict(url.options), **client_options}
    return dataclasses.replace(url, options=options_from(ClientOptions, given))


def user_data_directory() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dlog"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "dlog"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "dlog"
