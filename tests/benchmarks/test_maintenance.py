"""What policies make of a fleet over days, as simulated: cheap to read, and few jobs for nothing."""

import re
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from service.catalogs.measure import Volume
from service.reader_cost import Shape
from service.records.jobs import JobKind
from service.scheduling import decisions
from service.scheduling.facts import Decision, LastJob, TableState
from service.scheduling.simulation import Outcome, Queued, Ran
from tests.benchmarks import maintenance
from tests.benchmarks.maintenance import (
    CAME,
    COUNTED,
    FAILED,
    LATE,
    POLICIES,
    SEED,
    Spared,
    minutely,
    of_fleet,
    policy,
    report_of,
    spared,
    table,
)
from tests.benchmarks.maintenance import figures as figures_of
from tests.benchmarks.page import Part, read_part
from tests.service.test_scheduler import IDLE, NOW, POLICY

REWRITE = JobKind.REWRITE_DATA_FILES


def known(found: list[Spared]) -> list[Spared]:
    return [one for one in found if one.unknown is None]


def test_a_table_that_is_written_each_minute_stays_cheap_to_read() -> None:
    found = minutely("worthwhile", timedelta(hours=8))
    assert found.read_ratio is not None
    assert found.read_ratio < 1.5
    assert max(read.ratio for read in found.reads) < 1.51, "nor is a moment dearer than while a job runs"
    assert found.lag_seconds_max < 600


def test_over_weeks_reads_stay_cheap_and_no_job_is_chosen_that_a_better_order_would_have_spared() -> None:
    found = re.findall(
        r"^\| (.+), for (?:two weeks|a week) \| `(\w+)` \| (.+) \|$", read_part(Part.MAINTENANCE), re.M
    )
    assert [(what, name) for what, name, _ in found] == [
        (what, name) for name in POLICIES for what in ("100", "a commit each minute")
    ]
    for what, name, told in found:
        jobs, of_better_order, *_, on_average, dearest, _, moment, _ = told.split(" | ")
        assert int(jobs.replace(",", "")) > 9_000, "of all tables and weeks"
        assert of_better_order == "0", name
        assert float(on_average) < 1.5, name
        if what != "100":
            assert float(dearest) < 1.5, name
            assert name == "reached" or float(moment) <= 1.5


@pytest.mark.parametrize("name", ["reached", "worthwhile"])
def test_no_job_is_chosen_that_a_better_order_would_have_spared(name: str) -> None:
    outcomes = [of_fleet(name, timedelta(days=2), SEED, number) for number in range(3)]
    for outcome in (*outcomes, minutely(name, timedelta(hours=3))):
        assert known(spared(outcome, policy(name))) == []
    assert any(outcome.jobs[REWRITE].jobs for outcome in outcomes)


