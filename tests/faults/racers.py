"""Processes that commit to one table of an index at once; see test_index_commit.py."""

import multiprocessing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.patience import PATIENCE_SECONDS
from worker.index.run_files import write_run
from worker.index.sorted_runs import IndexCommitConflictError
from worker.index.warehouse import IndexWarehouse
from worker.io.storage import Storage

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@dataclass(frozen=True, slots=True)
class Place:
    """Where an index lies; opens in any process."""

    location: str
    properties: dict[str, str]

    @property
    def storage(self) -> Storage:
        return Storage(self.properties)

    @property
    def warehouse(self) -> IndexWarehouse:
        return IndexWarehouse(self.location, self.storage)


def race(place: Place, racers: int, rounds: int, answers: Any) -> None:
    """Tell who won which turn.

    Runs in a process without threads, so that the racers, which import much, can be forked.
    """
    context = multiprocessing.get_context("fork")
    barrier, wins = context.Barrier(racers, timeout=PATIENCE_SECONDS), context.SimpleQueue()
    started = [context.Process(target=_race, args=(place, n, rounds, barrier, wins)) for n in range(racers)]
    for racer in started:
        racer.start()
    for racer in started:
        racer.join(PATIENCE_SECONDS)
        assert racer.exitcode == 0
    won = []
    while not wins.empty():
        won.append(wins.get())
    answers.put(sorted(won))


def _race(place: Place, number: int, rounds: int, barrier: Any, wins: Any) -> None:
    """Every racer commits one run on the snapshot that all of them saw."""
    table = place.warehouse.open("race", "runs")
    assert table is not None
    for turn in range(rounds):
        rows = pa.table({"id": [turn * 100 + number]}, schema=SCHEMA)
        runs = write_run(place.storage, table.location, rows, primary_key=["id"])
        barrier.wait()
        planned_on = table.live_files()
        barrier.wait()
        try:
            table.commit_files(planned_on, runs)
        except IndexCommitConflictError:
            continue
        wins.put((turn, number))
