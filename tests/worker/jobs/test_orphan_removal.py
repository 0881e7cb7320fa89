"""Orphan files that a dry run lists and a removal deletes; and what stays, since it is needed or not ours."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.deaths import killed_at_call_of
from tests.factories import TableBuilder, WrittenFile, spark_rows
from tests.jobs import Jobs
from tests.readers import duckdb_rows
from tests.thorough import V3_FIRST
from trust.locations import normalize_location, parse_location
from worker.attempt.pinned_table import pin_again, pin_table
from worker.contract.control_plane import StaleAttemptError
from worker.io.storage import Storage
from worker.jobs import orphan_removal
from worker.jobs.orphan_removal import UNNAMED_METADATA_AT_MOST, Place, _Removal
from worker.process.errors import JobError

NewTable = Callable[..., TableBuilder]
WEEK = 7 * 86_400


@pytest.fixture
def new_table(spark: SparkSession, table_name: str) -> NewTable:
    def create(**how: Any) -> TableBuilder:
        return TableBuilder.create(spark, table_name, **{"format_version": 3, **how})

    return create


def row(number: int) -> dict[str, Any]:
    return {"id": number, "region": "eu", "value": 0}


def place_of(table: TableBuilder) -> Path:
    return Path(parse_location(table.metadata.location).path)


def put(table: TableBuilder, *names: str, content: bytes = b"orphan") -> list[str]:
    """Writes files into the table's location; their paths."""
    for name in names:
        path = place_of(table) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return [str(place_of(table) / name) for name in names]


def beginning(table: TableBuilder, updated_ms: int) -> bytes:
    """Of a metadata file of the table, which has properties first."""
    uuid = str(table.metadata.table_uuid)
    said = {"properties": {"table-uuid": "?"}, "table-uuid": uuid, "last-updated-ms": updated_ms}
    return json.dumps(said).encode()


def age(table: TableBuilder, seconds: float = 30 * 86_400) -> None:
    """All that lies in its location was written so long ago."""
    then = time.time() - seconds
    for path in place_of(table).rglob("*"):
        os.utime(path, (then, then))


def files_of(table: TableBuilder) -> set[str]:
    paths = (path for path in place_of(table).rglob("*") if path.is_file())
    return {str(path) for path in paths if path.suffix != ".crc"}


def remove(jobs: Jobs, listed: dict[str, Any] | None = None, **how: Any) -> dict[str, Any]:
    """listed: what a dry run has reported; without it, this is one."""
    files = [] if listed is None else listed["files"]
    how = {
        "parameters": {"older_than_seconds": WEEK},
        "dry_run": listed is None,
        "orphan_files": files,
        "orphans_older_than": None if listed is None else listed["older_than"],
        **how,
    }
    how["parameters"] = {"older_than_seconds": WEEK}
    result: dict[str, Any] = jobs.run("remove_orphan_files", **how).result["orphans"]
    return result


def paths(report: dict[str, Any]) -> list[str]:
    return sorted(parse_location(path).path for path in report["files"])


