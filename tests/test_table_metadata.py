"""Metadata that PyIceberg has no place for: what matters of it is read, and what is damaged is told."""

import json
import pickle
from typing import Any

import pytest
from pyiceberg.exceptions import ValidationError
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import DecimalType, LongType, NestedField

from stores.table_metadata import OpaqueType, parse_schema, parse_table_metadata


def described(**otherwise: Any) -> dict[str, Any]:
    said = {
        "format-version": 3,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": "file:///t",
        "last-sequence-number": 1,
        "last-updated-ms": 1,
        "last-column-id": 9,
        "current-schema-id": 0,
        "next-row-id": 0,
        "schemas": [_schema("string")],
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
    }
    return said | {name.replace("_", "-"): value for name, value in otherwise.items()}


def _schema(kind: Any, **further: Any) -> dict[str, Any]:
    column = {"id": 2, "name": "type", "type": kind, "required": False}
    fields = [{"id": 1, "name": "id", "type": "long", "required": True}, column | further]
    return {"type": "struct", "schema-id": 0, "fields": fields}


def _struct(kind: str) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"id": 3, "name": "in", "type": kind, "required": False}]}


def _deep() -> Any:
    kind: Any = "variant"
    for at in range(400):
        kind = {"type": "list", "element-id": 500 - at, "element": kind, "element-required": False}
    return kind


NEW_TYPES = {
    "variant": 2,
    "geometry(srid:3857)": 2,
    "geography(OGC:CRS84, spherical)": 2,
    "of tomorrow": 2,
}
NESTED = [
    _struct("variant"),
    {"type": "list", "element-id": 3, "element": "variant", "element-required": False},
    {"type": "map", "key-id": 4, "key": "string", "value-id": 3, "value": "variant", "value-required": False},
    {
        "type": "list",
        "element-id": 4,
        "element": {
            "type": "map",
            "key-id": 5,
            "key": "string",
            "value-id": 6,
            "value": _struct("variant"),
            "value-required": True,
        },
        "element-required": True,
    },
]


@pytest.mark.parametrize(
    ("kind", "field_id", "name"),
    [(kind, 2, kind) for kind in NEW_TYPES] + [(kind, 3, "variant") for kind in NESTED],
)
def test_a_column_of_a_new_type_keeps_its_name_and_the_others_their_types(
    kind: Any, field_id: int, name: str
) -> None:
    said = json.dumps(described(schemas=[_schema(kind)])).encode()
    schema = parse_table_metadata(said).schema()
    assert schema.find_type(1) == LongType()
    assert schema.find_type(field_id) == OpaqueType(name)
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert parse_schema(schema.model_dump_json()) == schema


@pytest.mark.parametrize(
    ("kind", "default", "nanoseconds"),
    [
        ("timestamp_ns", "1969-12-31T23:59:59.999999999", -1),
        ("timestamptz_ns", "2024-01-01T00:00:00.123456789+00:00", 1_704_067_200_123_456_789),
        ("timestamp_ns", "1677-09-21T00:12:43.145224192", -(2**63)),
        ("timestamp_ns", "2262-04-11T23:47:16.854775807", 2**63 - 1),
        ("timestamp_ns", "1970-01-01T00:01", 60 * 10**9),
    ],
)
def test_a_default_in_nanoseconds_is_read(kind: str, default: str, nanoseconds: int) -> None:
    said = described(schemas=[_schema(kind, **{"initial-default": default, "write-default": default})])
    field: NestedField = parse_table_metadata(json.dumps(said).encode()).schema().find_field(2)
    assert (field.initial_default, field.write_default) == (nanoseconds, nanoseconds)


