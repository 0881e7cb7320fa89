"""Where the rows of some keys of a table are, asked over HTTP and answered as Arrow; jobs, writes by key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from icestream.connection import WHERE, Connection, Json
from icestream.encoding import in_arrow, json_value, rows_of
from icestream.erasures import Erasure, ask
from icestream.errors import UnreachableError
from icestream.jobs import Job, request_job
from icestream.staging import Source, SparkFrame
from icestream.writes import Written, json_rows, sent, write

if TYPE_CHECKING:
    import pandas

KEYS_AT_ONCE: Final = 10_000
"""Of one call at most; more keys are asked in several."""
_BODY_BYTES: Final = 8 * 1024**2
_ARROW: Final = "application/vnd.apache.arrow.stream"
WAIT_SECONDS: Final = 120.0
"""For a service that says when to come again, in one call of those that change nothing."""
_WAIT_FOR_JOB_SECONDS: Final = 600.0

Rows = Iterable[Mapping[str, Any]]
Part = TypeVar("Part")
Answered = TypeVar("Answered")


@dataclass(frozen=True)
class Answer:
    """What is known of all keys of a question, in one snapshot.

    data_files_from_index: so many were answered for by the index. data_files_scanned, rows_scanned: so many
    were read beside it, by each of the calls that the question took.
    """

    snapshot_id: int | None
    head_age_seconds: float
    key_columns: list[str]
    data_files_from_index: int
    data_files_scanned: int
    rows_scanned: int
    matches: pa.Table

    def to_arrow(self) -> pa.Table:
        """A row for each match and one for each key without any: key, key_index, data_file, position,
        partition (JSON), data_sequence_number, live, deleted_by, and row if columns were selected.

        `key` and `row` are structs of the table's columns.
        """
        return self.matches

    def to_pandas(self) -> pandas.DataFrame:
        """The same with a column `key.x` or `row.x` for each field of these. Numbers and truths that may be
        missing are of pandas' own types for that, such as Int64."""
        import pandas as pd

        nullable = {
            pa.bool_(): pd.BooleanDtype(),
            pa.int32(): pd.Int32Dtype(),
            pa.int64(): pd.Int64Dtype(),
        }
        frame: pandas.DataFrame = self.matches.flatten().to_pandas(types_mapper=nullable.get)
        return frame


