"""Resolves more delete keys than the driver should hold: Spark sorts them into key ranges.

read (a sample) -> cuts -> shuffle by partition and key range -> index | lookup, range by range in Spark's
tasks. The driver holds the cuts, and the matches of one range at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from worker.attempt.outcome import Unconvertible
from worker.index.dictionary import PARTITION_ID
from worker.index.run_files import RunFile
from worker.io.sorting import Int64Array, contiguous, sort_order, sort_rows
from worker.io.storage import Storage
from worker.keys.key_set import NULL_MASK, KeyColumnError
from worker.keys.read import KeyReader, missing_file
from worker.lookup.index_lookup import DeleteKeys, LiveRows, Matches, ScanTask, lookup_tasks
from worker.table.files import DeleteFile

# (partition_id, data sequence number, keys)
KeyBatch = tuple[int, int, pa.RecordBatch]

SAMPLES_PER_RANGE = 256


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Reads the keys of one delete file, or a sample of them. Pickles."""

    reader: KeyReader
    file: DeleteFile
    every: int = 1

    def run(self, _: object) -> KeysRead:
        sample: list[pa.RecordBatch] = []
        null_columns = 0
        # Each file begins elsewhere: every key has the same chance, in small files too.
        skipped = zlib.crc32(self.file.path.encode()) % self.every
        try:
            for keys in self.reader.read_delete_file(self.file):
                rows = keys.num_rows
                null_columns |= int(np.bitwise_or.reduce(keys.column(NULL_MASK).to_numpy(), initial=0))
                if self.every > 1:
                    keys = keys.take(pa.array(np.arange(skipped, rows, self.every)))
                    skipped = (skipped - rows) % self.every
                sample.append(keys)
            return KeysRead(self.file, tuple(sample), null_columns=null_columns)
        except KeyColumnError as error:
            refused = Unconvertible(self.file.path, *error.reason)
        except FileNotFoundError as error:
            refused = Unconvertible(self.file.path, *missing_file(error))
        return KeysRead(self.file, (), refused)


@dataclass(frozen=True, slots=True)
class KeysRead:
    """The keys of a delete file, or a sample of them, or why they can't be read.

    null_columns: bit i is set if key column i is null in some key, in the sample or not.
    """

    file: DeleteFile
    batches: tuple[pa.RecordBatch, ...]
    refused: Unconvertible | None = None
    null_columns: int = 0

    def in_partitions(self, partition_ids: Iterable[int]) -> Iterator[KeyBatch]:
        """partition_ids: those that its deletes apply in, or GLOBAL alone."""
        for partition_id in partition_ids:
            for keys in self.batches:
                yield partition_id, self.file.data_sequence_number, keys


@dataclass(frozen=True, slots=True)
class ShuffleTask:
    """Sends the keys of one delete file to their ranges. Pickles.

    partition_ids: as of `KeysRead.in_partitions`.
    """

    reader: KeyReader
    file: DeleteFile
    partition_ids: tuple[int, ...]

    def run(self, cuts: pa.Table) -> Iterator[tuple[int, KeyBatch]]:
        number = self.file.data_sequence_number
        for keys in self.reader.read_delete_file(self.file):
            for partition_id in self.partition_ids:
                ranges = ranges_of(partition_id, keys, cuts)
                order = np.argsort(ranges, kind="stable")
                starts = np.searchsorted(ranges[order], np.arange(cuts.num_rows + 2))
                for i in np.flatnonzero(np.diff(starts)).tolist():
                    chosen = keys.take(pa.array(order[starts[i] : starts[i + 1]]))
                    yield i, (partition_id, number, chosen)


def cuts_between(samples: Sequence[KeyBatch], ranges: int, schema: pa.Schema) -> pa.Table:
    """ranges - 1 keys at most, ascending, with about as many samples between each two of them.

    schema: of the keys. The result begins with their partition_id.
    """
    rows = pa.concat_tables(
        [
            _key_schema(schema).empty_table(),
            *(_with_partition(partition_id, keys) for partition_id, _, keys in samples),
        ]
    )
    ordered = sort_rows(rows)
    places = np.unique(np.arange(1, ranges) * ordered.num_rows // ranges)
    return ordered.take(pa.array(places[places < ordered.num_rows])).combine_chunks()


def ranges_of(partition_id: int, keys: pa.RecordBatch, cuts: pa.Table) -> Int64Array:
    """For each key the number of cuts that are not above it."""
    rows = pa.concat_tables([cuts, _with_partition(partition_id, keys)])
    order = sort_order([contiguous(column) for column in rows.columns])
    # The sort is stable, and the cuts came first: an equal key lies above its cut.
    ranges = np.empty(len(order), np.int64)
    ranges[order] = np.cumsum(order < cuts.num_rows)
    return ranges[cuts.num_rows :]


def _with_partition(partition_id: int, keys: pa.RecordBatch) -> pa.Table:
    ids = pa.repeat(pa.scalar(partition_id, pa.int64()), keys.num_rows)
    return pa.Table.from_arrays([ids, *keys.columns], schema=_key_schema(keys.schema))


def _key_schema(keys: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(PARTITION_ID, pa.int64()), *keys])


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Finds the rows that the keys of one range delete. Pickles.

    live: the rows of the files that the index answers for, if any; scan: of all others.
    """

    storage: Storage
    reader: KeyReader
    index_files: tuple[RunFile, ...]
    live: LiveRows | None
    scan: ScanTask

    def run(self, batches: Iterable[KeyBatch]) -> RangeMatches:
        keys = DeleteKeys.of(batches, self.reader.key_set.schema)
        parts = [self.scan.run(keys)]
        if self.live is not None:
            tasks = lookup_tasks(self.storage, self.index_files, keys, 1)
            parts += [self.live.of(task.run(keys)) for task in tasks]
        return RangeMatches(len(keys), Matches.combined(parts))


@dataclass(frozen=True, slots=True)
class RangeMatches:
    """What one range of keys matched; keys: how many distinct ones."""

    keys: int
    matches: Matches