def test_snapshots_that_are_known_of_the_table_are_not_understood_again() -> None:
    def snapshot(number: int) -> dict[str, Any]:
        of = {"snapshot-id": number, "sequence-number": number, "timestamp-ms": number}
        return of | {"manifest-list": f"/{number}.avro", "schema-id": 0}

    def read(*snapshots: Any, known: Any = None, **otherwise: Any) -> Any:
        refs = {"main": {"snapshot-id": snapshots[-1]["snapshot-id"], "type": "branch"}}
        said = described(snapshots=snapshots, refs=refs, last_sequence_number=9, **otherwise)
        return parse_table_metadata(json.dumps(said).encode(), known)

    before = read(snapshot(1), snapshot(2))
    of_tomorrow = snapshot(3) | {"summary": {"operation": "of tomorrow"}}
    for new, schemas in ((snapshot(3), [_schema("string")]), (of_tomorrow, [_schema("variant")])):
        after = read(snapshot(2), new, known=before, schemas=schemas)
        assert after == read(snapshot(2), new, schemas=schemas)
        assert after.refs["main"].snapshot_id == 3
    assert read(snapshot(2), snapshot(3), known=before).snapshots[0] is before.snapshots[1]
    moved = snapshot(2) | {"manifest-list": "/elsewhere/2.avro"}
    assert read(moved, known=before) == read(moved)
    other = "00000000-03fe-4693-9a96-a0705ddf69c1"
    assert read(snapshot(2), known=before, table_uuid=other).snapshots[0] is not before.snapshots[1]
    for wrong in (b"", b"[]", b"{}", b'{"table-uuid": 1, "snapshots": [[]]}'):
        with pytest.raises(ValidationError):
            parse_table_metadata(wrong, before)


def test_what_a_reader_of_rows_does_not_need_may_be_new() -> None:
    snapshot = {
        "snapshot-id": 7,
        "sequence-number": 1,
        "timestamp-ms": 1,
        "manifest-list": "file:///t/list.avro",
        "summary": {"operation": "merge", "total-records": "3"},
    }
    blob = {"type": "new-sketch", "snapshot-id": 7, "sequence-number": 1, "fields": [1]}
    statistics = {
        "snapshot-id": 7,
        "statistics-path": "file:///t/s.puffin",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [blob],
    }
    order = {"source-ids": [1, 2], "transform": "zorder", "direction": "asc", "null-order": "nulls-first"}
    said = described(
        snapshots=[snapshot],
        current_snapshot_id=7,
        statistics=[statistics],
        sort_orders=[{"order-id": 1, "fields": [order]}],
        default_sort_order_id=1,
    )
    read = parse_table_metadata(json.dumps(said).encode())
    (found,) = read.snapshots
    assert found.summary is not None
    assert (found.summary.operation, found.summary["total-records"]) == (Operation.OVERWRITE, "3")
    assert [one.statistics_path for one in read.statistics] == ["file:///t/s.puffin"]
    assert read.default_sort_order_id == 1


def test_a_type_in_capitals_is_what_java_takes_it_for() -> None:
    said = json.dumps(described(schemas=[_schema("DECIMAL(9, 2)")]))
    assert parse_table_metadata(said.encode()).schema().find_type(2) == DecimalType(9, 2)


def test_what_pyiceberg_reads_is_read_as_it_reads_it() -> None:
    said = json.dumps(described(schemas=[_schema("unknown")]))
    assert parse_table_metadata(said.encode()) == TableMetadataUtil.parse_raw(said)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "1",
        "[" * 100_000,
        "{}",
        json.dumps(described(format_version=4)),
        json.dumps(described(schemas="variant")),
        json.dumps(described(schemas=[1, _schema("variant")])),
        json.dumps(described(snapshots=[{"summary": "variant"}], schemas=[_schema("variant")])),
        json.dumps(described(statistics=[[]])),
        json.dumps(described(statistics=[{"blob-metadata": 1}])),
        json.dumps(described(schemas=[_schema(_struct("int"), **{"initial-default": {}})])),
        *(
            json.dumps(described(schemas=[_schema(kind, **{"initial-default": moment})]))
            for kind, moment in [
                ("timestamptz_ns", "2024-01-01T00:00:00"),
                ("timestamp_ns", "2500-01-01T00:00:00"),
                ("timestamp_ns", "1677-09-21T00:12:43.145224191"),
                ("timestamp_ns", "2262-04-11T23:47:16.854775808"),
                ("timestamp_ns", "2024-01-01T00:00:00+00:00"),
                ("timestamp_ns", "2024-01-01T24:00:00"),
                ("timestamp_ns", "NaT"),
                ("timestamp_ns", "now"),
                ("timestamp_ns", ""),
                ("timestamp_ns", 2**63),
                ("timestamp_ns", True),
                ("timestamp_ns", 1.5),
            ]
        ),
        *(json.dumps(described(schemas=[_schema(kind)])) for kind in ["decimal(50,2)", "fixed[x]", _deep()]),
        json.dumps(described(partition_specs=[{"spec-id": 0, "fields": [{"source-ids": [1, 2]}]}])),
    ],
)
def test_metadata_that_lacks_what_matters_is_refused(content: str) -> None:
    with pytest.raises(ValidationError):
        parse_table_metadata(content.encode())
