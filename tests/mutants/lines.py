"""A plugin of pytest: notes which lines of some modules each test runs, and for how long.

Seen is what runs in the process of pytest, and not in those of Spark.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lines-into", type=Path)
    parser.addoption("--lines-of", action="append")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--lines-into"):
        config.pluginmanager.register(_Lines(path, config.getoption("--lines-of")))


class _Lines:
    def __init__(self, path: Path, modules: list[str]) -> None:
        self._path = path
        self._modules = modules
        self._seconds: dict[str, float] = {}
        self._on_spark: list[str] = []
        self._coverage = Coverage(data_file=None, include=modules)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._empty_caches()
        self._coverage.switch_context(item.nodeid)
        begun = time.monotonic()
        result = yield
        self._seconds[item.nodeid] = time.monotonic() - begun
        if "spark" in getattr(item, "fixturenames", ()):
            self._on_spark.append(item.nodeid)
        return result

    def _empty_caches(self) -> None:
        """What the modules keep for the process would be run by its first test alone."""
        for module in [*sys.modules.values()]:
            if any(Path(getattr(module, "__file__", None) or "").match(pattern) for pattern in self._modules):
                for value in vars(module).values():
                    if hasattr(value, "cache_clear"):
                        value.cache_clear()

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        measured = self._coverage.get_data()
        lines = {
            str(Path(path).relative_to(Path.cwd())): measured.contexts_by_lineno(path)
            for path in measured.measured_files()
        }
        self._path.write_text(
            json.dumps({"seconds": self._seconds, "on_spark": self._on_spark, "lines": lines})
        )
