"""Columns of Parquet, ORC and Avro files as Arrow batches, found by field id."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise, starmap
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from worker.io.decimals import check_decimals
from worker.io.parquet_footers import parse_footer, read_tail
from worker.io.parquet_pages import batch_of, leaves_of
from worker.io.row_groups import GAP_BYTES, as_fetched, chunk_range
from worker.io.storage import Storage
from worker.process.memory import holding

BATCH_ROWS = 262_144
AHEAD_BYTES = 16 * 1024**2
"""Of column chunks, and what lies between them, that a store is asked for at once."""
_COPIES = 3  # of what is in a batch: its columns, the keys that are made of them, and what compares these

# From the top-level column down to a leaf outside lists and maps.
Path = tuple[str, ...]


class ColumnFile(ABC):
    """An open file. Any call may raise pa.ArrowException, ValueError or OSError: damage, or the store."""

    schema: pa.Schema
    rows: int | None  # None where only reading tells

    @abstractmethod
    def batches(self, paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
        """All rows in order, with at least the columns that the paths lead to."""


@contextmanager
def open_columns(storage: Storage, location: str, file_format: str, size_bytes: int) -> Iterator[ColumnFile]:
    """file_format: a key of FORMATS. size_bytes: what the manifest says of the file.

    Raises as ColumnFile does, and FileNotFoundError.
    """
    with storage.open_input(location) as source:
        check_size(source, size_bytes)
        file = FORMATS[file_format](source)
        check_decimals(file.schema)
        yield file


def check_size(source: pa.NativeFile, size_bytes: int) -> None:
    """Tells a file that was cut off, and most other files that came in the place of the right one."""
    found = source.size()
    if found != size_bytes:
        raise pa.ArrowInvalid(f"it has {found} bytes, but its manifest says {size_bytes}")


class _ParquetColumns(ColumnFile):
    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._fetched, read = as_fetched(source)
        # Parquet-java gives every page a checksum, Arrow none unless asked.
        metadata = parse_footer(*read_tail(source))
        self._file = pq.ParquetFile(read, metadata=metadata, page_checksum_verification=True)
        self.schema = self._file.schema_arrow
        self.rows = self._file.metadata.num_rows

    def batches(self, paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
        columns = [".".join(path) for path in paths]
        groups, leaves = range(self._file.num_row_groups), leaves_of(self._file.metadata, columns)
        batch = batch_of(self._source, self._file.metadata, groups, leaves, BATCH_ROWS)
        lots = self._lots(leaves)
        ahead = max((lot.held_bytes for lot in lots), default=0)
        with holding(_COPIES * batch.size_bytes + ahead):
            for lot in lots:
                if self._fetched is not None and lot.chunks:
                    self._fetched.fetch(sorted(lot.chunks))
                yield from self._file.iter_batches(batch.rows, lot.groups, columns, use_threads=False)
                if self._fetched is not None:
                    self._fetched.forget()

    def _lots(self, leaves: Sequence[int]) -> list[_Lot]:
        """All row groups in order: Arrow asks a store for a column chunk once it has read the one before.

        Of a large row group, or one whose column chunks can't lie where its footer has them, nothing is asked
        for ahead: it would take as much memory again, or Arrow tells what is wrong.
        """
        metadata = self._file.metadata
        groups = range(metadata.num_row_groups)
        if self._fetched is None:
            return [_Lot(list(groups))]
        end_of_file = self._source.size()
        lots: list[_Lot] = []
        for group in groups:
            chunks = sorted(chunk_range(metadata.row_group(group).column(leaf)) for leaf in leaves)
            held = _held_bytes(chunks)
            if held > AHEAD_BYTES or not all(0 <= start <= end <= end_of_file for start, end in chunks):
                chunks, held = [], 0
            if lots and lots[-1].chunks and chunks:
                together = lots[-1].held_bytes + held + _held_between(lots[-1].chunks[-1], chunks[0])
                if together <= AHEAD_BYTES:
                    lots[-1].take(group, chunks, together)
                    continue
            lots.append(_Lot([group], chunks, held))
        return lots


def _held_bytes(chunks: Sequence[tuple[int, int]]) -> int:
    """That column chunks take, (start, end) of each, with what lies between them and is read along."""
    return sum(end - start for start, end in chunks) + sum(starmap(_held_between, pairwise(chunks)))


def _held_between(before: tuple[int, int], after: tuple[int, int]) -> int:
    return min(abs(after[0] - before[1]), GAP_BYTES)


@dataclass
class _Lot:
    """Row groups, and their column chunks, (start, end) in bytes, that a store is asked for at once.

    held_bytes: that these take, with what lies between them.
    """

    groups: list[int]
    chunks: list[tuple[int, int]] = field(default_factory=list)
    held_bytes: int = 0

    def take(self, group: int, chunks: Sequence[tuple[int, int]], held_bytes: int) -> None:
        self.groups.append(group)
        self.chunks += chunks
        self.held_bytes = held_bytes


class _OrcColumns(ColumnFile):
    def __init__(self, source: pa.NativeFile) -> None:
        self._file = orc.ORCFile(source)
        self.schema = self._file.schema
        self.rows = self._file.nrows

    def batches(self, paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
        # A name with a dot in it would mean a nested column, so then all columns are read.
        dotted = any("." in name for name in self.schema.names)
        columns = None if dotted else sorted({path[0] for path in paths})
        for stripe in range(self._file.nstripes):
            batch = self._file.read_stripe(stripe, columns=columns)
            with holding(_COPIES * batch.nbytes):
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    yield batch.slice(start, BATCH_ROWS)


class _AvroColumns(ColumnFile):
    """Row by row, by fastavro: PyIceberg's own decoder can crash the process in columns that it skips."""

    def __init__(self, source: pa.NativeFile) -> None:
        with _arrow_errors():
            self._file = fastavro.block_reader(source)
            avro: dict[str, Any] = json.loads(self._file.metadata["avro.schema"])
            self.schema = pa.schema([_avro_field(field) for field in _inlined(avro, {})["fields"]])
        self.rows = None
        self._avro = avro

    def batches(self, paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
        for batch in self._blocks(paths):
            with holding(_COPIES * batch.nbytes):
                yield batch

    def _blocks(self, paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
        wanted = {path[0] for path in paths}
        columns = [field for field in self.schema if field.name in wanted]
        with _arrow_errors():
            written = fastavro.parse_schema(_physical(self._avro))
            blocks: Iterator[Any] = iter(self._file)
            for block in blocks:
                records = range(block.num_records)
                rows: list[Any] = [fastavro.schemaless_reader(block.bytes_, written, None) for _ in records]
                arrays = [_array([row[field.name] for row in rows], field.type) for field in columns]
                yield pa.RecordBatch.from_arrays(arrays, names=[field.name for field in columns])


@contextmanager
def _arrow_errors() -> Iterator[None]:
    """What a damaged file makes fastavro and its codecs raise, of many kinds, as pa.ArrowInvalid."""
    try:
        yield
    except (OSError, pa.ArrowException, MemoryError):
        raise
    except Exception as error:
        raise pa.ArrowInvalid(f"{type(error).__name__}: {error}") from error


def _inlined(avro: Any, named: dict[str, Any]) -> Any:
    """The schema with each reference to a named type replaced by its definition."""
    if isinstance(avro, str):
        return named.get(avro, avro)
    if isinstance(avro, list):
        return [_inlined(part, named) for part in avro]
    inlined = dict(avro)
    for key in ("type", "items", "values"):
        if key in avro:
            inlined[key] = _inlined(avro[key], named)
    if "fields" in avro:
        inlined["fields"] = [_inlined(field, named) for field in avro["fields"]]
    if avro.get("type") in ("fixed", "enum", "record"):
        named[avro["name"]] = inlined
    return inlined


_AVRO_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "date": pa.date32(),
    "time-micros": pa.time64("us"),
    "timestamp-micros": pa.timestamp("us"),
    "timestamp-nanos": pa.timestamp("ns"),
    "uuid": pa.binary(16),
}


def _avro_field(avro: Mapping[str, Any]) -> pa.Field:
    field_id = avro.get("field-id")
    metadata = None if field_id is None else {"PARQUET:field_id": str(field_id)}
    return pa.field(avro["name"], _avro_type(avro["type"]), metadata=metadata)


def _avro_type(avro: Any) -> pa.DataType:
    """The Arrow type; null for lists, maps and whatever else no column of interest lies in."""
    if isinstance(avro, list):  # a union
        options = [option for option in avro if option != "null"]
        return _avro_type(options[0]) if len(options) == 1 else pa.null()
    if isinstance(avro, str):
        return _AVRO_TYPES.get(avro, pa.null())
    match avro:
        case {"logicalType": "decimal", "precision": precision, "scale": scale}:
            return pa.decimal128(precision, scale)
        case {"logicalType": logical} if logical in _AVRO_TYPES:
            return _AVRO_TYPES[logical]
        case {"type": "record", "fields": fields}:
            return pa.struct([_avro_field(field) for field in fields])
        case {"type": "fixed", "size": size}:
            return pa.binary(size)
        case _:
            return _avro_type(avro["type"])


def _physical(avro: Any) -> Any:
    """The schema without logical types but decimal: days and ticks stay numbers, of any size."""
    if isinstance(avro, list):
        return [_physical(part) for part in avro]
    if isinstance(avro, dict):
        is_decimal = avro.get("logicalType") == "decimal"
        return {k: _physical(v) for k, v in avro.items() if k != "logicalType" or is_decimal}
    return avro


FORMATS: Mapping[str, Callable[[pa.NativeFile], ColumnFile]] = {
    "parquet": _ParquetColumns,
    "orc": _OrcColumns,
    "avro": _AvroColumns,
}


def field_id_of(field: pa.Field) -> int | None:
    """The Iceberg field id that a Parquet or ORC file gives a column."""
    metadata = field.metadata or {}
    field_id = metadata.get(b"PARQUET:field_id", metadata.get(b"iceberg.id"))
    return None if field_id is None else int(field_id)


def _array(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    if pa.types.is_null(arrow_type):
        return pa.nulls(len(values))
    if pa.types.is_struct(arrow_type):
        children = [
            _array([value and value[child.name] for value in values], child.type) for child in arrow_type
        ]
        is_null = pa.array([value is None for value in values])
        return pa.StructArray.from_arrays(children, fields=list(arrow_type), mask=is_null)
    if pa.types.is_date32(arrow_type):
        return pa.array(values, pa.int32()).cast(arrow_type)
    if pa.types.is_timestamp(arrow_type) or pa.types.is_time(arrow_type):
        return pa.array(values, pa.int64()).cast(arrow_type)
    return pa.array(values, arrow_type)
