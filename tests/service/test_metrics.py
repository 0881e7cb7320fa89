"""The figures for Prometheus, scraped from the running service."""

import re
import time
from collections import Counter
from datetime import timedelta

from prometheus_client.parser import text_string_to_metric_families
from sqlmodel import select

from service.db.database import Database
from service.jobs.service import count_jobs
from service.lookups.metrics import LookupMetrics
from service.metrics import render_metrics
from service.records.jobs import Job, JobKind, JobStatus
from service.scheduling.retention import forget
from service.settings import Settings
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.queue_calls import START, add_tables, request, statements_of

# Figures are counts and sums of a few rows.
database_kind = alike_on_both


def scrape(service: Running) -> dict[tuple[str, ...], float]:
    """Name and label values -> value."""
    answer = service.client_with({}).get(f"{service.url}/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_every_series_is_there_before_anything_happened(service: Running) -> None:
    figures = scrape(service)
    assert set(figures.values()) == {0.0}
    assert {("icestream_jobs", "failed"), ("icestream_jobs_queued", "convert")} <= set(figures)


def test_names_go_by_the_convention_and_labels_are_few(database: Database) -> None:
    with database.read() as session:
        text = render_metrics(session, Settings(), LookupMetrics()).decode()
    families = list(text_string_to_metric_families(text))
    assert len(families) > 10
    for family in families:
        assert re.fullmatch("icestream_[a-z_]+", family.name)
        # What is in the database goes up and down, but for what is added up.
        counted = "_lookup" in family.name or "_saved_" in family.name
        assert family.type == "gauge" or counted
        assert not family.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert family.documentation
        labels = {label for sample in family.samples for label in sample.labels}
        assert labels <= {"status", "kind", *(["le"] if family.type == "histogram" else [])}
        if "_age" in family.name or "timestamp" in family.name:
            assert family.name.endswith("_seconds")


def test_the_figures_are_those_of_the_enrolled_tables(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    for name in ("db.u", "db.v"):
        iceberg.create(name)
        iceberg.append(name, [1, 2, 3])
    removed, polled, unpolled = (service.enroll(name) for name in ("db.t", "db.u", "db.v"))
    for table in (removed, polled):
        iceberg.delete_keys(table["name"], [1, 2])
        service.poll(table["id"])
    service.admin.delete(f"/tables/{removed['id']}")
    service.admin.post(f"/tables/{unpolled['id']}/jobs", json={"kind": "verify"})
    service.start_worker()
    figures = scrape(service)
    assert figures["icestream_tables", "healthy"] == figures["icestream_tables", "unknown"] == 1
    assert figures["icestream_jobs_queued", "verify"] == 1
    assert figures["icestream_jobs", "cancelled"] >= 1
    assert figures[("icestream_workers_alive",)] == 1
    assert figures[("icestream_pending_equality_delete_files",)] == 1
    assert figures[("icestream_pending_equality_deletes",)] == 2
    assert 0 < figures[("icestream_oldest_equality_delete_age_seconds",)] < PATIENCE_SECONDS
    assert not [key for key in figures if {"db.t", "db.u", "db.v", "local"}.intersection(key)]


def test_a_job_that_failed_and_an_old_delete_are_told_where_somebody_is_to_look(
    service: Running, iceberg: IcebergCatalog
) -> None:
    def scraped(name: str) -> float:
        return scrape(service)[(f"icestream_{name}",)]

    service.register(iceberg)
    iceberg.delete_keys("db.t", [1])
    table = service.enroll(policy="manual")
    address = f"/tables/{table['id']}"
    service.admin.post(f"{address}/jobs", json={"kind": "verify"})
    assert (assignment := service.claim(service.start_worker()))
    error = {"code": "x", "title": "Broken", "detail": "d", "remedy": "r", "retryable": False}
    began = time.time()
    assert service.finish(assignment, status="failed", error=error).is_success
    assert began - 1 < scraped("job_last_failure_timestamp_seconds") < time.time() + 1

    service.poll(table["id"])
    assert scraped("pending_equality_delete_files") == 1
    assert scraped("oldest_equality_delete_age_seconds") == 0
    etag = {"If-Match": service.admin.get(address).headers["etag"]}
    assert service.admin.patch(address, json={"policy": None}, headers=etag).is_success
    service.poll(table["id"])
    assert scraped("oldest_equality_delete_age_seconds") > 0
    assert service.admin.post(f"{address}/pause").is_success
    service.poll(table["id"])
    assert scraped("oldest_equality_delete_age_seconds") == 0


def test_as_many_workers_are_needed_as_could_work_at_the_same_time(
    service: Running, iceberg: IcebergCatalog
) -> None:
    def needed() -> float:
        return scrape(service)[("icestream_workers_needed",)]

    service.register(iceberg)
    iceberg.create("db.u")
    one, other = service.enroll("db.t"), service.enroll("db.u")
    for kind in ("index", "compact"):
        service.admin.post(f"/tables/{one['id']}/jobs", json={"kind": kind})
    # They exclude each other.
    assert needed() == 1
    service.admin.post(f"/tables/{one['id']}/jobs", json={"kind": "convert", "dry_run": True})
    assert needed() == 2
    service.admin.post(f"/tables/{other['id']}/jobs", json={"kind": "index"})
    assert needed() == 3
    later = {"kind": "compact", "run_at": "2999-01-01T00:00:00Z"}
    assert service.admin.post(f"/tables/{other['id']}/jobs", json=later).status_code == 202
    assert needed() == 3
    worker = service.start_worker()
    assert service.claim(worker)
    # That one runs, whichever it was; what it excludes waits for it.
    assert needed() == 3
    service.admin.post(f"/tables/{other['id']}/pause")
    assert needed() == 2


def test_a_table_that_can_no_longer_be_polled_counts_as_unknown(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll()
    service.poll(table["id"])
    assert scrape(service)["icestream_tables", "healthy"] == 1
    iceberg.catalog.drop_table("db.t")
    service.poll(table["id"])
    assert scrape(service)["icestream_tables", "unknown"] == 1


def test_both_databases_answer_a_scrape(database: Database) -> None:
    with database.read() as session:
        assert b'icestream_tables{status="unknown"} 0.0' in render_metrics(
            session, Settings(), LookupMetrics()
        )


def test_jobs_that_succeeded_are_counted_with_all_others_and_not_one_by_one(database: Database) -> None:
    tables = add_tables(database, [f"t{number}" for number in range(12)])
    for table in tables:
        request(database, table, JobKind.VERIFY, START, dry_run=True)
    ends = dict(zip(tables, [*JobStatus, JobStatus.SUCCEEDED] * 2, strict=True))
    with database.write() as session:
        for job in session.exec(select(Job)):
            job.status, job.ended_at = ends[job.table_id].value, START

    def counted() -> Counter[JobStatus]:
        with statements_of(database) as asked, database.read() as session:
            found = count_jobs(session)
            one_by_one = Counter(JobStatus(status) for status in session.exec(select(Job.status)))
        assert found == one_by_one
        statement, values = next(pair for pair in asked if "count(*)" in pair[0])
        if database.is_sqlite:
            with database.engine.connect() as connection:
                program = connection.exec_driver_sql(f"EXPLAIN {statement}", values).all()
            assert "Count" in {step[1] for step in program}
        return found

    assert counted() == Counter([*JobStatus, JobStatus.SUCCEEDED] * 2)
    while forget(database, Settings(), START + timedelta(days=10_000)):
        pass
    assert counted() == Counter([JobStatus.QUEUED, JobStatus.RUNNING] * 2)
