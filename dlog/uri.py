"""URLs of logs, with parameters: `file:PATH`, `memory:NAME` and `zk://HOST:PORT,HOST:PORT/ROOT`,
whose path is the root of our nodes (`/dlog` if it has none). What nobody knows is an error that
lists what is known."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from dlog.errors import ConfigError, Unsupported
from dlog.options import SECRET_OPTIONS, ClientOptions, check_node_path, options_from
from dlog.secret import Secret

ENV_URL = "DLOG_URL"
ROOT_DEFAULT = "/dlog"
_HOW = {"file": "file:PATH", "memory": "memory:NAME", "zk": "zk://HOST:PORT,HOST:PORT/ROOT"}
# What may stand behind the `?`, by scheme, and what kind of value it is.
_EVERYWHERE: Mapping[str, type] = {"meta_timeout_ms": int}
_OF_CLUSTERS: Mapping[str, type] = {
    "ledgers": str,
    "digest": str,
    "session_timeout_ms": int,
    "tls": str,
    "tls_ca": str,
    "tls_cert": str,
    "tls_key": str,
    "tls_system_cas": bool,
    "zk_acl": str,
}
_PARAMETERS: Mapping[str, Mapping[str, type]] = {
    "file": _EVERYWHERE,
    "memory": _EVERYWHERE,
    "zk": {**_EVERYWHERE, **_OF_CLUSTERS},
}
_DEFAULTS = ClientOptions()
_FIELDS = dataclasses.fields(ClientOptions)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_PORT_DEFAULT = "2181"
_UNSHOWN = re.compile(r"[%?#\x00-\x1f\x7f\udc80-\udcff]|^ | $")
_DIGITS_MAX = 18  # more would not be any option's, and thousands are more than `int` takes


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed URL: which backend, where, and the client options it carries."""

    scheme: str
    place: str
    options: ClientOptions

    @property
    def hosts(self) -> str:
        """Of `zk:`, as ZooKeeper's clients take them."""
        return self.place.partition("/")[0]

    @property
    def root(self) -> str:
        """Of `zk:`, where our nodes are."""
        return "/" + self.place.partition("/")[2]

    @property
    def where(self) -> str:
        """The place itself, without how one gets in: text to compare, and a URL still."""
        if self.scheme != "zk":
            return f"{self.scheme}:{_quoted(self.place)}"
        hosts = ",".join(sorted(self.hosts.lower().split(",")))
        ledgers = self.options.ledgers
        query = "" if ledgers == _DEFAULTS.ledgers else f"?ledgers={quote(ledgers)}"
        return f"zk://{quote(hosts + self.root, safe='/:,[]')}{query}"

    def __str__(self) -> str:
        if self.scheme != "zk":
            return f"{self.scheme}:{_quoted(self.place)}"
        told = []
        for name, kind in _OF_CLUSTERS.items():
            value = getattr(self.options, name)
            if value != getattr(_DEFAULTS, name) and kind is not int:
                told.append(f"{name}={'true' if value is True else quote(value)}")
        query = f"?{'&'.join(told)}" if told else ""
        return f"zk://{quote(self.place, safe='/:,[]')}{query}"


def parse(text: str) -> Url:
    scheme, colon, rest = text.partition(":")
    if not colon or not scheme:
        raise ConfigError(
            f"a URL begins with its scheme ({', '.join(_HOW.values())}): {text[:80]!r}"
        )
    scheme = scheme.lower()
    if scheme not in _HOW:
        raise Unsupported(f"no backend for {scheme}: URLs; there is {', '.join(_HOW.values())}")
    place, _, query = rest.partition("?")
    if "#" in text:
        raise ConfigError(f"a URL of a log has no fragment (#): {text[:80]!r}")
    # A directory's name is bytes, whatever they say.
    place = unquote(place, errors="surrogateescape" if scheme == "file" else "replace")
    options = _parameters(query, scheme)
    if scheme == "file":
        return Url(scheme, str(_file_path(place)), options)
    if scheme == "zk":
        return Url(scheme, _zookeeper_place(place), options)
    if not place or not place.isprintable() or "/" in place:
        raise ConfigError(f"memory: takes a name, as memory:test, not {place!r}")
    return Url(scheme, place, options)


def _quoted(place: str) -> str:
    """As `parse` reads it back: what would end the place, or be read as something else, is quoted,
    and so is what does not show. The rest stays as people write it."""
    return _UNSHOWN.sub(lambda found: quote(found[0], safe="", errors="surrogateescape"), place)


