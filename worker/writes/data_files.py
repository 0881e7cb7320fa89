"""New rows become data files, by Iceberg's own writer in Spark's JVM; nobody sees them before a commit.

A writer of Spark's costs a job of half a second; one of these, a tenth of that (docs/decisions/35).
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.captured import CapturedException

from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.deletes.locations import data_file_locations, unannounced_plan
from worker.deletes.stage import announce
from worker.deletes.write import delete_files
from worker.io.sorting import Int64Array
from worker.process.errors import JobError
from worker.spark.jvm import java_object, jvm_of
from worker.table.catalogs import java_message, raise_lack_of_memory
from worker.table.row_delta import java_list, layout_of_new_rows, loads_no_class
from worker.writes.sent_rows import KeptRows

_HELD_BYTES = 256 * 1024**2
"""Of data files that are open at the same time, as far as they are not on the store yet."""
_SOURCE = Path(__file__).with_name("NewDataFiles.java")


class UnwritableRowsError(JobError):
    code = "rows_unwritable"
    title = "The rows could not be written"
    remedy = "Nothing was committed. Look at the cause, most likely the store or a property of the table."
    retryable = True


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Data files that are on the store and in no snapshot. files: Java's list of them."""

    files: JavaObject = ()
    paths: tuple[str, ...] = ()
    rows: int = 0
    size_bytes: int = 0


class NewRows:
    """The data files of one plan, which whoever follows can find and remove, and so can this."""

    def __init__(self, job: Job, table: PinnedTable, number: int) -> None:
        """number: of this attempt's plans."""
        self._job = job
        self._table = table
        self._announced = unannounced_plan(table, number)
        self._names: list[str] = []

    def write(self, rows: KeptRows, chosen: Int64Array) -> WrittenRows:
        """chosen: the numbers of the rows that are written; ascending. Raises UnwritableRowsError."""
        if not len(chosen):
            return WrittenRows()
        java_table = loads_no_class(self._table.java_table, layout_of_new_rows(self._table.metadata))
        held_bytes = int(_HELD_BYTES * self._job.memory_fraction)
        try:
            new = java_object(java_table, _SOURCE, "NewDataFiles", java_table, str(held_bytes))
            try:
                self._write(new, rows, chosen)
                files = new.files()
            except BaseException:
                with suppress(Exception):
                    new.close()
                raise
            parser = jvm_of(java_table).org.apache.iceberg.ContentFileParser
            told = [json.loads(parser.toJson(file, java_table.spec())) for file in files]
        except (Py4JError, CapturedException) as error:
            raise_lack_of_memory(error)
            raise UnwritableRowsError(java_message(error)) from None
        return WrittenRows(
            files,
            tuple(one["file-path"] for one in told),
            sum(one["record-count"] for one in told),
            sum(one["file-size-in-bytes"] for one in told),
        )

    def _write(self, new: JavaObject, rows: KeptRows, chosen: Int64Array) -> None:
        job, file_format, written = self._job, new.fileExtension(), 0
        for count, part in rows.parts(chosen):
            first, wanted = len(self._names), new.read(part)
            self._announced = self._announced.model_copy(update={"data_files": first + wanted})
            if wanted:
                self.announce()
            places = data_file_locations(job.assignment.job.id, job.assignment.attempt, self._announced)
            names = [places.data_file(ordinal, file_format) for ordinal in range(first, first + wanted)]
            for name in names:
                self._table.storage.io.check(name)
            self._names += names
            new.write(java_list(jvm_of(new), names))
            written += count
            job.reporter.progress("rows", written, len(chosen), "rows")

    def announce(self, only_on: int | None = None) -> None:
        """Lets whoever follows know what this plan may leave behind.

        only_on: the head that a commit needs.
        """
        if self._announced.data_files:
            announce(self._job, self._announced.model_copy(update={"only_on": only_on}))

    def remove_written(self) -> None:
        """Deletes what this plan wrote; only after an error that says that it was not committed."""
        delete_files(self._table.storage, self._names)
