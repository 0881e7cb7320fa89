"""Enrolling tables: one by its name, several that were found in a catalog, or all that match a pattern."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn

from fastapi import APIRouter, Depends, Request, Response
from pydantic import TypeAdapter, ValidationError
from sqlmodel import Session

from service.auth.access import Operator, Viewer
from service.auth.models import Principal
from service.catalogs import service as catalogs
from service.catalogs.endpoints import OpenCatalogs
from service.catalogs.threads import waits_for_catalog
from service.db.database import CurrentDatabase, ReadSession
from service.discovery import candidates, patterns
from service.discovery.models import StandingPatternPatch, StandingPatternRequest
from service.errors import ForbiddenError, IcestreamError, InvalidError, PreconditionError
from service.http.paging import PageRequest, Search
from service.jobs import service as jobs
from service.jobs.models import JobRequest
from service.policies.built_in import MANUAL
from service.policies.settings import NO_BRANCH
from service.records.jobs import JobKind
from service.settings import CurrentSettings
from service.tables import enrolment
from service.tables.models import PatternRequest, PatternResult, TableRequest, TableView
from service.ui.forms import Form, Typed, see
from service.ui.pages import PageRoute, address_of, render
from service.ui.policies import policy_names

router = APIRouter(route_class=PageRoute)

_FIELDS = {
    "catalog_not_found": "catalog",
    "policy_not_found": "policy",
    "table_not_found": "identifier",
    "table_exists": "identifier",
    "branch_not_found": "branch",
    "invalid_key_set": "key_columns",
    "staging_branch_in_use": "publish",
}
"""Which field an error is about."""
_DRY_RUN = JobRequest(kind=JobKind.CONVERT, dry_run=True)


@router.get("/tables/new")
def show_table_form(request: Request, session: ReadSession, reader: Viewer, catalog: str = "") -> Response:
    return _table_form(request, session, reader, Form.of(catalog=catalog, branch="main"))


@router.post("/tables/new")
@waits_for_catalog(lambda given: str(given["typed"]["catalog"]))
def enrol_table(
    request: Request,
    database: CurrentDatabase,
    opened: OpenCatalogs,
    settings: CurrentSettings,
    sender: Operator,
    typed: Typed,
) -> Response:
    try:
        columns = typed.listed("key_columns")
        body = typed.read(
            TableRequest,
            {
                "catalog": _chosen(typed, "catalog", "Choose the catalog that knows the table."),
                "identifier": _identifier(typed),
                "branch": typed["branch"] or "main",
                "policy": typed.given("policy"),
                "key_sets": [columns] if columns else None,
                "publish": staging_of(typed),
            },
        )
        created = _enrol(database, opened, settings, sender, body)
    except IcestreamError as error:
        with database.read() as session:
            return _table_form(request, session, sender, typed.refused(error, **_FIELDS))
    return see(f"/tables/{created.id}")


@router.get("/catalogs/{catalog_id}/candidates")
@waits_for_catalog(lambda given: str(given["catalog_id"]))
def show_candidates(
    request: Request,
    database: CurrentDatabase,
    opened: OpenCatalogs,
    looks: candidates.RecentLooks,
    settings: CurrentSettings,
    sender: Operator,
    catalog_id: str,
    page: Annotated[PageRequest, Depends(candidates.candidates_page)],
    namespace: str = "",
    all_tables: bool = False,
) -> Response:
    """The tables of a catalog with what conversion would do for them, some at a time: each is looked into."""
    found = candidates.find_candidates(
        database,
        settings,
        opened,
        looks,
        catalog_id,
        page,
        namespace=[part for part in namespace.split(".") if part] or None,
        only_with_deletes=not all_tables,
    )
    with database.read() as session:
        return render(
            request,
            "catalogs/candidates.html",
            sender,
            catalog=catalogs.view(session, catalogs.get_catalog(session, catalog_id)),
            found=found,
            next_cursor=found.next_cursor,
            sort=page.sort,
            identifiers=[json.dumps(one.identifier) for one in found.items],
            namespace=namespace,
            all_tables=all_tables,
            policies=policy_names(session),
            form=Form.of(),
        )


@router.post("/catalogs/{catalog_id}/candidates")
@waits_for_catalog(lambda given: str(given["catalog_id"]))
def enrol_candidates(
    request: Request,
    database: CurrentDatabase,
    opened: OpenCatalogs,
    settings: CurrentSettings,
    sender: Operator,
    catalog_id: str,
    typed: Typed,
) -> Response:
    """Enrol each table that was chosen; what became of each, if there is more to say than its page does."""
    with database.read() as session:
        catalog = catalogs.view(session, catalogs.get_catalog(session, catalog_id))
    enrolled, failed, job = [], [], None
    only_looks = typed["then"] == "look"
    policy = MANUAL if only_looks else typed.given("policy")
    chosen = [_chosen_table(text) for text in typed.all("identifier")]
    for identifier in chosen:
        try:
            body = typed.read(
                TableRequest,
                {"catalog": catalog.id, "identifier": identifier, "policy": policy},
            )
            enrolled.append(_enrol(database, opened, settings, sender, body))
            if only_looks:
                with database.write() as session:
                    job = jobs.request_job(session, sender, enrolled[-1].id, _DRY_RUN)
        except ForbiddenError:
            raise
        except IcestreamError as error:
            failed.append(enrolment.miss(tuple(identifier), error))
    if len(enrolled) == 1 and not failed:
        return see(f"/jobs/{job.id}" if job is not None else f"/tables/{enrolled[0].id}")
    result = PatternResult(
        dry_run=False,
        matched=[".".join(identifier) for identifier in chosen],
        enrolled=enrolled,
        already_enrolled=[],
        failed=failed,
    )
    return render(request, "patterns/result.html", sender, result=result, catalog=catalog)


@router.get("/patterns")
def show_patterns(
    request: Request,
    session: ReadSession,
    reader: Viewer,
    page: Annotated[PageRequest, Depends(patterns.SORTING.page_request)],
    catalog: str | None = None,
    search: Search = None,
) -> Response:
    found = patterns.list_patterns(session, page, catalog=catalog, search=search)
    return render(
        request,
        "patterns/list.html",
        reader,
        patterns=found.items,
        next_cursor=found.next_cursor,
        total=found.counted,
        sort=page.sort,
        catalog=catalog,
        search=search,
        catalogs=catalogs.list_names(session),
    )


@router.get("/patterns/new")
def show_pattern_form(
    request: Request, session: ReadSession, sender: Operator, catalog: str = ""
) -> Response:
    return _pattern_form(request, session, sender, Form.of(catalog=catalog, branch="main"))


@router.post("/patterns/new")
@waits_for_catalog(lambda given: str(given["typed"]["catalog"]))
def enrol_pattern(
    request: Request,
    database: CurrentDatabase,
    opened: OpenCatalogs,
    settings: CurrentSettings,
    sender: Operator,
    typed: Typed,
) -> Response:
    """Say what a pattern matches (`look`), enrol that (`once`), or enrol what is made later, too."""
    result = None
    try:
        said: dict[str, Any] = {
            "catalog": _chosen(typed, "catalog", "Choose the catalog that knows the tables."),
            "pattern": typed["pattern"],
            "exclude": typed.listed("exclude"),
            "branch": typed["branch"] or "main",
            "policy": typed.given("policy"),
            "publish": staging_of(typed),
        }
        if typed["what"] == "standing":
            standing = typed.read(StandingPatternRequest, said)
            with database.write() as session:
                made = patterns.create_pattern(session, sender, standing)
            return see(f"/patterns/{made.id}")
        body = typed.read(PatternRequest, said | {"dry_run": typed["what"] != "once"})
        matched, loaded, failed = enrolment.load_pattern(database, opened, sender, body)
        with database.write() as session:
            result = enrolment.enroll_pattern(session, settings, sender, body, matched, loaded, failed)
        if not body.dry_run:
            return render(request, "patterns/result.html", sender, result=result, catalog=None)
    except IcestreamError as error:
        typed = typed.refused(error, **_FIELDS)
    with database.read() as session:
        return _pattern_form(request, session, sender, typed, result)


@router.get("/patterns/{pattern_id}")
def show_pattern(request: Request, session: ReadSession, reader: Viewer, pattern_id: str) -> Response:
    return _pattern_page(request, session, reader, pattern_id, _form_of(session, pattern_id))


@router.post("/patterns/{pattern_id}/edit")
def update_pattern(
    request: Request, database: CurrentDatabase, sender: Operator, pattern_id: str, typed: Typed
) -> Response:
    try:
        body = typed.read(
            StandingPatternPatch,
            {
                "pattern": typed["pattern"],
                "exclude": typed.listed("exclude"),
                "policy": typed.given("policy"),
            },
        )
        with database.write() as session:
            patterns.update_pattern(session, sender, pattern_id, body, typed.if_match)
    except IcestreamError as error:
        with database.read() as session:
            form = typed.refused(error, **_FIELDS).beside(_form_of(session, pattern_id))
            return _pattern_page(request, session, sender, pattern_id, form)
    return see(f"/patterns/{pattern_id}")


@router.post("/patterns/{pattern_id}/delete")
def delete_pattern(
    request: Request, database: CurrentDatabase, sender: Operator, pattern_id: str, typed: Typed
) -> Response:
    try:
        with database.write() as session:
            patterns.delete_pattern(session, sender, pattern_id, if_match=typed.if_match)
    except PreconditionError as error:
        with database.read() as session:
            form = _form_of(session, pattern_id).refused(error)
            return _pattern_page(request, session, sender, pattern_id, form)
    return see("/patterns")


@router.post("/patterns/{pattern_id}/{action}")
def pause_pattern(
    database: CurrentDatabase, sender: Operator, pattern_id: str, action: Literal["pause", "resume"]
) -> Response:
    with database.write() as session:
        # Whatever else was changed meanwhile stays.
        patch = StandingPatternPatch(paused=action == "pause")
        patterns.update_pattern(session, sender, pattern_id, patch, "*")
    return see(f"/patterns/{pattern_id}")


def staging_of(typed: Typed) -> dict[str, str] | None:
    """The staging branch that a form names, as calls take it; `none` for none, whatever the policy says."""
    source = typed.given("publish")
    return {"from": "" if source == NO_BRANCH else source} if source is not None else None


def _enrol(
    database: CurrentDatabase,
    opened: OpenCatalogs,
    settings: CurrentSettings,
    sender: Principal,
    body: TableRequest,
) -> TableView:
    loaded = enrolment.load_for_enrolment(database, opened, sender, body)
    with database.write() as session:
        return enrolment.enroll_table(session, settings, sender, body, loaded)


def _table_form(request: Request, session: Session, reader: Principal, form: Form) -> Response:
    return render(
        request,
        "tables/enrol.html",
        reader,
        status_code=form.status_code,
        form=form,
        **_choices(session),
        address=address_of(request),
    )


def _pattern_form(
    request: Request, session: Session, sender: Principal, form: Form, result: PatternResult | None = None
) -> Response:
    return render(
        request,
        "patterns/new.html",
        sender,
        status_code=form.status_code,
        form=form,
        result=result,
        **_choices(session),
    )


def _form_of(session: Session, pattern_id: str) -> Form:
    pattern = patterns.view(session, patterns.get_pattern(session, pattern_id))
    return Form.of(
        pattern=pattern.pattern,
        exclude="\n".join(pattern.exclude),
        policy=pattern.policy or "",
        version=str(pattern.version),
    )


def _pattern_page(
    request: Request, session: Session, reader: Principal, pattern_id: str, form: Form
) -> Response:
    return render(
        request,
        "patterns/show.html",
        reader,
        status_code=form.status_code,
        form=form,
        pattern=patterns.view(session, patterns.get_pattern(session, pattern_id)),
        policies=policy_names(session),
    )


def _choices(session: Session) -> Mapping[str, Any]:
    return {
        "catalogs": catalogs.list_names(session),
        "policies": policy_names(session),
    }


def _chosen(typed: Form, name: str, asked: str) -> str:
    """What a field says. Raises InvalidError if it says nothing."""
    return typed[name] or _ask(name, asked)


def _chosen_table(text: str) -> list[str]:
    """The identifier that a box of the candidates stands for: its parts may have dots."""
    try:
        return TypeAdapter(list[str]).validate_json(text)
    except ValidationError:
        _ask("identifier", f"{text!r} is no table of the list.")


def _identifier(typed: Form) -> list[str]:
    asked = "Write namespace and table with a dot in between, such as sales.orders."
    parts = [part.strip() for part in typed["identifier"].split(".")]
    if len(parts) < 2 or not all(parts):
        _ask("identifier", asked)
    return parts


def _ask(name: str, asked: str) -> NoReturn:
    raise InvalidError(
        "validation-error",
        asked,
        "Correct it and send the form again.",
        title="The form is not complete",
        errors=[{"field": name, "message": asked}],
    )
