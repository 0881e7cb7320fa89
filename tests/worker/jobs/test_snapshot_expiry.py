"""Snapshots that expire by Iceberg's own action: those that nothing holds, and files that nobody needs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from tests.deaths import killed_at_call_of
from tests.factories import Catalog, TableBuilder, WrittenFile, spark_rows
from tests.jobs import Jobs
from tests.readers import duckdb_rows, pyiceberg_rows
from tests.rest_catalog import commit_by_java, running_rest_catalog
from tests.thorough import V3_FIRST, first_always
from worker.attempt.job import Job
from worker.contract.control_plane import AttemptId
from worker.erasure import expiry
from worker.io.storage import Storage
from worker.process.errors import JobError
from worker.table.avro_files import CorruptMetadataError
from worker.table.commit_errors import CommitConflictError

pytestmark = pytest.mark.integration
NewTable = Callable[..., TableBuilder]


@pytest.fixture
def new_table(spark: SparkSession, table_name: str) -> NewTable:
    def create(**how: Any) -> TableBuilder:
        return TableBuilder.create(spark, table_name, **{"format_version": 3, **how})

    return create


def row(number: int, value: int = 0) -> dict[str, Any]:
    return {"id": number, "region": "eu", "value": value}


def expire(jobs: Jobs, *, older_than_seconds: float = 0, retain_last: int = 1, **how: Any) -> dict[str, Any]:
    parameters = {"older_than_seconds": older_than_seconds, "retain_last": retain_last}
    result: dict[str, Any] = jobs.run("expire_snapshots", parameters=parameters, **how).result["expiry"]
    return result


def snapshots(table: TableBuilder) -> list[int]:
    return [one.snapshot_id for one in table.metadata.snapshots]


def files_of(table: TableBuilder) -> set[str]:
    """Names of all files in the table's location but metadata files."""
    folder = Path(table.metadata.location.removeprefix("file:").replace("//", "/"))
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not name.endswith((".crc", ".metadata.json", "version-hint.text"))}


def delete_all(table: TableBuilder) -> None:
    every: Any = table.spark.sparkContext._jvm.org.apache.iceberg.expressions.Expressions  # type: ignore[union-attr]
    table.java.newDelete().deleteFromRowFilter(every.alwaysTrue()).commit()


def in_past(table: TableBuilder) -> TableBuilder:
    """Two snapshots that are superseded, data files and deletes too, and one that a compaction made."""
    table.append([row(n) for n in range(10)], files=2)
    table.delete_positions({table.data_file_paths[0]: [1]})
    table.compact()
    return table


@V3_FIRST
def test_what_no_snapshot_needs_is_deleted_and_every_reader_shows_the_same(
    new_table: NewTable, jobs: Jobs, spark: SparkSession, format_version: int
) -> None:
    table = in_past(new_table(format_version=format_version))
    table.java.manageSnapshots().createTag("kept", table.snapshot_id).commit()
    table.append([row(20)])
    jobs.run("index", key_sets=[["id"]])
    shown, of_tag = (
        duckdb_rows(table),
        duckdb_rows(table, snapshot_id=table.metadata.refs["kept"].snapshot_id),
    )
    files, head = files_of(table), table.snapshot_id
    everything = snapshots(table)

    foretold = expire(jobs, dry_run=True)
    assert (files_of(table), snapshots(table)) == (files, everything)
    told = expire(jobs)

    assert told == foretold
    assert (told["snapshots_expired"], told["snapshots_left"], told["snapshots_held"]) == (2, 2, 2)
    assert {(one["holder"], one["name"]) for one in told["held"]} == {("branch", "main"), ("tag", "kept")}
    numbers = [told[f"{kind}_deleted"] for kind in ("data_files", "delete_files", "manifest_lists")]
    # In version 2, what a compaction leaves of deletes stays in the table.
    assert numbers == [2, format_version - 2, 2]
    assert len(files - files_of(table)) == sum(numbers) + told["manifests_deleted"]
    assert (snapshots(table), table.snapshot_id) == (everything[2:], head)
    assert spark_rows(spark, table.identifier) == duckdb_rows(table) == pyiceberg_rows(table) == shown
    assert duckdb_rows(table, snapshot_id=table.metadata.refs["kept"].snapshot_id) == of_tag
    (verified,) = jobs.run("verify", key_sets=[["id"]]).result["key_sets"]
    assert (verified["differences"], verified["files_checked"]) == (0, 2)
    assert expire(jobs)["snapshots_expired"] == 0
    assert expire(jobs, older_than_seconds=3600)["snapshots_held"] == 0, "what is young is not even held"


