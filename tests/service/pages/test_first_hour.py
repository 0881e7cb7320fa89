"""From nothing to a converted table by what the overview offers next, and what it tells then."""

import re
from datetime import timedelta
from pathlib import Path

from fastapi import Request
from sqlalchemy import update
from sqlmodel import col

from service.catalogs.service import register_embedded_catalog
from service.db.database import utc_now
from service.records.api_keys import Role
from service.records.catalogs import Catalog
from service.records.jobs import Job
from service.settings import Settings
from service.ui.first_hour import first_hour
from tests.browser.running_service import convert_result
from tests.service.conftest import ADMIN_KEY, running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Person
from tests.service.queue_calls import statements_of

NO_FILES = {
    "code": "store_away",
    "title": "The files can't be read",
    "detail": "The store answers 403.",
    "remedy": "Look at the credentials.",
    "retryable": False,
}


def test_who_follows_the_steps_sees_what_the_first_conversion_has_changed(
    tmp_path: Path, migrated_sqlite: Path
) -> None:
    (tmp_path / "icestream.db").write_bytes(migrated_sqlite.read_bytes())
    settings = Settings(
        data_dir=tmp_path,
        database_url=f"sqlite:///{tmp_path / 'icestream.db'}",
        bootstrap_key=ADMIN_KEY,
        background=False,
    )
    iceberg = IcebergCatalog(tmp_path)
    iceberg.create("shop.orders")
    iceberg.append("shop.orders", list(range(10)))
    iceberg.delete_keys("shop.orders", [1, 2, 3])
    with running(settings) as service, Person(service) as admin:
        with service.database.write() as session:
            register_embedded_catalog(session, settings)
        begins = admin.open("/")
        assert "Or use embedded , the catalog that came with this installation" in begins.text
        assert "Connect a catalog next" in begins.text
        assert "Choose a table by what its readers pay later" in begins.text
        admin.follow("Register a catalog")
        said = {f"property__{name}": value for name, value in iceberg.properties.items()}
        admin.send("/catalogs/new", name="local", **said)

        assert "Connect a catalog done local is registered." in admin.open("/").text
        admin.follow("See what local holds")
        job = admin.send("/candidates", {"policy": ""}, then="look")
        assert "Dry run: convert" in job.text
        (table,) = service.admin.get("/tables").json()["items"]
        assert table["policy"] == "manual"
        service.poll(table["id"])
        waits = admin.open("/")
        assert "See what a conversion would do next Dry run: convert queued" in waits.text
        assert "Convert it later" in waits.text

        worker = service.start_worker()
        assignment = service.claim(worker)
        assert assignment is not None
        service.finish(assignment, status="failed", error=NO_FILES).raise_for_status()
        failed = admin.open("/")
        assert "See what a conversion would do next Dry run: convert failed" in failed.text
        assert f"{NO_FILES['title']} {NO_FILES['detail']}" in failed.text
        assert failed.links["Dry run: convert"].endswith(f"/jobs/{assignment['job']['id']}")

        admin.send(f"/tables/{table['id']}/jobs", dry_run="true")
        assignment = service.claim(worker)
        assert assignment is not None
        service.finish(assignment, result=convert_result(dry_run=True)).raise_for_status()
        seen = admin.open("/")
        assert "The dry run : would resolve 48,210" in seen.text.replace("\N{NO-BREAK SPACE}", " ")
        iceberg.create("shop.returns")
        iceberg.append("shop.returns", list(range(10)))
        iceberg.delete_keys("shop.returns", [1, 2, 3, 4])
        other_table = service.enroll("shop.returns", policy="manual")["id"]
        service.poll(other_table)
        assert "The dry run" in admin.open("/").text, "it goes on with the table that was tried"
        with Person(service, Role.VIEWER) as viewer:
            assert "Convert it next That takes the role operator." in viewer.open("/").text
            assert not viewer.page.offers(f"/tables/{table['id']}/jobs")
        admin.send(f"/tables/{table['id']}/jobs", {"dry_run": "false"})
        assignment = service.claim(worker)
        assert assignment is not None
        assert not assignment["job"]["dry_run"]
        service.finish(assignment, status="failed", error=NO_FILES).raise_for_status()
        assert "Convert it next Convert failed" in admin.open("/").text

        admin.send(f"/tables/{table['id']}/jobs", {"dry_run": "false"})
        assignment = service.claim(worker)
        assert assignment is not None
        service.finish(assignment, result=convert_result()).raise_for_status()
        told = admin.open("/").text.replace("\N{NO-BREAK SPACE}", " ")
        assert "after it, known with the next look" in told
        assert "The first hour" not in told
        assert "deleted 47,985 rows that its equality deletes stood for" in told
        assert "Equality delete files before 25 → after 1" in told
        assert "Equality deletes before 48,213 → after 3" in told
        iceberg.append("shop.orders", [11])
        service.poll(table["id"])
        cost = re.compile(r"Full read by Spark (before .*?) estimated, right before it and after")
        after = cost.search(admin.open("/").text)
        assert after is not None
        for number in (5, 6, 7):
            iceberg.delete_keys("shop.orders", [number])
        service.poll(table["id"])
        now = cost.search(admin.open("/").text)
        assert now is not None
        assert now[1] == after[1], "what was written since is no part of it"
        admin.send("/first-hour/dismiss")
        assert "The first conversion" not in admin.page.text
        with Person(service) as other:
            assert "The first conversion" in other.open("/").text
            with service.database.write() as session:
                session.execute(update(Job).where(~col(Job.dry_run)).values(kind="rewrite_data_files"))
            assert "A rewriting of data files of shop.orders took" in other.open("/").text
            with service.database.write() as session:
                session.execute(update(Job).values(ended_at=utc_now() - timedelta(days=2)))
            assert "The first conversion" not in other.open("/").text
            with service.database.write() as session:
                session.execute(update(Job).values(result={}))
            assert "The first hour" in other.open("/").text
            with service.database.write() as session:
                session.execute(update(Catalog).values(created_at=utc_now() - timedelta(days=8)))
            assert "The first hour" not in other.open("/").text, "who is there for long knows the way"
        nobody = Request({"type": "http", "headers": []})
        with service.database.read() as session, statements_of(service.database) as asked:
            assert first_hour(session, settings, nobody, utc_now(), is_any_enrolled=True) is None
        assert len([one for one, _ in asked if one.startswith("SELECT")]) == 1, asked
    iceberg.close()
