"""Rows of many files come in the order of their places, and of a store no later than those of one."""

from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import GeometryType, LongType, NestedField, StructType

from stores.table_metadata import OpaqueType
from tests.benchmarks.waiting_files import WaitingFiles
from tests.service.iceberg_tables import IcebergCatalog
from worker.contract.lookups import AskedKeys
from worker.io.cache import Cache
from worker.io.storage import Storage
from worker.query.answers import Answers, TablePlace
from worker.query.errors import UnreadableError
from worker.query.rows import rows_at, selected


@pytest.mark.parametrize("column", ["v", "s", "s.g"])
def test_values_of_types_that_are_not_read_are_refused_by_the_name_of_their_column(column: str) -> None:
    geometry = StructType(NestedField(4, "g", GeometryType()), NestedField(5, "x", LongType()))
    fields = {1: ("id", LongType()), 2: ("v", OpaqueType("variant")), 3: ("s", geometry)}
    schema = Schema(*(NestedField(i, name, kind) for i, (name, kind) in fields.items()))
    told = r"column v, of type variant" if column == "v" else r"column s\.g, of type geometry"
    with pytest.raises(UnreadableError, match=told):
        selected(schema, ["id", column])
    assert selected(schema, ["id", "s.x"]).field_ids == {1, 3, 5}


def test_files_of_a_store_are_read_side_by_side(tmp_path: Path) -> None:
    catalog = IcebergCatalog(tmp_path)
    catalog.create("db.t")
    for first in range(0, 12, 2):
        catalog.append("db.t", [first, first + 1])
    location = catalog.catalog.load_table("db.t").metadata_location
    catalog.close()
    storage = Storage()
    place = TablePlace(location, storage, (tmp_path / "index").as_uri(), storage)

    def waves(numbers: list[int]) -> int:
        asked = AskedKeys(keys=[{"id": number} for number in numbers], key_columns=["id"])
        coverage, places = Answers().find(place, asked)
        coverage.table.storage = far = WaitingFiles({}, Cache(2**20), 0.02)
        found = []
        waits = far.counted(
            lambda: found.append(rows_at(coverage.table, places, selected(coverage.table.schema, ["id"])))
        )
        assert found[0]["id"].to_pylist() == numbers
        return waits.waves

    assert waves([11, 0, 6, 3, 8, 5, 1, 10]) < 3 * waves([4])
