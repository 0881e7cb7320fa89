"""Child processes of `icestream up`: started, watched, started again, and never left behind.

Invariant: a child leads a process group of its own, so that Ctrl-C in the terminal reaches only this process,
which then stops the children in order; and it holds the reading end of a pipe from here, so that it ends too
when this process is killed and can stop nothing any more (see worker.agent.child).
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from service.db import private_files

logger = logging.getLogger(__name__)

# More than the 20 s after which a worker ends by itself, whatever hangs: it has its job to hand back.
STOP_SECONDS = 23.0
_GROUP_SECONDS = 3.0
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_STEADY_SECONDS = 60.0
_LOG_BYTES = 16 * 1024 * 1024


class Child:
    """A process, `python -m worker.agent.child MODULE ARGUMENTS`, whose raw output goes to a log file."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        data_dir: Path,
        *,
        speaks: bool = False,
        listener: socket.socket | None = None,
    ) -> None:
        """listener: handed down, by its number. speaks: standard output is the terminal's, only standard
        error goes to the log file."""
        self.name = name
        self.log = data_dir / "logs" / f"{name}.log"
        # Spark leaves things where it is started, so that is not where the user happens to be.
        self._folder = data_dir / "cache"
        self._command = [sys.executable, "-m", "worker.agent.child", *arguments]
        self._environment = {**os.environ, "PYTHONPATH": _search_path(), **environment}
        self._speaks = speaks
        self._handed_down = () if listener is None else (listener.fileno(),)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
            self.log.replace(self.log.with_suffix(".1.log"))
        with private_files.open_file(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=None if self._speaks else log,
                stderr=log,
                env=self._environment,
                cwd=self._folder,
                start_new_session=True,
                pass_fds=self._handed_down,
            )
        return self._process

    def stop(self) -> None:
        """End the process and all that it started: asked first, forced after some seconds."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        # Spark's JVM ends by itself once its Python process is gone, and tidies up.
        deadline = time.monotonic() + _GROUP_SECONDS
        while process.poll() is not None and _group_lives(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class KeptAlive:
    """Starts a child again whenever it ends by itself, ever later while it keeps failing."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"keeps-{child.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._child.stop()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            started = time.monotonic()
            process = self._child.start()
            if self._stopping.is_set():
                self._child.stop()
            code = process.wait()
            if self._stopping.is_set():
                return
            # What the process left running would hold Spark's memory and ports.
            self._child.stop()
            if time.monotonic() - started > _STEADY_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            logger.warning(
                "The %s ended (%s) and is started again in %.0f s; its log is %s",
                self._child.name,
                _how_it_ended(code),
                pause,
                self._child.log,
            )
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _search_path() -> str:
    """Where a child that works elsewhere finds the packages that this process runs from."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(Path(__file__).parents[2]), *([given] if given else [])])


def _how_it_ended(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _group_lives(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True
