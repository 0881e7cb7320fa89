"""A conversion is committed whole on the snapshot it was planned for, or not at all."""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from py4j.java_gateway import JavaObject
from py4j.protocol import MEMORY_COMMAND_NAME
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyroaring import BitMap64
from pyspark.sql import SparkSession

import worker.table.commit
from tests.delete_files import write_deletes
from tests.factories import Catalog, TableBuilder, WrittenFile, equality_delete_files, visible_rows
from tests.faults.tables import local, orphans
from tests.jobs import Jobs
from tests.thorough import V2_FIRST, V3_FIRST, first_always
from worker.contract.control_plane import StaleAttemptError
from worker.deletes.locations import DeleteFileLocations
from worker.deletes.merge import DeleteGranularity
from worker.io.storage import Storage
from worker.process.errors import JobError, JobTimedOutError
from worker.table import row_delta
from worker.table.catalogs import load_table
from worker.table.commit import commit_row_delta, find_commits, find_head
from worker.table.commit_errors import (
    ClockBehindError,
    CommitConflictError,
    CommitError,
    CommitStateUnknownError,
)
from worker.table.files import DataFile, NewDeleteFile, PartitionKey
from worker.table.manifests import read_snapshot_files
from worker.table.row_delta import RowDelta

pytestmark = pytest.mark.integration

COUNTS = {"icestream.rows-deleted": "2"}


class Plan:
    """Rows 0 to 9 in two data files, equality deletes of 0 and 9, and a delta that replaces them."""

    def __init__(self, spark: SparkSession, catalog: Catalog, table: TableBuilder, branch: str) -> None:
        self.spark, self.catalog, self.table, self.branch = spark, catalog, table, branch
        metadata = table.metadata
        snapshot = metadata.snapshot_by_name(branch)
        assert snapshot is not None
        files = read_snapshot_files(metadata, snapshot, PyArrowFileIO())
        first, second = sorted(files.data_files, key=lambda file: table.data_file_paths.index(file.path))
        written = write_deletes(
            Storage(),
            {first: BitMap64([0]), second: BitMap64([4])},
            files.position_deletes,
            metadata.format_version,
            DeleteGranularity.FILE,
            DeleteFileLocations(metadata.location, metadata.properties, f"plan-{snapshot.snapshot_id}"),
        )
        self.first: DataFile = first
        self.delta = RowDelta(
            branch=branch,
            starting_snapshot_id=snapshot.snapshot_id,
            job_id="job-1",
            attempt=3,
            added=written.added,
            removed=(*files.equality_deletes, *written.removed),
            referenced_data_files=written.data_files,
            summary=COUNTS,
        )

    @property
    def java_table(self) -> JavaObject:
        identifier = self.table.identifier.split(".")[1:]
        jvm = self.spark.sparkContext._jvm
        return load_table(jvm, "sql", self.catalog.name, self.catalog.properties, identifier)

    def first_again(self) -> WrittenFile:
        """The data file for which there are deletes, as a writer adds it once more."""
        described = {
            "spec-id": 0,
            "content": "data",
            "file-path": self.first.path,
            "file-format": "parquet",
            "partition": [],
            "file-size-in-bytes": self.first.file_size_bytes,
            "record-count": self.first.record_count,
        }
        return WrittenFile(described)

    def deletes_again(self) -> WrittenFile:
        """The equality deletes that go, likewise."""
        return WrittenFile(row_delta._removed_json(self.delta.removed[0]))

    @property
    def rows(self) -> dict[Any, int]:
        return visible_rows(self.spark, self.table.identifier, branch=self.branch)

    @contextmanager
    def changes_nothing(self, expected: type[Exception], match: str) -> Iterator[None]:
        metadata_location, rows = self.table.metadata_location, self.rows
        metadata = local(metadata_location).parent
        manifests = set(metadata.glob("*.avro"))
        with pytest.raises(expected, match=match) as caught:
            yield
        assert "\tat " not in str(caught.value), "a stack trace is no message"
        assert (self.table.metadata_location, self.rows) == (metadata_location, rows)
        assert find_commits(self.java_table, self.branch, "job-1") == []
        if expected is not CommitStateUnknownError:  # then they may be needed
            assert set(metadata.glob("*.avro")) == manifests


