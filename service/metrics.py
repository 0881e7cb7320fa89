"""Figures for Prometheus: sums over all tables, jobs and workers, read at each scrape.

Questions about keys are counted by each replica, since it started.

No name of a table, catalog or worker is a label: the number of series stays bounded, and whoever may reach
the port learns no names.
"""

from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from sqlmodel import Session

from service.catalogs.service import cost_of_catalogs, count_catalogs
from service.db.database import utc_now
from service.index_health.summary import (
    oldest_awaited_seconds,
    oldest_staged_seconds,
    saved_ever_seconds,
    summarize,
)
from service.jobs.fair_share import count_workers_needed
from service.jobs.service import count_jobs, count_queued, last_failure_at
from service.lookups.metrics import LookupMetrics
from service.records.catalogs import CatalogStatus
from service.records.health import HealthStatus
from service.records.jobs import JobKind, JobStatus
from service.settings import Settings
from service.webhooks import service as webhooks
from service.workers.service import count_alive


def render_metrics(session: Session, settings: Settings, lookups: LookupMetrics) -> bytes:
    """Everything in the text format, zeros included, so that a series never comes and goes."""
    now = utc_now()
    registry = CollectorRegistry()

    def gauge(name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(f"icestream_{name}", help_text, labels, registry=registry)

    counts, waiting = count_jobs(session), count_queued(session)
    jobs = gauge("jobs", "Jobs by status.", "status")
    for status in JobStatus:
        jobs.labels(status.value).set(counts[status])
    # A time, and no difference of counts: these go down as history is removed.
    gauge("job_last_failure_timestamp_seconds", "When a job failed last, for good; or 0.").set(
        _seconds(last_failure_at(session))
    )
    queued = gauge("jobs_queued", "Jobs that wait for a worker.", "kind")
    for kind in JobKind:
        queued.labels(kind.value).set(waiting[kind])
    needed = "Jobs that run or could start now, where those that exclude each other count once."
    gauge("workers_needed", needed).set(count_workers_needed(session, now))
    gauge("workers_alive", "Workers heard of lately.").set(count_alive(session, settings, now))
    summary = summarize(session, now)
    tables = gauge("tables", "Enrolled tables by health, as of the last poll.", "status")
    for health in HealthStatus:
        tables.labels(health.value).set(summary.tables[health])
    answering = count_catalogs(session)
    catalogs = gauge("catalogs", "Catalogs by whether they answer.", "status")
    for state in CatalogStatus:
        catalogs.labels(state.value).set(answering[state])
    cost = cost_of_catalogs(session)
    gauge("catalog_requests", "Requests that were sent to catalogs; it only grows.").set(cost.requests)
    gauge(
        "catalog_latency_seconds", "What a request took lately at the slowest catalog that answers; or 0."
    ).set(cost.latency_seconds)
    gauge("pending_equality_delete_files", "Live equality delete files of all tables.").set(
        summary.pending_equality_delete_files
    )
    gauge("pending_equality_deletes", "Rows of those files.").set(summary.pending_equality_deletes)
    gauge(
        "oldest_equality_delete_age_seconds",
        "Age of the oldest of those files in tables that convert by themselves and are not paused; or 0.",
    ).set(oldest_awaited_seconds(session, now))
    gauge("snapshots", "Snapshots of all tables, as of the last poll.").set(summary.snapshots)
    reads = summary.reads
    gauge(
        "read_seconds",
        "Spark's processor time for a full read of each table, as estimated at the last poll.",
    ).set(reads.seconds)
    gauge("read_overhead_seconds", "So much of that is for deletes and small files.").set(
        reads.overhead_seconds
    )
    gauge("read_before_seconds", "The same before files last went, of each table where any did.").set(
        reads.before_seconds
    )
    gauge("point_read_seconds", "The same for looking for one key in each table.").set(reads.point_seconds)
    gauge("point_read_overhead_seconds", "So much of that is for deletes and small files.").set(
        reads.point_overhead_seconds
    )
    gauge("delete_files", "Delete files and deletion vectors that a full read of each table joins.").set(
        reads.delete_files
    )
    gauge("delete_bytes", "Bytes of those files.").set(reads.delete_bytes)
    small = gauge("small_files", "Small files of all tables that jobs would write anew.", "kind")
    small.labels("data_file").set(summary.small_data_files)
    small.labels("delete_file").set(summary.small_delete_files)
    small.labels("manifest").set(summary.small_manifests)
    gauge("read_avoided_seconds", "So much more would be for these had no job taken it away.").set(
        reads.avoided_seconds
    )
    saved = (
        "What full reads were spared altogether since each table was enrolled, as many as its policy says."
    )
    Counter("icestream_read_saved_seconds", saved, registry=registry).inc(saved_ever_seconds(session))
    gauge("maintenance_seconds", "Of jobs that maintain the tables, since these were enrolled.").set(
        reads.maintenance_seconds
    )
    gauge(
        "oldest_due_maintenance_age_seconds",
        "How long maintenance that a policy wants has been due, in the table where that is longest; or 0.",
    ).set(summary.oldest_due_seconds)
    gauge("staged_rows", "Rows and row-level deletes of staging branches that are not published.").set(
        summary.staged_rows
    )
    gauge(
        "oldest_staged_age_seconds",
        "Age of the oldest snapshot of these in tables that publish by themselves and are not paused; or 0.",
    ).set(oldest_staged_seconds(session, now))
    deliveries = gauge("webhook_deliveries", "Deliveries to webhooks that wait or were given up.", "status")
    for delivery, count in webhooks.count_open(session).items():
        deliveries.labels(delivery.value).set(count)
    gauge(
        "webhook_delivery_last_failure_timestamp_seconds",
        "When a delivery to a webhook was given up last; or 0.",
    ).set(_seconds(webhooks.last_failure_at(session)))
    oldest = webhooks.oldest_pending_at(session)
    gauge(
        "webhook_oldest_pending_age_seconds", "Age of the oldest event that a webhook waits for; or 0."
    ).set(max((now - oldest).total_seconds(), 0) if oldest else 0)
    lookups.register(registry)
    return generate_latest(registry)


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at is not None else 0.0
