"""Whether a conversion or a rewriting is worth its cost to readers."""

from dataclasses import replace
from datetime import timedelta

import pytest

from service.catalogs.measure import Volume
from service.index_health.reader_cost import rows_deleted_since
from service.policies.models import EffectivePolicy
from service.policies.schedules import Window
from service.reader_cost import CostModel, Shape
from service.records.jobs import JobKind
from service.scheduling import decisions, worth
from service.scheduling.decisions import deadlines, decide, decide_kind
from service.scheduling.facts import Action, LastJob, TableState, weighing
from service.scheduling.preview import _repeats
from service.scheduling.scheduler import _parameters
from service.scheduling.worth import Weighing
from tests.service.test_scheduler import IDLE, NOW, POLICY, decision

# Of a fit like any other: what is decided here is not to change with the next one.
MODEL = CostModel.model_validate(
    {
        "measured_on": "2026-01-01",
        "machine": "A machine.",
        "coefficients": {
            reader: {
                "full": {"data file": 0.0067 * share, "row": 2.6e-7 * share, "vector": 0.0001}
                | {"data file and equality delete file": 0.00018 * share, "row and equality delete": joined}
                | ({"row of a data file with a vector": 1e-8} if reader == "duckdb" else {}),
                "point": {"data file": 0.001, "row": 1e-8},
            }
            for reader, share, joined in (("spark", 1, 1e-15), ("duckdb", 0.1, 1.4e-9))
        },
    }
)
REWRITE = JobKind.REWRITE_DATA_FILES
PARTITIONS = 4


def worthwhile(policy: EffectivePolicy = POLICY, **fields: object) -> EffectivePolicy:
    given = {"when": "worthwhile", "age_seconds": 300, "max_read_ratio": 1.5, **fields}
    rewrite = {"min_interval_seconds": 30, "small_data_files": 10**6, "deleted_data_files": 10**6}
    return policy.model_copy(
        update={
            "convert": policy.convert.model_copy(update=given),
            "rewrite_data_files": policy.rewrite_data_files.model_copy(update=rewrite),
        }
    )


@pytest.fixture
def fixed_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth, "model", lambda: MODEL)


FRESH = Shape(PARTITIONS, 3_000_000, data_bytes=60_000_000)


def pending(shape: Shape, age_seconds: float = 10, rewriting: LastJob | None = None) -> TableState:
    """A table with what a reader has to do with, whose deletes came so long ago."""
    return replace(
        IDLE,
        pending_delete_files=shape.equality_delete_files,
        convertible=Volume(shape.equality_delete_files, shape.equality_deletes, 1000),
        oldest_convertible_at=NOW - timedelta(seconds=age_seconds) if shape.equality_delete_files else None,
        small_data_files=shape.data_files - FRESH.data_files,
        enrolled_at=NOW - timedelta(seconds=age_seconds),
        shape=shape,
        fresh=FRESH,
        last={
            JobKind.CONVERT: LastJob(NOW - timedelta(seconds=900), seconds=4.0),
            **({REWRITE: rewriting} if rewriting is not None else {}),
        },
    )


def with_deleted_rows(shape: Shape, deleted_for: timedelta) -> TableState:
    """Such a table of which a job has counted that none of its files is small or has many deleted rows."""
    return replace(
        pending(shape),
        small_data_files=0,
        rows_deleted_since=NOW - deleted_for,
        last={JobKind.INDEX: LastJob(NOW, has_counted=True)},
    )


DELETES = replace(FRESH, equality_delete_files=40, equality_deletes=2_000)
MANY = replace(FRESH, data_files=10, equality_delete_files=400, equality_deletes=20_000)
FEW = replace(DELETES, equality_delete_files=8, equality_deletes=200)


