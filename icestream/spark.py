"""Where the rows of any number of keys are, found by Spark's own tasks and not by the service.

    from icestream.spark import IndexedTable, look_up, metadata_location

    place = metadata_location(spark, "lake.sales.orders")
    orders = IndexedTable(place, "s3://lake/index", {"s3.region": "eu-central-1"})
    found = look_up(keys, orders, select=["status"])

Invariant: each key is answered in full and about one snapshot, or the query fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from trust.secrets import PLACES
from worker.contract.lookups import AskedKeys
from worker.io.storage import Storage
from worker.process.errors import JobError
from worker.process.redaction import Redaction
from worker.query.answers import Answers, TablePlace
from worker.query.arrow import answer_schema, arrow_answer, keys_of_arrow
from worker.query.rows import rows_at, selected
from worker.table.record_properties import (
    index_file_io_properties,
    resolve_secrets,
    secrets_of,
    table_file_io_properties,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYS_AT_ONCE: Final = 100_000
"""Of a task: data files that the index lacks are read once for so many."""
_ROWS_OF_BATCH: Final = 10_000


class LookupFailedError(Exception):
    """The keys can't be answered; the text says why and what to do."""


@dataclass(frozen=True)
class IndexedTable:
    """A table, its index, and how their files are opened.

    metadata_location: `metadata_location` finds it. index_warehouse: where the service has indexes of this
    catalog. properties: of files, as a catalog's record has them (`s3.endpoint`, `s3.access-key-id`, and
    `index.` before those for indexes alone). A value `env:NAME` or `file:/path` is read by each process that
    needs it, so that no secret is part of the query. branch: the one that the table is enrolled with.
    """

    metadata_location: str
    index_warehouse: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    branch: str = "main"

    def place(self) -> TablePlace:
        properties = resolve_secrets(self.properties)
        tables = Storage(table_file_io_properties(properties))
        of_index = index_file_io_properties(properties, self.index_warehouse)
        indexes = Storage(of_index) if of_index else tables
        return TablePlace(self.metadata_location, tables, self.index_warehouse, indexes, self.branch)


def metadata_location(spark: SparkSession, name: str) -> str:
    """Where the newest metadata of a table lies, of which all of a lookup's tasks speak.

    name: as in SQL, of an Iceberg catalog of the session.
    """
    (newest,) = spark.table(f"{name}.metadata_log_entries").tail(1)
    return str(newest["file"])


def look_up(
    keys: DataFrame,
    table: IndexedTable,
    *,
    select: Sequence[str] | None = None,
    branch: str | None = None,
    snapshot_id: int | None = None,
    partitions: int | None = None,
) -> DataFrame:
    """A row for each match and one for each key without any: key, data_file, position, partition (JSON),
    data_sequence_number, live, deleted_by, and row if columns were selected.

    keys: a column for each key column, named as it is; equal keys are answered each. branch, snapshot_id:
    one of them at most, else it is the newest snapshot of the branch. partitions: of the keys, which are
    sorted among them, so that each part of the index is read by few tasks; else as many as Spark shuffles
    into.

    Raises LookupFailedError, as the query does when it runs, and ValueError.
    """
    if branch is not None and snapshot_id is not None:
        raise ValueError("name either a branch or tag, or a snapshot")
    question = AskedKeys(
        key_columns=keys.columns,
        branch=branch,
        snapshot_id=snapshot_id,
        select=None if select is None else list(select),
    )
    with _told(table):
        coverage = _answers().coverage(table.place(), question)
        row = None if select is None else selected(coverage.table.schema, select)
        shown = answer_schema(coverage.key_set, row)
    # Where keys come from many tasks, their places in a question say nothing.
    columns = [pa.field(one.name, _known_to_spark(one.type)) for one in shown if one.name != "key_index"]
    schema = from_arrow_schema(pa.schema(columns), prefer_timestamp_ntz=True)
    order = [F.col(f"`{name.replace('`', '``')}`") for name in keys.columns]
    ranges = (
        keys.repartitionByRange(*order) if partitions is None else keys.repartitionByRange(partitions, *order)
    )
    answer = _task(table, question, to_arrow_schema(schema))
    return ranges.sortWithinPartitions(*order).mapInArrow(answer, schema)


def _task(
    table: IndexedTable, question: AskedKeys, schema: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def look_up_keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for keys in _gathered(batches):
            answer = _answer(table, question, keys)
            yield from answer.select(schema.names).cast(schema).to_batches(max_chunksize=_ROWS_OF_BATCH)

    return look_up_keys


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= _KEYS_AT_ONCE:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if sum(one.num_rows for one in waiting):
        yield pa.Table.from_batches(waiting)


def _answer(table: IndexedTable, question: AskedKeys, keys: pa.Table) -> pa.Table:
    with _told(table):
        coverage, asked, places = _answers().find_keys(
            table.place(), question, lambda key_set: keys_of_arrow(key_set, keys)
        )
        schema = None if question.select is None else selected(coverage.table.schema, question.select)
        rows = None if schema is None else rows_at(coverage.table, places, schema)
        return arrow_answer(coverage, asked, places, rows, schema)


@cache
def _answers() -> Answers:
    """Of this process, which Spark uses for many tasks: they read metadata and the index's manifests once."""
    return Answers()


@contextmanager
def _told(table: IndexedTable) -> Iterator[None]:
    """Errors without secrets: Spark writes them into logs."""
    try:
        yield
    except (JobError, OSError) as error:
        words = f"{error.title}: {error.detail} {error.remedy}" if isinstance(error, JobError) else str(error)
        given = {value for key, value in table.properties.items() if key not in PLACES}
        secrets = secrets_of(table.properties) | given
        raise LookupFailedError(Redaction(secrets).text(words)) from None


def _known_to_spark(kind: pa.DataType) -> pa.DataType:
    """Without types that Spark has not: it gets a UUID as its bytes, and moments in microseconds.

    The query fails where that would lose something.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_known_to_spark(one.type)) for one in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_known_to_spark(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_known_to_spark(kind.key_type), _known_to_spark(kind.item_type))
    return kind
