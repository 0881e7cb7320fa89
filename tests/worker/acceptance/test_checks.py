"""A check passes by what it has seen, and is left out only for what can't be tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from unittest.mock import MagicMock

import pytest

from icestream.errors import ProblemError
from worker.acceptance import checks
from worker.acceptance.orders import Orders
from worker.acceptance.report import Problem
from worker.acceptance.service import JobEndedError
from worker.acceptance.trial import NotPossibleError, NotTriedError, WrongError


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


@pytest.mark.parametrize(
    ("check", "files", "rows", "more"),
    [
        (checks.index, "files_indexed", "rows_indexed", {}),
        (checks.rebuild, "files_indexed", "rows_indexed", {}),
        (checks.verify, "files_covered", "rows_checked", {"differences": 0}),
        (checks.report_duplicates, "files_checked", "rows_checked", {"duplicate_keys": 0}),
    ],
)
def test_a_job_that_has_not_seen_all_of_the_head_is_not_believed(
    check: Callable[[Any], str], files: str, rows: str, more: dict[str, int]
) -> None:
    of = trial()
    of.summary.return_value = {"total-data-files": "4", "total-records": "40"}
    of.service.run.return_value = {"key_sets": [{files: 4, rows: 40, **more}]}
    assert "40 rows" in check(of)
    of.service.run.return_value = {"key_sets": [{files: 3, rows: 30, **more}]}
    with pytest.raises(WrongError, match=r"tells of \(3, 30\)"):
        check(of)


def test_a_table_is_not_dropped_if_its_job_began_before_the_pause() -> None:
    of = trial()
    of.service.now.return_value = datetime(2026, 1, 1, tzinfo=UTC)  # by the service's clock
    of.service.get.return_value = {"status": "running"}
    with pytest.raises(NotTriedError):
        checks.drop_under_a_job(of)
    assert of.service.post.call_args_list[0].args[1]["run_at"] == "2026-01-01T00:00:08+00:00"
    of.drop.assert_not_called()


@pytest.mark.parametrize("check", [one for one in checks.JOBS if " a conversion" in one.name])
def test_a_race_passes_only_if_the_job_was_at_work_when_somebody_committed(check: checks.Check) -> None:
    of = trial()
    of.delete_files.return_value = Counter({("POSITION_DELETES", "PUFFIN"): 1})
    of.equality_deletes.return_value, of.by_region = 0, False
    of.service.result_of.return_value = {"equality_delete_files_removed": 1, "rows_deleted": 3}
    of.service.is_running.side_effect = [False, False, True]
    assert check.run(of)
    assert of.service.request.call_count == 3
    of.service.is_running.side_effect = lambda _: False
    with pytest.raises(NotTriedError, match="of a race"):
        check.run(of)


def test_only_a_store_that_dates_its_files_itself_excuses_old_orphans() -> None:
    of = trial()
    of.storage.return_value.is_local.return_value = False
    with pytest.raises(NotPossibleError):
        checks.remove_old_orphans(of)


@pytest.mark.parametrize(("code", "error"), [("row_ids_not_kept", NotPossibleError), ("x", JobEndedError)])
def test_only_an_iceberg_that_forgets_row_ids_excuses_manifests_that_stay(
    code: str, error: type[Exception]
) -> None:
    of = trial()
    of.service.run.side_effect = JobEndedError(Problem(code, "Other ids", "Iceberg 1.11 forgets", "Wait"))
    with pytest.raises(error, match=r"Iceberg 1\.11 forgets"):
        checks.rewrite_manifests(of)
