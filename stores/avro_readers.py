"""Readers of some columns of metadata files in Avro, by PyIceberg's decoder: all else is skipped."""

from __future__ import annotations

import json
from typing import Any

from pyiceberg.avro import STRUCT_DOUBLE
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader
from pyiceberg.avro.reader import DecimalReader, Reader
from pyiceberg.avro.reader import DoubleReader as PyIcebergDoubleReader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor, construct_reader
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.types import DecimalType, DoubleType, IcebergType, TimestampNanoType, TimestamptzNanoType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

SCHEMA = "avro.schema"
"""Under which a header says what entries are."""
SCHEMAS_KEPT = 64
HEADER_KEPT = 100_000
"""Characters of a schema; Iceberg's have 8,000."""
_HEADER = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def read_header(content: bytes) -> tuple[AvroFileHeader, BinaryDecoder]:
    """Of a file, and a decoder of what follows."""
    decoder = new_decoder(content)
    return _HEADER.read(decoder), decoder


def read_schema(written: str) -> Schema:
    """As a header has it."""
    return _Conversion().avro_to_iceberg(json.loads(written))


def reader_of(schema: Schema, wanted: Schema) -> Reader:
    """Of entries: the columns of their schema that are wanted. It keeps nothing, so threads may share it."""
    # Made as PyIceberg makes its own.
    reader: Any = visit_with_partner(schema, wanted, _Resolver(), _SkippingAccessor())  # type: ignore[misc]
    return reader  # type: ignore[no-any-return]


class DoubleReader(PyIcebergDoubleReader):
    """PyIceberg's decoder in C gives no more than a float has."""

    def read(self, decoder: BinaryDecoder) -> float:
        return float(STRUCT_DOUBLE.unpack(decoder.read(STRUCT_DOUBLE.size))[0])


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
    def visit_double(self, _: DoubleType, __: IcebergType | None) -> Reader:
        return DoubleReader()  # type: ignore[no-untyped-call]

    def visit_decimal(self, decimal_type: DecimalType, _: IcebergType | None) -> Reader:
        return _Decimal(decimal_type.precision, decimal_type.scale)


class _Conversion(AvroSchemaConversion):
    """Knows timestamps in nanoseconds too, by which a table may be partitioned."""

    def _convert_logical_type(self, avro_logical_type: dict[str, Any]) -> IcebergType:
        if avro_logical_type["logicalType"] == "timestamp-nanos":
            return TimestamptzNanoType() if avro_logical_type.get("adjust-to-utc") else TimestampNanoType()
        return super()._convert_logical_type(avro_logical_type)
