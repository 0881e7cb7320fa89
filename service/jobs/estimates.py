"""How long the job that a dry run is of would take, by what earlier ones took on the same table."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from statistics import fmean, median
from typing import Any

from sqlmodel import Session, col, select

from service.records.jobs import Job, JobKind, JobStatus
from service.records.reports import EstimateReport

_JOBS = 20
"""The latest of a table and kind, from which is estimated."""
_DELETED = (
    "data_files_deleted",
    "delete_files_deleted",
    "manifests_deleted",
    "manifest_lists_deleted",
    "statistics_files_deleted",
)
_WORK: Mapping[JobKind, tuple[str | None, tuple[str, ...]]] = {
    JobKind.CONVERT: (None, ("bytes_read", "bytes_written")),
    JobKind.EXPIRE_SNAPSHOTS: ("expiry", _DELETED),
    JobKind.REWRITE_DATA_FILES: ("data_files", ("bytes_rewritten",)),
    JobKind.REWRITE_POSITION_DELETE_FILES: ("delete_files", ("bytes_rewritten",)),
    JobKind.REWRITE_MANIFESTS: ("manifests", ("bytes_rewritten",)),
    JobKind.REMOVE_ORPHAN_FILES: ("orphans", ("files", "files_deleted")),
}
"""Where a result tells how much there was to do: the report, and what of it counts.

A list counts as many as it has: a dry run lists the orphan files that a removal may delete, and deletes none.
"""


def estimate(session: Session, dry_run: Job, result: Mapping[str, Any]) -> EstimateReport | None:
    """From claim to end.

    None if it would do nothing, or no earlier job of the table tells how long that takes. result: of the dry
    run.
    """
    kind = JobKind(dry_run.kind)
    work = _work(kind, result)
    if not work:
        return None
    query = (
        select(Job.started_at, Job.ended_at, Job.result)
        .where(Job.table_id == dry_run.table_id, Job.kind == kind.value, Job.failures == 0)
        .where(Job.status == JobStatus.SUCCEEDED.value, col(Job.dry_run).is_(False))
        .order_by(col(Job.created_at).desc())
        .limit(_JOBS)
    )
    known = [
        (amount, (ended - started) / timedelta(seconds=1))
        for started, ended, told in reversed(session.exec(query).all())
        if started is not None and ended is not None and (amount := _work(kind, told or {}))
    ]
    if not known:
        return None
    return EstimateReport(seconds=round(seconds_of(work, known), 3), jobs=len(known), off_by=_off_by(known))


def seconds_of(work: float, known: Sequence[tuple[float, float]]) -> float:
    """By the line that is nearest to what earlier jobs took, of which neither end is below zero.

    known: the work and the seconds of each, at least one.
    """
    seconds = [took for _, took in known]
    middle, usual = fmean(each for each, _ in known), fmean(seconds)
    spread = sum((each - middle) ** 2 for each, _ in known)
    slope = sum((each - middle) * took for each, took in known) / spread if spread else 0.0
    if slope <= 0:
        return median(seconds)
    if usual - slope * middle < 0:
        return work * usual / middle
    return usual + slope * (work - middle)


def _off_by(known: Sequence[tuple[float, float]]) -> float | None:
    """The factor by which estimates from the jobs before each were wrong, in the middle; None for one job."""
    factors = []
    for number, (work, took) in enumerate(known[1:], start=1):
        told = seconds_of(work, known[:number])
        factors.append(max(told, took) / max(min(told, took), 0.001))
    return round(median(factors), 2) if factors else None


def _work(kind: JobKind, result: Mapping[str, Any]) -> int:
    """0 for nothing, and where it is not known."""
    if kind not in _WORK:
        return 0
    if kind is JobKind.CONVERT and result.get("equality_delete_files_removed") == 0:
        return 0
    part, names = _WORK[kind]
    report = result if part is None else result.get(part) or {}
    return sum(_amount(report.get(name)) for name in names)


def _amount(told: Any) -> int:
    return len(told) if isinstance(told, list) else int(told or 0)
