"""A table with a staging branch: what is taken for staged, what is done about it, and what is told."""

import re
from typing import Any

import httpx
import pytest
from sqlmodel import select

from service.records.webhooks import Webhook, WebhookDelivery
from staging.history import (
    BRANCH,
    CLEARED,
    SNAPSHOT_ID,
    TARGET,
    TARGET_SEQUENCE_NUMBER,
    TARGET_SNAPSHOT_ID,
)
from tests.browser.running_service import index_report
from tests.service.conftest import ON_BOTH, Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog

# What is staged is told from metadata, not by SQL.
database_kind = alike_on_both

FROM_INGEST = {"from": "ingest"}


@pytest.fixture
def local(service: Running, iceberg: IcebergCatalog) -> Running:
    """With a table `db.t` that has a row on main, from which the branch `ingest` starts."""
    service.register(iceberg)
    iceberg.append("db.t", [1])
    branch(iceberg, "ingest")
    return service


def branch(iceberg: IcebergCatalog, name: str) -> None:
    table = iceberg.catalog.load_table("db.t")
    table.manage_snapshots().create_branch(iceberg.head("db.t"), name).commit()


def stage(iceberg: IcebergCatalog, *keys: int) -> int:
    """A snapshot of the staging branch that deletes some keys; its id."""
    iceberg.delete_keys("db.t", list(keys), branch="ingest")
    return iceberg.catalog.load_table("db.t").metadata.refs["ingest"].snapshot_id


def publish_up_to(iceberg: IcebergCatalog, snapshot_id: int) -> None:
    """As a worker's commit says it; its rows don't matter here."""
    table = iceberg.catalog.load_table("db.t")
    rows = table.scan().to_arrow()
    told = {BRANCH: "ingest", SNAPSHOT_ID: str(snapshot_id)}
    table.append(rows, snapshot_properties=told)


def patch(service: Running, path: str, body: dict[str, Any]) -> httpx.Response:
    return service.admin.patch(path, json=body, headers={"If-Match": "*"})


def health(service: Running, table: dict[str, Any]) -> dict[str, Any]:
    """As of now."""
    service.poll(table["id"])
    return dict(service.admin.get(f"/tables/{table['id']}/health").json())


