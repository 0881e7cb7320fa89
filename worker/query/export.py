"""`icestream export-index`: an index in the form of Iceberg's draft for secondary indexes. Experimental.

The draft is `format/index-spec.md` of apache/iceberg#16961, at the commit `DRAFT`: leaf files of keys and the
places of their rows, in one order over all; a tracking file with what each leaf ends with; and metadata in
JSON. It knows live rows of one snapshot of a table, no partitions, and no address of a row.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.types import FixedType, UUIDType

from worker.contract.lookups import AskedKeys
from worker.deletes.puffin import positions_of
from worker.index.dictionary import read_parts
from worker.index.key_set_index import ROW_ADDRESS, KeySetIndex
from worker.io.storage import Storage
from worker.keys.key_set import MASK_BITS, NULL_MASK, KeyColumn, KeySet
from worker.keys.key_types import from_key_type
from worker.process.errors import JobError
from worker.query.answers import Answers, TablePlace
from worker.query.errors import NotCoveredError, OutdatedError, QuestionError, UnreadableError
from worker.query.snapshot import TableSnapshot

DRAFT = "4a942ed6972db9c5968e1a443bec90944ea3ab9a"
LEAF_ENTRIES = 1_000_000
MOST_ENTRIES = 50_000_000
"""They are sorted in memory."""

_FILE, _POS = 2147483646, 2147483645  # the metadata columns of a table that say where a row lies
_FILE_PATH, _POSITION = 2147483546, 2147483545  # the columns of a leaf file that do
_UPPER_BOUND, _FIRST_COMPONENT = 9800, 9801
_LAST_STATS = 200_000_000
_PLACE = ("file_path", "pos")  # names are the writer's; no key column has them: see `_leaf_schema`


class UnsupportedExportError(QuestionError):
    code = "unsupported_export"
    title = "The index can't be exported"


@dataclass(frozen=True, slots=True)
class Exported:
    """metadata: the location of the index's metadata file."""

    metadata: str
    snapshot_id: int
    entries: int
    leaf_files: int


@dataclass(frozen=True, slots=True)
class _Leaf:
    location: str
    size_bytes: int
    entries: pa.Table


def export_index(place: TablePlace, question: AskedKeys, to: str) -> Exported:
    """Writes the live rows of a snapshot that the index covers as an index of the draft, under `to`.

    Raises JobError (NotCoveredError where data files are not indexed or equality deletes wait), and OSError
    (a retry can help).
    """
    coverage = Answers().coverage(place, question)
    table, index = coverage.table, coverage.index
    if table.snapshot is None:
        raise NotCoveredError("The table has no snapshot yet.", "Export its index once it has rows.")
    if index is None or coverage.files_left:
        raise NotCoveredError(
            f"{coverage.files_left} data files of the snapshot are not indexed.",
            "Run a job of kind `index`, and export again.",
        )
    if table.files.equality_deletes:
        raise NotCoveredError(
            "Equality deletes wait to be converted, and the export does not apply them.",
            "Run a job of kind `convert`, and export again.",
        )
    schema = _leaf_schema(index.key_set)
    entries = _in_order(_live_entries(table, index, schema))
    number, to = str(uuid4()), to.rstrip("/")
    leaves: list[_Leaf] = []
    for start in range(0, entries.num_rows, LEAF_ENTRIES):
        leaf = entries.slice(start, LEAF_ENTRIES)
        location = f"{to}/data/leaf-{len(leaves) + 1:05d}-{number}.parquet"
        leaves.append(_Leaf(location, _write(place.tables, location, leaf), leaf))
    tracking = f"{to}/metadata/tracking-00001-{number}.parquet"
    _write(place.tables, tracking, _tracking(leaves, index.key_set, schema))
    metadata = f"{to}/metadata/00001-{number}.metadata.json"
    snapshot_id = table.snapshot.snapshot_id
    told = _metadata(str(table.metadata.table_uuid), snapshot_id, index.key_set, to, tracking)
    place.tables.create(metadata, json.dumps(told, indent=2).encode())
    return Exported(metadata, snapshot_id, entries.num_rows, len(leaves))


# Leaf files.


