"""Calls that share a transaction: which do, what that changes for them, and what becomes of the others."""

import logging
import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, select, update

from service.auth.models import SYSTEM, Principal
from service.db.database import Database
from service.db.together import LostRaceError, Together
from service.errors import ConflictError
from service.jobs import claims
from service.jobs.attempts import End, ends_reported_to, finish_together
from service.jobs.claims import Ask, claim_together
from service.jobs.contract import Assignment, AttemptId, FinishRequest
from service.jobs.queue import lock_job
from service.policies.models import AttachmentRequest, PolicyRequest
from service.policies.service import attach_policy, create_policy
from service.policies.settings import PolicySettings
from service.records import jobs
from service.records.api_keys import Role
from service.records.catalogs import Catalog
from service.records.health import TableHealth
from service.records.jobs import POLICY, REQUEST, Attempt, AttemptStatus, Job, JobKind, JobStatus
from service.records.policies import Level
from service.records.webhooks import Webhook, WebhookDelivery
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.service.conftest import ON_BOTH
from tests.service.queue_calls import (
    SETTINGS,
    START,
    add_tables,
    add_worker,
    at_once,
    claim,
    finish,
    job,
    request,
    statements_of,
)

STRANGER = Principal("api_key", "another", "another", Role.WORKER)
DONE = FinishRequest(status="succeeded")
_KINDS = JobKind.INDEX, JobKind.CONVERT, JobKind.VERIFY, JobKind.DROP_INDEX
_PATIENCE_MS = int(PATIENCE_SECONDS * 1000)


@pytest.fixture
def database_kind() -> str:
    return "sqlite"


class StoppedError(BaseException):
    """What no call expects."""


class Answers:
    """Answers calls with what they ask, of which `x-1` and `x-2` have one key; those that come while the
    first one is held wait.

    share: called with what those ask that share a transaction.
    """

    def __init__(
        self, database: Database, share: Callable[[Sequence[str]], None] = lambda asks: None
    ) -> None:
        self.share = share
        self.transactions: list[list[str]] = []
        self.alone: list[str] = []
        self.is_held, self.goes_on = threading.Event(), threading.Event()
        self.together = Together[str, str](database, self.answer, self.answer_alone)

    def answer(self, _session: Session, asks: Sequence[str]) -> Mapping[str, str]:
        self.transactions.append(list(asks))
        if asks == ["first"]:
            self.is_held.set()
            self.goes_on.wait(PATIENCE_SECONDS)
        self.share(asks)
        return {key_of(ask): ask.upper() for ask in asks if ask != "alone"}

    def answer_alone(self, _session: Session, ask: str) -> str:
        self.alone.append(ask)
        if ask == "wrong":
            raise ConflictError("stale-attempt", "It is over.", "Stop.")
        return ask.upper()

    def call(self, *asks: str) -> list[Future[str]]:
        """What these get that come while another one is answered."""
        with ThreadPoolExecutor(len(asks) + 1) as threads:
            first = threads.submit(self.together.call, "first", "first")
            assert self.is_held.wait(PATIENCE_SECONDS)
            asked = []
            for ask in asks:
                asked.append(threads.submit(self.together.call, ask, key_of(ask)))
                await_calls(self.together, len(asked))
            self.goes_on.set()
        assert first.result() == "FIRST"
        return asked


def coded(error: sqlite3.OperationalError, code: int) -> sqlite3.OperationalError:
    """What SQLite itself raises."""
    error.sqlite_errorcode = code
    return error


def of_statement(cause: Exception) -> OperationalError:
    return OperationalError("UPDATE", None, cause)


def key_of(ask: str) -> str:
    return ask.partition("-")[0]


def await_calls(together: Together[Any, Any], number: int) -> None:
    wait_until(lambda: len(together._calls) == number, "calls that wait")


