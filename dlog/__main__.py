"""`python -m dlog` is the command line, for places where no script directory is on the path."""

import sys

from dlog.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
