"""What policies make of a table's state, decided without a database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from service.catalogs.measure import Past, Volume
from service.jobs.budgets import SpentBudget
from service.policies.models import (
    EffectiveBudgetPolicy,
    EffectiveCompactPolicy,
    EffectiveConvertPolicy,
    EffectiveExpireSnapshotsPolicy,
    EffectiveIndexPolicy,
    EffectivePolicy,
    EffectivePublishPolicy,
    EffectiveResourcesPolicy,
    EffectiveRetryPolicy,
    EffectiveRewriteDataFilesPolicy,
    EffectiveRewriteManifestsPolicy,
    EffectiveRewritePositionDeleteFilesPolicy,
    EffectiveSchedulePolicy,
    EffectiveVerifyPolicy,
)
from service.policies.schedules import Window
from service.reader_cost import Shape
from service.records.health import TableHealth
from service.records.jobs import JobKind
from service.scheduling.decisions import deadlines, decide
from service.scheduling.facts import Action, Decision, LastJob, StagedState, TableState
from service.scheduling.preview import _next_start, _once_rewritten
from service.scheduling.scheduler import _changes, due_since
from service.scheduling.state import _grown_files, _new_small_files

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = EffectivePolicy(
    index=EffectiveIndexPolicy(enabled=True, data_files=50, rows=5000, bytes=50_000, age_seconds=60, cron=""),
    convert=EffectiveConvertPolicy(
        enabled=True,
        delete_files=10,
        deletes=1000,
        bytes=10_000,
        age_seconds=300,
        when="reached",
        reads_per_day=1000,
        max_read_ratio=1.5,
        cron="",
        max_delete_files_per_commit=0,
        deletion_vector_files="one_per_data_file",
        readers=[],
    ),
    publish=EffectivePublishPolicy.model_validate(
        {"from": "ingest", "enabled": True, "rows": 1000, "age_seconds": 30, "cron": ""}
    ),
    expire_snapshots=EffectiveExpireSnapshotsPolicy(
        enabled=True,
        older_than_seconds=3600,
        retain_last=1,
        snapshots=100,
        age_seconds=7200,
        min_interval_seconds=600,
        cron="",
        windows=[],
        max_seconds_per_day=0,
    ),
    rewrite_data_files=EffectiveRewriteDataFilesPolicy(
        enabled=True,
        strategy="binpack",
        target_file_size_bytes=0,
        min_input_files=5,
        size_ratio=1,
        delete_ratio_threshold=0.3,
        max_bytes=10**9,
        small_data_files=10,
        deleted_data_files=2,
        min_interval_seconds=600,
        cron="",
        windows=[],
        max_seconds_per_day=0,
    ),
    rewrite_position_delete_files=EffectiveRewritePositionDeleteFilesPolicy(
        enabled=True,
        target_file_size_bytes=0,
        min_input_files=5,
        small_delete_files=10,
        min_interval_seconds=600,
        cron="",
        windows=[],
        max_seconds_per_day=0,
    ),
    rewrite_manifests=EffectiveRewriteManifestsPolicy(
        enabled=True, manifests=10, min_interval_seconds=600, cron="", windows=[], max_seconds_per_day=0
    ),
    compact=EffectiveCompactPolicy(
        enabled=True, sorted_runs=16, dead_ratio=0.5, dead_bytes=1000, min_interval_seconds=600, cron=""
    ),
    verify=EffectiveVerifyPolicy(
        enabled=True, data_files=500, rows=50_000, bytes=500_000, age_seconds=604_800, cron=""
    ),
    schedule=EffectiveSchedulePolicy(
        time_zone="UTC", windows=[], priority=0, idle_pause_seconds=120, max_idle_pause_seconds=300
    ),
    retries=EffectiveRetryPolicy(
        max_attempts=5,
        backoff_seconds=10,
        timeout_seconds=0,
        max_backoff_seconds=600,
        pause_seconds=600,
        max_pause_seconds=3600,
    ),
    budget=EffectiveBudgetPolicy(
        table_seconds_per_day=0, table_bytes_per_day=0, catalog_seconds_per_day=0, catalog_bytes_per_day=0
    ),
    resources=EffectiveResourcesPolicy(max_tasks=0, memory_fraction=1),
)
DAY, REWRITE = timedelta(days=1), JobKind.REWRITE_DATA_FILES
IDLE = TableState(
    paused=None,
    has_keys=True,
    new=Volume(),
    pending_delete_files=0,
    convertible=Volume(),
    oldest_convertible_at=None,
    staged=None,
    small_data_files=0,
    deleted_data_files=0,
    small_delete_files=0,
    small_manifests=0,
    past=Past(),
    sorted_runs=3,
    dead_ratio=0.1,
    dead_bytes=10,
    unverified=Volume(),
    has_index=True,
    enrolled_at=NOW - timedelta(days=30),
    active=frozenset(),
    held=frozenset(),
    later=frozenset(),
    spent=None,
    last={
        JobKind.INDEX: LastJob(NOW - timedelta(seconds=30)),
        JobKind.CONVERT: LastJob(NOW - timedelta(seconds=30)),
        JobKind.VERIFY: LastJob(NOW - timedelta(days=1)),
    },
)


def decision(
    state: TableState, kind: JobKind, policy: EffectivePolicy = POLICY, now: datetime = NOW
) -> Decision:
    (found,) = [each for each in decide(state, policy, now) if each.kind is kind]
    return found


def pending(files: int, *, rows: int = 10, size: int = 10, age_seconds: float = 1) -> TableState:
    return replace(
        IDLE,
        pending_delete_files=files,
        convertible=Volume(files, rows, size),
        oldest_convertible_at=NOW - timedelta(seconds=age_seconds),
    )


def test_an_idle_table_waits() -> None:
    assert {each.action for each in decide(IDLE, POLICY, NOW)} == {Action.WAIT}


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (pending(9), None),
        (pending(10), "delete-files"),
        (pending(1, rows=999), None),
        (pending(1, rows=1000), "deletes"),
        (pending(1, size=9_999), None),
        (pending(1, size=10_000), "bytes"),
        (pending(1, age_seconds=299), None),
        (pending(1, age_seconds=300), "age"),
    ],
)
def test_each_convert_trigger_fires_at_its_limit(state: TableState, code: str | None) -> None:
    found = decision(state, JobKind.CONVERT)
    assert (found.code if found.action is Action.TRIGGER else None) == code


@pytest.mark.parametrize(
    ("new", "seconds_since_last", "code"),
    [
        (Volume(1), 30, None),
        (Volume(1), 60, "age"),
        (Volume(49), 30, None),
        (Volume(50), 30, "data-files"),
        (Volume(1, 4_999), 30, None),
        (Volume(1, 5_000), 30, "rows"),
        (Volume(1, 1, 49_999), 30, None),
        (Volume(1, 1, 50_000), 30, "bytes"),
        (Volume(), 10_000, None),
    ],
)
def test_new_files_are_indexed_by_number_or_size_or_after_a_while(
    new: Volume, seconds_since_last: float, code: str | None
) -> None:
    last = {JobKind.INDEX: LastJob(NOW - timedelta(seconds=seconds_since_last))}
    found = decision(replace(IDLE, new=new, last=last), JobKind.INDEX)
    assert (found.code if found.action is Action.TRIGGER else None) == code


def test_the_first_data_file_is_indexed_at_once() -> None:
    assert decision(replace(IDLE, new=Volume(1), last={}), JobKind.INDEX).action is Action.TRIGGER


def test_a_paused_table_starts_nothing_and_says_so() -> None:
    state = replace(pending(99), paused="table db.t is paused", new=Volume(99))
    for found in decide(state, POLICY, NOW):
        assert (found.action, found.code) == (Action.SKIP, "paused")
        assert "table db.t is paused" in found.sentence


def test_a_queued_or_running_job_is_waited_for() -> None:
    state = replace(pending(99), active=frozenset({JobKind.CONVERT}))
    assert decision(state, JobKind.CONVERT).code == "active"


def test_deletes_that_cannot_be_converted_trigger_nothing() -> None:
    state = replace(IDLE, pending_delete_files=20)
    assert (decision(state, JobKind.CONVERT).action, decision(state, JobKind.CONVERT).code) == (
        Action.SKIP,
        "unconvertible",
    )


@pytest.mark.parametrize(
    ("sorted_runs", "dead_ratio", "dead_bytes", "code"),
    [
        (15, 0.49, 999, None),
        (16, 0.0, 0, "sorted-runs"),
        (1, 0.5, 0, "dead-entries"),
        (1, 0.1, 1000, "dead-bytes"),
    ],
)
def test_an_index_is_compacted_when_it_is_in_many_pieces_or_half_dead(
    sorted_runs: int, dead_ratio: float, dead_bytes: int, code: str | None
) -> None:
    state = replace(IDLE, sorted_runs=sorted_runs, dead_ratio=dead_ratio, dead_bytes=dead_bytes)
    found = decision(state, JobKind.COMPACT)
    assert (found.code if found.action is Action.TRIGGER else None) == code


@pytest.mark.parametrize(("sorted_runs", "code"), [(1, "cron"), (16, "sorted-runs")])
def test_compactions_keep_their_distance_whatever_asks_for_them(sorted_runs: int, code: str) -> None:
    policy = with_cron("compact", "*/5 * * * *")
    for seconds, expected in ((200, "min-interval"), (599, "min-interval"), (600, code)):
        last = {JobKind.COMPACT: LastJob(NOW - timedelta(seconds=seconds))}
        found = decision(replace(IDLE, sorted_runs=sorted_runs, last=last), JobKind.COMPACT, policy)
        assert found.code == expected
        assert (found.action is Action.TRIGGER) == (expected == code)
        if expected != code:
            assert found.sentence.endswith(
                f". The last such job ended only {seconds} s ago (policy: 600 s)."
            ), found.sentence
    assert decision(replace(IDLE, last=last), JobKind.COMPACT).code == "below-triggers"


def past(snapshots: int, hours: float) -> TableState:
    return replace(IDLE, past=Past(snapshots, 7, NOW - timedelta(hours=hours)))


@pytest.mark.parametrize(
    ("state", "code", "starts"),
    [
        (past(1_000, 0.9), "nothing-old", False),
        (past(99, 1.5), "below-triggers", False),
        (past(100, 1), "snapshots", True),
        (past(1, 2), "age", True),
        (replace(IDLE, past=Past(1_000)), "nothing-old", False),
        (replace(past(1, 2), last={JobKind.EXPIRE_SNAPSHOTS: LastJob(NOW)}), "min-interval", False),
    ],
)
def test_snapshots_expire_once_they_are_many_or_old_and_older_than_what_is_kept(
    state: TableState, code: str, starts: bool
) -> None:
    found = decision(state, JobKind.EXPIRE_SNAPSHOTS)
    assert (found.code, found.action is Action.TRIGGER) == (code, starts)


def test_that_another_does_the_same_is_told_whether_or_not_the_policy_does() -> None:
    state = replace(past(1, 2), done_elsewhere={JobKind.EXPIRE_SNAPSHOTS: NOW})
    off = POLICY.model_copy(
        update={"expire_snapshots": POLICY.expire_snapshots.model_copy(update={"enabled": False})}
    )
    told = decision(state, JobKind.EXPIRE_SNAPSHOTS, off).sentence
    assert told.endswith("Expiry is done by another, seen last at 2026-01-01 00:00:00 UTC.")
    found = decision(state, JobKind.EXPIRE_SNAPSHOTS)
    assert found.action is Action.TRIGGER
    assert "Expiry is done by another as well, seen last at" in found.sentence
    for days, is_told in ((89, True), (91, False)):  # as long as vectors share no files for it
        seen = replace(state, done_elsewhere={JobKind.EXPIRE_SNAPSHOTS: NOW - timedelta(days=days)})
        assert ("done by another" in decision(seen, JobKind.EXPIRE_SNAPSHOTS).sentence) is is_told


def test_maintenance_is_due_from_its_trigger_until_a_job_succeeds_or_nothing_is_wanted() -> None:
    kind, day = JobKind.EXPIRE_SNAPSHOTS, timedelta(days=1)

    def due(
        action: Action, code: str, before: datetime | None = None, last: LastJob | None = None
    ) -> datetime | None:
        state = replace(IDLE, last={kind: last} if last is not None else {})
        decided = Decision(kind, action, code, "")
        return due_since(decided, state, POLICY, before.isoformat() if before is not None else None, NOW)

    failed = LastJob(NOW - day, failed=1, failed_at=NOW - day)
    by_request = LastJob(NOW - day, succeeded_at=NOW - 4 * day)  # or under another policy
    done = LastJob(NOW - day, succeeded_at=NOW - day)
    for action, code in (
        (Action.TRIGGER, "age"),
        (Action.SKIP, "budget-spent"),
        (Action.BACKOFF, "failed-3"),
    ):
        assert due(action, code) == NOW
        assert due(action, code, NOW - 3 * day) == due(action, code, NOW - 3 * day, failed) == NOW - 3 * day
        assert due(action, code, NOW - 3 * day, by_request) == NOW - 3 * day
        assert due(action, code, NOW - 3 * day, done) == NOW, "one has succeeded since"
    for code in ("active", "min-interval"):
        assert due(Action.WAIT, code, NOW - 3 * day, failed) == NOW - 3 * day
        assert due(Action.WAIT, code) is due(Action.WAIT, code, NOW - 3 * day, done) is None
    for action, code in (
        (Action.WAIT, "below-triggers"),
        (Action.SKIP, "paused"),
        (Action.SKIP, "policy-off"),
        (Action.BACKOFF, "idle-2"),
    ):
        assert due(action, code, NOW - 3 * day) is None
    decided = Decision(JobKind.CONVERT, Action.TRIGGER, "age", "")
    assert due_since(decided, IDLE, POLICY, None, NOW) is None, "deletes that wait have a status of their own"


def test_a_window_of_its_own_takes_the_place_of_the_schedules() -> None:
    at_midnight = Window(start="23:00", end="01:00")
    never_now = Window(start="12:00", end="13:00")
    for schedule, own, code in (
        ([never_now], [], "outside-window"),
        ([never_now], [at_midnight], "age"),
        ([], [never_now], "outside-window"),
    ):
        policy = POLICY.model_copy(
            update={
                "schedule": POLICY.schedule.model_copy(update={"windows": schedule}),
                "expire_snapshots": POLICY.expire_snapshots.model_copy(update={"windows": own}),
            }
        )
        found = decision(past(1, 2), JobKind.EXPIRE_SNAPSHOTS, policy)
        assert found.code == code
        if own == [never_now]:
            assert NOW + timedelta(hours=12) in _changes(past(1, 2), policy, NOW, None)


@pytest.mark.parametrize(
    ("small", "since_seconds", "code"),
    [
        (1, 601, "nothing-small"),
        (9, 601, "below-triggers"),
        (10, 599, "min-interval"),
        (10, 600, "manifests"),
    ],
)
def test_manifests_are_written_anew_once_many_are_small(small: int, since_seconds: int, code: str) -> None:
    last = {JobKind.REWRITE_MANIFESTS: LastJob(NOW - timedelta(seconds=since_seconds))}
    found = decision(replace(IDLE, small_manifests=small, last=last), JobKind.REWRITE_MANIFESTS)
    assert (found.code, found.action is Action.TRIGGER) == (code, code == "manifests")


@pytest.mark.parametrize(
    ("small", "deleted", "since_seconds", "code"),
    [
        (0, 0, 601, "nothing-small"),
        (9, 1, 601, "below-triggers"),
        (10, 0, 599, "min-interval"),
        (10, 0, 600, "small-data-files"),
        (0, 2, 600, "deleted-data-files"),
    ],
)
def test_data_files_are_written_anew_once_many_are_small_or_have_many_deleted_rows(
    small: int, deleted: int, since_seconds: int, code: str
) -> None:
    last = {JobKind.REWRITE_DATA_FILES: LastJob(NOW - timedelta(seconds=since_seconds))}
    state = replace(IDLE, small_data_files=small, deleted_data_files=deleted, last=last)
    found = decision(state, JobKind.REWRITE_DATA_FILES)
    assert (found.code, found.action is Action.TRIGGER) == (code, code.endswith("-data-files"))


def codes(state: TableState, policy: EffectivePolicy = POLICY, now: datetime = NOW) -> tuple[str, str]:
    """Of a conversion and a rewriting of data files; neither may wait for the other in a circle."""
    kinds = (JobKind.CONVERT, JobKind.REWRITE_DATA_FILES)
    convert, rewrite = (decision(state, kind, policy, now) for kind in kinds)
    return convert.code, rewrite.code


def converted(seconds: float, *, age_seconds: float | None = None) -> TableState:
    """A rewriting of ten seconds is due, so long after a conversion; so old is what came since."""
    state = replace(IDLE if age_seconds is None else pending(1, age_seconds=age_seconds), small_data_files=10)
    at = NOW - timedelta(seconds=seconds)
    return replace(
        state,
        last={
            JobKind.CONVERT: LastJob(at, committed_at=at),
            JobKind.REWRITE_DATA_FILES: LastJob(NOW - timedelta(hours=1), seconds=10.0),
        },
    )


def test_a_rewriting_comes_in_place_of_a_conversion_since_it_converts_what_is_pending() -> None:
    state = replace(pending(10, age_seconds=200), small_data_files=7, new_small_files=3)
    assert codes(state) == ("rewriting", "small-data-files")
    told = decision(state, JobKind.CONVERT).sentence
    assert told.endswith("Data files are rewritten, which converts what is pending first.")
    told = decision(state, JobKind.REWRITE_DATA_FILES).sentence
    assert told.startswith("10 small data files, 3 of them since the last job (policy: 10)")
    assert codes(replace(state, small_data_files=0, new_small_files=10)) == ("rewriting", "small-data-files")
    fewer = replace(state, new_small_files=2)
    assert codes(fewer) == ("delete-files", "below-triggers")
    nothing_to_convert = replace(state, pending_delete_files=0, convertible=Volume())
    assert codes(nothing_to_convert) == ("nothing-pending", "below-triggers"), "it may be for nothing"


@pytest.mark.parametrize(
    ("reported", "came", "expected"),
    [
        ({"data_files": 10, "data_bytes": 100}, {"data_files": 14, "data_bytes": 199}, 4),
        ({"data_files": 10, "data_bytes": 100}, {"data_files": 14, "data_bytes": 399}, 2),
        ({"data_files": 10, "data_bytes": 100}, {"data_files": 14, "data_bytes": 500}, 0),
        ({"data_files": 10, "data_bytes": 0}, {"data_files": 14, "data_bytes": 0}, 4),
        ({"data_files": 10, "data_bytes": 100}, {"data_files": 4, "data_bytes": 99}, 0),
        ({}, {"data_files": 14, "data_bytes": 399}, 0),
        (None, {"data_files": 14, "data_bytes": 399}, 11),
    ],
)
def test_data_files_that_came_since_the_last_report_count_as_small_beyond_what_their_bytes_would_fill(
    reported: dict[str, int] | None, came: dict[str, int], expected: int
) -> None:
    """Reported: none before the first report, and nothing until the look after one."""
    before = {"reported": reported} if reported is not None else {}
    health = TableHealth(table_id="t", target_file_bytes=100, reader_shapes=before | {"now": came})
    assert _new_small_files(health) == expected


@pytest.mark.parametrize(
    ("partitions", "has_keys", "reported", "files", "expected"),
    [
        (None, False, None, 7, 9),
        (2, False, None, 7, 0),
        (2, True, None, 7, 9),
        (1, False, None, 7, 9),
        (1, False, None, 3, 0),
        (1, False, 4, 7, 5),
    ],
)
def test_new_files_that_nobody_counts_may_be_rewritten_once_each_partition_may_have_enough(
    partitions: int | None, reported: int | None, files: int, expected: int, *, has_keys: bool
) -> None:
    """Of those that no job has ever seen, one may be too large."""
    shapes = {"now": {"data_files": files, "vectors": 2, "data_bytes": 70}}
    if reported is not None:
        shapes["reported"] = {"data_files": reported, "vectors": 0, "data_bytes": 40}
    health = TableHealth(table_id="t", reader_shapes=shapes, partitions=partitions, has_keys=has_keys)
    assert _grown_files(health, POLICY) == expected


def test_small_files_of_a_table_that_is_not_indexed_count_before_a_job_has_counted_them() -> None:
    """No other job would."""
    state = replace(IDLE, new_small_files=10)
    assert decision(state, REWRITE).code == "nothing-small", "an index job counts them"
    without_keys = replace(state, has_keys=False)
    assert decision(without_keys, REWRITE).code == "small-data-files"
    assert decision(replace(without_keys, new_small_files=9), REWRITE).code == "below-triggers"
    unindexed = POLICY.model_copy(update={"index": POLICY.index.model_copy(update={"enabled": False})})
    assert decision(state, REWRITE, unindexed).code == "small-data-files"


def test_a_conversion_is_left_to_a_rewriting_only_if_that_ends_before_deletes_are_too_old() -> None:
    state = replace(pending(10, age_seconds=294), small_data_files=10)
    assert codes(state) == ("rewriting", "small-data-files")
    later = NOW + timedelta(seconds=1)
    assert codes(state, now=later) == ("delete-files", "with-conversion"), "the conversion comes first"
    long = replace(state, last={JobKind.REWRITE_DATA_FILES: LastJob(NOW - timedelta(hours=1), seconds=151.0)})
    assert codes(long) == ("delete-files", "small-data-files"), "it would be late each time"
    queued = replace(state, active=frozenset({JobKind.REWRITE_DATA_FILES}))
    running = replace(queued, running=queued.active)
    assert codes(queued, now=NOW + timedelta(seconds=6)) == ("rewriting", "active"), "it has its turn first"
    assert codes(replace(queued, later=queued.active), now=later)[0] == "delete-files"
    assert codes(running, now=NOW + timedelta(seconds=6)) == ("rewriting", "active")


def test_a_rewriting_that_is_due_after_a_conversion_comes_in_place_of_the_next_one() -> None:
    waits = converted(100)
    assert codes(waits) == ("nothing-pending", "with-conversion")
    told = decision(waits, JobKind.REWRITE_DATA_FILES).sentence
    assert told.endswith(
        "The last conversion ended only 100 s ago: this job takes the place of the next one, and starts 300 s"
        " after the last one if none is due by then."
    )
    ends = NOW + timedelta(seconds=200)
    assert ends in deadlines(waits, POLICY)
    assert codes(waits, now=ends) == ("nothing-pending", "small-data-files")
    came = converted(100, age_seconds=95)
    assert codes(came) == ("below-triggers", "with-conversion")
    soon = NOW + timedelta(seconds=165)  # of ten seconds, forty before the deletes are as old as they may be
    assert soon in deadlines(came, POLICY)
    assert codes(came, now=soon) == ("below-triggers", "small-data-files")
    assert codes(converted(301, age_seconds=289))[1] == "small-data-files"
    assert codes(converted(301, age_seconds=290))[1] == "with-conversion", "it would end too late"
    running = replace(came, active=frozenset({JobKind.CONVERT}))
    assert codes(running) == ("active", "with-conversion")
    assert codes(replace(running, later=running.active)) == ("active", "small-data-files")


@pytest.mark.parametrize("runs", [True, False])
def test_a_rewriting_waits_for_no_more_conversions_than_twice_as_long_as_deletes_may_be_pending(
    *,
    runs: bool,
) -> None:
    """As where each conversion leaves deletes that are nearly too old."""
    state = converted(10, age_seconds=290)
    state = replace(state, active=frozenset({JobKind.CONVERT} if runs else ()))
    since = NOW - timedelta(seconds=599)
    waits = replace(state, waits_since={JobKind.REWRITE_DATA_FILES: since})
    ends = NOW + timedelta(seconds=1)
    assert codes(waits)[1] == "with-conversion"
    assert ends in deadlines(waits, POLICY)
    assert codes(waits, now=ends)[1] == "small-data-files"


@pytest.mark.parametrize(("end", "code"), [("02:04", "small-data-files"), ("02:30", "with-conversion")])
@pytest.mark.parametrize("runs", [True, False])
def test_a_rewriting_waits_for_no_conversion_beyond_its_window(*, end: str, code: str, runs: bool) -> None:
    windows = [Window(start="02:00", end=end)]
    limits = POLICY.rewrite_data_files.model_copy(update={"windows": windows})
    policy = POLICY.model_copy(update={"rewrite_data_files": limits})
    night = timedelta(hours=2)
    last = {kind: replace(one, ended_at=one.ended_at + night) for kind, one in converted(0).last.items()}
    last[JobKind.CONVERT] = replace(last[JobKind.CONVERT], committed_at=NOW + night)
    state = replace(converted(0), last=last, active=frozenset({JobKind.CONVERT} if runs else ()))
    assert codes(state, policy, NOW + night)[1] == code
    assert codes(state, policy, NOW + night - timedelta(seconds=1))[1] == "outside-window"


@pytest.mark.parametrize(("convert", "failed"), [({"enabled": False}, 0), ({}, 1)])
def test_a_rewriting_waits_for_no_conversion_that_does_not_start_by_itself(
    convert: dict[str, object], failed: int
) -> None:
    fields = POLICY.convert.model_copy(update=convert)
    state = converted(100, age_seconds=95)
    last = replace(state.last[JobKind.CONVERT], failed=failed)
    state = replace(state, last={**state.last, JobKind.CONVERT: last})
    assert codes(state, POLICY.model_copy(update={"convert": fields}))[1] == "small-data-files"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (JobKind.COMPACT, {"sorted_runs": 16}),
        (JobKind.REWRITE_MANIFESTS, {"small_manifests": 10}),
        (JobKind.REWRITE_POSITION_DELETE_FILES, {"small_delete_files": 10}),
    ],
)
def test_what_a_rewriting_undoes_waits_for_one_that_comes_soon(kind: JobKind, fields: dict[str, int]) -> None:
    rewriting = JobKind.REWRITE_DATA_FILES

    def due(seconds: float, **more: object) -> TableState:
        """That long after the last rewriting, and with enough small files for the next one."""
        last = {rewriting: LastJob(NOW - timedelta(seconds=seconds))}
        return replace(IDLE, small_data_files=10, last=last, **fields, **more)  # type: ignore[arg-type]

    waits = decision(due(510), kind)
    assert (waits.action, waits.code) == (Action.WAIT, "with-rewriting")
    assert "waits for the rewriting of data files that comes first" in waits.sentence
    assert decision(due(600), kind).code == "with-rewriting"
    assert decision(due(509), kind).action is Action.TRIGGER, "later than in a minute and a half"
    assert decision(replace(due(540), small_data_files=9), kind).action is Action.TRIGGER, "by time alone"
    queued = replace(due(0), active=frozenset({rewriting}))
    assert decision(queued, kind).code == "with-rewriting"
    assert decision(replace(queued, later=queued.active), kind).action is Action.TRIGGER
    took = replace(due(470), last={**due(470).last, kind: LastJob(NOW - timedelta(days=1), seconds=40.0)})
    assert decision(took, kind).code == "with-rewriting", "after its end"
    often = POLICY.rewrite_data_files.model_copy(update={"min_interval_seconds": 60})
    policy = POLICY.model_copy(update={"rewrite_data_files": often})
    assert decision(due(600), kind, policy).action is Action.TRIGGER, "it would wait for ever"
    cron = getattr(POLICY, kind.value).model_copy(update={"cron": "* * * * *"})
    below = {name: number - 1 for name, number in fields.items()}
    asked = replace(due(600), has_index=True, **below)  # type: ignore[arg-type]
    asked = replace(asked, last={**asked.last, kind: LastJob(NOW - timedelta(days=1))})
    assert decision(asked, kind, POLICY.model_copy(update={kind.value: cron})).code == "cron"


@pytest.mark.parametrize(
    ("strategy", "has_sort_order", "code"),
    [
        ("sort", None, "small-data-files"),
        ("sort", True, "small-data-files"),
        ("sort", False, "sort-order-missing"),
        ("binpack", False, "small-data-files"),
    ],
)
def test_no_job_sorts_rows_of_a_table_that_has_no_sort_order(
    strategy: str, has_sort_order: bool | None, code: str
) -> None:
    limits = POLICY.rewrite_data_files.model_copy(update={"strategy": strategy})
    policy = POLICY.model_copy(update={"rewrite_data_files": limits})
    state = replace(IDLE, small_data_files=10, has_sort_order=has_sort_order)
    found = decision(state, JobKind.REWRITE_DATA_FILES, policy)
    assert (found.code, found.action) == (code, Action.SKIP if "missing" in code else Action.TRIGGER)
    few = replace(state, small_data_files=9)
    assert decision(few, JobKind.REWRITE_DATA_FILES, policy).code == "below-triggers"


@pytest.mark.parametrize(
    ("small", "since_seconds", "code"),
    [
        (0, 601, "nothing-small"),
        (9, 601, "below-triggers"),
        (10, 599, "min-interval"),
        (10, 600, "small-delete-files"),
    ],
)
def test_position_delete_files_are_written_anew_once_many_are_small(
    small: int, since_seconds: int, code: str
) -> None:
    kind = JobKind.REWRITE_POSITION_DELETE_FILES
    last = {kind: LastJob(NOW - timedelta(seconds=since_seconds))}
    found = decision(replace(IDLE, small_delete_files=small, last=last), kind)
    assert (found.code, found.action is Action.TRIGGER) == (code, code == "small-delete-files")


def pauses(*last: LastJob) -> list[int]:
    """Seconds until the scheduler starts a conversion again after each of these."""
    found = []
    for each in last:
        state = replace(pending(99), last={JobKind.CONVERT: each})
        seconds = 0
        while decision(state, JobKind.CONVERT, now=NOW + timedelta(seconds=seconds)).action is Action.BACKOFF:
            seconds += 60
        found.append(seconds)
    return found


def test_jobs_that_fail_are_started_ever_more_seldom() -> None:
    assert pauses(*(LastJob(NOW, failed=n) for n in range(6))) == [0, 600, 1200, 2400, 3600, 3600]
    # From the last one that started by itself.
    early = LastJob(NOW + timedelta(seconds=300), failed=1, failed_at=NOW)
    assert pauses(early) == [600]
    state = replace(pending(99), last={JobKind.CONVERT: LastJob(NOW, failed=3, cause="The catalog is away.")})
    assert decision(state, JobKind.CONVERT).sentence == (
        "Paused until 2026-01-01 00:40:00 UTC because the last 3 convert jobs failed: The catalog is away. "
        "A success or another policy ends the pause; requesting a job runs it at once."
    )


def test_jobs_that_find_nothing_are_started_ever_more_seldom() -> None:
    assert pauses(*(LastJob(NOW, idle=n) for n in range(5))) == [0, 120, 240, 300, 300]
    state = replace(pending(99), last={JobKind.CONVERT: LastJob(NOW, idle=1)})
    assert decision(state, JobKind.CONVERT).sentence == (
        "Paused until 2026-01-01 00:02:00 UTC because the last convert job found nothing to do. "
        "Any change of the table ends the pause; requesting a job runs it at once."
    )


@pytest.mark.parametrize(
    ("state", "kind", "after"),
    [
        (
            replace(pending(99), spent=SpentBudget("it is spent", NOW + timedelta(hours=3))),
            JobKind.CONVERT,
            timedelta(hours=3),
        ),
        (
            replace(
                IDLE,
                small_manifests=10,
                spent_of={JobKind.REWRITE_MANIFESTS: SpentBudget("it is spent", NOW + timedelta(hours=3))},
            ),
            JobKind.REWRITE_MANIFESTS,
            timedelta(hours=3),
        ),
        (pending(1, age_seconds=1), JobKind.CONVERT, timedelta(seconds=299)),
        (replace(IDLE, new=Volume(1, 1, 1)), JobKind.INDEX, timedelta(seconds=30)),
        (
            replace(pending(99), last={JobKind.CONVERT: LastJob(NOW, failed=1)}),
            JobKind.CONVERT,
            timedelta(seconds=600),
        ),
        (
            replace(pending(99), last={JobKind.CONVERT: LastJob(NOW, idle=1)}),
            JobKind.CONVERT,
            timedelta(seconds=120),
        ),
        (
            replace(IDLE, sorted_runs=99, last={JobKind.COMPACT: LastJob(NOW)}),
            JobKind.COMPACT,
            timedelta(seconds=600),
        ),
        (
            replace(IDLE, last={JobKind.VERIFY: LastJob(NOW)}),
            JobKind.VERIFY,
            timedelta(days=7),
        ),
    ],
    ids=[
        "budget",
        "budget-of-kind",
        "age-of-delete",
        "age-of-index",
        "failed",
        "idle",
        "interval",
        "age-of-verification",
    ],
)
def test_when_time_alone_makes_another_decision_is_known(
    state: TableState, kind: JobKind, after: timedelta
) -> None:
    before = NOW + after - timedelta(milliseconds=1)
    assert decision(state, kind, now=before).action is not Action.TRIGGER
    assert decision(state, kind, now=NOW + after).action is Action.TRIGGER
    assert NOW + after in set(_changes(state, POLICY, NOW, None))


def test_a_policy_that_is_off_starts_nothing() -> None:
    policy = POLICY.model_copy(update={"convert": POLICY.convert.model_copy(update={"enabled": False})})
    assert decision(pending(99), JobKind.CONVERT, policy).code == "policy-off"


def with_cron(kind: str, cron: str, zone: str = "UTC") -> EffectivePolicy:
    changed = getattr(POLICY, kind).model_copy(update={"cron": cron})
    schedule = POLICY.schedule.model_copy(update={"time_zone": zone})
    return POLICY.model_copy(update={kind: changed, "schedule": schedule})


def test_a_cron_expression_starts_what_is_pending_once() -> None:
    policy = with_cron("convert", "0 3 * * *", "Europe/Berlin")
    night = datetime(2026, 1, 2, 2, 0, tzinfo=UTC)  # three o'clock in Berlin
    noon = {JobKind.CONVERT: LastJob(night - timedelta(hours=14))}
    state = replace(pending(1), oldest_convertible_at=night - timedelta(seconds=90), last=noon)
    before = decision(state, JobKind.CONVERT, policy, night - timedelta(seconds=1))
    assert (before.action, before.code) == (Action.WAIT, "below-triggers")
    at_night = replace(state, oldest_convertible_at=night - timedelta(seconds=10))
    due = decision(at_night, JobKind.CONVERT, policy, night)
    assert (due.action, due.code) == (Action.TRIGGER, "cron")
    assert due.sentence == (
        "1 equality delete file, due since 2026-01-02 03:00 Europe/Berlin (cron: 0 3 * * *)."
    )
    # Also when the service was away at that time, and not again after the job.
    assert decision(at_night, JobKind.CONVERT, policy, night + timedelta(seconds=200)).code == "cron"
    done = replace(at_night, last={**state.last, JobKind.CONVERT: LastJob(night + timedelta(seconds=60))})
    assert decision(done, JobKind.CONVERT, policy, night + timedelta(seconds=200)).action is Action.WAIT
    assert decision(IDLE, JobKind.CONVERT, policy, night).code == "nothing-pending"


@pytest.mark.parametrize("kind", [JobKind.INDEX, JobKind.COMPACT, JobKind.VERIFY])
def test_every_kind_has_a_cron_expression(kind: JobKind) -> None:
    state = replace(IDLE, new=Volume(1))
    hour = replace(state, last={**state.last, JobKind.INDEX: LastJob(NOW + timedelta(minutes=30))})
    policy = with_cron(kind.value, "30 * * * *")
    assert decision(state, kind, policy, NOW + timedelta(seconds=10)).action is Action.WAIT or kind in (
        JobKind.COMPACT,
        JobKind.VERIFY,
    )
    assert decision(hour, kind, policy, NOW + timedelta(minutes=90, seconds=1)).code == "cron"


def test_a_table_that_was_just_enrolled_waits_for_the_next_time() -> None:
    state = replace(pending(1), enrolled_at=NOW - timedelta(minutes=1), last={})
    policy = with_cron("convert", "30 * * * *")
    assert decision(state, JobKind.CONVERT, policy).action is Action.WAIT


def test_what_is_due_outside_of_the_windows_waits_and_says_until_when() -> None:
    windows = [Window(start="22:00", end="06:00")]
    schedule = POLICY.schedule.model_copy(update={"windows": windows, "time_zone": "America/New_York"})
    policy = POLICY.model_copy(update={"schedule": schedule})
    noon = datetime(2026, 1, 1, 17, tzinfo=UTC)
    found = decision(pending(10), JobKind.CONVERT, policy, noon)
    assert (found.action, found.code) == (Action.SKIP, "outside-window")
    assert "10 equality delete files (policy: 10)" in found.sentence
    assert "22:00-06:00 (America/New_York), next 2026-01-01 22:00" in found.sentence
    assert decision(IDLE, JobKind.CONVERT, policy, noon).code == "nothing-pending"
    night = noon + timedelta(hours=12)
    assert decision(pending(10), JobKind.CONVERT, policy, night).action is Action.TRIGGER


def test_an_index_is_verified_by_its_age() -> None:
    old = replace(IDLE, last={JobKind.VERIFY: LastJob(NOW - timedelta(days=8))})
    assert decision(old, JobKind.VERIFY).code == "age"
    assert decision(replace(old, has_index=False), JobKind.VERIFY).code == "no-index"
    assert decision(replace(IDLE, last={}), JobKind.VERIFY).code == "age"
    assert decision(IDLE, JobKind.VERIFY).action is Action.WAIT


@pytest.mark.parametrize(
    ("unverified", "code"),
    [
        (Volume(499, 49_999, 499_999), None),
        (Volume(500), "data-files"),
        (Volume(1, 50_000), "rows"),
        (Volume(1, 1, 500_000), "bytes"),
    ],
)
def test_an_index_is_verified_by_what_came_since(unverified: Volume, code: str | None) -> None:
    found = decision(replace(IDLE, unverified=unverified), JobKind.VERIFY)
    assert (found.code if found.action is Action.TRIGGER else None) == code


def test_the_age_of_what_is_new_counts_from_the_last_indexing_by_any_job() -> None:
    new = replace(IDLE, new=Volume(1, 2, 3), last={JobKind.INDEX: LastJob(NOW - timedelta(days=1))})
    assert decision(new, JobKind.INDEX).code == "age"
    by_another = replace(new, indexed_at=NOW - timedelta(seconds=30))
    assert decision(by_another, JobKind.INDEX).code == "below-triggers"
    assert NOW + timedelta(seconds=30) in deadlines(by_another, POLICY)
    earlier = replace(by_another, indexed_at=NOW - timedelta(days=2))
    assert decision(earlier, JobKind.INDEX).code == "age"


def test_new_data_files_go_along_with_a_conversion_for_a_while() -> None:
    """It indexes them, so one attempt does what would take two."""
    due = replace(pending(10), new=Volume(1, 2, 3), indexed_at=NOW - timedelta(days=1))

    def indexed(state: TableState, seconds: float) -> Decision:
        return decision(
            replace(state, last={JobKind.INDEX: LastJob(NOW - timedelta(seconds=seconds))}), JobKind.INDEX
        )

    assert indexed(due, 60).sentence == (
        "1 new data file, 60 s since the last indexing (policy: 60 s). The conversion that comes soon may"
        " index them; else a job does, 60 s after it began to wait."
    )
    assert indexed(due, 9_999).code == "with-conversion", "after a pause of the writer, too"
    for seconds, code in ((59, "with-conversion"), (60, "age")):
        waits = {JobKind.INDEX: NOW - timedelta(seconds=seconds)}
        assert indexed(replace(due, waits_since=waits), 60 + seconds).code == code
    # One that is queued or runs has its turn before any index job, however late that is, and of however many.
    queued = replace(due, active=frozenset({JobKind.CONVERT}), waits_since={JobKind.INDEX: NOW - DAY})
    running = replace(queued, running=queued.active)
    for state in (queued, running, replace(running, new=Volume(50, 2, 3)), replace(queued, indexed_at=None)):
        assert indexed(state, 999).code == "with-conversion"
    # Nothing waits for a conversion that does not start by itself now or that will only convert, and no large
    # backlog for any that is not queued.
    assert indexed(replace(queued, later=queued.active), 60).action is Action.TRIGGER
    assert indexed(replace(due, indexed_at=None), 60).action is Action.TRIGGER
    ended_at = NOW - timedelta(seconds=700)
    failed = replace(due, last={JobKind.INDEX: LastJob(ended_at, failed=1, failed_at=ended_at)})
    patient = POLICY.model_copy(update={"index": POLICY.index.model_copy(update={"age_seconds": 600.0})})
    assert decision(failed, JobKind.INDEX, patient).code == "age"
    assert indexed(replace(pending(1), new=due.new), 60).action is Action.TRIGGER
    assert indexed(replace(due, new=Volume(50, 2, 3)), 60).code == "data-files"
    waiting = replace(due, waits_since={JobKind.INDEX: NOW - timedelta(seconds=1)})
    waiting = replace(waiting, last={JobKind.INDEX: LastJob(NOW - DAY)})
    assert NOW + timedelta(seconds=59) in deadlines(waiting, POLICY)
    # One that comes before the wait ends by time alone is waited for as well.
    for age, code in ((240, "with-conversion"), (239, "age")):
        state = replace(pending(1, age_seconds=age), new=due.new, indexed_at=NOW - DAY)
        assert indexed(state, 60).code == code


def test_a_preview_supposes_that_the_rewriting_has_run_for_which_a_job_waits() -> None:
    queued = frozenset({JobKind.REWRITE_DATA_FILES})
    state = replace(IDLE, small_data_files=10, sorted_runs=16, active=queued)
    assert decision(state, JobKind.COMPACT).code == "with-rewriting"
    until = NOW + timedelta(days=1)
    assert _next_start(JobKind.COMPACT, state, POLICY, [NOW], NOW, until) is None
    then = _once_rewritten(JobKind.COMPACT, state, POLICY, NOW)
    starts = _next_start(JobKind.COMPACT, then, POLICY, [NOW], NOW, until)
    assert starts is not None
    assert starts[0] == NOW
    assert _once_rewritten(JobKind.INDEX, state, POLICY, NOW) is state


def test_new_data_files_are_left_to_a_rewriting_for_a_while() -> None:
    """It writes them anew, and indexes what it wrote."""
    rewriting = JobKind.REWRITE_DATA_FILES
    new = replace(IDLE, new=Volume(1, 2, 3), indexed_at=NOW - timedelta(days=1), small_data_files=10)

    def indexed(state: TableState, seconds: float, since: float = 600) -> Decision:
        last = {
            JobKind.INDEX: LastJob(NOW - timedelta(seconds=seconds)),
            rewriting: LastJob(NOW - timedelta(seconds=since)),
        }
        return decision(replace(state, last=last), JobKind.INDEX)

    assert indexed(new, 60).code == "with-rewriting"
    assert indexed(new, 60, since=540).code == "with-rewriting"
    assert indexed(new, 60, since=539).code == "age"
    waited = replace(new, waits_since={JobKind.INDEX: NOW - timedelta(seconds=60)})
    assert indexed(waited, 120).code == "age"
    failed = LastJob(NOW - timedelta(seconds=601), failed=1, failed_at=NOW - timedelta(seconds=601))
    after_failure = replace(new, last={JobKind.INDEX: failed})
    assert decision(after_failure, JobKind.INDEX).code == "with-rewriting", "it indexes what it writes anew"
    assert indexed(replace(new, new=Volume(50, 2, 3)), 60).code == "data-files"
    running = replace(new, active=frozenset({rewriting}), running=frozenset({rewriting}))
    assert indexed(running, 999).code == "with-rewriting"


def test_a_rewriting_that_goes_by_what_nobody_has_counted_waits_for_the_index_job_that_counts() -> None:
    """Else it may find nothing to take: it is started by what readers pay for files that may have to stay."""
    shape = Shape(200, 1_000_000, data_bytes=10**8)
    policy = POLICY.model_copy(update={"convert": POLICY.convert.model_copy(update={"when": "worthwhile"})})
    state = replace(IDLE, shape=shape, fresh=shape.fresh(1, 2**29), last={}, new=Volume(1, 2, 3))
    assert decision(state, REWRITE, policy).code == "not-counted"
    assert decision(state, REWRITE, policy).sentence.count("counts which files it would take") == 1
    assert decision(state, JobKind.INDEX, policy).code == "first", "neither waits for the other"
    soon = replace(state, last={JobKind.INDEX: LastJob(NOW - timedelta(seconds=30))})
    assert decision(soon, REWRITE, policy).code == "not-counted"
    assert decision(replace(state, active=frozenset({JobKind.INDEX})), REWRITE, policy).code == "not-counted"
    has_counted = {JobKind.INDEX: LastJob(NOW, has_counted=True)}
    has_failed = {
        JobKind.INDEX: LastJob(NOW - timedelta(days=1), failed=1, failed_at=NOW - timedelta(days=1))
    }
    for due in (
        replace(state, new=Volume()),
        replace(state, last=has_failed),
        replace(state, has_keys=False, grown_files=200),
        replace(state, convertible=Volume(1, 1, 1)),
        replace(state, last=has_counted, small_data_files=200),
    ):
        assert decision(due, REWRITE, policy).action is Action.TRIGGER


def test_what_waits_names_each_trigger_with_its_limit() -> None:
    assert decision(pending(2, rows=20, size=2_000), JobKind.CONVERT).sentence == (
        "2 equality delete files (policy: 10), 20 equality deletes (policy: 1,000), 2.0 KB of equality "
        "delete files (policy: 10.0 KB), the oldest equality delete is 1 s old (policy: 300 s)."
    )
    assert decision(replace(IDLE, new=Volume(1, 2, 3)), JobKind.INDEX).sentence == (
        "1 new data file (policy: 50), 2 new rows (policy: 5,000), 3 B of new files (policy: 50.0 KB), "
        "30 s since the last indexing (policy: 60 s)."
    )
    old = decision(pending(1, age_seconds=300), JobKind.CONVERT)
    assert old.sentence == "The oldest equality delete is 300 s old (policy: 300 s)."


def staged(
    snapshots: int = 1, rows: int = 10, age_seconds: float = 1, trouble: str | None = None
) -> TableState:
    return replace(IDLE, staged=StagedState(snapshots, rows, NOW - timedelta(seconds=age_seconds), trouble))


def test_only_a_table_with_a_staging_branch_has_a_decision_about_it() -> None:
    assert JobKind.PUBLISH not in {each.kind for each in decide(IDLE, POLICY, NOW)}
    assert decision(replace(IDLE, staged=StagedState()), JobKind.PUBLISH).code == "nothing-staged"
    unproven = replace(IDLE, staged=StagedState(unproven_id=7))
    for seen, code in ((None, "unproven"), (6, "unproven"), (7, "nothing-staged")):
        looked = replace(unproven, last={JobKind.PUBLISH: LastJob(NOW, seen_id=seen)})
        assert decision(looked, JobKind.PUBLISH).code == code
    assert decision(unproven, JobKind.PUBLISH).action is Action.TRIGGER


def test_a_branch_with_too_many_snapshots_begins_anew_where_nothing_else_starts_a_publication() -> None:
    """An idle stream of Flink stages checkpoints without changes, of which nothing waits."""
    few, many = (replace(IDLE, staged=StagedState(kept=kept)) for kept in (1000, 1001))
    assert decision(few, JobKind.PUBLISH).code == "nothing-staged"
    assert decision(many, JobKind.PUBLISH).action is Action.TRIGGER
    assert "1,001 snapshots (limit: 1,000)" in decision(many, JobKind.PUBLISH).sentence
    in_vain = replace(many, last={JobKind.PUBLISH: LastJob(NOW, idle=1)})
    assert decision(in_vain, JobKind.PUBLISH).action is Action.BACKOFF
    assert "found nothing to publish" in decision(in_vain, JobKind.PUBLISH).sentence


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (staged(rows=999), None),
        (staged(rows=1000), "rows"),
        (staged(age_seconds=29), None),
        (staged(age_seconds=30), "age"),
    ],
)
def test_what_is_staged_is_published_at_its_rows_or_its_age(state: TableState, code: str | None) -> None:
    found = decision(state, JobKind.PUBLISH)
    assert (found.code if found.action is Action.TRIGGER else None) == code


def test_what_is_staged_becomes_due_by_time_alone() -> None:
    assert NOW + timedelta(seconds=29) in set(_changes(staged(), POLICY, NOW, None))


def test_a_branch_that_can_not_be_told_starts_no_publication() -> None:
    found = decision(staged(rows=5000, trouble="It was rolled back."), JobKind.PUBLISH)
    assert (found.action, found.sentence) == (Action.SKIP, "It was rolled back.")


def test_a_snapshot_that_stopped_publication_is_tried_again_after_a_pause() -> None:
    ended_at = NOW - timedelta(seconds=119)
    state = replace(staged(age_seconds=500), last={JobKind.PUBLISH: LastJob(ended_at, idle=1)})
    found = decision(state, JobKind.PUBLISH)
    assert found.action is Action.BACKOFF
    assert "could not publish the first staged snapshot" in found.sentence
    assert decision(state, JobKind.PUBLISH, now=NOW + timedelta(seconds=1)).action is Action.TRIGGER


def test_time_alone_makes_no_other_decision_of_a_kind_that_the_policy_starts_never() -> None:
    state = replace(IDLE, past=Past(9, 1, NOW))
    kinds = [kind for kind in state.kinds if kind is not JobKind.INDEX]
    off = {kind.value: getattr(POLICY, kind.value).model_copy(update={"enabled": False}) for kind in kinds}
    found = set(deadlines(state, POLICY.model_copy(update=off)))
    assert found == {NOW + timedelta(seconds=30)}, "of new data files, which wait for no other job"
