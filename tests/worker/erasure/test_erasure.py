"""Rows that are erased: gone from the branch, its files, its index and its past, or told what holds them."""

from __future__ import annotations

import gzip
import io
import json
import random
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from staging.history import staged_snapshots
from tests import erased
from tests.deaths import killed_at_call_of, killed_at_commit_of
from tests.factories import (
    Catalog,
    TableBuilder,
    equality_delete_files,
    garble,
    live_delete_files,
    visible_rows,
)
from tests.jobs import Jobs
from tests.rest_catalog import commit_by_java, running_rest_catalog
from tests.thorough import V2_FIRST, first_always, thorough_unless
from worker.contract.control_plane import AttemptId
from worker.erasure import expiry, manifests, rewrite
from worker.erasure.look import Look
from worker.io.storage import Storage
from worker.jobs import erased_indexes, erasure
from worker.process.errors import UnexpectedError
from worker.table import row_delta

pytestmark = pytest.mark.integration
NewTable = Callable[..., TableBuilder]
ALL_GONE = {"gone": 1, "invisible": 0, "held": 0, "unknown": 0}
PLAIN = {"write.parquet.compression-codec": "uncompressed", "write.avro.compression-codec": "uncompressed"}


def key(number: int) -> str:
    return f"person-{number:06d}"


def row(number: int, region: str = "eu") -> dict[str, Any]:
    return {"id": key(number), "region": region, "value": number}


@pytest.fixture
def new_table(spark: SparkSession, table_name: str) -> NewTable:
    def create(**how: Any) -> TableBuilder:
        columns = {"columns": "id string, region string, value bigint", "format_version": 3}
        table = TableBuilder.create(spark, table_name, **{**columns, "properties": PLAIN, **how})
        table.parquet = {"compression": "none"}  # so that a search of bytes means something
        return table

    return create


