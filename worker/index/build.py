"""Builds sorted runs of entries from the key columns of data files. Nothing is committed."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from math import ceil

import numpy as np
import pyarrow as pa

from worker.index.dictionary import PARTITION_ID, IndexedFile
from worker.index.key_set_index import ROW_ADDRESS
from worker.index.run_files import RunFile, write_run
from worker.io.sorting import sort_rows
from worker.io.storage import Storage
from worker.keys.key_set import KeyColumnError
from worker.keys.read import KeyReader
from worker.process.slots import Threads
from worker.spark.tasks import tell_share
from worker.table.files import DataFile

RUN_ROWS = 4_000_000  # rows sorted at once by one task: about 400 MB for an int64 key
RUN_BYTES = 512 * 1024**2  # the same bound for wide keys
MIN_TASK_ROWS = 1_000_000
MIN_TASK_FILES = 100  # a file takes some requests, however few rows it has
FILES_AT_ONCE = 8  # small ones, which a task reads together, since each mostly waits for the store
COMMIT_ROWS = 128_000_000  # rows between two commits of a long build, so that a lost attempt loses little


def commit_batches(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Files in groups of at most COMMIT_ROWS rows (a larger file is a group of its own)."""
    batch: list[DataFile] = []
    rows = 0
    for file in files:
        if batch and rows + file.record_count > COMMIT_ROWS:
            yield batch
            batch, rows = [], 0
        batch.append(file)
        rows += file.record_count
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class BuiltRuns:
    """What a build task wrote, and the files that it could not read: (path, reason). Not committed."""

    runs: tuple[RunFile, ...]
    failures: tuple[tuple[str, str], ...]
    bytes_read: int


@dataclass(frozen=True, slots=True)
class BuildTask:
    """Reads the keys of some files and writes them as sorted runs. Pickles."""

    reader: KeyReader
    storage: Storage
    table_location: str
    files: tuple[IndexedFile, ...]
    run_rows: int
    run_bytes: int

    @property
    def rows(self) -> int:
        return sum(indexed.file.record_count for indexed in self.files)

    def run(self, _: object) -> BuiltRuns:
        """Runs bounded in memory: a task larger than one run writes several.

        A file that can't be read may leave some entries, which no dictionary row will ever own.
        """
        runs: list[RunFile] = []
        failures: list[tuple[str, str]] = []
        batches: list[pa.RecordBatch] = []
        rows = size_bytes = bytes_read = 0
        with Threads(FILES_AT_ONCE, "files") as threads:
            ahead: deque[Future[list[pa.RecordBatch]] | None] = deque()
            started = iter(self.files)
            for number, indexed in enumerate(self.files, start=1):
                for coming in islice(started, FILES_AT_ONCE - len(ahead)):
                    ahead.append(threads.submit(self._read, coming) if self._is_small(coming) else None)
                read = ahead.popleft()
                try:
                    for entries in self._entries(indexed) if read is None else read.result():
                        batches.append(entries)
                        rows += entries.num_rows
                        size_bytes += entries.nbytes
                        bytes_read += entries.nbytes
                        if rows >= self.run_rows or size_bytes >= self.run_bytes:
                            runs += self._write(batches)
                            batches = []
                            rows = size_bytes = 0
                except (KeyColumnError, FileNotFoundError) as error:
                    failures.append((indexed.file.path, str(error)))
                tell_share(number / len(self.files))
        if batches:
            runs += self._write(batches)
        return BuiltRuns(tuple(runs), tuple(failures), bytes_read)

    def _is_small(self, indexed: IndexedFile) -> bool:
        """Whether files such as this one, read together, take less than half of what a run does."""
        at_once, file = 2 * FILES_AT_ONCE, indexed.file
        return (
            file.record_count * at_once <= self.run_rows and file.file_size_bytes * at_once <= self.run_bytes
        )

    def _read(self, indexed: IndexedFile) -> list[pa.RecordBatch]:
        return list(self._entries(indexed))

    def _entries(self, indexed: IndexedFile) -> Iterator[pa.RecordBatch]:
        row_address = indexed.base_address
        for keys in self.reader.read_data_file(indexed.file):
            yield _entry_batch(keys, indexed.partition_id, row_address)
            row_address += keys.num_rows

    def _write(self, batches: Sequence[pa.RecordBatch]) -> list[RunFile]:
        run = sort_rows(pa.Table.from_batches(batches))
        return write_run(self.storage, self.table_location, run, primary_key=run.schema.names)


def build_tasks(
    reader: KeyReader,
    storage: Storage,
    table_location: str,
    files: Sequence[IndexedFile],
    parallelism: int,
    memory_fraction: float = 1.0,
) -> list[BuildTask]:
    """Groups files, partition by partition, into tasks of similar size: by rows, and small ones by number.

    About as many as run at a time, or a multiple of that, so that all end together. storage, table_location:
    of the index's entries. memory_fraction: of what a task usually holds.
    """
    run_rows, run_bytes = int(RUN_ROWS * memory_fraction), int(RUN_BYTES * memory_fraction)
    total, at_once = sum(indexed.file.record_count for indexed in files), max(1, parallelism)
    rounds = max(1, ceil(total / (at_once * run_rows)))
    target = min(run_rows, max(MIN_TASK_ROWS, total / (at_once * rounds)))
    most_files = max(MIN_TASK_FILES, ceil(len(files) / at_once))
    tasks: list[BuildTask] = []
    group: list[IndexedFile] = []
    rows = done = 0
    # Files of one partition stay together, so that a run spans few partitions.
    for indexed in sorted(files, key=lambda f: (f.partition_id, f.base_address)):
        count = indexed.file.record_count
        ends_at = target * (round(done / target) + 1)  # in all, or else what is left over is a task more
        is_full = done + rows + count / 2 > ends_at or rows + count > run_rows
        if group and (is_full or len(group) >= most_files):
            tasks.append(BuildTask(reader, storage, table_location, tuple(group), run_rows, run_bytes))
            done += rows
            group, rows = [], 0
        group.append(indexed)
        rows += count
    if group:
        tasks.append(BuildTask(reader, storage, table_location, tuple(group), run_rows, run_bytes))
    return tasks


def _entry_batch(keys: pa.RecordBatch, partition_id: int, row_address: int) -> pa.RecordBatch:
    schema = pa.schema(
        [
            pa.field(PARTITION_ID, pa.int64(), nullable=False),
            *keys.schema,
            pa.field(ROW_ADDRESS, pa.int64(), nullable=False),
        ]
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(partition_id, pa.int64()), keys.num_rows),
            *keys.columns,
            pa.array(np.arange(row_address, row_address + keys.num_rows, dtype=np.int64)),
        ],
        schema=schema,
    )
