"""Tables over time, and what ran for them, on one axis."""

from datetime import datetime, timedelta

from sqlmodel import Session

from service.db.database import utc_now
from service.errors import InvalidError
from service.http.paging import PageRequest, page_request
from service.index_health.service import unseen_after
from service.index_health.strips import divide, strips
from service.jobs.queue import rfc3339
from service.jobs.runs import attempts_within
from service.overview.models import Run, TableTimeline, Timeline
from service.records.health import HealthStatus
from service.records.jobs import NEVER, AttemptStatus, JobKind
from service.settings import Settings
from service.tables import service as tables

SPAN = timedelta(days=1)
"""What is shown where nobody asks for another."""
SHORTEST = timedelta(minutes=1)
LONGEST = timedelta(days=100)
_JOBS_OF_EACH = 40
"""That have ended."""
tables_request = page_request(list(tables.SORTING.columns), "-pending_equality_deletes", limit=25, most=100)
"""Which tables, of those that have most pending first."""


def get_timeline(
    session: Session,
    settings: Settings,
    page: PageRequest,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    catalog: str | None = None,
    namespace: str | None = None,
    search: str | None = None,
    paused: bool | None = None,
    status: HealthStatus | None = None,
) -> Timeline:
    """From `since` to `until`, by default the day until now; tables as `tables.list_tables` finds them."""
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
    found = tables.list_tables(
        session,
        settings,
        page,
        catalog=catalog,
        namespace=namespace,
        search=search,
        paused=paused,
        status=status,
    )
    ids = [table.id for table in found.items]
    intervals = divide(
        since, until, now, fine_days=settings.fine_history_days, hourly_days=settings.history_days
    )
    of_tables = strips(session, ids, intervals, now, unseen_after(settings))
    runs: dict[str, list[Run]] = {table_id: [] for table_id in ids}
    ran, with_more = attempts_within(session, ids, intervals.since, intervals.until, of_each=_JOBS_OF_EACH)
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
            )
            for table in found.items
        ],
        next_cursor=found.next_cursor,
    )