class Erase:
    """Runs a job that erases rows of a key, and returns its report."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs

    def __call__(self, *numbers: int, expire_snapshots: bool = True, **how: Any) -> dict[str, Any]:
        parameters = {"key_columns": ["id"], "erasure_id": "e", "expire_snapshots": expire_snapshots}
        rows = [{"id": key(number)} for number in numbers]
        report: dict[str, Any] = self.jobs.run("erase", rows=rows, parameters=parameters, **how).result[
            "erasure"
        ]
        assert sum(report["counts"].values()) == report["keys"] == len(numbers)
        return report


@pytest.fixture
def erase(jobs: Jobs) -> Erase:
    return Erase(jobs)


def numbers_of(table: TableBuilder, **how: Any) -> list[int]:
    """The visible rows, by their numbers."""
    rows = visible_rows(table.spark, table.identifier, **how).elements()
    return sorted(int(one[0].removeprefix("person-")) for one in rows)


def files_with(numbers: Collection[int], *places: Path) -> list[str]:
    """Of an independent look."""
    return erased.files_with([key(number) for number in numbers], *places)


def place_of(table: TableBuilder) -> Path:
    return Path(table.metadata.location.removeprefix("file:").replace("//", "/"))


def holders(report: Mapping[str, Any]) -> list[tuple[str, str | None, list[int]]]:
    return sorted((one["holder"], one["name"], one["keys"]) for one in report["held"])


@V2_FIRST
@pytest.mark.parametrize("partitioned_by", [(), ("region",)])
def test_no_file_of_the_table_or_its_index_has_an_erased_key(
    new_table: NewTable, jobs: Jobs, erase: Erase, format_version: int, partitioned_by: Sequence[str]
) -> None:
    table = new_table(format_version=format_version, partitioned_by=partitioned_by)
    rows = [row(n, region) for region in ("eu", "us") for n in range(100)]
    table.append(rows, files=2)
    table.append([row(200), row(201)])
    untouched = table.append([row(300), row(301)])
    jobs.run("index", key_sets=[["id"]])
    # The first and the last of a file are bounds in manifests; 99 has no row any more.
    jobs.run("delete", rows=[{"id": key(99)}], parameters={"key_columns": ["id"]})
    gone = [0, 7, 99, 200, 201, 900]
    assert len(files_with(gone, place_of(table), jobs.index)) > 5

    report = erase(*gone)

    assert files_with(gone, place_of(table), jobs.index) == []
    assert report["counts"] == {"gone": 6, "invisible": 0, "held": 0, "unknown": 0}
    assert (report["rows_deleted"], report["held"]) == (6, [])
    assert report["snapshot_id_looked_at"] == table.snapshot_id
    left = [n for n in range(100) if n not in gone]
    assert numbers_of(table) == sorted(left * 2 + [300, 301])
    assert set(untouched) <= set(table.data_file_paths)
    assert report["data_files_rewritten"] == len(files_with(left, *_data(table))) + 1, "one has no successor"
    assert report["snapshots_expired_count"] == len(report["snapshots_expired"]) > 3
    (explained,) = jobs.run("delete", rows=[{"id": key(5)}], parameters={"key_columns": ["id"]}).result[
        "key_sets"
    ]
    assert (explained["source"], explained["data_files_scanned"]) == ("index", 0)


def _data(table: TableBuilder) -> list[Path]:
    return [place_of(table) / "data"]


@V2_FIRST
def test_rows_that_are_left_keep_their_order_and_their_ids(
    new_table: NewTable, erase: Erase, format_version: int
) -> None:
    table = new_table(format_version=format_version)
    table.append([row(n) for n in (5, 3, 9, 1, 7)])
    table.append([row(n) for n in (2, 4)])
    columns = "id, value" + (", _row_id, _last_updated_sequence_number" if format_version == 3 else "")
    before = table.spark.sql(f"SELECT {columns} FROM {table.identifier}").collect()

    erase(3, 2)

    after = table.spark.sql(f"SELECT {columns} FROM {table.identifier}").collect()
    assert sorted(after) == sorted(one for one in before if one["id"] not in (key(3), key(2)))
    (longest,) = [pq.read_table(one) for one in _parquet(table) if pq.read_metadata(one).num_rows == 4]
    assert longest.column("value").to_pylist() == [5, 9, 1, 7]


def test_uuids_in_files_that_do_not_call_them_that_stay_what_they_are(
    new_table: NewTable, erase: Erase
) -> None:
    """As Arrow writes them; also below structs, lists and maps."""
    table = new_table()
    jvm: Any = table.spark.sparkContext._jvm
    types = jvm.org.apache.iceberg.types.Types
    uuid, field = types.UUIDType.get(), types.NestedField
    table.java.updateSchema().addColumn("u", uuid).addColumn(
        "s", types.StructType.of(jvm.java.util.List.of(field.optional(100, "u", uuid)))
    ).addColumn("l", types.ListType.ofOptional(101, uuid)).addColumn(
        "m", types.MapType.ofOptional(102, 103, types.StringType.get(), uuid)
    ).commit()
    one = UUID(int=2**127 + 1)
    fixed = pa.binary(16)
    columns = {
        "u": (fixed, one.bytes),
        "s": (pa.struct([("u", fixed)]), {"u": one.bytes}),
        "l": (pa.list_(fixed), [one.bytes, None]),
        "m": (pa.map_(pa.string(), fixed), [("a", one.bytes)]),
    }
    rows = pa.Table.from_pylist([row(n) for n in range(3)])
    for name, (kind, value) in columns.items():
        rows = rows.append_column(name, pa.array([value, value, None], kind))
    (old,) = table.append(rows)
    assert pq.read_schema(old.removeprefix("file:")).field("u").type == pa.binary(16)

    assert erase(0)["counts"] == ALL_GONE

    (new,) = _parquet(table)
    assert pq.ParquetFile(new).schema.column(3).logical_type.type == "UUID"
    told = "value, u, s.u AS su, l[0] AS l0, m['a'] AS ma"
    found = table.spark.sql(f"SELECT {told} FROM {table.identifier} ORDER BY id").collect()
    assert [tuple(one) for one in found] == [(1, *[str(one)] * 4), (2, *[None] * 4)]


def _parquet(table: TableBuilder) -> list[Path]:
    return list((place_of(table) / "data").rglob("*.parquet"))


@V2_FIRST
@pytest.mark.parametrize("is_oldest", [True, False])
def test_deletes_that_wait_hit_what_they_hit_before_and_nothing_else(
    new_table: NewTable, jobs: Jobs, erase: Erase, format_version: int, is_oldest: bool
) -> None:
    """A successor that seemed newer than a pending equality delete would bring its rows back; one that seemed
    older would lose those that were written since (apache/iceberg#10962)."""
    table = new_table(format_version=format_version)
    if not is_oldest:
        table.append([row(8)])
    table.append([row(n) for n in range(6)])
    table.delete_keys([{"id": key(5)}])
    (named,) = table.delete_keys([{"id": key(3)}])
    table.append([row(5), row(6), row(7)])

    report = erase(3, 4, 6)

    assert report["counts"] == {"gone": 3, "invisible": 0, "held": 0, "unknown": 0}, report
    left = [0, 1, 2, 5, 7] + [8] * (not is_oldest)
    assert numbers_of(table) == left
    assert files_with([3, 4, 6], place_of(table), jobs.index) == []
    assert not Path(named.removeprefix("file:")).exists(), "it named an erased key"
    # Iceberg would drop one that is older than all data files but the successor.
    assert len(equality_delete_files(table.spark, table.identifier)) == (0 if is_oldest else 1)
    jobs.run("convert")
    assert numbers_of(table) == left


def test_what_holds_rows_is_told_with_its_keys(new_table: NewTable, jobs: Jobs, erase: Erase) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    table.java.manageSnapshots().createTag("audit", table.snapshot_id).commit()
    table.append([row(2)])
    table.java.manageSnapshots().createBranch("work", table.snapshot_id).commit()
    table.append([row(3)])

    report = erase(3, 0, 2)

    assert report["counts"] == {"gone": 1, "invisible": 0, "held": 2, "unknown": 0}
    assert holders(report) == [("branch", "work", [1, 2]), ("tag", "audit", [1])]
    assert numbers_of(table) == [1]
    assert numbers_of(table, branch="audit") == [0, 1], "what is held stays whole"
    assert files_with([3], place_of(table)) == []
    table.java.manageSnapshots().removeTag("audit").removeBranch("work").commit()
    assert erase(3, 0, 2)["counts"]["gone"] == 3
    assert files_with([0, 2, 3], place_of(table)) == []


@pytest.mark.parametrize(
    ("properties", "until"),
    [
        ({"history.expire.min-snapshots-to-keep": "20"}, False),
        ({"history.expire.max-snapshot-age-ms": "3600000"}, True),
        ({"gc.enabled": "off"}, False),  # Iceberg takes all but `true` for false
        ({"history.expire.max-snapshot-age-ms": "7d"}, False),  # with which Iceberg's own expiry fails
        ({"history.expire.max-snapshot-age-ms": str(2**63 - 1)}, True),
    ],
)
def test_snapshots_that_the_table_retains_are_not_expired(
    new_table: NewTable, erase: Erase, properties: dict[str, str], until: bool
) -> None:
    table = new_table(properties={**PLAIN, **properties})
    table.append([row(0), row(1)])
    before = table.snapshot_id

    report = erase(0)

    assert report["counts"] == {"gone": 0, "invisible": 0, "held": 1, "unknown": 0}
    assert (report["snapshots_expired"], {one["holder"] for one in report["held"]}) == ([], {"retention"})
    assert before in [one["snapshot_id"] for one in report["held"]]
    assert all((one["until"] is not None) == until for one in report["held"])
    assert numbers_of(table) == [1]


def test_just_the_snapshots_that_are_told_expire_and_no_branch_or_tag(
    new_table: NewTable, erase: Erase
) -> None:
    """Iceberg's own expiry applies the ages that branches and tags have as well."""
    table = new_table()
    table.append([row(5)])
    table.append([row(6)])
    manage = table.java.manageSnapshots()
    manage.createBranch("work", table.snapshot_id).setMaxRefAgeMs("work", 1).setMaxSnapshotAgeMs("work", 1)
    manage.createTag("audit", table.snapshot_id).setMaxRefAgeMs("audit", 1)
    manage.setMaxSnapshotAgeMs("main", 1).setMinSnapshotsToKeep("main", 1).commit()
    refs = {name: ref for name, ref in table.metadata.refs.items() if name != "main"}
    untouched = [one.snapshot_id for one in table.metadata.snapshots]
    table.append([row(0), row(1)])

    report = erase(0)

    assert report["counts"] == ALL_GONE
    assert refs.items() <= table.metadata.refs.items()
    left = [one.snapshot_id for one in table.metadata.snapshots]
    assert left[: len(untouched)] == untouched
    assert not set(left) & set(report["snapshots_expired"])
    assert numbers_of(table, branch="audit") == numbers_of(table, branch="work") == [5, 6]
    assert files_with([0], place_of(table)) == []


@pytest.mark.parametrize("is_tag", [True, False])
def test_a_snapshot_that_somebody_names_just_before_it_expires_stays(
    new_table: NewTable, erase: Erase, monkeypatch: pytest.MonkeyPatch, is_tag: bool
) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    first = table.snapshot_id
    calls = count()
    real = expiry.java_expiry

    def name_it_first(*arguments: Any) -> Any:
        operation = real(*arguments)
        if not next(calls):
            manage = table.java.manageSnapshots()
            (manage.createTag if is_tag else manage.createBranch)("late", first).commit()
        return operation

    monkeypatch.setattr(expiry, "java_expiry", name_it_first)
    report = erase(0)

    assert holders(report) == [("tag" if is_tag else "branch", "late", [0])]
    assert numbers_of(table, branch="late") == [0, 1]
    assert first not in report["snapshots_expired"]
    assert report["snapshots_expired_count"] > 0, "the others"


def test_a_rest_catalog_is_told_where_branches_are_when_snapshots_expire(
    new_table: NewTable, spark: SparkSession, catalog: Catalog, jobs: Jobs
) -> None:
    """Of what expires, a REST catalog is told the ids: it would drop a branch that has moved there."""
    table = new_table()
    table.append([row(5)])
    table.java.manageSnapshots().createBranch("work", table.snapshot_id).commit()
    table.append([row(0), row(1)])
    first = table.snapshot_id
    commit = commit_by_java(spark, catalog.name, catalog.properties)
    calls = count()

    def move_work_first(body: dict[str, Any]) -> None:
        if any(one["action"] == "remove-snapshots" for one in body["updates"]) and not next(calls):
            table.java.manageSnapshots().replaceBranch("work", first).commit()
        commit(body)

    with (
        SqlCatalog(catalog.name, **catalog.properties) as tables,
        running_rest_catalog(tables, move_work_first) as rest,
    ):
        report = Erase(Jobs(spark, rest, table.identifier, jobs.index))(0)

    assert next(calls) > 1, "it has looked once more"
    assert holders(report) == [("branch", "work", [0])]
    assert numbers_of(table, branch="work") == [0, 1, 5]
    assert first not in report["snapshots_expired"]


def test_nothing_expires_unless_the_request_says_so(new_table: NewTable, erase: Erase) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    report = erase(0, expire_snapshots=False)
    assert {one["holder"] for one in report["held"]} == {"snapshot"}
    assert (report["counts"]["held"], report["snapshots_expired_count"]) == (1, 0)
    assert erase(0)["counts"] == ALL_GONE
    assert files_with([0], place_of(table)) == []


@pytest.mark.parametrize(
    "told",
    [
        {"flink.job-id": "f", "flink.operator-id": "o"},
        {"spark.sql.streaming.queryId": "q", "spark.sql.streaming.epochId": "7"},
        {"kafka.connect.offsets.control.group": "{}", "kafka.connect.commit-id": "c"},
        {"icestream.published-branch": "stage", "icestream.published-snapshot-id": "1"},
    ],
    ids=lambda told: next(iter(told)),
)
def test_a_streaming_writer_finds_its_last_snapshot_without_a_gap(
    new_table: NewTable, erase: Erase, told: Mapping[str, str]
) -> None:
    table = new_table()
    table.append([row(0)])
    append_as(told, table, row(1))

    report = erase(0)

    assert report["snapshots_expired_count"] == 1, "what lies before that"
    assert {(one["holder"], *one["keys"]) for one in report["held"]} == {("writer", 0)}
    kept = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    assert kept == ancestors_of(table)
    assert len(kept) == 4

    append_as(told, table, row(2))
    assert erase(0)["counts"] == ALL_GONE
    assert files_with([0], place_of(table)) == []


def append_as(told: Mapping[str, str], table: TableBuilder, added: dict[str, Any], **how: Any) -> None:
    """As a writer does that tells something of itself."""
    update = table.java.newAppend()
    for name, value in told.items():
        update.set(name, value)
    if how.get("is_staged"):
        update.stageOnly()
    if "branch" in how:
        update.toBranch(how["branch"])
    (file,) = table.data_files([added])
    update.appendFile(table.parsed(file)).commit()


def test_what_is_staged_can_be_published_afterwards(new_table: NewTable, erase: Erase) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    append_as({"wap.id": "w"}, table, row(2), is_staged=True)
    (staged,) = [one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id != table.snapshot_id]

    report = erase(0)

    assert {(one["holder"], *one["keys"]) for one in report["held"]} == {("snapshot", 0)}
    table.java.manageSnapshots().cherrypick(staged).commit()
    assert numbers_of(table) == [1, 2]
    assert erase(0)["counts"] == ALL_GONE
    assert numbers_of(table) == [1, 2]


def test_what_waits_on_a_staging_branch_is_still_told_apart(new_table: NewTable, erase: Erase) -> None:
    """Without the snapshots since the last publication, nothing of the branch could be published."""
    table = new_table()
    table.append([row(0), row(1)])
    published = table.snapshot_id
    table.java.manageSnapshots().createBranch("stage", published).commit()
    told = {"icestream.published-branch": "stage", "icestream.published-snapshot-id": str(published)}
    append_as(told, table, row(2))
    append_as({}, table, row(3), branch="stage")
    append_as({}, table, row(4), branch="stage")
    waiting = [one.snapshot_id for one in staged(table)]

    report = erase(0, branch="stage")

    assert [one.snapshot_id for one in staged(table)][: len(waiting)] == waiting
    assert {one["name"] for one in report["held"] if one["snapshot_id"] in waiting} == {"stage"}


def staged(table: TableBuilder) -> Sequence[Any]:
    return staged_snapshots(table.metadata, "stage", "main")


def ancestors_of(table: TableBuilder) -> list[int]:
    """From the first one that is known to the head."""
    metadata, found = table.metadata, []
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        found.append(snapshot.snapshot_id)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)
    return found[::-1]


