"""The secondary index of one key set: sorted entries (key -> row address) and the dictionary of files.

Invariants:
- The index is a pure function of immutable data files: it holds every row of the files it covers, whether
  deleted or not. Coverage is a set of files; what to index is a set difference.
- Committing a file to the dictionary is the linearisation point. Entries whose address has no dictionary
  row do not exist, so an attempt that dies in between leaves garbage, never a wrong answer.
- Address ranges are granted by the control plane to one attempt, so two attempts never share an address.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from worker.index.checksums import read_footer
from worker.index.sorted_runs import (
    ROW_GROUP_ROWS,
    TABLE_FOLDERS,
    IndexWarehouse,
    LiveFiles,
    RunFile,
    RunTable,
    write_run,
)
from worker.io.paths import PIECE, Paths
from worker.io.row_groups import RowGroups
from worker.io.sorting import Int64Array, sort_rows
from worker.io.storage import Storage, lacks_own_memory
from worker.keys.key_set import KeyColumnError, KeySet
from worker.keys.read import KeyReader
from worker.process.slots import Threads
from worker.spark.tasks import tell_share
from worker.table.files import DataFile, DataFiles, PartitionKey

RUN_ROWS = 4_000_000  # rows sorted at once by one task: about 400 MB for an int64 key
RUN_BYTES = 512 * 1024**2  # the same bound for wide keys
MIN_TASK_ROWS = 1_000_000
MIN_TASK_FILES = 100  # a file takes some requests, however few rows it has
FILES_AT_ONCE = 8  # small ones, which a task reads together, since each mostly waits for the store
COMMIT_ROWS = 128_000_000  # rows between two commits of a long build, so that a lost attempt loses little
DICTIONARY_FILES = 16  # that a compaction leaves at most, more or less
PARTITION_ID = "partition_id"
ADDRESS = "address"
_KEY_TYPES_OPTION = "icestream.key-types"

_ENTRIES_NAME = re.compile(r"entries_(\d+(?:_\d+)*)_g(\d+)")


DICTIONARY_SCHEMA = pa.schema(
    [
        pa.field("base_address", pa.int64(), nullable=False),
        pa.field("record_count", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("file_format", pa.string(), nullable=False),
        pa.field("spec_id", pa.int32(), nullable=False),
        pa.field("partition_values", pa.string(), nullable=False),
        pa.field(PARTITION_ID, pa.int64(), nullable=False),
        pa.field("data_sequence_number", pa.int64(), nullable=False),
        pa.field("indexed_at_millis", pa.int64(), nullable=False),
    ]
)


class DamagedIndexError(Exception):
    """An index can't be read, and no retry will help: only a new generation does."""


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A data file's place in the index: its rows' addresses are base_address + position.

    An empty file takes one address too, so that base addresses are unique.
    """

    file: DataFile
    base_address: int
    partition_id: int

    @property
    def end_address(self) -> int:
        return self.base_address + self.file.record_count


class FileDictionary:
    """The covered files, ordered by base address; address -> file by binary search.

    In columns, 44 bytes a file beside its path's text: there may be ten million.
    """

    def __init__(self, parts: Iterable[pa.Table]) -> None:
        """parts: `DICTIONARY_SCHEMA`, in any order, base addresses unique and ranges disjoint."""
        numbers = [np.empty((3, 0), np.int64)]
        partition_of = [np.empty(0, np.int32)]
        self._partitions: dict[PartitionKey, int] = {}

        def paths() -> Iterator[pa.Array]:
            for part in parts:
                columns = (part[name].to_numpy() for name in ("base_address", "record_count", PARTITION_ID))
                numbers.append(np.array(list(columns), np.int64))
                partition_of.append(self._partitions_in(part))
                yield from part["path"].chunks

        self._paths = Paths(paths())
        together = np.concatenate(numbers, axis=1)
        numbers.clear()
        self._order = np.argsort(together[0], kind="stable")  # where the path of each row is
        self.base_addresses: Int64Array
        self.record_counts: Int64Array
        self.partition_ids: Int64Array
        self.base_addresses, self.record_counts, self.partition_ids = together[:, self._order]
        self._partition_of = np.concatenate(partition_of)[self._order]

    def _partitions_in(self, part: pa.Table) -> npt.NDArray[np.int32]:
        """The partition of each row, by its number."""
        values = part["partition_values"].combine_chunks().dictionary_encode()
        count = len(values.dictionary)
        codes = part["spec_id"].to_numpy().astype(np.int64) * count + values.indices.to_numpy()
        distinct, of_row = np.unique(codes, return_inverse=True)
        keys = (
            PartitionKey(code // count, values.dictionary[code % count].as_py()) for code in distinct.tolist()
        )
        numbers = [self._partitions.setdefault(key, len(self._partitions)) for key in keys]
        return np.array(numbers, np.int32)[of_row]

    def __len__(self) -> int:
        return len(self.base_addresses)

    def path_of(self, row: int) -> str:
        return self._paths[int(self._order[row])]

    @property
    def end_address(self) -> int:
        """The first address above every range."""
        return int((self.base_addresses + self.record_counts).max()) if len(self) else 0

    @property
    def record_count(self) -> int:
        return int(self.record_counts.sum())

    def rows_of(self, files: DataFiles) -> Int64Array:
        """The dictionary row under which each file is covered; -1 for one that is not.

        A file is covered if the index holds every row of it, under its partition.
        """
        rows = np.full(len(files), -1, np.int64)
        here = np.array([self._partitions.get(kind.partition, -1) for kind in files.kinds], np.int32)
        here = here[files.kind_of]
        for ordinals, found in self.pairs(files):
            # A path that is live in two partitions has a row, and entries, under each.
            same = self._partition_of[found] == here[ordinals]
            rows[ordinals[same]] = found[same]
        return rows

    def covers(self, files: DataFiles) -> npt.NDArray[np.bool_]:
        """Which of the files are covered."""
        covered: npt.NDArray[np.bool_] = self.rows_of(files) >= 0
        return covered

    def are_live(self, files: DataFiles) -> npt.NDArray[np.bool_]:
        """Which rows are of some live file, in whatever partition."""
        live = np.zeros(len(self), np.bool_)
        for _, rows in self.pairs(files):
            live[rows] = True
        return live

    def pairs(self, files: DataFiles) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Which of the files, by ordinal, has the path of which row: every pair, some at a time."""
        rows = np.empty(len(self), np.int64)
        rows[self._order] = np.arange(len(self))
        for ordinals, places in self._paths.pairs(files.path_pieces()):
            yield ordinals, rows[places]

    def repeated_paths(self) -> list[str]:
        """Those that more than one row of a partition has, in order."""
        partition_of = np.empty(len(self), np.int32)
        partition_of[self._order] = self._partition_of
        found = set()
        for ones, others in self._paths.pairs(self._paths.pieces()):
            twice = (ones < others) & (partition_of[ones] == partition_of[others])
            found |= {self._paths[int(one)] for one in ones[twice]}
        return sorted(found)

    def partitions(self) -> dict[PartitionKey, tuple[int, ...]]:
        """Partition -> partition_id of every partition that has a covered file.

        More than one only after an attempt that had lost its job committed all the same.
        """
        _, first = np.unique(self._partition_of, return_index=True)  # all partitions have a file
        usual = self.partition_ids[first]
        others = np.flatnonzero(self.partition_ids != usual[self._partition_of])
        found = {number: {partition_id: None} for number, partition_id in enumerate(usual.tolist())}
        for number, partition_id in zip(
            self._partition_of[others].tolist(), self.partition_ids[others].tolist(), strict=True
        ):
            found[number][partition_id] = None
        return {partition: tuple(found[number]) for partition, number in self._partitions.items()}

    def ordinals(self, addresses: Int64Array) -> Int64Array:
        """The dictionary row of each address; -1 for an address that no covered file owns."""
        return owners(self.base_addresses, self.record_counts, addresses)


