"""The sample table of `icestream demo`: a model of its rows, and files as a Flink upsert job writes them.

Invariant: the model says which rows are visible after every checkpoint, without ever asking Iceberg, so that
it can bear witness to what a conversion leaves behind.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from worker.demo.streamed_files import Description, StreamedFiles
from worker.spark.jvm import jvm_of

COLUMNS = (
    "order_id BIGINT NOT NULL, region STRING NOT NULL, customer_id BIGINT, status STRING, "
    "amount_cents BIGINT, updated_at TIMESTAMP"
)
KEY = ("order_id", "region")
REGIONS = ("africa", "americas", "asia", "europe")
STATUSES = ("placed", "paid", "packed", "shipped", "returned")

ROW = np.dtype(
    [
        ("order_id", np.int64),
        ("region", np.int8),
        ("customer_id", np.int64),
        ("status", np.int8),
        ("amount_cents", np.int64),
        ("updated_at", np.int64),  # microseconds
    ]
)
Rows = npt.NDArray[np.void]
_FIRST_UPDATE = 1_767_225_600_000_000  # 2026-01-01T00:00Z


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What one checkpoint of the writer commits.

    rows: new rows in the order written; one order may come twice, and only its last row counts.
    overwritten: which of `rows` a later one of the same checkpoint replaces.
    keys: orders whose rows of earlier checkpoints are deleted, by `order_id` and `region`; no repeats.
    """

    rows: Rows
    overwritten: npt.NDArray[np.bool_]
    keys: Rows


class Orders:
    """Every order ever made, by its id, and whether it is still there."""

    def __init__(self, count: int) -> None:
        self._random = np.random.default_rng(7)
        self._checkpoints = 0
        self._rows = self._new_versions(np.arange(count, dtype=np.int64))
        self._live = np.ones(count, np.bool_)

    @property
    def visible(self) -> Rows:
        """The rows that a reader of the table must see, in no particular order."""
        return self._rows[self._live]

    def advance(self, changes: int) -> Checkpoint:
        """Change about this many orders: three fifths updated, a fifth deleted, a fifth new.

        A tenth of the new rows are written twice.
        """
        self._checkpoints += 1
        count = len(self._rows)
        touched = np.unique(self._random.integers(0, count, changes * 4 // 5))
        touched = self._random.permutation(touched[self._live[touched]])
        updated, deleted = np.split(touched, [len(touched) * 3 // 4])
        added = np.arange(count, count + changes // 5, dtype=np.int64)
        written = np.concatenate([updated, added])
        twice = written[: len(written) // 10]

        first, last = self._new_versions(twice), self._new_versions(written)
        self._rows = np.concatenate([self._rows, last[len(updated) :]])
        self._live = np.concatenate([self._live, np.ones(len(added), np.bool_)])
        self._rows[updated] = last[: len(updated)]
        self._live[deleted] = False
        overwritten = np.arange(len(twice) + len(written)) < len(twice)
        return Checkpoint(
            np.concatenate([first, last]), overwritten, self._rows[np.concatenate([written, deleted])]
        )

    def _new_versions(self, order_ids: npt.NDArray[np.int64]) -> Rows:
        rows = np.empty(len(order_ids), ROW)
        rows["order_id"] = order_ids
        rows["region"] = order_ids % len(REGIONS)
        rows["customer_id"] = order_ids * 2_654_435_761 % 100_003
        rows["status"] = self._random.integers(0, len(STATUSES), len(order_ids))
        rows["amount_cents"] = self._random.integers(100, 100_000, len(order_ids))
        rows["updated_at"] = _FIRST_UPDATE + self._checkpoints * 1_000_000 + np.arange(len(order_ids))
        return rows


def to_arrow(rows: Rows, columns: Iterable[str] = ROW.names or ()) -> pa.Table:
    """The rows with words for codes."""
    words = {"region": REGIONS, "status": STATUSES}
    arrays = {}
    for name in columns:
        values = pa.array(np.ascontiguousarray(rows[name]))
        if name in words:
            values = pa.DictionaryArray.from_arrays(values, pa.array(words[name])).cast(pa.string())
        elif name == "updated_at":
            values = values.cast(pa.timestamp("us", "UTC"))
        arrays[name] = values
    return pa.table(arrays)


class OrdersWriter:
    """Writes to one Iceberg table as Flink's sink does: one `RowDelta` a checkpoint, nothing ever read."""

    def __init__(self, table: JavaObject) -> None:
        """table: an `org.apache.iceberg.Table` with COLUMNS, format V3, partitioned by region."""
        self._table, self._files = table, StreamedFiles(table, KEY)

    @classmethod
    def create(cls, spark: SparkSession, identifier: str) -> Self:
        """Makes the table anew; an older one of the name is dropped with all its files."""
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {identifier.rpartition('.')[0]}")
        spark.sql(f"DROP TABLE IF EXISTS {identifier} PURGE")
        spark.sql(
            f"CREATE TABLE {identifier} ({COLUMNS}) USING iceberg PARTITIONED BY (region) "
            "TBLPROPERTIES ('format-version'='3', "
            # As for any stream: else each commit leaves a file of metadata for good.
            "'write.metadata.delete-after-commit.enabled'='true', "
            "'write.metadata.previous-versions-max'='20')"
        )
        spark3_util = jvm_of(spark._jsparkSession).org.apache.iceberg.spark.Spark3Util
        table = spark3_util.loadIcebergTable(spark._jsparkSession, identifier)
        table.updateSchema().setIdentifierFields(list(KEY)).commit()
        return cls(table)

    def append(self, rows: Rows, files_per_region: int = 2) -> None:
        """Loads the table's first rows."""
        operation = self._table.newAppend()
        for region, of_region in _by_region(rows):
            for part in np.array_split(of_region, files_per_region):
                data_file = self._files.data_file(to_arrow(part), [region])
                operation.appendFile(self._files.content_file(data_file))
        operation.commit()

    def commit(self, checkpoint: Checkpoint) -> None:
        """New rows, equality deletes of older rows of their keys, deletion vectors for rows written twice."""
        operation = self._table.newRowDelta()
        # Iceberg compares vectors with those committed since: by default with all of history, which expires.
        self._table.refresh()
        if (head := self._table.currentSnapshot()) is not None:
            operation.validateFromSnapshot(head.snapshotId())
        vectors: list[tuple[Description, npt.NDArray[np.int64]]] = []
        overwritten = dict(_by_region(checkpoint.rows, checkpoint.overwritten))
        for region, rows in _by_region(checkpoint.rows):
            data_file = self._files.data_file(to_arrow(rows), [region])
            operation.addRows(self._files.content_file(data_file))
            if (positions := np.flatnonzero(overwritten[region])).size:
                vectors.append((data_file, positions))
        for region, keys in _by_region(checkpoint.keys):
            delete_file = self._files.equality_deletes(to_arrow(keys, KEY), [region])
            operation.addDeletes(self._files.content_file(delete_file))
        for vector in self._files.vectors(vectors):
            operation.addDeletes(self._files.content_file(vector))
        operation.commit()


def _by_region(rows: Rows, values: npt.NDArray[Any] | None = None) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The rows of each region, in order; or, where given, the values that stand beside them."""
    for code, region in enumerate(REGIONS):
        yield region, (rows if values is None else values)[rows["region"] == code]
