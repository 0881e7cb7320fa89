"""Where the rows of some keys lie, and whether they are live: index | scan -> deletes.

Invariant: an answer is about every row of the snapshot that has one of the keys. Data files that the index
does not cover are read, and beyond a bound of these the question is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from telemetry.plurals import counted
from worker.index.key_set_index import KeySetIndex
from worker.io.sorting import Int64Array
from worker.keys.key_set import KeyColumnError, KeySet
from worker.keys.read import KeyReader, key_reader, missing_file
from worker.lookup.cost import row_cost
from worker.lookup.index_lookup import ANY_AGE, DeleteKeys, LiveRows, lookup_tasks, planned_rows
from worker.process.errors import Reason
from worker.process.memory import holding
from worker.process.slots import Threads
from worker.query.errors import AnswerTooLargeError, NotCoveredError, UnreadableError, told_as_unreadable
from worker.query.snapshot import PendingKeys, TableSnapshot
from worker.table.files import DataFile, DataFiles
from worker.table.plan import balanced

SCANNED_ROWS = 5_000_000
"""Of data files that the index does not cover, or that pending deletes of another key may hit: read for one
question at most."""
SCANNED_FILES = 200
SCAN_BYTES = 32 * 1024**2
"""Are held of a data file that is scanned: its keys come in parts."""
_ANYWHERE = -2  # a partition that no key is of: what is asked for is asked for in all of them
_NOTHING = np.empty(0, np.int64)
_TASKS_AT_ONCE = 32
_threads = Threads(_TASKS_AT_ONCE, "lookup")
_LIVE, _DELETION_VECTOR, _POSITION_DELETE, _EQUALITY_DELETE = range(4)
_NAMES = (None, "deletion_vector", "position_delete", "equality_delete")


@dataclass(frozen=True, slots=True)
class Places:
    """Rows that have one of the keys asked for, one each: which of the keys, where, and what deletes it.

    data_files: of the snapshot, which `ordinals` index. deletes: 0 for a live row; see `deleted_by`.
    rows_scanned: with those that were read for the keys of pending deletes.
    """

    keys: Int64Array
    data_files: DataFiles
    ordinals: Int64Array
    positions: Int64Array
    deletes: npt.NDArray[np.uint8]
    data_files_scanned: int
    rows_scanned: int

    @property
    def is_live(self) -> npt.NDArray[np.bool_]:
        is_live: npt.NDArray[np.bool_] = self.deletes == _LIVE
        return is_live

    @property
    def deleted_by(self) -> list[str | None]:
        """The kind of delete of each row; None for a live one."""
        return [_NAMES[one] for one in self.deletes.tolist()]


@dataclass(slots=True)
class _Scanned:
    """What one question reads of data files beside the rows that it finds."""

    files: int = 0
    rows: int = 0
    is_bounded: bool = True

    def add(self, files: int, rows: int, why: str, remedy: str = "") -> None:
        """Before they are read. Raises NotCoveredError."""
        self.files += files
        self.rows += rows
        if self.is_bounded and (self.files > SCANNED_FILES or self.rows > SCANNED_ROWS):
            raise NotCoveredError(
                f"{self.rows:,} rows in {counted(self.files, 'data file')} would have to be read,"
                f" since {why}; at most {SCANNED_ROWS:,} in {SCANNED_FILES:,} are.",
                remedy,
            )


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows of data files that have one of the keys, by its number; why: a file could not be read."""

    ordinals: Int64Array
    positions: Int64Array
    numbers: Int64Array
    why: Reason | None = None


@dataclass(frozen=True, slots=True)
class ScanForKeysTask:
    """Reads the key columns of some data files, until more than `most` rows are found. Pickles.

    ordinals: of the files, one each.
    """

    reader: KeyReader
    files: DataFiles
    ordinals: Int64Array
    most: int | None

    def run(self, wanted: DeleteKeys) -> _Found:
        parts, why = [(_NOTHING, _NOTHING, _NOTHING)], None
        try:
            for part in self._find(wanted):
                parts.append(part)
                if self.most is not None and sum(len(rows) for rows, _, _ in parts) > self.most:
                    break
        except KeyColumnError as error:
            why = error.reason
        except FileNotFoundError as error:
            why = missing_file(error)
        ordinals, positions, numbers = map(np.concatenate, zip(*parts, strict=True))
        return _Found(ordinals, positions, numbers, why)

    def _find(self, wanted: DeleteKeys) -> Iterator[tuple[Int64Array, Int64Array, Int64Array]]:
        for ordinal, file in zip(self.ordinals.tolist(), self.files, strict=True):
            start = 0
            for keys in _key_batches(self.reader, file):
                rows, numbers = wanted.find(keys, _ANYWHERE)
                yield np.full(len(rows), ordinal), start + rows, numbers - ANY_AGE
                start += keys.num_rows


