"""Removals of orphan files: each deletes what a dry run of the same table has listed, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session

from service.errors import InvalidError
from service.records.jobs import Job, JobKind, JobStatus
from service.records.tables import EnrolledTable

OLDER_THAN_SECONDS = 7 * 86_400.0
"""A writer may commit a file long after it wrote it, such as one that was down meanwhile."""
_LISTED_FOR = timedelta(days=7)


def parameters_of(
    session: Session, table: EnrolledTable, given: Mapping[str, Any], now: datetime, *, dry_run: bool
) -> dict[str, Any]:
    """Those of a dry run; or of a removal, with the age that its dry run went by. Raises InvalidError."""
    age, job_id = given.get("older_than_seconds"), given.get("dry_run_job_id")
    if dry_run:
        if job_id is not None:
            raise _refused("A dry run goes by no other one.", "Leave it out.")
        return {"older_than_seconds": OLDER_THAN_SECONDS if age is None else age}
    if job_id is None:
        raise _refused("No dry run is named.", "Request a dry run, look at what it lists, and name it.")
    if age is not None:
        raise _refused("The age of the files is what the dry run went by.", "Leave older_than_seconds out.")
    job = session.get(Job, job_id)
    if (
        job is None
        or (job.table_id, job.table_uuid) != (table.id, table.table_uuid)
        or (job.kind, job.dry_run) != (JobKind.REMOVE_ORPHAN_FILES.value, True)
        or job.status != JobStatus.SUCCEEDED.value
    ):
        raise _refused(
            f"{job_id} is no dry run of a removal of orphan files of {table.name} that succeeded.",
            "Name one that did.",
        )
    if not counts(job.ended_at, now):
        raise _refused(
            f"Dry run {job_id} ended more than {_LISTED_FOR.days} days ago.",
            "Request another one, and look at what it lists.",
        )
    return {"older_than_seconds": job.parameters["older_than_seconds"], "dry_run_job_id": job_id}


@dataclass(frozen=True)
class Listed:
    """What a dry run has listed, and before which time that was written; None if it doesn't count."""

    files: list[str] = field(default_factory=list)
    older_than: datetime | None = None


def listed_for(session: Session, job: Job, now: datetime) -> Listed:
    """By the dry run of a removal, unless that is gone or too old by now, or the job is of another kind."""
    if job.kind != JobKind.REMOVE_ORPHAN_FILES.value or job.dry_run:
        return Listed()
    seen = session.get(Job, job.parameters.get("dry_run_job_id", ""))
    if seen is None or not counts(seen.ended_at, now):
        return Listed()
    found = (seen.result or {}).get("orphans") or {}
    # No later than it can have been by the service's clock, whatever the worker said.
    latest = (seen.started_at or seen.created_at) - timedelta(seconds=seen.parameters["older_than_seconds"])
    said = found.get("older_than")
    older_than = min(datetime.fromisoformat(said), latest) if said else latest
    return Listed(list(found.get("files") or []), older_than)


def counts(ended_at: datetime | None, now: datetime) -> bool:
    """Whether a dry run that ended then may still be gone by."""
    return ended_at is not None and ended_at >= now - _LISTED_FOR


def _refused(detail: str, remedy: str) -> InvalidError:
    return InvalidError(
        "orphans-not-listed",
        detail,
        remedy,
        errors=[{"field": "body.parameters.dry_run_job_id", "message": remedy}],
    )
