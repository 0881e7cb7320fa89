"""Rows of data files at known positions, in the columns that are asked for.

Columns are found as PyIceberg finds them: by field id, with defaults and partition values for what a file
lacks (Iceberg spec, "Column Projection").
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_json
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import (
    UnsupportedPyArrowTypeException,
    _to_requested_schema,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import ListType, MapType

from stores.table_metadata import UNREAD_TYPES, column_of
from worker.io import parquet_rows
from worker.io.file_formats import FORMATS, check_size, field_id_of, open_columns
from worker.io.parquet_footers import INT96_BYTES, moments_of_int96
from worker.io.parquet_rows import Expect, LargePageError, Pages, ParquetFooter
from worker.io.sorting import Int64Array
from worker.keys.key_types import MOMENTS
from worker.process.deadline import check_time
from worker.process.memory import holding, take_memory
from worker.process.slots import Threads
from worker.query.errors import AnswerTooLargeError, UnknownColumnsError, UnreadableError
from worker.query.places import SCAN_BYTES, Places
from worker.query.snapshot import TableSnapshot
from worker.table.files import DataFile

_ROWS_AT_ONCE = 10_000
_FILES_AT_ONCE = 16  # of all questions
_threads = Threads(_FILES_AT_ONCE, "rows")
"""In a store, each waits for its own requests."""
_decoders = Threads(os.cpu_count() or 1, "decoded-rows")
"""On a local disk nothing is waited for, and each holds pages of a file."""
_NO_ROWS = "Ask for places alone (without `select`), or rewrite the file as Parquet (rewrite_data_files)."
_NO_NAMES = "Ask for places alone (without `select`), or set that property to what its columns are called."
_OTHER_TYPE = (
    "Ask for places alone (without `select`), or for other columns; or have the file written anew by a writer"
    " that follows the table's schema."
)
_LARGE_PAGE = "Select other columns, or rewrite the file with smaller pages (write.parquet.page-size-bytes)."


def schema_of(table: TableSnapshot, schema_id: int | None = None) -> Schema:
    """A schema of the table, or else the one that the snapshot is read with. Raises UnknownColumnsError."""
    if schema_id is None:
        return table.schema
    known = {one.schema_id: one for one in table.metadata.schemas}
    if schema_id not in known:
        raise UnknownColumnsError(f"There is no schema {schema_id}, only {', '.join(map(str, known))}.")
    return known[schema_id]


def selected(schema: Schema, columns: Sequence[str]) -> Schema:
    """The columns by dotted names. Raises UnknownColumnsError, or UnreadableError for their types."""
    try:
        found = schema.select(*columns)
    except ValueError as error:
        raise UnknownColumnsError(f"{error}.") from error
    if (unread := column_of(found, UNREAD_TYPES)) is not None:
        name, kind = unread
        raise UnreadableError(f"Values of column {name}, of type {kind}, are not read.", "Select others.")
    return found


def rows_at(
    table: TableSnapshot,
    places: Places,
    schema: Schema,
    most_bytes: int | None = None,
    held_factor: int = 1,
) -> pa.Table:
    """A row for each place, in their order.

    most_bytes: of all of them. held_factor: by how much an answer is larger than they are, in memory.

    Raises AnswerTooLargeError, UnreadableError, or OSError (a retry can help).
    """
    parts = [schema_to_pyarrow(schema, include_field_ids=False).empty_table()]
    order = np.argsort(places.ordinals, kind="stable")
    ordinals = places.ordinals[order]
    starts = np.flatnonzero(np.diff(ordinals, prepend=-1))
    of_files = np.split(order, starts[1:]) if len(order) else []
    files = [places.data_files[int(places.ordinals[rows[0]])] for rows in of_files]
    size = _Size(most_bytes, held_factor)

    def read(file: DataFile, rows: Int64Array) -> pa.Table:
        positions, of_row, times = np.unique(places.positions[rows], return_inverse=True, return_counts=True)
        found, expected = [], 0

        def expect(size_bytes: int) -> None:
            nonlocal expected
            expected += size_bytes
            size.add(size_bytes)

        for start in range(0, len(positions), _ROWS_AT_ONCE):
            here, expected = slice(start, start + _ROWS_AT_ONCE), 0
            found.append(_read(table, file, positions[here], schema, expect))
            size.add(max(0, _repeated_bytes(found[-1], times[here]) - expected))
        return pa.concat_tables(found).take(pa.array(of_row))

    at_once = map if len(files) < 2 else (_decoders if _is_local(table, files[0]) else _threads).map
    parts.extend(at_once(read, files, of_files))
    found = pa.concat_tables(parts, promote_options="permissive")
    return found.take(pa.array(np.argsort(order, kind="stable")))


class _Size:
    """Of the rows that were read, by whatever thread."""

    def __init__(self, most_bytes: int | None, held_factor: int) -> None:
        self._most_bytes = most_bytes
        self._held_factor = held_factor
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        """Raises AnswerTooLargeError beyond the bound."""
        with self._lock:
            self._bytes += size_bytes
            if self._most_bytes is not None and self._bytes > self._most_bytes:
                raise AnswerTooLargeError(f"The rows of the keys have more than {self._most_bytes:,} bytes.")
        take_memory(self._held_factor * size_bytes)


def _repeated_bytes(rows: pa.Table, times: Int64Array) -> int:
    """Of rows, each of which is shown so many times."""
    return sum(
        count * int(rows.take(pa.array(np.flatnonzero(times == count))).nbytes)
        for count in np.unique(times).tolist()
    )


def _is_local(table: TableSnapshot, file: DataFile) -> bool:
    try:
        return table.storage.is_local(file.path)
    except ValueError:  # reading it tells
        return True


def _read(
    table: TableSnapshot, file: DataFile, positions: Int64Array, schema: Schema, expect: Expect
) -> pa.Table:
    if file.file_format not in FORMATS or file.encrypted:
        raise UnreadableError(
            f"{file.path} is {'encrypted' if file.encrypted else file.file_format.upper()}; rows are read"
            " from Parquet, ORC and Avro files.",
            _NO_ROWS,
        )
    read = _read_parquet if file.file_format == "parquet" else _read_others
    try:
        return read(table, file, positions, schema, expect)
    except FileNotFoundError as error:
        raise UnreadableError(str(error), "Restore the file.") from error
    except LargePageError as error:
        raise UnreadableError(f"{file.path}: {error}.", _LARGE_PAGE) from error
    except (pa.ArrowException, ValueError, EOFError) as error:
        raise UnreadableError(f"{file.path}: {error}", "Restore the file.") from error
    except ResolveError as error:
        raise UnreadableError(f"{file.path} has a column of another type: {error}", _OTHER_TYPE) from error


def _read_parquet(
    table: TableSnapshot, file: DataFile, positions: Int64Array, schema: Schema, expect: Expect
) -> pa.Table:
    name = (table.storage, file.path, file.file_size_bytes)
    with table.storage.open_input(file.path) as source:
        check_size(source, file.file_size_bytes)
        footer = table.cache.get(
            ("footer", *name), lambda: ParquetFooter.read(source), lambda one: one.size_bytes
        )
        projected = _projected(table, file, footer.schema, schema)
        names = [field.name for field in projected.fields]

        def keep(chunk: tuple[int, int], make: Callable[[], Pages]) -> Pages:
            return table.cache.get(("pages", *name, chunk), make, lambda pages: pages.size_bytes)

        found = parquet_rows.rows_at(source, footer, names, positions, keep, expect)
    if not names:  # there are so many rows, of whatever other columns
        found = pa.table({"position": positions})
    return _requested(table, file, schema, projected, found)


def _read_others(
    table: TableSnapshot, file: DataFile, positions: Int64Array, schema: Schema, expect: Expect
) -> pa.Table:
    """ORC by stripes and Avro row by row, as keys are read: both from the beginning on."""
    for field_id in schema.field_ids:
        kind = schema.find_type(field_id)
        # Arrow's ORC reader turns them into nanoseconds that wrap around.
        is_lossy = file.file_format == "orc" and isinstance(kind, MOMENTS)
        if is_lossy or isinstance(kind, ListType | MapType):
            raise UnreadableError(
                f"{file.path} is {file.file_format.upper()}, of which columns of type {kind} are not read:"
                f" {schema.find_column_name(field_id)}.",
                _NO_ROWS,
            )
    with (
        holding(min(file.file_size_bytes, SCAN_BYTES)),
        open_columns(table.storage, file.path, file.file_format, file.file_size_bytes) as source,
    ):
        in_file = pa.schema(_known(source.schema, file.file_format))
        projected = _projected(table, file, in_file, schema)
        names = [field.name for field in projected.fields] or source.schema.names[:1]
        parts, start = [], 0
        for batch in source.batches([(name,) for name in names]):
            check_time()
            here = positions[(positions >= start) & (positions < start + batch.num_rows)]
            parts.append(pa.Table.from_batches([batch]).select(names).take(pa.array(here - start)))
            if projected.fields:  # else it is of none of the columns
                expect(parts[-1].nbytes)
            start += batch.num_rows
            if start > positions.max():
                break
    found = pa.concat_tables(parts)
    if found.num_rows != len(positions):
        raise ValueError(f"it has {start} rows, and not one at {positions.max()}")
    return _requested(table, file, schema, projected, found)


def _known(fields: Iterable[pa.Field], file_format: str) -> list[pa.Field]:
    """Without what is refused: ORC's timestamps, and lists and maps of Avro, which have no type of Arrow."""
    is_refused = pa.types.is_timestamp if file_format == "orc" else pa.types.is_null
    return [
        field.with_type(pa.struct(_known(field.type, file_format)))
        if pa.types.is_struct(field.type)
        else field
        for field in fields
        if not is_refused(field.type)
    ]


