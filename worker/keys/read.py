"""Reads key columns of data files and equality delete files as typed Arrow arrays, in row order.

Invariant: a key column is found by field id, and its values never depend on any delete. A column that a
file lacks takes its projected value (Iceberg spec, "Column Projection").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.transforms import IdentityTransform

from worker.io.file_formats import BATCH_ROWS, FORMATS, Path, field_id_of, open_columns
from worker.io.storage import Storage
from worker.keys.key_set import MASK_BITS, KeyColumn, KeyColumnError, KeySet
from worker.keys.key_types import from_single_value, placeholder, to_key_type
from worker.process.deadline import check_time
from worker.process.errors import Reason
from worker.table.files import DataFile, DeleteFile

_AS_PARQUET = "Rewrite the file as Parquet (rewrite_data_files with write.format.default=parquet)."


@dataclass(frozen=True, slots=True)
class KeyReader:
    """Reads the key columns of one key set from files of one table. Pickles, for use in tasks."""

    storage: Storage
    key_set: KeySet
    name_mapping: str | None  # JSON, for files without field ids
    identity_partitions: Mapping[int, Mapping[int, int]]  # spec id -> source field id -> index in the tuple

    def read_data_file(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Every row's key, in row order, whether deleted or not: batches of `key_set.schema`.

        Raises KeyColumnError, FileNotFoundError, OSError (a retry can help).
        """
        partition = json.loads(file.partition.values)
        constants = {
            field_id: partition[index]
            for field_id, index in self.identity_partitions.get(file.partition.spec_id, {}).items()
        }
        yield from self._read(file, constants, required=False)

    def read_delete_file(self, file: DeleteFile) -> Iterator[pa.RecordBatch]:
        """Every delete key of an equality delete file; further columns of the file are ignored.

        Raises KeyColumnError also if the file lacks one of its equality columns.
        """
        yield from self._read(file, {}, required=True)

    def field_ids(self, file: DataFile | DeleteFile) -> frozenset[int]:
        """Of the columns that a file has, outside lists and maps. Raises as `read_data_file`."""
        with open_columns(self.storage, file.path, file.file_format, file.file_size_bytes) as source:
            return frozenset(ids[-1] for ids in self._paths(source.schema, file.file_format, {}))

    def _read(
        self, file: DataFile | DeleteFile, constants: Mapping[int, Any], *, required: bool
    ) -> Iterator[pa.RecordBatch]:
        if file.encrypted:
            raise KeyColumnError(
                "encrypted_file",
                f"{file.path} is encrypted and no keys are at hand",
                "Rewrite the files unencrypted, or convert with a writer that holds the table's keys.",
            )
        if file.file_format not in FORMATS:
            raise KeyColumnError(
                "unsupported_file_format",
                f"{file.path} is {file.file_format.upper()}; key columns are read from Parquet, ORC and Avro",
                _AS_PARQUET,
            )
        try:
            yield from self._read_columns(file, constants, required=required)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException, ValueError, EOFError) as error:

            def read_again() -> None:
                for _ in self._read_columns(file, constants, required=required):
                    pass

            if self.storage.is_at_fault(error, [file.path], read_again):
                raise
            raise KeyColumnError(
                "corrupt_file",
                f"{file.path} is not a readable {file.file_format.upper()} file: {error}",
                "Restore the file, or remove it from the table with its writer.",
            ) from error

    def _read_columns(
        self, file: DataFile | DeleteFile, constants: Mapping[int, Any], *, required: bool
    ) -> Iterator[pa.RecordBatch]:
        with open_columns(self.storage, file.path, file.file_format, file.file_size_bytes) as source:
            paths = self._paths(source.schema, file.file_format, constants)
            leaves = {
                c.field_id: paths[c.field_id_path] for c in self.key_set.columns if c.field_id_path in paths
            }
            missing = [c for c in self.key_set.columns if c.field_id not in leaves]
            if required and missing:
                raise KeyColumnError(
                    "missing_equality_column",
                    f"{file.path} lacks its equality column {missing[0].name} (field {missing[0].field_id})",
                    "Have the writer of the deletes fix the file; nothing can be matched without the column.",
                )
            projected = {c.field_id: _projected(c, constants, paths) for c in missing}
            parents = {i: one.parent for i, one in projected.items() if one.parent is not None}
            found = [*leaves.values(), *parents.values()]
            if file.file_format == "orc":
                _refuse_timestamps(file, source.schema, found)
            if source.rows is not None:
                _check_rows(file, source.rows)
            if not found:
                for start in range(0, file.record_count, BATCH_ROWS):
                    yield self._to_key_batch({}, projected, min(BATCH_ROWS, file.record_count - start))
                return
            rows = 0
            for batch in source.batches(found):
                check_time()
                arrays = {i: _column(batch, path) for i, path in (leaves | parents).items()}
                yield self._to_key_batch(arrays, projected, batch.num_rows)
                rows += batch.num_rows
            _check_rows(file, rows)

    def _paths(
        self, schema: pa.Schema, file_format: str, constants: Mapping[int, Any]
    ) -> dict[tuple[int, ...], Path]:
        """Path of field ids -> path of names, for the fields that the file has.

        A file without ids gives a partition's columns no value of their own (spec, "Column Projection"); its
        others are told by the table's name mapping and without one as Iceberg does: in Parquet by position,
        in ORC and Avro by name.
        """
        paths = _paths_by_id(schema)
        if paths:
            return paths
        if self.name_mapping is not None:
            paths = _mapped_paths(list(NameMapping.model_validate_json(self.name_mapping)), schema)
        elif file_format == "parquet":
            paths = {(position,): (name,) for position, name in enumerate(schema.names, start=1)}
        else:
            paths = _named_paths(self.key_set.columns, schema)
        return {ids: path for ids, path in paths.items() if ids[-1] not in constants}

    def _to_key_batch(
        self, columns: Mapping[int, pa.Array], projected: Mapping[int, _Projected], rows: int
    ) -> pa.RecordBatch:
        """columns: by field id, those of the file, or the parent structs of those that it lacks."""
        arrays: list[pa.Array] = []
        for column in self.key_set.columns:
            read = columns.get(column.field_id)
            if column.field_id in projected:
                arrays.append(_repeated(column, projected[column.field_id].value, read, rows))
            else:
                arrays.append(to_key_type(read, column))
        return key_batch(self.key_set, arrays)


