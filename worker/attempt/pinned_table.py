"""The table of a job at the head of its branch: everything else is derived from it.

Invariant: a job pins the head of its branch once and derives everything from it; planning again pins anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from py4j.java_gateway import JavaObject
from pyiceberg.exceptions import ValidationError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from worker.attempt.job import Job
from worker.contract.control_plane import Assignment
from worker.index.key_set_index import database_name
from worker.io.storage import Storage
from worker.process.errors import JobError
from worker.table import catalogs
from worker.table.files import DataFiles, SnapshotFiles
from worker.table.manifests import CorruptMetadataError, UnsupportedTableError, read_snapshot_files

NO_FILES = SnapshotFiles(DataFiles.of(()), (), frozenset())


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
