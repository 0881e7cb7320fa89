"""The job that deletes the index of a table that was removed; the table itself need not exist any more."""

from worker.attempt.job import Job
from worker.attempt.outcome import Outcome
from worker.attempt.pinned_table import index_storage
from worker.index.key_set_index import database_name
from worker.index.sorted_runs import IndexWarehouse
from worker.io.storage import Storage
from worker.table.catalogs import given_file_io_properties, resolve_secrets


def drop_index(job: Job) -> Outcome:
    """Deletes every index of the branch, if there is one. Reports no health: nothing is left to measure."""
    table = job.assignment.table
    properties, allowed = job.assignment.catalog.properties, job.assignment.allowed_secrets
    given = given_file_io_properties(resolve_secrets(properties, allowed, job.assignment.own_files))
    job.assignment.egress.check(given)
    storage = index_storage(job.assignment, Storage(given | job.assignment.location_limits))
    warehouse = IndexWarehouse(job.assignment.index.warehouse, storage)
    database = database_name(table.table_uuid, table.branch)
    names = warehouse.table_names(database)
    with job.stage("drop"):
        # A table that was registered again keeps its index.
        job.reporter.confirm_lease()
        warehouse.drop(database)
    job.decide(f"The index of {'.'.join(table.identifier)} was deleted: {len(names)} index tables.")
    return Outcome({"index_tables_deleted": len(names), "decisions": job.decisions, "stages": job.stages}, {})
