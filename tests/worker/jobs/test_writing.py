"""Rows written by key: an upsert or a delete takes effect at once, at its place in the table's history."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JNetworkError
from pyiceberg.io import FileIO
from pyspark.sql import SparkSession

from icestream.writes import sent
from tests.deaths import killed_at_its_commit
from tests.factories import TableBuilder, garble, visible_rows
from tests.jobs import Jobs
from tests.readers import duckdb_rows
from tests.thorough import V2_FIRST
from worker.contract.control_plane import AnnouncedPlan, StaleAttemptError
from worker.index.commit import commit_index
from worker.process.errors import JobCancelledError, JobError
from worker.table import row_delta
from worker.table.commit import find_commits
from worker.table.manifests import Manifest, read_manifest

pytestmark = pytest.mark.integration

Row = Mapping[str, Any]
NewTable = Callable[..., TableBuilder]


def row(id_: int, value: int, region: str = "eu") -> dict[str, Any]:
    return {"id": id_, "region": region, "value": value}


@pytest.fixture
def new_table(spark: SparkSession, table_name: str) -> NewTable:
    def create(**how: Any) -> TableBuilder:
        how = {"format_version": 3, **how}
        return TableBuilder.create(spark, table_name, **how)

    return create


class Write:
    """Runs a job with key `id` and returns its result."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs

    def upsert(
        self, *rows: Row, attempt: int = 1, job_id: str = "", dry_run: bool = False, **options: Any
    ) -> dict[str, Any]:
        return self._run("upsert", rows, options, attempt=attempt, job_id=job_id, dry_run=dry_run)

    def delete(self, *ids: int, dry_run: bool = False, **how: Any) -> dict[str, Any]:
        return self._run("delete", [{"id": one} for one in ids], {}, dry_run=dry_run, **how)

    def _run(self, kind: str, rows: Sequence[Row], options: Mapping[str, Any], **how: Any) -> dict[str, Any]:
        parameters = {"key_columns": ["id"], **options}
        return self.jobs.run(kind, rows=rows, parameters=parameters, **how).result


@pytest.fixture
def write(jobs: Jobs) -> Write:
    return Write(jobs)


def rows_of(table: TableBuilder) -> Counter[tuple[Any, ...]]:
    """The visible rows as DuckDB shows them, in a tenth of the time that Spark takes."""
    return duckdb_rows(table)


def in_order(*rows: Row) -> Counter[tuple[Any, ...]]:
    return Counter((one["id"], one["region"], one["value"]) for one in rows)


@V2_FIRST
@pytest.mark.parametrize("is_indexed", [True, False])
def test_an_upsert_replaces_the_rows_of_its_keys_and_adds_the_others(
    new_table: NewTable, jobs: Jobs, write: Write, format_version: int, is_indexed: bool
) -> None:
    table = new_table(format_version=format_version)
    table.append([row(n, n) for n in range(10)], files=2)
    if is_indexed:
        jobs.run("index", key_sets=[["id"]])

    result = write.upsert(row(3, 30), row(20, 20, "us"))

    assert rows_of(table) == in_order(
        *[row(n, n) for n in range(10) if n != 3], row(3, 30), row(20, 20, "us")
    )
    assert (result["rows_added"], result["rows_deleted"], result["commits"]) == (2, 1, 1)
    assert result["iceberg_snapshot_id_after"] == table.snapshot_id
    assert result["key_sets"][0]["source"] == ("index" if is_indexed else "scan")
    (of_scan,) = [one["tasks_in_driver"] for one in result["stages"] if one["name"] == "scan"] or [0]
    assert of_scan == (0 if is_indexed else 2), "data files are read at the same time"
    (again,) = write.upsert(row(3, 31), row(20, 21))["key_sets"]
    assert again["data_files_scanned"] == (0 if is_indexed else 3), "new rows are in the index at once"
    assert (again["data_files_from_index"], again["matches"]) == (3 if is_indexed else 0, 3)
    assert rows_of(table) == in_order(*[row(n, n) for n in range(10) if n != 3], row(3, 31), row(20, 21))


