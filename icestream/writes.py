"""Rows of a table, written by key: sent over HTTP, or staged as files, and waited for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from icestream.connection import Connection, Json, json_of
from icestream.encoding import arrow_reader, json_value, rows_of
from icestream.errors import ProblemError
from icestream.jobs import Job, JobFailedError
from icestream.staging import Source, Staging

ROWS_AT_ONCE: Final = 1_000
"""Of one request; more are staged as files."""
_STAGING: Final = "name a place for them that the service may read (staging)"


@dataclass(frozen=True)
class Written:
    """What a write came to, or would in a dry run.

    snapshot_id: the one that it committed; None where there was nothing to do. rows_left_out: so many were
    not written, since they exist or are no newer. left_out: the numbers of the first 1,000 of them, from 0.
    """

    job_id: str
    snapshot_id: int | None
    rows_added: int
    rows_deleted: int
    rows_left_out: int
    left_out: list[int]
    dry_run: bool


def write(connection: Connection, path: str, source: Source, options: Json, wait_seconds: float) -> Written:
    """Sends a write, once however often it has to be sent, and waits until its job has ended.

    Raises IcestreamError: JobFailedError; and TimeoutError for a job that goes on after `wait_seconds`.
    """
    headers = {"Idempotency-Key": str(uuid4())}
    source.in_use = True
    try:
        job = json_of(connection.request("POST", path, json={**source.body, **options}, headers=headers))
    except ProblemError as error:
        source.in_use = error.may_have_happened
        raise
    try:
        job = Job(connection, job["id"]).wait(wait_seconds)
    except JobFailedError:
        source.in_use = False
        raise
    source.in_use = False
    result = job["result"] or {}
    return Written(
        job_id=job["id"],
        snapshot_id=result.get("iceberg_snapshot_id_after"),
        rows_added=result.get("rows_added", 0),
        rows_deleted=result.get("rows_deleted", 0),
        rows_left_out=result.get("rows_left_out", 0),
        left_out=result.get("left_out", []),
        dry_run=job["dry_run"],
    )


@contextmanager
def sent(rows: Any, name: str, staging: str | None, filesystem: Any) -> Iterator[Source]:
    """What a request says of the rows: itself, by that name, or where they are staged meanwhile.

    rows: a table, batch or reader of Arrow, a frame of pandas, Polars or PySpark, or mappings.
    Raises ValueError for none, or for too many without `staging`, and TypeError for what is no row.
    """
    if hasattr(rows, "sparkSession"):
        if staging is None:
            raise ValueError(f"Spark writes the rows as files: {_STAGING}")
        place = Staging.under(staging, filesystem)
        with place.holding(lambda: place.write_spark(rows)) as source:
            yield source
        return
    reader = arrow_reader(rows)
    if reader is None:
        yield Source({name: json_rows(rows)})
        return
    first: list[pa.RecordBatch] = []
    for batch in reader:
        first.append(batch)
        if sum(map(len, first)) > ROWS_AT_ONCE:
            break
    else:
        yield Source({name: json_rows(pa.Table.from_batches(first, reader.schema))})
        return
    if staging is None:
        raise ValueError(f"more than {ROWS_AT_ONCE:,} rows are written from files: {_STAGING}")
    place = Staging.under(staging, filesystem)
    with place.holding(lambda: place.write(reader.schema, chain(first, reader))) as source:
        yield source


def json_rows(rows: Any) -> list[Json]:
    """Of a table of Arrow, or mappings. Raises ValueError for none or too many, and TypeError for what is no
    row."""
    if isinstance(rows, pa.Table):
        _check_count(rows.num_rows)
        columns = {
            name: [_of_type(value, column.type) for value in column.to_pylist()]
            for name, column in zip(rows.column_names, rows.columns, strict=True)
        }
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    found = [{name: _value(value) for name, value in row.items()} for row in rows_of(rows)]
    _check_count(len(found))
    return found


def _check_count(number: int) -> None:
    if not number:
        raise ValueError("there are no rows")
    if number > ROWS_AT_ONCE:
        raise ValueError(
            f"{number:,} rows are too many for mappings: give more than {ROWS_AT_ONCE:,} as Arrow"
        )


def _of_type(value: Any, kind: pa.DataType) -> Any:
    """A value of Arrow's, as Iceberg writes it in JSON."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {
            "keys": [_of_type(key, kind.key_type) for key, _ in value],
            "values": [_of_type(one, kind.item_type) for _, one in value],
        }
    if pa.types.is_struct(kind):
        return {field.name: _of_type(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_of_type(one, kind.value_type) for one in value]
    return _value(value)


def _value(value: Any) -> Any:
    match value:
        case float():
            if math.isfinite(value):
                return value
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Mapping():
            return {name: _value(one) for name, one in value.items()}
        case list() | tuple():
            return [_value(one) for one in value]
    return json_value(value)
