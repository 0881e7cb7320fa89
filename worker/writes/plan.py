"""One plan of a write, from the head that was pinned to its commit; and the same again at later heads.

lookup -> deletes and rows -> commit. Invariant: the commit happens on the very head at which the rows of all
keys were looked for, or not at all. So the write takes effect at once, at its place in the table's history.
It is also for the schema and spec that its files were written for, as the table was loaded last: a REST
catalog is told of the head alone, so these may change in the moment before, as under any writer of Iceberg.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg import types
from pyiceberg.schema import Schema

from stores.table_metadata import UNWRITTEN_TYPES, column_of
from telemetry.plurals import counted
from worker.attempt.indexes import planned_key_sets, usable_index
from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.deletes.commit import check_overtaken, commit_deletes, head_of
from worker.deletes.merge import Blocked
from worker.deletes.stage import DeletesStage
from worker.deletes.write import WrittenDeletes
from worker.index.warehouse import IndexWarehouse
from worker.keys.key_set import KeySet
from worker.keys.schema_fields import column_names_of, field_ids_of, resolve_key_set
from worker.lookup.cost import Source
from worker.lookup.resolution import Choice, explain
from worker.process.errors import JobError
from worker.query.errors import UnreadableError
from worker.table.avro_files import UnsupportedTableError
from worker.table.commit import CommitFate, CommittedSnapshot
from worker.table.row_delta import layout_of_new_rows
from worker.writes import changes
from worker.writes.changes import Changes
from worker.writes.data_files import NewRows, WrittenRows
from worker.writes.live_rows import KeysInTable, LiveRows
from worker.writes.rows import DuplicateKeysError, InvalidRowsError, last_of_each_key
from worker.writes.sent_rows import read_sent

LEFT_OUT = "icestream.left-out"
LEFT_OUT_TOLD = 1_000
"""Rows that were not written are named, by their numbers: so many of them, since snapshots keep them."""
_ORDERED = (
    types.IntegerType
    | types.LongType
    | types.FloatType
    | types.DoubleType
    | types.DecimalType
    | types.DateType
    | types.TimeType
    | types.TimestampType
    | types.TimestamptzType
    | types.TimestampNanoType
    | types.TimestamptzNanoType
    | types.StringType
)
# Counts in a job's result, and the snapshot properties that keep them for an attempt that finds the commit.
SUMMARY = {
    name: f"icestream.{name.replace('_', '-')}"
    for name in (
        "rows_added",
        "rows_deleted",
        "rows_left_out",
        "data_files_added",
        "data_files_touched",
        "delete_files_added",
        "bytes_written",
    )
} | {"delete_files_removed": "icestream.delete-files-merged"}


class NoKeyError(JobError):
    code = "no_key"
    title = "It is not known by which key rows are written"
    remedy = "Name the columns of the key (key_columns)."


class BlockedRowsError(JobError):
    code = "rows_blocked"
    title = "A row that has one of the keys can't be deleted"


@dataclass(frozen=True, slots=True)
class Part:
    """What a plan comes to at one head. left_out: numbers of the first rows that were sent and are not
    written."""

    changes: Changes
    deletes: WrittenDeletes
    rows: WrittenRows
    left_out: list[int]

    @property
    def is_empty(self) -> bool:
        return not self.deletes.added and not len(self.changes.added)

    @property
    def summary(self) -> dict[str, str]:
        """Snapshot properties that tell what the commit did; see `SUMMARY`."""
        counts = {
            "rows_added": len(self.changes.added),
            "rows_deleted": self.deletes.rows_deleted,
            "rows_left_out": len(self.changes.left_out),
            "data_files_added": len(self.rows.files),
            "data_files_touched": len(self.deletes.data_files),
            "delete_files_added": len(self.deletes.added),
            "delete_files_removed": len(self.deletes.removed),
            "bytes_written": self.deletes.bytes_written + self.rows.size_bytes,
        }
        told = {SUMMARY[name]: str(count) for name, count in counts.items()}
        return told | ({LEFT_OUT: json.dumps(self.left_out)} if self.left_out else {})


class Plan:
    """Of rows as the table's schema takes them: made for a layout of the table, resolved at each head."""

    def __init__(self, job: Job, table: PinnedTable, warehouse: IndexWarehouse, number: int) -> None:
        """number: of this attempt's plans, before which there are others; it takes further ones.

        Raises InvalidRowsError, DuplicateKeysError, NoKeyError, KeyColumnError, or as `read_files`.
        """
        self._job = job
        self.number = number
        self.layout = layout_of_new_rows(table.metadata)
        self.fate = CommitFate()
        self.dry_run = job.assignment.job.dry_run
        options = job.assignment.job.write
        if table.metadata.format_version < 2:
            raise UnsupportedTableError("tables of format version 1 have no row-level deletes")
        schema, self._is_deletion = table.metadata.schema(), job.assignment.job.names_keys
        if not self._is_deletion and (unwritten := column_of(schema, UNWRITTEN_TYPES)) is not None:
            name, kind = unwritten
            raise InvalidRowsError(
                f"Values of column {name}, of type {kind}, are not written.",
                "Write rows of this table with its engine; they can be deleted by key.",
            )
        self.key_set = key_set_of(job, table, warehouse)
        if options.only_if_newer_than is not None:
            _check_compared(schema, options.only_if_newer_than)
        with job.stage("read"):
            sent = read_sent(job, table, self.key_set)
        self._rows, keys = sent.rows, sent.keys
        # Of each row that counts, its number among those that were sent.
        self._numbers = last_of_each_key(keys)
        if len(self._numbers) < len(keys) and not self._is_deletion and options.duplicates != "last":
            twice = np.setdiff1d(np.arange(len(keys)), self._numbers)
            first = ", ".join(map(str, twice[:5].tolist()))
            raise DuplicateKeysError(
                f"The key of a later row is also that of {counted(len(twice), 'row')}, such as {first}"
                " (counted from 0)."
            )
        self._keys = keys if len(self._numbers) == len(keys) else keys.take(pa.array(self._numbers))
        index = usable_index(job, table, warehouse, self.key_set)
        self._in_table = KeysInTable(job, warehouse, self.key_set, self._keys, index)
        self._deletes: tuple[DeletesStage, dict[Any, Any], WrittenDeletes] | None = None
        self._new_rows: tuple[NewRows, Changes, WrittenRows] | None = None

    def resolve(self, table: PinnedTable) -> Part:
        """What the write comes to at a head, with its files written; those of an earlier head are used again
        where they are still right.

        Raises CommitConflictError when the table has changed since, BlockedRowsError, UnreadableError, or
        OSError (a retry can help).
        """
        with self._job.stage("lookup"):
            live = self._live_rows(table)
            made = self._changes(live)
        with self._job.stage("deletes"):
            deletes = self._written_deletes(table, live, made)
        with self._job.stage("rows"):
            rows = self._written_rows(table, made)
        return Part(made, deletes, rows, self._numbers[made.left_out[:LEFT_OUT_TOLD]].tolist())

    def commit(
        self, table: PinnedTable, part: Part, properties: Mapping[str, str]
    ) -> CommittedSnapshot | None:
        """None if there is nothing to commit, or in a dry run. properties: further ones of the snapshot."""
        if self.dry_run or part.is_empty:
            return None

        def announce() -> None:
            if self._deletes is not None and part.deletes.added:
                self._deletes[0].announce(only_on=head_of(table))
            if self._new_rows is not None:
                self._new_rows[0].announce(only_on=head_of(table))

        with self.fate.decided(announce) as confirm_lease, self._job.stage("commit"):
            return commit_deletes(
                self._job,
                table,
                part.deletes,
                {**part.summary, **properties},
                confirm_lease,
                rows=part.rows.files,
                layout=self.layout,
            )

    def remove_written(self) -> None:
        """Deletes what was written; only where it is known that it was not committed."""
        for written in (self._deletes, self._new_rows):
            if written is not None:
                written[0].remove_written()
        self._deletes = self._new_rows = None

    def explanation(self) -> dict[str, Any]:
        """Where the rows were looked for, as conversions tell it."""
        scanned, rows = self._in_table.files_scanned, self._in_table.rows_scanned
        if self._in_table.index is None:
            choice = Choice(Source.SCAN, "there is no index of this key")
        elif scanned:
            told = f"{counted(scanned, 'data file')} with {counted(rows, 'row')} not indexed yet: scanned"
            choice = Choice(Source.INDEX_AND_SCAN, told)
        else:
            choice = Choice(Source.INDEX, "the index covers all data files")
        explanation = explain(self.key_set.equality_field_ids, self.key_set.column_names, choice)
        return explanation | {
            "keys": len(self._keys),
            "matches": self._in_table.matches,
            "data_files_from_index": self._in_table.files_from_index,
            "data_files_scanned": scanned,
        }

    def _live_rows(self, table: PinnedTable) -> LiveRows:
        try:
            return self._in_table.live_rows(table)
        except UnreadableError as error:
            check_overtaken(table, error)
            raise

    def _changes(self, live: LiveRows) -> Changes:
        options = self._job.assignment.job.write
        if self._is_deletion or self._rows is None:
            return changes.deletion(live.keys)
        count = len(self._numbers)
        if options.insert_only:
            made = changes.insertion(count, live.keys)
        elif options.only_if_newer_than is not None:
            new = self._rows.column(options.only_if_newer_than).take(pa.array(self._numbers))
            old = live.column(options.only_if_newer_than)
            made = changes.upsert_if_newer(new.cast(old.type), live.keys, old)
        else:
            made = changes.upsert(count, live.keys)
        return made

    def _written_deletes(self, table: PinnedTable, live: LiveRows, made: Changes) -> WrittenDeletes:
        touched = live.touched(made.deleted)
        if self._deletes is not None:
            stage, before, written = self._deletes
            of_removed = table.files.position_deletes.with_paths({one.path for one in written.removed})
            if touched == before and set(written.removed) <= set(of_removed):
                return written
            stage.remove_written()
            self._deletes = None
        if not touched:
            return WrittenDeletes()
        stage = DeletesStage(self._job, table, self._next_number(), dry_run=self.dry_run)
        self._deletes = stage, touched, WrittenDeletes()
        written = stage.write([live.positions(made.deleted, self._job.memory_fraction)])
        self._deletes = stage, touched, written
        if written.blocked:
            _refuse_blocked(table, written.blocked, missing=written.missing)
        return written

    def _written_rows(self, table: PinnedTable, made: Changes) -> WrittenRows:
        if self._new_rows is not None:
            new, before, written = self._new_rows
            if np.array_equal(before.added, made.added):
                return written
            new.remove_written()
            self._new_rows = None
        if self._rows is None or self.dry_run or not len(made.added):
            return WrittenRows()
        new = NewRows(self._job, table, self._next_number())
        self._new_rows = new, made, WrittenRows()
        written = new.write(self._rows, self._numbers[made.added])
        self._new_rows = new, made, written
        return written

    def _next_number(self) -> int:
        self.number += 1
        return self.number - 1


