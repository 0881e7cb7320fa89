"""One table of an acceptance: what it holds by the model, and what readers show of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from py4j.java_gateway import JavaObject
from pyiceberg.table import DataScan

from stores.table_metadata import read_table_metadata
from worker.acceptance.lake import Lake, summary_of, told
from worker.acceptance.orders import Orders, Rows, Writer, difference, rows_of
from worker.acceptance.service import Service
from worker.io.storage import Storage
from worker.spark.jvm import java_object

_READER = Path(__file__).with_name("TableReader.java")
_JAVA, _PYTHON = "Iceberg's reader in Java", "PyIceberg"


class WrongError(Exception):
    """What was looked at is not as it must be."""


class WrongRowsError(WrongError):
    """A reader shows other rows than were written: nothing that follows could be told from that."""


class NotTriedError(Exception):
    """A step can't be tried as things are; the text says why."""


class NotPossibleError(Exception):
    """A step can't be tried with such a catalog or store, whatever somebody does; the text says why."""


@dataclass
class Trial:
    """A table that the run makes, or has made.

    mark: by which the catalog tells whose it is; None once that has proven not to keep it. name: in the
    report. identifier: with its namespace. key: columns by which rows are deleted. location: where the
    catalog has put it; None as long as it is not known to be the table's alone. kept_storage: by which
    files are removed once the table is gone, as it was vended just before that. is_dropped: the run has seen
    that it has dropped it. refused: what the store does for nobody, with its words.
    """

    lake: Lake
    service: Service
    mark: str | None
    name: str
    identifier: list[str]
    format_version: int
    key: tuple[str, ...]
    by_region: bool
    wanted_location: str | None
    orders: Orders = field(default_factory=Orders)
    location: str | None = None
    table_uuid: str | None = None
    table_id: str | None = None
    index_warehouse: str | None = None
    kept_storage: Storage | None = None
    is_dropped: bool = False
    refused: dict[str, str] = field(default_factory=dict)

    def load(self) -> JavaObject:
        return self.lake.load(self.identifier)

    def storage(self) -> Storage:
        return self.lake.storage_of(self.load())

    def drop(self) -> None:
        """Raises as `Lake.drop_table`. Of a table that is gone, no catalog vends anything."""
        self.kept_storage = self.storage()
        self.lake.drop_table(self.identifier, self.mark, self.table_uuid)
        self.is_dropped = True

    def needs(self, task: str) -> None:
        """Raises NotPossibleError for what the store does for nobody."""
        if (said := self.refused.get(task)) is not None:
            raise NotPossibleError(
                f"S3 Tables lets nobody {task}, and removes files itself, by its own settings."
                f" It said: {said}."
            )

    def writer(self) -> Writer:
        """That goes on from the model, with what the catalog vends by now."""
        table = self.load()
        return Writer(table, self.lake.storage_of(table), self.key, self.orders, by_region=self.by_region)

    @property
    def id(self) -> str:
        """Of the enrolment. Raises NotTriedError without one."""
        if self.table_id is None:
            raise NotTriedError("The table is not enrolled.")
        return self.table_id

    def head(self) -> int:
        """The head's snapshot."""
        return int(self.load().currentSnapshot().snapshotId())

    def delete_files(self) -> Counter[tuple[str, str]]:
        """Live ones by content and format, as Iceberg's Java has them in the manifests."""
        table = self.load()
        with told("read the manifests"):
            return Counter(
                map(tuple, json.loads(java_object(table, _READER, "TableReader", table).deleteFiles()))
            )

    def equality_deletes(self) -> int:
        """Live files of these."""
        return sum(
            number for (content, _), number in self.delete_files().items() if content.startswith("EQUALITY")
        )

    def compare(self, expected: Rows | None = None, snapshot_id: int | None = None) -> str:
        """Reads all rows, and says by which readers. expected: other rows than the model's.

        PyIceberg reads no equality deletes, so it is not asked while there are some, nor about the past.
        Raises WrongRowsError, LakeError, and whatever PyIceberg raises.
        """
        expected = self.orders.visible if expected is None else expected
        seen = {_JAVA: self._java_rows(snapshot_id)}
        if snapshot_id is None and not self.equality_deletes():
            seen[_PYTHON] = self._python_rows()
        for reader, rows in seen.items():
            if wrong := difference(expected, rows):
                raise WrongRowsError(f"{reader} {wrong}.")
        return f"{expected.total()} rows are right by {' and '.join(seen)}."

    def _java_rows(self, snapshot_id: int | None) -> Rows:
        table = self.load()
        reader = java_object(table, _READER, "TableReader", table)
        with told("read the table"):
            return rows_of(json.loads(reader.rows("" if snapshot_id is None else str(snapshot_id))))

    def _python_rows(self) -> Rows:
        table = self.load()
        io = self.lake.storage_of(table).io
        with told("read the table"):
            metadata = read_table_metadata(io.new_input(table.operations().current().metadataFileLocation()))
            columns = DataScan(table_metadata=metadata, io=io).to_arrow().columns
        return Counter(zip(*(column.to_pylist() for column in columns), strict=True))

    def summary(self) -> dict[str, str]:
        return summary_of(self.load())

    def some(self, number: int, skip: int = 0) -> Sequence[int]:
        """Live orders, spread over all: so deletes hit many data files."""
        ids = sorted(self.orders.rows)
        step = max(len(ids) // (number + 1), 1)
        return ids[skip % step :: step][:number]

    def new(self, number: int) -> Sequence[int]:
        """Orders that were never written."""
        first = max(self.orders.versions, default=-1) + 1
        return range(first, first + number)