def test_a_bad_order_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for anything: a rewriting comes right after a conversion."""

    def as_it_is(found: Decision, *_: object) -> Decision:
        return found

    monkeypatch.setattr(decisions, "with_conversion", as_it_is)
    monkeypatch.setattr(decisions, "may_be_left_to_rewriting", lambda *_: False)
    monkeypatch.setattr(decisions, "_comes_first", lambda *_: False)
    monkeypatch.setattr(decisions, "_comes_until", lambda *_: False)
    found = known(spared(of_fleet("worthwhile", timedelta(days=1), SEED, 35), policy("worthwhile")))
    assert (JobKind.CONVERT, REWRITE) in {(one.job.kind, one.by.kind) for one in found if one.by is not None}


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


DUE = replace(
    IDLE,
    has_index=True,
    small_data_files=10,
    last={REWRITE: LastJob(at(-3600)), JobKind.INDEX: LastJob(at(-60))},
)
NOT_DUE = replace(DUE, small_data_files=9)


def ran(kind: JobKind, began: float, state: TableState, *, is_idle: bool = False) -> Ran:
    """For five seconds; a rewriting, of most of the table."""
    queued = Queued(kind, at(began), at(began), state)
    return Ran(kind, at(began), at(began + 5), is_idle, share=0.6 * (kind is REWRITE), queued=queued)


@pytest.mark.parametrize(
    "kind",
    [
        JobKind.INDEX,
        JobKind.CONVERT,
        JobKind.COMPACT,
        JobKind.REWRITE_MANIFESTS,
        JobKind.REWRITE_POSITION_DELETE_FILES,
    ],
)
def test_a_job_right_before_a_rewriting_is_spared_by_a_better_order(kind: JobKind) -> None:
    def seen(state: TableState, then: TableState, began: float = 30) -> list[str | None]:
        outcome = Outcome(NOW, at(3600), ran=[ran(kind, 0, state), ran(REWRITE, began, then)])
        return [one.unknown for one in spared(outcome, POLICY)]

    assert seen(DUE, DUE) == [None]
    assert seen(DUE, DUE, began=65) == [], "a minute later"
    assert seen(NOT_DUE, DUE) == [COUNTED]
    came = replace(NOT_DUE, new_small_files=1, pending_delete_files=1, convertible=Volume(1, 1, 1))
    assert seen(NOT_DUE, came) == [CAME]
    rests = replace(NOT_DUE, small_data_files=10, last={**DUE.last, REWRITE: LastJob(at(-580))})
    assert seen(rests, rests) == [None], "its interval ends in twenty seconds"
    another = replace(NOT_DUE, active=frozenset({REWRITE}))
    assert seen(another, DUE) == [CAME], "the one that was queued was not this one"
    fails = replace(DUE, last={**DUE.last, REWRITE: LastJob(at(-3600), failed=1, failed_at=at(-10))})
    assert seen(fails, DUE) == [FAILED]
    if kind is JobKind.CONVERT:
        old = replace(DUE, oldest_convertible_at=at(-265))
        assert seen(old, DUE) == [LATE]
        takes_long = {**DUE.last, REWRITE: LastJob(at(-3600), seconds=250.0)}
        late = replace(DUE, oldest_convertible_at=at(-100), last=takes_long)
        assert seen(late, DUE) == [LATE], "by what rewritings usually take"
    if kind is JobKind.INDEX:
        waits = replace(DUE, waits_since={kind: at(-31)})
        assert seen(waits, waits) == [LATE]
        failed = replace(DUE, last={**DUE.last, kind: LastJob(at(-60), failed=1)})
        outcome = Outcome(NOW, at(3600), ran=[ran(kind, 0, failed), ran(JobKind.CONVERT, 30, failed)])
        assert spared(outcome, POLICY) == [], "a conversion would not have indexed"


def test_whether_a_rewriting_was_due_is_asked_of_the_table_that_the_conversion_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that takes the place of the conversion would have done no less."""
    shape = Shape(10, 10**6, 4, 40, vectors=3, data_bytes=10**7)
    fresh = Shape(1, 10**6, data_bytes=10**7)
    pending = replace(
        DUE, shape=shape, fresh=fresh, pending_delete_files=4, convertible=Volume(4, 40, 400), last={}
    )
    asked = []

    def is_due(_: JobKind, state: TableState, *__: object) -> bool:
        asked.append(state)
        return False

    monkeypatch.setattr(maintenance, "_is_due", is_due)
    outcome = Outcome(NOW, at(3600), ran=[ran(JobKind.CONVERT, 0, pending), ran(REWRITE, 30, pending)])
    spared(outcome, policy("worthwhile"))
    left = replace(shape, equality_delete_files=0, equality_deletes=0, vectors=10)
    assert asked
    assert {(state.shape, state.convertible.files) for state in asked[:-1]} == {(left, 0)}


def test_a_job_that_finds_nothing_to_do_is_spared_by_any_better_order() -> None:
    outcome = Outcome(NOW, at(3600), ran=[ran(JobKind.COMPACT, 0, DUE, is_idle=True)])
    assert [(one.by, one.unknown) for one in spared(outcome, POLICY)] == [(None, None)]


def test_tables_of_a_fleet_are_as_their_seed_says_and_differ() -> None:
    span = timedelta(days=2)
    found = [table(number, span) for number in range(40)]
    assert found == [table(number, span) for number in range(40)]
    assert found != [table(number, span, seed=SEED + 1) for number in range(40)]
    beginnings = [begin for begin, _, _ in found]
    assert {begin.format_version for begin in beginnings} == {2, 3}
    assert len({begin.shape.rows for begin in beginnings}) > 30
    assert any(begin.pending_since for begin in beginnings)
    commits = [arrival for _, arrivals, _ in found for arrival in arrivals]
    assert any(one.added.positions for one in commits)
    assert any(not one.added.delete_files for one in commits)
    assert any(not one.added.data_files for one in commits)
    assert len({begin.has_keys for begin in beginnings}) == 2


def test_the_report_tells_of_each_kind_what_it_wrote() -> None:
    name = "worthwhile"
    found = figures_of(minutely(name, timedelta(hours=3)), policy(name))
    told = report_of({("one", name): [found]})
    written = {kind: size / found.bytes_arrived for kind, size in found.bytes_written.items()}
    for kind, times in written.items():
        assert f"| `{kind.value}` | {found.jobs[kind]:,} | {times:.2f} |" in told
    assert f"| {1 + sum(written.values()):.1f} |" in told
