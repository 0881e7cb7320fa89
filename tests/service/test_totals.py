"""What is pending in all tables over time: what the samples of each table say, without reading them."""

import math
import random
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import NamedTuple

import pytest
from sqlalchemy import text
from sqlmodel import Session, col, func, select

from service.auth.models import SYSTEM
from service.db.database import Database
from service.index_health import summary
from service.index_health.samples import read_health, record_sample
from service.index_health.service import judged
from service.index_health.summary import total_pending
from service.jobs.conversions import converted_since
from service.policies.effective import effective_policy
from service.records.health import MERGED_CHANGES, PendingChange, TableHealth, add_pending
from service.records.jobs import Attempt, Job
from service.records.tables import EnrolledTable, get_table
from service.scheduling import retention
from service.scheduling.retention import forget
from service.settings import Settings
from service.tables import service as tables
from tests.service.conftest import alike_on_both
from tests.service.queue_calls import START, add_tables, add_worker, claim, finish, request, statements_of

database_kind = alike_on_both

# A table that nothing happens to for two days has no sample left.
SETTINGS = Settings(fine_history_days=0.5, history_days=1, daily_history_days=2)


def sample(database: Database, table_id: str, deletes: int, now: datetime) -> None:
    """As a poll of the table does it."""
    with database.write() as session:
        table, (health, last) = get_table(session, table_id, for_update=True), read_health(session, table_id)
        looked_at = health.measured_at
        health.measured_at, health.pending_equality_deletes = now, deletes
        health.pending_equality_delete_files = min(deletes, 1)
        status = judged(table, health, effective_policy(session, table), (), None, now)
        more = health.count_pending()
        record_sample(session, SETTINGS, health, status, last, looked_at, now)
        add_pending(session, table_id, more, now)


class World(NamedTuple):
    """Of a random history: what each table had last, and what they had together at the end of each minute."""

    latest: dict[str, int]
    totals: dict[datetime, int]


def happen(
    database: Database, chance: random.Random, monkeypatch: pytest.MonkeyPatch
) -> tuple[World, datetime]:
    now = START
    monkeypatch.setattr(tables, "utc_now", lambda: now)
    world = World({}, defaultdict(int))
    waiting = add_tables(database, [f"u{number}" for number in range(12)])
    enrolled = [waiting.pop(), waiting.pop()]
    for _ in range(60):
        now += timedelta(seconds=chance.choice([0, 1, 40, 90, 600, 4 * 3600]))
        does = chance.random()
        if does < 0.08 and waiting:
            enrolled.append(waiting.pop())
        elif does < 0.14 and len(enrolled) > 1:
            gone = enrolled.pop(chance.randrange(len(enrolled)))
            with database.write() as session:
                tables.delete_table(session, SYSTEM, gone)
            world.latest.pop(gone, None)
        elif does < 0.2:
            while forget(database, SETTINGS, now):
                pass
        else:
            table, deletes = chance.choice(enrolled), chance.choice([0, 1, 7, 10**6])
            sample(database, table, deletes, now)
            world.latest[table] = deletes
        minute = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
        world.totals[minute] = sum(world.latest.values())
    return world, now + timedelta(minutes=1)


