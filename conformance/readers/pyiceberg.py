"""PyIceberg."""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable

from conformance.readers import Row, serve
from conformance.readers.arrow import rows_of


def read(metadata: str, snapshot_id: int | None) -> Iterable[Row]:
    table = StaticTable.from_metadata(metadata, PyArrowFileIO().properties)
    return rows_of(table.scan(snapshot_id=snapshot_id).to_arrow())


if __name__ == "__main__":
    serve(read)
