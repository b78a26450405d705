"""Bring the servers' jars before anybody waits for them, and say what can run on this machine:

    python -m dlog.testing.cluster

The exit code is 0 if clusters of the newest release can be started.
"""

from __future__ import annotations

import argparse
import sys

from dlog.errors import Unavailable
from dlog.testing.cluster import archive
from dlog.testing.cluster.jars import BOOKKEEPER_DEFAULT, BOOKKEEPER_VERSIONS, why_not_brought


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dlog.testing.cluster",
        description="Bring the jars of test clusters, and say what can run on this machine.",
    )
    parser.parse_args(arguments)
    for version in BOOKKEEPER_VERSIONS:
        missing = why_not_brought(version)
        if missing is None:
            try:
                archive.make(version)
            except Unavailable as error:
                sys.stdout.write(f"BookKeeper {version}: {error}\n")
                return 1
        sys.stdout.write(f"BookKeeper {version}: {missing or 'ready'}\n")
        sys.stdout.flush()
    return 0 if why_not_brought(BOOKKEEPER_DEFAULT) is None else 1


if __name__ == "__main__":
    sys.exit(main())
