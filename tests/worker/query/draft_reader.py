"""A reader of indexes that was written from Iceberg's draft alone.

The draft: apache/iceberg#16961 at 4a942ed6972db9c5968e1a443bec90944ea3ab9a, `format/index-spec.md`, with
"Content Stats" of `format/spec.md` and "Comparisons" of `format/expressions-spec.md` there. It knows nothing
of Icestream, and of expressions only references.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FILE, POS = 2147483646, 2147483645
FILE_PATH, POSITION = 2147483546, 2147483545
REQUIRED = (
    "format-version",
    "uuid",
    "table-uuid",
    "location",
    "type",
    "index-values",
    "index-keys",
    "snapshots",
)

Key = tuple[Any, ...]
Row = dict[int, Any]  # by field id; of a struct as well


@dataclass
class DraftIndex:
    """An index by its metadata file. Raises ValueError for what the draft does not allow."""

    metadata: dict[str, Any]
    leaf_files_read: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, path: str) -> DraftIndex:
        told = json.loads(Path(path).read_text())
        _check(all(name in told for name in REQUIRED), "a required field is missing")
        _check(told["format-version"] == 1 and told["type"] == "SCALAR", "another version or type")
        ids = [one["field-id"] for one in told["index-values"]]
        _check(len(set(ids)) == len(ids), "a field id is there twice")
        for one in told["index-values"]:
            source = _reference(one["expression"])
            wanted = {FILE: FILE_PATH, POS: POSITION}.get(source, source)
            _check(one["field-id"] == wanted, "an identity expression under another id than its field's")
        _check({*map(_reference, told["index-keys"])} <= {*ids}, "a key that no value identifies")
        for name in ("snapshot-id", "source-table-snapshot-id"):
            known = [one[name] for one in told["snapshots"]]
            _check(len(set(known)) == len(known), f"a {name} is there twice")
        return cls(told)

    @property
    def key_ids(self) -> list[int]:
        return [_reference(one) for one in self.metadata["index-keys"]]

    def lookup(self, table_snapshot_id: int, key: Key) -> list[tuple[str, int]]:
        """Where the rows of a key lie: reads the leaf files alone whose range may hold it."""
        found = []
        for entry in self._leaves(table_snapshot_id, key):
            rows = _read(entry[100])
            self.leaf_files_read.append(entry[100])
            _check(len(rows) == entry[103], "another number of records than the tracking file says")
            matches = [row for row in rows if self._key(row) == key]
            found += [(row[FILE_PATH], row[POSITION]) for row in matches]
        return found

    def entries(self, table_snapshot_id: int) -> list[tuple[Key, str, int]]:
        """All of them, in order, after a look at all that the draft says of them."""
        found: list[tuple[Key, str, int]] = []
        for entry in self._tracked(table_snapshot_id):
            _check(Path(_local(entry[100])).stat().st_size == entry[104], "another size")
            rows = _read(entry[100])
            found += [(self._key(row), row[FILE_PATH], row[POSITION]) for row in rows]
            _check(self._upper(entry) == self._key(rows[-1]), "the upper bound is not the last key")
            self._check_stats(entry[146], rows)
        order = [(*map(_rank, key), path.encode(), position) for key, path, position in found]
        _check(order == sorted(order), "entries are not in order")
        return found

    def _leaves(self, table_snapshot_id: int, key: Key) -> Iterator[Row]:
        wanted, lower = tuple(map(_rank, key)), None
        for entry in self._tracked(table_snapshot_id):
            upper = tuple(map(_rank, self._upper(entry)))
            # The range begins with the last key of the file before, which may go on here.
            if wanted <= upper and (lower is None or lower <= wanted):
                yield entry
            lower = upper

    def _tracked(self, table_snapshot_id: int) -> list[Row]:
        (snapshot,) = (
            one for one in self.metadata["snapshots"] if one["source-table-snapshot-id"] == table_snapshot_id
        )
        entries = _read(snapshot["index-data"])
        uppers = [tuple(map(_rank, self._upper(entry))) for entry in entries]
        _check(uppers == sorted(uppers), "leaf files are not in order")
        _check(all(entry[101] == "parquet" for entry in entries), "another format")
        return entries

    def _upper(self, entry: Row) -> Key:
        bound = entry[146][9800]
        return tuple(bound[9801 + at] for at in range(len(self.key_ids)))

    def _key(self, row: Row) -> Key:
        return tuple(row[one] for one in self.key_ids)

    def _check_stats(self, stats: Row, rows: Sequence[Row]) -> None:
        ids = {9800, *(10_000 + 200 * one for one in self.key_ids)}
        _check(set(stats) == ids, "statistics of other fields")
        for one in self.key_ids:
            base = 10_000 + 200 * one
            known = sorted((row[one] for row in rows if row[one] is not None), key=_rank)
            low, high = (known[0], known[-1]) if known else (None, None)
            told = stats[base]
            _check((told[base + 1], told[base + 2]) == (low, high), "bounds that are none")
            _check((told[base + 4], told[base + 5]) == (len(rows), len(rows) - len(known)), "wrong counts")


def _rank(value: Any) -> tuple[int, Any]:
    """Nulls first; text by its bytes in UTF-8."""
    if value is None:
        return 0, 0
    return 1, value.encode() if isinstance(value, str) else value


def _reference(expression: dict[str, Any]) -> int:
    _check(expression.get("type") == "reference", "another expression than a reference")
    return int(expression["id"])


def _read(location: str) -> list[Row]:
    """A Parquet file by field ids, whatever its columns are called."""
    file = pq.ParquetFile(_local(location))
    for at in range(len(file.schema)):
        column = file.schema.column(at)
        _check(column.physical_type == _physical(column), f"{column.path} is {column.physical_type}")
    table = as_numbers(file.read())
    rows = table.to_pylist()
    return [_by_id(table.schema, row) for row in rows]


def as_numbers(table: pa.Table) -> pa.Table:
    """Days, moments and times of a day in their units since 1970 or midnight: Python has not all of them."""
    return table.cast(pa.schema([one.with_type(_number(one.type)) for one in table.schema]))


def _number(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_number(one.type)) for one in kind])
    if pa.types.is_temporal(kind):
        return pa.int32() if pa.types.is_date(kind) else pa.int64()
    return kind


def _physical(column: Any) -> str:
    """That Iceberg's Appendix A has for the logical type; those without one are as they are."""
    match column.logical_type.type:
        case "STRING":
            return "BYTE_ARRAY"
        case "DATE":
            return "INT32"
        case "TIME" | "TIMESTAMP":
            return "INT64"
        case "DECIMAL":
            fixed = "FIXED_LEN_BYTE_ARRAY"
            return "INT32" if column.precision <= 9 else "INT64" if column.precision <= 18 else fixed
    return str(column.physical_type)


def _by_id(fields: Any, row: dict[str, Any]) -> Row:
    found = {}
    for one in fields:
        value = row[one.name]
        inner = pa.types.is_struct(one.type) and value is not None
        found[int(one.metadata[b"PARQUET:field_id"])] = _by_id(one.type, value) if inner else value
    return found


def _local(location: str) -> str:
    return location.removeprefix("file://").removeprefix("file:")


def _check(holds: bool, wrong: str) -> None:
    if not holds:
        raise ValueError(wrong)
