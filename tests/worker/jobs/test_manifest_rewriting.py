"""Small manifests become few large ones, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.deaths import killed_at_call_of
from tests.factories import TableBuilder, spark_rows, visible_rows
from tests.jobs import Jobs
from tests.readers import duckdb_rows, pyiceberg_rows
from tests.thorough import first_always
from worker.attempt.job import Job
from worker.jobs import manifest_rewriting, spark_actions
from worker.process.errors import JobError
from worker.spark.jars import ICEBERG
from worker.spark.jvm import java_object, jvm_of
from worker.table.commit_errors import CommitConflictError

pytestmark = pytest.mark.integration
NewTable = Callable[..., TableBuilder]
# Iceberg 1.11, which goes with Spark 4.0, forgets row ids.
VERSIONS = [3, 2] if ICEBERG[".".join(pyspark.__version__.split(".")[:2])] >= "1.12" else [2]
_TARGET = "commit.manifest.target-size-bytes"


@pytest.fixture
def new_table(spark: SparkSession, table_name: str) -> NewTable:
    """With five appends, a delete by position in one of them, and so six manifests."""

    def create(**how: Any) -> TableBuilder:
        table = TableBuilder.create(spark, table_name, **{"format_version": VERSIONS[0], **how})
        for number in range(5):
            table.append([row(number), row(10 + number)])
        table.delete_positions({table.data_file_paths[0]: [1]})
        return table

    return create


def row(number: int, value: int = 0) -> dict[str, Any]:
    return {"id": number, "region": "eu", "value": value}


def rewrite(jobs: Jobs, **how: Any) -> dict[str, Any]:
    return jobs.run("rewrite_manifests", **how).result


def manifests(table: TableBuilder) -> list[str]:
    java = table.java
    return [one.path() for one in java.currentSnapshot().allManifests(java.io())]


def with_lineage(table: TableBuilder) -> Counter[Any]:
    """Rows with their ids and the numbers of their last changes."""
    columns = "*, _row_id, _last_updated_sequence_number" if table.metadata.format_version == 3 else "*"
    return Counter(map(tuple, table.spark.sql(f"SELECT {columns} FROM {table.identifier}").collect()))


def names(table: TableBuilder) -> set[str]:
    place = Path(table.metadata.location.removeprefix("file:").replace("//", "/"))
    return {path.name for path in (place / "metadata").iterdir() if path.name.endswith("avro")}


@first_always("format_version", VERSIONS)
def test_small_manifests_become_one_and_every_reader_and_the_index_find_the_same(
    new_table: NewTable, jobs: Jobs, spark: SparkSession, format_version: int
) -> None:
    table = new_table(format_version=format_version)
    jobs.run("index", key_sets=[["id"]])
    before, shown, files = manifests(table), with_lineage(table), table.data_file_paths
    head = table.snapshot_id

    foretold = rewrite(jobs, dry_run=True)
    assert (manifests(table), table.snapshot_id) == (before, head)
    told = rewrite(jobs)

    figures = told["manifests"]
    assert figures == foretold["manifests"]
    assert (figures["manifests_rewritten"], figures["manifests_added"], figures["manifests_left"]) == (
        5,
        1,
        2,
    )
    assert (told["commits"], foretold["commits"]) == (1, 0)
    assert (told["iceberg_snapshot_id_before"], told["iceberg_snapshot_id_after"]) == (
        head,
        table.snapshot_id,
    )
    assert len(manifests(table)) == 2
    assert table.data_file_paths == files
    assert with_lineage(table) == shown
    assert spark_rows(spark, table.identifier) == duckdb_rows(table) == pyiceberg_rows(table)
    (verified,) = jobs.run("verify", key_sets=[["id"]]).result["key_sets"]
    assert (verified["differences"], verified["files_checked"]) == (0, 5)
    table.upsert([row(3, 30)], key=["id"])
    jobs.run("convert")
    assert (3, "eu", 30) in visible_rows(spark, table.identifier)
    assert (3, "eu", 0) not in visible_rows(spark, table.identifier)
    table.append([row(99)])
    assert rewrite(jobs)["manifests"]["manifests_rewritten"] > 0
    assert rewrite(jobs)["manifests"]["manifests_rewritten"] == 0, "one of each is worth nothing"


def test_an_iceberg_that_forgets_row_ids_rewrites_no_table_that_has_them(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    if 3 in VERSIONS:
        monkeypatch.setattr(manifest_rewriting, "_iceberg_version", lambda _: (1, 11))
    table = new_table(format_version=3)
    head = table.snapshot_id
    for dry_run in (True, False):
        with pytest.raises(JobError, match=r"Iceberg 1\.11 forgets the row ids") as refused:
            rewrite(jobs, dry_run=dry_run)
        assert refused.value.code == "row_ids_not_kept"
    assert table.snapshot_id == head


def test_whoever_commits_meanwhile_loses_nothing(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A streaming commit passes; whoever merges the same manifests makes the job look again."""
    table, real = new_table(), spark_actions.certain
    meanwhile: list[Callable[[], object]] = [
        lambda: table.java.rewriteManifests().rewriteIf(every(table)).clusterBy(one_cluster(table)).commit(),
        lambda: table.append([row(50)]),
    ]

    def certain(java_table: Any) -> Any:
        made = real(java_table)
        if meanwhile:
            meanwhile.pop(0)()
            if len(meanwhile) == 1:
                table.append([row(60)])
        return made

    monkeypatch.setattr(spark_actions, "certain", certain)
    told = rewrite(jobs)
    assert told["manifests"]["manifests_rewritten"] > 0
    assert "so it looks again" in " ".join(jobs.reporter.decisions)
    assert {50, 60} <= {one[0] for one in with_lineage(table)}


