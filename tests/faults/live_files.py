"""No live file is deleted: whatever the tables of a test and their indexes name is there after it.

Checked after every test of this folder, and after those of the worker that docs/faults.md and
docs/maintenance.md name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException

from tests.factories import TableBuilder, tables_in_use
from tests.faults.figures import DOCUMENT, name_of
from tests.faults.tables import LOCAL, missing, missing_of_index
from tests.jobs import indexes_in_use

_FOLDER = Path(__file__).parent


@pytest.fixture(autouse=True)
def no_live_file_is_gone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of local tables; who has others asks `missing` by the properties of their store."""
    tables_in_use.clear()
    indexes_in_use.clear()
    yield
    if request.path.is_relative_to(_FOLDER) or name_of(request.node.nodeid) in _named_tests():
        lost = {table.identifier: found for table in [*tables_in_use.values()] if (found := gone(table))}
        assert lost == {}


@cache
def _named_tests() -> frozenset[str]:
    documents = (DOCUMENT, DOCUMENT.with_name("maintenance.md"))
    return frozenset(name for one in documents for name in re.findall(r"`(test_\w+)`", one.read_text()))


def gone(table: TableBuilder) -> set[str]:
    """What it needs and is not there, of its indexes, too; nothing of one that is dropped or no local one."""
    try:
        is_local = table.metadata_location.startswith(LOCAL)
    except (AnalysisException, Py4JJavaError) as error:
        if "NotFoundException" in str(error):
            return {f"the metadata file: {error}"}
        return set()  # it was dropped, or its catalog has ended
    if not is_local:
        return set()
    of_indexes = (missing_of_index(table, place) for place in indexes_in_use if place.startswith(LOCAL))
    return missing(table).union(*of_indexes)