def owners(base_addresses: Int64Array, record_counts: Int64Array, addresses: Int64Array) -> Int64Array:
    """Which of the ranges, ascending and disjoint, each address lies in; -1 for none."""
    if not len(base_addresses):
        return np.full(len(addresses), -1, np.int64)
    found = np.searchsorted(base_addresses, addresses, side="right") - 1
    inside = (found >= 0) & (addresses < base_addresses[found] + record_counts[found])
    return np.where(inside, found, -1)


@dataclass(frozen=True, slots=True)
class KeySetIndex:
    """The index of one key set at one Paimon snapshot of each of its tables.

    dictionary: the rows of `files`, which are read before `entries`.
    """

    key_set: KeySet
    generation: int
    entries_table: RunTable
    files_table: RunTable
    files: LiveFiles
    entries: LiveFiles
    dictionary: FileDictionary

    @property
    def storage(self) -> Storage:
        """Where the index's files lie, which need not be that of the table."""
        return self.entries_table.storage

    @property
    def end_address(self) -> int:
        """The first address above all that the dictionary owns and all that any entry has.

        Entries that no file owns must not get one later.
        """
        used = max((file.upper_bounds[-1] + 1 for file in self.entries.files), default=0)
        return max(self.dictionary.end_address, used)

    def dead_ratio(self, live_files: DataFiles) -> float:
        """The share of entries whose file is no longer live (or never was committed)."""
        if not self.entries.rows:
            return 0.0
        live = int(self.dictionary.record_counts[self.dictionary.are_live(live_files)].sum())
        return max(0.0, 1.0 - live / self.entries.rows)


