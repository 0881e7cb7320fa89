"""Files that a rewriting would take: small ones, and data files with many deleted rows. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stores.size_tiers import files_taken
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
    """How many data files a rewriting would take: small ones, and those with many deleted rows."""

    small: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class Rewritable:
    """Of data files, which ones a rewriting takes, as masks."""

    small: npt.NDArray[np.bool_]
    deleted: npt.NDArray[np.bool_]
    """With many deleted rows, whatever their size; none of these is among the small ones."""
    left: npt.NDArray[np.bool_]
    """Small ones that stay as they are."""

    @property
    def numbers(self) -> RewritableFiles:
        return RewritableFiles(int(self.small.sum()), int(self.deleted.sum()))


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
    *,
    min_input_files: int,
    size_ratio: float,
    delete_ratio_threshold: float,
    max_bytes: int,
) -> Rewritable:
    """What Iceberg's planner chooses, without what is left to a later job (stores.size_tiers).

    spec_id: the present one; files of others count as one partition. max_bytes: of files that one job takes.
    """
    data_files = files.data_files
    sizes = data_files.file_sizes_bytes
    deleted = _with_many_deleted(files, delete_ratio_threshold)
    candidates = (4 * sizes < 3 * target_bytes) & ~deleted
    numbers: dict[PartitionKey | None, int] = {}
    of_kind = [
        numbers.setdefault(kind.partition if kind.partition.spec_id == spec_id else None, len(numbers))
        for kind in data_files.kinds
    ]
    partition_of = np.array(of_kind, np.int64)[data_files.kind_of]
    others = np.bincount(partition_of[deleted], minlength=len(numbers))
    bytes_of_others = np.bincount(partition_of[deleted], sizes[deleted], len(numbers))
    small = np.zeros(len(sizes), np.bool_)
    places = np.flatnonzero(candidates)
    places = places[np.lexsort((sizes[places], partition_of[places]))]
    for of_partition in np.split(places, np.flatnonzero(np.diff(partition_of[places])) + 1):
        if not len(of_partition):
            continue
        partition = partition_of[of_partition[0]]
        taken = files_taken(
            ((size, 1) for size in sizes[of_partition].tolist()),
            size_ratio=size_ratio,
            min_files=min_input_files,
            target_bytes=target_bytes,
            max_bytes=max_bytes,
            others=(bytes_of_others[partition], int(others[partition])),
        )
        small[of_partition[:taken]] = True
    return Rewritable(small, deleted, candidates & ~small)


def _with_many_deleted(files: SnapshotFiles, threshold: float) -> npt.NDArray[np.bool_]:
    """By deletes of which each names one data file."""
    rows: dict[str, int] = defaultdict(int)
    deletes = files.position_deletes
    deletes = deletes.where(deletes.are_file_scoped)
    for path, count in zip(deletes.named(), deletes.record_counts.tolist(), strict=True):
        rows[path] += count
    touched = files.data_files.with_paths(rows.keys())
    many = {file.path for file in touched if rows[file.path] >= threshold * file.record_count}
    return files.data_files.are_named(many)


def rewritable_deletes(files: SnapshotFiles, target_bytes: int, min_input_files: int) -> int:
    """How many position delete files are small, among enough of their partition, but for each that is the
    only one of its data file."""
    deletes = files.position_deletes
    small = list(deletes.where(~deletes.are_vectors & (4 * deletes.file_sizes_bytes < 3 * target_bytes)))
    named = {one.referenced_data_file for one in small if one.referenced_data_file is not None}
    live = {file.path for file in files.data_files.with_paths(named)}
    of_file = Counter(one.referenced_data_file for one in small)
    in_partition = Counter(one.partition for one in small)
    return sum(
        in_partition[one.partition] >= max(min_input_files, 2)
        and not (one.referenced_data_file in live and of_file[one.referenced_data_file] == 1)
        for one in small
    )
