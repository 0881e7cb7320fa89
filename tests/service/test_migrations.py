"""Migrations go up and down, on either database, and lose nothing that both versions know."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from sqlalchemy import create_engine, inspect, text

from service.database import _scripts, migrate
from service.errors import StartError
from tests.service.conftest import DATABASES


def schema(url: str) -> dict[str, tuple[set[str], set[str | None]]]:
    """Columns and indexes of each table."""
    engine = create_engine(url)
    inspector = inspect(engine)
    found = {
        table: (
            {column["name"] for column in inspector.get_columns(table)},
            {index["name"] for index in inspector.get_indexes(table)},
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
