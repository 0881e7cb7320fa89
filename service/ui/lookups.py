"""Where the rows of a key are, live or deleted, and since when: the form on a table's page, and its answer.

Invariant: values of keys are in the body of a POST and on the page that answers it, and nowhere else.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField
from sqlmodel import Session

from service.auth.access import Viewer
from service.auth.models import Principal
from service.catalogs.endpoints import OpenCatalogs
from service.catalogs.threads import waits_for_catalog
from service.db.database import CurrentDatabase, Database
from service.errors import IcestreamError
from service.lookups import history
from service.lookups.admission import Asking
from service.lookups.models import COLUMNS_AT_MOST, SNAPSHOTS_AT_MOST, KeyHistory, KeyHistoryRequest
from service.problems import PROBLEMS, ProblemType
from service.records.catalogs import Catalog
from service.records.health import TableHealth
from service.records.tables import EnrolledTable, get_table
from service.settings import CurrentSettings, Settings
from service.tables import service as tables
from service.ui.forms import Form, Typed
from service.ui.pages import PageRoute, render

router = APIRouter(prefix="/tables", route_class=PageRoute)

_HISTORIES = [("1", "Only this snapshot")] + [
    (str(number), f"This snapshot and those before it, {number} at most")
    for number in (10, 20, 50, SNAPSHOTS_AT_MOST)
]
_ANY_HINT = "as Iceberg writes it: 17, 12.50, 2026-05-31, 2026-05-31T13:45:00"
_SHOWN_CHARACTERS = 1_000
"""Of one value."""
_HINTS = {
    "boolean": "true or false",
    "int": "a whole number",
    "long": "a whole number",
    "string": "spaces count",
    "date": "such as 2026-05-31",
    "time": "such as 13:45:00.5",
    "timestamp": "such as 2026-05-31T13:45:00.5",
    "timestamp_ns": "such as 2026-05-31T13:45:00.5",
    "timestamptz": "such as 2026-05-31T13:45:00.5Z",
    "timestamptz_ns": "such as 2026-05-31T13:45:00.5Z",
    "uuid": "such as 0b5c2f4e-9d57-4c1d-8f0e-2f6a1c3d4e5f",
    "binary": "in hexadecimal digits",
    "fixed": "in hexadecimal digits",
    "decimal": "such as 12.50",
}


@dataclass(frozen=True)
class KeyColumn:
    """A field of the form. hint: its type, if it is known, and how values are written."""

    name: str
    hint: str
    is_required: bool


@dataclass(frozen=True)
class KeyForm:
    """What the form offers. missing: why there is none.

    branches: of the metadata, as far as that was read.
    """

    key_sets: Sequence[Sequence[str]]
    chosen: int
    columns: Sequence[KeyColumn]
    branches: Sequence[str]
    histories: Sequence[tuple[str, str]]
    missing: ProblemType | None


def key_form(
    session: Session,
    settings: Settings,
    table: EnrolledTable,
    chosen: int = 0,
    metadata: TableMetadata | None = None,
    columns: Sequence[str] = (),
) -> KeyForm:
    """chosen: which of the key sets, unless `columns` are those of a form that was sent."""
    key_sets = _key_sets(session, table, metadata)
    if columns:
        same = [at for at, one in enumerate(key_sets) if set(one) == set(columns)]
        chosen = same[0] if same else -1
    else:
        chosen = chosen if 0 <= chosen < len(key_sets) else 0
        columns = key_sets[chosen] if key_sets else ()
    return KeyForm(
        key_sets,
        chosen,
        [_key_column(name, metadata) for name in columns],
        sorted(metadata.refs) if metadata is not None else (),
        _HISTORIES,
        None if settings.lookup_url else PROBLEMS["lookups-not-set-up"],
    )


@router.get("/{table_id}/find")
@waits_for_catalog(lambda given: str(given["table_id"]), is_table=True)
def show_key_form(
    request: Request,
    database: CurrentDatabase,
    opened: OpenCatalogs,
    settings: CurrentSettings,
    reader: Viewer,
    table_id: str,
    key_set: int = 0,
) -> Response:
    with database.read() as session:
        table = get_table(session, table_id)
        catalog = session.get_one(Catalog, table.catalog_id)
    form, metadata = Form.of(), None
    if settings.lookup_url:
        try:
            metadata = opened.load(catalog, tuple(table.identifier)).metadata
        except IcestreamError as error:
            form = form.refused(error)
    return _page(request, database, settings, reader, table_id, form, metadata, chosen=key_set)


@router.post("/{table_id}/find")
async def find_key(
    request: Request,
    database: CurrentDatabase,
    settings: CurrentSettings,
    reader: Asking,
    table_id: str,
    typed: Typed,
) -> Response:
    found = metadata = None
    form: Form = typed
    try:
        body = typed.read(KeyHistoryRequest, _asked(typed))
        asked = await history.begin(request, reader, body.snapshots)
        metadata = asked.metadata
        found = await history.tell(request, settings, asked, body)
    except IcestreamError as error:
        if error.slug == "table-not-enrolled":
            raise
        form = _refused(typed, error)
    return await run_in_threadpool(
        _page, request, database, settings, reader, table_id, form, metadata, found=found
    )


def _page(
    request: Request,
    database: Database,
    settings: Settings,
    reader: Principal,
    table_id: str,
    form: Form,
    metadata: TableMetadata | None,
    chosen: int = 0,
    found: KeyHistory | None = None,
) -> Response:
    with database.read() as session:
        row = get_table(session, table_id)
        return render(
            request,
            "lookups/find.html",
            reader,
            status_code=form.status_code,
            form=form,
            table=tables.view(session, settings, row),
            keys=key_form(session, settings, row, chosen, metadata, _columns(form)),
            found=found,
            shown=_shown,
        )


def _columns(form: Form) -> list[str]:
    """Names of the key's columns, as a form was sent for them."""
    numbers = takewhile(lambda at: form.all(f"column_{at}"), range(COLUMNS_AT_MOST + 1))
    return [form.all(f"column_{at}")[0] for at in numbers]


