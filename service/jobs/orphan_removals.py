"""Removals of orphan files: each deletes what a dry run of the same table has listed, and nothing else."""

from collections.abc import Mapping
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
        or job.ended_at is None
    ):
        raise _refused(
            f"{job_id} is no dry run of a removal of orphan files of {table.name} that succeeded.",
            "Name one that did.",
        )
    if job.ended_at < now - _LISTED_FOR:
        raise _refused(
            f"Dry run {job_id} ended more than {_LISTED_FOR.days} days ago.",
            "Request another one, and look at what it lists.",
        )
    return {"older_than_seconds": job.parameters["older_than_seconds"], "dry_run_job_id": job_id}


def listed_for(session: Session, job: Job) -> list[str]:
    """What the dry run of a removal has listed; nothing if that is gone by now, or of another kind of job."""
    if job.kind != JobKind.REMOVE_ORPHAN_FILES.value or job.dry_run:
        return []
    seen = session.get(Job, job.parameters.get("dry_run_job_id", ""))
    result = (seen.result if seen is not None else None) or {}
    return list((result.get("orphans") or {}).get("files") or [])


def _refused(detail: str, remedy: str) -> InvalidError:
    return InvalidError(
        "orphans-not-listed",
        detail,
        remedy,
        errors=[{"field": "body.parameters.dry_run_job_id", "message": remedy}],
    )
