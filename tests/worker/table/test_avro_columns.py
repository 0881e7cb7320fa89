"""Manifests are read in columns as they are row by row, and damage is told as it is there."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import fastavro
import polars as pl
import pytest
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, NestedField, StructType

from worker.table import avro_columns, manifests
from worker.table.avro_columns import NotInColumnsError
from worker.table.avro_files import AvroFile, CorruptMetadataError
from worker.table.manifests import FILE_PATH_FIELD_ID, Manifest

NUMBERS = [0, -1, 300, 2**63 - 1, -(2**63)]
TEXTS = ["", "a", "é"]
PARTITIONS: list[tuple[Any, list[Any]]] = [
    ("boolean", [True, False]),
    ("int", [0, -1, 2**31 - 1]),
    ("long", NUMBERS),
    ("float", [0.0, -0.0, 1.5, float("nan"), float("-inf")]),
    ("double", [0.0, -0.0, 0.1, float("nan")]),
    ({"type": "int", "logicalType": "date"}, [date(1, 1, 1), date(9999, 1, 1)]),
    (
        {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
        [datetime(1, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)],
    ),
    ({"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False}, [0, -1, 10**15 + 1]),
    ({"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True}, [0, -1, 10**18 + 1]),
    ({"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False}, [0, -1, 10**18 + 1]),
    ({"type": "long", "logicalType": "time-micros"}, [0, 86_399_999_999]),
    ("string", TEXTS),
    ("bytes", [b"", b"\x00", b"\xff"]),
    (
        {"type": "fixed", "name": "d", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
        [Decimal("1.25"), Decimal("-7.00")],
    ),
    ({"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}, [bytes(16), b"\xff" * 16]),
    ({"type": "fixed", "name": "f", "size": 3}, [b"abc", b"\x00\xff\x80"]),
]
SPEC = PartitionSpec(
    *(PartitionField(at, 1000 + at, IdentityTransform(), f"p{at}") for at in reversed(range(len(PARTITIONS))))
)


def field(name: str, kind: Any, field_id: int, *, is_required: bool = False) -> dict[str, Any]:
    return {"name": name, "type": kind if is_required else ["null", kind], "field-id": field_id}


def mapping(name: str, value: str, field_id: int, key_id: int) -> dict[str, Any]:
    pairs = [
        field("key", "int", key_id, is_required=True),
        field("value", value, key_id + 1, is_required=True),
    ]
    items = {"type": "record", "name": f"k{key_id}_v{key_id + 1}", "fields": pairs}
    return field(name, {"type": "array", "logicalType": "map", "items": items}, field_id)


def schema(partitions: list[dict[str, Any]], *, version: int = 2) -> dict[str, Any]:
    file = [
        *[field("content", "int", 134, is_required=True)][: version - 1],
        field("file_path", "string", 100, is_required=True),
        field("file_format", "string", 101, is_required=True),
        field("partition", {"type": "record", "name": "r102", "fields": partitions}, 102, is_required=True),
        field("record_count", "long", 103, is_required=True),
        field("file_size_in_bytes", "long", 104, is_required=True),
        mapping("value_counts", "long", 109, 119),
        mapping("lower_bounds", "bytes", 125, 126),
        mapping("upper_bounds", "bytes", 128, 129),
        field("key_metadata", "bytes", 131),
        field("equality_ids", {"type": "array", "items": "int", "element-id": 136}, 135),
        field("referenced_data_file", "string", 143),
        field("content_offset", "long", 144),
        field("content_size_in_bytes", "long", 145),
    ]
    fields = [
        field("status", "int", 0, is_required=True),
        field("snapshot_id", "long", 1),
        *[field("sequence_number", "long", 3)][: version - 1],
        field("data_file", {"type": "record", "name": "r2", "fields": file}, 2, is_required=True),
    ]
    return {"type": "record", "name": "manifest_entry", "fields": fields}


PARTITION_FIELDS = [field(f"p{at}", kind, 1000 + at) for at, (kind, _) in enumerate(PARTITIONS)]


def entries(contents: list[int]) -> list[dict[str, Any]]:
    """With each value beside many others."""
    chosen = random.Random(7)

    def maybe(values: list[Any]) -> Any:
        return chosen.choice([None, *values])

    def pairs(values: list[Any]) -> Any:
        found = [{"key": key, "value": chosen.choice(values)} for key in (1, FILE_PATH_FIELD_ID, 300)]
        return maybe([found[:count] for count in range(4)])

    def data_file() -> dict[str, Any]:
        return {
            "content": chosen.choice(contents),
            "file_path": chosen.choice(TEXTS),
            "file_format": chosen.choice(["PARQUET", "parquet", "orc"]),
            "partition": {f"p{at}": maybe(values) for at, (_, values) in enumerate(PARTITIONS)},
            "record_count": chosen.choice(NUMBERS),
            "file_size_in_bytes": chosen.choice(NUMBERS),
            "value_counts": pairs(NUMBERS),
            "lower_bounds": pairs([b"a"]),
            "upper_bounds": pairs([b"a", b"b"]),
            "key_metadata": maybe([b"", b"k"]),
            "equality_ids": maybe([[], [3], [5, 1]]),
            "referenced_data_file": maybe(TEXTS),
            "content_offset": maybe(NUMBERS),
            "content_size_in_bytes": maybe(NUMBERS),
        }

    return [
        {
            "status": chosen.choice([0, 1, 2]),
            "snapshot_id": maybe(NUMBERS),
            "sequence_number": maybe(NUMBERS),
            "data_file": data_file(),
        }
        for _ in range(400)
    ]


def written(avro: Mapping[str, Any], rows: list[Any], codec: str = "null", block_bytes: int = 1) -> bytes:
    file = io.BytesIO()
    fastavro.writer(file, fastavro.parse_schema(dict(avro)), rows, codec, sync_interval=block_bytes)
    return file.getvalue()


class Held:
    """A store of one file."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def new_input(self, _location: str) -> Held:
        return self

    def open(self) -> io.BytesIO:
        return io.BytesIO(self._content)


