"""Entries of manifests in columns, which polars decodes: without the GIL, and several times faster than
PyIceberg, which reads what is unknown here, and tells what is wrong with the rest.

What a record holds lies in a file one after the other, also where these are records. So polars gets entries
by a schema that is flat, skips what nobody asks for, and sees only types that it reads as they are written.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import polars as pl
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.decimal import decimal_required_bytes

from stores.avro_readers import Decoder

BATCH_BYTES = 256 * 1024  # of entries that are decoded at a time
_LARGEST_BLOCK = 4 * 1024**2  # bytes; writers of Iceberg make them of 64 KB or less
_LARGEST_FIXED = 16  # bytes, which a column holds also of each value that is null
_SYNC = bytes(16)
_MARK = (1 << 62) + secrets.randbits(61)  # too long to be what follows a number that was cut off
_LONGS = (
    IntegerType,
    LongType,
    DateType,
    TimeType,
    TimestampType,
    TimestamptzType,
    TimestampNanoType,
    TimestamptzNanoType,
)


class NotInColumnsError(Exception):
    """PyIceberg has to read this, or to say what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Entries:
    """How entries lie in some files.

    header: of a file, with the schema that polars gets. smallest: bytes that an entry has at least.
    mark: an entry that is put behind each block, and found again where the entries of the block end with it.
    columns: what is asked for -> which column it is there. absent: of that, what is not written; required:
    what each entry has.
    """

    header: bytes
    smallest: int
    mark: bytes
    columns: dict[str, int]
    absent: tuple[str, ...]
    required: tuple[str, ...]

    def read(self, blocks: Iterable[tuple[int, bytes]]) -> Iterator[pl.DataFrame]:
        """blocks: how many entries, and these. Raises NotInColumnsError, and what polars raises."""
        for some in _batches(blocks):
            for count, content in some:  # before there is memory for so many
                if len(content) > _LARGEST_BLOCK or not 0 <= count * self.smallest <= len(content):
                    raise NotInColumnsError
            try:
                frame = self._decode(some)
            except (ValueError, OSError) as error:
                raise NotInColumnsError from error
            marks = np.cumsum([count + 1 for count, _ in some]) - 1
            if len(frame) != marks[-1] + 1 or (frame[_name(0)].to_numpy()[marks] != _MARK).any():
                raise NotInColumnsError
            is_entry = np.ones(len(frame), np.bool_)
            is_entry[marks] = False
            found = frame.filter(is_entry).select(
                *(pl.col(_name(place)).alias(asked) for asked, place in self.columns.items()),
                *(pl.lit(None).alias(asked) for asked in self.absent),
            )
            if any(found[name].null_count() for name in self.required):
                raise NotInColumnsError
            yield found

    def _decode(self, blocks: Iterable[tuple[int, bytes]]) -> pl.DataFrame:
        file = BytesIO()
        encoder = BinaryEncoder(file)
        encoder.write(self.header)
        for count, content in blocks:
            encoder.write_int(count + 1)
            encoder.write_int(len(content) + len(self.mark))
            for part in (content, self.mark, _SYNC):
                encoder.write(part)
        file.seek(0)
        return pl.read_avro(file, columns=sorted({0, *self.columns.values()}))


def entries_of(written: Schema, wanted: Schema) -> Entries | None:
    """Columns are asked for by the ids of their fields, behind those of what they lie in: `2.100`.

    None for what PyIceberg has to read, or to say what is wrong with it.
    """
    try:
        return _entries_of(written, wanted)
    except Exception:  # of fastavro, too: a manifest says what its types are
        return None


def _entries_of(written: Schema, wanted: Schema) -> Entries | None:
    fields, asked = _leaves(written.as_struct()), _leaves(wanted.as_struct())
    if not fields:
        return None
    places = {name: place for place, name in enumerate(fields)}
    (kind, is_required), *others = fields.values()
    if kind != "long" or not is_required:
        return None
    for name, (kind, is_required) in asked.items():
        if fields[name][0] != kind if name in fields else is_required:
            return None
    header = BytesIO()
    columns = [
        {"name": _name(places[name]), "type": kind if is_required else ["null", kind]}
        for name, (kind, is_required) in fields.items()
    ]
    schema = fastavro.parse_schema({"type": "record", "name": "entry", "fields": columns})
    fastavro.writer(header, schema, [], sync_marker=_SYNC)
    # Each value null, zero or empty; in Avro, all of these are bytes of zero.
    rest = bytes(sum(kind["size"] if required and "size" in kind else 1 for kind, required in others))
    mark = BytesIO()
    BinaryEncoder(mark).write_int(_MARK)
    return Entries(
        header.getvalue(),
        1 + len(rest),
        mark.getvalue() + rest,
        {name: places[name] for name in asked if name in fields},
        tuple(name for name in asked if name not in fields),
        tuple(name for name, (_, is_required) in asked.items() if is_required),
    )


def _name(place: int) -> str:
    return f"c{place}"


def value_of(kind: IcebergType, value: Any) -> Any:
    """What PyIceberg makes of what is in a column."""
    if value is None or not _fixed_bytes(kind):
        return value
    return construct_reader(kind).read(Decoder(value))


def _batches(blocks: Iterable[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    some: list[tuple[int, bytes]] = []
    size = 0
    for block in blocks:
        some.append(block)
        size += len(block[1])
        if size >= BATCH_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _leaves(struct: StructType, outer: str = "") -> dict[str, tuple[Any, bool]]:
    """What is no struct, in order: its type in Avro, and whether it is required."""
    found: dict[str, tuple[Any, bool]] = {}
    for field in struct.fields:
        name = f"{outer}{field.field_id}"
        if isinstance(field.field_type, StructType):
            if not field.required:
                raise NotInColumnsError
            inner = _leaves(field.field_type, f"{name}.")
        else:
            inner = {name: (_avro(field.field_type, name.replace(".", "_")), field.required)}
        if found.keys() & inner:
            raise NotInColumnsError
        found |= inner
    return found


def _avro(kind: IcebergType, name: str) -> Any:
    """name: of a type that has to have one."""
    match kind:
        case StringType():
            return "string"
        case BinaryType():
            return "bytes"
        case ListType():
            return {"type": "array", "items": _item(kind.element_type, f"{name}_i", kind.element_required)}
        case MapType():
            key = _item(kind.key_type, f"{name}_k", is_required=True)
            value = _item(kind.value_type, f"{name}_v", kind.value_required)
            fields = [{"name": "key", "type": key}, {"name": "value", "type": value}]
            return {"type": "array", "items": {"type": "record", "name": f"r{name}", "fields": fields}}
    if isinstance(kind, _LONGS):
        return "long"
    size = _fixed_bytes(kind)
    if not 0 < size <= _LARGEST_FIXED:
        raise NotInColumnsError
    return {"type": "fixed", "name": f"f{name}", "size": size}


def _item(kind: IcebergType, name: str, is_required: bool) -> Any:
    found = _avro(kind, name)
    return found if is_required else ["null", found]


def _fixed_bytes(kind: IcebergType) -> int:
    """Of types that have a length, and are decoded later."""
    match kind:
        case BooleanType():
            return 1  # polars takes 2 for false, PyIceberg for true
        case FloatType():
            return 4
        case DoubleType():
            return 8
        case UUIDType():
            return 16
        case FixedType():
            return len(kind)
        case DecimalType():
            return decimal_required_bytes(kind.precision)
    return 0
