"""What a look at an Iceberg table found is stored as its health, and the scheduler decides on it."""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from sqlalchemy import bindparam
from sqlmodel import Session, col, select

from service.catalogs.iceberg import metadata_state
from service.catalogs.measure import EqualityDelete, Measurement, Since, measure_past, measure_since
from service.catalogs.staged import Staged, measure_staged
from service.db.database import FOR_UPDATE, utc_now
from service.errors import IcestreamError
from service.index_health.models import AGE_LIMITS_SECONDS
from service.index_health.reader_cost import store_reader_cost, store_savings
from service.index_health.samples import read_health, record_sample
from service.index_health.service import RecentJobs, begins_to_lag_at, judged, recent_jobs, store_status
from service.index_health.status import overdue_at
from service.jobs.events import record_table_event
from service.jobs.queue import (
    cancel_publications_but,
    has_let_expire,
    is_of_another_branch,
    jobs_of_table,
    may_have_committed,
)
from service.jobs.views import pause_reason
from service.policies.effective import effective_policy
from service.reader_cost import shape_of
from service.records.catalogs import Catalog
from service.records.health import HealthStatus, TableHealth, add_pending
from service.records.jobs import JobKind
from service.records.system import SystemState
from service.records.tables import EnrolledTable
from service.scheduling.clock import CLOCK_TOLERANCE
from service.scheduling.decisions import WORK
from service.scheduling.scheduler import schedule
from service.scheduling.state import Known, read_known
from service.settings import Settings
from service.webhooks.outbox import write_events
from staging.history import StagingBranchNotFoundError
from stores.table_metadata import named_places
from trust.locations import normalize_location

FRESH_SECONDS = 900.0
"""Until a table is read again anyway, whatever else there may be that decisions depend on."""
LONGEST_FRESH_SECONDS = 6 * 3600.0
"""The same of one that has been quiet for as long."""
_TOLD_SHARE = 0.25
"""Of the time for which a table has been quiet. What waits is older, so that lists, which tell its age as of
the last look, tell no less than three quarters of it."""


@dataclass(frozen=True)
class Polled:
    """What a poll found out about when to look again."""

    is_reachable: bool
    metadata_location: str | None = None
    """Where the table's metadata lay."""
    metadata_state: str | None = None
    """The same, as `TableSource.metadata_states` tells it."""
    decide_at: datetime | None = None
    """When time can."""
    look_within: float = math.inf
    """Seconds until its catalog has to be asked at the latest: as long as its policy lets staged snapshots
    wait."""
    changed_at: datetime | None = None
    """When its metadata was written, as far as its writer's clock can be believed."""
    read_within: float = FRESH_SECONDS
    """Seconds until it has to be read again, though nothing be new."""


Note = Callable[[Polled], dict[str, Any]]
"""What the next poller goes on from, as TableHealth.last_poll has it."""
# Putting a statement together takes longer than most take to run.
_LOCKED = (
    select(EnrolledTable, Catalog, SystemState.paused)
    .join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
    .outerjoin(SystemState, col(SystemState.id) == 1)
    .where(EnrolledTable.id == bindparam("table_id"))
    .with_for_update(of=EnrolledTable, **FOR_UPDATE)
)


def store_failure(session: Session, table_id: str, error: IcestreamError) -> None:
    now = utc_now()
    health = session.get_one(TableHealth, table_id)
    problem = {"code": error.slug, "title": error.title, "detail": error.detail, "remedy": error.remedy}
    if health.poll_error != problem:
        record_table_event(session, table_id, "poll.failed", error.detail, now, level="error", **problem)
    health.poll_error, health.last_poll = problem, None
    table = session.get_one(EnrolledTable, table_id)
    known = read_known(session, table, now)
    found = judged(table, health, known.policy, known.jobs.last, known.paused, now)
    store_status(health, found)