_NARROW, _WIDE = "id", "xxhash64(id)"
_DELTA = {"write.parquet.page-version": "v2"}


@pytest.mark.parametrize(
    ("format_version", "value", "properties", "id_bytes"),
    [(2, _NARROW, {}, 0), (3, _NARROW, {}, 1.3), (3, _WIDE, {}, 1.3), (3, _WIDE, _DELTA, 0)],
)
def test_of_the_touched_files_little_more_is_written_than_there_was(
    new_table: NewTable,
    erase: Erase,
    format_version: int,
    value: str,
    properties: dict[str, str],
    id_bytes: float,
) -> None:
    """Iceberg wrote the old file, too. id_bytes: what the id of a row takes in format version 3, at most."""
    table, rows = new_table(format_version=format_version, properties=properties), 100_000
    columns = ("concat('person-', lpad(id, 6, '0')) AS id", "'eu' AS region", f"{value} AS value")
    table.spark.range(0, rows, 1, 1).selectExpr(*columns).writeTo(table.identifier).append()
    (touched,) = table.data_file_paths
    table.append([row(n) for n in range(rows, rows + 100)])
    size_bytes = Path(touched.removeprefix("file:")).stat().st_size

    report = erase(17, 99_000)

    assert (report["data_files_rewritten"], report["bytes_rewritten"]) == (1, size_bytes)
    assert report["bytes_written"] <= 1.03 * report["bytes_rewritten"] + id_bytes * rows