class Client:
    """Talks to the service."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        ca_file: str | Path | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """url, api_key: ICESTREAM_URL and ICESTREAM_API_KEY, if they are not given. ca_file: certificates of
        who has signed the service's own, in PEM. wait_seconds: how long one call may wait for a service that
        says when to come again.

        Raises SetupError.
        """
        self._connection = Connection(url, api_key, ca_file=ca_file, wait_seconds=wait_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def table(self, name: str) -> Table:
        """name: `namespace.table`, or with its catalog `catalog.namespace.table`; or the id.

        The service is not asked until the table is: a key of lookups alone may name it, and list none.
        """
        return Table(self._connection, name)

    def job(self, job_id: str) -> Job:
        """One that was asked for before."""
        return Job(self._connection, job_id)

    def erase(
        self,
        keys: pa.Table | pa.RecordBatch | pandas.DataFrame | Rows | None = None,
        *,
        files: Sequence[str] | None = None,
        tables: Sequence[str] | None = None,
        pattern: str | None = None,
        catalog: str | None = None,
        key_columns: Sequence[str] | None = None,
        expire_snapshots: bool = True,
        note: str | None = None,
    ) -> Erasure:
        """Erases keys from tables, all of them or none; `wait` for it, and ask for its `receipt`.

        keys: a column for each of the key's, or a mapping for each key, of which there are at most 1,000; or
        files: of more keys, in Parquet or Arrow IPC, at places that the service allows. tables: names or ids;
        or pattern: of names. expire_snapshots: whether those go that reach the rows and that nobody holds.

        Raises IcestreamError, ValueError for no keys or too many, and TypeError for what is no key.
        """
        listed = {"files": files, "tables": tables, "key_columns": key_columns}
        body: Json = {name: None if value is None else list(value) for name, value in listed.items()}
        body |= {"pattern": pattern, "catalog": catalog, "note": note, "expire_snapshots": expire_snapshots}
        if keys is not None:
            body["keys"] = json_rows(in_arrow(keys))
        return Erasure(self._connection, str(ask(self._connection, body)["id"]))

    def erasure(self, erasure_id: str) -> Erasure:
        """One that was asked for before."""
        return Erasure(self._connection, erasure_id)


class Table:
    """An enrolled table.

    All that it is asked for raises IcestreamError; NotFoundError, InvalidError or UnknownNameError, if no
    enrolled table or several have the name.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._name = name
        self._connection = connection

    @cached_property
    def id(self) -> str:
        return self._connection.table_id(self._name)

    def lookup(
        self,
        keys: pa.Table | pa.RecordBatch | pandas.DataFrame | Rows,
        *,
        key_columns: Sequence[str] | None = None,
        select: Sequence[str] | None = None,
        branch: str | None = None,
        snapshot_id: int | None = None,
        max_staleness_seconds: float = 1,
    ) -> Answer:
        """Where the rows of keys are, whether they are live, and what they hold in the columns of `select`.

        keys: a column for each key column, or a mapping for each key; whatever exports Arrow will do, such as
        a frame of Polars. key_columns: those that make the key; without them, all columns of Arrow's, and of
        mappings the table's only key. branch, snapshot_id: one of them at most. Keys that do not fit into one
        call are asked in several, which are all about the snapshot of the first, by the same schema.

        Raises IcestreamError, ValueError for no keys, and TypeError for what is no key.
        """
        asked = _asked(keys, key_columns)
        if not len(asked):
            raise ValueError("there are no keys")
        options = {
            "select": None if select is None else list(select),
            "branch": branch,
            "snapshot_id": snapshot_id,
            "max_staleness_seconds": max_staleness_seconds,
        }
        parts: Iterator[_Columns | _Rows] = asked.parts()
        return _joined(list(pinned(parts, self._ask, options)))

    def upsert(
        self,
        rows: pa.Table | pa.RecordBatch | pa.RecordBatchReader | pandas.DataFrame | SparkFrame | Rows,
        *,
        key_columns: Sequence[str] | None = None,
        staging: str | None = None,
        filesystem: Any = None,
        only_if_newer_than: str | None = None,
        insert_only: bool = False,
        duplicates: Literal["refuse", "last"] = "refuse",
        dry_run: bool = False,
        wait_seconds: float = _WAIT_FOR_JOB_SECONDS,
    ) -> Written:
        """Adds rows and deletes those of the same keys, in one commit, and waits for it.

        rows: a column for each of the table's, or a mapping for each row, of which there are at most 1,000.
        More rows, and a frame of PySpark, are staged as Parquet files in a folder of their own below
        `staging`, which goes when the job has ended. filesystem: where that is, of pyarrow or fsspec, if
        pyarrow does not find it. key_columns: those that make the key; without them, the identifier fields or
        the only key set. only_if_newer_than: a column by which older rows are left out. insert_only: rows
        whose keys exist are left out. duplicates: whether rows with one key are refused, or the last of them
        counts. dry_run: writes nothing.

        Raises IcestreamError (JobFailedError: the job has failed or was cancelled), ValueError, TypeError,
        and TimeoutError for a job that goes on after `wait_seconds`.
        """
        options = {
            "only_if_newer_than": only_if_newer_than,
            "insert_only": insert_only,
            "duplicates": duplicates,
        }
        path = self._rows_path("upsert")
        with sent(rows, "rows", staging, filesystem) as source:
            return self._write(path, source, options, key_columns, dry_run, wait_seconds)

    def delete(
        self,
        keys: pa.Table | pa.RecordBatch | pa.RecordBatchReader | pandas.DataFrame | SparkFrame | Rows,
        *,
        key_columns: Sequence[str] | None = None,
        staging: str | None = None,
        filesystem: Any = None,
        dry_run: bool = False,
        wait_seconds: float = _WAIT_FOR_JOB_SECONDS,
    ) -> Written:
        """Deletes the rows of keys, in whatever partition they lie, in one commit, and waits for it.

        keys: a column for each of the key's, or a mapping for each key. The rest is as in `upsert`.
        """
        path = self._rows_path("delete")
        with sent(keys, "keys", staging, filesystem) as source:
            return self._write(path, source, {}, key_columns, dry_run, wait_seconds)

    def request_job(
        self,
        kind: str,
        *,
        key: str | None = None,
        dry_run: bool = False,
        parameters: Mapping[str, Any] | None = None,
    ) -> Job:
        """Asks for a job of a kind such as `convert`; `wait` for it, or `cancel` it.

        One of its kind that is queued already is the answer. key: what it is for, such as one run of a
        pipeline: the same request with the same key is the same job, until that has failed or was cancelled.
        """
        body = {"kind": kind, "dry_run": dry_run, "parameters": dict(parameters or {})}
        return request_job(self._connection, f"/api/v1/tables/{self.id}/jobs", body, key)

    def _rows_path(self, kind: str) -> str:
        """Asked for before anything is staged: a name that is wrong costs nothing then."""
        return f"/api/v1/tables/{self.id}/rows/{kind}"

    def _write(
        self,
        path: str,
        source: Source,
        options: Json,
        key_columns: Sequence[str] | None,
        dry_run: bool,
        wait_seconds: float,
    ) -> Written:
        columns = None if key_columns is None else list(key_columns)
        whole = {**options, "key_columns": columns, "dry_run": dry_run}
        return write(self._connection, path, source, whole, wait_seconds)

    def _ask(self, part: _Columns | _Rows, options: Json) -> tuple[Json, tuple[pa.Table, Json]]:
        path = self._connection.lookups_path(self._name)
        answer = self._connection.request("POST", path, **part.request(options))
        try:
            with pa.ipc.open_stream(answer.content) as reader:
                table = reader.read_all()
            facts = json.loads(table.schema.metadata[b"icestream"])
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise UnreachableError(
                f"What answers is not Icestream, or of another version: {error}.", WHERE
            ) from error
        at = table.column_names.index("key_index")
        moved = pc.add(table.column(at), pa.scalar(part.start, pa.int32()))
        return facts, (table.set_column(at, "key_index", moved), facts)


