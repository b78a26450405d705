"""A secret shows nowhere, and comes from where it was said to be."""

from __future__ import annotations

import copy
import dataclasses
import hmac
import json
import logging
import os
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

from dlog import limits
from dlog.errors import ConfigError
from dlog.secret import Secret

CANARY = "canary-7f3a91"


def secrets_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Secret]:
    path = tmp_path / "password"
    path.write_text(CANARY + "\n", encoding="utf-8")
    path.chmod(0o600)
    monkeypatch.setenv("TEST_DLOG_PASSWORD", CANARY)
    return [
        Secret(CANARY.encode()),
        Secret(lambda: CANARY),
        Secret(lambda: CANARY.encode()),
        Secret.at(f"file:{path}"),
        Secret.at("env:TEST_DLOG_PASSWORD"),
    ]


def test_a_secret_is_what_it_is_and_shows_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @dataclasses.dataclass
    class Options:
        password: Secret

    for secret in secrets_of_all_kinds(tmp_path, monkeypatch):
        assert secret.reveal() == CANARY.encode()
        assert secret.reveal_text() == CANARY
        logging.getLogger("test").warning("%s %r", secret, secret)
        options = Options(secret)
        shown = [
            str(secret),
            repr(secret),
            f"{secret}",
            f"{secret!r:>40}",
            f"{secret:>40}",
            "%s" % secret,  # noqa: UP031
            repr([secret]),
            repr(options),
            repr(dataclasses.asdict(options)),
            json.dumps([secret], default=str),
            "".join(traceback.format_exception(ValueError(secret))),
            caplog.text,
        ]
        assert not any(CANARY in each for each in shown)
        with pytest.raises(TypeError):
            json.dumps(secret)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(TypeError):
                pickle.dumps(secret, protocol)
        assert copy.deepcopy(secret).reveal() == copy.copy(secret).reveal() == CANARY.encode()
        with pytest.raises(TypeError):
            hash(secret)
        with pytest.raises(TypeError):
            bytes(secret)  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            len(secret)  # type: ignore[arg-type]


def test_equal_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, Any]] = []
    compare = hmac.compare_digest

    def compare_and_tell(a: Any, b: Any) -> bool:
        asked.append((a, b))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare_and_tell)
    assert Secret(b"a") == Secret(lambda: "a")
    assert Secret(b"a") != Secret(b"b")
    assert Secret(b"a") != b"a", "a value beside a secret is not one"
    assert asked == [(b"a", b"a"), (b"a", b"b")]


def test_a_provider_is_asked_again_each_time() -> None:
    answers = iter([b"old", b"new"])
    secret = Secret(lambda: next(answers))
    assert (secret.reveal(), secret.reveal()) == (b"old", b"new")


def test_a_file_that_was_rotated_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.touch(0o600)
    secret = Secret.at(f"file:{path}")
    for value in (b"one", b"two"):
        path.write_bytes(value)
        assert secret.reveal() == value


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [(b"a\n", b"a"), (b"a\r\n", b"a"), (b"a\n\n", b"a\n"), (b" a ", b" a "), (b"", b"")],
)
def test_one_end_of_line_is_not_part_of_it(tmp_path: Path, stored: bytes, wanted: bytes) -> None:
    path = tmp_path / "password"
    path.touch(0o600)
    path.write_bytes(stored)
    assert Secret.at(f"file:{path}").reveal() == wanted


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o644])
def test_a_file_that_others_reach_is_refused_unless_that_is_said(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "password"
    path.write_text(CANARY, encoding="utf-8")
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600") as caught:
        Secret.at(f"file:{path}").reveal()
    assert CANARY not in str(caught.value)
    assert Secret.at(f"unsafe-file:{path}").reveal_text() == CANARY


@pytest.mark.parametrize(
    "given", [CANARY, f"{CANARY}:x", "env:", "file:", "", f"vault:{CANARY}", f"FILE:{CANARY}"]
)
def test_a_text_that_is_no_place_is_refused_and_not_repeated(given: str) -> None:
    with pytest.raises(ConfigError, match="env:NAME") as caught:
        Secret.of(given)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("given", [None, 7, ["a"], object()])
def test_what_is_no_secret_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError):
        Secret.of(given)


def test_what_a_provider_may_not_say() -> None:
    for answer in (None, 7, bytearray(b"x")):
        with pytest.raises(ConfigError, match="gave no secret"):
            Secret(lambda answer=answer: answer).reveal()  # type: ignore[misc]
    with pytest.raises(ConfigError, match="longer"):
        Secret(bytes(limits.SECRET_BYTES_MAX + 1)).reveal()
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        Secret(b"\xff" + CANARY.encode()).reveal_text()
    told = "".join(traceback.format_exception(caught.value))
    assert CANARY not in told


def test_places_with_nothing_in_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DLOG_NOT_THERE"):
        Secret.at("env:DLOG_NOT_THERE").reveal()
    with pytest.raises(ConfigError, match="No such file"):
        Secret.at(f"file:{tmp_path / 'none'}").reveal()
    huge = tmp_path / "huge"
    huge.touch(0o600)
    os.truncate(huge, 1 << 30)
    with pytest.raises(ConfigError, match="longer"):
        Secret.at(f"file:{huge}").reveal()