def _asked(typed: Form) -> dict[str, Any]:
    columns = _columns(typed)
    values = [
        None if typed[f"null_{at}"] else next(iter(typed.all(f"value_{at}")), "")
        for at in range(len(columns))
    ]
    return {
        "key": dict(zip(columns, values, strict=True)),
        "key_columns": columns,
        "branch": typed.given("branch"),
        "snapshot_id": typed.given("snapshot_id"),
        "select": typed.listed("select") or None,
        "snapshots": typed.given("snapshots") or 1,
    }


def _refused(typed: Form, error: IcestreamError) -> Form:
    columns = _columns(typed)
    about = [at for at, name in enumerate(columns) if f"column {name} is of type" in error.detail]
    return typed.refused(
        error,
        invalid_key=f"value_{about[0] if about else 0}",
        unknown_columns="select",
        unknown_snapshot="snapshot_id" if typed["snapshot_id"] else "branch",
    )


def _key_sets(session: Session, table: EnrolledTable, metadata: TableMetadata | None) -> list[Sequence[str]]:
    """Each once: declared, known to workers, or else made of the table's identifier fields."""
    reported = session.get_one(TableHealth, table.id).key_sets
    known: dict[frozenset[str], Sequence[str]] = {}
    for columns in (*table.key_sets, *(one["columns"] for one in reported)):
        known.setdefault(frozenset(columns), columns)
    if not known and metadata is not None and (names := metadata.schema().identifier_field_names()):
        return [sorted(names)]
    return list(known.values())


def _key_column(name: str, metadata: TableMetadata | None) -> KeyColumn:
    field = _field(name, metadata)
    if field is None:
        return KeyColumn(name, _ANY_HINT, is_required=False)
    kind = str(field.field_type)
    hint = _HINTS.get(kind.partition("(")[0].partition("[")[0])
    return KeyColumn(name, f"{kind}: {hint}" if hint else kind, field.required)


def _field(name: str, metadata: TableMetadata | None) -> NestedField | None:
    if metadata is None:
        return None
    try:
        return metadata.schema().find_field(name)
    except ValueError:
        return None


def _shown(value: object) -> str:
    """A value of a row, as JSON unless it is text."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
