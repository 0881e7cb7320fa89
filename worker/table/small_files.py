"""Files that a rewriting would take: small ones, and data files with many deleted rows. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from worker.io.sorting import Int64Array
from worker.process.errors import JobError
from worker.table.files import PartitionKey, SnapshotFiles

_TARGET = "write.target-file-size-bytes"
_TARGET_BYTES = 512 * 1024 * 1024
_TARGET_OF_DELETES = "write.delete.target-file-size-bytes"
_TARGET_OF_DELETES_BYTES = 64 * 1024 * 1024
LEAST_BYTES = 1024 * 1024
"""Of a data file that one asks for: a table that wants tiny ones would get as many as it likes."""


class FileSizeError(JobError):
    code = "file_size_unreadable"
    title = "The table does not say how large its files should be"
    remedy = f"Set the table's property to a number of bytes from {LEAST_BYTES:,} on, or remove it."


class RewritableFiles(NamedTuple):
    """How many data files are small, among enough of their partition; and have many deleted rows."""

    small: int = 0
    deleted: int = 0


def number_of_bytes(text: str) -> int | None:
    """A number above 0 that Java takes for a long; None for anything else."""
    if len(text) > 19 or not text.isascii() or not text.isdigit():  # Python takes no number of 5,000 digits
        return None
    return int(text) if 0 < int(text) < 1 << 63 else None


def target_file_bytes(properties: Mapping[str, str]) -> int:
    """Of data files. Raises FileSizeError."""
    return _size_in(properties, _TARGET, _TARGET_BYTES)


def target_delete_file_bytes(properties: Mapping[str, str]) -> int:
    """Raises FileSizeError."""
    return _size_in(properties, _TARGET_OF_DELETES, _TARGET_OF_DELETES_BYTES)


def _size_in(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, str(default))
    size = number_of_bytes(text)
    if size is None or size < LEAST_BYTES:
        raise FileSizeError(f"its property {name} is {text[:100]!r}")
    return size


def rewritable_files(
    files: SnapshotFiles,
    spec_id: int,
    target_bytes: int,
    min_input_files: int,
    delete_ratio_threshold: float,
    max_bytes: int,
) -> RewritableFiles:
    """As Iceberg's planner chooses them. spec_id: the present one; files of others count as one partition.
    max_bytes: of files that one job takes."""
    data_files = files.data_files
    numbers: dict[PartitionKey | None, int] = {}
    of_kind = [
        numbers.setdefault(kind.partition if kind.partition.spec_id == spec_id else None, len(numbers))
        for kind in data_files.kinds
    ]
    is_small = 4 * data_files.file_sizes_bytes < 3 * target_bytes
    partitions = np.array(of_kind, np.int64)[data_files.kind_of[is_small]]
    in_partition = np.bincount(partitions) if len(partitions) else np.empty(0, np.int64)
    is_enough = in_partition >= max(min_input_files, 2)
    # Of fewer, the planner takes those that are enough for a whole file.
    together = max(min_input_files, 2) if max_bytes <= target_bytes else 2
    is_enough &= _sums_of_smallest(data_files.file_sizes_bytes[is_small], partitions, together) <= max_bytes
    small = int(in_partition[is_enough].sum())
    deleted: dict[str, int] = defaultdict(int)
    for one in files.position_deletes:
        if one.referenced_data_file is not None:
            deleted[one.referenced_data_file] += one.record_count
    touched = data_files.with_paths(deleted.keys())
    many = sum(deleted[file.path] >= delete_ratio_threshold * file.record_count for file in touched)
    return RewritableFiles(small, many)


def _sums_of_smallest(sizes: Int64Array, partitions: Int64Array, number: int) -> Int64Array:
    """Of each partition up to the highest."""
    order = np.lexsort((sizes, partitions))
    ordered = partitions[order]
    is_smallest = np.arange(len(order)) - np.searchsorted(ordered, ordered) < number
    sums = np.zeros(ordered[-1] + 1 if len(ordered) else 0, np.int64)
    np.add.at(sums, ordered[is_smallest], sizes[order][is_smallest])
    return sums


def rewritable_deletes(files: SnapshotFiles, target_bytes: int, min_input_files: int) -> int:
    """How many position delete files are small, among enough of their partition, but for each that is the
    only one of its data file."""
    small = [
        one
        for one in files.position_deletes
        if not one.is_deletion_vector and 4 * one.file_size_bytes < 3 * target_bytes
    ]
    named = {one.referenced_data_file for one in small if one.referenced_data_file is not None}
    live = {file.path for file in files.data_files.with_paths(named)}
    of_file = Counter(one.referenced_data_file for one in small)
    in_partition = Counter(one.partition for one in small)
    return sum(
        in_partition[one.partition] >= max(min_input_files, 2)
        and not (one.referenced_data_file in live and of_file[one.referenced_data_file] == 1)
        for one in small
    )