def queued(service: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.admin.get("/jobs?kind=publish&status=queued").json()["items"]
    return found


def oldest_staged_age(service: Running) -> float:
    """As the metrics have it, and so the alert."""
    metrics = service.admin.get(f"{service.url}/metrics").text
    (age,) = re.findall(r"^icestream_oldest_staged_age_seconds (\S+)$", metrics, re.MULTILINE)
    return float(age)


def staged_of(found: dict[str, Any]) -> tuple[int, int]:
    return found["staged_snapshots"], found["staged_rows"]


@ON_BOTH
def test_what_is_staged_is_published_by_a_job_of_the_policy(local: Running, iceberg: IcebergCatalog) -> None:
    body = {"name": "fresh", "settings": {"publish": {"age_seconds": 0}}}
    assert local.admin.post("/policies", json=body).status_code == 201
    table = local.enroll(publish=FROM_INGEST, policy="fresh")
    assert table["publish"] == FROM_INGEST
    before = health(local, table)
    assert (staged_of(before), before["decisions"]["publish"]["code"]) == ((0, 0), "nothing-staged")
    assert queued(local) == []

    first = stage(iceberg, 1, 2)
    second = stage(iceberg, 3)
    found = health(local, table)
    assert staged_of(found) == (2, 3)
    assert found["staged_age_seconds"] > 0
    assert (found["status"], found["status_reason"]) == (
        "healthy",
        "2 staged snapshots, as the policy allows.",
    )
    (job,) = queued(local)
    assert job["parameters"] == FROM_INGEST
    assert "the oldest staged snapshot is" in job["trigger"].lower()

    publish_up_to(iceberg, first)
    assert staged_of(health(local, table)) == (1, 1)
    publish_up_to(iceberg, second)
    done = health(local, table)
    assert (staged_of(done), done["staged_age_seconds"]) == ((0, 0), 0)


def test_a_stream_without_changes_has_nothing_that_waits(local: Running, iceberg: IcebergCatalog) -> None:
    """Flink commits empty checkpoints now and then. What waits is published with them as before."""
    body = {"name": "fresh", "settings": {"publish": {"age_seconds": 0}}}
    assert local.admin.post("/policies", json=body).status_code == 201
    table = local.enroll(publish=FROM_INGEST, policy="fresh")
    lake = iceberg.catalog.load_table("db.t")
    lake.append(lake.scan().to_arrow()[:0], {"flink.job-id": "j"}, branch="ingest")

    idle = health(local, table)
    assert (staged_of(idle), idle["staged_age_seconds"]) == ((0, 0), 0)
    assert queued(local) == []
    stage(iceberg, 1)
    assert staged_of(health(local, table)) == (1, 1)
    assert len(queued(local)) == 1


def test_a_branch_of_empty_checkpoints_begins_anew_by_a_job_of_the_policy(
    local: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No publication would come to do it. One that could not is followed by the next after a pause."""
    monkeypatch.setattr("service.scheduling.decisions.KEPT", 2)
    table = local.enroll(publish=FROM_INGEST)
    lake = iceberg.catalog.load_table("db.t")
    lake.append(lake.scan().to_arrow()[:0], {"flink.job-id": "j"}, branch="ingest")
    iceberg.upgrade_to_v3("db.t")

    found = health(local, table)

    assert (staged_of(found), found["kept_snapshots"]) == ((0, 0), 3)
    assert found["decisions"]["publish"]["code"] == "kept-snapshots"
    assignment = local.claim(local.start_worker())
    assert assignment is not None
    result = {"staging_branch": "ingest", "staged_snapshots": 1, "commits": 0, "renewed": False}
    report = index_report() | {"iceberg_snapshot_id": iceberg.head("db.t")}
    local.finish(assignment, result=result, health=report)
    assert health(local, table)["decisions"]["publish"]["action"] == "backoff"


def test_a_table_without_a_staging_branch_is_told_nothing_of_any(
    local: Running, iceberg: IcebergCatalog
) -> None:
    table = local.enroll()
    stage(iceberg, 1)
    found = health(local, table)
    assert table["publish"] is None
    assert staged_of(found) == (0, 0)
    assert "publish" not in found["decisions"]


def test_a_job_publishes_the_branch_of_the_enrolment_and_no_other(local: Running) -> None:
    table = local.enroll(publish=FROM_INGEST, policy="manual")
    path = f"/tables/{table['id']}/jobs"
    job = local.admin.post(path, json={"kind": "publish"}).json()
    assert job["parameters"] == FROM_INGEST
    local.admin.post(f"/jobs/{job['id']}/cancel")
    after = local.admin.post(path, json={"kind": "publish", "parameters": {"after": 7, "skip": 8}}).json()
    assert after["parameters"] == {"from": "ingest", "after": 7, "skip": 8}
    local.admin.post(f"/jobs/{after['id']}/cancel")
    for source in ("main", "other", "ingest"):
        other = local.admin.post(path, json={"kind": "publish", "parameters": {"from": source}})
        assert (other.status_code, other.json()["errors"][0]["field"]) == (422, "body.parameters.from")

    patch(local, f"/tables/{table['id']}", {"publish": {"from": "renamed"}})
    retried = local.admin.post(f"/jobs/{job['id']}/retry")
    assert (retried.status_code, retried.json()["type"]) == (409, "/problems/job-not-retryable")
    patch(local, f"/tables/{table['id']}", {"publish": FROM_INGEST})
    assert local.admin.post(f"/jobs/{job['id']}/retry").json()["parameters"] == FROM_INGEST


@ON_BOTH
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"publish": FROM_INGEST}, {"branch": "ingest"}),
        ({"branch": "ingest"}, {"publish": FROM_INGEST}),
        ({"publish": FROM_INGEST}, {"branch": "other", "publish": FROM_INGEST}),
    ],
)
def test_a_staging_branch_is_published_by_one_enrolment_and_converted_by_none(
    local: Running, iceberg: IcebergCatalog, first: dict[str, Any], second: dict[str, Any]
) -> None:
    branch(iceberg, "other")
    body = {"catalog": "local", "identifier": ["db", "t"]}
    table = local.enroll(**first)
    refused = local.admin.post("/tables", json=body | second)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/staging-branch-in-use")
    assert refused.json()["table_id"] == table["id"]
    if "branch" in second and "publish" in second:
        made = local.enroll(branch="other")
        changed = patch(local, f"/tables/{made['id']}", {"publish": FROM_INGEST})
        assert (changed.status_code, changed.json()["type"]) == (409, "/problems/staging-branch-in-use")


def test_a_branch_is_not_published_on_itself(local: Running, iceberg: IcebergCatalog) -> None:
    branch(iceberg, "dev")
    body = {"catalog": "local", "identifier": ["db", "t"], "branch": "dev", "publish": {"from": "dev"}}
    refused = local.admin.post("/tables", json=body)
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/no-staging-branch")


def test_main_is_never_a_staging_branch_since_readers_would_lose_it(
    local: Running, iceberg: IcebergCatalog
) -> None:
    branch(iceberg, "dev")
    table = local.enroll(branch="dev")
    body = {"catalog": "local", "publish": {"from": "main"}}
    refused = [
        local.admin.post("/tables", json=body | {"identifier": ["db", "t"], "branch": "ingest"}),
        local.admin.post("/patterns", json=body | {"pattern": "db.*"}),
        patch(local, f"/tables/{table['id']}", {"publish": {"from": "main"}}),
    ]
    for answer in refused:
        assert answer.status_code == 422
        told = {error["field"]: error["message"] for error in answer.json()["errors"]}
        assert "name the one that the writer commits to" in told["body.publish.from"]
    none = patch(local, f"/tables/{table['id']}", {"publish": {"from": "none"}})
    assert "leave the name empty" in none.json()["errors"][0]["message"], "pages would take it for no branch"


def test_a_staging_branch_is_set_up_later_and_taken_back_with_its_jobs(
    local: Running, iceberg: IcebergCatalog
) -> None:
    table = local.enroll()
    path = f"/tables/{table['id']}"
    stage(iceberg, 1)
    assert patch(local, path, {"publish": FROM_INGEST}).json()["publish"] == FROM_INGEST
    assert staged_of(health(local, table)) == (1, 1)
    job = local.admin.post(f"{path}/jobs", json={"kind": "publish"}).json()

    for left in ({"publish": None}, {"publish": {"from": "other"}}):
        refused = patch(local, path, left).json()
        assert (refused["type"], refused["staged_snapshots"]) == ("/problems/staged-rows-left", 1)
        assert "1 snapshot with 1 row and row-level deletes" in refused["detail"]
    assert patch(local, path, {"publish": FROM_INGEST, "policy": "manual"}).status_code == 200
    assert patch(local, f"{path}?leave_staged=true", {"publish": None}).json()["publish"] is None

    assert local.admin.get(f"/jobs/{job['id']}").json()["status"] == "cancelled"
    left = local.admin.get(f"{path}/health").json()
    assert (staged_of(left), left["staged_age_seconds"]) == ((0, 0), 0)
    assert "publish" not in health(local, table)["decisions"]
    patch(local, path, {"publish": FROM_INGEST})
    health(local, table)
    removed = local.admin.delete(path)
    assert (removed.status_code, removed.json()["type"]) == (409, "/problems/staged-rows-left")
    told = [event["message"] for event in local.admin.get(f"{path}/events").json()["items"]]
    assert any("Staging branch: ingest, formerly none." in message for message in told)
    waited = "1 snapshot with 1 row and row-level deletes"
    left_there = f"Staging branch: none, formerly ingest. Left there unpublished: {waited}."
    assert any(left_there in message for message in told)
    assert local.admin.delete(f"{path}?leave_staged=true").status_code == 204


def test_a_pattern_enrols_tables_with_their_staging_branch(local: Running, iceberg: IcebergCatalog) -> None:
    iceberg.create("db.u")
    once = {"catalog": "local", "pattern": "db.t", "publish": FROM_INGEST}
    (made,) = local.admin.post("/tables/enroll-by-pattern", json=once).json()["enrolled"]
    assert made["publish"] == FROM_INGEST
    standing = local.admin.post("/patterns", json=once | {"pattern": "db.*"}).json()
    assert standing["publish"] == FROM_INGEST
    local.background.patterns.run(standing["id"])
    found = {one["name"]: one["publish"] for one in local.admin.get("/tables").json()["items"]}
    assert found == {"db.t": FROM_INGEST, "db.u": FROM_INGEST}


def test_a_pattern_enrols_tables_under_a_policy_that_names_their_staging_branch(
    local: Running, iceberg: IcebergCatalog
) -> None:
    """What one had there before waits for a person; and a detachment leaves it if told so."""
    policy(local, "staged", **FROM_INGEST, age_seconds=0)
    assert attach(local, "staged", level="namespace", namespace=["db"]).status_code == 200
    stage(iceberg, 1)
    standing = {"catalog": "local", "pattern": "db.*"}
    local.background.patterns.run(local.admin.post("/patterns", json=standing).json()["id"])
    (table,) = local.admin.get("/tables").json()["items"]
    assert (table["publish"], table["staging_branch"]) == (None, "ingest")
    assert health(local, table)["stopped_at"]["code"] == "staged_before_policy"

    place: dict[str, Any] = {"level": "namespace", "namespace": ["db"]}
    assert attach(local, None, **place).json()["type"] == "/problems/staged-rows-left"
    assert attach(local, None, "true", **place).status_code == 200
    assert local.admin.get(f"/tables/{table['id']}").json()["staging_branch"] is None


def policy(service: Running, name: str, **publish: Any) -> str:
    body = {"name": name, "settings": {"publish": publish}}
    return str(service.admin.post("/policies", json=body).json()["id"])


def attach(service: Running, name: str | None, leave_staged: str = "false", **place: Any) -> httpx.Response:
    """Of the catalog, if no other place is named."""
    body = {"level": "catalog", "catalog": "local"} | place | {"policy": name}
    return service.admin.put("/policy-attachments", json=body, params={"leave_staged": leave_staged})


@ON_BOTH
def test_a_policy_names_the_staging_branch_of_tables_that_do_not(
    local: Running, iceberg: IcebergCatalog
) -> None:
    iceberg.create("db.own")
    iceberg.create("db.none")
    before = local.enroll()
    own = local.enroll("db.own", publish={"from": "flink"})
    none = local.enroll("db.none", publish={"from": ""})
    assert before["staging_branch"] is None
    policy(local, "staged", **FROM_INGEST, age_seconds=0)
    assert attach(local, "staged").status_code == 200
    listed = local.admin.get("/tables").json()["items"]
    found = {one["name"]: (one["publish"], one["staging_branch"]) for one in listed}
    assert found == {
        "db.t": (None, "ingest"),
        "db.own": ({"from": "flink"}, "flink"),
        "db.none": ({"from": ""}, None),
    }

    assert staged_of(health(local, before)) == (0, 0)
    stage(iceberg, 1, 2)
    assert staged_of(health(local, before)) == (1, 2)
    (job,) = queued(local)
    assert job["parameters"] == FROM_INGEST
    assignment = local.claim(local.start_worker())
    assert assignment is not None
    assert assignment["table"]["staging_branch"] == "ingest"
    assert "publish" not in health(local, none)["decisions"]

    told = {}
    for table in (before, own, none):
        explained = local.admin.get(f"/tables/{table['id']}/policy").json()
        source = explained["values"]["publish.from"]["source"]
        told[table["name"]] = (explained["effective"]["publish"]["from"], source["policy"], source["place"])
    assert told == {
        "db.t": ("ingest", "staged", "catalog local"),
        "db.own": ("flink", None, "enrolment of table db.own"),
        "db.none": ("", None, "enrolment of table db.none"),
    }
    assert (
        "publish.from = flink: from the enrolment of table db.own."
        in (local.admin.get(f"/tables/{own['id']}/policy").json()["explanation"])
    )


def test_what_a_branch_had_before_a_policy_named_it_is_published_once_somebody_asks(
    local: Running, iceberg: IcebergCatalog
) -> None:
    policy(local, "staged", **FROM_INGEST, age_seconds=0)
    table = local.enroll()
    path = f"/tables/{table['id']}"
    last = stage(iceberg, 1)
    assert attach(local, "staged").status_code == 200

    for _ in range(2):
        found = health(local, table)
        assert (found["status"], found["stopped_at"]["code"]) == ("blocked", "staged_before_policy")
        assert "ingest had snapshots at the first look since a policy names it" in found["status_reason"]
        assert queued(local) == []
        last = stage(iceberg, 2)

    assert patch(local, path, {"publish": FROM_INGEST}).status_code == 200, "that is an answer, too"
    assert health(local, table)["stopped_at"] is None
    patch(local, f"{path}?leave_staged=true", {"publish": {"from": ""}})
    assert patch(local, path, {"publish": None}).json()["staging_branch"] == "ingest"
    assert health(local, table)["stopped_at"]["code"] == "staged_before_policy"
    (job,) = queued(local) or [local.admin.post(f"{path}/jobs", json={"kind": "publish"}).json()]
    assert job["trigger"] == "request"
    publish_up_to(iceberg, last)
    local.admin.post(f"/jobs/{job['id']}/cancel")
    assert health(local, table)["stopped_at"] is None
    stage(iceberg, 3)
    assert health(local, table)["decisions"]["publish"]["action"] == "trigger"


def test_no_change_of_a_policy_leaves_staged_rows_behind_by_accident(
    local: Running, iceberg: IcebergCatalog
) -> None:
    changed = policy(local, "staged", **FROM_INGEST)
    policy(local, "elsewhere", **{"from": "other"})
    attach(local, "staged")
    table = local.enroll()
    stage(iceberg, 1)
    health(local, table)
    job = local.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "publish"}).json()
    without = {"settings": {"publish": {"age_seconds": 0}}}
    path = f"/tables/{table['id']}"
    refused = [
        patch(local, f"/policies/{changed}", without),
        patch(local, f"/policies/{changed}", {"settings": {"publish": {"from": "other"}}}),
        attach(local, None),
        attach(local, "elsewhere"),
        attach(local, "elsewhere", level="table", catalog=None, table_id=table["id"]),
        patch(local, path, {"policy": "elsewhere"}),
        patch(local, path, {"publish": {"from": ""}}),
    ]
    assert {(one.status_code, one.json()["type"]) for one in refused} == {(409, "/problems/staged-rows-left")}
    assert {one.json()["staged_snapshots"] for one in refused} == {1}
    # What changes nothing about it goes on: the table says itself what its policy said.
    assert patch(local, path, {"publish": FROM_INGEST}).status_code == 200
    assert patch(local, path, {"publish": None}).json()["staging_branch"] == "ingest"
    faster = {"settings": {"publish": FROM_INGEST | {"age_seconds": 0}}}
    assert patch(local, f"/policies/{changed}", faster).status_code == 200
    assert local.admin.get(f"/jobs/{job['id']}").json()["status"] == "queued"

    with local.database.write() as session:
        session.add(
            Webhook(
                name="all", url="https://hooks.example/", kinds=["table"], secret="env:HOOK", created_by="n"
            )
        )
    assert patch(local, f"/policies/{changed}?leave_staged=true", without).status_code == 200

    with local.database.read() as session:
        assert session.exec(select(WebhookDelivery.kind)).all() == ["table.changed"]
    event = local.admin.get(f"{path}/events?kind=table.changed").json()["items"][-1]
    waited = "1 snapshot with 1 row and row-level deletes"
    assert event["message"].endswith(
        f"changed policy 'staged'. Staging branch: none, formerly ingest. Left there unpublished: {waited}."
    )
    assert event["fields"] == {
        "staging_branch": None,
        "former_staging_branch": "ingest",
        "left_staged": waited,
    }
    entries = local.admin.get("/audit?action=policy.update").json()["items"]
    assert any(entry["fields"].get("leave_staged") for entry in entries)
    left = local.admin.get(f"{path}/health").json()
    assert (staged_of(left), left["staged_age_seconds"]) == ((0, 0), 0)
    assert local.claim(local.start_worker()) is None, "nobody publishes that branch any more"
    assert local.admin.get(f"/jobs/{job['id']}").json()["status"] == "cancelled"


@pytest.mark.parametrize("sees", ["its worker", "a look at the table"])
def test_a_running_publication_stops_once_a_policy_names_another_branch(
    local: Running, iceberg: IcebergCatalog, sees: str
) -> None:
    """Its worker asks before each commit, so nothing follows, whether or not the catalog can be reached."""
    changed = policy(local, "staged", **FROM_INGEST)
    attach(local, "staged")
    table = local.enroll()
    job = local.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "publish"}).json()
    assignment = local.claim(local.start_worker())
    assert assignment is not None
    beat = f"/jobs/{job['id']}/attempts/{assignment['attempt']}/heartbeat"
    assert not local.admin.post(beat, json={}).json()["cancel_requested"]
    other = {"settings": {"publish": {"from": "other"}}}
    assert patch(local, f"/policies/{changed}", other).status_code == 200

    if sees == "its worker":
        assert local.admin.post(beat, json={}).json()["cancel_requested"]
    else:
        health(local, table)

    assert local.admin.get(f"/jobs/{job['id']}").json()["cancel_requested"]


def test_a_queued_job_of_the_former_branch_gives_way_to_a_request(local: Running) -> None:
    changed = policy(local, "staged", **FROM_INGEST)
    attach(local, "staged", level="system", catalog=None)
    path = f"/tables/{local.enroll()['id']}/jobs"
    former = local.admin.post(path, json={"kind": "publish"}).json()
    attach(local, "staged", level="namespace", namespace=["db"])
    assert attach(local, "standard", level="system", catalog=None).status_code == 200
    other = {"settings": {"publish": {"from": "other"}}}
    assert patch(local, f"/policies/{changed}", other).status_code == 200

    asked = local.admin.post(path, json={"kind": "publish"})

    assert (asked.status_code, asked.json()["parameters"]) == (202, {"from": "other"})
    assert local.admin.get(f"/jobs/{former['id']}").json()["status"] == "cancelled"
    retried = local.admin.post(f"/jobs/{former['id']}/retry")
    assert retried.json()["type"] == "/problems/job-not-retryable"
    assert "which the table has no more" in retried.json()["detail"]


@ON_BOTH
def test_a_policy_gives_no_table_a_staging_branch_that_can_not_be_one(
    local: Running, iceberg: IcebergCatalog
) -> None:
    readers = local.admin.post("/policies", json={"name": "x", "settings": {"publish": {"from": "main"}}})
    assert readers.json()["errors"][0]["field"] == "body.settings.publish.from"
    changed = policy(local, "staged", age_seconds=0)
    own = local.enroll(branch="ingest")
    policy(local, "itself", **FROM_INGEST)
    itself = attach(local, "itself")
    assert (itself.status_code, itself.json()["type"]) == (422, "/problems/no-staging-branch")
    assert itself.json()["errors"][0]["field"] == "body.policy"
    attach(local, "staged")
    itself = patch(local, f"/policies/{changed}", {"settings": {"publish": FROM_INGEST}})
    assert itself.json()["errors"][0]["field"] == "body.settings.publish.from"

    patch(local, f"/tables/{own['id']}", {"publish": {"from": ""}})
    body = {"catalog": "local", "identifier": ["db", "t"]}
    assert patch(local, f"/policies/{changed}", {"settings": {"publish": FROM_INGEST}}).status_code == 200
    converted = local.admin.post("/tables", json=body)
    assert (converted.status_code, converted.json()["type"]) == (409, "/problems/staging-branch-in-use")
    assert local.admin.get("/tables").json()["items"] == [local.admin.get(f"/tables/{own['id']}").json()]


def test_what_stops_publication_is_told_until_it_is_no_longer_the_first(
    local: Running, iceberg: IcebergCatalog
) -> None:
    table = local.enroll(publish=FROM_INGEST)
    first, second = stage(iceberg, 1), stage(iceberg, 2)
    health(local, table)
    local.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "publish"})
    assignment = local.claim(local.start_worker())
    assert assignment is not None
    why = {"code": "float_key", "reason": "its key has floats", "remedy": "Delete by another key."}
    stopped = {"snapshot_id": first, **why}
    result = {"staging_branch": "ingest", "staged_snapshots": 0, "stopped_at": stopped}
    local.finish(assignment, result=result)

    found = health(local, table)
    assert (found["status"], found["what_to_do"]) == ("blocked", "Delete by another key.")
    assert (
        found["status_reason"] == f"Nothing is published from staged snapshot {first} on: its key has floats"
    )
    assert found["stopped_at"] == stopped
    assert found["decisions"]["publish"]["action"] == "backoff"
    assert queued(local) == []

    publish_up_to(iceberg, first)
    again = health(local, table)
    assert (again["stopped_at"], again["status"]) == (None, "healthy")
    publish_up_to(iceberg, second)


def test_a_staging_branch_that_can_not_be_told_blocks_the_table_until_it_can(
    local: Running, iceberg: IcebergCatalog
) -> None:
    table = local.enroll(publish=FROM_INGEST)
    fork = iceberg.catalog.load_table("db.t").metadata.refs["ingest"].snapshot_id
    last = stage(iceberg, 1)
    publish_up_to(iceberg, last)
    manage = iceberg.catalog.load_table("db.t").manage_snapshots()
    manage.remove_branch("ingest").commit()
    lost = health(local, table)
    assert (lost["status"], lost["stopped_at"]["code"]) == ("healthy", "staging_branch_not_found")
    assert "it has no branch ingest" in lost["status_reason"]
    assert lost["what_to_do"].startswith("Create the branch")

    manage = iceberg.catalog.load_table("db.t").manage_snapshots()
    manage.create_branch(fork, "ingest").commit()
    assert lost["staged_age_seconds"] == 0
    stopped, later = health(local, table), health(local, table)
    assert staged_of(later) == (0, 0)
    assert later["staged_age_seconds"] > stopped["staged_age_seconds"] >= 0, "since publication has stopped"
    stage(iceberg, 2)
    replaced = health(local, table)
    assert (replaced["status"], replaced["stopped_at"]["code"]) == ("blocked", "staging_branch_replaced")
    assert replaced["decisions"]["publish"]["code"] == "unpublishable"
    assert "`after`" in replaced["what_to_do"]
    assert queued(local) == []
    assert staged_of(replaced) == (1, 1), "what the branch has since the publication"
    assert replaced["staged_age_seconds"] > stopped["staged_age_seconds"]
    assert oldest_staged_age(local) > 0


def test_a_branch_that_would_refuse_flinks_vectors_is_told(local: Running, iceberg: IcebergCatalog) -> None:
    table = local.enroll(publish={"from": "flink"})
    first = iceberg.head("db.t")
    iceberg.append("db.t", [2])
    iceberg.catalog.load_table("db.t").manage_snapshots().remove_branch("ingest").commit()
    left = [one for one in iceberg.metadata("db.t")["snapshots"] if one["snapshot-id"] != first]
    iceberg.rewrite("db.t", {"snapshots": left})  # PyIceberg's expiry takes the parents away, too
    assert "Flink" not in health(local, table)["status_reason"], "with format version 2 it is not refused"

    iceberg.upgrade_to_v3("db.t")
    cut = health(local, table)
    assert cut["status"] == "healthy"
    assert "Flink is refused" in cut["status_reason"]
    assert "it has no branch flink" in cut["status_reason"]
    by_pyiceberg = [one | {"parent-snapshot-id": None} for one in left]
    iceberg.rewrite("db.t", {"snapshots": by_pyiceberg})
    assert "Flink" not in health(local, table)["status_reason"], "Iceberg takes that for the beginning"
    refs = iceberg.metadata("db.t")["refs"]
    iceberg.rewrite("db.t", {"snapshots": left, "refs": refs | {"flink": refs["main"]}})
    assert "Flink" not in health(local, table)["status_reason"], "nobody knows who writes to it"


def test_a_branch_that_keeps_very_many_snapshots_for_flink_is_told_to_be_renewed(
    local: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.index_health.status.KEPT", 2)
    table = local.enroll(publish=FROM_INGEST)
    stage(iceberg, 1)
    last = stage(iceberg, 2)
    iceberg.upgrade_to_v3("db.t")
    assert health(local, table)["kept_snapshots"] == 0, "nobody knows that Flink writes to it"

    snapshots = iceberg.metadata("db.t")["snapshots"]
    for one in snapshots:
        one["summary"] |= {"flink.job-id": "j"} if one["snapshot-id"] == last else {}
    iceberg.rewrite("db.t", {"snapshots": snapshots})

    found = health(local, table)
    assert (found["kept_snapshots"], found["status"]) == (4, "degraded"), "with those of its beginning"
    assert "`renew`" in found["what_to_do"]


def test_a_job_looks_at_each_head_of_which_expiry_has_taken_what_was_published(
    local: Running, iceberg: IcebergCatalog
) -> None:
    """The target may have been rolled back behind it, with nothing staged since that would start one."""
    table = local.enroll(publish=FROM_INGEST)
    first = stage(iceberg, 1)
    publish_up_to(iceberg, first)
    published = iceberg.catalog.load_table("db.t").metadata.snapshots[-1]
    cleared = stage(iceberg, 2)
    iceberg.append("db.t", [3])
    told = {CLEARED: str(first), TARGET: "main", TARGET_SNAPSHOT_ID: str(published.snapshot_id)}
    told |= {TARGET_SEQUENCE_NUMBER: str(published.sequence_number), "operation": "delete"}

    def expire() -> None:
        """All of main but its head."""
        metadata = iceberg.metadata("db.t")
        left = [one for one in metadata["snapshots"] if one["sequence-number"] in (1, 2)]
        left += [one | {"summary": told} for one in metadata["snapshots"] if one["snapshot-id"] == cleared]
        left += [one for one in metadata["snapshots"] if one["snapshot-id"] == iceberg.head("db.t")]
        iceberg.rewrite("db.t", {"snapshots": left, "snapshot-log": []})

    iceberg.append("db.t", [4])
    expire()
    found = health(local, table)
    assert (staged_of(found), found["decisions"]["publish"]["code"]) == ((0, 0), "unproven")
    assignment = local.claim(local.start_worker())
    assert assignment is not None
    result = {"staging_branch": "ingest", "staged_snapshots": 0}
    report = index_report() | {"iceberg_snapshot_id": iceberg.head("db.t")}
    local.finish(assignment, result=result, health=report)
    assert health(local, table)["decisions"]["publish"]["code"] == "nothing-staged"
    assert health(local, table)["status"] == "healthy"

    iceberg.append("db.t", [5])
    iceberg.append("db.t", [6])
    expire()
    assert health(local, table)["decisions"]["publish"]["action"] == "backoff", "each finds nothing to do"
    local.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "publish"})
    assignment = local.claim(local.start_worker())
    assert assignment is not None
    error = {"code": "publication_expired", "title": "It can't be told any more", "detail": "It has expired."}
    local.finish(assignment, status="failed", error=error | {"remedy": "Look.", "retryable": False})
    assert health(local, table)["status"] == "blocked"


def test_what_is_staged_for_longer_than_the_policy_allows_lags(
    local: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = local.enroll(publish=FROM_INGEST, policy="manual")
    stage(iceberg, 1)
    off = health(local, table)
    assert (off["status"], off["what_to_do"]) == (
        "healthy",
        "Request a publish job, or attach the policy `standard`.",
    )
    monkeypatch.setattr("service.index_health.status.PATIENCE_SECONDS", 0)
    body = {"name": "fresh", "settings": {"publish": {"age_seconds": 0}}}
    assert local.admin.post("/policies", json=body).status_code == 201
    patch(local, f"/tables/{table['id']}", {"policy": "fresh"})
    late = health(local, table)
    assert late["status"] == "lagging"
    assert "the policy publishes at 0 s" in late["status_reason"]
    assert "icestream_staged_rows 1.0" in local.admin.get(f"{local.url}/metrics").text
    assert oldest_staged_age(local) > 0
