"""What a user is told when something that was named is not there, or not what it was said to be."""

import shutil
from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder
from tests.integration.icestream import Icestream, Json

# By the service alone, with every change: tests/service/test_tables.py, test_catalogs.py and test_egress.py.
pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


@pytest.fixture
def table(spark: SparkSession, registered: Catalog) -> TableBuilder:
    table = TableBuilder.create(spark, f"{registered.name}.db.t", "id bigint")
    table.append([{"id": 1}, {"id": 2}])
    table.delete_keys([{"id": 1}])
    return table


def _enroll(icestream: Icestream, catalog: Catalog, identifier: list[str], **more: object) -> httpx.Response:
    return icestream.http.post(
        "/tables", json={"catalog": catalog.name, "identifier": identifier, "policy": "manual", **more}
    )


def _problem(response: httpx.Response, status: int, kind: str) -> Json:
    """Return the problem document, which names its kind, the cause and the remedy."""
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    problem: Json = response.json()
    assert (problem["status"], problem["type"]) == (status, f"/problems/{kind}")
    assert problem["title"]
    assert problem["remedy"]
    return problem


def test_catalog_that_cannot_be_reached_is_named_with_the_cause(icestream: Icestream, tmp_path: Path) -> None:
    nowhere = Catalog("nowhere", tmp_path / "missing" / "catalog.db", tmp_path.as_uri())
    response = icestream.http.post(
        "/catalogs", json={"name": nowhere.name, "type": "sql", "properties": nowhere.properties}
    )
    assert response.is_success, response.text
    check = icestream.http.post(f"/catalogs/{response.json()['id']}/check")
    assert str(nowhere.database) in check.text
    problem = _problem(_enroll(icestream, nowhere, ["db", "t"]), 502, "catalog-unreachable")
    assert nowhere.name in problem["detail"]
    assert str(nowhere.database) in problem["detail"]


def test_catalog_outside_the_allowed_places_is_refused(icestream: Icestream) -> None:
    elsewhere = Catalog("elsewhere", Path("/var/lib/catalog.db"), "file:///var/lib/warehouse")
    response = icestream.http.post(
        "/catalogs", json={"name": elsewhere.name, "type": "sql", "properties": elsewhere.properties}
    )
    problem = _problem(response, 422, "location-not-allowed")
    assert "ICESTREAM_ALLOWED_LOCATIONS" in problem["remedy"]


def test_unknown_table_is_answered_with_the_nearest_name(
    icestream: Icestream, registered: Catalog, table: TableBuilder
) -> None:
    problem = _problem(_enroll(icestream, registered, ["db", "tt"]), 422, "table-not-found")
    assert "db.tt" in problem["detail"]
    assert problem["nearest"] == ["db.t"]


def test_unknown_catalog_branch_and_column_are_named(
    icestream: Icestream, registered: Catalog, table: TableBuilder
) -> None:
    response = icestream.http.post("/tables", json={"catalog": "lakee", "identifier": ["db", "t"]})
    assert "lakee" in _problem(response, 422, "catalog-not-found")["detail"]
    response = _enroll(icestream, registered, ["db", "t"], branch="audit")
    assert "audit" in _problem(response, 422, "branch-not-found")["detail"]
    response = _enroll(icestream, registered, ["db", "t"], key_sets=[["idd"]])
    assert "idd" in _problem(response, 422, "invalid-key-set")["detail"]


@pytest.mark.parametrize("identifier", [[], ["t"], ["db", ""]])
def test_identifier_that_names_no_table_is_refused(
    identifier: list[str], icestream: Icestream, registered: Catalog
) -> None:
    problem = _problem(_enroll(icestream, registered, identifier), 422, "validation-error")
    assert "identifier" in problem["detail"]


def test_job_of_a_dropped_table_fails_and_names_the_table(
    spark: SparkSession, icestream: Icestream, registered: Catalog, table: TableBuilder
) -> None:
    table_id = icestream.enroll(registered, "db.t")
    spark.sql(f"DROP TABLE {table.identifier}")
    job = icestream.wait_for_job(icestream.submit(table_id, "convert"))
    assert (job["status"], job["error"]["code"]) == ("failed", "table_not_found")
    assert "db.t" in job["error"]["detail"]
    assert len(job["attempts"]) == 1, "another attempt can't help"


def test_job_tries_again_when_its_catalog_is_unreachable_and_recovers_with_it(
    icestream: Icestream, registered: Catalog, table: TableBuilder
) -> None:
    policy = {"retries": {"max_attempts": 2, "backoff_seconds": 0.1}}
    icestream.post("/policies", {"name": "impatient", "settings": policy})
    table_id = icestream.enroll(registered, "db.t", policy="impatient")
    away = registered.database.with_suffix(".away")
    registered.database.rename(away)
    registered.database.mkdir()

    job = icestream.wait_for_job(icestream.submit(table_id, "convert"))
    assert (job["status"], job["error"]["code"]) == ("failed", "catalog_unreachable")
    assert registered.name in job["error"]["detail"]
    assert [attempt["status"] for attempt in job["attempts"]] == ["failed", "failed"]

    shutil.rmtree(registered.database)
    away.rename(registered.database)
    retried = icestream.wait_for_job(icestream.post(f"/jobs/{job['id']}/retry", {})["id"])
    assert (retried["status"], retried["retry_of"]) == ("succeeded", job["id"])
    assert retried["result"]["rows_deleted"] == 1
