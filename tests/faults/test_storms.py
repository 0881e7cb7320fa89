"""Writers and compactions that never pause: jobs succeed beside them, and hold nobody up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from threading import Event, Lock, Thread
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.exactness import Exactness
from tests.factories import TableBuilder, WrittenFile, equality_delete_files
from tests.faults.tables import assert_nothing_is_left, commits_by_job, orphans
from tests.jobs import Jobs
from worker.process.errors import JobError

pytestmark = pytest.mark.integration
log = logging.getLogger(__name__)  # shown by --log-cli-level=INFO

KEYS = 50  # that are upserted again and again
NEW = 1_000_000  # from here on, ids are appended once
ATTEMPTS = 5  # that a job has by the policy `standard`
UNHURRIED = {"commit.retry.num-retries": "20", "commit.retry.min-wait-ms": "10"}


@dataclass
class Writer:
    """Does one thing again and again in a thread, until it is stopped."""

    act: Callable[[int], object]
    tolerated: str = "nothing"  # what the message of an error may say
    most: float = inf  # after so many it waits
    pause_seconds: float = 0  # between two
    done: int = 0
    errors: list[Exception] = field(default_factory=list)
    lost: int = 0
    _stop: Event = field(default_factory=Event)

    def run(self) -> None:
        while not self._stop.is_set() and not self.errors:
            if self.done >= self.most:
                self._stop.wait(0.01)
                continue
            try:
                self.act(self.done)
            except Exception as error:
                if self.tolerated in str(error):
                    self.lost += 1
                else:
                    self.errors.append(error)
                continue
            self.done += 1
            if self.pause_seconds:
                self._stop.wait(self.pause_seconds)

    @contextmanager
    def running(self, begun: int = 3) -> Iterator[None]:
        thread = Thread(target=self.run)
        thread.start()
        try:
            self._wait_for(begun)
            yield
        finally:
            self._stop.set()
            thread.join()
        assert self.errors == []

    def wait_for_another(self) -> None:
        """Until one that begins now, or later, is done."""
        self._wait_for(self.done + 2)

    def _wait_for(self, done: int) -> None:
        while self.done < done and not self.errors:
            self._stop.wait(0.01)


class CountedTable(TableBuilder):
    """Keeps how often each commit was begun again. Such tables commit in turn, so others are the cause."""

    _turn = Lock()

    def __init__(self, spark: SparkSession, identifier: str) -> None:
        super().__init__(spark, identifier)
        self.retries: list[int] = []

    @cached_property
    def _reporter(self) -> Any:
        return self._iceberg.metrics.InMemoryMetricsReporter()

    @property
    def java(self) -> Any:
        table = super().java
        return self._iceberg.BaseTable(table.operations(), table.name(), self._reporter)

    def commit(self, *files: WrittenFile, branch: str = "main") -> None:
        with self._turn:
            super().commit(*files, branch=branch)
        self.retries.append(self._reporter.commitReport().commitMetrics().attempts().value() - 1)


def write_and_wait(*writers: Writer) -> None:
    """Each has one more commit begun and ended when this ends, and goes on for a while."""
    for writer in writers:
        writer.most = inf
        writer.wait_for_another()
        # Fewer than Iceberg tries again: how fast the machine commits decides nothing.
        writer.most = writer.done + 8


def upsert(table: TableBuilder, number: int) -> None:
    rows = [{"id": (number * 7 + i) % KEYS, "value": number} for i in range(5)]
    table.upsert(rows, key=["id"])


def append(table: TableBuilder, number: int) -> None:
    table.append([{"id": NEW + number, "value": number}])


def rows_after(appends: int, upserts: int) -> dict[tuple[int, int], int]:
    values = dict.fromkeys(range(KEYS), -1)
    for number in range(upserts):
        values |= {(number * 7 + i) % KEYS: number for i in range(5)}
    return dict.fromkeys([*values.items(), *((NEW + number, number) for number in range(appends))], 1)


@pytest.mark.thorough
@pytest.mark.parametrize("format_version", [3, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_conversion_beside_a_storm_of_writers_succeeds_at_once_and_costs_them_one_retry_at_most(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table("id bigint, value bigint", format_version=format_version, properties=UNHURRIED)
    table.append([{"id": i, "value": -1} for i in range(KEYS)], files=2)
    # Each writer has its own view of the table.
    upserted, appended = (CountedTable(exactly.spark, table.identifier) for _ in range(2))
    upserts = Writer(lambda number: upsert(upserted, number))
    appends = Writer(lambda number: append(appended, number))
    conversions = 4
    # Whatever a job holds when it is about to commit, nobody waits for it.
    exactly.jobs.reporter.before_commit = lambda: write_and_wait(upserts, appends)
    with upserts.running(), appends.running():
        for number in range(conversions):
            upserts.most = appends.most = inf
            upserts.wait_for_another()
            result = exactly.jobs.run("convert", job_id=f"storm-{number}").result
            assert result["commits"] == 1
            assert result["unconvertible"] == []
            assert not any("plans again" in sentence for sentence in result["decisions"])
            if number == 1:
                upserts.most = inf
                upserts.wait_for_another()  # its deletes name the key
                exactly.jobs.run("index")
    exactly.jobs.reporter.before_commit = lambda: None
    committed = upserts.done + appends.done
    retries = upserted.retries + appended.retries
    log.info("%d commits, %d of them tried again", committed, len(retries) - retries.count(0))
    assert len(retries) == committed
    assert len(table.metadata.snapshots) == 1 + committed + conversions
    # One commit of a conversion meets one of the writers, which commit in turn.
    assert sum(retries) <= conversions
    assert max(retries) <= 1

    expected = rows_after(appends.done, upserts.done)
    assert exactly.visible_rows(table) == expected
    exactly.jobs.run("convert")
    assert exactly.visible_rows(table) == expected
    assert set(commits_by_job(table).values()) == {1}
    assert_nothing_is_left(table)


def attempts_needed(jobs: Jobs, job_id: str, kind: str = "convert", **how: Any) -> int:
    """How many attempts a job takes; raises when it has no more."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            jobs.run(kind, job_id=job_id, attempt=attempt, **how)
        except JobError as error:
            if (error.code, error.retryable) != ("commit_conflict", True) or attempt == ATTEMPTS:
                raise
        else:
            break
    return attempt