def _zookeeper_place(place: str) -> str:
    """Hosts with their ports, and the root of our nodes."""
    hosts, _, path = place.removeprefix("//").partition("/")
    if not place.startswith("//") or not hosts:
        raise ConfigError(f"zk: takes hosts, as zk://zk1:2181,zk2:2181/dlog, not {place[:80]!r}")
    if "@" in hosts:
        raise ConfigError("zk: no credentials in a URL, it is shown in many places; use zk_auth")
    each = hosts.split(",")
    if not all(_HOST.fullmatch(host) for host in each):
        raise ConfigError(f"zk: hosts are HOST:PORT,HOST:PORT…, not {hosts[:80]!r}")
    # A colon inside of brackets belongs to an address.
    with_ports = [h if ":" in h.rpartition("]")[2] else f"{h}:{_PORT_DEFAULT}" for h in each]
    root = ("/" + path.strip("/")) if path.strip("/") else ROOT_DEFAULT
    check_node_path("the path of a zk: URL", root)
    return ",".join(with_ports) + root


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
        os.fsencode(place)
    except UnicodeEncodeError:
        raise ConfigError(f"file: no directory has such a name: {place[:80]!r}") from None
    try:
        directory = Path(place).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(f"file: there is no such home directory: {place!r}") from None
    if directory.root == "//":  # shown, a host would follow
        return Path("/", *directory.parts[1:])
    return directory


def _parameters(query: str, scheme: str) -> ClientOptions:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(
            f"the URL's parameters are not name=value pairs: {query[:80]!r}"
        ) from None
    known = _PARAMETERS[scheme]
    given: dict[str, int | str | bool] = {}
    for name, value in pairs:
        if name in SECRET_OPTIONS:
            raise ConfigError(
                f"no {name} in a URL, it is shown in many places: give it by keyword, or as "
                f"{_variable(name)} or {_variable(name)}_FILE in the environment"
            )
        if name not in known:
            raise ConfigError(
                f"unknown URL parameter {name!r}; known are {', '.join(sorted(known))}"
            )
        if name in given:
            raise ConfigError(f"the URL parameter {name!r} is given twice")
        given[name] = _VALUES[known[name]](name, value)
    return ClientOptions(**given)  # type: ignore[arg-type]


def _number(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > _DIGITS_MAX:
        raise ConfigError(f"the URL parameter {name} is a number, not {value[:80]!r}")
    return int(value)


def _truth(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise ConfigError(f"the URL parameter {name} is true or false, not {value[:80]!r}")
    return value == "true"


_VALUES: Mapping[type, Callable[[str, str], int | str | bool]] = {
    int: _number,
    bool: _truth,
    str: lambda _, value: value,
}


def _variable(option: str) -> str:
    return f"DLOG_{option.upper()}"


def _secrets(given: Mapping[str, Any]) -> dict[str, Secret]:
    """Those that were given, and those that the environment has: in a variable or, better, in a
    file that one names."""
    found = {}
    for name in SECRET_OPTIONS:
        if given.get(name) is not None:
            found[name] = Secret.of(given[name])
            continue
        direct, file = _variable(name), f"{_variable(name)}_FILE"
        if os.environ.get(direct) and os.environ.get(file):
            raise ConfigError(f"there are both {direct} and {file} in the environment")
        if os.environ.get(direct):
            found[name] = Secret.at(f"env:{direct}")
        elif os.environ.get(file):
            found[name] = Secret.at(f"file:{os.environ[file]}")
    return found


def resolve(text: str | None, client_options: Mapping[str, Any] | None = None) -> Url:
    """What the user gave, else the environment's, else the user's own data directory. Options given
    by keyword win over the URL's."""
    default = f"file:{_quoted(str(user_data_directory()))}"
    url = parse(text or os.environ.get(ENV_URL) or default)
    given = dict(client_options or {})
    if url.scheme != "zk":
        if strange := sorted(given.keys() & {*_OF_CLUSTERS, *SECRET_OPTIONS, "unsafe_open_nodes"}):
            raise ConfigError(f"{', '.join(strange)}: only clusters (zk: URLs) have this option")
    else:
        secrets = _secrets(given)
        if (
            url.options.tls == given.get("tls", "off") == "off"
            and "tls_key_passphrase" not in given
        ):
            secrets.pop("tls_key_passphrase", None)  # of other clusters, which have TLS
        given |= secrets
    if not given:
        return url
    given = {**{f.name: getattr(url.options, f.name) for f in _FIELDS}, **given}
    return dataclasses.replace(url, options=options_from(ClientOptions, given))


def user_data_directory() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dlog"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "dlog"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "dlog"