def every(table: TableBuilder) -> Any:
    return spark_actions.chosen(table.java, manifests(table))


def one_cluster(table: TableBuilder) -> Any:
    """A function of Java's that gives all files the same value."""
    functions: Any = table.spark.sparkContext._jvm.java.util.function  # type: ignore[union-attr]
    return functions.Function.identity()


@first_always("when", ["after", "before"])
def test_a_killed_attempt_is_followed_by_one_that_finds_what_it_did(
    new_table: NewTable, jobs: Jobs, when: str
) -> None:
    table = new_table()
    shown = with_lineage(table)
    with killed_at_call_of(Job, "run_action", when) as death:
        rewrite(jobs, job_id="killed")
    assert death.happened
    told = rewrite(jobs, job_id="killed", attempt=2)
    assert (told["manifests"]["manifests_rewritten"], told["manifests"]["manifests_added"]) == (5, 1)
    assert len(manifests(table)) == 2
    assert with_lineage(table) == shown
    assert len(table.metadata.snapshots) == 7


@first_always("reason", ["Forbidden", "NotAuthorized", "BadRequest", "Validation", "CommitFailed"])
def test_a_commit_that_a_catalog_denies_and_has_made_deletes_no_manifest(
    new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """Its client repeats a call whose answer was lost: it meets its own commit, or is refused."""
    table, real = new_table(), spark_actions.table_of
    shown = with_lineage(table)

    def table_of(operations: Any, java_table: Any) -> Any:
        jvm = jvm_of(java_table)
        error = getattr(jvm.org.apache.iceberg.exceptions, f"{reason}Exception")
        denied = error("try again", jvm.java.util.ArrayList().toArray())
        denying = java_object(java_table, _DENYING, "Denying", java_table.operations(), denied)
        certain = java_object(java_table, spark_actions._SOURCE, "CertainOperations", denying)
        return real(certain, java_table)

    monkeypatch.setattr(spark_actions, "table_of", table_of)
    told = rewrite(jobs)
    assert told["manifests"]["manifests_rewritten"] == 5
    assert with_lineage(table) == shown


_DENYING = Path(__file__).with_name("Denying.java")


@pytest.mark.parametrize("size", ["many", "0", "-1", "9" * 30])
def test_a_size_that_is_none_is_refused(new_table: NewTable, jobs: Jobs, size: str) -> None:
    table = new_table()
    table.java.updateProperties().set(_TARGET, size).commit()
    with pytest.raises(JobError, match=_TARGET):
        rewrite(jobs)


def test_a_tiny_size_makes_no_more_manifests_and_no_class_of_the_table_is_loaded(
    new_table: NewTable, jobs: Jobs
) -> None:
    table = new_table()
    before = names(table)
    table.java.updateProperties().set(_TARGET, "1").set("write.location-provider.impl", "no.Such").commit()
    assert rewrite(jobs)["manifests"]["manifests_rewritten"] == 0
    assert names(table) == before
    table.java.updateProperties().remove(_TARGET).commit()
    assert rewrite(jobs)["manifests"]["manifests_rewritten"] == 5


def test_manifests_of_another_branch_are_not_rewritten(new_table: NewTable, jobs: Jobs) -> None:
    table = new_table()
    table.java.manageSnapshots().createBranch("audit").commit()
    with pytest.raises(JobError, match="enrolled with branch audit"):
        rewrite(jobs, branch="audit")


def test_manifests_elsewhere_are_neither_read_nor_written(
    new_table: NewTable, jobs: Jobs, warehouse: Path, tmp_path: Path
) -> None:
    table = new_table()
    table.java.updateProperties().set("write.metadata.path", (tmp_path / "elsewhere").as_uri()).commit()
    with pytest.raises(JobError):
        rewrite(jobs, allowed_locations=[str(warehouse.parent), str(jobs.index)])
    assert not any(path.suffix == ".avro" for path in tmp_path.rglob("*"))


def test_who_always_loses_says_so(new_table: NewTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table()

    def conflict(*_: Any) -> None:
        raise CommitConflictError("a manifest is missing")

    monkeypatch.setattr(manifest_rewriting._Rewriting, "_commit", conflict)
    before = manifests(table)
    with pytest.raises(CommitConflictError) as raised:
        rewrite(jobs)
    assert raised.value.remedy.startswith("Rewrite manifests when")
    assert manifests(table) == before
