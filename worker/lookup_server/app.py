"""The lookup server's HTTP: one question a request, from the service alone.

An answer follows from the request, so that any number of servers answer alike. What is kept in memory only
makes the next answer faster.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import traceback

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from trust import refusals
from trust.arrow_streams import STREAM_TYPE
from trust.bounds import LimitExceededError, check_json
from trust.refusals import NotAllowedError
from worker.contract.lookups import SECONDS_LEFT, LookupRequest
from worker.io.storage import Storage
from worker.lookup_server.admission import RETRY_SECONDS, Admission
from worker.process.deadline import OutOfTimeError, within
from worker.process.errors import JobError
from worker.process.memory import ServerBusyError, take_memory
from worker.process.redaction import Redaction
from worker.query.answers import Answers, TablePlace
from worker.query.arrow import (
    arrow_answer,
    key_schema,
    keys_of_arrow,
    read_stream,
    repeated_key_bytes,
    shown_keys,
    to_stream,
)
from worker.query.errors import AnswerTooLargeError, QuestionError
from worker.query.json_keys import keys_of_json
from worker.query.report import facts, json_rows, report
from worker.query.rows import rows_at, schema_of, selected
from worker.table.record_properties import (
    index_storage_of,
    resolve_secrets,
    secrets_of,
    table_file_io_properties,
)

log = logging.getLogger(__name__)
BODY_BYTES = 16 * 1024**2
MATCHES = 100_000
"""Of one answer at most: any column may be the key, and equal keys are answered each."""
ROW_BYTES = 128 * 1024**2
_BODY_FACTOR = 8
"""By which a question is larger in memory than it is sent."""
_IN_ARROW, _IN_JSON = (150, 3), (700, 8)
"""In memory: bytes of an answer for each match, and by how much its rows are larger than in Arrow."""
ANSWER_SECONDS = 60.0
"""For any question: whoever asked waits no longer."""


def create_app(token: str, answers: Answers | None = None, admission: Admission | None = None) -> Starlette:
    """token: that the service shows with each request; no other request is answered."""
    known, admission = answers or Answers(), admission or Admission()

    def is_shown(request: Request) -> bool:
        shown = request.headers.get("authorization", "")
        return hmac.compare_digest(shown.encode(), f"Bearer {token}".encode())

    async def look_up(request: Request) -> Response:
        if not is_shown(request):
            return _unauthorized()
        try:
            seconds = _seconds_left(request)
            asked, stream = await _read(request)
        except ServerBusyError as error:
            return _problem(503, error.code, error.title, error.detail, error.remedy)
        except (ValidationError, LimitExceededError, ValueError) as error:
            remedy = "Run the service and its lookup servers in the same version."
            return _problem(400, "malformed", "The request can't be understood", str(error), remedy)
        as_arrow = request.headers.get("accept") == STREAM_TYPE
        return await run_in_threadpool(_answer, known, asked, stream, seconds, as_arrow)

    async def live(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        """Whether a question would be taken now, and whether a token that is shown is the right one."""
        if "authorization" in request.headers and not is_shown(request):
            return _unauthorized()
        return JSONResponse({"status": "ok"}) if admission.has_room else JSONResponse({"status": "busy"}, 503)

    routes = [
        Route("/lookups", look_up, methods=["POST"]),
        Route("/livez", live),
        Route("/readyz", ready),
    ]
    return Starlette(routes=routes, middleware=[Middleware(admission.middleware)])


def _seconds_left(request: Request) -> float:
    """Raises ValueError."""
    given = request.headers.get(SECONDS_LEFT)
    if given is None:
        return ANSWER_SECONDS
    seconds = float(given)
    if math.isnan(seconds):
        raise ValueError(f"{SECONDS_LEFT} is no number")
    return min(seconds, ANSWER_SECONDS)


async def _read(request: Request) -> tuple[LookupRequest, bytes]:
    """A line of JSON, and the keys as Arrow unless they are in it."""
    content = bytearray()
    async for piece in request.stream():
        take_memory(_BODY_FACTOR * len(piece), waits=False)
        content += piece
        if len(content) > BODY_BYTES:
            raise ValueError(f"it has more than {BODY_BYTES:,} bytes")
    line, _, stream = bytes(content).partition(b"\n")
    check_json(line, "The request")
    asked = LookupRequest.model_validate_json(line)
    if bool(asked.question.keys) == bool(stream):
        raise ValueError("it must have keys, in JSON or as Arrow")
    return asked, stream


def _answer(
    answers: Answers, asked: LookupRequest, stream: bytes, seconds: float, as_arrow: bool
) -> Response:
    try:
        with within(seconds):
            told = answer(answers, asked, stream, as_arrow=as_arrow)
    except QuestionError as error:
        return _refusal(error.status, error, asked)
    except JobError as error:
        return _refusal(503 if error.retryable else 409, error, asked)
    except NotAllowedError as error:
        title, why = "The table leads to where nothing may be read", _redacted(asked, error.detail)
        return _problem(409, "not_allowed", title, why, error.remedy)
    except OutOfTimeError:
        why = f"What the answer needs was not read within the {max(seconds, 0):.3g} s that were left."
        return _problem(503, "out_of_time", refusals.OUT_OF_TIME.title, why, refusals.OUT_OF_TIME.remedy)
    except OSError as error:
        why = _redacted(asked, f"{type(error).__name__}: {error}")
        log.warning("A store did not answer: %s", why)
        title, remedy = refusals.STORE_UNAVAILABLE
        return _problem(503, "store_unavailable", title, why, remedy)
    except Exception as error:
        log.error("A question failed: %s", _redacted(asked, _frames(error)))
        why = _redacted(asked, f"{type(error).__name__}: {error}")
        remedy = "The lookup server's log tells more."
        return _problem(500, "internal_error", "A lookup server failed", why, remedy)
    return Response(told, media_type=STREAM_TYPE if as_arrow else "application/json")


def answer(
    answers: Answers, asked: LookupRequest, stream: bytes = b"", *, as_arrow: bool = False
) -> bytes | str:
    """stream: the keys, if they are Arrow. Raises QuestionError, JobError, or OSError (a retry can help)."""
    question, keys = asked.question, read_stream(stream) if stream else None
    if keys is not None:
        question = question.model_copy(update={"key_columns": keys.column_names})
    coverage, found, places = answers.find_keys(
        _place(answers, asked),
        question,
        lambda of: keys_of_json(of, question.keys) if keys is None else keys_of_arrow(of, keys),
        MATCHES,
    )
    match_bytes, row_factor = _IN_ARROW if as_arrow else _IN_JSON
    take_memory(match_bytes * len(places.keys))
    if as_arrow:
        key_bytes = repeated_key_bytes(found, places)
        if key_bytes > ROW_BYTES:
            raise AnswerTooLargeError(f"The keys have more than {ROW_BYTES:,} bytes beside all their rows.")
        take_memory(row_factor * key_bytes)
    of_table = schema_of(coverage.table, question.schema_id)
    schema = None if question.select is None else selected(of_table, question.select)
    rows = None if schema is None else rows_at(coverage.table, places, schema, ROW_BYTES, row_factor)
    head = {"head_age_seconds": asked.table.head_age_seconds, "schema_id": of_table.schema_id}
    if as_arrow:
        return to_stream(arrow_answer(coverage, found, places, rows, schema), head | facts(coverage, places))
    of = coverage.key_set
    shown = question.keys if keys is None else json_rows(shown_keys(of, found), key_schema(of))
    return json.dumps(head | report(coverage, shown, places, rows, schema), allow_nan=False)


def _place(answers: Answers, asked: LookupRequest) -> TablePlace:
    table = asked.table
    record = resolve_secrets(table.properties, table.allowed_secrets, table.own_files)
    of_tables = table_file_io_properties(record)
    table.egress.check(of_tables)
    tables = Storage(of_tables | table.location_limits)
    indexes = index_storage_of(record, table.index.warehouse, table, tables)
    return TablePlace(
        table.metadata_location,
        answers.files(tables.properties),
        table.index.warehouse,
        answers.files(indexes.properties),
        table.branch,
        tuple(map(tuple, table.key_sets)),
    )


def _frames(error: BaseException | None) -> str:
    """Where an error and its causes come from, without their words: these may have keys."""
    frames = []
    while error is not None:
        frames.append(f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}")
        error = error.__cause__ or error.__context__
    return "from ".join(frames)


def _refusal(status: int, error: JobError, asked: LookupRequest) -> Response:
    return _problem(status, error.code, error.title, _redacted(asked, error.detail), error.remedy)


def _redacted(asked: LookupRequest, words: str) -> str:
    return Redaction(secrets_of(asked.table.properties)).text(words)


def _unauthorized() -> Response:
    remedy = "Give the service and its lookup servers the same ICESTREAM_LOOKUP_TOKEN."
    return _problem(401, "unauthorized", "The token is another one", "", remedy)


def _problem(status: int, code: str, title: str, detail: str, remedy: str) -> Response:
    body = {"code": code, "title": title, "detail": detail, "remedy": remedy}
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else {}
    return JSONResponse(body, status, headers)