@V2_FIRST
def test_a_delete_finds_its_keys_in_every_partition_and_leaves_the_others(
    new_table: NewTable, write: Write, format_version: int
) -> None:
    table = new_table(format_version=format_version, partitioned_by=["region"])
    table.append([row(n, n, region) for n in range(4) for region in ("eu", "us")])

    foretold = write.delete(1, 2, 77, dry_run=True)
    assert rows_of(table)[(1, "us", 1)] == 1
    result = write.delete(1, 2, 77)

    assert rows_of(table) == in_order(*[row(n, n, region) for n in (0, 3) for region in ("eu", "us")])
    assert result["rows_deleted"] == foretold["rows_deleted"] == 4
    assert (foretold["commits"], foretold["iceberg_snapshot_id_after"]) == (0, None)
    nothing = write.delete(1, 2)
    assert (nothing["rows_deleted"], nothing["commits"]) == (0, 0)
    assert table.snapshot_id == result["iceberg_snapshot_id_after"]


def test_an_upsert_moves_a_row_to_another_partition(new_table: NewTable, write: Write) -> None:
    table = new_table(partitioned_by=["region", "bucket(4, id)"])
    table.append([row(n, n) for n in range(4)])

    write.upsert(row(2, 2, "us"))

    assert rows_of(table) == in_order(row(0, 0), row(1, 1), row(2, 2, "us"), row(3, 3))


@V2_FIRST
def test_a_row_that_a_pending_equality_delete_hides_is_not_live_and_a_new_one_is(
    new_table: NewTable, write: Write, jobs: Jobs, format_version: int
) -> None:
    table = new_table(format_version=format_version)
    table.append([row(1, 1), row(2, 2)])
    table.delete_keys([{"id": 1}])

    result = write.upsert(row(1, 10))

    assert (result["rows_added"], result["rows_deleted"]) == (1, 0)
    assert rows_of(table) == in_order(row(1, 10), row(2, 2))
    jobs.run("convert")
    assert rows_of(table) == in_order(row(1, 10), row(2, 2))


def test_a_damaged_index_costs_a_scan_and_no_row(new_table: NewTable, jobs: Jobs, write: Write) -> None:
    table = new_table()
    table.append([row(1, 1), row(2, 2)])
    jobs.run("index", key_sets=[["id"]])
    for run in jobs.index.glob("*.db/entries_*/**/*.parquet"):
        garble(run)

    (explained,) = write.upsert(row(1, 10))["key_sets"]

    assert (explained["source"], explained["data_files_scanned"]) == ("scan", 1)
    assert any("the index can't be used" in decision for decision in jobs.reporter.decisions)
    assert rows_of(table) == in_order(row(1, 10), row(2, 2))


