"""The worker process itself, with a job and a service that only pretend."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from telemetry.logs import JsonFormatter
from tests.patience import PATIENCE_SECONDS, wait_until
from worker.agent.log_lines import LONGEST_LINE, MOST_LINES, LogLines
from worker.agent.reporter import AttemptReporter
from worker.agent.worker import Worker
from worker.attempt.outcome import Outcome
from worker.contract.control_plane import (
    Assignment,
    AttemptId,
    AttemptReport,
    ControlPlaneError,
    Event,
    RefusedReportError,
    Renewed,
    StaleAttemptError,
)
from worker.process.errors import JobCancelledError, ReportRefusedError
from worker.process.redaction import Redaction
from worker.spark import jvm_watch
from worker.spark.jvm_watch import JvmWatch
from worker.spark.tasks import TaskRunner

ASSIGNMENT = Assignment.model_validate(
    {
        "job": {"id": "j", "kind": "index"},
        "attempt": 1,
        "lease_seconds": 0.2,
        "table": {"id": "t", "identifier": ["db", "t"], "branch": "main"},
        "catalog": {"name": "c", "type": "sql", "properties": {}},
        "index": {"warehouse": "file:///index"},
    }
)


class Service:
    """Its one attempt's reports; `on_finish` may do something first. A claim brings what `on_claim` does."""

    def __init__(self) -> None:
        self.on_claim: Callable[[], Assignment | None] = lambda: pytest.fail("it claims")
        self.left: list[list[AttemptId]] = []
        """What each call of a worker that leaves has given up."""
        self.reported: list[str] = []
        self.told: list[Event] = []
        self.heartbeats = 0
        self.cancel_requested = False
        self.error: dict[str, Any] | None = None
        self.result: dict[str, Any] | None = None
        self.on_finish: Callable[[], None] = lambda: None
        self.refuses = "\0"
        """Calls in which something that was told has this."""
        self.clock_behind = timedelta()
        self.claimed_next: list[bool] = []
        """Of each report of an attempt's end, whether the worker is free then."""
        self.next_jobs: list[Assignment] = []
        self.next_address: int | None = 0
        """None if no heartbeat gets addresses."""
        self.granted: list[tuple[int, int]] = []
        """Addresses that calls of their own asked for."""

    def register(self, _: str) -> None:
        pass

    def claim(self, *_: object) -> Assignment | None:
        return self.on_claim()

    def leave(self, given_up: list[AttemptId]) -> None:
        self.left.append(given_up)

    def attempt(self, assignment: Assignment, redaction: Redaction) -> AttemptReport:
        control_plane: Any = self
        return AttemptReport(control_plane, assignment, redaction)

    def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if path.endswith("/address-ranges"):
            self.granted.append((body["rows"], body["at_least"]))
            return httpx.Response(201, json={"base_address": 1000})
        if any(self.refuses in event["message"] for event in body["events"]):
            raise RefusedReportError("it has what nobody may say")
        if path.endswith("/heartbeat"):
            self.told += [Event(**event) for event in body["events"]]
            self.heartbeats += 1
            now = (datetime.now(UTC) - self.clock_behind).isoformat()
            answer = {"now": now, "cancel_requested": self.cancel_requested}
            if body["addresses"] is not None and self.next_address is not None:
                answer["addresses"] = {"base_address": self.next_address}
                self.next_address += body["addresses"]["rows"]
            return httpx.Response(200, json=answer)
        self.claimed_next.append(body["claims_next"])
        self.on_finish()
        self.reported.append(body["status"])
        self.told += [Event(**event) for event in body["events"]]
        self.error, self.result = body["error"], body["result"]
        if body["claims_next"] and self.next_jobs:
            return httpx.Response(200, json=self.next_jobs.pop(0).model_dump(mode="json"))
        return httpx.Response(204)


