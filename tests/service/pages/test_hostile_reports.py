"""Whatever a worker reports, or reported to an earlier version: it is refused, or the pages still show it."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import text
from sqlmodel import col, update

from service.db.database import utc_now
from service.records.health import TableHealth
from service.records.jobs import Job, JobStatus
from service.records.tables import EnrolledTable
from service.scheduling.scheduler import schedule
from service.scheduling.state import read_known
from tests.browser.running_service import convert_result, erasure_result, index_report, index_result
from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Person

_PATH = "file:///wh/eq.parquet"
_REFUSED = {"file_path": _PATH, "code": "float_key", "reason": "a float", "remedy": "Another key."}
_STAGE = {
    "name": "lookup",
    "seconds": 1.5,
    "rows": 9,
    "tasks_in_driver": 1,
    "tasks_on_spark": 2,
    "failed_tasks": 0,
    "task_seconds": 2.5,
    "gc_seconds": 0.1,
    "spilled_bytes": 1000,
    "shuffled_bytes": 1000,
}
_COMPACTED = {
    "equality_field_ids": [1],
    "columns": ["id"],
    "generation": 1,
    "sorted_runs_before": 9,
    "sorted_runs_after": 1,
    "entries_before": 9,
    "entries_after": 8,
    "bytes_read": 9,
    "bytes_written": 8,
    "files_deleted": 1,
    "bytes_deleted": 9,
}
_VERIFIED = {
    "equality_field_ids": [1],
    "columns": ["id"],
    "files_covered": 5,
    "files_checked": 4,
    "files_unreadable": 1,
    "rows_checked": 9,
    "entries_checked": 9,
    "differences": 2,
    "examples": ["row 16: the entry has id 7 instead of 8"],
    "rebuilt": True,
}
_DUPLICATES = {
    "equality_field_ids": [1],
    "columns": ["id"],
    "files_checked": 4,
    "rows_checked": 9,
    "duplicate_keys": 3,
    "duplicate_rows": 7,
    "report": _PATH,
    "duplicates": [{"key": {"id": 5}, "live_rows": 3, "places": [{"data_file": _PATH, "position": 0}]}],
}
_HOLDER = {
    "holder": "retention",
    "name": "main",
    "snapshot_id": 7,
    "until": "2030-01-01T00:00:00Z",
    "reason": "It keeps two snapshots.",
    "remedy": "Wait.",
    "keys": [0],
}
_UNREAD = {"files_unreadable": 1, "unreadable": [{"file_path": _PATH, "reason": "it is missing"}]}
_SEEN = {"iceberg_snapshot_id": 7, "unconvertible": [], "decisions": ["Done."], "stages": [_STAGE]}
RESULTS: dict[str, dict[str, Any]] = {
    "convert": convert_result(dry_run=False)
    | {
        "estimated_seconds": 1.5,
        "bytes_read": 9,
        "bytes_written": 9,
        "unconvertible": [_REFUSED],
        "deviations": [{"file_path": _PATH, "code": "uuid", "reason": "the order of its bytes"}],
        "stages": [_STAGE],
    },
    "index": index_result() | {"key_sets": [index_result()["key_sets"][0] | _UNREAD] * 2},
    "compact": _SEEN | {"key_sets": [_COMPACTED]},
    "verify": _SEEN | {"key_sets": [_VERIFIED]},
    "report_duplicates": _SEEN | {"key_sets": [_DUPLICATES]},
    "publish": _SEEN
    | {
        "staging_branch": "ingest",
        "staged_snapshots": 3,
        "published_snapshot_id": 7,
        "skipped_snapshot_id": 6,
        "rows_added": 5,
        "rows_deleted": 4,
        "commits": 1,
        "files_cleared": 2,
        "renewed": True,
        "stopped_at": {"snapshot_id": 8, "code": "x", "reason": "it overwrites", "remedy": "Roll back."},
    },
    "rewrite_data_files": _SEEN
    | {
        "data_files": {
            "data_files_rewritten": 30,
            "data_files_added": 2,
            "bytes_rewritten": 9_000,
            "bytes_added": 8_000,
            "delete_files_removed": 4,
            "data_files_left_out": 1,
            "files": ["file:/t/data/a.parquet"],
        }
    },
    "rewrite_position_delete_files": _SEEN
    | {
        "delete_files": {
            "delete_files_rewritten": 30,
            "delete_files_added": 2,
            "bytes_rewritten": 9_000,
            "bytes_added": 8_000,
            "files": ["file:/t/data/a-deletes.parquet"],
        }
    },
    "remove_orphan_files": _SEEN
    | {
        "orphans": {
            "older_than": "2026-01-01T00:00:00+00:00",
            "files_in_location": 9,
            "orphan_files": 2,
            "orphan_bytes": 9,
            "files": ["file:/t/data/a.parquet"],
            "bytes_listed": 9,
            "files_deleted": 1,
            "bytes_deleted": 9,
            "files_kept": 1,
        }
    },
    "rewrite_manifests": _SEEN
    | {
        "manifests": {
            "manifests_rewritten": 3,
            "manifests_added": 1,
            "manifests_left": 2,
            "bytes_rewritten": 9,
        }
    },
    "expire_snapshots": _SEEN
    | {
        "expiry": {
            "snapshots_expired": 3,
            "snapshots_left": 2,
            "snapshots_held": 1,
            "data_files_deleted": 4,
            "held": [{"holder": "tag", "name": "v1", "reason": "Tag v1 names it.", "snapshots": 1}],
        }
    },
    "erase": erasure_result(held=[_HOLDER]),
}
HEALTH = index_report(pending=(3, 120), unconvertible=_PATH)
ERROR = {"code": "x", "title": "Broken", "detail": "d", "remedy": "r", "retryable": False}
PROGRESS = {"stage": "read", "done": 3, "total": 9, "unit": "files", "message": "m"}
EVENT = {"kind": "log", "level": "info", "message": "m", "fields": {"at": "2026-01-01T00:00:00Z"}}
_odd: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, "", "x", " ", "NaN", "x" * 30_000, "\N{RIGHT-TO-LEFT OVERRIDE}", "{{ 7 * 7 }}"),
        *(0, -1, 5, 2**31, 2**53, 2**63 - 1, -(2**63), 10**400),
        *(0.5, -0.5, 1e308, -1e308, 5e-324, [], {}, [[]], [{}], [None], ["x"], [1], {"x": 1}, {"stages": 5}),
    ]
)
_leave_out = object()


def _places(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Of all that a JSON value holds."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*place, key)
        if isinstance(inner, dict | list):
            yield from _places(inner, (*place, key))


def _holds(value: Any, key: str | int) -> bool:
    if isinstance(value, dict):
        return key in value
    return isinstance(value, list) and isinstance(key, int) and key < len(value)


@st.composite
def hostile(draw: st.DrawFn, valid: Any) -> Any:
    """A message with some of its values exchanged for others, or left out."""
    body = copy.deepcopy(valid)
    for place in draw(st.lists(st.sampled_from(list(_places(valid))), min_size=1, max_size=3)):
        at: Any = body
        key: Any
        for key in place[:-1]:
            at = at[key] if _holds(at, key) else None
        key = place[-1]
        if not _holds(at, key):
            continue  # inside of what was exchanged before
        new = draw(_odd | st.just(_leave_out))
        if new is not _leave_out:
            at[key] = new
        else:
            del at[key]
    return body


_kinds = st.sampled_from(list(RESULTS))


@st.composite
def finished(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A kind of job, and how its attempt ended."""
    kind = draw(_kinds)
    report = {"result": RESULTS[kind], "health": HEALTH, "stages": [_STAGE], "rows": 9, "bytes": 9}
    told = draw(hostile(report | {"error": ERROR}))
    return kind, {"status": draw(st.sampled_from(["succeeded", "failed"]))} | told


