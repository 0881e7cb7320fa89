"""A migrated database of either kind, and the service itself behind a real HTTP server."""

import asyncio
import shutil
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource
from starlette.types import ASGIApp

from service.app import _complete, create_app, prepare
from service.auth.access import check_every_route_declares_access
from service.auth.models import SYSTEM, ApiKeyRequest
from service.auth.service import create_api_key, ensure_bootstrap_keys
from service.command.serving import IDLE_SECONDS
from service.db.database import Database, migrate
from service.policies.service import ensure_built_in
from service.records.api_keys import Role
from service.scheduling.background import Background, Clock
from service.settings import Settings
from tests.patience import PATIENCE_SECONDS
from tests.service.iceberg_tables import CatalogTemplate, IcebergCatalog
from tests.service.postgresql import execute, running_server

ADMIN_KEY = "admin-key-of-these-tests-0123456789abcdef"
# Loading the certificates takes longer than most tests, and none is ever needed.
PLAIN_HTTP = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
T = TypeVar("T")
DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)]
ON_BOTH = pytest.mark.parametrize("database_kind", DATABASES)
"""For a test about SQL or locks in a module that is `alike_on_both` else."""
LEFT_TO_THOROUGH = [pytest.mark.integration, pytest.mark.thorough]


@pytest.fixture(scope="session", autouse=True)
def routes_checked_once() -> Iterator[None]:
    """Each application has the same ones, which take a while to look through."""

    def check(app: FastAPI) -> None:
        check_every_route_declares_access(app)
        patch.setattr("service.app.check_every_route_declares_access", lambda app: None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.app.check_every_route_declares_access", check)
        yield


class ServedDatabase(Database):
    """A copy of a migrated database is not looked through when a service starts with it."""

    def check_start(self) -> None:
        if self.url not in _migrated:
            super().check_start()


def complete_unless_copied(database: Database, settings: Settings) -> None:
    """Copies have their policies, and lack the keys alone."""
    if database.url not in _migrated:
        _complete(database, settings)
        return
    with database.write() as session:
        ensure_bootstrap_keys(session, settings)


@pytest.fixture(scope="session", autouse=True)
def copies_looked_at_once() -> Iterator[None]:
    """To look for what is to be done there takes as long as what a test does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.app.Database", ServedDatabase)
        patch.setattr("service.app._complete", complete_unless_copied)
        yield


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    with running_server(in_memory=True) as url:
        yield url


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "icestream.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_postgresql(postgresql: str) -> str:
    on_server(postgresql, "CREATE DATABASE migrated")
    _migrate(f"{postgresql}/migrated")
    return "migrated"


def _migrate(url: str) -> None:
    migrate(url)
    database = Database(url)
    with database.write() as session:
        ensure_built_in(session)
    database.dispose()


def on_server(server: str, statement: str) -> None:
    execute(f"{server}/postgres", statement)


@pytest.fixture
def new_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Makes copies of a migrated database, by kind."""
    dropped: list[str] = []

    def make(kind: str) -> str:
        if kind == "sqlite":
            path = tmp_path / f"{uuid.uuid4().hex}.db"
            shutil.copy(request.getfixturevalue("migrated_sqlite"), path)
            _migrated.add(f"sqlite:///{path}")
            return f"sqlite:///{path}"
        server = request.getfixturevalue("postgresql")
        template = request.getfixturevalue("migrated_postgresql")
        name = f"copy_{uuid.uuid4().hex}"
        on_server(server, f"CREATE DATABASE {name} TEMPLATE {template}")
        dropped.append(name)
        _migrated.add(f"{server}/{name}")
        return f"{server}/{name}"

    yield make
    for name in dropped:  # each takes 8 MB
        on_server(request.getfixturevalue("postgresql"), f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=DATABASES)
def database_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=LEFT_TO_THOROUGH)])
def alike_on_both(request: pytest.FixtureRequest) -> str:
    """The `database_kind` of modules about what neither locks nor a SQL that differs decide."""
    return str(request.param)


@pytest.fixture
def database(database_kind: str, new_database_url: Callable[[str], str]) -> Iterator[Database]:
    database = Database(new_database_url(database_kind))
    yield database
    database.dispose()


