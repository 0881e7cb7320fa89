"""Polling real tables: what is pending, how old it is, and what the policy makes of it."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from service.catalogs.measure import ManifestCache, Volume, measure
from service.db.database import utc_now
from service.index_health.status import judge
from service.policies.built_in import BUILT_IN, STANDARD
from service.policies.models import EffectivePolicy
from service.quantities import sized
from service.reader_cost import Shape
from service.records.health import HealthStatus, TableHealth
from service.records.jobs import Job, JobKind
from service.records.reports import KeySetReport
from service.scheduling.simulation import Arrival, Beginning, Cost, Costs, JobCost, simulate
from service.settings import Settings
from stores.table_metadata import ENCRYPTED, ENCRYPTED_REMEDY
from tests.http_server import answering, rest_catalog
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.service.conftest import Running, alike_on_both, running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.test_scheduler import NOW, POLICY

# What a table's health is, is decided in Python; both databases keep it alike.
database_kind = alike_on_both

_KEY_SET: dict[str, Any] = {
    "equality_field_ids": [1],
    "columns": ["id"],
    "generation": 1,
    "source": "declared",
    "files_covered": 1,
    "files_total": 1,
    "coverage": 1.0,
    "entries": 3,
    "bytes": 300,
    "sorted_runs": 1,
    "dead_ratio": 0.0,
}


def test_live_equality_deletes_are_counted_by_file_and_row(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll()
    iceberg.delete_keys("db.t", [1, 2])
    iceberg.delete_keys("db.t", [3])
    service.poll(table["id"])
    health = service.admin.get(f"/tables/{table['id']}/health").json()
    assert (health["pending_equality_delete_files"], health["pending_equality_deletes"]) == (2, 3)
    assert 0 < health["lag_seconds"] < PATIENCE_SECONDS
    assert health["coverage"] is None
    assert health["iceberg_snapshot_id"] == iceberg.head("db.t")


def test_tables_of_format_version_3_are_measured_alike(service: Running, iceberg: IcebergCatalog) -> None:
    iceberg.delete_keys("db.t", [1, 2])
    iceberg.upgrade_to_v3("db.t")
    service.register(iceberg)
    table = service.enroll()
    assert table["format_version"] == 3
    service.poll(table["id"])
    health = service.admin.get(f"/tables/{table['id']}/health").json()
    assert (health["pending_equality_delete_files"], health["pending_equality_deletes"]) == (1, 2)


@pytest.mark.parametrize("kind", ["sql", "rest", "hadoop"])
def test_a_table_with_a_column_of_a_type_that_pyiceberg_lacks_is_measured(
    service: Running, iceberg: IcebergCatalog, kind: str
) -> None:
    iceberg.delete_keys("db.t", [1, 2])
    (schema,) = iceberg.metadata("db.t")["schemas"]
    schema["fields"] += [
        {"id": 3, "name": "v", "type": "variant", "required": False},
        {"id": 4, "name": "g", "type": "geometry(srid:3857)", "required": False},
    ]
    metadata = iceberg.metadata("db.t") | {"format-version": 3, "next-row-id": 0, "schemas": [schema]}
    folder = iceberg.directory / "hadoop" / "db" / "t" / "metadata"
    folder.mkdir(parents=True)
    (folder / "v1.metadata.json").write_text(json.dumps(metadata))
    iceberg.rewrite("db.t", metadata)
    with answering(rest_catalog(metadata)) as server:
        properties = {
            "sql": iceberg.properties,
            "rest": {"uri": server.url},
            "hadoop": {"warehouse": f"file://{iceberg.directory}/hadoop"},
        }[kind]
        record = {"name": "local", "type": kind, "properties": properties}
        assert service.admin.post("/catalogs", json=record).status_code == 201
        table = service.enroll(key_sets=[["id"]])
        service.poll(table["id"])
        health = service.admin.get(f"/tables/{table['id']}/health").json()
    assert (health["poll_error"], health["pending_equality_deletes"]) == (None, 2)


def test_an_encrypted_table_is_told_as_such_and_what_helps(service: Running, iceberg: IcebergCatalog) -> None:
    iceberg.delete_keys("db.t", [1])
    service.register(iceberg)
    table = service.enroll()
    (manifests,) = {one.manifest_list for one in iceberg.catalog.load_table("db.t").snapshots()[-1:]}
    Path(manifests.removeprefix("file://")).write_bytes(ENCRYPTED + bytes(40))
    service.poll(table["id"])
    error = service.admin.get(f"/tables/{table['id']}/health").json()["poll_error"]
    assert (error["code"], error["remedy"]) == ("table-unreadable", ENCRYPTED_REMEDY)
    assert "it is encrypted" in error["detail"]


@pytest.mark.parametrize("left", [0.1, 0.9])
def test_a_manifest_list_that_was_cut_off_is_told_as_damage_of_its_table(
    service: Running, iceberg: IcebergCatalog, left: float
) -> None:
    """And neither as a shorter one, nor as trouble of the catalog, for which other tables would wait."""
    iceberg.delete_keys("db.t", [1])
    service.register(iceberg)
    table = service.enroll()
    (manifests,) = {one.manifest_list for one in iceberg.catalog.load_table("db.t").snapshots()[-1:]}
    path = Path(manifests.removeprefix("file://"))
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content))])
    service.poll(table["id"])
    error = service.admin.get(f"/tables/{table['id']}/health").json()["poll_error"]
    assert error["code"] == "table-unreadable"
    assert f"a metadata file of it is damaged: {manifests}" in error["detail"]


def test_snapshots_that_are_each_other_s_parents_end_the_count_of_what_is_new(
    iceberg: IcebergCatalog,
) -> None:
    iceberg.delete_keys("db.t", [1])
    iceberg.append("db.t", [4])
    table = iceberg.catalog.load_table("db.t")
    head = table.current_snapshot()
    assert head is not None
    circle = [
        each.model_copy(update={"parent_snapshot_id": each.parent_snapshot_id or head.snapshot_id})
        for each in table.snapshots()
    ]
    table.metadata = table.metadata.model_copy(update={"snapshots": circle})
    expired = 1
    measured = measure(table, "main", ManifestCache(), {None, expired, head.snapshot_id})
    assert measured.new_since[head.snapshot_id] == Volume()
    assert measured.new_since[expired] == measured.new_since[None]
    assert measured.new_since[None].files == measured.data_files > 0


def test_no_number_that_a_table_makes_up_keeps_it_from_being_looked_at(
    service: Running, iceberg: IcebergCatalog
) -> None:
    metadata = iceberg.metadata("db.t")
    for snapshot in metadata["snapshots"]:
        snapshot["summary"]["total-files-size"] = "9" * 400
    iceberg.rewrite(
        "db.t",
        {
            "snapshots": metadata["snapshots"],
            "properties": {**metadata["properties"], "write.target-file-size-bytes": "9" * 19},
        },
    )
    service.register(iceberg)
    catalog = service.admin.get("/catalogs").json()["items"][0]["id"]
    candidates = service.admin.get(f"/catalogs/{catalog}/candidates", params={"all_tables": True})
    assert candidates.status_code == 200, candidates.text
    table = service.enroll()
    service.poll(table["id"])
    health = service.admin.get(f"/tables/{table['id']}/health").json()
    assert (health["poll_error"], health["status"]) == (None, "healthy")
    assert health["reader_cost"]["data_bytes"] == 0


def test_a_table_that_was_never_polled_is_unknown(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    health = service.admin.get(f"/tables/{service.enroll()['id']}/health").json()
    assert (health["status"], health["measured_at"]) == ("unknown", None)


def test_an_empty_table_is_healthy(service: Running, iceberg: IcebergCatalog) -> None:
    iceberg.create("db.empty")
    service.register(iceberg)
    table = service.enroll("db.empty")
    service.poll(table["id"])
    health = service.admin.get(f"/tables/{table['id']}/health").json()
    assert (health["status"], health["data_files"], health["lag_seconds"]) == ("healthy", 0, 0)


def test_an_unreachable_catalog_is_told_once_and_so_is_its_recovery(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll()
    hidden = iceberg.directory / "hidden.db"
    (iceberg.directory / "cat.db").rename(hidden)
    for _ in range(2):  # through the catalog that is open
        service.poll(table["id"])
    assert not (iceberg.directory / "cat.db").exists()
    health = service.admin.get(f"/tables/{table['id']}/health").json()
    assert (health["status"], health["poll_error"]["code"]) == ("unknown", "catalog-unreachable")
    assert "cat.db is not there" in health["status_reason"]
    hidden.rename(iceberg.directory / "cat.db")
    service.poll(table["id"])
    events = service.admin.get(f"/tables/{table['id']}/events").json()["items"]
    assert [event["kind"] for event in events if event["kind"].startswith("poll.")] == [
        "poll.failed",
        "poll.recovered",
    ]


def test_a_dropped_table_is_reported_and_not_scheduled(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll()
    iceberg.catalog.drop_table("db.t")
    service.poll(table["id"])
    assert (
        service.admin.get(f"/tables/{table['id']}/health").json()["poll_error"]["code"] == "table-not-found"
    )
    assert service.admin.get("/jobs").json()["items"] == []


@pytest.mark.parametrize("place", ["table", "catalog", "system"])
def test_a_table_that_lags_while_it_is_paused_says_so(
    service: Running, iceberg: IcebergCatalog, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.index_health.status.PATIENCE_SECONDS", 0.0)
    service.register(iceberg)
    body = {"name": "at-once", "settings": {"convert": {"age_seconds": 0}}}
    assert service.admin.post("/policies", json=body).status_code == 201
    table = service.enroll(policy="at-once")
    iceberg.delete_keys("db.t", [1])
    paths = {"table": f"/tables/{table['id']}", "catalog": "/catalogs/local", "system": "/system"}
    names = {"table": "table db.t is", "catalog": "catalog local is", "system": "the system is"}
    assert service.admin.post(f"{paths[place]}/pause").status_code == 200
    service.poll(table["id"])
    health = service.admin.get(f"/tables/{table['id']}/health").json()
    assert health["status"] == "lagging"
    assert health["status_reason"].endswith(f"Nothing converts them: {names[place]} paused.")
    assert health["what_to_do"].startswith("Resume what is paused")
    patient = {"settings": {"convert": {"age_seconds": 600}}}
    service.admin.patch("/policies/at-once", json=patient, headers={"If-Match": "*"})
    health = service.admin.get(f"/tables/{table['id']}/health").json()
    assert health["status"] == "healthy"
    assert health["what_to_do"].startswith("Resume what is paused")
    assert health["status_reason"] == f"1 equality delete file pending, and {names[place]} paused."


def test_a_table_that_lags_outside_of_its_windows_says_so(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.index_health.status.PATIENCE_SECONDS", 0.0)
    service.register(iceberg)
    now = utc_now()
    window = {"start": f"{now + timedelta(hours=2):%H:%M}", "end": f"{now + timedelta(hours=3):%H:%M}"}
    settings = {"convert": {"age_seconds": 0}, "schedule": {"windows": [window]}}
    service.admin.post("/policies", json={"name": "later", "settings": settings})
    table = service.enroll(policy="later")
    iceberg.delete_keys("db.t", [1])
    service.poll(table["id"])
    health = service.admin.get(f"/tables/{table['id']}/health").json()
    assert health["status"] == "lagging"
    assert "It starts by itself only within" in health["status_reason"]
    assert "Request the job (convert)" in health["what_to_do"]


@pytest.mark.parametrize(
    ("age_seconds", "job_seconds", "lag_seconds", "status"),
    [
        (0, 2, 3, "healthy"),
        (0, 2, 60, "healthy"),
        (0, 2, 61, "lagging"),
        (0, 40, 80, "healthy"),
        (0, 40, 81, "lagging"),
        (300, 2, 600, "healthy"),
        (300, 2, 601, "lagging"),
        (300, 900, 2100, "healthy"),
        (300, 900, 2101, "lagging"),
    ],
)
def test_deletes_lag_when_neither_the_policy_nor_the_time_of_two_jobs_explains_their_age(
    age_seconds: float, job_seconds: float, lag_seconds: float, status: str
) -> None:
    policy = POLICY.model_copy(
        update={"convert": POLICY.convert.model_copy(update={"age_seconds": age_seconds})}
    )
    ended = Job(  # type: ignore[call-arg]
        table_id="t",
        kind="convert",
        status="succeeded",
        started_at=NOW - timedelta(seconds=job_seconds),
        ended_at=NOW,
    )
    health = TableHealth(
        table_id="t",
        measured_at=NOW,
        pending_equality_delete_files=4,
        oldest_equality_delete_at=NOW - timedelta(seconds=lag_seconds),
    )
    assert judge(health, [], policy, [ended], None, NOW - timedelta(days=1), NOW)[0] == status
    # What was there before the table was enrolled is late no sooner than that.
    assert judge(health, [], policy, [ended], None, NOW, NOW)[0] is HealthStatus.HEALTHY
    ended.failures = 1  # so that it took the pauses between attempts as well
    at_once = judge(health, [], policy, [ended], None, NOW - timedelta(days=1), NOW)[0]
    late = lag_seconds > age_seconds + max(age_seconds, 60)
    assert at_once is (HealthStatus.LAGGING if late else HealthStatus.HEALTHY)


def test_a_rewriting_that_waits_for_a_sort_order_is_overdue_with_what_helps() -> None:
    due = (NOW - timedelta(days=3)).isoformat()
    decided = {"code": "sort-order-missing", "sentence": "It waits.", "due_since": due}
    health = TableHealth(table_id="t", measured_at=NOW, decisions={"rewrite_data_files": decided})
    status, reason, remedy = judge(health, [], POLICY, [], None, NOW - timedelta(days=9), NOW)
    assert (status, reason) == (
        HealthStatus.DEGRADED,
        "Maintenance is overdue (rewrite data files). It waits.",
    )
    assert remedy == "Give the table a sort order, or let the policy choose `binpack`."


@pytest.mark.parametrize(
    "files",
    [4, pytest.param(1, marks=pytest.mark.exhaustive), pytest.param(20, marks=pytest.mark.exhaustive)],
)
def test_under_standard_checkpoints_every_five_seconds_leave_a_table_healthy_throughout(files: int) -> None:
    hold = EffectivePolicy.model_validate(BUILT_IN[STANDARD][1].model_dump())
    added = Shape(files, 2_000, files, 2_000, data_bytes=200_000, delete_bytes=20_000)
    # As long as several rounds of indexing and compaction: the next hours are like the first.
    arrivals = [Arrival(NOW + timedelta(seconds=second), added) for second in range(5, 7_201, 5)]
    table = Beginning(
        NOW, Shape(1, 10_000, data_bytes=10**6), NOW, entries=10_000, sorted_runs=1, indexed_at=NOW
    )
    took = {JobKind.INDEX: 1, JobKind.CONVERT: 2, JobKind.COMPACT: 5}
    costs = Costs({kind: JobCost(Cost(seconds), Cost(0)) for kind, seconds in took.items()})
    found = simulate(table, arrivals, hold, NOW + timedelta(hours=2), costs, most_steps=10**6)
    assert found.until == NOW + timedelta(hours=2)
    worst = TableHealth(
        table_id="t",
        measured_at=NOW,
        pending_equality_delete_files=1,
        oldest_equality_delete_at=NOW - timedelta(seconds=found.lag_seconds_max),
    )
    key_set = KeySetReport.model_validate(_KEY_SET | {"sorted_runs": found.sorted_runs_max})
    assert judge(worst, [key_set], hold, (), None, NOW, NOW)[0] is HealthStatus.HEALTHY
    assert found.jobs[JobKind.COMPACT].jobs > 1
    # Neither kind waits for the other: their jobs leave the worker half of its time.
    assert sum(totals.seconds for totals in found.jobs.values()) < 3_600


def test_an_index_is_degraded_by_its_worst_key_set_well_past_what_the_policy_compacts() -> None:
    def status(*figures: tuple[int, float]) -> tuple[HealthStatus, str]:
        key_sets = [
            KeySetReport(
                equality_field_ids=[number + 1],
                columns=[f"k{number}"],
                files_covered=1,
                files_total=1,
                coverage=1,
                entries=100,
                bytes=100,
                sorted_runs=sorted_runs,
                dead_ratio=dead_ratio,
            )
            for number, (sorted_runs, dead_ratio) in enumerate(figures)
        ]
        found, reason, _ = judge(health, key_sets, POLICY, (), None, NOW, NOW)
        return found, reason

    health = TableHealth(table_id="t", measured_at=NOW)
    # POLICY compacts each key set at 16 sorted runs or 50% dead entries.
    assert status()[0] is HealthStatus.HEALTHY
    assert status((15, 0.4), (15, 0.4), (15, 0.4))[0] is HealthStatus.HEALTHY
    assert status((32, 0.75), (1, 0.0))[0] is HealthStatus.HEALTHY
    assert status((1, 0.0), (33, 0.0)) == (
        HealthStatus.DEGRADED,
        "The index of (k1) has 33 sorted runs (policy: 16); lookups read all of them.",
    )
    assert status((1, 0.0), (1, 0.0), (1, 0.0), (1, 0.76)) == (
        HealthStatus.DEGRADED,
        "76% of the index entries of (k3) point to files that are gone (policy: 50%).",
    )


def test_a_failed_job_of_any_kind_shows_in_health() -> None:
    key_set = KeySetReport.model_validate(_KEY_SET | {"sorted_runs": 40})
    health = TableHealth(
        table_id="t",
        measured_at=NOW,
        decisions={"compact": {"action": "backoff", "sentence": "Paused until noon."}},
    )

    def ended(kind: str, status: str = "failed") -> Job:
        error = {"title": "It broke", "remedy": f"Mend {kind}."} if status == "failed" else None
        return Job(table_id="t", kind=kind, status=status, error=error)  # type: ignore[call-arg]

    def word(*latest_first: Job, runs: int = 1, paused: str | None = None) -> tuple[str, str, str | None]:
        key_set.sorted_runs = runs
        status, reason, remedy = judge(health, [key_set], POLICY, latest_first, paused, NOW, NOW)
        return status.value, reason, remedy

    done = ended("convert", "succeeded")
    for kind in ("verify", "rebuild", "index"):
        assert word(done, ended(kind)) == (
            "degraded",
            f"The last {kind} job failed: It broke.",
            f"Mend {kind}.",
        )
        assert word(done, ended(kind, "succeeded"))[0] == "healthy"
    assert word(ended("index"), done)[0] == "blocked"
    # A failed conversion matters as long as it is the latest, or leaves deletes pending.
    since = ended("index", "succeeded")
    assert word(ended("convert"), since)[0] == "blocked"
    assert word(since, ended("convert"))[0] == "healthy"
    health.pending_equality_delete_files = 1
    assert word(since, ended("convert")) == (
        "blocked",
        "The last convert job failed: It broke.",
        "Mend convert.",
    )
    # Runs pile up: why, and not that the policy will compact by itself.
    failed = "The last compact job failed: It broke. Paused until noon."
    assert word(ended("compact")) == ("degraded", failed, "Mend compact.")
    assert word(ended("compact"), runs=40) == (
        "degraded",
        f"The index of (id) has 40 sorted runs (policy: 16); lookups read all of them. {failed}",
        "Mend compact.",
    )
    _, reason, remedy = word(ended("compact"), runs=40, paused="the system is paused")
    assert reason.endswith(f"{failed} Nothing compacts it: the system is paused.")
    assert remedy == "Mend compact. Resume what is paused: the table, its catalog, or the whole system."


def test_a_verification_that_fails_degrades_the_table_until_one_succeeds(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll(policy="manual")
    service.poll(table["id"])
    worker = service.start_worker()

    def verify(**report: object) -> tuple[str, str]:
        service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "verify"})
        assignment = service.claim(worker)
        assert assignment is not None
        service.finish(assignment, **report)
        service.poll(table["id"])
        health = service.admin.get(f"/tables/{table['id']}/health").json()
        return health["status"], health["what_to_do"]

    error = {
        "code": "damaged",
        "title": "The index is damaged",
        "detail": "A file is gone.",
        "remedy": "Rebuild it.",
        "retryable": False,
    }
    assert verify(status="failed", error=error) == ("degraded", "Rebuild it.")
    assert service.admin.get("/tables", params={"status": "degraded"}).json()["items"]
    assert verify(health=_report(iceberg))[0] == "healthy"


def test_a_table_recreated_under_its_name_starts_anew(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll()
    service.poll(table["id"])
    with service.database.write() as session:
        health = session.get_one(TableHealth, table["id"])
        health.indexed_snapshot_id, health.indexed_at = 7, utc_now()
        session.add(health)
    iceberg.catalog.drop_table("db.t")
    replaced = iceberg.create("db.t")
    service.poll(table["id"])
    with service.database.read() as session:
        health = session.get_one(TableHealth, table["id"])
        assert (health.indexed_snapshot_id, health.indexed_at) == (None, None)
    assert service.admin.get(f"/tables/{table['id']}").json()["table_uuid"] == str(
        replaced.metadata.table_uuid
    )
    events = service.admin.get(f"/tables/{table['id']}/events").json()["items"]
    assert "table.replaced" in [event["kind"] for event in events]


def test_the_standard_policy_converts_at_ten_delete_files(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll()
    for key in range(9):
        iceberg.delete_keys("db.t", [key])
    service.poll(table["id"])
    assert service.admin.get("/jobs?kind=convert").json()["items"] == []
    iceberg.delete_keys("db.t", [9])
    service.poll(table["id"])
    jobs = service.admin.get("/jobs?kind=convert").json()["items"]
    assert [job["trigger"] for job in jobs] == ["10 equality delete files (policy: 10)."]


def test_rows_and_bytes_start_jobs_too(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    settings = {"index": {"rows": 4, "age_seconds": 1e6}, "convert": {"bytes": 100, "age_seconds": 1e6}}
    assert service.admin.post("/policies", json={"name": "volume", "settings": settings}).status_code == 201
    table = service.enroll(key_sets=[["id"]], policy="volume")
    service.poll(table["id"])
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert assignment["job"]["kind"] == "index"
    service.finish(assignment, health=_report(iceberg))
    iceberg.append("db.t", [4, 5, 6])
    service.poll(table["id"])
    decided = service.admin.get(f"/tables/{table['id']}/health").json()["decisions"]["index"]
    assert decided["action"] == "wait"
    assert decided["sentence"].startswith("1 new data file (policy: 50), 3 new rows (policy: 4), ")
    iceberg.append("db.t", [7])
    path = Path(iceberg.delete_keys("db.t", [2]).removeprefix("file://"))
    service.poll(table["id"])
    queued = service.admin.get("/jobs", params={"status": "queued"}).json()["items"]
    assert {job["kind"]: job["trigger"] for job in queued} == {
        "index": "4 new rows (policy: 4).",
        "convert": f"{sized(path.stat().st_size)} of equality delete files (policy: 100 B).",
    }


def test_what_came_since_the_last_verification_is_counted(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    settings = {"verify": {"enabled": True, "rows": 4}}
    assert service.admin.post("/policies", json={"name": "checked", "settings": settings}).status_code == 201
    table = service.enroll(key_sets=[["id"]], policy="checked")
    service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "verify"})
    worker = service.start_worker()
    assignment = service.claim(worker)
    assert assignment is not None
    service.finish(assignment, health=_report(iceberg))
    iceberg.append("db.t", [4, 5, 6])
    service.poll(table["id"])
    decisions = service.admin.get(f"/tables/{table['id']}/health").json()["decisions"]
    assert (
        "1 unverified data file (policy: 100,000), 3 unverified rows (policy: 4)"
        in (decisions["verify"]["sentence"])
    )
    iceberg.append("db.t", [7])
    service.poll(table["id"])
    jobs = service.admin.get("/jobs", params={"kind": "verify"}).json()["items"]
    assert jobs[0]["trigger"] == "4 unverified rows (policy: 4)."


def test_a_further_poll_adds_no_second_job(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll(key_sets=[["id"]])
    for _ in range(3):
        service.poll(table["id"])
    jobs = service.admin.get("/jobs").json()["items"]
    assert [(job["kind"], job["trigger"]) for job in jobs] == [
        ("index", "1 new data file and no index job yet.")
    ]


def test_under_the_manual_policy_nothing_runs_and_the_reason_is_recorded_once(
    service: Running, iceberg: IcebergCatalog
) -> None:
    iceberg.delete_keys("db.t", [1])
    service.register(iceberg)
    table = service.enroll(policy="manual")
    for _ in range(3):
        service.poll(table["id"])
    assert service.admin.get("/jobs").json()["items"] == []
    events = service.admin.get(f"/tables/{table['id']}/events").json()["items"]
    skipped = [event["message"] for event in events if event["kind"] == "decision.skip"]
    assert skipped == [
        "The policy starts no index jobs; they run on request only.",
        "The policy starts no convert jobs; they run on request only.",
        "The policy starts no rewrite data files jobs; they run on request only.",
        "The policy starts no rewrite position delete files jobs; they run on request only.",
        "The policy starts no rewrite manifests jobs; they run on request only.",
        "The policy starts no expire snapshots jobs; they run on request only.",
        "The policy starts no compact jobs; they run on request only.",
        "The policy starts no verify jobs; they run on request only.",
    ]


def test_without_any_key_no_index_job_is_started(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll()
    service.poll(table["id"])
    assert service.admin.get("/jobs").json()["items"] == []
    decision = service.admin.get(f"/tables/{table['id']}/health").json()["decisions"]["index"]
    assert (decision["action"], decision["code"]) == ("skip", "no-key-set")


def test_identifier_fields_are_a_key(service: Running, iceberg: IcebergCatalog) -> None:
    iceberg.create(
        "db.keyed", Schema(NestedField(1, "id", LongType(), required=True), identifier_field_ids=[1])
    )
    iceberg.catalog.load_table("db.keyed").append(
        iceberg.catalog.load_table("db.t").scan(selected_fields=("id",)).to_arrow()
    )
    service.register(iceberg)
    table = service.enroll("db.keyed")
    service.poll(table["id"])
    assert [job["kind"] for job in service.admin.get("/jobs").json()["items"]] == ["index"]


def _report(table: IcebergCatalog, **fields: object) -> dict[str, object]:
    return {
        "iceberg_snapshot_id": table.head("db.t"),
        "key_sets": [_KEY_SET],
        "unconvertible": [],
        "pending_equality_delete_files": 0,
        "pending_equality_deletes": 0,
    } | fields


def test_a_workers_report_becomes_the_tables_health(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll(key_sets=[["id"]])
    service.poll(table["id"])
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    service.finish(assignment, health=_report(iceberg))
    service.poll(table["id"])
    health = service.admin.get(f"/tables/{table['id']}/health").json()
    figures = {name: health[name] for name in ("coverage", "entries", "bytes", "sorted_runs", "dead_ratio")}
    assert figures == {"coverage": 1.0, "entries": 3, "bytes": 300, "sorted_runs": 1, "dead_ratio": 0.0}
    assert health["unindexed_data_files"] == 0
    # What was just indexed triggers nothing.
    assert len(service.admin.get("/jobs").json()["items"]) == 1
    iceberg.append("db.t", [4])
    service.poll(table["id"])
    assert service.admin.get(f"/tables/{table['id']}/health").json()["unindexed_data_files"] == 1


def test_what_is_pending_shows_by_key_set(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll(key_sets=[["id"], ["region"]], policy="manual")
    service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"})
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    by_region = _KEY_SET | {"equality_field_ids": [2], "columns": ["region"], "lag_seconds": "a lie"}
    service.finish(assignment, health=_report(iceberg, key_sets=[_KEY_SET, by_region]))

    def pending() -> list[tuple[int, bool]]:
        key_sets = service.admin.get(f"/tables/{table['id']}/health").json()["key_sets"]
        return [(one["pending_equality_delete_files"], bool(one["lag_seconds"])) for one in key_sets]

    assert pending() == [(0, False), (0, False)]
    for region in ("a", "b"):
        iceberg.delete_keys("db.t", [region], column="region")
    service.poll(table["id"])
    assert pending() == [(0, False), (2, True)]
    iceberg.delete_keys("db.t", [1])
    service.poll(table["id"])
    assert pending() == [(1, True), (2, True)]
    samples = service.admin.get(f"/tables/{table['id']}/health/history").json()["items"]
    assert [[one["pending_equality_delete_files"] for one in sample["key_sets"]] for sample in samples] == [
        [1, 2],
        [0, 2],
    ]
    page = service.admin.get(f"{service.url}/tables/{table['id']}").text
    assert page.count('data-label="Pending files"') == 2


def test_an_unconvertible_delete_blocks_the_table_and_triggers_no_more_jobs(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    strict = {"name": "eager", "settings": {"convert": {"delete_files": 1}, "index": {"enabled": False}}}
    assert service.admin.post("/policies", json=strict).status_code == 201
    table = service.enroll(policy="eager")
    path = iceberg.delete_keys("db.t", [1])
    service.poll(table["id"])
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    # The worker may spell the location in another way.
    refused = {
        "file_path": path.replace("file:///", "file:/"),
        "code": "float_key",
        "reason": "The key is a float.",
        "remedy": "Use another key.",
    }
    report = _report(
        iceberg, unconvertible=[refused], pending_equality_delete_files=1, pending_equality_deletes=1
    )
    service.finish(assignment, health=report, result={"equality_delete_files_removed": 0})
    service.poll(table["id"])
    health = service.admin.get(f"/tables/{table['id']}/health").json()
    assert (health["status"], health["what_to_do"]) == ("blocked", "Use another key.")
    assert [item["reason"] for item in health["unconvertible"]] == ["The key is a float."]
    assert health["decisions"]["convert"]["code"] == "unconvertible"
    assert len(service.admin.get("/jobs").json()["items"]) == 1
    # Another delete file is convertible as far as anybody knows.
    iceberg.delete_keys("db.t", [2])
    service.poll(table["id"])
    assert (
        service.admin.get(f"/tables/{table['id']}/health").json()["decisions"]["convert"]["action"]
        == "trigger"
    )


def test_history_gets_a_sample_only_when_something_changed(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll(policy="manual")
    for _ in range(3):
        service.poll(table["id"])
    iceberg.delete_keys("db.t", [1])
    service.poll(table["id"])
    history = service.admin.get(f"/tables/{table['id']}/health/history").json()["items"]
    assert [sample["pending_equality_delete_files"] for sample in history] == [1, 0]


def test_history_is_read_in_the_resolution_asked_for(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll(policy="manual")
    for keys in ([1], [2], [3]):
        iceberg.delete_keys("db.t", keys)
        service.poll(table["id"])

    def history(**query: str) -> list[int]:
        items = service.admin.get(f"/tables/{table['id']}/health/history", params=query).json()["items"]
        return [sample["pending_equality_delete_files"] for sample in items]

    assert history() == history(resolution="all") == [3, 2, 1]
    # Unless an hour began meanwhile, the last is the only one of its hour.
    assert history(resolution="hour")[0] == 3
    assert len(history(resolution="hour")) < 3
    assert history(resolution="day")[0] == 3
    items = service.admin.get(f"/tables/{table['id']}/health/history").json()["items"]
    second = items[1]["at"]
    assert (history(since=second), history(until=second)) == ([3, 2], [1])


def test_tables_are_listed_by_their_status(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll(policy="manual")

    def listed(status: str) -> list[tuple[str, str]]:
        items = service.admin.get("/tables", params={"status": status}).json()["items"]
        return [(item["status"], item["status_reason"]) for item in items]

    assert listed("unknown") == [("unknown", "The table was not looked at yet.")]
    assert listed("healthy") == []
    service.poll(table["id"])
    assert listed("unknown") == []
    assert listed("healthy") == [("healthy", "No equality deletes are pending.")]
    iceberg.catalog.drop_table("db.t")
    service.poll(table["id"])
    ((_, reason),) = listed("unknown")
    assert "db.t" in reason
    assert listed("healthy") == []


def test_tables_are_sorted_by_the_gravity_of_their_status(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    worst_first = ["blocked", "unknown", "unknown", "lagging", "degraded", "healthy"]
    for number, status in enumerate((*sorted({*worst_first}), "never polled")):
        iceberg.create(f"db.t{number}")
        table = service.enroll(f"db.t{number}")
        if status != "never polled":
            with service.database.write() as session:
                session.get_one(TableHealth, table["id"]).status = status
    for sort, expected in (("-status", worst_first), ("status", worst_first[::-1])):
        found: list[str] = []
        page: dict[str, Any] = {"next_cursor": None}
        while not found or page["next_cursor"] is not None:
            query = {"sort": sort, "limit": 2, "cursor": page["next_cursor"]}
            query = {name: value for name, value in query.items() if value is not None}
            page = service.admin.get("/tables", params=query).json()
            found += [item["status"] for item in page["items"]]
        assert found == expected


@pytest.mark.parametrize("branch", ["main", "audit"])
def test_the_enrolled_branch_is_what_counts(service: Running, iceberg: IcebergCatalog, branch: str) -> None:
    table = iceberg.catalog.load_table("db.t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_branch(snapshot.snapshot_id, "audit").commit()
    service.register(iceberg)
    enrolled = service.enroll(branch=branch)
    iceberg.delete_keys("db.t", [1], branch="audit")
    service.poll(enrolled["id"])
    health = service.admin.get(f"/tables/{enrolled['id']}/health").json()
    assert health["pending_equality_delete_files"] == (1 if branch == "audit" else 0)


def test_the_poller_finds_new_snapshots_by_itself(settings: Settings, iceberg: IcebergCatalog) -> None:
    settings.background = True
    with running(settings) as service:
        service.register(iceberg)
        table = service.enroll()
        iceberg.delete_keys("db.t", [1])
        path = f"/tables/{table['id']}/health"
        wait_until(
            lambda: service.admin.get(path).json()["pending_equality_delete_files"] == 1, "the new snapshot"
        )
