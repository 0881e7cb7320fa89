"""Other writers act in the middle of a job: rows stay those that the writers made, and the deletes go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.exactness import Exactness
from tests.factories import TableBuilder, visible_rows
from tests.faults.tables import Named, assert_nothing_is_left, commits_by_job, local, orphans
from tests.jobs import Jobs, RecordingReporter
from tests.patience import wait_until
from tests.thorough import EXHAUSTIVE, THOROUGH, exhaustive_unless
from worker.attempt.outcome import Outcome
from worker.jobs import conversion
from worker.process.errors import JobError

pytestmark = pytest.mark.integration

# Where others act, each at the start of a stage: the table is pinned, before its index is opened and deletes
# are read; their rows are looked for, found, and written.
READ, FIND, DELETES, COMMIT = BOUNDARIES = ("read", "find", "deletes", "commit")
_STAGES = {"lookup": FIND, "scan": FIND, "read": READ, "deletes": DELETES}

Row = dict[str, Any]


class InterruptedReporter(RecordingReporter):
    """Lets somebody else act once, when the job comes to a boundary."""

    def __init__(self, boundary: str, act: Callable[[], object], *, always: bool = False) -> None:
        super().__init__()
        self._boundary, self._act, self._always = boundary, act, always
        self.acted = 0

    def progress(self, stage: str, done: int, total: int, unit: str, message: str | None = None) -> None:
        super().progress(stage, done, total, unit, message)
        if stage != COMMIT:  # that one comes when the lease is confirmed
            self._reached(_STAGES.get(stage, stage))

    def confirm_lease(self, *, anew: bool = False) -> None:
        self._reached(COMMIT)

    def _reached(self, boundary: str) -> None:
        if boundary == self._boundary and (self._always or not self.acted):
            self.acted += 1
            self._act()


@dataclass
class World:
    """A table, a plain model of its rows, and what other writers do to both."""

    table: TableBuilder
    jobs: Jobs
    tmp_path: Path
    rows: list[Row] = field(default_factory=list)
    at: dict[str, tuple[int, list[Row]]] = field(default_factory=dict)  # by name: snapshots and their rows

    @classmethod
    def create(
        cls, exactly: Exactness, tmp_path: Path, format_version: int, partitioned_by: Sequence[str] = ()
    ) -> World:
        """26 rows in three old files and a newer one; two equality delete files apply to each of the old."""
        table = exactly.table(
            "id int, region string, value bigint",
            format_version=format_version,
            partitioned_by=partitioned_by,
            properties={"write.delete.mode": "merge-on-read"},
        )
        world = cls(table, exactly.jobs, tmp_path)
        first, *_ = world.append(range(20), files=2)
        world.append(range(20, 30))
        world.remember("rows")
        table.delete_positions({first: [0]})
        world.rows = [row for row in world.rows if row["id"] != 0]
        world.remember("position deletes")
        world.delete_keys(3, 12)
        world.remember("first delete")
        upserted = [{"id": i, "region": "eu", "value": 500} for i in (5, 15, 25)]
        table.upsert(upserted, key=["id", "region"] if partitioned_by else ["id"])
        world.rows = [row for row in world.rows if row["id"] not in (5, 15, 25)] + upserted
        world.remember("upsert")
        return world

    # What the writers of the table do.

    def append(self, ids: Sequence[int], **how: Any) -> list[str]:
        rows = [{"id": i, "region": "eu", "value": i} for i in ids]
        self.rows += rows
        columns = self.columns
        return self.table.append([{name: row.get(name) for name in columns} for row in rows], **how)

    @property
    def columns(self) -> list[str]:
        return [field.name for field in self.table.metadata.schema().fields]

    def delete_keys(self, *ids: int) -> None:
        self.table.delete_keys([{"id": i, "region": "eu"} for i in ids], equality_columns=["id"])
        self.rows = [row for row in self.rows if row["id"] not in ids]

    def sql(self, statement: str) -> None:
        self.table.spark.sql(statement.format(t=self.table.identifier))

    def call(self, procedure: str, arguments: str) -> None:
        catalog = self.table.identifier.partition(".")[0]
        self.sql(f"CALL {catalog}.system.{procedure}(table => '{{t}}', {arguments})")

    def remember(self, name: str) -> None:
        snapshot_id = self.table.snapshot_id
        assert snapshot_id is not None
        self.at[name] = snapshot_id, deepcopy(self.rows)

    def rollback(self, name: str) -> None:
        snapshot_id, self.rows = self.at[name]
        self.call("rollback_to_snapshot", f"snapshot_id => {snapshot_id}")

    # What the job comes to.

    @property
    def expected(self) -> Counter[tuple[Any, ...]]:
        columns = self.columns
        return Counter(tuple(row.get(name) for name in columns) for row in self.rows)

    @property
    def visible(self) -> Counter[tuple[Any, ...]]:
        return visible_rows(self.table.spark, self.table.identifier)

    def interrupted(
        self, kind: str, boundary: str, act: Callable[[], object], **how: Any
    ) -> tuple[Outcome, InterruptedReporter]:
        before = self.jobs.reporter
        reporter = InterruptedReporter(boundary, act)
        reporter.next_address = before.next_address
        self.jobs.reporter = reporter
        try:
            outcome = self.jobs.run(kind, **how)
        finally:
            before.next_address = reporter.next_address
            self.jobs.reporter = before
        assert reporter.acted, f"the job never came to {boundary}"
        return outcome, reporter

    def assert_right(self) -> None:
        assert self.visible == self.expected
        assert max(commits_by_job(self.table).values(), default=0) <= 1

    def assert_converted(self) -> None:
        """After one more job at most, which nobody has to prepare."""
        self.assert_right()
        if Named.by(self.table).equality_deletes:
            assert self.jobs.run("convert").result["unconvertible"] == []
            self.assert_right()
            assert_nothing_is_left(self.table)
        assert orphans(self.table) == set()


# Each event does something to the table, and the same to the model.

Event = Callable[[World], object]


def compact_all(world: World) -> None:
    world.table.compact()


def compact_some(world: World) -> None:
    options = "map('min-input-files', '1', 'rewrite-all', 'true')"
    world.call("rewrite_data_files", f"where => 'id < 10', options => {options}")


def merge_row(world: World) -> None:
    source = "(SELECT 14 AS id) AS s ON {t}.id = s.id"
    world.sql(f"MERGE INTO {{t}} USING {source} WHEN MATCHED THEN UPDATE SET value = -14")


def row_is_merged(world: World) -> None:
    world.rows = [{**row, "value": -14} if row["id"] == 14 else row for row in world.rows]


def merge(mode: str) -> Event:
    def merge_into(world: World) -> None:
        world.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.merge.mode' = '{mode}')")
        merge_row(world)
        row_is_merged(world)

    return merge_into


def delete_from(world: World) -> None:
    world.sql("DELETE FROM {t} WHERE id = 6")
    world.rows = [row for row in world.rows if row["id"] != 6]


def rollback_to(name: str) -> Event:
    return lambda world: world.rollback(name)


def roll_back_and_write_again(world: World) -> None:
    world.rollback("position deletes")
    world.append(range(40, 45))
    world.delete_keys(8, 41)


def expire_pinned(world: World) -> None:
    pinned = world.table.snapshot_id
    world.append([100])
    world.call("expire_snapshots", f"snapshot_ids => array({pinned})")


def compact_and_expire_all(world: World) -> None:
    """What the plan was made of is not only replaced: it is gone."""
    world.table.compact()
    world.call("expire_snapshots", "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1")


def add_column(world: World) -> None:
    world.sql("ALTER TABLE {t} ADD COLUMN note string")


def rename_key(world: World) -> None:
    world.sql("ALTER TABLE {t} RENAME COLUMN id TO ident")
    for row in world.rows:
        row["ident"] = row.pop("id")


def drop_key(world: World) -> None:
    world.sql("ALTER TABLE {t} DROP COLUMN id")


def widen_key(world: World) -> None:
    world.sql("ALTER TABLE {t} ALTER COLUMN id TYPE bigint")
    world.append([2**40])


def evolve_partitions(world: World) -> None:
    world.table.java.updateSpec().addField("region").commit()
    world.append(range(60, 64))


def upgrade(world: World) -> None:
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')")


def delete_more(world: World) -> None:
    world.delete_keys(7, 17, 500)


def append_more(world: World) -> None:
    world.append([3, 12, 200])


def remove_orphans(world: World) -> None:
    """Of any age. Only before the job has written: what is not committed yet is an orphan to any tool."""
    data = local(world.table.metadata.location) / "data"
    orphan = data / "icestream-of-a-dead-attempt-deletes.parquet"
    orphan.write_bytes(b"")
    java = world.table.java
    actions: Any = world.table.spark.sparkContext._jvm.org.apache.iceberg.spark.actions.SparkActions  # type: ignore[union-attr]
    actions.get().deleteOrphanFiles(java).olderThan(2**62).execute()
    assert not orphan.exists()


def convert_elsewhere(world: World) -> None:
    """Another installation, with an index of its own."""
    other = Jobs(world.table.spark, world.jobs.catalog, world.table.identifier, world.tmp_path / "other")
    assert other.run("convert", job_id=f"other-{world.table.snapshot_id}").result["commits"] == 1


def tag_and_branch(world: World) -> None:
    head = world.table.snapshot_id
    world.table.java.manageSnapshots().createTag("released", head).createBranch("audit", head).commit()
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES ('commit.retry.num-retries' = '1')")


PLANS_AGAIN = "plans again"

# Event -> for V2 and V3: where it happens, and whether the table is indexed.
# What the job says; "": that it need not plan again; None: either is right.
MATRIX: Mapping[str, tuple[Event, str | None, Mapping[int, tuple[str, bool]]]] = {
    "compaction, read": (compact_all, PLANS_AGAIN, {2: (READ, True), 3: (READ, True)}),
    "compaction, find": (compact_all, PLANS_AGAIN, {2: (FIND, True)}),
    "compaction, deletes": (compact_all, PLANS_AGAIN, {3: (DELETES, False)}),
    "compaction, commit": (compact_all, PLANS_AGAIN, {2: (COMMIT, True), 3: (COMMIT, False)}),
    "partial compaction": (compact_some, PLANS_AGAIN, {2: (FIND, False), 3: (COMMIT, True)}),
    "copying MERGE": (merge("copy-on-write"), PLANS_AGAIN, {2: (COMMIT, True), 3: (READ, False)}),
    "merging MERGE": (merge("merge-on-read"), None, {2: (DELETES, False), 3: (COMMIT, True)}),
    "DELETE FROM": (delete_from, None, {2: (FIND, True), 3: (COMMIT, False)}),
    "rollback to before all deletes": (
        rollback_to("rows"),
        PLANS_AGAIN,
        {2: (COMMIT, False), 3: (FIND, True)},
    ),
    "rollback to before the equality deletes": (
        rollback_to("position deletes"),
        PLANS_AGAIN,
        {2: (DELETES, True)},
    ),
    "rollback to some of the deletes": (
        rollback_to("first delete"),
        PLANS_AGAIN,
        {3: (DELETES, True)},
    ),
    "rollback and other deletes": (
        roll_back_and_write_again,
        PLANS_AGAIN,
        {2: (COMMIT, True)},
    ),
    "expiry of the pinned snapshot": (expire_pinned, PLANS_AGAIN, {2: (READ, True), 3: (COMMIT, False)}),
    "compaction and expiry, read": (
        compact_and_expire_all,
        PLANS_AGAIN,
        {3: (READ, True)},
    ),
    "compaction and expiry, find": (
        compact_and_expire_all,
        PLANS_AGAIN,
        {2: (FIND, False)},
    ),
    "compaction and expiry, deletes": (
        compact_and_expire_all,
        PLANS_AGAIN,
        {3: (DELETES, False)},
    ),
    "new column": (add_column, "", {2: (FIND, False)}),
    "renamed key": (rename_key, "", {3: (READ, False)}),
    "dropped key": (drop_key, "", {2: (READ, True), 3: (COMMIT, False)}),
    "wider key": (widen_key, "", {3: (READ, True)}),
    "other partitions": (evolve_partitions, "", {2: (READ, True), 3: (COMMIT, False)}),
    "upgrade": (upgrade, PLANS_AGAIN, {2: (COMMIT, False)}),
    "early upgrade": (upgrade, PLANS_AGAIN, {2: (READ, True)}),
    "more deletes": (delete_more, "", {2: (COMMIT, True), 3: (READ, False)}),
    "more rows": (append_more, "", {2: (READ, False)}),
    "removal of orphans": (remove_orphans, "", {2: (DELETES, True)}),
    "another conversion": (convert_elsewhere, PLANS_AGAIN, {2: (DELETES, True), 3: (COMMIT, False)}),
    "tag and branch": (tag_and_branch, "", {3: (FIND, True)}),
}
# The rest by `make exhaustive`: each event happens once without it, and one at each boundary.
OFTEN = {
    "compaction, read",
    "compaction, find",
    "compaction, deletes",
    "rollback to before the equality deletes",
    "rollback to some of the deletes",
    "compaction and expiry, read",
    "compaction and expiry, deletes",
    "early upgrade",
    "partial compaction",
    "compaction and expiry, find",
    "rollback and other deletes",
}
# One of each kind is tried always.
ALWAYS = {
    "compaction, commit",
    "merging MERGE",
    "rollback to before all deletes",
    "expiry of the pinned snapshot",
    "dropped key",
    "upgrade",
}
assert ALWAYS.issubset(MATRIX.keys() - OFTEN)


def marks_of(name: str, is_of_turn: bool) -> tuple[pytest.MarkDecorator, ...]:
    if name in OFTEN or not is_of_turn:
        return (EXHAUSTIVE,)
    return () if name in ALWAYS else (THOROUGH,)


CELLS = [
    pytest.param(
        event,
        says,
        version,
        boundary,
        indexed,
        id=f"{name}-V{version}-{boundary}",
        marks=marks_of(name, version == [*of_versions][at % len(of_versions)]),
    )
    for at, (name, (event, says, of_versions)) in enumerate(MATRIX.items())
    for version, (boundary, indexed) in of_versions.items()
]


@pytest.mark.parametrize(("event", "says", "format_version", "boundary", "indexed"), CELLS)
def test_whatever_happens_during_a_conversion_the_rows_are_right_and_the_deletes_go(
    exactly: Exactness,
    tmp_path: Path,
    event: Event,
    says: str | None,
    format_version: int,
    boundary: str,
    indexed: bool,
) -> None:
    world = World.create(exactly, tmp_path, format_version)
    if indexed:
        world.jobs.run("index")
    outcome, reporter = world.interrupted("convert", boundary, lambda: event(world))
    assert outcome.result["unconvertible"] == []
    told = " ".join(reporter.decisions)
    assert says is None or says in told
    if says == "":
        assert PLANS_AGAIN not in told, "the plan still held"
    world.assert_converted()


def test_a_table_that_is_gone_fails_the_job_with_its_name(exactly: Exactness, tmp_path: Path) -> None:
    for boundary, purge in ((FIND, " PURGE"), (COMMIT, "")):
        world = World.create(exactly, tmp_path, 3)
        location = local(world.table.metadata.location)
        drop = f"DROP TABLE {{t}}{purge}"
        with pytest.raises(JobError) as failure:
            world.interrupted("convert", boundary, partial(world.sql, drop))
        assert (failure.value.code, failure.value.retryable) == ("table_not_found", False)
        assert not list(location.rglob("icestream-*"))


@pytest.mark.parametrize(
    ("format_version", "boundary", "indexed"),
    exhaustive_unless(
        lambda case: case == (3, COMMIT, True),
        [(2, READ, True), (3, DELETES, False), (2, COMMIT, False), (3, COMMIT, True)],
    ),
)
def test_another_table_of_the_same_name_is_not_taken_for_the_one_that_was_planned(
    exactly: Exactness, tmp_path: Path, format_version: int, boundary: str, indexed: bool
) -> None:
    world = World.create(exactly, tmp_path, format_version)
    if indexed:
        world.jobs.run("index")
    known = {path.name for path in exactly.jobs.index.glob("*.db")}
    anew: list[World] = []

    def drop_and_create() -> None:
        world.sql("DROP TABLE {t}")
        anew.append(World.create(exactly, tmp_path, format_version))
        anew[0].delete_keys(1, 2)

    outcome, reporter = world.interrupted("convert", boundary, drop_and_create)
    (other,) = anew
    assert outcome.result["unconvertible"] == []
    assert PLANS_AGAIN in " ".join(reporter.decisions)
    other.assert_converted()
    other.jobs.run("index", key_sets=[["id"]])
    assert other.jobs.run("verify").result["key_sets"][0]["differences"] == 0
    assert len({path.name for path in exactly.jobs.index.glob("*.db")} - known) == 1


def test_a_branch_that_is_dropped_fails_the_job_and_is_not_made_anew(
    exactly: Exactness, tmp_path: Path
) -> None:
    world = World.create(exactly, tmp_path, 3)
    snapshots = world.table.java.manageSnapshots
    snapshots().createBranch("audit", world.table.snapshot_id).commit()
    with pytest.raises(JobError) as failure:
        world.interrupted(
            "convert", COMMIT, lambda: snapshots().removeBranch("audit").commit(), branch="audit"
        )
    assert failure.value.code == "branch_not_found"
    assert "audit" not in world.table.metadata.refs
    world.assert_converted()


@pytest.mark.parametrize(
    ("format_version", "boundary"), exhaustive_unless(lambda case: case[0] == 2, [(2, COMMIT), (3, FIND)])
)
def test_deletes_of_a_partition_whose_column_is_dropped_meanwhile_stay(
    exactly: Exactness, tmp_path: Path, format_version: int, boundary: str
) -> None:
    world = World.create(exactly, tmp_path, format_version, partitioned_by=["region"])

    def drop_column() -> None:
        world.table.java.updateSpec().removeField("region").commit()
        world.sql("ALTER TABLE {t} DROP COLUMN region")

    pending = len(Named.by(world.table).equality_deletes)
    outcome, reporter = world.interrupted("convert", boundary, drop_column)
    assert {one["code"] for one in outcome.result["unconvertible"]} == {"lost_partition_type"}
    assert len(outcome.result["unconvertible"]) == pending
    assert PLANS_AGAIN in " ".join(reporter.decisions)
    assert orphans(world.table) == set()


@pytest.mark.parametrize("format_version", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_a_job_that_always_loses_says_so_and_leaves_nothing(
    exactly: Exactness, tmp_path: Path, format_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "PLANNING_ATTEMPTS", 2)
    world = World.create(exactly, tmp_path, format_version)
    victims = iter((1, 2, 4, 6, 7))

    def delete_one() -> None:
        # In the data file that has position deletes already: what the plan merged is replaced by then.
        victim = next(victims)
        world.sql(f"DELETE FROM {{t}} WHERE id = {victim}")
        world.rows = [row for row in world.rows if row["id"] != victim]

    reporter = InterruptedReporter(COMMIT, delete_one, always=True)
    world.jobs.reporter = reporter
    with pytest.raises(JobError) as failure:
        world.jobs.run("convert")
    assert (failure.value.code, failure.value.retryable) == ("commit_conflict", True)
    assert reporter.acted == conversion.PLANNING_ATTEMPTS
    assert sum(PLANS_AGAIN in one for one in reporter.decisions) == conversion.PLANNING_ATTEMPTS
    assert commits_by_job(world.table) == {}
    assert orphans(world.table) == set()
    world.jobs.reporter = RecordingReporter()
    world.assert_converted()


# Ours first: what others had begun before must fail, or be right.


@contextmanager
def busy(spark: SparkSession) -> Iterator[None]:
    """Every core of Spark is taken, so that a job of others begins, with the snapshot it saw, and waits."""
    context = spark.sparkContext
    cores = context.defaultParallelism

    def wait() -> None:
        context.setJobGroup("busy", "takes all cores", interruptOnCancel=True)
        sleeping = spark.range(0, cores, 1, cores).selectExpr(
            "reflect('java.lang.Thread', 'sleep', 60000L) AS s"
        )
        with suppress_cancellation():
            sleeping.collect()

    thread = Thread(target=wait)
    thread.start()
    wait_until(lambda: active_tasks(spark) == cores, "a task on each core")
    try:
        yield
    finally:
        context.cancelJobGroup("busy")
        thread.join()


@contextmanager
def suppress_cancellation() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if "cancelled" not in str(error):
            raise


def active_tasks(spark: SparkSession) -> int:
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def waiting_jobs(spark: SparkSession) -> int:
    return len(spark.sparkContext.statusTracker().getActiveJobsIds())


LATE: Mapping[str, tuple[str, Event, Event]] = {
    "compaction": ("", compact_all, lambda world: None),
    "copying MERGE": ("copy-on-write", merge_row, row_is_merged),
    "merging MERGE": ("merge-on-read", merge_row, row_is_merged),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("format_version", "late"),
    exhaustive_unless(
        {(2, "compaction")}.__contains__,
        [(version, late) for late in LATE for version in (2, 3)],
    ),
)
def test_what_began_before_our_commit_fails_or_is_right(
    exactly: Exactness, tmp_path: Path, late: str, format_version: int
) -> None:
    mode, act, succeeded = LATE[late]
    world = World.create(exactly, tmp_path, format_version)
    world.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.merge.mode' = '{mode or 'copy-on-write'}')")
    failures: list[str] = []

    def other() -> None:
        try:
            act(world)
        except Exception as error:
            failures.append(str(error))

    thread = Thread(target=other)
    with busy(exactly.spark):
        thread.start()
        wait_until(lambda: waiting_jobs(exactly.spark) > 1, "another job of Spark's to wait")
        assert world.jobs.run("convert").result["commits"] == 1
    thread.join()
    for failure in failures:
        assert "ValidationException" in failure or "found new" in failure or "concurrently added" in failure
    if not failures:
        succeeded(world)
    world.assert_converted()
    # The next try succeeds, and ours is not in its way.
    if failures:
        act(world)
        succeeded(world)
        world.assert_converted()


# The other kinds of jobs.


@pytest.mark.parametrize(
    ("kind", "boundary", "event"),
    exhaustive_unless(
        lambda case: case[:2] in (("index", "index"), ("compact", COMMIT)) or case[0] == "rebuild",
        [
            ("index", "index", compact_and_expire_all),
            ("index", COMMIT, roll_back_and_write_again),
            ("rebuild", COMMIT, rollback_to("rows")),
            ("compact", "compact", compact_and_expire_all),
            ("compact", COMMIT, roll_back_and_write_again),
            ("verify", "check_data_files", compact_and_expire_all),
            ("verify", "check_data_files", rollback_to("rows")),
        ],
    ),
)
def test_an_index_is_right_whatever_happens_while_it_is_worked_on(
    exactly: Exactness, tmp_path: Path, kind: str, boundary: str, event: Event
) -> None:
    world = World.create(exactly, tmp_path, 3)
    if kind != "index":
        world.jobs.run("index")
        world.append(range(30, 35))
        world.jobs.run("index")
    outcome, _ = world.interrupted(kind, boundary, lambda: event(world))
    if kind == "verify":
        assert not any(one["differences"] or one["rebuilt"] for one in outcome.result["key_sets"])
    verified = world.jobs.run("verify").result["key_sets"]
    assert not any(one["differences"] for one in verified)
    world.assert_converted()
    world.jobs.run("index", key_sets=[["id"]])
    world.delete_keys(1, 9)
    assert world.jobs.run("convert").result["key_sets"][0]["source"] == "index"
    world.assert_converted()


@pytest.mark.parametrize(
    ("kind", "boundary"),
    exhaustive_unless(
        lambda case: case[0] == "index",
        [("index", COMMIT), ("rebuild", "index"), ("compact", COMMIT), ("verify", "check_data_files")],
    ),
)
def test_an_index_of_a_table_that_is_dropped_meanwhile_is_not_used_for_its_successor(
    exactly: Exactness, tmp_path: Path, kind: str, boundary: str
) -> None:
    world = World.create(exactly, tmp_path, 2)
    if kind != "index":
        world.jobs.run("index")
        world.append(range(30, 35))
        world.jobs.run("index")
    anew: list[World] = []

    def drop_and_create() -> None:
        world.sql("DROP TABLE {t} PURGE")
        anew.append(World.create(exactly, tmp_path, 2))

    world.interrupted(kind, boundary, drop_and_create)
    (other,) = anew
    assert other.jobs.run("convert").result["key_sets"][0]["source"] == "scan"
    other.assert_converted()
