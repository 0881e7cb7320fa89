"""No live file is deleted: whatever the tables of a test and their indexes name is there at its end.

Looked for after every test of this folder, and after those with tables that docs/faults.md names: their
conftest imports the hooks from here. At once, before fixtures end what holds the tables.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException

from tests.factories import TableBuilder, tables_in_use
from tests.faults.figures import DOCUMENT, name_of
from tests.faults.recovery import LIVE_FILES
from tests.faults.tables import Look, look_for
from tests.jobs import indexes_in_use
from worker.io.storage import Storage

_FOLDER = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    tables_in_use.clear()
    indexes_in_use.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if item.path.is_relative_to(_FOLDER) or name_of(item.nodeid) in _named_tests():
        looks = {table.identifier: look(table) for table in [*tables_in_use.values()]}
        item.user_properties.append((LIVE_FILES, sum(one.files for one in looks.values())))
        gone = {identifier: one.gone for identifier, one in looks.items() if one.gone}
        assert not gone, f"needed, and gone: {gone}"
    return result


@cache
def _named_tests() -> frozenset[str]:
    return frozenset(re.findall(r"`(test_\w+)", DOCUMENT.read_text()))


def look(table: TableBuilder) -> Look:
    """For what it needs, in its own store and with that store's keys; for nothing of one that was dropped.

    Where its catalog has ended, the newest metadata file says what that is.
    """
    try:
        location = table.metadata_location
    except AnalysisException:
        return Look()  # it was dropped
    except Py4JJavaError as error:
        if "NotFoundException" in str(error):
            return Look(1, {f"the metadata file: {error}"})
        location = ""
    assert table.last_seen is not None, f"{table.identifier} was never seen"
    java, last_location = table.last_seen
    storage = Storage({**java.io().properties()})
    return look_for(location or _newest_beside(last_location, storage), storage, indexes_in_use)


def _newest_beside(location: str, storage: Storage) -> str:
    """Each commit counts on in the names of a table's metadata files."""
    found = {
        (int(number[1]), file.modified_at): file.location
        for file in storage.list(location.rpartition("/")[0])
        if (number := re.match(r"v?(\d+).*\.metadata\.json$", file.name))
    }
    return found[max(found)]
