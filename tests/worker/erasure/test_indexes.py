"""Of indexes and reports on duplicates nothing is left that has an erased key."""

from __future__ import annotations

import pytest

from tests.factories import garble
from tests.jobs import Jobs
from tests.worker.erasure.tables import (
    ALL_GONE,
    Erase,
    NewTable,
    files_with,
    holders,
    numbers_of,
    place_of,
    row,
)

pytestmark = pytest.mark.integration


def test_a_damaged_index_costs_a_scan_and_is_made_anew(new_table: NewTable, jobs: Jobs, erase: Erase) -> None:
    table = new_table()
    table.append([row(n) for n in range(4)])
    jobs.run("index", key_sets=[["id"]])
    for run in jobs.index.glob("*.db/entries_*/**/*.parquet"):
        garble(run)
    assert erase(1)["counts"] == ALL_GONE
    assert numbers_of(table) == [0, 2, 3]
    assert files_with([1], place_of(table), jobs.index) == []
    assert jobs.run("verify").result["key_sets"]


def test_indexes_of_other_branches_and_reports_are_thought_of(
    new_table: NewTable, jobs: Jobs, erase: Erase
) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    table.append([row(0), row(1)])
    table.java.manageSnapshots().createBranch("work", table.snapshot_id).commit()
    jobs.run("index", key_sets=[["id"]], branch="work")
    for branch in ("main", "work"):
        jobs.run("report_duplicates", key_sets=[["id"]], branch=branch)
    table.spark.sql(f"DELETE FROM {table.identifier} WHERE value = 0")
    assert holders(erase(0))[0] == ("branch", "work", [0])
    table.java.manageSnapshots().replaceBranch("work", table.snapshot_id).commit()

    report = erase(7, 0)

    assert [(one["holder"], one["keys"]) for one in report["held"]] == [("index", [0]), ("index", [1])]
    assert report["counts"] == {"gone": 0, "invisible": 0, "held": 1, "unknown": 1}
    jobs.run("rebuild", branch="work")
    assert erase(7, 0)["counts"] == {"gone": 1, "invisible": 0, "held": 1, "unknown": 0}
    jobs.run("report_duplicates", key_sets=[["id"]], branch="work")
    assert erase(0)["counts"] == ALL_GONE
    assert files_with([0], place_of(table), jobs.index) == []
    reports = list(jobs.index.glob("*.db/duplicates/*.parquet"))
    assert files_with([1], *jobs.index.glob("*.db/duplicates")), "the other branch keeps its report"
    for report_file in reports:
        garble(report_file)
    assert [(one["holder"], one["keys"]) for one in erase(0)["held"]] == [("index", [0])] * len(reports)


def test_of_a_branch_that_was_dropped_no_index_and_no_report_stays(
    new_table: NewTable, jobs: Jobs, erase: Erase
) -> None:
    table = new_table()
    table.append([row(0), row(1)])
    table.append([row(0)])
    table.java.manageSnapshots().createBranch("work", table.snapshot_id).commit()
    for kind in ("index", "report_duplicates"):
        for branch in ("main", "work"):
            jobs.run(kind, key_sets=[["id"]], branch=branch)
    table.java.manageSnapshots().removeBranch("work").commit()
    asked = jobs.reporter.asked_anew

    assert erase(0)["counts"] == ALL_GONE

    assert jobs.reporter.asked_anew == asked + 2
    assert files_with([0], place_of(table), jobs.index) == []
    assert len(list(jobs.index.glob("*.db"))) == 1
    assert jobs.run("verify").result["key_sets"], "that of the branch is whole"