@pytest.mark.exhaustive
@pytest.mark.parametrize("format_version", [2, 3])
def test_a_conversion_beside_endless_compactions_comes_through_and_so_do_these_after_it(
    exactly: Exactness, format_version: int
) -> None:
    """While conversions follow each other without a pause, compactions of the same files may lose."""
    table = exactly.table("id bigint, value bigint", format_version=format_version, properties=UNHURRIED)
    table.append([{"id": i, "value": -1} for i in range(KEYS)], files=2)
    compactor = Writer(
        lambda _: TableBuilder(exactly.spark, table.identifier).compact(), "for replaced data file"
    )
    upserts = conflicts = 0
    with compactor.running(1):
        for _ in range(4):
            for _ in range(3):
                upsert(table, upserts)
                upserts += 1
            conflicts += attempts_needed(exactly.jobs, f"compacted-{upserts}") - 1
        done = compactor.done
        # Nobody commits any more but the compactions: they come through, and so does a conversion.
        while compactor.done < done + 1:
            assert not compactor.errors
            assert compactor._stop.wait(0.05) is False
    log.info("%d compactions and %d lost; %d attempts lost", compactor.done, compactor.lost, conflicts)
    expected = rows_after(0, upserts)
    assert exactly.visible_rows(table) == expected
    if equality_delete_files(exactly.spark, table.identifier):
        exactly.jobs.run("convert")
    assert exactly.visible_rows(table) == expected
    assert orphans(table) == set()
    assert_nothing_is_left(table)


@dataclass(frozen=True)
class Maintenance:
    """A kind of job. version: of the format."""

    kind: str
    parameters: dict[str, Any]
    version: int = 3


MAINTENANCE = [
    Maintenance("rewrite_data_files", {"min_input_files": 2}),  # it converts first
    Maintenance("rewrite_position_delete_files", {"min_input_files": 2}, version=2),
    Maintenance("rewrite_manifests", {}),
    Maintenance("expire_snapshots", {"older_than_seconds": 0, "retain_last": 1}),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("job", MAINTENANCE, ids=lambda job: job.kind)
def test_maintenance_beside_a_storm_of_writers_ends_and_costs_them_one_retry_at_most(
    exactly: Exactness, job: Maintenance
) -> None:
    """Two writers, each of several commits a second, with as many retries as Iceberg makes by default."""
    by_partition = {"write.delete.granularity": "partition"}
    table = exactly.table("id bigint, value bigint", format_version=job.version, properties=by_partition)
    table.append([{"id": i, "value": -1} for i in range(KEYS)], files=2)
    upserted, appended, third = (CountedTable(exactly.spark, table.identifier) for _ in range(3))
    (old,) = third.append([{"id": -1 - i, "value": 0} for i in range(KEYS)])
    upserts = Writer(lambda number: upsert(upserted, number), pause_seconds=0.2)
    appends = Writer(lambda number: append(appended, number), pause_seconds=0.2)

    exactly.jobs.reporter.before_commit = lambda: write_and_wait(upserts, appends)
    rounds, deleted, attempts = 4, 0, 0
    with upserts.running(), appends.running():
        for number in range(rounds):
            for _ in range(2 * (job.kind == "rewrite_position_delete_files")):
                third.delete_positions({old: [deleted]})
                deleted += 1
            write_and_wait(upserts, appends)
            done = upserts.done, appends.done
            attempts += attempts_needed(exactly.jobs, f"storm-{number}", job.kind, parameters=job.parameters)
            assert upserts.done > done[0]
            assert appends.done > done[1]
    exactly.jobs.reporter.before_commit = lambda: None

    retries = upserted.retries + appended.retries + third.retries
    log.info(
        "%s: %d jobs took %d attempts beside %d commits, %d of them tried again, one %d times",
        *(job.kind, rounds, attempts, len(retries), len(retries) - retries.count(0), max(retries)),
    )
    assert attempts == rounds
    assert len(retries) == upserts.done + appends.done + deleted + 1
    # That of an expiry is no snapshot; a rewriting converts first, as often as a conversion would.
    assert sum(retries) <= max(sum(commits_by_job(table).values()), rounds)
    assert max(retries) <= 1
    expected = rows_after(appends.done, upserts.done)
    expected |= {(-1 - i, 0): 1 for i in range(deleted, KEYS)}
    assert exactly.visible_rows(table) == expected
    exactly.jobs.run("convert")
    assert exactly.visible_rows(table) == expected
    assert orphans(table) == set()
