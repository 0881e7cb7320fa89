"""Enrolling tables on the pages: by name, from what a catalog holds, and by patterns."""

from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField

from service.records.api_keys import Role
from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Person


def enrolled(service: Running, namespace: str) -> dict[str, Any]:
    items = service.admin.get("/tables", params={"namespace": namespace}).json()["items"]
    return {item["name"]: item for item in items}


def test_tables_that_hold_equality_deletes_are_found_and_enrolled_together(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    for name in ("shop.carts", "shop.orders", "shop.prices"):
        iceberg.create(name)
        iceberg.append(name, [1, 2, 3])
    iceberg.delete_keys("shop.carts", [1])
    iceberg.delete_keys("shop.orders", [1])
    iceberg.delete_keys("shop.orders", [2])
    admin.open("/catalogs/local")
    admin.follow("Enrol tables")
    found = admin.send("/candidates", namespace="shop")
    assert "shop.prices" not in found.text
    assert "id" in found.text
    form = next(form for form in found.forms if form.method == "post" and "identifier" in form.choices)
    assert [value for name, value in form.fields if name == "identifier"] == [
        '["shop", "orders"]',
        '["shop", "carts"]',
    ], "what needs it is chosen already, first what costs its readers most"
    result = admin.send("/candidates", {"policy": ""}, policy="manual")
    assert "2 tables enrolled" in result.text.replace("\N{NO-BREAK SPACE}", " ")
    assert {name: table["policy"] for name, table in enrolled(service, "shop").items()} == {
        "shop.carts": "manual",
        "shop.orders": "manual",
    }
    again = admin.open("/catalogs/local/candidates?namespace=shop&all_tables=true")
    assert {"shop.carts", "shop.orders"} <= again.links.keys(), "what is enrolled leads to its page"
    free = next(form for form in again.forms if "identifier" in form.choices)
    assert free.choices["identifier"] == ['["shop", "prices"]']
    admin.send("/candidates", {"policy": ""}, identifier='["shop", "prices"]')
    assert admin.page.path == f"/tables/{enrolled(service, 'shop')['shop.prices']['id']}"


def test_a_table_that_cannot_be_enrolled_is_told_beside_those_that_were(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    iceberg.create("mixed.good")
    admin.open("/catalogs/local/candidates?namespace=mixed&all_tables=true")
    token = dict(admin.page.forms[0].fields)["csrf_token"]
    answer = admin.http.post(
        "/catalogs/local/candidates",
        data={"csrf_token": token, "identifier": ['["mixed", "good"]', '["mixed", "gone"]']},
    )
    assert "mixed.gone" in answer.text
    assert "could not be enrolled" in answer.text
    assert set(enrolled(service, "mixed")) == {"mixed.good"}
    answer = admin.http.post(
        "/catalogs/local/candidates", data={"csrf_token": token, "identifier": "nonsense"}
    )
    assert answer.status_code == 422


def test_a_candidate_with_a_long_key_makes_no_long_page(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    long_name = "c" * 20_000
    for name, id_type in (("wide.t", LongType()), ("wide.floats", DoubleType())):
        table = iceberg.create(name, Schema(NestedField(1, "id", id_type)))
        iceberg.delete_keys(name, [1])
        with table.refresh().update_schema() as change:
            change.rename_column("id", long_name)
    shown = admin.open("/catalogs/local/candidates?namespace=wide")
    assert shown.text.count("c…") >= 3, "in both keys, and in why the one can't be converted"
    assert len(shown.html) < 20_000


def test_a_pattern_shows_what_it_matches_before_it_enrols_that(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    for name in ("web.clicks", "web.views", "web.tmp_1"):
        iceberg.create(name)
    admin.open("/patterns/new")
    shown = admin.send(
        "/patterns/new", catalog="local", pattern="web.*", exclude="web.tmp_*", policy="manual", what="look"
    )
    assert "2 tables match" in shown.text.replace("\N{NO-BREAK SPACE}", " ")
    assert "web.clicks" in shown.text
    assert "web.tmp_1" not in shown.text
    assert enrolled(service, "web") == {}
    admin.send("/patterns/new", what="once")
    assert set(enrolled(service, "web")) == {"web.clicks", "web.views"}


def test_a_standing_pattern_is_made_paused_changed_and_deleted(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    admin.open("/patterns/new?catalog=local")
    shown = admin.send("/patterns/new", pattern="later.*", what="standing")
    assert "later.*" in shown.text
    service.admin.post("/patterns", json={"catalog": "local", "pattern": "then.*"})
    newest = admin.open("/patterns?catalog=local&sort=-created_at&limit=1")
    assert "later.*" not in newest.text
    assert "later.*" in admin.follow("Next page").text
    assert "No pattern fits these filters" in admin.open("/patterns?catalog=none").text
    admin.open("/patterns")
    admin.follow("later.*")
    assert "paused" in admin.send("/pause").text
    admin.send("/resume")
    admin.send("/edit", pattern="later.t_*", exclude="later.t_x\nlater.t_y", policy="manual")
    (pattern,) = [
        one for one in service.admin.get("/patterns").json()["items"] if one["pattern"] == "later.t_*"
    ]
    assert (pattern["exclude"], pattern["policy"], pattern["paused"]) == (
        ["later.t_x", "later.t_y"],
        "manual",
        False,
    )
    refused = admin.send("/edit", pattern="")
    assert refused.status == 422
    assert 'id="pattern-wrong"' in refused.html
    admin.open(f"/patterns/{pattern['id']}")
    admin.send("/delete")
    assert service.admin.get(f"/patterns/{pattern['id']}").status_code == 404


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"identifier": "t"}, "identifier"),
        ({"identifier": "db.none"}, "identifier"),
        ({"identifier": "typed.t", "branch": "nope"}, "branch"),
        ({"identifier": "typed.t", "key_columns": "id, nope"}, "key_columns"),
    ],
)
def test_what_is_wrong_with_a_table_is_told_beside_its_field(
    admin: Person, iceberg: IcebergCatalog, typed: dict[str, Any], field: str
) -> None:
    if not iceberg.catalog.table_exists("typed.t"):
        iceberg.create("typed.t")
    admin.open("/tables/new")
    refused = admin.send("/tables/new", catalog="local", **typed)
    assert refused.status == 422
    assert f'id="{field}-wrong"' in refused.html
    assert typed.items() <= dict(refused.form("/tables/new").fields).items()


@pytest.mark.usefixtures("iceberg")
def test_a_viewer_enrols_nothing(service: Running) -> None:
    with Person(service, Role.VIEWER) as viewer:
        assert "needs the role operator" in viewer.open("/tables/new").text
        assert not viewer.page.offers("/tables/new")
        assert viewer.open("/catalogs/local/candidates").status == 403
        assert viewer.open("/patterns/new").status == 403
        viewer.open("/patterns")
        assert viewer.post("/patterns/new", catalog="local", pattern="*", what="standing").status == 403
