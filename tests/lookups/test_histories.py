"""Thousands of histories: whatever happened to a table and its index, lookups find what the model has."""

import pytest

from tests.lookups.drawing import draw
from tests.lookups.history import run
from tests.lookups.seeds import run_seed
from tests.soak.drawing import Step
from tests.thorough import EXHAUSTIVE, first_always

pytestmark = pytest.mark.integration
BATCH = 25


@first_always("first", range(0, 10_000, BATCH), EXHAUSTIVE)
def test_lookups_find_the_rows_of_the_model_in_any_history(first: int) -> None:
    failures = [failure for seed in range(first, first + BATCH) if (failure := run_seed(seed))]
    if failures:
        others = ", ".join(str(failure.seed) for failure in failures[1:]) or "none"
        pytest.fail(f"{failures[0]}\nOther seeds that fail: {others}", pytrace=False)


def test_an_index_that_was_dropped_and_made_anew_is_not_taken_for_the_one_before() -> None:
    kinds = ["append", "index", "drop_index", "index", "append"]
    told = run(draw(0)[0], [Step(kind, 0) for kind in kinds])
    assert sum("1 files, generation 1" in line for line in told) == 2, told


def test_a_file_that_one_commit_added_twice_is_two_files() -> None:
    again = [Step("append_again", seed) for seed in range(8)]
    told = [run(draw(0)[0], [Step("append", 0), step]) for step in again]
    assert any(" 2 times " in lines[-1] for lines in told), told


def test_a_seed_always_makes_the_same_history() -> None:
    assert run(*draw(1)) == run(*draw(1))
