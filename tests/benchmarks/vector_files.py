"""`make bench-vectors`: conversions that touch many data files, with a Puffin file for each vector and with
one for those of a task.

All data files have the same few rows, so that each deleted key is in every one of them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from pyspark.sql import SparkSession

from tests.benchmarks.measure import PeakMemory, mebibytes, timed, with_peak_memory
from tests.benchmarks.page import Part, write_report
from tests.benchmarks.report import machine
from tests.benchmarks.report import table as markdown
from tests.factories import TableBuilder, sqlite_catalog
from tests.jobs import ONE_PER_TASK, Jobs
from worker.spark.jvm import java_object, java_strings, jvm_of
from worker.spark.session import create_spark

ROWS = 8
"""Of each data file."""
_MANY_FILES = Path(__file__).with_name("ManyFiles.java")
_SEPARATE: Mapping[str, Any] = {"convert": {"deletion_vector_files": "one_per_data_file"}}
_WRITE = "deletes"
_COMMIT = "commit"


@dataclass(frozen=True)
class Conversion:
    """What one took, and left on the store."""

    data_files: int
    what: str
    seconds: float
    stages: Mapping[str, float]
    vectors: int
    objects: int
    size_bytes: int
    """Of these."""
    memory: PeakMemory

    @property
    def row(self) -> Sequence[object]:
        return (
            f"{self.data_files:,}",
            self.what,
            f"{self.vectors:,}",
            f"{self.objects:,}",
            mebibytes(self.size_bytes),
            f"{self.seconds:.1f} s",
            f"{self.stages[_WRITE]:.1f} s",
            f"{self.stages[_COMMIT]:.1f} s",
            self.memory,
        )


def measure(spark: SparkSession, directory: Path, files: int) -> Iterator[Conversion]:
    """The first conversion of a table both ways, and one that replaces all of its shared vectors."""
    catalog = sqlite_catalog(spark, f"vectors_{files}", directory)
    table = TableBuilder.create(spark, f"{catalog.name}.db.t", "id bigint", format_version=3)
    _append(table, files)
    jobs = Jobs(spark, catalog, table.identifier, directory / "index")
    _, seconds = timed(lambda: jobs.run("index", key_sets=[["id"]]))
    print(f"{files:,} data files are indexed in {seconds:.0f} s", flush=True)  # noqa: T201
    table.delete_keys([{"id": 0}])
    head = table.snapshot_id
    yield _converted(jobs, table, files, "one per data file", _SEPARATE)
    table.java.manageSnapshots().rollbackTo(head).commit()
    yield _converted(jobs, table, files, "one per task", ONE_PER_TASK)
    table.delete_keys([{"id": 1}])
    yield _converted(jobs, table, files, "one per task, all replaced", ONE_PER_TASK)


def _append(table: TableBuilder, files: int) -> None:
    (described,) = table.data_files([{"id": n} for n in range(ROWS)])
    made = Path(urlsplit(described.path).path)
    places = [made.with_name(f"{number:06d}-{made.name}") for number in range(files)]
    for place in places:
        place.write_bytes(made.read_bytes())  # a file may not have so many names
    java = table.java
    appended = java_object(java, _MANY_FILES, "ManyFiles", java, table.parsed(described))
    appended.append(java_strings(jvm_of(java), [place.as_uri() for place in places]))


def _converted(
    jobs: Jobs, table: TableBuilder, files: int, what: str, policy: Mapping[str, Any]
) -> Conversion:
    folder = Path(urlsplit(table.java.location()).path) / "data"
    before = {entry.name for entry in os.scandir(folder)}
    (outcome, seconds), memory = with_peak_memory(
        jobs.runner.spark, lambda: timed(lambda: jobs.run("convert", policy=policy))
    )
    result = outcome.result
    assert (result["rows_deleted"], result["unconvertible"]) == (files, []), result
    new = [entry for entry in os.scandir(folder) if entry.name not in before]
    return Conversion(
        files,
        what,
        seconds,
        {stage["name"]: stage["seconds"] for stage in result["stages"]},
        result["deletion_vectors_added"],
        len(new),
        sum(entry.stat().st_size for entry in new),
        memory,
    )


def main(
    files: Annotated[list[int], typer.Option(help="data files that are touched; may be repeated")] = [  # noqa: B006 - of a command
        10_000,
        100_000,
    ],
    report: Annotated[Path | None, typer.Option(help="a Markdown file of its own to write")] = None,
) -> None:
    """Convert tables of which each data file gets a vector, with files of their own and with shared ones."""
    spark = create_spark("local[2]", "vectors")
    spark.sparkContext.setLogLevel("ERROR")
    found = []
    for count in files:
        with tempfile.TemporaryDirectory(prefix="icestream-vectors-") as directory:
            for one in measure(spark, Path(directory), count):
                found.append(one)
                print(" | ".join(map(str, one.row)), flush=True)  # noqa: T201
    written = _TEXT.format(
        machine=machine(spark, "pyarrow", "pyiceberg"),
        load=", ".join(f"{average:.1f}" for average in os.getloadavg()),
        rows=ROWS,
        conversions=markdown(
            "data files | Puffin files | vectors | objects | bytes | conversion | writes | commit | memory",
            [one.row for one in found],
        ),
    )
    print(write_report(Part.VECTOR_FILES, written, report))  # noqa: T201


_TEXT = """\
# Vectors in shared files

Made by `make bench-vectors` on {machine}
Load averages of {load} at the end: what is above its own was taken by other programs.

Tables of V3 on the local disk, whose data files have {rows} rows each and an index, and one equality delete
of a key that each of them has: so a conversion writes a deletion vector for every data file,
[a file each or one for a task's](policies.md#puffin-files-that-are-shared). In the third line, each of these
vectors is replaced. `objects` are the files that it wrote, each a request to an object store; `writes` and
`commit` are stages of the conversion. Memory is resident memory at most: of the driver's Python, whose
threads run the tasks, and of its JVM.

{conversions}
"""


if __name__ == "__main__":
    typer.run(main)