def store_look(
    session: Session,
    settings: Settings,
    table_id: str,
    loaded: Table,
    found: Measurement,
    note: Note | None = None,
) -> Polled:
    """Each thing is read once, and written once: a look is as cheap as it has few statements."""
    now = utc_now()
    # Whoever removes the table waits, and cancels what is scheduled here then.
    table, catalog, is_paused = session.exec(_LOCKED, params={"table_id": table_id}).one()
    if table.deleted_at is not None:
        return Polled(is_reachable=True)
    policy = effective_policy(session, table)
    source = policy.publish.source
    jobs = recent_jobs(session, table, now + CLOCK_TOLERANCE)
    if any(is_of_another_branch(job, source) for job in jobs.active):
        # Before the table's health: where a job ends, they are locked in this order, too.
        cancel_publications_but(session, table_id, source, now)
        jobs = recent_jobs(session, table, now + CLOCK_TOLERANCE)
    paused = pause_reason(table, catalog, is_system_paused=bool(is_paused))
    known = Known(policy, paused, jobs)
    health, last_sample = read_health(session, table_id)
    looked_at = health.measured_at
    if health.poll_error is not None:
        record_table_event(session, table_id, "poll.recovered", "The table can be read again.", now)
        health.poll_error = None
    _follow(session, table, health, loaded, now)
    # These may ask the database, before which what has changed of the health would be written.
    since = _store_since(session, table, health, loaded, found.iceberg_snapshot_id, jobs, now)
    _store_past(session, table, health, loaded, now)
    _store_pending(health, found.equality_deletes, now)
    health.measured_at = now
    health.iceberg_snapshot_id = found.iceberg_snapshot_id
    staged = measure_staged(loaded.metadata, source, table.branch) if source else Staged()
    _store_staged(health, staged, now)
    if source:
        _ask_at_first(health, staged, source, by_enrolment=table.publish_from is not None)
    health.small_manifests = found.small_manifests
    health.has_sort_order = loaded.metadata.default_sort_order_id != 0
    shape = health.reader_shapes.get("now")
    store_reader_cost(health, found, now, policy.rewrite_data_files.target_file_size_bytes)
    before = shape_of(shape) if shape is not None else None
    store_savings(health, before, since, policy.convert.reads_per_day, now)
    _store_coverage(table, health, found)
    scheduled = schedule(session, table, health, known, now)
    status = judged(table, health, policy, jobs.last, paused, now)
    store_status(health, status)
    worse_at = begins_to_lag_at(table, health, policy, jobs.last, now), overdue_at(health, now)
    is_published = bool(source) and policy.publish.enabled
    polled = Polled(
        is_reachable=True,
        metadata_location=loaded.metadata_location,
        metadata_state=metadata_state(loaded),
        decide_at=min(filter(None, (scheduled.decide_at, *worse_at)), default=None),
        look_within=policy.publish.age_seconds if is_published else math.inf,
        changed_at=_moment(loaded.metadata.last_updated_ms, now),
        read_within=_reads_within(loaded.metadata, health, now),
    )
    if note is not None:
        health.last_poll = note(polled)
    more = health.count_pending()
    record_sample(session, settings, health, status, last_sample, looked_at, now)
    write_events(session, scheduled.told)
    add_pending(session, table_id, more, now)
    return polled


def _store_pending(health: TableHealth, pending: Sequence[EqualityDelete], now: datetime) -> None:
    """What waits to be converted, and what of it no report has named as unconvertible."""
    blocked = {normalize_location(delete["file_path"]) for delete in health.unconvertible}
    convertible = [delete for delete in pending if normalize_location(delete.file_path) not in blocked]
    # A report names files that are gone by now: they block nothing any more.
    live = {normalize_location(delete.file_path) for delete in pending}
    health.unconvertible = [
        delete for delete in health.unconvertible if normalize_location(delete["file_path"]) in live
    ]
    health.pending_equality_delete_files = len(pending)
    health.pending_equality_deletes = sum(delete.record_count for delete in pending)
    oldest = min((delete.committed_at for delete in pending), default=None)
    health.oldest_equality_delete_at = _since(oldest, health.oldest_equality_delete_at, now)
    health.pending_key_sets = _by_key_set(pending, now)
    health.convertible_delete_files = len(convertible)
    health.convertible_deletes = sum(delete.record_count for delete in convertible)
    health.convertible_bytes = sum(delete.size_bytes for delete in convertible)
    oldest = min((delete.committed_at for delete in convertible), default=None)
    health.oldest_convertible_at = _since(oldest, health.oldest_convertible_at, now)


