"""The table of a job at the head of its branch: everything else is derived from it.

Invariant: a job pins the head of its branch once and derives everything from it; planning again pins anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from py4j.java_gateway import JavaObject
from pyiceberg.exceptions import ValidationError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from trust import refusals
from worker.attempt.job import Job
from worker.contract.control_plane import Assignment
from worker.index.key_set_index import database_name
from worker.io.storage import Storage, digest_of
from worker.process.errors import JobError
from worker.table import catalogs
from worker.table.avro_files import UnsupportedTableError
from worker.table.files import NO_FILES, SnapshotFiles
from worker.table.manifests import MissingMetadataError, ReadFiles, read_snapshot_files
from worker.table.record_properties import index_storage_of, resolve_secrets


class BranchNotFoundError(JobError):
    code = "branch_not_found"
    title = refusals.NO_BRANCH
    remedy = "Register the table with one of its branches."


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """A table at the head of its branch; everything else is derived from `metadata` and `snapshot`."""

    java_table: JavaObject
    metadata: TableMetadata
    snapshot: Snapshot | None
    files: SnapshotFiles
    storage: Storage
    branch: str
    read: Mapping[str, bytes] = field(default_factory=dict)
    """Of its metadata, what was read just now: see `ReadFiles`."""

    @property
    def index_database(self) -> str:
        return database_name(str(self.metadata.table_uuid), self.branch)

    @property
    def snapshot_id(self) -> int | None:
        return self.snapshot.snapshot_id if self.snapshot is not None else None


def pin_table(job: Job, *, reads_files: bool = True) -> PinnedTable:
    """Loads the table and reads every live file of the head of the branch, unless these are not needed.

    Of a table that this worker has looked at before, only what is new is read.
    """
    assignment = job.assignment
    java_table = _load(job)
    storage = Storage(
        catalogs.file_io_properties(java_table) | assignment.location_limits,
        # With a table comes what its catalog vends for it.
        renew=lambda: catalogs.file_io_properties(_load(job)),
        identity=identity_of(assignment),
    )
    return _pin(job, java_table, storage, reads_files=reads_files)


def pin_committed(job: Job, table: PinnedTable) -> PinnedTable:
    """The table as the job has just committed to it: Java has looked for the commit, and does not again."""
    return _pin(job, table.java_table, table.storage)


def pin_again(job: Job, *, reads_files: bool = True) -> PinnedTable:
    """The same as a stage of its own, for what was committed meanwhile."""
    with job.stage("plan"):
        return pin_table(job, reads_files=reads_files)


def _load(job: Job) -> JavaObject:
    assignment = job.assignment
    return catalogs.load_table(
        job.runner.spark.sparkContext._jvm,
        assignment.catalog.type,
        assignment.catalog.name,
        catalog_properties(assignment),
        assignment.table.identifier,
        Storage(assignment.location_limits).io.check,
        assignment.egress,
        job.runner.slot,
    )


def identity_of(assignment: Assignment) -> bytes:
    """Of the table's files, for whoever may ask its catalog for them: what it vends changes at each load."""
    table, catalog = assignment.table, assignment.catalog
    return digest_of(
        table.id,
        table.identifier,
        catalog.type,
        catalog.name,
        catalog_properties(assignment),
        assignment.location_limits,
    )


def catalog_properties(assignment: Assignment) -> dict[str, str]:
    """Of the record, with what its references stand for."""
    known = assignment.catalog.properties
    return resolve_secrets(known, assignment.allowed_secrets, assignment.own_files)


def index_storage(assignment: Assignment, tables: Storage) -> Storage:
    """How files of the index are opened: with the catalog's credentials for these, or else as its tables'.

    Raises SecretUnresolvedError, HostNotAllowedError, and OSError for an unknown host.
    """
    return index_storage_of(catalog_properties(assignment), assignment.index.warehouse, assignment, tables)


def read_files(
    metadata: TableMetadata, snapshot: Snapshot, storage: Storage, kept: ReadFiles | None = None
) -> SnapshotFiles:
    """The live files of a snapshot of the job's table; what this worker has read of it is not read again."""
    return read_snapshot_files(metadata, snapshot, storage.io, storage.identity, kept)


def _pin(job: Job, java_table: JavaObject, storage: Storage, *, reads_files: bool = True) -> PinnedTable:
    try:
        return _read(job, java_table, storage, reads_files=reads_files)
    except FileNotFoundError as error:
        raise MissingMetadataError(str(error)) from error
    except ValidationError as error:
        name = ".".join(job.assignment.table.identifier)
        raise UnsupportedTableError(f"{name}: {error}") from error


def _read(job: Job, java_table: JavaObject, storage: Storage, *, reads_files: bool) -> PinnedTable:
    branch = job.assignment.table.branch
    metadata = catalogs.table_metadata(java_table, storage.identity)
    reference = metadata.refs.get(branch)
    if reference is None and branch == "main":
        return PinnedTable(java_table, metadata, None, NO_FILES, storage, branch)
    if reference is None:
        known = ", ".join(sorted(metadata.refs)) or "none yet"
        raise BranchNotFoundError(f"it has no branch {branch}; it has {known}")
    snapshot = metadata.snapshot_by_id(reference.snapshot_id)
    assert snapshot is not None
    kept = ReadFiles()
    files = read_files(metadata, snapshot, storage, kept) if reads_files else NO_FILES
    job.key_sets.update(kind.equality_ids for kind in files.equality_deletes.present_kinds())
    return PinnedTable(java_table, metadata, snapshot, files, storage, branch, kept.contents)
