"""Calls that share a transaction: which do, what that changes for them, and what becomes of the others."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from threading import Event

import psycopg
import pytest
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, select

from service.auth.models import SYSTEM, Principal
from service.db.database import Database
from service.db.together import NotTogetherError, Together
from service.errors import ConflictError, ForbiddenError
from service.jobs.attempts import End, finish_together
from service.jobs.claims import Ask, claim_together
from service.jobs.contract import Assignment, FinishRequest
from service.jobs.queue import lock_job
from service.records import jobs
from service.records.health import TableHealth
from service.records.jobs import Attempt, JobStatus
from service.records.keys import Role
from service.records.webhooks import Webhook, WebhookDelivery
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import ON_BOTH
from tests.service.queue_calls import (
    SETTINGS,
    START,
    add_tables,
    add_worker,
    claim,
    finish,
    job,
    request,
    statements_of,
)

STRANGER = Principal("api_key", "another", "another", Role.WORKER)
DONE = FinishRequest(status="succeeded")


@pytest.fixture
def database_kind() -> str:
    return "sqlite"


class Answers:
    """Answers calls with what they ask; those that come while it is `held` wait."""

    def __init__(
        self, database: Database, trouble: Callable[[Sequence[str]], None] = lambda asks: None
    ) -> None:
        self.trouble = trouble
        self.transactions: list[list[str]] = []
        self.is_held, self.goes_on = Event(), Event()
        self.together = Together[str, str](database, self.answer)

    def answer(self, _session: Session, asks: Sequence[str]) -> Sequence[str]:
        self.transactions.append(list(asks))
        if asks == ["first"]:
            self.is_held.set()
            self.goes_on.wait(PATIENCE_SECONDS)
        self.trouble(asks)
        return [ask.upper() for ask in asks]

    def call(self, *calls: tuple[str, str]) -> list[Future[str]]:
        """What these get that come while another one is answered: what each asks, and its key."""
        with ThreadPoolExecutor(len(calls) + 1) as threads:
            first = threads.submit(self.together.call, "first", "first")
            assert self.is_held.wait(PATIENCE_SECONDS)
            asked = []
            for number, call in enumerate(calls, 1):
                asked.append(threads.submit(self.together.call, *call))
                ends_at = time.monotonic() + PATIENCE_SECONDS
                while len(self.together._calls) < number and time.monotonic() < ends_at:
                    time.sleep(0.001)
            self.goes_on.set()
        assert first.result() == "FIRST"
        return asked


def test_who_comes_meanwhile_shares_one_transaction_but_no_key(database: Database) -> None:
    answers = Answers(database)
    asked = answers.call(("a", "1"), ("b", "2"), ("c", "1"), ("d", "3"))
    assert [each.result() for each in asked] == ["A", "B", "C", "D"]
    assert answers.transactions == [["first"], ["a", "b"], ["c", "d"]]


def test_a_transaction_is_shared_by_few(database: Database) -> None:
    answers = Answers(database)
    answers.call(*((f"{number}", f"{number}") for number in range(20)))
    assert [len(asks) for asks in answers.transactions] == [1, 16, 4]


def test_what_is_wrong_with_one_call_harms_no_other(database: Database) -> None:
    def fail(asks: Sequence[str]) -> None:
        if "b" in asks:
            raise ConflictError("stale-attempt", "It is over.", "Stop.")

    answers = Answers(database, fail)
    a, b, c = answers.call(("a", "1"), ("b", "2"), ("c", "3"))
    assert (a.result(), c.result()) == ("A", "C")
    assert isinstance(b.exception(), ConflictError)
    assert answers.transactions[1:] == [["a", "b", "c"], ["a"], ["b"], ["c"]]


@pytest.mark.parametrize(
    ("trouble", "is_told_all"),
    [(Exception("locked"), True), (psycopg.errors.DeadlockDetected("deadlock detected"), False)],
)
def test_trouble_of_the_database_is_told_to_all_unless_it_comes_of_sharing(
    database: Database, trouble: Exception, is_told_all: bool
) -> None:
    def fail(asks: Sequence[str]) -> None:
        if len(asks) > 1:
            raise OperationalError("UPDATE", None, trouble)

    answers = Answers(database, fail)
    asked = answers.call(("a", "1"), ("b", "2"))
    assert [isinstance(each.exception(), OperationalError) for each in asked] == [is_told_all] * 2


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
    given = [answer for answer in answers if answer is not None]
    # But for the other branch of a table that another one has by now.
    assert [ids[answer.job.id] for answer in given] == [c, other, a, b]
    assert answers[4:] == [None, None]
    with database.read() as session:
        run_by = dict(session.exec(select(Attempt.job_id, Attempt.worker_id)).all())
        assert run_by == {answer.job.id: worker for answer, worker in zip(given, workers, strict=False)}
        told = session.exec(select(jobs.Event.job_id).where(jobs.Event.kind == "job.running")).all()
        assert sorted(map(str, told)) == sorted(run_by)
        sent = session.exec(select(WebhookDelivery.kind)).all()
        assert sent.count("job.running") == len(given)


@ON_BOTH
def test_a_claim_that_shares_takes_four_statements_and_a_report_less_than_one(database: Database) -> None:
    for table in add_tables(database, list("abcdefgh")):
        request(database, table)
    workers = [add_worker(database) for _ in range(8)]
    with statements_of(database) as claiming, database.write() as session:
        answers = claim_together(session, SETTINGS, [Ask(SYSTEM, each) for each in workers], START)
    with statements_of(database) as reporting, database.write() as session:
        finish_together(session, [_end(answer) for answer in answers], START)
    assert len(claiming) <= 4 * 8 + 5, claiming
    assert len(reporting) <= 7, reporting


def test_a_claim_for_somebody_elses_worker_shares_no_transaction_and_touches_it_not(
    database: Database,
) -> None:
    for table in add_tables(database, ["a", "b"]):
        request(database, table)
    mine, theirs = add_worker(database), add_worker(database)
    asks = [Ask(SYSTEM, mine), Ask(STRANGER, theirs)]
    with pytest.raises(ForbiddenError), database.write() as session:
        claim_together(session, SETTINGS, asks, START)
    with database.read() as session:
        assert session.exec(select(Attempt)).all() == []


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
def test_a_report_that_is_late_shares_no_transaction(database: Database) -> None:
    for table in add_tables(database, ["a", "b"]):
        request(database, table)
    given = [claim(database, add_worker(database)) for _ in range(2)]
    ends = [_end(answer) for answer in given]
    finish(database, ends[0].job_id, 1, "succeeded")
    with pytest.raises(NotTogetherError), database.write() as session:
        finish_together(session, ends, START)
    assert job(database, ends[1].job_id).status == JobStatus.RUNNING.value
    with database.write() as session:
        finish_together(session, ends[:1], START)  # the answer to the first report got lost


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_a_report_that_would_wait_for_its_job_shares_no_transaction(database: Database) -> None:
    for table in add_tables(database, ["a", "b"]):
        request(database, table)
    ends = [_end(claim(database, add_worker(database))) for _ in range(2)]
    with database.write() as holder:
        lock_job(holder, ends[1].job_id)
        with pytest.raises(NotTogetherError), database.write() as session:
            finish_together(session, ends, START)


def _end(answer: Assignment | None, report: FinishRequest = DONE) -> End:
    assert answer is not None
    return End(SYSTEM, answer.job.id, answer.attempt, report)