def _projected(table: TableSnapshot, file: DataFile, in_file: pa.Schema, schema: Schema) -> Schema:
    """What a file has of the columns that are asked for, with its own names.

    Names tell only where no column has an id, as with keys. PyIceberg goes by them as soon as one has none.
    """
    ids, mapping = schema.field_ids, table.metadata.name_mapping()
    fields = list(in_file)
    if any(field_id_of(field) is not None for field in fields):
        fields, mapping = _asked(fields, ids), None
        fields = [_as_moment(field, schema, field_id_of(field)) for field in fields]
    elif mapping is None:
        raise UnreadableError(
            f"{file.path} has no field ids, and the table no `schema.name-mapping.default`.", _NO_NAMES
        )
    else:
        named = {name: one.field_id for one in mapping if one.field_id in ids for name in one.names}
        fields = [_as_moment(field, schema, named[field.name]) for field in fields if field.name in named]
    try:
        of_file = pyarrow_to_schema(pa.schema(fields), mapping, format_version=table.metadata.format_version)
    except UnsupportedPyArrowTypeException as error:  # nanoseconds in a table of version 2, as INT96 has
        raise ResolveError(error) from error
    # Lists and maps follow from what is in them.
    leaves = {i for i in ids if not isinstance(schema.find_type(i), ListType | MapType)}
    return prune_columns(of_file, leaves, select_full_types=False)


