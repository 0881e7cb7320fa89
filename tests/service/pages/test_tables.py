"""The pages of tables: the list, plots, plans, and what can be done with a table."""

import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text, update
from sqlmodel import col, delete, select

from service.auth import audit
from service.auth import service as auth
from service.catalogs import service as catalogs
from service.db.database import utc_now
from service.discovery import patterns
from service.policies import service as policies
from service.records.api_keys import Role
from service.records.health import HealthSample, PendingChange, TableHealth
from service.tables import service as tables
from service.ui.formats import duration
from service.ui.plot import VALUES_SHOWN
from service.webhooks import service as webhooks
from service.workers import service as workers
from tests.service.conftest import Running
from tests.service.health_samples import health_sample
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Person


@pytest.fixture(scope="module")
def table(service: Running, iceberg: IcebergCatalog) -> dict[str, Any]:
    """`farm.cows` with three pending equality deletes, and 20 days of measurements."""
    iceberg.create("farm.cows")
    iceberg.append("farm.cows", [1, 2, 3, 4])
    iceberg.delete_keys("farm.cows", [1, 2, 3])
    enrolled = service.enroll("farm.cows", policy="manual")
    now = utc_now()
    with service.database.write() as session:
        session.exec(delete(HealthSample))
        for hours in range(20 * 24, 0, -1):
            session.add(
                health_sample(
                    enrolled["id"],
                    now - timedelta(hours=hours),
                    9000 if hours == 200 else 50,
                    resolution="day" if hours % 24 == 0 else "hour",
                    lag_seconds=600,
                    entries=1000,
                    bytes=2_000_000,
                    sorted_runs=7,
                    dead_ratio=0.25,
                )
            )
    service.poll(enrolled["id"])
    with service.database.write() as session:
        earlier = col(PendingChange.minute) - 10 * 24 * 60
        session.execute(update(PendingChange).values(minute=earlier))
    return enrolled


def test_tables_are_found_by_name_status_and_place(
    service: Running, admin: Person, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    iceberg.create("farm.pigs")
    pigs = service.enroll("farm.pigs")
    service.poll(pigs["id"])
    service.admin.post(f"/tables/{pigs['id']}/pause")
    admin.open("/tables")

    def found(**filters: str) -> set[str]:
        links = admin.send("/tables", search="", namespace="farm", **filters).links
        return {"farm.cows", "farm.pigs"} & links.keys()

    assert found() == {"farm.cows", "farm.pigs"}
    assert found(paused="true") == {"farm.pigs"}
    assert found(status="healthy", paused="false") == {"farm.cows"}
    assert found(status="blocked", paused="") == set()
    assert "No table fits these filters" in admin.page.text
    first = admin.open("/tables?namespace=farm&limit=1")
    assert "farm.cows" in first.links
    assert "farm.pigs" not in first.links
    assert "farm.pigs" in admin.follow("Next page").links
    assert "First page" in admin.page.links
    assert "farm.cows" in admin.open("/tables?search=COW&namespace=farm&catalog=local").links
    assert "farm.pigs" not in admin.page.links


def test_every_list_is_shown_in_each_of_its_orders(admin: Person, table: dict[str, Any]) -> None:
    lists = {
        "/tables": tables.SORTING,
        "/catalogs": catalogs.SORTING,
        "/patterns": patterns.SORTING,
        "/policies": policies.SORTING,
        "/workers": workers.SORTING,
        "/webhooks": webhooks.SORTING,
        "/api-keys": auth.SORTING,
        "/audit": audit.SORTING,
    }
    for path, sorting in lists.items():
        for sort in (sign + name for name in sorting.columns for sign in ("", "-")):
            assert admin.open(f"{path}?sort={sort}").status == 200, (path, sort)
    admin.open("/tables")
    assert admin.follow("Status").path == "/tables?sort=-status"
    assert admin.follow("Pending deletes").path == "/tables?sort=-pending_equality_deletes"


def test_plots_cover_as_many_days_as_are_asked_for(admin: Person, table: dict[str, Any]) -> None:
    def told(title: str, span: str) -> tuple[str, float, float]:
        """Unit, value now and at the highest."""
        drawn = admin.page.plots[f"{title} over the last {span}"]
        return drawn["unit"], drawn["values"][-1], max(drawn["values"])

    admin.open(f"/tables/{table['id']}")
    assert told("Pending equality deletes", "24 hours") == ("count", 3, 50)
    assert told("Size of the index", "24 hours") == ("bytes", 0, 2_000_000)
    assert told("Lag", "24 hours")[::2] == ("seconds", 600)
    assert told("Sorted runs", "24 hours") == ("count", 0, 7)
    assert told("Dead entries", "24 hours") == ("share", 0, 0.25)
    admin.follow("30 days")
    assert told("Pending equality deletes", "30 days") == ("count", 3, 9000)
    admin.follow("90 days")
    assert told("Pending equality deletes", "90 days") == ("count", 3, 9000)
    assert "3 now, 9,000 at the highest" in admin.page.text
    admin.open("/")
    assert told("Pending equality deletes of all tables", "7 days")
    admin.follow("30 days")
    assert told("Pending equality deletes of all tables", "30 days")


def test_what_is_drawn_stands_in_a_table_too(admin: Person, table: dict[str, Any]) -> None:
    page = admin.open(f"/tables/{table['id']}?days=7").html.replace("\N{NO-BREAK SPACE}", " ")
    written = page.partition('<details class="values"')[2].partition("</details>")[0]
    titles = re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', written)
    assert titles == ["Time", *(label.partition(" over ")[0] for label in admin.page.plots)]
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in written.split("<tr>")[2:]]
    assert len(rows) == VALUES_SHOWN
    assert rows[0][0] == "3"
    assert [rows[-1][titles.index(title) - 1] for title in ("Sorted runs", "Dead entries", "Lag")] == [
        "7",
        "25%",
        "10 min",
    ]


