"""Jobs that erase: the rows of some keys go from the branch, from its data files, and from the past.

delete -> rewrite -> index -> expire -> search -> report. Each step finds what was done already: an attempt
goes on where a lost one ended. Invariant: the report never says more than was seen, and nothing tells a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import numpy as np

from telemetry.plurals import counted
from trust.locations import LocationNotAllowedError, normalize_location
from worker.attempt.indexes import usable_index
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome, outcome
from worker.attempt.pinned_table import PinnedTable, pin_again
from worker.contract.control_plane import ControlPlaneError, StaleAttemptError
from worker.deletes.locations import unannounced_plan
from worker.deletes.stage import announce
from worker.erasure.columns import FormerColumns, names_of
from worker.erasure.expiry import (
    announced_by_earlier_attempts,
    delete_unneeded,
    expire,
    files_of,
    files_of_expired,
)
from worker.erasure.holds import Hold, holds
from worker.erasure.keys import ErasedKeys
from worker.erasure.manifests import rewrite_manifests
from worker.erasure.metadata_files import (
    TOO_MANY,
    UNNAMED_AT_MOST,
    metadata_files,
    places_of,
    search_metadata,
    search_partition_statistics,
    statistics_files,
    unnamed_files,
)
from worker.erasure.orphan_files import OrphanFiles
from worker.erasure.positions import search_puffin
from worker.erasure.report import Findings
from worker.erasure.rewrite import Rewrite
from worker.erasure.search import Search, Traces
from worker.erasure.snapshot_properties import DELETE, MANIFESTS, STEP, Totals
from worker.erasure.trace import unreadable
from worker.index.warehouse import IndexWarehouse
from worker.io.storage import Storage, StoredFile
from worker.jobs.conversion import Conversion
from worker.jobs.conversion_plan import counts as counts_of
from worker.jobs.erased_indexes import ErasedIndexes
from worker.jobs.files_of_dead_attempts import clear_dead_attempts
from worker.jobs.foreign_errors import meaning_of
from worker.jobs.own_commits import told_as_unreachable
from worker.jobs.writing import RowWrite
from worker.process.errors import JobCancelledError, JobError, Reason, UnexpectedError
from worker.process.slots import Threads
from worker.table.commit import HEADS_AT_MOST, CommittedSnapshot, find_commits
from worker.table.commit_errors import CommitConflictError, CommitError
from worker.table.files import DeleteFile
from worker.writes.live_rows import KeysInTable
from worker.writes.plan import key_set_of
from worker.writes.sent_rows import read_sent

SNAPSHOTS_TOLD = 1_000
_EXPIRED_AT_ONCE = 1_000
"""As many as a plan announces."""
_MAIN = "main"
_SEARCHED_AT_ONCE = 8


def erase(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Erases the rows of the keys of the assignment, and tells what of them is left."""
    key_set = key_set_of(job, table, warehouse)
    with job.stage("read"):
        sent = read_sent(job, table, key_set).keys
        metadata = table.metadata
        keys = ErasedKeys(key_set, sent, names_of(metadata, key_set), FormerColumns.of(metadata, key_set))
    job.redacted = keys.redacted
    try:
        return _Erasure(job, table, warehouse, keys).run(table)
    except (JobCancelledError, StaleAttemptError, ControlPlaneError):
        raise
    except Exception as error:  # whatever it is, its text is kept
        raise _without_keys(error, keys) from None


def _without_keys(error: Exception, keys: ErasedKeys) -> JobError:
    known = error if isinstance(error, JobError) else meaning_of(error) or UnexpectedError.of(error)
    known.detail, known.remedy = keys.redacted(known.detail), keys.redacted(known.remedy)
    known.args = (known.detail,)
    return known


