"""`make bench-writes`: rows written by key over HTTP, through the service and a worker, beside the MERGE of
Spark and of DuckDB and the upsert of PyIceberg on the same rows.

Each write begins at the table as it was loaded, and is held to the rows that it should leave.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import duckdb
import duckdb_extensions
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import typer
from pyiceberg.catalog.sql import SqlCatalog

from icestream import Client
from icestream.client import Table
from tests.benchmarks.datasets import FILE_ROWS, Dataset, Kind
from tests.benchmarks.measure import Figure, mebibytes, timed
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.report import machine
from tests.benchmarks.report import table as markdown
from tests.benchmarks.servers import KEY, served
from tests.rest_catalog import running_rest_catalog
from worker.spark.session import create_spark

_WRITTEN = 1_000_000_000_000
"""At least the value of a row that a change has written, and more than that of any other."""


@dataclass(frozen=True)
class Change:
    """Numbers of rows that one write updates, deletes and adds."""

    updated: npt.NDArray[np.int64]
    deleted: npt.NDArray[np.int64]
    inserted: npt.NDArray[np.int64]

    @property
    def rows(self) -> pa.Table:
        ids = np.concatenate([self.updated, self.inserted])
        return pa.table({"id": ids, "value": ids + _WRITTEN, "note": np.full(len(ids), "written")})

    @property
    def keys(self) -> pa.Table:
        return pa.table({"id": self.deleted})


@dataclass(frozen=True)
class Size:
    """Of a change."""

    what: str
    updated: int
    deleted: int = 0
    inserted: int = 0

    def change(self, rows: int, number: int) -> Change:
        """Other rows with each `number`, of a table of so many."""
        there = np.random.default_rng([7, number]).choice(rows, self.updated + self.deleted, replace=False)
        return Change(there[: self.updated], there[self.updated :], rows + np.arange(self.inserted))


SMALL = (
    Size("1,000 rows deleted", 0, deleted=1_000),
    Size("1,000 rows upserted", 1_000),
    Size("1,000 rows added, 500 updated, 500 deleted", 500, deleted=500, inserted=1_000),
)
PARTITIONS = (1, 20, 200)
PARTITION_SIZES = (Size("10 rows upserted", 10), Size("1,000 rows upserted", 1_000))
LARGE = Size("1,000,000 rows upserted", 500_000, inserted=500_000)
Write = Callable[[Change], object]


def measure(
    dataset: Dataset, sizes: Sequence[Size], rounds: int, name: str, write: Write, *, warms_up: bool = True
) -> list[list[object]]:
    """Seconds of each size, every round at the table as it was loaded."""
    lines: list[list[object]] = []
    for size in sizes:
        seconds = []
        for number in range(0 if warms_up else 1, rounds + 1):
            change = size.change(dataset.rows, number)
            _, took = timed(partial(write, change))
            check(dataset, change)
            dataset.rewind()
            seconds.append(took)
        lines.append([size.what, name, rounds, Figure(tuple(seconds[-rounds:]))])
    return lines


def check(dataset: Dataset, change: Change) -> None:
    """The table has the rows of the change, and of the others those that it left."""
    written = change.rows["value"].to_numpy()
    (found,) = dataset.spark.sql(
        f"SELECT count(*) AS rows, count_if(value >= {_WRITTEN}) AS written, sum(value) AS total,"
        f" sum(if(value >= {_WRITTEN}, value, 0)) AS total_written FROM {dataset.table.identifier}"
    ).collect()
    assert found["rows"] == dataset.rows + len(change.inserted) - len(change.deleted)
    assert (found["written"], found["total_written"]) == (len(written), int(written.sum()))
    gone = ", ".join(map(str, np.concatenate([change.updated, change.deleted])[:500].tolist()))
    left = f"SELECT 1 FROM {dataset.table.identifier} WHERE value < {_WRITTEN} AND id IN ({gone})"
    assert dataset.spark.sql(left).count() == 0


@contextmanager
def written_by(dataset: Dataset) -> Iterator[tuple[Write, Callable[[], int]]]:
    """What writes a change over HTTP and waits until it is committed; and the memory of the worker and its
    JVM at most, in bytes."""
    with served(dataset) as service, Client(service.url, KEY) as client:
        table = client.table(f"{dataset.catalog.name}.db.t")
        staging = (service.directory / "staging").as_uri()
        yield partial(_write, table, staging), lambda: service.worker_memory


def _write(table: Table, staging: str, change: Change) -> None:
    if change.rows.num_rows:
        table.upsert(change.rows, key_columns=["id"], staging=staging)
    if change.keys.num_rows:
        table.delete(change.keys, key_columns=["id"], staging=staging)


def merge(dataset: Dataset, mode: str) -> Write:
    """Spark's own statement, all changes in one."""
    spark, table = dataset.spark, dataset.table.identifier

    def write(change: Change) -> None:
        gone = change.keys.append_column("value", pa.nulls(len(change.deleted), pa.int64()))
        gone = gone.append_column("note", pa.nulls(len(change.deleted), pa.string()))
        spark.createDataFrame(pa.concat_tables([change.rows, gone])).createOrReplaceTempView("changes")
        spark.sql(
            f"MERGE INTO {table} t USING changes c ON t.id = c.id"
            " WHEN MATCHED AND c.note IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET *"
            " WHEN NOT MATCHED THEN INSERT *"
        )

    modes = ", ".join(f"'write.{kind}.mode' = '{mode}'" for kind in ("merge", "update", "delete"))
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({modes})")
    return write


