"""The pages of policies: what they say, where they hold, and the forms that change that."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from sqlmodel import Session

from service.auth.access import Operator, Viewer
from service.auth.models import Principal
from service.catalogs import service as catalogs
from service.db.database import CurrentDatabase, ReadSession, utc_now
from service.errors import IcestreamError, NotFoundError, PreconditionError
from service.http.paging import EVERYTHING, PageRequest, Search
from service.policies import service as policies
from service.policies.effective import inherited_values
from service.policies.mistakes import find_mistakes, refuse_mistakes
from service.policies.models import AttachmentRequest, AttachmentView, PolicyPatch, PolicyRequest, PolicyView
from service.policies.settings import PolicySettings
from service.records.catalogs import Catalog
from service.records.health import TableHealth
from service.records.jobs import JobKind
from service.records.policies import Level, Policy
from service.records.tables import full_name
from service.scheduling.models import PolicyReplay, ReplayedInterval, ReplayedOutcome
from service.scheduling.replay import replay
from service.settings import CurrentSettings, Settings
from service.tables.names import find_table
from service.ui import formats
from service.ui.formats import POLICY_SECTIONS, POLICY_SETTINGS, setting
from service.ui.forms import Form, Typed, see
from service.ui.pages import PageRoute, render
from service.ui.plot import VALUES_SHOWN, Comparison, Point, Unit, moments, plot
from service.ui.policy_form import read_setting, sections, write_setting

_OFFERED = 20
"""Tables to try a policy on; others are found as their names are typed."""
_LINES = (("Happened", "muted"), ("Present policy, replayed", "accent"), ("As typed below", "warn"))
"""Of the charts of a policy that is tried: names, and inks."""

router = APIRouter(prefix="/policies", route_class=PageRoute)


@router.get("")
def show_policies(
    request: Request,
    session: ReadSession,
    reader: Viewer,
    page: Annotated[PageRequest, Depends(policies.SORTING.page_request)],
    search: Search = None,
    built_in: bool | None = None,
) -> Response:
    found = policies.list_policies(session, page, search=search, built_in=built_in)
    return render(
        request,
        "policies/list.html",
        reader,
        policies=found.items,
        places={policy.id: _places(session, policy) for policy in found.items},
        next_cursor=found.next_cursor,
        total=found.counted,
        sort=page.sort,
        search=search,
        built_in=built_in,
    )


@router.get("/new")
def show_new_policy(request: Request, session: ReadSession, sender: Operator, like: str = "") -> Response:
    """like: a policy whose settings the form begins with."""
    model = policies.find_policy(session, like) if like else None
    return _policy_form(request, session, sender, _filled(model.settings if model else {}, description=""))


@router.post("/new")
def create_policy(
    request: Request, database: CurrentDatabase, settings: CurrentSettings, sender: Operator, typed: Typed
) -> Response:
    try:
        body = typed.read(PolicyRequest, _said(typed))
        with database.write() as session:
            created = policies.create_policy(session, settings, sender, body)
    except IcestreamError as error:
        with database.read() as session:
            return _policy_form(request, session, sender, typed.refused(error, policy_exists="name"))
    return see(f"/policies/{created.id}")


@router.get("/{policy_id}")
def show_policy(request: Request, session: ReadSession, reader: Viewer, policy_id: str) -> Response:
    return _policy_page(request, session, reader, policy_id, Form.of())


@router.get("/{policy_id}/edit")
def show_policy_form(request: Request, session: ReadSession, sender: Operator, policy_id: str) -> Response:
    row = policies.get_policy(session, policy_id)
    return _policy_form(request, session, sender, _form_of(policies.view(row)), row)


@router.post("/{policy_id}/edit")
def update_policy(
    request: Request,
    database: CurrentDatabase,
    settings: CurrentSettings,
    sender: Operator,
    policy_id: str,
    typed: Typed,
) -> Response:
    try:
        body = typed.read(PolicyPatch, _said(typed))
        with database.write() as session:
            leaves = typed["leave_staged"] == "true"
            policies.update_policy(
                session, settings, sender, policy_id, body, typed.if_match, leave_staged=leaves
            )
    except IcestreamError as error:
        with database.read() as session:
            row = policies.get_policy(session, policy_id)
            form = typed.refused(error, policy_exists="name").beside(_form_of(policies.view(row)))
            return _policy_form(request, session, sender, form, row)
    return see(f"/policies/{policy_id}")


@router.post("/new/try")
def try_new_policy(
    request: Request, session: ReadSession, settings: CurrentSettings, sender: Operator, typed: Typed
) -> Response:
    return _try(request, session, settings, sender, typed)


@router.post("/{policy_id}/try")
def try_policy(
    request: Request,
    session: ReadSession,
    settings: CurrentSettings,
    sender: Operator,
    policy_id: str,
    typed: Typed,
) -> Response:
    return _try(request, session, settings, sender, typed, policies.get_policy(session, policy_id))


def _try(
    request: Request,
    session: Session,
    settings: Settings,
    sender: Principal,
    typed: Form,
    row: Policy | None = None,
) -> Response:
    """The form as it was typed, with what it would have made of a table. Nothing is changed."""
    tried: PolicyReplay | None = None
    try:
        body = typed.read(PolicyPatch, {"settings": _said(typed)["settings"]})
        wanted = body.settings or PolicySettings()
        refuse_mistakes(find_mistakes(session, settings, wanted, row))
        table = find_table(session, typed["table"])
        health = session.get_one(TableHealth, table.id)
        reaches = row is not None and bool(policies.tables_under(session, row, 1))
        tried = replay(session, table, health, wanted, row.id if row and reaches else None, utc_now())
    except IcestreamError as error:
        typed = typed.refused(
            error, table_not_enrolled="table", table_ambiguous="table", policy_elsewhere="table"
        )
    return _policy_form(request, session, sender, typed, row, tried)


@router.post("/{policy_id}/delete")
def delete_policy(
    request: Request, database: CurrentDatabase, sender: Operator, policy_id: str, typed: Typed
) -> Response:
    try:
        with database.write() as session:
            policies.delete_policy(session, sender, policy_id, if_match=typed.if_match)
    except IcestreamError as error:
        with database.read() as session:
            return _policy_page(request, session, sender, policy_id, Form.of().refused(error))
    return see("/policies")


@router.post("/{policy_id}/attach")
def attach_policy(
    request: Request, database: CurrentDatabase, sender: Operator, policy_id: str, typed: Typed
) -> Response:
    """Attach it to a place, or with `detach` take it away from there.

    The form says at first that nothing is there. If something is, the page names it, and asks once more.
    """
    try:
        body = typed.read(
            AttachmentRequest, _place(typed) | {"policy": None if typed["detach"] else policy_id}
        )
        with database.write() as session:
            policies.get_policy(session, policy_id)
            leaves = typed["leave_staged"] == "true"
            policies.attach_policy(session, sender, body, typed.if_match, leave_staged=leaves)
    except NotFoundError:
        raise
    except PreconditionError as error:
        with database.read() as session:
            if typed["detach"]:
                return _policy_page(request, session, sender, policy_id, Form.of().refused(error))
            there = policies.find_attachment(session, body)
            form = typed.refused(error).beside(Form.of(version=str(there.version) if there else ""))
            return _policy_page(request, session, sender, policy_id, form, there)
    except IcestreamError as error:
        form = typed.refused(error, validation_error="namespace")
        with database.read() as session:
            return _policy_page(request, session, sender, policy_id, form)
    return see(f"/policies/{policy_id}")


def policy_names(session: Session) -> list[str]:
    """Of all policies, to choose one in a form."""
    return [policy.name for policy in policies.list_policies(session, PageRequest(limit=EVERYTHING)).items]


def _policy_page(
    request: Request,
    session: Session,
    reader: Principal,
    policy_id: str,
    form: Form,
    there: AttachmentView | None = None,
) -> Response:
    """there: what is attached where the form would attach this policy."""
    policy = policies.view(policies.get_policy(session, policy_id))
    attached = policies.list_attachments(session, PageRequest(limit=EVERYTHING), policy=policy.id).items
    return render(
        request,
        "policies/show.html",
        reader,
        status_code=form.status_code,
        policy=policy,
        sections=_in_words(policy),
        attached=[(place, _words(place)) for place in attached],
        catalogs=catalogs.list_names(session),
        form=form,
        there=there,
    )


def _policy_form(
    request: Request,
    session: Session,
    sender: Principal,
    form: Form,
    row: Policy | None = None,
    tried: PolicyReplay | None = None,
) -> Response:
    """tried: what the form would have made of a table."""
    reached = policies.tables_under(session, row, _OFFERED) if row else []
    offered = reached or policies.tables_under(session, None, _OFFERED)
    charts = _charts(tried) if tried else []
    return render(
        request,
        "policies/form.html",
        sender,
        status_code=form.status_code,
        form=form,
        policy=policies.view(row) if row else None,
        sections=list(sections(inherited_values(session, row))),
        tables=[full_name(table, session.get_one(Catalog, table.catalog_id)) for table in offered],
        is_for_them=bool(reached),
        tried=tried,
        figures=_figures(tried) if tried else [],
        charts=charts,
        plot_moments=moments([plot for chart in charts for _, _, plot in chart.lines], VALUES_SHOWN)
        if charts
        else [],
    )


def _charts(tried: PolicyReplay) -> list[Comparison]:
    """What happened, and what the replays say, over time."""
    outcomes = dict(zip(_LINES, (tried.happened, tried.present, tried.edited), strict=True))

    def draw(title: str, unit: Unit, values: Callable[[ReplayedOutcome], list[Point]]) -> Comparison | None:
        drawn = [
            (name, ink, plot(f"{title}: {name}", unit, values(outcome), tried.until_time))
            for (name, ink), outcome in outcomes.items()
        ]
        lines = [(name, ink, one) for name, ink, one in drawn if one is not None]
        return Comparison(title, lines) if len(lines) == len(drawn) else None

    def of_intervals(figure: Callable[[ReplayedInterval], float]) -> Callable[[ReplayedOutcome], list[Point]]:
        return lambda outcome: [(one.begins_at, figure(one)) for one in outcome.intervals]

    drawn = (
        draw("Pending equality deletes", Unit.COUNT, of_intervals(lambda one: one.pending_equality_deletes)),
        draw("Lag", Unit.SECONDS, of_intervals(lambda one: one.lag_seconds)),
        draw("Jobs", Unit.COUNT, of_intervals(lambda one: one.jobs)),
        draw(
            "A full read by Spark", Unit.SECONDS, lambda one: [(read.at, read.seconds) for read in one.reads]
        ),
    )
    return [each for each in drawn if each is not None]


def _figures(tried: PolicyReplay) -> list[tuple[str, list[str]]]:
    """What happened, and what the replays say, in words: (figure, three values)."""
    outcomes = (tried.happened, tried.present, tried.edited)
    jobs = [{each.kind: each for each in one.jobs} for one in outcomes]
    kinds = [kind for kind in JobKind if any(kind in each for each in jobs)]
    rows = [
        (
            f"Jobs: {kind.words}",
            [
                f"{formats.count(each[kind].jobs)} in {formats.duration(each[kind].seconds)}"
                if kind in each
                else "none"
                for each in jobs
            ],
        )
        for kind in kinds
    ]
    figures: tuple[tuple[str, Callable[[ReplayedOutcome], float | None], Callable[[Any], str]], ...] = (
        ("Lag, median", lambda one: one.lag_seconds_median, formats.duration),
        ("Lag, longest", lambda one: one.lag_seconds_max, formats.duration),
        ("Bytes written by jobs", lambda one: one.bytes_written, formats.size),
        ("Bytes written for each of a writer's", lambda one: one.write_amplification, formats.times),
        ("Vectors and position deletes written", lambda one: one.delete_files_written, formats.count),
        ("Those in the place of another", lambda one: one.delete_files_rewritten, formats.count),
        ("A full read by Spark, on average", lambda one: one.read_seconds, formats.duration),
        ("As many times as of a table just rewritten", lambda one: one.read_ratio, formats.times),
    )
    for words, figure, write in figures:
        values = [figure(one) for one in outcomes]
        rows.append((words, [formats.NONE if value is None else write(value) for value in values]))
    return rows


def _form_of(policy: PolicyView) -> Form:
    return _filled(
        policy.settings, name=policy.name, description=policy.description, version=str(policy.version)
    )


def _filled(settings: dict[str, Any], **fields: str) -> Form:
    values = PolicySettings.model_validate(settings).model_dump(mode="json", exclude_none=True)
    written = {
        f"settings__{section}__{name}": write_setting(f"{section}.{name}", value)
        for section, part in values.items()
        for name, value in part.items()
    }
    return Form.of(**fields, **written)


def _said(typed: Form) -> dict[str, Any]:
    """The body of a policy that a form describes."""
    settings: dict[str, dict[str, Any]] = {}
    for dotted in POLICY_SETTINGS:
        value = read_setting(dotted, typed[f"settings.{dotted}"])
        section, _, name = dotted.partition(".")
        if value is not None:
            settings.setdefault(section, {})[name] = value
    return {"name": typed["name"], "description": typed["description"], "settings": settings}


def _place(typed: Form) -> dict[str, Any]:
    """Where a policy is to be attached: the more a form names, the narrower."""
    if typed["table_id"]:
        return {"level": Level.TABLE, "table_id": typed["table_id"]}
    namespace = [part for part in typed["namespace"].split(".") if part]
    if not typed["catalog"]:
        return {"level": Level.SYSTEM, "namespace": namespace or None}
    if not namespace:
        return {"level": Level.CATALOG, "catalog": typed["catalog"]}
    return {"level": Level.NAMESPACE, "catalog": typed["catalog"], "namespace": namespace}


def _in_words(policy: PolicyView) -> list[tuple[str, list[tuple[str, str]]]]:
    """What a policy says itself, under the headings of its sections."""
    said: dict[str, list[tuple[str, str]]] = {}
    values = PolicySettings.model_validate(policy.settings).model_dump(mode="json", exclude_none=True)
    for section, part in values.items():
        for name, value in part.items():
            words = POLICY_SETTINGS[f"{section}.{name}"]
            said.setdefault(POLICY_SECTIONS[section], []).append((words, setting(value, f"{section}.{name}")))
    return list(said.items())


def _words(place: AttachmentView) -> str:
    match place.level:
        case Level.SYSTEM:
            return "the whole system"
        case Level.CATALOG:
            return f"catalog {place.catalog}"
        case Level.NAMESPACE:
            return f"namespace {'.'.join(place.namespace or [])} of {place.catalog}"
        case Level.TABLE:
            return f"table {place.table}"


def _places(session: Session, policy: PolicyView) -> list[str]:
    """Where a policy holds, in words; tables are only counted."""
    attached = policies.list_attachments(session, PageRequest(limit=EVERYTHING), policy=policy.id).items
    wide = [_words(place) for place in attached if place.level is not Level.TABLE]
    narrow = len(attached) - len(wide)
    return wide + ([f"{narrow:,} table{'s' if narrow > 1 else ''}"] if narrow else [])
