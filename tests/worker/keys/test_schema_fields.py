"""Columns of a key, by their names."""

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StructType

from worker.keys.key_set import KeyColumnError
from worker.keys.schema_fields import field_ids_of


def test_columns_that_a_table_has_not_are_named_and_no_others() -> None:
    inner = NestedField(3, "inner", LongType())
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "outer", StructType(inner)))
    assert field_ids_of(schema, ["outer.inner", "id"]) == (1, 3)
    with pytest.raises(KeyColumnError) as caught:
        field_ids_of(schema, ["id", "ID", "inner"])
    assert str(caught.value) == "the table has no column 'ID', 'inner'"
