"""Faults that are planted into what conversions and lookups share."""

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema

from worker.keys.key_set import NULL_MASK
from worker.keys.read import KeyReader
from worker.query.places import Places
from worker.query.rows import rows_at
from worker.query.snapshot import TableSnapshot


def take_null_for_its_placeholder(patch: pytest.MonkeyPatch) -> None:
    convert = KeyReader._to_key_batch

    def without_nulls(self: KeyReader, *arguments: Any) -> pa.RecordBatch:
        batch = convert(self, *arguments)
        zeros = pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
        return batch.set_column(batch.schema.get_field_index(NULL_MASK), batch.schema.field(NULL_MASK), zeros)

    patch.setattr(KeyReader, "_to_key_batch", without_nulls)


def other_rows(table: TableSnapshot, places: Places, schema: Schema) -> pa.Table:
    """In place of `rows_at`: the rows of other places."""
    rows = rows_at(table, places, schema)
    return rows.take(list(range(rows.num_rows))[::-1])
