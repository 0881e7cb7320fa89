"""Policies, and where they are attached."""

from sqlalchemy import ColumnElement, and_, func
from sqlmodel import Session, col, or_, select

from service.auth.models import Principal
from service.auth.service import authorize
from service.catalogs.service import find_catalog, get_catalog
from service.db.database import FOR_UPDATE, utc_now
from service.errors import ConflictError, InvalidError, NotFoundError
from service.http.etags import check_version, store_change
from service.http.paging import Page, PageRequest, Sorting, read_page
from service.policies.built_in import BUILT_IN, STANDARD
from service.policies.effective import place_of
from service.policies.mistakes import find_mistakes, inherited_mistake, refuse_mistakes
from service.policies.models import AttachmentRequest, AttachmentView, PolicyPatch, PolicyRequest, PolicyView
from service.policies.places import (
    SYSTEM_TARGET,
    namespace_target,
    table_target,
    targets_of_table,
)
from service.policies.staging import restaging
from service.records.api_keys import Role
from service.records.catalogs import Catalog
from service.records.patterns import EnrollmentPattern
from service.records.policies import Level, Policy, PolicyAttachment
from service.records.tables import EnrolledTable, audited_name
from service.settings import Settings

SORTING = Sorting(
    {"name": Policy.name, "created_at": Policy.created_at, "updated_at": Policy.updated_at},
    key=Policy.id,
    default="name",
)
ATTACHMENT_SORTING = Sorting(
    {"level": PolicyAttachment.level, "updated_at": PolicyAttachment.updated_at},
    key=PolicyAttachment.target,
    default="level",
)


def ensure_built_in(session: Session) -> None:
    """Bring the built-in policies up to date, and attach `standard` to the system if it has none."""
    for name, (description, settings) in BUILT_IN.items():
        stored = settings.model_dump(exclude_none=True)
        row = session.exec(select(Policy).where(Policy.name == name)).first()
        if row is None:
            row = Policy(name=name, built_in=True)
        if row.settings != stored or row.description != description:
            row.settings, row.description = stored, description
        session.add(row)
    session.flush()
    if session.get(PolicyAttachment, SYSTEM_TARGET) is None:
        standard = get_policy(session, STANDARD)
        session.add(PolicyAttachment(target=SYSTEM_TARGET, level=Level.SYSTEM.value, policy_id=standard.id))


def create_policy(
    session: Session, settings: Settings, principal: Principal, request: PolicyRequest
) -> PolicyView:
    """Raises InvalidError if it asks for more than the operator allows."""
    authorize(session, principal, Role.OPERATOR, "policy.create", request.name)
    refuse_mistakes(find_mistakes(session, settings, request.settings))
    _check_name_is_free(session, request.name)
    row = Policy(
        name=request.name,
        description=request.description,
        settings=request.settings.model_dump(exclude_none=True),
    )
    session.add(row)
    session.flush()
    return view(row)


def list_policies(
    session: Session, page: PageRequest, *, search: str | None = None, built_in: bool | None = None
) -> Page[PolicyView]:
    """All policies; `search` is a part of the name."""
    query = select(Policy)
    if search:
        query = query.where(col(Policy.name).icontains(search, autoescape=True))
    if built_in is not None:
        query = query.where(Policy.built_in == built_in)
    return read_page(session, query, page, SORTING, lambda rows: [view(row) for row in rows])


def get_policy(session: Session, name_or_id: str, *, for_update: bool = False) -> Policy:
    """Raises NotFoundError."""
    row = find_policy(session, name_or_id, for_update=for_update)
    if row is None:
        raise NotFoundError(
            "policy-not-found", f"There is no policy {name_or_id!r}.", "Look in the list of policies."
        )
    return row


def find_policy(session: Session, name_or_id: str, *, for_update: bool = False) -> Policy | None:
    query = select(Policy).where(or_(Policy.id == name_or_id, Policy.name == name_or_id))
    if for_update:
        query = query.with_for_update(key_share=FOR_UPDATE["key_share"]).execution_options(
            populate_existing=True
        )
    return session.exec(query).first()


def policy_of_request(session: Session, name_or_id: str) -> Policy:
    """A policy that a request body names. Raises InvalidError."""
    row = find_policy(session, name_or_id)
    if row is None:
        names = session.exec(select(Policy.name).order_by(col(Policy.name)).limit(20)).all()
        raise InvalidError(
            "policy-not-found",
            f"There is no policy {name_or_id!r}; there are: {', '.join(names)}.",
            "Name one of those, or create it first. null inherits.",
        )
    return row