def key_set_of(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> KeySet:
    """The one that is named, or else the table's identifier fields, or else its only one."""
    schema = table.metadata.schema()
    named = job.assignment.job.write.key_columns
    if named is not None:
        return resolve_key_set(table.metadata, field_ids_of(schema, named))
    if schema.identifier_field_ids:
        return resolve_key_set(table.metadata, schema.identifier_field_ids)
    known = sorted(planned_key_sets(job, table, warehouse))
    if len(known) != 1:
        told = "; ".join(", ".join(column_names_of(table.metadata, one)) for one in known)
        raise NoKeyError(
            f"The table has no identifier fields and several key sets: {told}."
            if known
            else "The table has no key set."
        )
    return resolve_key_set(table.metadata, known[0])


def _check_compared(schema: Schema, name: str) -> None:
    kinds = {column.name: column.field_type for column in schema.fields}
    if not isinstance(kinds.get(name), _ORDERED):
        raise InvalidRowsError(
            f"The table has no column {name!r} of numbers, moments or text, by which rows could be newer.",
            "Name one of these columns of the table (only_if_newer_than).",
        )


def _refuse_blocked(table: PinnedTable, blocked: tuple[Blocked, ...], *, missing: bool) -> None:
    first = blocked[0]
    error = BlockedRowsError(f"{first.data_file.path}: {first.why.reason}.", first.why.remedy)
    if missing:
        check_overtaken(table, error)
    raise error


def totals(summary: Mapping[str, str]) -> dict[str, int]:
    return {name: int(summary.get(key, 0)) for name, key in SUMMARY.items()}