NewPlan = Callable[..., Plan]


@pytest.fixture
def new_plan(spark: SparkSession, catalog: Catalog, table_name: str) -> NewPlan:
    def create(format_version: Any = 3, branch: str = "main", **properties: str) -> Plan:
        table = TableBuilder.create(
            spark,
            table_name,
            "id bigint",
            format_version=format_version,
            properties={"write.delete.mode": "merge-on-read"} | properties,
        )
        for start in (0, 5):
            table.append([{"id": n} for n in range(start, start + 5)])
        if branch != "main":
            table.java.manageSnapshots().createBranch(branch).commit()
        table.commit(*table.equality_deletes([{"id": 0}, {"id": 9}]), branch=branch)
        return Plan(spark, catalog, table, branch)

    return create


@V2_FIRST
@pytest.mark.parametrize("branch", ["main", "audit"])
def test_a_commit_changes_no_row_and_says_who_made_it(
    new_plan: NewPlan, format_version: int, branch: str
) -> None:
    plan = new_plan(format_version, branch)
    rows = plan.rows
    assert len(rows) == 8
    committed = commit_row_delta(plan.java_table, plan.delta)

    assert plan.rows == rows
    head = plan.table.metadata.snapshot_by_name(branch)
    assert head is not None
    assert (head.snapshot_id, head.parent_snapshot_id) == (
        committed.snapshot_id,
        plan.delta.starting_snapshot_id,
    )
    assert head.sequence_number == committed.sequence_number
    assert (committed.job_id, committed.attempt) == ("job-1", 3)
    # DELETE, and not REPLACE, so that a compaction in flight sees it.
    assert committed.summary["operation"] == "delete"
    assert committed.summary.items() >= COUNTS.items()
    assert find_commits(plan.java_table, branch, "job-1") == [committed]
    assert find_commits(plan.java_table, branch, "job-2") == []
    assert find_commits(plan.java_table, "no such branch", "job-1") == []
    if branch == "main":
        assert equality_delete_files(plan.spark, plan.table.identifier) == []


def test_equality_deletes_go_without_new_deletes_and_compaction_sees_it(new_plan: NewPlan) -> None:
    plan = new_plan()
    plan.table.delete_positions({plan.table.data_file_paths[0]: [0], plan.table.data_file_paths[1]: [4]})
    head = plan.table.snapshot_id
    assert head is not None
    delta = replace(plan.delta, starting_snapshot_id=head, added=())
    committed = commit_row_delta(plan.java_table, delta)
    assert committed.summary["operation"] == "overwrite"
    assert len(plan.rows) == 8


@contextmanager
def calls_of_java(java_table: JavaObject) -> Iterator[list[int]]:
    """How long each call is that Python makes meanwhile."""
    client = java_table._gateway_client
    lengths: list[int] = []
    send = client.send_command

    def measuring_send(command: str, *args: Any, **kwargs: Any) -> Any:
        if not command.startswith(MEMORY_COMMAND_NAME):  # gives objects of any test back to Java
            lengths.append(len(command))
        return send(command, *args, **kwargs)

    client.send_command = measuring_send
    try:
        yield lengths
    finally:
        del client.send_command


def test_a_commit_takes_few_calls_of_java_whatever_it_says(new_plan: NewPlan) -> None:
    plan = new_plan(2)
    partition, java_table = PartitionKey(0, "[]"), plan.java_table

    def calls(number: int, properties: int) -> int:
        added = NewDeleteFile(f"file:/none/{number}.parquet", "parquet", partition, 1, 900, plan.first.path)
        summary = {f"property-{number}": "" for number in range(properties)}
        with calls_of_java(java_table) as lengths:
            commit_row_delta(java_table, replace(plan.delta, added=[added], removed=(), summary=summary))
        return len(lengths)

    calls(0, 1)  # classes of ours are made once
    assert calls(1, 100) == calls(2, 1)
    assert calls(3, 1) <= 14