def pinned(
    parts: Iterable[Part],
    ask: Callable[[Part, Json], tuple[Json, Answered]],
    options: Json,
) -> Iterator[Answered]:
    """What is answered to each part, all of them about the snapshot of the first, by its schema.

    ask: gives the facts of an answer, and the answer. Raises what it raises, and UnreachableError for a table
    that has got its first snapshot meanwhile.
    """
    first: int | None = None
    for number, part in enumerate(parts):
        facts, answer = ask(part, options)
        if number and facts["snapshot_id"] != first:
            raise UnreachableError("The table got its first snapshot meanwhile.", "Ask again.")
        first = facts["snapshot_id"]
        if first is not None:
            of_first = {name: facts[name] for name in ("snapshot_id", "schema_id")}
            options = {**options, "branch": None, **of_first}
        yield answer


@dataclass(frozen=True)
class _Columns:
    """Keys as Arrow. start: the place of the first one in the whole question."""

    keys: pa.Table
    start: int = 0

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def slice(self, start: int, length: int) -> _Columns:
        return _Columns(self.keys.slice(start, length), self.start + start)

    def parts(self) -> Iterator[_Columns]:
        for start in range(0, len(self), KEYS_AT_ONCE):
            yield from _fitting(self.slice(start, KEYS_AT_ONCE))

    def request(self, options: Json) -> Json:
        headers = {"Content-Type": _ARROW, "Accept": _ARROW}
        query = {name: value for name, value in options.items() if value is not None}
        return {"content": self.content(), "params": query, "headers": headers}

    def content(self) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.keys.schema) as writer:
            writer.write_table(self.keys.combine_chunks())
        return bytes(sink.getvalue())


@dataclass(frozen=True)
class _Rows:
    """Keys in JSON. start: the place of the first one in the whole question."""

    keys: list[Json]
    key_columns: list[str] | None
    start: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, length: int) -> _Rows:
        return _Rows(self.keys[start : start + length], self.key_columns, self.start + start)

    def parts(self) -> Iterator[_Rows]:
        for start in range(0, len(self), KEYS_AT_ONCE):
            yield from _fitting(self.slice(start, KEYS_AT_ONCE))

    def request(self, options: Json) -> Json:
        body = {**options, "key_columns": self.key_columns, "keys": self.keys}
        headers = {"Content-Type": "application/json", "Accept": _ARROW}
        return {"content": json.dumps(body), "headers": headers}

    def content(self) -> bytes:
        return json.dumps(self.keys).encode()


def parts_of(keys: list[Json]) -> Iterator[list[Json]]:
    """As many at a time as one call takes."""
    return (part.keys for part in _Rows(keys, None).parts())


Keys = TypeVar("Keys", _Columns, _Rows)


def _fitting(keys: Keys) -> Iterator[Keys]:
    """Halves, until each fits into a body; there is room for the options beside it."""
    if len(keys) > 1 and len(keys.content()) > _BODY_BYTES * 3 // 4:
        middle = len(keys) // 2
        yield from _fitting(keys.slice(0, middle))
        yield from _fitting(keys.slice(middle, len(keys) - middle))
    else:
        yield keys


def _asked(keys: Any, key_columns: Sequence[str] | None) -> _Columns | _Rows:
    keys = in_arrow(keys)
    if not isinstance(keys, pa.Table):
        rows = [{name: json_value(value) for name, value in key.items()} for key in rows_of(keys)]
        return _Rows(rows, None if key_columns is None else list(key_columns))
    table = keys if key_columns is None else keys.select(list(key_columns))
    # The service reads plain columns alone.
    plain = [
        one.cast(one.type.value_type) if pa.types.is_dictionary(one.type) else one for one in table.columns
    ]
    return _Columns(pa.table(plain, names=table.column_names))


def _joined(answers: list[tuple[pa.Table, Json]]) -> Answer:
    tables, facts = zip(*answers, strict=True)
    return Answer(
        snapshot_id=facts[0]["snapshot_id"],
        head_age_seconds=facts[0]["head_age_seconds"],
        key_columns=facts[0]["key_columns"],
        data_files_from_index=facts[0]["data_files_from_index"],
        data_files_scanned=facts[0]["data_files_scanned"],
        rows_scanned=sum(one["rows_scanned"] for one in facts),
        matches=pa.concat_tables([table.replace_schema_metadata() for table in tables]),
    )
