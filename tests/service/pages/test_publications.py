"""The pages of a table whose rows are staged on another branch."""

from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Person


def test_a_staging_branch_is_set_up_shown_published_and_taken_back(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    iceberg.create("staged.t")
    iceberg.append("staged.t", [1, 2])
    table = service.enroll("staged.t", policy="manual")
    path = f"/tables/{table['id']}"
    assert "Staged rows" not in admin.open(path).text
    assert "Publish" not in admin.page.html.partition("More jobs")[2].partition("Not before")[0]

    admin.open(f"{path}/edit")
    refused = admin.send("/edit", publish="main")
    assert refused.status == 422
    assert "Readers read main, and a staging branch is emptied" in refused.text
    admin.send("/edit", publish="ingest")
    assert service.admin.get(path).json()["publish"] == {"from": "ingest"}
    loaded = iceberg.catalog.load_table("staged.t")
    loaded.manage_snapshots().create_branch(iceberg.head("staged.t"), "ingest").commit()
    iceberg.delete_keys("staged.t", [1, 2], branch="ingest")
    service.poll(table["id"])

    shown = admin.open(path).text.replace("\N{NO-BREAK SPACE}", " ")
    assert "Staged rows 2 in 1 snapshot, the oldest " in shown
    assert "1 staged snapshot; the policy publishes nothing by itself." in shown
    assert "Published from branch ingest Last publication —" in shown
    job = admin.send("/jobs", {"kind": "publish", "dry_run": "true"})
    assert "publish" in job.text.lower()
    (queued,) = service.admin.get("/jobs", params={"table_id": table["id"]}).json()["items"]
    assert (queued["parameters"], queued["dry_run"]) == ({"from": "ingest"}, True)

    admin.open(f"{path}/edit")
    refused = admin.send("/edit", publish="")
    assert "1 snapshot with 2 rows and row-level deletes that are not published" in refused.text
    admin.send("/edit", publish="", leave_staged="true")
    assert service.admin.get(path).json()["publish"] is None
    assert "leave_staged" not in admin.open(path).html
    assert "Staged rows" not in admin.open(path).text


def test_tables_and_patterns_are_enrolled_with_their_staging_branch(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    iceberg.create("fresh.a")
    admin.open("/tables/new")
    admin.send("/tables/new", catalog="local", identifier="fresh.a", publish="ingest")
    assert admin.page.path.startswith("/tables/")
    admin.open("/patterns/new")
    admin.send("/patterns/new", catalog="local", pattern="fresh.*", publish="ingest", what="standing")
    assert "Published from branch ingest" in admin.page.text
    found = service.admin.get("/tables", params={"search": "fresh.a"}).json()["items"]
    assert [one["publish"] for one in found] == [{"from": "ingest"}]


def test_a_policy_names_the_staging_branch_and_a_table_can_have_none(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    iceberg.create("fleet.t")
    admin.open("/policies/new")
    admin.send("/policies/new", name="staged", description="Streams.", settings__publish__from="ingest")
    assert "Staging branch ingest" in admin.page.text
    table = service.enroll("fleet.t", policy="staged")
    path = f"/tables/{table['id']}"
    shown = admin.open(path).text
    assert "Published from branch ingest" in shown
    assert "Staging branch staged, table fleet.t ingest" in shown

    admin.open(f"{path}/edit")
    admin.send("/edit", publish="none")
    assert service.admin.get(path).json()["publish"] == {"from": ""}
    shown = admin.open(path).text
    assert "Published from" not in shown
    assert "Staging branch enrolment of table fleet.t none" in shown
    assert dict(admin.open(f"{path}/edit").form("/edit").fields)["publish"] == "none"


def test_a_policy_that_would_leave_staged_rows_is_changed_once_somebody_says_so(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    iceberg.create("waiting.t")
    iceberg.append("waiting.t", [1])
    body = {"name": "waiting", "settings": {"publish": {"from": "ingest"}}}
    policy = service.admin.post("/policies", json=body).json()["id"]
    table = service.enroll("waiting.t", policy="waiting")
    loaded = iceberg.catalog.load_table("waiting.t")
    loaded.manage_snapshots().create_branch(iceberg.head("waiting.t"), "ingest").commit()
    iceberg.delete_keys("waiting.t", [1], branch="ingest")
    service.poll(table["id"])

    path = f"/policies/{policy}"
    assert "leave_staged" not in admin.open(f"{path}/edit").html
    refused = admin.send("/edit", settings__publish__from="none")
    assert "Branch 'ingest' of waiting.t has 1 snapshot" in refused.text
    admin.send("/edit", settings__publish__from="none", leave_staged="true")
    assert service.admin.get(f"/tables/{table['id']}").json()["staging_branch"] is None

    admin.open(f"{path}/edit")
    admin.send("/edit", settings__publish__from="ingest")
    service.poll(table["id"])
    admin.open(f"/tables/{table['id']}")
    refused = admin.send("/delete")
    assert "1 snapshot with 1 row and row-level deletes that are not published" in refused.text
    admin.open(path)
    refused = admin.send("/attach", {"detach": "yes"})
    assert "1 snapshot with 1 row and row-level deletes that are not published" in refused.text
    admin.send("/attach", {"detach": "yes", "leave_staged": "true"})
    assert "Nowhere yet" in admin.page.text
