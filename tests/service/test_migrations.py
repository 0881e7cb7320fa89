"""Migrations go up and down, on either database, and lose nothing that both versions know."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlmodel import select

from service.catalogs.models import Catalog
from service.database import Database, _scripts, migrate
from service.errors import StartError
from service.policies.models import Level, PolicyAttachment
from service.policies.service import STANDARD, get_policy, namespace_target
from service.tables.models import EnrolledTable
from tests.service.conftest import DATABASES


def schema(url: str) -> dict[str, tuple[set[Any], ...]]:
    """Columns, indexes, foreign keys and triggers of each table."""
    engine = create_engine(url)
    inspector = inspect(engine)
    catalog = "sqlite_master WHERE type = 'trigger'"
    if engine.dialect.name == "postgresql":
        catalog = "(SELECT tgname AS name, tgrelid::regclass::text AS tbl_name FROM pg_trigger"
        catalog += " WHERE NOT tgisinternal) AS triggers"
    with engine.connect() as connection:
        triggers = connection.execute(text(f"SELECT name, tbl_name FROM {catalog}")).all()
    found: dict[str, tuple[set[Any], ...]] = {
        table: (
            {column["name"] for column in inspector.get_columns(table)},
            {(index["name"], *index["column_names"]) for index in inspector.get_indexes(table)},
            {
                (*key["constrained_columns"], key["referred_table"])
                for key in inspector.get_foreign_keys(table)
            },
            {name for name, of_table in triggers if of_table == table},
        )
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }
    engine.dispose()
    return found


@pytest.mark.parametrize("kind", DATABASES)
def test_every_migration_can_be_taken_back_and_done_again(
    kind: str, new_database_url: Callable[[str], str]
) -> None:
    url = new_database_url(kind)
    newest = schema(url)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO address_counters (table_uuid, next_address) VALUES ('t', 7)"))
    seen = [newest]
    older = [script.revision for script in _scripts(url).iterate_revisions("head", "base")][1:]
    for revision in older:
        migrate(url, revision)
        seen.append(schema(url))
    assert older[-1] == "0001"
    assert all(one != other for one, other in pairwise(seen))
    migrate(url)
    assert schema(url) == newest
    with engine.connect() as connection:
        assert connection.execute(text("SELECT next_address FROM address_counters")).scalar() == 7
    engine.dispose()
    migrate(url, "0001")
    with pytest.raises(StartError, match=r"at migration 0001; it can go back to these: none\."):
        migrate(url, older[0])


def test_a_migration_that_the_database_was_never_at_is_refused(
    new_database_url: Callable[[str], str],
) -> None:
    with pytest.raises(StartError, match=r"can go back to these: 0001, 0002, "):
        migrate(new_database_url("sqlite"), "nonsense")


def test_an_older_version_leaves_a_newer_database_alone_and_says_how_to_get_it_back(
    new_database_url: Callable[[str], str],
) -> None:
    url = new_database_url("sqlite")
    database = Database(url)
    head = _scripts(url).get_current_head()
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    said = rf"at migration 9999, of a newer version .* run its `icestream migrate --down-to {head}` first\."
    for refuse in (database.check_start, lambda: migrate(url), lambda: migrate(url, "0001")):
        with pytest.raises(StartError, match=said):
            refuse()
    with database.engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "9999"
    database.dispose()


@pytest.mark.parametrize("kind", DATABASES)
def test_names_with_dots_in_their_parts_are_kept_on_the_way_there_and_back(
    kind: str, new_database_url: Callable[[str], str]
) -> None:
    url = new_database_url(kind)
    database = Database(url)
    with database.write() as session:
        catalog = Catalog(name="local", type="sql", properties={})
        session.add(catalog)
        session.flush()
        targets = [namespace_target(catalog.id, parts) for parts in (["a.b"], ["a", "b"])]
        policy = get_policy(session, STANDARD)
        for target, identifier in zip(targets, (["a.b", "c"], ["a", "b", "c"]), strict=True):
            session.add(
                PolicyAttachment(
                    target=target,
                    level=Level.NAMESPACE.value,
                    catalog_id=catalog.id,
                    namespace=identifier[:-1],
                    policy_id=policy.id,
                )
            )
            session.add(
                EnrolledTable(
                    catalog_id=catalog.id,
                    identifier=identifier,
                    namespace="a.b",
                    name="a.b.c",
                    table_uuid=str(identifier),
                    format_version=2,
                    location="file:///wh",
                )
            )
    told = r"more than once: table a\.b\.c \(branch main\), namespace a\.b\. Remove all but one"
    with pytest.raises(StartError, match=told):
        migrate(url, "0011")
    with database.write() as session:
        session.delete(session.get_one(PolicyAttachment, targets[1]))
        session.delete(session.exec(select(EnrolledTable).where(EnrolledTable.namespace == "a.b")).first())
    migrate(url, "0011")
    with database.engine.connect() as connection:
        found = connection.execute(text("SELECT target FROM policy_attachments WHERE level = 'namespace'"))
        assert found.scalars().all() == [f"namespace:{catalog.id}:a.b"]
    migrate(url)
    with database.read() as session:
        assert session.get_one(PolicyAttachment, targets[0]).namespace == ["a.b"]
        assert [table.namespace for table in session.exec(select(EnrolledTable))] == ["a.b"]
    database.dispose()
