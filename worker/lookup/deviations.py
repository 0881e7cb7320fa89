"""Where Iceberg's own Java reader (Spark, Flink, Trino's library) departs from the spec.

A conversion follows the spec, so this reader shows other rows after it than before. That is told in the job's
result, delete file by delete file. Seen in Iceberg 1.12.0; tests notice when it is mended.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from pyiceberg.types import FixedType, UUIDType

from worker.attempt.pinned_table import PinnedTable
from worker.keys.key_set import KeySet
from worker.table.files import DataFile, DeleteFile
from worker.table.manifest_values import read_bounds
from worker.table.plan import applies

_UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Deviation:
    """An equality delete file that Iceberg's Java reader does not apply as the spec says, and how."""

    file_path: str
    code: str
    reason: str


def may_deviate(key_set: KeySet) -> bool:
    """Whether the Java reader can be wrong about a key set at all: about most it can't."""
    return any(
        isinstance(column.iceberg_type, FixedType | UUIDType) or len(column.field_id_path) > 1
        for column in key_set.columns
    )


def deviations(
    table: PinnedTable,
    key_set: KeySet,
    delete_files: Sequence[DeleteFile],
    null_columns: Mapping[str, int],
    matched: Set[DataFile],
) -> list[Deviation]:
    """The delete files of a key set that the Java reader applies wrongly, if they apply to a matched file.

    null_columns: path of a delete file -> mask of the key columns in which it has a null. matched: data files
    in which some delete found a row. Reads the table's manifests again if a key is a UUID.
    """
    global_specs = table.files.global_spec_ids
    effective = [
        delete for delete in delete_files if any(applies(delete, file, global_specs) for file in matched)
    ]
    if not effective:
        return []
    found = [*_fixed_keys(key_set, effective), *_nested_keys(key_set, effective, null_columns)]
    if any(isinstance(column.iceberg_type, UUIDType) for column in key_set.columns):
        found += _uuid_bounds(table, key_set, effective, matched)
    return found


def _fixed_keys(key_set: KeySet, delete_files: Sequence[DeleteFile]) -> Iterator[Deviation]:
    fixed = [column.name for column in key_set.columns if isinstance(column.iceberg_type, FixedType)]
    for file in delete_files if fixed else []:
        if file.file_format in ("parquet", "avro") and file.record_count > 1:
            yield Deviation(
                file.path,
                "fixed_keys",
                f"Iceberg's Java reader takes the last value of the fixed column {fixed[0]} for all"
                f" {file.record_count:,} deletes of the file, and so hides other rows than they name",
            )


def _nested_keys(
    key_set: KeySet, delete_files: Sequence[DeleteFile], null_columns: Mapping[str, int]
) -> Iterator[Deviation]:
    nested = {
        1 << bit: column.name for bit, column in enumerate(key_set.columns) if len(column.field_id_path) > 1
    }
    for file in delete_files if nested else []:
        names = [name for bit, name in nested.items() if bit & null_columns.get(file.path, 0)]
        if names:
            yield Deviation(
                file.path,
                "null_parent_struct",
                f"it deletes rows whose {names[0]} is null, and Iceberg's Java reader does not take a struct"
                " that is null for one whose field is null, or the other way round",
            )
        yield Deviation(
            file.path,
            "nested_key",
            f"Iceberg's Java reader applies it only where a query selects {next(iter(nested.values()))}",
        )


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Of a UUID column in a file: bounds, as bytes that sort as Java orders UUIDs; can it be null?"""

    lower: bytes
    upper: bytes
    may_be_null: bool


def _uuid_bounds(
    table: PinnedTable, key_set: KeySet, delete_files: Sequence[DeleteFile], matched: Set[DataFile]
) -> Iterator[Deviation]:
    """The Java reader skips a delete file whose bounds lie apart from the data file's, in signed order."""
    columns = {c.field_id: c.name for c in key_set.columns if isinstance(c.iceberg_type, UUIDType)}
    data_files = sorted(matched, key=lambda file: file.path)
    paths = {file.path for file in data_files} | {file.path for file in delete_files}
    bounds = _bounds_in_manifests(table, paths, columns)
    for field_id, name in columns.items():
        known = [
            (file, bounds[file.path, field_id]) for file in data_files if (file.path, field_id) in bounds
        ]
        lower = np.array([of_file.lower for _, of_file in known], "S16")
        upper = np.array([of_file.upper for _, of_file in known], "S16")
        may_be_null = np.array([of_file.may_be_null for _, of_file in known], np.bool_)
        for delete in delete_files:
            keys = bounds.get((delete.path, field_id))
            if keys is None:
                continue
            apart = (upper < keys.lower) | (lower > keys.upper)
            if keys.may_be_null:
                apart &= ~may_be_null
            files = [known[i][0] for i in np.flatnonzero(apart)]
            skipped = [file for file in files if applies(delete, file, table.files.global_spec_ids)]
            if skipped:
                yield Deviation(
                    delete.path,
                    "uuid_bounds",
                    f"Iceberg's Java reader compares bounds of the UUID column {name} as signed numbers, and"
                    f" so skips the file for {len(skipped):,} data files, among them {skipped[0].path}",
                )


def _bounds_in_manifests(
    table: PinnedTable, paths: Set[str], field_ids: Iterable[int]
) -> dict[tuple[str, int], _Bounds]:
    """(path, field id) -> bounds of UUID columns; none where the manifest has none."""
    assert table.snapshot is not None
    required = {field_id for field_id in field_ids if _is_required(table, field_id)}
    found = read_bounds(table.snapshot, table.storage.io, paths, field_ids)
    return {
        (path, field_id): _Bounds(
            _signed(one.lower), _signed(one.upper), field_id not in required and one.null_count != 0
        )
        for (path, field_id), one in found.items()
        if len(one.lower) == len(one.upper) == _UUID_BYTES
    }


def _is_required(table: PinnedTable, field_id: int) -> bool:
    try:
        return table.metadata.schema().find_field(field_id).required
    except ValueError:
        return False  # dropped


def _signed(uuid: bytes) -> bytes:
    """Both halves with their sign bit turned over."""
    high, low = uuid[:8], uuid[8:]
    return bytes([high[0] ^ 0x80]) + high[1:] + bytes([low[0] ^ 0x80]) + low[1:]
