"""The Python client's jobs: asked for once for each key, followed, waited for and cancelled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import icestream
from tests.http_server import Answer, Request, answering
from tests.service.conftest import ADMIN_KEY, Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog

database_kind = alike_on_both
PAGE = (Path(__file__).parents[2] / "docs" / "orchestrators.md").read_text()


@pytest.fixture
def client(service: Running) -> Iterator[icestream.Client]:
    with icestream.Client(service.url, ADMIN_KEY, wait_seconds=0) as client:
        yield client


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog, client: icestream.Client) -> icestream.Table:
    service.register(iceberg)
    service.enroll()
    return client.table("db.t")


def run(service: Running, wait_seconds: float = 0, **report: Any) -> str:
    """Runs what is queued to its end; the id of the job."""
    assignment = service.claim(service.start_worker(), wait_seconds)
    assert assignment is not None
    assert service.finish(assignment, **report).is_success
    return str(assignment["job"]["id"])


def test_a_job_that_is_waited_for_tells_what_happened_once(
    service: Running, table: icestream.Table, client: icestream.Client
) -> None:
    job = table.request_job("verify", dry_run=True)
    told: list[dict[str, Any]] = []
    with pytest.raises(TimeoutError, match="it goes on"):
        job.wait(0, told.append)
    assert [one["kind"] for one in told] == ["job.queued"]
    assert run(service) == job.id
    ended = client.job(job.id).wait(0, told.append)
    assert (ended["status"], ended["dry_run"]) == ("succeeded", True)
    # The second one who waits is told from the beginning on.
    kinds = [one["kind"] for one in told[1:]]
    assert (kinds[0], kinds[-1]) == ("job.queued", "job.succeeded")
    assert len({one["id"] for one in told[1:]}) == len(kinds)


FAILED = {"code": "invalid_rows", "title": "No.", "detail": "Row 0.", "remedy": "Mend it."}


def test_a_job_that_failed_says_why_and_what_to_do(service: Running, table: icestream.Table) -> None:
    job = table.request_job("convert")
    run(service, status="failed", error=FAILED)
    with pytest.raises(icestream.JobFailedError) as caught:
        job.wait(0)
    assert (caught.value.job_id, caught.value.code, str(caught.value)) == (
        job.id,
        "invalid_rows",
        "Row 0. Mend it.",
    )


def test_a_cancelled_job_has_not_succeeded(service: Running, table: icestream.Table) -> None:
    job = table.request_job("convert")
    assert job.cancel()["status"] == job.cancel()["status"] == "cancelled"
    with pytest.raises(icestream.JobFailedError, match=r"was cancelled") as caught:
        job.wait(0)
    assert caught.value.code == "cancelled"
    other = table.request_job("convert")
    run(service)
    with pytest.raises(icestream.ConflictError):
        other.cancel()


def test_the_program_of_the_page_waits_for_its_job(
    service: Running,
    iceberg: IcebergCatalog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ICESTREAM_URL", service.url)
    monkeypatch.setenv("ICESTREAM_API_KEY", ADMIN_KEY)
    service.register(iceberg)
    iceberg.create("sales.customers")
    service.enroll("sales.customers")
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(run, service, wait_seconds=20, result={"equality_delete_files_removed": 3})
        exec(program, {})
        worker.result()
    assert capsys.readouterr().out.splitlines()[-1] == "3"


def test_one_key_is_one_job_until_that_has_come_to_nothing(service: Running, table: icestream.Table) -> None:
    def request(kind: str = "convert", key: str | None = "run 7 of a pipeline" * 20) -> str:
        return table.request_job(kind, key=key).id

    first = request()
    assert request() == first
    assert run(service, status="failed", error=FAILED) == first
    second = request()
    assert second != first
    assert table.request_job("convert", key="run 8").id == second, "one that is queued is the answer to all"
    table.request_job("convert", key="run 8").cancel()
    third = request()
    assert run(service) == third not in (first, second)
    assert request() == third, "what has succeeded is not done again"
    # Another run, another request, and nobody's.
    assert len({third, request(key="run 9"), request("verify"), first, second}) == 5
    run(service)
    run(service)
    assert request(key=None) != request(key="run 9")


def test_events_that_are_listed_late_are_told_all_the_same() -> None:
    noon = datetime.fromisoformat("2024-02-29T12:00:00Z")
    known: list[dict[str, Any]] = []

    def listed(request: Request) -> Answer:
        since = datetime.fromisoformat(request.query.get("since", "1970-01-01T00:00:00Z"))
        items = [one for one in known if datetime.fromisoformat(one["at"]) >= since]
        return Answer({"items": items, "next_cursor": None}, 200, {"Content-Type": "application/json"})

    def add(event_id: int, seconds: float) -> None:
        known.append({"id": event_id, "at": (noon + timedelta(seconds=seconds)).isoformat()})
        known.sort(key=lambda one: int(one["id"]))

    with (
        answering({"/api/v1/jobs/j/events": listed}) as server,
        icestream.Client(server.url, "key") as client,
    ):
        job = client.job("j")

        def told() -> list[int]:
            return [int(one["id"]) for one in job.new_events()]

        add(2, 0)
        assert told() == [2]
        add(1, -50)
        add(3, 300)
        assert told() == [1, 3]
        add(4, 241)
        assert told() == [4]
        assert told() == []