def database_name(table_uuid: str, branch: str) -> str:
    """Each branch has its own index: two registered branches never write to the same one."""
    name = "t_" + table_uuid.replace("-", "")
    return name if branch == "main" else f"{name}_b{hashlib.sha256(branch.encode()).hexdigest()[:16]}"


def open_index(
    warehouse: IndexWarehouse,
    database: str,
    key_set: KeySet,
    *,
    create: bool = False,
    rebuild: bool = False,
) -> KeySetIndex | None:
    """The newest generation of a key set's index; None when there is none and `create` is false.

    A generation whose key types differ from the key set's is of no use: with `create` a new one starts.
    `rebuild` always starts a new one. Raises DamagedIndexError, and OSError when the index place can't be
    read or written (a retry can help).
    """
    suffix = _suffix(key_set)
    key_types = ",".join(f"{c.field_id}:{c.key_type}" for c in key_set.columns)
    generation = newest_generation(warehouse, database, key_set)
    is_wanted = generation > 0 and not rebuild
    entries_table = _open_table(warehouse, database, f"entries_{suffix}_g{generation}") if is_wanted else None
    if entries_table is not None and entries_table.options.get(_KEY_TYPES_OPTION) == key_types:
        files_table = _open_table(warehouse, database, f"files_{suffix}_g{generation}")
    elif create or rebuild:
        generation, files_table = generation + 1, None
    else:
        return None
    if files_table is None:
        if not (create or rebuild):
            return None
        # The dictionary first: entries without a dictionary are garbage, never the other way round.
        files_table = warehouse.create(
            database, f"files_{suffix}_g{generation}", DICTIONARY_SCHEMA, ["base_address"], {}
        )
        schema = entries_schema(key_set)
        entries_table = warehouse.create(
            database, f"entries_{suffix}_g{generation}", schema, schema.names, {_KEY_TYPES_OPTION: key_types}
        )
    assert entries_table is not None
    load = partial(load_index, key_set, generation, entries_table, files_table)
    try:
        return load()
    except Exception as error:
        # Paimon's reader and Arrow's fail in many ways on a damaged file: it is one if the store gives it.
        for location in (files_table.location, entries_table.location):
            _raise_if_at_fault(warehouse.storage, error, location, load)
        raise DamagedIndexError(f"the index can't be opened: {error}") from error


