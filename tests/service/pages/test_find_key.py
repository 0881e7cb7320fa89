"""Where a key's rows are and since when, as a person asks on the page of a table."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.records.api_keys import Role
from service.settings import Settings
from tests.service.conftest import ADMIN_KEY, Running, listening, running, with_lookup_server
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Person
from worker.lookup_server.app import create_app
from worker.query import places

TOKEN = "a-token-of-these-tests"


@pytest.fixture(scope="module")
def iceberg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergCatalog]:
    catalog = IcebergCatalog(tmp_path_factory.mktemp("find"))
    catalog.create()
    catalog.append("db.t", [1, 2, 3])
    catalog.delete_keys("db.t", [2])
    yield catalog
    catalog.close()


@pytest.fixture(scope="module")
def service(iceberg: IcebergCatalog, migrated_sqlite: Path) -> Iterator[Running]:
    """With a lookup server, other than that of the other tests of pages."""
    database = iceberg.directory / "icestream.db"
    database.write_bytes(migrated_sqlite.read_bytes())
    settings = Settings(
        data_dir=iceberg.directory,
        database_url=f"sqlite:///{database}",
        bootstrap_key=ADMIN_KEY,
        background=False,
    )
    with listening(create_app(TOKEN)) as url, running(with_lookup_server(settings, url, TOKEN)) as service:
        service.register(iceberg)
        yield service


@pytest.fixture(scope="module")
def table(service: Running) -> str:
    return f"/tables/{service.enroll(key_sets=[['id'], ['region', 'id']])['id']}"


@pytest.fixture
def person(service: Running, table: str) -> Iterator[Person]:
    """Somebody on the page of the table, who may only look."""
    with Person(service, Role.VIEWER) as person:
        person.open(table)
        yield person


def test_a_key_is_found_from_the_page_of_its_table(
    person: Person, table: str, iceberg: IcebergCatalog
) -> None:
    page = person.send(f"{table}/find", value_0="3", select="region")
    assert (page.status, page.path) == (200, f"{table}/find")
    assert f"Rows with id = 3 In snapshot {iceberg.head('db.t')}" in page.text
    told = page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert "The index answered for 0 data files; 1 other with 3 rows was scanned." in told
    assert "live eu " in page.text
    assert "History the newest first" not in page.text
    # The form is there for the next one, and knows types now.
    assert dict(page.form(f"{table}/find").fields)["value_0"] == "3"
    assert "long: a whole number" in page.text
    assert "deleted by an equality delete" in person.send(f"{table}/find", value_0="2").text
    assert "No row has this key, live or deleted." in person.send(f"{table}/find", value_0="9").text


def test_the_history_of_a_key_says_what_each_snapshot_did(person: Person, table: str) -> None:
    page = person.send(f"{table}/find", value_0="2", snapshots="10")
    assert dict(page.form(f"{table}/find").fields)["snapshots"] == "10"
    history = page.text.partition("History the newest first")[2]
    assert "overwrite Deleted" in history
    assert "append Appeared" in history
    assert "The table had no snapshot before these." in history


def test_another_key_of_the_table_is_chosen_by_a_link_that_holds_no_value(person: Person, table: str) -> None:
    page = person.follow("region, id")
    assert page.path == f"{table}/find?key_set=1"
    assert "string: spaces count" in page.text
    page = person.send(f"{table}/find", value_0="eu", value_1="1")
    assert "Rows with id = 1 , region = eu" in page.text
    assert " live " in page.text
    assert "No row has this key" in person.send(f"{table}/find", value_0=" eu", value_1="1").text
    assert dict(person.page.form(f"{table}/find").fields)["value_0"] == " eu"
    assert "No row has this key" in person.send(f"{table}/find", null_0="true", value_1="1").text
    assert "region = null" in person.page.text


@pytest.mark.parametrize(
    ("typed", "status", "words"),
    [
        ({"value_0": "one"}, 422, "column id is of type long"),
        ({"snapshot_id": "the last"}, 422, "Snapshot"),
        ({"snapshot_id": "7"}, 404, "no snapshot 7"),
        ({"branch": "dev"}, 404, "no branch or tag"),
        ({"branch": "main", "snapshot_id": "7"}, 422, "either a branch or tag, or a snapshot"),
        ({"select": "region, town"}, 422, "town"),
    ],
)
def test_a_question_that_cannot_be_answered_stays_as_it_was_typed(
    person: Person, table: str, typed: dict[str, str], status: int, words: str
) -> None:
    page = person.send(f"{table}/find", **{"value_0": "3"} | typed)
    assert page.status == status
    assert words in page.text
    fields = dict(page.form(f"{table}/find").fields)
    assert {name: fields[name] for name in typed} == typed
    assert 'aria-invalid="true"' in page.html


def test_a_table_that_is_not_indexed_leads_to_an_index_job(
    person: Person, service: Running, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "SCANNED_ROWS", 2)
    page = person.send(f"{table}/find", value_0="3")
    assert page.status == 409
    assert "Run a job of kind" in page.text
    assert not page.offers(f"{table}/jobs")  # of who may not ask for one
    with Person(service, Role.OPERATOR) as operator:
        operator.open(f"{table}/find")
        operator.send(f"{table}/find", value_0="3")
        assert operator.send(f"{table}/jobs", {"kind": "index"}).path.startswith("/jobs/")


def test_values_of_keys_are_in_no_address_log_or_audit_entry(
    person: Person, service: Running, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        person.send(f"{table}/find", value_0="717171")
        person.send(f"{table}/find", value_0="seven171717")
    assert person.page.status == 422
    assert person.page.path == f"{table}/find"
    assert "71717" not in caplog.text
    entries = service.admin.get("/audit", params={"action": "table.look_up"})
    assert entries.json()["items"][0]["fields"] == {"keys": 1, "snapshots": 1}
    assert "71717" not in service.admin.get("/audit").text


def test_a_form_of_another_site_finds_nothing(person: Person, table: str) -> None:
    answer = person.http.post(
        f"{table}/find", data={"column_0": "id", "value_0": "3"}, headers={"Origin": "http://other.example"}
    )
    assert answer.status_code == 403


def test_a_catalog_that_does_not_answer_is_told_on_the_form(
    person: Person, service: Running, table: str, iceberg: IcebergCatalog
) -> None:
    away = iceberg.directory / "away.db"
    (iceberg.directory / "cat.db").rename(away)
    try:
        page = person.send(f"{table}/find", value_0="3")
        assert dict(page.form(f"{table}/find").fields)["value_0"] == "3"
        for shown in (page, person.open(f"{table}/find")):
            assert shown.status == 502
            assert "The catalog could not be read" in shown.text
    finally:
        away.rename(iceberg.directory / "cat.db")


def test_without_lookup_servers_the_page_says_how_to_start_one(
    service: Running, table: str, iceberg: IcebergCatalog
) -> None:
    alone = service.settings.model_copy(update={"lookup_url": ""})
    with running(alone) as other, Person(other, Role.VIEWER) as person:
        for path in (table, f"{table}/find"):
            page = person.open(path)
            assert page.status == 200
            assert "Start icestream lookup" in page.text
            assert not page.offers(f"{table}/find")
        assert person.post(f"{table}/find", column_0="id", value_0="3").status == 409
