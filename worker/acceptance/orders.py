"""The rows that a reader of an accepted table must see, and a streaming writer that brings them there.

Invariant: the model never asks Iceberg what is there, so that it can bear witness against a reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError

from worker.demo.streamed_files import Description, StreamedFiles
from worker.io.storage import Storage
from worker.table.catalogs import java_types

Row = tuple[int, str, str | None, Decimal, date, datetime]
Rows = Counter[Row]
COLUMNS = ("order_id", "region", "status", "amount", "placed_on", "updated_at")
TYPES = ("long", "string", "string", "decimal(12, 2)", "date", "timestamptz")
ARROW = pa.schema(
    zip(
        COLUMNS,
        (pa.int64(), pa.string(), pa.string(), pa.decimal128(12, 2), pa.date32(), pa.timestamp("us", "UTC")),
        strict=True,
    )
)
REGIONS = ("africa", "americas", "asia", "europe")
_STATUSES = ("placed", "paid", None, "shipped")
_REFUSED = frozenset(
    f"org.apache.iceberg.exceptions.{name}" for name in ("ValidationException", "CommitFailedException")
)
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Orders:
    """Every live row by its `order_id`; versions: how often one was written."""

    rows: dict[int, Row] = field(default_factory=dict)
    versions: Counter[int] = field(default_factory=Counter)

    @property
    def visible(self) -> Rows:
        return Counter(self.rows.values())

    def copy(self) -> Orders:
        return Orders(dict(self.rows), copy(self.versions))

    def new_row(self, order_id: int) -> Row:
        """Another row of this order than all before."""
        self.versions[order_id] += 1
        version = self.versions[order_id]
        return (
            order_id,
            REGIONS[order_id % len(REGIONS)],
            _STATUSES[(order_id + version) % len(_STATUSES)],
            Decimal(order_id * 100 + version) / 100,
            (_FIRST + timedelta(days=order_id % 365)).date(),
            _FIRST + timedelta(seconds=order_id, microseconds=version),
        )

    def put(self, rows: Iterable[Row]) -> None:
        self.rows |= {row[0]: row for row in rows}

    def remove(self, order_ids: Iterable[int]) -> None:
        for order_id in order_ids:
            self.rows.pop(order_id, None)


def to_arrow(rows: Sequence[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([] for _ in COLUMNS)
    return pa.Table.from_arrays(
        [pa.array(list(values), kind) for values, kind in zip(columns, ARROW.types, strict=True)],
        schema=ARROW,
    )


class Writer:
    """Commits to one table as Flink's sink does in upsert mode, and keeps the model up with it."""

    def __init__(
        self, table: JavaObject, storage: Storage, key: Sequence[str], orders: Orders, *, by_region: bool
    ) -> None:
        """table: an `org.apache.iceberg.Table`. by_region: whether it is partitioned so."""
        self._table, self._key, self._by_region = table, tuple(key), by_region
        self._files = StreamedFiles(table, key, storage)
        self._format_version = int(table.operations().current().formatVersion())
        self.orders = orders

    def load(self, order_ids: Iterable[int], files: int = 2) -> list[Description]:
        """The first rows of some orders, as an append of data files. Returns these."""
        rows = [self.orders.new_row(order_id) for order_id in order_ids]
        written = [
            self._files.data_file(to_arrow(of_region[part::files]), partition)
            for partition, of_region in self._parts(rows)
            for part in range(min(files, len(of_region)))
        ]
        append = self._table.newAppend()
        for one in written:
            append.appendFile(self._files.content_file(one))
        append.commit()
        self.orders.put(rows)
        return written

    def leave_file(self) -> str:
        """A data file that nothing names, as of a commit that did not happen. Returns its place."""
        rows = [self.orders.new_row(1 + max(self.orders.versions))]
        ((partition, of_region),) = self._parts(rows)
        return str(self._files.data_file(to_arrow(of_region), partition)["file-path"])

    def checkpoint(self, upserted: Sequence[int], deleted: Sequence[int], branch: str = "main") -> None:
        """New rows of some orders, the first quarter of them twice, and the end of others, in one commit.

        An equality delete of each key, as in upsert mode, and a delete by position of what was written twice.
        """
        twice = [self.orders.new_row(order_id) for order_id in upserted[: len(upserted) // 4]]
        rows = [self.orders.new_row(order_id) for order_id in upserted]
        written = set(upserted)
        deleted = [one for one in deleted if one in self.orders.rows and one not in written]
        gone = [self.orders.rows[order_id] for order_id in deleted]
        self._table.refresh()
        operation = self._table.newRowDelta().toBranch(branch)
        head = self._table.snapshot(branch) or self._table.currentSnapshot()
        if head is not None:
            operation.validateFromSnapshot(head.snapshotId())
        positions = []
        for partition, of_region in self._parts([*twice, *rows]):
            data_file = self._files.data_file(to_arrow(of_region), partition)
            operation.addRows(self._files.content_file(data_file))
            last = {row[0]: at for at, row in enumerate(of_region)}
            if first := [at for at, row in enumerate(of_region) if at < last[row[0]]]:
                positions.append((data_file, np.array(first, np.int64)))
        for partition, of_region in self._parts([*rows, *gone]):
            keys = to_arrow(of_region).select(list(self._key))
            operation.addDeletes(self._files.content_file(self._files.equality_deletes(keys, partition)))
        write = self._files.vectors if self._format_version >= 3 else self._files.position_deletes
        for delete_file in write(positions):
            operation.addDeletes(self._files.content_file(delete_file))
        operation.commit()
        self.orders.put(rows)
        self.orders.remove(deleted)

    def compact(
        self, data_file: Description, rows: Sequence[Row], data_sequence_number: int, since: int
    ) -> bool:
        """Puts a data file with the same rows in the place of one; False if the commit was refused.

        data_sequence_number: of the old one, so that later equality deletes go on to hold. since: the
        snapshot at which the rows were read, since which nobody may have deleted any of them.
        """
        self._table.refresh()
        new = self._files.data_file(to_arrow(rows), data_file["partition"])
        rewrite = self._table.newRewrite().validateFromSnapshot(since)
        rewrite.deleteFile(self._files.content_file(data_file))
        rewrite.addFile(self._files.content_file(new))
        rewrite.dataSequenceNumber(data_sequence_number)
        try:
            rewrite.commit()
        except Py4JJavaError as error:
            if java_types(error) & _REFUSED:
                return False
            raise
        return True

    def _parts(self, rows: Sequence[Row]) -> Iterator[tuple[list[str], list[Row]]]:
        """The rows of each partition, in order."""
        if not self._by_region:
            if rows:
                yield [], list(rows)
            return
        for region in REGIONS:
            if of_region := [row for row in rows if row[1] == region]:
                yield [region], of_region


def rows_of(texts: Iterable[Sequence[str | None]]) -> Rows:
    """Of the columns' values as Java writes them. What is no such value stays a text, and equals none."""
    found: Counter[Any] = Counter()
    for row in texts:
        values: list[Any] = list(row)
        for at, parse in ((0, int), (3, Decimal), (4, date.fromisoformat), (5, datetime.fromisoformat)):
            with suppress(ValueError, TypeError, ArithmeticError, IndexError):
                values[at] = parse(values[at])
        found[tuple(values)] += 1
    return found


def difference(expected: Rows, seen: Rows) -> str:
    """What a reader shows too much and what it lacks, in words; empty if nothing."""
    said = []
    for what, rows in (("shows {} that must not be there", seen - expected), ("lacks {}", expected - seen)):
        if number := rows.total():
            told = what.format(f"{number} row{'s' if number > 1 else ''}")
            first = min(rows, key=lambda row: str(row[0]))
            said.append(f"{told}, such as {', '.join(map(str, first))}")
    return "; ".join(said)