class _Erasure:
    def __init__(self, job: Job, table: PinnedTable, warehouse: IndexWarehouse, keys: ErasedKeys) -> None:
        self._job = job
        self._warehouse = warehouse
        self._keys = keys
        index = usable_index(job, table, warehouse, keys.key_set)
        self._in_table = KeysInTable(job, warehouse, keys.key_set, keys.batch, index)
        self._plans = 0
        self._expired: list[int] = []
        self._expiring = announced_by_earlier_attempts(job)
        """The snapshots that an attempt, also of another job, has let expire, or was about to."""
        self._left: set[str] = set()
        """Files of snapshots that have expired which were not deleted."""
        self._why_more: str | None = None
        """Why there may be more of these than anybody knows."""
        self._search = Search(job, self._keys)
        self._indexes = ErasedIndexes(job, warehouse, keys)

    def run(self, table: PinnedTable) -> Outcome:
        self._delete_and_rewrite(table)
        cleared = clear_dead_attempts(self._job)  # of lost attempts, before anybody looks
        table = pin_again(self._job)
        totals, converted = Totals.of(self._commits(table)), self._converted(table)
        self._indexes.clean(table)
        self._expire()
        looked_at = datetime.now(UTC)
        table = pin_again(self._job)
        findings = self._findings(table)
        report = {
            "keys": len(self._keys.number_of),
            "rows_deleted": totals.rows_deleted,
            "snapshot_id_deleted": totals.snapshot_id_deleted or None,
            "snapshot_id_rewritten": totals.snapshot_id_rewritten or None,
            "data_files_rewritten": totals.data_files_rewritten,
            "bytes_rewritten": totals.bytes_rewritten,
            "bytes_written": totals.bytes_written,
            "snapshots_expired": self._expired[:SNAPSHOTS_TOLD],
            "snapshots_expired_count": len(self._expired),
            "files_looked_through": len(self._search.traces),
            "bytes_looked_through": sum(trace.size_bytes for trace in self._search.traces.values()),
            "looked_at": looked_at.isoformat(),
            "snapshot_id_looked_at": table.snapshot_id,
            **findings.told(self._keys),
        }
        self._job.decide(_sentence(report["counts"]))
        return outcome(
            self._job,
            table,
            self._warehouse,
            {"dry_run": False, **converted, "rows_deleted": totals.rows_deleted, "erasure": report},
            table.files,
            [],
            table.snapshot_id,
            cleared,
        )

    # delete and rewrite

    def _delete_and_rewrite(self, table: PinnedTable) -> None:
        """No row of the keys is visible then, and no data file of the branch's head has one that is not."""
        job = self._job
        if not self._commits(table):
            write = RowWrite(job, self._warehouse, {STEP: DELETE})
            write.run(table)
            self._plans = write.plans
            table = pin_again(self._job)
        if named := self._search.at_deletes(table.metadata, table.files.equality_deletes, table.storage):
            table = self._convert(table, named)
        table = Rewrite(job, self._in_table, self._next_plan, self._convert).run(table)
        commits = self._commits(table)
        is_told = not commits or commits[0].summary[STEP] == MANIFESTS
        # Iceberg rewrites manifests of the main branch alone.
        if table.branch == _MAIN and (not is_told or self._remembers(table)):
            rewrite_manifests(job, table, Totals.of(commits))

    def _remembers(self, table: PinnedTable) -> bool:
        """Whether a manifest of the branch's head tells a key of what was removed."""
        if table.snapshot is None:
            return False
        (traces,) = self._search.at_snapshots(table.metadata, [table.snapshot], table.storage).values()
        of_files = frozenset(key for trace in traces.data_files.values() for key in trace.keys)
        return any(trace.keys - of_files for trace in traces.metadata.values())

    def _convert(self, table: PinnedTable, deletes: Sequence[DeleteFile]) -> PinnedTable:
        """What can't be converted stays, and is told by the conversion."""
        conversion = Conversion(self._job, self._warehouse, self._plans)
        conversion.convert(table, deletes, commits_left=1)  # whether it is the last nobody knows
        self._plans = conversion.plans + 1
        return pin_again(self._job)

    def _next_plan(self) -> int:
        self._plans += 1
        return self._plans - 1

    def _commits(self, table: PinnedTable) -> list[CommittedSnapshot]:
        """What this job has committed but for conversions, the newest first: as far as its snapshots are
        there."""
        return [one for one in self._own(table) if STEP in one.summary]

    def _converted(self, table: PinnedTable) -> dict[str, int]:
        """What its conversions came to, as far as their snapshots are there."""
        totals = counts_of([one.summary for one in self._own(table) if STEP not in one.summary])
        return {name: totals[name] for name in ("equality_delete_files_removed", "equality_deletes_resolved")}

    def _own(self, table: PinnedTable) -> list[CommittedSnapshot]:
        assignment = self._job.assignment
        try:
            return find_commits(table.java_table, table.branch, assignment.job.id)
        except CommitError as error:
            raise told_as_unreachable(error, "was committed") from error

    # expire

    def _expire(self) -> None:
        """No snapshot is left that has a trace of a key and that nothing holds, unless others add some. None
        expires while what one of them names can't be told: no file could be deleted."""
        job = self._job
        self._delete_left_behind()
        for _ in range(HEADS_AT_MOST):
            table = pin_again(self._job)
            metadata = table.metadata
            traces = self._search.at_snapshots(metadata, metadata.snapshots, table.storage)
            if not all(of_one.is_whole for of_one in traces.values()):
                return
            held = holds(job, metadata)
            doomed = [number for number, of_one in traces.items() if of_one.keys and number not in held]
            doomed = doomed[:_EXPIRED_AT_ONCE]
            if not doomed:
                return
            self._announce_expiry(table, doomed)
            files, _ = files_of(table.storage, self._search, metadata, doomed)
            try:
                with job.stage("expire"):
                    expire(job, table, doomed)
            except CommitConflictError as error:
                job.tell_of_change(error)
                continue
            self._expired += doomed
            job.decide(f"{counted(len(doomed), 'snapshot')} expired.")
            self._left |= delete_unneeded(job, pin_again(self._job), self._search, files)

    def _delete_left_behind(self) -> None:
        """The files of snapshots that lost attempts let expire."""
        table = pin_again(self._job)
        named = partial(files_of, table.storage, self._search, have_expired=True)
        files, self._why_more = files_of_expired(table, self._expiring, named)
        if files:
            self._left |= delete_unneeded(self._job, pin_again(self._job), self._search, files)

    def _announce_expiry(self, table: PinnedTable, doomed: Sequence[int]) -> None:
        """Lets an attempt that goes on know whose files it may delete."""
        if new := [number for number in doomed if number not in self._expiring]:
            plan = unannounced_plan(table, self._next_plan())
            announce(self._job, plan.model_copy(update={"expires": new}))
            self._expiring |= {*new}

    # search

    def _findings(self, table: PinnedTable) -> Findings:
        """What holds which keys, of all that is left."""
        findings = self._of_snapshots(table)
        if self._why_more is not None:
            told = f"snapshots expired, and which files they named can't be told: {self._why_more}"
            findings.miss(table.metadata.location, Reason("unknown_files", told, _UNKNOWN_REMEDY))
        self._indexes.tell(table, findings)
        self._tell_of_metadata(table, findings)
        self._tell_of_unnamed(table, findings)
        return findings

    def _of_snapshots(self, table: PinnedTable) -> Findings:
        metadata = table.metadata
        findings = Findings()
        traces = self._search.at_snapshots(metadata, metadata.snapshots, table.storage)
        held = holds(self._job, metadata)
        is_known = all(of_one.is_whole for of_one in traces.values())
        unheld = _CAME_MEANWHILE if is_known else _UNREADABLE
        for snapshot_id, of_one in traces.items():
            for path, trace in of_one:
                if trace.why is not None:
                    findings.miss(path, trace.why, snapshot_id)
            if snapshot_id == table.snapshot_id:
                self._tell_of_head(table, of_one, findings)
            else:
                hold = held.get(snapshot_id, unheld)
                findings.hold(of_one.keys, hold, snapshot_id)
        return findings

    def _tell_of_head(self, table: PinnedTable, traces: Traces, findings: Findings) -> None:
        """Whatever the branch's head has of the keys came while the job ran."""
        _, rows = self._in_table.rows(table)
        visible = frozenset(np.unique(rows.keys[rows.is_live]).tolist())
        written = frozenset(key for trace in traces.data_files.values() for key in trace.keys)
        findings.invisible = written - visible
        findings.hold(visible, _WRITTEN_MEANWHILE, table.snapshot_id)
        findings.hold(findings.invisible, _DELETED_MEANWHILE, table.snapshot_id)
        for path, trace in traces.equality_deletes.items():
            findings.hold(trace.keys, replace(_PENDING, name=path), table.snapshot_id)
        deletes = table.files.position_deletes
        vectors = set(deletes.where(deletes.are_vectors).paths())
        for path, trace in traces.position_deletes.items():
            hold = _FOOTER if path in vectors else _PATH
            findings.hold(trace.keys - written, replace(hold, name=path), table.snapshot_id)
        for path, trace in traces.metadata.items():
            findings.hold(trace.keys - written, replace(_MANIFEST, name=path), table.snapshot_id)

    def _tell_of_metadata(self, table: PinnedTable, findings: Findings) -> None:
        for path in metadata_files(table):
            trace = self._search.traces[path] = search_metadata(table.storage, self._keys, path)
            findings.tell(path, trace, _METADATA)
        for one in table.metadata.statistics:
            path, size_bytes = one.statistics_path, one.file_size_in_bytes
            trace = self._search.traces[path] = search_puffin(table.storage, self._keys, path, size_bytes)
            findings.tell(path, trace, _METADATA)
        for of_partitions in table.metadata.partition_statistics:
            path, size_bytes = of_partitions.statistics_path, of_partitions.file_size_in_bytes
            trace = self._search.traces[path] = search_partition_statistics(
                table.storage, self._keys, table.metadata, path, size_bytes
            )
            findings.tell(path, trace, _STATISTICS)

    def _tell_of_unnamed(self, table: PinnedTable, findings: Findings) -> None:
        """Of files that no snapshot names."""
        metadata, storage = table.metadata, table.storage
        named, damaged = self._search.named_by(metadata, metadata.snapshots, storage)
        named |= {*metadata_files(table), *statistics_files(metadata)}
        files: list[StoredFile] = []
        for place in places_of(table, (self._search.traces[path] for path in metadata_files(table))):
            try:
                with self._job.stage("search"):
                    files += unnamed_files(storage, place, named)
            except (OSError, ValueError, LocationNotAllowedError) as error:
                findings.miss(place, Reason("not_listed", f"it can't be listed: {error}", _LIST_REMEDY))
        files += self._left_elsewhere(storage, {*named, *(file.location for file in files)}, findings)
        if len(files) > UNNAMED_AT_MOST:
            remedy = TOO_MANY.remedy if damaged is None else _may_be_named(damaged).remedy
            findings.miss(metadata.location, TOO_MANY._replace(remedy=remedy))
            files = files[:UNNAMED_AT_MOST]
        search = OrphanFiles(table, self._keys, self._search.of_rows).search
        with self._job.stage("search"), Threads(_SEARCHED_AT_ONCE, "search") as threads:
            traces = dict(zip(files, threads.map(search, files), strict=True))
        self._search.traces |= {file.location: trace for file, trace in traces.items()}
        for file, trace in traces.items():
            orphan = _UNDELETED if file.location in self._left else _ORPHAN
            if damaged is not None:
                orphan = _may_be_named(damaged)
                trace = replace(trace, why=trace.why and trace.why._replace(remedy=orphan.remedy))
            findings.tell(file.location, trace, orphan)

    def _left_elsewhere(
        self, storage: Storage, known: Iterable[str], findings: Findings
    ) -> Iterator[StoredFile]:
        """Files that this job let go and could not delete, where none are looked for."""
        places = {normalize_location(path) for path in known}
        for path in sorted(path for path in self._left if normalize_location(path) not in places):
            try:
                if (file := storage.find(path)) is not None:
                    yield file
            except (OSError, ValueError, LocationNotAllowedError) as error:
                findings.miss(path, unreadable(error))