def test_a_file_that_can_not_be_read_leaves_its_keys_unknown(new_table: NewTable, erase: Erase) -> None:
    table = new_table()
    (old,) = table.append([row(0), row(1), row(2)])
    table.java.manageSnapshots().createTag("audit", table.snapshot_id).commit()
    table.compact()
    garble(Path(old.removeprefix("file:")))

    report = erase(1, 7)

    assert report["counts"] == {"gone": 0, "invisible": 0, "held": 0, "unknown": 2}
    assert report["unknown"] == [0, 1]
    assert holders(report) == [("unreadable_file", old, [0, 1])]


def test_a_damaged_index_costs_a_scan_and_is_made_anew(new_table: NewTable, jobs: Jobs, erase: Erase) -> None:
    table = new_table()
    table.append([row(n) for n in range(4)])
    jobs.run("index", key_sets=[["id"]])
    for run in jobs.index.glob("*.db/entries_*/**/*.parquet"):
        garble(run)
    assert erase(1)["counts"] == ALL_GONE
    assert numbers_of(table) == [0, 2, 3]
    assert files_with([1], place_of(table), jobs.index) == []
    assert jobs.run("verify").result["key_sets"]


def test_what_nobody_names_is_looked_through_and_told(new_table: NewTable, erase: Erase) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    (lost,) = table.data_files([row(0), row(7)])
    report = erase(0, 7, 8)
    assert report["counts"] == {"gone": 1, "invisible": 0, "held": 2, "unknown": 0}
    ((holder, name, keys),) = holders(report)
    assert (holder, keys) == ("orphan_file", [0, 1])
    assert str(name).rpartition("/")[2] == lost.path.rpartition("/")[2]