def file_of(content: bytes) -> AvroFile:
    return AvroFile(Held(content), "the manifest")  # type: ignore[arg-type]


def manifest(content: ManifestContent, files: int | None = None) -> Manifest:
    return Manifest("the manifest", 0, content, 7, 5, files)


@pytest.mark.parametrize("content", ManifestContent)
@pytest.mark.parametrize(
    ("version", "codec", "block_bytes", "batch_bytes"),
    [(2, "deflate", 16_000, 10**6), (2, "null", 1, 10**6), (1, "null", 300, 1)],
)
def test_columns_say_what_rows_say(
    content: ManifestContent, version: int, codec: str, block_bytes: int, batch_bytes: int
) -> None:
    holds_data = version == 1 or content is ManifestContent.DATA
    rows = entries([0] if holds_data else [1, 2])
    file = written(schema(PARTITION_FIELDS, version=version), rows, codec, block_bytes)
    asked = manifest(ManifestContent.DATA if holds_data else content)
    with patch.object(avro_columns, "BATCH_BYTES", batch_bytes):
        in_columns = manifests._in_columns(file_of(file), asked, SPEC)
    assert in_columns is not None
    assert sum(len(files) for files in in_columns) > 200
    assert in_columns == manifests._in_rows(file_of(file), asked, SPEC)


def encoded(kind: Any, value: Any, count_of: Any) -> bytes:
    """count_of: what stands before some items, by these."""
    file = io.BytesIO()
    encoder = BinaryEncoder(file)
    if isinstance(kind, list):
        encoder.write_int(int(value is not None))
        return file.getvalue() + (b"" if value is None else encoded(kind[1], value, count_of))
    match kind if isinstance(kind, str) else kind["type"]:
        case "int" | "long":
            encoder.write_int(value)
        case "string":
            encoder.write_utf8(value)
        case "bytes":
            encoder.write_bytes(value)
        case "record":
            for one in kind["fields"]:
                encoder.write(encoded(one["type"], value.get(one["name"]), count_of))
        case "array":
            for item in value:
                content = encoded(kind["items"], item, count_of)
                for number in count_of(content):
                    encoder.write_int(number)
                encoder.write(content)
            encoder.write_int(0)
        case _:
            raise NotImplementedError(kind)
    return file.getvalue()


@pytest.mark.parametrize(
    "count_of", [lambda _: [1], lambda content: [-1, len(content)]], ids=["counts", "counts and sizes"]
)
@pytest.mark.parametrize("content", ManifestContent)
def test_arrays_may_be_in_parts_which_may_say_their_sizes(count_of: Any, content: ManifestContent) -> None:
    avro = schema([])
    rows = entries([0] if content is ManifestContent.DATA else [1, 2])
    block = b"".join(encoded(avro, row, count_of) for row in rows)
    empty = written(avro, [])
    file = io.BytesIO()
    encoder = BinaryEncoder(file)
    encoder.write(empty)
    encoder.write_int(len(rows))
    encoder.write_bytes(block)
    encoder.write(empty[-16:])
    in_columns = manifests._in_columns(file_of(file.getvalue()), manifest(content), UNPARTITIONED)
    assert in_columns is not None
    assert sum(len(files) for files in in_columns) > 200
    assert in_columns == manifests._in_rows(file_of(file.getvalue()), manifest(content), UNPARTITIONED)


