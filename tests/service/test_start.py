"""Starting: settings, first keys, migrations, and the lease of the one replica that schedules."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from pydantic import ValidationError
from sqlmodel import SQLModel, select

from service.app import prepare
from service.auth.service import find_api_key_principal, provision_worker_key
from service.catalogs.iceberg import IcebergCatalogs
from service.catalogs.service import register_embedded_catalog
from service.db.database import Database, migrate
from service.errors import StartError
from service.records.api_keys import ApiKey, Role
from service.scheduling.background import Background
from service.settings import Settings
from tests.service.conftest import ADMIN_KEY, DATABASES, ManualTime
from trust.locations import LocationNotAllowedError


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def test_without_any_setting_everything_lies_in_one_directory(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = Settings()
    assert settings.database_url == f"sqlite:///{tmp_path}/icestream-data/icestream.db"
    assert settings.index_warehouse == f"file://{tmp_path}/icestream-data/index"
    settings.places.check(f"{tmp_path}/icestream-data/warehouse")
    with pytest.raises(LocationNotAllowedError):
        settings.places.check(f"{tmp_path}/elsewhere")
    assert not settings.is_public


def test_allowed_locations_are_a_comma_separated_list(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("ICESTREAM_ALLOWED_LOCATIONS", "s3://bucket/wh, file:///srv/wh")
    settings = Settings()
    settings.places.check("s3a://bucket/wh/db/t")
    settings.places.check("/srv/wh/x")
    with pytest.raises(LocationNotAllowedError):
        settings.places.check("s3://bucket/wh2")


@pytest.mark.parametrize("root", ["abfss://", "abfs:///", "WASBS:/", "abfss://../"])
def test_an_allowed_location_on_azure_names_a_container(root: str) -> None:
    with pytest.raises(ValidationError, match="choose the host"):
        Settings(allowed_locations=(root,))
    assert Settings(allowed_locations=("abfss://c@acc.dfs.core.windows.net", "abfss://c/x", "s3://"))


@pytest.mark.parametrize(
    ("host", "public"),
    [
        ("127.0.0.1", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("db.lan", True),
    ],
)
def test_an_address_is_public_unless_it_is_loopback(host: str, public: bool) -> None:
    assert Settings(host=host).is_public is public


def test_a_short_bootstrap_key_refuses_to_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="at least 32"):
        prepare(Settings(data_dir=tmp_path, bootstrap_key="short"))
    assert not (tmp_path / "icestream.db").exists()


def test_a_given_worker_key_is_one_from_the_first_start_on(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, bootstrap_key=ADMIN_KEY, bootstrap_worker_key=ADMIN_KEY[::-1])
    prepare(settings)
    prepare(settings)
    database = Database(settings.database_url)
    principal = find_api_key_principal(database, ADMIN_KEY[::-1])
    with database.read() as session:
        assert len(session.exec(select(ApiKey)).all()) == 2
    database.dispose()
    assert principal is not None
    assert principal.role is Role.WORKER


@pytest.mark.parametrize("worker_key", ["short", ADMIN_KEY])
def test_a_worker_key_that_is_short_or_the_admins_refuses_to_start(tmp_path: Path, worker_key: str) -> None:
    with pytest.raises(StartError, match="ICESTREAM_BOOTSTRAP_WORKER_KEY"):
        prepare(Settings(data_dir=tmp_path, bootstrap_key=ADMIN_KEY, bootstrap_worker_key=worker_key))


def test_a_public_address_without_any_admin_key_refuses_to_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="ICESTREAM_BOOTSTRAP_KEY"):
        prepare(Settings(data_dir=tmp_path, host="0.0.0.0"))
    prepare(Settings(data_dir=tmp_path, host="0.0.0.0", bootstrap_key=ADMIN_KEY))
    # The key is stored, so the next start may leave it out.
    prepare(Settings(data_dir=tmp_path, host="0.0.0.0"))


def test_starting_again_adds_no_second_bootstrap_key(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, bootstrap_key=ADMIN_KEY)
    prepare(settings)
    prepare(settings)
    database = Database(settings.database_url)
    with database.read() as session:
        assert len(session.exec(select(ApiKey)).all()) == 1
    database.dispose()


def test_a_database_of_another_kind_is_refused() -> None:
    with pytest.raises(StartError, match="sqlite:/// or postgresql"):
        Database("mysql://host/db")


_TURN = {
    "sqlite": "SELECT sql FROM sqlite_master WHERE name = 'ix_jobs_turn'",
    "postgresql": "SELECT indexdef FROM pg_indexes WHERE indexname = 'ix_jobs_turn'",
}
"""What makes the index that has an order, of which SQLite tells nothing else."""


def test_the_migrations_make_exactly_the_schema_of_the_models(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_object": _is_ours})
        assert compare_metadata(context, SQLModel.metadata) == []
        turn = connection.exec_driver_sql(_TURN[database.engine.dialect.name]).scalar_one()
        assert "(catalog_id, priority DESC, table_claimed_at, available_at, id)" in turn
    assert database.check() is None


def _is_ours(_object: object, name: str | None, kind: str, _reflected: bool, _other: object) -> bool:
    return (kind, name) not in (("table", "alembic_version"), ("index", "ix_jobs_turn"))


def test_a_database_that_is_not_migrated_says_so(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    assert "icestream migrate" in (database.check() or "")
    database.dispose()


@pytest.mark.integration
def test_replicas_that_start_together_migrate_one_after_the_other(
    postgresql: str, new_database_url: Callable[[str], str]
) -> None:
    url = f"{postgresql}/postgres"
    failures: list[Exception] = []

    def run() -> None:
        try:
            migrate(url)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("kind", DATABASES)
@pytest.mark.parametrize("jump_seconds", [-3600, 0, 3600])
def test_one_replica_schedules_until_it_is_silent_whatever_the_clock_says(
    kind: str, jump_seconds: float, new_database_url: Callable[[str], str], tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path, database_url=new_database_url(kind), lease_seconds=30)
    database = Database(settings.database_url)
    time = ManualTime()
    first, second = (Background(database, settings, IcebergCatalogs(settings), time.clock) for _ in range(2))
    assert [first.hold_lease(), second.hold_lease()] == [True, False]
    time.jump(jump_seconds)
    for _ in range(20):
        time.pass_by(1)
        assert [first.hold_lease(), second.hold_lease()] == [True, False]
    # The first is silent; it was last renewed within the last quarter of the lease of an attempt.
    waited = 0
    while not second.hold_lease():
        time.pass_by(1)
        waited += 1
    assert 7 <= waited <= 16
    assert not first.hold_lease()
    second.stop()
    assert first.hold_lease(), "who stops hands the lease back"
    first.stop()
    database.dispose()


def test_the_embedded_catalog_is_registered_once(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    prepare(settings)
    database = Database(settings.database_url)
    for _ in range(2):
        with database.write() as session:
            embedded = register_embedded_catalog(session, settings)
    assert embedded.properties["uri"] == f"sqlite:///{tmp_path}/catalog.db"
    database.dispose()


def test_a_new_worker_key_ends_the_one_of_the_last_start(database: Database) -> None:
    with database.write() as session:
        old = provision_worker_key(session)
    with database.write() as session:
        new = provision_worker_key(session)
    assert find_api_key_principal(database, old) is None
    found = find_api_key_principal(database, new)
    assert found is not None
    assert found.role == "worker"
