"""Jobs that run in one process at the same time, and share its Spark session."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from telemetry.logs import JsonFormatter
from tests.factories import Catalog, TableBuilder, equality_delete_files, visible_rows
from tests.http_server import Answer, Request, answering
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.worker.agent.test_main import ASSIGNMENT, Runner, Service
from worker.agent.main import WorkerSettings
from worker.agent.reporter import AttemptReporter
from worker.agent.worker import Worker, run_workers
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome
from worker.contract.control_plane import Assignment
from worker.jobs.pipeline import run_job
from worker.process import slots
from worker.process.errors import OutOfMemoryError
from worker.process.redaction import Redaction
from worker.process.slots import ALONE, Slot, Threads, are_busy
from worker.process.threads import CANT_START
from worker.spark.tasks import TaskRunner, Work

SLOTS = Slot(1, 2), Slot(2, 2)
_addresses = count(0, 1_000_000)


def test_a_worker_runs_one_job_at_a_time_unless_it_is_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WorkerSettings(api_key="k").worker_slots == 1
    assert (ALONE.name("w"), ALONE.pool, ALONE.memory_fraction, ALONE.share(4)) == ("w", None, 1, 4)
    monkeypatch.setenv("ICESTREAM_WORKER_SLOTS", "3")
    slots = [Slot(number, WorkerSettings(api_key="k").worker_slots) for number in (1, 2, 3)]
    assert [slot.name("w") for slot in slots] == ["w/1", "w/2", "w/3"]
    assert len({slot.pool for slot in slots}) == 3
    assert [slot.share(8) for slot in slots] == [2, 2, 2]
    assert Slot(16, 16).share(2) == 1
    monkeypatch.setenv("ICESTREAM_WORKER_SLOTS", "0")
    with pytest.raises(ValidationError):
        WorkerSettings(api_key="k")


@pytest.mark.parametrize(("slots", "fraction"), [(1, 1), (2, 1 / 2), (3, 1 / 4), (4, 1 / 4), (16, 1 / 16)])
def test_jobs_that_share_a_process_hold_no_more_than_one_alone(slots: int, fraction: float) -> None:
    runner: Any = SimpleNamespace(slot=Slot(1, slots))
    reporter: Any = None
    lacking = {"status": "failed", "error": {"code": OutOfMemoryError.code}}
    died = Assignment.model_validate({**ASSIGNMENT.model_dump(), "previous_attempts": [lacking]})
    assert [Job(one, runner, reporter).memory_fraction for one in (ASSIGNMENT, died)] == [
        fraction,
        fraction / 2,
    ]
    # Spark's executors run as many tasks at a time, whoever shares them: only failures make these fewer.
    assert [Job(one, runner, reporter).own_memory_fraction for one in (ASSIGNMENT, died)] == [1, 1 / 2]


def test_a_thread_runs_in_the_context_of_whoever_gives_it_something_to_do() -> None:
    whose: ContextVar[str] = ContextVar("whose", default="nobody's")
    with Threads(1) as threads:
        assert threads.submit(whose.get).result() == "nobody's"
        whose.set("mine")
        assert list(threads.map(lambda _: whose.get(), range(2))) == ["mine", "mine"]


def test_threads_do_one_thing_after_the_other_for_whoever_has_something_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "_idle", [])
    with Threads(2) as first:
        met = threading.Barrier(2)
        used = {first.submit(lambda: (met.wait(), threading.get_ident())[1]) for _ in range(2)}
        idents = {one.result() for one in used}
        # No more than two at a time, which the third one waits for.
        goes_on, begun = threading.Event(), threading.Semaphore(0)

        def hold() -> None:
            begun.release()
            goes_on.wait()

        held = [first.submit(hold) for _ in range(2)]
        third = first.submit(threading.get_ident)
        assert all(begun.acquire(timeout=PATIENCE_SECONDS) for _ in held)
        assert are_busy()
        assert not third.done()
        goes_on.set()
        assert third.result() in idents
    with Threads(1, "another") as second:
        assert second.submit(threading.get_ident).result() in idents
        assert second.submit(threading.current_thread).result().name == "another"
        with pytest.raises(ZeroDivisionError):
            second.submit(divmod, 1, 0).result()
    with pytest.raises(RuntimeError):
        second.submit(int)


def test_what_waits_for_a_thread_can_be_dropped_and_what_runs_is_waited_for() -> None:
    threads, goes_on, begun = Threads(1), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        goes_on.wait()

    runs = threads.submit(hold)
    waits = threads.submit(int)
    assert begun.wait(PATIENCE_SECONDS)
    threads.shutdown(wait=False, cancel_futures=True)
    assert waits.cancelled()
    assert not runs.done()
    goes_on.set()
    threads.shutdown()
    assert runs.done()


def test_a_thread_that_has_nothing_to_do_for_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_idle", [])
    monkeypatch.setattr(slots, "IDLE_SECONDS", 0.01)
    with Threads(1) as threads:
        thread = threads.submit(threading.current_thread).result()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert slots._idle == []
    with Threads(1) as threads:
        assert threads.submit(threading.current_thread).result() is not thread


def test_a_thread_that_can_not_begin_is_told_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_idle", [])
    with Threads(1) as threads:
        with monkeypatch.context() as short:
            short.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError(CANT_START)))
            with pytest.raises(RuntimeError, match=CANT_START):
                threads.submit(int)
        assert threads.submit(int).result() == 0


class SlotService(Service):
    """What one of several workers of a process talks to: `given` are its jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.given: Queue[Assignment] = Queue()
        self.cancels = False

    def claim(self, *_: object) -> Assignment | None:
        try:
            return self.given.get(timeout=0.05)
        except Empty:
            return None

    def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if path.endswith("/address-ranges"):
            return httpx.Response(200, json={"base_address": max(next(_addresses), body["at_least"])})
        answer = super()._post(path, body)
        if path.endswith("/heartbeat"):
            return httpx.Response(200, json=answer.json() | {"cancel_requested": self.cancels})
        return answer

    @property
    def lines(self) -> list[str]:
        return [event.message for event in self.told]


