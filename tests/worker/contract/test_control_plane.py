"""What a worker makes of the service's answers."""

from math import nan

import httpx
import pytest

from service.problems import PROBLEM_PATH
from worker.contract.control_plane import (
    AssignedCatalog,
    AssignedIndex,
    AssignedJob,
    AssignedTable,
    Assignment,
    AttemptReport,
    ControlPlane,
    ControlPlaneError,
    RefusedReportError,
    StaleAttemptError,
)
from worker.process.redaction import Redaction

ASSIGNMENT = Assignment(
    job=AssignedJob(id="j", kind="index"),
    attempt=1,
    lease_seconds=60,
    table=AssignedTable(id="t", identifier=["db", "t"], branch="main"),
    catalog=AssignedCatalog(name="c", type="sql", properties={}),
    index=AssignedIndex(warehouse="file:///index"),
)


def report(answer: httpx.Response) -> AttemptReport:
    control_plane = ControlPlane("http://service", "key")
    control_plane._client = httpx.Client(
        base_url="http://service", transport=httpx.MockTransport(lambda _: answer)
    )
    return AttemptReport(control_plane, ASSIGNMENT, Redaction())


def problem(slug: str, status: int) -> httpx.Response:
    return httpx.Response(status, json={"type": f"{PROBLEM_PATH}{slug}", "detail": "told"})


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (problem("stale-attempt", 409), StaleAttemptError),
        (problem("changed-at-the-same-time", 409), ControlPlaneError),
        (problem("validation-error", 422), RefusedReportError),
        (problem("body-too-large", 413), RefusedReportError),
        (httpx.Response(502, json=["of a proxy"]), ControlPlaneError),
    ],
)
def test_an_attempt_is_over_only_if_the_service_says_so_and_else_a_call_is_repeated_if_that_helps(
    answer: httpx.Response, means: type[Exception]
) -> None:
    with pytest.raises(means) as raised:
        report(answer).finish("succeeded")
    assert raised.type is means


def test_what_cannot_be_written_as_json_is_refused_as_what_the_service_refuses() -> None:
    with pytest.raises(RefusedReportError):
        report(httpx.Response(204)).finish("succeeded", result={"share": nan})
