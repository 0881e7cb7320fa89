"""What an erasure leaves of a table's indexes and of its reports on duplicates, which have keys.

Those of a branch lie in a database of its own, also after the branch was dropped. An erasure may write what
is its own branch's, and deletes what no branch has any more; of other branches it tells. Invariant: nothing
in any database of the table is taken to be without a key that was not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType

from worker.attempt.indexes import usable_index
from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.erasure.holds import Hold
from worker.erasure.keys import IN_EVERY_PARTITION, ErasedKeys
from worker.erasure.report import Findings
from worker.erasure.trace import Trace, unreadable
from worker.index.key_set_index import (
    DamagedIndexError,
    database_name,
    databases_of,
    drop_index_of,
    holds_only,
    indexed_key_sets,
    open_index,
)
from worker.index.warehouse import REPORTS, IndexWarehouse
from worker.io.file_formats import open_columns
from worker.io.storage import StoredFile
from worker.jobs.indexing import index_key_set
from worker.keys.key_set import KeyColumnError
from worker.keys.key_types import to_key_type
from worker.keys.read import key_batch
from worker.keys.schema_fields import resolve_key_set
from worker.lookup.index_lookup import ANY_AGE
from worker.process.errors import JobError, Reason
from worker.table.manifests import read_snapshot_files

_KEY, _EXAMPLES = "key", "examples"  # columns of a report


class ErasedIndexes:
    """The indexes and reports of one table while one job erases from it."""

    def __init__(self, job: Job, warehouse: IndexWarehouse, keys: ErasedKeys) -> None:
        self._job = job
        self._warehouse = warehouse
        self._keys = keys

    def clean(self, table: PinnedTable) -> None:
        """No index of the branch has a key that is in no data file of its head, and what nobody uses is gone.

        table: at the head that is there now. Raises OSError if the place can't be listed (a retry can help).
        """
        self._clean_own(table)
        branches = _branches(table.metadata)
        for database in self._databases(table):
            if database == table.index_database:
                self._remove_reports(database)
            elif database not in branches:
                self._job.reporter.confirm_lease(anew=True)
                self._warehouse.drop(database)
                self._job.decide("The index of a branch that was dropped was deleted: it may have the keys.")

    def _databases(self, table: PinnedTable) -> list[str]:
        return databases_of(self._warehouse, str(table.metadata.table_uuid))

    def _clean_own(self, table: PinnedTable) -> None:
        """Also of other key sets: an entry of theirs may be all that is left of a row."""
        job, warehouse, database = self._job, self._warehouse, table.index_database
        live = table.files.data_files
        for ids in indexed_key_sets(warehouse, database):
            try:
                key_set = resolve_key_set(table.metadata, ids)
            except KeyColumnError:  # of no use to anybody
                job.reporter.confirm_lease(anew=True)
                drop_index_of(warehouse, database, ids)
                continue
            index = usable_index(job, table, warehouse, key_set)
            if index is None or not holds_only(warehouse, database, index, live):
                index_key_set(job, table, warehouse, key_set, rebuild=True)
                job.decide(f"Key set {key_set}: its index was built anew, without what is gone.")

    def _remove_reports(self, database: str) -> None:
        if self._reports(database):
            self._job.reporter.confirm_lease(anew=True)
            self._warehouse.drop_table(database, REPORTS)
            self._job.decide("The table's reports on duplicates were deleted, since they may have the keys.")

    def _reports(self, database: str) -> Sequence[StoredFile]:
        """With sorted runs of a job that makes one, or died of it."""
        return self._warehouse.storage.walk(self._warehouse.place_of(database, REPORTS))

    def tell(self, table: PinnedTable, findings: Findings) -> None:
        """Of what is there now: what this job may not write, and what came while it ran."""
        branches = _branches(table.metadata)
        for database in self._databases(table):
            name = branches.get(database)
            if name is None:
                findings.miss(self._warehouse.place_of(database, REPORTS), _CAME_MEANWHILE, holder="index")
                continue
            if name != table.branch:
                self._tell_of_index(table, database, name, findings)
            for file in self._reports(database):
                trace = self._search_report(table.metadata, file)
                remedy = _REPORT_REMEDY.format(branch=name)
                findings.hold(trace.keys, replace(_REPORT, name=file.location, remedy=remedy))
                if trace.why is not None:
                    findings.miss(file.location, trace.why._replace(remedy=remedy), holder="index")

    def _tell_of_index(self, table: PinnedTable, database: str, branch: str, findings: Findings) -> None:
        """What the data files of the branch have is told of these."""
        why = Reason(
            "index_of_branch",
            f"the index of branch {branch} can't be read, or has entries of data files that are gone",
            f"Run a job of kind rebuild on branch {branch}, and erase again.",
        )
        for ids in indexed_key_sets(self._warehouse, database):
            if not self._holds_only_rows_of(table, database, ids, branch):
                place = self._warehouse.place_of(database, f"entries_{'_'.join(map(str, ids))}")
                findings.miss(place, why, holder="index")

    def _holds_only_rows_of(self, table: PinnedTable, database: str, ids: Sequence[int], branch: str) -> bool:
        metadata = table.metadata
        ref = metadata.refs.get(branch)
        head = None if ref is None else metadata.snapshot_by_id(ref.snapshot_id)
        if head is None:
            return False
        try:
            index = open_index(self._warehouse, database, resolve_key_set(metadata, ids))
            live = read_snapshot_files(metadata, head, table.storage.io).data_files
        except (KeyColumnError, DamagedIndexError, FileNotFoundError, JobError):
            return False
        return index is not None and holds_only(self._warehouse, database, index, live)

    def _search_report(self, metadata: TableMetadata, file: StoredFile) -> Trace:
        """A report names its key columns as the schema did when it was made."""
        storage = self._warehouse.storage
        try:
            return self._read_report(metadata, file)
        except FileNotFoundError:
            return Trace()  # whoever wrote it has removed it
        except (JobError, OSError, pa.ArrowException, ValueError, TypeError, LookupError) as error:
            if storage.is_at_fault(error, [file.location], lambda: self._read_report(metadata, file)):
                raise
            return Trace(why=unreadable(error))

    def _read_report(self, metadata: TableMetadata, file: StoredFile) -> Trace:
        columns = self._keys.key_set.columns
        found: set[int] = set()
        with open_columns(self._warehouse.storage, file.location, "parquet", file.size_bytes) as source:
            if _KEY not in source.schema.names:
                return Trace(why=_SORTED_RUN)
            named = {field.name for field in source.schema.field(_KEY).type}
            has_key = named.issuperset(column.name for column in columns)
            if not has_key and not named.issubset(metadata.schema().column_names):
                return Trace(why=_OTHER_COLUMNS)
            for batch in source.batches([(name,) for name in source.schema.names]):
                if has_key:
                    of_key = batch.column(_KEY)
                    arrays = [to_key_type(of_key.field(column.name), column) for column in columns]
                    keys = key_batch(self._keys.key_set, arrays)
                    _, numbers = self._keys.wanted.find(keys, IN_EVERY_PARTITION)
                    found.update((np.unique(numbers) - ANY_AGE).tolist())
                for path in _paths(batch.column(_EXAMPLES)):
                    found |= self._keys.in_path(path)
        return Trace(frozenset(found), size_bytes=file.size_bytes)


def _paths(examples: Any) -> set[str]:
    return {one["data_file"] for one in chain.from_iterable(examples.to_pylist())}


def _branches(metadata: TableMetadata) -> Mapping[str, str]:
    """The branches by the databases of their indexes. A table without a snapshot has an empty main one."""
    names = [name for name, ref in metadata.refs.items() if ref.snapshot_ref_type is SnapshotRefType.BRANCH]
    return {database_name(str(metadata.table_uuid), name): name for name in ["main", *names]}


_CAME_MEANWHILE = Reason(
    "index_came_meanwhile",
    "the index of a branch that is not there came while the job ran",
    "Erase again.",
)
_REPORT = Hold("index", "A report on duplicates of another branch names the key.", "")
_REPORT_REMEDY = (
    "Run a job of kind report_duplicates on branch {branch}, which replaces its reports, and erase again."
)
_SORTED_RUN = Reason(
    "unfinished_report", "it is part of a report on duplicates that is being made, or was not finished", ""
)
_OTHER_COLUMNS = Reason(
    "columns_of_report", "it is a report on duplicates by columns that the table no longer has", ""
)
