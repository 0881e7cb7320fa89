"""Where new delete files go: under names that nobody else writes, and that whoever follows can tell."""

from collections.abc import Iterator, Mapping
from itertools import chain

from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata

from trust.properties import LOCATION_PROPERTIES
from worker.attempt.pinned_table import PinnedTable
from worker.contract.control_plane import AnnouncedPlan

Layout = tuple[str, dict[str, str]]
"""A table's location, and its properties that say where below or beside that its delete files go."""


class DeleteFileLocations:
    """Where a table's new delete files go, by name: under its data, as its location properties say.

    A class that a table names for that (`LOCATION_PROVIDERS`) is not loaded.
    Names start with a prefix of the caller's that no other attempt or commit uses, and have a number: so an
    attempt's files can be found again by name after it died (`remove_written`).
    """

    def __init__(self, table_location: str, table_properties: Mapping[str, str], prefix: str) -> None:
        self.table_location = table_location
        self.table_properties = {
            key: value for key, value in table_properties.items() if key in LOCATION_PROPERTIES
        }
        self._provider = load_location_provider(table_location, self.table_properties)
        self.prefix = prefix

    def __reduce__(self) -> tuple[object, ...]:
        return DeleteFileLocations, (self.table_location, self.table_properties, self.prefix)

    def puffin(self, ordinal: int) -> str:
        return self._provider.new_data_location(f"{self.prefix}-{ordinal:05d}-deletes.puffin")

    def parquet(self, ordinal: int) -> str:
        return self._provider.new_data_location(f"{self.prefix}-{ordinal:05d}-deletes.parquet")

    def data_file(self, ordinal: int, file_format: str) -> str:
        return self._provider.new_data_location(f"{self.prefix}-{ordinal:05d}.{file_format}")

    def names(self, count: int) -> Iterator[str]:
        """The first `count` of each format."""
        return chain.from_iterable(map(location, range(count)) for location in (self.puffin, self.parquet))

    @property
    def folder(self) -> str:
        """All of them are below it."""
        return self._provider.data_path


def unannounced_plan(table: PinnedTable, number: int) -> AnnouncedPlan:
    """A plan of no tasks yet, with what its files' names depend on: the table may change meanwhile."""
    location, properties = layout_of(table.metadata)
    return AnnouncedPlan(number=number, tasks=0, files_per_task=0, location=location, properties=properties)


def output_locations(job_id: str, attempt: int, plan: AnnouncedPlan, task: int) -> DeleteFileLocations:
    """Where a task of a plan writes: names that no other attempt writes, and that anybody can tell."""
    prefix = f"icestream-{job_id}-{attempt}-{plan.number}-{task:05d}"
    return DeleteFileLocations(plan.location, plan.properties, prefix)


def data_file_locations(job_id: str, attempt: int, plan: AnnouncedPlan) -> DeleteFileLocations:
    """Where a plan's new data files go, likewise."""
    return DeleteFileLocations(
        plan.location, plan.properties, f"icestream-{job_id}-{attempt}-{plan.number}-rows"
    )


def data_file_folder(job_id: str, attempt: int, plan: AnnouncedPlan) -> str:
    """Where they go if somebody else names them: a folder that no other attempt writes to."""
    locations = data_file_locations(job_id, attempt, plan)
    return f"{locations.folder.rstrip('/')}/{locations.prefix}"


def layout_of(metadata: TableMetadata) -> Layout:
    properties = metadata.properties
    return metadata.location, {key: properties[key] for key in LOCATION_PROPERTIES if key in properties}
