"""Writers and compactions that never pause: conversions succeed beside them, and hold nobody up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from time import monotonic

import pytest

from tests.exactness import Exactness
from tests.factories import TableBuilder, equality_delete_files
from tests.faults.tables import assert_nothing_is_left, commits_by_job, orphans
from tests.jobs import Jobs
from worker.job import JobError

pytestmark = pytest.mark.integration
log = logging.getLogger(__name__)  # shown by --log-cli-level=INFO

KEYS = 50  # that are upserted again and again
NEW = 1_000_000  # from here on, ids are appended once
ATTEMPTS = 5  # that a job has by the policy `standard`
UNHURRIED = {"commit.retry.num-retries": "20", "commit.retry.min-wait-ms": "10"}


@dataclass
class Writer:
    """Does one thing again and again in a thread, until it is stopped, and keeps how long each took."""

    act: Callable[[int], object]
    tolerated: str = "nothing"  # what the message of an error may say
    starts: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    lost: int = 0
    _stop: Event = field(default_factory=Event)

    def run(self) -> None:
        while not self._stop.is_set() and not self.errors:
            start = monotonic()
            try:
                self.act(len(self.seconds))
            except Exception as error:
                if self.tolerated in str(error):
                    self.lost += 1
                else:
                    self.errors.append(error)
                continue
            self.starts.append(start)
            self.seconds.append(monotonic() - start)

    @contextmanager
    def running(self, begun: int = 3) -> Iterator[None]:
        thread = Thread(target=self.run)
        thread.start()
        try:
            while len(self.seconds) < begun and not self.errors:
                self._stop.wait(0.01)
            yield
        finally:
            self._stop.set()
            thread.join()
        assert self.errors == []

    def wait_for_another(self) -> None:
        """Until one that begins now, or later, is done."""
        begun = len(self.seconds) + 1
        while len(self.seconds) <= begun and not self.errors:
            self._stop.wait(0.01)

    def longest(self, since: float, until: float) -> float:
        """The longest commit of those that overlap a span of time."""
        spans = zip(self.starts, self.seconds, strict=True)
        return max((taken for start, taken in spans if start < until and start + taken > since), default=0.0)


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


@pytest.mark.parametrize("format_version", [2, 3])
def test_a_conversion_beside_a_storm_of_writers_succeeds_at_once_and_delays_none_of_them(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table("id bigint, value bigint", format_version=format_version, properties=UNHURRIED)
    table.append([{"id": i, "value": -1} for i in range(KEYS)], files=2)
    # Each writer has its own view of the table, and its own connection.
    upserts = Writer(lambda number: upsert(TableBuilder(exactly.spark, table.identifier), number))
    appends = Writer(lambda number: append(TableBuilder(exactly.spark, table.identifier), number))
    conversions = 4
    with upserts.running(), appends.running():
        begin = monotonic()
        for number in range(conversions):
            upserts.wait_for_another()
            result = exactly.jobs.run("convert", job_id=f"storm-{number}").result
            assert result["commits"] == 1
            assert result["unconvertible"] == []
            assert not any("plans again" in sentence for sentence in result["decisions"])
            if number == 1:
                upserts.wait_for_another()  # its deletes name the key
                exactly.jobs.run("index")
        end = monotonic()
    committed = len(upserts.seconds) + len(appends.seconds)
    longest, before = (
        max(one.longest(*span) for one in (upserts, appends)) for span in ((begin, end), (0, begin))
    )
    log.info(
        "%d commits, %.1f a second; the longest took %.2f s, %.1f times as long as before the conversions",
        committed,
        committed / (upserts.starts[-1] - upserts.starts[0]),
        longest,
        longest / before,
    )
    # No writer failed or began again, and each conversion is one commit: it costs a writer one retry at most.
    assert (upserts.errors, appends.errors, upserts.lost, appends.lost) == ([], [], 0, 0)
    assert len(table.metadata.snapshots) == 1 + committed + conversions

    expected = rows_after(len(appends.seconds), len(upserts.seconds))
    assert exactly.spark_rows(table) == expected
    exactly.jobs.run("convert")
    assert exactly.spark_rows(table) == expected
    assert set(commits_by_job(table).values()) == {1}
    assert_nothing_is_left(table)


def attempts_needed(jobs: Jobs, job_id: str) -> int:
    """How many attempts a conversion takes; raises when it has no more."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            jobs.run("convert", job_id=job_id, attempt=attempt)
        except JobError as error:
            if (error.code, error.retryable) != ("commit_conflict", True) or attempt == ATTEMPTS:
                raise
        else:
            break
    return attempt


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
        done = len(compactor.seconds)
        # Nobody commits any more but the compactions: they come through, and so does a conversion.
        while len(compactor.seconds) < done + 1:
            assert not compactor.errors
            assert compactor._stop.wait(0.05) is False
    log.info(
        "%d compactions and %d lost; %d attempts lost", len(compactor.seconds), compactor.lost, conflicts
    )
    expected = rows_after(0, upserts)
    assert exactly.spark_rows(table) == expected
    if equality_delete_files(exactly.spark, table.identifier):
        exactly.jobs.run("convert")
    assert exactly.spark_rows(table) == expected
    assert orphans(table) == set()
    assert_nothing_is_left(table)