@pytest.mark.usefixtures("fixed_model")
def test_a_conversion_waits_until_readers_have_paid_as_much_as_it_costs() -> None:
    state = pending(FEW, age_seconds=200)
    rare, often = worthwhile(reads_per_day=10), worthwhile(reads_per_day=10**6)
    waits = decision(state, JobKind.CONVERT, rare)
    assert (waits.action, waits.code) == (Action.WAIT, "below-triggers")
    assert "At 10 reads a day, readers have paid 0 s" in waits.sentence
    assert "a conversion costs 4 s and leaves up to 4 vectors." in waits.sentence
    starts = decision(state, JobKind.CONVERT, often)
    assert (starts.action, starts.code) == (Action.TRIGGER, "worthwhile")
    weighed = weighing(state, often)
    assert weighed is not None
    due = min(weighed.moments())
    assert due in list(deadlines(state, often))
    before, after = (due + timedelta(seconds=each) for each in (-2, 0))
    assert [decision(state, JobKind.CONVERT, often, at).action for at in (before, after)] == [
        Action.WAIT,
        Action.TRIGGER,
    ]


@pytest.mark.usefixtures("fixed_model")
def test_the_age_that_a_delete_may_have_holds_all_the_same() -> None:
    found = decision(pending(FEW, age_seconds=301), JobKind.CONVERT, worthwhile(reads_per_day=0))
    assert (found.action, found.code) == (Action.TRIGGER, "age")
    assert found.sentence.startswith("The oldest equality delete is 301 s old (policy: 300 s). A full read")


@pytest.mark.usefixtures("fixed_model")
def test_many_deletes_are_converted_before_a_read_costs_more_than_the_policy_lets_it() -> None:
    found = decision(pending(MANY), JobKind.CONVERT, worthwhile(reads_per_day=0))
    assert (found.action, found.code) == (Action.TRIGGER, "read-cost")


SMALL = replace(DELETES, data_files=200, vectors=190, positions=2_000)


@pytest.mark.usefixtures("fixed_model")
def test_small_files_are_rewritten_with_what_is_pending_instead_of_their_vectors_once_more() -> None:
    state = pending(SMALL)
    rewriting = decision(state, REWRITE, worthwhile(reads_per_day=0))
    assert (rewriting.action, rewriting.code) == (Action.TRIGGER, "read-cost")
    assert "it joins 230 delete files with 200 data files" in rewriting.sentence
    conversion = decision(state, JobKind.CONVERT, worthwhile(reads_per_day=0))
    assert (conversion.action, conversion.code) == (Action.WAIT, "rewriting")
    queued = replace(state, active=frozenset({REWRITE}))
    assert decision(queued, JobKind.CONVERT, worthwhile()).code == "rewriting"
    assert decision(queued, JobKind.CONVERT, worthwhile(age_seconds=5)).code == "rewriting"
    assert decision(replace(queued, later=queued.active), JobKind.CONVERT, worthwhile()).code != "rewriting"
    hourly = worthwhile().model_copy(
        update={"convert": worthwhile(cron="0 * * * *").convert.model_copy(update={"age_seconds": 10**6})}
    )
    last = {JobKind.CONVERT: LastJob(NOW - timedelta(hours=2), seconds=4.0)}
    assert decision(replace(queued, last=last), JobKind.CONVERT, hourly).code == "cron"


@pytest.mark.usefixtures("fixed_model")
@pytest.mark.parametrize(("reads_per_day", "code"), [(0, "with-conversion"), (10**6, "read-cost")])
def test_a_rewriting_waits_for_the_next_conversion_while_readers_pay_less_than_that_costs(
    reads_per_day: int, code: str
) -> None:
    policy = worthwhile(reads_per_day=reads_per_day)
    last = {JobKind.CONVERT: LastJob(NOW, committed_at=NOW - timedelta(seconds=2), seconds=4.0)}
    few = replace(SMALL, equality_delete_files=0, equality_deletes=0)
    state = replace(pending(few), last=last)
    assert decision(state, REWRITE, policy).code == code
    at = NOW + timedelta(seconds=28)
    assert decision(state, REWRITE, policy, at).code == "read-cost"
    assert reads_per_day or at in list(deadlines(state, policy))


