"""Jobs that let old snapshots expire, by Iceberg's own action: plan -> expire -> delete -> report.

Invariants: just the snapshots go that are older than the request says and that nothing holds, and no branch
or tag. A file is deleted only if Iceberg's action says that no snapshot needs it any more, and if it is the
table's. Safe to repeat: what an attempt that died let expire is announced, and whoever follows deletes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from typing import Any

from py4j.protocol import Py4JError
from pyiceberg.table.metadata import TableMetadata
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame

from telemetry.plurals import counted
from trust.locations import LocationNotAllowedError, is_under, normalize_location
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome, outcome
from worker.attempt.pinned_table import PinnedTable, pin_again
from worker.contract.control_plane import AttemptId
from worker.deletes.locations import unannounced_plan
from worker.deletes.stage import announce
from worker.erasure import expiry
from worker.erasure.holds import Hold, is_never_deleted_from, kept_by_age
from worker.erasure.metadata_files import metadata_files
from worker.index.warehouse import IndexWarehouse
from worker.jobs.after_commit import AfterCommit
from worker.jobs.files_of_dead_attempts import clear_dead_attempts
from worker.jobs.own_places import check_own_places
from worker.jobs.spark_actions import actions, check_manifests, table_of
from worker.process.errors import JobError
from worker.table.all_snapshots import paths_of_all_snapshots
from worker.table.catalogs import raise_lack_of_memory
from worker.table.commit import check_clock
from worker.table.commit_errors import CommitConflictError, CommitError, commit_failure, prepared
from worker.table.manifests import read_manifest, read_manifest_list
from worker.table.row_delta import ANY_FILE, guarded

PLANNING_ATTEMPTS = 5
_BUSY = "Let snapshots expire when nobody moves branches or names snapshots of this table."
AT_ONCE = 10_000
"""Snapshots that one commit lets expire."""
_ANNOUNCED_AT_ONCE = 1_000
_HOLDS_TOLD = 100
_KINDS = {
    "DATA": "data_files_deleted",
    "POSITION_DELETES": "delete_files_deleted",
    "EQUALITY_DELETES": "delete_files_deleted",
    "Manifest": "manifests_deleted",
    "Manifest List": "manifest_lists_deleted",
    "Statistics Files": "statistics_files_deleted",
}
"""As Iceberg's action calls what it finds; in the order in which it goes, so that what tells of the others
goes last."""


class SnapshotExpiryError(JobError):
    code = "snapshot_expiry_failed"
    title = "Snapshots could not expire"
    remedy = "Look at the cause; it is tried again, and goes on where this attempt ended."
    retryable = True


def expire_snapshots(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Lets the snapshots expire that are older than the assignment says, and deletes what they alone need."""
    check_own_places(job, table)
    return _Expiry(job, warehouse).run(table)


@dataclass(frozen=True, slots=True)
class _Found:
    """Of one search: what may expire, the oldest first, and what holds the others that are old enough."""

    doomed: Sequence[int]
    held: Sequence[Hold]


@dataclass(slots=True)
class _Done:
    expired: int = 0
    deleted: Counter[str] = field(default_factory=Counter)
    foreign: int = 0


