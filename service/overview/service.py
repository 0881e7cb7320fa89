"""The whole installation at once: is all well, and what needs a person?"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from sqlmodel import Session

from service.auth.models import Principal
from service.catalogs import service as catalogs
from service.db.database import utc_now
from service.discovery import patterns
from service.http.paging import EVERYTHING, PageRequest
from service.index_health import summary as index_health
from service.index_health.summary import Troubled
from service.jobs import service as jobs
from service.overview.models import Concern, Overview
from service.quantities import aged
from service.records.api_keys import Role
from service.records.catalogs import CatalogStatus
from service.records.health import HealthStatus
from service.records.jobs import JobStatus
from service.settings import Settings
from service.webhooks import service as webhooks
from service.workers import service as workers
from service.workers.models import WorkerView
from telemetry.plurals import counted

_UNFIT_FOR = timedelta(hours=1)
"""A worker that cannot run jobs ends at once: whether one is still missed can't be known for longer."""
_TROUBLED = (HealthStatus.BLOCKED, HealthStatus.LAGGING, HealthStatus.DEGRADED)
_SHOWN = 10
"""Concerns of a kind; lists have the others."""


def get_overview(
    session: Session, settings: Settings, reader: Principal, trouble_of_lookups: str | None
) -> Overview:
    """trouble_of_lookups: as `concerns` has it."""
    now = utc_now()
    summary = index_health.summarize(session, now)
    active = jobs.count_active(session)
    known = workers.list_workers(session, settings, PageRequest(limit=EVERYTHING)).items
    alive = sum(worker.alive for worker in known)
    troubled = tables_in_trouble(session, summary.tables)
    found = concerns(session, reader, trouble_of_lookups, troubled, known)
    if not alive:
        waiting = counted(active[JobStatus.QUEUED], "job")
        found.insert(
            0,
            Concern(
                title="No worker is alive",
                detail=f"{waiting} can't run." if active[JobStatus.QUEUED] else "",
                remedy="Start one with `icestream worker`.",
                path="/workers",
                severity="error" if active[JobStatus.QUEUED] else "warning",
            ),
        )
    answering = catalogs.count_catalogs(session)
    system = jobs.system_view(session)
    if system.paused:
        found.insert(
            0,
            Concern(
                title="The system is paused",
                detail="No job of any table starts until it is resumed; running ones end as usual.",
                remedy="Resume it on the first page, or with `icestream jobs resume-system`.",
                path="/",
            ),
        )
    return Overview(
        version=system.version,
        paused=system.paused,
        tables={status: summary.tables[status] for status in HealthStatus},
        catalogs={status: answering[status] for status in CatalogStatus},
        pending_equality_deletes=summary.pending_equality_deletes,
        pending_equality_delete_files=summary.pending_equality_delete_files,
        lag_seconds=summary.oldest_age_seconds,
        read_seconds=summary.reads.seconds,
        read_overhead_seconds=summary.reads.overhead_seconds,
        read_before_seconds=summary.reads.before_seconds,
        point_read_seconds=summary.reads.point_seconds,
        point_read_overhead_seconds=summary.reads.point_overhead_seconds,
        delete_files=summary.reads.delete_files,
        delete_bytes=summary.reads.delete_bytes,
        small_data_files=summary.small_data_files,
        small_delete_files=summary.small_delete_files,
        small_manifests=summary.small_manifests,
        snapshots=summary.snapshots,
        read_avoided_seconds=summary.reads.avoided_seconds,
        read_saved_seconds=summary.reads.saved_seconds,
        maintenance_seconds=summary.reads.maintenance_seconds,
        staged_rows=summary.staged_rows,
        running_jobs=active[JobStatus.RUNNING],
        queued_jobs=active[JobStatus.QUEUED],
        alive_workers=alive,
        concerns=sorted(found, key=lambda concern: concern.severity),
    )


def tables_in_trouble(
    session: Session, numbers: Mapping[HealthStatus, int]
) -> dict[HealthStatus, list[Troubled]]:
    """Of each status that is a concern the first tables by name, and one more than are shown.

    numbers: how many tables there are, by status.
    """
    return {
        status: index_health.tables_with_status(session, status, _SHOWN + 1) if numbers[status] else []
        for status in _TROUBLED
    }


def concerns(
    session: Session,
    reader: Principal,
    trouble_of_lookups: str | None,
    troubled: Mapping[HealthStatus, Sequence[Troubled]],
    known_workers: Sequence[WorkerView],
) -> list[Concern]:
    """What a person should look at, as far as this one may, the gravest first.

    trouble_of_lookups: why lookup servers can't be asked, if there are some. troubled: `tables_in_trouble`.
    """
    return list(_concerns(session, reader, trouble_of_lookups, troubled, known_workers))


