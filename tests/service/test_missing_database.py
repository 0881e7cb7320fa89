"""A catalog's SQLite database that is away is told of, and nothing is made where it lay."""

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from service.auth.models import SYSTEM
from service.catalogs.service import register_embedded_catalog
from service.database import Database
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
        register_embedded_catalog(session, settings, SYSTEM)
    assert (
        SqlCatalog("embedded", uri=f"sqlite:///{path}", init_catalog_tables="false").list_namespaces() == []
    )
    path.unlink()
    with database.write() as session:
        register_embedded_catalog(session, settings, SYSTEM)
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
