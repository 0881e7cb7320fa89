"""Staged equality deletes of partitions, and what came to the target under other partition specs since.

Iceberg confines such a delete to data files of its own spec. It would spare whatever was written or compacted
meanwhile under a new one, and the upsert that it belongs to would leave a second row of its key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from operator import not_

from pyiceberg.manifest import ManifestContent
from pyiceberg.transforms import VoidTransform

from staging.history import BRANCH, History, properties
from worker.attempt.pinned_table import PinnedTable
from worker.table.files import DataFile, DataFiles, DeleteFile
from worker.table.manifest_values import read_file_sequence_numbers
from worker.table.manifests import read_manifest_list


@dataclass(frozen=True, slots=True)
class LaterFiles:
    """Data files of one spec that came after the same deletes of other specs were staged: these apply by key.

    exact: deletes whose keys have all columns of their spec, so that a row with such a key is in their
    partition. unclear: the others, of which only rows can tell that no row has their keys.
    """

    data_files: DataFiles
    exact: tuple[DeleteFile, ...]
    unclear: tuple[DeleteFile, ...]

    def seen_by(self, table: PinnedTable) -> PinnedTable:
        """The table with these files alone, to which the deletes apply by key."""
        spec_ids = {one.partition.spec_id for one in (*self.exact, *self.unclear)}
        global_spec_ids = table.files.global_spec_ids | spec_ids
        return replace(
            table, files=replace(table.files, data_files=self.data_files, global_spec_ids=global_spec_ids)
        )


def later_files(
    table: PinnedTable, source: str, deletes: Sequence[DeleteFile], offset: int
) -> Iterator[LaterFiles]:
    """table: the target. source: the staging branch; what was published of it came in its own order.

    offset: by which the sequence numbers of the deletes are higher than on that branch.
    Raises as `read_snapshot_files`.
    """
    scoped = [one for one in deletes if one.partition.spec_id not in table.files.global_spec_ids]
    scoped.sort(key=lambda one: one.data_sequence_number)
    own = {one.partition.spec_id for one in scoped}
    others = {kind.partition.spec_id for kind in table.files.data_files.kinds}
    if not scoped or len(own | others) == 1:
        return
    numbers = [one.data_sequence_number - offset for one in scoped]
    committed = _committed(table, source, numbers[0])
    groups: dict[tuple[int, int], list[DataFile]] = defaultdict(list)
    for file in table.files.data_files.with_paths(committed.keys()):
        groups[file.partition.spec_id, bisect_left(numbers, committed[file.path])].append(file)
    fields = {spec.spec_id: spec.fields for spec in table.metadata.partition_specs}
    columns = {
        spec_id: {one.source_id for one in fields[spec_id] if not isinstance(one.transform, VoidTransform)}
        for spec_id in own
    }
    for (spec_id, older), files in groups.items():
        apply = [one for one in scoped[:older] if one.partition.spec_id != spec_id]
        if apply:
            is_exact = [columns[one.partition.spec_id] <= set(one.equality_ids) for one in apply]
            exact, unclear = tuple(compress(apply, is_exact)), tuple(compress(apply, map(not_, is_exact)))
            yield LaterFiles(DataFiles.of(files), exact, unclear)


def _committed(table: PinnedTable, source: str, after: int) -> dict[str, int]:
    """The paths of data files that others committed after a sequence number, and with which one."""
    if table.snapshot is None:
        return {}
    published = {
        one.snapshot_id
        for one in History.of(table.metadata, table.branch).snapshots
        if properties(one).get(BRANCH) == source
    }
    found: dict[str, int] = {}
    for manifest in read_manifest_list(table.storage.io, table.snapshot):
        if manifest.content is not ManifestContent.DATA or manifest.sequence_number <= after:
            continue
        for path, number, snapshot_id in read_file_sequence_numbers(table.storage.io, manifest):
            if number > after and snapshot_id not in published:
                found[path] = max(number, found.get(path, 0))
    return found
