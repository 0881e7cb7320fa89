"""The first page: is all well, and what needs a person?"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Literal
from urllib.parse import urlencode

from anyio import from_thread
from fastapi import APIRouter, Request, Response
from sqlmodel import Session

from service.auth.access import Admin, Viewer
from service.auth.models import Principal
from service.catalogs import service as catalogs
from service.db.database import CurrentDatabase, ReadSession, utc_now
from service.discovery import patterns
from service.http.paging import PageRequest
from service.index_health import service as index_health
from service.jobs import service as jobs
from service.lookups.servers import LookupServers
from service.records.health import GRAVITY, HealthStatus
from service.records.jobs import JobStatus
from service.records.keys import Role
from service.records.tables import get_table
from service.settings import CurrentSettings, Settings
from service.tables import service as tables
from service.tables.models import TableView
from service.ui.formats import count, plural, short_count
from service.ui.forms import see
from service.ui.pages import EVERYTHING, PageRoute, address_of, render
from service.ui.plot import plot
from service.ui.tables import SPANS, coarse_resolution, rows_of
from service.webhooks import service as webhooks
from service.workers import service as workers
from service.workers.models import WorkerView

router = APIRouter(route_class=PageRoute)
_ACTIVE = (JobStatus.RUNNING, JobStatus.QUEUED)
"""In the order in which they are shown."""
_JOBS_SHOWN = 20
_UNFIT_FOR = timedelta(hours=1)
"""A worker that cannot run jobs ends at once: whether one is still missed can't be known for longer."""
_DAY = timedelta(hours=24)
_SPANS = {days: words for days, words in SPANS.items() if days <= 90}
"""What the plot of all tables may cover: not so much that a page takes long with many of them."""
_TROUBLED = (HealthStatus.BLOCKED, HealthStatus.LAGGING, HealthStatus.DEGRADED)
_SHOWN = 10
"""Tables and concerns of a kind; lists of their own have the others."""


@dataclass(frozen=True)
class Concern:
    """Something that a person should look at."""

    title: str
    detail: str
    remedy: str | None
    path: str
    tone: Literal["bad", "warn"] = "warn"


@router.get("/")
def show_overview(
    request: Request, session: ReadSession, settings: CurrentSettings, reader: Viewer, days: int = 7
) -> Response:
    days = days if days in _SPANS else 7
    now = utc_now()
    summary = index_health.summarize(session, now)
    # A page for each: else many that were queued later would hide what runs.
    active = [
        job
        for status in _ACTIVE
        for job in jobs.list_jobs(session, PageRequest(limit=_JOBS_SHOWN), statuses=[status]).items
    ]
    numbers = Counter[JobStatus]()
    for (status, _), number in jobs.count_jobs(session, _ACTIVE).items():
        numbers[status] += number
    since = now - timedelta(days=days)
    over_time = index_health.total_pending(session, since, now, coarse_resolution(days))
    return render(
        request,
        "overview.html",
        reader,
        summary=summary,
        enrolled=summary.tables.total(),
        by_status=[(status, summary.tables[status]) for status in HealthStatus if summary.tables[status]],
        rows=rows_of(session, _gravest_tables(session, settings, summary.tables)),
        concerns=[*_unheard_lookup_servers(request), *_concerns(session, settings, reader)],
        pending_plot=plot(
            "Pending equality deletes of all tables",
            [*over_time, (now, summary.pending_equality_deletes)],
            now,
            count,
            since=since,
            write_axis=short_count,
        )
        if over_time
        else None,
        days=days,
        spans=_SPANS,
        converted=jobs.converted_since(session, now - _DAY),
        active=active[:_JOBS_SHOWN],
        running=numbers[JobStatus.RUNNING],
        waiting=numbers[JobStatus.QUEUED],
        workers=workers.list_workers(session, settings, PageRequest(limit=EVERYTHING)).items,
        catalogs=catalogs.list_catalogs(session, PageRequest(limit=1)).items,
        system=jobs.system_view(session),
        now=now,
        address=address_of(request),
    )


@router.post("/system/{action}")
def pause_system(database: CurrentDatabase, sender: Admin, action: Literal["pause", "resume"]) -> Response:
    with database.write() as session:
        jobs.pause_system(session, sender, paused=action == "pause")
    return see("/")