class RunTasks(Protocol):
    """As `Job.each_task`."""

    def __call__(
        self, stage: str, tasks: Sequence[Any], shared: Any, planned_rows: int, row_cost: float = 1.0, /
    ) -> Iterable[Any]: ...


def _run_here(_: str, tasks: Sequence[Any], shared: Any, *__: float) -> Iterable[Any]:
    """Of a question: data files one after the other, files of the index at once."""
    at_once = map if len(tasks) < 2 or isinstance(tasks[0], ScanForKeysTask) else _threads.map
    return at_once(lambda task: task.run(shared), tasks)


class Coverage:
    """What an index knows of a snapshot, and what is left to be scanned."""

    def __init__(
        self,
        table: TableSnapshot,
        key_set: KeySet,
        index: KeySetIndex | None,
        *,
        only: Int64Array | None = None,
        run_tasks: RunTasks | None = None,
        parallelism: int = 1,
    ) -> None:
        """only: ordinals of the data files that are asked about; None for all. run_tasks, parallelism: of a
        job, which is not refused beyond the bounds of what is scanned, as a question is."""
        self.table = table
        self._is_bounded = run_tasks is None
        self._run_tasks = run_tasks or _run_here
        self._parallelism = parallelism
        self.index = index
        self._reader: KeyReader = key_reader(table.metadata, table.storage, key_set)
        data_files = table.files.data_files
        asked = np.zeros(len(data_files), np.bool_)
        asked[slice(None) if only is None else only] = True
        covered = np.zeros(len(data_files), np.bool_)
        if index is not None and asked.any():
            covered = index.dictionary.covers(data_files) & asked
        if index is not None:
            self._rows = LiveRows(index.dictionary, data_files, np.flatnonzero(covered))
        self._looked_up = np.flatnonzero(covered)
        self._scanned = np.flatnonzero(asked & ~covered)

    @property
    def key_set(self) -> KeySet:
        return self._reader.key_set

    @property
    def files_from_index(self) -> int:
        return len(self._looked_up)

    @property
    def files_left(self) -> int:
        """Data files that the index does not cover: they are read for each question."""
        return len(self._scanned)

    def find(self, asked: pa.RecordBatch, most: int | None = None) -> Places:
        """asked: keys as `KeySet.schema`; equal ones may repeat, and each of them is answered. most: places,
        live or not.

        Raises NotCoveredError, AnswerTooLargeError, UnreadableError, FileNotFoundError for a file of the
        index that is gone, and OSError (a retry can help).
        """
        left = self.table.files.data_files.select(self._scanned)
        scanned = _Scanned(is_bounded=self._is_bounded)
        if self.index is None:
            why, remedy = "there is no index of this key", _no_index(self.key_set)
        else:
            why, remedy = "they are not indexed yet", ""
        scanned.add(len(left), left.record_count, why, remedy)
        wanted = DeleteKeys.numbered(asked)
        parts, found = [(_NOTHING, _NOTHING, _NOTHING)], 0
        for part in chain(self._look_up(wanted), self._scan(wanted, most)):
            found += len(part[0])
            _check_count(found, most)
            parts.append(part)
        ordinals, positions, numbers = map(np.concatenate, zip(*parts, strict=True))
        keys, rows = _repeated(asked, wanted, numbers, most)
        places = Places(
            keys,
            self.table.files.data_files,
            ordinals[rows],
            positions[rows],
            np.full(len(rows), _LIVE, np.uint8),
            len(left),
            left.record_count,
        )
        _mark_deleted(self.table, self.key_set, asked, places, scanned)
        return replace(places, rows_scanned=scanned.rows)

    def mark_deleted(self, asked: pa.RecordBatch, places: Places) -> None:
        """Says of each place what deletes it in this snapshot. Raises as `find`."""
        scanned = _Scanned(is_bounded=self._is_bounded)
        _mark_deleted(self.table, self.key_set, asked, places, scanned)

    def _look_up(self, wanted: DeleteKeys) -> Iterator[tuple[Int64Array, Int64Array, Int64Array]]:
        if self.index is None or not len(self._looked_up):
            return
        files = self.index.entries.files
        tasks = lookup_tasks(self.index.storage, files, wanted, self._parallelism)
        planned = planned_rows(self.index.storage, tasks, wanted)
        for found in self._run_tasks("lookup", tasks, wanted, planned, row_cost(wanted.key_types)):
            matches, numbers = self._rows.numbered(found)
            yield matches.ordinals, matches.positions, numbers - ANY_AGE

    def _scan(
        self, wanted: DeleteKeys, most: int | None
    ) -> Iterator[tuple[Int64Array, Int64Array, Int64Array]]:
        files = self.table.files.data_files.select(self._scanned)
        groups = balanced(files.record_counts, self._parallelism * 4)
        tasks = [ScanForKeysTask(self._reader, files[group], self._scanned[group], most) for group in groups]
        if not tasks:
            return
        for found in self._run_tasks("scan", tasks, wanted, files.record_count):
            if found.why is not None:
                raise UnreadableError(found.why.reason, found.why.remedy)
            yield found.ordinals, found.positions, found.numbers


