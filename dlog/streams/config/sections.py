"""The parts of a document that this library knows itself, as values: which options of writers,
readers and logs it sets, for which logs, and which of them it forces.

A part is an object of options. `logs` in it is a list of sections with a `pattern` each, as of file
names; of several that match a log's name the later ones win. `force` names options that also
replace what a program gave by itself. Options that cannot change while a handle is open are refused
by name, and so is whatever nobody knows.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from dlog import limits
from dlog.errors import ConfigError
from dlog.options import LogOptions, ReaderOptions, WriterOptions

WRITER_OPTIONS = (
    "on_full linger_ms entry_bytes window_bytes window_entries codec stall_after_ms".split()
)
READER_OPTIONS = "read_run_bytes read_ahead_bytes stall_after_ms".split()
LOG_OPTIONS = "segment_bytes segment_age_s retention_age_s retention_bytes deletion_grace_s".split()
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_CODEC_MODULES = {"lz4": "lz4.block", "zstd": "zstandard"}
_SECTION_WORDS = frozenset({"logs", "force"})
_PATTERN_CHARACTERS_MAX = 400

_Options = TypeVar("_Options", WriterOptions, ReaderOptions, LogOptions)


@dataclass(frozen=True, slots=True)
class Section:
    """Options for the logs whose name the pattern matches."""

    pattern: str
    values: Mapping[str, Any]
    force: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sections:
    """One part, the section for all logs first."""

    sections: tuple[Section, ...] = ()

    def applied(
        self, options: _Options, log: str, explicit: Container[str], stream: str | None = None
    ) -> _Options:
        """What is in force for a handle of this log that a program opened with `options`, of which
        it gave those in `explicit` itself: these stay, unless they are forced. `stream`: that the
        log is a shard of; what is said of either name is said of the shard."""
        values: dict[str, Any] = {}
        names = (log,) if stream is None else (log, stream)
        for section in self.sections:
            if not any(fnmatchcase(name, section.pattern) for name in names):
                continue
            force = section.force
            values |= {k: v for k, v in section.values.items() if k not in explicit or k in force}
        return dataclasses.replace(options, **values) if values else options


def writer_sections(content: Mapping[str, Any] | None) -> Sections:
    return _sections("writer", WriterOptions, WRITER_OPTIONS, content)


def reader_sections(content: Mapping[str, Any] | None) -> Sections:
    return _sections("reader", ReaderOptions, READER_OPTIONS, content)


def log_sections(content: Mapping[str, Any] | None) -> Sections:
    """Of a log nothing is explicit: what a document says replaces what the log was made with."""
    if content is not None:
        for section in (content, *_list_of_sections("log", content)):
            if isinstance(section, Mapping) and "force" in section:
                raise ConfigError("log.force: a log has no options of a program to force")
    return _sections("log", LogOptions, LOG_OPTIONS, content)


def _sections(
    part: str, kind: type[Any], may_change: list[str], content: Mapping[str, Any] | None
) -> Sections:
    if content is None:
        return Sections()
    found = [_section(part, kind, may_change, "*", content)]
    for number, each in enumerate(_list_of_sections(part, content)):
        where = f"{part}.logs[{number}]"
        if not isinstance(each, Mapping) or "logs" in each:
            raise ConfigError(f"{where} is an object of options and a pattern, not {each!r:.80}")
        pattern = each.get("pattern")
        if not isinstance(pattern, str) or not 0 < len(pattern) <= _PATTERN_CHARACTERS_MAX:
            raise ConfigError(f"{where}.pattern is text, as 'orders-*', not {pattern!r:.80}")
        values = {name: value for name, value in each.items() if name != "pattern"}
        found.append(_section(where, kind, may_change, pattern, values))
    return Sections(tuple(found))


def _list_of_sections(part: str, content: Mapping[str, Any]) -> list[Any]:
    sections = content.get("logs", [])
    if not isinstance(sections, list) or len(sections) > limits.CONFIG_PATTERNS_MAX:
        raise ConfigError(f"{part}.logs is a list of at most {limits.CONFIG_PATTERNS_MAX} objects")
    return sections


def _section(
    where: str,
    kind: type[Any],
    may_change: list[str],
    pattern: str,
    content: Mapping[str, Any],
) -> Section:
    values = {name: value for name, value in content.items() if name not in _SECTION_WORDS}
    known = {each.name for each in dataclasses.fields(kind)}
    for name in values:
        if name in known and name not in may_change:
            raise ConfigError(
                f"{where}.{name} cannot change while a handle is open; what can is "
                f"{', '.join(may_change)}"
            )
        if name not in known:
            raise ConfigError(f"{where} has no {name}; there is {', '.join(may_change)}")
    try:
        kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from None
    force = content.get("force", [])
    if not isinstance(force, list) or not all(
        isinstance(each, str) and each in values for each in force
    ):
        raise ConfigError(f"{where}.force is a list of options that stand beside it, not {force!r}")
    return Section(pattern, values, frozenset(force))


def check_codecs(sections: Sections) -> None:
    """That this process has what the codecs in it need."""
    for section in sections.sections:
        codec = section.values.get("codec", "none")
        module = _CODEC_MODULES.get(codec)
        if module is not None and importlib.util.find_spec(module.partition(".")[0]) is None:
            raise ConfigError(f"codec {codec}: this process has no {module}; install dlog[{codec}]")


@dataclass(frozen=True, slots=True)
class ClientSection:
    """What the whole process goes by."""

    log_levels: Mapping[str, str]


def client_section(content: Mapping[str, Any] | None) -> ClientSection:
    fields = dict(content or {})
    levels = fields.pop("log_levels", {})
    if fields:
        raise ConfigError(f"client has no {', '.join(sorted(fields))}; there is log_levels")
    if not isinstance(levels, Mapping):
        raise ConfigError(f"client.log_levels is an object of loggers and levels, not {levels!r}")
    for logger, level in levels.items():
        if logger != "dlog" and not logger.startswith("dlog."):
            raise ConfigError(f"client.log_levels: only loggers of dlog, not {logger!r:.80}")
        if level not in LEVELS:
            raise ConfigError(
                f"client.log_levels: {logger} is one of {', '.join(LEVELS)}, not {level!r:.80}"
            )
    return ClientSection(dict(levels))


Validator = Callable[[Mapping[str, Any]], object]
# Who knows what a part may hold, by its name: a function, or where one stands that is loaded at the
# first need. Whoever adds a part of their own adds it here, so that a document is looked over
# before it is written, too.
VALIDATORS: dict[str, Validator | str] = {
    "writer": writer_sections,
    "reader": reader_sections,
    "log": log_sections,
    "client": client_section,
    "routing": "dlog.streams.parts:check_routing",
    "health": "dlog.streams.parts:check_health",
}


def register_validator(part: str, validator: Validator) -> None:
    """`validator` raises `ConfigError` for what its part cannot be."""
    VALIDATORS[part] = validator


def check_known(content: Mapping[str, Mapping[str, Any]], *, unchecked: bool = False) -> None:
    """That every part is one that is known, and may hold what it holds. With `unchecked`, parts
    that nobody here knows are let through."""
    for name, part in content.items():
        validator = VALIDATORS.get(name)
        if validator is None:
            if not unchecked:
                raise ConfigError(
                    f"nobody here knows a part {name!r}; there is {', '.join(sorted(VALIDATORS))}"
                )
            continue
        _loaded(validator)(part)


def _loaded(validator: Validator | str) -> Validator:
    if not isinstance(validator, str):
        return validator
    module, _, name = validator.partition(":")
    found: Validator = getattr(importlib.import_module(module), name)
    return found