@pytest.mark.usefixtures("fixed_model")
@pytest.mark.parametrize(
    ("pending_seconds", "rewritten_ago", "takes_it"), [(200, 255, True), (200, 195, False), (1, 255, False)]
)
def test_a_rewriting_for_which_readers_will_soon_have_paid_takes_the_place_of_a_conversion_that_is_due(
    pending_seconds: int, rewritten_ago: int, takes_it: bool
) -> None:
    """They have paid for it 316 s after the last one, and for a conversion after 62 s."""
    policy = worthwhile(reads_per_day=10**5, age_seconds=10**6, max_read_ratio=100)
    earlier = NOW - timedelta(seconds=rewritten_ago)
    last = {
        JobKind.CONVERT: LastJob(NOW - timedelta(hours=1), seconds=4.0),
        REWRITE: LastJob(earlier, committed_at=earlier, seconds=10.0),
    }
    files = replace(DELETES, data_files=FRESH.data_files + 12)
    state = replace(pending(files, age_seconds=pending_seconds), last=last)
    found, conversion = decision(state, REWRITE, policy), decision(state, JobKind.CONVERT, policy)
    assert ("so that one is due, too" in found.sentence) == takes_it
    assert (found.action is Action.TRIGGER) == takes_it
    assert (conversion.code == "rewriting") == takes_it


@pytest.mark.usefixtures("fixed_model")
@pytest.mark.parametrize(("min_interval", "code"), [(258, "rewriting"), (260, "worthwhile")])
def test_a_conversion_waits_for_a_rewriting_that_may_start_before_it_would_have_ended(
    min_interval: int, code: str
) -> None:
    """It takes 4 s, and the last rewriting ended 255 s ago."""
    policy = worthwhile(reads_per_day=10**5, age_seconds=10**6, max_read_ratio=100)
    limits = policy.rewrite_data_files.model_copy(update={"min_interval_seconds": min_interval})
    earlier = NOW - timedelta(seconds=255)
    last = {
        JobKind.CONVERT: LastJob(NOW - timedelta(hours=1), seconds=4.0),
        REWRITE: LastJob(earlier, committed_at=earlier, seconds=10.0),
    }
    files = replace(DELETES, data_files=FRESH.data_files + 12)
    state = replace(pending(files, age_seconds=200), last=last)
    hold = policy.model_copy(update={"rewrite_data_files": limits})
    assert decision(state, REWRITE, hold).code == "min-interval"
    assert decision(state, JobKind.CONVERT, hold).code == code


@pytest.mark.usefixtures("fixed_model")
def test_a_rewriting_that_waits_ends_before_readers_have_paid_for_the_conversion_that_it_replaces() -> None:
    policy = worthwhile(reads_per_day=10**5, age_seconds=10**6, max_read_ratio=100)
    files = FRESH.data_files + 12
    shape = replace(FRESH, data_files=files, equality_delete_files=40, equality_deletes=2_000)
    earlier = NOW - timedelta(hours=9)
    last = {
        JobKind.CONVERT: LastJob(NOW, committed_at=NOW - timedelta(seconds=2), seconds=4.0),
        REWRITE: LastJob(earlier, committed_at=earlier, seconds=10.0),
    }
    state = replace(pending(shape, age_seconds=1), last=last)
    weighed = weighing(state, policy)
    assert weighed is not None
    worth_at = weighed.conversion_worth_at()
    assert worth_at is not None
    at = worth_at - timedelta(seconds=40)
    assert at in deadlines(state, policy)
    assert decision(state, REWRITE, policy, at - timedelta(seconds=2)).code == "with-conversion"
    assert decision(state, REWRITE, policy, at).code == "worthwhile"


@pytest.mark.usefixtures("fixed_model")
def test_what_readers_pay_is_weighed_once_for_all_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def counted(state: TableState, policy: EffectivePolicy) -> Weighing | None:
        seen.append(state)
        return weighing(state, policy)

    monkeypatch.setattr(decisions, "weighing", counted)
    alone = [decide_kind(kind, pending(SMALL), worthwhile(), NOW) for kind in (JobKind.CONVERT, REWRITE)]
    seen.clear()
    assert set(alone) <= set(decide(pending(SMALL), worthwhile(), NOW))
    assert len(seen) == 1


@pytest.mark.usefixtures("fixed_model")
def test_a_rewriting_that_starts_later_stops_no_conversion() -> None:
    later = replace(pending(MANY), active=frozenset({REWRITE}), later=frozenset({REWRITE}))
    found = decision(later, JobKind.CONVERT, worthwhile(reads_per_day=0))
    assert (found.action, found.code) == (Action.TRIGGER, "read-cost")


