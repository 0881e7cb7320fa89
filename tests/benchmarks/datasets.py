"""Large Iceberg tables with an index, made once and kept, and equality deletes that come and go.

Keys are dense and in random order over the data files, as upserts leave them: no file or row group of the
table can be skipped by its statistics, and every key occurs once.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tests.factories import Catalog, TableBuilder, WrittenFile, sqlite_catalog
from tests.jobs import Jobs

FILE_ROWS = 1_000_000
FILES = 4  # at least, however small the table is
_TENANTS = 1_000

Int64Array = npt.NDArray[np.int64]


class Kind(StrEnum):
    """What the key is."""

    INT64 = "int64"
    UUID = "uuid"
    COMPOSITE = "composite"

    @property
    def columns(self) -> str:
        return {
            Kind.INT64: "id bigint",
            Kind.UUID: "id string",
            Kind.COMPOSITE: "tenant string, id bigint",
        }[self] + ", value bigint, note string"

    @property
    def key(self) -> list[str]:
        return ["tenant", "id"] if self is Kind.COMPOSITE else ["id"]

    def keys(self, numbers: Int64Array) -> pa.Table:
        """Keys of the rows with these numbers; a function of the number alone."""
        match self:
            case Kind.INT64:
                return pa.table({"id": numbers})
            case Kind.UUID:
                return pa.table({"id": _uuids(numbers)})
            case Kind.COMPOSITE:
                tenants = pa.array([f"tenant-{i:04d}" for i in range(_TENANTS)])
                indices = pa.array(_mixed(numbers) % np.uint64(_TENANTS))
                return pa.table({"tenant": tenants.take(indices), "id": numbers})


@dataclass(frozen=True)
class Pending:
    """Equality deletes of `count` keys that wait in a table, in one file and one commit."""

    dataset: Dataset
    count: int
    path: str
    snapshot_id: int

    def restore(self) -> None:
        """Makes them pending again, whatever was committed since."""
        self.dataset.select(self.snapshot_id)


@dataclass
class Dataset:
    """One table of `rows` rows, and its index."""

    spark: SparkSession
    directory: Path
    kind: Kind
    rows: int
    format_version: Literal[2, 3] = 3
    partitions: int = 0
    suffix: str = ""
    """Of its catalog's name."""

    @cached_property
    def catalog(self) -> Catalog:
        self.directory.mkdir(parents=True, exist_ok=True)
        name = f"{self.kind}_{self.rows}_v{self.format_version}"
        name += f"_in_{self.partitions}" if self.partitions else self.suffix
        return sqlite_catalog(self.spark, name, self.directory)

    @cached_property
    def table(self) -> TableBuilder:
        return TableBuilder(self.spark, f"{self.catalog.name}.db.t")

    @cached_property
    def jobs(self) -> Jobs:
        return Jobs(self.spark, self.catalog, self.table.identifier, self.directory / "index")

    @cached_property
    def twin(self) -> Dataset:
        """A V2 table of the same data files. It lies within, so that neither outlives the other."""
        return Dataset(self.spark, self.directory / "v2", self.kind, self.rows, 2)

    @cached_property
    def streamed(self) -> Dataset:
        """A table of the same data files, with the columns that `UpsertStream` writes; within, too."""
        return Dataset(self.spark, self.directory / "streamed", self.kind, self.rows, suffix="_streamed")

    @cached_property
    def positions(self) -> Int64Array:
        """Where in the table each row lies, by its number."""
        positions = np.empty(self.rows, np.int64)
        positions[self._order] = np.arange(self.rows)
        return positions

    @property
    def _order(self) -> Int64Array:
        """The numbers of the rows, as they lie in the table."""
        return np.random.default_rng(1).permutation(self.rows)

    @property
    def _marker(self) -> Path:
        return self.directory / "loaded.json"

    @property
    def loaded_snapshot_id(self) -> int:
        """The snapshot with all rows and no delete."""
        return int(json.loads(self._marker.read_text())["snapshot_id"])

    def load(self, say: Callable[[str], None]) -> None:
        """Makes both tables unless an earlier run has, and takes away whatever that left pending."""
        if not self._marker.exists():
            self._make(lambda table: table.commit(*self._data_files(table, say)))
        self.rewind()
        if not self.twin._marker.exists():
            self.twin._make(lambda table: _append_files(table, self.table))
        self.twin.rewind()

    def load_streamed(self) -> Dataset:
        """Makes `streamed` unless an earlier run has; this one is loaded."""
        streamed = self.streamed
        if not streamed._marker.exists():
            streamed._make(lambda table: _append_files(table, self.table))
            for change in ("RENAME COLUMN value TO amount", "RENAME COLUMN note TO tenant"):
                self.spark.sql(f"ALTER TABLE {streamed.table.identifier} {change}")
            self.spark.sql(f"ALTER TABLE {streamed.table.identifier} ALTER COLUMN tenant AFTER id")
        streamed.rewind()
        return streamed

    def fill_partitions(self, rows: DataFrame) -> None:
        """Makes the table of these rows, in its partitions by their ids, unless an earlier run has."""
        if self._marker.exists():
            self.rewind()
            return
        shutil.rmtree(self.directory, ignore_errors=True)
        table = TableBuilder.create(
            self.spark,
            self.table.identifier,
            self.kind.columns,
            format_version=self.format_version,
            partitioned_by=[f"bucket({self.partitions}, id)"],
        )
        rows.writeTo(table.identifier).append()
        self._marker.write_text(json.dumps({"snapshot_id": table.snapshot_id}))

    def _make(self, fill: Callable[[TableBuilder], None]) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)  # what an interrupted run left
        table = TableBuilder.create(
            self.spark, self.table.identifier, self.kind.columns, format_version=self.format_version
        )
        fill(table)
        self._marker.write_text(json.dumps({"snapshot_id": table.snapshot_id}))

    def _data_files(self, table: TableBuilder, say: Callable[[str], None]) -> list[WrittenFile]:
        order = self._order
        size = min(FILE_ROWS, -(-self.rows // FILES))
        written: list[WrittenFile] = []
        for start in range(0, self.rows, size):
            say(f"writing row {start:,} of {self.rows:,}")
            written += table.data_files(self._data(start, order[start : start + size]))
        return written

    def _data(self, start: int, numbers: Int64Array) -> pa.Table:
        positions = np.arange(start, start + len(numbers), dtype=np.int64)
        notes = pa.array([f"note {i:04d} of a thousand" for i in range(1000)])
        return (
            self.kind.keys(numbers)
            .append_column("value", pa.array(positions))
            .append_column("note", notes.take(pa.array(positions % 1000)))
        )

    @contextmanager
    def deletes(self, count: int) -> Iterator[Pending]:
        """The table with equality deletes of `count` of its keys, always the same; as loaded afterwards."""
        numbers = np.random.default_rng([0, count]).choice(self.rows, count, replace=False)
        (path,) = self.table.delete_keys(self.kind.keys(numbers), equality_columns=self.kind.key)
        snapshot_id = self.table.snapshot_id
        assert snapshot_id is not None
        try:
            yield Pending(self, count, path, snapshot_id)
        finally:
            self.rewind()

    def select(self, snapshot_id: int) -> None:
        self.table.java.manageSnapshots().setCurrentSnapshot(snapshot_id).commit()

    def rewind(self) -> None:
        """Rolls the table back to what was loaded, and deletes the files that are nobody's then.

        A rewritten table is a whole copy, and each commit would make the metadata longer for the next.
        """
        for branch in self.table.metadata.refs.keys() - {"main"}:
            self.table.java.manageSnapshots().removeBranch(branch).commit()
        self.select(self.loaded_snapshot_id)
        now = int(time.time() * 1000)
        self.table.java.expireSnapshots().expireOlderThan(now).retainLast(1).commit()


def _append_files(table: TableBuilder, source: TableBuilder) -> None:
    """Commits the data files of a table with one snapshot to another one as well."""
    java = source.java
    append = table.java.newAppend()
    added = java.currentSnapshot().addedDataFiles(java.io()).iterator()
    while added.hasNext():
        append.appendFile(added.next())
    append.commit()


def _mixed(numbers: Int64Array) -> npt.NDArray[np.uint64]:
    """SplitMix64: numbers that look random."""
    z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def _uuids(numbers: Int64Array) -> pa.Array:
    """Random-looking UUIDs in their text form of 36 characters."""
    high = _mixed(numbers).astype(">u8").view(np.uint8).reshape(-1, 8)
    low = _mixed(numbers + 1).astype(">u8").view(np.uint8).reshape(-1, 8)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    both = np.concatenate([high, low], axis=1)
    text = np.stack([digits[both >> 4], digits[both & 15]], axis=2).reshape(len(numbers), 32)
    dash = np.full((len(numbers), 1), ord("-"), np.uint8)
    cuts = [text[:, :8], dash, text[:, 8:12], dash, text[:, 12:16], dash, text[:, 16:20], dash, text[:, 20:]]
    joined = np.ascontiguousarray(np.concatenate(cuts, axis=1))
    offsets = np.arange(0, joined.size + 1, 36, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    )
