"""The conversion: equality deletes become deletion vectors (V3) or position deletes (V2).

Plans, and plans again while others commit first. Safe to repeat: what is done already is found to be done.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from math import ceil

from icestream.readers import Reader, engines, reader
from trust.properties import LOCATION_PROVIDERS
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome, Unconvertible, outcome
from worker.attempt.pinned_table import PinnedTable, pin_again, pin_table
from worker.deletes.locations import DeleteFileLocations
from worker.deletes.vector_files import share_own_files
from worker.deletes.write import WrittenDeletes
from worker.index.warehouse import IndexWarehouse
from worker.jobs.after_commit import AfterCommit, index_new_files
from worker.jobs.conversion_plan import COMMITS_LEFT, INDEXED_ROWS, PLAN, Part, Plan, counts
from worker.jobs.files_of_dead_attempts import clear_dead_attempts
from worker.jobs.own_commits import commits_of, told_as_unreachable
from worker.lookup.cost import conversion_seconds
from worker.lookup.resolution import merge_explanations
from worker.process.errors import JobError
from worker.table.commit import CommittedSnapshot, check_clock
from worker.table.commit_errors import CommitConflictError, CommitError, CommitStateUnknownError
from worker.table.files import DeleteFile
from worker.table.plan import in_commits

PLANNING_ATTEMPTS = 5
_SIGHTS = {
    "reads": "it reads the table",
    "refuses": "it does not read the table",
    "unknown": "whether it reads the table is not known",
}


class NoReaderError(JobError):
    code = "no_reader"
    title = "None of the table's readers could read it after the conversion"
    remedy = (
        "Upgrade one of them, and name it with its version (convert.readers), or keep the table in a format"
        " version that they read. Nothing was changed."
    )


def convert_table(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Replaces the live equality deletes by deletion vectors (V3) or position deletes (V2).

    In one commit, or in several of at most `max_delete_files_per_commit` equality delete files, or of fewer
    after attempts that ran out of memory. Deletes that come while the job runs are left to the next one.
    """
    conversion = Conversion(job, warehouse)
    if conversion.was_committed(table):
        table = pin_table(job)
        conversion.look_at_what_is_left(table)
        return conversion.outcome(conversion.index_new_files(table))
    pending = table.files.equality_deletes
    if not pending:
        job.decide("The table holds no equality deletes: there is nothing to convert.")
    else:
        conversion.look_at_readers(table)
        _tell_of_location_provider(job, table)
    batches = conversion.batches(pending)
    if not pending and share_own_files(table.files.position_deletes).any():
        batches = [()]
    if job.assignment.job.dry_run:
        # Nothing is committed that the next batch would build upon.
        conversion.convert(table, pending, commits_left=0)
        converted = conversion.converted
        commits = sum(any(file.path in converted for file in batch) for batch in batches)
        return conversion.outcome(table, commits=commits)
    return conversion.outcome(conversion.index_new_files(conversion.convert_all(table, batches)))


def _tell_of_location_provider(job: Job, table: PinnedTable) -> None:
    metadata = table.metadata
    named = [key for key in LOCATION_PROVIDERS if key in metadata.properties]
    if named:
        folder = DeleteFileLocations(metadata.location, metadata.properties, "").folder
        job.decide(
            f"The table names a class that would say where its files go ({', '.join(named)}). A class that a"
            f" table names is not loaded: new delete files go below {folder}."
        )


