"""Indexes from within: sorted runs, partitions, ages of pending deletes, and what lookups cost.

All of it is kept in rows, by what workers report and polls see; an index is opened by neither.
"""

from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import select as columns
from sqlalchemy import type_coerce
from sqlmodel import Session, col, select

from service.db.database import Json, utc_now
from service.index_health.models import IndexedKeySet, IndexView, LookupCost, PendingAge
from service.index_health.service import view_key_sets
from service.records.health import IndexLayouts, TableHealth, age_seconds
from service.records.jobs import Job, JobKind, JobStatus
from service.records.report_columns import ReportedList
from service.records.reports import KeySetResult
from service.records.tables import EnrolledTable

_JOBS_LOOKED_AT = 200
_LOOKUPS_SHOWN = 20
_LOOKING = [one.value for one in (JobKind.CONVERT, JobKind.PUBLISH, JobKind.REWRITE_DATA_FILES)]
"""Jobs that look for the rows of equality deletes."""


def view_indexes(session: Session, table: EnrolledTable) -> IndexView:
    health = session.get_one(TableHealth, table.id)
    now = utc_now()
    kept = session.get(IndexLayouts, table.id)
    layouts = {tuple(sorted(one["equality_field_ids"])): one for one in (kept.layouts if kept else [])}
    reported = {tuple(sorted(one.equality_field_ids)): one for one in view_key_sets(health, now)}
    pending = {tuple(one["equality_field_ids"]): _ages(one, now) for one in health.pending_key_sets}
    found = []
    for ids in {**reported, **pending}:
        own, layout = reported.get(ids), layouts.get(ids, {})
        found.append(
            IndexedKeySet(
                equality_field_ids=list(ids),
                columns=own.columns if own else [],
                coverage=own.coverage if own else None,
                sorted_runs=own.sorted_runs if own else 0,
                runs=layout.get("runs", []),
                partitions=layout.get("partitions", []),
                pending=pending.get(ids, []),
            )
        )
    return IndexView(
        table_id=table.id,
        reported_at=health.reported_at,
        measured_at=health.measured_at,
        partitions=health.partitions,
        key_sets=found,
        lookups=_lookups(session, table.id),
    )


def _ages(pending: Mapping[str, Any], now: datetime) -> list[PendingAge]:
    times = [(datetime.fromisoformat(at), files, deletes) for at, files, deletes in pending["ages"]]
    return [
        PendingAge(oldest_at=at, age_seconds=age_seconds(at, now), files=files, deletes=deletes)
        for at, files, deletes in times
    ]


def _lookups(session: Session, table_id: str) -> list[LookupCost]:
    """Of the table's latest jobs, as far back as costs no time."""
    newest = select(Job.id).where(Job.table_id == table_id).order_by(col(Job.created_at).desc())
    chosen = newest.limit(_JOBS_LOOKED_AT).subquery()
    # Of a result no more than that: it may name very many files.
    key_sets = type_coerce(type_coerce(col(Job.result), Json)["key_sets"], ReportedList(KeySetResult))
    rows = session.execute(
        columns(col(Job.id), col(Job.kind), col(Job.dry_run), col(Job.ended_at), key_sets)
        .join(chosen, chosen.c.id == col(Job.id))
        .where(col(Job.kind).in_(_LOOKING), col(Job.status) == JobStatus.SUCCEEDED.value)
        .order_by(col(Job.created_at).desc())
    )
    found = (
        LookupCost.model_validate(
            one | {"job_id": job_id, "kind": kind, "dry_run": dry_run, "ended_at": ended_at}
        )
        for job_id, kind, dry_run, ended_at, told in rows
        for one in told
        if one["predicted_scan_seconds"]
    )
    return list(islice(found, _LOOKUPS_SHOWN))
