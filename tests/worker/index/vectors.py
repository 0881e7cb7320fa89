"""The test vectors of docs/index-format.md: an index that a job has built, and what it must say.

`python -m tests.worker.index.vectors` writes them anew, for a new version of the format.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
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
REGIONS = ("eu", "us")
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
    return [{"id": i, "region": REGIONS[i % 2], **key} for i, key in enumerate(keys)]


def of_region(region: str) -> list[Row]:
    return [row for row in rows() if row["region"] == region]


def write_table(folder: Path) -> Iterator[str]:
    """Yields the place of its metadata: of the table as it is first, and once a data file came back."""
    table = Table(folder, folder.as_uri(), "index-vectors", 3)
    columns = (field(FIRST_ID + at, name, kind) for at, (name, kind) in enumerate(TYPES.items()))
    table.set_schema(field(1, "id", "long"), field(2, "region", "string"), *columns)
    table.set_spec((2, "region", "identity", "string"))
    for region in REGIONS:
        file = table.data(*of_region(region))
        table.commit(file)
    yield table.write_metadata("00001-table.metadata.json")
    table.commit(removed=[file])
    new = table.data(*reversed(file.rows))
    shutil.move(folder / "data" / Path(new.path).name, folder / "data" / Path(file.path).name)
    table.commit(replace(new, path=file.path))
    yield table.write_metadata("00002-table.metadata.json")


def build(spark: SparkSession, catalog: Catalog, folder: Path) -> Path:
    """The warehouse of an index that a job builds of the table."""
    name = f"{catalog.name}.vectors.t"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog.name}.vectors")
    jobs = Jobs(spark, catalog, name, folder / "index")
    for location in write_table(folder / "table"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")  # only from the catalog
        spark.sql(f"CALL {catalog.name}.system.register_table('vectors.t', '{location}')")
        jobs.run("index", key_sets=KEY_SETS)
    return folder / "index"


def expected(names: list[str]) -> Iterator[dict[str, Any]]:
    """By the page's table of types, each row of the index: its place and its key. Bytes are in hex."""
    eu, us = map(of_region, REGIONS)
    for region, number, is_live, of_file in (
        ("eu", 1, True, eu),
        ("us", 2, False, us),
        ("us", 4, True, us[::-1]),
    ):
        for position, row in enumerate(of_file):
            yield {
                "region": region,
                "position": position,
                "spec_id": 0,
                "partition_values": f'["{region}"]',
                "data_sequence_number": number,
                "live": is_live,
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
