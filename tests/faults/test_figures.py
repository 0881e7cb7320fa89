"""The figures of docs/faults.md: which test is of which fault, and what is told of each."""

from types import SimpleNamespace
from typing import Any, Literal

import pytest

from service.jobs import service
from service.records.jobs import JobKind
from tests.faults.figures import (
    BEGIN,
    DOCUMENT,
    END,
    Collector,
    Figures,
    Row,
    fault_of,
    faults_by_test,
    parsed,
    places,
    section,
)
from tests.faults.recovery import FOLLOWED, INJECTED, LIVE_FILES, Tally
from tests.faults.subjects import MAINTENANCE
from tests.faults.test_killed_worker import POINTS


def test_each_fault_of_the_document_has_figures_of_its_tests() -> None:
    document = DOCUMENT.read_text()
    faults = faults_by_test(document)
    rows = [line for line in document.splitlines() if line.count(" | ") == 2 and "| `test_" in line]
    assert len(set(faults.values())) == len(rows) > 10
    assert [test for test, files in places(faults).items() if not files] == []
    node_id = "tests/faults/test_killed_worker.py::TestX::test_a_killed_worker[convert-a::b-after]"
    assert (fault_of(faults, node_id) or "").startswith("a worker dies")
    assert faults["test_a_full_disk_costs_an_attempt_and_no_row"] == "a disk is full"


def test_each_kind_of_maintenance_is_killed_at_its_own_points_and_its_dangers_are_listed() -> None:
    document = DOCUMENT.read_text()
    faults = faults_by_test(document)
    rows = {kind: fault_of(faults, f"x.py::test_a_killed_worker[{kind}-a-b]") for kind in POINTS}
    assert {kind for kind in POINTS if rows[kind] != rows["convert"]} == {*MAINTENANCE}
    assert len({rows[kind] for kind in MAINTENANCE}) == len(MAINTENANCE)
    assert {*MAINTENANCE} == {kind.value for kind in (*service.MAINTENANCE, JobKind.REMOVE_ORPHAN_FILES)}
    for kind in MAINTENANCE:
        dangers = document.partition(f"### `{kind}`\n")[2].partition("\n#")[0]
        assert f"`test_a_killed_worker[{kind}]`" in dangers


def test_what_is_skipped_is_not_counted_live_files_are_and_a_fault_is_told_of_at_its_end() -> None:
    def told(name: str, when: Literal["setup", "call", "teardown"], outcome: Any) -> None:
        properties = [(LIVE_FILES, 7), (INJECTED, 2)] if when == "teardown" else []
        collector.pytest_runtest_logreport(
            pytest.TestReport(name, ("", 0, ""), {}, outcome, None, when, user_properties=properties)
        )

    written: dict[str, Figures] = {}
    collector = Collector({"test_a": "a", "test_b": "b"}, "a", written.__setitem__)
    outcomes = ("passed", "skipped", "failed")
    items: list[Any] = [
        SimpleNamespace(nodeid=f"x.py::{test}[{outcome}]")
        for test in ("test_a", "test_b")
        for outcome in outcomes
    ]
    collector.pytest_collection_modifyitems(items)
    assert len(items) == len(outcomes), "those of `b` are not run"
    for outcome in outcomes:
        assert written == {}, "a fault is told of once all of its tests have ended"
        for test in ("test_a", "test_b"):
            told(f"x.py::{test}[{outcome}]", "setup", "passed")
            told(f"x.py::{test}[{outcome}]", "call", outcome)
            told(f"x.py::{test}[{outcome}]", "teardown", "passed")
    assert written == {"a": Figures(4, 1, 14)}


def test_an_attempt_is_followed_from_the_last_that_was_heard_of_it() -> None:
    tally = Tally()
    times = {"lease_expires_at": "2026-01-01T00:00:05Z", "ended_at": "2026-01-01T00:00:07Z"}
    attempts = [
        {"status": "lost", "started_at": "2026-01-01T00:00:00Z", **times},
        {"status": "failed", "started_at": "2026-01-01T00:00:08Z", **times},
        {"status": "succeeded", "started_at": "2026-01-01T00:00:08Z", **times},
    ]
    tally.add(attempts, 3)
    tally.add(attempts[-1:], 3)
    assert dict(tally.take()) == {INJECTED: 3, FOLLOWED: [(6.0, 3), (1.0, 3)]}
    assert dict(tally.take()) == {INJECTED: 1, FOLLOWED: []}


def test_rows_that_were_not_tried_again_keep_their_figures_and_their_day() -> None:
    tried = {
        "a": Figures(3, 1, 40, [(6.0, 3.0), (1.0, 2.0)]).row("2026-01-02"),
        "b": Figures(2).row("2026-01-02"),
    }
    text = section({"c": Row(1, 0, 0, 2.0, 30.0, 1.5, "2026-01-01"), **tried}, ["b", "a", "c", "d"])
    assert text.splitlines()[-6:-1] == [
        "|---|---:|---:|---:|---:|---:|---:|---|",
        "| b | 2 | 0 |  |  |  |  | 2026-01-02 |",
        "| a | 3 | 1 | 40 | 3.5 s | 6.0 s | 2.0 | 2026-01-02 |",
        "| c | 1 | 0 |  | 2.0 s | 30.0 s | 1.5 | 2026-01-01 |",
        "| all | 6 | 1 | 40 |  | 30.0 s | 2.0 |  |",
    ]
    assert section(parsed(text), ["b", "a", "c"]) == text


def test_the_figures_of_the_document_are_read_as_they_were_written() -> None:
    document = DOCUMENT.read_text()
    faults = list(dict.fromkeys(faults_by_test(document).values()))
    _, _, rest = document.partition(BEGIN)
    rows = parsed(rest)
    assert rows.keys() <= {*faults}
    assert section(rows, faults) == BEGIN + rest.partition(END)[0] + END