def job(name: str, **given: Any) -> Assignment:
    content = ASSIGNMENT.model_dump()
    table = {**content["table"], "id": f"table-{name}", "identifier": ["db", name]}
    return Assignment.model_validate(
        {**content, "lease_seconds": 30, "job": {"id": name, "kind": "convert"}, "table": table, **given}
    )


@dataclass
class Process:
    """Two workers of a process."""

    services: tuple[SlotService, SlotService]
    workers: tuple[Worker, Worker]

    def run(self) -> None:
        run_workers(self.workers, ["w/1", "w/2"])

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            for worker in self.workers:
                worker.end()
            thread.join()


def process(runners: tuple[Any, Any]) -> Process:
    services, redaction = (SlotService(), SlotService()), Redaction()
    given: tuple[Any, Any] = services
    one, other = (
        Worker(service, runner, slot=slot, redaction=redaction)
        for service, runner, slot in zip(given, runners, SLOTS, strict=True)
    )
    return Process(services, (one, other))


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> Process:
    monkeypatch.setattr("worker.agent.worker.SETTLE_SECONDS", 0.0)
    return process((Runner(), Runner()))


def test_a_process_that_is_asked_to_stop_hands_all_its_jobs_back(
    without_spark: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Barrier(3)
    ended: list[str] = []

    def run(assignment: Assignment, _: object, reporter: AttemptReporter, __: object) -> Outcome:
        begun.wait()
        if assignment.job.id == "hangs":
            hanging.wait()
        try:
            while True:
                reporter.progress("lookup", 0, 1, "files")
                time.sleep(0.01)
        finally:
            ended.append(assignment.job.id)

    def stop(number: int, frame: Any) -> None:
        for worker in without_spark.workers:
            worker.stop(number, frame)

    def ask() -> None:
        begun.wait()
        # As when it comes just before the main thread begins to wait, which is not woken by it then.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    hanging = threading.Event()
    monkeypatch.setattr("worker.agent.worker.run_job", run)
    monkeypatch.setattr("worker.agent.worker.HAND_BACK_SECONDS", 1.0)
    for service, name in zip(without_spark.services, ("hangs", "works"), strict=True):
        service.given.put(job(name))
    before = signal.signal(signal.SIGTERM, stop)
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        without_spark.run()
    finally:
        signal.signal(signal.SIGTERM, before)
        asking.join()
    assert [service.reported for service in without_spark.services] == [["released"], ["released"]]
    assert [service.left for service in without_spark.services] == [[[]], [[]]]
    assert ended == ["works"]
    hanging.set()  # what it does from now on ends at its next step
    wait_until(lambda: ended == ["works", "hangs"], "the late job to end")


def test_spark_that_ends_is_the_end_of_all_its_jobs_and_of_the_process(
    without_spark: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Barrier(2)

    def lose_spark(*_: object) -> Outcome:
        begun.wait()
        monkeypatch.setattr(Runner, "is_usable", False)
        raise RuntimeError("Cannot call methods on a stopped SparkContext")

    monkeypatch.setattr("worker.agent.worker.run_job", lose_spark)
    for service in without_spark.services:
        service.given.put(ASSIGNMENT)
    without_spark.run()
    assert [service.error and service.error["code"] for service in without_spark.services] == ["jvm_lost"] * 2


def test_a_worker_that_fails_ends_its_process_and_the_other_hands_its_job_back(
    without_spark: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def run(_: object, __: object, reporter: AttemptReporter, ___: object) -> Outcome:
        begun.set()
        while True:
            reporter.progress("lookup", 0, 1, "files")
            time.sleep(0.01)

    def fail(*_: object) -> Assignment | None:
        begun.wait()
        raise AssertionError("nobody foresaw it")

    one, other = without_spark.services
    monkeypatch.setattr("worker.agent.worker.run_job", run)
    monkeypatch.setattr(one, "claim", fail)
    other.given.put(ASSIGNMENT)
    with pytest.raises(AssertionError, match="nobody foresaw it"):
        without_spark.run()
    assert other.reported == ["released"]


@dataclass(frozen=True, slots=True)
class Gate:
    """A task that waits for a file; no Spark would have it wait so long."""

    path: str

    def run(self, _shared: None) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not Path(self.path).exists():
            assert time.monotonic() < deadline, self.path
            time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Say:
    """A task that logs."""

    words: str

    def run(self, _shared: None) -> None:
        logging.getLogger("some.library").info("%s", self.words)


def on_spark(runner: TaskRunner, gates: list[Path], on_progress: Callable[[], None] = lambda: None) -> Work:
    """What Spark counts of tasks that wait for files."""
    context, seen = runner.spark.sparkContext, [Work()]
    tasks = context.parallelize([Gate(str(path)) for path in gates], len(gates)).map(
        lambda task: task.run(None)
    )
    runner.watched(
        partial(context.runJob, tasks, list), on_progress=lambda *_: on_progress(), on_work=seen.append
    )
    return seen[-1]


@pytest.fixture
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """With every stage on Spark, which has two cores."""
    monkeypatch.setattr("worker.agent.worker.SETTLE_SECONDS", 0.0)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.INFO)
    two = process((TaskRunner(spark, -1, slot=SLOTS[0]), TaskRunner(spark, -1, slot=SLOTS[1])))
    yield two
    root.setLevel(level)


@pytest.mark.thorough
@pytest.mark.integration
def test_a_short_job_ends_while_a_long_one_fills_the_cores_and_neither_tells_of_the_other(
    spark: SparkSession,
    catalog: Catalog,
    table_name: str,
    shared: Process,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = {name: TableBuilder.create(spark, f"{table_name}_{name}") for name in ("long", "short")}
    for table in tables.values():
        table.append([{"id": i, "region": "eu", "value": i} for i in range(8)])
        table.delete_keys([{"id": 1}])
    rows = {name: visible_rows(spark, table.identifier) for name, table in tables.items()}
    waiting, passed, reported = (tmp_path / name for name in ("waiting", "passed", "reported"))
    begun = threading.Barrier(2)
    works: dict[str, Work] = {}
    ends: list[str] = []
    core: Any = spark.sparkContext._jsc

    def is_full() -> bool:
        pool = core.sc().getPoolForName(SLOTS[0].pool)
        return bool(pool.isDefined() and pool.get().runningTasks() == 2)

    def tell_when_short_waits() -> None:
        pool = core.sc().getPoolForName(SLOTS[1].pool)
        if pool.isDefined() and pool.get().schedulableQueue().size():
            waiting.touch()

    def run(assignment: Assignment, runner: TaskRunner, *others: Any) -> Outcome:
        name = assignment.job.id
        begun.wait()
        logging.getLogger("some.library").info("%s has long-secret and short-secret", name)
        local = TaskRunner(spark, slot=runner.slot)
        list(local.run([Say(f"{name} in a thread")] * 2, None, planned_rows=0, on_progress=lambda _: None))
        stranger = threading.Thread(target=logging.info, args=["%s of a stranger: long-secret", name])
        stranger.start()
        stranger.join()
        if name == "long":
            # One behind the other, the last three would fill the cores before the short job's tasks.
            works[name] = on_spark(runner, [waiting, waiting, passed, passed, reported])
        else:
            wait_until(is_full, "the long job to fill the cores")  # else this one would not wait
            works[name] = on_spark(runner, [tmp_path, tmp_path], tell_when_short_waits)
            passed.touch()
        return run_job(assignment, runner, *others)

    def end(name: str) -> None:
        ends.append(name)
        if name == "short":
            reported.touch()

    # What Spark has not counted by then is not told, and this machine may be busy.
    monkeypatch.setattr("worker.spark.tasks.COUNTING_MILLISECONDS", 60_000)
    text = StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonFormatter())
    monkeypatch.setattr(logging.getLogger(), "handlers", [*logging.getLogger().handlers, handler])
    monkeypatch.setattr("worker.agent.worker.run_job", run)
    for service, (name, table) in zip(shared.services, tables.items(), strict=True):
        monkeypatch.setenv(f"{name.upper()}_SECRET", f"{name}-secret")
        properties = catalog.properties | {"some.secret": f"env:{name.upper()}_SECRET"}
        service.on_finish = partial(end, name)
        service.given.put(
            job(
                name,
                table={"id": name, "identifier": table.identifier.split(".")[1:], "branch": "main"},
                catalog={"name": catalog.name, "type": catalog.type, "properties": properties},
                index={"warehouse": (tmp_path / "index").as_uri()},
            )
        )
    with shared.running():
        wait_until(lambda: len(ends) == 2, "both jobs to end")
    assert [service.reported for service in shared.services] == [["succeeded"], ["succeeded"]]
    assert ends == ["short", "long"]
    for name, table in tables.items():
        assert equality_delete_files(spark, table.identifier) == []
        assert visible_rows(spark, table.identifier) == rows[name]
    assert {name: (work.tasks_on_spark, work.failed_tasks) for name, work in works.items()} == {
        "long": (5, 0),
        "short": (2, 0),
    }

    for service, name, other in zip(shared.services, ("long", "short"), ("short", "long"), strict=True):
        assert f"{name} has *** and ***" in service.lines
        assert service.lines.count(f"{name} in a thread") == 2
        assert not [line for line in service.lines if other in line or "stranger" in line]
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    assert "-secret" not in text.getvalue()
    for line in lines:
        name = line["message"].split()[0]
        if "stranger" in line["message"]:
            assert "job_id" not in line
        elif name in tables:
            assert (line["job_id"], line["table_id"]) == (name, name)


@pytest.mark.integration
def test_a_job_that_is_cancelled_ends_alone(
    spark: SparkSession, shared: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never, go = tmp_path / "never", tmp_path / "go"
    works: list[Work] = []

    def run(assignment: Assignment, runner: TaskRunner, reporter: AttemptReporter, _: object) -> Outcome:
        gate = never if assignment.job.id == "cancelled" else go
        works.append(on_spark(runner, [gate], lambda: reporter.progress("lookup", 0, 1, "files")))
        return Outcome({}, {})

    cancelled, spared = shared.services
    tracker = spark.sparkContext.statusTracker()
    monkeypatch.setattr("worker.agent.worker.run_job", run)
    cancelled.given.put(job("cancelled"))
    spared.given.put(job("spared"))
    with shared.running():
        wait_until(lambda: len(tracker.getActiveStageIds()) == 2, "both to run")
        cancelled.cancels = True
        wait_until(lambda: cancelled.reported, "one to end")
        wait_until(lambda: len(tracker.getActiveStageIds()) == 1, "its tasks to end")
        go.touch()
        wait_until(lambda: spared.reported, "the other one to end")
    assert (cancelled.reported, spared.reported) == (["cancelled"], ["succeeded"])
    assert [(work.tasks_on_spark, work.failed_tasks) for work in works] == [(1, 0)]


def caller(database: socket.socket, worker: subprocess.Popen[str]) -> socket.socket | None:
    """Who connects, if anybody does yet. Fails once the worker is gone."""
    assert worker.poll() is None, worker.communicate()
    try:
        return database.accept()[0]
    except TimeoutError:
        return None


@pytest.mark.exhaustive
@pytest.mark.integration
@pytest.mark.parametrize("names", [["w/1", "w/2"], pytest.param(["w"], marks=pytest.mark.exhaustive)])
def test_a_real_process_hands_back_the_jobs_that_hang_in_its_jvm(names: list[str]) -> None:
    """Their catalogs are databases that say nothing."""
    finished: dict[str, str] = {}
    named: list[str] = []

    def register(request: Request) -> Answer:
        named.append(json.loads(request.body)["name"])
        return Answer({"id": str(len(named))}, 201)

    def claim(assignments: Queue[Assignment], request: Request) -> Answer:
        if json.loads(request.body).get("is_stopping") or assignments.empty():
            return Answer(status=204)
        return Answer(assignments.get().model_dump(mode="json"))

    def finish(name: str, request: Request) -> Answer:
        finished[name] = json.loads(request.body)["status"]
        return Answer({})

    with socket.create_server(("127.0.0.1", 0)) as silent, answering({}) as service:
        silent.settimeout(0.1)
        now = {"now": "2026-01-01T00:00:00Z", "cancel_requested": False}
        database = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/db"
        for_ever = "sslmode=disable&connectTimeout=0&socketTimeout=0"
        given: Queue[Assignment] = Queue()
        service.answers["/api/v1/me"] = Answer({"name": "w", "role": "worker"})
        service.answers["/api/v1/workers"] = register
        for number, name in enumerate(names, 1):
            name = name.replace("/", "-")
            properties = {"uri": f"{database}{number}?{for_ever}", "warehouse": "file:///nowhere"}
            given.put(job(name, catalog={"name": "c", "type": "sql", "properties": properties}))
            attempt = f"/api/v1/jobs/{name}/attempts/1"
            service.answers[f"/api/v1/workers/{number}/claim"] = partial(claim, given)
            service.answers[f"{attempt}/heartbeat"] = Answer(now)
            service.answers[f"{attempt}/finish"] = partial(finish, name)
        settings = {"URL": service.url, "API_KEY": "k", "SPARK_MASTER": "local[1]", "WORKER_NAME": "w"}
        settings |= {"WORKER_SLOTS": str(len(names)), "DRIVER_MEMORY": "512m"}
        environment = os.environ | {f"ICESTREAM_{key}": value for key, value in settings.items()}
        command = [sys.executable, "-m", "worker.agent.main"]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as worker:
            try:
                waiting = [wait_until(partial(caller, silent, worker), "Java at the database") for _ in names]
                worker.send_signal(signal.SIGTERM)
                _, told = worker.communicate(timeout=PATIENCE_SECONDS)
            finally:
                worker.kill()
        for connection in waiting:
            connection.close()
    assert sorted(named) == names
    assert finished == {name.replace("/", "-"): "released" for name in names}, told
    assert "Something still hangs" not in told
    assert worker.returncode == 0
