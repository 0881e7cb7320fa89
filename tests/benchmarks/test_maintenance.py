"""What policies make of a fleet over days, as simulated: cheap to read, and few jobs for nothing."""

from datetime import timedelta

from service.records.jobs import JobKind
from tests.benchmarks.maintenance import fleet, minutely, spared


def test_a_table_that_is_written_each_minute_stays_cheap_to_read() -> None:
    found = minutely("worthwhile", timedelta(hours=8))
    assert found.read_ratio is not None
    assert found.read_ratio < 1.5
    assert found.lag_seconds_max < 600


def test_hardly_a_job_of_a_fleet_finds_nothing_to_do_and_a_rewriting_undoes_one_conversion_at_most() -> None:
    for name in ("reached", "worthwhile"):
        for outcome in fleet(name, 3, timedelta(days=2)):
            assert outcome.jobs[JobKind.CONVERT].jobs
            idle = [one.kind for one in outcome.ran if one.is_idle]
            assert idle in ([], [JobKind.REWRITE_DATA_FILES]), "the first: no job has counted before"
            assert len(spared(outcome)) <= outcome.jobs[JobKind.REWRITE_DATA_FILES].jobs
