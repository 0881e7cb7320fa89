"""What every job has: its assignment, the pinned table, where it tells what it does, and its outcome.

Invariant: a job pins the head of its branch once and derives everything from it; planning again pins anew.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from py4j.java_gateway import JavaObject
from pyiceberg.exceptions import ValidationError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from telemetry.traces import span
from worker.contract.control_plane import AnnouncedPlan, Assignment, AttemptId
from worker.index.key_set_index import (
    DamagedIndexError,
    KeySetIndex,
    database_name,
    indexed_key_sets,
    open_index,
)
from worker.index.sorted_runs import IndexWarehouse
from worker.io.storage import Storage
from worker.keys.key_set import KeyColumnError, KeySet
from worker.keys.schema_fields import field_ids_of, resolve_key_set
from worker.spark.tasks import TaskRunner, Work
from worker.table import catalogs
from worker.table.files import DataFiles, SnapshotFiles
from worker.table.manifests import CorruptMetadataError, UnsupportedTableError, read_snapshot_files

MAX_HALVINGS = 6
NO_FILES = SnapshotFiles(DataFiles.of(()), (), frozenset())


class JobError(Exception):
    """Why a job failed, in the words its user reads: what happened, the cause, and what to do."""

    def __init__(self, code: str, title: str, detail: str, remedy: str, *, retryable: bool = False) -> None:
        super().__init__(f"{title}: {detail}")
        self.code = code
        self.title = title
        self.detail = detail
        self.remedy = remedy
        self.retryable = retryable


class Reporter(Protocol):
    """Where a job tells what it does. Each call may raise JobCancelledError or StaleAttemptError."""

    @property
    def seconds_ahead(self) -> float:
        """Of this machine's clock, at least, before the control plane's when it answered last."""

    def progress(self, stage: str, done: int, total: int, unit: str, message: str | None = None) -> None: ...

    def decide(self, sentence: str) -> None:
        """Records a decision for the job's history."""

    def confirm_lease(self) -> None:
        """Asks the control plane whether this attempt still holds the job; raises if not."""

    def announce(self, plan: AnnouncedPlan) -> None:
        """Confirms the lease, and tells which delete files are about to be written or committed."""

    def grant_addresses(self, rows: int, at_least: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Unconvertible:
    """An equality delete file that stays in the table, and why."""

    file_path: str
    code: str
    reason: str
    remedy: str


@dataclass(slots=True)
class Outcome:
    """What a job hands back: its result, and the health of the table's indexes after it.

    cleared: attempts of which nothing is left behind any more; see worker.jobs.leftovers.
    """

    result: dict[str, Any]
    health: dict[str, Any]
    cleared: Sequence[AttemptId] = ()


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """A table at the head of its branch; everything else is derived from `metadata` and `snapshot`."""

    java_table: JavaObject
    metadata: TableMetadata
    snapshot: Snapshot | None
    files: SnapshotFiles
    storage: Storage
    branch: str

    @property
    def index_database(self) -> str:
        return database_name(str(self.metadata.table_uuid), self.branch)

    @property
    def snapshot_id(self) -> int | None:
        return self.snapshot.snapshot_id if self.snapshot is not None else None


@dataclass(slots=True)
class Account:
    """What an attempt took so far, however it ends.

    stages: each with its name, seconds, planned rows, and what its tasks came to (`Work`).
    rows: planned rows that its tasks went through. bytes: read of the index, of keys in data files and of
    equality deletes that are converted, and written as index and delete files.
    """

    stages: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def stage(self, name: str) -> dict[str, Any]:
        for known in self.stages:
            if known["name"] == name:
                return known
        self.stages.append({"name": name, "seconds": 0.0, "rows": 0, **asdict(Work())})
        return self.stages[-1]


@dataclass(slots=True)
class Job:
    """One attempt at a job, with all that its stages need."""

    assignment: Assignment
    runner: TaskRunner
    reporter: Reporter
    decisions: list[str] = field(default_factory=list)
    account: Account = field(default_factory=Account)

    @property
    def stages(self) -> list[dict[str, Any]]:
        return self.account.stages

    @property
    def halvings(self) -> int:
        """How often this attempt halves what it holds in memory.

        As often as the policy says, for each earlier attempt that may have died of too much, and for those
        that share the process.
        """
        return self.own_halvings + self.runner.slot.halvings

    @property
    def own_halvings(self) -> int:
        """The same without those that share the process."""
        suspects = [one for one in self.assignment.previous_attempts if one.may_lack_memory]
        return min(self.halvings_of_policy + len(suspects), MAX_HALVINGS)

    @property
    def halvings_of_policy(self) -> int:
        return math.ceil(-math.log2(self.assignment.policy.resources.memory_fraction))

    @property
    def commit_halvings(self) -> int:
        """How often this attempt halves what it commits at once: a commit lies in the JVM's heap as a whole,
        and one that is full says so."""
        suspects = [one for one in self.assignment.previous_attempts if one.told_lack_of_memory]
        return min(len(suspects), MAX_HALVINGS)

    def decide(self, sentence: str) -> None:
        self.decisions.append(sentence)
        self.reporter.decide(sentence)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.reporter.progress(name, 0, 0, "")
        started = time.monotonic()
        try:
            with span(name):
                yield
        finally:
            known = self.account.stage(name)
            known["seconds"] = round(known["seconds"] + time.monotonic() - started, 3)

    def run_tasks(self, stage: str, tasks: Sequence[Any], shared: Any, planned_rows: int) -> list[Any]:
        return list(self.each_task(stage, tasks, shared, planned_rows))

    def each_task(self, stage: str, tasks: Sequence[Any], shared: Any, planned_rows: int) -> Iterator[Any]:
        """Results as they come. planned_rows: what all tasks together may read.

        Progress is told in rows, as each task comes to its share of them.
        """

        counted = 0
        counter = _WorkCounter(self.account, stage)

        def on_progress(done: float) -> None:
            nonlocal counted
            rows = int(planned_rows * min(done / len(tasks), 1.0))
            self.account.rows += rows - counted
            self.account.stage(stage)["rows"] += rows - counted
            counted = rows
            self.reporter.progress(stage, rows, planned_rows, "rows", counter.words)

        yield from self.runner.run(
            tasks,
            shared,
            planned_rows=planned_rows,
            on_progress=on_progress,
            on_work=counter.count,
            about=self._about(stage),
        )

    def shuffle(
        self, stage: str, tasks: Sequence[Any], shared: Any, reducer: Any, partitions: int
    ) -> Iterator[Any]:
        """See `TaskRunner.shuffle`."""

        counter = _WorkCounter(self.account, stage)

        def on_progress(done: int, total: int) -> None:
            self.reporter.progress(stage, done, total, "tasks", counter.words)

        yield from self.runner.shuffle(
            tasks,
            shared,
            reducer,
            partitions,
            on_progress=on_progress,
            on_work=counter.count,
            about=self._about(stage),
        )

    def _about(self, stage: str) -> str:
        return f"{stage} of job {self.assignment.job.id}, attempt {self.assignment.attempt}"


class _WorkCounter:
    """Adds what one call's tasks come to, told again and again, to a stage of the account."""

    def __init__(self, account: Account, stage: str) -> None:
        self._account = account
        self._stage = stage
        self._work = Work()

    def count(self, work: Work) -> None:
        stage, before = self._account.stage(self._stage), asdict(self._work)
        for name, value in asdict(work).items():
            grown = stage[name] + value - before[name]
            stage[name] = round(grown, 3) if isinstance(value, float) else grown
        self._work = work

    @property
    def words(self) -> str | None:
        """What Spark does, for people; None while nothing runs there."""
        work = self._work
        if not work.tasks_on_spark and not work.failed_tasks:
            return None
        return (
            f"On Spark: {work.tasks_on_spark:,} tasks done, {work.failed_tasks:,} failed,"
            f" {work.spilled_bytes:,} bytes spilled"
        )


def pin_table(job: Job) -> PinnedTable:
    """Loads the table and reads every live file of the head of the branch."""
    assignment = job.assignment
    jvm = job.runner.spark.sparkContext._jvm
    identifier = ".".join(assignment.table.identifier)
    try:
        java_table = catalogs.load_table(
            jvm,
            assignment.catalog.type,
            assignment.catalog.name,
            catalogs.resolve_secrets(
                assignment.catalog.properties, assignment.allowed_secrets, assignment.own_files
            ),
            assignment.table.identifier,
            Storage(assignment.location_limits).io.check,
            assignment.reach,
            job.runner.slot,
        )
    except catalogs.TableNotFoundError as error:
        raise JobError(
            "table_not_found",
            f"The catalog has no table {identifier}",
            str(error),
            "Register the table under its present name, or remove it here if it was dropped.",
        ) from error
    except catalogs.StoreNotSupportedError as error:
        raise JobError(
            "store_not_supported",
            f"This worker can't open tables on the store of {identifier}",
            str(error),
            f"Start the worker with {error.store} in ICESTREAM_STORES, which fetches them (an image gets them"
            f" with --build-arg STORES={error.store}), then retry.",
        ) from error
    except catalogs.CodeNotAllowedError as error:
        raise JobError(
            "property_not_allowed",
            f"Catalog {assignment.catalog.name} chooses code",
            str(error),
            "Take that out of the catalog's properties, or of what they refer to.",
        ) from error
    except catalogs.CatalogError as error:
        raise JobError(
            "catalog_unreachable",
            f"Catalog {assignment.catalog.name} can't be used",
            str(error),
            "Check the catalog, correct its address or credentials, then retry.",
            retryable=isinstance(error, catalogs.CatalogUnreachableError),
        ) from error
    storage = Storage(catalogs.file_io_properties(java_table) | assignment.location_limits)
    try:
        return _pin(java_table, storage, assignment.table.branch)
    except FileNotFoundError as error:
        raise JobError(
            "metadata_missing",
            "A metadata file of the table is missing",
            str(error),
            "If the table's snapshots were expired meanwhile, retry; otherwise restore the file.",
            retryable=True,
        ) from error
    except CorruptMetadataError as error:
        raise JobError(
            "metadata_damaged",
            "A metadata file of the table is damaged",
            str(error),
            "Restore that file, or roll the table back to a snapshot before it; nothing was changed.",
        ) from error
    except (UnsupportedTableError, ValidationError) as error:
        # PyIceberg's model of the metadata knows no variant and no geometry yet.
        raise JobError(
            "unsupported_table", f"{identifier} can't be planned", str(error), "Convert it with another tool."
        ) from error


def index_storage(assignment: Assignment, tables: Storage) -> Storage:
    """How files of the index are opened: with the catalog's credentials for these, or else as its tables'.

    Raises SecretUnresolvedError, HostNotAllowedError, and OSError for an unknown host.
    """
    properties = catalogs.resolve_secrets(
        assignment.catalog.properties, assignment.allowed_secrets, assignment.own_files
    )
    given = catalogs.index_file_io_properties(properties, assignment.index.warehouse)
    if not given:
        return tables
    assignment.reach.check(given)
    return Storage(given | assignment.location_limits)


def _pin(java_table: JavaObject, storage: Storage, branch: str) -> PinnedTable:
    io = storage.io
    metadata = FromInputFile.table_metadata(
        io.new_input(java_table.operations().current().metadataFileLocation())
    )
    reference = metadata.refs.get(branch)
    if reference is None and branch == "main":
        return PinnedTable(java_table, metadata, None, NO_FILES, storage, branch)
    if reference is None:
        raise JobError(
            "branch_not_found",
            f"The table has no branch {branch}",
            f"it has {', '.join(sorted(metadata.refs)) or 'none yet'}",
            "Register the table with one of its branches.",
        )
    snapshot = metadata.snapshot_by_id(reference.snapshot_id)
    assert snapshot is not None
    return PinnedTable(
        java_table, metadata, snapshot, read_snapshot_files(metadata, snapshot, io), storage, branch
    )


def planned_key_sets(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> dict[tuple[int, ...], str]:
    """Field ids -> where the key set comes from.

    Equality deletes, a declaration, an index, an earlier report, or else the table's identifier fields.
    """
    found = {delete.equality_ids: "equality_deletes" for delete in table.files.equality_deletes}
    schema = table.metadata.schema()
    for columns in job.assignment.table.key_sets or []:
        # A declared column may be gone; index jobs tell of it.
        with suppress(KeyColumnError):
            found.setdefault(field_ids_of(schema, columns), "declared")
    for ids in indexed_key_sets(warehouse, table.index_database):
        found.setdefault(ids, "index")
    # The first conversion may come before the first indexing, and leaves no delete that names its key.
    for seen in job.assignment.table.seen_equality_field_ids:
        found.setdefault(tuple(seen), "earlier_report")
    if not found and schema.identifier_field_ids:
        found[tuple(sorted(schema.identifier_field_ids))] = "identifier_fields"
    return found


def outcome(
    job: Job,
    table: PinnedTable,
    warehouse: IndexWarehouse,
    result: dict[str, Any],
    files: SnapshotFiles,
    unconvertible: Sequence[Unconvertible],
    iceberg_snapshot_id: int | None,
    cleared: Sequence[AttemptId] = (),
) -> Outcome:
    """Adds what every result tells, and measures the indexes as they are now.

    files: live after the job. The index report is about them.
    """
    with job.stage("report"):
        health = index_report(job, table, warehouse, files, unconvertible, iceberg_snapshot_id)
    refused = [asdict(one) for one in unconvertible]
    full = {**result, "unconvertible": refused, "decisions": job.decisions, "stages": job.stages}
    return Outcome(full, health, cleared)


def indexes(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Iterator[KeySetIndex]:
    """Every usable index of the table; of a damaged one the job's history tells."""
    for ids in indexed_key_sets(warehouse, table.index_database):
        try:
            key_set = resolve_key_set(table.metadata, ids)
        except KeyColumnError:
            continue
        index = usable_index(job, table, warehouse, key_set)
        if index is not None:
            yield index


def usable_index(
    job: Job, table: PinnedTable, warehouse: IndexWarehouse, key_set: KeySet
) -> KeySetIndex | None:
    """The index of a key set; None when there is none, or a damaged one, of which the job's history tells."""
    try:
        return open_index(warehouse, table.index_database, key_set)
    except DamagedIndexError as error:
        sentence = f"Key set {key_set}: {error}. The next index job makes a new one."
        if sentence not in job.decisions:
            job.decide(sentence)
        return None


def index_report(
    job: Job,
    table: PinnedTable,
    warehouse: IndexWarehouse,
    files: SnapshotFiles,
    unconvertible: Sequence[Unconvertible],
    iceberg_snapshot_id: int | None,
) -> dict[str, Any]:
    """Coverage and size of every key set's index, and what is still pending."""
    live_files = files.data_files
    key_sets = []
    for ids, origin in planned_key_sets(job, table, warehouse).items():
        try:
            key_set = resolve_key_set(table.metadata, ids)
        except KeyColumnError:
            continue
        index = usable_index(job, table, warehouse, key_set)
        covered = int(index.dictionary.covers(live_files).sum()) if index else 0
        key_sets.append(
            {
                "equality_field_ids": list(ids),
                "columns": key_set.column_names,
                "generation": index.generation if index else 0,
                "source": origin,
                "files_covered": covered,
                "files_total": len(live_files),
                "coverage": covered / len(live_files) if live_files else 1.0,
                "entries": index.entries.rows if index else 0,
                "bytes": index.entries.size_bytes if index else 0,
                "sorted_runs": index.entries.sorted_runs if index else 0,
                "dead_ratio": index.dead_ratio(live_files) if index else 0.0,
            }
        )
    return {
        "iceberg_snapshot_id": iceberg_snapshot_id,
        "key_sets": key_sets,
        "unconvertible": [asdict(one) for one in unconvertible],
        "pending_equality_delete_files": len(files.equality_deletes),
        "pending_equality_deletes": sum(file.record_count for file in files.equality_deletes),
    }
