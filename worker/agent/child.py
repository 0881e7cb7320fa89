"""Runs a module as a program that ends together with the process that started it.

    python -m worker.agent.child worker.agent.main [arguments]

Standard input is a pipe from the parent, which never writes to it. When the parent is gone, however it went,
the pipe closes: the program gets the signal that asks it to stop, and its whole process group (Spark's JVM
belongs to it) is ended if that takes too long.
"""

import os
import runpy
import signal
import sys
import threading
import time

STOP_SECONDS = 10.0


def end_with_parent() -> None:
    """Blocks until standard input closes, then ends this process."""
    # Not sys.stdin: a thread that waits in it holds a lock that the interpreter wants when it ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, name="end-with-parent", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
