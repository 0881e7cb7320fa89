"""Migrations go up and down, on either database, and lose nothing that both versions know."""

import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import MetaData, Table, text
from typer.testing import CliRunner

from service.command.main import app
from service.db.database import _MIGRATIONS, Database, _alembic_config, _scripts, migrate
from service.errors import StartError
from tests.service.conftest import DATABASES

Rows = dict[str, list[dict[str, Any]]]
Schema = dict[str, tuple[set[Any], ...]]


def tables_of(database: Database) -> list[Table]:
    """As they are now, each after those that it names."""
    metadata = MetaData()
    metadata.reflect(database.engine)
    return [table for table in metadata.sorted_tables if table.name != "alembic_version"]


def schema_of(database: Database, tables: list[Table]) -> Schema:
    """Columns, indexes, foreign keys and triggers of each table."""
    catalog = "sqlite_master WHERE type = 'trigger'"
    if not database.is_sqlite:
        catalog = "(SELECT tgname AS name, tgrelid::regclass::text AS tbl_name FROM pg_trigger"
        catalog += " WHERE NOT tgisinternal) AS triggers"
    with database.engine.connect() as connection:
        triggers = connection.execute(text(f"SELECT name, tbl_name FROM {catalog}")).all()
    return {
        table.name: (
            {column.name for column in table.columns},
            {(index.name, *(column.name for column in index.columns)) for index in table.indexes},
            {(key.parent.name, key.column.table.name) for key in table.foreign_keys},
            {name for name, of_table in triggers if of_table == table.name},
        )
        for table in tables
    }


def rows_of(database: Database, tables: list[Table]) -> Rows:
    with database.engine.connect() as connection:
        return {
            table.name: [
                dict(row) for row in connection.execute(text(f"SELECT * FROM {table.name}")).mappings()
            ]
            for table in tables
        }


def fill(database: Database, tables: list[Table]) -> None:
    """A row in each empty table, with a value in every column; as all ids agree, they name each other."""
    values: dict[type, Any] = {
        str: "x",
        int: 7,
        float: 0.5,
        bool: True,
        datetime: datetime(2026, 1, 1, tzinfo=UTC),
        object: ["a", "b"],  # JSON
    }
    with database.engine.begin() as connection:
        for table in tables:
            if connection.execute(text(f"SELECT 1 FROM {table.name}")).first() is None:
                row = {column.name: values[column.type.python_type] for column in table.columns}
                connection.execute(table.insert().values(row))


def differing(before: Rows, after: Rows) -> list[str]:
    """Tables of both whose rows differ in columns of both."""
    return [
        table
        for table in before.keys() & after.keys()
        if len(before[table]) != len(after[table])
        or any(
            old[column] != new[column]
            for old, new in zip(before[table], after[table], strict=True)
            for column in old.keys() & new.keys()
        )
    ]


def go(database: Database, way: Callable[[Config, str], None], revision: str) -> None:
    with database._writing_engine.connect() as connection:
        config = _alembic_config(database.url)
        config.attributes["connection"] = connection
        way(config, revision)
        connection.commit()


NEXT = """\"Another schema.\"
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "next", {head!r}, None, None


def upgrade():
    op.add_column("catalogs", sa.Column("colour", sa.String(), nullable=False, server_default="red"))


def downgrade():
    op.drop_column("catalogs", "colour")
"""


def release_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on this program has one more migration, as its next version will have."""
    migrations = tmp_path / "migrations"
    shutil.copytree(_MIGRATIONS, migrations)
    monkeypatch.setattr("service.db.database._MIGRATIONS", migrations)
    head = _scripts("sqlite://").get_current_head()
    (migrations / "versions" / "next.py").write_text(NEXT.format(head=head))


@pytest.mark.parametrize("kind", DATABASES)
def test_every_migration_keeps_all_rows_on_the_way_there_and_back(
    kind: str,
    new_database_url: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    database = Database(new_database_url(kind))
    request.addfinalizer(database.dispose)
    release_another(tmp_path, monkeypatch)
    migrate(database.url)
    newest = schema_of(database, tables_of(database))
    revisions = [script.revision for script in _scripts(database.url).iterate_revisions("head", "base")]
    assert (revisions[0], revisions[-1]) == ("next", "0001")
    go(database, command.downgrade, "base")
    assert tables_of(database) == []
    rows: Rows = {}
    there: dict[str, Schema] = {}
    for revision in reversed(revisions):
        go(database, command.upgrade, revision)
        tables = tables_of(database)
        found = rows_of(database, tables)
        assert (rows.keys() - found.keys(), differing(rows, found)) == (set(), []), revision
        fill(database, tables)  # each at the first version that has it
        rows, there[revision] = rows_of(database, tables), schema_of(database, tables)
        assert all(rows.values())
    assert all(there[one] != there[other] for one, other in pairwise(revisions))
    assert there[revisions[0]] == newest
    for revision in revisions[1:]:
        migrate(database.url, revision)
        tables = tables_of(database)
        found = rows_of(database, tables)
        assert (schema_of(database, tables), differing(rows, found)) == (there[revision], []), revision
        rows = found
    with pytest.raises(StartError, match=r"at migration 0001; it can go back to these: none\."):
        migrate(database.url, "next")
    assert all(rows.values())
    migrate(database.url)
    tables = tables_of(database)
    assert (schema_of(database, tables), differing(rows, rows_of(database, tables))) == (newest, [])


def test_a_migration_that_the_database_was_never_at_is_refused(
    new_database_url: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database_url("sqlite")
    release_another(tmp_path, monkeypatch)
    migrate(url)
    with pytest.raises(StartError, match=r"can go back to these: 0001"):
        migrate(url, "nonsense")


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


def test_nobody_goes_back_to_an_older_schema_without_a_yes(
    new_database_url: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(new_database_url("sqlite"))
    release_another(tmp_path, monkeypatch)
    migrate(database.url)
    monkeypatch.setenv("ICESTREAM_DATABASE_URL", database.url)
    monkeypatch.setenv("ICESTREAM_DATA_DIR", str(tmp_path))

    def revision() -> Any:
        with database.engine.connect() as connection:
            return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()

    back = ("migrate", "--down-to", "0001")
    unasked = CliRunner().invoke(app, back)
    assert unasked.exit_code == 2
    assert "say so with --yes" in " ".join(unasked.stderr.split())
    # On a terminal, whoever is there is asked.
    for typed, code, left in (("n\n", 1, "next"), ("y\n", 0, "0001")):
        assert revision() == "next"
        terminal = StringIO(typed)
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", terminal)
        with pytest.raises(SystemExit) as ended:
            app(back)
        assert (ended.value.code, revision()) == (code, left)
    migrate(database.url)
    assert CliRunner().invoke(app, (*back, "--yes")).exit_code == 0
    assert revision() == "0001"
    database.dispose()
