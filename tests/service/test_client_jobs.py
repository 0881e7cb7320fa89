"""The Python client's jobs: asked for once for each key, followed, waited for and cancelled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import icestream
from icestream.jobs import wait_until_ended
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


def test_events_are_told_once_whatever_their_times_and_whenever_they_are_listed() -> None:
    known: list[int] = []

    def listed(request: Request) -> Answer:
        assert request.query["sort"] == "-id"
        before = int(request.query.get("cursor", 10**9))
        page = [one for one in sorted(known, reverse=True) if one < before][: int(request.query["limit"])]
        following = str(page[-1]) if page and page[-1] > min(known) else None
        items = [{"id": one} for one in page]
        return Answer({"items": items, "next_cursor": following}, 200, {"Content-Type": "application/json"})

    with (
        answering({"/api/v1/jobs/j/events": listed}) as server,
        icestream.Client(server.url, "key") as client,
    ):
        job = client.job("j")

        def told() -> list[int]:
            return [int(one["id"]) for one in job.new_events()]

        known += range(10, 350)
        assert told() == list(range(10, 350))
        assert told() == []
        known += [9, 350, 352]
        assert told() == [350, 352]
        known += [351]
        assert told() == [351]
        known += range(353, 500)
        assert told() == list(range(353, 500))


def test_who_can_not_be_told_of_an_event_is_told_of_it_again(table: icestream.Table) -> None:
    def fail(_: dict[str, Any]) -> None:
        raise ZeroDivisionError

    job = table.request_job("convert")
    with pytest.raises(ZeroDivisionError):
        job.wait(0, fail)
    told: list[dict[str, Any]] = []
    with pytest.raises(TimeoutError):
        job.wait(0, told.append)
    assert [one["kind"] for one in told] == ["job.queued"]


def test_a_service_that_is_away_is_waited_for_and_one_that_never_was_there_is_not() -> None:
    answers = iter(["running", "away", "running", "away", "away", "succeeded"])

    def look() -> dict[str, Any]:
        status = next(answers)
        if status == "away":
            raise icestream.UnreachableError("It is away.", "Wait.")
        return {"status": status}

    assert wait_until_ended(look, 60, "A job", longest_pause_seconds=0.05) == {"status": "succeeded"}
    answers = iter(["away"])
    with pytest.raises(icestream.UnreachableError):
        wait_until_ended(look, 60, "A job", longest_pause_seconds=0.05)


def test_a_key_whose_job_is_gone_from_history_asks_for_another() -> None:
    table_id, requests = "3f1f9d5e-6f0c-4bb1-9d55-6e2b9a8a1111", list[str]()

    def asked(request: Request) -> Answer:
        requests.append(request.headers["idempotency-key"])
        replayed = {} if len(requests) > 1 else {"Idempotency-Replayed": "true"}
        return Answer({"id": f"j{len(requests)}"}, 201, {"Content-Type": "application/json", **replayed})

    gone = Answer({"code": "not-found", "title": "Gone", "status": 404, "detail": "No such job."}, 404)
    with (
        answering({f"/api/v1/tables/{table_id}/jobs": asked, "/api/v1/jobs/j1": gone}) as server,
        icestream.Client(server.url, "key") as client,
    ):
        job = client.table(table_id).request_job("convert", key="run 7")
    assert (job.id, len(set(requests))) == ("j2", 2)
