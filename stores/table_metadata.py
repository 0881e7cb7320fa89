"""A table's metadata as PyIceberg has it, also where it says what PyIceberg does not know.

What is needed of it here are snapshots, partition specs and the columns of keys. So a column of a type that
PyIceberg lacks keeps its id and its name, and what nobody asks for is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from pydantic import ValidationError as PydanticValidationError
from pydantic import ValidatorFunctionWrapHandler, model_validator
from pyiceberg.conversions import from_json
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import InputFile
from pyiceberg.schema import Schema
from pyiceberg.serializers import Compressor
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import (
    GeographyType,
    GeometryType,
    IcebergType,
    TimestampNanoType,
    TimestamptzNanoType,
    UnknownType,
)

JOB_ID = "icestream.job-id"
"""A property of each snapshot that a job commits: the job's id."""
NOT_MODELLED = (ValidationError, PydanticValidationError, TypeError, NotImplementedError)
"""What PyIceberg raises for metadata that it has no place for."""
ENCRYPTED = b"AGS1"
"""What a file begins with that Iceberg has encrypted by itself, such as a list of manifests."""
ENCRYPTED_REMEDY = (
    "Use the engine that holds the table's keys, or copy its rows into a table without encryption."
)
PLACE_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""Under which a table's properties say where its files go, if not into its location."""
_NESTED = frozenset(("struct", "list", "map"))
_TYPES = frozenset(("type", "element", "key", "value"))
"""Under which a schema's JSON has a type."""
_WITH_NUMBERS = ("decimal", "fixed")
"""Types that are known, so that one with other numbers is no new one."""
_DEEP = "Its columns lie too deep within each other"
_OPERATIONS = frozenset(one.value for one in Operation)
_BLOBS = frozenset(("apache-datasketches-theta-v1", "deletion-vector-v1"))

_MOMENT = re.compile(
    r"(?P<second>\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?)(\.(?P<fraction>\d{1,9}))?(?P<zone>\+00:00|Z)?", re.ASCII
)


class OpaqueType(UnknownType):
    """A type that PyIceberg does not know, or not as Iceberg's Java library writes it: variant, and geometry
    or geography with what is in brackets.

    Arrow's schema of it has nulls, so whoever reads values has to refuse it.
    """

    root: str  # type: ignore[assignment]

    def __init__(self, root: str) -> None:
        super().__init__(root=root)

    @model_validator(mode="wrap")  # type: ignore[misc]
    @classmethod
    def handle_primitive_type(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> IcebergType:
        """Instead of PyIceberg's, which looks for a type of that name."""
        found: IcebergType = handler(value)
        return found

    def __getnewargs__(self) -> tuple[str]:
        return (self.root,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueType) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)


UNREAD_TYPES = (OpaqueType, GeometryType, GeographyType)
UNWRITTEN_TYPES = (UnknownType, GeometryType, GeographyType)
"""Of columns whose values are not read here, and not written. A column that is `unknown` has none."""


def column_of(schema: Schema, kinds: tuple[type[IcebergType], ...]) -> tuple[str, IcebergType] | None:
    """The name and type of one that is of some types, if there is any."""
    for field_id in schema.field_ids:
        kind = schema.find_type(field_id)
        if isinstance(kind, kinds):
            return schema.find_column_name(field_id) or "", kind
    return None


@from_json.register(TimestampNanoType)
@from_json.register(TimestamptzNanoType)
def _nanoseconds(kind: TimestampNanoType | TimestamptzNanoType, value: str | int) -> int:
    """A column's default, since the epoch: PyIceberg knows those of all other types that a key may have."""
    if isinstance(value, str):
        form = _MOMENT.fullmatch(value)
        if form is None or (form["zone"] is None) is isinstance(kind, TimestamptzNanoType):
            raise ValueError(f"{value!r} is no {kind}")
        # Numpy counts nanoseconds that are out of range from the other end.
        seconds = int(np.datetime64(form["second"], "s").astype(np.int64))
        value = seconds * 10**9 + int((form["fraction"] or "").ljust(9, "0"))
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value!r} is no {kind}")
    return value


def named_places(properties: Mapping[str, str]) -> list[str]:
    """Where a table's properties say that its files go."""
    return [properties[key] for key in PLACE_PROPERTIES if key in properties]


