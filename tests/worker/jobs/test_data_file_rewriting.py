"""Small data files, and those with many deleted rows, become few, and every reader shows the same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

from tests.deaths import killed_at_call_of
from tests.factories import TableBuilder, equality_delete_files, live_delete_files, spark_rows, visible_rows
from tests.jobs import Jobs
from tests.readers import duckdb_rows, pyiceberg_rows
from tests.thorough import V2_FIRST, V3_FIRST, first_always
from worker.jobs import file_rewriting
from worker.jobs.conversion import Conversion
from worker.jobs.conversion_plan import Plan
from worker.jobs.data_file_rewriting import _Rewriting
from worker.process.errors import JobError, OutOfMemoryError
from worker.table.commit_errors import CommitConflictError

pytestmark = pytest.mark.integration
NewTable = Callable[..., TableBuilder]


@pytest.fixture
def new_table(spark: SparkSession, table_name: str) -> NewTable:
    """With five small data files in one partition, of which one has a deleted row, and one in another."""

    def create(**how: Any) -> TableBuilder:
        how = {"format_version": 3, "partitioned_by": ["region"], **how}
        table = TableBuilder.create(spark, table_name, **how)
        for number in range(5):
            table.append([row(number), row(10 + number)])
        table.append([row(20, region="us")])
        table.delete_positions({table.data_file_paths[0]: [1]})
        return table

    return create


def row(number: int, value: int = 0, region: str = "eu") -> dict[str, Any]:
    return {"id": number, "region": region, "value": value}


def rewrite(jobs: Jobs, **how: Any) -> dict[str, Any]:
    return jobs.run("rewrite_data_files", **how).result


def converted(told: dict[str, Any]) -> list[Any]:
    names = ("equality_delete_files_removed", "equality_deletes_resolved", "rows_deleted")
    return [told.get(name) for name in names]


def lineage(table: TableBuilder) -> Counter[Any]:
    """Rows with their ids and the numbers of their last changes."""
    columns = "*, _row_id, _last_updated_sequence_number" if table.metadata.format_version == 3 else "*"
    return Counter(map(tuple, table.spark.sql(f"SELECT {columns} FROM {table.identifier}").collect()))


def written(table: TableBuilder) -> set[str]:
    """All data files in the table's place."""
    return {path.name for path in place(table).rglob("data/**/*.parquet") if "deletes" not in path.name}


def place(table: TableBuilder) -> Path:
    return Path("/" + table.metadata.location.removeprefix("file:").lstrip("/"))


@V3_FIRST
def test_small_data_files_become_one_and_every_reader_and_the_index_find_the_same(
    new_table: NewTable, jobs: Jobs, spark: SparkSession, format_version: int
) -> None:
    table = new_table(format_version=format_version)
    jobs.run("index", key_sets=[["id"]])
    shown, head, files = lineage(table), table.snapshot_id, table.data_file_paths

    foretold = rewrite(jobs, dry_run=True)
    assert (table.snapshot_id, foretold["commits"]) == (head, 0)
    told = rewrite(jobs)

    assert sorted(foretold["data_files"]["files"]) == sorted(files[:5])
    assert (converted(foretold), converted(told)) == ([None] * 3, [0] * 3)
    for name in ("data_files_rewritten", "data_files_added", "bytes_rewritten"):
        assert told["data_files"][name] == foretold["data_files"][name]
    assert (told["data_files"]["data_files_rewritten"], told["data_files"]["data_files_added"]) == (5, 1)
    assert told["data_files"]["delete_files_removed"] == 1
    assert (told["iceberg_snapshot_id_before"], told["commits"]) == (head, 1)
    assert len(table.data_file_paths) == 2
    assert not live_delete_files(spark, table.identifier), "deletes of files that are gone are no use"
    assert lineage(table) == shown
    assert spark_rows(spark, table.identifier) == duckdb_rows(table) == pyiceberg_rows(table)
    (index,) = jobs.run("index", key_sets=[["id"]]).result["key_sets"]
    assert index["files_indexed"] == 0, "the job has indexed what it wrote"
    table.upsert([row(3, 30)], key=["id"])
    jobs.run("convert")
    assert {one for one in visible_rows(spark, table.identifier) if one[0] == 3} == {(3, "eu", 30)}


