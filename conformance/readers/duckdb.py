"""DuckDB, with extensions of its packages `duckdb-extension-iceberg` and `duckdb-extension-avro`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import duckdb
import duckdb_extensions

from conformance.readers import Row, serve
from conformance.readers.arrow import rows_of


def main() -> None:
    connection = duckdb.connect()
    for extension in ("avro", "iceberg"):
        duckdb_extensions.import_extension(extension, con=connection)
    connection.execute("SET TimeZone = 'UTC'")

    def read(metadata: str, snapshot_id: int | None) -> Iterable[Row]:
        of_snapshot = f", snapshot_from_id => {snapshot_id}" if snapshot_id is not None else ""
        try:
            query = connection.execute(f"SELECT * FROM iceberg_scan(?{of_snapshot})", [metadata])  # noqa: S608
            return rows_of(query.to_arrow_table())
        except (duckdb.FatalException, duckdb.InternalException) as error:
            sys.exit(str(error).strip().splitlines()[0])  # the database can't be used after it

    serve(read)


if __name__ == "__main__":
    main()