class Conversion:
    """A conversion job: what its attempts committed, and what this one resolved and refused."""

    def __init__(self, job: Job, warehouse: IndexWarehouse, plans: int = 0) -> None:
        """plans: of this attempt, before which there are others."""
        self._job = job
        self._warehouse = warehouse
        self._commits: dict[int, CommittedSnapshot] = {}  # by snapshot id
        self._parts: list[Part] = []
        self._head: int | None = None  # the snapshot after the last batch
        self._plans = plans
        self._readers: list[Reader] = []

    def look_at_readers(self, table: PinnedTable) -> None:
        """Tells what the readers that the policy names see of the table, before and after.

        Raises NoReaderError if none of them could read it then.
        """
        version = table.metadata.format_version
        for name in self._job.assignment.policy.convert.readers:
            found = reader(name)
            self._readers.append(found)
            if not found.source:
                self._job.decide(
                    f"Reader {name}: nothing is known of it, so it hinders nothing. Engines of which"
                    f" something is known: {', '.join(engines())}."
                )
                continue
            before, after = _SIGHTS[found.before(version)], _SIGHTS[found.after(version)]
            note = f"; {found.note}" if found.note else ""
            self._job.decide(
                f"Reader {name}: {before} now, and {after} once no equality delete is left"
                f" ({found.source}, {found.looked_at}{note})."
            )
        if self._readers and all(one.after(version) == "refuses" for one in self._readers):
            kind = "deletion vectors" if version > 2 else "position deletes"
            named = ", ".join(one.name for one in self._readers)
            error = NoReaderError(f"none of {named} reads a table with {kind}")
            if not self._job.assignment.job.dry_run:
                raise error
            self._job.decide(f"A conversion will be refused: {error}.")

    def _what_readers_see(self, table: PinnedTable) -> list[dict[str, str]]:
        """Of what this attempt leaves, or a dry run foretells; whoever it changes nothing for is told."""
        version = table.metadata.format_version
        stay = [file for file in table.files.equality_deletes if file.path not in self.converted]
        seen = [(one, one.after(version, some_stay=bool(stay))) for one in self._readers]
        still = [one.name for one, after in seen if after == "refuses" != one.after(version)]
        if still:
            self._job.decide(
                f"{len(stay):,} equality delete files stay, so afterwards as well {', '.join(still)} will not"
                " read the table."
            )
        return [
            {"reader": one.name, "before": one.before(version), "after": after, "source": one.source}
            for one, after in seen
        ]

    @property
    def plans(self) -> int:
        """How many numbers of plans are taken."""
        return self._plans

    @property
    def commits(self) -> Mapping[int, CommittedSnapshot]:
        """Those of the job that this conversion has made or met, by snapshot id."""
        return self._commits

    @property
    def head(self) -> int | None:
        """The snapshot after what was converted last; None before."""
        return self._head

    @property
    def refused(self) -> list[Unconvertible]:
        """What stays, each once."""
        return list({one.file_path: one for part in self._parts for one in part.refused}.values())

    def batches(self, pending: Sequence[DeleteFile]) -> list[Sequence[DeleteFile]]:
        """Live equality deletes, as many together as one commit may take; it is told if one is not enough."""
        job = self._job
        allowed = job.assignment.policy.convert.max_delete_files_per_commit or len(pending)
        bound = min(allowed, ceil(len(pending) * job.commit_fraction))
        batches = in_commits(pending, bound)
        if len(batches) > 1:
            why = "the policy allows" if bound == allowed else "since earlier attempts lacked memory, at most"
            job.decide(
                f"{len(pending):,} equality delete files take {len(batches):,} commits:"
                f" {why} {bound:,} in each."
            )
        return batches

    def convert_all(
        self, table: PinnedTable, batches: Sequence[Sequence[DeleteFile]], commits_left: int = 0
    ) -> PinnedTable:
        """Converts one batch after the other, as `convert` does each."""
        for number, batch in enumerate(batches):
            if number:
                self._job.decide(f"Commit {number + 1:,} of {len(batches):,}.")
                table = pin_again(self._job)
            table = self.convert(table, batch, commits_left + len(batches) - number - 1)
        return table

    def convert(self, table: PinnedTable, batch: Sequence[DeleteFile], commits_left: int) -> PinnedTable:
        """Converts a batch of live equality deletes in one commit; returns the table as it was planned last.

        commits_left: to be made by the job after this one. Plans again while other commits come first, and
        raises CommitConflictError when they always do.
        """
        job = self._job
        for attempt in range(PLANNING_ATTEMPTS):
            if attempt:
                table = pin_again(job)
            # Before each plan: the commit of an earlier attempt may arrive late, and be what this plan met.
            if self.was_committed(table):
                return pin_table(job)
            # By path, as Iceberg removes them: one of these may have been committed once more.
            paths = {file.path for file in batch}
            still = list(table.files.equality_deletes.with_paths(paths))
            plan = Plan(job, table, self._warehouse, self._plans, still, commits_left=commits_left)
            try:
                if still and not plan.dry_run:
                    check_clock(table.java_table)  # before the work, which would be for nothing
                part = plan.resolve(is_first=attempt == 0)
                self._commit(plan, part)
                self._parts.append(part)
                return table
            except CommitConflictError as error:
                self._plans += 1
                job.decide(f"The table changed while this job ran, so it plans again: {error}.")
                plan.deletes.remove_written()
            except Exception:
                if not plan.fate.may_be_committed:
                    plan.deletes.remove_written()
                raise
        raise CommitConflictError(f"the plan was overtaken {PLANNING_ATTEMPTS} times")

    def index_new_files(self, table: PinnedTable) -> PinnedTable:
        """Where the assignment says so: the table with the commits, whose new files the index has.

        Readers have what they wait for by then. Files of which there are many are left to an index job.
        """
        job = self._job
        if self._commits and job.assignment.index.takes_new_files:
            job.reporter = AfterCommit(job.reporter)
            looked_at = index_new_files(job, table, self._warehouse, lambda files: files, INDEXED_ROWS)
            if looked_at is not table:
                table, self._head = looked_at, looked_at.snapshot_id
        return table

    def was_committed(self, table: PinnedTable) -> bool:
        """Whether an earlier attempt has committed all of the job before it was lost."""
        assignment = self._job.assignment
        if assignment.attempt == 1 or assignment.job.dry_run:
            return False
        try:
            self._find_commits(table)
        except CommitError as error:
            raise told_as_unreachable(error) from error
        return any(commit.summary.get(COMMITS_LEFT, "0") == "0" for commit in self._commits.values())

    def look_at_what_is_left(self, table: PinnedTable) -> None:
        """Resolves the pending deletes without converting them, so that what stays is told with a reason."""
        pending = table.files.equality_deletes
        if pending:
            left = Plan(self._job, table, self._warehouse, self._plans, pending, dry_run=True)
            part = left.resolve(is_first=False)
            self._parts.append(Part([], part.refused, [], [], WrittenDeletes()))

    def _commit(self, plan: Plan, part: Part) -> None:
        self._head = plan.table.snapshot_id
        try:
            committed = plan.commit(part)
        except CommitStateUnknownError:
            with suppress(CommitError):  # the catalog may still be away
                self._find_commits(plan.table)
            ours = [commit for commit in self._commits.values() if plan.is_of(commit)]
            if ours:
                self._plans += 1
                self._head = ours[0].snapshot_id
                return
            raise
        if committed is not None:
            self._plans += 1
            self._commits[committed.snapshot_id] = committed
            self._head = committed.snapshot_id

    def _find_commits(self, table: PinnedTable) -> None:
        """Adds the commits of this job that the table's history shows."""
        assignment = self._job.assignment
        for commit in commits_of(self._job, table):
            if commit.snapshot_id in self._commits or PLAN not in commit.summary:
                continue
            self._commits[commit.snapshot_id] = commit
            if commit.attempt == assignment.attempt:
                continue
            left = int(commit.summary.get(COMMITS_LEFT, 0))
            self._job.decide(
                f"Attempt {commit.attempt} committed snapshot {commit.snapshot_id} before it was lost:"
                f" {'the rest is left to do' if left else 'there is nothing left to do'}."
            )

    # report

    @property
    def converted(self) -> set[str]:
        """Paths of the equality deletes that this attempt removed, or a dry run would remove."""
        return {file.path for part in self._parts for file in part.delete_files}

    def outcome(self, table: PinnedTable, commits: int | None = None) -> Outcome:
        """The result, and the health of what is left.

        table: as it was planned last. commits: how many a dry run foretells.
        """
        dry_run = self._job.assignment.job.dry_run
        made = sorted(self._commits.values(), key=lambda commit: commit.sequence_number)
        summaries = [part.summary for part in self._parts] if dry_run else [one.summary for one in made]
        totals = counts(summaries)
        vectors = table.metadata.format_version >= 3
        result = {
            "dry_run": dry_run,
            "iceberg_snapshot_id_before": made[0].parent_snapshot_id if made else table.snapshot_id,
            "iceberg_snapshot_id_after": made[-1].snapshot_id if made else None,
            **totals,
            "deletion_vectors_added": totals["delete_files_added"] if vectors else 0,
            "position_delete_files_added": 0 if vectors else totals["delete_files_added"],
            "commits": len(made) if commits is None else commits,
            "bytes_read": sum(part.bytes_read for part in self._parts),
            "deviations": [asdict(one) for part in self._parts for one in part.deviations],
            "readers": self._what_readers_see(table),
            "key_sets": merge_explanations([one for part in self._parts for one in part.explanations]),
        }
        gone = set() if dry_run else self.converted
        live = table.files.delete_files
        after = replace(table.files, delete_files=live.where(~live.are_named(gone)))
        cleared = [] if dry_run else clear_dead_attempts(self._job)
        head = self._head or table.snapshot_id
        told = outcome(self._job, table, self._warehouse, result, after, self.refused, head, cleared)
        if dry_run and self.converted:
            measured = {stage["name"]: stage["seconds"] for stage in self._job.stages}
            seconds = conversion_seconds(measured, commits or 0, totals["delete_files_added"])
            told.result["estimated_seconds"] = round(seconds, 3)
        return told
