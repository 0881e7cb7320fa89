"""Planning of a large table that is made of metadata alone: manifests name files that are not there.

`python -m tests.benchmarks.planning` prints the section of the report, of 100,000 data files or as many as
`--data-files` says.
"""

from __future__ import annotations

import gc
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import fastavro
import pyarrow as pa
import typer
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFileContent,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from tests.benchmarks.measure import mebibytes, timed
from worker.index.dictionary import DICTIONARY_SCHEMA, FileDictionary, uncovered_files
from worker.io.paths import MEMORY_BYTES
from worker.table.files import SnapshotFiles
from worker.table.manifests import read_snapshot_files
from worker.table.plan import plan_conversion

FILES_PER_MANIFEST = 10_000
PARTITIONS = 1_000
ROWS_PER_FILE = 100_000
DELETES_PER_FILE = 10_000
COLUMNS = 10
"""With bounds in the manifests, as Iceberg writes them and planning skips."""

T = TypeVar("T")

_SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "day", DateType(), required=True),
    *(NestedField(number, f"c{number}", StringType()) for number in range(3, COLUMNS + 1)),
)
_SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))


@dataclass(frozen=True, slots=True)
class Planning:
    """What planning took. manifest_bytes: of all manifests.

    files_bytes: of memory for the live files, which stay while a job runs; dictionary_bytes: for the index's
    list of files; peak_bytes: of Python's and numpy's for all of it at most.
    """

    data_files: int
    delete_files: int
    manifests: int
    manifest_bytes: int
    manifests_seconds: float
    plan_seconds: float
    dictionary_seconds: float
    coverage_seconds: float
    files_bytes: int
    dictionary_bytes: int
    peak_bytes: int


def make_snapshot(directory: Path, data_files: int, delete_files: int) -> tuple[TableMetadata, Snapshot]:
    """A table with that many data files, and younger equality deletes in all of its partitions."""
    partitions = min(PARTITIONS, delete_files)
    manifests = [
        *_manifests(directory, data_files, partitions, DataFileContent.DATA),
        *_manifests(directory, delete_files, partitions, DataFileContent.EQUALITY_DELETES),
    ]
    location = directory / "list.avro"
    _write(location, MANIFEST_LIST_FILE_SCHEMAS[2], "manifest_file", manifests)
    snapshot = Snapshot(
        snapshot_id=1,
        sequence_number=2,
        timestamp_ms=0,
        manifest_list=str(location),
        summary=Summary(Operation.APPEND, **{"total-data-files": str(data_files)}),
        schema_id=0,
    )
    metadata = TableMetadataV2(
        location=str(directory),
        last_updated_ms=0,
        last_column_id=COLUMNS,
        schemas=[_SCHEMA],
        current_schema_id=0,
        partition_specs=[_SPEC],
        default_spec_id=0,
        last_partition_id=1000,
        last_sequence_number=2,
        snapshots=[snapshot],
        current_snapshot_id=1,
    )
    return metadata, snapshot


def _manifests(
    directory: Path, files: int, partitions: int, content: DataFileContent
) -> Iterator[dict[str, Any]]:
    is_data = content is DataFileContent.DATA
    schema = manifest_entry_schema_with_data_file(
        2, data_file_with_partition(_SPEC.partition_type(_SCHEMA), 2)
    )
    for start in range(0, files, FILES_PER_MANIFEST):
        numbers = range(start, min(files, start + FILES_PER_MANIFEST))
        path = directory / f"{content.name.lower()}-{start}.avro"
        _write(
            path,
            schema,
            "manifest_entry",
            [_entry(number, number % partitions, content) for number in numbers],
        )
        yield {
            "manifest_path": str(path),
            "manifest_length": path.stat().st_size,
            "partition_spec_id": 0,
            "content": 0 if is_data else 1,
            "sequence_number": 1 if is_data else 2,
            "min_sequence_number": 1 if is_data else 2,
            "added_snapshot_id": 1,
            "added_files_count": len(numbers),
            "existing_files_count": 0,
            "deleted_files_count": 0,
            "added_rows_count": 0,
            "existing_rows_count": 0,
            "deleted_rows_count": 0,
        }


def _entry(number: int, day: int, content: DataFileContent) -> dict[str, Any]:
    is_data = content is DataFileContent.DATA
    bounds = [{"key": column, "value": f"{number:016d}".encode()} for column in range(1, COLUMNS + 1)]
    counts = [{"key": column, "value": number} for column in range(1, COLUMNS + 1)]
    file = {
        "content": content.value,
        # As Iceberg's writers name them.
        "file_path": f"s3://lake/warehouse/sales.db/orders/data/day={day:010d}/{number:05d}-4711-"
        f"0c9f6f0e-2f6b-4c39-8a1e-5b0e4d{number:06d}-00001.parquet",
        "file_format": "PARQUET",
        "partition": {"day": day},
        "record_count": ROWS_PER_FILE if is_data else DELETES_PER_FILE,
        "file_size_in_bytes": 2_000_000,
        "value_counts": counts,
        "null_value_counts": counts,
        "lower_bounds": bounds,
        "upper_bounds": bounds,
        "equality_ids": None if is_data else [1],
    }
    return {"status": 1, "snapshot_id": 1, "sequence_number": 1 if is_data else 2, "data_file": file}