def test_what_others_let_expire_is_not_deleted(new_table: NewTable, erase: Erase) -> None:
    """They may have left the files to somebody."""
    table = new_table()
    (kept,) = table.append([row(0), row(1)])
    first = table.snapshot_id
    table.compact()
    table.java.expireSnapshots().expireSnapshotId(first).cleanExpiredFiles(False).commit()

    report = erase(0)

    assert {(holder, *keys) for holder, _, keys in holders(report)} == {("orphan_file", 0)}
    assert pq.read_table(kept.removeprefix("file:")).num_rows == 2


@pytest.mark.parametrize("dies", [False, True])
def test_nothing_is_deleted_while_a_manifest_list_can_not_be_read(
    new_table: NewTable, jobs: Jobs, erase: Erase, dies: bool
) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    table.java.manageSnapshots().createTag("audit", table.snapshot_id).commit()
    table.append([row(2)])
    (snapshot,) = [one for one in table.metadata.snapshots if one.snapshot_id != table.snapshot_id]
    listed = Path(snapshot.manifest_list.removeprefix("file:"))
    away = listed.rename(listed.with_name("away"))
    with killed_at_commit_of(expiry, "java_expiry", "after") if dies else nullcontext():
        erase(0, job_id="killed")
    if dies:
        erase(0, job_id="killed", attempt=2, leftovers=[jobs.reporter.left_by("killed")])
    away.rename(listed)
    assert numbers_of(table, branch="audit") == [0, 1]
    assert f"{snapshot.manifest_list} names can't be read" in "".join(jobs.reporter.decisions)


def test_nothing_is_deleted_once_the_table_says_so(new_table: NewTable, jobs: Jobs, erase: Erase) -> None:
    table = new_table()
    (kept,) = table.append([row(0), row(1)])
    with killed_at_commit_of(expiry, "java_expiry", "after"):
        erase(0, job_id="killed")
    table.java.updateProperties().set("gc.enabled", "0").commit()
    report = erase(0, job_id="killed", attempt=2, leftovers=[jobs.reporter.left_by("killed")])
    assert Path(kept.removeprefix("file:")).exists()
    assert {one["holder"] for one in report["held"]} == {"orphan_file"}


