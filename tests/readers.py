"""Readers of Iceberg tables beside Spark: Iceberg's generic reader in Java, DuckDB and PyIceberg.

Each returns the multiset of visible rows as `tests.factories.visible_rows` does, in the same Python types, so
that answers can be compared: UUIDs as text, timestamps with a zone in UTC.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from typing import Any, Protocol
from uuid import UUID

import duckdb
import duckdb_extensions
import pyarrow as pa
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable

from tests.factories import TableBuilder

Rows = Counter[tuple[Any, ...]]


class HasMetadata(Protocol):
    """A table whose present state lies in a file: a TableBuilder, or a table of PyIceberg."""

    @property
    def metadata_location(self) -> str: ...


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for extension in ("avro", "iceberg"):
        duckdb_extensions.import_extension(extension, con=connection)
    # DuckDB 1.5.5 takes one deletion vector for another of the same Puffin file out of this cache.
    connection.execute("SET enable_external_file_cache = false")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def duckdb_rows(table: HasMetadata, *, snapshot_id: int | None = None) -> Rows:
    """What DuckDB shows. Raises duckdb.Error for what it can't read."""
    of_snapshot = f", snapshot_from_id => {snapshot_id}" if snapshot_id is not None else ""
    query = f"SELECT * FROM iceberg_scan(?{of_snapshot})"
    return _counted(_duckdb().execute(query, [table.metadata_location]).to_arrow_table())


def pyiceberg_rows(table: TableBuilder, *, snapshot_id: int | None = None) -> Rows:
    """What PyIceberg shows. Raises ValueError for a table with equality deletes."""
    static = StaticTable.from_metadata(table.metadata_location, PyArrowFileIO().properties)
    return _counted(static.scan(snapshot_id=snapshot_id).to_arrow())


def java_rows(table: TableBuilder, *columns: str, snapshot_id: int | None = None) -> Rows:
    """What Iceberg's generic reader in Java shows of some columns; it knows every type.

    Values as their Java text: choose columns of numbers or text.
    """
    jvm: Any = table.spark.sparkContext._jvm
    names = jvm.java.util.ArrayList()
    for column in columns:
        names.add(column)
    scan = jvm.org.apache.iceberg.data.IcebergGenerics.read(table.java).select(names)
    reading = (scan if snapshot_id is None else scan.useSnapshot(snapshot_id)).build()
    rows: Rows = Counter()
    try:
        records = reading.iterator()
        while records.hasNext():
            record = records.next()
            rows[tuple(_text(record.getField(column)) for column in columns)] += 1
    finally:
        reading.close()
    return rows


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _counted(rows: pa.Table) -> Rows:
    return Counter(zip(*(map(_plain, _values(column)) for column in rows.columns), strict=True))


def _values(column: pa.ChunkedArray) -> Iterable[Any]:
    if isinstance(column.type, pa.UuidType):
        return [None if value is None else str(value) for value in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _plain(part)) for name, part in value.items())
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value
