"""Tables over time on one page: strips, what ran for them, and what ran where."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, Request, Response

from service.auth.access import Viewer
from service.catalogs import service as catalogs
from service.db.database import ReadSession, utc_now
from service.http.paging import PageRequest
from service.jobs.runs import latest_jobs_of_each
from service.overview.models import TableTimeline, Timeline
from service.overview.timeline import LONGEST, MOST_IN_TIME, get_timeline, tables_request
from service.records.health import HealthStatus
from service.records.jobs import AttemptStatus, JobKind, JobStatus
from service.settings import CurrentSettings
from service.tables.models import TableFilter
from service.ui.formats import rfc3339
from service.ui.pages import PageRoute, TypedTime, render

T = TypeVar("T", str, tuple[JobKind, bool])
router = APIRouter(route_class=PageRoute)
_SPANS = {1: "1 hour", 6: "6 hours", 24: "24 hours", 168: "7 days", 720: "30 days"}
"""By hours."""
_SHORTEST = timedelta(minutes=10)
_TABLES = 25
"""At most, as each of them takes some kilobytes."""
_LATEST = 12
"""Jobs of each table, as cells that lead to them."""
_TIME = "%Y-%m-%d %H:%M UTC"
_LATER = "later"
"""Of a job that waits for a time, and would for any number of workers."""


@router.get("/timeline")
def show_timeline(
    request: Request,
    session: ReadSession,
    settings: CurrentSettings,
    reader: Viewer,
    page: Annotated[PageRequest, Depends(tables_request)],
    which: Annotated[TableFilter, Depends()],
    hours: int = 24,
    since: TypedTime | None = None,
    until: TypedTime | None = None,
    colour: Literal["pending", "lag"] = "pending",
) -> Response:
    hours = hours if hours in _SPANS else 24
    page = replace(page, limit=min(page.limit, _TABLES))
    is_moved = bool(since and until)
    if is_moved and "sort" not in request.query_params:
        # What is pending now says nothing of last night.
        page = replace(page, sort=MOST_IN_TIME)
    now = utc_now()
    shown = get_timeline(
        session,
        settings,
        page,
        which,
        since=since if since and until else now - timedelta(hours=hours),
        until=until if since and until else now,
    )
    known = catalogs.list_names(session)
    latest = latest_jobs_of_each(session, [table.table_id for table in shown.items], _LATEST)
    return render(
        request,
        "timeline/show.html",
        reader,
        shown=shown,
        data=_data(shown, min(now, shown.until), names_catalogs=len(known) > 1),
        rows=[_row(table, latest.get(table.table_id, []), now) for table in shown.items],
        workers=sorted(Counter(run.worker_name for table in shown.items for run in table.runs).items()),
        next_cursor=shown.next_cursor,
        sort=page.sort,
        hours=hours,
        spans=_SPANS,
        is_moved=is_moved,
        moves=_moves(shown.since, min(shown.until, now), now),
        colour=colour,
        **asdict(which),
        statuses=list(HealthStatus),
        catalogs=known,
    )


def _moves(since: datetime, until: datetime, now: datetime) -> Mapping[str, Mapping[str, str | None]]:
    """Links to other spans of time: words -> what changes in the address."""
    span = max(until - since, _SHORTEST)
    found = {"Earlier": (since - span / 2, until - span / 2)}
    if until + timedelta(minutes=1) < now:
        later = min(until + span / 2, now)
        found["Later"] = (later - span, later)
    if span > _SHORTEST:
        found["Zoom in"] = (until - span / 2, until)
    if span * 2 <= LONGEST:
        found["Zoom out"] = (until - span * 2, until)
    return {words: {"since": rfc3339(begin), "until": rfc3339(end)} for words, (begin, end) in found.items()}


def _row(
    table: TableTimeline, latest: Sequence[tuple[str, str, bool, str, datetime]], now: datetime
) -> dict[str, Any]:
    """What a strip says, in words; latest: its jobs, as `latest_jobs_of_each` tells them."""
    ran = Counter(run.status for run in table.runs)
    return {
        "table": table,
        "most": max((one for one in table.pending_equality_deletes if one is not None), default=None),
        "longest": max((one for one in table.lag_seconds if one is not None), default=None),
        "ran": [(status.value, number) for status, number in sorted(ran.items())],
        "number": ran.total(),
        "later": [job.available_at for job in table.waiting if job.available_at > now],
        "latest": [
            (job_id, status, f"{_kind(JobKind(kind), dry_run=dry_run)} {status}, {at:{_TIME}}")
            for job_id, kind, dry_run, status, at in latest
        ],
    }


def _data(shown: Timeline, now: datetime, *, names_catalogs: bool) -> str:
    """For the script, as JSON with few words: names stand once, and what ran has their numbers; times are
    seconds since the beginning.

    names_catalogs: those of tables have their catalogs behind them, since the script cuts their beginnings.
    """
    # By what each is called: its number.
    workers = _numbered(run.worker_name for table in shown.items for run in table.runs)
    kinds = _numbered(
        [(run.kind, run.dry_run) for table in shown.items for run in table.runs]
        + [(job.kind, job.dry_run) for table in shown.items for job in table.waiting]
    )
    statuses = _numbered([*AttemptStatus, JobStatus.QUEUED, _LATER])

    def seconds(moment: datetime) -> int:
        return round((moment - shown.since).total_seconds())

    told = {
        "began": shown.since.timestamp(),
        "ends": shown.until.timestamp(),
        "now": now.timestamp(),
        "interval": shown.interval_seconds,
        "tables": [
            [
                table.table_id,
                f"{table.table} · {table.catalog}" if names_catalogs else table.table,
                table.status.value,
            ]
            for table in shown.items
        ],
        "pending": [table.pending_equality_deletes for table in shown.items],
        "lag": [_whole(table.lag_seconds) for table in shown.items],
        "workers": list(workers),
        "kinds": [_kind(kind, dry_run=dry_run) for kind, dry_run in kinds],
        "statuses": list(statuses),
        # What waits is drawn first, and lies below what ran.
        "runs": [
            [
                number,
                None,
                kinds[job.kind, job.dry_run],
                statuses[_LATER if job.available_at > now else JobStatus.QUEUED],
                seconds(job.since),
                seconds(now),
                job.job_id,
                seconds(job.available_at),
            ]
            for number, table in enumerate(shown.items)
            for job in table.waiting
        ]
        + [
            [
                number,
                workers[run.worker_name],
                kinds[run.kind, run.dry_run],
                statuses[run.status],
                seconds(run.started_at),
                seconds(run.ended_at or now),
                run.job_id,
            ]
            for number, table in enumerate(shown.items)
            for run in table.runs
        ],
    }
    return json.dumps(told, separators=(",", ":"))


def _numbered(named: Iterable[T]) -> dict[T, int]:
    return {one: number for number, one in enumerate(sorted(set(named)))}


def _kind(kind: JobKind, *, dry_run: bool) -> str:
    return f"{'dry run: ' if dry_run else ''}{kind.words}"


def _whole(values: Sequence[float | None]) -> list[int | None]:
    return [None if value is None else round(value) for value in values]
