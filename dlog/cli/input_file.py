"""Input that a command reads as a whole, from a file or from standard input. Whatever is wrong with
it names the input, and the line where there is one."""

from __future__ import annotations

import errno
import json
import sys
from contextlib import ExitStack
from typing import Any, BinaryIO

from dlog.cli.failures import USAGE, Told


def shown_name(name: str) -> str:
    return "standard input" if name == "-" else name


def why_unreadable(error: OSError) -> str:
    if error.errno == errno.EBADF:
        return "it is closed"
    return error.strerror or str(error)


def read_whole(name: str, most_bytes: int) -> bytes:
    """All of it, at most so much."""
    try:
        with ExitStack() as stack:
            stream: BinaryIO = sys.stdin.buffer
            if name != "-":
                stream = stack.enter_context(open(name, "rb"))
            raw = stream.read(most_bytes + 1)
    except OSError as error:
        raise Told(f"{shown_name(name)}: {why_unreadable(error)}") from error
    if len(raw) > most_bytes:
        raise Told(f"{shown_name(name)}: longer than {most_bytes} bytes", USAGE)
    return raw


def read_json_object(name: str, most_bytes: int) -> dict[str, Any]:
    raw, shown = read_whole(name, most_bytes), shown_name(name)
    try:
        found = json.loads(str(raw, "utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Told(f"{shown}, line {line}: not UTF-8", USAGE) from None
    except json.JSONDecodeError as error:
        raise Told(f"{shown}, line {error.lineno}: not JSON: {error.msg}", USAGE) from None
    except (ValueError, RecursionError):  # a number of too many digits, too many brackets
        raise Told(f"{shown}: not JSON that can be read here", USAGE) from None
    if not isinstance(found, dict):
        raise Told(f"{shown}: a JSON object is wanted, not {type(found).__name__}", USAGE)
    return found