_WRITTEN_MEANWHILE = Hold(
    "writer",
    "A row of the key was written while the job ran, and is visible.",
    "Erase again when nobody writes it.",
)
_DELETED_MEANWHILE = Hold(
    "writer",
    "A row of the key was written and deleted while the job ran.",
    "Erase again when nobody writes it.",
)
_PENDING = Hold(
    "writer",
    "An equality delete names the key, and waits to be converted.",
    "Run a job of kind convert, and erase again.",
)
_MANIFEST = Hold(
    "metadata",
    "A manifest, or the list of manifests, names the key: as a bound of a file that was removed, as its"
    " partition, or in the path of a file.",
    "Rewrite the table's manifests (rewrite_manifests), or the files whose paths name it, and erase again.",
)
_PATH = Hold(
    "metadata",
    "A delete by position names the key, in the path of a data file.",
    "Rewrite the table's position deletes (rewrite_position_delete_files), or the data files whose paths name"
    " it, and erase again.",
)
_FOOTER = Hold(
    "metadata",
    "The footer of a Puffin file names the key, in the path of a data file. Its vector in there may have been"
    " replaced.",
    "Let the policy say one_per_data_file (convert.deletion_vector_files) and run a job of kind convert,"
    " which moves what is live in there; or rewrite the data files whose paths name the key; and erase"
    " again.",
)
_METADATA = Hold(
    "metadata",
    "Properties of the table or of its snapshots, docs and defaults of its columns, names of its branches and"
    " tags, or places of its files tell the key.",
    "Remove or rename it; earlier metadata files go as write.metadata.delete-after-commit.enabled says.",
)
_STATISTICS = Hold(
    "metadata",
    "Statistics of partitions name the key.",
    "Remove the table's partition statistics, and erase again.",
)
_ORPHAN = Hold(
    "orphan_file",
    "No snapshot names the file; somebody may be about to commit it.",
    "See whose file it is first: a table may lie inside this one's location. If nobody's, remove the table's"
    " orphan files (remove_orphan_files), and erase again.",
)
_UNDELETED = Hold(
    "orphan_file",
    "A snapshot that has expired named the file, and it could not be deleted.",
    "See whose file it is first: other tables may have it, too. If nothing needs it, let the worker delete"
    " there, or delete it, and erase again.",
)


def _may_be_named(damaged: str) -> Hold:
    return Hold(
        "orphan_file",
        f"Whether a snapshot names the file can't be told: {damaged} can't be read.",
        "Restore that one first, or let its snapshots expire, and erase again: until then the file may be the"
        " table's.",
    )


_UNKNOWN_REMEDY = (
    "They were looked for in the table's location alone. See where files may lie that were brought from"
    " elsewhere (add_files), delete there what nothing needs, and erase again."
)
_LIST_REMEDY = "Let the worker list the place (its allowed locations, its rights), and erase again."
_CAME_MEANWHILE = Hold(
    "snapshot", "It came while the job ran, or others committed first each time.", "Erase again."
)
_UNREADABLE = Hold(
    "snapshot",
    "No snapshot expires while nobody can tell what one of them names: a manifest, or a list of these, can't"
    " be read.",
    "Restore that file, or let the snapshots expire that need it, and erase again.",
)


def _sentence(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in counts.items()) + " of the keys."
