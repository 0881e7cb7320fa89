"""The test vectors of docs/index-format.md: an index that a job has built, and what it must say.

`python -m tests.worker.index.vectors` writes them anew, for a new version of the format.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

from pyspark.sql import SparkSession

from conformance.table import Table
from conformance.types import EPOCH, Row, field
from tests.factories import Catalog, spark_session, sqlite_catalog
from tests.jobs import Jobs

FOLDER = Path(__file__).parents[3] / "docs" / "index-vectors"
TYPES = {
    "i": "int",
    "l": "long",
    "d": "date",
    "t": "time",
    "ts": "timestamp",
    "tz": "timestamptz",
    "ns": "timestamp_ns",
    "n": "decimal(9, 2)",
    "s": "string",
    "b": "binary",
    "f": "fixed[4]",
    "u": "uuid",
    "o": "boolean",
}
FIRST_ID = 3
KEY_SETS = (["id"], list(TYPES))
_ZERO: dict[str, Any] = dict(
    zip(
        TYPES,
        (
            *(0, 0, date(1970, 1, 1), time(0), EPOCH, EPOCH.replace(tzinfo=UTC), 0, Decimal(0)),
            *("", b"", bytes(4), UUID(int=0), False),
        ),
        strict=True,
    )
)
_SAMPLE: dict[str, Any] = dict(
    zip(
        TYPES,
        (
            *(-(2**31), 2**63 - 1, date(1969, 12, 31), time(23, 59, 59, 999_999)),
            *(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), -1, Decimal("-0.01")),  # noqa: DTZ001
            *("\U0001f600\u00e9", b"\x00\xff", b"\xff\x00\x01\x80", UUID(int=1 << 127 | 1), True),
        ),
        strict=True,
    )
)


def rows() -> list[Row]:
    """A null in every column and in all, zeros that a null may be taken for, and values at the ends of some
    types."""
    nothing: dict[str, Any] = dict.fromkeys(TYPES)
    keys = [_ZERO, _SAMPLE, nothing, *({**_SAMPLE, name: None} for name in TYPES)]
    return [{"id": i, "region": ("eu", "us")[i % 2], **key} for i, key in enumerate(keys)]


def write_table(folder: Path) -> str:
    """Returns the place of its metadata."""
    table = Table(folder, folder.as_uri(), "index-vectors", 3)
    columns = (field(FIRST_ID + at, name, kind) for at, (name, kind) in enumerate(TYPES.items()))
    table.set_schema(field(1, "id", "long"), field(2, "region", "string"), *columns)
    table.set_spec((2, "region", "identity", "string"))
    for region in ("eu", "us"):
        table.commit(table.data(*(row for row in rows() if row["region"] == region)))
    return table.write_metadata("00001-table.metadata.json")


def build(spark: SparkSession, catalog: Catalog, folder: Path) -> Path:
    """The warehouse of an index that a job builds of the table."""
    location = write_table(folder / "table")
    name = f"{catalog.name}.vectors.t"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog.name}.vectors")
    spark.sql(f"CALL {catalog.name}.system.register_table('vectors.t', '{location}')")
    Jobs(spark, catalog, name, folder / "index").run("index", key_sets=KEY_SETS)
    return folder / "index"


def expected(names: list[str]) -> Iterator[dict[str, Any]]:
    """By the page's table of types, each row of the table: its place and its key. Bytes are in hex."""
    for region in ("eu", "us"):
        for position, row in enumerate(one for one in rows() if one["region"] == region):
            yield {
                "region": region,
                "position": position,
                "partition_values": f'["{region}"]',
                "key": [in_index(row[name]) for name in names],
            }


def in_index(value: Any) -> Any:
    match value:
        case datetime():
            since = value.replace(tzinfo=None) - EPOCH
            return (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds
        case date():
            return (value - date(1970, 1, 1)).days
        case time():
            return (value.hour * 3_600 + value.minute * 60 + value.second) * 10**6 + value.microsecond
        case UUID():
            return value.hex
        case bytes():
            return value.hex()
        case Decimal():
            return f"{value:.2f}"
    return value


def main() -> None:
    spark = spark_session()
    with TemporaryDirectory() as directory:
        folder = Path(directory)
        built = build(spark, sqlite_catalog(spark, "local", folder / "catalog"), folder)
        shutil.rmtree(FOLDER, ignore_errors=True)
        shutil.copytree(built, FOLDER / "warehouse")
    spark.stop()
    write_expected()


def write_expected() -> None:
    """A file for each key set, with a row a line."""
    for names in KEY_SETS:
        lines = "".join(json.dumps(row) + "\n" for row in expected(names))
        (FOLDER / f"{'_'.join(names)}.jsonl").write_text(lines)


if __name__ == "__main__":
    main()