def meanwhile(monkeypatch: pytest.MonkeyPatch, *commits: Callable[[], object]) -> None:
    """Others commit after each writing of the job, and before its commit."""
    real, left = _Rewriting._written, list(commits)

    def then(rewriting: Any, *arguments: Any) -> Any:
        made = real(rewriting, *arguments)
        if left:
            left.pop(0)()
        return made

    monkeypatch.setattr(_Rewriting, "_written", then)


@V2_FIRST
def test_what_is_pending_is_converted_first_and_what_a_writer_commits_meanwhile_stays_right(
    new_table: NewTable, jobs: Jobs, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, format_version: int
) -> None:
    """A streaming writer deletes and inserts rows of files that are written anew: nobody looks again."""
    table = new_table(format_version=format_version)
    table.upsert([row(1, 10)], key=["id"])

    def others() -> None:
        for number in (1, 2, 13, 50):
            table.upsert([row(number, 99)], key=["id"])

    meanwhile(monkeypatch, others)
    convert = Conversion.convert

    def convert_and_more(*arguments: Any, **how: Any) -> Any:
        made = convert(*arguments, **how)
        table.upsert([row(3, 99)], key=["id"])
        return made

    monkeypatch.setattr(Conversion, "convert", convert_and_more)
    told = rewrite(jobs)
    monkeypatch.setattr(Conversion, "convert", convert)

    assert (told["commits"], told["data_files"]["data_files_left_out"]) == (1, 0)
    assert converted(told) == [1, 1, 1]
    assert "1 equality delete file converted first." in jobs.reporter.decisions
    assert "looks again" not in " ".join(jobs.reporter.decisions)
    assert len(equality_delete_files(spark, table.identifier)) == 5, "what came meanwhile is left for later"
    expected = {(n, 99) for n in (1, 2, 3, 13, 50)} | {(n, 0) for n in (0, 4, 11, 12, 14, 20)}
    shown = visible_rows(spark, table.identifier)
    assert Counter((one[0], one[2]) for one in shown.elements()) == Counter(expected)
    jobs.run("convert")
    assert spark_rows(spark, table.identifier) == pyiceberg_rows(table) == shown


@pytest.mark.thorough
def test_what_is_pending_is_converted_in_as_many_commits_as_a_conversion_takes(
    new_table: NewTable, jobs: Jobs, spark: SparkSession
) -> None:
    table = new_table(partitioned_by=[])
    for number in (1, 2):
        table.delete_keys([{"id": number}])
    before = len(table.metadata.snapshots)
    told = rewrite(jobs, policy={"convert": {"max_delete_files_per_commit": 1}})
    assert "2 equality delete files take 2 commits" in " ".join(jobs.reporter.decisions)
    assert len(table.metadata.snapshots) - before == 2 + told["commits"] == 3
    assert converted(told) == [2, 2, 2]
    assert not equality_delete_files(spark, table.identifier)
    assert not {1, 2, 10} & {one[0] for one in visible_rows(spark, table.identifier)}


@V2_FIRST
@first_always("how", ["upserts", "deletes"])
def test_what_a_writer_commits_while_deletes_are_converted_stays_right_and_keeps_no_file_out(
    new_table: NewTable,
    jobs: Jobs,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    format_version: int,
    how: str,
) -> None:
    """The snapshot that is read has pending deletes, which apply to the new data files."""
    table = new_table(format_version=format_version, partitioned_by=[])
    table.delete_keys([{"id": 1}])
    real = Plan.commit

    def commit(plan: Plan, part: Any) -> Any:
        monkeypatch.setattr(Plan, "commit", real)
        for number in (2, 13):
            if how == "upserts":
                table.upsert([row(number, 99)], key=["id"])
            else:
                table.delete_keys([{"id": number}])
        return real(plan, part)

    monkeypatch.setattr(Plan, "commit", commit)
    told = rewrite(jobs)["data_files"]
    assert (told["data_files_rewritten"], told["data_files_left_out"]) == (6, 0)
    expected = {(n, 0) for n in (0, 3, 4, 11, 12, 14, 20)}
    if how == "upserts":
        assert len(equality_delete_files(spark, table.identifier)) == 2
        (rows,) = spark.sql(f"SELECT sum(record_count) FROM {table.identifier}.data_files").collect()
        assert rows[0] == 9 + 2, "none is applied by Iceberg's reader"
        expected |= {(2, 99), (13, 99)}
    else:  # Iceberg would forget them with all data files that are older
        assert "so it looks again" in " ".join(jobs.reporter.decisions)
    shown = visible_rows(spark, table.identifier)
    assert Counter((one[0], one[2]) for one in shown.elements()) == Counter(expected)
    jobs.run("convert")
    assert spark_rows(spark, table.identifier) == pyiceberg_rows(table) == shown


