"""Files of a table besides Parquet: in Avro and ORC, and deletion vectors in Puffin."""

from __future__ import annotations

import hashlib
import io
import json
import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import fastavro
import pyarrow as pa
from pyarrow import orc

from conformance.types import Field, Row, Type, decimal_length, decimal_of, fields_of, fixed_length, plain

PUFFIN_MAGIC = b"PFA1"
VECTOR_MAGIC = b"\xd1\xd3\x39\x64"


def avro_file(
    schema: Mapping[str, Any], records: Sequence[Mapping[str, Any]], metadata: Mapping[str, str]
) -> bytes:
    """Avro's marker between blocks is made from the content, so that it is the same every time."""
    out = io.BytesIO()
    marker = hashlib.md5(repr((schema, records, metadata)).encode(), usedforsecurity=False).digest()
    fastavro.writer(out, dict(schema), records, metadata=dict(metadata), sync_marker=marker)
    return out.getvalue()


def avro_data_file(fields: Sequence[Field], rows: Sequence[Row], iceberg_schema: str) -> bytes:
    schema = {"type": "record", "name": "table", "fields": [_avro_field(one) for one in fields]}
    return avro_file(schema, [_avro_record(fields, row) for row in rows], {"iceberg.schema": iceberg_schema})


def _avro_field(one: Field) -> dict[str, Any]:
    kind = avro_type(one["type"], one["id"])
    if one["required"]:
        return {"name": one["name"], "type": kind, "field-id": one["id"]}
    return {"name": one["name"], "type": ["null", kind], "default": None, "field-id": one["id"]}


def avro_type(kind: Type, field_id: int) -> Any:
    fields = fields_of(kind)
    if fields is not None:
        return {"type": "record", "name": f"r{field_id}", "fields": [_avro_field(one) for one in fields]}
    decimal = decimal_of(kind)
    if decimal:
        precision, scale = decimal
        return {
            "type": "fixed",
            "name": f"decimal_{precision}_{scale}",
            "size": decimal_length(precision),
            "logicalType": "decimal",
            "precision": precision,
            "scale": scale,
        }
    length = fixed_length(kind)
    if length:
        return {"type": "fixed", "name": f"fixed_{length}", "size": length}
    match kind:
        case "date":
            return {"type": "int", "logicalType": "date"}
        case "time":
            return {"type": "long", "logicalType": "time-micros"}
        case "timestamp" | "timestamptz":
            utc = kind == "timestamptz"
            return {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": utc}
        case "uuid":
            return {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}
        case "binary":
            return "bytes"
    return kind


def _avro_record(fields: Sequence[Field], row: Row) -> dict[str, Any]:
    return {one["name"]: avro_value(one["type"], row.get(one["name"])) for one in fields}


def avro_value(kind: Type, value: Any) -> Any:
    if value is None:
        return None
    fields = fields_of(kind)
    if fields is not None:
        return _avro_record(fields, value)
    decimal = decimal_of(kind)
    if decimal:
        return plain(kind, value).to_bytes(decimal_length(decimal[0]), "big", signed=True)
    return plain(kind, value)


def orc_file(fields: Sequence[Field], rows: Sequence[Row]) -> bytes:
    """By Arrow; of numbers, text and structs of these."""
    schema = pa.schema([_orc_field(one) for one in fields])
    out = io.BytesIO()
    orc.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), out)
    return out.getvalue()


def _orc_field(one: Field) -> pa.Field:
    below = fields_of(one["type"])
    if below is not None:
        kind = pa.struct([_orc_field(child) for child in below])
    else:
        kind = {"long": pa.int64(), "int": pa.int32(), "string": pa.string(), "double": pa.float64()}[
            one["type"]
        ]
    ids = {"iceberg.id": str(one["id"]), "iceberg.required": str(one["required"]).lower()}
    return pa.field(one["name"], kind, not one["required"], metadata=ids)


def puffin_file(vectors: Mapping[str, Sequence[int]]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """A deletion vector for each data file, and where it lies: its offset and its length."""
    out = bytearray(PUFFIN_MAGIC)
    places = {}
    for path, positions in vectors.items():
        vector = deletion_vector(positions)
        places[path] = (len(out), len(vector))
        out += vector
    blobs = [
        {
            "type": "deletion-vector-v1",
            "fields": [2147483645],
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": offset,
            "length": length,
            "properties": {
                "referenced-data-file": path,
                "cardinality": str(len(set(vectors[path]))),
            },
        }
        for path, (offset, length) in places.items()
    ]
    payload = json.dumps({"blobs": blobs, "properties": {}}).encode()
    out += PUFFIN_MAGIC + payload + struct.pack("<ii", len(payload), 0) + PUFFIN_MAGIC
    return bytes(out), places


def deletion_vector(positions: Sequence[int]) -> bytes:
    """The blob, whose bitmap has each 65,536 positions in the smallest of Roaring's three containers."""
    by_key: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for position in sorted(set(positions)):
        by_key[position >> 32][position >> 16 & 0xFFFF].append(position & 0xFFFF)
    content = VECTOR_MAGIC + struct.pack("<q", len(by_key))
    for key, containers in by_key.items():
        content += struct.pack("<I", key) + _bitmap(containers)
    return struct.pack(">i", len(content)) + content + struct.pack(">I", crc32(content))


def _bitmap(containers: Mapping[int, Sequence[int]]) -> bytes:
    """Of 32 bits, in Roaring's portable format. containers: lower halves by the upper half."""
    written = [_container(lows) for lows in containers.values()]
    has_runs = [is_run for is_run, _ in written]
    if any(has_runs):
        flags = sum(1 << at for at, is_run in enumerate(has_runs) if is_run)
        head = struct.pack("<HH", 12347, len(written) - 1) + flags.to_bytes(-(-len(written) // 8), "little")
    else:
        head = struct.pack("<II", 12346, len(written))
    head += b"".join(struct.pack("<HH", high, len(lows) - 1) for high, lows in containers.items())
    if not any(has_runs) or len(written) >= 4:
        offset = len(head) + 4 * len(written)
        for _, content in written:
            head += struct.pack("<I", offset)
            offset += len(content)
    return head + b"".join(content for _, content in written)


def _container(lows: Sequence[int]) -> tuple[bool, bytes]:
    """Whether it is one of runs, and its bytes."""
    starts = [low for before, low in zip((-2, *lows), lows, strict=False) if low != before + 1]
    ends = [low for low, after in zip(lows, (*lows[1:], -1), strict=True) if after != low + 1]
    runs = struct.pack("<H", len(starts))
    runs += b"".join(struct.pack("<HH", start, end - start) for start, end in zip(starts, ends, strict=True))
    if len(lows) <= 4096:
        plain = struct.pack(f"<{len(lows)}H", *lows)
    else:
        plain = sum(1 << low for low in lows).to_bytes(8192, "little")
    return (True, runs) if len(runs) < len(plain) else (False, plain)