def _manifest_of_a_lost_spec() -> bytes:
    out = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "string"}]}
    fastavro.writer(out, schema, [{"id": key(0)}], metadata={"partition-spec-id": "77"})
    return out.getvalue()


def _parquet_without_ids() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"region": ["eu"], "value": [1], "id": [key(0)]}), out)
    return out.getvalue()


_ORPHANS: dict[str, tuple[bytes, str]] = {
    "object.json": (json.dumps({"id": key(0)}).encode(), "held"),
    "list.json": (json.dumps([{"id": key(0)}]).encode(), "held"),
    "escaped.json": (rb'"person-00000\u0030"', "held"),
    "x.puffin": (key(0).encode(), "held"),
    "rows.crc": (key(0).encode(), "held"),
    "rows.csv.gz": (gzip.compress(key(0).encode()), "unknown"),
    "rows.txt": (key(0).encode("utf-16"), "unknown"),
    "rows.parquet": (_parquet_without_ids(), "unknown"),
    "lost-m0.avro": (_manifest_of_a_lost_spec(), "unknown"),
    "snap-1.avro": (_manifest_of_a_lost_spec(), "unknown"),
}


def test_orphan_files_are_told_by_what_is_in_them(new_table: NewTable, erase: Erase) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    for name, (content, _) in _ORPHANS.items():
        (place_of(table) / "data" / name).write_bytes(content)

    report = erase(0)

    told = {str(one["name"]).rpartition("/")[2]: one["holder"] for one in report["held"]}
    holder = {"held": "orphan_file", "unknown": "unreadable_file"}
    assert told == {name: holder[state] for name, (_, state) in _ORPHANS.items()}


def test_packed_metadata_is_looked_through(new_table: NewTable, erase: Erase) -> None:
    properties = {**PLAIN, "write.metadata.compression-codec": "gzip", "vip": f"{key(7)},{key(8)}"}
    table = new_table(properties=properties)
    table.append([row(0), row(1)])
    assert erase(0)["counts"] == ALL_GONE
    assert {one["holder"] for one in erase(8)["held"]} == {"metadata"}


def test_a_row_that_is_written_meanwhile_is_told(new_table: NewTable, jobs: Jobs, erase: Erase) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    table.append([row(5)])
    calls = count()

    def write() -> None:
        if next(calls) == 2:  # after the delete, and before the commit of data files
            table.append([row(0), row(2)])

    jobs.reporter.before_commit = write
    report = erase(0, 5)

    assert numbers_of(table) == [0, 1, 2]
    assert report["counts"] == {"gone": 1, "invisible": 0, "held": 1, "unknown": 0}
    assert {(one["holder"], *one["keys"]) for one in report["held"]} == {("writer", 0)}
    assert any("is visible" in one["reason"] for one in report["held"])
    assert files_with([5], place_of(table)) == []


@V2_FIRST
def test_who_changes_the_data_files_meanwhile_loses_nothing(
    new_table: NewTable, jobs: Jobs, erase: Erase, format_version: int
) -> None:
    table = new_table(format_version=format_version)
    table.append([row(n) for n in range(6)])
    calls = count()

    def write() -> None:
        if next(calls) == 1:
            table.spark.sql(f"DELETE FROM {table.identifier} WHERE value = 4")

    jobs.reporter.before_commit = write
    report = erase(1)
    assert numbers_of(table) == [0, 2, 3, 5]
    assert report["counts"] == ALL_GONE
    assert any("what is new" in one for one in jobs.reporter.decisions)
    assert files_with([1], place_of(table)) == []


_DEATHS = [
    (module, name, when)
    for module, name in [
        (row_delta, "java_row_delta"),
        (rewrite, "java_rewrite"),
        (manifests, "java_manifest_rewrite"),
        (erased_indexes, "index_key_set"),
        (expiry, "java_expiry"),
        (erasure, "delete_unneeded"),
        (erasure, "outcome"),
    ]
    for when in ("before", "after")
]


@pytest.mark.parametrize(
    ("module", "name", "when"),
    thorough_unless(lambda case: case[1:] in [("java_rewrite", "after"), ("java_expiry", "after")], _DEATHS),
)
def test_a_killed_attempt_is_gone_on_with(
    new_table: NewTable, jobs: Jobs, erase: Erase, module: Any, name: str, when: str
) -> None:
    table = new_table()
    table.append([row(n) for n in range(6)], files=2)
    table.append([row(7)])
    jobs.run("index", key_sets=[["id"]])
    killed = killed_at_commit_of if name.startswith("java_") else killed_at_call_of
    with killed(module, name, when) as death:
        erase(1, 7, job_id="killed")
    assert death.happened

    report = erase(1, 7, job_id="killed", attempt=2, leftovers=[jobs.reporter.left_by("killed")])

    assert report["counts"] == {"gone": 2, "invisible": 0, "held": 0, "unknown": 0}
    assert files_with([1, 7], place_of(table), jobs.index) == []
    assert numbers_of(table) == [0, 2, 3, 4, 5]
    assert (report["rows_deleted"], report["data_files_rewritten"]) == (2, 2)