def upsert_by_pyiceberg(dataset: Dataset) -> Write:
    def write(change: Change) -> None:
        with SqlCatalog(dataset.catalog.name, **dataset.catalog.properties) as catalog:
            catalog.load_table("db.t").upsert(change.rows, join_cols=["id"])

    return write


@contextmanager
def merged_by_duckdb(dataset: Dataset) -> Iterator[Write]:
    """DuckDB writes to tables of REST catalogs alone: one on loopback is in front of the table's own."""
    catalog = SqlCatalog(dataset.catalog.name, **dataset.catalog.properties)
    with catalog, running_rest_catalog(catalog) as rest, duckdb.connect() as connection:
        for extension in ("httpfs", "avro", "iceberg"):
            duckdb_extensions.import_extension(extension, con=connection)
        connection.execute(f"ATTACH 'lake' (TYPE iceberg, ENDPOINT '{rest.url}', AUTHORIZATION_TYPE 'none')")

        def write(change: Change) -> None:
            connection.register("changes", change.rows)
            connection.register("gone", change.keys)
            connection.execute("BEGIN")
            connection.execute(
                "MERGE INTO lake.db.t t USING changes c ON t.id = c.id"
                " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
            if len(change.deleted):  # a MERGE of DuckDB's updates or deletes, but not both
                connection.execute("DELETE FROM lake.db.t WHERE id IN (SELECT id FROM gone)")
            connection.execute("COMMIT")

        yield write


def in_partitions(dataset: Dataset, directory: Path) -> list[list[object]]:
    """Seconds by the number of partitions that the rows of the table lie in, by their ids."""
    lines: list[list[object]] = []
    spark = dataset.spark
    for partitions in PARTITIONS:
        place = directory / f"{dataset.kind}-{dataset.rows}-in-{partitions}"
        there = Dataset(spark, place, dataset.kind, dataset.rows, partitions=partitions)
        there.fill_partitions(spark.table(dataset.table.identifier))
        with written_by(there) as (write, _):
            what = f"in {partitions} partitions"
            lines += measure(there, PARTITION_SIZES, 1, f"Icestream, {what}", write)
    return lines


def main(
    rows: Annotated[int, typer.Option(help="of the table")] = 50_000_000,
    rounds: Annotated[int, typer.Option(help="of every measurement of ours; others have one")] = 5,
    directory: Annotated[Path, typer.Option(help="where tables are kept")] = Path("build/benchmarks"),
    alone: Annotated[bool, typer.Option(help="without others, for a part of the page of its own")] = False,
) -> None:
    """Write rows by key through the service; and by others, who look for them in the table."""
    spark = create_spark("local[*]", "writes")
    spark.sparkContext.setLogLevel("ERROR")
    kind = Kind.INT64
    dataset = Dataset(spark, directory.resolve() / f"{kind}-{rows}-v3", kind, rows)
    dataset.load(lambda what: print(what, file=sys.stderr))  # noqa: T201
    with written_by(dataset) as (write, memory):
        lines = measure(dataset, SMALL, rounds, "Icestream", write)
        told = f"The worker and its JVM took {mebibytes(memory())} of memory (RSS) at most."
        large = measure(dataset, [LARGE], 1, "Icestream", write)
        told += f" With a million rows {mebibytes(memory())}."
    if not alone:
        for mode in ("merge-on-read", "copy-on-write"):
            write = merge(dataset, mode)
            lines += measure(dataset, SMALL[1:], 1, f"Spark's MERGE, {mode}", write)
        large += measure(dataset, [LARGE], 1, "Spark's MERGE, copy-on-write", write, warms_up=False)
        twin = dataset.twin
        write = upsert_by_pyiceberg(twin)
        lines += measure(twin, SMALL[1:2], 1, "PyIceberg's upsert (V2)", write, warms_up=False)
        with merged_by_duckdb(twin) as write:
            lines += measure(twin, SMALL[1:], 1, "DuckDB's MERGE (V2)", write)
    partitioned = in_partitions(dataset, directory.resolve())
    text = _TEXT.format(
        machine=machine(spark, "pyspark", "pyarrow", "pyiceberg", "duckdb"),
        rows=rows,
        files=-(-rows // FILE_ROWS),
        told=told,
        table=markdown("written | by | rounds | median (least-most)", lines + large),
        partitioned=markdown("written | by | rounds | median (least-most)", partitioned),
        others="" if alone else _OTHERS,
    )
    spark.stop()
    write_part(Part.WRITES_ALONE if alone else Part.WRITES, text)
    print(text)  # noqa: T201


_TEXT = """\
# Writes by key

Made by `make bench-writes` on {machine}

{rows:,} rows of three columns (V3) with dense int64 keys in random order over {files} data files lie on a
local disk, with an index. A client of `icestream` sends rows over HTTP on loopback and waits until the job
has ended; service, worker and client share the two cores. What is deleted beside an upsert is a write of its
own. Each round began at the table as it was loaded, and the rows that it left were counted and summed up.

{table}

{told}

Of a table of as many rows in partitions by the bucket of the id, which an index covers:

{partitioned}
{others}"""
_OTHERS = "DuckDB writes to tables of REST catalogs alone: one on loopback is in front of the table's own.\n"


if __name__ == "__main__":
    typer.run(main)
