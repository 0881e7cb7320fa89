"""Candidates tell which tables hold equality deletes; standing patterns enrol tables, later ones too."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, NestedField, StringType
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from service.catalogs.iceberg import IcebergCatalogs
from service.catalogs.metadata_locations import Identifier
from service.discovery import candidates as discovery
from service.discovery import patterns
from service.discovery.candidates import Looks, list_names
from service.discovery.models import Candidate
from service.records.catalogs import Catalog
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.service.conftest import Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Person

# What a pattern matches is decided in Python.
database_kind = alike_on_both

ODD = [
    "it's",
    'a "quoted" name',
    "ünï.çødé",
    "'; DROP TABLE tables; --",
    "100%_sure",
    "<b>bold</b>",
    "a b?c#d",
]


@pytest.fixture
def local(service: Running, iceberg: IcebergCatalog) -> Running:
    service.register(iceberg)
    return service


def candidates(service: Running, **parameters: Any) -> dict[str, Any]:
    answer = service.admin.get("/catalogs/local/candidates", params=parameters)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def create_pattern(service: Running, pattern: str = "db.*", **fields: Any) -> str:
    answer = service.admin.post("/patterns", json={"catalog": "local", "pattern": pattern} | fields)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def run(service: Running, pattern_id: str) -> dict[str, Any]:
    service.background.patterns.run(pattern_id)
    return dict(service.admin.get(f"/patterns/{pattern_id}").json())


def enrolled(service: Running) -> list[str]:
    return [table["name"] for table in service.admin.get("/tables").json()["items"]]


def test_candidates_are_the_tables_with_equality_deletes(local: Running, iceberg: IcebergCatalog) -> None:
    iceberg.create("db.clean")
    iceberg.create("other.later")
    sizes = [
        Path(iceberg.delete_keys("db.t", ids).removeprefix("file://")).stat().st_size for ids in ([1], [2, 3])
    ]
    table = local.enroll()
    found = candidates(local)
    (one,) = found["items"]
    assert (found["looked_at"], found["tables"], found["next_cursor"]) == (3, 3, None)
    assert (one["name"], one["table_id"], one["problem"]) == ("db.t", table["id"], None)
    assert (one["equality_delete_files"], one["equality_deletes"]) == (2, 3)
    assert (one["equality_delete_bytes"], one["key_sets"]) == (sum(sizes), [["id"]])
    assert one["summary"].startswith("It holds equality deletes: 2 files, the oldest ")
    every = candidates(local, all_tables=True, sort="identifier")["items"]
    assert [each["name"] for each in every] == ["db.clean", "db.t", "other.later"]
    assert (every[0]["oldest_at"], every[0]["summary"]) == (None, "It holds no equality deletes.")
    assert [each["name"] for each in candidates(local, all_tables=True, namespace="other")["items"]] == [
        "other.later"
    ]


def test_the_table_comes_first_whose_readers_pay_most(
    local: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, files in (("db.few", 1), ("db.many", 6), ("db.some", 3), ("db.u", 7)):
        iceberg.create(name)
        for number in range(files):
            iceberg.append(name, [number])
        iceberg.delete_keys(name, [1])

    def pages(**asked: Any) -> list[dict[str, Any]]:
        asked = {"limit": 2, "all_tables": True} | asked
        found: list[dict[str, Any]] = []
        while not found or found[-1]["next_cursor"]:
            cursor = {"cursor": found[-1]["next_cursor"]} if found else {}
            found.append(candidates(local, **asked, **cursor))
        return found

    def names(found: list[dict[str, Any]]) -> list[list[str]]:
        return [[one["name"] for one in page["items"]] for page in found]

    loads: list[Identifier] = []
    load = IcebergCatalogs.load

    def count(self: IcebergCatalogs, catalog: Catalog, name: Identifier) -> Any:
        loads.append(name)
        return load(self, catalog, name)

    monkeypatch.setattr(IcebergCatalogs, "load", count)
    found = pages()
    assert names(found) == [["db.u", "db.many"], ["db.some", "db.few"], ["db.t"]]
    assert [(page["looked_at"], page["tables"]) for page in found] == [(5, 5)] * 3
    assert len(loads) == 5, "what was seen is kept for the pages that follow"
    items = [one for page in found for one in page["items"]]
    assert [one["data_files"] for one in items] == [7, 6, 3, 1, 1]
    assert all(0 < one["read_overhead_seconds"] < one["read_seconds"] for one in items[:-1])
    assert names(pages(sort="read_overhead_seconds"))[0] == ["db.t", "db.few"]

    # As many as there is time for are ranked, and then the next ones.
    monkeypatch.setattr("service.discovery.candidates._RANKING_SECONDS", 0)
    monkeypatch.setattr("service.discovery.candidates._ROUND", 3)
    monkeypatch.setattr("service.discovery.candidates._KEPT_SECONDS", 0)
    found = pages()
    assert names(found) == [["db.many", "db.some"], ["db.few"], ["db.u", "db.t"]]
    assert [page["looked_at"] for page in found] == [3, 3, 5]
    last = candidates(local, limit=2, all_tables=True)["next_cursor"]
    for name in ("db.few", "db.many", "db.some"):
        iceberg.catalog.drop_table(name)
    beyond = candidates(local, limit=2, all_tables=True, cursor=last)
    assert (names([beyond]), beyond["looked_at"]) == ([[]], 0)
    rest = candidates(local, limit=2, all_tables=True, cursor=beyond["next_cursor"])
    assert (names([rest]), rest["next_cursor"]) == ([["db.u", "db.t"]], None)


def test_what_was_seen_too_long_ago_is_looked_at_again_as_far_as_there_is_time(
    local: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"db.n{number}" for number in range(6)]
    for number, name in enumerate(names):
        iceberg.create(name)
        for key in range(number + 1):
            iceberg.append(name, [key])
        iceberg.delete_keys(name, [1])
    page = candidates(local, limit=2)
    assert [one["name"] for one in page["items"]] == names[:-3:-1]
    assert page["ranked_anew"] is False
    admin = Person(local)
    admin.open("/catalogs/local/candidates?limit=2")
    monkeypatch.setattr("service.discovery.candidates._RANKING_SECONDS", 0)
    monkeypatch.setattr("service.discovery.candidates._ROUND", 3)
    monkeypatch.setattr("service.discovery.candidates._KEPT_SECONDS", 0)
    looked: list[int] = []
    look = discovery._look_at_all

    def count(*told: Any) -> Any:
        looked.append(len(told[3]))
        return look(*told)

    monkeypatch.setattr(discovery, "_look_at_all", count)
    with admin:
        assert "the next pages may show some tables once more" in admin.follow("Next page").text
    assert looked == [3]
    seen, anew = [one["name"] for one in page["items"]], []
    while page["next_cursor"]:
        page = candidates(local, limit=2, cursor=page["next_cursor"])
        seen += [one["name"] for one in page["items"]]
        anew.append(page["ranked_anew"])
    assert anew[:2] == [True, False]
    assert set(seen) == set(names)
    assert max(looked) == 3


def test_what_was_seen_too_long_ago_is_kept_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, now = Looks(), 1000.0
    monkeypatch.setattr("service.discovery.candidates.time", SimpleNamespace(monotonic=lambda: now))
    one = cast("Candidate", object())
    looks.keep("c", [("db", "a"), ("db", "b")], [one, one])
    now += 200
    looks.keep("c", [("db", "b")], [one])
    now += 200
    looks.keep("c", [("db", "c")], [one])
    assert list(looks._seen) == [("c", ("db", "b")), ("c", ("db", "c"))]


def test_a_large_catalog_is_looked_at_a_few_tables_at_a_time(local: Running, iceberg: IcebergCatalog) -> None:
    for number in range(4):
        iceberg.create(f"db.n{number}")
    names = ["db.n0", "db.n1", "db.n2", "db.n3", "db.t"]
    for sort, order in (("identifier", names), ("-identifier", names[::-1])):
        asked: dict[str, Any] = {"limit": 2, "all_tables": True, "sort": sort}
        seen, cursor, calls = [], None, 0
        while calls == 0 or cursor:
            page = candidates(local, **asked, **({"cursor": cursor} if cursor else {}))
            assert page["looked_at"] == min(2 * (calls + 1), 5)
            seen += [one["name"] for one in page["items"]]
            cursor, calls = page["next_cursor"], calls + 1
        assert (seen, calls) == (order, 3)
    cursor = candidates(local, **asked)["next_cursor"]
    for other in ({"sort": "identifier"}, {"all_tables": False}, {"namespace": "db"}):
        answer = local.admin.get("/catalogs/local/candidates", params={**asked, "cursor": cursor, **other})
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/cursor-mismatch"), other


def test_what_cannot_be_enrolled_is_told_with_the_reason(local: Running, iceberg: IcebergCatalog) -> None:
    iceberg.create("db.broken")
    Path(iceberg.catalog.load_table("db.broken").metadata_location.removeprefix("file://")).unlink()
    iceberg.create("db.floats", Schema(NestedField(1, "id", DoubleType(), required=True)))
    iceberg.delete_keys("db.floats", [1])
    problems = {one["name"]: one["problem"] for one in candidates(local)["items"]}
    assert problems["db.broken"]["type"] == "/problems/table-unreadable"
    assert problems["db.floats"]["type"] == "/problems/key-not-supported"


def test_delete_files_of_a_floating_point_key_are_counted_and_named(
    local: Running, iceberg: IcebergCatalog
) -> None:
    fields = (NestedField(1, "id", DoubleType()), NestedField(2, "region", StringType()))
    iceberg.create("db.floats", Schema(*fields))
    for column, keys in (("id", [1]), ("id", [2])):
        iceberg.delete_keys("db.floats", keys, column=column)
    (one,) = candidates(local)["items"]
    assert one["summary"].endswith(" old. They cannot be converted.")
    assert "Until then nothing of this table can be converted." in one["problem"]["remedy"]
    iceberg.delete_keys("db.floats", ["eu"], column="region")
    (one,) = candidates(local)["items"]
    assert one["summary"].endswith(" old. 2 of the files cannot be converted.")
    assert "2 of 3 equality delete files cannot be converted: the key (id) has" in one["problem"]["detail"]
    assert "Give the writer a key without floating-point columns." in one["problem"]["remedy"]


@pytest.mark.parametrize(
    ("parameters", "status", "slug"),
    [
        ({"cursor": "x"}, 400, "invalid-cursor"),
        ({"cursor": ""}, 400, "invalid-cursor"),
        ({"limit": 0}, 422, "validation-error"),
        ({"limit": 101}, 422, "validation-error"),
        ({"sort": "name"}, 422, "validation-error"),
    ],
)
def test_a_wrong_request_is_refused(
    local: Running, parameters: dict[str, Any], status: int, slug: str
) -> None:
    answer = local.admin.get("/catalogs/local/candidates", params=parameters)
    assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{slug}")


def test_a_policy_that_a_pattern_names_is_not_deleted(local: Running) -> None:
    local.admin.post("/policies", json={"name": "p", "settings": {}})
    pattern = create_pattern(local, policy="p")
    refused = local.admin.delete("/policies/p")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/policy-in-use")
    assert "pattern 'db.*' of catalog local" in refused.json()["detail"]
    always = {"If-Match": "*"}
    local.admin.patch(f"/patterns/{pattern}", json={"policy": None}, headers=always)
    assert local.admin.delete("/policies/p").status_code == 204


def test_the_database_itself_keeps_a_policy_that_a_pattern_names(local: Running) -> None:
    """Also for a request that looked before the pattern was there."""
    local.admin.post("/policies", json={"name": "p", "settings": {}})
    create_pattern(local, policy="p")
    with local.database.write() as session:
        with pytest.raises(IntegrityError):
            session.execute(text("DELETE FROM policies WHERE name = 'p'"))
        session.rollback()


def test_the_patterns_of_a_catalog_go_with_it(local: Running) -> None:
    local.admin.post("/policies", json={"name": "p", "settings": {}})
    pattern = create_pattern(local, policy="p")
    assert local.admin.delete("/catalogs/local").status_code == 204
    assert local.admin.get(f"/patterns/{pattern}").status_code == 404
    assert local.admin.delete("/policies/p").status_code == 204


def test_a_pattern_enrols_what_is_there_and_what_comes_later(local: Running, iceberg: IcebergCatalog) -> None:
    iceberg.create("db.tmp_x")
    iceberg.create("other.x")
    pattern = create_pattern(local, exclude=["db.tmp_*"], policy="manual")
    first = run(local, pattern)
    assert (first["matched"], first["enrolled"], first["policy"], enrolled(local)) == (
        1,
        1,
        "manual",
        ["db.t"],
    )
    iceberg.create("db.later")
    second = run(local, pattern)
    assert (second["matched"], second["enrolled"], enrolled(local)) == (2, 2, ["db.later", "db.t"])
    table = local.admin.get("/tables").json()["items"][0]
    assert table["policy"] == "manual"
    (event,) = local.admin.get(f"/tables/{table['id']}/events").json()["items"]
    assert (event["kind"], event["fields"]) == ("table.enrolled", {"pattern_id": pattern})
    audit = local.admin.get("/audit", params={"action": "table.enroll"}).json()["items"]
    assert {entry["target"] for entry in audit} == {"local.db.t", "local.db.later"}


def test_a_table_that_somebody_removed_stays_removed(local: Running) -> None:
    pattern = create_pattern(local)
    run(local, pattern)
    local.admin.delete(f"/tables/{local.admin.get('/tables').json()['items'][0]['id']}")
    assert run(local, pattern)["enrolled"] == 1
    assert enrolled(local) == []
    run(local, create_pattern(local))  # one that is made afterwards means it
    assert enrolled(local) == ["db.t"]


def test_what_a_pattern_cannot_enrol_is_visible_and_tried_again(
    local: Running, iceberg: IcebergCatalog
) -> None:
    iceberg.create("db.broken")
    metadata = Path(iceberg.catalog.load_table("db.broken").metadata_location.removeprefix("file://"))
    content = metadata.read_bytes()
    metadata.unlink()
    pattern = create_pattern(local)
    (failure,) = run(local, pattern)["failures"]
    assert (failure["identifier"], failure["type"]) == (["db", "broken"], "/problems/table-unreadable")
    assert enrolled(local) == ["db.t"]
    metadata.write_bytes(content)
    assert run(local, pattern)["failures"] == []
    assert enrolled(local) == ["db.broken", "db.t"]


def test_tables_that_always_fail_keep_no_other_waiting(
    local: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "_TABLES_AT_ONCE", 2)
    broken = [f"b{number}" for number in range(5)]
    for name in broken:
        iceberg.create(f"db.{name}")
        Path(iceberg.catalog.load_table(f"db.{name}").metadata_location.removeprefix("file://")).unlink()
    pattern = create_pattern(local)
    tried = [[one["identifier"][1] for one in run(local, pattern)["failures"]] for _ in range(3)]
    assert (tried, enrolled(local)) == ([["b0", "b1"], ["b2", "b3"], ["b4"]], ["db.t"])
    iceberg.create("db.a")
    tried = [[one["identifier"][1] for one in run(local, pattern)["failures"]] for _ in range(2)]
    assert (tried, enrolled(local)) == ([["b0"], ["b1", "b2"]], ["db.a", "db.t"])


def test_a_slow_catalog_keeps_the_patterns_of_no_other_waiting(
    local: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"name": "slow", "type": "sql", "properties": iceberg.properties}
    assert local.admin.post("/catalogs", json=body).status_code == 201
    asked, answers = threading.Event(), threading.Event()

    def list_slowly(catalogs: IcebergCatalogs, catalog: Catalog) -> list[Identifier]:
        if catalog.name == "slow":
            asked.set()
            assert answers.wait(PATIENCE_SECONDS)
        return list_names(catalogs, catalog)

    monkeypatch.setattr(patterns, "list_names", list_slowly)
    answer = local.admin.post("/patterns", json={"catalog": "slow", "pattern": "nothing.*"})
    assert answer.status_code == 201
    local.background.patterns.run_due()
    assert asked.wait(PATIENCE_SECONDS)
    try:
        create_pattern(local)
        local.background.patterns.run_due()
        wait_until(lambda: enrolled(local) == ["db.t"], "the table to be enrolled")
    finally:
        answers.set()


def test_a_pattern_tells_that_its_catalog_cannot_be_reached(local: Running, iceberg: IcebergCatalog) -> None:
    pattern = create_pattern(local)
    database = iceberg.directory / "cat.db"
    database.rename(f"{database}.away")
    assert "is not there" in run(local, pattern)["error"]["detail"]
    assert not database.exists()
    Path(f"{database}.away").rename(database)
    assert run(local, pattern)["error"] is None
    assert enrolled(local) == ["db.t"]


def test_a_pattern_is_changed_paused_and_removed(local: Running) -> None:
    pattern = create_pattern(local, "nothing.*")
    patch = {"pattern": "db.*", "paused": True}
    assert local.admin.patch(f"/patterns/{pattern}", json=patch).status_code == 428
    changed = local.admin.patch(f"/patterns/{pattern}", json=patch, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed.headers["etag"], changed.json()["paused"]) == (200, '"2"', True)
    runner = local.background.patterns
    runner.run_due()
    assert runner._threads == {}
    assert enrolled(local) == []
    local.admin.patch(f"/patterns/{pattern}", json={"paused": False}, headers={"If-Match": "*"})
    local.background.tick()
    wait_until(lambda: enrolled(local) == ["db.t"], "the table to be enrolled")
    assert local.admin.delete(f"/patterns/{pattern}").status_code == 204
    assert local.admin.get(f"/patterns/{pattern}").status_code == 404
    assert local.admin.get("/patterns").json()["items"] == []
    assert enrolled(local) == ["db.t"]


@pytest.mark.parametrize("name", ODD)
def test_odd_names_work_in_every_call(local: Running, iceberg: IcebergCatalog, name: str) -> None:
    iceberg.catalog.create_namespace_if_not_exists(("odd",))
    table = iceberg.catalog.load_table("db.t")
    iceberg.catalog.create_table(("odd", name), table.schema(), properties={"format-version": "2"})
    shown = {tuple(one["identifier"]) for one in candidates(local, all_tables=True)["items"]}
    assert ("odd", name) in shown
    body = {"catalog": "local", "identifier": ["odd", name], "policy": "manual"}
    created = local.admin.post("/tables", json=body)
    assert created.status_code == 201, created.text
    path = f"/tables/{created.json()['id']}"
    assert created.json()["identifier"] == ["odd", name]
    local.poll(created.json()["id"])
    assert local.admin.get(f"{path}/health").json()["status"] == "healthy"
    assert [one["id"] for one in local.admin.get("/tables", params={"search": name}).json()["items"]] == [
        created.json()["id"]
    ]
    for call in ("pause", "resume"):
        assert local.admin.post(f"{path}/{call}").status_code == 200
    assert local.admin.get(f"{path}/policy").status_code == 200
    assert local.admin.get(f"{path}/health/history").json()["items"]
    job = local.admin.post(f"{path}/jobs", json={"kind": "index"})
    assert job.status_code == 202
    assert local.admin.get("/jobs", params={"table_id": created.json()["id"]}).json()["items"]
    assert local.admin.delete(path).status_code == 204
    assert enrolled(local) == []
