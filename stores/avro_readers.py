"""Readers of some columns of metadata files in Avro, by PyIceberg's decoder: all else is skipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader
from pyiceberg.avro.reader import DecimalReader, Reader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor, construct_reader
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.types import (
    DecimalType,
    FixedType,
    IcebergType,
    ListType,
    MapType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    UnknownType,
)
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from trust.bounds import check_time

SCHEMA = "avro.schema"
"""Under which a header says what entries are."""
SCHEMAS_KEPT = 64
_HEADER_KEPT = 100_000
"""Characters of a schema; Iceberg's have 8,000."""
_HEADER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})
SYNC_BYTES = 16
"""Of the marker that ends the header and each block."""
P = ParamSpec("P")
T = TypeVar("T")


class Decoder(BinaryDecoder):
    """PyIceberg's in C, which by itself reads and skips as far as it is told to: behind the end there is
    whatever lies in memory, and before it the same again and again. Raises EOFError."""

    def __init__(self, content: bytes) -> None:
        decoder = new_decoder(content + b"\0")  # with which a number ends that is cut off
        self._bytes, self._tell = len(content), decoder.tell
        self._read, self._skip = decoder.read, decoder.skip
        # It looks itself whether there is anything where a number begins.
        self.read_int = self.skip_int = decoder.read_int  # type: ignore[assignment,method-assign]

    def tell(self) -> int:
        return self._tell()

    @property
    def left(self) -> int:
        """Bytes; less than none behind a number that is cut off."""
        return self._bytes - self._tell()

    def read(self, n: int) -> bytes:
        if not 0 <= n <= self._bytes - self._tell():
            raise EOFError(f"{n} bytes are to be read where {self.left} are left")
        return self._read(n)

    def skip(self, n: int) -> None:
        if not 0 <= n <= self._bytes - self._tell():
            raise EOFError(f"{n} bytes are to be skipped where {self.left} are left")
        self._skip(n)

    def read_bytes(self) -> bytes:
        return self.read(self.read_int())

    def read_boolean(self) -> bool:
        return self.read(1) != b"\0"


def read_header(content: bytes) -> tuple[AvroFileHeader, Decoder]:
    """Of a file, and a decoder of what follows."""
    decoder = Decoder(content)
    return _HEADER.read(decoder), decoder


def packed_blocks(decoder: Decoder) -> Iterator[tuple[int, bytes]]:
    """How many entries each says that it has, and these as the file has them."""
    while decoder.left > 0:
        yield decoder.read_int(), decoder.read_bytes()
        decoder.skip(SYNC_BYTES)


def read_blocks(header: AvroFileHeader, decoder: Decoder) -> Iterator[tuple[int, bytes]]:
    """How many entries each has, and these."""
    codec = header.compression_codec()
    for count, block in packed_blocks(decoder):
        yield count, codec.decompress(block) if codec else block


def read_entries(reader: Reader, count: int, block: bytes) -> Iterator[Any]:
    """Raises EOFError where these are not what the block has."""
    decoder = Decoder(block)
    for _ in range(count):
        check_time()
        yield reader.read(decoder)
    if decoder.left:
        raise EOFError(f"{count} entries do not end where their block does")


def kept_by_schema(
    understand: Callable[Concatenate[str, P], T],
) -> Callable[Concatenate[str, P], T]:
    """Keeps what is understood of a schema as a header has it, unless that is long.

    Most files of a table say the same, which takes longer to understand than their entries to read.
    """
    kept: Callable[..., T] = lru_cache(SCHEMAS_KEPT)(understand)

    @wraps(kept)
    def understood(written: str, /, *of: P.args, **named: P.kwargs) -> T:
        return (kept if len(written) <= _HEADER_KEPT else understand)(written, *of, **named)

    return understood


def read_schema(written: str) -> Schema:
    """As a header has it."""
    return _Conversion().avro_to_iceberg(json.loads(written))


def reader_of(schema: Schema, wanted: Schema) -> Reader:
    """Of entries: the columns of their schema that are wanted. It keeps nothing, so threads may share it.

    Raises ValidationError for what has items without a byte: any number of them lies in none.
    """
    if _is_nothing(schema.as_struct()):
        raise ValidationError("Entries have no fields")
    # Made as PyIceberg makes its own.
    reader: Any = visit_with_partner(schema, wanted, _Resolver(), _SkippingAccessor())  # type: ignore[misc]
    return reader  # type: ignore[no-any-return]


def _is_nothing(kind: IcebergType) -> bool:
    """Whether a value takes no byte."""
    match kind:
        case StructType():
            return all(field.required and _is_nothing(field.field_type) for field in kind.fields)
        case FixedType():
            return len(kind) == 0
    return isinstance(kind, UnknownType)


class _Decimal(DecimalReader):
    """Skips what it would read; PyIceberg takes it for bytes with their length before them."""

    def skip(self, decoder: BinaryDecoder) -> None:
        decoder.skip(self._length)


class _SkippingAccessor(SchemaPartnerAccessor):
    """Lets the read schema leave out structs, lists and maps, such as statistics: they are skipped."""

    def field_partner(
        self, partner_struct: IcebergType | None, field_id: int, field_name: str
    ) -> IcebergType | None:
        return None if partner_struct is None else super().field_partner(partner_struct, field_id, field_name)

    def list_element_partner(self, partner_list: IcebergType | None) -> IcebergType | None:
        return None if partner_list is None else super().list_element_partner(partner_list)

    def map_key_partner(self, partner_map: IcebergType | None) -> IcebergType | None:
        return None if partner_map is None else super().map_key_partner(partner_map)

    def map_value_partner(self, partner_map: IcebergType | None) -> IcebergType | None:
        return None if partner_map is None else super().map_value_partner(partner_map)


class _Resolver(ReadSchemaResolver):
    def list(self, list_type: ListType, expected_list: IcebergType | None, element_reader: Reader) -> Reader:
        if list_type.element_required and _is_nothing(list_type.element_type):
            raise ValidationError(f"Elements of {list_type} have no bytes")
        return super().list(list_type, expected_list, element_reader)

    def map(
        self, map_type: MapType, expected_map: IcebergType | None, key_reader: Reader, value_reader: Reader
    ) -> Reader:
        if _is_nothing(map_type.key_type):
            raise ValidationError(f"Keys of {map_type} have no bytes")
        return super().map(map_type, expected_map, key_reader, value_reader)

    def visit_decimal(self, decimal_type: DecimalType, _: IcebergType | None) -> Reader:
        return _Decimal(decimal_type.precision, decimal_type.scale)


class _Conversion(AvroSchemaConversion):
    """Knows timestamps in nanoseconds too, by which a table may be partitioned."""

    def _convert_logical_type(self, avro_logical_type: dict[str, Any]) -> IcebergType:
        if avro_logical_type["logicalType"] == "timestamp-nanos":
            return TimestamptzNanoType() if avro_logical_type.get("adjust-to-utc") else TimestampNanoType()
        return super()._convert_logical_type(avro_logical_type)