def update_policy(
    session: Session,
    settings: Settings,
    principal: Principal,
    policy_id: str,
    patch: PolicyPatch,
    if_match: str,
    *,
    leave_staged: bool = False,
) -> PolicyView:
    """Change a policy that nobody changed meanwhile; it holds for every table that it reaches at once.

    That of the whole system is changed by those who may attach another one there. leave_staged: what is
    staged and not published stays where it is, on branches that are published no more.
    """
    doing = f"{principal.name} changed policy {get_policy(session, policy_id).name!r}"
    with restaging(session, doing, "body.settings.publish.from", leave_staged=leave_staged):
        row = get_policy(session, policy_id, for_update=True)
        is_of_system = session.get_one(PolicyAttachment, SYSTEM_TARGET).policy_id == row.id
        needed = _needed_at(is_system=is_of_system)
        authorize(session, principal, needed, "policy.update", row.name, leave_staged=leave_staged)
        _refuse_built_in(row)
        check_version(if_match, row.version)
        if patch.name is not None and patch.name != row.name:
            _check_name_is_free(session, patch.name)
            row.name = patch.name
        if patch.description is not None:
            row.description = patch.description
        if patch.settings is not None:
            refuse_mistakes(find_mistakes(session, settings, patch.settings, row))
            row.settings = patch.settings.model_dump(exclude_none=True)
        store_change(session, row)
        return view(row)


def delete_policy(
    session: Session, principal: Principal, policy_id: str, *, if_match: str | None = None
) -> None:
    row = get_policy(session, policy_id, for_update=True)
    authorize(session, principal, Role.OPERATOR, "policy.delete", row.name)
    check_version(if_match, row.version)
    _refuse_built_in(row)
    uses = session.exec(select(PolicyAttachment).where(PolicyAttachment.policy_id == row.id).limit(5)).all()
    patterns = session.exec(
        select(EnrollmentPattern, Catalog.name)
        .join(Catalog, col(Catalog.id) == col(EnrollmentPattern.catalog_id))
        .where(EnrollmentPattern.policy_id == row.id)
        .limit(5)
    ).all()
    if uses or patterns:
        places = ", ".join(
            (
                *(place_of(session, use) for use in uses),
                *(f"tables of pattern {each.pattern!r} of catalog {catalog}" for each, catalog in patterns),
            )
        )
        raise ConflictError(
            "policy-in-use",
            f"{row.name!r} is attached to: {places}.",
            "Attach another policy there first, and give the patterns another one.",
        )
    session.delete(row)


def attach_policy(
    session: Session,
    principal: Principal,
    request: AttachmentRequest,
    if_match: str | None = None,
    *,
    leave_staged: bool = False,
) -> AttachmentView | None:
    """Attach a policy to a place, or detach it (None is returned then). The system always keeps one.

    leave_staged: as for `update_policy`.
    """
    does = "detached a policy from" if request.policy is None else f"attached policy {request.policy!r} to"
    doing = f"{principal.name} {does} the {request.level.value}"
    with restaging(session, doing, "body.policy", leave_staged=leave_staged):
        target, catalog_id, table = _target_of(session, request, for_update=True)
        needed = _needed_at(is_system=request.level is Level.SYSTEM)
        said = {"policy": request.policy, "leave_staged": leave_staged}
        place = target if table is None else audited_name(session, table)
        authorize(session, principal, needed, "policy.attach", place, **said)
        if request.policy is None and request.level is Level.SYSTEM:
            raise InvalidError("system-needs-policy", "Detaching it would leave values without a source.")
        row = _attach(
            session,
            target,
            request.level,
            request.policy,
            catalog_id,
            request.namespace,
            request.table_id,
            if_match,
        )
        if table is not None:
            # It shows its policy: an update that was made from the former one must not overwrite this.
            store_change(session, table)
        return None if row is None else _attachment_view(session, row)


def _needed_at(*, is_system: bool) -> Role:
    """Who may say what holds for the whole system, or only somewhere."""
    return Role.ADMIN if is_system else Role.OPERATOR


def find_attachment(session: Session, request: AttachmentRequest) -> AttachmentView | None:
    """What is attached to the place that a request is about."""
    target, _, _ = _target_of(session, request)
    row = session.get(PolicyAttachment, target)
    return None if row is None else _attachment_view(session, row)


def _target_of(
    session: Session, request: AttachmentRequest, *, for_update: bool = False
) -> tuple[str, str | None, EnrolledTable | None]:
    """The key of a place, with the id of its catalog or the table. Raises NotFoundError, InvalidError."""
    match request.level:
        case Level.SYSTEM:
            return SYSTEM_TARGET, None, None
        case Level.TABLE:
            table = session.get(
                EnrolledTable, request.table_id, with_for_update=FOR_UPDATE if for_update else None
            )
            if table is None or table.deleted_at is not None:
                raise InvalidError(
                    "table-not-enrolled",
                    f"There is no enrolled table {request.table_id!r}.",
                    "Look in the list of tables.",
                )
            return table_target(table.id), None, table
    catalog_id = get_catalog(session, request.catalog or "").id
    if request.level is Level.CATALOG:
        return f"catalog:{catalog_id}", catalog_id, None
    return namespace_target(catalog_id, request.namespace or []), catalog_id, None


