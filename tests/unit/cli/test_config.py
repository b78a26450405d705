"""`dlog config`, as processes."""

from __future__ import annotations

import json

import dlog
from tests.unit.cli.conftest import Shell


def test_set_get_history_and_rollback(shell: Shell) -> None:
    done = shell.dlog("config", "set", "prod", "writer", "linger_ms=5", "codec=none", "--note", "x")
    assert done.out == b"prod is at version 1\n"
    shell.dlog("config", "set", "prod", "writer", "linger_ms=7", "--unset", "codec")
    shell.dlog("config", "set", "prod", "log", "retention_age_s=null")
    told = shell.dlog("config", "get", "prod")
    assert told.lines == ["log retention_age_s=null", "writer linger_ms=7"]
    assert "version 3 of prod, by " in told.err
    old = json.loads(shell.dlog("config", "get", "prod", "--version", "1", "-o", "json").out)
    assert (old["version"], old["note"], old["refused"]) == (1, "x", None)
    assert old["content"] == {"writer": {"codec": "none", "linger_ms": 5}}
    back = shell.dlog("config", "rollback", "prod", "1", "--note", "too slow")
    assert back.out == b"prod is at version 4, which says what version 1 said\n"
    rows = shell.dlog("config", "history", "prod").lines
    assert [row.split()[0] for row in rows] == ["VERSION", "4", "3", "2", "1"]
    assert "as version 1; too slow" in rows[1]
    lines = shell.dlog("config", "history", "prod", "-o", "json").lines
    assert [json.loads(line)["version"] for line in lines] == [4, 3, 2, 1]


def test_all_of_a_document_out_of_a_file(shell: Shell) -> None:
    content = {"writer": {"linger_ms": 3}, "mine": {"a": [1]}}
    (shell.home / "prod.json").write_text(json.dumps(content))
    refused = shell.dlog("config", "set", "prod", "--file", "prod.json", expect=2)
    assert "nobody here knows a part 'mine'" in refused.err
    shell.dlog("config", "set", "prod", "--file", "prod.json", "--unchecked")
    feed = json.dumps({"log": {"segment_age_s": 60}}).encode()
    shell.dlog("config", "set", "prod", "--file", "-", feed=feed)
    assert shell.dlog("config", "get", "prod").lines == ["log segment_age_s=60"]
    for wrong in (b"{", b"[]", b'{"writer": 3}'):
        shell.dlog("config", "set", "prod", "--file", "-", feed=wrong, expect=2)


def test_what_programs_would_refuse_is_not_written(shell: Shell) -> None:
    told = shell.dlog("config", "set", "prod", "log", "digest=hmac", expect=2)
    assert "log.digest cannot change while a handle is open" in told.err
    shell.dlog("config", "set", "prod", "writer", "linger_ms=soon", expect=2)
    shell.dlog("config", "get", "prod", expect=3)


def test_only_over_a_version(shell: Shell) -> None:
    shell.dlog("config", "set", "prod", "writer", "linger_ms=5", "--if-version", "0")
    refused = shell.dlog(
        "config", "set", "prod", "writer", "linger_ms=6", "--if-version", "0", expect=1
    )
    assert "is at version 1, not 0; nothing was changed" in refused.err
    shell.dlog("config", "set", "prod", "writer", "linger_ms=6", "--if-version", "1")
    shell.dlog("config", "rollback", "prod", "1", "--if-version", "1", expect=1)
    shell.dlog("config", "rollback", "prod", "1", "--if-version", "2")


def test_wrong_usage(shell: Shell) -> None:
    for words in (
        ("set", "prod"),
        ("set", "prod", "writer"),
        ("set", "prod", "writer", "linger_ms"),
        ("set", "prod", "writer", "=3"),
        ("set", "prod", "Writer", "a=3"),
        ("set", "prod", "writer", "linger_ms=1", "--file", "x"),
        ("set", "prod", "--file", "-", "--unset", "x"),
        ("set", "prod", "writer", "linger_ms=1", "--unset", "linger_ms"),
        ("rollback", "prod", "one"),
    ):
        shell.dlog("config", *words, expect=2)


def test_what_is_not_there(shell: Shell) -> None:
    shell.dlog("create", "orders")
    assert "`dlog config set` makes one" in shell.dlog("config", "get", "prod", expect=3).err
    shell.dlog("config", "history", "prod", expect=3)
    shell.dlog("config", "rollback", "prod", "1", expect=3)
    shell.dlog("config", "set", "prod", "writer", "linger_ms=1")
    told = shell.dlog("config", "get", "prod", "--version", "7", expect=3)
    assert "there is 1 to 1" in told.err
    assert "`dlog config history prod` lists them" in told.err


def test_get_says_what_programs_would_refuse(shell: Shell) -> None:
    """A document that another release wrote, or somebody by hand."""
    with dlog.connect(shell.url) as client:
        from dlog.streams.config.sections import VALIDATORS

        validator = VALIDATORS.pop("writer")
        try:
            client.config("prod").replace({"writer": {"newer": 1}}, unchecked=True)
        finally:
            VALIDATORS["writer"] = validator
    told = shell.dlog("config", "get", "prod")
    assert "programs of this release refuse it: writer has no newer" in told.err
    assert told.lines == ["writer newer=1"]


def test_a_program_goes_by_it(shell: Shell) -> None:
    with dlog.connect(shell.url, config="prod") as client, client.open_writer("orders") as log:
        shell.dlog("config", "set", "prod", "writer", "linger_ms=5")
        followed = client.followed_config
        assert followed is not None
        followed.wait_for(1, timeout=20)
        assert log.options.linger_ms == 5
        assert followed.status().version == 1
