"""What an acceptance has shown: each step with its outcome, for programs and for people.

Invariant: a step has passed only if it was tried and what was looked at was as it must be.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

ALL_PASSED, FAILED, NOT_ALL_TRIED, STOPPED = 0, 1, 3, 4
"""Exit codes. 2 is for what never began."""


_COLUMNS = ("table", "step", "outcome", "seconds", "requests", "job: waited, ran, attempts, bytes", "seen")
Requests = dict[str, dict[str, int]]
"""Of whom what was asked, and how often: by `service`, `catalog` and `store`, then by kind."""


class Outcome(StrEnum):
    """NOT_TRIED could have been, NOT_POSSIBLE in no way with such a catalog or store."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_TRIED = "not tried"
    NOT_POSSIBLE = "not possible here"


@dataclass(frozen=True)
class Problem:
    """Why a step failed, as a job or the service tells it. code: a job's code, or the slug of a problem."""

    code: str
    title: str
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class JobFigures:
    """What one job took, as the service tells it. Times in seconds; rows and bytes of its attempts."""

    id: str
    kind: str
    dry_run: bool
    status: str
    attempts: int
    waited_seconds: float
    ran_seconds: float
    rows: int
    bytes: int
    stages: list[dict[str, Any]]


@dataclass
class Step:
    """said: what was seen, or why it was not tried. seconds: of the clock, from its begin to its end.
    requests: that the command made in it.
    """

    table: str
    name: str
    outcome: Outcome = Outcome.NOT_TRIED
    said: str = ""
    seconds: float = 0.0
    requests: Requests = field(default_factory=dict)
    problem: Problem | None = None
    jobs: list[JobFigures] = field(default_factory=list)


@dataclass
class Report:
    """Of one run. versions: of what took part. requests: that the command made; not_counted: who made others.

    stopped: by somebody, before all was tried.
    """

    run: str
    started_at: str
    service: str
    catalog: str
    catalog_type: str
    store: str
    namespace: str
    versions: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    seconds: float = 0.0
    requests: Requests = field(default_factory=dict)
    not_counted: list[str] = field(default_factory=list)
    stopped: bool = False

    @property
    def exit_code(self) -> int:
        counts = self._counts
        if counts[Outcome.FAILED]:
            return FAILED
        if self.stopped:
            return STOPPED
        if not counts[Outcome.PASSED]:
            return FAILED
        return NOT_ALL_TRIED if counts[Outcome.NOT_TRIED] else ALL_PASSED

    @property
    def verdict(self) -> str:
        counts = self._counts
        shown = [one for one in Outcome if one is not Outcome.NOT_POSSIBLE or counts[one]]
        said = ", ".join(f"{counts[one]} {one}" for one in shown)
        return f"stopped: {said}" if self.stopped else said

    @property
    def _counts(self) -> Counter[Outcome]:
        return Counter(step.outcome for step in self.steps)

    def _requests(self) -> list[str]:
        return [
            f"| {whom} | {_cell(kind)} | {number:,} |"
            for whom, kinds in self.requests.items()
            for kind, number in sorted(kinds.items(), key=lambda one: (-one[1], one[0]))
        ]

    def _listed(self, title: str, outcome: Outcome) -> list[str]:
        steps = [step for step in self.steps if step.outcome is outcome]
        return [f"## {title}", *map(_explained, steps)] if steps else []

    def to_json(self) -> str:
        whole = {"verdict": self.verdict, "accepted": self.exit_code == ALL_PASSED, **asdict(self)}
        return json.dumps(whole, indent=2) + "\n"

    def to_markdown(self) -> str:
        facts = {
            "run": self.run,
            "started": self.started_at,
            "service": self.service,
            "catalog": f"{self.catalog} ({self.catalog_type})",
            "store": self.store,
            "namespace": self.namespace,
            "took": f"{self.seconds:.0f} s",
            **self.versions,
        }
        parts = [
            f"# Icestream acceptance: {self.verdict}",
            _table(("", ""), facts),
            *self._listed("What failed", Outcome.FAILED),
            *self._listed("What was not tried", Outcome.NOT_TRIED),
            *self._listed("What is not possible here", Outcome.NOT_POSSIBLE),
            "## All steps",
            "\n".join(
                [
                    f"| {' | '.join(_COLUMNS)} |",
                    "|---|---|---|---|---|---|---|",
                    *map(_row, self.steps),
                ]
            ),
            "## Requests of this command",
            "\n".join(["| to | for | number |", "|---|---|---|", *self._requests()]),
            "\n".join(["Not counted:", "", *(f"- {_flat(one)}" for one in self.not_counted)]),
        ]
        return "\n\n".join(parts) + "\n"


def _table(head: tuple[str, str], facts: Mapping[str, str]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {_cell(value)} |" for name, value in facts.items())])


def _row(step: Step) -> str:
    jobs = "; ".join(
        f"{job.kind}{' (dry run)' if job.dry_run else ''}: {job.waited_seconds:.1f} s, "
        f"{job.ran_seconds:.1f} s, {job.attempts}, {job.bytes:,}"
        for job in step.jobs
    )
    said = step.said if step.problem is None else f"{step.problem.title}: {step.problem.detail}"
    requests = ", ".join(f"{whom} {sum(kinds.values())}" for whom, kinds in step.requests.items())
    cells = (step.table, step.name, step.outcome, f"{step.seconds:.1f}", requests, jobs, said)
    return f"| {' | '.join(map(_cell, cells))} |"


def _explained(step: Step) -> str:
    problem = step.problem
    if problem is None:
        return f"- {_named(step)}: {_flat(step.said)}"
    told = f"**{_flat(problem.title)}** (`{problem.code}`): {_flat(problem.detail)} {_flat(problem.remedy)}"
    return f"- {_named(step)}: {told.strip()}"


def _named(step: Step) -> str:
    return f"{step.table}, {step.name}"


def _flat(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _flat(text).replace("|", "\\|")