def test_an_erasure_goes_on_with_what_other_jobs_leave_to_it(
    new_table: NewTable, jobs: Jobs, erase: Erase
) -> None:
    """Which snapshots it has let expire is told until it has ended."""
    table = new_table()
    table.append([row(0), row(1)])
    with killed_at_commit_of(expiry, "java_expiry", "after"):
        erase(0, job_id="killed")
    left = jobs.reporter.left_by("killed")
    how: dict[str, Any] = {"rows": [{"id": key(7)}], "parameters": {"key_columns": ["id"]}}
    assert jobs.run("delete", leftovers=[left], **how).cleared == []
    assert erase(0, job_id="killed", attempt=2, leftovers=[left])["counts"] == ALL_GONE
    how["parameters"] = {**how["parameters"], "erasure_id": "e", "expire_snapshots": True}
    assert jobs.run("erase", leftovers=[left], **how).cleared == [AttemptId(job_id="killed", attempt=1)]


def test_nothing_that_is_kept_of_the_job_has_a_key(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(partitioned_by=("id",))
    table.append([row(0), row(1)])
    table.java.manageSnapshots().createTag(f"of-{key(0)}", table.snapshot_id).commit()
    table.append([row(7), row(8)])
    (place_of(table) / "data" / f"export_{key(0)}.csv").write_text(key(0))

    def refuse(_: Storage, location: str) -> bool:
        raise PermissionError(f"{location} may not be deleted")

    monkeypatch.setattr(Storage, "delete", refuse)
    how: dict[str, Any] = {
        "rows": [{"id": key(0)}, {"id": key(7)}],
        "parameters": {"key_columns": ["id"], "erasure_id": "e", "expire_snapshots": True},
    }
    outcome = jobs.run("erase", **how)

    kept = json.dumps([outcome.result, outcome.health, jobs.reporter.decisions], default=str)
    assert "could not be deleted" in kept
    assert (key(0) in kept, key(7) in kept) == (False, False)
    names = {
        (one["holder"], str(one["name"]).rpartition("/")[2]) for one in outcome.result["erasure"]["held"]
    }
    assert {("tag", "of-..."), ("orphan_file", "export_....csv")} <= names

    def fail(*_: Any) -> None:
        raise ArithmeticError(f"{table.data_file_paths[0]} of {key(0)} is odd")

    monkeypatch.setattr(Look, "at_snapshots", fail)
    with pytest.raises(UnexpectedError, match=r"ArithmeticError: .* of \.\.\. is odd \(in fail") as failed:
        jobs.run("erase", **how)
    assert key(0) not in "".join(traceback.format_exception(failed.value))


@V2_FIRST
def test_manifests_of_deletes_forget_the_bounds_of_what_was_converted(
    new_table: NewTable, jobs: Jobs, erase: Erase, format_version: int
) -> None:
    """As a streaming writer leaves them: equality deletes beside deletes of positions, which stay."""
    table = new_table(format_version=format_version)
    (kept, other) = table.append([row(n) for n in range(8)], files=2)
    positions = table.position_deletes if format_version == 2 else table.deletion_vectors
    table.commit(*table.equality_deletes([{"id": key(6)}]), *positions({kept: [0]}))
    jobs.run("convert")
    table.append([row(9)])
    assert files_with([6], place_of(table) / "metadata")

    assert erase(6)["counts"] == ALL_GONE

    assert files_with([6], place_of(table)) == []
    assert numbers_of(table) == [1, 2, 3, 4, 5, 7, 9]
    assert {kept} == {one["referenced_data_file"] for one in live_delete_files(table.spark, table.identifier)}
    assert other not in table.data_file_paths
    jobs.run("delete", rows=[{"id": key(1)}], parameters={"key_columns": ["id"]})
    assert numbers_of(table) == [2, 3, 4, 5, 7, 9]


def test_a_vector_that_shares_a_file_with_one_that_goes_has_a_file_of_its_own(
    new_table: NewTable, erase: Erase
) -> None:
    """Iceberg's expiry deletes such a file (docs/decisions/04)."""
    table = new_table()
    one, other = table.append([row(n) for n in range(6)], files=2)
    table.commit(*table.deletion_vectors({one: [0], other: [0]}))
    (shared,) = {file["file_path"] for file in live_delete_files(table.spark, table.identifier)}

    assert erase(0)["counts"] == ALL_GONE

    (left,) = live_delete_files(table.spark, table.identifier)
    assert (left["referenced_data_file"], left["record_count"]) == (other, 1)
    assert left["file_path"] != shared
    assert numbers_of(table) == [1, 2, 4, 5]


def test_indexes_of_other_branches_and_reports_are_thought_of(
    new_table: NewTable, jobs: Jobs, erase: Erase
) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    table.append([row(0), row(1)])
    table.java.manageSnapshots().createBranch("work", table.snapshot_id).commit()
    jobs.run("index", key_sets=[["id"]], branch="work")
    for branch in ("main", "work"):
        jobs.run("report_duplicates", key_sets=[["id"]], branch=branch)
    table.spark.sql(f"DELETE FROM {table.identifier} WHERE value = 0")
    assert holders(erase(0))[0] == ("branch", "work", [0])
    table.java.manageSnapshots().replaceBranch("work", table.snapshot_id).commit()

    report = erase(7, 0)

    assert [(one["holder"], one["keys"]) for one in report["held"]] == [("index", [0]), ("index", [1])]
    assert report["counts"] == {"gone": 0, "invisible": 0, "held": 1, "unknown": 1}
    jobs.run("rebuild", branch="work")
    assert erase(7, 0)["counts"] == {"gone": 1, "invisible": 0, "held": 1, "unknown": 0}
    jobs.run("report_duplicates", key_sets=[["id"]], branch="work")
    assert erase(0)["counts"] == ALL_GONE
    assert files_with([0], place_of(table), jobs.index) == []
    reports = list(jobs.index.glob("*.db/duplicates/*.parquet"))
    assert files_with([1], *jobs.index.glob("*.db/duplicates")), "the other branch keeps its report"
    for report_file in reports:
        garble(report_file)
    assert [(one["holder"], one["keys"]) for one in erase(0)["held"]] == [("index", [0])] * len(reports)


def test_of_a_branch_that_was_dropped_no_index_and_no_report_stays(
    new_table: NewTable, jobs: Jobs, erase: Erase
) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    table.append([row(0)])
    table.java.manageSnapshots().createBranch("work", table.snapshot_id).commit()
    for kind in ("index", "report_duplicates"):
        for branch in ("main", "work"):
            jobs.run(kind, key_sets=[["id"]], branch=branch)
    table.java.manageSnapshots().removeBranch("work").commit()

    assert erase(0)["counts"] == ALL_GONE

    assert files_with([0], place_of(table), jobs.index) == []
    assert len(list(jobs.index.glob("*.db"))) == 1
    assert jobs.run("verify").result["key_sets"], "that of the branch is whole"


def test_a_branch_is_erased_from_by_itself(new_table: NewTable, jobs: Jobs, erase: Erase) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    table.java.manageSnapshots().createBranch("work", table.snapshot_id).commit()

    report = erase(0, branch="work")

    assert numbers_of(table, branch="work") == [1]
    assert numbers_of(table) == [0, 1]
    assert ("branch", "main", [0]) in holders(report)
    assert report["counts"]["held"] == 1


@first_always("seed", range(8))
def test_whatever_came_before_the_visible_rows_are_right_and_no_file_has_an_erased_key(
    new_table: NewTable, jobs: Jobs, erase: Erase, seed: int
) -> None:
    """Random histories of a table against a plain model: appends, deletes that wait or not, compactions."""
    chance = random.Random(seed)
    version = chance.choice([2, 3])
    table = new_table(format_version=version, partitioned_by=chance.choice([(), ("region",)]))
    model = Counter[int]()
    everybody = range(20)
    table.append([row(n) for n in everybody])
    model.update(everybody)
    if chance.random() < 0.7:
        jobs.run("index", key_sets=[["id"]])
    for step in range(8):
        some = chance.sample(everybody, 3)
        match chance.choice(["append", "upsert", "wait", "delete", "convert", "compact", "erase"]):
            case "append":
                table.append([row(n) for n in some], files=chance.choice([1, 2]))
                model.update(some)
            case "upsert":
                table.upsert([row(n) for n in some], key=["id", "region"])
                model |= Counter(some)
                model = Counter({n: 1 if n in some else count for n, count in model.items()})
            case "wait":
                table.delete_keys([{"id": key(n), "region": "eu"} for n in some])
                model = Counter({n: count for n, count in model.items() if n not in some})
            case "delete":
                jobs.run("delete", rows=[{"id": key(n)} for n in some], parameters={"key_columns": ["id"]})
                model = Counter({n: count for n, count in model.items() if n not in some})
            case "convert":
                jobs.run("convert")
            case "compact":
                table.compact()
            case "erase":
                assert erase(*some)["counts"]["gone"] == 3, (seed, step)
                model = Counter({n: count for n, count in model.items() if n not in some})
                assert files_with(some, place_of(table), jobs.index) == [], (seed, step)
        assert numbers_of(table) == sorted(model.elements()), (seed, step)
    gone = chance.sample(everybody, 8)
    assert erase(*gone)["counts"]["gone"] == 8
    assert numbers_of(table) == sorted(n for n in model.elements() if n not in gone)
    assert files_with(gone, place_of(table), jobs.index) == []
    jobs.run("convert")
    assert numbers_of(table) == sorted(n for n in model.elements() if n not in gone)
