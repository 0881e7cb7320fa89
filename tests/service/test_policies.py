"""Which policy holds for a table, and where each of its values comes from."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest

from service.policies import mistakes
from service.policies.settings import PolicySettings
from service.records.api_keys import Role
from service.records.health import TableHealth
from service.settings import Settings
from tests.service.conftest import ON_BOTH, Running, alike_on_both, running
from tests.service.iceberg_tables import IcebergCatalog
from worker.contract.control_plane import Assignment

# Policies are validated, merged and previewed in Python; where rows are locked, both databases are asked.
database_kind = alike_on_both


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog) -> dict[str, Any]:
    service.register(iceberg)
    return service.enroll()


def make(service: Running, name: str, **settings: Any) -> None:
    answer = service.admin.post("/policies", json={"name": name, "settings": settings})
    assert answer.status_code == 201, answer.text


def attach(service: Running, policy: str | None, level: str, **place: Any) -> int:
    body = {"level": level, "policy": policy} | place
    return service.admin.put("/policy-attachments", json=body).status_code


def test_without_any_policy_the_standard_one_holds_everywhere(
    service: Running, table: dict[str, Any]
) -> None:
    found = service.admin.get(f"/tables/{table['id']}/policy").json()
    assert found["policy"] == "standard"
    assert found["effective"]["convert"] == {
        "enabled": True,
        "delete_files": 10,
        "deletes": 1_000_000,
        "bytes": 100_000_000,
        "age_seconds": 300,
        "when": "reached",
        "reads_per_day": 1_000,
        "max_read_ratio": 1.5,
        "cron": "",
        "max_delete_files_per_commit": 0,
        "deletion_vector_files": "one_per_data_file",
        "readers": [],
    }
    assert {value["source"]["level"] for value in found["values"].values()} == {"system"}


def test_the_nearest_level_that_sets_a_value_wins(service: Running, table: dict[str, Any]) -> None:
    make(service, "for-catalog", convert={"delete_files": 20, "age_seconds": 20}, index={"data_files": 20})
    make(service, "for-namespace", convert={"delete_files": 30, "age_seconds": 30})
    make(service, "for-table", convert={"delete_files": 40})
    assert attach(service, "for-catalog", "catalog", catalog="local") == 200
    assert attach(service, "for-namespace", "namespace", catalog="local", namespace=["db"]) == 200
    assert attach(service, "for-table", "table", table_id=table["id"]) == 200
    listed = service.admin.get("/policy-attachments").json()["items"]
    assert [one["table"] for one in listed if one["level"] != "system"] == [None, None, "local.db.t"]
    found = service.admin.get(f"/tables/{table['id']}/policy").json()
    sources = {
        name: (found["values"][name]["value"], found["values"][name]["source"]["place"])
        for name in ("convert.delete_files", "convert.age_seconds", "index.data_files", "index.age_seconds")
    }
    assert sources == {
        "convert.delete_files": (40, "table db.t"),
        "convert.age_seconds": (30, "namespace db of catalog local"),
        "index.data_files": (20, "catalog local"),
        "index.age_seconds": (60, "system"),
    }
    assert attach(service, None, "namespace", catalog="local", namespace=["db"]) == 200
    found = service.admin.get(f"/tables/{table['id']}/policy").json()
    assert found["values"]["convert.age_seconds"]["value"] == 20


def test_a_partial_system_policy_is_backed_by_the_standard_one(
    service: Running, table: dict[str, Any]
) -> None:
    make(service, "sparse", convert={"delete_files": 3})
    assert attach(service, "sparse", "system") == 200
    found = service.admin.get(f"/tables/{table['id']}/policy").json()
    assert found["values"]["convert.delete_files"]["source"]["policy"] == "sparse"
    assert found["values"]["convert.age_seconds"]["source"]["policy"] == "standard"


def test_the_policy_of_a_table_shows_in_the_table_and_can_be_taken_away(
    service: Running, table: dict[str, Any]
) -> None:
    path, always = f"/tables/{table['id']}", {"If-Match": "*"}
    assert service.admin.patch(path, json={"policy": "manual"}, headers=always).json()["policy"] == "manual"
    assert service.admin.get(f"{path}/policy").json()["effective"]["convert"]["enabled"] is False
    assert service.admin.patch(path, json={"policy": None}, headers=always).json()["policy"] is None
    assert service.admin.get(f"{path}/policy").json()["policy"] == "standard"


@ON_BOTH
def test_an_attachment_to_a_table_ends_the_version_that_others_saw(
    service: Running, table: dict[str, Any]
) -> None:
    path = f"/tables/{table['id']}"
    for attached, overwritten in (("manual", "standard"), (None, "standard")):
        seen = service.admin.get(path).headers["etag"]
        assert attach(service, attached, "table", table_id=table["id"]) == 200
        late = service.admin.patch(path, json={"policy": overwritten}, headers={"If-Match": seen})
        assert (late.status_code, late.json()["type"]) == (412, "/problems/version-conflict")
        assert service.admin.get(path).json()["policy"] == attached


@pytest.mark.parametrize(
    "values",
    [
        {"convert": {"delete_files": 0}},
        {"convert": {"age_seconds": -1}},
        {"convert": {"unknown": 1}},
        {"retries": {"backoff_seconds": 10, "max_backoff_seconds": 5}},
        {"retries": {"max_attempts": 0}},
        {"compact": {"min_interval_seconds": "12"}},
        {"compact": {"sorted_runs": True}},
        {"compact": {"enabled": "off"}},
        {"schedule": {"priority": 1.0}},
    ],
)
def test_a_policy_is_validated_as_a_whole(service: Running, values: dict[str, Any]) -> None:
    answer = service.admin.post("/policies", json={"name": "p", "settings": values})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/validation-error")


def test_every_mistake_of_a_policy_is_listed_at_once(service: Running) -> None:
    settings = {
        "index": {"rows": 0, "unknown": 1},
        "convert": {"cron": "every day", "bytes": "many"},
        "schedule": {"time_zone": "Mars", "windows": [{"start": "25:00", "end": "06:00"}]},
        "retries": {"backoff_seconds": 10, "max_backoff_seconds": 5},
        "nonsense": {},
    }
    make(service, "p")
    posted = service.admin.post("/policies", json={"name": "no name", "settings": settings})
    patched = service.admin.patch("/policies/p", json={"settings": settings}, headers={"If-Match": "*"})
    wrong = {
        "body.settings.index.rows",
        "body.settings.index.unknown",
        "body.settings.convert.cron",
        "body.settings.convert.bytes",
        "body.settings.schedule.time_zone",
        "body.settings.schedule.windows.0.start",
        "body.settings.retries.backoff_seconds",
        "body.settings.nonsense",
    }
    assert patched.status_code == posted.status_code == 422
    assert {error["field"] for error in patched.json()["errors"]} == wrong
    assert {error["field"] for error in posted.json()["errors"]} == wrong | {"body.name"}
    messages = {error["field"]: error["message"] for error in patched.json()["errors"]}
    assert messages["body.settings.retries.backoff_seconds"] == (
        "retries.backoff_seconds (10) must not be larger than retries.max_backoff_seconds (5)"
    )
    assert "'25:00' is no time of day" in messages["body.settings.schedule.windows.0.start"]
    assert messages["body.settings.index.rows"] == "This must be 1 or more."


def test_mistakes_of_every_kind_are_listed_in_one_answer(settings: Settings, iceberg: IcebergCatalog) -> None:
    windows = [{"start": f"{n // 60:02d}:{n % 60:02d}", "end": "00:00"} for n in range(51)]
    valid = {
        "schedule": {"windows": windows},
        "resources": {"max_tasks": 17},
        "retries": {"backoff_seconds": 900},
    }
    with running(settings.model_copy(update={"max_tasks_per_job": 16})) as service:
        service.register(iceberg)
        make(service, "p")
        assert attach(service, "p", "catalog", catalog="local") == 200

        def wrong(method: str, path: str, **body: Any) -> set[str]:
            answer = service.admin.request(method, path, json=body, headers={"If-Match": "*"})
            assert (answer.status_code, answer.json()["type"]) == (422, "/problems/validation-error")
            return {error["field"] for error in answer.json()["errors"]}

        bounds = {"body.settings.schedule.windows", "body.settings.resources.max_tasks"}
        inherited = {"retries.backoff_seconds"}
        invalid = valid | {"index": {"rows": 0}, "nonsense": {}}
        fields = {"body.settings.index.rows", "body.settings.nonsense"}
        assert wrong("POST", "/policies", name="new", settings=valid) == bounds
        assert wrong("POST", "/policies", name="no name", settings=invalid) == bounds | fields | {"body.name"}
        assert wrong("PATCH", "/policies/p", settings=valid) == bounds | inherited
        assert wrong("PATCH", "/policies/p", settings=invalid) == bounds | inherited | fields
        assert wrong("POST", "/policies", name="new", settings=7) == {"body.settings"}
        assert not any(service.admin.get("/policies/p").json()["settings"].values())


@ON_BOTH
def test_an_attachment_is_replaced_only_as_it_was_seen(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    place = {"level": "catalog", "catalog": "local"}

    def put(policy: str | None, if_match: str | None = None) -> httpx.Response:
        headers = {"If-Match": if_match} if if_match else {}
        return service.admin.put("/policy-attachments", json=place | {"policy": policy}, headers=headers)

    assert put("manual", "*").status_code == 412
    seen = put("manual").headers["ETag"]
    listed = service.admin.get("/policy-attachments", params={"level": "catalog"}).json()["items"]
    assert [f'"{item["version"]}"' for item in listed] == [seen]
    newer = put("standard", seen).headers["ETag"]
    refused = put("manual", seen)
    assert (refused.status_code, refused.json()["type"]) == (412, "/problems/version-conflict")
    assert put(None, seen).status_code == 412
    assert put(None, newer).json() is None
    # The next one is another one.
    assert put("manual").status_code == 200
    assert put("standard", newer).status_code == 412
    assert put("standard", "*").json()["policy"] == "standard"


def test_what_contradicts_an_inherited_value_is_refused_with_every_place(
    service: Running, table: dict[str, Any]
) -> None:
    make(service, "patient", retries={"backoff_seconds": 900})
    make(service, "wide", retries={"max_backoff_seconds": 1000})
    body = {"level": "catalog", "catalog": "local", "policy": "patient"}
    refused = service.admin.put("/policy-attachments", json=body)
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/policy-contradiction")
    why = (
        "retries.backoff_seconds (900) must not be larger than retries.max_backoff_seconds (600) "
        "(retries.backoff_seconds from policy 'patient', retries.max_backoff_seconds from policy 'standard')"
    )
    assert refused.json()["errors"] == [
        {"field": "retries.backoff_seconds", "message": f"catalog local: {why}"}
    ]
    assert service.admin.get("/policy-attachments").json()["items"][-1]["level"] == "system"

    # Under a wider limit both fit; what takes that away is refused, as a change and as a removal.
    assert attach(service, "wide", "system") == 200
    assert attach(service, "patient", "catalog", catalog="local") == 200
    make(service, "other", convert={"deletes": 5})
    assert attach(service, "other", "table", table_id=table["id"]) == 200
    smaller = {"settings": {"retries": {"max_backoff_seconds": 700}}}
    patched = service.admin.patch("/policies/wide", json=smaller, headers={"If-Match": "*"})
    assert [error["message"].partition(":")[0] for error in patched.json()["errors"]] == [
        "catalog local",
        "table db.t",
    ]
    assert attach(service, "standard", "system") == 422
    assert attach(service, "wide", "catalog", catalog="local") == 200
    assert attach(service, "patient", "table", table_id=table["id"]) == 200
    assert attach(service, "standard", "system") == 200
    assert attach(service, None, "catalog", catalog="local") == 422
    found = service.admin.get(f"/tables/{table['id']}/policy").json()["effective"]["retries"]
    assert (found["backoff_seconds"], found["max_backoff_seconds"]) == (900, 1000)


def test_the_policy_of_a_table_is_held_against_what_it_inherits_and_no_other_tables_is_read(
    service: Running, table: dict[str, Any], iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("u", "v"):
        iceberg.create(f"db.{name}")
        make(service, name, convert={"deletes": 5})
        service.enroll(f"db.{name}", policy=name)
    make(service, "wide", retries={"max_backoff_seconds": 1000})
    make(service, "patient", retries={"backoff_seconds": 900})
    assert attach(service, "patient", "table", table_id=table["id"]) == 422
    assert attach(service, "wide", "namespace", catalog="local", namespace=["db"]) == 200
    read = []

    class Read(PolicySettings):
        def values(self) -> dict[str, Any]:
            read.append(super().values())
            return read[-1]

    monkeypatch.setattr(mistakes, "PolicySettings", Read)
    assert attach(service, "patient", "table", table_id=table["id"]) == 200
    assert {values.get("convert.deletes", 0) for values in read} == {0, 1_000_000}, "those of others have 5"
    assert attach(service, None, "table", table_id=table["id"]) == 200


def test_built_in_policies_stay_as_they_are(service: Running) -> None:
    patch = service.admin.patch("/policies/standard", json={"description": "mine"}, headers={"If-Match": "*"})
    delete = service.admin.delete("/policies/manual")
    assert [(each.status_code, each.json()["type"]) for each in (patch, delete)] == [
        (409, "/problems/policy-built-in"),
        (409, "/problems/policy-built-in"),
    ]


@ON_BOTH
def test_an_attached_policy_is_not_deleted(service: Running, table: dict[str, Any]) -> None:
    make(service, "p")
    attach(service, "p", "table", table_id=table["id"])
    refused = service.admin.delete("/policies/p")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/policy-in-use")
    assert "table db.t" in refused.json()["detail"]
    attach(service, None, "table", table_id=table["id"])
    assert service.admin.delete("/policies/p").status_code == 204


def test_the_system_always_has_a_policy(service: Running) -> None:
    assert attach(service, None, "system") == 422


@pytest.mark.parametrize(
    "place",
    [{"level": "catalog"}, {"level": "system", "catalog": "local"}, {"level": "namespace", "catalog": "x"}],
)
def test_an_attachment_names_its_place_completely(service: Running, place: dict[str, Any]) -> None:
    body = place | {"policy": "manual"}
    assert service.admin.put("/policy-attachments", json=body).status_code == 422


@ON_BOTH
def test_a_changed_policy_holds_at_once_and_needs_its_version(
    service: Running, table: dict[str, Any]
) -> None:
    make(service, "p", convert={"delete_files": 5})
    attach(service, "p", "catalog", catalog="local")
    change = {"settings": {"convert": {"delete_files": 6}}}
    assert service.admin.patch("/policies/p", json=change, headers={"If-Match": '"9"'}).status_code == 412
    assert service.admin.patch("/policies/p", json=change, headers={"If-Match": '"1"'}).status_code == 200
    found = service.admin.get(f"/tables/{table['id']}/policy").json()
    assert found["effective"]["convert"]["delete_files"] == 6


def test_only_an_admin_changes_the_policy_of_the_whole_system(service: Running) -> None:
    body = {"level": "system", "policy": "manual"}
    operator = service.client(Role.OPERATOR)
    assert operator.put("/policy-attachments", json=body).status_code == 403
    make(service, "p")
    always = {"If-Match": "*"}
    change = {"settings": {"index": {"enabled": False}}}
    assert operator.patch("/policies/p", json=change, headers=always).status_code == 200
    assert attach(service, "p", "system") == 200
    change = {"settings": {}}
    refused = operator.patch("/policies/p", json=change, headers=always)
    assert (refused.status_code, refused.json()["type"]) == (403, "/problems/forbidden")
    found = service.admin.get("/policies/p").json()
    assert found["settings"]["index"] == {"enabled": False}
    for client, is_offered in ((operator, False), (service.admin, True)):
        page = client.get(f"{service.url}/policies/{found['id']}").text
        assert (f"/policies/{found['id']}/edit" in page) == is_offered
    assert service.admin.patch("/policies/p", json=change, headers=always).status_code == 200


def test_the_worker_is_told_how_many_delete_files_a_commit_may_remove(
    service: Running, table: dict[str, Any]
) -> None:
    make(service, "small-commits", convert={"max_delete_files_per_commit": 7})
    assert attach(service, "small-commits", "system") == 200
    service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"})
    claimed = Assignment.model_validate(service.claim(service.start_worker()))
    assert claimed.policy.convert.max_delete_files_per_commit == 7


def test_the_worker_is_told_who_reads_the_table(service: Running, table: dict[str, Any]) -> None:
    unknown = {"name": "p", "settings": {"convert": {"readers": ["athena", "Excel 97"]}}}
    refused = service.admin.post("/policies", json=unknown)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (
        422,
        "body.settings.convert.readers.1",
    )
    assert "athena, bigquery" in refused.json()["errors"][0]["message"]
    make(service, "read", convert={"readers": ["athena", "trino-475"]})
    assert attach(service, "read", "table", table_id=table["id"]) == 200
    service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"})
    claimed = Assignment.model_validate(service.claim(service.start_worker()))
    assert claimed.policy.convert.readers == ["athena", "trino-475"]


def test_the_preview_tells_what_would_start_when_and_why(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    windows = [{"start": "00:00", "end": "12:00"}, {"start": "12:00", "end": "00:00"}]
    schedule = {"time_zone": "Asia/Tokyo", "windows": windows, "priority": 3}
    make(service, "nightly", convert={"cron": "0 3 * * *"}, verify={"enabled": True}, schedule=schedule)
    assert attach(service, "nightly", "table", table_id=table["id"]) == 200
    iceberg.append("db.t", [1, 2, 3])
    iceberg.delete_keys("db.t", [2])
    service.poll(table["id"])
    found = service.admin.get(f"/tables/{table['id']}/policy/preview").json()
    jobs = {job["kind"]: job for job in found["jobs"]}
    rewriting = ["rewrite_data_files", "rewrite_position_delete_files", "rewrite_manifests"]
    assert list(jobs) == ["index", "convert", *rewriting, "expire_snapshots", "compact", "verify"]
    assert found["time_zone"] == "Asia/Tokyo"
    assert len(found["windows_open_at"]) == 2
    convert = jobs["convert"]
    begin = datetime.fromisoformat(found["from_time"])
    # By its age, 300 s, unless three o'clock comes before.
    assert begin < datetime.fromisoformat(convert["starts_at"]) <= begin + timedelta(seconds=300)
    assert "policy: 300 s" in convert["why"] or "cron: 0 3 * * *" in convert["why"]
    (fire,) = convert["cron_at"]
    assert datetime.fromisoformat(fire).astimezone(ZoneInfo("Asia/Tokyo")).hour == 3
    assert jobs["verify"]["now"] == "There is no index to verify yet."
    assert (jobs["verify"]["starts_at"], jobs["verify"]["why"]) == (None, None)

    requested = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"}).json()
    assert requested["priority"] == 3
    later = {"kind": "compact", "run_at": (begin + timedelta(days=2)).isoformat(), "priority": -5}
    waiting = service.admin.post(f"/tables/{table['id']}/jobs", json=later).json()
    assert waiting["priority"] == -5
    assert waiting["waiting_for"].endswith("UTC, as requested.")
    soon = {"kind": "verify", "run_at": (begin + timedelta(hours=2)).isoformat()}
    queued = service.admin.post(f"/tables/{table['id']}/jobs", json=soon).json()
    found = service.admin.get(f"/tables/{table['id']}/policy/preview").json()
    jobs = {job["kind"]: job for job in found["jobs"]}
    assert datetime.fromisoformat(jobs["verify"]["starts_at"]) == begin + timedelta(hours=2)
    assert jobs["verify"]["why"] == f"Job {queued['id']} is queued. {queued['waiting_for']}"
    assert jobs["convert"]["starts_at"] == found["from_time"]
    assert jobs["convert"]["why"] == f"Job {requested['id']} is queued. Waits for a free worker."
    naive = {"kind": "verify", "run_at": "2026-01-01T00:00:00"}
    assert service.admin.post(f"/tables/{table['id']}/jobs", json=naive).status_code == 422


def test_the_preview_tells_what_starts_again_and_again(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    make(
        service,
        "often",
        index={"enabled": False},
        compact={"cron": "0 */8 * * *", "min_interval_seconds": 0},
        verify={"enabled": True, "age_seconds": 5 * 3600},
    )
    assert attach(service, "often", "table", table_id=table["id"]) == 200
    iceberg.delete_keys("db.t", [2])
    service.poll(table["id"])
    with service.database.write() as session:
        index = {"columns": ["id"], "equality_field_ids": [1], "generation": 1, "coverage": 1.0}
        counts = dict.fromkeys(("files_covered", "files_total", "entries", "bytes", "sorted_runs"), 1)
        session.get_one(TableHealth, table["id"]).key_sets = [index | counts | {"dead_ratio": 0.0}]
    found = service.admin.get(f"/tables/{table['id']}/policy/preview").json()
    starts = {
        job["kind"]: [datetime.fromisoformat(at) for at in (job["starts_at"], *job["then_at"]) if at]
        for job in found["jobs"]
    }
    verified = starts["verify"]
    assert len(verified) == 4
    assert {later - at for at, later in pairwise(verified)} == {timedelta(hours=5)}
    assert [at.hour % 8 for at in starts["compact"]] == [0, 0, 0]
    # What it would convert is there once.
    assert (len(starts["convert"]), starts["index"]) == (1, [])

    requested = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "verify"}).json()
    claimed = service.claim(service.start_worker())
    assert claimed is not None
    assert claimed["job"]["id"] == requested["id"]
    found = service.admin.get(f"/tables/{table['id']}/policy/preview").json()
    (verify,) = (job for job in found["jobs"] if job["kind"] == "verify")
    begin = datetime.fromisoformat(found["from_time"])
    starts_at = [datetime.fromisoformat(at) for at in (verify["starts_at"], *verify["then_at"])]
    assert starts_at == [begin + timedelta(hours=hours) for hours in (5, 10, 15, 20)]
    assert verify["why"] == f"Job {requested['id']} is running; this supposes that it succeeds soon."


def test_the_preview_holds_a_whole_day_of_a_job_every_five_minutes(
    service: Running, table: dict[str, Any]
) -> None:
    make(service, "often", verify={"enabled": True, "cron": "*/5 * * * *"})
    assert attach(service, "often", "table", table_id=table["id"]) == 200
    service.poll(table["id"])
    with service.database.write() as session:
        index = {"columns": ["id"], "equality_field_ids": [1], "generation": 1, "coverage": 1.0}
        counts = dict.fromkeys(("files_covered", "files_total", "entries", "bytes", "sorted_runs"), 1)
        session.get_one(TableHealth, table["id"]).key_sets = [index | counts | {"dead_ratio": 0.0}]
    found = service.admin.get(f"/tables/{table['id']}/policy/preview").json()
    (verify,) = (job for job in found["jobs"] if job["kind"] == "verify")
    assert [verify["starts_at"], *verify["then_at"]] == verify["cron_at"]
    assert len(verify["cron_at"]) == 288


def test_the_windows_of_a_policy_are_bounded(service: Running) -> None:
    windows = [{"start": f"{n // 60:02d}:{n % 60:02d}", "end": "00:00"} for n in range(51)]
    refused = service.admin.post(
        "/policies", json={"name": "p", "settings": {"schedule": {"windows": windows}}}
    )
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/too-many-windows")
    make(service, "p", schedule={"windows": windows[:50]})
    always = {"If-Match": "*"}
    change = {"settings": {"schedule": {"windows": windows}}}
    assert service.admin.patch("/policies/p", json=change, headers=always).status_code == 422


def test_what_is_due_in_a_preview_starts_when_a_window_opens(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    hours = [(datetime.now(UTC) + timedelta(hours=number)).strftime("%H:%M") for number in (2, 3, 4, 5)]
    windows = [{"start": hours[2], "end": hours[3]}, {"start": hours[0], "end": hours[1]}]
    make(service, "later", convert={"delete_files": 1}, schedule={"windows": windows})
    assert attach(service, "later", "table", table_id=table["id"]) == 200
    iceberg.delete_keys("db.t", [2])
    service.poll(table["id"])
    found = service.admin.get(f"/tables/{table['id']}/policy/preview").json()
    (convert,) = [job for job in found["jobs"] if job["kind"] == "convert"]
    assert [datetime.fromisoformat(at).strftime("%H:%M") for at in found["windows_open_at"]] == [
        hours[0],
        hours[2],
    ]
    assert convert["starts_at"] == found["windows_open_at"][0]
    assert "It starts by itself only within" in convert["now"]


def test_the_inner_of_two_namespaces_wins(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    iceberg.catalog.create_namespace_if_not_exists("a")
    iceberg.create("a.b.t")
    table = service.enroll("a.b.t")
    make(service, "inner", convert={"delete_files": 2})
    make(service, "outer", convert={"delete_files": 3, "deletes": 3})
    assert attach(service, "inner", "namespace", catalog="local", namespace=["a", "b"]) == 200
    assert attach(service, "outer", "namespace", catalog="local", namespace=["a"]) == 200
    found = service.admin.get(f"/tables/{table['id']}/policy").json()
    convert = found["effective"]["convert"]
    assert (found["policy"], convert["delete_files"], convert["deletes"]) == ("inner", 2, 3)


def test_resources_are_bounded_by_what_the_operator_allows(
    settings: Settings, iceberg: IcebergCatalog
) -> None:
    bounds = {"max_tasks_per_job": 16, "max_memory_fraction": 0.5}
    with running(settings.model_copy(update=bounds)) as service:
        service.register(iceberg)
        greedy = {"resources": {"max_tasks": 17, "memory_fraction": 0.6}}
        refused = service.admin.post("/policies", json={"name": "greedy", "settings": greedy})
        assert refused.status_code == 422
        assert refused.json()["type"].endswith("policy-out-of-bounds")
        assert refused.json()["errors"] == [
            {
                "field": "body.settings.resources.max_tasks",
                "message": "resources.max_tasks (17) is above 16, which ICESTREAM_MAX_TASKS_PER_JOB allows",
            },
            {
                "field": "body.settings.resources.memory_fraction",
                "message": "resources.memory_fraction (0.6) is above 0.5, "
                "which ICESTREAM_MAX_MEMORY_FRACTION allows",
            },
        ]
        make(service, "modest", resources={"max_tasks": 4})
        change = {"settings": greedy}
        always = {"If-Match": "*"}
        assert service.admin.patch("/policies/modest", json=change, headers=always).status_code == 422
        worker = service.start_worker()
        table = service.enroll()
        for policy, tasks in ((None, 16), ("modest", 4)):
            assert attach(service, policy, "table", table_id=table["id"]) == 200
            service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"})
            claimed = service.claim(worker)
            assert claimed is not None
            resources = Assignment.model_validate(claimed).policy.resources
            # Whatever a policy says, the bound holds: 0 tasks are as many as are allowed.
            assert (resources.max_tasks, resources.memory_fraction) == (tasks, 0.5)
            took = {"stages": [{"name": "plan", "seconds": 1.5}], "rows": 7, "bytes": 9}
            service.finish(claimed, status="failed", **took)
            (attempt,) = service.admin.get(f"/jobs/{claimed['job']['id']}").json()["attempts"]
            (stage,) = attempt["stages"]
            told = (stage["name"], stage["seconds"], attempt["rows"], attempt["bytes"])
            assert told == ("plan", 1.5, 7, 9)
            assert attempt["seconds"] >= 0
