"""The few lines between us and a JVM: ask the kernel to kill this process when its parent dies,
then become the JVM. A program of its own, because the request must be made by the child, and
between fork and exec of a process with threads nothing may run; it survives the exec.

    python keeper.py PARENT_PID PROGRAM ARGUMENT …
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, program = int(sys.argv[1]), sys.argv[2]
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # it died before we asked
            sys.exit(1)
    os.execv(program, sys.argv[2:])


if __name__ == "__main__":
    main()
