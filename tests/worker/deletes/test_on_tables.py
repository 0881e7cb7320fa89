"""New delete files hide exactly the rows that were hidden before and the new ones, as Spark reads them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from tests.delete_files import write_deletes
from tests.factories import Catalog, TableBuilder, visible_rows
from tests.thorough import V2_FIRST, V3_FIRST, first_always
from worker.deletes.locations import DeleteFileLocations
from worker.deletes.merge import DeleteGranularity
from worker.deletes.puffin import Positions
from worker.deletes.write import WrittenDeletes
from worker.io.storage import Storage
from worker.table.catalogs import load_table
from worker.table.commit import commit_row_delta
from worker.table.files import DataFile, SnapshotFiles
from worker.table.manifests import read_snapshot_files
from worker.table.row_delta import RowDelta

pytestmark = pytest.mark.integration


class Conversion:
    """Hides rows of a table by the functions under test, and commits."""

    def __init__(self, spark: SparkSession, catalog: Catalog, table: TableBuilder) -> None:
        self.spark, self.table = spark, table
        self.java_table = load_table(
            spark.sparkContext._jvm, "sql", catalog.name, catalog.properties, table.identifier.split(".")[1:]
        )

    @property
    def files(self) -> SnapshotFiles:
        metadata = self.table.metadata
        snapshot = metadata.current_snapshot()
        assert snapshot is not None
        return read_snapshot_files(metadata, snapshot, PyArrowFileIO())

    def delete_ids(self, *ids: int) -> WrittenDeletes:
        """Commits the deletion of every row with one of these ids, visible or not."""
        metadata, files = self.table.metadata, self.files
        assert metadata.current_snapshot_id is not None
        new: dict[DataFile, BitMap64 | Positions] = {
            file: np.flatnonzero(np.isin(pq.read_table(_local(file.path), columns=["id"])["id"], ids))
            for file in files.data_files
        }
        written = write_deletes(
            Storage(),
            new,
            files.position_deletes,
            metadata.format_version,
            DeleteGranularity.of_table(metadata.properties),
            DeleteFileLocations(
                metadata.location, metadata.properties, f"job-{metadata.current_snapshot_id}"
            ),
        )
        delta = RowDelta(
            "main", metadata.current_snapshot_id, "job", 1, written.added, written.removed, written.data_files
        )
        commit_row_delta(self.java_table, delta)
        return written

    def visible_ids(self) -> list[int]:
        return sorted(id_ for id_, *_ in visible_rows(self.spark, self.table.identifier).elements())


def _local(path: str) -> Path:
    return Path(path.removeprefix("file:"))


Open = Callable[..., Conversion]


@pytest.fixture
def new_table(spark: SparkSession, catalog: Catalog, table_name: str) -> Open:
    """A table with ids 0 to 19 in two data files per region, `eu` and `us`."""

    def create(**how: Any) -> Conversion:
        table = TableBuilder.create(spark, table_name, "id bigint, region string", **how)
        rows = [{"id": n, "region": ("eu", "us")[n % 2]} for n in range(20)]
        table.append(rows, files=2)
        return Conversion(spark, catalog, table)

    return create


@first_always("partitioned_by", [("region",), (), ("bucket(3, id)",)])
@V2_FIRST
@pytest.mark.parametrize("granularity", ["file", "partition"])
def test_spark_reads_the_new_deletes(
    new_table: Open, format_version: int, partitioned_by: tuple[str, ...], granularity: str
) -> None:
    conversion = new_table(
        format_version=format_version,
        partitioned_by=partitioned_by,
        properties={"write.delete.granularity": granularity},
    )
    conversion.delete_ids(3, 4, 11)
    assert conversion.visible_ids() == sorted(set(range(20)) - {3, 4, 11})
    conversion.delete_ids(0, 4)
    assert conversion.visible_ids() == sorted(set(range(20)) - {0, 3, 4, 11})
    if format_version == 3:
        vectors = [file["referenced_data_file"] for file in live_delete_files_of(conversion)]
        assert len(vectors) == len(set(vectors))


@V3_FIRST
def test_deletes_by_spark_before_and_after_are_kept(new_table: Open, format_version: int) -> None:
    conversion = new_table(
        format_version=format_version,
        partitioned_by=["region"],
        properties={"write.delete.mode": "merge-on-read", "write.merge.mode": "merge-on-read"},
    )
    name, spark = conversion.table.identifier, conversion.spark
    spark.sql(f"DELETE FROM {name} WHERE id IN (2, 3)")
    spark.sql(f"MERGE INTO {name} t USING (SELECT 5L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE")
    written = conversion.delete_ids(3, 6, 7)
    # Spark's deletes are file-scoped here, so each is replaced where rows were added to it.
    assert written.rows_deleted == 2
    assert len(written.removed) == len(written.added)
    spark.sql(f"DELETE FROM {name} WHERE id = 8")
    assert conversion.visible_ids() == sorted(set(range(20)) - {2, 3, 5, 6, 7, 8})


@first_always("file_format", ["parquet", "orc", "avro"])
@first_always("granularity", ["file", "partition"])
def test_position_deletes_survive_the_upgrade_to_vectors(
    new_table: Open, file_format: str, granularity: str
) -> None:
    conversion = new_table(
        format_version=2,
        properties={
            "write.delete.mode": "merge-on-read",
            "write.delete.format.default": file_format,
            "write.delete.granularity": granularity,
        },
    )
    name, spark = conversion.table.identifier, conversion.spark
    spark.sql(f"DELETE FROM {name} WHERE id IN (2, 3, 18)")
    assert {file["file_format"].lower() for file in live_delete_files_of(conversion)} == {file_format}
    conversion.delete_ids(4, 18)
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '3')")
    written = conversion.delete_ids(2, 6, 16)
    assert all(file.is_deletion_vector for file in written.added)
    assert conversion.visible_ids() == sorted(set(range(20)) - {2, 3, 4, 6, 16, 18})


def test_a_position_delete_of_an_otherwise_spelled_path_hides_no_row(new_table: Open) -> None:
    conversion = new_table(format_version=2)
    [path, *_] = conversion.table.data_file_paths
    assert path.startswith("file:///")
    [written] = conversion.table.position_deletes({path: [0]})
    rows = pq.read_table(_local(written.path))
    respelled = pa.array([path.replace("file:///", "file:/")])
    pq.write_table(rows.set_column(0, rows.schema.field(0), respelled), _local(written.path))
    del written.json["referenced-data-file"]
    for bounds in ("lower-bounds", "upper-bounds"):
        written.json.pop(bounds, None)
    written.json["file-size-in-bytes"] = _local(written.path).stat().st_size
    conversion.table.commit(written)
    assert conversion.visible_ids() == list(range(20))
    conversion.spark.sql(
        f"ALTER TABLE {conversion.table.identifier} SET TBLPROPERTIES ('format-version' = '3')"
    )
    conversion.delete_ids(4, 5)
    assert conversion.visible_ids() == sorted(set(range(20)) - {4, 5})


def test_position_deletes_are_described_as_spark_describes_its_own(new_table: Open) -> None:
    conversion = new_table(format_version=2, properties={"write.delete.mode": "merge-on-read"})
    conversion.spark.sql(f"DELETE FROM {conversion.table.identifier} WHERE id = 2")
    [theirs] = live_delete_files_of(conversion)
    conversion.delete_ids(3)
    [ours] = [file for file in live_delete_files_of(conversion) if "job-" in file["file_path"]]
    for described in (
        "value_counts",
        "null_value_counts",
        "nan_value_counts",
        "sort_order_id",
        "content",
    ):
        assert ours[described] == theirs[described], described
    for sized in ("column_sizes", "lower_bounds", "upper_bounds"):
        assert ours[sized].keys() == theirs[sized].keys(), sized
    assert len(ours["split_offsets"]) == len(theirs["split_offsets"])
    assert {len(bound) for bound in ours["lower_bounds"].values()} == {
        len(bound) for bound in theirs["lower_bounds"].values()
    }


def live_delete_files_of(conversion: Conversion) -> list[Any]:
    """With all columns that describe them."""
    files = conversion.spark.table(f"{conversion.table.identifier}.delete_files")
    return files.drop("readable_metrics").collect()
