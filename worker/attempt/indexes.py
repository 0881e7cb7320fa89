"""The indexes of a job's table: which keys have one or are to get one, and what can be used of them."""

from collections.abc import Hashable, Iterator
from contextlib import suppress

from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.index.key_set_index import (
    DamagedIndexError,
    IndexState,
    KeySetIndex,
    indexed_key_sets,
    key_sets_in,
    open_index,
)
from worker.index.warehouse import IndexWarehouse
from worker.io.cache import Cache
from worker.keys.key_set import KeyColumnError, KeySet
from worker.keys.schema_fields import field_ids_of, resolve_key_set

KEPT = Cache(64 * 1024**2)
"""Of indexes, what was read or written last: the next job of a table reads what has changed since."""


def open_again(
    job: Job,
    table: PinnedTable,
    warehouse: IndexWarehouse,
    key_set: KeySet,
    *,
    create: bool = False,
    rebuild: bool = False,
) -> KeySetIndex | None:
    """As `open_index`; what this worker has read of it before is not read again."""
    forget_index(job, table, warehouse, key_set)
    known = KEPT.find(_name(table, warehouse, key_set))
    database = table.index_database
    index = open_index(warehouse, database, key_set, create=create, rebuild=rebuild, known=known)
    if index is not None:
        keep_index(job, table, warehouse, index)
    return index


def keep_index(job: Job, table: PinnedTable, warehouse: IndexWarehouse, index: KeySetIndex) -> None:
    """As it was found or left: to open it again takes less time, and to report it none."""
    name, state = _name(table, warehouse, index.key_set), index.state
    job.indexes[name] = state
    KEPT.put(name, state, state.size_bytes)


def forget_index(job: Job, table: PinnedTable, warehouse: IndexWarehouse, key_set: KeySet) -> None:
    """It is about to be changed, or opened anew: whoever asks for it next looks what became of it."""
    job.indexes.pop(_name(table, warehouse, key_set), None)


def index_state(
    job: Job, table: PinnedTable, warehouse: IndexWarehouse, key_set: KeySet
) -> IndexState | None:
    """As the job has found or left the index, while that is kept; or else as it is found now."""
    known = job.indexes.get(_name(table, warehouse, key_set))
    if known is None and (index := usable_index(job, table, warehouse, key_set)) is not None:
        return index.state
    return known


def _name(table: PinnedTable, warehouse: IndexWarehouse, key_set: KeySet) -> Hashable:
    return warehouse.storage.identity, warehouse.location, table.index_database, key_set


def planned_key_sets(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> dict[tuple[int, ...], str]:
    """Field ids -> where the key set comes from.

    Equality deletes that the job has met, a declaration, an index, an earlier report, or else the
    table's identifier fields.
    """
    found = dict.fromkeys(sorted(job.key_sets), "equality_deletes")
    schema = table.metadata.schema()
    for columns in job.assignment.table.key_sets or []:
        # A declared column may be gone; index jobs tell of it.
        with suppress(KeyColumnError):
            found.setdefault(field_ids_of(schema, columns), "declared")
    for ids in key_sets_in(warehouse.listed_names(table.index_database)):
        found.setdefault(ids, "index")
    # The first conversion may come before the first indexing, and leaves no delete that names its key.
    for seen in job.assignment.table.seen_equality_field_ids:
        found.setdefault(tuple(seen), "earlier_report")
    if not found and schema.identifier_field_ids:
        found[tuple(sorted(schema.identifier_field_ids))] = "identifier_fields"
    return found


def indexes(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Iterator[KeySetIndex]:
    """Every usable index of the table; of a damaged one the job's history tells."""
    for ids in indexed_key_sets(warehouse, table.index_database):
        try:
            key_set = resolve_key_set(table.metadata, ids)
        except KeyColumnError:
            continue
        index = usable_index(job, table, warehouse, key_set)
        if index is not None:
            yield index


def usable_index(
    job: Job, table: PinnedTable, warehouse: IndexWarehouse, key_set: KeySet
) -> KeySetIndex | None:
    """The index of a key set; None when there is none, or a damaged one, of which the job's history tells."""
    try:
        return open_again(job, table, warehouse, key_set)
    except DamagedIndexError as error:
        sentence = f"Key set {key_set}: {error}. The next index job makes a new one."
        if sentence not in job.decisions:
            job.decide(sentence)
        return None


def start_anew(job: Job, table: PinnedTable, warehouse: IndexWarehouse, key_set: KeySet) -> None:
    """A damaged index is not used again: an empty generation follows, for the next index job to fill."""
    job.reporter.confirm_lease()
    forget_index(job, table, warehouse, key_set)
    open_index(warehouse, table.index_database, key_set, rebuild=True)
    job.decide(f"Key set {key_set}: its index starts anew; the next index job fills it.")
