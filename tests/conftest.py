"""What holds for all tests, whatever starts them."""

import gc
import logging
import os
import sqlite3
from collections import defaultdict
from collections.abc import Generator, Iterator
from functools import cache
from typing import Any

import httpx
import pytest
import typer.main
from hypothesis import HealthCheck, settings
from sqlalchemy import Dialect, Engine, event
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

from tests.class_archive import java_options
from tests.patience import PATIENCE_SECONDS
from tests.progress import Progress
from tests.shares import in_shares

# One that is set already counts.
os.environ.setdefault("JDK_JAVA_OPTIONS", java_options())

# How long an example takes says more of the machine than of the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# CI always tries the same examples; `make exhaustive`, and whoever runs a test alone, draws others.
settings.register_profile("alike", settings.get_profile("untimed"), derandomize=True)


@pytest.fixture(scope="session", autouse=True)
def patient_database() -> Iterator[None]:
    """The control database refuses after seconds that a busy machine may need: who tests that sets others."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LOCK", "POOL", "ANSWER", "TURN", "IDLE"):
            patch.setattr(f"service.db.database._{name}_SECONDS", int(PATIENCE_SECONDS))
        yield


@pytest.fixture(scope="session", autouse=True)
def nobody_has_logged_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever address and key whoever runs the tests has kept for the command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Nearly every test has a database, and so an engine, which would compile each statement anew."""
    compiled: dict[type[Dialect], LRUCache[Any, Any]] = defaultdict(lambda: LRUCache(2000))
    of_all = property(lambda engine: compiled[type(engine.dialect)], lambda engine, own: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_compiled_cache", of_all, raising=False)
        # Statements are kept by their dialect, of which each engine has one of its own.
        patch.setattr(DefaultDialect, "__hash__", lambda self: hash(type(self)))
        patch.setattr(DefaultDialect, "__eq__", lambda self, other: type(self) is type(other))
        yield


@pytest.fixture(scope="session", autouse=True)
def disks_not_waited_for() -> Iterator[None]:
    """By SQLite, with each commit: no test needs what it holds after a crash of the machine."""

    def connected(connection: Any, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", connected)
    yield
    event.remove(Engine, "connect", connected)


@pytest.fixture(scope="session", autouse=True)
def commands_made_once() -> Iterator[None]:
    """Whoever runs a command in a test would make all of them anew, which takes longer than to run it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def logs_as_they_are() -> Iterator[None]:
    """A command sets up the logs of its process, which here is that of all tests: what would write them then
    outlives the stream of the test that ran it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging, "basicConfig", lambda **_: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def certificates_loaded_once() -> Iterator[None]:
    """Each client of HTTP would load all that are trusted, which takes longer than most of its requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", cache(httpx.create_ssl_context))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: to look for garbage in it, again and again, is a waste."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if xdist := getattr(config, "workerinput", None):
        items[:] = in_shares(items, xdist["workercount"])


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("exhaustive"):
        item.add_marker("thorough")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("alike" if "thorough" in config.getoption("markexpr") else "untimed")
    config.pluginmanager.register(Progress(config))