def set_table_policy(session: Session, table_id: str, policy: str | None) -> None:
    """Attach a policy to one table, or go back to inheriting.

    The caller has authorized it, and looks at what that makes of the table's staging branch.
    """
    _attach(session, table_target(table_id), Level.TABLE, policy, None, None, table_id)


def list_attachments(
    session: Session,
    page: PageRequest,
    *,
    level: Level | None = None,
    catalog: str | None = None,
    policy: str | None = None,
) -> Page[AttachmentView]:
    """Where policies are attached; `catalog` and `policy` are names or ids."""
    query = select(PolicyAttachment)
    if level is not None:
        query = query.where(PolicyAttachment.level == level.value)
    if catalog is not None:
        found = find_catalog(session, catalog)
        query = query.where(PolicyAttachment.catalog_id == (found.id if found else ""))
    if policy is not None:
        named = find_policy(session, policy)
        query = query.where(PolicyAttachment.policy_id == (named.id if named else ""))
    return read_page(
        session,
        query,
        page,
        ATTACHMENT_SORTING,
        lambda rows: [_attachment_view(session, row) for row in rows],
    )


def tables_under(session: Session, policy: Policy | None, most: int) -> list[EnrolledTable]:
    """Enrolled tables that a policy reaches, the first ones by name: `most`, of as many namespaces.

    policy: None for one of the whole system.
    """
    policy_id = policy.id if policy else ""
    attached = select(PolicyAttachment).where(PolicyAttachment.policy_id == policy_id)
    targets = set(
        session.exec(select(PolicyAttachment.target).where(PolicyAttachment.policy_id == policy_id))
    )
    if policy is None:
        targets = {SYSTEM_TARGET}
    of_catalogs, of_tables = (
        attached.where(PolicyAttachment.level == level.value).with_only_columns(column)
        for level, column in (
            (Level.CATALOG, col(PolicyAttachment.catalog_id)),
            (Level.TABLE, col(PolicyAttachment.table_id)),
        )
    )
    reached: list[ColumnElement[bool]] = [
        col(EnrolledTable.catalog_id).in_(of_catalogs),
        col(EnrolledTable.id).in_(of_tables),
    ]
    for place in session.exec(attached.where(PolicyAttachment.level == Level.NAMESPACE.value).limit(most)):
        name = ".".join(place.namespace or ())
        start = func.substr(EnrolledTable.namespace, 1, len(name) + 1)
        inside = or_(col(EnrolledTable.namespace) == name, start == f"{name}.")
        reached.append(and_(col(EnrolledTable.catalog_id) == place.catalog_id, inside))
    query = select(EnrolledTable).where(col(EnrolledTable.deleted_at).is_(None))
    if SYSTEM_TARGET not in targets:
        query = query.where(or_(*reached))
    found = session.exec(query.order_by(col(EnrolledTable.name), col(EnrolledTable.id)).limit(most))
    # Namespaces `a.b` of one part and of two have the same name.
    return [table for table in found if targets.intersection(targets_of_table(table))]


def _attach(
    session: Session,
    target: str,
    level: Level,
    policy: str | None,
    catalog_id: str | None,
    namespace: list[str] | None,
    table_id: str | None,
    if_match: str | None = None,
) -> PolicyAttachment | None:
    row = session.get(PolicyAttachment, target, with_for_update=FOR_UPDATE)
    check_version(if_match, None if row is None else row.version)
    if policy is None:
        if row is not None:
            session.delete(row)
            session.flush()
            refuse_mistakes([*inherited_mistake(session, {target}, {})])
        return None
    found = policy_of_request(session, policy)
    if row is None:
        row = PolicyAttachment(
            target=target,
            level=level.value,
            policy_id=found.id,
            catalog_id=catalog_id,
            namespace=namespace,
            table_id=table_id,
        )
    row.policy_id = found.id
    row.updated_at = utc_now()
    session.add(row)
    session.flush()
    refuse_mistakes([*inherited_mistake(session, {target}, {})])
    return row


def _attachment_view(session: Session, row: PolicyAttachment) -> AttachmentView:
    catalog = session.get_one(Catalog, row.catalog_id).name if row.catalog_id else None
    table = session.get_one(EnrolledTable, row.table_id) if row.table_id else None
    return AttachmentView(
        level=Level(row.level),
        catalog=catalog,
        namespace=row.namespace,
        table_id=row.table_id,
        table=f"{session.get_one(Catalog, table.catalog_id).name}.{table.name}" if table else None,
        policy=session.get_one(Policy, row.policy_id).name,
        version=row.version,
        updated_at=row.updated_at,
    )


def _check_name_is_free(session: Session, name: str) -> None:
    if session.exec(select(Policy).where(Policy.name == name)).first() is not None:
        raise ConflictError(
            "policy-exists", f"{name!r} is taken.", "Choose another name, or change the policy that is there."
        )


def _refuse_built_in(row: Policy) -> None:
    if row.built_in:
        raise ConflictError("policy-built-in", f"{row.name!r} is built in.")


def view(row: Policy) -> PolicyView:
    return PolicyView.model_validate(row, from_attributes=True)