def matched_files(
    coverage: Coverage, places: Places
) -> tuple[list[tuple[DataFile, dict[str, Any]]], Int64Array]:
    """Each data file that has a match, with the values of its partition by the names of its spec's fields;
    and for each match the place of its file in that list."""
    specs = {
        spec.spec_id: [field.name for field in spec.fields]
        for spec in coverage.table.metadata.partition_specs
    }
    used, of_match = np.unique(places.ordinals, return_inverse=True)
    files = [
        (file, dict(zip(specs[file.partition.spec_id], json.loads(file.partition.values), strict=True)))
        for file in places.data_files.select(used)
    ]
    return files, of_match


def _no_index(key_set: KeySet) -> str:
    """What to do: a job would index no other keys than it is said here."""
    declared = json.dumps([key_set.column_names])
    return (
        "Run a job of kind `index`, and ask again. It indexes the keys of equality deletes, the identifier"
        " fields, and declared keys. If this one is none of these, declare it before, beside those that are:"
        f" `icestream tables update TABLE --key-sets '{declared}'`."
    )


def _key_batches(reader: KeyReader, file: DataFile) -> Iterator[pa.RecordBatch]:
    with holding(min(file.file_size_bytes, SCAN_BYTES)):
        yield from reader.read_data_file(file)


def _check_count(found: int, most: int | None) -> None:
    if most is not None and found > most:
        raise AnswerTooLargeError(f"The keys have more than {most:,} rows, if equal keys count each.")


def _repeated(
    asked: pa.RecordBatch, wanted: DeleteKeys, numbers: Int64Array, most: int | None
) -> tuple[Int64Array, Int64Array]:
    """(key asked for, row found) for each found row and each of the equal keys that it has.

    numbers: of the key that each row was found by, which is the last of equal ones.
    """
    if len(wanted) == asked.num_rows:  # none are equal
        order = np.argsort(numbers, kind="stable")
        return numbers[order], order
    keys, last = wanted.find(asked, _ANYWHERE)
    keys, last = keys[order := np.argsort(last, kind="stable")], last[order] - ANY_AGE
    low, high = (np.searchsorted(last, numbers, side=side) for side in ("left", "right"))
    counts = high - low
    _check_count(int(counts.sum()), most)
    rows = np.repeat(np.arange(len(numbers)), counts)
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    found = keys[np.repeat(low, counts) + offsets]
    order = np.lexsort((rows, found))
    return found[order], rows[order]


def _mark_deleted(
    table: TableSnapshot, key_set: KeySet, asked: pa.RecordBatch, places: Places, scanned: _Scanned
) -> None:
    """Says of each row what deletes it: as readers do, position deletes and all equality deletes."""
    used = np.unique(places.ordinals).tolist()
    files = dict(zip(used, places.data_files.select(used), strict=True))
    skipped = table.skipped(files.values())
    pending_keys = table.pending
    order = np.argsort(places.ordinals, kind="stable")
    starts = np.searchsorted(places.ordinals[order], [*used, np.iinfo(np.int64).max]).tolist()
    for at, ordinal in enumerate(used):
        rows, file = order[starts[at] : starts[at + 1]], files[ordinal]
        if (found := skipped[at]) is not None:
            positions, by_vector = found
            is_skipped = [position in positions for position in places.positions[rows].tolist()]
            places.deletes[rows[is_skipped]] = _DELETION_VECTOR if by_vector else _POSITION_DELETE
        for pending in pending_keys:
            live = rows[places.is_live[rows]]
            if not len(live):
                break
            if not pending.may_hit(file):
                continue
            if pending.key_set == key_set:
                # Each key once: a long one may have very many rows.
                keys, of_row = np.unique(places.keys[live], return_inverse=True)
                newest = pending.newest_delete(asked.take(pa.array(keys)), file.partition)[of_row]
            else:
                why = f"equality deletes of {', '.join(pending.key_set.column_names)} wait to be converted"
                remedy = "Run a job of kind `convert`, and ask again."
                scanned.add(1, file.record_count, why, remedy)
                newest = _newest_deletes(pending, file, places.positions[live])
            places.deletes[live[newest > file.data_sequence_number]] = _EQUALITY_DELETE


def _newest_deletes(pending: PendingKeys, file: DataFile, positions: Int64Array) -> Int64Array:
    """As `PendingKeys.newest_delete`, of rows of a data file by their keys of another key set."""
    positions, of_row = np.unique(positions, return_inverse=True)
    newest, start = np.zeros(len(positions), np.int64), 0
    with told_as_unreadable():
        for keys in _key_batches(pending.reader, file):
            first, last = np.searchsorted(positions, [start, start + keys.num_rows]).tolist()
            if first < last:
                here = keys.take(pa.array(positions[first:last] - start))
                newest[first:last] = pending.newest_delete(here, file.partition)
            start += keys.num_rows
    return newest[of_row]