def _write(path: Path, schema: Schema, name: str, records: list[dict[str, Any]]) -> None:
    avro: Any = AvroSchemaConversion().iceberg_to_avro(schema, name)
    for field in next((of["type"]["fields"] for of in avro["fields"] if of["name"] == "data_file"), []):
        if field["name"] == "equality_ids":  # which PyIceberg takes for longs
            field["type"][1]["items"] = "int"
    with path.open("wb") as output:
        fastavro.writer(output, fastavro.parse_schema(avro), records, codec="deflate")


def measure_planning(data_files: int = 100_000, delete_files: int = 10_000) -> Planning:
    """Plans a conversion of such a table whose index covers every data file."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        metadata, snapshot = make_snapshot(directory, data_files, delete_files)
        manifests = list(directory.glob("*-*.avro"))
        io = PyArrowFileIO()

        def read() -> SnapshotFiles:
            return read_snapshot_files(metadata, snapshot, io)

        files, manifests_seconds = timed(read)
        planned, plan_seconds = timed(lambda: plan_conversion(files))
        assert len(planned[0].data_files) == data_files
        assert len(planned[0].delete_files) == delete_files
        rows = _dictionary_rows(files)
        dictionary, dictionary_seconds = timed(lambda: FileDictionary([rows]))
        uncovered, coverage_seconds = timed(lambda: uncovered_files(files.data_files, dictionary))
        assert not uncovered
        del files, planned, dictionary

        # Once more: what counts memory takes time.
        tracemalloc.start()
        files, files_bytes = held(read)
        _planned, _ = held(lambda: plan_conversion(files))
        dictionary, dictionary_bytes = held(lambda: FileDictionary([rows]))
        uncovered_files(files.data_files, dictionary)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return Planning(
            data_files,
            delete_files,
            len(manifests),
            sum(path.stat().st_size for path in manifests),
            manifests_seconds,
            plan_seconds,
            dictionary_seconds,
            coverage_seconds,
            files_bytes,
            dictionary_bytes,
            peak,
        )


def _dictionary_rows(files: SnapshotFiles) -> pa.Table:
    """What the index of these data files would list."""
    rows = [
        {
            "base_address": number * ROWS_PER_FILE,
            "path": file.path,
            "record_count": file.record_count,
            "file_format": file.file_format,
            "spec_id": file.partition.spec_id,
            "partition_values": file.partition.values,
            "partition_id": number % PARTITIONS * ROWS_PER_FILE,
            "data_sequence_number": 1,
            "indexed_at_millis": 0,
        }
        for number, file in enumerate(files.data_files)
    ]
    return pa.Table.from_pylist(rows, DICTIONARY_SCHEMA)


def held(work: Callable[[], T]) -> tuple[T, int]:
    def memory() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] + int(pa.total_allocated_bytes())

    before = memory()
    result = work()
    return result, memory() - before


def section_of(measured: Planning) -> list[str]:
    """The report's words about it."""
    of_files = measured.files_bytes / (measured.data_files + measured.delete_files)
    return [
        "## Planning",
        f"A table of metadata alone: {measured.data_files:,} data files and {measured.delete_files:,}"
        f" equality delete files in {measured.manifests:,} manifests ({mebibytes(measured.manifest_bytes)})"
        f" on a local disk, {PARTITIONS:,} partitions, bounds of {COLUMNS} columns. An index covers all data"
        " files. Memory is what stays while a job runs, of Python, numpy and Arrow; the text of paths lies in"
        f" a temporary file from {mebibytes(MEMORY_BYTES)} on.",
        "| step | seconds | memory | per file |\n| --- | ---: | ---: | ---: |\n"
        f"| read the live files from the manifests | {measured.manifests_seconds:.1f}"
        f" | {mebibytes(measured.files_bytes)} | {of_files:,.0f} B |\n"
        f"| find what the deletes apply to | {measured.plan_seconds:.2f} | | |\n"
        f"| open the index's list of files | {measured.dictionary_seconds:.2f}"
        f" | {mebibytes(measured.dictionary_bytes)}"
        f" | {measured.dictionary_bytes / measured.data_files:,.0f} B |\n"
        f"| find which data files are in it | {measured.coverage_seconds:.2f} | | |",
        f"Python's memory comes to {mebibytes(measured.peak_bytes)} at most.",
    ]


def main(data_files: int = 100_000) -> None:
    """Print the section of a table of so many, and a tenth as many equality delete files."""
    print("\n\n".join(section_of(measure_planning(data_files, data_files // 10))))  # noqa: T201


if __name__ == "__main__":
    typer.run(main)
