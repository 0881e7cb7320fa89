"""Several writers of one table through the service, others in between, and workers that die at any point."""

import pytest

from tests.soak.test_histories import BATCH, run_seeds
from tests.thorough import of_many
from tests.writers.history import WRITERS
from tests.writers.served import Served

pytestmark = pytest.mark.integration


# One with every change: it takes as long as several of one writer.
BATCHES = [range(1), range(1, BATCH), *(range(at, at + BATCH) for at in range(BATCH, 600, BATCH))]


@of_many("seeds", BATCHES)
def test_each_write_by_key_takes_effect_once_and_at_once(served: Served, seeds: range) -> None:
    run_seeds(served, seeds, WRITERS)
