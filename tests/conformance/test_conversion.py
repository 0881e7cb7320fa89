"""A job converts the tables of the suite into what their converted twins hold."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conformance.cases import ALL
from conformance.compare import difference, parse
from conformance.readers import as_json
from conformance.readers.pyiceberg import read
from conformance.runner import chosen, write_all
from stores.table_metadata import parse_table_metadata
from tests.factories import Catalog, TableBuilder
from tests.jobs import Jobs
from worker.deletes.existing import existing_deletes
from worker.io.storage import Storage
from worker.table.manifests import read_snapshot_files

pytestmark = pytest.mark.integration

ALWAYS = {("positions-in-partitions", 2), ("a-vector-replaces-position-deletes", 3)}
# The snapshot that is read there is no branch's head, or there is nothing that a conversion must leave.
NOT_CONVERTED = {
    *("float-keys", "time-travel-before-the-deletes", "time-travel-between-deletes", "a-tag"),
    *("a-branch-with-deletes-of-its-own", "bounds-of-uuids-on-both-sides-of-the-sign"),
}
TABLES = [
    pytest.param(case.name, version, marks=() if (case.name, version) in ALWAYS else pytest.mark.exhaustive)
    for case in ALL
    if case.name not in NOT_CONVERTED
    for version in case.versions
]
_numbers = count()


def deletes(metadata: str) -> dict[str, tuple[set[int], bool]]:
    """Of each data file the positions that are deleted, and whether a deletion vector says so."""
    told = parse_table_metadata(Path(metadata.removeprefix("file://").removeprefix("file:")).read_bytes())
    snapshot, storage = told.current_snapshot(), Storage()
    assert snapshot is not None
    files = read_snapshot_files(told, snapshot, storage.io)
    assert not files.equality_deletes
    found = existing_deletes(storage, files.data_files, files.position_deletes)
    return {
        file.path: (set(existing.positions), existing.deletion_vector is not None)
        for file, existing in found.items()
    }


@pytest.mark.parametrize(("name", "version"), TABLES)
def test_a_job_leaves_what_the_suite_says_that_it_leaves(
    spark: SparkSession, catalog: Catalog, tmp_path: Path, name: str, version: int
) -> None:
    written, twin = write_all(chosen(ALL, [name]), tmp_path / "cases", versions=[version])
    expected = deletes(twin.metadata)
    identifier = f"{catalog.name}.suite.table_{next(_numbers)}"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog.name}.suite")
    of_catalog = identifier.partition(".")[2]
    spark.sql(f"CALL {catalog.name}.system.register_table('{of_catalog}', '{written.metadata}')")
    result = Jobs(spark, catalog, identifier, tmp_path / "index").run("convert").result
    assert result["unconvertible"] == []
    left = TableBuilder(spark, identifier)
    assert deletes(left.metadata_location) == expected
    if not name.startswith("avro-"):  # which PyIceberg doesn't read
        rows = parse(as_json(read(left.metadata_location, None)))
        assert difference(twin.fields, twin.rows, rows) == ""