def _open_table(warehouse: IndexWarehouse, database: str, name: str) -> RunTable | None:
    """The table, or None. Raises OSError, and DamagedIndexError when its schema can't be understood."""
    try:
        return warehouse.open(database, name)
    except OSError:
        raise
    except Exception as error:
        if lacks_own_memory(error):
            raise
        raise DamagedIndexError(f"the schema of {name} can't be read: {error}") from error


def indexed_key_sets(warehouse: IndexWarehouse, database: str) -> list[tuple[int, ...]]:
    """The equality field ids of every key set that the table has an index of, ascending."""
    matches = (_ENTRIES_NAME.fullmatch(name) for name in warehouse.table_names(database))
    return sorted({tuple(map(int, match[1].split("_"))) for match in matches if match})


def _suffix(key_set: KeySet) -> str:
    """The part of a table's name that tells the fields of its key set."""
    return "_".join(map(str, key_set.equality_field_ids))


def newest_generation(warehouse: IndexWarehouse, database: str, key_set: KeySet) -> int:
    """The highest generation of a key set's entries tables; 0 when there is none."""
    suffix = _suffix(key_set)
    matches = (_ENTRIES_NAME.fullmatch(name) for name in warehouse.table_names(database))
    return max((int(match[2]) for match in matches if match and match[1] == suffix), default=0)


def drop_older_generations(warehouse: IndexWarehouse, database: str, index: KeySetIndex) -> None:
    if index.generation == 1:
        return  # as nearly always: no listing is needed to know that
    suffix = _suffix(index.key_set)
    present = set(warehouse.table_names(database))
    for generation in range(1, index.generation):
        # The dictionary first: an index without one is empty, never wrong.
        for table in ("files", "entries"):
            if (name := f"{table}_{suffix}_g{generation}") in present:
                warehouse.drop_table(database, name)


def damage_of(index: KeySetIndex) -> str | None:
    """What is wrong with the index, of which every file is read to its end; None when all can be read.

    Raises OSError when the store doesn't answer (a retry can help).
    """
    storage = index.storage
    for file in (*index.files.files, *index.entries.files):
        try:
            decode(storage, file.location)
        except FileNotFoundError:
            return f"{file.location} is missing"
        except (OSError, pa.ArrowException) as error:
            if storage.is_at_fault(error, [file.location], partial(decode, storage, file.location)):
                raise
            return f"{file.location} can't be decoded: {error}"
    for table in (index.files_table, index.entries_table):
        try:
            table.read_history()
        except Exception as error:
            _raise_if_at_fault(storage, error, table.location, table.read_history)
            return f"a manifest or snapshot in {table.location} can't be read: {error}"
    return None


def decode(storage: Storage, location: str) -> None:
    """Reads a file of the index to its end. Raises OSError or pa.ArrowException."""
    with storage.open_input(location) as source:
        metadata = read_footer(source)
        for group in range(metadata.num_row_groups):
            RowGroups(source, metadata).read([group], metadata.schema.names)


def _raise_if_at_fault(
    storage: Storage, error: Exception, table_location: str, read_again: Callable[[], object]
) -> None:
    """Raises an error that may be the store's own, or tells of too little memory."""
    if isinstance(error, FileNotFoundError):
        return
    files = (file.location for folder in TABLE_FOLDERS for file in storage.list(f"{table_location}/{folder}"))
    if storage.is_at_fault(error, files, read_again):
        raise error


def load_index(
    key_set: KeySet, generation: int, entries_table: RunTable, files_table: RunTable
) -> KeySetIndex:
    """Reads the dictionary first: entries committed after it only add addresses that it does not know.

    Each table's snapshot says which one of the other it needs. Without its last snapshot a table would show
    an older state: a dictionary with files whose entries are not there, and deletes would find no row.
    """
    for _ in range(2):  # a commit to both may come in between
        files = files_table.live_files()
        dictionary = FileDictionary(_read_parts(files_table.storage, files.files, DICTIONARY_SCHEMA))
        entries = entries_table.live_files()
        found = (files.paimon_snapshot_id or 0, entries.paimon_snapshot_id or 0)
        needed = (entries.beside, files.beside)
        if all(has >= needs for has, needs in zip(found, needed, strict=True)):
            return KeySetIndex(key_set, generation, entries_table, files_table, files, entries, dictionary)
    raise DamagedIndexError(
        f"snapshots are missing: dictionary and entries are at {found[0]} and {found[1]}, and must be at"
        f" {needed[0]} and {needed[1]} at least"
    )