def test_whoever_commits_meanwhile_is_in_nobodys_way(
    new_table: NewTable, jobs: Jobs, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A streaming commit passes; a tag that names what was about to go makes the job look again."""
    table = in_past(new_table())
    first, real = snapshots(table)[0], expiry.exact_operations
    meanwhile: list[Callable[[], object]] = [
        lambda: table.java.manageSnapshots().createTag("late", first).commit(),
        lambda: table.upsert([row(3, 30)], key=["id"]),
    ]

    def operations(*arguments: Any, **how: Any) -> Any:
        made = real(*arguments, **how)
        if meanwhile:
            meanwhile.pop(0)()
        return made

    monkeypatch.setattr(expiry, "exact_operations", operations)

    told = expire(jobs)

    assert told["snapshots_expired"] == 2, "the head of before is one of the past by then"
    assert snapshots(table) == [first, table.snapshot_id]
    assert "so it looks again" in " ".join(jobs.reporter.decisions)
    assert duckdb_rows(table, snapshot_id=table.metadata.refs["late"].snapshot_id).total() == 10
    assert (3, "eu", 30) in duckdb_rows(table)


@pytest.mark.thorough
def test_a_writer_that_never_pauses_does_not_keep_an_expiry_from_its_end(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes old enough while it runs is left to the next one."""
    table, real, commits = in_past(new_table()), expiry.exact_operations, 0

    def operations(*arguments: Any, **how: Any) -> Any:
        nonlocal commits
        commits += 1
        for number in range(2 * (commits < 5)):
            table.append([row(number)])
        return real(*arguments, **how)

    monkeypatch.setattr(expiry, "exact_operations", operations)
    assert expire(jobs)["snapshots_expired"] == 3, "and the head of before"
    assert (commits, len(snapshots(table))) == (2, 4)


def test_a_branch_that_is_rolled_back_meanwhile_keeps_its_past(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    for number in range(4):
        table.append([row(number)])
    first, second, *_ = snapshots(table)
    real = expiry.exact_operations

    def operations(*arguments: Any, **how: Any) -> Any:
        made = real(*arguments, **how)
        if table.snapshot_id != second:
            table.java.manageSnapshots().rollbackTo(second).commit()
        return made

    monkeypatch.setattr(expiry, "exact_operations", operations)
    expire(jobs, retain_last=2)
    assert {first, second} <= {*snapshots(table)}
    assert "main was moved since it was looked at" in " ".join(jobs.reporter.decisions)


@first_always("when", ["after", "before"])
def test_what_a_killed_attempt_let_expire_is_deleted_by_whoever_follows(
    new_table: NewTable, jobs: Jobs, spark: SparkSession, when: str
) -> None:
    table = in_past(new_table())
    files, shown = files_of(table), duckdb_rows(table)
    with killed_at_call_of(Job, "run_action", when) as death:
        expire(jobs, job_id="killed")
    assert death.happened
    assert len(snapshots(table)) == (1 if when == "after" else 3)
    assert files_of(table) == files
    table.append([row(20)])
    left = [jobs.reporter.left_by("killed")]
    assert not list(jobs.run("convert", ended_attempts=left).cleared), "it is left to the next expiry"

    seconds = 3600 if when == "after" else 0  # nothing is left to expire, or all
    outcome = jobs.run("expire_snapshots", parameters={"older_than_seconds": seconds}, ended_attempts=left)

    told = outcome.result["expiry"]
    assert outcome.cleared == [AttemptId(job_id="killed", attempt=1)]
    assert (told["files_of_lost_attempts_deleted"] > 0) == (when == "after")
    gone = files - files_of(table)
    assert len([name for name in gone if name.endswith((".parquet", ".puffin"))]) == 3
    assert duckdb_rows(table) - shown == Counter([(20, "eu", 0)])


@pytest.mark.thorough
def test_what_can_not_be_deleted_is_found_by_whoever_follows(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing goes that names it."""
    table = in_past(new_table())
    files = files_of(table)
    real = Storage.delete

    def delete(storage: Storage, location: str) -> bool:
        if location.endswith(".parquet"):
            raise OSError("Slow down.")
        return real(storage, location)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "delete", delete)
        with pytest.raises(JobError, match="2 files could not be deleted"):
            expire(jobs, job_id="failed")
        left = [jobs.reporter.left_by("failed")]
        with pytest.raises(JobError, match="2 files could not be deleted"):
            expire(jobs, job_id="again", ended_attempts=left)
    assert files - files_of(table) <= {name for name in files if name.endswith(".puffin")}
    told = expire(jobs, older_than_seconds=3600, ended_attempts=left)
    assert told["files_of_lost_attempts_deleted"] > 3
    gone = files - files_of(table)
    assert len([name for name in gone if name.endswith((".parquet", ".puffin"))]) == 3


def test_a_table_whose_place_may_be_anothers_keeps_its_past(
    new_table: NewTable, jobs: Jobs, tmp_path: Path
) -> None:
    table = in_past(new_table())
    with pytest.raises(JobError, match="overlaps a place of another enrolled table: file:/lake/other"):
        expire(jobs, overlapping_locations=["file:/lake/other"])
    table.java.updateProperties().set("write.data.path", (tmp_path / "other").as_uri()).commit()
    with pytest.raises(JobError, match=r"write.data.path is .*other, which is not in the location"):
        expire(jobs)
    assert len(snapshots(table)) == 3


def test_what_nobody_knows_any_more_of_a_killed_attempt_is_told(new_table: NewTable, jobs: Jobs) -> None:
    table = in_past(new_table(properties={"write.metadata.previous-versions-max": "1"}))
    with killed_at_call_of(Job, "run_action", "after"):
        expire(jobs, job_id="killed")
    files = files_of(table)
    table.append([row(20)])
    table.append([row(21)])
    expire(jobs, older_than_seconds=3600, ended_attempts=[jobs.reporter.left_by("killed")])
    assert files <= files_of(table)
    assert "tells of 2 snapshots any more" in " ".join(jobs.reporter.decisions)


def test_nothing_goes_that_is_not_the_tables(new_table: NewTable, jobs: Jobs, tmp_path: Path) -> None:
    """Neither what a manifest names elsewhere, nor what lies in the place of the indexes."""
    table = new_table()
    table.append([row(1)])
    place = Path(table.metadata.location.removeprefix("file:").replace("//", "/"))
    jobs.index_location = str(place / "index")
    (written,) = table.data_files([row(2)])
    named = [tmp_path / "other" / "x.parquet", place / "index" / "y.parquet"]
    for path in named:
        path.parent.mkdir(parents=True)
        path.write_bytes(Path(written.path.removeprefix("file:")).read_bytes())
    table.commit(*(WrittenFile({**written.json, "file-path": str(path)}) for path in named))
    delete_all(table)

    told = expire(jobs)

    assert all(path.exists() for path in named)
    assert (told["data_files_deleted"], told["files_kept_elsewhere"]) == (1, 2)
    assert "2 files that no snapshot needs any more lie outside" in " ".join(jobs.reporter.decisions)


def test_a_manifest_that_lies_elsewhere_is_not_opened(
    new_table: NewTable, jobs: Jobs, warehouse: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    table = new_table(properties={"write.metadata.path": elsewhere.as_uri()})
    table.append([row(1)])
    table.java.updateProperties().remove("write.metadata.path").commit()
    delete_all(table)
    allowed = [str(warehouse.parent), str(jobs.index)]
    jobs.run("index", key_sets=[["id"]], allowed_locations=allowed)
    with pytest.raises(JobError, match="elsewhere"):
        expire(jobs, allowed_locations=allowed)
    assert len(snapshots(table)) == 2


def test_nothing_expires_while_what_a_tag_needs_can_not_be_told(new_table: NewTable, jobs: Jobs) -> None:
    """Cut off behind its header, a manifest list is a whole one that names nothing."""
    table = in_past(new_table())
    head = table.metadata.current_snapshot()
    assert head is not None
    table.java.manageSnapshots().createTag("kept", head.snapshot_id).commit()
    delete_all(table)
    files, listed = files_of(table), Path(head.manifest_list.removeprefix("file:"))
    whole = listed.read_bytes()
    listed.write_bytes(whole[: whole.index(whole[-16:]) + 16])
    listed.with_name(f".{listed.name}.crc").unlink()
    with pytest.raises(CorruptMetadataError, match="is empty, but its snapshot counts files"):
        expire(jobs)
    assert files_of(table) == files


def test_no_class_that_the_table_names_is_loaded_and_no_branch_is_dropped(
    new_table: NewTable, jobs: Jobs
) -> None:
    """Iceberg's own rule would drop branches and tags that are overdue."""
    table = in_past(new_table())
    first, second, head = snapshots(table)
    manage = table.java.manageSnapshots()
    manage.createTag("overdue", first).setMaxRefAgeMs("overdue", 1)
    manage.createBranch("past", second).setMaxRefAgeMs("past", 1).setMaxSnapshotAgeMs("past", 1).commit()
    properties = {"history.expire.max-ref-age-ms": "1", "write.location-provider.impl": "no.such.Class"}
    update = table.java.updateProperties()
    for name, value in properties.items():
        update.set(name, value)
    update.commit()
    assert expire(jobs)["snapshots_expired"] == 0
    assert {*table.metadata.refs} == {"main", "overdue", "past"}
    table.java.manageSnapshots().removeTag("overdue").commit()
    assert expire(jobs)["snapshots_expired"] == 1
    assert snapshots(table) == [second, head]


def test_parents_that_lead_in_a_circle_meanwhile_are_refused(new_table: NewTable) -> None:
    """Iceberg's own expiry would follow them for ever."""
    table = new_table()
    for number in range(3):
        table.append([row(number)])
    first, _, head = snapshots(table)
    told = table.metadata.model_dump(mode="json", by_alias=True, exclude_none=True)
    iceberg: Any = table.spark.sparkContext._jvm.org.apache.iceberg  # type: ignore[union-attr]

    def refreshed(parent: int) -> Any:
        told["snapshots"][1]["parent-snapshot-id"] = parent
        metadata = iceberg.TableMetadataParser.fromJson(json.dumps(told))
        unmoved = iceberg.StaticTableOperations(metadata, table.java.io())
        return expiry.exact_operations(iceberg.BaseTable(unmoved, "t"), [first], dry_run=True).refresh()

    assert refreshed(first).currentSnapshot().snapshotId() == head
    with pytest.raises(Py4JJavaError, match="in a circle"):
        refreshed(head)


def test_one_who_always_comes_first_ends_the_job(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    for number in range(7):
        table.append([row(number)])
    real = expiry.exact_operations

    def operations(java_table: Any, doomed: Sequence[int], **how: Any) -> Any:
        made = real(java_table, doomed, **how)
        table.java.manageSnapshots().createTag(f"t{doomed[0]}", doomed[0]).commit()
        return made

    monkeypatch.setattr(expiry, "exact_operations", operations)
    before = snapshots(table)
    with pytest.raises(CommitConflictError) as raised:
        expire(jobs)
    assert (snapshots(table), raised.value.remedy[:21]) == (before, "Let snapshots expire ")


@pytest.mark.thorough
def test_a_branch_that_a_rest_catalog_moves_meanwhile_leads_to_what_it_names(
    new_table: NewTable, spark: SparkSession, catalog: Catalog, jobs: Jobs
) -> None:
    """Such a catalog gets changes, not metadata: of those that it has made meanwhile it is told nothing."""
    table = in_past(new_table())
    first, _, head = snapshots(table)
    table.java.manageSnapshots().createBranch("work", head).commit()
    commit, calls = commit_by_java(spark, catalog.name, catalog.properties), count()

    def move_work_first(body: dict[str, Any]) -> None:
        if any(one["action"] == "remove-snapshots" for one in body["updates"]) and not next(calls):
            table.java.manageSnapshots().replaceBranch("work", first).commit()
        commit(body)

    with (
        SqlCatalog(catalog.name, **catalog.properties) as tables,
        running_rest_catalog(tables, move_work_first) as rest,
    ):
        of_rest = Jobs(spark, rest, table.identifier, jobs.index)
        told = expire(of_rest)
        table.append([row(20)])
        table.append([row(30)])
        shown = duckdb_rows(table)
        written = of_rest.run("rewrite_manifests").result["manifests"]

    assert next(calls) > 1, "it has looked once more"
    assert (told["snapshots_expired"], snapshots(table)[:2]) == (1, [first, head])
    assert duckdb_rows(table, snapshot_id=table.metadata.refs["work"].snapshot_id).total() == 10
    assert written["manifests_rewritten"] > written["manifests_added"] == 1
    assert duckdb_rows(table) == shown
