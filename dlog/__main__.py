"""`python -m dlog` is the command line, for places where no script directory is on the path."""

import signal
import sys


def run() -> int:
    """Ctrl-C while the command line is being loaded ends the process without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dlog.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