@pytest.mark.integration
@V3_FIRST
def test_orphans_go_that_a_dry_run_has_listed_and_nothing_that_is_needed_or_anothers(
    new_table: NewTable, jobs: Jobs, spark: SparkSession, format_version: int
) -> None:
    """Statistics, a tag, an earlier snapshot and another branch need files, too."""
    table = new_table(format_version=format_version)
    table.append([row(n) for n in range(10)], files=2)
    head = table.snapshot_id
    table.java.manageSnapshots().createTag("kept", head).createBranch("staged", head).commit()
    table.commit(*table.data_files([row(40)]), branch="staged")
    (unpublished,) = table.data_files([row(50)])
    table.java.newAppend().appendFile(table.parsed(unpublished)).set("wap.id", "w").stageOnly().commit()
    spark.sql(f"DELETE FROM {table.identifier} WHERE id = 3")
    table.upsert([row(1)], key=["id"])
    spark.sparkContext._jvm.org.apache.iceberg.spark.actions.SparkActions.get().computeTableStats(  # type: ignore[union-attr]
        table.java
    ).execute()
    table.compact()
    jobs.index_location = str(place_of(table) / "data" / "index")
    jobs.run("index", key_sets=[["id"]])
    shown = duckdb_rows(table)
    orphans = put(table, "data/a.parquet", "data/region=eu/b.orc", "metadata/c.avro", "data/d.puffin")
    put(
        table,
        "data/icestream-job-1-0-0.puffin",
        "data/icestream-job-1-0-rows/00000.parquet",
        "data/_tmp/e.parquet",
        "data/.f.parquet",
        "data/notes.txt",
        "other/g.parquet",
    )
    left_by_a_failed_commit = put(
        table,
        "metadata/00000-x.metadata.json",
        content=beginning(table, updated_ms=0),
    )
    age(table)
    os.utime(left_by_a_failed_commit[0], (1e9, 1e9))
    young = put(table, "data/young.parquet")
    before = files_of(table)

    told = remove(jobs)

    assert files_of(table) == before
    assert (paths(told), told["orphan_files"], told["orphan_bytes"]) == (sorted(orphans), 4, 24)
    os.utime(young[0], (1e9, 1e9))

    done = remove(jobs, told)

    assert before - files_of(table) == {*orphans}, "and not what has become old enough since"
    assert (done["files_deleted"], done["bytes_deleted"], done["files_kept"]) == (4, 24, 0)
    assert jobs.reporter.asked_anew == 1
    assert spark_rows(spark, table.identifier) == duckdb_rows(table) == shown
    assert duckdb_rows(table, snapshot_id=table.metadata.refs["kept"].snapshot_id).total() == 10
    assert duckdb_rows(table, snapshot_id=table.metadata.refs["staged"].snapshot_id).total() == 11
    (verified,) = jobs.run("verify", key_sets=[["id"]]).result["key_sets"]
    assert verified["differences"] == 0
    assert remove(jobs, told)["files_kept"] == 4