def test_who_comes_meanwhile_shares_one_transaction_but_no_key(database: Database) -> None:
    answers = Answers(database)
    asked = answers.call("a-1", "b", "a-2", "c")
    assert [each.result() for each in asked] == ["A-1", "B", "A-2", "C"]
    assert answers.transactions == [["first"], ["a-1", "b"], ["a-2", "c"]]


def test_a_transaction_is_shared_by_few(database: Database) -> None:
    answers = Answers(database)
    answers.call(*(f"{number}" for number in range(20)))
    assert [len(asks) for asks in answers.transactions] == [1, 16, 4]


def test_each_transaction_is_the_work_of_who_came_first_and_holds_up_nobody_of_the_one_before(
    database: Database,
) -> None:
    leaders: list[int] = []
    has_begun, goes_on = threading.Event(), threading.Event()

    def hold(asks: Sequence[str]) -> None:
        leaders.append(threading.get_ident())
        if asks == ["a-2"]:
            has_begun.set()
            goes_on.wait(PATIENCE_SECONDS)

    answers = Answers(database, hold)
    threads: dict[str, int] = {}

    def call(ask: str) -> None:
        threads[ask] = threading.get_ident()
        answers.together.call(ask, key_of(ask))

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(call, "first")
        assert answers.is_held.wait(PATIENCE_SECONDS)
        asked = []
        for ask in ("a-1", "b", "a-2"):
            asked.append(pool.submit(call, ask))
            await_calls(answers.together, len(asked))
        answers.goes_on.set()
        assert has_begun.wait(PATIENCE_SECONDS)
        for each in (first, *asked[:2]):
            each.result(PATIENCE_SECONDS)
        goes_on.set()
    assert leaders == [threads[ask] for ask in ("first", "a-1", "a-2")]


