"""Manifests of tables that are partitioned by what Avro has as fixed: Java's, and those of others."""

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.avro.file import AvroFile
from pyiceberg.exceptions import ValidationError
from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from stores.manifest_files import readable_manifest

SIZE = 3


def schema(*partition: dict[str, Any]) -> dict[str, Any]:
    def field(name: str, kind: Any, field_id: int) -> dict[str, Any]:
        return {"name": name, "type": kind, "field-id": field_id}

    values = {"type": "record", "name": "r102", "fields": [*partition]}
    file = [
        field("content", "int", 134),
        field("file_path", "string", 100),
        field("file_format", "string", 101),
        field("partition", values, 102),
        field("record_count", "long", 103),
        field("file_size_in_bytes", "long", 104),
    ]
    content = {"type": "record", "name": "r2", "fields": file}
    fields = [field("status", "int", 0), field("data_file", content, 2)]
    return {"type": "record", "name": "manifest_entry", "fields": fields}


def partition_field(kind: Any, at: int = 0) -> dict[str, Any]:
    return {"name": f"p{at}", "type": ["null", kind], "default": None, "field-id": 1000 + at}


FIXED = {"type": "fixed", "name": f"fixed_{SIZE}", "size": SIZE}
DECLARED = schema(partition_field(FIXED), partition_field(FIXED["name"], 1), partition_field("string", 2))
WRITTEN = schema(partition_field("bytes"), partition_field("bytes", 1), partition_field("string", 2))


def manifest(
    values: list[Any],
    rows: int,
    *,
    is_of_java: bool,
    codec: str = "deflate",
    has_lengths: bool | None = None,
    **properties: str,
) -> bytes:
    """values: of each file, the three of its partition. properties: in the header, before all others."""
    entries = [
        {
            "status": 1,
            "data_file": {
                "content": 2,
                "file_path": f"file:///{at}.parquet",
                "file_format": "PARQUET",
                "partition": {f"p{place}": value for place, value in enumerate(of_file)},
                "record_count": rows,
                "file_size_in_bytes": 476,
            },
        }
        for at, of_file in enumerate(values)
    ]
    file, metadata = io.BytesIO(), properties | ({"iceberg.schema": "{}"} if is_of_java else {})
    has_lengths = is_of_java if has_lengths is None else has_lengths
    # A block for each entry.
    written = WRITTEN if has_lengths else DECLARED
    fastavro.writer(file, written, entries, codec, sync_interval=1, metadata=metadata)
    content = file.getvalue()
    if not has_lengths:
        return content
    return with_header(content, {"avro.schema": json.dumps(DECLARED)})  # which Java declares


def with_header(content: bytes, changes: dict[str, str]) -> bytes:
    """The file with other properties."""
    told = fastavro.block_reader(io.BytesIO(content)).metadata | changes
    sync, header = content[-16:], io.BytesIO()
    meta = {name: str(value).encode() for name, value in told.items()}
    declared = {"magic": b"Obj\x01", "meta": meta, "sync": sync}
    fastavro.schemaless_writer(header, fastavro.schema.parse_schema(HEADER), declared)
    return header.getvalue() + content[content.index(sync) + len(sync) :]


HEADER = {
    "type": "record",
    "name": "header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": 16}},
    ],
}


def read(content: bytes) -> list[tuple[Any, ...]]:
    """Of each file what fastavro reads by the header."""
    entries: Any = fastavro.reader(io.BytesIO(readable_manifest(content)))
    return [(*one["data_file"]["partition"].values(), one["data_file"]["record_count"]) for one in entries]


fixed = st.none() | st.binary(min_size=SIZE, max_size=SIZE)


@given(
    values=st.lists(st.tuples(fixed, fixed, st.none() | st.text(max_size=3)), min_size=1, max_size=3),
    rows=st.integers(0, 2**40),
    is_of_java=st.booleans(),
    codec=st.sampled_from(["deflate", "null"]),
)
@example(values=[(b"\x00\xff\x7f", None, None)], rows=5, is_of_java=True, codec="deflate")
@example(values=[(b"\x00\xff\x80", b"\x00\xff\x80", None)], rows=5, is_of_java=True, codec="deflate")
@example(values=[(b"\x06\x00\x80", b"\x06\x00\x80", "")], rows=640, is_of_java=False, codec="deflate")
def test_partition_values_are_read_as_their_writer_meant_them(
    values: list[Any], rows: int, is_of_java: bool, codec: str
) -> None:
    content = manifest(values, rows, is_of_java=is_of_java, codec=codec)
    assert read(content) == [(*of_file, rows) for of_file in values]


