"""A check passes by what it has seen, and is left out only for what can't be tried."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from icestream.errors import ProblemError
from worker.acceptance import checks
from worker.acceptance.orders import Orders
from worker.acceptance.trial import NotTriedError


def trial() -> Any:
    """With ten orders of one column of a key."""
    made = MagicMock(key=("order_id",), location="s3://lake/t", format_version=3)
    made.orders = Orders()
    made.orders.put([made.orders.new_row(number) for number in range(10)])
    made.some.side_effect = lambda number, skip=0: sorted(made.orders.rows)[:number]
    return made


@pytest.mark.parametrize(("slug", "error"), [("not-set-up", NotTriedError), ("unavailable", ProblemError)])
def test_lookup_servers_that_are_set_up_and_do_not_answer_are_a_failure(
    slug: str, error: type[Exception]
) -> None:
    of = trial()
    of.service.post.side_effect = ProblemError(503, "no", "", {"type": f"https://icestream/lookups-{slug}"})
    with pytest.raises(error):
        checks.look_up(of)


def test_only_a_store_that_dates_its_files_itself_excuses_old_orphans() -> None:
    of = trial()
    of.storage.return_value.is_local.return_value = False
    with pytest.raises(NotTriedError) as left:
        checks.remove_old_orphans(of)
    assert left.value.by_design
