"""The page that finds things by a part of their names, or by their ids."""

import base64
import json
import re

import pytest

from service.records.api_keys import Role
from service.ui.search import _FIRST
from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Person


def test_things_are_found_by_a_part_of_their_names(
    service: Running, admin: Person, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_PAGE", "whsec_" + base64.b64encode(bytes(32)).decode())
    iceberg.create("finance.ledger")
    table = service.enroll("finance.ledger")["id"]
    policy = service.admin.post("/policies", json={"name": "for-ledgers", "settings": {}}).json()["id"]
    webhook = {"name": "ledgers", "url": "http://127.0.0.1:9/hook", "kinds": ["job"]}
    webhook_id = service.admin.post("/webhooks", json=webhook | {"secret": "env:WEBHOOK_PAGE"}).json()["id"]
    page = admin.open("/search?search=LEDGER")
    assert page.links["local.finance.ledger"].endswith(f"/tables/{table}")
    assert page.links["for-ledgers"].endswith(f"/policies/{policy}")
    assert page.links["ledgers"].endswith(f"/webhooks/{webhook_id}")
    assert "local" in admin.open("/search?search=loc").links
    with Person(service, Role.VIEWER) as viewer:  # who may not see webhooks
        links = viewer.open("/search?search=ledger").links
        assert "local.finance.ledger" in links
        assert "ledgers" not in links
    assert "Nothing has “nowhere<b>” in its name" in admin.open("/search?search=nowhere<b>").text
    assert "Nothing has" not in admin.open("/search?search=+").text
    # Other tests are about pages without any.
    assert service.admin.delete(f"/webhooks/{webhook_id}").is_success


def test_whoever_may_list_things_finds_them_by_name_and_nobody_else(
    service: Running, admin: Person, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_PAGE", "whsec_" + base64.b64encode(bytes(32)).decode())
    secret = {"secret": "env:WEBHOOK_PAGE"}
    made = [
        ("webhooks", {"name": "barley-hook", "url": "http://127.0.0.1:9/hook", "kinds": ["job"]} | secret),
        ("notification-senders", {"name": "barley-flink", "catalog": "local"} | secret),
        ("api-keys", {"name": "barley-ci", "role": "viewer"}),
        ("patterns", {"catalog": "local", "pattern": "barley.*"}),
    ]
    paths = []
    for path, body in made:
        answer = service.admin.post(f"/{path}", json=body)
        assert answer.is_success, answer.text
        paths.append(f"/{path}/{answer.json()['id']}")
    for _ in range(2):
        worker = {"name": "barley-worker", "hostname": "host", "pid": 1, "version": "0.1.0"}
        service.admin.post("/workers", json=worker).raise_for_status()
    for_all = {
        "local.barley.*": paths[3],
        "barley-worker": "/workers?search=barley-worker",
    }
    for_admins = {
        "barley-hook": paths[0],
        "barley-flink": "/senders?search=barley-flink",
        "barley-ci": "/api-keys?search=barley-ci",
    }
    with Person(service, Role.VIEWER) as viewer, Person(service, Role.OPERATOR) as operator:
        for person, expected in ((viewer, for_all), (operator, for_all), (admin, for_all | for_admins)):
            page = person.open("/search?search=BARLEY")
            found = {
                words: at.removeprefix(service.url)
                for words, at in page.links.items()
                if "barley" in at or words in expected
            }
            assert found == expected
            assert page.html.count(">barley-worker<") == 1
            for path in found.values():
                assert "barley" in person.open(path).text
    assert [
        one["name"] for one in service.admin.get("/notification-senders?search=Y-FL").json()["items"]
    ] == ["barley-flink"]
    assert service.admin.get("/notification-senders?search=rye").json()["items"] == []
    assert service.admin.get("/patterns?search=rye").json()["items"] == []
    for path in paths:
        service.admin.delete(path).raise_for_status()


def test_pages_are_found_by_whoever_may_open_them(service: Running, admin: Person) -> None:
    def found(person: Person, words: str) -> list[str]:
        page = person.open(f"/search?search={words}").html
        return re.findall('href="(.*?)"', "".join(re.findall("(?s)<h2>Pages</h2>(.*?)</section>", page)))

    assert found(admin, "CONNECT a catalog") == ["/catalogs/new"]
    assert found(admin, "timel") == ["/timeline"]
    assert found(admin, "line") == [], "words of a page are known by how they begin"
    service.admin.post("/policies", json={"name": "timeline", "settings": {}}).raise_for_status()
    kinds = re.findall("<h2>(.*?)</h2>", admin.open("/search?search=timeline").html)
    assert kinds == ["Policies", "Pages"], "what is first is opened by Enter"
    with Person(service, Role.VIEWER) as viewer, Person(service, Role.OPERATOR) as operator:
        assert found(viewer, "connect a catalog") == found(operator, "connect a catalog") == []
        assert found(viewer, "new") == []
        for person in (viewer, operator, admin):
            for place in {path for words in ("a", "e", "new") for path in found(person, words)}:
                answer = person.http.get(place)
                assert answer.status_code == 200, (place, answer.text)


def test_what_has_an_id_is_found_by_it_as_long_as_it_is_there(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    iceberg.create("finance.gone")
    table = service.enroll("finance.gone")["id"]
    job = service.admin.post(f"/tables/{table}/jobs", json={"kind": "convert"}).json()["id"]
    assert admin.open(f"/search?search={job}").links[f"Job {job}"].endswith(f"/jobs/{job}")
    assert f"Table {table}" in admin.open(f"/search?search={table}").links
    assert f"Job {job}" in admin.open(f"/search?search={job[:8]}").links, "as pages show it"
    assert "Nothing has" in admin.open(f"/search?search={job[:7]}").text
    whole = admin.open("/search?search=local.finance.gone")
    assert whole.links["local.finance.gone"].endswith(f"/tables/{table}"), "as the command line writes it"
    service.admin.post(f"/jobs/{job}/cancel")
    assert service.admin.delete(f"/tables/{table}").is_success
    assert "Nothing has" in admin.open(f"/search?search={table}").text


def test_a_table_is_found_by_its_name_with_that_of_its_catalog_which_may_have_dots(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    dotted = IcebergCatalog(iceberg.directory, "prod.eu")
    catalog = service.register(dotted)["id"]
    made = []
    for number in range(_FIRST + 1):
        dotted.create(f"mill.grain-{number}")
        made.append(service.enroll(f"mill.grain-{number}", catalog="prod.eu")["id"])
    links = admin.open("/search?search=prod.eu.mill.grain-0").links
    assert links["prod.eu.mill.grain-0"].endswith(f"/tables/{made[0]}")
    links = admin.open("/search?search=prod.eu.mill.grain").links
    assert f"prod.eu.mill.grain-{_FIRST}" not in links
    rest = links["All tables of prod.eu with “prod.eu.mill.grain” in their names"]
    assert f"mill.grain-{_FIRST}" in admin.open(rest.removeprefix(service.url)).text
    for table in made:
        service.admin.delete(f"/tables/{table}").raise_for_status()
    service.admin.delete(f"/catalogs/{catalog}").raise_for_status()


def test_tables_of_one_name_in_two_catalogs_are_told_apart_wherever_they_stand(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    directory = iceberg.directory / "twin"
    directory.mkdir()
    twin = IcebergCatalog(directory, "twin")
    catalog = service.register(twin)["id"]
    made, jobs = {}, []
    for of, name in ((iceberg, "local"), (twin, "twin")):
        of.create("same.name")
        table = made[name] = service.enroll("same.name", catalog=name, policy="manual")["id"]
        jobs.append(service.admin.post(f"/tables/{table}/jobs", json={"kind": "index"}).json()["id"])
    both = {f"{name}.same.name": f"/tables/{table}" for name, table in made.items()}
    links = admin.open("/search?search=same.name").links
    assert {words: path.removeprefix(service.url) for words, path in links.items() if words in both} == both
    for path in ("/jobs?status=queued", "/timeline?search=same.name", "/tables?search=same.name"):
        shown = admin.open(path).text
        assert {"same.name local", "same.name twin"} <= set(re.findall(r"same\.name \w+", shown)), path
    (drawn,) = re.findall("data-timeline='([^']*)'", admin.open("/timeline?search=same.name").html)
    assert {name for _, name, _ in json.loads(drawn)["tables"]} == {"same.name · local", "same.name · twin"}
    told = service.admin.get("/overview/timeline?search=same.name").json()["items"]
    assert {one["catalog"] for one in told} == {"local", "twin"}
    admin.open("/jobs?status=queued")
    shown = admin.send("/jobs/bulk", job_ids=jobs, action="cancel").text
    assert "local.same.name" in shown
    assert "twin.same.name" in shown
    for table in made.values():
        service.admin.delete(f"/tables/{table}").raise_for_status()
    service.admin.delete(f"/catalogs/{catalog}").raise_for_status()


def test_of_many_the_first_are_named_and_the_list_has_the_rest(service: Running, admin: Person) -> None:
    for number in range(_FIRST + 1):
        service.admin.post("/policies", json={"name": f"many-{number}", "settings": {}})
    links = admin.open("/search?search=many-").links
    assert f"many-{_FIRST - 1}" in links
    assert f"many-{_FIRST}" not in links
    rest = links["All policies with “many-” in their names"]
    assert f"many-{_FIRST}" in admin.open(rest.removeprefix(service.url)).text
    for number in range(_FIRST + 1):
        service.admin.delete(f"/policies/many-{number}")


def test_a_theme_that_was_chosen_comes_with_the_page_and_no_other_word_does(admin: Person) -> None:
    assert "data-theme" not in admin.open("/").html
    admin.http.cookies.set("theme", "dark")
    assert '<html lang="en" data-theme="dark">' in admin.open("/").html
    admin.http.cookies.set("theme", '"><script>')
    assert "data-theme" not in admin.open("/").html