def _leaf_schema(key_set: KeySet) -> pa.Schema:
    """Raises UnsupportedExportError."""
    keys = []
    for column in key_set.columns:
        if isinstance(column.iceberg_type, UUIDType):
            raise UnsupportedExportError(
                f"Column {column.name} is a UUID, which Arrow can't mark as such in a leaf file."
            )
        if _stats_id(column) >= _LAST_STATS:
            raise UnsupportedExportError(
                f"The draft has no place for statistics of column {column.name}, field {column.field_id}."
            )
        # With its id, since no name may be that of another column.
        keys.append(_field(column.field_id, f"{column.name}_{column.field_id}", _leaf_type(column)))
    path, position = (
        _field(field_id, name, kind, required=True)
        for field_id, name, kind in zip(
            (_FILE_PATH, _POSITION), _PLACE, (pa.string(), pa.int64()), strict=True
        )
    )
    return pa.schema([*keys, path, position])


def _leaf_type(column: KeyColumn) -> pa.DataType:
    if isinstance(column.iceberg_type, FixedType):
        return pa.binary(len(column.iceberg_type))
    return from_key_type(pa.array([], column.key_type), column).type


def _live_entries(table: TableSnapshot, index: KeySetIndex, schema: pa.Schema) -> pa.Table:
    """As leaf files have them, in any order.

    Raises UnreadableError if the index does not have as many as there are, UnsupportedExportError, OSError.
    """
    files, dictionary, key_set = table.files.data_files, index.dictionary, index.key_set
    if files.record_count > MOST_ENTRIES:
        raise UnsupportedExportError(
            f"The table has {files.record_count:,} rows, and {MOST_ENTRIES:,} at most are sorted in memory."
        )
    paths = pa.array([file.path for file in files], pa.string())
    if len(paths.unique()) < len(paths):
        raise UnsupportedExportError("A data file is live more than once in the table.")
    file_of = np.full(len(dictionary), -1, np.int64)
    file_of[dictionary.rows_of(files)] = np.arange(len(paths))
    skipped = [None if one is None else positions_of(one[0]) for one in table.skipped(files)]
    parts = [schema.empty_table()]
    stored = pa.schema([*key_set.schema, pa.field(ROW_ADDRESS, pa.int64())])
    for part in read_parts(index.storage, index.entries.files, stored):
        addresses = part[ROW_ADDRESS].to_numpy()
        owners = dictionary.ordinals(addresses)
        ordinals = np.where(owners >= 0, file_of[owners], -1)
        positions = addresses - dictionary.base_addresses[owners]
        is_live = ordinals >= 0
        for ordinal in np.unique(ordinals[is_live]).tolist():
            if (deleted := skipped[ordinal]) is not None:
                here = np.flatnonzero(ordinals == ordinal)
                is_live[here[np.isin(positions[here], deleted)]] = False
        live = part.filter(pa.array(is_live))
        keys = [_key(live, key_set, at).cast(schema.field(at).type) for at in range(len(key_set.columns))]
        places = [paths.take(pa.array(ordinals[is_live])), pa.array(positions[is_live])]
        parts.append(pa.table([*keys, *places], schema=schema))
    found = pa.concat_tables(parts)
    live_rows = files.record_count - sum(len(one) for one in skipped if one is not None)
    if found.num_rows != live_rows:
        raise UnreadableError(
            f"The index has {found.num_rows:,} entries of the snapshot's {live_rows:,} live rows.",
            "Run a job of kind `verify`; it says whether the index has to be built anew.",
        )
    return found


def _key(part: pa.Table, key_set: KeySet, at: int) -> pa.Array:
    """A key column in its Iceberg type, with its nulls."""
    column = key_set.columns[at]
    further, bit = divmod(at, MASK_BITS)
    mask = part[f"{NULL_MASK}_{further * MASK_BITS}" if further else NULL_MASK].combine_chunks()
    is_null = pc.not_equal(pc.bit_wise_and(mask, pa.scalar(1 << bit, pa.int32())), 0)
    values = part[column.column_name].combine_chunks()
    return from_key_type(pc.if_else(is_null, pa.scalar(None, values.type), values), column)


def _in_order(entries: pa.Table) -> pa.Table:
    """By the key, nulls first, and then by the place; text and bytes by their bytes."""
    keys = [(name, "ascending") for name in entries.column_names]
    return entries.take(pc.sort_indices(entries, sort_keys=keys, null_placement="at_start"))


# The tracking file.


def _tracking(leaves: Sequence[_Leaf], key_set: KeySet, schema: pa.Schema) -> pa.Table:
    keys = [schema.field(at) for at in range(len(key_set.columns))]
    stats = [_stats_field(_stats_id(column), key) for column, key in zip(key_set.columns, keys, strict=True)]
    bound = pa.struct([_field(_FIRST_COMPONENT + at, key.name, key.type) for at, key in enumerate(keys)])
    stats.append(_field(_UPPER_BOUND, "index_key_upper_bound", bound, required=True))
    return pa.Table.from_pylist(
        [_tracked(leaf, keys) for leaf in leaves],
        schema=pa.schema(
            [
                _field(100, "file_path", pa.string(), required=True),
                _field(101, "file_format", pa.string(), required=True),
                _field(103, "record_count", pa.int64(), required=True),
                _field(104, "file_size_in_bytes", pa.int64(), required=True),
                _field(146, "content_stats", pa.struct(stats), required=True),
            ]
        ),
    )


