"""Two hundred histories: whatever happened to a table, its conversion shows the rows of the model."""

import pytest

from tests.soak.drawing import draw
from tests.soak.history import run
from tests.soak.seeds import run_seed, shrink
from tests.soak.world import World

pytestmark = pytest.mark.integration
BATCH = 20
# The rest by `make thorough`.
ALWAYS = range(0, 40, BATCH)
SHRINKING_SECONDS = 30


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=() if first in ALWAYS else (pytest.mark.thorough,))
        for first in range(0, 200, BATCH)
    ],
)
def test_a_conversion_shows_the_rows_of_the_model_in_any_history(world: World, first: int) -> None:
    failures = [failure for seed in range(first, first + BATCH) if (failure := run_seed(world, seed))]
    if failures:
        shortest = shrink(world, failures[0].seed, seconds=SHRINKING_SECONDS)
        pytest.fail("\n\n".join([*map(str, failures), shortest]), pytrace=False)


@pytest.mark.parametrize("seed", [2, 3])
def test_a_seed_always_makes_the_same_history(world: World, seed: int) -> None:
    assert run(world, *draw(seed)) == run(world, *draw(seed))
