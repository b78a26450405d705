"""What the jobs share: where the logs are, and a session of Spark, the one that there is (as under
spark-submit) or one on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from dlog import uri
from dlog.spark.access import PREFIX, Access


def parser(name: str, told: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=f"dlog spark {name}",
        description=told,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--url", help="where the logs are (default: DLOG_URL, or your own)")
    made.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the client, as tls=required or zk_auth=env:NAME; may be given again and again",
    )
    made.add_argument("--master", help="of Spark (default: that of spark-submit, or local[*])")
    return made


def access_of(chosen: argparse.Namespace) -> Access:
    return access_from(chosen.url, dict(each.partition("=")[::2] for each in chosen.option))


def access_from(url: str | None, given: Mapping[str, str] = MappingProxyType({})) -> Access:
    """Without a URL the logs are where every command of dlog looks for them."""
    return Access.of(url or str(uri.resolve(None)), given)


def options_of(access: Access) -> dict[str, str]:
    """For `format("dlog")`."""
    return {"url": access.url, **{PREFIX + name: value for name, value in access.options}}


def access_in(options: Mapping[str, str]) -> Access:
    """The way back."""
    given = {
        name.removeprefix(PREFIX): value
        for name, value in options.items()
        if name.startswith(PREFIX)
    }
    return Access.of(options.get("url"), given)


@contextmanager
def session(name: str, master: str | None = None, **conf: str) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    # Spark starts `python3` otherwise, which is seldom the one that has dlog and pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"dlog {name}")
    if master is None and "SPARK_ENV_LOADED" not in os.environ:  # not under spark-submit
        master = "local[*]"
    if master is not None:
        builder = builder.master(master)
    if master is not None and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # nobody else has anything to ask
        builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    for key, value in conf.items():
        builder = builder.config(key, value)
    there = SparkSession.getActiveSession()
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        if there is None:
            spark.stop()
