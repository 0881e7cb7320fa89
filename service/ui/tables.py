"""The pages of tables: the list, one table with its plots and plans, and what can be done with it."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, Request, Response
from sqlmodel import Session

from service.auth.access import Operator, Viewer
from service.auth.models import Principal
from service.catalogs import service as catalogs
from service.catalogs.endpoints import OpenCatalogs
from service.catalogs.threads import waits_for_catalog
from service.db.database import CurrentDatabase, ReadSession, utc_now
from service.errors import IcestreamError
from service.http.paging import EVERYTHING, PageRequest, page_request
from service.index_health import service as index_health
from service.index_health.models import HealthView
from service.index_health.samples import DrawnSample, drawn_samples, unseen_after
from service.jobs import events
from service.jobs import service as jobs
from service.jobs.conversions import list_conversion_times
from service.jobs.models import JobRequest, JobView, RequestableKind, SnapshotAge, SnapshotsRetained
from service.policies.effective import explain_policy
from service.policies.settings import NO_BRANCH
from service.records.catalogs import Catalog
from service.records.health import HealthStatus, Resolution, TableHealth
from service.records.jobs import JobKind, JobStatus
from service.records.reports import SnapshotId
from service.records.tables import audited_name, get_table
from service.scheduling.preview import preview
from service.settings import CurrentSettings, Settings
from service.tables import service as tables
from service.tables.models import TableFilter, TablePatch, TableView
from service.ui.enrolment import staging_of
from service.ui.formats import policy_sections
from service.ui.forms import Form as Fields
from service.ui.forms import Typed, see
from service.ui.lookups import key_form
from service.ui.pages import PageRoute, TypedTime, render
from service.ui.plot import VALUES_SHOWN, Plot, Span, Unit, moments, plot
from service.ui.policies import policy_names
from service.webhooks.outbox import UNTOLD

router = APIRouter(prefix="/tables", route_class=PageRoute)

_FIELDS = {
    "policy_not_found": "policy",
    "invalid_key_set": "key_sets",
    "staging_branch_in_use": "publish",
    "staged_rows_left": "publish",
}
"""Which field of the form an error is about."""
SPANS = {1: "24 hours", 7: "7 days", 30: "30 days", 90: "90 days", 365: "year"}
"""What plots may cover, by days."""
_LATEST_EVENTS = PageRequest(limit=15, sort="-id")
_events_request = page_request(["id"], "-id", limit=_LATEST_EVENTS.limit, counts=False)
_NO_KEY = {"float_key", "unsupported_key_type", "unresolved_equality_field"}
"""Codes of deletes whose key no index can have."""
_LATEST_JOBS = PageRequest(limit=12)
_BY_HOUR_DAYS = 30
_SMALL_COLUMNS = 120
"""What small plots tell apart."""
_DRAWN_SAMPLES = 5_000
"""So many of a table's newest samples are drawn one by one; of older ones, the last of each hour or day."""


@router.get("")
def show_tables(
    request: Request,
    session: ReadSession,
    settings: CurrentSettings,
    reader: Viewer,
    page: Annotated[PageRequest, Depends(tables.SORTING.page_request)],
    which: Annotated[TableFilter, Depends()],
) -> Response:
    found = tables.list_tables(session, settings, page, which)
    return render(
        request,
        "tables/list.html",
        reader,
        rows=rows_of(session, found.items),
        next_cursor=found.next_cursor,
        total=found.counted,
        sort=page.sort,
        **asdict(which),
        catalogs=catalogs.list_names(session),
        statuses=list(HealthStatus),
        counts=tables.count_by_status(session, which),
        now=utc_now(),
    )


def rows_of(session: Session, listed: Sequence[TableView]) -> list[dict[str, Any]]:
    """What a list of tables shows of each: how much the index covers, and the last job."""
    ids = [table.id for table in listed]
    coverages, last_jobs = index_health.coverages(session, ids), jobs.latest_jobs(session, ids)
    return [
        {"table": table, "coverage": coverages.get(table.id), "last_job": last_jobs.get(table.id)}
        for table in listed
    ]


@router.get("/{table_id}")
def show_table(
    request: Request,
    session: ReadSession,
    settings: CurrentSettings,
    reader: Viewer,
    table_id: str,
    shown: Annotated[PageRequest, Depends(_events_request)],
    days: int = 1,
) -> Response:
    return _table_page(request, session, settings, reader, table_id, Fields.of(), days, shown)


