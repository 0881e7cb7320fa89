"""What a failed call answers: RFC 9457 problem documents to programs, pages to people."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from psycopg.errors import ForeignKeyViolation, UniqueViolation
from pydantic import ConfigDict, ValidationError
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from starlette.exceptions import HTTPException

from service.errors import ConflictError, DatabaseError, IcestreamError, InvalidError, is_database_trouble
from service.http.field_errors import mistake
from service.http.messages import Message
from service.problems import PROBLEMS

PROBLEM_JSON = "application/problem+json"
_FOR_PROGRAMS = ("/api/", "/openapi.json", "/livez", "/readyz", "/metrics")
"""Where problem documents are answered; everywhere else people look, and get pages."""
_log = logging.getLogger("icestream.errors")


class Problem(Message):
    """This is a problem document, as RFC 9457 has it."""

    model_config = ConfigDict(extra="allow")

    type: str
    """The type says which problem it is, such as `/problems/table-not-found`: stable, and explained at that
    address."""
    title: str
    """The title says which problem it is, in words."""
    status: int
    """The answer has this HTTP status."""
    detail: str
    """The detail says in words what happened this time."""
    remedy: str
    """The remedy says what to do about the problem."""
    instance: str
    """The request that failed called this path."""
    request_id: str | None = None
    """The request has this id in the answer's header X-Request-ID, in the log and in the audit log."""


PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Problem, "description": "This problem document says what went wrong, and what to do."},
    500: {"model": Problem, "description": "The service failed; its log has the details."},
    503: {
        "model": Problem,
        "description": "The control database does not answer: send the request again.",
        "headers": {
            "Retry-After": {
                "description": "Send the request again after this many seconds.",
                "schema": {"type": "integer"},
            }
        },
    },
}
"""For the OpenAPI document: what any call may answer."""
UNREACHABLE_RESPONSE: dict[int | str, dict[str, Any]] = {
    502: {"model": Problem, "description": "The catalog cannot be reached."}
}


def declare_problems(app: FastAPI) -> None:
    """Name problem documents by their own media type: FastAPI declares them as the call's own."""
    render = app.openapi

    def openapi() -> dict[str, Any]:
        document = render()
        for calls in document["paths"].values():
            for call in calls.values():
                for status, response in call["responses"].items():
                    if status[0] in "45":
                        (problem,) = response["content"].values()
                        response["content"] = {PROBLEM_JSON: problem}
        return document

    app.openapi = openapi  # type: ignore[method-assign]


_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}


def problem_of(error: IcestreamError, instance: str, request_id: str | None = None) -> Problem:
    return Problem(
        type=error.type,
        title=error.title,
        status=error.status_code,
        detail=error.detail,
        remedy=error.remedy,
        instance=instance,
        request_id=request_id,
        **error.extra,
    )


def problem_response(request: Request, error: IcestreamError) -> Response:
    """What a failed call answers: to programs a problem document, to people a page that says the same."""
    request_id = getattr(request.state, "request_id", None)
    if request.url.path.startswith(_FOR_PROGRAMS):
        problem = problem_of(error, request.url.path, request_id)
        response: Response = JSONResponse(
            problem.model_dump(mode="json"), error.status_code, media_type=PROBLEM_JSON
        )
    else:
        problem_page: Callable[[Request, IcestreamError], Response] = request.app.state.problem_page
        response = problem_page(request, error)
    response.headers.update(_HEADERS.get(response.status_code, {}))
    if response.status_code == 429:
        response.headers["Retry-After"] = str(error.extra["retry_after_seconds"])
    return response


def validation_error(
    error: RequestValidationError | ValidationError, *, for_people: bool = False
) -> InvalidError:
    """Pydantic's findings as one problem, each with its place in the request.

    for_people: of a form, so without the names that only programs know.
    """
    findings = []
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"])
        message = mistake(item.get("type", ""), item["msg"], item.get("ctx", {}), field)
        findings.append({"field": field, "message": message})
    if for_people:
        return form_error(findings)
    summary = " ".join(f"{finding['field']}: {finding['message'].rstrip('.')}." for finding in findings)
    return InvalidError(
        "validation-error",
        summary,
        "Correct what is named; /docs describes every call of the API.",
        errors=findings,
    )


def form_error(findings: Sequence[Mapping[str, str]], names: Mapping[str, str] | None = None) -> InvalidError:
    """What is wrong with a form. names: of fields, as the form calls them."""
    told = []
    for finding in findings:
        field = finding["field"].removeprefix("body.").removeprefix("query.").removeprefix("settings.")
        whole = next((known for known in names or () if field.startswith(f"{known}.")), field)
        name = (names or {}).get(whole) or field.replace(".", " ").replace("_", " ")
        told.append(f"{name[:1].upper()}{name[1:]}: {finding['message'].rstrip('.')}".strip(": "))
    return InvalidError(
        "validation-error",
        ". ".join(told),
        "Correct what is named, and send the form again. Nothing was changed.",
        errors=[dict(finding) for finding in findings],
    )


def _unusable_value(error: DataError) -> IcestreamError:
    return InvalidError(
        "unusable-value",
        str(error.orig).splitlines()[0],
        "Send text without NUL characters, and smaller numbers.",
    )


def _is_lost_race(error: SQLAlchemyError) -> bool:
    """Whether PostgreSQL refused what another transaction made impossible after this one had looked.

    On SQLite writers take turns: there, it is a mistake of this program.
    """
    return isinstance(error, IntegrityError) and isinstance(error.orig, UniqueViolation | ForeignKeyViolation)


_HTTP_PROBLEMS = {
    400: ("malformed-request", "Correct the request; /docs describes every call of the API."),
    404: ("not-found", "Check the address; /docs lists every call of the API."),
    405: (
        "method-not-allowed",
        "Use the page that has the form or button for it; /docs lists the methods of the API.",
    ),
    413: ("body-too-large", "Send less in one request."),
}


def install_error_handlers(app: FastAPI) -> None:
    """Answer every failure. Denials are recorded by the audit handler."""

    @app.exception_handler(RequestValidationError)
    def _invalid(request: Request, error: RequestValidationError) -> Response:
        for_people = not request.url.path.startswith(_FOR_PROGRAMS)
        return problem_response(request, validation_error(error, for_people=for_people))

    @app.exception_handler(HTTPException)
    def _http(request: Request, error: HTTPException) -> Response:
        slug, remedy = _HTTP_PROBLEMS.get(error.status_code, ("http-error", "See /docs."))
        refused = IcestreamError(slug, str(error.detail), remedy, status=error.status_code)
        answer = problem_response(request, refused)
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(SQLAlchemyError)
    def _database(request: Request, error: SQLAlchemyError) -> Response:
        if isinstance(error, DataError):
            return problem_response(request, _unusable_value(error))
        if _is_lost_race(error):
            lost = ConflictError(
                "changed-at-the-same-time",
                PROBLEMS["changed-at-the-same-time"].meaning,
                "Look at what is there now, and send the request again if it is still wanted.",
            )
            return problem_response(request, lost)
        if not is_database_trouble(error):
            raise error
        _log.warning("%s %s: %s", request.method, request.url.path, error)
        return problem_response(request, DatabaseError(error))

    @app.exception_handler(Exception)
    def _unexpected(request: Request, error: Exception) -> Response:
        return problem_response(
            request,
            IcestreamError(
                "internal-error",
                f"{type(error).__name__}; the service log has the details under this request id.",
            ),
        )