def _store_since(
    session: Session,
    table: EnrolledTable,
    health: TableHealth,
    loaded: Table,
    snapshot_id: int | None,
    jobs: RecentJobs,
    now: datetime,
) -> Since:
    """What was committed since the look before, and which maintenance others do."""

    def known(claimed: Collection[str]) -> set[str]:
        # Mostly the last job's, which was read already.
        ours = {job.id for job in jobs.every if may_have_committed(job, table)}.intersection(claimed)
        rest = set(claimed) - ours
        return ours | jobs_of_table(session, table, rest) if rest else ours

    since = measure_since(loaded.metadata, snapshot_id, health.seen_snapshot_id, known)
    health.seen_snapshot_id = snapshot_id
    for kind, one in since.by_others.items():
        told = f"{WORK[kind]} is done by another: no job has committed snapshot {one.snapshot_id}."
        _note_another(session, health, kind, _moment(one.timestamp_ms, now), told, now)
    return since


def _store_coverage(table: EnrolledTable, health: TableHealth, found: Measurement) -> None:
    """What data files are new to the index, to verification and to the last report."""
    health.data_files = found.data_files
    everything = found.new_since[None]
    new = found.new_since.get(health.indexed_snapshot_id, everything)
    health.new_data_files, health.new_rows, health.new_bytes = new.files, new.rows, new.bytes
    unverified = found.new_since.get(health.verified_snapshot_id, everything)
    health.unverified_data_files = unverified.files
    health.unverified_rows, health.unverified_bytes = unverified.rows, unverified.bytes
    reported = max((item["files_total"] - item["files_covered"] for item in health.key_sets), default=0)
    added = found.new_since.get(health.report_snapshot_id, everything)
    health.unindexed_data_files = min(reported + added.files, found.data_files)
    health.has_keys = bool(
        table.key_sets or found.has_identifier_fields or found.equality_deletes or health.key_sets
    )


def _store_past(
    session: Session, table: EnrolledTable, health: TableHealth, loaded: Table, now: datetime
) -> None:
    """How far back snapshots go, and whether somebody else lets them expire."""
    before, found = health.oldest_snapshot_id, measure_past(loaded.metadata)
    is_gone = before is not None and all(one.snapshot_id != before for one in loaded.metadata.snapshots)
    if is_gone and not has_let_expire(session, table, health.measured_at or now):
        told = "Snapshots expire that no job let expire: somebody else does that."
        _note_another(session, health, JobKind.EXPIRE_SNAPSHOTS, now, told, now)
    health.snapshots = found.snapshots
    health.oldest_snapshot_id, health.oldest_snapshot_at = found.oldest_id, found.oldest_at


def _follow(
    session: Session, table: EnrolledTable, health: TableHealth, loaded: Table, now: datetime
) -> None:
    """Take over what changed about the table itself; a new UUID is another table of the same name."""
    uuid = str(loaded.metadata.table_uuid)
    if uuid != table.table_uuid:
        record_table_event(
            session,
            table.id,
            "table.replaced",
            f"The catalog now holds another table of this name (UUID {uuid}, was {table.table_uuid}); "
            "its index starts anew.",
            now,
            level="warning",
        )
        health.key_sets, health.unconvertible = [], []
        health.reader_shapes, health.partitions, health.rows_deleted_since = {}, None, None
        health.oldest_snapshot_id, health.done_elsewhere = None, {}
        health.report_snapshot_id = health.indexed_snapshot_id = health.verified_snapshot_id = None
        health.indexed_at = None
    if uuid != table.table_uuid or table.format_version != loaded.metadata.format_version:
        table.table_uuid, table.format_version = uuid, loaded.metadata.format_version
    table.location, table.other_locations = loaded.location(), named_places(loaded.properties)


def _reads_within(metadata: TableMetadata, health: TableHealth, now: datetime) -> float:
    """Seconds, as Polled.read_within: as many as the table has been quiet, within bounds.

    What time alone decides has its moment (Polled.decide_at). Where anything waits or is not well, what lists
    tell of it has an age.
    """
    waits = (health.oldest_equality_delete_at, health.oldest_staged_at, health.maintenance_due_at)
    has_age = any(waits) or health.status != HealthStatus.HEALTHY
    quiet = (now - _moment(metadata.last_updated_ms, now)).total_seconds()
    return min(max(quiet * (_TOLD_SHARE if has_age else 1), FRESH_SECONDS), LONGEST_FRESH_SECONDS)


