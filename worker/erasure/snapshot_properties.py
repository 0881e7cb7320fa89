"""What the commits of an erasure tell of it, for an attempt that goes on after one that was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

from stores.table_metadata import JOB_ID
from worker.attempt.job import Job
from worker.table.commit import ATTEMPT, CommittedSnapshot

STEP = "icestream.erasure-step"
DELETE, REWRITE, MANIFESTS = "delete", "rewrite", "manifests"
_ROWS_DELETED = "icestream.rows-deleted"  # as writes by key tell it


def step_properties(job: Job, step: str, summary: Mapping[str, str]) -> dict[str, str]:
    """Of the snapshot that a step of a job commits."""
    assignment = job.assignment
    return {**summary, STEP: step, JOB_ID: assignment.job.id, ATTEMPT: str(assignment.attempt)}


@dataclass(frozen=True, slots=True)
class Totals:
    """What a job's commits have come to. snapshot_id_deleted, snapshot_id_rewritten: 0 if there is none."""

    rows_deleted: int = 0
    snapshot_id_deleted: int = 0
    snapshot_id_rewritten: int = 0
    data_files_rewritten: int = 0
    bytes_rewritten: int = 0
    bytes_written: int = 0

    @property
    def summary(self) -> dict[str, str]:
        """Snapshot properties that tell it."""
        return {_property(field.name): str(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def of(cls, commits: Sequence[CommittedSnapshot]) -> Self:
        """commits: those of the job that are there, the newest first. The one of manifests tells what came
        before it, of which the snapshots may have expired."""
        totals = cls()
        for commit in reversed(commits):
            step, told = commit.summary[STEP], cls._told(commit.summary)
            if step == DELETE:
                rows = totals.rows_deleted + int(commit.summary.get(_ROWS_DELETED, 0))
                totals = replace(totals, rows_deleted=rows, snapshot_id_deleted=commit.snapshot_id)
            elif step == REWRITE:
                totals = replace(
                    totals,
                    snapshot_id_rewritten=commit.snapshot_id,
                    data_files_rewritten=totals.data_files_rewritten + told.data_files_rewritten,
                    bytes_rewritten=totals.bytes_rewritten + told.bytes_rewritten,
                    bytes_written=totals.bytes_written + told.bytes_written,
                )
            else:
                totals = told
        return totals

    @classmethod
    def _told(cls, summary: Mapping[str, str]) -> Self:
        return cls(**{field.name: int(summary.get(_property(field.name), 0)) for field in fields(cls)})


def _property(name: str) -> str:
    return f"icestream.erasure-{name.replace('_', '-')}"
