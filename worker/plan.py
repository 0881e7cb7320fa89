"""What a pinned snapshot holds and what its equality deletes apply to: pure, no I/O, no Spark.

Invariant: an equality delete applies to a data file iff the file's data sequence number is strictly
smaller and the delete's scope contains the file (Iceberg spec, "Scan Planning").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class FileContent(StrEnum):
    """Content of a delete file, in the words of Iceberg's JSON serialisation."""

    POSITION_DELETES = "position-deletes"
    EQUALITY_DELETES = "equality-deletes"


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """A partition tuple under its spec: files share a partition iff these are equal.

    `values` is the canonical JSON array of the tuple's single values in spec field order (Iceberg spec,
    Appendix D), `"[]"` when unpartitioned: hashable, storable, and what Iceberg's own parser reads back.
    """

    spec_id: int
    values: str


@dataclass(frozen=True, slots=True)
class DataFile:
    """A live data file of the pinned snapshot; `path` is kept as the manifest wrote it."""

    path: str
    file_format: str  # lower case: parquet, orc, avro
    partition: PartitionKey
    record_count: int
    file_size_bytes: int
    data_sequence_number: int
    encrypted: bool = False


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A live delete file of the pinned snapshot: equality deletes, position deletes or a deletion vector."""

    content: FileContent
    path: str
    file_format: str  # lower case: parquet, orc, avro, puffin
    partition: PartitionKey
    record_count: int
    file_size_bytes: int
    data_sequence_number: int
    equality_ids: tuple[int, ...] = ()  # sorted; empty for position deletes
    referenced_data_file: str | None = None  # also derived from equal file_path bounds
    content_offset: int | None = None
    content_size_bytes: int | None = None
    added_snapshot_id: int | None = None
    encrypted: bool = False

    @property
    def is_deletion_vector(self) -> bool:
        return self.file_format == "puffin"


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """Every live file of one snapshot, read from its manifests.

    `global_spec_ids` are the specs under which an equality delete is global: unpartitioned ones, and
    those whose fields are all void.
    """

    data_files: tuple[DataFile, ...]
    delete_files: tuple[DeleteFile, ...]
    global_spec_ids: frozenset[int]

    @property
    def equality_deletes(self) -> tuple[DeleteFile, ...]:
        return tuple(f for f in self.delete_files if f.content is FileContent.EQUALITY_DELETES)

    @property
    def position_deletes(self) -> tuple[DeleteFile, ...]:
        """Position delete files and deletion vectors."""
        return tuple(f for f in self.delete_files if f.content is FileContent.POSITION_DELETES)


@dataclass(frozen=True, slots=True)
class KeySetDeletes:
    """The equality deletes of one key set, and the data files that at least one of them applies to."""

    equality_field_ids: tuple[int, ...]
    delete_files: tuple[DeleteFile, ...]
    data_files: tuple[DataFile, ...]

    @property
    def keys_planned(self) -> int:
        return sum(file.record_count for file in self.delete_files)

    @property
    def rows_planned(self) -> int:
        return sum(file.record_count for file in self.data_files)


def in_commits(deletes: Sequence[DeleteFile], limit: int) -> list[Sequence[DeleteFile]]:
    """Equality deletes in groups of at most `limit`, 0 for one group of all.

    Those of a partition lie next to each other, the oldest first, so that few data files are touched twice.
    """
    if not limit:
        return [deletes] if deletes else []
    ordered = sorted(
        deletes, key=lambda f: (f.partition.spec_id, f.partition.values, f.data_sequence_number, f.path)
    )
    return [ordered[start : start + limit] for start in range(0, len(ordered), limit)]


def plan_conversion(files: SnapshotFiles, deletes: Iterable[DeleteFile] | None = None) -> list[KeySetDeletes]:
    """Equality deletes by key set, in ascending field ids, with the live files that they apply to.

    deletes: all live ones unless given.
    """
    by_key_set: dict[tuple[int, ...], list[DeleteFile]] = defaultdict(list)
    for delete in files.equality_deletes if deletes is None else deletes:
        by_key_set[delete.equality_ids].append(delete)
    return [
        KeySetDeletes(ids, tuple(of_key_set), affected_files(files, of_key_set))
        for ids, of_key_set in sorted(by_key_set.items())
    ]


def affected_files(files: SnapshotFiles, deletes: Iterable[DeleteFile]) -> tuple[DataFile, ...]:
    """The data files that at least one of the equality deletes applies to."""
    scoped: dict[PartitionKey, int] = defaultdict(int)
    everywhere = 0
    for delete in deletes:
        if delete.partition.spec_id in files.global_spec_ids:
            everywhere = max(everywhere, delete.data_sequence_number)
        else:
            scoped[delete.partition] = max(scoped[delete.partition], delete.data_sequence_number)
    return tuple(
        file
        for file in files.data_files
        if file.data_sequence_number < max(everywhere, scoped.get(file.partition, 0))
    )


def balanced(items: Sequence[T], groups: int, rows_of: Callable[[T], int]) -> list[list[T]]:
    """Files, or what stands for them, in about `groups` groups of similar row counts, in order."""
    target = max(1, sum(map(rows_of, items)) // groups)
    result: list[list[T]] = []
    rows = target
    for item in items:
        if rows >= target:
            result.append([])
            rows = 0
        result[-1].append(item)
        rows += rows_of(item)
    return result


def applies(delete: DeleteFile, file: DataFile, global_spec_ids: frozenset[int]) -> bool:
    """Whether an equality delete applies to a data file (spec, "Scan Planning")."""
    return file.data_sequence_number < delete.data_sequence_number and (
        delete.partition.spec_id in global_spec_ids or delete.partition == file.partition
    )


class Source(StrEnum):
    """Where the rows of a key set's deletes are looked for."""

    INDEX = "index"
    SCAN = "scan"
    INDEX_AND_SCAN = "index_and_scan"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rates:
    """Rows decoded and matched a second by one thread; measured on two cores, see docs/benchmarks.md."""

    index: float
    scan: float


