"""`make fault-figures`: runs the tests of faults and writes what came of each into docs/faults.md.

Which fault a test is of says the table there. A test that fails is counted as a loss: of a job, of a row, or
of something that was left behind.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.faults.recovery import FOLLOWED, INJECTED

DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"
_TESTS = Path(__file__).parents[1]
_CLOCK = "a clock jumps"  # where the times that the service recorded tell nothing
_BEGIN, _END = "<!-- figures: made by make fault-figures -->", "<!-- end of figures -->"


@dataclass
class Figures:
    """Of one fault. followed: seconds and the lease, of each attempt that another one followed."""

    injected: int = 0
    losses: int = 0
    followed: list[tuple[float, float]] = field(default_factory=list)

    @property
    def cells(self) -> list[str]:
        cells = [str(self.injected), str(self.losses)]
        if not self.followed:
            return [*cells, "", ""]
        leases = [seconds / lease for seconds, lease in self.followed]
        return [*cells, f"{statistics.median(leases):.1f}", f"{max(leases):.1f}"]


class Collector:
    """A plugin of pytest that adds up what the tests report."""

    def __init__(self, fault_of: Mapping[str, str]) -> None:
        self._fault_of = fault_of
        self.figures: dict[str, Figures] = defaultdict(Figures)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        fault = self._fault_of.get(name_of(report.nodeid))
        if fault is None:
            return
        figures = self.figures[fault]
        figures.losses += report.failed
        if report.when == "teardown":
            told = dict(report.user_properties)
            figures.injected += int(str(told.get(INJECTED, 1)))
            if not fault.startswith(_CLOCK):
                figures.followed += told.get(FOLLOWED, [])  # type: ignore[arg-type]


def name_of(node_id: str) -> str:
    """The function of a test, without its parameters."""
    return node_id.partition("[")[0].rpartition("::")[2]


def faults_by_test(document: str) -> dict[str, str]:
    """The fault that each test shows, by the document's first table."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (`test_[^|]+) \|$", document, re.MULTILINE)
    return {test: fault for fault, tests in rows for test in re.findall(r"`(\w+)`", tests)}


def places(tests: Iterable[str]) -> dict[str, list[Path]]:
    """The files in which each test is."""
    wanted = set(tests)
    found: dict[str, list[Path]] = {test: [] for test in wanted}
    for file in sorted(_TESTS.rglob("test_*.py")):
        for test in wanted.intersection(re.findall(r"^ *def (test_\w+)\(", file.read_text(), re.MULTILINE)):
            found[test].append(file)
    return found


def section(figures: Mapping[str, Figures], faults: Sequence[str], minutes: float) -> str:
    """faults: in the order of the document."""
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    lines = [
        _BEGIN,
        f"Of one run of {minutes:.0f} minutes on {os.cpu_count()} cores, with load averages of {load} at its",
        "end; what other programs took of that makes all of this later. Losses are tests after which a job,",
        "a row or the history was not as it must be, or something was left behind. Followed: from the last",
        "that the service heard of an attempt until the next one began, in leases by the service's clock,",
        "which most of these tests move on by a fifth of a lease at a time. Where that is empty, no attempt",
        "ended early, or the test runs the attempts itself.",
        "",
        "| fault | injected | losses | followed after, median | longest |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [f"| {fault} | {' | '.join(figures[fault].cells)} |" for fault in faults if fault in figures]
    total = Figures()
    for one in figures.values():
        total.injected += one.injected
        total.losses += one.losses
        total.followed += one.followed
    return "\n".join([*lines, f"| all | {' | '.join(total.cells)} |", _END])


def main(arguments: Sequence[str]) -> int:
    """arguments: of pytest, on top of the tests that the document names."""
    document = DOCUMENT.read_text()
    if _BEGIN not in document:
        document = f"{document}\n## Figures\n\n{_BEGIN}{_END}\n"
    fault_of = faults_by_test(document)
    collector = Collector(fault_of)
    begun = time.monotonic()
    files = sorted({str(file) for of_test in places(fault_of).values() for file in of_test})
    code = int(pytest.main([*files, "-k", " or ".join(fault_of), *arguments], [collector]))
    faults = list(dict.fromkeys(fault_of.values()))
    text = section(collector.figures, faults, (time.monotonic() - begun) / 60)
    before, _, rest = document.partition(_BEGIN)
    DOCUMENT.write_text(f"{before}{text}{rest.partition(_END)[2]}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
