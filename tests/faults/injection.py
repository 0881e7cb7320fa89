"""Faults at named points of a process, for the test builds of service and worker; neither knows of this.

A test says in an environment variable what happens where, and a test build wraps the points and asks
`Faults.at`. Files in a directory count, so a fault fires as often as it should however often its process is
started again, and the test sees that it did.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

VARIABLE = "ICESTREAM_FAULTS"
DIRECTORY_VARIABLE = "ICESTREAM_FAULTS_DIR"
FAULTS_FILE_VARIABLE = "ICESTREAM_FAULTS_FILE"
_SLEEP = "sleep:"
_RELEASED = "released"
_ACTIONS = ("kill", "kill-executor", "stop", "hold", "error", "timeout")

When = Literal["before", "after"]


class InjectedError(Exception):
    """The point fails."""


class InjectedTimeoutError(InjectedError):
    """The point did its work (if fired after it), and nobody is told."""


def _jvm_above(pid: int) -> int:
    while Path(f"/proc/{pid}/comm").read_text() != "java\n":
        # Behind the name, which may hold anything: the state, and the parent.
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at a point: before its work, or after it and before anybody learns of it."""

    point: str
    when: When
    action: str
    """`kill` or `stop` this process, `kill-executor` (the JVM above it), `hold` its thread until the test
    releases it, `error`, `timeout`, or `sleep:` and seconds."""
    times: int = 1
    skip: int = 0
    """So many passes of the point go well first."""

    def __post_init__(self) -> None:
        if self.when not in ("before", "after"):
            raise ValueError(f"{self.when!r} is neither before nor after")
        if self.action.startswith(_SLEEP):
            float(self.action.removeprefix(_SLEEP))
        elif self.action not in _ACTIONS:
            raise ValueError(f"{self.action!r} is no action")

    def fire(self, directory: Path) -> None:
        """Do it; `directory` holds the markers. Raises InjectedError or InjectedTimeoutError for those two
        actions."""
        match self.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill-executor":
                os.kill(_jvm_above(os.getpid()), signal.SIGKILL)
                time.sleep(60)  # its Python processes end with it
            case "stop":
                # To this thread: it would go on for a while if another one took the signal.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            case "hold":
                while not (directory / _RELEASED).exists():
                    time.sleep(0.05)
            case "error":
                raise InjectedError(f"{self.when} {self.point}")
            case "timeout":
                raise InjectedTimeoutError(f"{self.when} {self.point}")
            case _:
                time.sleep(float(self.action.removeprefix(_SLEEP)))

    def _marker(self, directory: Path, number: int) -> Path:
        name = quote(f"{self.point} {self.when} {self.action}", safe=" ")
        return directory / f"{name} {number}"


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of this process."""

    faults: tuple[Fault, ...] = ()
    directory: Path = Path()

    @classmethod
    def from_environment(cls) -> Self:
        """Those that the test asked for; none without the variable."""
        given = os.environ.get(VARIABLE)
        if not given:
            return cls()
        return cls(tuple(Fault(**each) for each in json.loads(given)), Path(os.environ[DIRECTORY_VARIABLE]))

    @staticmethod
    def environment(faults: Iterable[Fault], directory: Path) -> dict[str, str]:
        """The variables that make a test build do this; `directory` exists and holds the markers."""
        return {
            VARIABLE: json.dumps([asdict(fault) for fault in faults]),
            DIRECTORY_VARIABLE: str(directory),
        }

    @classmethod
    def from_file(cls, file: Path) -> Self:
        """Those that a test has written there last, for processes that outlive a test; see `write`."""
        try:
            content = json.loads(file.read_text())
        except FileNotFoundError:
            return cls()
        return cls(tuple(Fault(**each) for each in content["faults"]), Path(content["directory"]))

    def write(self, file: Path) -> None:
        """The counterpart of `from_file`; readers see the old content or the new."""
        draft = file.with_suffix(".draft")
        faults = [asdict(fault) for fault in self.faults]
        draft.write_text(json.dumps({"faults": faults, "directory": str(self.directory)}))
        draft.replace(file)

    def at(self, point: str, when: When) -> Fault | None:
        """Count one pass of a point; the fault that is due there, if any, is claimed by that."""
        for fault in self.faults:
            if (fault.point, fault.when) == (point, when):
                number = self._count_pass(fault)
                if number is not None and number >= fault.skip:
                    return fault
        return None

    def pass_through(self, point: str, when: When) -> None:
        """Fire what is due at a point."""
        fault = self.at(point, when)
        if fault is not None:
            fault.fire(self.directory)

    def _count_pass(self, fault: Fault) -> int | None:
        """The number of this pass, from 0, among all processes; None once the fault is over."""
        for number in range(fault.skip + fault.times):
            try:
                with fault._marker(self.directory, number).open("x") as marker:
                    marker.write(str(os.getpid()))
            except FileExistsError:
                continue
            return number
        return None


def fired_in(directory: Path, fault: Fault) -> int:
    """The process in which a fault fired first."""
    return int(fault._marker(directory, fault.skip).read_text())


def fired(directory: Path, fault: Fault) -> int:
    """How many times a fault has fired."""
    numbers = range(fault.skip, fault.skip + fault.times)
    return sum(fault._marker(directory, number).exists() for number in numbers)


def release(directory: Path) -> None:
    """Let go on whatever is held there, now and later."""
    (directory / _RELEASED).touch()
