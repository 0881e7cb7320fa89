"""Steps of the worker that change the index: its own jobs, of which only what Java would do is left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from unittest.mock import patch

from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from tests.jobs import RecordingReporter
from tests.lookups.drawing import Setup
from tests.lookups.writing import WritingSteps
from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.contract.control_plane import Assignment
from worker.index.key_set_index import database_name, indexed_key_sets, open_index
from worker.index.warehouse import IndexWarehouse
from worker.jobs.indexing import _compact, index_key_set
from worker.keys.schema_fields import resolve_key_set
from worker.spark.tasks import TaskRunner
from worker.table.files import NO_FILES
from worker.table.manifests import read_snapshot_files

_ASSIGNMENT = Assignment.model_validate(
    {
        "job": {"id": "job", "kind": "index", "dry_run": False},
        "attempt": 1,
        "lease_seconds": 30,
        "table": {"id": "t", "identifier": ["db", "t"], "branch": "main"},
        "catalog": {"name": "none", "type": "sql", "properties": {}},
        "index": {"warehouse": "none"},
        "policy": {},
    }
)


class IndexSteps(WritingSteps):
    """The index of the main branch."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        super().__init__(folder, setup)
        self.index_location = f"{folder.as_uri()}/index"
        self.reporter = RecordingReporter()
        self.may_be_damaged = False
        """Whether a process died that was dropping the index, and none has made it anew since."""
        self._read: dict[str, TableMetadata] = {}
        self._indexed: tuple[int, ...] = ()

    def metadata(self, location: str) -> TableMetadata:
        """Read once."""
        if location not in self._read:
            self._read[location] = FromInputFile.table_metadata(self.table.storage.io.new_input(location))
        return self._read[location]

    def key_set_of(self, rng: Random, key_sets: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """The one that was indexed last, more often than others."""
        return self._indexed if self._indexed in key_sets and rng.random() < 0.5 else rng.choice(key_sets)

    def index(self, rng: Random) -> str:
        return self._index(rng, rebuild=False)

    def rebuild_index(self, rng: Random) -> str:
        return self._index(rng, rebuild=True)

    def _index(self, rng: Random, *, rebuild: bool) -> str:
        """Of all data files, or of some as if the others had come while the job ran."""
        key_sets = self.usable_key_sets(self.table.schema)
        if not key_sets:
            return "no key"
        fields, table = self.key_set_of(rng, key_sets), self._pinned(rng)
        self._indexed = fields
        key_set = resolve_key_set(table.metadata, fields)
        result = index_key_set(self._job(), table, self._warehouse(), key_set, rebuild=rebuild)
        self.may_be_damaged = False
        return f"{key_set}: {result['files_indexed']} files, generation {result['generation']}"

    def compact_index(self, rng: Random) -> str:
        """What it replaces goes at once, more often than not."""
        table, warehouse, said = self._pinned(rng), self._warehouse(), []
        keeps = 3600.0 if rng.random() < 0.3 else 0.0
        for fields in indexed_key_sets(warehouse, table.index_database):
            key_set = resolve_key_set(table.metadata, fields)
            index = open_index(warehouse, table.index_database, key_set)
            if index is None:
                continue
            with patch("worker.index.compaction.KEEP_SECONDS", keeps):
                done = _compact(self._job(), table, warehouse, index)
            said.append(
                f"{key_set}: {done['entries_before']} entries in {done['sorted_runs_before']} runs became"
                f" {done['entries_after']} in {done['sorted_runs_after']}"
            )
        return "; ".join(said) or "no index"

    def drop_index(self, rng: Random) -> str:
        self._warehouse().drop(database_name(self.table.table_uuid, "main"))
        self.may_be_damaged = False
        return "gone"

    def _pinned(self, rng: Random) -> PinnedTable:
        """The head of main; now and then an older one, or without some of its files."""
        metadata, storage = self.metadata(self.table.metadata_location), self.table.storage
        snapshot = metadata.current_snapshot()
        if rng.random() < 0.2 and metadata.snapshots:
            snapshot = rng.choice(metadata.snapshots)
        files = NO_FILES if snapshot is None else read_snapshot_files(metadata, snapshot, storage.io)
        if rng.random() < 0.4 and len(files.data_files) > 1:
            count = rng.randint(1, len(files.data_files) - 1)
            chosen = sorted(rng.sample(range(len(files.data_files)), count))
            files = type(files)(files.data_files.select(chosen), files.delete_files, files.global_spec_ids)
        return PinnedTable(None, metadata, snapshot, files, storage, "main")

    def _job(self) -> Job:
        return Job(_ASSIGNMENT, TaskRunner(None, parallelism=2), self.reporter)  # type: ignore[arg-type]

    def _warehouse(self) -> IndexWarehouse:
        return IndexWarehouse(self.index_location, self.table.storage)