def key_batch(key_set: KeySet, arrays: Sequence[pa.Array]) -> pa.RecordBatch:
    """Keys as `KeySet.schema` has them: nulls are marked in the masks, and have placeholders.

    arrays: of the key columns, in their key types.
    """
    schema, rows = key_set.schema, len(arrays[0])
    masks = [pa.repeat(pa.scalar(0, pa.int32()), rows)] * (len(schema) - len(key_set.columns))
    filled = []
    for at, (column, array) in enumerate(zip(key_set.columns, arrays, strict=True)):
        if array.null_count:
            mask, bit = divmod(at, MASK_BITS)
            null_bit = pc.if_else(array.is_null(), pa.scalar(1 << bit, pa.int32()), pa.scalar(0, pa.int32()))
            masks[mask] = pc.bit_wise_or(masks[mask], null_bit)
        filled.append(array.fill_null(placeholder(column.key_type)) if array.null_count else array)
    return pa.RecordBatch.from_arrays([masks[0], *filled, *masks[1:]], schema=schema)


def _refuse_timestamps(
    file: DataFile | DeleteFile, schema: pa.Schema, paths: Sequence[Sequence[str]]
) -> None:
    """Arrow's ORC reader turns timestamps into nanoseconds that wrap around: two may look the same."""
    for path in paths:
        leaf: pa.DataType = pa.struct(list(schema))
        for name in path:
            leaf = leaf.field(name).type
        if pa.types.is_timestamp(leaf):
            raise KeyColumnError(
                "unsupported_orc_timestamp",
                f"{file.path} is an ORC file whose key column {'.'.join(path)} is a timestamp, and those"
                " outside the years 1678 to 2261 can't be told apart there",
                _AS_PARQUET,
            )