@pytest.fixture(scope="module")
def table(service: Running, iceberg: IcebergCatalog) -> Iterator[str]:
    if not iceberg.catalog.table_exists("work.hostile"):  # or this module's tests go on after others
        iceberg.create("work.hostile")
        iceberg.append("work.hostile", [1, 2, 3])
        iceberg.delete_keys("work.hostile", [1, 2])
    made = service.enroll("work.hostile", policy="manual", publish={"from": "ingest"})
    service.poll(made["id"])
    yield made["id"]
    service.admin.delete(f"/tables/{made['id']}")


@pytest.fixture(scope="module")
def person(service: Running) -> Iterator[Person]:
    with Person(service) as person:
        yield person


def check_everything(service: Running, person: Person, table: str, job: str) -> None:
    erasure = service.admin.get(f"/jobs/{job}").json()["parameters"].get("erasure_id")
    of_erasure = ("/erasures", f"/erasures/{erasure}") if erasure else ()
    of_table = (f"/tables/{table}", f"/tables/{table}/index")
    for page in ("/", "/tables", *of_table, "/jobs", f"/jobs/{job}", "/workers", *of_erasure):
        answer = person.http.get(page)
        assert answer.status_code == 200, (page, answer.text)
    for path in (
        *("/tables", f"/tables/{table}", f"/tables/{table}/health", f"/tables/{table}/health/history"),
        f"/tables/{table}/health/index",
        *(f"/tables/{table}/events", f"/tables/{table}/policy/preview", "/workers"),
        *("/jobs", f"/jobs/{job}", f"/jobs/{job}/events"),
        *(of_erasure and (*of_erasure, f"/erasures/{erasure}/receipt")),
    ):
        answer = service.admin.get(path)
        assert answer.status_code == 200, (path, answer.text)
    service.poll(table)
    with service.database.write() as session:
        row, health = session.get_one(EnrolledTable, table), session.get_one(TableHealth, table)
        schedule(session, row, health, read_known(session, row, utc_now()), utc_now())


