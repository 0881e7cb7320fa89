"""Statements that pages send to the database: each costs as much again in the service, whatever it asks."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from service.db.database import utc_now
from service.records.catalogs import Catalog
from service.records.health import HealthStatus, TableHealth
from service.records.jobs import JobKind
from tests.service.conftest import Running
from tests.service.pages.person import Person
from tests.service.queue_calls import add_tables, add_worker, claim, request, statements_of


@pytest.fixture(scope="module")
def tables(service: Running) -> list[str]:
    """Two of each health, with jobs that run and wait."""
    database = service.database
    found = add_tables(database, [f"t{number}" for number in range(2 * len(HealthStatus))], "lake")
    with database.write() as session:
        # Who knows the way already: the first hour has statements of its own.
        session.execute(update(Catalog).values(created_at=utc_now() - timedelta(days=8)))
        for number, table in enumerate(found):
            session.get_one(TableHealth, table).status = list(HealthStatus)[number // 2].value
    for table in found:
        for kind in (JobKind.INDEX, JobKind.CONVERT):
            request(database, table, kind)
    for _ in found[:3]:
        assert claim(database, add_worker(database)) is not None
    return found


@pytest.mark.parametrize(
    ("path", "most"),
    [("/", 34), ("/tables", 8), ("/tables/{table}", 30), ("/timeline", 13), ("/jobs", 12)],
    ids=["overview", "tables", "table", "timeline", "jobs"],
)
def test_a_page_takes_few_statements(
    service: Running, admin: Person, tables: list[str], path: str, most: int
) -> None:
    path = path.replace("{table}", tables[0])
    admin.open(path)
    with statements_of(service.database) as asked:
        admin.open(path)
    selected = [statement for statement, _ in asked if statement.startswith("SELECT")]
    assert len(selected) <= most, "\n".join(selected)