def entries_schema(key_set: KeySet) -> pa.Schema:
    """partition_id, null_mask, key columns, address: all of them the primary key, in sort order."""
    return pa.schema(
        [
            pa.field(PARTITION_ID, pa.int64(), nullable=False),
            *key_set.schema,
            pa.field(ADDRESS, pa.int64(), nullable=False),
        ]
    )


def _read_parts(storage: Storage, files: Iterable[RunFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """Their rows, some row groups at a time."""
    for file in files:
        with storage.open_input(file.location) as source:
            metadata = read_footer(source)
            groups = range(metadata.num_row_groups)
            for start in range(0, len(groups), PIECE // ROW_GROUP_ROWS):
                chosen = groups[start : start + PIECE // ROW_GROUP_ROWS]
                yield RowGroups(source, metadata).read(chosen, schema.names)


def uncovered_files(data_files: DataFiles, dictionary: FileDictionary) -> DataFiles:
    """What is left to index: of a path that is live more than once in a partition, one file."""
    return data_files.where(~dictionary.covers(data_files)).without_copies()


def assign_addresses(
    files: Sequence[DataFile], base_address: int, partitions: Mapping[PartitionKey, Sequence[int]]
) -> list[IndexedFile]:
    """Gives each file its range from `base_address` on, in order; new partitions take their first file's."""
    indexed = []
    known = {partition: ids[0] for partition, ids in partitions.items()}
    for file in files:
        partition_id = known.setdefault(file.partition, base_address)
        indexed.append(IndexedFile(file, base_address, partition_id))
        base_address += max(1, file.record_count)
    return indexed


def addresses_needed(files: Iterable[DataFile]) -> int:
    return sum(max(1, file.record_count) for file in files)


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
        address = indexed.base_address
        for keys in self.reader.read_data_file(indexed.file):
            yield _entry_batch(keys, indexed.partition_id, address)
            address += keys.num_rows

    def _write(self, batches: Sequence[pa.RecordBatch]) -> list[RunFile]:
        run = sort_entries(pa.Table.from_batches(batches))
        return write_run(
            self.storage,
            self.table_location,
            run,
            primary_key=run.schema.names,
        )


def build_tasks(
    reader: KeyReader,
    storage: Storage,
    table_location: str,
    files: Sequence[IndexedFile],
    parallelism: int,
    halvings: int = 0,
) -> list[BuildTask]:
    """Groups files, partition by partition, into tasks of similar size: by rows, and small ones by number.

    storage, table_location: of the index's entries. halvings: of what a task holds.
    """
    run_rows, run_bytes = RUN_ROWS >> halvings, RUN_BYTES >> halvings
    total = sum(indexed.file.record_count for indexed in files)
    target = min(run_rows, max(MIN_TASK_ROWS, -(-total // max(1, parallelism))))
    most_files = max(MIN_TASK_FILES, -(-len(files) // max(1, parallelism)))
    tasks: list[BuildTask] = []
    group: list[IndexedFile] = []
    rows = 0
    # Files of one partition stay together, so that a run spans few partitions.
    for indexed in sorted(files, key=lambda f: (f.partition_id, f.base_address)):
        if group and (rows + indexed.file.record_count > target or len(group) >= most_files):
            tasks.append(BuildTask(reader, storage, table_location, tuple(group), run_rows, run_bytes))
            group, rows = [], 0
        group.append(indexed)
        rows += indexed.file.record_count
    if group:
        tasks.append(BuildTask(reader, storage, table_location, tuple(group), run_rows, run_bytes))
    return tasks


def _entry_batch(keys: pa.RecordBatch, partition_id: int, address: int) -> pa.RecordBatch:
    schema = pa.schema(
        [
            pa.field(PARTITION_ID, pa.int64(), nullable=False),
            *keys.schema,
            pa.field(ADDRESS, pa.int64(), nullable=False),
        ]
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(partition_id, pa.int64()), keys.num_rows),
            *keys.columns,
            pa.array(np.arange(address, address + keys.num_rows, dtype=np.int64)),
        ],
        schema=schema,
    )


def sort_entries(entries: pa.Table) -> pa.Table:
    """Entries in primary-key order, which for Arrow and Paimon alike is byte order for strings."""
    return sort_rows(entries)


def commit_index(
    index: KeySetIndex,
    runs: Sequence[RunFile],
    files: Sequence[IndexedFile],
    replaced: Sequence[RunFile] = (),
    *,
    confirm_lease: Callable[[], None] = lambda: None,
) -> KeySetIndex:
    """Entries first, then their files: after the second commit, and only then, the files are covered.

    replaced: files of the index whose entries `runs` hold too. Raises IndexCommitConflictError when another
    commit came first.
    """
    confirm_lease()
    files_planned_on = index.files
    if replaced:
        # A merge drops entries that no file owns. Whoever was about to commit their files can't any more.
        files_planned_on = index.files_table.take_place(index.files)
    beside = index.entries.paimon_snapshot_id or 0
    if runs or replaced:
        files_id = files_planned_on.paimon_snapshot_id or 0
        index.entries_table.commit_files(index.entries, runs, replaced, files_id)
        beside += 1
    confirm_lease()
    rows = write_run(
        index.storage,
        index.files_table.location,
        _dictionary_rows(files),
        primary_key=["base_address"],
    )
    # Whoever has dropped entries without files since `index` was loaded has taken this snapshot's place.
    index.files_table.commit_files(files_planned_on, rows, beside=beside)
    return load_index(index.key_set, index.generation, index.entries_table, index.files_table)


def forget_files(index: KeySetIndex, live_files: DataFiles) -> int:
    """Takes the files that are not live out of the dictionary: they are no longer covered.

    Returns the dictionary's new snapshot.

    Merges small files of the dictionary too, with each that is no larger than those before it together.
    Commits in any case, which keeps a late writer from adding files whose entries are about to be dropped:
    raises IndexCommitConflictError when that one came first.
    """
    files = sorted(index.files.files, key=lambda file: file.rows)
    bases = pa.array(index.dictionary.base_addresses[index.dictionary.are_live(live_files)])
    kept = []
    for file in files:
        rows = pa.concat_tables(_read_parts(index.storage, [file], DICTIONARY_SCHEMA))
        kept.append(rows.filter(pc.is_in(rows["base_address"], bases)))
    merged = 0
    if len(files) > DICTIONARY_FILES:
        merged = 2
        while merged < len(files) and files[merged].rows <= sum(file.rows for file in files[:merged]):
            merged += 1
    replaced = [i for i, file in enumerate(files) if i < merged or kept[i].num_rows < file.rows]
    written = (
        write_run(
            index.storage,
            index.files_table.location,
            pa.concat_tables([kept[i] for i in replaced]).sort_by("base_address"),
            primary_key=["base_address"],
        )
        if replaced
        else []
    )
    beside = index.entries.paimon_snapshot_id or 0
    index.files_table.commit_files(index.files, written, [files[i] for i in replaced], beside)
    return (index.files.paimon_snapshot_id or 0) + 1


def _dictionary_rows(files: Sequence[IndexedFile]) -> pa.Table:
    now = int(time.time() * 1000)
    rows = [
        (
            f.base_address,
            f.file.record_count,
            f.file.path,
            f.file.file_format,
            f.file.partition.spec_id,
            f.file.partition.values,
            f.partition_id,
            f.file.data_sequence_number,
            now,
        )
        for f in sorted(files, key=lambda f: f.base_address)
    ]
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), DICTIONARY_SCHEMA, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=DICTIONARY_SCHEMA)