def claimed(service: Running, worker: str, table: str, kind: str) -> dict[str, Any]:
    with service.database.write() as session:
        open_ = col(Job.status).in_([JobStatus.QUEUED.value, JobStatus.RUNNING.value])
        session.execute(update(Job).where(open_).values(status=JobStatus.CANCELLED.value))
    if kind == "erase":
        asked = service.admin.post("/erasures", json={"keys": [{"id": 7}, {"id": 8}], "tables": [table]})
    else:
        asked = service.admin.post(
            f"/tables/{table}/jobs", json={"kind": kind, "dry_run": kind == "remove_orphan_files"}
        )
    assert asked.status_code == 202, asked.text
    assignment = service.claim(worker)
    assert assignment is not None
    return assignment


def post(service: Running, assignment: dict[str, Any], call: str, body: dict[str, Any]) -> int:
    path = f"/jobs/{assignment['job']['id']}/attempts/{assignment['attempt']}/{call}"
    sent = json.dumps(body).encode()
    answer = service.admin.post(path, content=sent, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 204, 422), (body, answer.text)
    return answer.status_code


def end_with(service: Running, person: Person, table: str, reported: tuple[str, dict[str, Any]]) -> None:
    kind, report = reported
    assignment = claimed(service, service.start_worker(), table, kind)
    job = assignment["job"]["id"]
    before = service.admin.get(f"/tables/{table}/health").json()
    if post(service, assignment, "finish", report) == 422:
        after = service.admin.get(f"/tables/{table}/health").json()
        assert after["reported_at"] == before["reported_at"]
        assert service.admin.get(f"/jobs/{job}").json()["status"] == "running"
    check_everything(service, person, table, job)


def beat_with(service: Running, person: Person, table: str, report: dict[str, Any]) -> None:
    assignment = claimed(service, service.start_worker(), table, "convert")
    post(service, assignment, "heartbeat", report)
    check_everything(service, person, table, assignment["job"]["id"])


def find_stored(
    service: Running,
    person: Person,
    table: str,
    kind: str,
    result: dict[str, Any],
    health: dict[str, Any],
    stages: dict[str, Any],
) -> None:
    assignment = claimed(service, service.start_worker(), table, kind)
    job = assignment["job"]["id"]
    assert service.finish(assignment, health=HEALTH).is_success
    stored = {
        "UPDATE jobs SET result = :found WHERE id = :id": (result, job),
        "UPDATE erasure_tables SET report = :found WHERE job_id = :id": (result.get("erasure"), job),
        "UPDATE attempts SET stages = :found WHERE job_id = :id": (stages.get("stages", []), job),
        "UPDATE table_health SET key_sets = :found WHERE table_id = :id": (health.get("key_sets", []), table),
        "UPDATE index_layouts SET layouts = :found WHERE table_id = :id": (health.get("layouts", []), table),
        "UPDATE table_health SET unconvertible = :found WHERE table_id = :id": (
            health.get("unconvertible", []),
            table,
        ),
    }
    with service.database.write() as session:
        for statement, (found, row) in stored.items():
            session.execute(text(statement), {"found": json.dumps(found), "id": row})
    check_everything(service, person, table, job)


few = settings(
    deadline=None,
    max_examples=5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
many = settings(few, max_examples=30)
ends = given(reported=finished())
beats = given(report=hostile({"progress": PROGRESS, "events": [EVENT, EVENT | {"kind": "message"}]}))
stored_before = given(
    kind=_kinds,
    result=_kinds.flatmap(lambda kind: hostile(RESULTS[kind])),
    health=hostile(HEALTH),
    stages=hostile({"stages": [_STAGE]}),
)

test_no_report_of_an_end_breaks_a_page = few(ends(end_with))
test_no_heartbeat_breaks_a_page = few(beats(beat_with))
test_what_an_earlier_version_took_in_breaks_no_page = few(stored_before(find_stored))
test_none_of_many_reports_of_an_end_breaks_a_page = pytest.mark.exhaustive(many(ends(end_with)))
test_none_of_many_heartbeats_breaks_a_page = pytest.mark.exhaustive(many(beats(beat_with)))
test_nothing_of_much_that_an_earlier_version_took_in_breaks_a_page = pytest.mark.exhaustive(
    many(stored_before(find_stored))
)
