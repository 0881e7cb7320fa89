"""Whether a table's files lie in a place of its own: jobs that delete files there go by it."""

from __future__ import annotations

from trust.locations import is_under
from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.erasure.metadata_files import PLACE_PROPERTIES
from worker.process.errors import JobError


class FilesElsewhereError(JobError):
    code = "files_elsewhere"
    title = "The table's files do not lie in a place of its own"
    remedy = (
        "Give the table a location that holds all its files and none of another table, or have this "
        "done by somebody else: this job deletes files."
    )


def check_own_places(job: Job, table: PinnedTable) -> None:
    """Whoever owns a table says where its files lie, and may name what is another's."""
    metadata = table.metadata
    for key in PLACE_PROPERTIES:
        place = metadata.properties.get(key, metadata.location)
        if not is_under(place, metadata.location):
            raise FilesElsewhereError(f"{key} is {place}, which is not in the location {metadata.location}.")
    if others := job.assignment.table.overlapping_locations:
        raise FilesElsewhereError(
            f"Its location {metadata.location} overlaps that of another enrolled table: {others[0]}."
        )