NUMBERS = Rates(index=60e6, scan=20e6)
STRINGS = Rates(index=8e6, scan=8e6)  # as soon as one key column is string or binary
INDEX_FILE_SECONDS = 0.002  # to open one file of the index with its footer at hand
COMMIT_SECONDS = 0.5  # of one RowDelta and its manifests
WRITTEN_FILE_SECONDS = 0.001  # to make one delete file, and to list it in the commit


def conversion_seconds(measured: Mapping[str, float], commits: int, delete_files: int) -> float:
    """How long a conversion is expected to take, after a dry run of it that did all but write and commit.

    measured: seconds of each stage of the dry run. Each commit after the first plans anew.
    """
    if not commits:
        return sum(measured.values())
    return (
        sum(measured.values())
        + (commits - 1) * measured.get("plan", 0.0)
        + commits * COMMIT_SECONDS
        + delete_files * WRITTEN_FILE_SECONDS
    )


def index_is_cheaper(
    keys: int, lookup_rows: int, index_files: int, scan_rows: int, rates: Rates
) -> tuple[bool, str]:
    """Whether to ask the index for files that it covers, rather than scan them; and why, in words.

    lookup_rows: entries of the index that a lookup reads at most.
    """
    lookup_seconds = lookup_rows / rates.index + index_files * INDEX_FILE_SECONDS
    scan_seconds = scan_rows / rates.scan
    # Estimates this small are within each other's error: the index touches fewer bytes of the table.
    cheaper = lookup_seconds <= max(scan_seconds, 0.05)
    return cheaper, (
        f"{keys:,} keys: at most {lookup_rows:,} index rows (about {lookup_seconds:.2f} s)"
        f" against {scan_rows:,} rows of data files (about {scan_seconds:.2f} s)"
    )
