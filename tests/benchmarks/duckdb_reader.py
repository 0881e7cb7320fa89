"""A process that reads one Iceberg table with DuckDB, so that its memory is its own.

    python duckdb_reader.py METADATA_LOCATION ROUNDS LIMIT_SECONDS

Prints the rows seen and the seconds of each round within the limit as JSON, then waits until its input ends.
"""

import json
import sys
import threading
import time

import duckdb
import duckdb_extensions


def main(metadata_location: str, rounds: int, limit_seconds: float) -> None:
    connection = duckdb.connect()
    for extension in ("avro", "iceberg"):
        duckdb_extensions.import_extension(extension, con=connection)
    # DuckDB 1.5.5 takes one deletion vector for another of the same Puffin file out of this cache.
    connection.execute("SET enable_external_file_cache = false")
    seconds, rows = [], []
    limit = threading.Timer(limit_seconds, connection.interrupt)
    limit.start()
    try:
        for _ in range(rounds):
            started = time.perf_counter()
            query = "SELECT count(*), sum(value)::BIGINT FROM iceberg_scan(?)"
            rows.append(connection.execute(query, [metadata_location]).fetchone())
            seconds.append(time.perf_counter() - started)
    except duckdb.InterruptException:
        pass
    limit.cancel()
    print(json.dumps({"rows": rows, "seconds": seconds}), flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
