"""Jobs that delete orphan files, as Iceberg's own action finds them: list -> search -> delete -> report.

Invariants: nothing goes that no dry run has listed before. A file goes only if it lies where the table
writes, is called as Iceberg's writers call theirs, is as old as the request says, and neither Iceberg's
action nor the job's own search of all manifests finds it needed. Where another table may lie in the same
place, nothing goes.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from py4j.protocol import Py4JError
from pyiceberg.exceptions import ValidationError
from pyiceberg.table.metadata import TableMetadata
from pyspark.errors.exceptions.captured import CapturedException

from stores.table_metadata import named_places, parse_table_metadata
from telemetry.plurals import counted
from trust.bounds import LimitExceededError, check_json, unpacked
from trust.locations import AmbiguousLocationError, is_under, normalize_location, parse_location
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome, outcome
from worker.attempt.pinned_table import PinnedTable, pin_again, pin_table
from worker.deletes.existing import FILES_AT_ONCE
from worker.erasure import expiry
from worker.erasure.holds import is_never_deleted_from
from worker.erasure.metadata_files import (
    GZIP,
    MALFORMED,
    metadata_files,
    read_whole,
    statistics_files,
)
from worker.index.warehouse import IndexWarehouse
from worker.io.storage import Storage, StoredFile
from worker.jobs.own_places import FilesElsewhereError, check_own_places
from worker.jobs.spark_actions import ActionError, actions, check_manifests, nothing_deleted
from worker.process.errors import JobError
from worker.process.slots import Threads
from worker.spark.jvm import jvm_of, told_by_java
from worker.table.all_snapshots import paths_of_all_snapshots
from worker.table.catalogs import java_message, raise_lack_of_memory

LISTED_AT_MOST = 1_000
"""Files that a dry run names, and that the removal which goes by it may delete."""
FILES_AT_MOST = 1_000_000
"""In the location, if the job may hold all that jobs usually do: each takes some 400 bytes."""
CANDIDATES_AT_MOST = 100_000
"""Of which Iceberg is asked, the largest first: it holds what it finds twice."""
METADATA_FILES_AT_MOST = 100_000
"""In the location, of which it is looked at whose they are."""
UNNAMED_METADATA_AT_MOST = 100
"""Not in the table's log and no older than that, of which it is looked at what they name."""
_DELETED_AT_ONCE = 100
"""Files: before each of so many it is looked whether somebody has committed meanwhile, and for the lease."""
_SEARCHES_AT_MOST = 20
"""Of what others commit meanwhile, until they pause for as long as a search takes."""
_IN_COMMIT_SECONDS = 3_600
"""A metadata file that is younger may be one that is about to be committed."""
_METADATA = re.compile(r"\.metadata\.json(\.gz)?$")
_SUFFIXES = (".parquet", ".orc", ".avro", ".puffin", ".stats")
_OTHER_FORMATS = re.compile(r"/(_delta_log|\.hoodie)/|/schema/schema-0$")
"""What Delta Lake, Hudi and Paimon have in the location of each of their tables."""
_FIELD = re.compile(r'\s*("(?:[^"\\]|\\.)*")\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)\s*,')
"""Of JSON, and not cut off."""
_HEAD_BYTES = 4096


class OrphanRemovalError(ActionError):
    code = "orphan_removal_failed"
    title = "Orphan files could not be removed"


class OrphansNotListedError(JobError):
    code = "orphans_not_listed"
    title = "The dry run that the removal goes by is no longer valid"
    remedy = "Nothing was deleted. Request another dry run, look at what it lists, and name it."


class TooManyFilesError(JobError):
    code = "too_many_files"
    title = "The table's location has too many files"
    remedy = (
        "Nothing was deleted. Have small data files rewritten and snapshots expire, so that fewer are left, "
        "or remove orphan files by another tool first."
    )


class TableMovedError(JobError):
    code = "table_moved"
    title = "The table has another location by now"
    remedy = "Nothing was deleted. Request a dry run, and look at what it lists."


class TableReplacedError(JobError):
    code = "table_replaced"
    title = "The catalog has another table of this name by now"
    remedy = "Nothing was deleted. Request a dry run of the table that is there now."


class NothingToCompareError(JobError):
    code = "nothing_to_compare"
    title = "It can't be told which files the table needs"


