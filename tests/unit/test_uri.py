"""URLs: what they may say, and that everything else is refused by type with what is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError, Unsupported
from dlog.options import ClientOptions
from dlog.uri import ENV_URL, Url, parse, resolve, user_data_directory


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("file:/data", "/data"),
        ("file:///data", "/data"),
        ("file://localhost/data", "/data"),
        ("FILE:/data", "/data"),
        ("file:/a%20b", "/a b"),
        ("file:/a%3Fb", "/a?b"),
    ],
)
def test_file_urls(text: str, place: str) -> None:
    assert parse(text) == Url("file", place, ClientOptions())


def test_a_relative_path_is_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("file:./data").place == str(tmp_path / "data")
    assert parse("file:data").place == str(tmp_path / "data")


def test_the_home_directory_is_spelled_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse("file:~/logs").place == str(tmp_path / "logs")


def test_a_memory_url_and_its_parameters() -> None:
    url = parse("memory:test?meta_timeout_ms=250")
    assert url == Url("memory", "test", ClientOptions(meta_timeout_ms=250))
    assert str(url) == "memory:test"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "begins with its scheme"),
        ("data", "begins with its scheme"),
        (":x", "begins with its scheme"),
        ("file:", "takes a directory"),
        ("file://host/data", "of this machine"),
        ("file:/a%00b", "takes a directory"),
        ("file:/data#part", "no fragment"),
        ("file:~nobody-has-this-name/x", "no such home directory"),
        ("memory:", "takes a name"),
        ("memory:a/b", "takes a name"),
        ("memory:a%0Ab", "takes a name"),
        ("memory:a?", None),
        ("memory:a?colour=red", "known are meta_timeout_ms"),
        ("memory:a?meta_timeout_ms=1&meta_timeout_ms=2", "given twice"),
        ("memory:a?meta_timeout_ms=-1", "is a number"),
        ("memory:a?meta_timeout_ms=", "is a number"),
        ("memory:a?meta_timeout_ms=²", "is a number"),
        ("memory:a?meta_timeout_ms=0", "meta_timeout_ms is a whole number"),
        ("memory:a?meta_timeout_ms", "name=value"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, told: str | None) -> None:
    if told is None:
        assert parse(text).options == ClientOptions()
        return
    with pytest.raises(ConfigError, match=told):
        parse(text)


@pytest.mark.parametrize("text", ["zk://host/dlog", "http://x", "files:/data"])
def test_a_scheme_without_a_backend_lists_those_there_are(text: str) -> None:
    with pytest.raises(Unsupported, match="file:, memory:"):
        parse(text)


@given(st.text(max_size=60))
def test_any_text_is_a_url_or_a_typed_error(text: str) -> None:
    try:
        parse(text)
    except (ConfigError, Unsupported):
        return


@given(rest=st.text(max_size=30), scheme=st.sampled_from(["file:", "memory:"]))
def test_any_rest_is_a_url_or_a_typed_error(scheme: str, rest: str) -> None:
    try:
        url = parse(scheme + rest)
    except ConfigError:
        return
    assert url.place


def test_given_wins_over_environment_over_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENV_URL, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert resolve(None).place == str(user_data_directory())
    monkeypatch.setenv(ENV_URL, "memory:env")
    assert resolve(None).place == "env"
    assert resolve("memory:given").place == "given"


def test_keywords_win_over_the_url() -> None:
    url = resolve("memory:a?meta_timeout_ms=5", {"meta_timeout_ms": 7})
    assert url.options.meta_timeout_ms == 7
    with pytest.raises(ConfigError, match="unknown option colour"):
        resolve("memory:a", {"colour": "red"})
