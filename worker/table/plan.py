"""What equality deletes apply to: pure, no I/O, no Spark.

Invariant: an equality delete applies to a data file iff the file's data sequence number is strictly
smaller and the delete's scope contains the file (Iceberg spec, "Scan Planning").
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from worker.io.sorting import Int64Array
from worker.table.files import DataFile, DataFiles, DeleteFile, PartitionKey, SnapshotFiles


@dataclass(frozen=True, slots=True)
class KeySetDeletes:
    """The equality deletes of one key set, and the data files that at least one of them applies to."""

    equality_field_ids: tuple[int, ...]
    delete_files: tuple[DeleteFile, ...]
    data_files: DataFiles

    @property
    def keys_planned(self) -> int:
        return sum(file.record_count for file in self.delete_files)


def in_commits(deletes: Sequence[DeleteFile], limit: int) -> list[Sequence[DeleteFile]]:
    """Equality deletes in groups of at most `limit`.

    Those of a partition lie next to each other, the oldest first, so that few data files are touched twice.
    A path that is live more than once is in one group, which it may make larger: Iceberg removes delete files
    by their paths.
    """
    ordered = sorted(
        deletes, key=lambda f: (f.partition.spec_id, f.partition.values, f.data_sequence_number, f.path)
    )
    by_path: dict[str, list[DeleteFile]] = defaultdict(list)
    for delete in ordered:
        by_path[delete.path].append(delete)
    groups: list[list[DeleteFile]] = [[]]
    for copies in by_path.values():
        if groups[-1] and len(groups[-1]) + len(copies) > limit:
            groups.append([])
        groups[-1] += copies
    return [group for group in groups if group]


def plan_conversion(files: SnapshotFiles, deletes: Iterable[DeleteFile] | None = None) -> list[KeySetDeletes]:
    """Equality deletes by key set, in ascending field ids, with the live files that they apply to.

    deletes: all live ones unless given.
    """
    return [
        KeySetDeletes(ids, tuple(of_key_set), affected_files(files, of_key_set))
        for ids, of_key_set in by_key_set(files.equality_deletes if deletes is None else deletes)
    ]


def by_key_set(deletes: Iterable[DeleteFile]) -> list[tuple[tuple[int, ...], list[DeleteFile]]]:
    """Equality deletes by their ascending field ids, and these in order."""
    found: dict[tuple[int, ...], list[DeleteFile]] = defaultdict(list)
    for delete in deletes:
        found[delete.equality_ids].append(delete)
    return sorted(found.items())


def affected_files(files: SnapshotFiles, deletes: Iterable[DeleteFile]) -> DataFiles:
    """The data files that at least one of the equality deletes applies to."""
    scoped: dict[PartitionKey, int] = defaultdict(int)
    everywhere = 0
    for delete in deletes:
        if delete.partition.spec_id in files.global_spec_ids:
            everywhere = max(everywhere, delete.data_sequence_number)
        else:
            scoped[delete.partition] = max(scoped[delete.partition], delete.data_sequence_number)
    data_files = files.data_files
    newest = np.array([max(everywhere, scoped.get(kind.partition, 0)) for kind in data_files.kinds], np.int64)
    return data_files.where(data_files.data_sequence_numbers < newest[data_files.kind_of])


def balanced(record_counts: Int64Array, groups: int) -> list[slice]:
    """Cuts files, by their row counts, into about `groups` groups of similar sums, in order."""
    ends = np.cumsum(record_counts)
    target = max(1, int(ends[-1]) // groups) if len(ends) else 1
    result = []
    start = rows = 0
    while start < len(ends):
        end = min(len(ends), int(np.searchsorted(ends, rows + target)) + 1)
        result.append(slice(start, end))
        start, rows = end, int(ends[end - 1])
    return result


def applies(delete: DeleteFile, file: DataFile, global_spec_ids: frozenset[int]) -> bool:
    """Whether an equality delete applies to a data file (spec, "Scan Planning")."""
    return file.data_sequence_number < delete.data_sequence_number and (
        delete.partition.spec_id in global_spec_ids or delete.partition == file.partition
    )