def read_table_metadata(file: InputFile) -> TableMetadata:
    """Of a metadata file. Raises as `parse_table_metadata`, and what opening and unpacking raise."""
    compressor = Compressor.get_compressor(file.location)
    with file.open() as packed, compressor.stream_decompressor(packed) as source:
        return parse_table_metadata(source.read())


def parse_table_metadata(content: bytes, known: TableMetadata | None = None) -> TableMetadata:
    """Of its JSON. known: of the table before, whose snapshots never change: they are not understood again.

    Raises PyIceberg's ValidationError, and UnicodeDecodeError.
    """
    text = content.decode()
    if known is not None:
        # What is wrong with it is told below.
        with suppress(*NOT_MODELLED, ValueError, LookupError, AttributeError, RecursionError):
            return TableMetadataUtil.parse_obj(_with_snapshots_of(known, json.loads(text)))
    try:
        return TableMetadataUtil.parse_raw(text)
    except RecursionError as error:
        raise ValidationError(_DEEP) from error
    except NOT_MODELLED as error:
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            raise error from None
    return table_metadata_of(said)


def table_metadata_of(said: Any) -> TableMetadata:
    """Of its JSON, parsed. Raises PyIceberg's ValidationError."""
    if not isinstance(said, dict):
        raise ValidationError("It is no JSON object")
    try:
        return TableMetadataUtil.parse_obj(_modelled(said))
    except ValidationError:
        raise
    except RecursionError as error:
        raise ValidationError(_DEEP) from error
    except (*NOT_MODELLED, ValueError) as error:
        raise ValidationError(error) from error


def parse_schema(content: str) -> Schema:
    """Of its JSON. Raises ValueError."""
    return Schema.model_validate(_typed(json.loads(content)))


def _with_snapshots_of(known: TableMetadata, said: dict[str, Any]) -> dict[str, Any]:
    if said["table-uuid"] != str(known.table_uuid):
        return said
    # A table that was copied to another place has the same ids, and other paths.
    before = {(one.snapshot_id, one.manifest_list): one for one in known.snapshots}
    now = [before.get((one["snapshot-id"], one["manifest-list"]), one) for one in said["snapshots"]]
    return said | {"snapshots": now}


def _modelled(said: dict[str, Any]) -> dict[str, Any]:
    """What of it matters here, as PyIceberg has a place for it; of sort orders, the one that holds has no
    fields, and its id says whether there is any."""
    kept = {name: value for name, value in said.items() if name != "sort-orders"}
    if kept.get("default-sort-order-id"):
        kept["sort-orders"] = [{"order-id": kept["default-sort-order-id"], "fields": []}]
    changes = {"schema": _typed, "schemas": _typed, "snapshots": _with_operation, "statistics": _with_blobs}
    return {name: changes[name](value) if name in changes else value for name, value in kept.items()}


def _typed(of_schema: Any) -> Any:
    """A schema, or a part of one, with types of PyIceberg."""
    if isinstance(of_schema, list):
        return [_typed(one) for one in of_schema]
    if isinstance(of_schema, dict):
        return {
            name: _type(value) if name in _TYPES and isinstance(value, str) else _typed(value)
            for name, value in of_schema.items()
        }
    return of_schema


def _type(name: str) -> str | IcebergType:
    if name in _NESTED:
        return name
    for written in (name, name.lower()):  # Iceberg's Java library takes both
        with suppress(ValueError, ValidationError):
            return IcebergType.model_validate(written)
    if name.lower().startswith(_WITH_NUMBERS):
        raise ValueError(f"{name} is no type of Iceberg")
    return OpaqueType(name)


def _with_operation(snapshots: Any) -> Any:
    """A new operation becomes the one that may do anything, as PyIceberg has it where none is said."""

    def known(summary: Any) -> Any:
        if not isinstance(summary, dict) or summary.get("operation") in _OPERATIONS:
            return summary
        return summary | {"operation": Operation.OVERWRITE.value}

    return _each(snapshots, "summary", known)


def _with_blobs(statistics: Any) -> Any:
    """Without descriptions of new kinds of blobs: only where the files lie is asked for."""

    def known(blobs: Any) -> Any:
        if not isinstance(blobs, list):
            return blobs
        return [one for one in blobs if isinstance(one, dict) and one.get("type") in _BLOBS]

    return _each(statistics, "blob-metadata", known)


def _each(objects: Any, name: str, change: Callable[[Any], Any]) -> Any:
    if not isinstance(objects, list):
        return objects
    return [
        one | {name: change(one[name])} if isinstance(one, dict) and name in one else one for one in objects
    ]