def test_rows_whose_keys_exist_are_left_out_and_the_first_told_by_their_numbers(
    new_table: NewTable, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    table.append([row(1, 1), row(2, 2)])

    result = write.upsert(row(5, 5), row(2, 20), row(1, 10), insert_only=True)

    assert (result["rows_added"], result["rows_left_out"], result["left_out"]) == (1, 2, [1, 2])
    assert rows_of(table) == in_order(row(1, 1), row(2, 2), row(5, 5))
    monkeypatch.setattr("worker.writes.plan.LEFT_OUT_TOLD", 1)
    result = write.upsert(row(5, 6), row(2, 20), row(6, 6), insert_only=True)
    assert (result["rows_left_out"], result["left_out"]) == (2, [0])


def test_only_rows_that_are_newer_replace_others(new_table: NewTable, write: Write) -> None:
    table = new_table()
    table.append([row(1, 10), row(2, 10), row(3, 10)])

    result = write.upsert(row(1, 9), row(2, 10), row(3, 11), row(4, 1), only_if_newer_than="value")

    assert result["left_out"] == [0, 1]
    assert rows_of(table) == in_order(row(1, 10), row(2, 10), row(3, 11), row(4, 1))


def test_of_rows_with_one_key_the_last_counts_if_the_request_says_so(
    new_table: NewTable, write: Write
) -> None:
    table = new_table()
    table.append([row(1, 1)])
    with pytest.raises(JobError, match="also that of 1 row, such as 0"):
        write.upsert(row(1, 2), row(1, 3))

    result = write.upsert(row(1, 2), row(7, 7), row(1, 3), duplicates="last")

    assert result["rows_added"] == 2
    assert rows_of(table) == in_order(row(1, 3), row(7, 7))


class Meanwhile:
    """What somebody else does between the first look at the table and the commit, so many times."""

    def __init__(self, jobs: Jobs, does: Callable[[int], object], times: int = 1) -> None:
        self.times, self.does, self.jobs = times, does, jobs
        self.done = 0
        jobs.reporter.before_commit = self

    def __call__(self) -> None:
        if self.done < self.times:
            self.done += 1
            self.does(self.done)


@V2_FIRST
def test_a_row_that_came_with_the_same_key_meanwhile_is_no_duplicate(
    new_table: NewTable, jobs: Jobs, write: Write, format_version: int
) -> None:
    table = new_table(format_version=format_version)
    table.append([row(1, 1), row(2, 2)])
    jobs.run("index", key_sets=[["id"]])
    Meanwhile(jobs, lambda time: table.append([row(9, time), row(2, 100 + time)]), times=3)
    read: list[str] = []

    def counted(io: FileIO, manifest: Manifest, *how: Any) -> Any:
        read.append(manifest.path)
        return read_manifest(io, manifest, *how)

    with patch("worker.table.manifests.read_manifest", counted):
        result = write.upsert(row(9, 90), row(2, 20))

    assert rows_of(table) == in_order(row(1, 1), row(9, 90), row(2, 20))
    assert result["rows_deleted"] == 7
    # Each look read what was new at that head, and nothing else.
    assert len(read) == len(set(read)) >= 4
    assert result["key_sets"][0]["data_files_scanned"] == 3
    assert any(one.startswith("Others committed first") for one in jobs.reporter.decisions)


@pytest.mark.exhaustive
def test_a_writer_that_commits_each_second_holds_no_write_up(
    new_table: NewTable, jobs: Jobs, write: Write
) -> None:
    table = new_table()
    table.append([row(0, 0)])
    jobs.run("index", key_sets=[["id"]])
    has_ended = Event()

    def commit_each_second() -> int:
        number = 0
        while not has_ended.wait(1):
            number += 1
            table.append([row(-number, number), row(0, number)])
        return number

    with ThreadPoolExecutor(1) as others:
        commits = others.submit(commit_each_second)
        try:
            for value in range(10):
                write.upsert(row(1, value), row(0, value))
        finally:
            has_ended.set()
        written = commits.result()
    write.upsert(row(0, 0))

    assert written > 1
    assert rows_of(table) == in_order(row(0, 0), row(1, 9), *[row(-n, n) for n in range(1, written + 1)])


@pytest.mark.parametrize(
    "meanwhile", ["compact", "delete", "equality delete", "upsert", "schema", "spec", "rollback"]
)
def test_what_others_commit_meanwhile_is_as_if_it_had_come_before(
    new_table: NewTable, jobs: Jobs, write: Write, spark: SparkSession, meanwhile: str
) -> None:
    table = new_table(partitioned_by=["region"])
    table.append([row(n, n) for n in range(4)])
    first = table.snapshot_id
    table.append([row(5, 5)])
    (path, *_) = table.data_file_paths
    others = {
        "compact": lambda _: table.compact(),
        "delete": lambda _: table.delete_positions({path: [1]}),
        "equality delete": lambda _: table.delete_keys([row(1, 1)], equality_columns=["id"]),
        "upsert": lambda _: table.upsert([row(1, 7)], key=["id"]),
        "schema": lambda _: spark.sql(f"ALTER TABLE {table.identifier} RENAME COLUMN value TO amount"),
        "spec": lambda _: table.java.updateSpec().removeField("region").commit(),
        "rollback": lambda _: table.java.manageSnapshots().rollbackTo(first).commit(),
    }
    Meanwhile(jobs, others[meanwhile])

    if meanwhile == "schema":
        with pytest.raises(JobError, match="amount"):
            write.upsert(row(1, 10), row(8, 8))
        assert rows_of(table) == in_order(*[row(n, n) for n in (0, 1, 2, 3, 5)])
        return
    result = write.upsert(row(1, 10), row(8, 8))

    fifth = [] if meanwhile == "rollback" else [row(5, 5)]
    assert rows_of(table) == in_order(*[row(n, n) for n in (0, 2, 3)], *fifth, row(1, 10), row(8, 8))
    assert result["rows_deleted"] == (0 if meanwhile in ("delete", "equality delete") else 1)


def test_what_an_earlier_attempt_committed_is_not_written_again(
    new_table: NewTable, jobs: Jobs, write: Write
) -> None:
    table = new_table()
    table.append([row(1, 1)])
    rows = (row(1, 2), row(2, 2))
    first = write.upsert(*rows, job_id="twice", insert_only=True)
    head = table.snapshot_id

    again = write.upsert(*rows, job_id="twice", attempt=2, insert_only=True)

    assert table.snapshot_id == head
    told = ("rows_added", "rows_deleted", "left_out", "iceberg_snapshot_id_after", "commits")
    assert {name: again[name] for name in told} == {name: first[name] for name in told}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_attempt_is_followed_by_one_that_writes_what_is_missing(
    new_table: NewTable, jobs: Jobs, write: Write, when: str
) -> None:
    table = new_table()
    table.append([row(1, 1), row(2, 2)])
    with killed_at_its_commit(when) as death:
        write.upsert(row(1, 10), row(3, 30), job_id="killed")
    assert death.happened

    result = write.upsert(row(1, 10), row(3, 30), job_id="killed", attempt=2)

    assert rows_of(table) == in_order(row(1, 10), row(2, 2), row(3, 30))
    assert (result["rows_added"], result["rows_deleted"], result["commits"]) == (2, 1, 1)
    assert len(find_commits(table.java, "main", "killed")) == 1


def test_what_a_killed_attempt_wrote_goes_once_no_commit_can_need_it(
    new_table: NewTable, jobs: Jobs, write: Write
) -> None:
    table = new_table()
    table.append([row(1, 1)])
    with killed_at_its_commit("before"):
        write.upsert(row(1, 10), job_id="killed")
    left = jobs.reporter.left_by("killed")
    assert {"icestream-killed-1-0-00000-00000-deletes.puffin", "icestream-killed-1-1-rows-00000.parquet"} == {
        path.name for path in written_by("killed", table)
    }

    assert jobs.run("compact", ended_attempts=[left]).cleared == []
    assert len(written_by("killed", table)) == 2, "its commit may still come: nobody committed since"

    table.append([row(2, 2)])
    (cleared,) = jobs.run("compact", ended_attempts=[left]).cleared
    assert (cleared.job_id, written_by("killed", table)) == ("killed", [])
    assert rows_of(table) == in_order(row(1, 1), row(2, 2))


def test_what_a_killed_attempt_committed_stays(new_table: NewTable, jobs: Jobs, write: Write) -> None:
    table = new_table()
    table.append([row(1, 1)])
    with killed_at_its_commit("after"):
        write.upsert(row(1, 10), job_id="killed")
    left = jobs.reporter.left_by("killed")

    jobs.run("compact", ended_attempts=[left])

    assert rows_of(table) == in_order(row(1, 10))


def written_by(job_id: str, table: TableBuilder) -> list[Path]:
    return sorted(
        Path(table.metadata.location.removeprefix("file:"), "data").rglob(f"icestream-{job_id}-*[!c]")
    )


def test_a_commit_whose_answer_was_lost_is_found(
    new_table: NewTable, jobs: Jobs, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Commit:
        def __init__(self, operation: Any) -> None:
            self._operation = operation

        def commit(self) -> None:
            self._operation.commit()
            raise Py4JNetworkError("no answer from Java")

    table = new_table()
    table.append([row(1, 1)])
    real = row_delta.java_row_delta
    monkeypatch.setattr(row_delta, "java_row_delta", lambda *arguments: Commit(real(*arguments)))

    result = write.upsert(row(1, 10))

    assert rows_of(table) == in_order(row(1, 10))
    assert result["iceberg_snapshot_id_after"] == table.snapshot_id


def test_keys_with_more_rows_than_a_write_may_hold_are_refused(
    new_table: NewTable, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    table.append([row(1, 1), row(1, 2)])
    monkeypatch.setattr("worker.writes.live_rows.MATCHES", 1)
    with pytest.raises(JobError) as refused:
        write.delete(1)
    assert (refused.value.code, refused.value.retryable) == ("too_many_rows", False)
    assert rows_of(table) == in_order(row(1, 1), row(1, 2))


def test_an_index_whose_commit_was_not_heard_of_is_looked_at_before_it_is_told(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    table.append([row(1, 1)])
    jobs.run("index", key_sets=[["id"]])

    def commit(*what: Any, **how: Any) -> None:
        commit_index(*what, **how)
        raise OSError("no answer")

    monkeypatch.setattr("worker.jobs.indexing.commit_index", commit)
    outcome = jobs.run("upsert", rows=[row(2, 2)], parameters={"key_columns": ["id"]})
    assert any("not indexed yet" in told for told in outcome.result["decisions"])
    (told,) = outcome.health["key_sets"]
    assert (told["files_covered"], told["files_total"]) == (2, 2)


def test_a_write_that_is_cancelled_after_its_commit_has_succeeded(
    new_table: NewTable, jobs: Jobs, write: Write
) -> None:
    table = new_table()
    table.append([row(1, 1)])
    jobs.run("index", key_sets=[["id"]])
    reporter, committed = jobs.reporter, table.snapshot_id

    def end(*_: object) -> None:
        if table.snapshot_id != committed:
            raise JobCancelledError

    with (
        patch.object(reporter, "progress", end),
        patch.object(reporter, "decide", end),
        patch.object(reporter, "grant_row_addresses", end),
    ):
        result = write.upsert(row(1, 2))
    assert (result["rows_added"], result["rows_deleted"], result["commits"]) == (1, 1, 1)
    assert result["iceberg_snapshot_id_after"] == table.snapshot_id
    assert any("not indexed yet: the job was to end" in told for told in result["decisions"])
    assert rows_of(table) == in_order(row(1, 2))


def test_a_late_attempt_commits_nothing_after_its_successor(
    new_table: NewTable, jobs: Jobs, write: Write
) -> None:
    """It sleeps between the renewal of its lease and its commit."""
    table = new_table()
    table.append([row(1, 1)])

    def succeed() -> None:
        jobs.reporter.before_commit = lambda: None
        write.upsert(row(1, 10), row(2, 20), job_id="slow", attempt=2)
        jobs.reporter.before_commit = end

    def end() -> None:
        raise StaleAttemptError("it is no longer the job's")

    jobs.reporter.before_commit = succeed
    with pytest.raises(StaleAttemptError):
        write.upsert(row(1, 10), row(2, 20), job_id="slow")

    assert rows_of(table) == in_order(row(1, 10), row(2, 20))
    assert {path.name.split("-")[2] for path in written_by("slow", table)} == {"2"}


def test_nothing_of_a_write_that_is_refused_stays(new_table: NewTable, jobs: Jobs, write: Write) -> None:
    table = new_table(columns="id bigint NOT NULL, region string, value int")
    table.append([row(1, 1)])
    for rows, told in [
        ([{"id": 1, "region": "eu"}], "no value for column value"),
        ([{**row(1, 1), "more": 1}], "1 value for what is no column"),
        ([{**row(1, 1), "value": "secret"}], "Row 0: column value is of type int"),
        ([row(2, 1), {**row(1, 1), "value": 2**31}], "Row 1: column value is of type int"),
        ([{**row(1, 1), "id": None}], "null in column id"),
        ([], "There are none"),
    ]:
        with pytest.raises(JobError, match=told) as caught:
            write.upsert(*rows)
        assert "secret" not in str(caught.value)
    assert rows_of(table) == in_order(row(1, 1))
    assert jobs.reporter.announced == {}


def test_rows_of_every_kind_of_column_are_written(
    new_table: NewTable, jobs: Jobs, spark: SparkSession
) -> None:
    table = new_table(
        columns="id bigint, b boolean, f float, d double, n decimal(20, 3), day date, at timestamp,"
        " local timestamp_ntz, s string, raw binary, st struct<a: int, at: timestamp>, l array<date>,"
        " m map<string, double>"
    )
    one = {
        "id": "9007199254740993",
        "b": True,
        "f": 1.5,
        "d": "NaN",
        "n": "-12345678901234567.125",
        "day": "1969-12-31",
        "at": "2024-02-29T01:02:03.000004+02:00",
        "local": "2024-02-29T01:02:03.000004",
        "s": "ä",
        "raw": "00ff",
        "st": {"a": 7, "at": None},
        "l": ["2024-01-01", None],
        "m": {"keys": ["k"], "values": [None]},
    }
    jobs.run("upsert", rows=[one, dict.fromkeys(one) | {"id": 2}], parameters={"key_columns": ["id"]})
    shown = spark.sql(
        f"SELECT id, b, f, isnan(d), n, day, string(at), string(local), s, hex(raw), st, l, m"
        f" FROM {table.identifier} ORDER BY id"
    ).collect()
    assert [value for value in shown[0] if value is not None] == [2, False]
    first = shown[1].asDict()
    assert list(first.values())[:10] == [
        9007199254740993,
        True,
        1.5,
        True,
        Decimal("-12345678901234567.125"),
        date(1969, 12, 31),
        "2024-02-28 23:02:03.000004",
        "2024-02-29 01:02:03.000004",
        "ä",
        "00FF",
    ]
    assert (first["st"].asDict(), first["l"], first["m"]) == (
        {"a": 7, "at": None},
        [date(2024, 1, 1), None],
        {"k": None},
    )


def test_a_uuid_and_nanoseconds_are_written_as_what_they_are(new_table: NewTable, jobs: Jobs) -> None:
    table = new_table(columns="id bigint")
    types = table._iceberg.types.Types
    update = table.java.updateSchema()
    update.addColumn("u", types.UUIDType.get()).addColumn("t", types.TimestampNanoType.withZone())
    update.commit()
    row: dict[str, Any] = {
        "id": 1,
        "u": "f79c3e09-677c-4bbd-a479-3f349cb785e7",
        "t": "2024-02-29T01:02:03.123456789+00:00",
    }
    jobs.run("upsert", rows=[row], parameters={"key_columns": ["u"]})
    deleted = jobs.run("delete", rows=[{"u": row["u"]}], parameters={"key_columns": ["u"]}).result
    assert deleted["rows_deleted"] == 1
    (path,) = table.data_file_paths
    (written,) = pq.read_table(path.removeprefix("file:")).to_pylist()
    assert UUID(bytes=bytes(written["u"])) == UUID(row["u"])
    assert written["t"].isoformat() == row["t"]


@pytest.mark.parametrize("file_format", ["orc", pytest.param("avro", marks=pytest.mark.exhaustive)])
def test_rows_are_written_in_the_format_and_order_of_the_table(
    new_table: NewTable, write: Write, spark: SparkSession, file_format: str
) -> None:
    table = new_table(partitioned_by=["region"], properties={"write.format.default": file_format})
    sort_descending(table, "value")
    sent = [row(n, n % 7, "eu" if n % 2 else "us") for n in range(20)]

    write.upsert(*sent)
    write.upsert(row(3, 100))

    expected = in_order(*[one for one in sent if one["id"] != 3], row(3, 100))
    assert visible_rows(spark, table.identifier) == expected
    assert {path.rpartition(".")[2] for path in table.data_file_paths} == {file_format}
    query = f"SELECT value FROM {table.identifier} WHERE region = 'us' ORDER BY _file, _pos"
    values = [one.value for one in spark.sql(query).collect()]
    assert values == sorted(values, reverse=True)


def test_a_table_of_the_first_format_is_refused(new_table: NewTable, write: Write) -> None:
    new_table(format_version=1)
    with pytest.raises(JobError, match="format version 1"):
        write.upsert(row(1, 1))


def test_a_float_is_no_key(new_table: NewTable, jobs: Jobs) -> None:
    new_table(columns="id double")
    with pytest.raises(JobError, match="floating-point"):
        jobs.run("delete", rows=[{"id": 1.5}], parameters={"key_columns": ["id"]})


def test_the_key_is_that_of_the_tables_identifier_fields(new_table: NewTable, jobs: Jobs) -> None:
    table = new_table(columns="id bigint NOT NULL, region string, value bigint", identifier_fields=["id"])
    table.append([row(1, 1)])
    jobs.run("upsert", rows=[row(1, 5)])
    assert rows_of(table) == in_order(row(1, 5))


def test_rows_are_written_into_an_empty_table(new_table: NewTable, write: Write) -> None:
    table = new_table()
    write.upsert(row(1, 1))
    assert rows_of(table) == in_order(row(1, 1))


def sort_descending(table: TableBuilder, column: str) -> None:
    iceberg = table._iceberg
    term = iceberg.expressions.Expressions.ref(column)
    table.java.replaceSortOrder().desc(term, iceberg.NullOrder.NULLS_LAST).commit()


def announced(jobs: Jobs) -> list[AnnouncedPlan]:
    return list(jobs.reporter.announced.values())


def parquet(path: Path, rows: Sequence[Row]) -> str:
    pq.write_table(pa.Table.from_pylist(list(map(dict, rows))), path)
    return str(path)


@pytest.fixture
def written_from(jobs: Jobs) -> Callable[..., dict[str, Any]]:
    """Runs a job whose rows or keys are in files."""

    def run(
        *files: str,
        kind: str = "upsert",
        dry_run: bool = False,
        attempt: int = 1,
        job_id: str = "",
        **options: Any,
    ) -> dict[str, Any]:
        parameters = {"key_columns": ["id"], "files": list(files), **options}
        how: dict[str, Any] = {"dry_run": dry_run, "attempt": attempt, "job_id": job_id}
        return jobs.run(kind, parameters=parameters, **how).result

    return run


@V2_FIRST
def test_rows_of_files_are_written_as_those_of_a_request(
    new_table: NewTable,
    jobs: Jobs,
    written_from: Callable[..., dict[str, Any]],
    tmp_path: Path,
    format_version: int,
) -> None:
    table = new_table(format_version=format_version, partitioned_by=["region"])
    table.append([row(n, n) for n in range(10)], files=2)
    jobs.run("index", key_sets=[["id"]])
    first = parquet(tmp_path / "first", [row(3, 30), row(20, 20, "us")])
    second = parquet(tmp_path / "second", [row(21, 21), row(4, 40, "us")])

    foretold = written_from(first, second, dry_run=True)
    result = written_from(first, second)

    told = ("rows_added", "rows_deleted")
    assert [result[name] for name in told] == [foretold[name] for name in told] == [4, 2]
    assert (foretold["commits"], result["commits"]) == (0, 1)
    left = [row(n, n) for n in range(10) if n not in (3, 4)]
    assert rows_of(table) == in_order(*left, row(3, 30), row(20, 20, "us"), row(21, 21), row(4, 40, "us"))

    keys = parquet(tmp_path / "keys", [{"id": 0}, {"id": 21}, {"id": 99}])
    assert written_from(keys, kind="delete")["rows_deleted"] == 2
    assert Path(first).exists(), "files are whoever's sent them"


def test_a_frame_of_spark_is_written_from_the_files_that_it_stages(
    new_table: NewTable, spark: SparkSession, written_from: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """With moments in the form that Spark writes unless told otherwise."""
    columns = "id bigint, at timestamp, local timestamp_ntz, n decimal(9, 2), l array<struct<a: int>>"
    table = new_table(columns=columns)
    frame = spark.sql(
        "SELECT id, timestamp'2024-02-29 01:02:03.000004' at, timestamp_ntz'2024-02-29 01:02:03' local,"
        " CAST(1.5 AS decimal(9, 2)) n, array(named_struct('a', 1), null) l FROM range(3)"
    )
    with sent(frame, "rows", str(tmp_path), None) as source:
        result = written_from(*source.body["files"])
    assert (result["rows_added"], list(tmp_path.glob("icestream-*"))) == (3, [])
    assert spark.table(table.identifier).orderBy("id").collect() == frame.orderBy("id").collect()


def test_the_options_hold_for_rows_of_files_through_all_of_them(
    new_table: NewTable, written_from: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    table = new_table()
    table.append([row(1, 10), row(2, 10)])
    first = parquet(tmp_path / "first", [row(1, 9), row(2, 11)])
    second = parquet(tmp_path / "second", [row(3, 1), row(2, 12)])
    with pytest.raises(JobError, match="also that of 1 row, such as 1"):
        written_from(first, second)

    result = written_from(first, second, only_if_newer_than="value", duplicates="last")
    assert (result["rows_added"], result["left_out"]) == (2, [0])
    assert rows_of(table) == in_order(row(1, 10), row(2, 12), row(3, 1))
    result = written_from(second, insert_only=True, duplicates="last")
    assert (result["rows_added"], result["left_out"]) == (0, [0, 1])


def test_of_a_file_with_a_row_that_does_not_fit_nothing_is_written(
    new_table: NewTable, jobs: Jobs, written_from: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    table = new_table(columns="id bigint NOT NULL, region string, value int")
    table.append([row(1, 1)])
    good = parquet(tmp_path / "good", [row(1, 2)])
    for rows, told in [
        ([row(2, 2), row(3, 2**31)], "row 1: column value is of type int"),
        ([row(2, 2), {**row(3, 3), "id": None}], "row 1 has null in column id"),
        ([{"id": 2, "region": "eu"}], "has no column value"),
    ]:
        with pytest.raises(JobError, match=told):
            written_from(good, parquet(tmp_path / "bad", rows))
    pq.write_table(pq.read_table(good).slice(1), tmp_path / "none")
    with pytest.raises(JobError, match="There are none"):
        written_from(str(tmp_path / "none"))
    assert rows_of(table) == in_order(row(1, 1))
    assert jobs.reporter.announced == {}


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_attempt_that_follows_writes_what_the_files_have_by_then_or_nothing(
    new_table: NewTable, written_from: Callable[..., dict[str, Any]], tmp_path: Path, when: str
) -> None:
    table = new_table()
    table.append([row(1, 1), row(2, 2)])
    file = parquet(tmp_path / "a", [row(1, 10), row(3, 30)])
    with killed_at_its_commit(when):
        written_from(file, job_id="of-files")
    if when == "after":
        Path(file).unlink()
    else:
        parquet(tmp_path / "a", [row(2, 20)])

    result = written_from(file, job_id="of-files", attempt=2)

    left, told = ([row(1, 10), row(2, 2), row(3, 30)], 2) if when == "after" else ([row(1, 1), row(2, 20)], 1)
    assert (rows_of(table), result["rows_added"]) == (in_order(*left), told)


@pytest.mark.parametrize("is_sorted", [False, True])
def test_many_rows_are_written_in_parts_and_files_of_the_tables_size(
    new_table: NewTable,
    jobs: Jobs,
    written_from: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_sorted: bool,
) -> None:
    monkeypatch.setattr("worker.writes.sent_rows.PART_ROWS", 100)
    table = new_table(partitioned_by=["region"], properties={"write.target-file-size-bytes": "8000"})
    if is_sorted:
        sort_descending(table, "value")
    sent = [row(n, n, "eu" if n < 950 else "us") for n in range(1_000)]
    result = written_from(parquet(tmp_path / "a", sent))

    assert rows_of(table) == in_order(*sent)
    files = table.data_file_paths
    assert result["data_files_added"] == len(files) == max(p.data_files for p in announced(jobs))
    assert len(files) == 11 if is_sorted else 2 < len(files) < 11, len(files)
    for file in files if is_sorted else []:
        values = pq.read_table(file.removeprefix("file:")).column("value").to_pylist()
        assert values == sorted(values, reverse=True)
    ((done, total), *_) = [one[1:] for one in reversed(jobs.reporter.told) if one[0] == "rows"]
    assert (done, total) == (1_000, 1_000)
