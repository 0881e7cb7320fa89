"""What a caller asks, in JSON or as Arrow, and in which of the two the answer is wanted.

Keys in Arrow are counted here and decoded by a lookup server, which holds no secret of the service: what
reads a stranger's bytes in C++ is not beside the control database.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.models import Schema
from pydantic import ValidationError

from service.errors import IcestreamError, InvalidError
from service.http.body_limits import check_shape
from service.http.json_values import check_body
from service.lookups.models import KEYS_AT_MOST, LookupOptions, LookupRequest
from trust.arrow_streams import STREAM_TYPE, ArrowStreamError, count_rows

JSON_TYPE = "application/json"
_SMALL_BYTES = 16 * 1024
"""Are read at once, in less time than it takes to wait for a thread."""
_SCHEMA = "#/components/schemas/{model}"
_BINARY = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": "The keys or the answer are an Arrow IPC stream.",
    }
}
REQUEST_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            JSON_TYPE: {"schema": {"$ref": _SCHEMA.format(model=LookupRequest.__name__)}},
            STREAM_TYPE: _BINARY,
        },
    }
}
"""For the OpenAPI document, which FastAPI makes of bodies that it reads itself alone."""
ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": {STREAM_TYPE: _BINARY}}}


def add_schema(document: dict[str, Any]) -> None:
    """What `REQUEST_BODY` refers to."""
    schema = LookupRequest.model_json_schema(ref_template=_SCHEMA)
    schemas = document["components"]["schemas"]
    schemas |= schema.pop("$defs", {})
    # As FastAPI writes those that it makes.
    written = Schema.model_validate(schema).model_dump(mode="json", by_alias=True, exclude_none=True)
    schemas[LookupRequest.__name__] = written


@dataclass(frozen=True, slots=True)
class Question:
    """request: with the keys, if they are JSON. stream: else these in Arrow."""

    request: LookupOptions
    key_count: int
    answer_type: str
    stream: bytes = b""


async def read_question(request: Request, options: Annotated[LookupOptions, Query()]) -> Question:
    """Raises IcestreamError or RequestValidationError."""
    for name in {*request.query_params} - {"select"}:
        if len(request.query_params.getlist(name)) > 1:
            raise InvalidError(
                "validation-error", f"{name} stands in the query more than once.", "Name it once.", errors=[]
            )
    answer_type = _answer_type(",".join(request.headers.getlist("accept")))
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in (JSON_TYPE, STREAM_TYPE):
        raise IcestreamError(
            "unsupported-media-type", f"The body is said to be {given[:1_000] or 'of no type'}."
        )
    read = _read_json if given == JSON_TYPE else _read_arrow
    body = await request.body()
    if len(body) <= _SMALL_BYTES:
        return read(body, options, answer_type)
    return await run_in_threadpool(read, body, options, answer_type)


Asked = Annotated[Question, Depends(read_question)]


def _read_json(body: bytes, options: LookupOptions, answer_type: str) -> Question:
    check_shape(body)
    check_body(body)
    # Clients that are generated send the defaults.
    if misplaced := options.model_dump(exclude_defaults=True):
        raise InvalidError(
            "validation-error",
            f"{', '.join(misplaced)}: stands in the query, and the keys are JSON.",
            "Write it into the body, beside the keys.",
            errors=[],
        )
    try:
        asked = LookupRequest.model_validate(json.loads(body, object_pairs_hook=_named_once))
    except ValidationError as error:
        findings = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(findings) from None
    except ValueError as error:
        finding = {"type": "json_invalid", "loc": ("body",), "msg": "JSON decode error"}
        raise RequestValidationError([finding | {"ctx": {"error": str(error)}}]) from None
    return Question(asked, len(asked.keys), answer_type)


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, which says nothing twice: of two values of a column, one would not be asked for."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidError(
            "validation-error", f"{twice!r} stands twice in an object.", "Name it once.", errors=[]
        )
    return found


async def check_names(request: Request) -> None:
    """Of a body that FastAPI reads. Raises InvalidError for a name that stands twice in an object."""
    with suppress(ValueError):  # no JSON: told by whoever reads it
        json.loads(await request.body(), object_pairs_hook=_named_once)


def _read_arrow(body: bytes, options: LookupOptions, answer_type: str) -> Question:
    try:
        count = count_rows(body)
    except ArrowStreamError as error:
        raise InvalidError("invalid-arrow", str(error)) from error
    if not 0 < count <= KEYS_AT_MOST:
        raise InvalidError(
            "invalid-arrow",
            f"It has {count:,} keys; 1 to {KEYS_AT_MOST:,} are answered at once.",
            "Send them in several requests; the first answer tells the snapshot for the others.",
        )
    return Question(options, count, answer_type, body)


def _answer_type(accept: str) -> str:
    """The one that is wanted most; JSON if it is all the same. Raises IcestreamError if neither is."""
    ranges = {}
    for one in (accept or "*/*").lower().split(","):
        name, *parameters = (part.strip() for part in one.split(";"))
        ranges[name] = _weight(parameters)
    wanted = {}
    for media_type in (JSON_TYPE, STREAM_TYPE):
        # What names it more closely counts (RFC 9110, "Accept").
        matched = [name for name in ("*/*", "application/*", media_type) if name in ranges]
        wanted[media_type] = (ranges[matched[-1]], matched[-1] == media_type) if matched else (0.0, False)
    best = max(wanted, key=wanted.__getitem__)
    if not wanted[best][0] > 0:
        raise IcestreamError("not-acceptable", f"The answer is wanted as {accept[:1_000]}.")
    return best


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter.removeprefix("q="))
            except ValueError:
                return 0.0
    return 1.0
