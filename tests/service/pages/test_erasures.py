"""Keys are erased from a page, a dry run first; the page of an erasure shows its receipt at a glance."""

from collections.abc import Iterator

import pytest

from service.records.api_keys import Role
from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Person


@pytest.fixture
def tables(service: Running, iceberg: IcebergCatalog) -> Iterator[list[str]]:
    for job in service.admin.get("/jobs?status=queued").json()["items"]:  # of other tests
        service.admin.post(f"/jobs/{job['id']}/cancel")
    names = ["erased.a", "erased.b"]
    for name in names:
        iceberg.create(name)
    ids = [str(service.enroll(name)["id"]) for name in names]
    yield ids
    for table_id, name in zip(ids, names, strict=True):
        service.admin.delete(f"/tables/{table_id}")
        iceberg.catalog.drop_table(name)


@pytest.fixture
def person(service: Running, tables: list[str]) -> Iterator[Person]:
    with Person(service, Role.OPERATOR) as person:
        person.open("/erasures")
        person.open(person.page.links["New erasure"])
        yield person


KEYS = '[{"id": 7, "region": "Ada"}]'


def test_a_dry_run_shows_the_tables_and_the_form_is_sent_again_for_good(
    service: Running, person: Person, tables: list[str]
) -> None:
    page = person.send("/erasures/new", keys=KEYS, pattern="erased.*", note="ticket 4711", dry_run="true")
    assert "A dry run: 2 tables, and nothing was queued" in page.text
    assert "erased.a" in page.text
    page = person.send("/erasures/new", dry_run="false")
    assert page.path.startswith("/erasures/")
    assert "Ada" not in page.html
    assert "ticket 4711" in page.text

    assigned = {}
    while (one := service.claim(service.start_worker())) is not None:
        assigned[".".join(one["table"]["identifier"])] = one
    held = {"holder": "tag", "name": "audit", "snapshot_id": 7, "keys": [0]}
    held |= {"reason": "A tag reaches the file.", "remedy": "Drop the tag."}
    told = {"keys": 1, "looked_at": "2026-03-01T12:00:00Z"}
    service.finish(assigned["erased.a"], result={"erasure": told | {"counts": {"gone": 1}}})
    whole = told | {"counts": {"held": 1}, "held": [held]}
    service.finish(assigned["erased.b"], result={"erasure": whole})

    page = person.open(page.path)
    assert "Keys gone 1" in page.text
    assert "Keys held 1" in page.text
    assert page.text.count("succeeded in part") == 2, "the table and the whole"
    assert "tag audit" in page.text
    assert "Drop the tag." in page.text
    listed = person.open("/erasures").text
    assert "succeeded 1 key erased.* 2 2" in listed
    job = person.open(f"/jobs/{assigned['erased.b']['job']['id']}")
    assert "Keys held 1 of 1" in job.text
    assert not any(form.action.endswith("/retry") for form in job.forms)
    assert "1 key held" in person.open("/jobs?kind=erase").text


def test_a_table_that_would_refuse_is_named_by_the_dry_run(
    service: Running, person: Person, tables: list[str]
) -> None:
    service.admin.post(f"/tables/{tables[1]}/pause")
    page = person.send("/erasures/new", keys=KEYS, tables="erased.a, erased.b", dry_run="true")
    assert "table erased.b is paused" in page.text
    assert "would be refused as a whole because of 1 table" in page.text
    assert 'class="remedy"' not in page.html, "a reason is nothing to do"
    page = person.send("/erasures/new", dry_run="false")
    assert page.status == 409


def test_what_is_no_erasure_comes_back_as_it_was_typed(person: Person) -> None:
    for typed, told in [
        ({"keys": "[{]", "pattern": "a.*"}, "no JSON"),
        ({"keys": KEYS}, "by a pattern"),
        ({"keys": KEYS, "pattern": "nope.*"}, "nope"),
        ({"keys": KEYS, "files": "/a", "pattern": "a.*"}, "from files"),
    ]:
        person.open("/erasures/new")
        page = person.send("/erasures/new", **typed, dry_run="true")
        assert page.status == 422
        assert told in page.text
        assert dict(page.form("/erasures/new").fields)["keys"] == typed["keys"]


def test_a_form_that_does_not_say_so_erases_nothing(service: Running, person: Person) -> None:
    before = service.admin.get("/erasures").json()
    person.post("/erasures/new", keys=KEYS, pattern="erased.*")
    assert service.admin.get("/erasures").json() == before


def test_who_may_only_look_is_offered_no_erasure(service: Running, tables: list[str]) -> None:
    with Person(service, Role.VIEWER) as viewer:
        assert "New erasure" not in viewer.open("/erasures").links