def _stats_id(column: KeyColumn) -> int:
    """Of the struct with statistics of a column; its fields follow it."""
    return 10_000 + 200 * column.field_id


def _stats_field(first: int, key: pa.Field) -> pa.Field:
    parts = [
        _field(first + 1, "lower_bound", key.type),
        _field(first + 2, "upper_bound", key.type),
        _field(first + 3, "tight_bounds", pa.bool_()),
        _field(first + 4, "value_count", pa.int64()),
        _field(first + 5, "null_value_count", pa.int64()),
    ]
    return _field(first, key.name, pa.struct(parts))


def _tracked(leaf: _Leaf, keys: Sequence[pa.Field]) -> dict[str, Any]:
    """Bounds are exact: none is cut off. They stay Arrow's, since Python has no year beyond 9999."""
    stats: dict[str, Any] = {}
    for key in keys:
        column = leaf.entries[key.name]
        bounds = pc.min_max(column)
        stats[key.name] = {
            "lower_bound": bounds["min"],
            "upper_bound": bounds["max"],
            "tight_bounds": True,
            "value_count": len(column),
            "null_value_count": column.null_count,
        }
    last = leaf.entries.slice(leaf.entries.num_rows - 1)
    stats["index_key_upper_bound"] = {key.name: last[key.name][0] for key in keys}
    return {
        "file_path": leaf.location,
        "file_format": "parquet",
        "record_count": leaf.entries.num_rows,
        "file_size_in_bytes": leaf.size_bytes,
        "content_stats": stats,
    }


def _metadata(
    table_uuid: str, snapshot_id: int, key_set: KeySet, location: str, tracking: str
) -> dict[str, Any]:
    ids = key_set.equality_field_ids
    sources = {**{one: one for one in ids}, _FILE_PATH: _FILE, _POSITION: _POS}
    return {
        "format-version": 1,
        "uuid": str(uuid4()),
        "table-uuid": table_uuid,
        "location": location,
        "type": "SCALAR",
        "index-values": [
            {"field-id": field_id, "expression": _reference(source)} for field_id, source in sources.items()
        ],
        "index-keys": [_reference(one) for one in ids],
        "properties": {"icestream.draft": f"apache/iceberg#16961 at {DRAFT}"},
        "snapshots": [
            {
                "snapshot-id": 1,
                "source-table-snapshot-id": snapshot_id,
                "timestamp-ms": time.time_ns() // 10**6,
                "index-data": tracking,
            }
        ],
    }


def _reference(field_id: int) -> dict[str, Any]:
    return {"type": "reference", "id": field_id}


def _field(field_id: int, name: str, kind: pa.DataType, *, required: bool = False) -> pa.Field:
    return pa.field(name, kind, not required, metadata={"PARQUET:field_id": str(field_id)})


def _write(storage: Storage, location: str, rows: pa.Table) -> int:
    """Returns the bytes of the file."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        compression="zstd",
        store_schema=False,
        store_decimal_as_integer=True,  # as Iceberg has them in Parquet, up to 18 digits
        write_page_index=True,
    )
    content = sink.getvalue()
    storage.write(location, content)
    return int(content.size)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="icestream export-index")
    for name in ("metadata", "index-warehouse", "to"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--key-column", action="append", required=True)
    parser.add_argument("--branch", default="main")
    asked = parser.parse_args(arguments)
    storage = Storage()
    place = TablePlace(asked.metadata, storage, asked.index_warehouse, storage, asked.branch)
    question = AskedKeys(key_columns=asked.key_column, branch=asked.branch)
    try:
        made = export_index(place, question, asked.to)
    except OutdatedError as error:
        return _refused(f"A file that the export needs is gone, or never was: {error.detail}")
    except JobError as error:
        return _refused(f"{error.detail} {error.remedy}")
    except (OSError, ValueError) as error:
        return _refused(str(error))
    told: Mapping[str, Any] = {
        "metadata": made.metadata,
        "source_table_snapshot_id": made.snapshot_id,
        "entries": made.entries,
        "leaf_files": made.leaf_files,
    }
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


def _refused(why: str) -> int:
    sys.stderr.write(f"{why.strip()}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