def _gravest_tables(
    session: Session, settings: Settings, numbers: Mapping[HealthStatus, int]
) -> list[TableView]:
    """Those in trouble first, of a status by name. numbers: how many tables there are, by status."""
    found: list[TableView] = []
    for status in reversed(GRAVITY):
        if numbers[status] and len(found) < _SHOWN:
            page = PageRequest(limit=_SHOWN - len(found))
            found += tables.list_tables(session, settings, page, status=status).items
    return found


def _concerns(session: Session, settings: Settings, reader: Principal) -> Iterator[Concern]:
    """The gravest first."""
    yield from _failed_polls(session)
    for status in _TROUBLED:
        found = tables.list_tables(session, settings, PageRequest(limit=_SHOWN), status=status)
        for table in found.items:
            health = index_health.get_health(session, get_table(session, table.id))
            yield Concern(
                f"{table.name} is {health.status.value}",
                health.status_reason,
                health.what_to_do,
                f"/tables/{table.id}",
                "bad" if status is HealthStatus.BLOCKED else "warn",
            )
        if found.next_cursor is not None:
            yield Concern(f"More tables are {status.value}", "", None, f"/tables?status={status.value}")
    for pattern in patterns.list_patterns(session, PageRequest(limit=EVERYTHING)).items:
        if pattern.error is not None:
            yield Concern(
                f"Pattern {pattern.pattern} cannot be compared with catalog {pattern.catalog}",
                str(pattern.error.get("detail", "")),
                pattern.error.get("remedy"),
                f"/patterns/{pattern.id}",
            )
        elif pattern.failures:
            yield Concern(
                f"Pattern {pattern.pattern} matches {plural(len(pattern.failures), 'table')} "
                "that cannot be enrolled",
                pattern.failures[0].detail,
                pattern.failures[0].remedy,
                f"/patterns/{pattern.id}",
            )
    yield from _unfit_workers(session, settings)
    # Only admins can see or mend webhooks.
    if reader.role.allows(Role.ADMIN):
        for webhook in webhooks.list_webhooks(session, PageRequest(limit=EVERYTHING), enabled=False).items:
            if webhook.disabled_because is not None:
                yield Concern(
                    f"Webhook {webhook.name} was switched off",
                    webhook.disabled_because,
                    "Correct its address, or switch it on again: what waits is sent then.",
                    f"/webhooks/{webhook.id}",
                )


def _unheard_lookup_servers(request: Request) -> Iterator[Concern]:
    servers: LookupServers = request.app.state.lookup_servers
    if (trouble := from_thread.run(servers.trouble)) is not None:
        yield Concern(
            "Nobody can be told where the rows of keys are",
            trouble,
            "Look at the lookup servers, their logs, and ICESTREAM_LOOKUP_URL and ICESTREAM_LOOKUP_TOKEN.",
            "/",
        )


def _unfit_workers(session: Session, settings: Settings) -> Iterator[Concern]:
    """Workers that could not start lately, unless they were started again since and can."""
    latest: dict[str, WorkerView] = {}
    for worker in workers.list_workers(session, settings, PageRequest(limit=EVERYTHING)).items:
        latest.setdefault(worker.name, worker)
    for worker in latest.values():
        if worker.problem is not None and worker.last_seen_at > utc_now() - _UNFIT_FOR:
            yield Concern(
                f"Worker {worker.name} cannot run jobs",
                worker.problem,
                "Correct that, and start the worker again.",
                f"/workers?{urlencode({'search': worker.name})}",
            )


def _failed_polls(session: Session) -> Iterator[Concern]:
    """A catalog that fails is one concern, however many tables it has."""
    failed = index_health.failed_polls(session)
    own = [poll for poll in failed if not poll.is_of_catalog]
    of_catalogs = (poll for poll in failed if poll.is_of_catalog)
    for catalog_id, polls in groupby(of_catalogs, lambda poll: poll.catalog_id):
        first, *others = polls
        yield Concern(
            f"Catalog {first.catalog} fails, and {plural(1 + len(others), 'table')} with it",
            first.error["detail"],
            first.error["remedy"],
            f"/catalogs/{catalog_id}",
            "bad",
        )
    for poll in own[:_SHOWN]:
        yield Concern(
            f"{poll.table} is {HealthStatus.UNKNOWN.value}",
            poll.error["detail"],
            poll.error["remedy"],
            f"/tables/{poll.table_id}",
            "bad",
        )
    if len(own) > _SHOWN:
        yield Concern("More tables are unknown", "", None, f"/tables?status={HealthStatus.UNKNOWN.value}")
