"""Whole jobs of the worker, run in this process: no control plane and no HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession

from worker.attempt.outcome import Outcome
from worker.contract.control_plane import AnnouncedPlan, Assignment, EndedAttempt
from worker.jobs.pipeline import run_job
from worker.process.errors import OutOfMemoryError
from worker.spark.tasks import TaskRunner

_numbers = count(1)

indexes_in_use: set[str] = set()
"""Places of indexes that jobs of the present test have used; see tests.faults.live_files."""


ONE_PER_TASK = {
    "convert": {"deletion_vector_files": "one_per_task"},
    "expire_snapshots": {"enabled": True},
}
"""A policy under which deletion vectors share Puffin files."""


class RecordingReporter:
    """A control plane that grants what is asked and remembers what is told."""

    def __init__(self) -> None:
        self.decisions: list[str] = []
        self.messages: list[str] = []
        self.told: list[tuple[str, int, int]] = []
        """Stage, done, total."""
        self.next_address = 0
        self.expected_rows: list[int] = []
        self.asked_anew = 0
        """How often the lease was confirmed in any case."""
        self.announced: dict[int, AnnouncedPlan] = {}
        self.before_commit: Callable[[], None] = lambda: None
        self.seconds_ahead = 0.0

    def progress(self, stage: str, done: int, total: int, unit: str, message: str | None = None) -> None:
        assert 0 <= done <= max(total, done)
        self.told.append((stage, done, total))
        if message is not None:
            self.messages.append(message)

    def decide(self, sentence: str) -> None:
        self.decisions.append(sentence)

    def confirm_lease(self, *, anew: bool = False) -> None:
        self.asked_anew += anew
        self.before_commit()

    def left_by(self, job_id: str, attempt: int = 1) -> EndedAttempt:
        """What the next job is told, if the last one was lost."""
        plans, self.announced = list(self.announced.values()), {}
        return EndedAttempt(job_id=job_id, attempt=attempt, plans=plans)

    def announce(self, plan: AnnouncedPlan) -> None:
        self.announced[plan.number] = plan
        is_of_commit = plan.removes is not None or plan.only_on is not None
        if is_of_commit and [stage for stage, *_ in self.told[-1:]] == ["commit"]:
            self.confirm_lease()

    def expect_row_addresses(self, rows: int) -> None:
        self.expected_rows.append(rows)

    def grant_row_addresses(self, rows: int, at_least: int) -> int:
        base = max(self.next_address, at_least)
        self.next_address = base + rows
        return base


class CatalogRecord(Protocol):
    """What the service knows of a catalog."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def properties(self) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class SqlCatalog:
    """The record of a catalog in a database."""

    name: str
    properties: dict[str, str]
    type: str = "sql"


class Jobs:
    """Runs jobs on one table, as a worker would."""

    def __init__(self, spark: SparkSession, catalog: CatalogRecord, identifier: str, index: Path) -> None:
        self.reporter = RecordingReporter()
        self.runner = TaskRunner(spark)
        self.catalog = catalog
        self.identifier = identifier.split(".")[1:]
        self.index = index
        self.index_location = index.as_uri()

    def run(
        self,
        kind: str,
        *,
        dry_run: bool = False,
        attempt: int = 1,
        job_id: str = "",
        policy: Mapping[str, Any] | None = None,
        ended_attempts: Sequence[EndedAttempt] = (),
        out_of_memory: int = 0,
        allowed_locations: Sequence[str] | None = None,
        rows: Sequence[Mapping[str, Any]] | None = None,
        parameters: Mapping[str, Any] | None = None,
        orphan_files: Sequence[str] = (),
        orphans_older_than: str | None = None,
        takes_new_files: bool = False,
        **table: Any,
    ) -> Outcome:
        """out_of_memory: how many earlier attempts said that they lacked memory."""
        indexes_in_use.add(self.index_location)
        lacking = {"status": "failed", "error": {"code": OutOfMemoryError.code}}
        assignment = Assignment.model_validate(
            {
                "job": {
                    "id": job_id or f"job-{next(_numbers)}",
                    "kind": kind,
                    "dry_run": dry_run,
                    "parameters": parameters or {},
                },
                "rows": rows,
                "orphan_files": orphan_files,
                "orphans_older_than": orphans_older_than,
                "attempt": attempt,
                "previous_attempts": [lacking] * out_of_memory,
                "ended_attempts": ended_attempts,
                "lease_seconds": 30,
                "table": {"id": "t", "identifier": self.identifier, "branch": "main", **table},
                "catalog": {
                    "name": self.catalog.name,
                    "type": self.catalog.type,
                    "properties": self.catalog.properties,
                },
                "index": {"warehouse": self.index_location, "takes_new_files": takes_new_files},
                "policy": policy or {},
                "allowed_locations": allowed_locations,
            }
        )
        return run_job(assignment, self.runner, self.reporter)
