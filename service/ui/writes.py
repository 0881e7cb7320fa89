"""The page that writes rows of a table by key: a dry run first, and then the same for good.

What was typed is part of no page and no address but the answer to a form that was refused.
"""

import json
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from service.auth.access import Operator
from service.auth.models import Principal
from service.db.database import CurrentDatabase, ReadSession
from service.errors import IcestreamError, InvalidError
from service.http.body_limits import check_shape
from service.http.json_values import check_body
from service.records.tables import EnrolledTable, get_table
from service.rows import service as rows
from service.rows.models import DeleteRequest, UpsertRequest
from service.settings import CurrentSettings
from service.ui.forms import Form, Typed, see
from service.ui.pages import PageRoute, render

router = APIRouter(prefix="/tables/{table_id}/write", route_class=PageRoute)
_EXISTING = {"insert": {"insert_only": True}}


@router.get("")
def show_write_form(request: Request, session: ReadSession, sender: Operator, table_id: str) -> Response:
    table = get_table(session, table_id)
    columns = table.key_sets[0] if len(table.key_sets) == 1 else []
    return _form(request, sender, table, Form.of(kind="upsert", key_columns=", ".join(columns)))


@router.post("")
def write_rows(
    request: Request,
    database: CurrentDatabase,
    settings: CurrentSettings,
    sender: Operator,
    table_id: str,
    typed: Typed,
) -> Response:
    try:
        with database.write() as session:
            job = _asked(typed)(session, settings, sender, table_id)
    except IcestreamError as error:
        with database.read() as session:
            form = typed.refused(error)
            return _form(request, sender, get_table(session, table_id), form)
    return see(f"/jobs/{job.id}")


def _asked(typed: Form) -> Any:
    """The call that the form stands for. Raises InvalidError."""
    common = {
        "key_columns": typed.listed("key_columns") or None,
        "files": (files := typed.lines("files") or None),
        "dry_run": typed["dry_run"] != "false",
    }
    sent = None if files and not typed["rows"].strip() else parsed_json(typed["rows"], "rows")
    if typed["kind"] == "delete":
        deletion = typed.read(DeleteRequest, {"keys": sent, **common})
        return partial(rows.delete_rows, request=deletion)
    options = _EXISTING.get(typed["existing"], {})
    further = {
        "only_if_newer_than": typed.given("only_if_newer_than"),
        "duplicates": typed.given("duplicates") or "refuse",
    }
    upsert = typed.read(UpsertRequest, {"rows": sent, **common, **options, **further})
    return partial(rows.upsert_rows, request=upsert)


def parsed_json(text: str, field: str) -> Any:
    """What a field of a form says in JSON. Raises InvalidError, which does not repeat it."""
    try:
        body = text.encode()
        check_shape(body)
        check_body(body)
        return json.loads(body)
    except (ValueError, RecursionError):
        finding = {"field": field, "message": "This is no JSON."}
        raise InvalidError(
            "validation-error", f"{field}: this is no JSON.", "Write a list of objects.", errors=[finding]
        ) from None


def _form(request: Request, sender: Principal, table: EnrolledTable, form: Form) -> Response:
    return render(request, "rows/form.html", sender, status_code=form.status_code, form=form, table=table)
