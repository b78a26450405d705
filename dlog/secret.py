"""`Secret`: a value that never shows, and the places it may come from.

A secret is held as a way to get it, not as a value: whoever needs it calls `reveal()` for the
moment, and a provider that answers differently tomorrow (a rotated file) is asked again. It has no
text form, no pickle, no JSON and no length: a traceback that prints its locals, a log line and a
dump of options all show `<secret>`.

    Secret(b"...")                      the value itself
    Secret(lambda: vault.read("..."))   whatever it says when it is asked
    Secret.at("env:DLOG_PASSWORD")      a variable of the environment
    Secret.at("file:/run/secrets/log")  a file that only its owner may read

Text is always a place and never a value, so that a value that was passed where a place belongs is
refused, and not looked for under its own name in a message. Buffers that held a secret are dropped
early; that they are overwritten Python cannot promise.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import stat
from collections.abc import Callable
from typing import Any, NoReturn

from dlog.errors import ConfigError
from dlog.limits import SECRET_BYTES_MAX

Provider = Callable[[], "bytes | str"]
SecretSource = "Secret | bytes | str | Provider"

_SHOWN = "<secret>"
_PLACES = "env:NAME, file:PATH or unsafe-file:PATH"


class Secret:
    __slots__ = ("_provide", "_where")

    def __init__(self, given: bytes | bytearray | Provider) -> None:
        if callable(given):
            self._provide: Provider = given
            self._where = "its provider"
        elif isinstance(given, bytes | bytearray):
            value = bytes(given)
            self._provide = lambda: value
            self._where = "the program"
        else:
            raise ConfigError(
                f"a secret is bytes, or a function that returns it, not {type(given).__name__}"
            )

    @classmethod
    def at(cls, place: str) -> Secret:
        """What stands at `env:NAME`, `file:PATH` or (readable by others, too) `unsafe-file:PATH`
        whenever it is needed."""
        kind, colon, rest = place.partition(":")
        if not colon or not rest or kind not in ("env", "file", "unsafe-file"):
            # Whatever it is, it may be the secret itself.
            raise ConfigError(f"a text names the place of a secret: {_PLACES}")
        secret = cls(
            (lambda: _of_environment(rest))
            if kind == "env"
            else (lambda: _of_file(rest, private=kind == "file"))
        )
        secret._where = place
        return secret

    @classmethod
    def of(cls, given: Secret | bytes | str | Provider) -> Secret:
        """What callers may give wherever a secret is an argument."""
        if isinstance(given, Secret):
            return given
        return cls.at(given) if isinstance(given, str) else cls(given)

    def reveal(self) -> bytes:
        """The value as it is now. Keep it no longer than the call that needs it."""
        found = self._provide()
        value = found.encode() if isinstance(found, str) else found
        if isinstance(value, bytes) and len(value) <= SECRET_BYTES_MAX:
            return value
        kind, length = type(found).__name__, len(value) if isinstance(value, bytes) else 0
        del found, value  # of a traceback that prints what each frame held
        if length:
            raise ConfigError(
                f"the secret from {self._where} is longer than {SECRET_BYTES_MAX} bytes"
            )
        raise ConfigError(f"{self._where} gave no secret but {kind}")

    def reveal_text(self) -> str:
        with contextlib.suppress(UnicodeDecodeError):  # which holds the bytes
            return self.reveal().decode()
        raise ConfigError(f"the secret from {self._where} is not UTF-8")

    def __eq__(self, other: object) -> bool:
        """In constant time."""
        if not isinstance(other, Secret):
            return False
        return hmac.compare_digest(self.reveal(), other.reveal())

    __hash__ = None  # type: ignore[assignment]  # equal ones would meet in a table of hashes

    def __repr__(self) -> str:
        return _SHOWN

    def __format__(self, spec: str) -> str:
        return _SHOWN

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret is not pickled; pass the name of its place")


def _of_environment(name: str) -> bytes:
    found = os.environb.get(os.fsencode(name)) if os.supports_bytes_environ else None
    if found is None:
        raise ConfigError(f"there is no secret in the environment under {name}")
    return found


def _of_file(path: str, *, private: bool) -> bytes:
    """Its bytes without the end of the last line, which editors and `echo` leave behind."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if private and mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigError(
                    f"others than its owner may reach the secret in {path} (mode "
                    f"{stat.S_IMODE(mode):04o}): chmod 600, or say unsafe-file:"
                )
            value = file.read(SECRET_BYTES_MAX + 2)
    except OSError as error:
        raise ConfigError(f"no secret could be read from {path}: {error.strerror}") from None
    for end in (b"\r\n", b"\n"):
        if value.endswith(end):
            return value[: -len(end)]
    return value
