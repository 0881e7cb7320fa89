"""What is asserted after each fault: that no file is gone which a table or its index needs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.exactness import Exactness
from tests.faults.live_files import gone
from tests.faults.tables import Named, local

pytestmark = pytest.mark.integration


def test_each_file_that_any_snapshot_or_the_index_names_is_missed_once_it_is_gone(
    exactly: Exactness,
) -> None:
    """Also what only a tag and an older snapshot name: a data file, its vector, manifests and statistics."""
    table, jvm = exactly.table(format_version=3), exactly.spark.sparkContext._jvm
    actions: Any = jvm.org.apache.iceberg.spark.actions.SparkActions  # type: ignore[union-attr]
    (tagged,) = table.append([{"id": 1, "region": "eu", "value": 1}, {"id": 2, "region": "eu", "value": 2}])
    table.delete_positions({tagged: [0]})
    actions.get().computeTableStats(table.java).execute()
    table.java.manageSnapshots().createTag("kept", table.snapshot_id).commit()
    everything = jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()  # type: ignore[union-attr]
    table.java.newDelete().deleteFromRowFilter(everything).commit()
    table.append([{"id": 3, "region": "eu", "value": 3}])
    exactly.jobs.run("index", key_sets=[["id"]])
    assert gone(table) == set()

    # Without its metadata file nobody could have looked.
    needed = {local(location) for location in Named.by(table).locations - {table.metadata_location}}
    kinds = {path.name.partition("-")[0] if path.suffix == ".avro" else path.suffix for path in needed}
    assert {".parquet", ".puffin", ".stats", "snap"} <= kinds
    of_index = {path for path in exactly.jobs.index.rglob("*") if path.is_file() and _is_needed(path.name)}
    assert len(of_index) > 4
    for path in needed | of_index:
        aside = path.rename(path.with_name("aside"))
        assert any(path.name in said for said in gone(table)), path
        aside.rename(path)


def _is_needed(name: str) -> bool:
    return not name.startswith(("snapshot-", "schema-", "."))