def test_deletes_that_iceberg_would_forget_with_the_last_older_data_file_are_not_lost(
    new_table: NewTable, jobs: Jobs, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apache/iceberg#10962: all data files are written anew, deletes come, and data files that are newer."""
    table = new_table(partitioned_by=[])

    def others() -> None:
        table.delete_keys([{"id": 2}])
        table.append([row(70)])

    meanwhile(monkeypatch, others)
    told = rewrite(jobs)
    assert "Iceberg would drop" in " ".join(jobs.reporter.decisions)
    assert told["data_files"]["data_files_rewritten"] == 7
    shown = {one[0] for one in visible_rows(spark, table.identifier)}
    assert shown == {0, 1, 3, 4, 11, 12, 13, 14, 20, 70}


@first_always("what", ["deletes", "a compaction", "another schema"])
def test_whoever_deletes_rows_of_the_same_files_meanwhile_comes_first(
    new_table: NewTable, jobs: Jobs, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    table = new_table()
    commit: dict[str, Callable[[], object]] = {
        "deletes": lambda: table.delete_positions({table.data_file_paths[2]: [0]}),
        "a compaction": table.compact,
        "another schema": lambda: table.java.updateSchema().deleteColumn("value").commit(),
    }
    meanwhile(monkeypatch, commit[what])
    told = rewrite(jobs)
    assert "so it looks again" in " ".join(jobs.reporter.decisions)
    gone = {10} | ({2} if what == "deletes" else set())
    ids = {0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 20} - gone
    assert {one[0] for one in visible_rows(spark, table.identifier)} == ids
    assert told["commits"] == (what != "a compaction")
    assert written(table) >= {Path(path).name for path in table.data_file_paths}
    assert len(folders(table)) == 1 - (what == "a compaction"), "of what was in vain nothing is left"


def test_data_files_that_are_gone_by_the_time_they_are_read_are_looked_for_again(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have replaced them, and let the snapshot expire that had them."""
    table, real = new_table(), _Rewriting._written
    shown, old = lineage(table), table.data_file_paths

    def written_after(rewriting: Any, *arguments: Any) -> Any:
        if table.data_file_paths == old:
            table.compact()
            expiry = table.java.expireSnapshots()
            for snapshot in table.metadata.snapshots[:-1]:
                expiry.expireSnapshotId(snapshot.snapshot_id)
            expiry.commit()
            assert not any(Path("/" + path.removeprefix("file:").lstrip("/")).exists() for path in old)
        return real(rewriting, *arguments)

    monkeypatch.setattr(_Rewriting, "_written", written_after)
    assert rewrite(jobs)["commits"] == 0
    assert "so it looks again" in " ".join(jobs.reporter.decisions)
    assert lineage(table) == shown


def folders(table: TableBuilder) -> set[Path]:
    """Those of attempts that have files."""
    found = (path for path in place(table).glob("data/icestream-*") if path.is_dir())
    return {path for path in found if any(path.rglob("*.parquet"))}


@pytest.mark.thorough
@first_always("when", ["before", "after"])
def test_a_killed_rewriting_is_followed_by_one_that_removes_what_it_left(
    new_table: NewTable, jobs: Jobs, when: str
) -> None:
    table = new_table()
    table.delete_keys([{"id": 2}], partition_of={"region": "eu"})
    jobs.run("index", key_sets=[["id"]])
    shown = lineage(table)
    with killed_at_call_of(file_rewriting, "commit_snapshot", when) as death:
        rewrite(jobs, job_id="killed")
    assert death.happened
    assert len(folders(table)) == 1
    left = jobs.reporter.left_by("killed")

    outcome = jobs.run(
        "rewrite_data_files", job_id="killed", attempt=2, ended_attempts=[left], key_sets=[["id"]]
    )
    figures = outcome.result["data_files"]
    assert (figures["data_files_rewritten"], figures["data_files_added"]) == (5, 1)
    assert converted(outcome.result) == [1, 1, 1], "by the attempt that was lost"
    assert [one.job_id for one in outcome.cleared] == ["killed"]
    assert len(folders(table)) == 1, "of the attempt that committed"
    assert lineage(table) == shown
    (index,) = outcome.health["key_sets"]
    assert (index["files_covered"], index["files_total"]) == (2, 2)


def test_files_of_a_rewriting_whose_commit_may_still_come_stay(new_table: NewTable, jobs: Jobs) -> None:
    table = new_table()
    with killed_at_call_of(file_rewriting, "commit_snapshot", "before"):
        rewrite(jobs, job_id="sleeps")
    left = jobs.reporter.left_by("sleeps")
    about_to = left.model_copy(
        update={"plans": [left.plans[-1].model_copy(update={"removes": table.data_file_paths[0]})]}
    )
    table.upsert([row(7)], key=["id"])
    assert jobs.run("convert", ended_attempts=[about_to]).cleared == []
    assert len(folders(table)) == 1
    rewrite(jobs, ended_attempts=[about_to])
    assert len(folders(table)) == 1, "once the first of its files is gone, it can't commit any more"


def test_data_files_with_many_deleted_rows_are_written_anew_however_few(
    spark: SparkSession, table_name: str, jobs: Jobs
) -> None:
    """Deletes that name one data file count; the policy says what is many, and what is counted."""
    table = TableBuilder.create(spark, table_name, format_version=3)
    table.append([row(number) for number in range(10)])
    table.delete_positions({table.data_file_paths[0]: [0, 1, 2]})
    policy = {"rewrite_data_files": {"enabled": True}}
    health = jobs.run("index", policy=policy, key_sets=[["id"]]).health
    assert (health["small_data_files"], health["deleted_data_files"]) == (0, 1)
    assert health["partitions"] == 1
    assert rewrite(jobs, parameters={"delete_ratio_threshold": 0.31})["commits"] == 0
    assert rewrite(jobs, parameters={"delete_ratio_threshold": 0.3})["data_files"]["data_files_added"] == 1
    health = jobs.run("index", policy=policy, key_sets=[["id"]]).health
    assert health["deleted_data_files"] == 0
    assert visible_rows(spark, table_name) == Counter((n, "eu", 0) for n in range(3, 10))
    table.delete_positions({table.data_file_paths[0]: range(7)})
    told = rewrite(jobs)["data_files"]
    assert (told["data_files_rewritten"], told["data_files_added"]) == (1, 0)
    assert (table.data_file_paths, visible_rows(spark, table_name)) == ([], Counter())


def test_a_file_stays_until_those_that_are_smaller_come_to_as_much(
    spark: SparkSession, table_name: str, jobs: Jobs
) -> None:
    """What a job counts is what the next one takes, and then there is nothing left to count."""
    table = TableBuilder.create(spark, table_name, format_version=3)
    table.append([row(number, number * 7919) for number in range(5_000)])
    (large,) = table.data_file_paths
    policy = {"rewrite_data_files": {"enabled": True, "min_input_files": 2}}

    def small_files() -> int:
        return int(jobs.run("index", policy=policy, key_sets=[["id"]]).health["small_data_files"])

    for number in range(5_000, 5_003):
        table.append([row(number)])
    assert small_files() == 3
    foretold = rewrite(jobs, dry_run=True, parameters={"min_input_files": 2})
    told = rewrite(jobs, parameters={"min_input_files": 2})["data_files"]
    assert large not in foretold["data_files"]["files"]
    assert (told["data_files_rewritten"], told["data_files_added"]) == (3, 1)
    assert "1 small data file left to later jobs" in " ".join(jobs.reporter.decisions)
    assert large in table.data_file_paths
    assert small_files() == 0
    assert rewrite(jobs, parameters={"min_input_files": 2})["commits"] == 0
    for first in (10_000, 20_000):
        table.append([row(first + number, number * 7919) for number in range(5_000)])
    assert small_files() == 4
    assert rewrite(jobs, parameters={"min_input_files": 2})["data_files"]["data_files_rewritten"] == 4
    (together,) = table.data_file_paths
    table.append([row(30_000)])
    assert small_files() == 0
    table.delete_positions({together: range(5_000)})
    health = jobs.run("index", policy=policy, key_sets=[["id"]]).health
    assert health["deleted_data_files"] == 1
    told = rewrite(jobs, parameters={"min_input_files": 2})["data_files"]
    assert (told["data_files_rewritten"], told["data_files_added"]) == (2, 1)


def test_data_files_with_deletes_that_can_not_be_converted_stay_as_they_are(
    spark: SparkSession, table_name: str, jobs: Jobs
) -> None:
    table = TableBuilder.create(spark, table_name, "id bigint, ratio double", format_version=3)
    for number in range(5):
        table.append([{"id": number, "ratio": 0.5 * number}])
    table.delete_keys([{"ratio": 0.5}])
    for number in range(5, 10):
        table.append([{"id": number, "ratio": 0.5}])
    shown, old = visible_rows(spark, table_name), table.data_file_paths[:5]
    told = rewrite(jobs)
    assert (told["data_files"]["data_files_rewritten"], told["data_files"]["data_files_left_out"]) == (5, 5)
    assert len(told["unconvertible"]) == 1
    assert set(old) < set(table.data_file_paths)
    assert visible_rows(spark, table_name) == shown


def test_a_vector_whose_neighbour_went_is_still_there_after_an_expiry(
    spark: SparkSession, table_name: str, jobs: Jobs
) -> None:
    """Spark and Flink write many vectors into a Puffin file; some of these data files are written anew."""
    table = TableBuilder.create(spark, table_name, format_version=3, partitioned_by=["region"])
    for number in range(5):
        table.append([row(number), row(10 + number)])
    table.append([row(number, region="us") for number in range(20, 30)])
    paths = table.data_file_paths
    table.delete_positions({paths[0]: [0], paths[5]: [1]})
    shown = visible_rows(spark, table_name)
    assert rewrite(jobs)["data_files"]["delete_files_removed"] == 1
    expiry = jobs.run("expire_snapshots", parameters={"older_than_seconds": 0, "retain_last": 1})
    assert expiry.result["expiry"]["data_files_deleted"] == 5
    assert expiry.result["expiry"]["delete_files_deleted"] == 0
    assert visible_rows(spark, table_name) == shown


def test_a_job_writes_no_more_bytes_anew_than_it_may_and_sorts_if_it_is_asked_to(
    new_table: NewTable, jobs: Jobs, spark: SparkSession
) -> None:
    table = new_table()
    for number in (33, 32, 31, 30, 34):
        table.append([row(number, region="us")])
    shown = lineage(table)
    size = rewrite(jobs, dry_run=True, parameters={"max_bytes": 10**9})["data_files"]
    assert (size["data_files_rewritten"], size["data_files_added"]) == (11, 2)
    with pytest.raises(JobError, match="no sort order"):
        rewrite(jobs, parameters={"strategy": "sort"})
    by = [{"column": "id", "direction": "desc", "null_order": "nulls-last"}]
    how = {"strategy": "sort", "sort_order": by, "max_bytes": size["bytes_rewritten"] - 1}
    assert rewrite(jobs, parameters=how)["data_files"]["data_files_added"] == 1
    assert rewrite(jobs, parameters=how)["data_files"]["data_files_added"] == 1
    assert lineage(table) == shown
    rows = spark.sql(f"SELECT id FROM {table.identifier} WHERE region = 'us'").collect()
    assert [one[0] for one in rows] == [34, 33, 32, 31, 30, 20]


def test_no_class_and_no_place_that_the_table_names_is_used_by_spark(
    new_table: NewTable, jobs: Jobs, warehouse: Path, tmp_path: Path
) -> None:
    table = new_table()
    shown = lineage(table)

    def have(**properties: str | None) -> None:
        change = table.java.updateProperties()
        for name, value in properties.items():
            key = f"write.{name.replace('_', '-').replace('--', '.')}"
            change = change.set(key, value) if value is not None else change.remove(key)
        change.commit()

    have(data__path=(tmp_path / "elsewhere").as_uri())
    with pytest.raises(JobError, match="elsewhere"):
        rewrite(jobs, allowed_locations=[str(warehouse.parent), str(jobs.index)])
    have(data__path=None, target_file_size_bytes="1")
    with pytest.raises(JobError, match=r"write\.target-file-size-bytes"):
        rewrite(jobs)
    have(
        target_file_size_bytes=None,
        location_provider__impl="no.Such",
        object_storage__enabled="true",
        folder_storage__path=(tmp_path / "old").as_uri(),
    )
    assert rewrite(jobs)["data_files"]["data_files_added"] == 1
    assert len(folders(table)) == 1
    assert lineage(table) == shown
    assert not any((tmp_path / name).exists() for name in ("elsewhere", "old"))


def test_data_files_of_another_branch_are_written_anew_there(new_table: NewTable, jobs: Jobs) -> None:
    table = new_table()
    table.java.manageSnapshots().createBranch("audit").commit()
    main, shown = table.snapshot_id, visible_rows(table.spark, table.identifier)
    assert rewrite(jobs, branch="audit")["data_files"]["data_files_rewritten"] == 5
    assert table.snapshot_id == main
    assert visible_rows(table.spark, table.identifier, branch="audit") == shown


def test_a_rewriting_that_always_loses_says_so_and_leaves_nothing(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    before = written(table)

    def conflict(*_: Any) -> None:
        raise CommitConflictError("a data file is missing")

    monkeypatch.setattr(file_rewriting, "PLANNING_ATTEMPTS", 2)
    monkeypatch.setattr(_Rewriting, "_commit", conflict)
    with pytest.raises(CommitConflictError) as raised:
        rewrite(jobs)
    assert raised.value.remedy.startswith("Rewrite data files when")
    assert written(table) == before


def test_files_stay_whose_commit_happened_and_could_not_be_looked_up_for_lack_of_memory(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    shown = lineage(table)

    def lacks_memory(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patches:
        patches.setattr("worker.table.commit._find_commit", lacks_memory)
        with pytest.raises(OutOfMemoryError):
            rewrite(jobs)
    assert len(table.data_file_paths) == 2, "it was committed"
    assert lineage(table) == shown


@V2_FIRST
@first_always("how", ["once more", "after an equality delete"])
def test_a_data_file_that_is_added_again_meanwhile_comes_first(
    spark: SparkSession,
    table_name: str,
    jobs: Jobs,
    monkeypatch: pytest.MonkeyPatch,
    format_version: Literal[2, 3],
    how: str,
) -> None:
    """Iceberg removes by paths: it would take both, or put rows where an equality delete hits them."""
    table = TableBuilder.create(spark, table_name, format_version=format_version)
    table.append([row(99)])
    (file,) = table.data_files([row(number) for number in range(10)])
    table.commit(file)
    for number in range(20, 23):
        table.append([row(number)])

    def others() -> None:
        if how != "once more":
            table.java.newDelete().deleteFile(table.parsed(file)).commit()
            table.delete_keys([{"id": 5}])
        table.commit(file)

    meanwhile(monkeypatch, others)
    rewrite(jobs)
    assert f"{file.path} was added again" in " ".join(jobs.reporter.decisions)
    copies = 2 if how == "once more" else 1
    expected = dict.fromkeys(range(10), copies) | dict.fromkeys((99, 20, 21, 22), 1)
    assert Counter(one[0] for one in visible_rows(spark, table_name).elements()) == expected