def _table_page(
    request: Request,
    session: Session,
    settings: CurrentSettings,
    reader: Principal,
    table_id: str,
    form: Fields,
    days: int = 1,
    shown: PageRequest = _LATEST_EVENTS,
) -> Response:
    """shown: which of its events."""
    row = get_table(session, table_id)
    # Held here, or each function that asks for them would read them again.
    stored, _catalog = session.get_one(TableHealth, row.id), session.get_one(Catalog, row.catalog_id)
    days = days if days in SPANS else 1
    now = utc_now()
    since = now - timedelta(days=days)
    conversions = list_conversion_times(session, row.id, since)
    health = index_health.get_health(session, row)
    samples = _samples(session, row.id, since, now, days)
    plots = _plots(samples, conversions, health, since, now, unseen_after(settings))
    return render(
        request,
        "tables/show.html",
        reader,
        status_code=form.status_code,
        form=form,
        table=tables.view(session, settings, row),
        audited=audited_name(session, row),
        keys=key_form(session, settings, row),
        health=health,
        policy_sections=policy_sections(explain_policy(session, row).values),
        plots=plots,
        plot_moments=moments(plots, VALUES_SHOWN) if plots else [],
        mark_words=_mark_words(plots, days, settings),
        days=days,
        spans=SPANS,
        plan=preview(session, row, stored, now),
        no_index=None if stored.key_sets else _why_no_index(session, stored),
        published=_last_published(session, row.id),
        jobs=jobs.list_jobs(session, _LATEST_JOBS, table_id=table_id).items,
        events=events.list_events(session, shown, table_id=table_id, but_for=tuple(UNTOLD)),
        now=now,
    )


@router.get("/{table_id}/edit")
def show_table_form(
    request: Request, session: ReadSession, settings: CurrentSettings, sender: Operator, table_id: str
) -> Response:
    table = tables.view(session, settings, get_table(session, table_id))
    return _table_form(request, session, sender, table, _filled(table))


@router.post("/{table_id}/edit")
@waits_for_catalog(lambda given: str(given["table_id"]), is_table=True)
def update_table(
    request: Request,
    database: CurrentDatabase,
    opened: OpenCatalogs,
    settings: CurrentSettings,
    sender: Operator,
    table_id: str,
    typed: Typed,
) -> Response:
    try:
        key_sets = [[name.strip() for name in line.split(",")] for line in typed.lines("key_sets")]
        patch = {"policy": typed.given("policy"), "key_sets": key_sets, "publish": staging_of(typed)}
        body = typed.read(TablePatch, patch)
        columns = tables.load_columns(database, opened, sender, table_id, body)
        with database.write() as session:
            leaves = typed["leave_staged"] == "true"
            tables.update_table(
                session, settings, sender, table_id, body, typed.if_match, columns, leave_staged=leaves
            )
    except IcestreamError as error:
        with database.read() as session:
            table = tables.view(session, settings, get_table(session, table_id))
            form = typed.refused(error, **_FIELDS).beside(_filled(table))
            return _table_form(request, session, sender, table, form)
    return see(f"/tables/{table_id}")


@router.post("/{table_id}/jobs")
def request_job(
    database: CurrentDatabase,
    sender: Operator,
    table_id: str,
    kind: Annotated[RequestableKind, Form()],
    dry_run: Annotated[bool, Form()] = False,
    run_at: Annotated[TypedTime | None, Form()] = None,
    priority: Annotated[int | None, Form(ge=-100, le=100)] = None,
    skip: Annotated[SnapshotId | None, Form()] = None,
    dry_run_job_id: Annotated[str | None, Form(max_length=100)] = None,
    older_than_seconds: Annotated[SnapshotAge | None, Form()] = None,
    retain_last: Annotated[SnapshotsRetained | None, Form()] = None,
) -> Response:
    typed = {
        "skip": skip,
        "dry_run_job_id": dry_run_job_id,
        "older_than_seconds": older_than_seconds,
        "retain_last": retain_last,
    }
    parameters = {name: value for name, value in typed.items() if value is not None}
    asked = JobRequest(kind=kind, dry_run=dry_run, parameters=parameters, run_at=run_at, priority=priority)
    with database.write() as session:
        job = jobs.request_job(session, sender, table_id, asked)
    return see(f"/jobs/{job.id}")


@router.post("/{table_id}/delete")
def delete_table(
    request: Request,
    database: CurrentDatabase,
    settings: CurrentSettings,
    sender: Operator,
    table_id: str,
    typed: Typed,
) -> Response:
    drop_index = typed["drop_index"] == "true"
    try:
        with database.write() as session:
            leaves = typed["leave_staged"] == "true"
            job = tables.delete_table(
                session,
                sender,
                table_id,
                drop_index=drop_index,
                leave_staged=leaves,
                if_match=typed.if_match,
            )
            target = f"/jobs/{job.id}" if job else "/tables"
    except IcestreamError as error:
        form = typed.refused(error)
        with database.read() as session:
            return _table_page(request, session, settings, sender, table_id, form)
    return see(target)


@router.post("/{table_id}/{action}")
def pause_table(
    database: CurrentDatabase,
    settings: CurrentSettings,
    sender: Operator,
    table_id: str,
    action: Literal["pause", "resume"],
) -> Response:
    with database.write() as session:
        tables.pause_table(session, settings, sender, table_id, paused=action == "pause")
    return see(f"/tables/{table_id}")


def _filled(table: TableView) -> Fields:
    return Fields.of(
        policy=table.policy or "",
        publish=table.publish.source or NO_BRANCH if table.publish is not None else "",
        key_sets="\n".join(", ".join(keys) for keys in table.key_sets),
        version=str(table.version),
    )


