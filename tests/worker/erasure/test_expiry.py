"""Snapshots that reach erased rows expire unless something holds them, and their files go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyspark.sql import SparkSession

from staging.history import staged_snapshots
from tests.deaths import killed_at_call_of, killed_at_commit_of
from tests.factories import Catalog, TableBuilder
from tests.jobs import Jobs
from tests.rest_catalog import commit_by_java, running_rest_catalog
from tests.thorough import first_always
from tests.worker.erasure.tables import (
    ALL_GONE,
    PLAIN,
    Erase,
    NewTable,
    files_with,
    holders,
    numbers_of,
    place_of,
    row,
)
from worker.erasure import expiry
from worker.io.storage import Storage
from worker.jobs import erasure
from worker.table.manifests import read_manifest_list

pytestmark = pytest.mark.integration


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


@first_always("is_tag", [True, False])
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


@pytest.mark.thorough
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


@first_always(
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


def test_a_row_that_a_staged_snapshot_would_bring_back_is_held_until_it_is_published_and_erased(
    new_table: NewTable, erase: Erase
) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    table.java.manageSnapshots().createBranch("stage").commit()
    told: dict[str, Any] = {"staging_branch": "stage"}

    def publish() -> None:
        erase.jobs.run("publish", parameters={"from": "stage"})

    staged_rows = table.data_files([row(0), row(2)])
    table.commit(*staged_rows, *table.equality_deletes([row(0)], equality_columns=["id"]), branch="stage")

    report = erase(0, **told)

    assert report["counts"]["held"] == 1, "never gone"
    assert {one["name"] for one in report["held"] if one["holder"] == "branch"} == {"stage"}
    assert numbers_of(table) == [1]
    publish()
    assert numbers_of(table) == [0, 1, 2]
    again = erase(0, **told)
    assert "writer" in {one["holder"] for one in again["held"]}, "the last publication is looked for"
    table.commit(*table.data_files([row(3)]), branch="stage")
    publish()
    assert erase(0, **told)["counts"] == ALL_GONE
    assert numbers_of(table) == [1, 2, 3]


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


@pytest.mark.parametrize(
    ("dies", "is_cut"),
    [(False, True), pytest.param(True, False, marks=pytest.mark.exhaustive), (True, True)],
)
def test_nothing_is_deleted_while_a_manifest_list_can_not_be_read(
    new_table: NewTable, jobs: Jobs, erase: Erase, dies: bool, is_cut: bool
) -> None:
    """Cut off behind its header, a list is a whole one that names nothing."""
    table = new_table()
    table.append([row(0), row(1)])
    table.java.manageSnapshots().createTag("audit", table.snapshot_id).commit()
    table.append([row(2)])
    (snapshot,) = [one for one in table.metadata.snapshots if one.snapshot_id != table.snapshot_id]
    listed = Path(snapshot.manifest_list.removeprefix("file:"))
    how: dict[str, Any] = {}
    if dies:
        with killed_at_commit_of(expiry, "java_expiry", "after"):
            erase(0, job_id="killed")
        how = {"job_id": "killed", "attempt": 2, "ended_attempts": [jobs.reporter.left_by("killed")]}
    away = listed.rename(listed.with_name("away"))
    if is_cut:
        whole = away.read_bytes()
        listed.write_bytes(whole[: whole.index(whole[-16:]) + 16])

    report = erase(0, **how)

    away.rename(listed)
    assert numbers_of(table, branch="audit") == [0, 1]
    assert report["snapshots_expired_count"] == 0
    told = f"{snapshot.manifest_list} names can't be read" in "".join(jobs.reporter.decisions)
    assert told == dies


def test_nothing_is_deleted_once_the_table_says_so(new_table: NewTable, jobs: Jobs, erase: Erase) -> None:
    table = new_table()
    (kept,) = table.append([row(0), row(1)])
    with killed_at_commit_of(expiry, "java_expiry", "after"):
        erase(0, job_id="killed")
    table.java.updateProperties().set("gc.enabled", "0").commit()
    report = erase(0, job_id="killed", attempt=2, ended_attempts=[jobs.reporter.left_by("killed")])
    assert Path(kept.removeprefix("file:")).exists()
    assert {one["holder"] for one in report["held"]} == {"orphan_file"}


def test_what_an_attempt_of_another_job_let_expire_goes_too(
    new_table: NewTable, jobs: Jobs, erase: Erase
) -> None:
    """Nobody else would know of it: what all attempts left is told as cleared."""
    table = new_table()
    (kept,) = table.append([row(0), row(1)])
    with killed_at_commit_of(expiry, "java_expiry", "after"):
        erase(0, job_id="killed")
    assert Path(kept.removeprefix("file:")).exists()
    report = erase(1, job_id="next", ended_attempts=[jobs.reporter.left_by("killed")])
    assert not Path(kept.removeprefix("file:")).exists()
    assert report["counts"]["gone"] == 1


def bring(table: TableBuilder, place: Path, *rows: dict[str, Any]) -> None:
    """Takes a file into the table from elsewhere."""
    pq.write_table(pa.Table.from_pylist(list(rows)), place / "brought.parquet")
    source = f"`parquet`.`{place}/brought.parquet`"
    table.spark.sql(f"CALL local.system.add_files('{table.identifier}', '{source}')")


@pytest.mark.parametrize(
    ("dies", "refuses", "told"),
    [
        ("", True, "orphan_file"),
        pytest.param("after expiry", True, "unreadable_file", marks=pytest.mark.exhaustive),
        ("after deletion", True, "unreadable_file"),
        ("after expiry", False, None),
    ],
)
def test_a_file_elsewhere_is_deleted_or_told(
    new_table: NewTable,
    jobs: Jobs,
    erase: Erase,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    dies: str,
    refuses: bool,
    told: str | None,
) -> None:
    """One that add_files brought, which has no ids of columns. Who goes on after a death has not looked at it
    before, so that it can't tell whose it is."""
    table = new_table()
    bring(table, tmp_path, row(0), row(1), row(2))
    delete = Storage.delete

    def delete_or_refuse(storage: Storage, location: str) -> bool:
        if refuses and "brought" in location:
            raise PermissionError("not allowed")
        return delete(storage, location)

    monkeypatch.setattr(Storage, "delete", delete_or_refuse)
    how: dict[str, Any] = {}
    deaths = {
        "after expiry": killed_at_commit_of(expiry, "java_expiry", "after"),
        "after deletion": killed_at_call_of(erasure, "delete_unneeded", "after"),
    }
    if dies:
        with deaths[dies]:
            erase(1, job_id="killed")
        how = {"job_id": "killed", "attempt": 2, "ended_attempts": [jobs.reporter.left_by("killed")]}

    report = erase(1, 7, **how)

    keys = {None: [], "orphan_file": [0], "unreadable_file": [0, 1]}[told]
    assert holders(report) == [(told, f"file:{tmp_path}/brought.parquet", keys)] * refuses
    assert report["counts"]["gone"] == 2 - len(keys)
    assert (tmp_path / "brought.parquet").exists() == refuses


