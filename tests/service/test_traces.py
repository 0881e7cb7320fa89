"""One trace from the call that asks for a job to the stages of its attempt, as a collector gets it."""

import json
import logging
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings
from telemetry.logs import JsonFormatter
from telemetry.traces import start_traces, stop_traces, trace_id_of
from tests.service.conftest import ADMIN_KEY, running
from tests.service.queue_calls import add_tables
from tests.traces import attributes
from tests.traces import collected as collected
from worker.agent.worker import Worker
from worker.attempt.job import Job as RunningJob
from worker.attempt.job import Usage
from worker.attempt.outcome import Outcome
from worker.contract.control_plane import Assignment, ControlPlane
from worker.keys.key_set import KeyColumnError

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"


class Runner:
    is_usable = True


def run(assignment: Assignment, _: object, reporter: Any, usage: Usage) -> Outcome:
    """A job of two stages that fails in the second one, in the place of what needs Spark."""
    runner: Any = Runner()
    job = RunningJob(assignment, runner, reporter, usage=usage)
    with job.stage("plan"):
        pass
    with job.stage("commit"):
        raise KeyColumnError("broken", "It broke.", "Mend it.")


def test_one_trace_spans_the_request_the_wait_the_attempt_and_its_stages(
    tmp_path: Path,
    collected: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("worker.agent.worker.run_job", run)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    settings = Settings(data_dir=tmp_path, bootstrap_key=ADMIN_KEY, background=False, log_requests=True)
    with running(settings) as service:
        root = logging.getLogger()
        monkeypatch.setattr(root, "handlers", [*root.handlers, handler])
        caplog.set_level(logging.INFO)
        (table,) = add_tables(service.database, ["u"])
        asked = service.admin.post(
            f"/tables/{table}/jobs", json={"kind": "index"}, headers={"traceparent": CALLER}
        )
        assert asked.status_code == 202, asked.text
        with closing(ControlPlane(service.url, ADMIN_KEY)) as control_plane:
            runner: Any = Runner()
            worker = Worker(control_plane, runner)
            control_plane.register("w")
            assignment = control_plane.claim(0)
            assert assignment is not None
            assert worker.run_attempt(assignment)
    stop_traces()
    spans = {span.name: span for span in collected if span.trace_id.hex() == TRACE}
    request, attempt = spans["POST /api/v1/tables/{table_id}/jobs"], spans["attempt"]
    assert request.parent_span_id.hex() == CALLER.split("-")[2]
    assert spans["wait"].parent_span_id == attempt.parent_span_id == request.span_id
    assert spans["wait"].start_time_unix_nano <= spans["wait"].end_time_unix_nano
    for stage in ("plan", "commit"):
        assert spans[stage].parent_span_id == attempt.span_id
    finish = next(span for name, span in spans.items() if name.endswith("/finish"))
    assert finish.parent_span_id == attempt.span_id
    told = attributes(attempt)
    assert (told["icestream.job_id"], told["icestream.outcome"]) == (asked.json()["id"], "failed")
    assert [name for name, span in spans.items() if span.status.code == 2] == ["commit", "attempt"]
    assert "It broke" not in str(collected)
    assert not [span.name for span in collected if span.name.endswith(("/claim", "/heartbeat"))]
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    logged = {line["message"].split()[0] for line in lines if line.get("trace_id") == TRACE}
    assert {"POST", "Reported"} <= logged


def test_a_job_of_a_policy_begins_a_trace_of_its_own(collected: list[Any]) -> None:
    from telemetry.traces import begin_trace

    assert begin_trace("schedule") is None
    assert start_traces("test") is not None
    begun = begin_trace("schedule")
    stop_traces()
    (span,) = collected
    assert (span.name, span.trace_id.hex(), span.parent_span_id) == ("schedule", trace_id_of(begun), b"")


def test_a_trace_is_passed_on_without_a_collector(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, bootstrap_key=ADMIN_KEY, background=False)
    with running(settings) as service:
        (table,) = add_tables(service.database, ["u"])
        for header in (CALLER, f"00-{'0' * 32}-00f067aa0ba902b7-01", "nonsense"):
            asked = service.admin.post(
                f"/tables/{table}/jobs", json={"kind": "index"}, headers={"traceparent": header}
            ).json()
            assert asked["trace_id"] == (TRACE if header == CALLER else None)
            assignment = service.claim(service.start_worker())
            assert assignment is not None
            assert assignment["traceparent"] == (CALLER if header == CALLER else None)
            service.finish(assignment, status="cancelled")


def test_without_an_endpoint_nothing_of_the_sdk_is_loaded() -> None:
    code = (
        "import sys; from service.app import create_app; from service.settings import Settings;"
        "import telemetry.traces as t; create_app(Settings(database_url='sqlite://'));"
        "t.start_traces('x');"
        "\nwith t.span('s'): pass\n"
        "sdk = ('opentelemetry.sdk', 'opentelemetry.exporter')\n"
        "sys.exit(any(name.startswith(sdk) for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
