"""Tables over time, and what ran for them, on one axis."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Subquery, func, tuple_
from sqlalchemy import select as columns
from sqlmodel import Session, col
from sqlmodel.sql.expression import SelectOfScalar

from service.db.database import utc_now
from service.errors import InvalidError
from service.http.json_values import unusable_values
from service.http.paging import Page, PageRequest, make_cursor, page_request, read_cursor, read_page
from service.index_health.samples import unseen_after
from service.index_health.strips import Intervals, divide, most_of_each, strips
from service.jobs.queue import rfc3339
from service.jobs.runs import attempts_within, waiting_jobs
from service.overview.models import Run, TableTimeline, Timeline, Waiting
from service.records.catalogs import Catalog
from service.records.health import HealthStatus, TableHealth
from service.records.jobs import NEVER, AttemptStatus, JobKind
from service.records.tables import EnrolledTable
from service.settings import Settings
from service.tables import service as tables
from service.tables.models import TableFilter

SPAN = timedelta(days=1)
"""What is shown where nobody asks for another."""
SHORTEST = timedelta(minutes=1)
LONGEST = timedelta(days=100)
_JOBS_OF_EACH = 40
"""That have ended; half as many of more than a `_WEEK`, where one is hardly as wide as a pixel."""
_WEEK = timedelta(days=7)
_WAITING_OF_EACH = 5
_UNSEEN = -1
"""Deletes of a table without a sample, in the order by their number."""
MOST_IN_TIME = "-most_pending_equality_deletes"
"""The order by what was pending in the span; others are of what is now."""
tables_request = page_request(
    [*tables.SORTING.columns, MOST_IN_TIME[1:]],
    "-pending_equality_deletes",
    limit=25,
    most=100,
    counts=False,
)
"""Which tables, of those that have most pending first."""


class _Shown(NamedTuple):
    id: str
    name: str
    catalog: str
    status: HealthStatus


def get_timeline(
    session: Session,
    settings: Settings,
    page: PageRequest,
    which: TableFilter,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Timeline:
    """From `since` to `until`, by default the day until now.

    In the order of what was pending in the span, whole hours or days count.
    """
    now = utc_now()
    until = until or (now if since is None or now - since < SPAN else since + SPAN)
    since = since or (until - SPAN if until > NEVER else until)
    is_near = since >= NEVER and until <= now + LONGEST
    if not is_near or not SHORTEST <= until - since <= LONGEST:
        message = (
            f"Name times of which the later one comes at least a minute and at most {LONGEST.days} days after"
            " the other, and that are not far off."
        )
        raise InvalidError(
            "validation-error",
            f"Nothing can be shown from {rfc3339(since)} to {rfc3339(until)}.",
            message,
            errors=[{"field": "query.since", "message": message}],
        )
    intervals = divide(
        since, until, now, fine_days=settings.fine_history_days, hourly_days=settings.history_days
    )
    chosen = tables.choose_tables(session, which)
    if (page.sort or "").removeprefix("-") == MOST_IN_TIME[1:]:
        found = _by_most(session, page, chosen, intervals)
    else:
        found = read_page(session, chosen, page, tables.SORTING, lambda rows: _shown(session, rows))
    ids = [table.id for table in found.items]
    of_tables = strips(session, ids, intervals, now, unseen_after(settings))
    runs: dict[str, list[Run]] = {table_id: [] for table_id in ids}
    of_each = _JOBS_OF_EACH if until - since <= _WEEK else _JOBS_OF_EACH // 2
    ran, with_more = attempts_within(session, ids, intervals.since, intervals.until, of_each=of_each)
    for one in ran:
        runs[one.table_id].append(
            Run(
                job_id=one.job_id,
                kind=JobKind(one.kind),
                dry_run=one.dry_run,
                attempt=one.attempt,
                status=AttemptStatus(one.status),
                worker_name=one.worker_name,
                started_at=one.started_at,
                ended_at=one.ended_at,
            )
        )
    waiting: dict[str, list[Waiting]] = {table_id: [] for table_id in ids}
    for job in waiting_jobs(session, ids):
        if job.since < intervals.until:
            waiting[job.table_id].append(
                Waiting(
                    job_id=job.job_id,
                    kind=JobKind(job.kind),
                    dry_run=job.dry_run,
                    since=job.since,
                    available_at=job.available_at,
                )
            )
    return Timeline(
        since=intervals.since,
        until=intervals.until,
        interval_seconds=intervals.seconds,
        items=[
            TableTimeline(
                table_id=table.id,
                table=table.name,
                catalog=table.catalog,
                status=table.status,
                pending_equality_deletes=of_tables[table.id].pending_equality_deletes,
                lag_seconds=of_tables[table.id].lag_seconds,
                runs=runs[table.id],
                has_more_runs=table.id in with_more,
                waiting=waiting[table.id][:_WAITING_OF_EACH],
                waiting_jobs=len(waiting[table.id]),
            )
            for table in found.items
        ],
        next_cursor=found.next_cursor,
    )


def _shown(session: Session, rows: Sequence[EnrolledTable]) -> list[_Shown]:
    beside = (
        columns(col(EnrolledTable.id), col(Catalog.name), col(TableHealth.status))
        .join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
        .join(TableHealth, col(TableHealth.table_id) == col(EnrolledTable.id))
        .where(col(EnrolledTable.id).in_([row.id for row in rows]))
    )
    known = {table_id: (catalog, HealthStatus(word)) for table_id, catalog, word in session.execute(beside)}
    return [_Shown(row.id, row.name, *known[row.id]) for row in rows]


def _by_most(
    session: Session,
    page: PageRequest,
    chosen: SelectOfScalar[EnrolledTable],
    intervals: Intervals,
) -> Page[_Shown]:
    """Tables by the most deletes that were pending in these intervals, those alike by id; what nobody looked
    at has the least."""
    sort = page.sort or MOST_IN_TIME
    key = col(EnrolledTable.id)

    def read(of_each: Subquery, most: ColumnElement[Any], *, isouter: bool) -> Sequence[Any]:
        query = chosen.add_columns(most).join(of_each, of_each.c.table_id == key, isouter=isouter)
        place = tuple_(most, key)
        if page.cursor is not None:
            last = tuple_(*read_cursor(page, sort, _place))
            query = query.where(place < last if sort.startswith("-") else place > last)
        order = [part.desc() if sort.startswith("-") else part.asc() for part in (most, key)]
        return session.execute(query.order_by(*order).limit(page.limit + 1)).all()

    rows: Sequence[Any] = ()
    if sort.startswith("-") and page.cursor is None:
        best = most_of_each(intervals, page.limit + 1)
        rows = read(best, best.c.most, isouter=False)
    if len(rows) <= page.limit:  # filters leave few of these, or there are few
        of_all = most_of_each(intervals)
        rows = read(of_all, func.coalesce(of_all.c.most, _UNSEEN), isouter=True)
    shown = [table for table, _ in rows[: page.limit]]
    following = None
    if len(rows) > page.limit:
        table, number = rows[page.limit - 1]
        following = make_cursor(page, sort, number, table.id)
    return Page(items=_shown(session, shown), next_cursor=following)


def _place(most: Any, table_id: Any) -> tuple[int, str]:
    """Of the last table of a page, as a cursor has it. Raises ValueError."""
    for problem in unusable_values([most, table_id], "the cursor"):
        raise ValueError(problem)
    return TypeAdapter(tuple[int, str]).validate_python((most, table_id), strict=True)