def _table_form(
    request: Request, session: Session, sender: Principal, table: TableView, form: Fields
) -> Response:
    return render(
        request,
        "tables/form.html",
        sender,
        status_code=form.status_code,
        form=form,
        table=table,
        policies=policy_names(session),
    )


def coarse_resolution(days: int) -> Resolution:
    """How samples of so many days are read that are too many to be drawn one by one."""
    return Resolution.HOUR if days <= _BY_HOUR_DAYS else Resolution.DAY


def _samples(session: Session, table_id: str, since: datetime, now: datetime, days: int) -> list[DrawnSample]:
    """What plots of so many days are drawn from, oldest first; the first may be from before: it held then."""
    drawn = drawn_samples(session, table_id, _DRAWN_SAMPLES, since=since, until=now)
    if len(drawn) == _DRAWN_SAMPLES:
        older, resolution = drawn[-1].at, coarse_resolution(days)
        drawn += drawn_samples(session, table_id, EVERYTHING, since=since, until=older, resolution=resolution)
    drawn += drawn_samples(session, table_id, 1, until=since)
    return drawn[::-1]


def _last_published(session: Session, table_id: str) -> JobView | None:
    """The last job that has published anything, of the latest ones."""
    latest = jobs.list_jobs(
        session, _LATEST_JOBS, table_id=table_id, kinds=[JobKind.PUBLISH], statuses=[JobStatus.SUCCEEDED]
    ).items
    return next((job for job in latest if not job.dry_run and (job.result or {}).get("commits")), None)


def _why_no_index(session: Session, health: TableHealth) -> str | None:
    """Why the last job that was to build an index built none; None if it did, or if there was none.

    A conversion may be the first to find that the key can't be indexed.
    """
    for job in index_health.last_jobs(session, health.table_id):
        if job.kind in (JobKind.INDEX.value, JobKind.REBUILD.value) and job.error is not None:
            return f"{job.error.get('title')}: {job.error.get('detail')}"
    return next(
        (one["reason"] for one in health.unconvertible if one.get("code") in _NO_KEY),
        None,
    )


def _mark_words(plots: Sequence[Plot], days: int, settings: Settings) -> str:
    """What the marks of the first plot are; empty if it has none."""
    if not plots or not plots[0].marks:
        return ""
    words = "conversions; one mark stands for those that are close" if plots[0].shares_marks else "conversion"
    kept = settings.job_history_days
    return f"{words} (of the last {kept:g} days: older jobs are not kept)" if days > kept else words


def _unseen(
    samples: Sequence[DrawnSample], health: HealthView, now: datetime, unseen_after: timedelta
) -> list[Span]:
    """When nobody could look at the table; samples: oldest first."""
    spans = [
        (sample.at, following.at)
        for sample, following in pairwise(samples)
        if sample.status == HealthStatus.UNKNOWN
    ]
    if health.measured_at is not None and now - health.measured_at > unseen_after:
        spans.append((max(health.measured_at, samples[-1].at), now))
    return spans


def _plots(
    samples: Sequence[DrawnSample],
    conversions: Sequence[datetime],
    health: HealthView,
    since: datetime,
    now: datetime,
    unseen_after: timedelta,
) -> list[Plot]:
    """The most wanted first; none before there are two samples.

    health: now. Its ages grow by themselves while the same is pending or staged, of which no sample tells.
    """
    if len(samples) < 2:
        return []
    how: dict[str, Any] = {"since": since, "unseen": _unseen(samples, health, now, unseen_after)}

    def draw(title: str, unit: Unit, values: Sequence[float | None]) -> Plot | None:
        told = [(sample.at, value or 0) for sample, value in zip(samples, values, strict=True)]
        return plot(title, unit, told, now, columns=_SMALL_COLUMNS, **how)

    def draw_age(title: str, values: Sequence[float], latest: float) -> Plot | None:
        told = [*((sample.at, value) for sample, value in zip(samples, values, strict=True)), (now, latest)]
        return plot(title, Unit.SECONDS, told, now, columns=_SMALL_COLUMNS, ages=True, **how)

    pending = [(sample.at, sample.pending_equality_deletes) for sample in samples]
    staged: tuple[Plot | None, ...] = ()
    if any(sample.staged_rows for sample in samples):
        staged = (
            draw("Staged rows", Unit.COUNT, [sample.staged_rows for sample in samples]),
            draw_age(
                "Age of what is staged",
                [sample.staged_age_seconds for sample in samples],
                health.staged_age_seconds,
            ),
        )
    drawn = (
        plot("Pending equality deletes", Unit.COUNT, pending, now, marks=conversions, **how),
        draw_age("Lag", [sample.lag_seconds for sample in samples], health.lag_seconds),
        *staged,
        draw("Size of the index", Unit.BYTES, [sample.bytes for sample in samples]),
        draw("Sorted runs", Unit.COUNT, [sample.sorted_runs for sample in samples]),
        draw("Dead entries", Unit.SHARE, [sample.dead_ratio for sample in samples]),
        draw("Index coverage", Unit.SHARE, [sample.coverage for sample in samples]),
    )
    return [each for each in drawn if each is not None]