class _Expiry:
    def __init__(self, job: Job, warehouse: IndexWarehouse) -> None:
        self._job = job
        self._warehouse = warehouse
        self._parameters = job.assignment.job.expire
        self._now = datetime.now(UTC)  # in all searches: else what ages during one keeps the job from its end
        self._done = _Done()
        self._plans = 0

    def run(self, table: PinnedTable) -> Outcome:
        job = self._job
        cleared: list[AttemptId] = []
        if not job.assignment.job.dry_run and self._finish_earlier(table):
            cleared = clear_dead_attempts(job)
        conflicts = 0
        while True:
            found = self._search(table)
            if not found.doomed:
                break
            try:
                table = self._expire(table, found.doomed[:AT_ONCE])
            except CommitConflictError as error:
                conflicts += 1
                job.decide(f"The table changed while this job ran, so it looks again: {error}.")
                if conflicts == PLANNING_ATTEMPTS:
                    raise CommitConflictError(error.detail, _BUSY) from None
                table = pin_again(self._job)
            if job.assignment.job.dry_run:
                break
        return self._outcome(table, found, cleared)

    # what may go

    def _search(self, table: PinnedTable) -> _Found:
        now, parameters = self._now, self._parameters
        older_than = now - timedelta(seconds=parameters.older_than_seconds)
        branch, staging_branch = table.branch, self._job.assignment.table.staging_branch
        kept = kept_by_age(table.metadata, branch, older_than, parameters.retain_last, now, staging_branch)
        return _Found(
            [snapshot_id for snapshot_id, hold in kept.items() if hold is None],
            [hold for hold in kept.values() if hold is not None],
        )

    # expire

    def _expire(self, table: PinnedTable, doomed: Sequence[int]) -> PinnedTable:
        """The table as it is then."""
        job, dry_run = self._job, self._job.assignment.job.dry_run
        with job.stage("search"):
            check_manifests(table)
        if not dry_run:
            check_clock(table.java_table)
            self._announce(table, doomed)
            job.reporter.confirm_lease()
        with prepared():
            place = table.java_table.operations().metadataFileLocation(ANY_FILE)
            table.storage.io.check(place)
            safe = guarded(table.java_table, place, "")
            operations = expiry.exact_operations(safe, doomed, dry_run=dry_run)
            action = actions(job).expireSnapshots(table_of(operations, safe))
        try:
            files = job.run_action("expire", action.expireFiles)
        except (Py4JError, CapturedException) as error:
            raise_lack_of_memory(error)
            failure = commit_failure(error)
            raise SnapshotExpiryError(failure.detail) if type(failure) is CommitError else failure from None
        if not dry_run and not self._done.expired:
            job.reporter = AfterCommit(job.reporter)
        self._done.expired += len(doomed)
        if not dry_run:
            table = pin_again(self._job)
            if table.metadata.snapshot_by_id(doomed[0]) is not None:
                raise SnapshotExpiryError("The catalog took the commit, and the snapshots are there.")
            with job.stage("search"):
                check_manifests(table)  # of what came meanwhile, too, before Iceberg opens them
        by_kind = self._unneeded(files)
        kept = self._protected(table, frozenset(doomed))
        for kind, paths in by_kind.items():
            own = self._deletable(table, paths, kept)
            self._done.deleted[_KINDS[kind]] += len(own) if dry_run else self._delete(table, own)
        return table

    def _announce(self, table: PinnedTable, doomed: Sequence[int]) -> None:
        """Lets an attempt that goes on know whose files it may delete."""
        for start in range(0, len(doomed), _ANNOUNCED_AT_ONCE):
            plan = unannounced_plan(table, self._plans)
            expires = list(doomed[start : start + _ANNOUNCED_AT_ONCE])
            announce(self._job, plan.model_copy(update={"expires": expires}))
            self._plans += 1

    def _unneeded(self, files: Any) -> dict[str, list[str]]:
        """Paths that no snapshot names any more, by the action's word for what they are."""

        def collected() -> dict[str, list[str]]:
            rows = DataFrame(files.toDF(), self._job.runner.spark).select("path", "type")
            found: dict[str, list[str]] = {kind: [] for kind in _KINDS}
            for path, kind in rows.collect():
                if kind not in found:
                    raise SnapshotExpiryError(f"Iceberg names a kind of file that is not known: {kind}")
                found[kind].append(path)
            return found

        return self._job.run_action("search", collected)

    # delete

    def _protected(self, table: PinnedTable, doomed: Collection[int] = ()) -> set[str]:
        """Places of what is in use now, however its paths are spelled."""
        files, metadata = table.files, table.metadata
        lists = (one.manifest_list for one in metadata.snapshots if one.snapshot_id not in doomed)
        named = (*metadata_files(table), *lists)
        live, deletes = files.data_files.paths(), files.delete_files.paths()
        return {normalize_location(path) for of_kind in (live, deletes, named) for path in of_kind}

    def _deletable(self, table: PinnedTable, paths: Iterable[str], kept: Collection[str]) -> list[str]:
        """Those that are not in use, and lie where the table's files do and indexes do not."""
        if is_never_deleted_from(table.metadata):  # since the search
            return []
        own, indexes = table.metadata.location, self._job.assignment.index.warehouse
        unneeded = [path for path in paths if normalize_location(path) not in kept]
        found = [path for path in unneeded if is_under(path, own) and not is_under(path, indexes)]
        self._done.foreign += len(unneeded) - len(found)
        return found

    def _delete(self, table: PinnedTable, paths: Sequence[str]) -> int:
        """How many there were. Raises SnapshotExpiryError for what can't be deleted: as long as what names it
        is there, whoever follows finds it."""
        deleted, left = expiry.delete_paths(self._job, table, paths, "delete")
        if left:
            raise SnapshotExpiryError(f"{counted(len(left), 'file')} could not be deleted.")
        return len(deleted)

    def _finish_earlier(self, table: PinnedTable) -> bool:
        """Deletes what attempts that died let expire and left. False if it can't be told what that is."""
        expired = expiry.announced_by_earlier_attempts(self._job)
        expired.difference_update(snapshot.snapshot_id for snapshot in table.metadata.snapshots)
        if expired:
            with self._job.stage("search"):
                ranks: dict[str, int] = {}
                named, why_more = expiry.files_of_expired(table, expired, partial(_named_by, table, ranks))
                try:
                    needed = paths_of_all_snapshots(table.metadata, table.storage.io)
                except (JobError, OSError) as error:
                    told = f"What an attempt that died let expire is not deleted yet: {error}."
                    self._job.decide(told)
                    return False
            kept = self._protected(table) | set(map(normalize_location, needed))
            unneeded = sorted(self._deletable(table, sorted(named), kept), key=ranks.__getitem__)
            deleted = sum(self._delete(table, [*same]) for _, same in groupby(unneeded, ranks.__getitem__))
            if deleted:
                self._done.deleted["files_of_lost_attempts_deleted"] += deleted
                self._job.decide(f"{counted(deleted, 'file')} deleted that an attempt which died had left.")
            if why_more is not None:
                self._job.decide(
                    f"An attempt that died may have left more files of snapshots that it let expire:"
                    f" {why_more}. If there are any, a removal of orphan files takes them."
                )
        return True

    # report

    def _outcome(self, table: PinnedTable, found: _Found, cleared: Sequence[AttemptId]) -> Outcome:
        job, done, dry_run = self._job, self._done, self._job.assignment.job.dry_run
        held = Counter((one.holder, one.name, one.reason) for one in found.held)
        until = {(one.holder, one.name, one.reason): one.until for one in found.held}
        files = sum(done.deleted.values())
        job.decide(
            f"{counted(done.expired, 'snapshot')} {'would expire' if dry_run else 'expired'}, and"
            f" {counted(files, 'file')} {'would be' if dry_run else 'were'} deleted."
        )
        if done.foreign:
            job.decide(
                f"{counted(done.foreign, 'file')} that no snapshot needs any more lie outside the table's"
                " location, or where indexes are: they stay."
            )
        report = {
            "snapshots_expired": done.expired,
            "snapshots_left": len(table.metadata.snapshots) - (done.expired if dry_run else 0),
            "snapshots_held": len(found.held),
            **{name: done.deleted[name] for name in dict.fromkeys(_KINDS.values())},
            "files_of_lost_attempts_deleted": done.deleted["files_of_lost_attempts_deleted"],
            "files_kept_elsewhere": done.foreign,
            "held": [
                {
                    "holder": holder,
                    "name": name,
                    "reason": reason,
                    "snapshots": number,
                    "until": moment.isoformat() if (moment := until[holder, name, reason]) else None,
                }
                for (holder, name, reason), number in held.most_common(_HOLDS_TOLD)
            ],
        }
        result = {"dry_run": dry_run, "expiry": report}
        return outcome(job, table, self._warehouse, result, table.files, [], table.snapshot_id, cleared)


def _named_by(
    table: PinnedTable, ranks: dict[str, int], metadata: TableMetadata, snapshot_ids: Collection[int]
) -> tuple[set[str], str | None]:
    """The files of some snapshots, as far as their manifests are still there; and the path of one that can't
    be read. Adds to `ranks` in which order they go: what names others after these."""
    io = table.storage.io
    unreadable = None
    specs = {spec.spec_id: spec for spec in metadata.partition_specs}
    found: dict[str, int] = {}
    for snapshot in metadata.snapshots:
        if snapshot.snapshot_id not in snapshot_ids:
            continue
        found[snapshot.manifest_list] = 2
        try:
            manifests = read_manifest_list(io, snapshot)
        except FileNotFoundError:
            continue
        except JobError:
            unreadable = snapshot.manifest_list
            continue
        for manifest in manifests:
            found[manifest.path] = 1
            try:
                data_files, deletes = read_manifest(io, manifest, specs)
            except FileNotFoundError:
                continue
            except (JobError, LocationNotAllowedError):
                unreadable = manifest.path
                continue
            found |= dict.fromkeys((*data_files.paths(), *deletes.paths()), 0)
    ranks |= found
    return {*found}, unreadable
