"""A catalog's SQLite database that is away is told of, and nothing is made where it lay."""

import sqlite3
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from service.catalogs import sqlite
from service.catalogs.clients import open_catalog, open_engine
from service.catalogs.service import register_embedded_catalog
from service.db.database import Database
from service.records.catalogs import CatalogType
from service.settings import Settings
from tests.service.conftest import Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog

database_kind = alike_on_both


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_neither_reading_a_catalog_nor_its_outage_leaves_a_file_beside_it(
    service: Running, iceberg: IcebergCatalog, tmp_path_factory: pytest.TempPathFactory, mode: str
) -> None:
    with iceberg.catalog.engine.connect() as connection:
        connection.exec_driver_sql(f"PRAGMA journal_mode={mode}")
    iceberg.catalog.engine.dispose()
    database, away = Path(iceberg.directory / "cat.db"), tmp_path_factory.mktemp("away") / "cat.db"
    service.register(iceberg)
    table = service.enroll()

    def use() -> tuple[str, str, int]:
        service.poll(table["id"])
        health = service.admin.get(f"/tables/{table['id']}/health").json()
        checked = service.admin.post("/catalogs/local/check").json()
        candidates = service.admin.get("/catalogs/local/candidates?all_tables=true")
        return (health["poll_error"] or {}).get("detail", ""), checked["explanation"], candidates.status_code

    present = {name for name in files(iceberg.directory) if name.startswith("cat.db")}
    assert use()[2] == 200
    database.rename(away)
    polled, checked, candidates = use()
    assert "is not there" in polled
    assert "is not there" in checked
    assert candidates == 502
    assert not any(name.startswith("cat.db") for name in files(iceberg.directory))
    away.rename(database)
    polled, checked, candidates = use()
    assert polled == ""
    assert "1 table" in checked
    assert candidates == 200
    assert {name for name in files(iceberg.directory) if name.startswith("cat.db")} == present


def test_a_database_that_a_link_names_is_read_with_what_its_writer_has_not_moved_into_it(
    settings: Settings, tmp_path: Path
) -> None:
    writer, properties = write_ahead_catalog(tmp_path)
    link = tmp_path / "links" / "cat.db"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "cat.db")
    writer.create_namespace("late")
    assert (tmp_path / "cat.db-wal").stat().st_size > 0
    reader = open_catalog(settings, CatalogType.SQL, "c", properties | {"uri": f"sqlite:///{link}"})
    assert reader.list_namespaces() == [("late",)]
    assert files(link.parent) == {"cat.db"}
    writer.close()


def test_a_database_that_is_written_while_it_is_read_without_locks_is_read_again(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, properties = write_ahead_catalog(tmp_path)
    writer.create_namespace("early")
    writer.close()
    assert not (tmp_path / "cat.db-wal").exists()
    reader = open_catalog(settings, CatalogType.SQL, "c", properties)
    opened: list[sqlite3.Connection] = []
    connect = sqlite.connect

    def connect_and_be_overtaken(path: str, lock_seconds: float) -> sqlite3.Connection:
        opened.append(connect(path, lock_seconds))
        if len(opened) == 1:
            writer.create_namespace("late")
            writer.close()
        return opened[-1]

    monkeypatch.setattr(sqlite, "connect", connect_and_be_overtaken)
    assert isinstance(reader, SqlCatalog)
    reader.engine = open_engine(settings, properties["uri"])
    assert sorted(reader.list_namespaces()) == [("early",), ("late",)]
    assert len(opened) == 2


def write_ahead_catalog(directory: Path) -> tuple[SqlCatalog, dict[str, str]]:
    """Its writer, whose log is gone when it is closed."""
    properties = {
        "uri": f"sqlite:///{directory}/cat.db",
        "warehouse": f"file://{directory}",
        "init_catalog_tables": "false",
    }
    writer = SqlCatalog("c", **properties | {"init_catalog_tables": "true"})
    with writer.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=wal")
    writer.close()
    return writer, properties


def test_a_database_without_the_tables_of_a_catalog_is_not_changed(service: Running, tmp_path: Path) -> None:
    database = tmp_path / "empty.db"
    database.touch()
    properties = {"uri": f"sqlite:///{database}", "warehouse": f"file://{tmp_path}", "schema_version": "v1"}
    service.admin.post("/catalogs", json={"name": "c", "type": "sql", "properties": properties})
    assert "holds no Iceberg catalog" in service.admin.post("/catalogs/c/check").json()["explanation"]
    assert database.stat().st_size == 0


def test_the_embedded_catalog_is_made_once(database: Database, settings: Settings) -> None:
    path = settings.data_dir / "catalog.db"
    with database.write() as session:
        register_embedded_catalog(session, settings)
    assert (
        SqlCatalog("embedded", uri=f"sqlite:///{path}", init_catalog_tables="false").list_namespaces() == []
    )
    path.unlink()
    with database.write() as session:
        register_embedded_catalog(session, settings)
    assert not path.exists()


def test_a_check_makes_no_folder_for_indexes(
    service: Running, iceberg: IcebergCatalog, tmp_path: Path
) -> None:
    place = tmp_path / "indexes" / "below"
    body = {
        "name": "local",
        "type": "sql",
        "properties": iceberg.properties,
        "index_warehouse": f"file://{place}",
    }
    assert service.admin.post("/catalogs", json=body).status_code == 201
    steps = {step["name"]: step for step in service.admin.post("/catalogs/local/check").json()["steps"]}
    assert steps["index_warehouse"]["status"] == "ok"
    assert "first job that indexes makes it" in steps["index_warehouse"]["detail"]
    assert not place.parent.exists()