def test_what_is_wrong_with_one_call_harms_no_other(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(asks: Sequence[str]) -> None:
        if "wrong" in asks:
            raise ConflictError("stale-attempt", "It is over.", "Stop.")

    answers = Answers(database, fail)
    a, wrong, c = answers.call("a", "wrong", "c")
    assert (a.result(), c.result()) == ("A", "C")
    assert isinstance(wrong.exception(), ConflictError)
    assert answers.transactions == [["first"], ["a", "wrong", "c"]]
    assert caplog.records == []


def test_who_can_t_share_a_transaction_has_one_alone_that_holds_up_nobody(database: Database) -> None:
    answers = Answers(database)
    a, alone, b = answers.call("a", "alone", "b")
    assert [each.result() for each in (a, alone, b)] == ["A", "ALONE", "B"]
    assert answers.transactions == [["first"], ["a", "alone", "b"]]
    assert answers.alone == ["alone"]


@pytest.mark.parametrize(
    "failure",
    [
        ValueError("of sharing"),
        of_statement(coded(sqlite3.OperationalError("too many SQL variables"), sqlite3.SQLITE_ERROR)),
        of_statement(psycopg.errors.StatementTooComplex()),
        of_statement(psycopg.errors.QueryCanceled()),
    ],
)
def test_what_only_calls_together_fail_of_is_logged_once(
    database: Database, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    def fail(asks: Sequence[str]) -> None:
        if len(asks) > 1:
            raise failure

    a, b = Answers(database, fail).call("a", "b")
    assert (a.result(), b.result()) == ("A", "B")
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (
        logging.WARNING,
        "2 calls failed together, and go on alone",
    )
    assert record.exc_info is not None


@pytest.mark.parametrize(("lost", "alone"), [(1, []), (2, ["a", "b"])])
def test_calls_that_lose_a_race_share_another_transaction_once(
    database: Database, caplog: pytest.LogCaptureFixture, lost: int, alone: list[str]
) -> None:
    def lose(_: Sequence[str]) -> None:
        if 1 < len(answers.transactions) <= 1 + lost:
            raise LostRaceError

    answers = Answers(database, lose)
    assert [each.result() for each in answers.call("a", "b")] == ["A", "B"]
    assert answers.transactions == [["first"], ["a", "b"], ["a", "b"]]
    assert sorted(answers.alone) == alone
    assert caplog.records == []


def test_who_answers_others_and_is_stopped_leaves_them_to_themselves(database: Database) -> None:
    def stop(asks: Sequence[str]) -> None:
        if "a" in asks:
            raise StoppedError

    answers = Answers(database, stop)
    a, b, c = answers.call("a", "b", "b-2")
    assert isinstance(a.exception(), StoppedError)
    assert (b.result(), c.result()) == ("B", "B-2")
    assert answers.transactions == [["first"], ["a", "b"], ["b-2"]]


@pytest.mark.parametrize(
    "trouble",
    [
        coded(sqlite3.OperationalError("locked"), sqlite3.SQLITE_BUSY_SNAPSHOT),
        psycopg.errors.DiskFull(),
        psycopg.OperationalError("the server did not answer"),
    ],
)
def test_trouble_of_the_database_is_told_at_once_to_all_who_wait(
    database: Database, trouble: Exception
) -> None:
    def fail(asks: Sequence[str]) -> None:
        if asks != ["first"]:
            raise of_statement(trouble)

    answers = Answers(database, fail)
    asked = answers.call(*(f"{number}" for number in range(20)))
    assert all(isinstance(each.exception(), OperationalError) for each in asked)
    assert len(answers.transactions) == 2
    assert answers.alone == []
    assert database._write_failed_at is not None


@pytest.mark.parametrize("of_locks", [psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable])
def test_locks_that_some_wait_for_are_no_trouble_of_the_others(
    database: Database, of_locks: type[Exception]
) -> None:
    def fail(asks: Sequence[str]) -> None:
        if asks != ["first"]:
            raise of_statement(of_locks())

    answers = Answers(database, fail)
    assert [each.result() for each in answers.call("a", "b")] == ["A", "B"]
    with pytest.raises(OperationalError), database.write():
        raise of_statement(of_locks())
    assert database.check_usable() is None


@ON_BOTH
def test_claims_that_share_a_transaction_get_what_they_would_get_one_after_the_other(
    database: Database,
) -> None:
    a, again, b, c = add_tables(database, ["a", "a", "b", "c"])
    (other,) = add_tables(database, ["z"], "other")
    moments = (START + timedelta(seconds=number) for number in range(5))
    ids = {
        request(database, table, now=moment, priority=table == c): table
        for table, moment in zip((a, again, b, c, other), moments, strict=True)
    }
    workers = [add_worker(database) for _ in range(6)]
    with database.write() as session:
        session.add(Webhook(name="w", url="https://x.example", kinds=["job"], secret="env:S", created_by="n"))
    with database.write() as session:
        asks = [Ask(SYSTEM, worker) for worker in workers]
        answers = claim_together(session, SETTINGS, asks, START + timedelta(minutes=1))
    assert list(answers) == workers
    given = [answer for answer in answers.values() if answer is not None]
    # But for the other branch of a table that another one has by now.
    assert [ids[answer.job.id] for answer in given] == [c, other, a, b]
    assert list(answers.values())[4:] == [None, None]
    with database.read() as session:
        run_by = dict(session.exec(select(Attempt.job_id, Attempt.worker_id)).all())
        assert run_by == {answer.job.id: worker for answer, worker in zip(given, workers, strict=False)}
        told = session.exec(select(jobs.Event.job_id).where(jobs.Event.kind == "job.running")).all()
        assert sorted(map(str, told)) == sorted(run_by)
        sent = session.exec(select(WebhookDelivery.kind)).all()
        assert sent.count("job.running") == len(given)


def queue_of(database: Database, chosen: random.Random) -> None:
    """Jobs of tables in several catalogs, some with limits, spent budgets, or nothing left to do."""
    tables = [
        table
        for number in range(4)
        for table in add_tables(database, chosen.choices("abcdefgh", k=4), f"catalog-{number}")
    ]
    budgets = {"of-table": {"table_seconds_per_day": 1}, "of-catalog": {"catalog_seconds_per_day": 1}}
    spent = chosen.sample(tables, 3)
    with database.write() as session:
        for name, budget in budgets.items():
            settings = PolicySettings.model_validate({"budget": budget})
            create_policy(session, SETTINGS, SYSTEM, PolicyRequest(name=name, settings=settings))
        places = [AttachmentRequest(level=Level.TABLE, table_id=each, policy="of-table") for each in spent]
        places.append(AttachmentRequest(level=Level.CATALOG, catalog="catalog-0", policy="of-catalog"))
        for place in places:
            attach_policy(session, SYSTEM, place)
    before = START - timedelta(hours=1)
    for table in (*spent, chosen.choice(tables[:4])):
        request(database, table, JobKind.VERIFY, before)
        given = claim(database, add_worker(database), before)
        assert given is not None
        finish(database, given.job.id, given.attempt, "succeeded", START)
    for table in tables * 2:
        kind, is_dry = chosen.choice(_KINDS), chosen.random() < 0.3
        moment = START - timedelta(seconds=chosen.randrange(9))
        trigger = chosen.choice([POLICY, REQUEST])
        priority = chosen.randrange(2)
        request(database, table, kind, moment, dry_run=is_dry, priority=priority, trigger=trigger)
    with database.write() as session:
        for catalog in session.exec(select(Catalog)):
            catalog.max_running_jobs = chosen.choice([None, 1, 3])


@ON_BOTH
@pytest.mark.parametrize("seed", range(4))
def test_claims_together_get_the_jobs_of_claims_one_after_the_other(database: Database, seed: int) -> None:
    queue_of(database, random.Random(seed))
    workers = [add_worker(database) for _ in range(16)]

    def queue_after(session: Session) -> list[Any]:
        session.flush()
        columns = "id, status, attempt, available_at, held_because, table_claimed_at"
        return list(session.connection().execute(text(f"SELECT {columns} FROM jobs ORDER BY id")))

    for number in range(3):
        now = START + timedelta(minutes=number)
        asks = [Ask(SYSTEM, worker) for worker in workers[2 * number :]]
        with database.write() as session:
            given = claim_together(session, SETTINGS, asks, now)
            together = [answer and answer.job.id for answer in given.values()], queue_after(session)
            session.rollback()
        with database.write() as session:
            one_by_one = [claims.claim(session, SETTINGS, ask, now) for ask in asks]
            alone = [answer and answer.job.id for answer in one_by_one], queue_after(session)
            session.rollback()
        assert together == alone
        assert number or None not in alone[0][:2]
        for worker in workers[2 * number :][:2]:
            claim(database, worker, now)


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
@pytest.mark.parametrize("seed", range(3))
def test_claims_of_two_replicas_at_once_run_no_job_that_may_not(database: Database, seed: int) -> None:
    queue_of(database, random.Random(seed))
    workers = [add_worker(database) for _ in range(16)]
    given: list[Assignment] = []

    def work(number: int) -> None:
        mine = [(Ask(SYSTEM, worker), worker) for worker in workers[number::2]]
        answers = [get() for get in replica(database).call_all(mine)]
        given.extend(answer for answer in answers if answer is not None)

    at_once(2, work)
    with database.read() as session:
        running = session.exec(select(Job).where(Job.status == JobStatus.RUNNING.value)).all()
        limits = dict(session.exec(select(Catalog.id, Catalog.max_running_jobs)).all())
        attempted = session.exec(select(Attempt).where(Attempt.status == AttemptStatus.RUNNING.value)).all()
    assert {each.id for each in running} == {answer.job.id for answer in given}
    assert sorted(each.job_id for each in attempted) == sorted(each.id for each in running)
    assert all(not each.writes or each.kind != JobKind.DROP_INDEX.value for each in running)
    writing = [each.table_uuid for each in running if each.writes]
    assert len(writing) == len(set(writing))
    for catalog_id, number in Counter(each.catalog_id for each in running).items():
        limit = limits[catalog_id]
        assert limit is None or number <= limit


def count_waiting(database: Database) -> int:
    """How many transactions wait for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with database.read() as session:
        return int(session.connection().scalar(text(f"{waiting} AND datname = current_database()")))


def replica(database: Database, alone: Callable[[Ask], None] = lambda ask: None) -> Together[Ask, Any]:
    """The claims of a process of its own. alone: called with each that is answered alone."""

    def claim_alone(session: Session, ask: Ask) -> Assignment | None:
        alone(ask)
        return claims.claim(session, SETTINGS, ask, START)

    return Together(
        database, lambda session, asks: claim_together(session, SETTINGS, asks, START), claim_alone
    )


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_claims_whose_job_another_writer_holds_up_choose_again_together(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.db.together._WAIT_FOR_NO_LOCK", f"SET LOCAL lock_timeout = {_PATIENCE_MS}")
    tables = add_tables(database, ["a", "a", "b"])
    ids = [request(database, table, priority=-number) for number, table in enumerate(tables)]
    first, *others = (add_worker(database) for _ in range(3))
    alone: list[Ask] = []
    with ThreadPoolExecutor(1) as threads:
        with database.write() as session:
            running = claims.claim(session, SETTINGS, Ask(SYSTEM, first), START)
            session.flush()
            mine = [(Ask(SYSTEM, each), each) for each in others]
            asked = threads.submit(replica(database, alone.append).call_all, mine)
            wait_until(lambda: count_waiting(database), "claims that wait for the writer")
        given = [get() for get in asked.result()]
    assert [each and each.job.id for each in (running, *given)] == [ids[0], ids[2], None]
    assert alone == []


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_claims_that_let_jobs_run_wait_for_no_catalog_of_others(database: Database) -> None:
    """These might wait for one of theirs."""
    (here,), (held, there) = add_tables(database, ["a"], "here"), add_tables(database, ["b", "c"], "there")
    with database.write() as session:
        session.exec(update(Catalog).values(max_running_jobs=2))
    for priority, table in enumerate((there, here, held)):
        request(database, table, priority=priority)
    first, *others = (add_worker(database) for _ in range(3))
    with database.write() as holding:
        assert claims.claim(holding, SETTINGS, Ask(SYSTEM, first), START) is not None
        with pytest.raises(LostRaceError), database.write() as session:
            claim_together(session, SETTINGS, [Ask(SYSTEM, each) for each in others], START)
    with database.write() as session:
        given = claim_together(session, SETTINGS, [Ask(SYSTEM, each) for each in others], START)
    assert [answer and answer.table.id for answer in given.values()] == [here, there]


@ON_BOTH
def test_calls_that_share_a_transaction_take_no_statement_of_their_own(database: Database) -> None:
    for table in add_tables(database, list("abcdefgh")):
        request(database, table)
    workers = [add_worker(database) for _ in range(8)]
    with statements_of(database) as claiming, database.write() as session:
        answers = claim_together(session, SETTINGS, [Ask(SYSTEM, each) for each in workers], START)
    reports = [FinishRequest(status="succeeded", rows=number % 2) for number in range(8)]
    with statements_of(database) as reporting, database.write() as session:
        ends = [_end(answer, each) for answer, each in zip(answers.values(), reports, strict=True)]
        finish_together(session, ends, START)
    assert len(claiming) <= 8, claiming
    assert len(reporting) <= 6, "whatever each of them changes"


def test_claims_of_which_there_is_more_to_say_share_no_transaction(database: Database) -> None:
    for table in add_tables(database, ["a", "b"]):
        request(database, table)
    plain, theirs, stopping, unheard, cut_off = (add_worker(database) for _ in range(5))
    claim(database, unheard)
    asks = [
        Ask(SYSTEM, "unknown"),
        Ask(STRANGER, theirs),
        Ask(SYSTEM, stopping, is_stopping=True),
        Ask(SYSTEM, unheard),
        Ask(SYSTEM, cut_off, [AttemptId(job_id="x", attempt=1)]),
        Ask(SYSTEM, plain),
    ]
    with database.write() as session:
        (answered,) = claim_together(session, SETTINGS, asks, START)
    assert answered == plain
    with database.read() as session:
        attempts = session.exec(select(Attempt.worker_id, Attempt.status)).all()
    assert set(attempts) == {(each, AttemptStatus.RUNNING.value) for each in (plain, unheard)}


@ON_BOTH
def test_reports_that_share_a_transaction_end_each_its_attempt(database: Database) -> None:
    tables = add_tables(database, ["a", "b", "c"])
    for table in tables:
        request(database, table)
    given = [claim(database, add_worker(database)) for _ in tables]
    broken = FinishRequest.model_validate(
        {
            "status": "failed",
            "error": {"code": "x", "title": "T", "detail": "d", "remedy": "r", "retryable": True},
        }
    )
    reports = [DONE, broken, DONE]
    later = START + timedelta(minutes=1)
    with database.write() as session:
        ends = [_end(answer, report) for answer, report in zip(given, reports, strict=True)]
        finish_together(session, ends, later)
    states = [JobStatus(job(database, end.job_id).status) for end in ends]
    assert states == [JobStatus.SUCCEEDED, JobStatus.QUEUED, JobStatus.SUCCEEDED]
    with database.read() as session:
        kinds = session.exec(select(jobs.Event.kind).where(jobs.Event.at == later)).all()
        assert sorted(kinds) == ["job.retry", "job.succeeded", "job.succeeded"]
        assert set(session.exec(select(TableHealth.maintenance_seconds)).all()) == {60.0}


@ON_BOTH
def test_reports_that_are_late_or_a_stranger_s_share_no_transaction(database: Database) -> None:
    for table in add_tables(database, ["a", "b", "c"]):
        request(database, table)
    late, theirs, plain = (_end(claim(database, add_worker(database))) for _ in range(3))
    finish(database, late.job_id, 1, "succeeded")
    with database.write() as session:
        ends = [late, theirs._replace(caller=STRANGER), plain]
        assert list(finish_together(session, ends, START)) == [plain.job_id]
    assert job(database, theirs.job_id).status == JobStatus.RUNNING.value
    assert job(database, plain.job_id).status == JobStatus.SUCCEEDED.value


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
@pytest.mark.parametrize("is_health", [False, True], ids=["job", "health"])
def test_a_report_that_waits_for_a_lock_holds_up_no_other(
    database: Database, is_health: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = add_tables(database, ["a", "b", "c"])
    for table in tables:
        request(database, table)
    ends = [_end(claim(database, add_worker(database))) for _ in tables]
    for bound in ("_LOCK_SECONDS", "_ANSWER_SECONDS", "_IDLE_SECONDS"):
        monkeypatch.setattr(f"service.db.database.{bound}", int(PATIENCE_SECONDS))
    patient = Database(database.url)
    together = ends_reported_to(patient)
    with ThreadPoolExecutor(2) as threads:
        with patient.write() as holder:
            if is_health:
                table_id = job(database, ends[0].job_id).table_id
                holder.exec(
                    select(TableHealth).where(TableHealth.table_id == table_id).with_for_update()
                ).one()
            else:
                lock_job(holder, ends[0].job_id)
            together._is_led = True
            waiting, beside = (threads.submit(together.call, each, each.job_id) for each in ends[:2])
            await_calls(together, 2)
            with together._lock:
                together._let_first_lead()
            beside.result()
            together.call(ends[2], ends[2].job_id)
            assert not waiting.done()
        waiting.result()
    patient.dispose()
    assert {job(database, each.job_id).status for each in ends} == {JobStatus.SUCCEEDED.value}


def _end(answer: Assignment | None, report: FinishRequest = DONE) -> End:
    assert answer is not None
    return End(SYSTEM, answer.job.id, answer.attempt, report)
