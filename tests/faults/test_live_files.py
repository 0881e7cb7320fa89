"""What is asserted after each fault: that no file is gone which a table or its index needs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from tests.exactness import Exactness
from tests.factories import Catalog, TableBuilder
from tests.faults.live_files import look, pytest_runtest_call
from tests.faults.recovery import LIVE_FILES
from tests.faults.tables import Named, local, table_with_deletes
from tests.jobs import Jobs
from tests.rest_catalog import commit_by_java, running_rest_catalog

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

    needed = {local(location) for location in Named.by(table).locations}
    kinds = {path.name.partition("-")[0] if path.suffix == ".avro" else path.suffix for path in needed}
    assert {".parquet", ".puffin", ".stats", ".json", "snap"} <= kinds
    of_index = {path for path in exactly.jobs.index.rglob("*") if path.is_file() and _is_needed(path.name)}
    assert len(of_index) > 4
    assert (look(table).gone, look(table).files) == (set(), len(needed | of_index))
    for path in needed | of_index:
        aside = path.rename(path.with_name("aside"))
        assert any(path.name in said for said in look(table).gone), path
        aside.rename(path)


def _is_needed(name: str) -> bool:
    return not name.startswith(("snapshot-", "schema-", "."))


@pytest.mark.thorough
def test_a_file_is_missed_although_the_catalog_has_ended_and_others_committed_since(
    spark: SparkSession, catalog: Catalog, table_name: str, jobs: Jobs
) -> None:
    table = table_with_deletes(spark, table_name, 3, 30)
    with (
        SqlCatalog(catalog.name, **catalog.properties) as tables,
        running_rest_catalog(tables, commit_by_java(spark, catalog.name, catalog.properties)) as rest,
    ):
        ended = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": rest.url}
        for key, value in {**ended, ".cache-enabled": "false"}.items():
            spark.conf.set(f"spark.sql.catalog.ended{key}", value)
        seen = TableBuilder(spark, table_name.replace(catalog.name, "ended", 1))
        before = look(seen)
        assert (before.gone, before.files) == (set(), len(Named.by(table).locations))
    jobs.run("index")
    jobs.run("convert")
    found = look(seen)
    assert found.gone == set()
    assert found.files == look(table).files > before.files
    for location in Named.by(table).locations - {table.metadata_location}:
        aside = local(location).rename(local(location).with_name("aside"))
        assert any(local(location).name in said for said in look(seen).gone), location
        aside.rename(local(location))


def test_a_test_after_which_a_live_file_is_gone_fails_and_tells_how_many_were_looked_for(
    exactly: Exactness,
) -> None:
    table = exactly.table()
    (path,) = table.append([{"id": 1, "region": "eu", "value": 1}])
    item: Any = SimpleNamespace(path=Path(__file__), nodeid="test_x", user_properties=[])

    def ended() -> list[tuple[str, int]]:
        """What the hook has a test tell that has just been run."""
        hook = pytest_runtest_call(item)
        next(hook)
        with pytest.raises(StopIteration):
            hook.send(None)
        return list(item.user_properties)

    assert ended() == [(LIVE_FILES, 4)]  # of metadata, a list, a manifest and rows
    aside = local(path).rename(local(path).with_name("aside"))
    with pytest.raises(AssertionError, match=local(path).name):
        ended()
    aside.rename(local(path))
    exactly.spark.sql(f"DROP TABLE {table.identifier}")
    assert ended()[-1] == (LIVE_FILES, 0)