@pytest.mark.usefixtures("fixed_model")
def test_deletes_that_can_not_be_converted_are_no_reason_for_any_job() -> None:
    state = replace(pending(MANY), convertible=Volume(1, 1, 10))
    state = replace(state, shape=replace(MANY, equality_delete_files=7))
    for kind in (JobKind.CONVERT, REWRITE):
        found = decision(state, kind, worthwhile())
        assert found.action is Action.WAIT
        assert "Not counted: 6 equality delete files that can't be converted." in found.sentence


@pytest.mark.usefixtures("fixed_model")
@pytest.mark.parametrize(
    ("last", "fields", "code"),
    [
        (None, {"enabled": False}, "policy-off"),
        (None, {"windows": [Window(start="12:00", end="13:00")]}, "outside-window"),
        (LastJob(NOW - timedelta(seconds=10)), {}, "min-interval"),
        (LastJob(NOW - timedelta(seconds=99), failed=1), {}, "failed-1"),
        (LastJob(NOW, idle=1), {}, "none-rewritable"),
    ],
)
def test_deletes_that_cost_too_much_are_converted_where_no_rewriting_may_start(
    last: LastJob | None, fields: dict[str, object], code: str
) -> None:
    policy = worthwhile(reads_per_day=0)
    rewrite = policy.rewrite_data_files.model_copy(update=fields)
    policy = policy.model_copy(update={"rewrite_data_files": rewrite})
    state = pending(SMALL, rewriting=last)
    waits = decision(state, REWRITE, policy)
    assert waits.code == code
    assert "A full read by Spark costs" in waits.sentence
    assert "one that saves 0.20 s of each read starts." in waits.sentence
    found = decision(state, JobKind.CONVERT, policy)
    assert (found.action, found.code) == (Action.TRIGGER, "read-cost")
    one = replace(SMALL, equality_delete_files=1, equality_deletes=50)
    found = decision(pending(one, rewriting=last), JobKind.CONVERT, policy)
    assert found.code == "below-triggers", "one delete file is little, whatever small files cost"


@pytest.mark.usefixtures("fixed_model")
def test_the_reader_that_the_policy_names_is_the_one_that_counts() -> None:
    state = pending(FEW, age_seconds=100)
    spark, duckdb = (worthwhile(reads_per_day=2_000, readers=[name]) for name in ("spark", "duckdb-1.5"))
    assert decision(state, JobKind.CONVERT, spark).action is Action.WAIT
    assert decision(state, JobKind.CONVERT, duckdb).action is Action.TRIGGER


@pytest.mark.usefixtures("fixed_model")
def test_a_small_table_waits_until_its_readers_have_paid_whatever_the_ratio() -> None:
    """Of ten thousand small tables, no file more starts a job at once."""
    fresh = Shape(1, 1_000, data_bytes=10_000)
    few = replace(fresh, data_files=8, equality_delete_files=2, equality_deletes=100)
    state = replace(pending(few, age_seconds=2_000), fresh=fresh, last={})
    for kind in (JobKind.CONVERT, REWRITE):
        for reads in (0, 1_000):
            policy = worthwhile(reads_per_day=reads, age_seconds=10**6)
            assert decision(state, kind, policy).action is Action.WAIT
    assert "which costs 5 s." in decision(state, REWRITE, worthwhile()).sentence
    many = replace(state, shape=replace(few, data_files=20))
    assert decision(many, REWRITE, worthwhile(reads_per_day=0, age_seconds=10**6)).code == "read-cost"
    paid = worthwhile(reads_per_day=10**5, age_seconds=10**6)
    assert decision(state, REWRITE, paid).code == "worthwhile"


