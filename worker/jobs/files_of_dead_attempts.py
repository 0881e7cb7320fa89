"""Delete files that an attempt wrote and neither committed nor removed: whoever follows removes them.

An attempt announces each plan to the control plane before it writes, and again before it commits, then with
an equality delete file that the commit removes; a plan of one task, with that at once. So it is known by name
what a dead attempt may have left, without listing anything, and what can't be committed any more: a plan that
was never about to be, one that would remove a file that is gone, which Iceberg refuses, and one that needs
another head of the branch.

Invariant: what an attempt has announced is only compared. A file is looked for where the table itself says,
or has said, that its delete files go, and only under a name of that attempt's.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cache

from pyiceberg.exceptions import ValidationError

from stores.table_metadata import read_table_metadata
from telemetry.plurals import counted
from trust.locations import LocationNotAllowedError
from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable, pin_table
from worker.contract.control_plane import AnnouncedPlan, AttemptId, EndedAttempt
from worker.deletes.locations import (
    Layout,
    data_file_folder,
    data_file_locations,
    layout_of,
    output_locations,
)
from worker.deletes.write import delete_files, written_files
from worker.io.file_formats import FORMATS
from worker.process.errors import JobError
from worker.table.all_snapshots import data_files_of_all_snapshots, delete_files_of_all_snapshots
from worker.table.row_delta import NO_SNAPSHOT

_NAMES_AT_MOST = 1_000_000
"""That one job looks for, of whatever was announced: each is a request to the store."""
_LOG_AT_MOST = 100  # as many as Iceberg keeps


def clear_dead_attempts(job: Job) -> list[AttemptId]:
    """Deletes what earlier attempts of the table's jobs left; returns those of which nothing is left.

    A trouble here undoes nothing of the job: it is told, and the next job tries again.
    """
    cleared: list[AttemptId] = []
    if not job.assignment.ended_attempts:
        return cleared
    try:
        table = pin_table(job)  # as it is after all that these attempts did, and this one
        live = set(table.files.delete_files.paths())
        removed = {
            plan.removes for left in job.assignment.ended_attempts for plan in left.plans if plan.removes
        }
        live |= {file.path for file in table.files.data_files.with_paths(removed)}
        needed = cache(
            lambda: set(map(_name, delete_files_of_all_snapshots(table.metadata, table.storage.io)))
        )
        needed_rows = cache(
            lambda: set(map(_name, data_files_of_all_snapshots(table.metadata, table.storage.io)))
        )
        layouts = _Layouts(table)
        names_left = _NAMES_AT_MOST
        for left in job.assignment.ended_attempts:
            names = min(sum(map(_names_of, left.plans)), _NAMES_AT_MOST)
            if names > names_left:
                job.decide("Files that further attempts left behind are looked for by the next jobs.")
                break
            names_left -= names
            if _remove(job, table, left, live, (needed, needed_rows), layouts):
                cleared.append(AttemptId(job_id=left.job_id, attempt=left.attempt))
    except (JobError, OSError) as error:
        job.decide(f"Files that earlier attempts left behind can't be removed yet: {error}.")
    return cleared


class _Layouts:
    """Those of the table: the present one, and what the metadata files in its log say, the latest first."""

    def __init__(self, table: PinnedTable) -> None:
        self._known: list[Layout] = []
        self._others = self._read(table)

    def __contains__(self, layout: Layout) -> bool:
        """Reads no more metadata than it takes. Raises OSError."""
        if layout in self._known:
            return True
        for found in self._others:
            self._known.append(found)
            if found == layout:
                return True
        return False

    @staticmethod
    def _read(table: PinnedTable) -> Iterator[Layout]:
        yield layout_of(table.metadata)
        for entry in table.metadata.metadata_log[: -_LOG_AT_MOST - 1 : -1]:
            # An old file may be gone.
            with suppress(FileNotFoundError, LocationNotAllowedError, ValidationError, ValueError):
                file = table.storage.io.new_input(entry.metadata_file)
                yield layout_of(read_table_metadata(file))


def _remove(
    job: Job,
    table: PinnedTable,
    left: EndedAttempt,
    live: Collection[str],
    needed: tuple[Callable[[], set[str]], Callable[[], set[str]]],
    layouts: _Layouts,
) -> bool:
    """Whether nothing of the attempt's is left that could be found.

    live: paths of the delete files of the branch, and of data files that commits would remove. needed: names
    of delete files that some snapshot shows, and of data files.
    """
    head = NO_SNAPSHOT if table.snapshot_id is None else table.snapshot_id
    needed_deletes, needed_rows = needed
    whose = f"attempt {left.attempt} of job {left.job_id} left behind"
    storage = table.storage
    removed = 0
    is_cleared = True
    names_left = _NAMES_AT_MOST
    skipped: dict[str, None] = {}
    keeps = False
    for plan in reversed(left.plans):  # of the earlier ones, most is committed
        if plan.expires:
            # Who lets snapshots expire goes on with these: another one begins once that job has ended.
            keeps |= job.assignment.job.kind not in ("erase", "expire_snapshots")
            continue
        if plan.removes in live or plan.only_on == head:
            is_cleared = False
            continue
        if (plan.location, plan.properties) not in layouts:
            skipped["the table lies elsewhere by now, and its metadata log does not say where it was"] = None
            continue
        if _names_of(plan) > names_left:
            skipped[f"there may be more than {_NAMES_AT_MOST:,}"] = None
            continue
        names_left -= _names_of(plan)
        outputs = [output_locations(left.job_id, left.attempt, plan, task) for task in range(plan.tasks)]
        names = [name for locations in outputs for name in locations.names(plan.files_per_task)]
        # Also of a plan that was committed: a run that Spark gave up may have written more than that.
        written = [path for path in written_files(storage, names) if _name(path) not in needed_deletes()]
        rows = data_file_locations(left.job_id, left.attempt, plan)
        names = [rows.data_file(n, kind) for n in range(plan.data_files) for kind in FORMATS]
        written += [path for path in written_files(storage, names) if _name(path) not in needed_rows()]
        if plan.has_folder:
            found = storage.walk(data_file_folder(left.job_id, left.attempt, plan))
            in_use = needed_rows() | needed_deletes() if found else frozenset[str]()
            written += [one.location for one in found if one.name not in in_use]
        removed += delete_files(storage, written)
    # Each once, however many plans were announced.
    if not is_cleared:
        job.decide(f"Files that {whose} stay for now: its commit may still come.")
    for why in skipped:
        job.decide(
            f"Files that {whose} are not looked for: {why}. If there are any, their names begin with"
            f" icestream-{left.job_id}-{left.attempt}-, and Iceberg's own procedure remove_orphan_files takes"
            " them."
        )
    if removed:
        job.decide(f"Removed {counted(removed, 'file')} that {whose}.")
    return is_cleared and not keeps


def _names_of(plan: AnnouncedPlan) -> int:
    return plan.tasks * plan.files_per_task + plan.data_files * len(FORMATS)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
