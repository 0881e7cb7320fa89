"""Several writers of one table through the service, others in between, and workers that die at any point."""

import pytest

from tests.soak.test_histories import batches, run_seeds
from tests.thorough import quarter_thorough
from tests.writers.history import WRITERS
from tests.writers.served import Served

pytestmark = pytest.mark.integration


@quarter_thorough("seeds", batches(600))
def test_each_write_by_key_takes_effect_once_and_at_once(served: Served, seeds: range) -> None:
    run_seeds(served, seeds, WRITERS)
