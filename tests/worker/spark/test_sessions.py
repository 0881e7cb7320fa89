"""What tasks on Spark open files by ends: each comes to its end with something that is good."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from tests.aws import Aws, aws, vended
from trust.rest_answers import SESSION_END
from worker.io.storage import Storage
from worker.spark.tasks import SessionTooShortError, TaskRunner, _InFull, _Late

pytestmark = pytest.mark.integration

SHORT, LONG = timedelta(seconds=2), timedelta(hours=1)


@pytest.fixture
def server() -> Iterator[Aws]:
    with aws() as server:
        server.files["lake/a"] = b"content"
        yield server


def renewing(server: Aws, *lifetimes: timedelta) -> Callable[[], dict[str, str]]:
    """What a catalog vends, for so long each time, and at last for an hour."""
    coming = iter(lifetimes)

    def renew() -> dict[str, str]:
        server.lifetime = next(coming, LONG)
        return {"s3.endpoint": server.url, "s3.region": "eu-central-1", **vended(server)}

    return renew


def opened(server: Aws, *lifetimes: timedelta) -> Storage:
    renew = renewing(server, *lifetimes)
    return Storage(renew(), renew)


def read(storage: Storage, *, waits: bool) -> str:
    """The key that it was read with. waits: until that is over, if it soon is."""
    end = int(storage.properties[SESSION_END]) / 1000
    if waits and end - time.time() < LONG.total_seconds() / 2:
        time.sleep(max(0, end - time.time()) + 0.1)
    storage.read("s3://lake/a")
    return storage.properties["s3.access-key-id"]


@dataclass(frozen=True, slots=True)
class Reading:
    storage: Storage
    number: int

    def run(self, _: object) -> tuple[int, str]:
        return self.number, read(self.storage, waits=self.number == 0)


@dataclass(frozen=True, slots=True)
class Yielding:
    """One value before a file is read, and one behind."""

    storage: Storage
    number: int

    def run(self, _: object) -> Iterator[tuple[int, str]]:
        yield self.number % 2, f"{self.number} before"
        read(self.storage, waits=self.number == 0)
        yield self.number % 2, f"{self.number} behind"


@dataclass(frozen=True, slots=True)
class Gathering:
    storage: Storage

    def run(self, values: Iterable[str]) -> list[str]:
        gathered = sorted(values)
        read(self.storage, waits=gathered[0].startswith("0"))
        return gathered


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.io.storage._RENEW_SECONDS", 0.0)


def test_a_task_whose_session_ends_runs_again_with_the_next_one(spark: SparkSession, server: Aws) -> None:
    storage = opened(server, SHORT)
    told: list[float] = []
    tasks = [Reading(storage, number) for number in range(6)]
    results = dict(TaskRunner(spark, -1).run(tasks, None, planned_rows=1, on_progress=told.append))
    assert sorted(results) == list(range(6))
    assert results[0] == server.given[-1] == "vended-2"
    assert told[-1] == max(told) == 6


@pytest.mark.exhaustive
def test_what_is_shuffled_is_complete_although_sessions_end(spark: SparkSession, server: Aws) -> None:
    tasks = [Yielding(storage, number) for storage in [opened(server, SHORT)] for number in range(4)]
    reducer = Gathering(opened(server, SHORT, SHORT))
    results = TaskRunner(spark, -1).shuffle(tasks, None, reducer, 3, on_progress=lambda *_: None)
    assert sorted(results) == [
        [f"{number} {when}" for number in numbers for when in ("before", "behind")]
        for numbers in ((0, 2), (1, 3))
    ]


def test_no_session_that_is_too_short_is_tried_for_ever(spark: SparkSession, server: Aws) -> None:
    again: list[int] = []
    tasks = [Reading(opened(server, *[timedelta(seconds=1)] * 9), 0)]
    with pytest.raises(SessionTooShortError) as caught:
        list(
            TaskRunner(spark, -1).run(
                tasks, None, planned_rows=1, on_progress=lambda _: None, on_again=again.append
            )
        )
    assert "400 Bad Request" in caught.value.detail
    assert sum(again) <= 1


def test_executors_that_come_late_or_have_clocks_ahead_are_not_late_for_ever(
    spark: SparkSession, server: Aws
) -> None:
    def renew() -> dict[str, str]:
        told = vended(server, told=timedelta(milliseconds=1))
        return {"s3.endpoint": server.url, "s3.region": "eu-central-1", **told}

    tasks = [Reading(storage, number) for storage in [Storage(renew(), renew)] for number in (1, 2)]
    results = TaskRunner(spark, -1).run(tasks, None, planned_rows=1, on_progress=lambda _: None)
    assert sorted(number for number, _ in results) == [1, 2]


def test_what_is_computed_again_too_late_is_not_left_out() -> None:
    in_full = _InFull(frozenset((1,)))
    assert list(in_full(0, [1, 2])) == [1, 2]
    assert list(in_full(1, [1, _Late(1, "over")])) == []
    with pytest.raises(OSError, match="has ended: over"):
        list(in_full(0, [1, _Late(0, "over")]))