def test_ten_thousand_files_cross_to_java_in_a_few_calls_of_bounded_length(
    new_plan: NewPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_delta, "_SLICE", 3_000)
    plan = new_plan(2)
    partition = PartitionKey(0, "[]")
    added = [
        NewDeleteFile(f"file:/none/{n}.parquet", "parquet", partition, 1, 900, plan.first.path)
        for n in range(10_000)
    ]
    paths = [plan.first.path] * len(added)
    with calls_of_java(plan.java_table) as lengths:
        committed = commit_row_delta(
            plan.java_table, replace(plan.delta, added=added, referenced_data_files=paths)
        )
    assert committed.summary["added-delete-files"] == "10000"
    assert len(lengths) < 30
    # As Java's strings are: no text holds them all.
    of_one = len(json.dumps(row_delta._added_json(added[0])))
    assert 3_000 * of_one <= max(lengths) < 6_000 * of_one
    assert sum(length > 1_000 * len(plan.first.path) for length in lengths) == 8


class TestConflicts:
    def test_a_compaction_in_between_wins(self, new_plan: NewPlan) -> None:
        plan = new_plan()
        plan.table.compact()
        rounds: list[None] = []
        with plan.changes_nothing(CommitConflictError, "missing data files"):
            commit_row_delta(plan.java_table, plan.delta, confirm_lease=lambda: rounds.append(None))
        assert len(rounds) == 1, "another one would lose as well"

    @V3_FIRST
    def test_a_compaction_that_commits_later_loses(self, new_plan: NewPlan, format_version: int) -> None:
        plan = new_plan(format_version)
        table = plan.table
        rewrite = table.java.newRewrite().validateFromSnapshot(plan.delta.starting_snapshot_id)
        [rewritten] = table.data_files([{"id": n} for n in range(1, 5)])
        parse = plan.spark.sparkContext._jvm.org.apache.iceberg.ContentFileParser.fromJson  # type: ignore[union-attr]
        read = plan.spark.sparkContext._jvm.org.apache.iceberg.util.JsonUtil.mapper().readTree  # type: ignore[union-attr]
        rewrite.addFile(parse(read(json.dumps(rewritten.json)), table.java.specs()))
        rewrite.deleteFile(table.parsed(plan.first_again()))

        rows = plan.rows
        commit_row_delta(plan.java_table, plan.delta)
        with pytest.raises(Exception, match="found new delete"):
            rewrite.commit()
        assert plan.rows == rows

    @V2_FIRST
    @pytest.mark.parametrize("what", ["data", "deletes"])
    @first_always("at_the_swap", [True, False])
    def test_a_file_that_is_added_again_in_between_wins(
        self, new_plan: NewPlan, format_version: int, what: str, at_the_swap: bool
    ) -> None:
        """New deletes would hit it, a removal would take it; also right before the catalog swaps."""
        plan = new_plan(format_version)
        again = plan.first_again() if what == "data" else plan.deletes_again()
        with overtaking(plan) if at_the_swap else nullcontext():
            plan.table.commit(again)
        if at_the_swap:
            assert plan.table.snapshot_id == plan.delta.starting_snapshot_id
        with pytest.raises(CommitConflictError, match=f"{again.path} was added again"):
            commit_row_delta(plan.java_table, plan.delta)
        head = plan.table.java.currentSnapshot()
        assert (head.parentId(), head.sequenceNumber()) == (plan.delta.starting_snapshot_id, 4)
        assert find_commits(plan.java_table, "main", "job-1") == []

    def test_a_vector_of_the_same_data_file_in_between_wins(self, new_plan: NewPlan) -> None:
        plan = new_plan()
        plan.spark.sql(f"DELETE FROM {plan.table.identifier} WHERE id = 3")
        with plan.changes_nothing(CommitConflictError, "concurrently added DV"):
            commit_row_delta(plan.java_table, plan.delta)

    def test_a_merge_that_replaced_the_same_position_deletes_wins(self, new_plan: NewPlan) -> None:
        plan = new_plan(2)
        plan.spark.sql(f"DELETE FROM {plan.table.identifier} WHERE id = 3")
        merged = Plan(plan.spark, plan.catalog, plan.table, "main")
        assert any(file.referenced_data_file for file in merged.delta.removed)
        plan.spark.sql(f"DELETE FROM {plan.table.identifier} WHERE id = 4")
        with merged.changes_nothing(CommitConflictError, "Missing required files to delete"):
            commit_row_delta(merged.java_table, merged.delta)

    def test_position_deletes_of_others_stay_beside_ours_in_v2(self, new_plan: NewPlan) -> None:
        plan = new_plan(2)
        plan.spark.sql(f"DELETE FROM {plan.table.identifier} WHERE id = 3")
        rows = plan.rows
        commit_row_delta(plan.java_table, plan.delta)
        assert plan.rows == rows
        assert len(rows) == 7

    def test_equality_deletes_that_are_gone_already_conflict(self, new_plan: NewPlan) -> None:
        plan = new_plan(2)
        commit_row_delta(plan.java_table, replace(plan.delta, added=(), job_id="another"))
        with plan.changes_nothing(CommitConflictError, "Missing required files to delete"):
            commit_row_delta(plan.java_table, plan.delta)

    def test_a_rollback_past_the_pinned_snapshot_conflicts(self, new_plan: NewPlan) -> None:
        plan = new_plan()
        parent = plan.table.java.currentSnapshot().parentId()
        plan.table.java.manageSnapshots().rollbackTo(parent).commit()
        with plan.changes_nothing(CommitConflictError, "is not an ancestor of"):
            commit_row_delta(plan.java_table, plan.delta)

    def test_expiry_of_the_pinned_snapshot_conflicts(self, new_plan: NewPlan) -> None:
        plan = new_plan()
        plan.table.append([{"id": 100}])
        plan.table.append([{"id": 101}])
        plan.table.java.expireSnapshots().expireSnapshotId(plan.delta.starting_snapshot_id).commit()
        with plan.changes_nothing(CommitConflictError, "is not an ancestor|Cannot determine history"):
            commit_row_delta(plan.java_table, plan.delta)

    def test_an_upgrade_to_vectors_in_between_conflicts(self, new_plan: NewPlan) -> None:
        plan = new_plan(2)
        plan.spark.sql(f"ALTER TABLE {plan.table.identifier} SET TBLPROPERTIES ('format-version' = '3')")
        with plan.changes_nothing(CommitConflictError, "Must use DVs"):
            commit_row_delta(plan.java_table, plan.delta)

    def test_a_dropped_branch_is_not_made_anew(self, new_plan: NewPlan) -> None:
        plan = new_plan(3, "audit")
        plan.table.java.manageSnapshots().removeBranch("audit").commit()
        with pytest.raises(CommitConflictError, match="branch audit no longer exists"):
            commit_row_delta(plan.java_table, plan.delta)
        assert "audit" not in plan.table.metadata.refs

    def test_a_branch_that_is_dropped_at_the_last_moment_is_not_made_anew(
        self, new_plan: NewPlan, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = new_plan(3, "audit")
        build = row_delta.java_row_delta

        def build_and_drop(*how: Any) -> JavaObject:
            operation = build(*how)
            plan.table.java.manageSnapshots().removeBranch("audit").commit()
            return operation

        monkeypatch.setattr(row_delta, "java_row_delta", build_and_drop)
        with pytest.raises(CommitConflictError, match="is not an ancestor"):
            commit_row_delta(plan.java_table, plan.delta)
        assert "audit" not in plan.table.metadata.refs


class TestOtherWriters:
    def test_appends_and_upserts_do_not_conflict(self, new_plan: NewPlan) -> None:
        plan = new_plan()
        plan.table.append([{"id": 100}])
        plan.table.upsert([{"id": 5}, {"id": 101}], key=["id"])
        rows = plan.rows
        committed = commit_row_delta(plan.java_table, plan.delta)
        assert plan.rows == rows
        assert committed.parent_snapshot_id != plan.delta.starting_snapshot_id
        assert len(equality_delete_files(plan.spark, plan.table.identifier)) == 1

    def test_a_storm_of_appends_delays_the_commit_only(self, new_plan: NewPlan) -> None:
        plan = new_plan(3, **{"commit.retry.num-retries": "100", "commit.retry.min-wait-ms": "1"})
        writer, stop = TableBuilder(plan.spark, plan.table.identifier), threading.Event()
        appended: list[int] = []

        def storm() -> None:
            while not stop.is_set():
                writer.append([{"id": 1_000 + len(appended)}])
                appended.append(1)

        thread = threading.Thread(target=storm)
        thread.start()
        try:
            while len(appended) < 3:
                stop.wait(0.05)
            commit_row_delta(plan.java_table, plan.delta)
        finally:
            stop.set()
            thread.join()
        assert len(plan.rows) == 8 + len(appended)

    def test_a_lost_race_is_tried_again_when_the_table_allows_no_retry(self, new_plan: NewPlan) -> None:
        plan = new_plan(3, **{"commit.retry.num-retries": "0"})
        with losing_races(plan, 2) as lost:
            commit_row_delta(plan.java_table, plan.delta)
            assert lost() == 2
        assert len(plan.rows) == 8

    def test_a_commit_that_loses_every_race_gives_up(
        self, new_plan: NewPlan, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = new_plan(3, **{"commit.retry.num-retries": "0"})
        monkeypatch.setattr(worker.table.commit, "_COMMIT_ROUNDS", 2)
        with losing_races(plan, 3) as lost:
            with plan.changes_nothing(CommitConflictError, "Failed to update table"):
                commit_row_delta(plan.java_table, plan.delta)
            assert lost() == 2

    def test_an_attempt_that_ended_since_it_lost_a_race_commits_nothing_and_leaves_nothing(
        self, new_plan: NewPlan, jobs: Jobs
    ) -> None:
        plan = new_plan(3, **{"commit.retry.num-retries": "0"})
        before = orphans(plan.table)  # of the plan, which is not committed
        for error in (StaleAttemptError("another has begun"), JobTimedOutError("it took too long")):
            with losing_races(plan, 1) as lost, plan.changes_nothing(type(error), str(error)):

                def confirm(lost: Callable[[], int] = lost, error: Exception = error) -> None:
                    if lost():
                        raise error

                jobs.reporter.before_commit = confirm
                try:
                    jobs.run("convert", job_id="job-1")
                finally:
                    assert lost() == 1
            assert orphans(plan.table) == before


@contextmanager
def losing_races(plan: Plan, times: int) -> Iterator[Callable[[], int]]:
    """So many swaps of the metadata find that another writer was faster; yields how many did so far."""
    name = plan.table.identifier.split(".")[-1]
    with closing(sqlite3.connect(plan.catalog.database)) as connection:

        def lost() -> int:
            return int(connection.execute(f"SELECT COUNT(*) FROM races_{name}").fetchone()[0])

        connection.executescript(
            f"""
            CREATE TABLE races_{name} (lost INTEGER);
            CREATE TRIGGER lose_{name} BEFORE UPDATE ON iceberg_tables
            WHEN OLD.table_name = '{name}' AND (SELECT COUNT(*) FROM races_{name}) < {times}
            BEGIN
                INSERT INTO races_{name} VALUES (1);
                SELECT RAISE(IGNORE);
            END;
            """
        )
        try:
            yield lost
        finally:
            connection.executescript(f"DROP TRIGGER lose_{name}; DROP TABLE races_{name}")


@contextmanager
def overtaking(plan: Plan) -> Iterator[None]:
    """What is committed in here is undone, and done again by the next swap of the metadata in its place."""
    name = plan.table.identifier.split(".")[-1]
    before = plan.table.metadata_location
    yield
    after = plan.table.metadata_location
    swap = "UPDATE iceberg_tables SET metadata_location = '{}' WHERE table_name = '{}'"
    with closing(sqlite3.connect(plan.catalog.database)) as connection:
        connection.executescript(
            f"""
            {swap.format(before, name)};
            CREATE TRIGGER overtake_{name} BEFORE UPDATE ON iceberg_tables
            WHEN OLD.table_name = '{name}' AND OLD.metadata_location = '{before}'
            BEGIN
                {swap.format(after, name)};
                SELECT RAISE(IGNORE);
            END;
            """
        )


@contextmanager
def failing_commits(plan: Plan, when: str, how: str) -> Iterator[None]:
    """The catalog's database reports an error as it swaps the metadata: BEFORE or AFTER it happened."""
    name = plan.table.identifier.split(".")[-1]
    with closing(sqlite3.connect(plan.catalog.database)) as connection:
        connection.execute(
            f"CREATE TRIGGER fail_{name} {when} UPDATE ON iceberg_tables WHEN OLD.table_name = '{name}' "
            f"BEGIN SELECT RAISE({how}, 'the disk is full'); END"
        )
        try:
            yield
        finally:
            connection.execute(f"DROP TRIGGER fail_{name}")


def test_an_error_while_the_catalog_swaps_leaves_the_state_unknown(new_plan: NewPlan) -> None:
    plan = new_plan()
    with (
        plan.changes_nothing(CommitStateUnknownError, "the disk is full"),
        failing_commits(plan, "BEFORE", "ABORT"),
    ):
        commit_row_delta(plan.java_table, plan.delta)
    assert all(Storage().read(file.path) for file in plan.delta.added)
    # What was not committed can be, once the catalog is well again.
    commit_row_delta(plan.java_table, plan.delta)
    assert len(plan.rows) == 8


def test_a_commit_whose_end_is_not_known_says_if_memory_was_short(
    new_plan: NewPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt commits less at a time then."""
    plan = new_plan()
    full = Mock(side_effect=MemoryError("of Java"))
    monkeypatch.setattr(worker.table.commit, "raise_lack_of_memory", full)
    with failing_commits(plan, "BEFORE", "ABORT"), pytest.raises(MemoryError, match="of Java"):
        commit_row_delta(plan.java_table, plan.delta)
    assert full.called


def test_a_commit_whose_answer_was_lost_is_found_in_the_history(new_plan: NewPlan) -> None:
    plan = new_plan()
    with failing_commits(plan, "AFTER", "FAIL"):
        committed = commit_row_delta(plan.java_table, plan.delta)
    assert committed.snapshot_id == plan.table.snapshot_id
    assert find_commits(plan.java_table, "main", "job-1") == [committed]
    assert len(plan.rows) == 8


def test_a_commit_that_happened_and_is_told_as_lost_keeps_its_manifests(new_plan: NewPlan) -> None:
    """As where a statement is repeated whose answer was lost: Iceberg would delete them."""
    plan = new_plan(3, **{"commit.retry.num-retries": "0"})
    rows, name = plan.rows, plan.table.identifier.split(".")[-1]
    with closing(sqlite3.connect(plan.catalog.database)) as connection:
        connection.executescript(
            f"""
            CREATE TRIGGER swap_{name} BEFORE UPDATE ON iceberg_tables WHEN OLD.table_name = '{name}'
            BEGIN
                UPDATE iceberg_tables SET metadata_location = NEW.metadata_location
                WHERE table_name = '{name}';
                SELECT RAISE(IGNORE);
            END;
            """
        )
        try:
            committed = commit_row_delta(plan.java_table, plan.delta)
        finally:
            connection.execute(f"DROP TRIGGER swap_{name}")
    assert committed.snapshot_id == plan.table.snapshot_id
    assert plan.rows == rows


def test_a_commit_that_was_rolled_back_before_it_was_seen_is_not_taken_for_a_failed_one(
    new_plan: NewPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its delete files are in a snapshot that anybody may still read, or go back to."""
    plan = new_plan()
    before = plan.table.snapshot_id
    build = row_delta.java_row_delta

    class RolledBack:
        def __init__(self, operation: Any) -> None:
            self._operation = operation

        def commit(self) -> None:
            self._operation.commit()
            plan.table.java.manageSnapshots().rollbackTo(before).commit()
            plan.table.java.manageSnapshots().rollbackTo(1)  # a conflict, as a repeated statement may end

    monkeypatch.setattr(row_delta, "java_row_delta", lambda *how: RolledBack(build(*how)))
    with pytest.raises(CommitStateUnknownError, match="branch main was moved away from it"):
        commit_row_delta(plan.java_table, plan.delta)
    head = plan.table.metadata.snapshots[-1].snapshot_id
    assert head != before
    assert len(visible_rows(plan.spark, plan.table.identifier, snapshot_id=head)) == 8


def commit_ahead(table: TableBuilder, seconds: int) -> None:
    """Makes the last commit one of a writer whose clock is so much ahead of ours; the others have expired."""
    file = local(table.metadata_location)
    metadata = json.loads(file.read_text())
    metadata["last-updated-ms"] += 1000 * seconds
    del metadata["snapshot-log"][:-1]
    metadata["snapshot-log"][-1]["timestamp-ms"] += 1000 * seconds
    metadata["snapshots"][-1]["timestamp-ms"] += 1000 * seconds
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's
    file.write_text(json.dumps(metadata))


class TestClocks:
    @V3_FIRST
    @pytest.mark.parametrize("branch", ["main", "audit"])
    def test_behind_the_last_commit_nothing_is_written(
        self, new_plan: NewPlan, format_version: int, branch: str
    ) -> None:
        plan = new_plan(format_version, branch)
        commit_ahead(plan.table, 600)
        with plan.changes_nothing(ClockBehindError, "last committed to at .* by the clock of its writer"):
            commit_row_delta(plan.java_table, plan.delta)

    def test_what_iceberg_tolerates_is_committed(self, new_plan: NewPlan) -> None:
        plan = new_plan()
        commit_ahead(plan.table, 50)
        commit_row_delta(plan.java_table, plan.delta)
        assert len(plan.rows) == 8

    def test_a_writer_that_is_ahead_may_commit_after_the_clock_was_looked_at(
        self, new_plan: NewPlan, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Iceberg's own words are understood."""
        plan = new_plan()
        commit_ahead(plan.table, 600)
        monkeypatch.setattr(worker.table.commit, "_check_clock", lambda _: None)
        with pytest.raises(ClockBehindError, match=r"sorted snapshot log|Invalid update timestamp"):
            commit_row_delta(plan.java_table, plan.delta)
        assert find_commits(plan.java_table, "main", "job-1") == []

    def test_a_conversion_ends_before_its_work_and_the_next_one_converts(
        self, new_plan: NewPlan, jobs: Jobs
    ) -> None:
        plan = new_plan()
        rows = plan.rows
        commit_ahead(plan.table, 600)
        with pytest.raises(JobError) as failed:
            jobs.run("convert")
        assert (failed.value.code, failed.value.retryable) == ("clock_behind", True)
        assert "reached the time of the last commit" in failed.value.remedy
        assert jobs.reporter.announced == {}
        commit_ahead(plan.table, -600)
        assert jobs.run("convert").result["rows_deleted"] == 2
        assert plan.rows == rows

    def test_ahead_of_the_service_nothing_is_written_that_would_shut_other_writers_out(
        self, new_plan: NewPlan, jobs: Jobs
    ) -> None:
        plan = new_plan()
        rows, head = plan.rows, plan.table.snapshot_id
        jobs.reporter.seconds_ahead = 7200
        with pytest.raises(JobError) as failed:
            jobs.run("convert")
        assert (failed.value.code, failed.value.retryable) == ("clock_ahead", True)
        assert "7,200 seconds ahead of the service's" in failed.value.detail
        assert (plan.table.snapshot_id, orphans(plan.table)) == (head, set())
        jobs.reporter.seconds_ahead = 50  # which Iceberg tolerates
        assert jobs.run("convert").result["rows_deleted"] == 2
        assert plan.rows == rows


def test_commits_are_found_behind_later_ones_and_not_after_a_rollback(new_plan: NewPlan) -> None:
    plan = new_plan()
    before = plan.table.snapshot_id
    committed = commit_row_delta(plan.java_table, plan.delta)
    plan.table.append([{"id": 100}])
    assert find_commits(plan.java_table, "main", "job-1") == [committed]
    plan.table.java.manageSnapshots().rollbackTo(before).commit()
    assert find_commits(plan.java_table, "main", "job-1") == []
    assert find_head(plan.java_table, "main") == before
    assert find_head(plan.java_table, "no such branch") is None


def test_a_delta_that_changes_nothing_is_refused(new_plan: NewPlan) -> None:
    plan = new_plan()
    with pytest.raises(ValueError, match="to add or to remove"):
        commit_row_delta(plan.java_table, replace(plan.delta, added=(), removed=()))


def test_a_malformed_delete_file_is_an_error_of_its_own(new_plan: NewPlan) -> None:
    plan = new_plan()
    wrong = replace(plan.delta.added[0], partition=PartitionKey(0, '["eu"]'))
    with plan.changes_nothing(CommitError, "Invalid partition data size") as _:
        commit_row_delta(plan.java_table, replace(plan.delta, added=[wrong]))