def test_the_lag_of_an_idle_table_grows_to_what_its_figure_says(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    iceberg.create("barn.hens")
    iceberg.append("barn.hens", [1])
    iceberg.delete_keys("barn.hens", [1])
    hens = service.enroll("barn.hens", policy="manual")["id"]
    assert (
        "when the table changes, or else some minutes after the first" in admin.open(f"/tables/{hens}").text
    )
    service.poll(hens)
    with service.database.write() as session:
        health = session.get_one(TableHealth, hens)
        began = utc_now() - timedelta(seconds=700)
        health.oldest_equality_delete_at = began
        session.add(health)
        (seen,) = session.exec(select(HealthSample).where(HealthSample.table_id == hens))
        seen.at, seen.lag_seconds = began + timedelta(seconds=100), 100.0
        later = seen.model_dump() | {"id": None, "at": began + timedelta(seconds=400), "lag_seconds": 400.0}
        session.add_all([seen, HealthSample(**later)])
    page = admin.open(f"/tables/{hens}")
    told = page.plots["Lag over the last 24 hours"]
    shown = " ".join(duration(told["values"][-1]).split())
    assert f"Lag {shown} age of the oldest one" in page.text
    assert len(told["times"]) == 2, "one straight line"
    assert told["times"][-1] == pytest.approx(told["ends"] - told["began"], abs=0.2)
    assert told["values"][1] - told["values"][0] == pytest.approx(told["times"][1], abs=0.2)


def test_what_was_staged_and_how_old_it_became_is_drawn(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    iceberg.create("barn.doves")
    iceberg.append("barn.doves", [1])
    iceberg.catalog.load_table("barn.doves").manage_snapshots().create_branch(
        iceberg.head("barn.doves"), "ingest"
    ).commit()
    doves = service.enroll("barn.doves", policy="manual", publish={"from": "ingest"})["id"]
    service.poll(doves)
    clean = iceberg.catalog.load_table("barn.doves").metadata_location
    assert "Staged rows over" not in admin.open(f"/tables/{doves}").html
    iceberg.delete_keys("barn.doves", [1, 2], branch="ingest")
    service.poll(doves)
    with service.database.write() as session:
        samples = session.exec(select(HealthSample).where(HealthSample.table_id == doves)).all()
        samples[-1].at -= timedelta(hours=1)
        age = samples[-1].staged_age_seconds
    with iceberg.catalog.engine.begin() as connection:
        moved = "UPDATE iceberg_tables SET metadata_location = :head WHERE table_name = 'doves'"
        connection.execute(text(moved), {"head": clean})
    service.poll(doves)
    history = service.admin.get(f"/tables/{doves}/health/history").json()["items"][::-1]
    assert [one["staged_rows"] for one in history] == [0, 2, 2, 0]
    assert [one["staged_age_seconds"] - age >= 3600 for one in history] == [False, False, True, False]
    page = admin.open(f"/tables/{doves}")
    assert max(page.plots["Staged rows over the last 24 hours"]["values"]) == 2
    assert max(page.plots["Age of what is staged over the last 24 hours"]["values"]) >= 3600


def test_a_table_tells_what_was_done_to_it_and_why_its_jobs_ran(
    service: Running, admin: Person, iceberg: IcebergCatalog
) -> None:
    iceberg.create("barn.geese")
    geese = service.enroll("barn.geese", policy="manual")
    admin.open(f"/tables/{geese['id']}")
    assert "Events the latest first Who changed it None yet." in admin.page.text
    paused = admin.send("/pause")
    assert "The table is paused: resume it first." in paused.text
    # Of six kinds with their dry runs but for what comes after one alone, five others, a job for later.
    assert paused.html.count(" disabled>") == 17
    assert " disabled>" not in admin.send("/resume").html
    admin.follow("Change")
    admin.send("/edit", policy="standard", key_sets="id, region")
    job = service.admin.post(f"/tables/{geese['id']}/jobs", json={"kind": "index"}).json()["id"]
    with Person(service, Role.VIEWER) as viewer:
        told = viewer.open(f"/tables/{geese['id']}").text.partition("Events")[2]
    sentences = (
        f"Index {job[:8]} : Queued: requested by",
        "Changed by admin: policy standard, declared keys (id, region).",
        "Resumed by admin.",
        "Paused by admin.",
    )
    places = [told.find(sentence) for sentence in sentences]
    assert -1 not in places, told
    assert places == sorted(places)
    assert "Who changed it" not in told
    pages = [admin.open(f"/tables/{geese['id']}?days=7&limit=1").text.partition("Events")[2]]
    assert "Latest events" not in admin.page.links
    while "Earlier events" in admin.page.links:
        pages.append(admin.follow("Earlier events").text.partition("Events")[2])
        assert "Latest events" in admin.page.links
    found = [next(number for number, page in enumerate(pages) if one in page) for one in sentences]
    assert found == sorted(set(found)), "one on each page"
    admin.open(f"/tables/{geese['id']}")
    changed = admin.follow("Who changed it").text
    assert "table.pause" in changed
    assert "table.enroll" in changed


def test_the_plan_says_what_starts_by_itself_and_why(
    service: Running, admin: Person, table: dict[str, Any]
) -> None:
    admin.open(f"/tables/{table['id']}")
    admin.follow("Change")
    admin.send("/edit", policy="standard", key_sets="id\nid, region")
    stored = service.admin.get(f"/tables/{table['id']}").json()
    assert (stored["policy"], stored["key_sets"]) == ("standard", [["id"], ["id", "region"]])
    planned = service.admin.get(f"/tables/{table['id']}/policy/preview").json()
    starting = [job for job in planned["jobs"] if job["starts_at"]]
    assert starting
    shown = admin.open(f"/tables/{table['id']}").text
    assert starting[0]["why"].rstrip(".").lower() in shown.lower()
    admin.follow("Change")
    refused = admin.send("/edit", key_sets="id,,region")
    assert refused.status == 422
    assert 'id="key_sets-wrong"' in refused.html
    admin.open(f"/tables/{table['id']}/edit")
    refused = admin.send("/edit", key_sets="id, regoin")
    assert refused.status == 422
    assert "The table has: id, region." in refused.text
    admin.open(f"/tables/{table['id']}/edit")
    admin.send("/edit", policy="manual", key_sets="")
    assert service.admin.get(f"/tables/{table['id']}").json()["key_sets"] == []


@pytest.mark.parametrize("kind", ["convert", "index", "compact", "verify", "rebuild"])
def test_each_job_is_a_button_away(service: Running, admin: Person, table: dict[str, Any], kind: str) -> None:
    admin.open(f"/tables/{table['id']}")
    admin.send(f"/tables/{table['id']}/jobs", {"kind": kind})
    job = service.admin.get(f"/jobs/{admin.page.path.rpartition('/')[2]}").json()
    assert (job["kind"], job["table_id"]) == (kind, table["id"])
    service.admin.post(f"/jobs/{job['id']}/cancel").raise_for_status()


def test_a_job_is_queued_for_later_with_a_priority(
    service: Running, admin: Person, table: dict[str, Any]
) -> None:
    admin.open(f"/tables/{table['id']}")
    admin.send(
        f"/tables/{table['id']}/jobs",
        {"run_at": ""},
        kind="compact",
        run_at="2099-01-01T02:30",
        priority="7",
    )
    job = service.admin.get(f"/jobs/{admin.page.path.rpartition('/')[2]}").json()
    assert (job["kind"], job["run_at"], job["priority"]) == ("compact", "2099-01-01T02:30:00Z", 7)
    assert "Waits until 2099-01-01 02:30:00 UTC" in admin.page.text
    service.admin.post(f"/jobs/{job['id']}/cancel").raise_for_status()
    admin.open(f"/tables/{table['id']}")
    admin.send(f"/tables/{table['id']}/jobs", {"run_at": ""}, kind="verify")
    job = service.admin.get(f"/jobs/{admin.page.path.rpartition('/')[2]}").json()
    assert job["run_at"] is None
    service.admin.post(f"/jobs/{job['id']}/cancel").raise_for_status()


@pytest.mark.parametrize("drop_index", [False, True])
def test_a_table_is_removed_with_or_without_its_index(
    service: Running, admin: Person, iceberg: IcebergCatalog, drop_index: bool
) -> None:
    name = f"barn.sheep_{drop_index}".lower()
    iceberg.create(name)
    made = service.enroll(name)
    admin.open(f"/tables/{made['id']}")
    admin.send("/delete", **({"drop_index": "true"} if drop_index else {}))
    assert service.admin.get(f"/tables/{made['id']}").status_code == 404
    assert admin.page.status == 200
    assert admin.page.path.startswith("/jobs/" if drop_index else "/tables")


def test_a_removal_that_was_refused_is_not_called_live(
    service: Running, admin: Person, table: dict[str, Any]
) -> None:
    assert "data-events" in admin.open(f"/tables/{table['id']}").html
    for action in ("pause", "resume"):
        service.admin.post(f"/tables/{table['id']}/{action}").raise_for_status()
    refused = admin.send("/delete")
    assert refused.status == 412
    assert "data-events" not in refused.html


def test_a_viewer_is_offered_nothing_and_a_removal_is_refused(
    service: Running, table: dict[str, Any]
) -> None:
    with Person(service, Role.VIEWER) as viewer:
        page = viewer.open(f"/tables/{table['id']}")
        assert [form.action for form in page.forms] == [f"{service.url}/logout"]
        assert viewer.post(f"/tables/{table['id']}/delete").status == 403
        assert viewer.open(f"/tables/{table['id']}/edit").status == 403
    assert service.admin.get(f"/tables/{table['id']}").status_code == 200


def test_what_readers_pay_is_shown_of_all_tables_in_lists_and_of_each_read(
    service: Running, admin: Person, table: dict[str, Any]
) -> None:
    told = service.admin.get("/overview").json()  # of the tables of other tests, too
    assert told["delete_files"] >= 1
    admin.open("/")
    for figure in ("Cost of reads", "Cost of point reads", "Small files", "Saved since enrolment"):
        assert figure in admin.page.text
    assert f"Delete files joined {told['delete_files']} " in admin.page.text
    listed = admin.open("/tables?sort=-read_overhead_seconds").html
    row = listed.partition(f'href="/tables/{table["id"]}"')[2].partition("</tr>")[0]
    assert 'data-label="Cost of reads" class="number">1.' in row
    admin.open(f"/tables/{table['id']}")
    assert "A full read opens 1 data file" in admin.page.text
    assert "joins 1 delete file" in admin.page.text
    for read in ("Spark, full", "Spark, point", "DuckDB, full", "DuckDB, point"):
        assert f'<td class="head">{read}</td>' in admin.page.html


def test_lists_say_how_many_there_are_in_all_and_of_each_status_and_filter_by_it(
    service: Running, admin: Person, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    for number in range(3):
        iceberg.create(f"herd.sheep{number}")
        service.poll(service.enroll(f"herd.sheep{number}", policy="manual")["id"])
    unpolled = "herd.goats"
    iceberg.create(unpolled)
    service.enroll(unpolled, policy="manual")
    shown = admin.open("/tables?namespace=herd")
    assert {"All 4", "healthy 3", "unknown 1"} <= shown.links.keys()
    assert "blocked 0" not in shown.links
    chosen = admin.follow("unknown 1")
    assert chosen.links.keys() >= {"All 4", "healthy 3", "herd.goats"}
    assert "herd.sheep0" not in chosen.links
    assert re.search(r'namespace=herd&amp;status=unknown" aria-current="true"', chosen.html)
    assert "herd.sheep0" in admin.follow("All 4").links
    for limit in (2, 50):
        assert "4 in all." in admin.open(f"/tables?namespace=herd&limit={limit}").text
    # A status that is asked for stays in sight, even if no table has it.
    assert "blocked 0" in admin.open("/tables?namespace=herd&status=blocked").links

    (calm,) = service.admin.get("/tables", params={"search": "sheep0"}).json()["items"]
    jobs = f"/tables/{calm['id']}/jobs"
    for dry_run in (True, False):
        made = service.admin.post(jobs, json={"kind": "convert", "dry_run": dry_run}).json()
    service.admin.post(f"/jobs/{made['id']}/cancel").raise_for_status()
    shown = admin.open(f"/jobs?table_id={calm['id']}&kind=convert")
    assert {"All 2", "queued 1", "cancelled 1"} <= shown.links.keys()
    assert f"table_id={calm['id']}&kind=convert&status=queued" in shown.links["queued 1"]

    service.start_worker()
    alive = admin.open("/workers?search=w1&alive=true")
    assert any(words.startswith("alive ") for words in alive.links)
    catalogs = admin.open("/catalogs?search=loc")
    assert {"All 1", "unknown 1"} <= catalogs.links.keys() or "reachable 1" in catalogs.links
