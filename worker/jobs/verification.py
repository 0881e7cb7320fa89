"""The job that distrusts the index: compares it with the data files it covers, and rebuilds a wrong one.

The dictionary must not contradict itself or the table; each file of the index must be what Paimon's manifest
and its own statistics say, in order; its entries must be exactly the rows of the covered data files, by
fingerprint; and the pending equality deletes must find the same rows by index as by scanning.

Invariant: what is found is told by files and positions, and never by keys: results of jobs are kept, also
after an erasure of rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from worker.attempt.job import Job
from worker.attempt.outcome import Outcome, outcome
from worker.attempt.pinned_table import PinnedTable
from worker.index.dictionary import DICTIONARY_SCHEMA, FileDictionary, IndexedFile, owners
from worker.index.fingerprints import BLOCK_ROWS, PIECE_ROWS, Blocks, Fingerprints, entry_hashes
from worker.index.key_set_index import (
    ROW_ADDRESS,
    DamagedIndexError,
    KeySetIndex,
    entries_schema,
    indexed_key_sets,
    newest_generation,
    open_index,
)
from worker.index.run_files import RunFile
from worker.index.sorted_file import Key, SortedFile, faults_of
from worker.index.warehouse import IndexWarehouse
from worker.io.sorting import Int64Array, contiguous
from worker.io.storage import Storage
from worker.jobs.indexing import index_key_set
from worker.keys.key_set import KeyColumnError, KeySet
from worker.keys.read import KeyReader, key_reader
from worker.keys.schema_fields import column_names_of, resolve_key_set
from worker.lookup.resolution import PendingDeletes
from worker.table.files import DataFile, DataFiles
from worker.table.plan import balanced, plan_conversion

EXAMPLES = 10
SAMPLE_ROWS = 500_000_000  # of data files that are read at most: of more, some at random
_TASKS_PER_THREAD = 4


def verify_index(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Checks every index of the table. A wrong one is reported with examples and rebuilt at once."""
    results: list[dict[str, Any]] = []
    for ids in indexed_key_sets(warehouse, table.index_database):
        try:
            key_set = resolve_key_set(table.metadata, ids)
        except KeyColumnError as error:
            columns = ", ".join(column_names_of(table.metadata, ids))
            job.decide(f"Key set ({columns}) is not verified: {error}.")
            continue
        verification = Verification(job, table, key_set)
        try:
            index = open_index(warehouse, table.index_database, key_set)
        except DamagedIndexError as error:
            verification.differences.add(str(error))
        else:
            if index is None:
                continue
            verification.run(index)
        results.append(_result(job, table, warehouse, verification))
    if not results:
        job.decide("The table has no index yet: there is nothing to verify.")
    result = {"iceberg_snapshot_id": table.snapshot_id, "key_sets": results}
    return outcome(job, table, warehouse, result, table.files, [], table.snapshot_id)


def _result(
    job: Job, table: PinnedTable, warehouse: IndexWarehouse, verification: Verification
) -> dict[str, Any]:
    """What was found, after a wrong index has been rebuilt."""
    key_set, differences = verification.key_set, verification.differences
    generation = newest_generation(warehouse, table.index_database, key_set)
    is_wrong = differences.number > 0
    rebuild = is_wrong and not job.assignment.job.dry_run
    if is_wrong:
        job.decide(
            f"Key set {key_set}: the index differs from the data files ({differences.examples[0]})"
            + ("; it is rebuilt and the wrong one is not used again." if rebuild else ".")
        )
    else:
        job.decide(f"Key set {key_set}: {verification.words}.")
    if rebuild:
        job.reporter.confirm_lease()
        index_key_set(job, table, warehouse, key_set, rebuild=True)
    return {
        "equality_field_ids": list(key_set.equality_field_ids),
        "columns": key_set.column_names,
        "generation": generation,
        "files_covered": verification.files_covered,
        "files_checked": verification.files_checked,
        "files_unreadable": len(verification.unreadable),
        "files_no_longer_live": verification.files_no_longer_live,
        "rows_checked": verification.rows_checked,
        "entries_checked": verification.entries_checked,
        "entries_without_file": verification.entries_without_file,
        "differences": differences.number,
        "examples": differences.examples,
        "rebuilt": rebuild,
    }


