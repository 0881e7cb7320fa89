"""The stage of a conversion that writes delete files, for one group of data files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyroaring import BitMap64

from worker.deletes.existing import existing_deletes
from worker.deletes.locations import DeleteFileLocations
from worker.deletes.merge import DeleteGranularity, plan_deletes
from worker.deletes.puffin import Positions
from worker.deletes.write import WrittenDeletes, write_planned
from worker.io.storage import Storage
from worker.table.files import DataFile, DeleteFile


def write_deletes(
    storage: Storage,
    new_positions: Mapping[DataFile, BitMap64 | Positions],
    position_deletes: Sequence[DeleteFile],
    format_version: int,
    granularity: DeleteGranularity,
    locations: DeleteFileLocations,
) -> WrittenDeletes:
    """The whole stage for one group of data files: reads what exists, plans, writes. Nothing is committed.

    position_deletes: live position delete files and deletion vectors of the pinned snapshot; those that apply
    to no file of the group are ignored.
    Raises as `existing_deletes`, `plan_deletes` and `write_planned`.
    """
    existing = existing_deletes(storage, new_positions, position_deletes)
    plan = plan_deletes(new_positions, existing, format_version, granularity)
    return write_planned(storage, plan, locations, list(new_positions))
