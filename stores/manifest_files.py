"""Manifests whose partition values are not as their header says, with a header that says what they are.

Iceberg's Java library (1.12) declares a partition value of type fixed as Avro's fixed and writes it as bytes,
with its length before it; others write what they declare. Who wrote a manifest, its header tells.

Decimals and UUIDs are Avro's fixed, too, whose types have names: of two columns of one type Java describes
the first and names it for the second, which PyIceberg does not look up. PyIceberg describes both by the same
name, which Avro takes for a mistake.
"""

from __future__ import annotations

import copy
import io
import json
from typing import Any

from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.exceptions import ValidationError
from pyiceberg.types import TimestampNanoType
from pyiceberg.utils.schema_conversion import LOGICAL_FIELD_TYPE_MAPPING, AvroSchemaConversion

from stores.avro_readers import SCHEMA, read_blocks, read_entries, read_header, reader_of

# PyIceberg writes such partition values, and reads them once it knows what they are.
LOGICAL_FIELD_TYPE_MAPPING.setdefault(("timestamp-nanos", "long"), TimestampNanoType())
_OF_JAVA = "iceberg.schema"
"""In a header of the Java library's, and of no other writer's."""
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError)
_DATA_FILE, _PARTITION = 2, 102


def readable_manifest(content: bytes) -> bytes:
    """The file, with a header by which its entries are written. What is no manifest, has no such values or
    ends too early stays as it is: whoever reads it tells.

    Raises PyIceberg's ValidationError where it is not known how such values are written: read in the wrong
    way, they may look right.
    """
    if b'"fixed"' not in content:  # which costs far less than its header
        return content
    try:
        header, decoder = read_header(content)
        start = decoder.tell()
        told = json.loads(header.meta[SCHEMA])
        declared, written, sizes = _ways(told)
    except (*_MALFORMED, EOFError, StopIteration):
        return content
    if not any(sizes):
        return _with_schema(content, header, start, declared) if declared != told else content
    ways = [written, declared] if _OF_JAVA in header.meta else [declared, written]
    try:
        blocks = [*read_blocks(header, decoder)]
        # Entries may fit both, such as those of a value that ends in a byte from 0x80 on.
        fitting = next((way for way in ways if all(_fits(way, sizes, *block) for block in blocks)), None)
    except EOFError:
        return content
    except _MALFORMED as error:
        raise ValidationError(f"Partition values of type fixed can't be read: {error}") from error
    if fitting is None:
        raise ValidationError("Partition values of type fixed are written in no way that is known")
    return _with_schema(content, header, start, fitting) if fitting != told else content


def _with_schema(content: bytes, header: AvroFileHeader, start: int, schema: Any) -> bytes:
    rewritten = io.BytesIO()
    again = AvroFileHeader(header.magic, header.meta | {SCHEMA: json.dumps(schema)}, header.sync)
    construct_writer(META_SCHEMA).write(BinaryEncoder(rewritten), again)
    return rewritten.getvalue() + content[start:]


def _ways(entry: Any) -> tuple[Any, Any, list[int | None]]:
    """The schema of entries with each type of the partition's values described by itself, the same with bytes
    in place of fixed values, and how long these are: None for a value of another type."""
    ways = copy.deepcopy(entry), copy.deepcopy(entry)
    partitions = [_field(_field(way, _DATA_FILE)["type"], _PARTITION)["type"]["fields"] for way in ways]
    named: dict[str, dict[str, Any]] = {}
    sizes: list[int | None] = []
    for fields in zip(*partitions, strict=True):
        *null, kind = fields[0]["type"] if isinstance(fields[0]["type"], list) else [fields[0]["type"]]
        name = kind if isinstance(kind, str) else kind.get("name", "")
        if name in named:
            kind = (named[name] if isinstance(kind, str) else kind) | {"name": f"{name}_{len(sizes)}"}
        is_named = isinstance(kind, dict) and kind["type"] == "fixed"
        is_fixed = is_named and "logicalType" not in kind
        sizes.append(kind["size"] if is_fixed else None)
        if is_named:
            named[kind["name"]] = kind
            for field, of_way in zip(fields, (kind, "bytes" if is_fixed else kind), strict=True):
                field["type"] = [*null, of_way] if null else of_way
    return *ways, sizes


def _field(record: Any, field_id: int) -> Any:
    return next(field for field in record["fields"] if field["field-id"] == field_id)


def _fits(avro: Any, sizes: list[int | None], count: int, block: bytes) -> bool:
    """Whether a block of entries is written by a schema."""
    schema = AvroSchemaConversion().avro_to_iceberg(avro)
    reader = reader_of(schema, schema)
    records = avro, _field(avro, _DATA_FILE)["type"]
    at = [[field["field-id"] for field in record["fields"]] for record in records]
    file_at, partition_at = at[0].index(_DATA_FILE), at[1].index(_PARTITION)
    try:
        for entry in read_entries(reader, count, block):
            values = entry[file_at][partition_at]
            for place, size in enumerate(sizes):
                if size is not None and values[place] is not None and len(values[place]) != size:
                    return False
    except (ValueError, EOFError, LookupError, OverflowError, TypeError):
        return False
    return True
