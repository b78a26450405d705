"""What the library logs (stdlib loggers `dlog.*`), rendered on standard error: by structlog where
it is installed, else as plain lines. Nothing is imported until something is logged, since structlog
costs more to import than most commands run."""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
from typing import Any

from dlog.cli.escape import printable

_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
# What every stdlib log entry has; the rest are the structured fields of whoever logged.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def start(verbosity: int, *, quiet: bool = False) -> None:
    """Show what `dlog.*` logs from now on: warnings, with -v also news, with -vv everything. One
    step less if `quiet`, for a command that says itself what is wrong."""
    level = verbosity if quiet else verbosity + 1
    logger = logging.getLogger("dlog")
    logger.setLevel(_LEVELS[min(level, len(_LEVELS) - 1)])
    logger.propagate = False
    if not any(isinstance(handler, StderrHandler) for handler in logger.handlers):
        logger.addHandler(StderrHandler())


class StderrHandler(logging.Handler):
    """One line per entry, safe to show."""

    def __init__(self) -> None:
        super().__init__()
        self._renderer: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._renderer is None:
            self._renderer = _structlog_renderer() or _plain
        told = {name: value for name, value in vars(record).items() if name not in _USUAL}
        told["event"] = record.getMessage()
        told["level"] = record.levelname.lower()
        told["logger"] = record.name
        if record.exc_info and record.exc_info[1] is not None:
            told["error"] = repr(record.exc_info[1])
        line = self._renderer({name: _safe(value) for name, value in told.items()})
        print(line, file=sys.stderr, flush=True)


def _safe(value: object) -> object:
    return value if isinstance(value, int | float) else printable(str(value))


def _plain(told: dict[str, object]) -> str:
    head = f"dlog: {told.pop('level')}: {told.pop('event')}"
    return " ".join([head, *(f"{name}={value}" for name, value in told.items())])


def _structlog_renderer() -> Any:
    if find_spec("structlog") is None:
        return None
    import structlog

    colors = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0, pad_level=False)
    return lambda told: renderer(None, told["level"], told)
