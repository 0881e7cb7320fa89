"""What policies make of a fleet over days, as simulated: cheap to read, and few jobs for nothing."""

from datetime import timedelta

from service.records.jobs import JobKind
from tests.benchmarks.maintenance import fleet, minutely, spared


def test_a_table_that_is_written_each_minute_stays_cheap_to_read() -> None:
    found = minutely("worthwhile", timedelta(hours=8))
    assert found.read_ratio is not None
    assert found.read_ratio < 1.5
    assert found.lag_seconds_max < 600


def test_no_job_finds_nothing_to_do_and_no_rewriting_undoes_a_conversion() -> None:
    for name in ("reached", "worthwhile"):
        for outcome in (*fleet(name, 3, timedelta(days=2)), minutely(name, timedelta(hours=3))):
            assert outcome.jobs[JobKind.CONVERT].jobs
            assert spared(outcome) == []
        assert outcome.jobs[JobKind.REWRITE_DATA_FILES].jobs