class NamedElsewhereError(JobError):
    code = "files_named_elsewhere"
    title = "The table names files in another place than its location"
    remedy = (
        "Nothing was deleted: both may be names of one place, so nobody can tell what the table needs. "
        "Have all data files written anew (rewrite_data_files), and let the snapshots of before expire; or "
        "give the table the location by which it names its files."
    )


class NewerMetadataError(JobError):
    code = "newer_metadata"
    title = "Another catalog may go on with this table"
    remedy = (
        "Nothing was deleted. If the table is registered in another catalog, too, or on a branch of its "
        "catalog, remove no orphan files. Else that file is left from a commit that failed: delete it."
    )


def remove_orphans(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Deletes the files that a dry run has listed and that are still orphans; a dry run lists them."""
    _check(job, table)
    age_seconds = job.assignment.job.remove_orphan_files.older_than_seconds
    older_than = datetime.now(UTC) - timedelta(seconds=age_seconds + max(job.reporter.seconds_ahead, 0))
    if not job.assignment.job.dry_run:
        if (seen := job.assignment.orphans_older_than) is None:
            raise OrphansNotListedError("It ended more than 7 days ago, or the service has forgotten it.")
        older_than = min(older_than, seen)  # what was written again since, nobody has seen
    location = table.metadata.location.rstrip("/")
    with job.stage("list"):
        files = table.storage.walk(location)
    if len(files) > (most := int(FILES_AT_MOST * job.memory_fraction)):
        raise TooManyFilesError(
            f"{len(files):,} files lie in its location, and the job holds {most:,} at most."
        )
    with job.stage("plan"):
        table = pin_table(job)  # since then: what is committed by now is no orphan, and its metadata is known
    _check(job, table)
    if table.metadata.location.rstrip("/") != location:
        raise TableMovedError(f"it was at {location}, and is at {table.metadata.location}")
    place = Place.of(table, job.assignment.index.warehouse)
    with job.stage("search"):
        also_needed = _named_by(table, _check_metadata(table, files, place))
    old = [one for one in files if one.modified_at < older_than.timestamp()]
    young, others = len(files) - len(old), len(old)
    old = [one for one in old if place.may_have(one.location)]
    others -= len(old)
    if job.assignment.job.dry_run:
        job.decide(
            f"Of {counted(len(files), 'file')} in the location, {young:,} were written since"
            f" {older_than:%F %T} UTC, and {others:,} more are not where the table's writers write, or are"
            " called otherwise: all these stay."
        )
    else:
        listed = {*job.assignment.orphan_files}
        old = [one for one in old if one.location in listed]
    return _Removal(job, table, older_than, also_needed).of(old, len(files), warehouse)


def _check(job: Job, table: PinnedTable) -> None:
    """Raises JobError where files of others may lie in the table's location, or all may be needed."""
    metadata = table.metadata
    _check_uuid(job, metadata)
    if not parse_location(metadata.location).path.strip("/"):
        raise FilesElsewhereError(f"Its location {metadata.location} is all of a store.")
    check_own_places(job, table)
    if is_never_deleted_from(metadata):
        raise NothingToCompareError(
            "The table's property gc.enabled is not true: others may have its files.",
            "Nothing was deleted. Set it to true only if no other table has the same files, such as one of "
            "which this is a copy.",
        )
    if not metadata.snapshots:
        raise NothingToCompareError(
            "The table has no snapshot yet.",
            "Nothing was deleted. Request a dry run once the first rows are committed: what lies there may "
            "be of the load that commits them.",
        )


def _check_uuid(job: Job, metadata: TableMetadata) -> None:
    known, found = job.assignment.table.table_uuid.lower(), str(metadata.table_uuid).lower()
    if known not in ("", found):
        raise TableReplacedError(f"Its UUID is {found}, and was {known} when the job was requested.")


@dataclass(frozen=True, slots=True)
class Place:
    """Where orphan files of a table may lie.

    location: the table's. folders: into which it writes. metadata_folders: where its metadata files are, in
    one spelling. index: where indexes are.
    """

    location: str
    folders: tuple[str, ...]
    metadata_folders: frozenset[str]
    index: str

    @classmethod
    def of(cls, table: PinnedTable, index: str) -> Place:
        location, named = table.metadata.location.rstrip("/"), named_places(table.metadata.properties)
        own = frozenset(normalize_location(path).rpartition("/")[0] for path in metadata_files(table))
        return cls(location, (f"{location}/data", f"{location}/metadata", *named), own, index)

    def may_have(self, path: str) -> bool:
        """Whether a file may be the table's by its place and its name, and is none of Icestream's.

        Names that begin with a dot or `_` are hidden: Spark and Hive keep there what is no table's.
        """
        if not path.endswith(_SUFFIXES) or is_under(path, self.index):
            return False
        if not any(is_under(path, folder) for folder in self.folders):
            return False
        place, root = parse_location(path), parse_location(self.location)
        inside = place.path.removeprefix(root.path.rstrip("/")).split("/")
        if any(name.startswith((".", "_", "icestream-")) for name in inside):
            return False
        # A link may lead to files of others.
        return not place.is_local or os.path.realpath(place.path) == os.path.realpath(root.path) + "/".join(
            inside
        )

    def may_be_another_name(self, path: str) -> bool:
        """Whether a path outside the location may lead into it: by an alias of a bucket, or by names in one
        path that are ids in another. Local links are followed; S3's and Google's keys are names of one file.
        """
        root = parse_location(self.location)
        try:
            place = parse_location(path)
        except AmbiguousLocationError:
            return True
        if place.is_under(root):
            return False
        if place.is_local and root.is_local:
            return False  # the place of a file is known by its links, and its name by itself
        is_same_store = (place.store, place.authority) == (root.store, root.authority)
        return not (is_same_store and place.store in ("s3", "gs"))

    def of_other_table(self, path: str) -> bool:
        """Whether a file tells that another table lies in this one's location."""
        place = normalize_location(path)
        if is_under(place, self.index):
            return False
        folder, _, name = place.rpartition("/")
        is_elsewhere = folder not in self.metadata_folders
        return bool((_METADATA.search(name) and is_elsewhere) or _OTHER_FORMATS.search(place))


def _check_metadata(table: PinnedTable, files: Sequence[StoredFile], place: Place) -> list[str]:
    """Paths of the table's metadata files that it does not name, though they are no older than what it names.

    Raises JobError if another table lies in the location, or another catalog may go on with this one.
    """
    if others := [one.location for one in files if place.of_other_table(one.location)]:
        raise FilesElsewhereError(f"Another table lies in its location: it has {min(others)}.")
    current, *logged = map(_name, metadata_files(table))
    found = [one for one in files if _METADATA.search(one.name) and one.name != current]
    if len(found) > METADATA_FILES_AT_MOST:
        raise NothingToCompareError(
            f"{len(found):,} metadata files lie in its location, and of {METADATA_FILES_AT_MOST:,} at most"
            " it is looked at whose they are.",
            "Nothing was deleted. Set write.metadata.delete-after-commit.enabled, and delete the oldest of "
            "them that the table's log does not name.",
        )
    with Threads(FILES_AT_ONCE, "search") as threads:
        said = [*threads.map(lambda one: _beginning(table.storage, one.location), found)]
    own = str(table.metadata.table_uuid).lower()
    of_own: dict[str, int] = {}
    for one, fields in zip(found, said, strict=True):
        if fields is None:
            continue
        if (uuid := str(fields.get("table-uuid", "no table that it names")).lower()) != own:
            raise FilesElsewhereError(f"Another table lies in its location: {one.location} is of {uuid}.")
        if not isinstance(updated_ms := fields.get("last-updated-ms"), int):
            raise _unreadable(one.location, "it does not say when it was written")
        of_own[one.location] = updated_ms
    unknown = [one for one in found if one.location in of_own and one.name not in logged]
    now_named = table.storage.find(metadata_files(table)[0])
    since = now_named.modified_at if now_named is not None else 0.0
    before = time.time() - _IN_COMMIT_SECONDS
    if newer := [one.location for one in unknown if since < one.modified_at < before]:
        raise NewerMetadataError(f"{min(newer)} is newer than the metadata that the catalog names.")
    oldest = min((entry.timestamp_ms for entry in table.metadata.metadata_log), default=0)
    beside = [one.location for one in unknown if of_own[one.location] >= oldest]
    if len(beside) > UNNAMED_METADATA_AT_MOST:
        raise NothingToCompareError(
            f"{len(beside):,} metadata files that the table does not name are no older than its log, such as"
            f" {min(beside)}, and of {UNNAMED_METADATA_AT_MOST} at most it is looked at what they need.",
            "Nothing was deleted. If the table is registered in another catalog, too, or on a branch of its "
            "catalog, remove no orphan files. Else these are left from commits that failed: delete them.",
        )
    return beside


def _named_by(table: PinnedTable, others: Iterable[str]) -> set[str]:
    """What snapshots need that only other metadata files name, such as those of another catalog.

    What they name and is gone, nobody needs. Raises JobError if one of them can't be read.
    """
    io, read = table.storage.io, set[str]()
    known = {one.manifest_list for one in table.metadata.snapshots}
    needed = set[str]()
    for path in others:
        try:
            metadata = parse_table_metadata(_whole(table.storage, path))
        except FileNotFoundError:
            continue
        except (*MALFORMED, ValidationError, LimitExceededError) as error:
            raise _unreadable(path, error) from error
        needed.update(statistics_files(metadata))
        snapshots = [one for one in metadata.snapshots if one.manifest_list not in known]
        known |= {one.manifest_list for one in snapshots}
        only_its = metadata.model_copy(update={"snapshots": snapshots})
        needed |= paths_of_all_snapshots(only_its, io, read, may_be_gone=True)
    return needed


def _beginning(storage: Storage, path: str) -> Mapping[str, Any] | None:
    """What a metadata file says of its table, if need be all of it; None if it is gone."""
    try:
        head = storage.read(path, 0, _HEAD_BYTES).decode(errors="replace").lstrip()
        found: dict[str, Any] = {}
        at = 1 if head.startswith("{") else len(head)
        while (field := _FIELD.match(head, at)) is not None:
            found[json.loads(field[1])], at = json.loads(field[2]), field.end()
        if found.keys() >= {"table-uuid", "last-updated-ms"}:
            return found
        told = json.loads(_whole(storage, path))
        if not isinstance(told, dict):
            raise ValueError("it is no JSON object")
        return told
    except FileNotFoundError:
        return None
    except (*MALFORMED, LimitExceededError) as error:
        raise _unreadable(path, error) from error


def _whole(storage: Storage, path: str) -> bytes:
    """A metadata file, unpacked. Raises LimitExceededError."""
    content = read_whole(storage, path)
    content = unpacked(content, path) if content.startswith(GZIP) else content
    check_json(content, path)
    return content


def _unreadable(path: str, why: object) -> NothingToCompareError:
    return NothingToCompareError(
        f"It can't be told of which table {path} is: {why}.",
        "Nothing was deleted. Restore the file, or move it elsewhere if it is no metadata of a table.",
    )


class _Removal:
    def __init__(self, job: Job, table: PinnedTable, older_than: datetime, also_needed: set[str]) -> None:
        """also_needed: paths of what other metadata than the table's own name."""
        self._job = job
        self._table = table
        self._older_than = older_than
        self._also_needed = also_needed
        self._seen = {one.snapshot_id for one in table.metadata.snapshots}
        self._manifests = set[str]()

    def of(self, old: Sequence[StoredFile], found: int, warehouse: IndexWarehouse) -> Outcome:
        """What becomes of files that may be orphans. found: how many files lie in the location."""
        job, table, dry_run = self._job, self._table, self._job.assignment.job.dry_run
        orphans = self._orphans(old)
        size_bytes = sum(one.size_bytes for one in orphans)
        report: dict[str, Any] = {
            "older_than": self._older_than.isoformat(),
            "files_in_location": found,
            "orphan_files": len(orphans),
            "orphan_bytes": size_bytes,
        }
        told = f"{counted(len(orphans), 'file')} of {size_bytes:,} bytes"
        if dry_run:
            largest = orphans[:LISTED_AT_MOST]
            report["files"] = [one.location for one in largest]
            report["bytes_listed"] = sum(one.size_bytes for one in largest)
            job.decide(
                f"Of {found:,} in the location, {told} are orphans, of which {len(largest):,} are listed."
            )
        else:
            report |= self._delete(orphans)
        result = {"dry_run": dry_run, "orphans": report}
        return outcome(job, table, warehouse, result, table.files, [], table.snapshot_id)

    def _orphans(self, old: Sequence[StoredFile]) -> list[StoredFile]:
        """Those that neither Iceberg's action nor our own search finds needed, the largest first."""
        if not old:
            return []
        job, table = self._job, self._table
        with job.stage("search"):
            check_manifests(table)
            needed = paths_of_all_snapshots(table.metadata, table.storage.io, self._manifests)
            needed.update(metadata_files(table), statistics_files(table.metadata), self._also_needed)
        place = Place.of(table, job.assignment.index.warehouse)
        if elsewhere := [path for path in needed if place.may_be_another_name(path)]:
            raise NamedElsewhereError(f"It needs {min(elsewhere)}, and lies at {place.location}.")
        old = sorted(_unnamed(old, needed), key=lambda one: (-one.size_bytes, one.location))
        if len(old) > CANDIDATES_AT_MOST:
            job.decide(
                f"Of {len(old):,} that may be orphans, the {CANDIDATES_AT_MOST:,} largest are looked at."
            )
            del old[CANDIDATES_AT_MOST:]
        unneeded = self._unneeded(old) if old else set[str]()
        return [one for one in old if normalize_location(one.location) in unneeded]

    def _unneeded(self, old: Sequence[StoredFile]) -> set[str]:
        """Places of those that Iceberg's action calls orphans."""
        spark: Any = self._job.runner.spark
        jvm: Any = jvm_of(self._table.java_table)
        rows = [(one.location, datetime.fromtimestamp(one.modified_at, UTC)) for one in old]
        actions_of = jvm.org.apache.iceberg.actions
        try:
            action = actions(self._job).deleteOrphanFiles(self._table.java_table)
            columns = "file_path string, last_modified timestamp"
            listed = spark.createDataFrame(rows, columns, verifySchema=False)
            action.compareToFileList(listed._jdf)
            action.olderThan(int(self._older_than.timestamp() * 1000))
            # What has the path of a file that is needed, in another bucket or spelling, is none.
            action.prefixMismatchMode(actions_of.DeleteOrphanFiles.PrefixMismatchMode.IGNORE)
            action.deleteWith(nothing_deleted(self._table.java_table))
            found = self._job.run_action("search", action.execute)
            told = told_by_java(found.orphanFileLocations())
        except (Py4JError, CapturedException) as error:
            raise_lack_of_memory(error)
            raise OrphanRemovalError(java_message(error)) from None
        return {*map(normalize_location, told)}

    def _delete(self, orphans: Sequence[StoredFile]) -> dict[str, int]:
        job, listed = self._job, len(self._job.assignment.orphan_files)
        deleted, failed = set[str](), set[str]()
        for start in range(0, len(orphans), _DELETED_AT_ONCE):
            some = self._still_unneeded(orphans[start : start + _DELETED_AT_ONCE])
            job.reporter.confirm_lease(anew=True)
            gone, left = expiry.delete_paths(job, self._table, [one.location for one in some], "delete")
            deleted |= gone
            failed |= left
        freed = sum(one.size_bytes for one in orphans if one.location in deleted)
        told = f"{counted(len(deleted), 'file')} of {freed:,} bytes"
        job.decide(f"{told} were deleted, of {listed:,} that were listed.")
        return {
            "files_deleted": len(deleted),
            "bytes_deleted": freed,
            "files_failed": len(failed),
            "files_kept": listed - len(deleted) - len(failed),
        }

    def _still_unneeded(self, orphans: Sequence[StoredFile]) -> list[StoredFile]:
        """Those that nothing needs which was committed since the last search: an old file may be added, too.

        Searches until no other snapshot has come meanwhile.
        """
        location = self._table.metadata.location
        for _ in range(_SEARCHES_AT_MOST):
            table = pin_again(self._job, reads_files=False)
            _check(self._job, table)
            if table.metadata.location != location:
                raise TableMovedError(f"it was at {location}, and is at {table.metadata.location}")
            orphans = _unnamed(orphans, statistics_files(table.metadata))
            new = [one for one in table.metadata.snapshots if one.snapshot_id not in self._seen]
            if not new:
                return _unnamed(orphans, self._also_needed)
            with self._job.stage("search"):
                added = table.metadata.model_copy(update={"snapshots": new})
                self._also_needed |= paths_of_all_snapshots(added, table.storage.io, self._manifests)
            self._seen.update(one.snapshot_id for one in new)
        raise OrphanRemovalError(
            f"Others have committed during each of {_SEARCHES_AT_MOST} searches of the table."
        )


def _unnamed(files: Sequence[StoredFile], needed: Iterable[str]) -> list[StoredFile]:
    """Those that share their name with nothing that is needed, in whatever folder and spelling of its path.

    A path may lead to the same file by another scheme, by ids instead of names, or through a link.
    """
    names = {_name(path) for path in needed}
    return [one for one in files if _name(one.location) not in names]


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