def test_a_java_library_that_writes_what_it_declares_is_read_as_well() -> None:
    content = manifest([(b"abc", b"abd", "x")], 7, is_of_java=True, has_lengths=False)
    assert read(content) == [(b"abc", b"abd", "x", 7)]


def test_a_header_may_be_as_wide_as_the_table() -> None:
    content = manifest([(b"abc", b"abd", "x")], 7, is_of_java=True, schema="x" * 200_000)
    assert content.index(b"avro.schema") > 200_000
    assert read(content) == [(b"abc", b"abd", "x", 7)]


@pytest.mark.parametrize("told", [{"avro.codec": "lz4"}, {"kind": "of tomorrow"}, {"kind": "long"}])
def test_fixed_values_of_which_it_is_not_known_how_they_are_written_are_refused(told: dict[str, str]) -> None:
    """Since another partition's value may come of it."""
    content = manifest([(b"abc", b"abd", "x")], 7, is_of_java=True)
    if (kind := told.get("kind")) is not None:
        told = {"avro.schema": json.dumps(schema(partition_field(FIXED), partition_field(kind, 1)))}
    with pytest.raises(ValidationError, match="of type fixed"):
        readable_manifest(with_header(content, told))


DECIMAL = {"type": "fixed", "name": "decimal_9_2", "size": 4, "logicalType": "decimal"}
DECIMAL |= {"precision": 9, "scale": 2}
UUIDS = {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (DECIMAL, [(Decimal("1.25"), Decimal("-7.00")), (None, Decimal("0.01"))]),
        (UUIDS, [(bytes(16), b"\xff" * 16), (None, bytes(range(16)))]),
    ],
)
@pytest.mark.parametrize("described_again", [False, True])
def test_two_columns_may_have_one_named_type(
    kind: dict[str, Any], values: list[Any], described_again: bool
) -> None:
    """Java names the second, PyIceberg describes it again."""
    entries = [
        {
            "status": 1,
            "data_file": {"content": 2, "file_path": str(at), "file_format": "PARQUET", "record_count": 5}
            | {"partition": {"p0": one, "p1": other}, "file_size_in_bytes": 6},
        }
        for at, (one, other) in enumerate(values)
    ]
    file = io.BytesIO()
    fastavro.writer(file, schema(partition_field(kind), partition_field(kind["name"], 1)), entries)
    content = file.getvalue()
    if described_again:
        again = schema(partition_field(kind), partition_field(kind, 1))
        content = with_header(content, {"avro.schema": json.dumps(again)})
    assert read(content) == [(*of_file, 5) for of_file in values]
    avro = fastavro.block_reader(io.BytesIO(readable_manifest(content))).metadata["avro.schema"]
    partition = AvroSchemaConversion().avro_to_iceberg(json.loads(avro)).find_type(102)
    assert isinstance(partition, StructType)
    assert len({str(field.field_type) for field in partition.fields}) == 1


def test_rows_in_avro_with_a_fixed_column_are_no_manifest() -> None:
    file, field = io.BytesIO(), {"name": "f", "type": FIXED, "field-id": 1}
    fastavro.writer(file, {"type": "record", "name": "table", "fields": [field]}, [{"f": b"abc"}])
    assert readable_manifest(file.getvalue()) == file.getvalue()


@pytest.mark.parametrize("cut", [40, 300, 700])
def test_what_is_damaged_stays_as_it_is(cut: int) -> None:
    content = manifest([(b"abc", b"abd", "x")], 7, is_of_java=True)[:-cut]
    assert readable_manifest(content) == content


def test_pyiceberg_reads_partitions_of_fixed_values_and_of_nanoseconds() -> None:
    """As the service measures tables."""

    class File:
        def __init__(self, content: bytes) -> None:
            self._content = content

        def open(self) -> io.BytesIO:
            return io.BytesIO(readable_manifest(self._content))

    def paths(content: bytes) -> list[str]:
        with AvroFile[Any](File(content), MANIFEST_ENTRY_SCHEMAS[2]) as entries:  # type: ignore[arg-type]
            return [entry[4][1] for entry in entries]

    assert paths(manifest([(b"abc", None, "x")], 7, is_of_java=True)) == ["file:///0.parquet"]
    moment = {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True}
    file = io.BytesIO()
    data_file = {"content": 2, "file_path": "f", "file_format": "PARQUET", "partition": {"p0": 1}}
    entry = {"status": 1, "data_file": data_file | {"record_count": 1, "file_size_in_bytes": 1}}
    fastavro.writer(file, schema(partition_field(moment)), [entry])
    assert paths(file.getvalue()) == ["f"]