@pytest.mark.integration
def test_what_is_needed_or_written_again_since_the_dry_run_stays(
    new_table: NewTable, jobs: Jobs, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even what is added during the last look, or during what comes of that."""
    table = new_table()
    table.append([row(1)])
    first, *later = table.data_files([row(2), row(3), row(4)], files=3)
    again, gone = put(table, "data/again.parquet", "data/gone.parquet")
    age(table)
    told = remove(jobs)
    assert told["orphan_files"] == 5
    table.commit(first)
    Path(again).write_bytes(b"written again")

    def and_commit(pin: Callable[..., Any], *given: Any, **how: Any) -> Any:
        found = pin(*given, **how)
        if later:
            table.commit(later.pop())
        return found

    for pin in (pin_table, pin_again):
        monkeypatch.setattr(orphan_removal, pin.__name__, partial(and_commit, pin))
    done = remove(jobs, told)

    assert (done["files_deleted"], done["files_kept"], Path(gone).exists()) == (1, 4, False)
    assert Path(again).exists()
    assert duckdb_rows(table).total() == 4


@pytest.mark.thorough
@pytest.mark.integration
def test_a_lease_that_is_lost_during_the_last_look_lets_nothing_go(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the job gives up if others commit during each look."""
    table = new_table()
    table.append([row(1)])
    (orphan,) = put(table, "data/a.parquet")
    age(table)
    told, looks = remove(jobs), list[dict[str, Any]]()

    def lose() -> None:
        assert looks[-1] == {"reads_files": False}
        raise StaleAttemptError

    def pin(*given: Any, **how: Any) -> Any:
        looks.append(how)
        return pin_again(*given, **how)

    with monkeypatch.context() as patch:
        patch.setattr(orphan_removal, "pin_again", pin)
        patch.setattr(jobs.reporter, "before_commit", lose)
        with pytest.raises(StaleAttemptError):
            remove(jobs, told)
    monkeypatch.setattr(orphan_removal, "_SEARCHES_AT_MOST", 0)
    with pytest.raises(JobError, match="Others have committed during each of 0 searches"):
        remove(jobs, told)
    assert Path(orphan).exists()


@pytest.mark.integration
def test_what_can_not_be_deleted_is_told_and_the_others_go(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody else has deleted meanwhile counts as kept."""
    table = new_table()
    table.append([row(1)])
    put(table, "data/denied.parquet", "data/gone.parquet", "data/left.parquet")
    age(table)
    told, delete = remove(jobs), Storage.delete

    def denied(storage: Storage, location: str) -> bool:
        if "denied" in location:
            raise PermissionError("Access Denied")
        if "gone" in location:
            delete(storage, location)
        return delete(storage, location)

    monkeypatch.setattr(Storage, "delete", denied)
    done = remove(jobs, told)
    names = ("files_deleted", "bytes_deleted", "files_failed", "files_kept")
    assert [done[name] for name in names] == [1, 6, 1, 1]
    assert any("could not be deleted, such as: Access Denied" in each for each in jobs.reporter.decisions)


@pytest.mark.integration
def test_a_file_that_is_named_in_another_spelling_is_needed(new_table: NewTable, jobs: Jobs) -> None:
    table = new_table()
    table.append([row(1)])
    (unused, used) = table.data_files([row(2), row(3)], files=2)
    spelled = used.path.replace("/data/", "//data/")
    table.commit(WrittenFile({**used.json, "file-path": spelled}))
    age(table)
    assert paths(remove(jobs)) == [parse_location(unused.path).path]


@pytest.mark.integration
def test_a_file_is_needed_whatever_way_leads_to_it(
    new_table: NewTable, jobs: Jobs, spark: SparkSession, tmp_path: Path
) -> None:
    """The table's location is a link by now, and its snapshots name files by where that leads."""
    table = new_table()
    table.append([row(1)])
    (tmp_path / "lake").symlink_to(place_of(table))
    table.java.updateLocation().setLocation(f"file:{tmp_path}/lake").commit()
    (orphan,) = put(table, "data/a.parquet")
    age(table)
    told = remove(jobs)
    assert paths(told) == [orphan]
    remove(jobs, told | {"files": [f"file:{path}" for path in files_of(table)]})
    assert not Path(orphan).exists()
    assert duckdb_rows(table).total() == 1


@pytest.mark.integration
def test_iceberg_lets_nothing_go_that_has_the_path_of_a_needed_file_in_another_store(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the job refuses what names files elsewhere, which may be another name of the same place."""
    table = new_table()
    table.append([row(1)])
    (used,) = table.data_files([row(2)])
    elsewhere = f"s3://lake{parse_location(used.path).path}"
    table.commit(WrittenFile({**used.json, "file-path": elsewhere}))
    age(table)
    with pytest.raises(JobError, match=f"It needs {elsewhere}, and lies at file:") as refused:
        remove(jobs)
    assert refused.value.code == "files_named_elsewhere"
    monkeypatch.setattr(orphan_removal, "paths_of_all_snapshots", lambda *_: set[str]())
    assert remove(jobs)["orphan_files"] == 0


@pytest.mark.thorough
@pytest.mark.integration
def test_what_another_catalog_has_committed_beside_this_one_stays(
    new_table: NewTable, jobs: Jobs, spark: SparkSession
) -> None:
    """Even if this one commits last, so that the other's metadata looks as old as its own."""
    table = new_table()
    table.append([row(1)])
    location, fork = table.metadata_location, f"{table.identifier}_fork"
    catalog, name = fork.split(".")[0], ".".join(fork.split(".")[1:])
    spark.sql(f"CALL {catalog}.system.register_table('{name}', '{location}')")
    beside = TableBuilder(spark, fork)
    beside.append([row(2)])
    beside.append([row(3)])
    table.append([row(4)])
    (orphan,) = put(table, "data/a.parquet")
    age(table)
    told = remove(jobs)
    assert paths(told) == [orphan]
    assert duckdb_rows(beside).total() == 3


@pytest.mark.integration
def test_one_that_finds_a_file_needed_keeps_it(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg's action and the job's own look each keep what the other would let go."""
    table = new_table()
    table.append([row(1)])
    (orphan,) = put(table, "data/a.parquet")
    age(table)
    with monkeypatch.context() as patch:
        every = {normalize_location(path) for path in files_of(table)}
        patch.setattr(_Removal, "_unneeded", lambda *_: every)
        assert paths(remove(jobs)) == [orphan]
    monkeypatch.setattr(orphan_removal, "paths_of_all_snapshots", lambda *_: set[str]())
    assert paths(remove(jobs)) == [orphan]


@pytest.mark.integration
def test_no_class_that_the_table_names_is_loaded_for_a_look(new_table: NewTable, jobs: Jobs) -> None:
    table = new_table()
    table.append([row(1)])
    (orphan,) = put(table, "data/a.parquet")
    update = table.java.updateProperties()
    for name in ("write.location-provider.impl", "io-impl", "write.data.location-provider"):
        update.set(name, "no.such.Class")
    update.commit()
    age(table)
    assert paths(remove(jobs)) == [orphan]


@pytest.mark.integration
def test_a_clock_that_is_ahead_makes_no_file_older(new_table: NewTable, jobs: Jobs) -> None:
    table = new_table()
    table.append([row(1)])
    put(table, "data/a.parquet")
    age(table, WEEK + 60)
    assert remove(jobs)["orphan_files"] == 1
    jobs.reporter.seconds_ahead = 120
    assert remove(jobs)["orphan_files"] == 0


@pytest.mark.thorough
@pytest.mark.integration
def test_a_file_that_was_written_again_since_it_was_listed_stays_however_old_it_is(
    new_table: NewTable, jobs: Jobs
) -> None:
    table = new_table()
    table.append([row(1)])
    again, same = put(table, "data/again.parquet", "data/same.parquet")
    age(table)
    told = remove(jobs)
    then = datetime.now(UTC) - timedelta(seconds=2 * WEEK)
    os.utime(again, (then.timestamp() + 60,) * 2)
    remove(jobs, told | {"older_than": then.isoformat()})
    assert (Path(again).exists(), Path(same).exists()) == (True, False)
    with pytest.raises(JobError, match="more than 7 days ago, or the service has forgotten it"):
        remove(jobs, told | {"older_than": None})


@pytest.mark.integration
def test_the_largest_are_listed_and_what_is_beyond_is_left(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    table.append([row(1)])
    small, other = put(table, "data/a.parquet", "data/b.parquet")
    (large,) = put(table, "data/c.parquet", content=b"large orphan")
    put(table, "data/notes.txt", "data/_hidden.parquet")
    age(table)
    put(table, "data/young.parquet")
    with monkeypatch.context() as patch:
        patch.setattr(orphan_removal, "LISTED_AT_MOST", 1)
        told = remove(jobs)
        patch.setattr(orphan_removal, "CANDIDATES_AT_MOST", 2)
        assert (remove(jobs)["orphan_files"], told["orphan_files"]) == (2, 3)
    assert (paths(told), told["bytes_listed"], told["orphan_bytes"]) == ([large], 12, 24)
    left = next(one for one in jobs.reporter.decisions if one.startswith("Of "))
    number = told["files_in_location"]
    assert f"Of {number:,} files in the location, 1 were written since" in left
    remove(jobs, told)
    assert [Path(path).exists() for path in (small, other, large)] == [True, True, False]
    monkeypatch.setattr(orphan_removal, "FILES_AT_MOST", 2 * number - 4)
    remove(jobs)
    with pytest.raises(JobError, match=f"{number - 1:,} files lie in its location, and the job holds"):
        remove(jobs, policy={"resources": {"memory_fraction": 0.5}})


@pytest.mark.integration
def test_who_follows_a_killed_removal_ends_it(new_table: NewTable, jobs: Jobs) -> None:
    table = new_table()
    table.append([row(1)])
    orphans = put(table, "data/a.parquet", "data/b.parquet")
    age(table)
    told, before = remove(jobs), files_of(table)
    with killed_at_call_of(Storage, "delete", "after") as death:
        remove(jobs, told)
    assert death.happened
    remove(jobs, told, attempt=2)
    assert before - files_of(table) == {*orphans}


def delta(table: TableBuilder) -> None:
    put(table, "data/other/_delta_log/00000000000000000000.json")


def nested(table: TableBuilder) -> None:
    put(table, "data/other/metadata/00000-x.metadata.json", content=b"{}")


def of_another_by_its_name(table: TableBuilder) -> None:
    """The table's log names it, too, and a property has the UUID of the table."""
    log = table.metadata.metadata_log[-1].metadata_file
    said = {"properties": {"table-uuid": str(table.metadata.table_uuid)}, "table-uuid": "of-another"}
    Path(parse_location(log).path).write_text(json.dumps(said))


def many_beside(table: TableBuilder) -> None:
    for number in range(UNNAMED_METADATA_AT_MOST + 1):
        put(table, f"metadata/{number}-z.metadata.json", content=beginning(table, 2**50))
    age(table)


def of_another(table: TableBuilder) -> None:
    uuid = "00000000-0000-0000-0000-000000000001"
    put(table, "metadata/00001-y.metadata.json", content=json.dumps({"table-uuid": uuid}).encode())


def unreadable(table: TableBuilder) -> None:
    put(table, "metadata/00001-y.metadata.json", content=b"?")


def gone_on(table: TableBuilder) -> None:
    (path,) = put(table, "metadata/00001-y.metadata.json", content=beginning(table, 0))
    age(table)
    os.utime(path, (time.time() - 7200,) * 2)


def with_property(name: str, value: str) -> Callable[[TableBuilder], None]:
    return lambda table: table.java.updateProperties().set(name, value).commit()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("make", "told", "match"),
    [
        (nested, {}, "Another table lies in its location: it has .*other/metadata/00000-x.metadata.json"),
        (delta, {}, "Another table lies in its location: it has .*_delta_log"),
        (of_another, {}, "00001-y.metadata.json is of 00000000-0000-0000-0000-000000000001"),
        (of_another_by_its_name, {}, "metadata.json is of of-another"),
        (many_beside, {}, "101 metadata files that the table does not name are no older than its log"),
        (age, {"table_uuid": "of-another"}, "Its UUID is .*, and was of-another when the job was requested"),
        (unreadable, {}, "can't be told of which table .*00001-y"),
        (gone_on, {}, "00001-y.metadata.json is newer than the metadata that the catalog names"),
        (with_property("gc.enabled", "false"), {}, "gc.enabled is not true"),
        (with_property("write.data.path", "file:/lake/other"), {}, "write.data.path is file:/lake/other"),
        (
            age,
            {"overlapping_locations": ["file:/lake/other"]},
            "overlaps a place of another enrolled table",
        ),
        (age, {"location": "file:/lake/before"}, "was file:/lake/before at the last look"),
    ],
)
def test_nothing_goes_where_files_may_be_anothers(
    new_table: NewTable, jobs: Jobs, make: Callable[[TableBuilder], None], told: dict[str, Any], match: str
) -> None:
    table = new_table()
    table.append([row(1)])
    put(table, "data/a.parquet")
    age(table)
    listed = {"files": [str(place_of(table) / "data/a.parquet")], "older_than": "2100-01-01T00:00:00Z"}
    make(table)
    before = files_of(table)
    with pytest.raises(JobError, match=match):
        remove(jobs, listed, **told)
    assert files_of(table) == before


@pytest.mark.integration
def test_a_table_without_snapshots_or_with_a_whole_store_as_its_location_is_refused(
    new_table: NewTable, jobs: Jobs
) -> None:
    table = new_table()
    with pytest.raises(JobError, match="no snapshot yet"):
        remove(jobs)
    table.append([row(1)])
    own = table.metadata.location
    table.java.updateProperties().set("write.metadata.path", f"{own}/metadata").commit()
    table.java.updateLocation().setLocation("s3://lake/").commit()
    with pytest.raises(JobError, match="Its location s3://lake is all of a store"):
        remove(jobs)


PLACE = Place(
    "s3://lake/t",
    ("s3://lake/t/data", "s3a://lake/t/metadata"),
    frozenset({"s3://lake/t/metadata"}),
    "s3://lake/t/data/index",
)


@pytest.mark.parametrize(
    ("path", "may_go"),
    [
        ("s3://lake/t/data/a.parquet", True),
        ("s3a://lake/t/metadata/snap-1.avro", True),
        ("s3://lake/t/data/day=2026-01-01%2F/00001.orc", True),
        ("s3://lake/t/metadata/00000-a.metadata.json", False),
        ("s3://lake/t/metadata/00000-a.gz.metadata.json", False),
        ("s3://lake/t/metadata/version-hint.text", False),
        ("s3://lake/t/a.parquet", False),
        ("s3://lake/t/data2/a.parquet", False),
        ("s3://other/t/data/a.parquet", False),
        ("gs://lake/t/data/a.parquet", False),
        ("s3://lake/t/data/../../u/data/a.parquet", False),
        ("s3://lake/t/data/%2e%2e/a.parquet", False),
        ("s3://lake/t/data/index/default.db/a.parquet", False),
        ("s3a://lake/t/data/index/a.parquet", False),
        ("s3://lake/t/data/icestream-j-1-0-0.puffin", False),
        ("s3://lake/t/data/_temporary/a.parquet", False),
        ("s3://lake/t/data/.hive-staging/a.parquet", False),
        ("s3://lake/t/data/a.csv", False),
    ],
)
def test_only_what_the_tables_writers_write_may_go(path: str, may_go: bool) -> None:
    assert PLACE.may_have(path) is may_go


@pytest.mark.parametrize(
    ("path", "is_others"),
    [
        ("s3://lake/t/metadata/00000-b.metadata.json", False),
        ("s3://lake/t/metadata/00000-b.gz.metadata.json", False),
        ("s3://lake/t/u/metadata/00000-b.metadata.json", True),
        ("s3a://lake/t/u/v1.metadata.json.gz", True),
        ("s3://lake/t/u/.hoodie/hoodie.properties", True),
        ("s3://lake/t/u/schema/schema-0", True),
        ("s3://lake/t/data/index/x.db/y/schema/schema-0", False),
    ],
)
def test_other_tables_are_known_by_what_each_of_theirs_has(path: str, is_others: bool) -> None:
    assert PLACE.of_other_table(path) is is_others


@pytest.mark.parametrize(
    ("location", "path", "may_be"),
    [
        ("s3://lake/t", "s3a://lake/t/data/a.parquet", False),
        ("s3://lake/t", "s3://lake/imported/a.parquet", False),
        ("s3://lake/t", "s3://access-point/t/data/a.parquet", True),
        ("gs://lake/t", "gs://lake/imported/a.parquet", False),
        ("hdfs://one/t", "viewfs://all/t/data/a.parquet", True),
        ("abfss://w@onelake.example/l/t", "abfss://w@onelake.example/0f1e/t/data/a.parquet", True),
        ("/lake/t", "file:/real/t/data/a.parquet", False),
        ("/lake/t", "s3://lake/t/data/a.parquet", True),
        ("s3://lake/t", "s3://lake/t/../t/data/a.parquet", True),
    ],
)
def test_a_path_may_be_another_name_of_the_tables_location(location: str, path: str, may_be: bool) -> None:
    assert Place(location, (), frozenset(), "s3://index").may_be_another_name(path) is may_be


def test_what_lies_behind_a_link_stays(tmp_path: Path) -> None:
    others, own = tmp_path / "others", tmp_path / "t" / "data"
    for folder in (others, own):
        folder.mkdir(parents=True)
        (folder / "a.parquet").touch()
    (own / "link").symlink_to(others)
    place = Place(f"{tmp_path}/t", (f"{tmp_path}/t/data",), frozenset(), f"{tmp_path}/index")
    assert place.may_have(f"{own}/a.parquet")
    assert not place.may_have(f"{own}/link/a.parquet")
