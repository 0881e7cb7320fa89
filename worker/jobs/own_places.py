"""Whether a table's files lie in a place of its own: jobs that delete files there go by it."""

from __future__ import annotations

from stores.table_metadata import PLACE_PROPERTIES
from trust.locations import is_under, normalize_location
from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.process.errors import JobError


class FilesElsewhereError(JobError):
    code = "files_elsewhere"
    title = "The table's files do not lie in a place of its own"
    remedy = (
        "Give the table a location that holds all its files and none of another table, or have this "
        "done by somebody else: this job deletes files."
    )


class LocationUnknownError(JobError):
    code = "location_changed"
    title = "The table has another location since the service looked at it last"
    remedy = "It is tried again: the service looks first whether another enrolled table lies there."
    retryable = True


def check_own_places(job: Job, table: PinnedTable) -> None:
    """Whoever owns a table says where its files lie, and may name what is another's."""
    metadata, known = table.metadata, job.assignment.table.location
    if known and normalize_location(known) != normalize_location(metadata.location):
        raise LocationUnknownError(f"It is {metadata.location}, and was {known} at the last look.")
    for key in PLACE_PROPERTIES:
        place = metadata.properties.get(key, metadata.location)
        if not is_under(place, metadata.location):
            raise FilesElsewhereError(f"{key} is {place}, which is not in the location {metadata.location}.")
    if others := job.assignment.table.overlapping_locations:
        raise FilesElsewhereError(
            f"Its location {metadata.location} overlaps a place of another enrolled table: {others[0]}."
        )