@pytest.mark.parametrize("seed", range(2))
def test_totals_are_the_sums_over_all_tables_whatever_has_happened_to_them(
    database: Database, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No test waits for an interval to be full.
    monkeypatch.setattr(summary, "_STEPS", ((math.inf, 1),))
    world, end = happen(database, random.Random(seed), monkeypatch)
    with database.read() as session:
        told = total_pending(session, START - timedelta(hours=1), end)
        half = total_pending(session, START + (end - START) / 2, end)
    assert told
    expected = {at: total for at, total in world.totals.items() if at <= end}
    assert held(told, list(expected)) == expected
    within = [at for at in expected if at > START + (end - START) / 2 + timedelta(minutes=1)]
    assert held(half, within) == {at: expected[at] for at in within}
    assert told[-1][1] == sum(world.latest.values()) == counted(database)


def held(told: list[tuple[datetime, int]], moments: list[datetime]) -> dict[datetime, int]:
    """What totals say of each moment: each holds until the next one."""
    return {moment: next((total for at, total in reversed(told) if at <= moment), 0) for moment in moments}


def counted(database: Database) -> int:
    with database.read() as session:
        live = select(func.sum(TableHealth.pending_equality_deletes)).join(
            EnrolledTable, col(EnrolledTable.id) == col(TableHealth.table_id)
        )
        return int(session.exec(live.where(col(EnrolledTable.deleted_at).is_(None))).one() or 0)


def days_of(session: Session, days: float, now: datetime) -> list[tuple[float, int]]:
    """Hours ago and totals."""
    return [
        (round((now - at) / timedelta(hours=1), 2), total)
        for at, total in total_pending(session, now - timedelta(days=days), now)
    ]


def test_long_spans_are_told_in_few_intervals_and_begin_with_what_held_before(database: Database) -> None:
    first, second = add_tables(database, ["a", "b"])
    sample(database, first, 5, START)
    sample(database, second, 20, START + timedelta(days=1))
    for minute in range(60):
        sample(database, first, minute, START + timedelta(days=2, minutes=minute))
    now = START + timedelta(days=2, hours=6)
    with database.read() as session:
        # All of it is of the last three days.
        for days in (7, 30, 90):
            assert [total for _, total in days_of(session, days, now)] == [5, 25, 29, 39, 49, 59, 69, 79]
        assert len(days_of(session, 1, now)) == 61
        assert days_of(session, 1, now)[0] == (24, 25)
        later = now + timedelta(days=60)
        assert days_of(session, 90, later) == [(60 * 24 + 52, 5), (60 * 24 + 28, 25), (60 * 24 + 4, 79)]


def test_a_plot_begins_with_its_span_once_anything_was_measured(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    now = START + timedelta(days=9)
    with database.read() as session:
        assert days_of(session, 7, START) == []
    sample(database, table, 0, START)
    with database.read() as session:
        assert days_of(session, 7, START) == [(7 * 24, 0)]
    sample(database, table, 5, START + timedelta(minutes=1))
    sample(database, table, 0, START + timedelta(days=1))
    with database.read() as session:
        assert days_of(session, 7, now) == [(7 * 24, 0)]
    sample(database, table, 5, now)
    with database.read() as session:
        assert days_of(session, 7, now) == [(7 * 24, 0), (0, 5)]


def test_a_clock_that_was_set_back_tells_nothing_that_is_still_to_come(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    for deletes, minutes in ((1, 0), (2, 300), (3, 20)):
        sample(database, table, deletes, START + timedelta(minutes=minutes))
    now = START + timedelta(minutes=30)
    with database.read() as session:
        told = total_pending(session, START - timedelta(hours=1), now)
    assert max(at for at, _ in told) == now
    assert told[-1][1] == 3


def test_what_a_catalog_makes_up_of_one_table_leaves_the_totals_right(
    database: Database,
) -> None:
    honest, *hostile = add_tables(database, [f"u{number}" for number in range(4)])
    sample(database, honest, 7, START)
    for table in hostile:
        sample(database, table, 2**63 - 1, START)
    later = START + timedelta(minutes=5)
    for table in hostile:
        sample(database, table, 0, later)
    with database.read() as session:
        assert total_pending(session, START, later)[-1] == (later, 7)


def test_changes_are_kept_for_as_long_as_they_are_drawn(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    sample(database, table, 5, START)
    sample(database, table, 6, START + timedelta(days=1))
    while forget(database, SETTINGS, START + timedelta(days=90, hours=12)):
        pass
    with database.read() as session:
        assert len(session.exec(select(PendingChange)).all()) == 1
        assert [total for _, total in days_of(session, 90, START + timedelta(days=90, hours=12))] == [5, 6]


def test_changes_are_merged_as_they_grow_old_and_totals_stay_as_they_are(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 3)
    one, other = add_tables(database, ["a", "b"])
    now = START + timedelta(days=20)
    for days, minutes in product((0, 1, 11, 13, 17, 19, 19.95), (3, 4, 14, 75)):
        for number, table in enumerate((one, other)):
            moment = START + timedelta(days=days, minutes=minutes)
            if moment < now:
                sample(database, table, int(100 * days) + minutes * (number + 1), moment)

    def told() -> list[list[tuple[datetime, int]]]:
        with database.read() as session:
            return [total_pending(session, now - timedelta(days=days), now) for days in (1, 7, 19, 30, 90)]

    before = told()
    while forget(database, SETTINGS, now):
        pass
    assert told() == before
    with database.read() as session:
        rows = session.exec(select(PendingChange)).all()
    for row in rows:
        age = now - datetime.fromtimestamp(row.minute * 60, UTC)
        step = next((minutes for least, minutes in MERGED_CHANGES if age > least + timedelta(hours=1)), None)
        assert step is None or (row.part, row.minute % step) == (0, 0)
    assert len(rows) < 25


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_changes_that_two_replicas_merge_at_once_count_once(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    now = START + timedelta(days=20)
    for minutes in (1, 2, 3):
        sample(database, table, 10**minutes, START + timedelta(minutes=minutes))
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with ThreadPoolExecutor(1) as pool:
        with database.write() as session:
            assert retention._merge_totals(session, SETTINGS, now) == 3
            session.flush()
            other = pool.submit(forget, database, SETTINGS, now)
            while not other.done():
                with database.engine.connect() as connection:
                    if connection.execute(waiting).scalar_one():
                        break
                time.sleep(0.01)
        other.result()
    with database.read() as session:
        assert session.exec(select(PendingChange.equality_deletes)).all() == [1000]


def test_conversions_are_summed_up_by_the_database_and_what_no_number_is_counts_nothing(
    database: Database,
) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    told: list[tuple[dict[str, object], int]] = [
        ({"equality_deletes_resolved": 5, "rows_deleted": 4}, 100),
        ({"equality_deletes_resolved": 5, "rows_deleted": 4}, 2**62),
        ({"equality_deletes_resolved": "many", "rows_deleted": 1}, 7),
        ({"equality_deletes_resolved": 9, "equality_delete_files_removed": 0}, 9),
    ]
    for result, moved in told:
        request(database, table)
        assignment = claim(database, worker)
        assert assignment is not None
        finish(database, assignment.job.id, assignment.attempt, "succeeded", START)
        with database.write() as session:
            session.get_one(Job, assignment.job.id).result = {"equality_delete_files_removed": 1} | result
            session.get_one(Attempt, (assignment.job.id, 1)).bytes = moved
    with database.read() as session:
        done = converted_since(session, START, START)
        assert converted_since(session, START + timedelta(seconds=1), START).jobs == 0
    assert (done.jobs, done.equality_deletes, done.rows) == (3, 10, 9)
    assert done.bytes == pytest.approx(2**62 + 107)


def test_of_conversions_of_a_day_only_those_of_the_last_minutes_are_read_again(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    now = START + timedelta(days=1)

    def convert(ended_at: datetime, resolved: int) -> None:
        request(database, table, now=ended_at)
        assignment = claim(database, worker, ended_at)
        assert assignment is not None
        finish(database, assignment.job.id, 1, "succeeded", ended_at)
        with database.write() as session:
            result = {"equality_delete_files_removed": 1, "equality_deletes_resolved": resolved}
            session.get_one(Job, assignment.job.id).result = result

    def resolved(since: datetime, now: datetime) -> tuple[int, int]:
        """And how many reads it took."""
        with statements_of(database) as asked, database.read() as session:
            found = converted_since(session, since, now).equality_deletes
        return found, len([statement for statement, _ in asked if "FROM jobs" in statement])

    for minutes, number in ((1, 1), (2, 10), (700, 100), (1439, 1000)):
        convert(START + timedelta(minutes=minutes), number)
    assert resolved(START + timedelta(seconds=90), now)[0] == 1110
    convert(now, 10_000)
    later = timedelta(minutes=1)
    assert resolved(START + later, now + later) == (11_111, 2)
    # What is too old goes, also from a stretch that is known.
    assert resolved(START + 2 * later, now + 2 * later)[0] == 11_110
    assert resolved(START + 3 * later, now + 3 * later)[0] == 11_100