@first_always("lost", ["metadata", "manifest"])
def test_what_expired_snapshots_named_may_be_left_where_nobody_can_tell_it(
    new_table: NewTable, jobs: Jobs, erase: Erase, tmp_path: Path, lost: str
) -> None:
    """The attempt that let them expire died before it deleted anything."""
    table = new_table(properties={**PLAIN, "write.metadata.previous-versions-max": "1"})
    bring(table, tmp_path, row(0), row(1), row(2))
    (manifest,) = manifests_of_head(table)
    with killed_at_commit_of(expiry, "java_expiry", "after"):
        erase(1, job_id="killed")
    if lost == "metadata":
        table.append([row(5)])
        table.append([row(6)])
    else:
        manifest.write_bytes(b"Obj\x01")

    report = erase(1, 7, job_id="killed", attempt=2, ended_attempts=[jobs.reporter.left_by("killed")])

    assert (tmp_path / "brought.parquet").exists()
    assert report["counts"]["unknown"] == 2
    assert "which files they named can't be told" in " ".join(one["reason"] for one in report["held"])


def manifests_of_head(table: TableBuilder) -> list[Path]:
    """Those that its own snapshot added."""
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    added = read_manifest_list(PyArrowFileIO(), snapshot)
    own = [one.path for one in added if one.added_snapshot_id == snapshot.snapshot_id]
    return [Path(path.removeprefix("file:")) for path in own]


def test_no_snapshot_expires_while_what_one_of_them_names_can_not_be_read(
    new_table: NewTable, erase: Erase, tmp_path: Path
) -> None:
    """Nobody would know any more which files that one named, and those of others could not be deleted."""
    table = new_table()
    table.append([row(0), row(3)])
    bring(table, tmp_path, row(0), row(1))
    brought = table.snapshot_id
    (manifest,) = manifests_of_head(table)
    table.compact()
    whole = manifest.read_bytes()
    manifest.write_bytes(b"Obj\x01")

    report = erase(0, 7)

    assert report["counts"] == {"gone": 0, "invisible": 0, "held": 1, "unknown": 1}
    told = [one for one in report["held"] if one["snapshot_id"] == brought]
    assert {(one["holder"], *one["keys"]) for one in told} == {("snapshot", 0), ("unreadable_file", 1)}
    manifest.write_bytes(whole)
    assert erase(0, 7)["counts"]["gone"] == 2
    assert files_with([0], place_of(table), tmp_path) == []


@pytest.mark.parametrize("is_list", [False, True])
def test_whose_files_a_damaged_manifest_names_nobody_can_tell(
    new_table: NewTable, erase: Erase, is_list: bool
) -> None:
    """So nothing is said that would lead to their removal."""
    table = new_table()
    (kept,) = table.append([row(0), row(1)])
    table.java.manageSnapshots().createTag("audit", table.snapshot_id).commit()
    (snapshot,) = table.metadata.snapshots
    (manifest,) = place_of(table).glob("metadata/*-m0.avro")
    table.compact()
    damaged = Path(snapshot.manifest_list).name if is_list else manifest.name
    (place_of(table) / "metadata" / damaged).write_bytes(b"Obj\x01")

    report = erase(0, 7)

    told = {one["name"]: one for one in report["held"]}
    assert report["counts"] == {"gone": 0, "invisible": 0, "held": 1, "unknown": 1}
    assert "Restore that one first" in told[kept]["remedy"]
    assert not any(
        "remove_orphan_files" in one["remedy"] or "delete it" in one["remedy"] for one in told.values()
    )