def _check_rows(file: DataFile | DeleteFile, rows: int) -> None:
    if rows != file.record_count:
        raise KeyColumnError(
            "corrupt_file",
            f"{file.path} holds {rows} rows, but its manifest says {file.record_count}",
            "Restore the file that the manifest describes.",
        )


def missing_file(error: FileNotFoundError) -> Reason:
    """Why what needs a file that is gone is refused."""
    return Reason("missing_file", str(error), "Restore the file.")


def key_reader(metadata: TableMetadata, storage: Storage, key_set: KeySet) -> KeyReader:
    """The reader of a key set for the table that `metadata` describes."""
    mapping = metadata.name_mapping()
    return KeyReader(
        storage,
        key_set,
        mapping.model_dump_json() if mapping is not None else None,
        {spec.spec_id: _identity_positions(spec) for spec in metadata.partition_specs},
    )


def _identity_positions(spec: PartitionSpec) -> dict[int, int]:
    return {
        field.source_id: index
        for index, field in enumerate(spec.fields)
        if isinstance(field.transform, IdentityTransform)
    }


@dataclass(frozen=True, slots=True)
class _Projected:
    """The value of a key column that a file lacks; null wherever the parent struct is null."""

    value: Any
    parent: Path | None = None


def _projected(
    column: KeyColumn, constants: Mapping[int, Any], paths: Mapping[tuple[int, ...], Path]
) -> _Projected:
    """Identity partition value (a null one too), default, or null; null if the file lacks the parent."""
    if column.field_id in constants:
        value = from_single_value(constants[column.field_id], column)
    else:
        value = column.initial_default
    *above, _ = column.field_id_path
    if value is None or not above:
        return _Projected(value)
    parent = paths.get(tuple(above))
    return _Projected(None if parent is None else value, parent)


def _repeated(column: KeyColumn, value: Any, parent: pa.Array | None, rows: int) -> pa.Array:
    if value is None:
        return pa.nulls(rows, column.key_type)
    values = pa.repeat(pa.scalar(value, column.key_type), rows)
    return values if parent is None else pc.if_else(parent.is_valid(), values, None)


def _paths_by_id(schema: pa.Schema) -> dict[tuple[int, ...], Path]:
    """The fields outside lists and maps that carry ids; empty if the file carries none."""
    paths: dict[tuple[int, ...], Path] = {}

    def visit(fields: Iterable[pa.Field], ids: tuple[int, ...], names: Path) -> None:
        for field in fields:
            field_id = field_id_of(field)
            if field_id is None:
                continue
            paths[(*ids, field_id)] = (*names, field.name)
            if pa.types.is_struct(field.type):
                visit(field.type, (*ids, field_id), (*names, field.name))

    visit(schema, (), ())
    return paths


def _mapped_paths(
    mapping: Sequence[MappedField], fields: Iterable[pa.Field], ids: tuple[int, ...] = (), names: Path = ()
) -> dict[tuple[int, ...], Path]:
    """The same for a file without ids, by the table's name mapping."""
    paths: dict[tuple[int, ...], Path] = {}
    for field in fields:
        mapped = next((one for one in mapping if field.name in one.names), None)
        if mapped is None or mapped.field_id is None:
            continue
        below = (*ids, mapped.field_id), (*names, field.name)
        paths[below[0]] = below[1]
        if pa.types.is_struct(field.type):
            paths |= _mapped_paths(mapped.fields, field.type, *below)
    return paths


def _named_paths(columns: Iterable[KeyColumn], schema: pa.Schema) -> dict[tuple[int, ...], Path]:
    """The same by the names of the columns in the table's schema."""
    paths: dict[tuple[int, ...], Path] = {}
    for column in columns:
        fields: pa.DataType = pa.struct(list(schema))
        for depth, name in enumerate(column.name_path, start=1):
            if not pa.types.is_struct(fields) or fields.get_field_index(name) < 0:
                break
            paths[column.field_id_path[:depth]] = column.name_path[:depth]
            fields = fields.field(name).type
    return paths


def _column(batch: pa.RecordBatch, path: Path) -> pa.Array:
    """A column of the file; a null parent struct makes its leaf null."""
    array = batch.column(path[0])
    return pc.struct_field(array, list(path[1:])) if len(path) > 1 else array
