"""Key columns are found by field id and take their projected value where a file lacks them."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from worker.io.storage import Storage
from worker.keys.key_set import KeyColumnError
from worker.keys.read import key_reader
from worker.keys.schema_fields import resolve_key_set
from worker.table.files import DataFile, DeleteFile, FileContent, PartitionKey


def table(
    *fields: NestedField, spec: PartitionSpec | None = None, mapping: str | None = None
) -> TableMetadata:
    return new_table_metadata(
        Schema(*fields),
        spec or PartitionSpec(),
        UNSORTED_SORT_ORDER,
        "file:///nowhere",
        {"format-version": "3"} | ({"schema.name-mapping.default": mapping} if mapping else {}),
    )


def parquet(path: Path, rows: list[dict[str, Any]], schema: pa.Schema, values: str = "[]") -> DataFile:
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return DataFile(str(path), "parquet", PartitionKey(0, values), len(rows), path.stat().st_size, 1)


def field(name: str, field_id: int, field_type: pa.DataType) -> pa.Field:
    return pa.field(name, field_type, metadata={"PARQUET:field_id": str(field_id)})


def keys(metadata: TableMetadata, ids: list[int], file: DataFile) -> list[tuple[Any, ...]]:
    reader = key_reader(metadata, Storage(), resolve_key_set(metadata, ids))
    rows = pa.Table.from_batches(list(reader.read_data_file(file)), schema=reader.key_set.schema)
    return [tuple(row.values()) for row in rows.to_pylist()]


def test_a_column_is_found_by_its_id_whatever_its_name_and_place(tmp_path: Path) -> None:
    metadata = table(NestedField(1, "id", LongType()), NestedField(2, "renamed", StringType()))
    schema = pa.schema([field("former", 2, pa.string()), field("id", 1, pa.int32())])
    file = parquet(tmp_path / "f", [{"former": "x", "id": 7}], schema)
    assert keys(metadata, [2, 1], file) == [(0, 7, "x")]


def test_a_null_and_its_placeholder_are_told_apart_by_the_mask(tmp_path: Path) -> None:
    metadata = table(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    schema = pa.schema([field("id", 1, pa.int64()), field("name", 2, pa.string())])
    rows: list[dict[str, Any]] = [
        {"id": 0, "name": ""},
        {"id": None, "name": ""},
        {"id": 0, "name": None},
        {},
    ]
    file = parquet(tmp_path / "f", rows, schema)
    assert keys(metadata, [1, 2], file) == [(0, 0, ""), (1, 0, ""), (2, 0, ""), (3, 0, "")]


def test_a_null_parent_struct_makes_its_leaf_null(tmp_path: Path) -> None:
    metadata = table(
        NestedField(
            1, "who", StructType(NestedField(2, "id", LongType()), NestedField(3, "name", StringType()))
        )
    )
    struct = pa.struct([field("id", 2, pa.int64()), field("name", 3, pa.string())])
    rows: list[dict[str, Any]] = [
        {"who": {"id": 5, "name": "x"}},
        {"who": None},
        {"who": {"id": None, "name": "y"}},
    ]
    file = parquet(tmp_path / "f", rows, pa.schema([field("who", 1, struct)]))
    assert keys(metadata, [2], file) == [(0, 5), (1, 0), (1, 0)]


def test_an_absent_column_takes_the_partition_value_or_null(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"), spec_id=0)
    metadata = table(
        NestedField(1, "id", LongType()),
        NestedField(2, "day", DateType()),
        NestedField(3, "new", IntegerType()),
        spec=spec,
    )
    ids = {name: metadata.schema().find_field(name).field_id for name in ("id", "day", "new")}
    schema = pa.schema([field("id", ids["id"], pa.int64())])
    file = parquet(tmp_path / "f", [{"id": 1}, {"id": 2}], schema, json.dumps(["2024-02-29"]))
    days = (date(2024, 2, 29) - date(1970, 1, 1)).days
    assert keys(metadata, list(ids.values()), file) == [(4, 1, days, 0), (4, 2, days, 0)]


def test_files_without_ids_are_read_through_the_name_mapping(tmp_path: Path) -> None:
    mapping = json.dumps([{"field-id": 1, "names": ["id", "ident"]}, {"field-id": 2, "names": ["name"]}])
    metadata = table(
        NestedField(1, "id", LongType()),
        NestedField(2, "name", StringType()),
        mapping=mapping,
    )
    schema = pa.schema([pa.field("name", pa.string()), pa.field("ident", pa.int64())])
    file = parquet(tmp_path / "f", [{"name": "x", "ident": 3}], schema)
    assert keys(metadata, [1, 2], file) == [(0, 3, "x")]


@pytest.mark.parametrize(
    ("iceberg_type", "stored", "value", "key"),
    [
        (LongType(), pa.int32(), 5, 5),
        (DateType(), pa.date32(), date(1969, 12, 31), -1),
        # Promoted since (format version 3).
        (TimestampType(), pa.date32(), date(1969, 12, 31), -86_400_000_000),
        (TimestampType(), pa.timestamp("ms"), datetime(1970, 1, 1, 0, 0, 1), 1_000_000),  # noqa: DTZ001
        (TimestampType(), pa.timestamp("us"), datetime(1970, 1, 1, 0, 0, 1), 1_000_000),  # noqa: DTZ001
        (DecimalType(18, 2), pa.decimal128(9, 2), Decimal("-1.50"), Decimal("-1.50")),
        (StringType(), pa.large_string(), "é", "é"),
        (UUIDType(), pa.binary(16), UUID(int=7).bytes, UUID(int=7).bytes),
    ],
)
def test_values_are_kept_in_a_type_that_widening_does_not_change(
    tmp_path: Path, iceberg_type: PrimitiveType, stored: pa.DataType, value: Any, key: Any
) -> None:
    metadata = table(NestedField(1, "key", iceberg_type))
    file = parquet(tmp_path / "f", [{"key": value}], pa.schema([field("key", 1, stored)]))
    assert keys(metadata, [1], file) == [(0, key)]


@pytest.mark.parametrize(
    ("iceberg_type", "stored", "value"),
    [
        (LongType(), pa.string(), "3"),
        (LongType(), pa.float64(), 3.0),
        (LongType(), pa.bool_(), True),
        (StringType(), pa.int64(), 3),
        (BooleanType(), pa.int32(), 1),
        (DecimalType(9, 0), pa.int64(), 3),
    ],
)
def test_a_value_of_another_kind_is_refused_and_not_converted(
    tmp_path: Path, iceberg_type: PrimitiveType, stored: pa.DataType, value: Any
) -> None:
    metadata = table(NestedField(1, "key", iceberg_type))
    file = parquet(tmp_path / "f", [{"key": value}], pa.schema([field("key", 1, stored)]))
    with pytest.raises(KeyColumnError, match="key") as refusal:
        keys(metadata, [1], file)
    assert refusal.value.code == "unreadable_key_type"


@pytest.mark.parametrize(
    ("field_type", "code"),
    [(DoubleType(), "float_key"), (ListType(9, LongType(), element_required=True), "unsupported_key_type")],
)
def test_a_column_that_is_no_key_is_refused_by_name(field_type: Any, code: str) -> None:
    metadata = table(NestedField(1, "price", field_type))
    with pytest.raises(KeyColumnError, match="price") as refusal:
        resolve_key_set(metadata, [1])
    assert refusal.value.code == code


def test_an_unknown_field_id_is_refused() -> None:
    with pytest.raises(KeyColumnError, match="99") as refusal:
        resolve_key_set(table(NestedField(1, "id", LongType())), [99])
    assert refusal.value.code == "unresolved_equality_field"


def test_a_null_partition_value_is_null_and_not_the_initial_default(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=0)
    metadata = table(
        NestedField(1, "id", LongType()),
        NestedField(2, "region", StringType(), initial_default="eu"),
        spec=spec,
    )
    schema = pa.schema([field("id", 1, pa.int64())])
    for values, key in (([None], (2, 1, "")), (["us"], (0, 1, "us"))):
        file = parquet(tmp_path / "f", [{"id": 1}], schema, json.dumps(values))
        assert keys(metadata, [1, 2], file) == [key]


def test_a_file_without_ids_gives_partition_columns_no_value(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=0)
    metadata = table(NestedField(1, "id", LongType()), NestedField(2, "region", StringType()), spec=spec)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("region", pa.string())])
    file = parquet(tmp_path / "f", [{"id": 1, "region": "wrong"}], schema, json.dumps(["eu"]))
    assert keys(metadata, [1, 2], file) == [(0, 1, "eu")]


def test_an_absent_leaf_has_its_default_only_where_its_struct_is_not_null(tmp_path: Path) -> None:
    country = NestedField(4, "country", StringType(), initial_default="eu")
    who = NestedField(2, "who", StructType(NestedField(3, "name", StringType()), country))
    schema_with_default = Schema(NestedField(1, "id", LongType()), who)
    metadata = table(*schema_with_default.fields).model_copy(update={"schemas": [schema_with_default]})
    struct = pa.struct([field("name", 3, pa.string())])
    rows: list[dict[str, Any]] = [{"id": 1, "who": {"name": None}}, {"id": 2, "who": None}]
    schema = pa.schema([field("id", 1, pa.int64()), field("who", 2, struct)])
    file = parquet(tmp_path / "f", rows, schema)
    assert keys(metadata, [1, 4], file) == [(0, 1, "eu"), (2, 2, "")]
    file = parquet(tmp_path / "g", [{"id": 1}], pa.schema([field("id", 1, pa.int64())]))
    assert keys(metadata, [1, 4], file) == [(2, 1, "")]


def test_positions_of_a_parquet_file_without_ids_are_those_of_top_level_columns(tmp_path: Path) -> None:
    who = NestedField(2, "who", StructType(NestedField(3, "name", StringType())))
    metadata = table(NestedField(1, "id", LongType()), who)
    leaf = metadata.schema().find_field("who.name").field_id
    schema = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.int64()), pa.field("c", pa.string())])
    file = parquet(tmp_path / "f", [{"a": 1, "b": 2, "c": "not the leaf"}], schema)
    assert keys(metadata, [1, leaf], file) == [(2, 1, "")]


@pytest.mark.parametrize(
    ("iceberg_type", "in_json", "key"),
    [
        (DateType(), "+12345-06-07", 3_789_548),
        (DateType(), "-0002-02-03", -720225),
        (TimestampType(), "1969-12-31T23:59:59.999999", -1),
        (TimestamptzType(), "+12345-06-07T00:00:00.000001+00:00", 3_789_548 * 86_400_000_000 + 1),
        (TimestampNanoType(), "1969-12-31T23:59:59.999999999", -1),
        (TimestamptzNanoType(), "1970-01-01T00:00:00.000000001+00:00", 1),
        (TimeType(), "00:00:01.5", 1_500_000),
        (DecimalType(9, 2), "-1.50", Decimal("-1.50")),
        (UUIDType(), str(UUID(int=7)), UUID(int=7).bytes),
        (FixedType(2), "00ff", b"\x00\xff"),
        (BinaryType(), "00FF", b"\x00\xff"),
        (BooleanType(), True, True),
    ],
)
def test_a_partition_value_of_every_type_stands_for_an_absent_column(
    tmp_path: Path, iceberg_type: PrimitiveType, in_json: Any, key: Any
) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"), spec_id=0)
    metadata = table(NestedField(1, "id", LongType()), NestedField(2, "p", iceberg_type), spec=spec)
    schema = pa.schema([field("id", 1, pa.int64())])
    file = parquet(tmp_path / "f", [{"id": 1}], schema, json.dumps([in_json]))
    assert keys(metadata, [1, 2], file) == [(0, 1, key)]


def test_a_delete_file_without_its_equality_column_is_refused(tmp_path: Path) -> None:
    metadata = table(NestedField(1, "id", LongType()))
    file = parquet(tmp_path / "d", [{"other": 1}], pa.schema([field("other", 2, pa.int64())]))
    delete = DeleteFile(
        FileContent.EQUALITY_DELETES, file.path, "parquet", file.partition, 1, file.file_size_bytes, 2, (1,)
    )
    reader = key_reader(metadata, Storage(), resolve_key_set(metadata, [1]))
    with pytest.raises(KeyColumnError, match="lacks its equality column id"):
        list(reader.read_delete_file(delete))


class FlakyStorage(Storage):
    """A store whose network fails once, for as long as its client goes on trying, and then is well."""

    failures = 1

    def open_input(self, location: str, size_bytes: int | None = None) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError("AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 18")
        return super().open_input(location, size_bytes)


def test_a_store_that_is_well_again_at_the_second_look_has_no_damaged_file(tmp_path: Path) -> None:
    metadata = table(NestedField(1, "id", LongType()))
    path = tmp_path / "f"
    file = parquet(path, [{"id": 1}], pa.schema([field("id", 1, pa.int64())]))
    reader = key_reader(metadata, FlakyStorage(), resolve_key_set(metadata, [1]))
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        list(reader.read_data_file(file))
    content = bytearray(path.read_bytes())
    content[8] ^= 0xFF  # within a page
    path.write_bytes(content)
    reader = key_reader(metadata, FlakyStorage(), resolve_key_set(metadata, [1]))
    with pytest.raises(KeyColumnError) as refusal:
        list(reader.read_data_file(file))
    assert refusal.value.code == "corrupt_file"


@pytest.mark.parametrize("damage", ["truncated", "fewer rows"])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    metadata = table(NestedField(1, "id", LongType()))
    path = tmp_path / "f"
    file = parquet(path, [{"id": 1}, {"id": 2}], pa.schema([field("id", 1, pa.int64())]))
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        parquet(path, [{"id": 1}], pa.schema([field("id", 1, pa.int64())]))
    with pytest.raises(KeyColumnError) as refusal:
        keys(metadata, [1], file)
    assert refusal.value.code == "corrupt_file"
