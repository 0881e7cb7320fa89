"""What a policy makes of commits over days: the scheduler's own decisions, on a model of a table."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from service.policies.built_in import BUILT_IN, MANUAL, STANDARD
from service.policies.effective import merged
from service.policies.models import EffectivePolicy
from service.policies.schedules import Window
from service.reader_cost import Shape
from service.records.jobs import JobKind
from service.scheduling.facts import LastJob
from service.scheduling.simulation import USUAL, Arrival, Beginning, Cost, Costs, JobCost, Outcome, simulate
from tests.service.test_scheduler import NOW
from tests.thorough import EXHAUSTIVE, THOROUGH
from worker.demo.story import POLICY_SETTINGS, STREAM_CHANGES, STREAM_PAUSE_SECONDS

REWRITE = JobKind.REWRITE_DATA_FILES
MEGABYTES = 1_000_000
TABLE = Beginning(
    NOW,
    Shape(4, 1_000_000, data_bytes=100 * MEGABYTES),
    NOW - timedelta(days=9),
    partitions=4,
    entries=1_000_000,
    sorted_runs=1,
)
UPSERT = Shape(4, 400, 4, 400, data_bytes=40_000, delete_bytes=4_000)
QUICK = Costs(
    {
        **USUAL,
        JobKind.CONVERT: JobCost(Cost(1.5, 0.003), Cost(0)),
        REWRITE: JobCost(Cost(1.5, 5e-8), Cost(0)),
    },
    wait_seconds=0.1,
)
"""As jobs of `icestream demo` take."""


def settings(built_in: str) -> dict[str, dict[str, object]]:
    return BUILT_IN[built_in][1].model_dump(exclude_none=True)


def policy(**sections: Mapping[str, object]) -> EffectivePolicy:
    """`standard` with other values."""
    return merged(sections, settings(STANDARD))


def stream(
    hold: EffectivePolicy,
    *,
    hours: float = 24,
    every: float = 600,
    beginning: Beginning = TABLE,
    costs: Costs | None = None,
    upsert: Shape = UPSERT,
) -> Outcome:
    """An upsert now and then, from the beginning on."""
    number = int(hours * 3600 / every)
    arrivals = [Arrival(NOW + timedelta(seconds=every * each), upsert) for each in range(number)]
    return simulate(beginning, arrivals, hold, NOW + timedelta(hours=hours), costs, most_steps=10**6)


def test_each_commit_is_indexed_at_once_and_converted_when_it_is_as_old_as_the_policy_lets_it_be() -> None:
    found = stream(policy(compact={"enabled": False}))
    assert {kind: totals.jobs for kind, totals in found.jobs.items()} == {
        JobKind.INDEX: 144,
        JobKind.CONVERT: 144,
    }
    longest = max(each.ended_at - each.began_at for each in found.ran if each.kind is JobKind.CONVERT)
    assert found.lag_seconds_max == pytest.approx(301 + longest.total_seconds(), abs=0.1)
    assert 0 < found.lag_seconds_median < 300
    assert found.until == NOW + timedelta(hours=24)
    assert found.bytes_arrived == 144 * 44_000


@pytest.mark.parametrize(("rows", "indexed_by_itself"), [(400, False), (3_000_000, True)])
def test_a_conversion_indexes_what_is_new_unless_that_is_very_much(
    rows: int, *, indexed_by_itself: bool
) -> None:
    slow = policy(index={"age_seconds": 600, "data_files": 10**6, "rows": 10**9, "bytes": 10**12})
    arrivals = [
        Arrival(NOW + timedelta(minutes=each), replace(UPSERT, rows=rows, data_bytes=rows * 100))
        for each in range(360)
    ]
    found = simulate(TABLE, arrivals, slow, NOW + timedelta(hours=6))
    assert found.jobs[JobKind.CONVERT].jobs > 30
    expected = range(10, 36) if indexed_by_itself else range(1, 2)
    assert found.jobs[JobKind.INDEX].jobs in expected


def test_a_policy_that_starts_nothing_lets_deletes_grow_old_and_reads_dear() -> None:
    found = stream(merged(settings(MANUAL), settings(STANDARD)))
    assert found.jobs == {}
    assert found.write_amplification == 1
    assert found.lag_seconds_max == 86_400
    assert found.lag_seconds_median == pytest.approx(43_200, rel=0.02)
    assert [one.seconds for one in found.reads] == sorted(one.seconds for one in found.reads)
    assert found.reads[-1].seconds > 2 * found.reads[-1].fresh_seconds


def test_jobs_begin_within_windows_alone() -> None:
    windows = [Window(start="02:00", end="03:00")]
    found = stream(policy(schedule={"windows": windows}), hours=48)
    assert {each.began_at.hour for each in found.ran} == {2}
    assert found.lag_seconds_max > 23 * 3600


def test_a_cron_expression_starts_what_has_something_to_do() -> None:
    never = {"small_data_files": 10**6, "deleted_data_files": 10**6}
    nightly = {"enabled": True, "cron": "0 3 * * *", "size_ratio": 10**9, **never}
    before = replace(TABLE, last={REWRITE: LastJob(NOW)})
    found = stream(policy(rewrite_data_files=nightly), hours=72, beginning=before)
    minutes = [(each.began_at - NOW) // timedelta(minutes=1) for each in found.ran if each.kind is REWRITE]
    assert minutes == [(24 * day + 3) * 60 for day in range(3)]
    assert found.jobs[REWRITE].bytes_written == pytest.approx(300 * MEGABYTES, rel=0.05)
    nightly["size_ratio"] = 1
    found = stream(policy(rewrite_data_files=nightly), hours=72, beginning=before)
    assert found.jobs[REWRITE].jobs == 3
    assert found.jobs[REWRITE].bytes_written < 100 * MEGABYTES, "large files stay"


@pytest.mark.parametrize(
    ("every", "hours", "fails_each"),
    [
        (5, 1, 0),
        pytest.param(5, 24, 0, marks=EXHAUSTIVE),
        *(pytest.param(60, 24, fails_each, marks=THOROUGH) for fails_each in (0, 10)),
    ],
)
def test_a_stream_that_is_rewritten_as_is_worthwhile_stays_cheap_to_read(
    every: float, hours: float, fails_each: int
) -> None:
    """As `icestream demo` fills its table; jobs take as long as they do there."""
    worthwhile = policy(
        convert={"when": "worthwhile"},
        rewrite_data_files={"enabled": True, "min_interval_seconds": 30, "min_input_files": 2},
        retries={"pause_seconds": 60},
    )
    rows = 3_000_000
    demo = replace(TABLE, shape=Shape(4, rows, data_bytes=20 * rows), entries=rows)
    failing = replace(QUICK, fails_each=fails_each)
    by_cost = stream(worthwhile, every=every, hours=hours, beginning=demo, costs=failing)
    by_number = stream(policy(), every=every, hours=hours, beginning=demo, costs=QUICK)
    assert by_cost.read_ratio is not None
    assert by_number.read_ratio is not None
    assert by_cost.read_ratio < 1.5 < 3 < by_number.read_ratio
    assert by_cost.reads[-1].seconds < 2 * by_cost.reads[-1].fresh_seconds
    assert by_cost.delete_files_written * 10 < by_number.delete_files_written
    assert by_number.delete_files_rewritten / by_number.delete_files_written > 0.9
    assert not [each for each in by_cost.ran if each.is_idle]


@pytest.mark.parametrize("hours", [0.5, pytest.param(24, marks=EXHAUSTIVE)])
def test_a_table_under_the_policy_of_the_demo_stays_healthy_for_as_long_as_its_stream_goes_on(
    hours: float,
) -> None:
    rows = 3_000_000
    demo = replace(TABLE, shape=Shape(4, rows, data_bytes=20 * rows), entries=rows)
    found = stream(
        policy(**POLICY_SETTINGS),
        every=STREAM_PAUSE_SECONDS,
        hours=hours,
        beginning=demo,
        costs=QUICK,
        upsert=Shape(
            4,
            STREAM_CHANGES,
            4,
            STREAM_CHANGES,
            data_bytes=20 * STREAM_CHANGES,
            delete_bytes=10 * STREAM_CHANGES,
        ),
    )
    assert found.until == NOW + timedelta(hours=hours)
    assert found.read_ratio is not None
    # With a commit each three seconds, something is always pending, which alone makes it 1.2.
    assert found.read_ratio < 1.7
    assert max(read.ratio for read in found.reads) < 2.5
    assert found.lag_seconds_max < 60
    assert found.sorted_runs_max <= 20
    assert not [each for each in found.ran if each.is_idle]


@pytest.mark.thorough
def test_what_is_written_anew_is_a_few_times_what_came_and_large_files_go_for_deleted_rows() -> None:
    """All are small, and rows are deleted in those that are too large beside the others."""
    rewrite = {"enabled": True, "min_interval_seconds": 600}
    large = replace(TABLE, shape=Shape(4, 3_000_000, data_bytes=300 * MEGABYTES), entries=3_000_000)
    arrivals = [
        Arrival(
            NOW + timedelta(minutes=each),
            replace(UPSERT, rows=1_200, equality_deletes=1_200, data_bytes=120_000),
        )
        for each in range(24 * 60)
    ]
    found, all_small = (
        simulate(
            large,
            arrivals,
            policy(convert={"when": "worthwhile"}, rewrite_data_files=each),
            NOW + timedelta(days=1),
            most_steps=10**6,
        )
        for each in (rewrite, {**rewrite, "size_ratio": 10**9})
    )
    amplified, before = found.write_amplification, all_small.write_amplification
    assert amplified is not None
    assert before is not None
    assert amplified < 20 < 80 < before
    assert found.read_ratio is not None
    assert found.read_ratio < 1.5
    shares = [each.share for each in found.ran if each.kind is REWRITE]
    assert sum(share > 0.9 for share in shares) in range(3, 12)
    assert sum(share < 0.1 for share in shares) > 0.8 * len(shares)


def test_a_table_is_rewritten_even_if_conversions_take_nearly_as_long_as_deletes_may_be_pending() -> None:
    hold = policy(
        convert={"age_seconds": 300},
        rewrite_data_files={"enabled": True, "small_data_files": 40, "min_interval_seconds": 600},
    )
    slow = Costs({**USUAL, JobKind.CONVERT: JobCost(Cost(270), Cost(0)), REWRITE: JobCost(Cost(60), Cost(0))})
    before = replace(TABLE, last={REWRITE: LastJob(TABLE.enrolled_at, seconds=60)})
    found = stream(hold, hours=6, every=30, beginning=before, costs=slow)
    assert found.jobs[REWRITE].jobs > 12


def test_a_conversion_leaves_new_files_to_the_index_job_that_follows_one_that_failed() -> None:
    failed_at = NOW - timedelta(seconds=150)  # so the next one starts 450 s from now
    last = {JobKind.INDEX: LastJob(failed_at, failed=1, failed_at=failed_at)}
    found = stream(policy(), hours=0.17, beginning=replace(TABLE, indexed_at=failed_at, last=last))
    assert [one.kind for one in found.ran] == [JobKind.CONVERT, JobKind.INDEX]


def test_an_index_job_after_a_conversion_that_has_indexed_finds_nothing_to_do() -> None:
    """As where a cron expression asks for it."""
    each_minute = policy(index={"cron": "* * * * *", "age_seconds": 100}, convert={"delete_files": 1})
    found = stream(each_minute, hours=2, every=59, costs=Costs(wait_seconds=40))
    assert {True, False} == {one.is_idle for one in found.ran if one.kind is JobKind.INDEX}


@pytest.mark.parametrize(("entries", "is_idle"), [(1_000, False), (10_000_000, True)])
def test_a_compaction_puts_few_entries_together_however_few_runs_there_are(
    entries: int, *, is_idle: bool
) -> None:
    beginning = replace(TABLE, entries=entries, sorted_runs=1, dead_ratio=0.2)
    found = simulate(beginning, [], policy(compact={"dead_ratio": 0.1}), NOW + timedelta(seconds=100))
    assert (found.ran[0].kind, found.ran[0].is_idle) == (JobKind.COMPACT, is_idle)


@pytest.mark.parametrize("has_keys", [True, False])
def test_small_files_are_counted_by_index_jobs_or_by_their_bytes(*, has_keys: bool) -> None:
    """Nothing is ever converted."""
    appended = replace(UPSERT, equality_delete_files=0, equality_deletes=0, delete_bytes=0)
    arrivals = [Arrival(NOW + timedelta(minutes=10 * each), appended) for each in range(144)]
    hold = policy(rewrite_data_files={"enabled": True, "small_data_files": 40, "min_interval_seconds": 60})
    beginning = TABLE if has_keys else replace(TABLE, has_keys=False, entries=0, sorted_runs=0)
    found = simulate(beginning, arrivals, hold, NOW + timedelta(hours=24))
    assert 12 <= found.jobs[REWRITE].jobs <= 16


def test_files_whose_sizes_no_writer_tells_are_small_ones() -> None:
    arrivals = [Arrival(NOW + timedelta(minutes=each), Shape(1, 10)) for each in range(60)]
    hold = policy(rewrite_data_files={"enabled": True, "small_data_files": 20, "min_interval_seconds": 60})
    untold = replace(TABLE, shape=Shape(4, 1_000_000))
    found = simulate(untold, arrivals, hold, NOW + timedelta(hours=2))
    assert found.jobs[REWRITE].jobs > 1


def test_snapshots_expire_that_are_old_enough() -> None:
    kept = {"enabled": True, "older_than_seconds": 3600, "age_seconds": 7200, "snapshots": 10**6}
    found = stream(policy(expire_snapshots=kept))
    at = [each.began_at for each in found.ran if each.kind is JobKind.EXPIRE_SNAPSHOTS]
    assert at[0] - NOW < timedelta(hours=2, minutes=1)
    # All older than an hour go, so the oldest one is as old again after another hour or a commit more.
    assert all(timedelta(hours=1) <= later - one < timedelta(minutes=72) for one, later in pairwise(at))


def test_what_somebody_else_takes_away_needs_no_job() -> None:
    arrivals = [
        Arrival(NOW + timedelta(minutes=1), UPSERT),
        Arrival(NOW + timedelta(minutes=2), Shape(0, 0, -4, -400, data_bytes=0, delete_bytes=-4_000)),
    ]
    found = simulate(TABLE, arrivals, policy(), NOW + timedelta(hours=1))
    assert JobKind.CONVERT not in found.jobs
    assert found.lag_seconds_max == 60


def test_what_was_pending_at_the_beginning_is_as_old_as_it_was() -> None:
    since = NOW - timedelta(seconds=200)
    begun = replace(TABLE, shape=replace(TABLE.shape, equality_delete_files=1, equality_deletes=9))
    found = simulate(replace(begun, pending_since=since), [], policy(), NOW + timedelta(hours=1))
    (conversion,) = [each for each in found.ran if each.kind is JobKind.CONVERT]
    assert conversion.began_at == NOW + timedelta(seconds=101)


def test_a_simulation_ends_after_so_many_steps_and_says_when() -> None:
    arrivals = [Arrival(NOW + timedelta(minutes=each), UPSERT) for each in range(600)]
    found = simulate(TABLE, arrivals, policy(), NOW + timedelta(hours=10), most_steps=100)
    assert NOW < found.until < NOW + timedelta(hours=2)
    assert all(each.at < found.until for each in found.reads)
