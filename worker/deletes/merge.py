"""Decides what to write for data files: their new positions, merged with the deletes that exist. Pure.

Invariant: the positions that a data file's new delete files make readers skip are exactly those that readers
skip already plus the new ones (Iceberg spec, "Scan Planning" and "Deletion Vectors").
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from pyroaring import BitMap64

from worker.deletes.existing import ExistingDeletes
from worker.deletes.puffin import Positions, bitmap_of
from worker.process.errors import Reason
from worker.table.files import DataFile, DeleteFile

LIVE_TWICE = Reason(
    "data_file_live_twice",
    "its path is live more than once in the table: position deletes and deletion vectors go by path, and"
    " can't delete rows of one of these data files alone",
    "Stop the table's writers and replace its rows by themselves, with INSERT OVERWRITE; or roll the table"
    " back to before the file was added again. No rewrite_data_files, DELETE, UPDATE or MERGE before that:"
    " Iceberg takes but one of the data files away then, and rows come back or twice.",
)


class DeleteGranularity(StrEnum):
    """How many data files one V2 position delete file may speak of (`write.delete.granularity`)."""

    FILE = "file"
    PARTITION = "partition"

    @classmethod
    def of_table(cls, properties: Mapping[str, str]) -> Self:
        """The granularity of a table; `file` unless set, as Spark decides (`SparkWriteConf`), since readers
        then open only the deletes of their own data files."""
        return cls(properties.get("write.delete.granularity", "file").lower())


@dataclass(frozen=True, slots=True)
class Blocked:
    """A data file that is left alone, and why: no new deletes can be written for it.

    spares: deletes that apply to this data file as well are not affected.
    """

    data_file: DataFile
    why: Reason
    spares: DataFile | None = None


@dataclass(frozen=True, slots=True)
class DeletesPlan:
    """What to write for which data file and what that replaces; nothing has been written.

    positions: all positions that the new delete files of a data file must hold; never empty ones.
    removed: the deletion vectors and file-scoped position delete files whose positions are included there.
    rows_deleted: positions that no existing delete held.
    blocked: data files that keep rows to delete, since their path is live more than once.
    """

    positions: Mapping[DataFile, BitMap64]
    removed: tuple[DeleteFile, ...]
    rows_deleted: int
    format_version: int
    granularity: DeleteGranularity
    blocked: tuple[Blocked, ...] = ()


def plan_deletes(
    new_positions: Mapping[DataFile, BitMap64 | Positions],
    existing: Mapping[DataFile, ExistingDeletes],
    format_version: int,
    granularity: DeleteGranularity = DeleteGranularity.FILE,
    *,
    moves: bool = False,
) -> DeletesPlan:
    """Decides what to write for each data file. Pure.

    Of a path that is live more than once, all files must be given, also those without a new position: what
    all of them lose is planned, for the oldest (see `_of_copies`).

    V3: one vector that holds all, in place of the old vector and the file-scoped position deletes.
    V2: only what is new; with granularity `file` merged with the file-scoped position deletes, which it
    replaces (`SortingPositionOnlyDeleteWriter`). Data files without a new position are left alone, unless
    `moves` is set and they have a vector: see `to_be_moved`.
    Raises ValueError for a position outside its data file, and for format version 1, which has no deletes.
    """
    if format_version < 2:
        raise ValueError(f"format version {format_version} has no row-level deletes")
    to_write: dict[DataFile, BitMap64] = {}
    removed: list[DeleteFile] = []
    blocked: list[Blocked] = []
    rows_deleted = 0
    by_path: dict[str, dict[DataFile, BitMap64]] = defaultdict(dict)
    for data_file, found in new_positions.items():
        new = found if isinstance(found, BitMap64) else bitmap_of(found)
        if new and new.max() >= data_file.record_count:
            raise ValueError(
                f"position {new.max()} lies outside {data_file.path}, which has {data_file.record_count} rows"
            )
        known = existing.get(data_file)
        by_path[data_file.path][data_file] = new if known is None else new - known.positions
    for copies in by_path.values():
        data_file, new = next(iter(copies.items()))
        known = existing.get(data_file)
        if len(copies) > 1:
            data_file, new, known, apart = _of_copies(copies, existing, format_version)
            blocked += apart
        if not new and not (moves and known is not None and known.deletion_vector is not None):
            continue
        # What is new to one of several files of a path may be deleted in others.
        rows_deleted += sum(len(new & of_copy) for of_copy in copies.values())
        if known is None:
            to_write[data_file] = new
        elif format_version >= 3:
            to_write[data_file] = new | known.positions
            removed += known.file_scoped
            if known.deletion_vector is not None:
                removed.append(known.deletion_vector)
        elif granularity is DeleteGranularity.FILE:
            to_write[data_file] = new | known.file_scoped_positions
            removed += known.file_scoped
        else:
            to_write[data_file] = new
    return DeletesPlan(to_write, tuple(removed), rows_deleted, format_version, granularity, tuple(blocked))


def _of_copies(
    copies: Mapping[DataFile, BitMap64], existing: Mapping[DataFile, ExistingDeletes], format_version: int
) -> tuple[DataFile, BitMap64, ExistingDeletes | None, list[Blocked]]:
    """What to plan for the live files of one path, as if they were one: the oldest.

    copies: with their new positions. Whatever is committed now hits all of them, by their path. So it may
    hold what each of them loses or has lost, and nothing else. Readers refuse it (`DeleteFileIndex` in Java)
    where the files lie in different partitions, and a vector has to hold what exists.
    """
    ordered = sorted(copies, key=lambda file: file.data_sequence_number)
    oldest, newest = ordered[0], ordered[-1]
    known = {file: existing.get(file, ExistingDeletes(BitMap64())) for file in copies}
    lost_by_all = BitMap64.intersection(*(known[file].positions | copies[file] for file in copies))
    merges = all(known[file].positions <= lost_by_all for file in copies)
    if len({file.partition for file in copies}) > 1 or (format_version >= 3 and not merges):
        return oldest, BitMap64(), None, [Blocked(file, LIVE_TWICE) for file, new in copies.items() if new]
    skipped_in_all = BitMap64.intersection(*(one.positions for one in known.values()))
    # What hits the newest hits all, unless the path got other content meanwhile: then nothing is known of it.
    is_one_content = all(
        copies[file] <= lost_by_all
        for file in copies
        if file.data_sequence_number == newest.data_sequence_number
    )
    spares = newest if is_one_content else None
    apart = [Blocked(file, LIVE_TWICE, spares) for file, new in copies.items() if not new <= lost_by_all]
    # The deletes that exist may be older than some of the files, and are left as they are then.
    merged = replace(known[oldest], positions=skipped_in_all) if merges else ExistingDeletes(skipped_in_all)
    return oldest, lost_by_all - skipped_in_all, merged, apart
