"""Hundreds of histories: whatever happened to a table, its rows are those of the model."""

from typing import Any

import pytest

from tests.soak.drawing import draw
from tests.soak.history import run
from tests.soak.seeds import ERASURES, REWRITINGS, TABLES, WRITES, Kind, run_seed, shrink
from tests.soak.world import World
from tests.thorough import first_always, of_many

pytestmark = pytest.mark.integration
FEW, BATCH = 3, 20
SHRINKING_SECONDS = 30


def batches(seeds: int) -> list[range]:
    return [range(FEW), range(FEW, BATCH), *(range(at, at + BATCH) for at in range(BATCH, seeds, BATCH))]


@of_many("seeds", batches(200))
def test_a_conversion_shows_the_rows_of_the_model_in_any_history(world: World, seeds: range) -> None:
    run_seeds(world, seeds, TABLES)


@of_many("seeds", batches(400))
def test_writes_by_key_leave_the_rows_of_the_model_in_any_history(world: World, seeds: range) -> None:
    run_seeds(world, seeds, WRITES)


@of_many("seeds", batches(100))
def test_erasures_leave_the_rows_of_the_model_and_no_key_that_is_told_as_gone(
    world: World, seeds: range
) -> None:
    run_seeds(world, seeds, ERASURES)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seeds", batches(100))
def test_rewritings_of_files_leave_the_rows_of_the_model_in_any_history(world: World, seeds: range) -> None:
    run_seeds(world, seeds, REWRITINGS)


def run_seeds(world: Any, seeds: range, kind: Kind) -> None:
    failures = [failure for seed in seeds if (failure := run_seed(world, seed, kind))]
    if failures:
        shortest = shrink(world, failures[0], seconds=SHRINKING_SECONDS)
        pytest.fail("\n\n".join([*map(str, failures), shortest]), pytrace=False)


@first_always("seed", [2, 3])
def test_a_seed_always_makes_the_same_history(world: World, seed: int) -> None:
    assert run(world, *draw(seed)) == run(world, *draw(seed))