ONE_PARTITION = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p0"))
UNPARTITIONED = PartitionSpec()


def plain(number: int, **changes: Any) -> dict[str, Any]:
    file = {"content": 0, "file_path": f"file-{number}", "file_format": "PARQUET", "partition": {}}
    counts = [{"key": column, "value": 300 + column} for column in range(3)]
    file |= {"record_count": 1_000 + number, "file_size_in_bytes": 10**6, "value_counts": counts}
    return {"status": 1, "snapshot_id": 3, "sequence_number": None, "data_file": file | changes}


def outcome(content: bytes) -> Any:
    try:
        files, deletes = manifests.read_manifest(
            Held(content),  # type: ignore[arg-type]
            manifest(ManifestContent.DATA),
            {0: UNPARTITIONED},
        )
    except CorruptMetadataError as error:
        return str(error)
    return [*files, *deletes]


def test_damage_is_told_as_it_is_of_rows_or_does_no_harm() -> None:
    """Beyond that, PyIceberg takes what is no place in a union for null."""
    content = written(schema([]), [plain(1), plain(2)])
    intact = outcome(content)
    start = content.index(content[-16:]) + 16
    for place in range(start, content.index(content[-16:], start)):
        for change in (0x01, 0x80):
            damaged = bytearray(content)
            damaged[place] ^= change
            told = outcome(bytes(damaged))
            with patch.object(avro_columns.Entries, "read", side_effect=NotInColumnsError):
                of_rows = outcome(bytes(damaged))
            assert told in (of_rows, intact), (place - start, change)


@pytest.mark.parametrize(
    ("counted", "is_decoded"), [(1, True), (3, True), (0, True), (-1, False), (2**40, False)]
)
def test_a_block_of_another_number_of_entries_is_damaged(counted: int, is_decoded: bool) -> None:
    """And there is no memory asked for entries that it can't have."""
    content = written(schema([]), [plain(1), plain(2)], block_bytes=10_000)
    start = content.index(content[-16:]) + 16
    count = io.BytesIO()
    BinaryEncoder(count).write_int(counted)
    with patch("polars.read_avro", side_effect=pl.read_avro) as decoded:
        told = outcome(content[:start] + count.getvalue() + content[start + 1 :])
    assert "is damaged" in told
    assert decoded.called is is_decoded


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "fixed", "name": "f", "size": 2**30},
        {"type": "array", "items": "int", "element-id": 5},
        {"type": "record", "name": "r", "fields": [field("inner", "int", 7)]},
    ],
)
def test_what_would_be_large_or_is_unknown_in_a_column_is_read_in_rows(kind: Any) -> None:
    content = written(schema([field("p0", kind, 1000)]), [plain(1, partition={"p0": None})])
    asked = manifest(ManifestContent.DATA)
    assert manifests._in_columns(file_of(content), asked, ONE_PARTITION) is None
    files, _ = manifests._in_rows(file_of(content), asked, ONE_PARTITION)
    assert [file.partition.values for file in files] == ["[null]"]


@pytest.mark.parametrize("files", [manifests.MANY_FILES - 1, manifests.MANY_FILES])
def test_few_files_are_read_in_rows(files: int) -> None:
    content = written(schema([]), [plain(number) for number in range(files)], block_bytes=10_000)
    with patch("polars.read_avro", side_effect=pl.read_avro) as decoded:
        read = manifests.read_manifest(
            Held(content),  # type: ignore[arg-type]
            manifest(ManifestContent.DATA, files),
            {0: UNPARTITIONED},
        )
    assert len(read[0]) == files
    assert decoded.called is (files >= manifests.MANY_FILES)


@pytest.mark.parametrize("in_rows", [False, True])
def test_a_double_is_read_in_full(in_rows: bool) -> None:
    """Else deletes would apply to the rows of partitions whose values are close to their own."""
    content = written(schema([field("p0", "double", 1000)]), [plain(1, partition={"p0": 0.1})])
    read = manifests._in_rows if in_rows else manifests._in_columns
    found = read(file_of(content), manifest(ManifestContent.DATA), ONE_PARTITION)
    assert found is not None
    assert [file.partition.values for file in found[0]] == ["[0.1]"]