@pytest.mark.usefixtures("fixed_model")
def test_a_rewriting_is_credited_only_with_the_files_that_it_takes() -> None:
    policy = worthwhile(reads_per_day=0)
    large = replace(FRESH, data_files=200, vectors=190)
    last = LastJob(NOW - timedelta(hours=1), committed_at=NOW - timedelta(hours=1), seconds=4.0)
    kept = replace(pending(large, rewriting=last), small_data_files=0)
    assert decision(kept, REWRITE, policy).code == "nothing-small", "it would leave all as they are"
    for few in (replace(kept, small_data_files=9), replace(kept, grown_files=9)):
        assert decision(few, REWRITE, policy).action is Action.WAIT
    for many in (replace(kept, small_data_files=90), replace(kept, grown_files=90)):
        assert decision(many, REWRITE, policy).code == "read-cost"
    failed = replace(last, failed=1, has_succeeded=False)
    assert decision(replace(kept, last={REWRITE: failed}), REWRITE, policy).code == "read-cost"
    assert decision(replace(kept, last={}), REWRITE, policy).code == "read-cost", "none has run that looked"
    indexed = {JobKind.INDEX: LastJob(NOW, has_counted=True)}
    assert decision(replace(kept, last=indexed), REWRITE, policy).code == "nothing-small"


@pytest.mark.usefixtures("fixed_model")
@pytest.mark.parametrize(
    ("positions", "reads_per_day", "hours", "code"),
    [
        (900_000, 0, 1, "deleted-rows"),
        (350_000, 0, 1, "nothing-small"),
        (350_000, 1_000, 1, "nothing-small"),
        (350_000, 1_000, 9, "deleted-rows"),
    ],
)
def test_large_files_go_for_their_deleted_rows_once_these_are_dear_or_readers_have_paid(
    positions: int, reads_per_day: int, hours: int, code: str
) -> None:
    """What a job has counted is small, or has enough deleted rows; there is nothing of that."""
    policy = worthwhile(reads_per_day=reads_per_day)
    shape = replace(FRESH, rows=3_000_000 + positions, positions=positions, vectors=4)
    state = with_deleted_rows(shape, timedelta(hours=hours))
    found = decision(state, REWRITE, policy)
    assert found.code == code
    others = replace(state, rows_deleted_since=None)
    assert decision(others, REWRITE, policy).code == "nothing-small"
    if code == "deleted-rows":
        assert found.delete_ratio == pytest.approx(positions / shape.rows / 2)
        parameters = _parameters(found, policy)
        assert parameters is not None
        assert parameters["delete_ratio_threshold"] == found.delete_ratio
        soon = {JobKind.INDEX: LastJob(NOW - timedelta(seconds=30), has_counted=True)}
        appended = replace(state, convertible=Volume(), new=Volume(1, 2, 3), last=soon)
        assert decision(appended, REWRITE, policy).code == code, "no index job counts files by this share"
    else:
        weighed = weighing(state, policy)
        assert weighed is not None
        later = [decision(state, REWRITE, policy, at).code for at in weighed.moments() if at > NOW]
        assert later == ["deleted-rows"] * (reads_per_day > 0)


@pytest.mark.usefixtures("fixed_model")
@pytest.mark.parametrize(("max_read_ratio", "code"), [(1.5, "nothing-small"), (1.2, "deleted-rows")])
def test_deleted_rows_in_large_files_count_from_a_fifth_of_the_overhead_on_that_the_policy_allows(
    max_read_ratio: float, code: str
) -> None:
    """They make a read dearer by 5%, and readers have paid for that for a year."""
    shape = replace(FRESH, rows=3_150_000, positions=150_000, vectors=4)
    state = with_deleted_rows(shape, timedelta(days=400))
    policy = worthwhile(reads_per_day=1_000, max_read_ratio=max_read_ratio)
    assert decision(state, REWRITE, policy).code == code


@pytest.mark.usefixtures("fixed_model")
@pytest.mark.parametrize(("small", "vectors"), [(0, 32), (1, 24), (2, 16)])
def test_a_rewriting_takes_position_delete_files_from_readers_only_with_their_data_files(
    small: int, vectors: int
) -> None:
    """Of format version 2, whose data files may have several each."""
    shape = replace(FRESH, positions=300, vectors=32)
    state = replace(
        pending(shape), small_data_files=small, last={JobKind.INDEX: LastJob(NOW, has_counted=True)}
    )
    weighed = weighing(state, worthwhile())
    assert weighed is not None
    assert weighed.readers.rewritten.vectors == vectors
    assert (weighed.saved_by_rewriting > 0) == (small > 0)
    uncounted = weighing(replace(state, grown_files=2), worthwhile())
    assert uncounted is not None
    assert uncounted.readers.rewritten.vectors == vectors, "a rewriting may take none of these"