@dataclass(slots=True)
class Differences:
    """How many there are, and the first of them in words."""

    number: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, *examples: str) -> None:
        self.count(len(examples), examples)

    def count(self, number: int, examples: Iterable[str]) -> None:
        """examples: of these `number`; no more of them are made than are wanted."""
        self.number += number
        self.examples += islice(examples, EXAMPLES - len(self.examples))


class Verification:
    """Of the index of one key set.

    A difference is a fault of the dictionary or of a file of the index, a data file whose rows are not its
    entries, or a row that a pending delete finds only one way.
    """

    def __init__(self, job: Job, table: PinnedTable, key_set: KeySet) -> None:
        self.key_set = key_set
        self.differences = Differences()
        self.files_covered = self.files_checked = self.files_no_longer_live = 0
        self.rows_checked = self.entries_checked = self.entries_without_file = 0
        self.unreadable: dict[str, str] = {}  # data files, and why
        self._job = job
        self._table = table
        self._reader = key_reader(table.metadata, table.storage, key_set)
        self._schema = entries_schema(key_set)

    @property
    def words(self) -> str:
        """What was found to be right."""
        return (
            f"{self.entries_checked:,} entries are as they should be, compared with the {self.rows_checked:,}"
            f" rows of {self.files_checked:,} of {self.files_covered:,} covered data files"
        )

    def run(self, index: KeySetIndex) -> None:
        """Raises OSError when the store doesn't answer (a retry can help)."""
        covered = self._compare_dictionary(index)
        if self.differences.number:
            return  # then addresses mean nothing
        self._compare_entries(index, covered)
        if not self.differences.number:
            with self._job.stage("verify"):
                self._compare_answers(index)

    # The dictionary.

    def _compare_dictionary(self, index: KeySetIndex) -> CoveredFiles:
        """The live files that the index covers as it should."""
        dictionary = index.dictionary
        with self._job.stage("check_dictionary"):
            listed = index.files_table.live_files().files
            checks = [SortedFile(index.storage, file, DICTIONARY_SCHEMA, 1) for file in listed]
            for check in checks:
                for _ in check.read():
                    pass
            self.differences.add(*faults_of(checks))
        self.differences.add(*_contradictions(index))
        live = self._table.files.data_files
        own = dictionary.rows_of(live)
        covered_files = np.flatnonzero(own >= 0)
        # Of files that share path and partition, the first stands for all.
        rows, first = np.unique(own[covered_files], return_index=True)
        ordinals = np.full(len(dictionary), -1, np.int64)
        ordinals[rows] = covered_files[first]
        for found, of_rows in dictionary.pairs(live):
            elsewhere = (own[found] < 0) & (ordinals[of_rows] < 0)
            ordinals[of_rows[elsewhere]] = found[elsewhere]
        rows = np.flatnonzero(ordinals >= 0)
        self.files_no_longer_live = len(dictionary) - len(rows)
        files, counts = live.select(ordinals[rows]), dictionary.record_counts[rows]
        is_elsewhere = own[ordinals[rows]] < 0
        is_wrong = is_elsewhere | (files.record_counts != counts)
        wrong = np.flatnonzero(is_wrong)
        for at, file in zip(wrong.tolist(), files.select(wrong), strict=True):
            self.differences.add(
                f"{file.path}: the dictionary has it in another partition than the table"
                if is_elsewhere[at]
                else f"{file.path}: {file.record_count:,} rows, {counts[at]:,} in the dictionary"
            )
        covered = CoveredFiles(dictionary, files.where(~is_wrong), rows[~is_wrong])
        self.files_covered = len(covered.rows)
        return covered

    # The entries.

    def _compare_entries(self, index: KeySetIndex, covered: CoveredFiles) -> None:
        dictionary = index.dictionary
        blocks = Blocks(dictionary.base_addresses, dictionary.record_counts)
        found = self._fingerprints_of_entries(index, blocks)
        if found is None:
            return
        self.entries_checked = index.entries.rows
        self.entries_without_file = int(found.rows[0])
        wanted = Fingerprints.none(len(blocks))
        checked = self._add_rows(wanted, blocks, covered.sample())
        # Of data files that weren't read, the number of entries can be compared all the same.
        different = np.where(checked, found.differ(wanted), found.rows != blocks.rows)
        different[0] = False
        wrong = np.flatnonzero(different)
        if not len(wrong):
            return
        with self._job.stage("find_differences"):
            # A block of each file, and then others.
            _, first = np.unique(blocks.files[wrong], return_index=True)
            shown = np.concatenate([wrong[first], np.delete(wrong, first)])[:EXAMPLES].tolist()
            known = {block: covered.of_row(int(blocks.files[block])) for block in shown if checked[block]}
            rows = self._row_differences(index, blocks, known)
            examples = [
                rows.get(block) or [_miscounted(dictionary, blocks, found, int(blocks.files[block]))]
                for block in shown
            ]
        each = max(1, EXAMPLES // len(shown))
        self.differences.count(
            len(first), dict.fromkeys(one for of_block in examples for one in of_block[:each])
        )

    def _fingerprints_of_entries(self, index: KeySetIndex, blocks: Blocks) -> Fingerprints | None:
        """None if there is a file of the index that can't be read."""
        files = index.entries.files
        tasks = [EntriesTask(SortedFile(index.storage, f, self._schema, len(self._schema))) for f in files]
        fingerprints = Fingerprints.none(len(blocks))
        checks = []
        with self._job.stage("check_index"):
            for check, found in self._job.each_task("check_index", tasks, blocks, index.entries.rows):
                checks.append(check)
                fingerprints.merge(found)
        self._job.usage.bytes += index.entries.size_bytes
        self.differences.add(*faults_of(checks))
        return fingerprints if all(check.is_readable for check in checks) else None

    def _add_rows(
        self, fingerprints: Fingerprints, blocks: Blocks, sample: Mapping[int, IndexedFile]
    ) -> npt.NDArray[np.bool_]:
        """Adds the rows of some covered files; for each block, whether it was read."""
        files = tuple(sample.items())
        counts = np.array([indexed.file.record_count for _, indexed in files], np.int64)
        groups = balanced(counts, self._job.runner.parallelism * _TASKS_PER_THREAD)
        tasks = [RowsTask(self._reader, files[group]) for group in groups]
        read = np.zeros(len(blocks), np.bool_)
        with self._job.stage("check_data_files"):
            for results in self._job.each_task("check_data_files", tasks, None, int(counts.sum())):
                for row, result, bytes_read in results:
                    self._job.usage.bytes += bytes_read
                    file = sample[row].file
                    if isinstance(result, str):
                        self._leave_out(file, result)
                        continue
                    first = int(blocks.first_blocks[row])
                    fingerprints.merge(result, first)
                    read[first : first + len(result.rows)] = True
                    self.files_checked += 1
                    self.rows_checked += file.record_count
        return read

    def _leave_out(self, file: DataFile, reason: str) -> None:
        """A data file that can't be read is no fault of the index."""
        if file.path not in self.unreadable:
            self.unreadable[file.path] = reason
            self._job.decide(
                f"Key set {self.key_set}: a data file can't be compared with the index: {reason}."
            )

    def _row_differences(
        self, index: KeySetIndex, blocks: Blocks, known: Mapping[int, IndexedFile]
    ) -> dict[int, list[str]]:
        """In words, row by row, by block: a second look at some blocks of data files that can be read."""
        chosen = sorted(known)
        starts = np.array([known[b].base_address + blocks.starts[b] for b in chosen], np.int64)
        counts = blocks.rows[chosen]
        tasks = [FindTask(index.storage, f, self._schema, starts, counts) for f in index.entries.files]
        entries: list[pa.Table] = self._job.run_tasks("find_differences", tasks, None, index.entries.rows)
        differences = {}
        for number, block in enumerate(chosen):
            indexed, start, count = known[block], int(blocks.starts[block]), int(counts[number])
            path = indexed.file.path
            try:
                rows = _rows(self._reader, indexed, start, count)
            except (KeyColumnError, FileNotFoundError) as error:
                # It could be read a moment ago.
                differences[block] = [f"{path}: its rows differ, and can't be read again: {error}"]
                continue
            found: dict[int, list[Key]] = defaultdict(list)
            for part in entries:
                inside = pa.array(owners(starts, counts, part[ROW_ADDRESS].to_numpy()) == number)
                for *entry, row_address in zip(
                    *(c.to_pylist() for c in part.filter(inside).columns), strict=True
                ):
                    found[row_address - indexed.base_address].append(tuple(entry))
            differences[block] = list(islice(_in_words(path, start, rows, found, self.key_set), EXAMPLES))
        return differences

    # The answers.

    def _compare_answers(self, index: KeySetIndex) -> None:
        ids = self.key_set.equality_field_ids
        plans = plan_conversion(self._table.files)
        plan = next((plan for plan in plans if plan.equality_field_ids == ids), None)
        if plan is None:
            return
        pending = PendingDeletes.read(self._job, self._table, plan, self._reader, lambda: index)
        covered = np.flatnonzero(index.dictionary.covers(pending.data_files))
        looked_up, _, _ = pending.find(covered, covered[:0])
        scanned, _, read = pending.find(covered[:0], covered)
        for failure in read.failures:
            self._leave_out(pending.data_files[failure.ordinal], failure.why.reason)
        for file in sorted(looked_up.data_files() | scanned.data_files(), key=lambda file: file.path):
            if file.path in self.unreadable:
                continue
            by_index, by_scan = looked_up.of(file), scanned.of(file)
            for rows, what in (
                (np.setdiff1d(by_scan, by_index), "the scan finds it, the index does not"),
                (np.setdiff1d(by_index, by_scan), "the index finds it, the scan does not"),
            ):
                self.differences.count(len(rows), (f"{file.path} row {row}: {what}" for row in rows))


def _miscounted(dictionary: FileDictionary, blocks: Blocks, found: Fingerprints, file: int) -> str:
    entries = found.rows[blocks.files == file].sum()
    return f"{dictionary.path_of(file)}: {dictionary.record_counts[file]:,} rows, {entries:,} entries"


def _contradictions(index: KeySetIndex) -> Iterator[str]:
    """Where the dictionary is wrong whatever the data files hold."""
    dictionary = index.dictionary
    # An empty file takes one address too.
    ends = dictionary.base_addresses + np.maximum(1, dictionary.record_counts)
    for row in np.flatnonzero(ends[:-1] > dictionary.base_addresses[1:]).tolist():
        yield f"{dictionary.path_of(row)} and {dictionary.path_of(row + 1)} share row addresses"
    for path in dictionary.repeated_paths():
        yield f"{path} is covered twice"
    by_id = [one for ids in dictionary.partitions().values() for one in ids]
    for one, other in pairwise(sorted(by_id)):
        if one == other:
            yield f"two partitions share the id {one}"


@dataclass(frozen=True, slots=True)
class CoveredFiles:
    """Live files that an index covers. rows: theirs in the dictionary, ascending."""

    dictionary: FileDictionary
    files: DataFiles
    rows: Int64Array

    def sample(self) -> dict[int, IndexedFile]:
        """All of them, or when they have very many rows, some chosen at random: one at least. By row."""
        chosen = np.random.default_rng().permutation(len(self.rows))
        counts = np.cumsum(self.files.record_counts[chosen])
        if len(counts) and counts[-1] > SAMPLE_ROWS:
            chosen = chosen[: max(1, int(np.searchsorted(counts, SAMPLE_ROWS, side="right")))]
        return self._indexed(np.sort(chosen))

    def of_row(self, row: int) -> IndexedFile:
        return self._indexed(np.searchsorted(self.rows, [row]))[row]

    def _indexed(self, places: Int64Array) -> dict[int, IndexedFile]:
        rows = self.rows[places]
        bases, ids = self.dictionary.base_addresses[rows], self.dictionary.partition_ids[rows]
        return {
            row: IndexedFile(file, base_address, partition_id)
            for row, file, base_address, partition_id in zip(
                rows.tolist(), self.files.select(places), bases.tolist(), ids.tolist(), strict=True
            )
        }


@dataclass(frozen=True, slots=True)
class EntriesTask:
    """Reads one file of the index: what is wrong with it, and the fingerprints of its entries. Pickles."""

    check: SortedFile

    def run(self, blocks: Blocks) -> tuple[SortedFile, Fingerprints]:
        found = Fingerprints.none(len(blocks))
        for rows in self.check.read():
            columns = [contiguous(column) for column in rows.columns]
            for start in range(0, rows.num_rows, PIECE_ROWS):
                piece = [column.slice(start, PIECE_ROWS) for column in columns]
                found.add(blocks.of(piece[-1].to_numpy()), entry_hashes(piece))
        return self.check, found


@dataclass(frozen=True, slots=True)
class RowsTask:
    """Reads the keys of some data files: the fingerprints of the entries that they should have. Pickles.

    files: with their rows in the dictionary. For one that can't be read, why.
    """

    reader: KeyReader
    files: tuple[tuple[int, IndexedFile], ...]

    def run(self, _: object) -> list[tuple[int, Fingerprints | str, int]]:
        """For each file also how many bytes were read."""
        return [(row, *self._fingerprints(indexed)) for row, indexed in self.files]

    def _fingerprints(self, indexed: IndexedFile) -> tuple[Fingerprints | str, int]:
        found = Fingerprints.none(-(-indexed.file.record_count // BLOCK_ROWS))
        position = bytes_read = 0
        try:
            for keys in self.reader.read_data_file(indexed.file):
                bytes_read += keys.nbytes
                if position + keys.num_rows > indexed.file.record_count:
                    return f"{indexed.file.path} holds more rows than its manifest says", bytes_read
                for start in range(0, keys.num_rows, PIECE_ROWS):
                    piece = _entries(keys.slice(start, PIECE_ROWS), indexed, position)
                    positions = piece[-1].to_numpy() - indexed.base_address
                    found.add(positions // BLOCK_ROWS, entry_hashes(piece))
                    position += len(positions)
        except (KeyColumnError, FileNotFoundError) as error:
            return str(error), bytes_read
        return found, bytes_read


def _entries(keys: pa.RecordBatch, indexed: IndexedFile, position: int) -> list[pa.Array]:
    """The columns of the entries that rows from `position` on should have."""
    row_address = indexed.base_address + position
    partition_ids = np.full(keys.num_rows, indexed.partition_id, np.int64)
    row_addresses = np.arange(row_address, row_address + keys.num_rows, dtype=np.int64)
    return [pa.array(partition_ids), *keys.columns, pa.array(row_addresses)]


@dataclass(frozen=True, slots=True)
class FindTask:
    """The entries in one file of the index whose addresses lie in some ranges. Pickles."""

    storage: Storage
    file: RunFile
    schema: pa.Schema
    base_addresses: Int64Array
    counts: Int64Array

    def run(self, _: object) -> pa.Table:
        found = [self.schema.empty_table()]
        for rows in SortedFile(self.storage, self.file, self.schema, len(self.schema)).read():
            inside = owners(self.base_addresses, self.counts, rows[ROW_ADDRESS].to_numpy()) >= 0
            found.append(rows.filter(pa.array(inside)))
        return pa.concat_tables(found)


def _rows(reader: KeyReader, indexed: IndexedFile, start: int, count: int) -> list[Key]:
    """The entries, without addresses, that `count` rows of a data file from `start` on should have."""
    rows: list[Key] = []
    position = 0
    for keys in reader.read_data_file(indexed.file):
        low, high = (min(max(0, at - position), keys.num_rows) for at in (start, start + count))
        part = _entries(keys.slice(low, high - low), indexed, position + low)[:-1]
        rows += zip(*(column.to_pylist() for column in part), strict=True)
        position += keys.num_rows
    return rows


def _in_words(
    path: str, start: int, rows: Sequence[Key], found: Mapping[int, Sequence[Key]], key_set: KeySet
) -> Iterator[str]:
    """How the entries found of some rows, by position, differ from those that they should have."""
    for position, row in enumerate(rows, start):
        entries = found.get(position, [])
        place = f"{path} row {position}"
        if not entries:
            yield f"{place}: no entry"
        if len(entries) > 1:
            yield f"{place}: {len(entries)} entries"
        for entry in entries:
            if entry != row:
                yield f"{place}: the entry has {_difference(entry, row, key_set)}"


def _difference(entry: Key, row: Key, key_set: KeySet) -> str:
    """In which columns, of partition_id, null_mask and keys, an entry differs from its row."""
    different = [f"partition id {entry[0]} instead of {row[0]}"] if entry[0] != row[0] else []
    for at, name in enumerate(key_set.column_names):
        if key_set.is_null(at, entry[1:]) != key_set.is_null(at, row[1:]):
            different.append(f"{name} null" if key_set.is_null(at, entry[1:]) else f"{name} not null")
        elif entry[2 + at] != row[2 + at]:
            different.append(f"another {name}")
    return ", ".join(different) or "another null mask"
