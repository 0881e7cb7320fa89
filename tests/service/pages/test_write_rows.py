"""Rows are written from the page of a table, a dry run first."""

from collections.abc import Iterator

import pytest

from service.records.api_keys import Role
from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Person


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog) -> Iterator[str]:
    for job in service.admin.get("/jobs?status=queued").json()["items"]:  # of other tests
        service.admin.post(f"/jobs/{job['id']}/cancel")
    iceberg.create("db.written")
    table_id = service.enroll("db.written", key_sets=[["id"]])["id"]
    yield f"/tables/{table_id}"
    service.admin.delete(f"/tables/{table_id}")
    iceberg.catalog.drop_table("db.written")


@pytest.fixture
def person(service: Running, table: str) -> Iterator[Person]:
    with Person(service, Role.OPERATOR) as person:
        person.open(table)
        person.open(person.page.links["Write rows"])
        yield person


def test_what_is_typed_becomes_a_job_that_shows_what_it_did(
    service: Running, person: Person, table: str
) -> None:
    sent = '[{"id": 7, "region": "Ada", "value": null}]'
    page = person.send(f"{table}/write", rows=sent, existing="insert", duplicates="last", dry_run="true")
    assert page.path.startswith("/jobs/")
    assert "Dry run: upsert" in page.text
    assert "Ada" not in page.html

    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert assignment["rows"] == [{"id": 7, "region": "Ada", "value": None}]
    options = {"insert_only": True, "duplicates": "last"}
    assert assignment["job"]["parameters"] == {"rows": 1, "key_columns": ["id"], **options}
    service.finish(
        assignment, result={"dry_run": True, "rows_added": 0, "rows_left_out": 1, "rows_deleted": 0}
    )
    page = person.open(page.path)
    assert "this is what the write would come to" in page.text
    assert "Rows left out 1" in page.text
    assert not any(form.action.endswith("/retry") for form in page.forms)
    assert "would add 0 rows, delete 0 rows" in person.open("/jobs").text


def test_what_is_no_write_comes_back_as_it_was_typed(person: Person, table: str) -> None:
    for typed, told in [("[{]", "no JSON"), ("[]", "at least 1"), ("[1]", "object"), ("{}", "list")]:
        page = person.send(f"{table}/write", rows=typed, kind="delete", dry_run="true")
        assert page.status == 422
        assert told in page.text
        assert dict(page.form(f"{table}/write").fields)["rows"] == typed


@pytest.mark.parametrize("value", ["NaN", "1e999", r'"\u0000"', r'"\ud800"'])
def test_a_value_that_no_database_keeps_is_not_written(person: Person, table: str, value: str) -> None:
    page = person.send(f"{table}/write", rows=f'[{{"id": {value}}}]', kind="delete", dry_run="true")
    assert page.status == 422
    assert page.form(f"{table}/write")


def test_a_form_that_does_not_say_so_writes_nothing(service: Running, person: Person, table: str) -> None:
    person.post(f"{table}/write", rows='[{"id": 7}]', kind="delete")
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert assignment["job"]["dry_run"] is True
    service.finish(assignment, result={"dry_run": True})


def test_who_may_only_look_is_offered_no_write(service: Running, table: str) -> None:
    with Person(service, Role.VIEWER) as viewer:
        assert "Write rows" not in viewer.open(table).links
        assert viewer.open(f"{table}/write").status == 403


def test_files_of_rows_are_named_in_the_form(service: Running, person: Person, table: str) -> None:
    file = f"{service.settings.data_dir}/a.parquet"
    page = person.send(f"{table}/write", files="/etc/passwd", kind="delete", dry_run="true")
    assert (page.status, "outside the places" in page.text) == (422, True)
    person.send(f"{table}/write", files=f" {file}\n\n", kind="delete", dry_run="true")
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert assignment["job"]["parameters"] == {"files": [file], "key_columns": ["id"]}
    service.finish(assignment, result={"dry_run": True})