@pytest.mark.usefixtures("fixed_model")
@pytest.mark.parametrize(
    ("reader", "hours", "code"),
    [
        ("duckdb-1.5", 1, "deleted-rows"),
        ("duckdb-1.5", 0.5, "nothing-small"),
        ("spark", 10**4, "nothing-small"),
    ],
)
def test_large_files_go_for_their_vectors_where_these_cost_a_reader_each_row(
    reader: str, hours: float, code: str
) -> None:
    """Of all rows, less than 3% are deleted."""
    shape = replace(FRESH, rows=3_080_000, positions=80_000, vectors=4)
    state = with_deleted_rows(shape, timedelta(hours=hours))
    found = decision(state, REWRITE, worthwhile(readers=[reader], reads_per_day=10_000))
    assert found.code == code


@pytest.mark.usefixtures("fixed_model")
@pytest.mark.parametrize(("took", "code"), [(0.3, "deleted-rows"), (0.12, "none-rewritable")])
def test_a_job_that_took_nothing_keeps_none_from_files_with_fewer_deleted_rows(
    took: float, code: str
) -> None:
    """Of all rows, 23% are deleted."""
    shape = replace(FRESH, rows=3_900_000, positions=900_000, vectors=4)
    idle = LastJob(NOW - timedelta(hours=1), idle=1, delete_ratio=took)
    state = replace(
        pending(shape, rewriting=idle), small_data_files=0, rows_deleted_since=NOW - timedelta(hours=1)
    )
    assert decision(state, REWRITE, worthwhile(reads_per_day=0)).code == code


@pytest.mark.usefixtures("fixed_model")
def test_of_a_table_that_tells_of_no_rows_files_go_as_the_policy_says() -> None:
    fresh = replace(FRESH, rows=0)
    state = replace(
        with_deleted_rows(replace(fresh, positions=900_000, vectors=4), timedelta(hours=9)), fresh=fresh
    )
    policy = worthwhile(reads_per_day=10**6)
    found = decision(state, REWRITE, policy)
    assert found.code == "deleted-rows"
    assert "files go of which many rows are deleted." in found.sentence
    parameters = _parameters(found, policy)
    assert parameters is not None
    assert parameters["delete_ratio_threshold"] == policy.rewrite_data_files.delete_ratio_threshold


def test_deleted_rows_are_there_since_the_first_or_since_most_of_them_went() -> None:
    at, later = NOW, NOW + timedelta(hours=1)
    assert rows_deleted_since(None, 0, 0, later) == (None, 0)
    assert rows_deleted_since(None, 0, 9, later) == (later, 9)
    assert rows_deleted_since(at, 9, 20, later) == (at, 20)
    assert rows_deleted_since(at, 20, 10, later) == (at, 20)
    assert rows_deleted_since(at, 20, 9, later) == (later, 9)
    assert rows_deleted_since(at, 20, 0, later) == (None, 0)


@pytest.mark.usefixtures("fixed_model")
def test_a_preview_supposes_that_a_rewriting_has_converted_what_was_pending() -> None:
    policy, state = worthwhile(reads_per_day=10**6), pending(SMALL)
    assert list(_repeats(REWRITE, state, policy, [], NOW, NOW + timedelta(days=1))) == []


@pytest.mark.usefixtures("fixed_model")
def test_readers_pay_since_the_last_rewriting_that_did_something() -> None:
    shape = replace(FRESH, data_files=20)
    ended = NOW - timedelta(seconds=99)
    done, idle = (LastJob(ended, committed_at=at, seconds=4.0) for at in (ended, ended - timedelta(days=1)))
    policy = worthwhile(reads_per_day=5_000)
    assert decision(pending(shape, rewriting=done), REWRITE, policy).action is Action.WAIT
    assert decision(pending(shape, rewriting=idle), REWRITE, policy).code == "worthwhile"
