"""Who finds the rows of equality deletes, each made to say which rows: a wrong answer is worth nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias
from unittest.mock import patch

from tests.benchmarks.datasets import Dataset, Pending
from tests.benchmarks.measure import timed
from worker.attempt.outcome import Outcome
from worker.lookup.cost import Costs, Source
from worker.lookup.index_lookup import Matches
from worker.lookup.positions import Positions
from worker.lookup.resolution import PendingDeletes

# Data file -> number of its rows that were found, and the sum of their positions.
Found: TypeAlias = Mapping[str, tuple[int, int]]


class Name(StrEnum):
    """A competitor, as the report calls it."""

    LOOKUP = "lookup"
    SCAN = "scan"
    SPARK_JOIN = "Spark join"
    CONVERT_V3 = "conversion V3"
    CONVERT_V2 = "conversion V2"
    REWRITE = "rewrite_data_files"


@dataclass
class Competitor:
    """One way to go about the same deletes, in rounds 1 to `rounds`, and in round 0, which doesn't count."""

    name: Name
    pending: Pending
    expected: Found
    rounds: int
    warms_up: bool = True

    def takes_part(self, number: int) -> bool:
        return number <= self.rounds and (number > 0 or self.warms_up)

    def run(self) -> float:
        """The seconds it took."""
        raise NotImplementedError

    def verify(self) -> None:
        """After the first run, what `run` could not check within the time."""

    def reset(self) -> None:
        """After every run: makes the deletes pending again."""


@dataclass
class Stage(Competitor):
    """The lookup or the scan of a conversion, whatever the planner would choose; nothing is written."""

    explanation: dict[str, Any] = field(default_factory=dict)

    def run(self) -> float:
        answer = look_up(self.pending) if self.name is Name.LOOKUP else scan(self.pending)
        assert answer.found == self.expected
        self.explanation = answer.explanation
        return answer.seconds


@dataclass
class SparkJoin(Competitor):
    """What one would write without an index."""

    def run(self) -> float:
        found, seconds = timed(lambda: spark_join(self.pending))
        assert found == self.expected
        return seconds


@dataclass
class Conversion(Competitor):
    """A whole job, from the source that the planner chooses to the commit."""

    explanation: dict[str, Any] = field(default_factory=dict)

    def run(self) -> float:
        outcome, seconds = timed(lambda: self.pending.dataset.jobs.run("convert"))
        result = outcome.result
        assert result["equality_delete_files_removed"] == 1
        assert result["rows_deleted"] == self.pending.count
        self.explanation = _key_set(outcome)
        return seconds

    def verify(self) -> None:
        assert _deleted_rows(self.pending.dataset) == self.expected

    def reset(self) -> None:
        self.pending.restore()


@dataclass
class Rewrite(Competitor):
    """What a user would do without Icestream: Iceberg's own procedure, which writes the rows that stay."""

    def run(self) -> float:
        dataset = self.pending.dataset
        _, name = dataset.table.identifier.split(".", 1)
        call = (
            f"CALL {dataset.catalog.name}.system.rewrite_data_files("
            f"table => '{name}', options => map('delete-file-threshold', '1'))"
        )
        rows, seconds = timed(lambda: dataset.spark.sql(call).collect())
        assert rows[0]["failed_data_files_count"] == 0
        return seconds

    def verify(self) -> None:
        dataset = self.pending.dataset
        rewritten = visible_rows(dataset)
        assert rewritten[0] == dataset.rows - self.pending.count
        self.pending.restore()
        assert rewritten == visible_rows(dataset)

    def reset(self) -> None:
        self.pending.restore()


@dataclass(frozen=True)
class Answer:
    """What one stage of a dry run found, and what the job says about it."""

    seconds: float
    found: Found
    explanation: dict[str, Any]


def look_up(pending: Pending) -> Answer:
    return _answer(pending, Source.INDEX)


def scan(pending: Pending) -> Answer:
    return _answer(pending, Source.SCAN)


def choosing(source: Source) -> AbstractContextManager[object]:
    """Whatever the planner would choose."""
    return patch.object(Costs, "index_is_cheaper", source is Source.INDEX)


def _answer(pending: Pending, source: Source) -> Answer:
    """A dry run with this source, whatever the planner would choose.

    Its one stage is clocked here, since a job reports no less than milliseconds.
    """
    find = PendingDeletes.find
    answers: list[tuple[float, Found]] = []

    def clocked_find(*arguments: Any) -> tuple[Positions, int, Matches]:
        result, seconds = timed(lambda: find(*arguments))
        answers.append((seconds, _found(result[0])))
        return result

    with choosing(source), patch.object(PendingDeletes, "find", clocked_find):
        outcome = pending.dataset.jobs.run("convert", dry_run=True)
    ((seconds, found),) = answers
    explanation = _key_set(outcome)
    assert explanation["source"] == source
    return Answer(seconds, found, explanation)


def _found(positions: Positions) -> Found:
    by_file = {file.path: positions.of(file) for file in positions.data_files()}
    return {path: (len(rows), int(rows.sum())) for path, rows in by_file.items()}


def spark_join(pending: Pending) -> Found:
    """Joins the data files with the delete keys and takes the positions."""
    spark, dataset = pending.dataset.spark, pending.dataset
    spark.read.parquet(pending.path).createOrReplaceTempView("delete_keys")
    # As loaded: the reader would otherwise apply the equality deletes itself, and find nothing.
    rows = f"SELECT *, _file, _pos FROM {dataset.table.identifier} VERSION AS OF {dataset.loaded_snapshot_id}"
    return _by_file(
        dataset,
        f"SELECT _file, count(*), sum(_pos) FROM ({rows}) JOIN delete_keys"
        f" USING ({', '.join(dataset.kind.key)}) GROUP BY _file",
    )


def _deleted_rows(dataset: Dataset) -> Found:
    """What the deletion vectors or position deletes of the table say."""
    return _by_file(
        dataset,
        f"SELECT file_path, count(*), sum(pos) FROM {dataset.table.identifier}.position_deletes GROUP BY 1",
    )


def _by_file(dataset: Dataset, query: str) -> Found:
    return {path: (count, total) for path, count, total in dataset.spark.sql(query).collect()}


def visible_rows(dataset: Dataset) -> tuple[int, int]:
    """Their number and the sum of their values, read by Spark."""
    (row,) = dataset.spark.sql(f"SELECT count(*), sum(value) FROM {dataset.table.identifier}").collect()
    return row[0], row[1]


def _key_set(outcome: Outcome) -> dict[str, Any]:
    (key_set,) = outcome.result["key_sets"]
    return dict(key_set)