def _concerns(
    session: Session,
    reader: Principal,
    trouble_of_lookups: str | None,
    troubled: Mapping[HealthStatus, Sequence[Troubled]],
    known_workers: Sequence[WorkerView],
) -> Iterator[Concern]:
    if trouble_of_lookups is not None:
        yield Concern(
            title="Nobody can be told where the rows of keys are",
            detail=trouble_of_lookups,
            remedy="Look at the lookup servers, their logs, and ICESTREAM_LOOKUP_URL and "
            "ICESTREAM_LOOKUP_TOKEN.",
            path="/",
        )
    yield from _failures_of_catalogs(session)
    for status, found in troubled.items():
        for table in found[:_SHOWN]:
            yield Concern(
                title=f"{table.catalog}.{table.table} is {status.value}",
                detail=table.reason,
                remedy=table.what_to_do,
                path=f"/tables/{table.table_id}",
                severity="error" if status is HealthStatus.BLOCKED else "warning",
            )
        if len(found) > _SHOWN:
            yield _more(status)
    for pattern in patterns.list_patterns(session, PageRequest(limit=EVERYTHING)).items:
        if pattern.error is not None:
            yield Concern(
                title=f"Pattern {pattern.pattern} cannot be compared with catalog {pattern.catalog}",
                detail=str(pattern.error.get("detail", "")),
                remedy=pattern.error.get("remedy"),
                path=f"/patterns/{pattern.id}",
            )
        elif pattern.failures:
            yield Concern(
                title=f"Pattern {pattern.pattern} matches {counted(len(pattern.failures), 'table')} "
                "that cannot be enrolled",
                detail=pattern.failures[0].detail,
                remedy=pattern.failures[0].remedy,
                path=f"/patterns/{pattern.id}",
            )
    yield from _unfit_workers(known_workers)
    # Only admins can see or mend webhooks.
    if reader.role.allows(Role.ADMIN):
        for webhook in webhooks.list_webhooks(session, PageRequest(limit=EVERYTHING), enabled=False).items:
            if webhook.disabled_because is not None:
                yield Concern(
                    title=f"Webhook {webhook.name} was switched off",
                    detail=webhook.disabled_because,
                    remedy="Correct its address, or switch it on again: what waits is sent then.",
                    path=f"/webhooks/{webhook.id}",
                )


def _unfit_workers(known: Sequence[WorkerView]) -> Iterator[Concern]:
    """Workers that could not start lately, unless they were started again since and can."""
    latest: dict[str, WorkerView] = {}
    for worker in known:
        latest.setdefault(worker.name, worker)
    for worker in latest.values():
        if worker.problem is not None and worker.last_seen_at > utc_now() - _UNFIT_FOR:
            yield Concern(
                title=f"Worker {worker.name} cannot run jobs",
                detail=worker.problem,
                remedy="Correct that, and start the worker again.",
                path=f"/workers?{urlencode({'search': worker.name})}",
            )


def _failures_of_catalogs(session: Session) -> Iterator[Concern]:
    """A catalog that fails is one concern, however many tables it has; others are of tables by themselves."""
    of_catalogs = {
        poll.catalog_id: (poll, number) for poll, number in index_health.failed_with_their_catalogs(session)
    }
    for catalog, health in catalogs.list_unreachable(session):
        _, number = of_catalogs.pop(catalog.id, (None, 0))
        yield _failing(catalog.id, catalog.name, health.error or {}, number, health.since)
    for poll, number in of_catalogs.values():
        yield _failing(poll.catalog_id, poll.catalog, poll.error, number)
    own = index_health.failed_polls(session, _SHOWN + 1)
    for poll in own[:_SHOWN]:
        yield Concern(
            title=f"{poll.catalog}.{poll.table} is {HealthStatus.UNKNOWN.value}",
            detail=poll.error["detail"],
            remedy=poll.error["remedy"],
            path=f"/tables/{poll.table_id}",
            severity="error",
        )
    if len(own) > _SHOWN:
        yield _more(HealthStatus.UNKNOWN)


def _failing(
    catalog_id: str, name: str, error: Mapping[str, Any], tables: int, since: datetime | None = None
) -> Concern:
    with_it = f", and {counted(tables, 'table')} with it" if tables else ""
    for_how_long = f" For {aged((utc_now() - since).total_seconds())} now." if since is not None else ""
    return Concern(
        title=f"Catalog {name} fails{with_it}",
        detail=f"{error.get('detail', '')}{for_how_long}",
        remedy=error.get("remedy"),
        path=f"/catalogs/{catalog_id}",
        severity="error",
    )


def _more(status: HealthStatus) -> Concern:
    """About the tables that no place is left for."""
    path = f"/tables?status={status.value}"
    return Concern(title=f"More tables are {status.value}", detail="", remedy=None, path=path)
