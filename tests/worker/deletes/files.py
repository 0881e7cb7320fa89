"""Files of tables that are nowhere, and what is found in them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from worker.deletes.existing import ExistingDeletes
from worker.deletes.locations import DeleteFileLocations
from worker.deletes.merge import DeleteGranularity
from worker.deletes.stage import DeletesTask
from worker.deletes.write import WrittenDeletes
from worker.io.storage import Storage
from worker.table.files import DataFile, DeleteFile, FileContent, PartitionKey

UNPARTITIONED = PartitionKey(0, "[]")


def data_file(
    path: str, *, partition: PartitionKey = UNPARTITIONED, rows: int = 100, seq: int = 1
) -> DataFile:
    return DataFile(path, "parquet", partition, rows, 1_000, seq)


def delete_file(
    path: str, *, file_format: str = "parquet", rows: int = 1, seq: int = 2, **more: Any
) -> DeleteFile:
    partition = more.pop("partition", UNPARTITIONED)
    size = Path(path).stat().st_size if Path(path).exists() else 1_000
    return DeleteFile(FileContent.POSITION_DELETES, path, file_format, partition, rows, size, seq, **more)


def position_delete_file(path: Path, rows: Sequence[tuple[str, int]], **how: Any) -> DeleteFile:
    paths, positions = zip(*rows, strict=True)
    pq.write_table(pa.table({"file_path": list(paths), "pos": list(positions)}), path, **how)
    return delete_file(str(path), rows=len(rows))


def deletes_task(
    folder: Path,
    deleted: Mapping[DataFile, Sequence[int]],
    existing: Sequence[DeleteFile],
    format_version: int,
    *,
    storage: Storage | None = None,
    granularity: DeleteGranularity = DeleteGranularity.FILE,
    shares_files: bool = False,
) -> DeletesTask:
    """One that moves nothing, and writes below the folder."""
    return DeletesTask(
        storage or Storage(),
        {file: np.array(rows) for file, rows in deleted.items()},
        existing,
        format_version,
        granularity,
        DeleteFileLocations(str(folder), {}, "p"),
        moves=False,
        shares_files=shares_files,
        dry_run=False,
    )


def positions(existing: Mapping[DataFile, ExistingDeletes]) -> dict[str, list[int]]:
    return {file.path: list(deletes.positions) for file, deletes in existing.items()}


def paths(written: WrittenDeletes) -> list[str]:
    return [file.path for file in written.added]