def test_what_lies_behind_a_decimal_that_nobody_asks_for_is_found() -> None:
    number = {"type": "fixed", "name": "d", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}
    rows = [plain(1, partition={"p0": Decimal("1.25")})]
    avro = schema([field("p0", number, 1000)])
    avro["fields"][-1]["type"]["fields"].append(field("sort_order_id", "int", 140))
    rows[0]["data_file"]["sort_order_id"] = 7
    wanted = Schema(
        NestedField(2, "data_file", StructType(NestedField(140, "order", IntegerType())), required=True)
    )
    assert [[*entry[0]] for entry in file_of(written(avro, rows)).rows(wanted)] == [[7]]


def test_a_manifest_of_another_content_is_read_in_rows() -> None:
    content = written(schema([]), [plain(1), plain(2, content=2)])
    assert manifests._in_columns(file_of(content), manifest(ManifestContent.DATA), UNPARTITIONED) is None
    files, deletes = manifests.read_manifest(
        Held(content),  # type: ignore[arg-type]
        manifest(ManifestContent.DELETES),
        {0: UNPARTITIONED},
    )
    assert ([file.path for file in files], [file.path for file in deletes]) == (["file-1"], ["file-2"])


def test_only_what_is_live_is_held_and_bounds_only_where_they_may_name_a_file() -> None:
    rows = entries([1, 2])
    file = file_of(written(schema(PARTITION_FIELDS), rows))
    asked = manifest(ManifestContent.DELETES)
    with patch.object(avro_columns, "BATCH_BYTES", 1):
        live = manifests._live_entries(file, asked, manifests.partition_type_of(file.schema))
    files = [row["data_file"] for row in rows if row["status"] != manifests.DELETED]
    assert len(live) == len(files)
    bounds = [
        file["lower_bounds"] is not None and file["content"] == 1 and file["referenced_data_file"] is None
        for file in files
    ]
    assert live[manifests._LOWER].is_not_null().to_list() == bounds
    assert 0 < sum(bounds) < len(bounds)


@pytest.mark.parametrize(
    ("patched", "is_read"),
    [
        ({}, True),
        ({avro_columns: "_LARGEST_BLOCK"}, False),
        ({manifests: "COLUMN_BYTES"}, False),
    ],
)
def test_a_little_that_unpacks_to_much_is_read_in_rows(patched: dict[Any, str], is_read: bool) -> None:
    content = written(schema([]), [plain(1)] * 5_000, "deflate", 10_000)
    with ExitStack() as stack:
        for module, name in patched.items():
            stack.enter_context(patch.object(module, name, 1_000))
        found = manifests._in_columns(file_of(content), manifest(ManifestContent.DATA), UNPARTITIONED)
    assert (found is not None) is is_read


def test_no_more_is_decoded_once_there_is_more_than_the_list_says() -> None:
    content = written(schema([]), [plain(number) for number in range(10)])
    with (
        patch.object(avro_columns, "BATCH_BYTES", 1),
        patch("polars.read_avro", side_effect=pl.read_avro) as decoded,
    ):
        found = manifests._in_columns(file_of(content), manifest(ManifestContent.DATA, 3), UNPARTITIONED)
    assert found is None
    assert decoded.call_count == 4


@pytest.mark.parametrize("error", [pl.exceptions.ComputeError("x"), pl.exceptions.PanicException("x")])
@pytest.mark.parametrize("where", ["polars.read_avro", "polars.concat", "polars.DataFrame.with_row_index"])
def test_what_polars_can_not_do_is_done_in_rows(error: BaseException, where: str) -> None:
    content = written(schema([]), [plain(1), plain(2)])
    intact = outcome(content)
    with patch(where, side_effect=error) as tried:
        assert outcome(content) == intact
    assert tried.called


def test_the_schema_that_polars_gets_is_one_of_avro() -> None:
    written_schema = file_of(written(schema(PARTITION_FIELDS), [])).schema
    found = avro_columns.entries_of(written_schema, written_schema)
    assert found is not None
    fields = json.loads(fastavro.reader(io.BytesIO(found.header)).metadata["avro.schema"])["fields"]
    assert all(re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", one["name"]) for one in fields)
    with patch("fastavro.parse_schema", side_effect=KeyError):
        assert avro_columns.entries_of(written_schema, written_schema) is None


@pytest.mark.parametrize("value", range(4))
def test_a_boolean_that_is_neither_0_nor_1_is_what_it_is_in_rows(value: int) -> None:
    content = written(schema([field("p0", "boolean", 1000)]), [plain(1, partition={"p0": True})])
    before, after = content.split(b"PARQUET\x02\x01")
    content = before + b"PARQUET\x02" + bytes([value]) + after
    asked = manifest(ManifestContent.DATA)
    in_columns = manifests._in_columns(file_of(content), asked, ONE_PARTITION)
    assert in_columns is not None
    assert in_columns == manifests._in_rows(file_of(content), asked, ONE_PARTITION)
