"""What columns were called at any time, and whether the field ids of a file are those of this table.

Another table, or one that lay here before, gives the same ids to other columns: they say nothing then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import IcebergType

from stores.table_metadata import OpaqueType
from worker.io.file_formats import field_id_of
from worker.keys.key_set import KeySet

_NO_NAMES: frozenset[str] = frozenset()
_NO_IDS: frozenset[int] = frozenset()
_WITHOUT_IDS = "struct without ids"
"""What a file has of a variant, and of no struct of the table's."""
_LINEAGE = frozenset({2147483540, 2147483539})
"""Ids of rows, and the sequence numbers of their last updates."""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Of each schema that a table had: id -> what files may call the column, and its kind."""

    schemas: tuple[Mapping[int, tuple[frozenset[str], str]], ...]

    @classmethod
    def of(cls, metadata: TableMetadata) -> Self:
        return cls(tuple(dict(_described(schema)) for schema in metadata.schemas))

    def has_written(self, file: pa.Schema) -> bool:
        """Whether one of the schemas has each column of a file: with its id, its name and its kind."""
        found = list(_fields(file))
        return any(
            all(
                field_id in _LINEAGE or _is_described(schema, field_id, name, kind)
                for field_id, name, kind in found
            )
            for schema in self.schemas
        )

    def has_schema(self, other: Schema) -> bool:
        """Whether one of the schemas has each column of another one."""
        sought = dict(_described(other))
        return any(sought.items() <= schema.items() for schema in self.schemas)


@dataclass(frozen=True, slots=True)
class FormerColumns:
    """Columns that were called like one of the key and were dropped, as whoever changes its type does; or
    that may have been, since no schema knows them any more.

    Files that were written before have their values still. ids: of the first. known: up to `last_id`, which
    is the last that the table has given, those of all schemas.
    """

    ids: frozenset[int] = _NO_IDS
    known: frozenset[int] = _NO_IDS
    last_id: int = 0

    @classmethod
    def of(cls, metadata: TableMetadata, key_set: KeySet) -> Self:
        own, last_id = {*key_set.equality_field_ids}, metadata.last_column_id
        found = [
            (schema.find_column_name(one), one) for schema in metadata.schemas for one in schema.field_ids
        ]
        names = {name for name, field_id in found if field_id in own}
        called = frozenset(field_id for name, field_id in found if name in names)
        known = frozenset(field_id for _, field_id in found if 0 < field_id <= last_id)
        return cls(called - own - metadata.schema().field_ids, known, last_id)

    def __bool__(self) -> bool:
        return bool(self.ids) or len(self.known) < self.last_id

    def has_any_of(self, field_ids: Iterable[int]) -> bool:
        return any(
            one in self.ids or (0 < one <= self.last_id and one not in self.known) for one in field_ids
        )


def names_of(metadata: TableMetadata, key_set: KeySet) -> Mapping[int, frozenset[str]]:
    """Field id -> what a key column was called at any time, and partitions of its values as they are."""
    found: dict[int, set[str]] = {field_id: set() for field_id in key_set.equality_field_ids}
    for schema in metadata.schemas:
        for field_id, names in found.items():
            if (name := schema.find_column_name(field_id)) is not None:
                names |= {name, name.rpartition(".")[2]}
    for spec in metadata.partition_specs:
        for field in spec.fields:
            if field.source_id in found and isinstance(field.transform, IdentityTransform | DayTransform):
                found[field.source_id].add(field.name)
    return {field_id: frozenset(names) for field_id, names in found.items()}


def _is_described(
    schema: Mapping[int, tuple[frozenset[str], str]], field_id: int | None, name: str, kind: str
) -> bool:
    names, known = schema.get(-1 if field_id is None else field_id, (_NO_NAMES, ""))
    return name in names and kind == known


def _described(schema: Schema) -> Iterator[tuple[int, tuple[frozenset[str], str]]]:
    for field_id in schema.field_ids:
        name = schema.find_column_name(field_id) or ""
        # As Parquet and Avro do; of `No.`, one part is empty.
        written = ".".join(part and make_compatible_name(part) for part in name.split("."))
        kind = _kind_of(schema.find_type(field_id))
        yield field_id, (frozenset({name, written}), kind)


def _fields(fields: Iterable[pa.Field], above: str = "") -> Iterator[tuple[int | None, str, str]]:
    """The fields of a file outside lists and maps, in which no key lies."""
    for field in fields:
        is_struct = pa.types.is_struct(field.type)
        if is_struct and all(field_id_of(part) is None for part in field.type):
            yield field_id_of(field), above + field.name, _WITHOUT_IDS
            continue
        yield field_id_of(field), above + field.name, _kind(field.type)
        if is_struct:
            yield from _fields(field.type, f"{above}{field.name}.")


def _kind_of(column: IcebergType) -> str:
    if not isinstance(column, OpaqueType):
        return _kind(schema_to_pyarrow(column))
    # As Arrow reads these in Parquet.
    name = column.root.partition("(")[0]
    return {"variant": _WITHOUT_IDS, "geometry": "bytes", "geography": "bytes"}.get(name, column.root)


def _kind(of: pa.DataType) -> str:
    """The same for all types that a column may have had, or that files may give it."""
    is_type = pa.types
    if isinstance(of, pa.ExtensionType):
        of = of.storage_type
    if is_type.is_dictionary(of):
        of = of.value_type
    if is_type.is_temporal(of):
        return "time"
    if is_type.is_string(of) or is_type.is_large_string(of) or is_type.is_string_view(of):
        return "bytes"
    if is_type.is_binary(of) or is_type.is_large_binary(of) or is_type.is_fixed_size_binary(of):
        return "bytes"
    kinds = {
        "integer": is_type.is_integer,
        "fraction": is_type.is_floating,
        "decimal": is_type.is_decimal,
        "boolean": is_type.is_boolean,
        "struct": is_type.is_struct,
        "list": lambda one: is_type.is_list(one) or is_type.is_large_list(one),
        "map": is_type.is_map,
    }
    return next((kind for kind, has in kinds.items() if has(of)), str(of))
