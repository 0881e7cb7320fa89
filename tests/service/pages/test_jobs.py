"""The pages of jobs, and the overview: what became of each, what needs a person."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlmodel import col, delete, select

from service.db.database import new_id, utc_now
from service.jobs.models import AttemptView, EventView, JobView
from service.jobs.service import count_jobs
from service.records.api_keys import Role
from service.records.health import PendingChange, TableHealth, minute_of
from service.records.jobs import AttemptStatus, Job, JobStatus
from service.records.tables import EnrolledTable
from service.records.webhooks import Webhook
from service.scheduling.catalog_health import store_observations
from service.ui import jobs as job_pages
from service.ui.job_story import STAGE_WORDS, stages_of, timeline_of, work_of
from service.ui.jobs import EVENTS_SHOWN
from tests.browser.running_service import convert_result, index_report, index_result
from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Page, Person

FAILED = {
    "code": "store_away",
    "title": "The store is away",
    "detail": "Connection refused: store:9000",
    "remedy": "Start the store, then retry the job.",
    "retryable": False,
}


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog, request: pytest.FixtureRequest) -> Iterator[str]:
    """A table of this test alone, with two pending equality deletes; its id."""
    # The overview has room for ten tables, by name: this one comes before what other tests have left.
    name = f"a.t{abs(hash(request.node.name)):x}"
    iceberg.create(name)
    iceberg.append(name, [1, 2, 3])
    iceberg.delete_keys(name, [1, 2])
    made = service.enroll(name, policy="manual")
    service.poll(made["id"])
    yield made["id"]
    service.admin.delete(f"/tables/{made['id']}")


@pytest.fixture(scope="module")
def worker(service: Running) -> str:
    return service.start_worker()


def request_job(service: Running, table: str, kind: str = "convert", **more: Any) -> str:
    return str(service.admin.post(f"/tables/{table}/jobs", json={"kind": kind, **more}).json()["id"])


def claim(service: Running, worker: str, job: str) -> dict[str, Any]:
    """The assignment of this job, whatever else waits."""
    with service.database.write() as session:
        for other in session.exec(select(Job).where(Job.status == "queued", Job.id != job)):
            other.status = "cancelled"
            session.add(other)
    assignment = service.claim(worker)
    assert assignment is not None
    assert assignment["job"]["id"] == job
    return assignment


def words(page: Page) -> str:
    return page.text.replace("\N{NO-BREAK SPACE}", " ")


def test_a_dry_run_says_what_would_happen_and_offers_to_do_it(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    admin.open(f"/tables/{table}")
    admin.send(f"/tables/{table}/jobs", {"dry_run": "true"})
    job = admin.page.path.rpartition("/")[2]
    assert not admin.page.offers(f"/tables/{table}/jobs"), "nothing is known yet"
    service.finish(claim(service, worker, job), result=convert_result(dry_run=True))
    shown = words(admin.open(f"/jobs/{job}"))
    assert "this is what a conversion would do. Nothing was written." in shown
    assert "Equality deletes resolved 48,210 in 24 files" in shown
    assert "Bytes read 112 MB 108 MB of them to find rows, by index and by scan" in shown
    admin.send(f"/tables/{table}/jobs")
    real = service.admin.get(f"/jobs/{admin.page.path.rpartition('/')[2]}").json()
    assert (real["kind"], real["dry_run"]) == ("convert", False)


def test_a_dry_run_of_a_blocked_table_says_so_and_is_not_green(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    job = request_job(service, table, dry_run=True)
    refused = {
        "file_path": "file:///wh/eq.parquet",
        "code": "unsupported_key_type",
        "reason": "the key column price is of type double",
        "remedy": "Have the writer delete by another key.",
        "equality_field_ids": [3],
        "record_count": 12,
    }
    nothing = {
        "equality_delete_files_removed": 0,
        "equality_deletes_resolved": 0,
        "rows_deleted": 0,
        "unconvertible": [refused],
        "estimated_seconds": 0.1,
    }
    service.finish(claim(service, worker, job), result=convert_result(dry_run=True) | nothing)
    told = service.admin.get(f"/jobs/{job}").json()
    assert told["status"] == "succeeded"
    assert told["caveat"] == {
        "title": "1 equality delete file cannot be converted",
        "detail": "the key column price is of type double (file:///wh/eq.parquet)",
        "remedy": "Have the writer delete by another key.",
        "did_nothing": True,
    }
    page = admin.open(f"/jobs/{job}")
    assert "Have the writer delete by another key." in words(page)
    assert 'class="status blocked"' in page.html
    listed = admin.open("/jobs")
    row = listed.html.partition(f"/jobs/{job}")[2].partition("</tr>")[0]
    assert "1 equality delete file cannot be converted" in row
    assert "would resolve" not in row
    for each in (page.html, row):
        assert 'class="status succeeded"' not in each.partition('id="attempts"')[0]
    for path in ("/", "/tables"):
        last = admin.open(path).html.partition(f'<a href="/jobs/{job}">Dry run: convert</a>')[2]
        assert last.partition("</td>")[0].startswith(' <span class="status blocked">'), path
    told = admin.open(f"/tables/{table}").text.partition("Events")[2]
    assert f"Dry run: convert {job[:8]} : Blocked in attempt 1: 1 equality delete file cannot be" in told


def test_a_dry_run_says_in_lists_and_on_its_page_how_long_it_would_take(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    job = request_job(service, table, dry_run=True)
    result = convert_result(dry_run=True) | {"estimated_seconds": 192.4}
    service.finish(claim(service, worker, job), result=result)
    assert "Would take about 3 min 12 s" in words(admin.open(f"/jobs/{job}"))
    assert "delete 47,985 rows, in about 3 min 12 s" in words(admin.open("/jobs"))
    service.finish(claim(service, worker, request_job(service, table)), result=convert_result())
    again = request_job(service, table, dry_run=True)
    service.finish(claim(service, worker, again), result=result)
    told = service.admin.get(f"/jobs/{again}").json()["result"]["estimate"]
    assert (told["jobs"], told["off_by"]) == (1, None)
    assert "by the last such job of this table" in words(admin.open(f"/jobs/{again}"))


def test_what_an_index_job_left_out_is_told_alike_by_its_list_its_page_and_the_health(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    job = request_job(service, table, kind="index")
    gone = {"file_path": "file:///wh/gone.parquet", "reason": "the file is missing"}
    (one,) = index_result()["key_sets"][:1]
    result = {"key_sets": [one | {"files_unreadable": 1, "unreadable": [gone]}]}
    # What was reported was true of an empty table.
    report = index_report(pending=(0, 0))
    for key_set in report["key_sets"]:
        key_set |= {"files_total": 0, "files_covered": 0, "coverage": 1.0}
    service.finish(claim(service, worker, job), result=result, health=report)
    said = "1 data file could not be read, and is not indexed"
    assert said in words(admin.open(f"/jobs/{job}"))
    assert said in admin.open("/jobs").html.partition(f"/jobs/{job}")[2].partition("</tr>")[0]
    health = service.admin.get(f"/tables/{table}/health").json()
    assert health["status"] != "healthy"
    service.poll(table)
    health = service.admin.get(f"/tables/{table}/health").json()
    assert said in health["status_reason"]
    assert health["unindexed_data_files"] > 0
    assert health["coverage"] < 1
    assert all(each["coverage"] < 1 for each in health["key_sets"])


def test_an_index_job_that_leaves_a_key_out_succeeded_in_part(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    job = request_job(service, table, kind="index")
    left_out = {
        "columns": ["price"],
        "code": "float_key",
        "reason": "column price is a double",
        "remedy": "Give the writer a key without floating-point columns.",
    }
    result = index_result() | {"key_sets_not_indexed": [left_out]}
    service.finish(claim(service, worker, job), result=result, health=index_report())
    assert service.admin.get(f"/jobs/{job}").json()["caveat"] == {
        "title": "1 key is not indexed",
        "detail": "Key set (price): column price is a double",
        "remedy": "Give the writer a key without floating-point columns.",
        "did_nothing": False,
    }
    assert "succeeded in part" in admin.open("/jobs").html.partition(f"/jobs/{job}")[2].partition("</tr>")[0]
    service.poll(table)
    health = service.admin.get(f"/tables/{table}/health").json()
    assert (health["status"], health["status_reason"]) == (
        "degraded",
        "1 key is not indexed. Key set (price): column price is a double",
    )


def test_a_table_whose_key_no_index_can_have_is_promised_none(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    assert "It is built by the first index job" in admin.open(f"/tables/{table}").text
    job = request_job(service, table, kind="index")
    error = FAILED | {"title": "The key can't be indexed", "detail": "column price is a double"}
    service.finish(claim(service, worker, job), status="failed", error=error)
    shown = admin.open(f"/tables/{table}").text.partition("Key sets and their index")[2]
    assert shown.strip().startswith("No index: The key can't be indexed: column price is a double.")
    assert "until then conversions scan" not in shown


def test_what_was_not_converted_is_called_so_and_no_source_of_it(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    job = request_job(service, table, dry_run=True)
    none = {"columns": ["price"], "source": "none", "reason": "column price is a double", "keys": 0}
    result = convert_result(dry_run=True) | {"key_sets": [none | {"equality_field_ids": [3]}]}
    service.finish(claim(service, worker, job), result=result)
    shown = words(admin.open(f"/jobs/{job}"))
    assert "price not converted Column price is a double." in shown
    assert "by none" not in shown


def test_a_dry_run_of_a_verification_that_found_nothing_wrong_says_so(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    job = request_job(service, table, kind="verify", dry_run=True)
    found = [{"columns": [name], "differences": 0, "entries_checked": 5_000} for name in ("id", "region")]
    service.finish(claim(service, worker, job), result={"key_sets": found})
    assert "10,000 entries checked, no difference" in words(admin.open("/jobs"))
    shown = words(admin.open(f"/jobs/{job}"))
    assert "the index was compared, and nothing rebuilt. Nothing was written." in shown
    assert "wrong" not in shown.partition("Events")[0]


def test_a_running_job_shows_its_rate_and_the_time_that_is_left(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    job = request_job(service, table)
    assignment = claim(service, worker, job)
    path = f"/jobs/{job}/attempts/{assignment['attempt']}"
    for stage, done in (("plan", 0), ("lookup", 100)):
        progress = {"stage": stage, "done": done, "total": 400, "unit": "tasks", "message": None}
        service.admin.post(f"{path}/heartbeat", json={"progress": progress}).raise_for_status()
    line = {"kind": "log", "level": "warning", "message": "the store <b>hesitates</b>", "fields": {}}
    service.admin.post(f"{path}/heartbeat", json={"events": [line]}).raise_for_status()
    shown = words(admin.open(f"/jobs/{job}"))
    assert "100 of 400 tasks" in shown
    assert shown.count("the store <b>hesitates</b>") == 1
    (told,) = service.admin.get(f"/jobs/{job}/events", params={"kind": "job.log"}).json()["items"]
    assert (told["level"], told["attempt"]) == ("warning", assignment["attempt"])

    view = JobView.model_validate(service.admin.get(f"/jobs/{job}").json())
    planned, looked_up = [
        EventView.model_validate(event)
        for event in service.admin.get(f"/jobs/{job}/events", params={"kind": "job.progress"}).json()["items"]
    ]
    began = view.attempts[0].started_at
    planned = planned.model_copy(update={"at": began})
    looked_up = looked_up.model_copy(update={"at": began + timedelta(seconds=10)})
    plan, lookup = stages_of(view, [planned, looked_up], began + timedelta(seconds=30))
    assert (plan.began_seconds, lookup.began_seconds) == (0, 10)
    assert (lookup.seconds, lookup.per_second, lookup.seconds_left) == (20, 5, 60)
    assert (plan.seconds, plan.per_second, plan.seconds_left) == (10, None, None)
    service.finish(assignment, status="failed", error=FAILED)


def test_what_happened_is_drawn_on_one_axis_as_long_as_it_took(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    job = request_job(service, table)
    stages = [{"name": name, "seconds": took} for name, took in (("plan", 1.0), ("scan", 6), ("commit", 3))]
    result = convert_result() | {"stages": stages}
    assignment = claim(service, worker, job)
    said = [("message", "info", "All is scanned"), ("log", "warning", "Slow"), ("log", "info", "Done")]
    told = [{"kind": kind, "level": level, "message": message} for kind, level, message in said]
    path = f"/jobs/{job}/attempts/{assignment['attempt']}/heartbeat"
    service.admin.post(path, json={"events": told}).raise_for_status()
    service.finish(assignment, result=result, health=index_report(), stages=stages)
    shown = admin.open(f"/jobs/{job}?level=error")  # of the log: the timeline has all
    (data,) = re.findall(r"data-story='([^']*)'", shown.html)
    rows = {name: items for name, *items in json.loads(unescape(data))["rows"]}
    assert list(rows) == ["Waiting", "Attempts", "Plan", "Scan", "Commit", "Decisions", "Events", "Warnings"]
    ((waited, began, *_),) = rows["Waiting"]
    ((started, _, ink, words_of_it),) = rows["Attempts"]
    assert (waited, began, ink) == (0, started, "good")
    assert words_of_it.startswith("Attempt 1 on ")
    drawn = [rows[name][0][:2] for name in ("Plan", "Scan", "Commit")]
    places = [[round(at - started, 3) for at in item] for item in drawn]
    assert places == [[0, 1], [1, 7], [7, 10]]
    assert [item[3] for item in rows["Decisions"] + rows["Warnings"]] == ["All is scanned", "Slow"]
    for snapshot in (result["iceberg_snapshot_id_before"], result["iceberg_snapshot_id_after"]):
        assert f"<code>{snapshot}</code>" in shown.html


def test_each_attempt_is_drawn_with_what_it_waited_for(service: Running, table: str, worker: str) -> None:
    job = request_job(service, table)
    service.finish(claim(service, worker, job), result=convert_result())
    view = JobView.model_validate(service.admin.get(f"/jobs/{job}").json())
    made = view.created_at
    (attempt,) = view.attempts

    def tried(number: int, began: float, ended: float, **more: Any) -> AttemptView:
        times = {"started_at": made + timedelta(seconds=began), "ended_at": made + timedelta(seconds=ended)}
        return attempt.model_copy(update={"attempt": number, "stages": []} | times | more)

    lost = tried(1, 3600, 3610, status=AttemptStatus.LOST)
    failed = tried(2, 3630, 3640, status=AttemptStatus.FAILED, error=FAILED)
    done = tried(3, 3700, 3710)
    ended = {"attempts": [lost, failed, done], "ended_at": done.ended_at, "result": None}
    drawn = timeline_of(view.model_copy(update=ended), [], [], [], utc_now())
    assert drawn is not None
    rows = dict(drawn.rows)
    assert [item[:2] for item in rows["Waiting"]] == [(0, 3600), (3610, 3630), (3640, 3700)]
    assert [(begin, ink) for begin, _, ink, _ in rows["Attempts"]] == [
        (3600, "warn"),
        (3630, "bad"),
        (3700, "good"),
    ]
    assert rows["Attempts"][1][3].endswith("; The store is away")
    # An hour in the queue does not hide what came after it.
    assert (drawn.from_seconds, drawn.end_seconds) == (3600 - 2 * 110, 3710)


def test_stages_of_earlier_attempts_stand_with_these_in_words(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    job = request_job(service, table)
    first = claim(service, worker, job)
    service.admin.post(
        f"/jobs/{job}/attempts/1/heartbeat", json={"progress": {"stage": "scan"}}
    ).raise_for_status()
    assert "Stages" not in admin.open(f"/jobs/{job}").html.partition('id="attempts"')[2]
    tried = [{"name": "plan", "seconds": 1.5}, {"name": "lookup", "seconds": 4, "tasks_on_spark": 8}]
    service.finish(first, status="failed", error=FAILED | {"retryable": True}, stages=tried)
    with service.database.write() as session:
        session.get_one(Job, job).available_at = utc_now()
    done = [{"name": "plan", "seconds": 0.5}]
    service.finish(claim(service, worker, job), result=convert_result() | {"stages": done}, stages=done)
    told = words(admin.open(f"/jobs/{job}")).partition("Worker Status")[2]
    latest, _, earlier = told.partition("as above")
    assert "in the queue" in latest
    assert "Plan" not in told.partition("2 stages")[0], "the list of stages has those of the latest attempt"
    assert "2 stages Plan: pin the snapshot, list files and deletes 1.5 s" in earlier
    assert "Look keys up in the index 4.0 s 8 tasks on Spark" in earlier


def test_a_key_of_many_long_columns_is_named_by_the_first_of_them_on_its_jobs(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    wide = {"columns": ["c" * 10_000] * 1000}
    for kind, result in (("convert", convert_result()), ("index", index_result())):
        job = request_job(service, table, kind)
        result["key_sets"] = [one | wide for one in result["key_sets"]]
        service.finish(claim(service, worker, job), result=result).raise_for_status()
        shown = admin.open(f"/jobs/{job}")
        assert "c… and 992 more" in shown.text
        assert len(shown.html) < 100_000


def test_no_number_is_told_of_jobs_that_were_not_counted(
    service: Running, admin: Person, table: str, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.finish(claim(service, worker, request_job(service, table, "index")), result=index_result())
    job = request_job(service, table)
    claim(service, worker, job)
    monkeypatch.setattr("service.jobs.service._COUNTED", 0)
    shown = admin.open(f"/jobs?table_id={table}&kind=convert")
    totals = shown.html.partition('id="totals"')[2].partition("</nav>")[0]
    assert re.findall(r"<strong>([^<]*)</strong>", totals)[0] == "1+", "all of them"
    assert "0+" not in totals
    assert "failed" in totals, "there may be some, which can be asked for"


def test_a_long_log_shows_its_end_and_hides_no_stage(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    job = request_job(service, table)
    assignment = claim(service, worker, job)
    path = f"/jobs/{job}/attempts/{assignment['attempt']}/heartbeat"
    for stage in ("plan", "lookup"):
        service.admin.post(path, json={"progress": {"stage": stage}}).raise_for_status()
        lines = [{"kind": "log", "message": f"{stage} line {number};"} for number in range(EVENTS_SHOWN)]
        service.admin.post(path, json={"events": lines}).raise_for_status()
    service.finish(assignment, status="failed", error=FAILED)
    page = admin.open(f"/jobs/{job}")
    shown = words(page)
    assert "plan line" not in shown
    assert shown.index("lookup line 0;") < shown.index(f"lookup line {EVENTS_SHOWN - 1};")
    assert f"The latest {EVENTS_SHOWN} lines" in shown
    earlier = admin.open(page.links["Earlier lines"])
    assert "lookup line" not in words(earlier)
    assert f"plan line {EVENTS_SHOWN - 1};" in words(earlier)
    assert "Earlier lines" not in earlier.links
    assert "lookup line" in words(admin.open(earlier.links["The latest lines"]))
    assert "Plan: pin the snapshot" in shown
    assert "Look keys up in the index" in shown
    assert "The store is away" in shown


def test_a_page_is_not_long_however_much_a_worker_says(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    job = request_job(service, table)
    assignment = claim(service, worker, job)
    path = f"/jobs/{job}/attempts/{assignment['attempt']}/heartbeat"
    for kind in ("log", "message"):
        for number in range(5):
            said = [{"kind": kind, "message": f"{number}:{line} " + "word " * 100} for line in range(40)]
            service.admin.post(path, json={"events": said}).raise_for_status()
    page = admin.open(f"/jobs/{job}")
    assert len(page.html) <= 150_000
    assert "4:39 word" in words(page)
    before = admin.open(page.links["Earlier lines"])
    (last,) = re.findall(r"<pre>(\d:\d+) ", before.html)[-1:]
    (first,) = re.findall(r"<pre>(\d:\d+) ", page.html)[:1]
    following = "{}:{}".format(*divmod(40 * int(last[0]) + int(last[2:]) + 1, 40))
    assert first == following


def test_every_stage_of_a_worker_has_its_words() -> None:
    worker = Path(__file__).parents[3] / "worker"
    begins = re.compile(r"\b(?:stage|each_task|run_action)\(\s*\"(\w+)\"")
    named = {name for path in worker.rglob("*.py") for name in begins.findall(path.read_text())}
    assert len(named) > 20
    assert named - STAGE_WORDS.keys() == set()


def test_a_stage_tells_where_its_tasks_ran_and_what_they_came_to(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    on_spark = {
        "name": "index",
        "seconds": 3,
        "tasks_on_spark": 8,
        "failed_tasks": 1,
        "task_seconds": 9.5,
        "gc_seconds": 1,
        "spilled_bytes": 2_000_000,
        "shuffled_bytes": 1000,
    }
    in_driver = {"name": "commit_index", "seconds": 1, "tasks_in_driver": 1}
    stages = [on_spark, in_driver, {"name": "plan", "seconds": 0.1}]
    job = request_job(service, table)
    assignment = claim(service, worker, job)
    service.finish(assignment, status="succeeded", result={"stages": stages}, stages=stages)
    shown = words(admin.open(f"/jobs/{job}"))
    assert "8 tasks on Spark, 1 failed, 9.5 s of work, 1.0 s of garbage collection" in shown
    assert "2.0 MB spilled, 1.0 KB shuffled" in shown
    assert "1 task in the worker, without Spark" in shown
    assert work_of(stages[-1]) is None
    reported = service.admin.get(f"/jobs/{job}").json()["attempts"][-1]["stages"]
    assert reported[0]["spilled_bytes"] == 2_000_000
    assert reported[2]["tasks_in_driver"] == reported[2]["rows"] == 0


def test_lines_of_a_log_are_found_by_level_and_words_and_downloaded(
    service: Running, admin: Person, table: str, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_pages, "_LINES", 2)  # so that a download reads the log in parts
    job = request_job(service, table)
    assignment = claim(service, worker, job)
    path = f"/jobs/{job}/attempts/{assignment['attempt']}"
    said = [("info", "Planned 9 files"), ("warning", "the store is 100% busy"), ("error", "Planned in vain")]
    lines = [{"kind": "log", "level": level, "message": text, "fields": {}} for level, text in said]
    service.admin.post(f"{path}/heartbeat", json={"events": lines}).raise_for_status()

    def shown(**which: str) -> list[str]:
        admin.open(f"/jobs/{job}?{urlencode(which)}")
        return [text for _, text in said if f"<pre>{text}</pre>" in admin.page.html]

    assert shown() == [text for _, text in said]
    assert shown(level="warning") == ["the store is 100% busy", "Planned in vain"]
    assert shown(level="error", search="planned") == ["Planned in vain"]
    assert shown(search="0%") == ["the store is 100% busy"]
    assert shown(search="_") == []
    assert "No line fits these filters." in admin.page.text
    shown(level="error", search="PLANNED")
    kept = admin.page.links["Download"]
    assert kept.endswith(f"/jobs/{job}/log?level=error&search=PLANNED")
    answer = admin.http.get(kept)
    assert answer.headers["Content-Disposition"] == f'attachment; filename="job-{job[:8]}.log"'
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert re.fullmatch(r"[-\dT:.]+Z ERROR   Planned in vain\n", answer.text)
    whole = admin.http.get(f"/jobs/{job}/log").text.splitlines()
    assert [line.split(maxsplit=1)[1] for line in whole] == [
        f"{level.upper():7} {text}" for level, text in said
    ]
    told = service.admin.get(f"/jobs/{job}/events", params={"search": "100% BUSY"}).json()["items"]
    assert [one["message"] for one in told] == ["the store is 100% busy"]
    service.finish(assignment, status="failed", error=FAILED)


def test_a_failed_job_tells_its_cause_and_remedy_and_worries_the_overview_until_it_is_retried(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    name = service.admin.get(f"/tables/{table}").json()["name"]
    job = request_job(service, table)
    assert f"local.{name} is blocked" not in admin.open("/").text
    service.finish(claim(service, worker, job), status="failed", error=FAILED)
    shown = words(admin.open(f"/jobs/{job}"))
    assert "The store is away" in shown
    assert "Connection refused: store:9000." in shown
    assert "Start the store, then retry the job." in shown

    service.poll(table)
    overview = admin.open("/")
    assert f"local.{name} is blocked" in overview.links
    assert "The last convert job failed: The store is away" in overview.text
    assert "All is well" not in overview.text
    admin.follow(f"local.{name} is blocked")
    assert admin.page.path == f"/tables/{table}"

    admin.open(f"/jobs/{job}")
    admin.send(f"/jobs/{job}/retry")
    again = admin.page.path.rpartition("/")[2]
    service.finish(claim(service, worker, again), result=convert_result(), health=index_report())
    service.poll(table)
    overview = admin.open("/")
    assert f"local.{name} is blocked" not in overview.links
    which = "status=succeeded&kind=convert&kind=rewrite_data_files&limit=500"
    done = service.admin.get(f"/jobs?{which}").json()["items"]
    # Jobs of other tests count, too; some had nothing to tell.
    told = [one["result"] or {} for one in done if not one["dry_run"]]
    resolved = sum(result.get("equality_deletes_resolved", 0) for result in told)
    assert resolved >= 48_210
    assert f"Deletes resolved {resolved:,}" in words(overview)


def test_a_table_names_a_delete_that_cannot_be_converted_with_reason_and_remedy(
    service: Running, admin: Person, iceberg: IcebergCatalog, table: str, worker: str
) -> None:
    name = service.admin.get(f"/tables/{table}").json()["name"]
    path = str(iceberg.catalog.load_table(name).inspect.delete_files()["file_path"][0])
    assignment = claim(service, worker, request_job(service, table, "index"))
    service.finish(assignment, result={}, health=index_report(pending=(1, 2), unconvertible=path))
    shown = words(admin.open(f"/tables/{table}"))
    assert f"{name} of local blocked" in shown
    assert "1 equality delete file cannot be converted: its key column amount is a float" in shown
    row = shown.partition("Deletes that cannot be converted")[2].partition("Pending equality deletes")[0]
    assert path.rpartition("/")[2] in row
    assert "Its key column amount is a float" in row
    assert "Let the writer use a key without floats" in row
    keys = shown.partition("Key sets and their index")[2].partition("Jobs")[0]
    assert "19,480,000 59.8 MB" in keys


def test_a_job_tells_which_deletes_stay_and_which_another_reader_applied_wrongly(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    stays = [
        {
            "file_path": f"s3://lake/{'d' * 1_000}/{i}.parquet",
            "code": "float_key",
            "reason": "a float",
            "remedy": "no float",
        }
        for i in range(150)
    ]
    wrong = {"file_path": "s3://lake/u.parquet", "code": "uuid_bounds", "reason": "bounds are signed there"}
    job = request_job(service, table)
    result = convert_result() | {"unconvertible": stays, "deviations": [wrong]}
    service.finish(claim(service, worker, job), result=result, health=index_report())
    shown = words(admin.open(f"/jobs/{job}"))
    assert shown.count("float_key A float. No float.") == 50
    assert "The first 50 of 150" in shown
    assert len(admin.page.html) < 150_000
    applied = shown.partition("Deletes that the Java reader applied wrongly")[2]
    assert "u.parquet uuid_bounds Bounds are signed there." in applied


def test_a_publication_tells_what_it_did_and_what_stopped_it(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    why = {
        "code": "staged_overwrite",
        "reason": "it overwrites partitions",
        "remedy": "Roll the branch back.",
    }
    result = {
        "staging_branch": "ingest",
        "staged_snapshots": 1_200,
        "published_snapshot_id": 7,
        "skipped_snapshot_id": 6,
        "rows_added": 5_000,
        "rows_deleted": 4_000,
        "equality_deletes_resolved": 4_100,
        "data_files_added": 3,
        "data_files_touched": 2,
        "stopped_at": {"snapshot_id": 8, **why},
    }
    staging = {"publish": {"from": "ingest"}}
    service.admin.patch(f"/tables/{table}", json=staging, headers={"If-Match": "*"})
    job = request_job(service, table, "publish")
    service.finish(claim(service, worker, job), result=result, health=index_report())
    shown = words(admin.open(f"/jobs/{job}"))
    assert "Snapshots published 1,200 ingest Snapshots skipped 1 6" in shown
    assert "Rows added 5,000 in 3 data files" in shown
    assert "Nothing is published from staged snapshot 8 on" in shown
    assert "it overwrites partitions" in shown.lower()
    assert "Roll the branch back." in shown
    listed = words(admin.open(f"/tables/{table}"))
    assert "5,000 rows added, 4,000 rows deleted Nothing is published from staged snapshot 8 on" in listed
    # By its id, the question stays open when the reason around it is worded anew.
    asked = f'<details class="confirm" id="ask-tables-{table}-jobs-skip-this-snapshot">'
    assert admin.page.html.count(asked) == 1
    admin.send(f"/tables/{table}/jobs", {"kind": "publish", "skip": "8"}, dry_run="true")
    (queued,) = service.admin.get("/jobs", params={"table_id": table, "status": "queued"}).json()["items"]
    assert (queued["parameters"], queued["dry_run"]) == ({"from": "ingest", "skip": 8}, True)


def test_an_expiry_tells_what_went_and_what_holds_the_rest(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    held = [{"holder": "tag", "name": "v1", "reason": "Tag v1 names it.", "snapshots": 2}]
    expiry = {
        "snapshots_expired": 1_200,
        "snapshots_left": 7,
        "snapshots_held": 2,
        "data_files_deleted": 3_000,
        "held": held,
    }
    asked = {"kind": "expire_snapshots", "dry_run": True}
    dry_run = service.admin.post(f"/tables/{table}/jobs", json=asked).json()["id"]
    service.finish(claim(service, worker, dry_run), result={"expiry": expiry})
    assert "deleted. That can't be undone." in words(admin.open(f"/jobs/{dry_run}"))
    job = admin.send(f"/tables/{table}/jobs", kind="expire_snapshots").path.rpartition("/")[2]
    service.finish(claim(service, worker, job), result={"expiry": expiry}, health=index_report())
    shown = words(admin.open(f"/jobs/{job}"))
    assert "Snapshots expired 1,200 7 are left" in shown
    assert "Old ones that are held 2 by v1" in shown
    assert "Data files deleted 3,000" in shown


def test_an_expiry_after_a_dry_run_goes_by_what_the_dry_run_went_by(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    by = {"older_than_seconds": 2_592_000.0, "retain_last": 100}
    dry_run = request_job(service, table, "expire_snapshots", dry_run=True, parameters=by)
    service.finish(claim(service, worker, dry_run), result={"expiry": {"snapshots_expired": 3}})
    shown = words(admin.open(f"/jobs/{dry_run}"))
    assert "Dry run: expire snapshots" in shown
    assert "older than 30 d by then, but for the last 100 snapshots of each branch" in shown

    which = {"kind": "expire_snapshots"}
    admin.send(f"/tables/{table}/jobs", which, run_at="2031-01-01T02:00", priority="7")

    (queued,) = service.admin.get("/jobs", params={"table_id": table, "status": "queued"}).json()["items"]
    assert (queued["dry_run"], queued["parameters"]) == (False, by)
    assert (queued["run_at"][:16], queued["priority"]) == ("2031-01-01T02:00", 7)
    with service.database.write() as session:
        session.get_one(Job, dry_run).ended_at = utc_now() - timedelta(days=8)
    assert "Let them expire" not in words(admin.open(f"/jobs/{dry_run}"))


def test_a_retry_of_what_can_not_be_undone_asks_as_the_request_does(
    service: Running, admin: Person, table: str
) -> None:
    again = {}
    for kind in ("index", "expire_snapshots"):
        job = request_job(service, table, kind)
        service.admin.post(f"/jobs/{job}/cancel").raise_for_status()
        again[kind] = admin.open(f"/jobs/{job}")
    assert "can't be undone" not in words(again["index"])
    assert "That can't be undone. Run it again" in words(again["expire_snapshots"])
    assert admin.send("/retry").path != f"/jobs/{job}"


def test_a_rewriting_of_data_files_tells_how_many_became_how_many(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    told = {"data_files_rewritten": 1_200, "data_files_added": 2, "data_files_left_out": 3}
    converted = {"equality_delete_files_removed": 4, "equality_deletes_resolved": 40, "rows_deleted": 39}
    job = request_job(service, table, "rewrite_data_files")
    result = converted | {"data_files": told}
    service.finish(claim(service, worker, job), result=result, health=index_report())
    shown = words(admin.open(f"/jobs/{job}"))
    assert "Data files rewritten 1,200 as 2" in shown
    assert "Equality deletes resolved 40 in 4 files" in shown
    assert "Data files left as they are 3" in shown
    assert "Data files touched" not in shown, "that it converted first makes it no conversion"
    assert "40 deletes resolved" not in words(admin.open("/jobs"))


def test_a_rewriting_of_position_deletes_tells_how_many_became_how_many(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    told = {"delete_files_rewritten": 1_200, "delete_files_added": 2, "bytes_rewritten": 9_000}
    job = request_job(service, table, "rewrite_position_delete_files")
    service.finish(claim(service, worker, job), result={"delete_files": told}, health=index_report())
    assert "Delete files rewritten 1,200 as 2" in words(admin.open(f"/jobs/{job}"))


def test_a_rewriting_of_manifests_tells_how_many_became_how_many(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    told = {"manifests_rewritten": 1_200, "manifests_added": 2, "manifests_left": 3, "bytes_rewritten": 9_000}
    job = request_job(service, table, "rewrite_manifests")
    service.finish(claim(service, worker, job), result={"manifests": told}, health=index_report())
    assert "Manifests rewritten 1,200 as 2" in words(admin.open(f"/jobs/{job}"))


def test_what_a_dry_run_lists_of_orphan_files_is_deleted_from_its_page(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    told = {"orphan_files": 3_000, "orphan_bytes": 9_000_000, "files": ["s3://t/data/a.parquet"]}
    job = request_job(service, table, "remove_orphan_files", dry_run=True)
    service.finish(
        claim(service, worker, job), result={"dry_run": True, "orphans": told}, health=index_report()
    )
    page = admin.open(f"/jobs/{job}")
    assert "Orphan files 3,000" in words(page)
    assert "this is what the job would do. Nothing was written." in words(page)
    assert "s3://t/data/a.parquet" in words(page)
    with service.database.write() as session:
        session.get_one(Job, job).ended_at = utc_now() - timedelta(days=8)
    assert "Delete what is listed" in words(page)
    assert "Delete what is listed" not in words(admin.open(f"/jobs/{job}"))
    with service.database.write() as session:
        session.get_one(Job, job).ended_at = utc_now()

    admin.open(f"/jobs/{job}")
    admin.send(f"/tables/{table}/jobs", {"kind": "remove_orphan_files"})

    assignment = service.claim(worker)
    assert assignment is not None
    assert (assignment["job"]["dry_run"], assignment["orphan_files"]) == (False, ["s3://t/data/a.parquet"])
    done = {"orphan_files": 1, "files_deleted": 1, "bytes_deleted": 3_000_000, "files_kept": 0}
    service.finish(assignment, result={"orphans": done}, health=index_report())
    shown = words(admin.open(f"/jobs/{assignment['job']['id']}"))
    assert "Files deleted 1" in shown


def test_a_job_tells_what_a_verification_found_wrong(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    found = {
        "columns": ["id"],
        "files_covered": 5,
        "files_checked": 4,
        "rows_checked": 1234,
        "entries_checked": 1300,
        "differences": 2,
        "examples": ["data.parquet: row 16: the entry has id 7 instead of 8"],
        "rebuilt": True,
    }
    job = request_job(service, table, "verify")
    service.finish(
        claim(service, worker, job), result={"key_sets": [found]}, health=index_report()
    ).raise_for_status()
    shown = words(admin.open(f"/jobs/{job}"))
    assert "id 2 1,300 4 5 1,234 — What was wrong" in shown
    assert "the entry has id 7" in shown
    assert "rebuilt at once" in shown


def test_a_job_shows_keys_with_several_live_rows_as_text(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    place = {"data_file": "s3://lake/a.parquet", "position": 4}
    found = {
        "columns": ["id", "name"],
        "files_checked": 4,
        "files_covered": 3,
        "rows_checked": 1234,
        "duplicate_keys": 30,
        "duplicate_rows": 95,
        "report": "s3://lake/index/duplicates/job-1-1_2-*.parquet",
        "duplicates": [{"key": {"id": 2**60, "name": None}, "live_rows": 7, "places": [place] * 5}]
        + [{"key": {"id": 1, "name": "<b>x</b>"}, "live_rows": 2, "places": []}] * 19,
    }
    job = request_job(service, table, "report_duplicates")
    service.finish(
        claim(service, worker, job), result={"key_sets": [found]}, health=index_report()
    ).raise_for_status()
    shown = words(admin.open(f"/jobs/{job}"))
    assert "id, name 30 95 1,234 4 3" in shown
    assert f"id: {2**60}, name: null 7 s3://lake/a.parquet row 4" in shown
    assert "and 2 more" in shown
    assert "id: 1, name: <b>x</b> 2" in shown
    assert "10 further keys and the same as Parquet: s3://lake/index/duplicates/job-1-1_2-*.parquet" in shown
    assert (
        service.admin.get(f"/jobs/{job}").json()["result"]["key_sets"][0]["duplicates"][0]["live_rows"] == 7
    )


def test_the_overview_adds_up_all_tables_and_says_when_all_is_well(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    service.start_worker()  # which is alive however long ago the other one was heard of
    with service.database.write() as session:  # it is drawn from the first full minute on
        session.add(PendingChange(minute=minute_of(utc_now()) - 60 * 24 * 8, part=0, equality_deletes=0))
    summary = words(admin.open("/"))
    health = service.admin.get(f"/tables/{table}/health").json()
    assert health["pending_equality_deletes"] == 2
    pending = sum(
        service.admin.get(f"/tables/{one['id']}/health").json()["pending_equality_deletes"]
        for one in service.admin.get("/tables").json()["items"]
    )
    assert f"Pending equality deletes {pending} in" in summary
    (plot,) = re.findall(r"data-plot='([^']*)'", admin.page.html)
    plotted = json.loads(unescape(plot))
    assert plotted["values"][-1] == pending
    assert "All is well." in summary
    admin.send("/system/pause")
    assert "The system is paused" in admin.page.text
    assert "All is well" not in admin.page.text
    admin.send("/system/resume")
    assert "All is well" in admin.page.text


def test_the_overview_shows_tables_in_trouble_first_then_what_is_pending_then_names(
    service: Running, admin: Person, table: str
) -> None:
    added = {"m": "degraded", "p": "blocked", "q": "lagging", "z": "blocked"} | dict.fromkeys(
        "abcdefgh", "healthy"
    )
    with service.database.write() as session:
        row = session.get_one(EnrolledTable, table)
        for name, status in added.items():
            copied = row.model_dump() | {"id": new_id(), "name": f"a.{name}", "branch": name}
            session.add(EnrolledTable.model_validate(copied))
            session.flush()
            pending = {"h": 2**40, "g": 2**41, "z": 2**42}.get(name, 0)
            session.add(TableHealth(table_id=copied["id"], status=status, pending_equality_deletes=pending))
            added[name] = copied["id"]
    enrolled = len(service.admin.get("/tables").json()["items"])
    page = admin.open("/")
    listed = page.html.partition('id="tables"')[2].partition("</table>")[0]
    # Other tests leave tables of other names and statuses.
    shown = "".join(re.findall(r'class="head"><a href="/tables/[^"]+">a\.<wbr>([a-z])<', listed))
    assert shown.startswith("pz")
    assert "pzqmghabcd".startswith(shown)
    assert f"10 of {enrolled}, those in trouble first, then those with the most pending deletes." in page.text
    first = admin.follow("All tables by status")
    in_order = [name.removeprefix("a.") for name in first.links if re.fullmatch(r"a\.[a-z]", name)]
    assert (set(in_order[:2]), in_order[2:4]) == ({"p", "z"}, ["q", "m"])
    with service.database.write() as session:
        session.exec(delete(TableHealth).where(col(TableHealth.table_id).in_(added.values())))
        session.exec(delete(EnrolledTable).where(col(EnrolledTable.id).in_(added.values())))


def test_what_runs_is_counted_and_shown_first_however_much_was_queued_later(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    runs = request_job(service, table)
    assignment = claim(service, worker, runs)
    queued = request_job(service, table, "verify")
    with service.database.write() as session:
        job, row = session.get_one(Job, queued), session.get_one(EnrolledTable, table)
        others = []
        for number in range(100):
            branch = {"id": new_id(), "branch": f"b{number}"}
            others.append(EnrolledTable.model_validate(row.model_dump() | branch))
        session.add_all(others)
        session.flush()
        for other in others:
            later = {"id": new_id(), "table_id": other.id, "created_at": utc_now()}
            session.add(Job.model_validate(job.model_dump() | later))
        added = [other.id for other in others]
    with service.database.read() as session:  # some may be of other tests
        counts = count_jobs(session)
    running, waiting = counts[JobStatus.RUNNING], counts[JobStatus.QUEUED]
    assert (running > 0, waiting > 100) == (True, True)
    shown = words(admin.open("/"))
    assert f"Jobs running {running} {waiting} waiting" in shown
    assert runs[:8] in shown
    assert f"The first 20 of {running + waiting}." in shown
    service.finish(assignment, status="failed", error=FAILED)
    with service.database.write() as session:
        session.exec(delete(Job).where(col(Job.table_id).in_(added)))
        session.exec(delete(EnrolledTable).where(col(EnrolledTable.id).in_(added)))


def test_the_overview_names_catalogs_workers_and_webhooks_that_fail(service: Running, admin: Person) -> None:
    directory = service.settings.data_dir / "away"
    directory.mkdir()
    catalog = IcebergCatalog(directory, "away")
    for name in ("far.one", "far.two"):
        catalog.create(name)
    made = service.register(catalog)
    tables = [service.enroll(name, catalog="away") for name in ("far.one", "far.two")]
    catalog.close()
    service.background.poller._catalogs.close()
    (directory / "cat.db").unlink()
    for table in tables:
        service.poll(table["id"])
    store_observations(service.database, service.background._observations, utc_now())
    unfit = {"name": "crippled", "hostname": "host", "pid": 1, "version": "1", "problem": "Java is missing."}
    service.admin.post("/workers", json=unfit).raise_for_status()
    with service.database.write() as session:
        webhook = Webhook(
            name="gone",
            url="http://127.0.0.1:9/",
            kinds=["job.failed"],
            secret="file:/nowhere",
            created_by="admin",
            enabled=False,
            disabled_because="The receiver answered 410 Gone.",
        )
        session.add(webhook)
    shown = admin.open("/")
    assert shown.links["Catalog away fails, and 2 tables with it"].endswith(f"/catalogs/{made['id']}")
    assert f"the catalog's database {directory}/cat.db is not there" in shown.text
    assert "far.one is unknown" not in shown.text
    listed = admin.open("/catalogs?status=unreachable")
    assert "away sql unreachable Catalog 'away' (sql): the catalog's database" in listed.text
    assert listed.links["2 unknown"].endswith("/tables?catalog=away&status=unknown")
    assert "local" not in listed.links
    of_one = admin.follow("away").text
    assert "Health The catalog could not be read Catalog 'away' (sql): the catalog's database" in of_one
    assert "None is made in its place." in of_one
    assert "Status unreachable since" in of_one
    assert "Java is missing." in shown.text
    admin.open("/")
    assert "crippled" in admin.follow("Worker crippled cannot run jobs").text
    assert (
        "410 Gone" in admin.open(shown.links["Webhook gone was switched off"].removeprefix(service.url)).text
    )
    with Person(service, Role.VIEWER) as viewer:
        assert "Webhook gone" not in viewer.open("/").text

    service.admin.post("/workers", json=unfit | {"problem": None}).raise_for_status()
    for table in tables:
        service.admin.delete(f"/tables/{table['id']}").raise_for_status()
    service.admin.delete(f"/catalogs/{made['id']}").raise_for_status()
    service.admin.delete(f"/webhooks/{webhook.id}").raise_for_status()
    shown = admin.open("/")
    for name in ("Catalog away", "Worker crippled", "Webhook gone"):
        assert name not in shown.text


def test_chosen_jobs_are_cancelled_together_and_what_cannot_be_is_told(
    service: Running, admin: Person, table: str, worker: str
) -> None:
    done, waits = request_job(service, table, "index"), ""
    service.finish(claim(service, worker, done), result={})
    waits = request_job(service, table, "verify")
    admin.open(f"/jobs?table_id={table}&catalog=local&trigger=request")
    shown = admin.send("/jobs/bulk", job_ids=[done, waits], action="cancel")
    assert "1 job cancelled" in words(shown)
    assert "refused" in shown.text
    assert service.admin.get(f"/jobs/{waits}").json()["status"] == "cancelled"
    assert waits[:8] not in admin.open(f"/jobs?table_id={table}&trigger=policy").text
    admin.open(f"/jobs?table_id={table}")
    admin.send("/jobs/bulk", job_ids=waits, action="retry")
    newest = service.admin.get("/jobs", params={"table_id": table}).json()["items"][0]
    assert (newest["retry_of"], newest["status"]) == (waits, "queued")


def test_jobs_are_paged_and_every_page_keeps_the_filters(service: Running, admin: Person, table: str) -> None:
    first = request_job(service, table, "index")
    service.admin.post(f"/jobs/{first}/cancel")
    with service.database.write() as session:
        job = session.get_one(Job, first)
        for _ in range(50):
            session.add(Job.model_validate(job.model_dump() | {"id": new_id(), "created_at": utc_now()}))
    assert first[:8] not in admin.open(f"/jobs?table_id={table}&until=2020-01-01T00:00").text
    admin.open(f"/jobs?table_id={table}")
    assert "No job fits these filters" in admin.send("/jobs", status=["queued"]).text
    assert "cancelled" in admin.send("/jobs", status=["cancelled"]).text
    path = f"/jobs?table_id={table}&status=cancelled&since=2020-01-01T00:00%2B14:00"
    newest = admin.open(path)
    assert first[:8] not in newest.text
    older = admin.follow("Next page")
    assert first[:8] in older.text
    assert "status=cancelled" in older.path
    assert "Next page" not in older.links
    assert admin.follow("First page").text == newest.text


def test_a_viewer_cannot_pause_the_system_or_cancel_a_job(service: Running, table: str) -> None:
    job = request_job(service, table, "index")
    with Person(service, Role.VIEWER) as viewer:
        for path in ("/", f"/jobs/{job}"):
            offered = {form.action.removeprefix(service.url) for form in viewer.open(path).forms}
            # The guide is dismissed in the viewer's own browser.
            assert offered - {"/first-hour/dismiss"} == {"/logout"}
        assert viewer.post("/system/pause").status == 403
        assert viewer.post(f"/jobs/{job}/cancel").status == 403
    assert service.admin.get(f"/jobs/{job}").json()["status"] == "queued"
