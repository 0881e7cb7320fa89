"""Types of decimals in files that others wrote."""

from collections.abc import Iterable

import pyarrow as pa


def check_decimals(fields: Iterable[pa.Field]) -> None:
    """Of a file's schema, or of what is in a column. Raises pa.ArrowInvalid.

    Arrow's casts look a power of ten up by the difference of two scales, in a table that they leave: a scale
    that no decimal has gives a wrong value, or ends the process. Its readers bound the precision alone.
    """
    for field in fields:
        check_decimal(field.type)
        check_decimals(field.type.field(at) for at in range(field.type.num_fields))


def check_decimal(kind: pa.DataType) -> None:
    """Raises pa.ArrowInvalid."""
    if pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        raise pa.ArrowInvalid(f"{kind} is no type of decimals: its scale is not from 0 to {kind.precision}")
