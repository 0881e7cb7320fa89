"""Whatever a catalog, a store or a library raises ends as sentences with what to do, never as a traceback."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError

from stores.aws import CredentialsError
from tests.http_server import Answer, answering
from trust.bounds import LimitExceededError, OutOfTimeError
from trust.egress import AmbiguousHostError, HostNotAllowedError
from trust.locations import AmbiguousLocationError, LocationNotAllowedError, OwnFileError
from trust.rest_answers import SentElsewhereError
from worker.acceptance import main
from worker.acceptance.lake import Lake, LakeError, told
from worker.acceptance.report import Problem
from worker.acceptance.run import problem_of

ELSEWHERE = SentElsewhereError("It redirects to http://there.", "Give that as the catalog's `uri`.")


def problem_in(error: Exception, gateway: Any = None) -> Problem:
    with pytest.raises(LakeError) as raised, told("list tables", gateway):
        raise error
    return problem_of(raised.value)


@pytest.mark.parametrize(
    ("error", "code", "remedy"),
    [
        (LimitExceededError("It is endless.", "Ask its owner."), "catalog_limit_exceeded", "Ask its owner."),
        (OutOfTimeError("It is slow.", "Look at its log."), "catalog_limit_exceeded", "Look at its log."),
        (HostNotAllowedError("metadata"), "host_not_allowed", "ICESTREAM_ALLOWED_HOSTS"),
        (AmbiguousHostError("uri"), "host_not_allowed", "Write it as https://host:port/path"),
        (LocationNotAllowedError("/a lies elsewhere"), "location_not_allowed", "ICESTREAM_ALLOWED_LOCATIONS"),
        (AmbiguousLocationError("'a' is not absolute"), "location_not_allowed", "all read alike"),
        (OwnFileError("/a is a file"), "location_not_allowed", "another place"),
        (ELSEWHERE, "catalog_redirects", "Give that as the catalog's `uri`."),
        (CredentialsError("There are none.", "Set some."), "storage_error", "Set some."),
        (MemoryError(), "out_of_memory", "more memory"),
        (PermissionError("403"), "refused", "Give this identity"),
    ],
)
def test_errors_of_foreign_catalogs_and_stores_are_told_with_what_to_do(
    error: Exception, code: str, remedy: str
) -> None:
    problem = problem_in(error)
    assert (problem.code, problem_of(error).code) == (code, code)
    assert problem.detail.startswith("list tables: ")
    assert remedy in problem.remedy


def test_a_slow_catalog_is_not_said_to_answer_too_much() -> None:
    assert problem_in(OutOfTimeError("It is slow.", "Look at its log.")).title == "The catalog took too long"


def test_what_java_was_kept_from_is_told_by_who_kept_it() -> None:
    problem = problem_in(Py4JError("403"), SimpleNamespace(refusal=ELSEWHERE))
    assert (problem.code, problem.remedy) == ("catalog_redirects", ELSEWHERE.remedy)


def test_only_a_catalog_says_what_it_does_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no matter of rights. A reader that can't read a file says the same, and that is a failure."""
    monkeypatch.setattr("worker.acceptance.lake.open_catalog", lambda *_: (MagicMock(), None))
    monkeypatch.setattr(
        "worker.acceptance.lake.java_types", lambda _: {"java.lang.UnsupportedOperationException"}
    )
    lake = Lake(MagicMock(), {"name": "lake", "type": "hive", "properties": {}})
    for asked in (lake.committing("roll the table back"), lake._told("drop table", ["a", "t"])):
        with pytest.raises(LakeError, match="Not supported") as said, asked:
            raise Py4JError("Not supported")
        assert said.value.is_unsupported
        assert said.value.problem.code == "not_supported"
        assert "whatever rights" in said.value.problem.remedy
    with pytest.raises(LakeError, match="Not supported") as said, told("read the table"):
        raise Py4JError("Not supported")
    assert not said.value.is_unsupported
    assert said.value.problem.code == "refused"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Answer(status=302, headers={"location": "http://169.254.169.254/v1/config"}), "catalog_redirects"),
        (Answer("[" * 100_000), "catalog_limit_exceeded"),
        (Answer("<html>Welcome</html>"), "catalog_unreachable"),
        (Answer("no", 500), "catalog_unreachable"),
    ],
)
def test_a_catalog_that_cannot_be_opened_is_told(answer: Answer, code: str) -> None:
    with answering({"/v1/config": answer}) as server, pytest.raises(LakeError) as raised:
        Lake(MagicMock(), {"name": "lake", "type": "rest", "properties": {"uri": server.url}})
    assert raised.value.problem.code == code
    assert raised.value.problem.remedy


@pytest.mark.parametrize("has_begun", [False, True])
def test_the_command_ends_with_a_sentence_whatever_it_meets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_begun: bool
) -> None:
    monkeypatch.setenv("ICESTREAM_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ICESTREAM_API_KEY", "key")
    service = MagicMock()
    service.return_value.catalog.return_value = {"properties": {}}
    monkeypatch.setattr(main, "Service", service)
    monkeypatch.setattr(main, "create_spark", MagicMock())
    monkeypatch.setattr(main, "_outlive_the_terminal", list)
    monkeypatch.setattr(main, "Lake", MagicMock())

    def fail(*given: Any) -> int:
        (progress,) = (one for one in given if isinstance(one, main.Progress))
        progress.has_begun = has_begun
        raise ZeroDivisionError("of a library")

    monkeypatch.setattr(main, "_run", fail)
    assert main.main(["--catalog=lake", "--namespace=a"]) == (1 if has_begun else 2)
    said = capsys.readouterr().err
    assert "An error that nobody foresaw: ZeroDivisionError: of a library Report it" in said
    assert "Traceback" not in said
