"""URLs: what they may say, and that everything else is refused by type with what is known."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlog
from dlog.backends import _open_cluster
from dlog.errors import ConfigError, Unsupported
from dlog.metrics import NO_METRICS
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
        ("file:/a%2541", "/a%41"),
        ("file:/a%0Ab", "/a\nb"),
        ("file:/a%FFb", "/a\udcffb"),
        ("file:////a", "/a"),
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
    ("text", "hosts", "root"),
    [
        ("zk://zk1:2181/dlog", "zk1:2181", "/dlog"),
        ("zk://zk1,zk2:2182,zk3", "zk1:2181,zk2:2182,zk3:2181", "/dlog"),
        ("ZK://zk1:2181/", "zk1:2181", "/dlog"),
        ("zk://zk1:2181/prod/logs/", "zk1:2181", "/prod/logs"),
        ("zk://[::1]:2181,[fe80::1]/a%20b", "[::1]:2181,[fe80::1]:2181", "/a b"),
    ],
)
def test_cluster_urls(text: str, hosts: str, root: str) -> None:
    url = parse(text)
    assert (url.scheme, url.hosts, url.root) == ("zk", hosts, root)
    assert parse(str(url)) == url


def test_the_parameters_of_a_cluster_url() -> None:
    url = parse("zk://zk1/dlog?ledgers=/bk/ledgers&session_timeout_ms=4000&meta_timeout_ms=50")
    assert url.options == ClientOptions(
        ledgers="/bk/ledgers", session_timeout_ms=4000, meta_timeout_ms=50
    )
    assert str(url) == "zk://zk1:2181/dlog?ledgers=/bk/ledgers"


@pytest.mark.parametrize("url", ["file:/data", "memory:a"])
def test_what_only_clusters_have_is_refused_elsewhere(url: str) -> None:
    with pytest.raises(ConfigError, match="unknown URL parameter 'ledgers'"):
        parse(f"{url}?ledgers=/ledgers")
    with pytest.raises(ConfigError, match=r"ledgers: only clusters"):
        resolve(url, {"ledgers": "/ledgers"})
    assert resolve("zk://zk1", {"ledgers": "/bk"}).options.ledgers == "/bk"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("zk:", "takes hosts"),
        ("zk:zk1:2181", "takes hosts"),
        ("zk:///dlog", "takes hosts"),
        ("zk://user:secret@zk1/dlog", "no credentials"),
        ("zk://zk1:99999999/dlog", "hosts are HOST:PORT"),
        ("zk://zk1,,zk2/dlog", "hosts are HOST:PORT"),
        ("zk://zk1;zk2/dlog", "hosts are HOST:PORT"),
        ("zk://zk1/a//b", "is a path of ZooKeeper"),
        ("zk://zk1/../x", "is a path of ZooKeeper"),
        ("zk://zk1/a%0Ab", "is a path of ZooKeeper"),
        ("zk://zk1/dlog?ledgers=ledgers", "ledgers is a path of ZooKeeper"),
        ("zk://zk1/dlog?ledgers=", "ledgers is a path of ZooKeeper"),
        ("zk://zk1/dlog?password=x", "no password in a URL"),
        ("zk://zk1/dlog?session_timeout_ms=99", "session_timeout_ms is a whole number"),
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
        ("memory:a?meta_timeout_ms=" + "9" * 5000, "is a number"),
        ("file:./\ud800", "no directory has such a name"),
        ("file:~\ud800", "no directory has such a name"),
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


@pytest.mark.parametrize("text", ["bk://host/dlog", "http://x", "files:/data"])
def test_a_scheme_without_a_backend_lists_those_there_are(text: str) -> None:
    with pytest.raises(Unsupported, match="file:PATH, memory:NAME, zk://"):
        parse(text)


@given(st.text(max_size=60))
def test_any_text_is_a_url_or_a_typed_error(text: str) -> None:
    try:
        parse(text)
    except (ConfigError, Unsupported):
        return


@given(rest=st.text(max_size=30), scheme=st.sampled_from(["file:", "memory:", "zk:", "zk://h/"]))
def test_any_rest_is_a_url_or_a_typed_error(scheme: str, rest: str) -> None:
    try:
        url = parse(scheme + rest)
    except ConfigError:
        return
    assert url.place
    assert parse(str(url)).place == url.place
    if scheme != "zk:" and scheme != "zk://h/":  # where hosts are sorted
        assert parse(url.where) == Url(url.scheme, url.place, ClientOptions())


@given(name=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_a_url_that_is_shown_leads_to_the_same_directory(name: str) -> None:
    url = parse(f"file:/data/{quote(name, safe='')}")
    assert url.place == str(Path("/data/" + name).absolute())
    for shown in (str(url), url.where):
        assert parse(shown).place == url.place


@pytest.mark.parametrize(
    "name", ["%41", "a%2Fb", "a?b=c", "a#b", "a b", " a ", "\n", "%25", "ä", "\udcff"]
)
def test_a_client_shows_the_url_that_leads_to_it(name: str, tmp_path: Path) -> None:
    url = f"file:{tmp_path}/{quote(name, errors='surrogateescape')}"
    with dlog.open_writer("log", url=url) as log:
        log.append(b"here")
    assert [os.fsdecode(each) for each in os.listdir(os.fsencode(tmp_path))] == [name]
    with dlog.connect(url) as client, dlog.connect(client.url) as again:
        with again.open_reader("log") as reader:
            assert [message.value for message in reader] == [b"here"]
        assert again.url == client.url


def test_the_users_own_directory_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENV_URL, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "%41"))
    assert Path(resolve(None).place) == user_data_directory()


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


def test_a_cluster_without_its_client_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [each for each in sys.modules if each.startswith("dlog.meta.zookeeper")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(Unsupported, match=r"dlog\[zookeeper\]"):
        _open_cluster(parse("zk://zk1/dlog"), NO_METRICS)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("memory:a", "memory:a"),
        ("file:///a/b?meta_timeout_ms=7", "file:/a/b"),
        ("zk://B,a:2182/x", "zk://a:2182,b:2181/x"),
        ("zk://a:2182,b/x?ledgers=/ledgers&session_timeout_ms=900", "zk://a:2182,b:2181/x"),
        (
            "zk://a?ledgers=/l%20m&tls=required&tls_system_cas=true",
            "zk://a:2181/dlog?ledgers=/l%20m",
        ),
    ],
)
def test_a_place_by_itself(text: str, where: str) -> None:
    """Whoever names it, and however they get in: the same text, which is a URL."""
    assert parse(text).where == where
    assert parse(where).where == where
