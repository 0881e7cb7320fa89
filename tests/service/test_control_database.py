"""A catalog's uri that leads to the service's own database is noticed, however it is spelled."""

import socket
from pathlib import Path
from typing import Any

import pytest

from service.catalogs.allowlists import check_reachable, check_record
from service.errors import InvalidError
from service.records.catalogs import CatalogType
from service.settings import Settings
from trust.locations import LocationNotAllowedError

NAMES = {"db.internal": "10.1.2.3", "db": "10.1.2.3", "other.internal": "10.1.2.4", "laptop": "127.0.1.1"}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that knows some hosts."""
    ask = socket.getaddrinfo

    def answer(host: str, port: int | None, *how: Any, **further: Any) -> Any:
        if further.get("flags") == socket.AI_NUMERICHOST:
            return ask(host, port, *how, **further)
        if host[0].isdigit():
            return ask(host, port, *how, **further)
        if host not in NAMES:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return ask(NAMES[host], port, *how, **further)

    monkeypatch.setattr(socket, "getaddrinfo", answer)


@pytest.mark.parametrize(
    ("own", "uri"),
    [
        ("postgresql://db.internal/icestream", "postgresql://db.internal/icestream"),
        ("postgresql+psycopg://a:b@db.internal/icestream", "postgresql+psycopg2://c@DB.Internal./icestream"),
        ("postgresql://db.internal/icestream", "postgresql://db.internal:5432/icestream?sslmode=require"),
        ("postgresql://db.internal:6000/icestream", "postgresql://db.internal:6000/ice%73tream"),
        ("postgresql://localhost/icestream", "postgresql://127.0.0.1/icestream"),
        ("postgresql://127.0.0.1/icestream", "postgresql://[::1]/icestream"),
        ("postgresql://[::1]/icestream", "postgresql://LOCALHOST./icestream"),
        ("postgresql://localhost/icestream", "postgresql://127.1:5432/icestream"),
        ("postgresql://localhost/icestream", "postgresql://0.0.0.0/icestream"),
        ("postgresql://localhost/icestream", "postgresql://[::ffff:127.0.0.1]/icestream"),
        ("postgresql:///icestream", "postgresql://localhost/icestream"),
        ("postgresql:///icestream?host=/var/run/postgresql", "postgresql://localhost/icestream"),
        ("postgresql:///icestream?host=db.internal&port=6000", "postgresql://db.internal:6000/icestream"),
        ("postgresql:///icestream?host=other:1,db.internal:2", "postgresql://db.internal:2/icestream"),
        ("postgresql://db.internal/?dbname=icestream", "postgresql://db.internal/icestream"),
        ("postgresql://icestream@db.internal", "postgresql://db.internal/icestream"),
        ("postgresql://10.1.2.3/icestream", "postgresql://0xa010203/icestream"),
    ],
)
def test_a_postgresql_database_is_known_by_each_of_its_spellings(tmp_path: Path, own: str, uri: str) -> None:
    assert Settings(data_dir=tmp_path, database_url=own).is_control_database(uri)


@pytest.mark.parametrize(
    ("own", "uri"),
    [
        ("postgresql://db.internal/icestream", "postgresql://db.internal/lake"),
        ("postgresql://db.internal/icestream", "postgresql://db.internal/Icestream"),
        ("postgresql://db.internal/icestream", "postgresql://db.internal:5433/icestream"),
        ("postgresql://db.internal/icestream", "postgresql://other.internal/icestream"),
        ("postgresql://localhost/icestream", "postgresql://db.internal/icestream"),
        ("postgresql:///icestream?host=a,b", "postgresql://db.internal/icestream"),
        ("sqlite:////data/icestream", "postgresql://db.internal/icestream"),
        ("postgresql://db.internal/icestream", "sqlite:////icestream"),
        ("postgresql://db.internal/icestream", "env:CATALOG_URI"),
    ],
)
def test_other_databases_are_others(tmp_path: Path, names: None, own: str, uri: str) -> None:
    settings = Settings(data_dir=tmp_path, database_url=own)
    assert not settings.is_control_database(uri)
    assert not settings.is_control_database(uri, resolve=True)


@pytest.mark.parametrize(
    ("own", "uri"),
    [
        ("postgresql://db.internal/icestream", "postgresql://db/icestream"),
        ("postgresql://db.internal/icestream", "postgresql://10.1.2.3/icestream"),
        ("postgresql://10.1.2.3/icestream", "postgresql://db/icestream"),
        ("postgresql:///icestream", "postgresql://laptop/icestream"),
    ],
)
def test_another_name_of_its_host_is_noticed_before_it_is_connected_to(
    tmp_path: Path, names: None, own: str, uri: str
) -> None:
    settings = Settings(data_dir=tmp_path, database_url=own)
    properties = {"uri": uri, "warehouse": f"file://{tmp_path}/w"}
    check_record(settings, CatalogType.SQL, properties)
    with pytest.raises(InvalidError, match="keeps its own tables"):
        check_reachable(settings, CatalogType.SQL, properties)


def test_a_record_names_any_other_database_of_its_server(tmp_path: Path) -> None:
    own, other = "postgresql://db.internal/icestream", "postgresql://db.internal/lake"
    settings = Settings(data_dir=tmp_path, database_url=own)
    check_record(settings, CatalogType.SQL, {"uri": other})
    with pytest.raises(InvalidError, match="keeps its own tables"):
        check_record(settings, CatalogType.SQL, {"uri": own})


def test_a_sqlite_file_is_known_by_each_of_its_spellings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    own = data / "icestream.db"
    own.touch()
    (data / "link.db").symlink_to(own)
    (data / "linked").symlink_to(data, target_is_directory=True)
    (data / "hard.db").hardlink_to(own)
    same = [
        f"{own}",
        f"/{own}",
        f"file://localhost{own}",
        f"FILE:{own}",
        f"{own}-wal",
        f"{data}//icestream.db",
        f"{data}/linked/linked/icestream.db",
        f"{data}/linked/icestream.db-journal",
        f"{data}/link.db",
        f"{data}/hard.db",
    ]
    monkeypatch.chdir(data)
    for url in (f"sqlite:///{own}", "sqlite:///icestream.db", "sqlite:///deep/../linked/icestream.db"):
        settings = Settings(data_dir=data, database_url=url)
        for one in same:
            with pytest.raises(LocationNotAllowedError):
                settings.places.check(one)
        settings.places.check(f"{data}/catalog.db")
        for name in (
            "link.db",
            "hard.db",
            "linked/icestream.db",
            "%69cestream.db",
            "down/../../icestream.db",
        ):
            properties = {"uri": f"sqlite:///{data}/{name}", "warehouse": f"file://{data}/w"}
            with pytest.raises(InvalidError, match=r"keeps for itself|not all read alike"):
                check_record(settings, CatalogType.SQL, properties)
