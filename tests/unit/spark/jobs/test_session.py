"""Where a job's logs are: what its command line says, as options of Spark and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlog.errors import ConfigError
from dlog.spark.jobs.session import access_in, access_of, options_of, parser


def test_options_of_the_client_reach_every_process() -> None:
    url = "zk://zk1:2181/dlog"
    given = ["--url", url, "--option", "meta_timeout_ms=1500", "--option", "zk_auth=env:ZK=AUTH"]
    access = access_of(parser("count", "Count.").parse_args(given))
    assert dict(access.options) == {"meta_timeout_ms": "1500", "zk_auth": "env:ZK=AUTH"}
    options = options_of(access)
    assert options == {
        "url": access.url,
        "dlog.meta_timeout_ms": "1500",
        "dlog.zk_auth": "env:ZK=AUTH",
    }
    assert access_in({**options, "path": "a"}) == access


def test_without_a_url_the_logs_are_where_every_command_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLOG_URL", f"file:{tmp_path}")
    access = access_of(parser("count", "Count.").parse_args([]))
    assert (access.url, access.options) == (f"file:{tmp_path}", ())


def test_an_option_that_no_client_has_is_refused(tmp_path: Path) -> None:
    chosen = parser("count", "Count.").parse_args(["--url", f"file:{tmp_path}", "--option", "x=1"])
    with pytest.raises(ConfigError, match=r"unknown option dlog\.x"):
        access_of(chosen)