def _moment(timestamp_ms: int, now: datetime) -> datetime:
    """Of a writer, whatever his clock says: no later than now."""
    return datetime.fromtimestamp(min(max(timestamp_ms / 1000, 0), now.timestamp()), UTC)


def _note_another(
    session: Session, health: TableHealth, kind: JobKind, at: datetime, told: str, now: datetime
) -> None:
    """Keep that somebody else does a kind of maintenance; the first time, it is an event."""
    if kind.value not in health.done_elsewhere:
        event = "table.maintained-elsewhere"
        record_table_event(session, health.table_id, event, told, now, job_kind=kind.value)
    health.done_elsewhere = health.done_elsewhere | {kind.value: at.isoformat()}


def _by_key_set(deletes: Sequence[EqualityDelete], now: datetime) -> list[dict[str, Any]]:
    """As TableHealth.pending_key_sets."""
    found: dict[tuple[int, ...], dict[tuple[int, int], list[EqualityDelete]]] = {}
    for one in deletes:
        alike = found.setdefault(one.equality_field_ids, {})
        alike.setdefault(_age_group(now - one.committed_at), []).append(one)
    return [
        {
            "equality_field_ids": ids,
            "files": sum(map(len, groups.values())),
            "oldest_at": min(one.committed_at for one in groups[max(groups)]).isoformat(),
            "ages": [
                [
                    min(one.committed_at for one in group).isoformat(),
                    len(group),
                    sum(one.record_count for one in group),
                ]
                for _, group in sorted(groups.items(), reverse=True)
            ],
        }
        for ids, groups in sorted(found.items())
    ]


def _age_group(age: timedelta) -> tuple[int, int]:
    """Which ages are told as one: from a minute on, those within half of a doubling, and within a limit."""
    seconds = age.total_seconds()
    half_doublings = math.floor(2 * math.log2(max(seconds, 1.0) / 60))
    return bisect_right(AGE_LIMITS_SECONDS, seconds), max(half_doublings, -1)


def _store_staged(health: TableHealth, staged: Staged, now: datetime) -> None:
    trouble, stopped = staged.trouble, health.stopped_at or {}
    oldest = _since(staged.oldest_at, health.oldest_staged_at, now)
    if trouble is not None and not isinstance(trouble, StagingBranchNotFoundError):
        # What waits may be out of sight, and grows older; or nobody knows since when anything does.
        oldest = min(filter(None, (oldest, health.oldest_staged_at)), default=now)
    health.staged_snapshots, health.staged_rows = staged.snapshots, staged.rows
    health.oldest_staged_at, health.first_staged_id = oldest, staged.first_id
    health.staging_is_cut, health.kept_snapshots = staged.is_cut, staged.kept
    health.staging_is_unproven = staged.is_unproven
    if trouble is not None:
        reason = f"{trouble.title}: {trouble.detail}."
        health.stopped_at = {"code": trouble.code, "reason": reason, "remedy": trouble.remedy}
    elif staged.first_id is None or stopped.get("snapshot_id") != staged.first_id:
        health.stopped_at = None  # what a report names is published by now, or gone


def _ask_at_first(health: TableHealth, staged: Staged, source: str, *, by_enrolment: bool) -> None:
    """Let nothing be published by itself that a branch had before a policy named it, for a table or for many.

    Nobody may have thought of this table, and publishing empties the branch. A publication that somebody
    requests is the answer.
    """
    trouble = staged.trouble
    has_none = staged.first_id is None and (
        trouble is None or isinstance(trouble, StagingBranchNotFoundError)
    )
    if by_enrolment or staged.was_published or has_none:
        health.watched_branch = source
    elif health.watched_branch != source and health.stopped_at is None:
        health.stopped_at = {
            "code": "staged_before_policy",
            "reason": f"Branch {source} had snapshots at the first look since a policy names it.",
            "remedy": "A dry run of a publish job says what they are. Request one to publish them, and all"
            ' that follows by itself; or let the table have no staging branch (`{"from": ""}`). Enrolments'
            " and patterns that name the branch themselves don't ask.",
        }


def _since(committed_at: datetime | None, before: datetime | None, now: datetime) -> datetime | None:
    """A commit's time; if the writer's clock is ahead, the time at which it was seen first."""
    if committed_at is None or committed_at <= now:
        return committed_at
    return min(before or now, now)