class Runner:
    is_usable = True


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def worker(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    pretended: Any = service
    runner: Any = Runner()
    worker = Worker(pretended, runner)
    monkeypatch.setattr("worker.agent.worker.run_job", lambda *_: Outcome({}, {}))
    for waits in ("worker", "reporter"):
        monkeypatch.setattr(f"worker.agent.{waits}.RETRY_SECONDS", 0.05)
    monkeypatch.setattr("worker.agent.worker.SETTLE_SECONDS", 0.0)
    before = signal.signal(signal.SIGTERM, worker.stop)
    yield worker
    signal.signal(signal.SIGTERM, before)


def ask_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_job_that_has_ended_is_reported_although_the_process_is_asked_to_stop(
    worker: Worker, service: Service
) -> None:
    service.on_finish = ask_to_stop
    worker.run_attempt(ASSIGNMENT)
    assert service.reported == ["succeeded"]


def test_a_running_job_is_handed_back(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.agent.worker.run_job", lambda *_: ask_to_stop())
    worker.run_attempt(ASSIGNMENT)
    assert service.reported == ["released"]


def test_a_job_that_takes_longer_than_it_may_ends_at_its_next_step(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object, __: object, reporter: AttemptReporter, ___: object) -> None:
        while True:
            reporter.progress("lookup", 0, 1, "files")
            time.sleep(0.01)

    monkeypatch.setattr("worker.agent.worker.run_job", run)
    assert worker.run_attempt(ASSIGNMENT.model_copy(update={"timeout_seconds": 0.1}))
    assert service.reported == ["failed"]
    assert service.error is not None
    assert (service.error["code"], service.error["retryable"]) == ("timed_out", True)


def test_a_job_that_came_with_the_wish_to_stop_is_handed_back_at_once(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.agent.worker.run_job", lambda *_: pytest.fail("it ran"))
    ask_to_stop()
    worker.run_attempt(ASSIGNMENT)
    assert service.reported == ["released"]


def test_a_report_that_is_never_taken_holds_the_job_for_a_lease_at_most(
    worker: Worker, service: Service
) -> None:
    calls = []

    def fails() -> None:
        calls.append(1)
        raise ControlPlaneError("the service answered 500")

    service.on_finish = fails
    worker.run_attempt(ASSIGNMENT)
    assert service.reported == []
    assert len(calls) > 1


def test_what_a_job_told_last_comes_with_the_report_of_its_end(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object, __: object, reporter: AttemptReporter, ___: object) -> Outcome:
        reporter._stopped.set()  # no heartbeat comes in between
        reporter.decide("decided")
        return Outcome({}, {})

    troubles = [ControlPlaneError("the service answered 503")]

    def fails_once() -> None:
        if troubles:
            raise troubles.pop()

    service.on_finish = fails_once
    monkeypatch.setattr("worker.agent.worker.run_job", run)
    assert worker.run_attempt(ASSIGNMENT)
    assert [event.message for event in service.told if event.kind == "message"] == ["decided"]
    assert service.heartbeats == 0


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_is_reported_without_what_is_refused_of_it(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def run(_: object, __: object, reporter: AttemptReporter, ___: object) -> Outcome:
        reporter._stopped.set()  # no heartbeat comes in between
        reporter.decide("odd")
        if fails:
            raise ReportRefusedError("of the job's own")
        return Outcome({"commits": 1}, {})

    service.refuses = "odd"
    monkeypatch.setattr("worker.agent.worker.run_job", run)
    assert worker.run_attempt(ASSIGNMENT)
    assert service.reported == ["failed" if fails else "succeeded"]
    assert (service.result, (service.error or {}).get("detail")) == (
        (None, "of the job's own") if fails else ({"commits": 1}, None)
    )
    (told,) = [event for event in service.told if event.kind == "message"]
    assert told.level == "error"
    assert "nobody may say" in told.message


def test_a_lease_is_renewed_without_what_is_refused_of_a_heartbeat(service: Service) -> None:
    reporter = AttemptReporter(service.attempt(ASSIGNMENT, Redaction()), inf, LogLines(Redaction()))
    service.refuses = "odd"
    reporter.decide("odd")
    reporter.confirm_lease()
    reporter.decide("even")
    reporter.confirm_lease(anew=True)
    assert service.heartbeats == 2
    assert [event.level for event in service.told] == ["error", "info"]


def test_text_that_the_service_has_no_place_for_is_told_without_it(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"decisions": ["a catalog says \0 or \udc80"]}
    monkeypatch.setattr("worker.agent.worker.run_job", lambda *_: Outcome(said, {}))
    assert worker.run_attempt(ASSIGNMENT)
    assert service.result == {"decisions": ["a catalog says \ufffd or \ufffd"]}


def test_whoever_leaves_tells_of_the_attempt_that_it_could_not_report(
    worker: Worker, service: Service
) -> None:
    def refuse() -> None:
        ask_to_stop()
        raise StaleAttemptError

    service.on_claim = lambda: ASSIGNMENT
    service.on_finish = refuse
    worker.run("w")
    assert service.left == [[AttemptId(job_id="j", attempt=1)]]


def test_whoever_leaves_after_a_lost_answer_hands_back_what_it_would_have_brought(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_the_answer() -> None:
        threading.Timer(0.2, ask_to_stop).start()
        raise ControlPlaneError("the answer was lost")

    monkeypatch.setattr("worker.agent.worker.RETRY_SECONDS", 60.0)
    service.on_claim = lose_the_answer
    worker.run("w")
    assert service.left == [[]]


def test_a_job_that_comes_with_the_answer_to_a_report_runs_without_a_claim(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(assignment: Assignment, *_: object) -> Outcome:
        ran.append(assignment.attempt)
        return Outcome({}, {})

    def stop() -> None:
        ask_to_stop()
        raise ControlPlaneError("it stops")

    ran = list[int]()
    monkeypatch.setattr("worker.agent.worker.run_job", run)
    claims = iter((lambda: ASSIGNMENT, stop))
    service.on_claim = lambda: next(claims)()
    service.next_jobs = [ASSIGNMENT.model_copy(update={"attempt": number}) for number in (2, 3)]
    worker.run("w")
    assert ran == [1, 2, 3]
    assert (service.reported, service.claimed_next) == (["succeeded"] * 3, [True] * 3)


def test_a_worker_that_stops_claims_nothing_with_its_report_and_hands_back_what_came(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.on_claim = lambda: ASSIGNMENT
    service.on_finish = ask_to_stop  # while it is answered
    service.next_jobs = [ASSIGNMENT] * 2
    worker.run("w")
    assert (service.reported, service.left, len(service.next_jobs)) == (["succeeded"], [[]], 1)
    assert worker.run_attempt(ASSIGNMENT)
    assert (service.claimed_next, len(service.next_jobs)) == ([True, False], 1)


def test_expected_row_addresses_come_with_a_heartbeat(service: Service) -> None:
    report = service.attempt(ASSIGNMENT, Redaction())
    reporter = AttemptReporter(report, 600.0, LogLines(Redaction()))
    reporter.expect_row_addresses(10)
    reporter.confirm_lease()
    assert [reporter.grant_row_addresses(4, at_least) for at_least in (0, 5)] == [0, 5]
    assert service.granted == []
    assert reporter.grant_row_addresses(2, 0) == 1000, "more than is left"
    service.next_address = None
    reporter.expect_row_addresses(10)
    reporter.confirm_lease(anew=True)
    assert reporter.grant_row_addresses(3, 7) == 1000
    assert service.granted == [(2, 0), (3, 7)]


def test_what_is_logged_during_a_job_is_sent_without_secrets(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CATALOG_URI", "postgresql+psycopg://me:s%40fe-word@host/db")
    given = {"uri": "env:CATALOG_URI", "warehouse": "s3://bucket"}
    catalog = ASSIGNMENT.catalog.model_copy(update={"properties": given})

    def fail(*_: object) -> Outcome:
        logging.getLogger("some.library").warning("connecting as %s", "s@fe-word")
        for line in range(MOST_LINES):
            logging.getLogger("some.library").info("line %d %s", line, "x" * LONGEST_LINE)
        raise RuntimeError("no connection to postgresql+psycopg://me:s%40fe-word@host/db")

    monkeypatch.setattr("worker.agent.worker.run_job", fail)
    caplog.set_level(logging.INFO)
    worker.run_attempt(ASSIGNMENT.model_copy(update={"catalog": catalog}))
    logging.getLogger("some.library").warning("nobody's")
    # A heartbeat may overtake the end's report.
    lines = sorted((event for event in service.told if event.kind == "log"), key=lambda e: e.fields["at"])
    assert [line.message for line in lines[:2]] == ["Job j (index of db.t), attempt 1", "connecting as ***"]
    assert (lines[1].level, lines[1].fields["logger"]) == ("warning", "some.library")
    assert len(lines) == MOST_LINES
    assert lines[-1].message == "There are more lines in the worker's own log."
    assert max(len(line.message) for line in lines) == LONGEST_LINE


def test_lines_of_an_attempt_name_it_and_no_secret_from_any_thread(
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CATALOG_URI", "postgresql+psycopg://me:s%40fe-word@host/db")
    catalog = ASSIGNMENT.catalog.model_copy(update={"properties": {"uri": "env:CATALOG_URI"}})

    def run(*_: object) -> Outcome:
        thread = threading.Thread(target=logging.getLogger("some.library").warning, args=["with s@fe-word"])
        thread.start()
        thread.join()
        return Outcome({}, {})

    monkeypatch.setattr("worker.agent.worker.run_job", run)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [*root.handlers, handler])
    caplog.set_level(logging.INFO)
    worker.run_attempt(ASSIGNMENT.model_copy(update={"catalog": catalog}))
    root.warning("nobody's")
    lines = {line["message"]: line for line in map(json.loads, capsys.readouterr().err.splitlines())}
    for message in ("with ***", "Reported as succeeded"):
        ids = {name: lines[message][name] for name in ("job_id", "attempt", "table_id")}
        assert ids == {"job_id": "j", "attempt": 1, "table_id": "t"}
    assert "job_id" not in lines["nobody's"]


def test_a_result_names_files_and_no_secret(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_TOKEN", "lake")
    monkeypatch.setenv("CATALOG_WAREHOUSE", "s3://bucket")
    given = {"token": "env:CATALOG_TOKEN", "warehouse": "env:CATALOG_WAREHOUSE"}
    catalog = ASSIGNMENT.catalog.model_copy(update={"properties": given})
    path = "s3://bucket/lake/1.parquet"
    refused = {"file_path": path, "reason": f"{path}: Bearer fetched-token", "rows": 1}
    monkeypatch.setattr("worker.agent.worker.run_job", lambda *_: Outcome({"unconvertible": [refused]}, {}))
    worker.run_attempt(ASSIGNMENT.model_copy(update={"catalog": catalog}))
    assert service.result == {
        "unconvertible": [refused | {"reason": "s3://bucket/***/1.parquet: Bearer ***"}]
    }


def test_the_traceback_of_what_nobody_foresaw_is_among_the_lines(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_TOKEN", "s3cr3t")
    catalog = ASSIGNMENT.catalog.model_copy(update={"properties": {"token": "env:CATALOG_TOKEN"}})

    def fail(*_: object) -> Outcome:
        raise RuntimeError("refused: s3cr3t")

    monkeypatch.setattr("worker.agent.worker.run_job", fail)
    worker.run_attempt(ASSIGNMENT.model_copy(update={"catalog": catalog}))
    (line,) = [event for event in service.told if event.kind == "log" and event.level == "error"]
    assert "Traceback" in line.message
    assert "RuntimeError: refused: ***" in line.message
    assert service.error is not None
    assert service.error["detail"].startswith("RuntimeError: refused: *** (")


def test_a_worker_shows_life_while_it_waits_for_work_and_while_a_job_runs(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alive_file, seen = tmp_path / "alive", []

    def wait_for_life() -> Outcome:
        # Each time it is there anew, something touched it.
        for _ in range(2):
            while not alive_file.exists():
                time.sleep(0.01)
            alive_file.unlink()
            seen.append("in a job")
        return Outcome({}, {})

    def claim(*_: object) -> Assignment | None:
        seen.append("before a claim" if alive_file.exists() else "no life")
        alive_file.unlink()
        if len(seen) == 1:
            raise ControlPlaneError("the service can't be reached")
        if len(seen) == 2:
            return ASSIGNMENT
        started.stop(signal.SIGTERM, None)
        return None

    pretended: Any = service
    runner: Any = Runner()
    pretended.claim, pretended.register = claim, lambda _: None
    pretended.leave = lambda _: seen.append("left")
    monkeypatch.setattr("worker.agent.worker.run_job", lambda *_: wait_for_life())
    monkeypatch.setattr("worker.agent.worker.RETRY_SECONDS", 0.05)
    started = Worker(pretended, runner, alive_file)
    started.run("w")
    assert seen == ["before a claim", "before a claim", "in a job", "in a job", "before a claim", "left"]
    assert service.reported == ["succeeded"]


def test_a_file_of_life_that_cannot_be_written_stops_no_job(service: Service, tmp_path: Path) -> None:
    pretended: Any = service
    runner: Any = Runner()
    Worker(pretended, runner, tmp_path / "no" / "folder").run_attempt(ASSIGNMENT)


class Jvm:
    """A runner whose JVM answers so often that Spark works, and then hangs."""

    def __init__(self, answers: int, works: bool = True) -> None:
        self.is_alive = True
        self.answers = answers
        self.works = works
        self.ended = threading.Event()

    def ping(self) -> bool:
        self.answers -= 1
        if self.answers < 0:
            self.ended.wait()
            raise ConnectionError
        return self.works

    def kill_jvm(self) -> None:
        self.is_alive = False
        self.ended.set()


def test_a_jvm_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm_watch, "JVM_SILENCE_SECONDS", 0.2)
    jvm = Jvm(answers=3)
    with JvmWatch(cast("TaskRunner", jvm)):
        assert jvm.ended.wait(PATIENCE_SECONDS)
    assert not jvm.is_alive


def test_a_jvm_that_could_not_be_asked_for_lack_of_memory_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jvm_watch, "JVM_SILENCE_SECONDS", 4.0)
    jvm = Jvm(answers=3)
    answered, ask = threading.Event(), jvm.ping

    def ping() -> bool:
        works = ask()
        if jvm.answers == 2:
            raise MemoryError
        answered.set()
        return works

    monkeypatch.setattr(jvm, "ping", ping)
    with JvmWatch(cast("TaskRunner", jvm)):
        assert answered.wait(PATIENCE_SECONDS)
    assert jvm.is_alive


def test_a_jvm_in_which_spark_has_ended_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm_watch, "JVM_SILENCE_SECONDS", 4.0)
    jvm = Jvm(answers=1, works=False)
    with JvmWatch(cast("TaskRunner", jvm)):
        assert jvm.ended.wait(PATIENCE_SECONDS)
    assert (jvm.is_alive, jvm.answers) == (False, 0)


def test_a_worker_without_spark_claims_nothing(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "is_usable", False)
    worker.run("w")  # a claim of the pretended service would fail


def test_a_job_that_comes_after_spark_has_ended_is_handed_back_and_no_other_claimed(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def claim() -> Assignment:
        monkeypatch.setattr(Runner, "is_usable", False)
        return ASSIGNMENT

    def run(*_: object) -> Outcome:
        raise AssertionError("it ran")

    monkeypatch.setattr("worker.agent.worker.run_job", run)
    service.on_claim = claim
    worker.run("w")  # another claim of the pretended service would fail
    assert (service.reported, service.left) == (["released"], [[]])


def test_spark_that_ends_during_a_job_is_the_cause_of_its_failure(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_spark(*_: object) -> Outcome:
        monkeypatch.setattr(Runner, "is_usable", False)
        raise RuntimeError("Cannot call methods on a stopped SparkContext")

    monkeypatch.setattr("worker.agent.worker.run_job", lose_spark)
    service.on_claim = lambda: ASSIGNMENT
    worker.run("w")
    assert service.reported == ["failed"]
    assert service.error is not None
    assert (service.error["code"], service.error["retryable"]) == ("jvm_lost", True)


SPARK_THAT_ENDS = """
import json
from pyspark.sql import SparkSession
from tests.worker.agent.test_main import ASSIGNMENT, Service
from worker.agent import worker
from worker.spark.tasks import TaskRunner

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
runner, service = TaskRunner(spark), Service()
seen = [runner.is_usable]

def claim():
    spark.sparkContext._jsc.stop()
    return ASSIGNMENT

service.on_claim = claim
worker.run_job = lambda *_: seen.append("it ran")
worker.Worker(service, runner).run("w")
seen += [runner.is_alive, runner.is_usable]
runner.kill_jvm()
print(json.dumps([*seen, runner.is_usable, service.reported, service.left]))
"""


# Beside test_a_job_that_comes_after_spark_has_ended_is_handed_back_and_no_other_claimed.
@pytest.mark.exhaustive
@pytest.mark.integration
def test_a_real_spark_that_has_ended_runs_no_job() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SPARK_THAT_ENDS],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert json.loads(ended.stdout) == [True, True, False, False, ["released"], [[]]]


def test_a_worker_that_is_asked_to_stop_ends_whatever_hangs() -> None:
    code = (
        "import threading; from worker.agent import main;"
        "main.STOP_SECONDS = 0.2;"
        "jvm = type('Jvm', (), {'kill_jvm': lambda self: print('ended', flush=True)})();"
        "main._end_in_time(jvm); threading.Event().wait()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (ended.returncode, ended.stdout) == (1, "ended\n")
    assert "Something still hangs" in ended.stderr


def test_a_worker_whose_job_goes_on_after_its_attempt_was_taken_away_ends(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def taken_away(*_: object) -> httpx.Response:
        raise StaleAttemptError

    def hang(*_: object) -> Outcome:
        assert ended.wait(PATIENCE_SECONDS)
        return Outcome({}, {})

    monkeypatch.setattr(service, "_post", taken_away)
    monkeypatch.setattr("worker.agent.reporter.HUNG_SECONDS", 0.05)
    monkeypatch.setattr("worker.agent.worker.end_at_once", lambda *_: ended.set())
    monkeypatch.setattr("worker.agent.worker.run_job", hang)
    assert not worker.run_attempt(ASSIGNMENT)
    assert ended.is_set()


def test_what_a_heartbeat_had_no_memory_for_is_told_by_the_next_one(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    known = threading.Event()

    def heartbeat(_: object, __: object, events: Sequence[Event], *___: object) -> Renewed:
        if not told:
            told.append("nothing")
            raise MemoryError
        told.extend(event.message for event in events)
        if "decided" in told:
            known.set()
        return Renewed(cancel_requested=False, base_address=None)

    def run(_: object, __: object, reporter: AttemptReporter, ___: object) -> Outcome:
        reporter.decide("decided")
        assert known.wait(PATIENCE_SECONDS)
        return Outcome({}, {})

    monkeypatch.setattr(AttemptReport, "heartbeat", heartbeat)
    monkeypatch.setattr("worker.agent.worker.run_job", run)
    assert worker.run_attempt(ASSIGNMENT)
    assert service.reported == ["succeeded"]


def test_a_report_that_had_no_memory_is_made_again(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.agent.worker.RETRY_SECONDS", 0.0)
    shortages = [MemoryError()]

    def fails() -> None:
        if shortages:
            raise shortages.pop()

    service.on_finish = fails
    assert worker.run_attempt(ASSIGNMENT)
    assert service.reported == ["succeeded"]


def test_a_clock_is_compared_with_the_one_of_the_service_that_answers(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def look(_: object, __: object, reporter: AttemptReporter, ___: object) -> Outcome:
        for hours in (2, -2):
            service.clock_behind = timedelta(hours=hours)
            reporter._confirmed_at = -inf
            reporter.confirm_lease()
            seen.append(reporter.seconds_ahead)
        return Outcome({}, {})

    monkeypatch.setattr("worker.agent.worker.run_job", look)
    worker.run_attempt(ASSIGNMENT)
    # At least: what the answer took on its way counts for the service's clock.
    assert [round(seconds / 3600) for seconds in seen] == [2, -2]
    assert all(seconds <= hours * 3600 for seconds, hours in zip(seen, (2, -2), strict=True))


def test_a_lease_that_was_just_renewed_is_not_renewed_again(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both commits to an index ask for it, one right after the other."""
    counts: list[int] = []

    def look(_: object, __: object, reporter: AttemptReporter, ___: object) -> Outcome:
        reporter._stopped.set()  # no heartbeat comes in between
        for _ in range(2):
            for _ in range(3):
                reporter.confirm_lease()
            counts.append(service.heartbeats)
            reporter._confirmed_at -= 20.0
        reporter.confirm_lease()
        reporter.confirm_lease(anew=True)
        counts.append(service.heartbeats)
        reporter._confirmed_at -= 20.0
        service.cancel_requested = True
        for _ in range(2):
            with pytest.raises(JobCancelledError):
                reporter.confirm_lease()
            counts.append(service.heartbeats)
        return Outcome({}, {})

    monkeypatch.setattr("worker.agent.worker.run_job", look)
    assert worker.run_attempt(ASSIGNMENT.model_copy(update={"lease_seconds": 600.0}))
    assert counts == [1, 2, 4, 5, 6]


def test_no_heartbeat_is_sent_so_soon_after_another_call_that_renews_the_lease(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, lives = [0.0], list[int]()
    monkeypatch.setattr("worker.agent.reporter._now", lambda: now[0])
    report = service.attempt(ASSIGNMENT, Redaction())
    show_life = partial(lives.append, 1)
    with AttemptReporter(report, 0.2, LogLines(Redaction()), show_life) as reporter:
        reporter.confirm_lease(anew=True)
        before = len(lives)
        wait_until(lambda: len(lives) > before + 2, "the thread to look twice")
        assert service.heartbeats == 1
        now[0] = 1.0
        wait_until(lambda: service.heartbeats == 2, "a heartbeat")


def test_a_lease_is_renewed_anew_after_the_machine_was_suspended(
    worker: Worker, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock stands still meanwhile."""
    now, counts = [0.0], list[int]()

    def look(_: object, __: object, reporter: AttemptReporter, ___: object) -> Outcome:
        reporter._stopped.set()  # no heartbeat comes in between
        for hours in (0, 0, 3):
            now[0] += hours * 3600
            reporter.confirm_lease()
            counts.append(service.heartbeats)
        return Outcome({}, {})

    clocks = SimpleNamespace(
        monotonic=lambda: 0.0, clock_gettime=lambda clock: now[0] * (clock == time.CLOCK_BOOTTIME)
    )
    monkeypatch.setattr("worker.agent.reporter.time", clocks)
    monkeypatch.setattr("worker.agent.worker.run_job", look)
    assert worker.run_attempt(ASSIGNMENT.model_copy(update={"lease_seconds": 600.0}))
    assert counts == [1, 1, 2]
