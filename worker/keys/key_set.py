"""A key: the equality fields of a table, and the types in which their values are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.types import PrimitiveType

from worker.process.errors import JobError

NULL_MASK = "null_mask"
MASK_BITS = 31


class KeyColumnError(JobError):
    """A key can't be resolved, typed or read: the equality deletes that need it are refused.

    A retry can't help.
    """

    title = "The key can't be indexed"

    def __init__(self, code: str, detail: str, remedy: str) -> None:
        super().__init__(detail, remedy)
        self.code = code


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One equality field. `field_id_path` leads from the top-level column down to the leaf.

    Values are kept in `key_type`, which widening (int -> long, decimal precision) does not change;
    `initial_default` is in that representation too.
    """

    field_id: int
    name: str  # dotted, as in the schema it was found in
    field_id_path: tuple[int, ...]
    iceberg_type: PrimitiveType
    key_type: pa.DataType
    initial_default: Any = None
    name_path: tuple[str, ...] = ()  # as `field_id_path`, in the schema it was found in

    @property
    def column_name(self) -> str:
        """The column's name in the index: by id, so that renaming the Iceberg column changes nothing."""
        return f"key_{self.field_id}"


@dataclass(frozen=True, slots=True)
class KeySet:
    """A set of equality field ids and how to read them; columns are in ascending field id."""

    columns: tuple[KeyColumn, ...]

    @property
    def equality_field_ids(self) -> tuple[int, ...]:
        return tuple(column.field_id for column in self.columns)

    @property
    def column_names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def schema(self) -> pa.Schema:
        """null_mask: int32 (bit i set: column i is null and holds a placeholder), then the key columns.

        After more than 31 of them come further masks, of 31 columns each, which are matched like keys.
        """
        masks = [NULL_MASK, *(f"{NULL_MASK}_{at}" for at in range(MASK_BITS, len(self.columns), MASK_BITS))]
        first, *further = [pa.field(name, pa.int32(), nullable=False) for name in masks]
        keys = [pa.field(c.column_name, c.key_type, nullable=False) for c in self.columns]
        return pa.schema([first, *keys, *further])

    def is_null(self, at: int, values: Sequence[Any]) -> bool:
        """Whether the column in place `at` is null in a row of `schema`."""
        mask, bit = divmod(at, MASK_BITS)
        return bool(values[len(self.columns) + mask if mask else 0] >> bit & 1)

    def __str__(self) -> str:
        return "(" + ", ".join(self.column_names) + ")"