class OwnSettings(Settings):
    """Those that a test gives, and no others: to look through the environment takes a while."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


@pytest.fixture
def settings(database_kind: str, tmp_path: Path, new_database_url: Callable[[str], str]) -> Settings:
    """Polls nothing by itself: tests that want it call `Running.poll` or turn `background` on."""
    return OwnSettings(
        data_dir=tmp_path,
        database_url=new_database_url(database_kind),
        bootstrap_key=ADMIN_KEY,
        background=False,
        failed_logins_per_minute=0,  # many tests are strangers on purpose
        poll_interval_seconds=0.2,
        scheduler_interval_seconds=0.1,
    )


class ManualTime:
    """A clock that a test sets, and the time that really passes."""

    def __init__(self) -> None:
        self.wall = datetime(2026, 1, 1, tzinfo=UTC)
        self.monotonic = 1000.0
        self.clock = Clock(lambda: self.wall, lambda: self.monotonic)

    def pass_by(self, seconds: float) -> None:
        self.monotonic += seconds
        self.jump(seconds)

    def jump(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)


@dataclass
class Running:
    """A service behind HTTP, with a client for each role."""

    url: str
    settings: Settings
    database: Database
    background: Background
    _clients: list[httpx.Client]
    admin: httpx.Client = field(init=False)

    def client(self, role: Role) -> httpx.Client:
        with self.database.write() as session:
            key = create_api_key(session, SYSTEM, ApiKeyRequest(name=role.value, role=role)).key
        return self.client_with({"Authorization": f"Bearer {key}"})

    def client_with(self, headers: dict[str, str]) -> httpx.Client:
        client = httpx.Client(
            base_url=f"{self.url}/api/v1", headers=headers, timeout=PATIENCE_SECONDS, verify=PLAIN_HTTP
        )
        self._clients.append(client)
        return client

    def register(self, catalog: IcebergCatalog) -> dict[str, Any]:
        body = {"name": catalog.name, "type": "sql", "properties": catalog.properties}
        answer = self.admin.post("/catalogs", json=body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def enroll(self, name: str = "db.t", **fields: Any) -> dict[str, Any]:
        body = {"catalog": "local", "identifier": name.split("."), "branch": "main", "policy": None}
        answer = self.admin.post("/tables", json=body | fields)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def poll(self, table_id: str) -> None:
        """What the poller does when a table's time has come."""
        self.background.poller.poll(table_id)

    def start_worker(self) -> str:
        body = {"name": "w1", "hostname": "host", "pid": 1, "version": "0.1.0"}
        return str(self.admin.post("/workers", json=body).json()["id"])

    def claim(self, worker_id: str, wait_seconds: float = 0) -> dict[str, Any] | None:
        answer = self.admin.post(f"/workers/{worker_id}/claim", json={"wait_seconds": wait_seconds})
        assert answer.status_code in (200, 204), answer.text
        return dict(answer.json()) if answer.status_code == 200 else None

    def finish(self, assignment: dict[str, Any], **report: Any) -> httpx.Response:
        path = f"/jobs/{assignment['job']['id']}/attempts/{assignment['attempt']}/finish"
        return self.admin.post(path, json={"status": "succeeded"} | report)

    def finished(self, assignment: dict[str, Any], **report: Any) -> dict[str, Any]:
        """The job, once its report was taken."""
        answer = self.finish(assignment, **report)
        assert answer.status_code == 204, answer.text
        return dict(self.admin.get(f"/jobs/{assignment['job']['id']}").json())


def run_apart(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns; in the main thread, a test of the browser may have left a loop running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


class PromptServer(uvicorn.Server):
    """uvicorn's, without its pauses of a tenth of a second: most tests have a server of their own."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await asyncio.sleep(0.01)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                while self.server_state.connections or self.server_state.tasks:
                    await asyncio.sleep(0.005)
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


@contextmanager
def listening(app: ASGIApp) -> Iterator[str]:
    """The URL that an application is served at, from a thread of its own."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_config=None,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
    )
    server = PromptServer(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the server did not start")
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        # Also after a test that failed, which would else wait for this thread for ever.
        server.should_exit = True
        thread.join()


def with_lookup_server(settings: Settings, url: str, token: str) -> Settings:
    return settings.model_copy(update={"lookup_url": url, "lookup_token": SecretStr(token)})


_migrated: set[str] = set()
"""URLs of copies of a migrated database: to look for what is to be done there takes a while."""


@contextmanager
def running(settings: Settings) -> Iterator[Running]:
    if settings.database_url not in _migrated:
        prepare(settings)
    app = create_app(settings)
    with listening(app) as url:
        database = app.state.database
        background = Background(database, settings, app.state.catalogs)
        clients: list[httpx.Client] = []
        service = Running(url, settings, database, background, clients)
        service.admin = service.client_with({"Authorization": f"Bearer {ADMIN_KEY}"})
        try:
            yield service
        finally:
            for client in clients:
                client.close()
            background.stop()


@pytest.fixture
def service(settings: Settings) -> Iterator[Running]:
    with running(settings) as service:
        yield service


@pytest.fixture(scope="session")
def iceberg_template(tmp_path_factory: pytest.TempPathFactory) -> CatalogTemplate:
    return CatalogTemplate(tmp_path_factory.mktemp("iceberg"))


@pytest.fixture
def iceberg(tmp_path: Path, iceberg_template: CatalogTemplate) -> Iterator[IcebergCatalog]:
    """A catalog that holds one table, `db.t`, with one data file."""
    catalog = iceberg_template.copy(tmp_path)
    yield catalog
    catalog.close()
