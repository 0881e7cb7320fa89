"""What a pinned snapshot holds and what its equality deletes apply to: pure, no I/O, no Spark.

Invariant: an equality delete applies to a data file iff the file's data sequence number is strictly
smaller and the delete's scope contains the file (Iceberg spec, "Scan Planning").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


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