def _as_moment(field: pa.Field, schema: Schema, field_id: int | None) -> pa.Field:
    """What a column holds in the old form of moments is what the table has in it; see `_moments`."""
    kind = None if field_id is None else schema.find_type(field_id)
    if field.type != pa.binary(INT96_BYTES) or not isinstance(kind, MOMENTS):
        return field
    return field.with_type(schema_to_pyarrow(kind))


def _moments(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column of INT96 as a timestamp of that type."""
    parts = [moments_of_int96(part, kind.unit).cast(kind) for part in column.chunks]
    return pa.chunked_array(parts, kind)


def _asked(fields: Iterable[pa.Field], ids: Set[int]) -> list[pa.Field]:
    """Those with one of the ids. What has none is no column, such as the parts of a variant."""
    found = []
    for field in fields:
        kind = field.type
        if field_id_of(field) not in ids:
            continue
        if pa.types.is_struct(kind):
            kind = pa.struct(_asked(kind, ids))
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            kind = next((pa.list_(one) for one in _asked([kind.value_field], ids)), None)
        elif pa.types.is_map(kind):
            parts = _asked([kind.key_field, kind.item_field], ids)
            kind = pa.map_(*parts) if len(parts) == 2 else None
        if kind is not None:
            found.append(field.with_type(kind))
    return found


def _requested(
    table: TableSnapshot, file: DataFile, schema: Schema, projected: Schema, found: pa.Table
) -> pa.Table:
    """found: the columns `projected` of some rows."""
    constants = _constants(table, file, schema, projected)
    for at, field in enumerate(projected.fields):
        if isinstance(field.field_type, MOMENTS) and found.schema.field(field.name).type == pa.binary(
            INT96_BYTES
        ):
            column = _moments(found.column(field.name), schema_to_pyarrow(field.field_type))
            found = found.set_column(at, field.name, column)
    batches = found.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], found.schema)]
    try:
        parts = [
            _to_requested_schema(schema, projected, batch, projected_missing_fields=constants)
            for batch in batches
        ]
    except ValueError as error:  # what it has no way to turn into the table's type, such as nanoseconds
        raise ResolveError(error) from error
    return pa.Table.from_batches(parts)


def _constants(table: TableSnapshot, file: DataFile, schema: Schema, projected: Schema) -> dict[int, Any]:
    """Values of the partition's columns that the file lacks, by field id."""
    spec = table.metadata.specs()[file.partition.spec_id]
    values = json.loads(file.partition.values)
    found = {}
    for at, field in enumerate(spec.fields):
        is_missing = field.source_id in schema.field_ids and field.source_id not in projected.field_ids
        if isinstance(field.transform, IdentityTransform) and is_missing and values[at] is not None:
            found[field.source_id] = from_json(schema.find_type(field.source_id), values[at])  # type: ignore[arg-type]
    return found
