"""Policies, where they are attached, and the effective one of a table.

Two are built in: `standard`, which sets every value and is attached to the system, and `manual`,
under which nothing runs by itself. They cannot be changed, so that every value always has a source.
"""

import json
import math
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, String, and_, bindparam, cast, func
from sqlmodel import Session, col, or_, select

from service.auth.models import Principal
from service.auth.service import authorize
from service.catalogs.service import find_catalog, get_catalog
from service.db.database import FOR_UPDATE, utc_now
from service.errors import ConflictError, InvalidError, NotFoundError
from service.http.etags import check_version
from service.http.paging import Page, PageRequest, Sorting, read_page
from service.policies.models import (
    AttachmentRequest,
    AttachmentView,
    BudgetPolicy,
    CompactPolicy,
    ConvertPolicy,
    EffectivePolicy,
    EffectivePolicyView,
    EffectiveResourcesPolicy,
    EffectiveValue,
    ExpireSnapshotsPolicy,
    IndexPolicy,
    PolicyPatch,
    PolicyRequest,
    PolicySettings,
    PolicyView,
    PublishPolicy,
    ResourcesPolicy,
    RetryPolicy,
    RewriteDataFilesPolicy,
    RewriteManifestsPolicy,
    RewritePositionDeleteFilesPolicy,
    SchedulePolicy,
    ValueSource,
    VerifyPolicy,
    contradictions,
)
from service.policies.places import (
    SYSTEM_TARGET,
    namespace_target,
    table_target,
    targets_of,
    targets_of_table,
)
from service.policies.schedules import MAX_WINDOWS
from service.policies.staging import restaging
from service.records.catalogs import Catalog
from service.records.keys import Role
from service.records.patterns import EnrollmentPattern
from service.records.policies import Level, Policy, PolicyAttachment
from service.records.tables import EnrolledTable
from service.settings import Settings

STANDARD = "standard"
MANUAL = "manual"
_POLICIES_KEPT = 1000
# As text, since they are nearly always the same.
_SETTINGS = (
    select(PolicyAttachment.target, cast(Policy.settings, String))
    .join(Policy, col(Policy.id) == col(PolicyAttachment.policy_id))
    .where(col(PolicyAttachment.target).in_(bindparam("targets", expanding=True)))
)
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

BUILT_IN: dict[str, tuple[str, PolicySettings]] = {
    STANDARD: (
        "Indexes within about a minute, converts equality deletes within about five, compacts now and then.",
        PolicySettings(
            index=IndexPolicy(
                enabled=True, data_files=50, rows=10_000_000, bytes=1_000_000_000, age_seconds=60, cron=""
            ),
            convert=ConvertPolicy(
                enabled=True,
                delete_files=10,
                deletes=1_000_000,
                bytes=100_000_000,
                age_seconds=300,
                when="reached",
                reads_per_day=1_000,
                max_read_ratio=1.5,
                cron="",
                max_delete_files_per_commit=0,
                readers=[],
            ),
            publish=PublishPolicy(source="", enabled=True, rows=100_000, age_seconds=10, cron=""),
            expire_snapshots=ExpireSnapshotsPolicy(
                enabled=False,
                older_than_seconds=432_000,
                retain_last=1,
                snapshots=1_000,
                age_seconds=518_400,
                min_interval_seconds=3_600,
                cron="",
                windows=[],
                max_seconds_per_day=0,
            ),
            rewrite_data_files=RewriteDataFilesPolicy(
                enabled=False,
                strategy="binpack",
                target_file_size_bytes=0,
                min_input_files=5,
                delete_ratio_threshold=0.3,
                max_bytes=100_000_000_000,
                small_data_files=100,
                deleted_data_files=10,
                min_interval_seconds=3_600,
                cron="",
                windows=[],
                max_seconds_per_day=0,
            ),
            rewrite_position_delete_files=RewritePositionDeleteFilesPolicy(
                enabled=False,
                target_file_size_bytes=0,
                min_input_files=5,
                small_delete_files=100,
                min_interval_seconds=3_600,
                cron="",
                windows=[],
                max_seconds_per_day=0,
            ),
            rewrite_manifests=RewriteManifestsPolicy(
                enabled=False,
                manifests=100,
                min_interval_seconds=3_600,
                cron="",
                windows=[],
                max_seconds_per_day=0,
            ),
            compact=CompactPolicy(
                enabled=True,
                sorted_runs=16,
                dead_ratio=0.5,
                dead_bytes=10_000_000_000,
                min_interval_seconds=60,
                cron="",
            ),
            verify=VerifyPolicy(
                enabled=False,
                data_files=100_000,
                rows=10_000_000_000,
                bytes=1_000_000_000_000,
                age_seconds=604_800,
                cron="",
            ),
            schedule=SchedulePolicy(
                time_zone="UTC", windows=[], priority=0, idle_pause_seconds=300, max_idle_pause_seconds=3600
            ),
            retries=RetryPolicy(
                max_attempts=5,
                backoff_seconds=10,
                max_backoff_seconds=600,
                timeout_seconds=0,
                pause_seconds=600,
                max_pause_seconds=3600,
            ),
            budget=BudgetPolicy(
                table_seconds_per_day=0,
                table_bytes_per_day=0,
                catalog_seconds_per_day=0,
                catalog_bytes_per_day=0,
            ),
            resources=ResourcesPolicy(max_tasks=0, memory_fraction=1),
        ),
    ),
    MANUAL: (
        "Nothing runs by itself: jobs start only on request.",
        PolicySettings(
            index=IndexPolicy(enabled=False),
            convert=ConvertPolicy(enabled=False),
            publish=PublishPolicy(enabled=False),
            expire_snapshots=ExpireSnapshotsPolicy(enabled=False),
            rewrite_data_files=RewriteDataFilesPolicy(enabled=False),
            rewrite_position_delete_files=RewritePositionDeleteFilesPolicy(enabled=False),
            rewrite_manifests=RewriteManifestsPolicy(enabled=False),
            compact=CompactPolicy(enabled=False),
            verify=VerifyPolicy(enabled=False),
        ),
    ),
}


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
        row.version += 1
        row.updated_at = utc_now()
        session.add(row)
        session.flush()
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
                *(_place(session, use) for use in uses),
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
        authorize(session, principal, needed, "policy.attach", target, **said)
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
            table.version += 1
            table.updated_at = utc_now()
            session.add(table)
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


def chain(session: Session, table: EnrolledTable) -> Sequence[tuple[PolicyAttachment, Policy]]:
    """The attachments that reach a table, nearest first; the last one is the system's."""
    targets = targets_of_table(table)
    rows = session.exec(
        select(PolicyAttachment, Policy)
        .join(Policy, col(Policy.id) == col(PolicyAttachment.policy_id))
        .where(col(PolicyAttachment.target).in_(targets))
    ).all()
    return sorted(rows, key=lambda row: targets.index(row[0].target))


def effective_policy(session: Session, table: EnrolledTable) -> EffectivePolicy:
    """What holds for a table: each value from the nearest policy that sets it, if the table does not."""
    targets = targets_of_table(table)
    session.flush()
    settings = dict(session.connection().execute(_SETTINGS, {"targets": targets}).all())
    found = _effective(tuple(settings[target] for target in targets if target in settings))
    return _with_own(found, table)


@lru_cache(_POLICIES_KEPT)
def _effective(settings: tuple[str, ...]) -> EffectivePolicy:
    """What settings of policies come to, nearest first."""
    found = [PolicySettings.model_validate(json.loads(each)).values() for each in settings]
    return _nested(ChainMap(*found, BUILT_IN[STANDARD][1].values()))


def merged(*settings: Mapping[str, Any]) -> EffectivePolicy:
    """What valid settings come to that have every value together, nearest first."""
    return _nested(ChainMap(*(PolicySettings.model_validate(each).values() for each in settings)))


def policy_with(
    session: Session, table: EnrolledTable, wanted: PolicySettings, changed: Policy | None
) -> EffectivePolicy:
    """What would hold for a table if a policy had these settings. Raises InvalidError.

    changed: this policy, which reaches the table; None for one that would be attached to the table itself.
    """
    attached = chain(session, table)
    found = [
        wanted.model_dump(exclude_none=True) if changed and policy.id == changed.id else policy.settings
        for attachment, policy in attached
        if changed is not None or attachment.level != Level.TABLE.value
    ]
    if changed is None:
        found.insert(0, wanted.model_dump(exclude_none=True))
    elif changed.id not in {policy.id for _, policy in attached}:
        raise InvalidError(
            "policy-elsewhere",
            f"Policy {changed.name!r} is not attached to table {table.name} nor to anything above it.",
            "Name a table that it holds for, or no policy: the settings are the table's own then.",
        )
    effective = merged(*found, BUILT_IN[STANDARD][1].model_dump(exclude_none=True))
    if wrong := contradictions(_flat(effective)):
        raise InvalidError(
            "policy-contradiction",
            "; ".join(why for _, why in wrong),
            "Set the values that belong together in one policy, or change the other policy first.",
            errors=[{"field": f"body.settings.{names[0]}", "message": why} for names, why in wrong],
        )
    return _with_own(effective, table)


def tables_under(session: Session, policy: Policy, most: int) -> list[EnrolledTable]:
    """Enrolled tables that a policy reaches, the first ones by name: `most`, of as many namespaces."""
    attached = select(PolicyAttachment).where(PolicyAttachment.policy_id == policy.id)
    targets = set(
        session.exec(select(PolicyAttachment.target).where(PolicyAttachment.policy_id == policy.id))
    )
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


def _flat(policy: EffectivePolicy) -> dict[str, Any]:
    """By dotted name."""
    return {
        f"{section}.{name}": value
        for section, part in policy.model_dump().items()
        for name, value in part.items()
    }


def _with_own(policy: EffectivePolicy, table: EnrolledTable) -> EffectivePolicy:
    """The same with what the enrolment of a table says itself: its staging branch."""
    if table.publish_from is None:
        return policy
    publish = policy.publish.model_copy(update={"source": table.publish_from})
    return policy.model_copy(update={"publish": publish})


def explain_policy(session: Session, table: EnrolledTable) -> EffectivePolicyView:
    """The effective policy, with the place that each value comes from."""
    attached = chain(session, table)
    effective, sources = _resolve(attached)
    values = {}
    for name, (value, attachment, policy) in sources.items():
        source = ValueSource(
            level=Level(attachment.level), place=_place(session, attachment), policy=policy.name
        )
        values[name] = EffectiveValue(value=value, source=source)
    if table.publish_from is not None:
        source = ValueSource(level=Level.TABLE, place=f"enrolment of table {table.name}", policy=None)
        values["publish.from"] = EffectiveValue(value=table.publish_from, source=source)
    return EffectivePolicyView(
        table_id=table.id,
        policy=attached[0][1].name,
        effective=_with_own(effective, table),
        values=values,
        explanation=[f"{name} = {item.value}: from {_origin(item.source)}." for name, item in values.items()],
    )


def _origin(source: ValueSource) -> str:
    if source.policy is None:
        return f"the {source.place}"
    return f"policy {source.policy!r}, attached to the {source.place}"


Sourced = dict[str, tuple[Any, PolicyAttachment, Policy]]


def _resolve(attached: Sequence[tuple[PolicyAttachment, Policy]]) -> tuple[EffectivePolicy, Sourced]:
    order = BUILT_IN[STANDARD][1].values()
    sources: Sourced = {}
    # `standard` backs the system's own policy, which may be partial too.
    _, last = attached[-1]
    backing = [
        (attached[-1][0], Policy(name=STANDARD, settings=BUILT_IN[STANDARD][1].model_dump(exclude_none=True)))
    ]
    for attachment, policy in [*attached, *(backing if last.name != STANDARD else [])]:
        for name, value in PolicySettings.model_validate(policy.settings).values().items():
            sources.setdefault(name, (value, attachment, policy))
    effective = _nested({name: value for name, (value, _, _) in sources.items()})
    return effective, {name: sources[name] for name in order}


def _nested(values: Mapping[str, Any]) -> EffectivePolicy:
    """values: by dotted names, as `PolicySettings.values` has them."""
    nested: dict[str, dict[str, Any]] = {}
    for dotted, value in values.items():
        section, _, name = dotted.partition(".")
        nested.setdefault(section, {})[name] = value
    return EffectivePolicy.model_validate(nested)


def inherited_values(session: Session, row: Policy | None) -> dict[str, list[Any]]:
    """What each setting, by its dotted name, comes to where the policy leaves it out.

    Several values if it holds for places that inherit different ones. A policy that holds nowhere yet would
    inherit what holds for the whole system, which itself is backed by `standard`.
    """
    chains: set[tuple[str, ...]] = {(SYSTEM_TARGET,)}
    if row is not None:
        rows = session.exec(
            select(PolicyAttachment, EnrolledTable)
            .join(EnrolledTable, col(EnrolledTable.id) == col(PolicyAttachment.table_id), isouter=True)
            .where(PolicyAttachment.policy_id == row.id, col(EnrolledTable.deleted_at).is_(None))
            .order_by(col(PolicyAttachment.target))
        ).all()
        chains = {tuple(_chain_of(attachment, table)[1:]) for attachment, table in rows} or chains
    settings = dict(
        session.exec(
            select(PolicyAttachment.target, Policy.settings)
            .join(Policy, col(Policy.id) == col(PolicyAttachment.policy_id))
            .where(col(PolicyAttachment.target).in_({target for targets in chains for target in targets}))
        ).all()
    )
    found: dict[str, list[Any]] = {name: [] for name in BUILT_IN[STANDARD][1].values()}
    for targets in sorted(chains):
        above = [PolicySettings.model_validate(settings[each]) for each in targets if each in settings]
        values = ChainMap(*(each.values() for each in (*above, BUILT_IN[STANDARD][1])))
        for name, known in found.items():
            if values[name] not in known:
                known.append(values[name])
    return found


def bounded(policy: EffectivePolicy, settings: Settings) -> EffectivePolicy:
    """The same within the operator's bounds, which may have become narrower than what was allowed once."""
    wanted = policy.resources
    most = settings.max_tasks_per_job
    resources = EffectiveResourcesPolicy(
        max_tasks=min(wanted.max_tasks or most, most) if most else wanted.max_tasks,
        memory_fraction=min(wanted.memory_fraction, settings.max_memory_fraction),
    )
    return policy.model_copy(update={"resources": resources})


def find_mistakes(
    session: Session, settings: Settings, wanted: PolicySettings, row: Policy | None = None
) -> list[InvalidError]:
    """What is wrong with valid settings, also with those that `row` has not got yet: all of it."""
    found = [*_windows_mistake(wanted), *_bounds_mistake(settings, wanted)]
    if row is not None:
        used = select(PolicyAttachment.target).where(PolicyAttachment.policy_id == row.id)
        found += _inherited_mistake(session, session.exec(used).all(), {row.id: wanted})
    return found


def refuse_mistakes(found: Sequence[InvalidError]) -> None:
    """Raises InvalidError: the only one of these, or one that lists all."""
    if len(found) == 1:
        raise found[0]
    if found:
        raise InvalidError(
            "validation-error",
            " ".join(f"{error.detail.rstrip('.')}." for error in found),
            errors=[finding for error in found for finding in error.extra["errors"]],
        )


def _windows_mistake(wanted: PolicySettings) -> Iterator[InvalidError]:
    for name, windows in wanted.values().items():
        if name.endswith(".windows") and len(windows) > MAX_WINDOWS:
            # Not a limit of the schema: a policy that was stored before must still be readable.
            message = f"{name} has {len(windows)} windows; {MAX_WINDOWS} are allowed."
            yield InvalidError(
                "too-many-windows",
                message,
                errors=[{"field": f"body.settings.{name}", "message": message}],
            )


def _bounds_mistake(settings: Settings, wanted: PolicySettings) -> Iterator[InvalidError]:
    bounds = (
        ("max_tasks", settings.max_tasks_per_job or math.inf, "ICESTREAM_MAX_TASKS_PER_JOB"),
        ("memory_fraction", settings.max_memory_fraction, "ICESTREAM_MAX_MEMORY_FRACTION"),
    )
    errors = [
        {
            "field": f"body.settings.resources.{name}",
            "message": f"resources.{name} ({value:g}) is above {bound:g}, which {variable} allows",
        }
        for name, bound, variable in bounds
        if (value := getattr(wanted.resources, name)) is not None and value > bound
    ]
    if errors:
        yield InvalidError(
            "policy-out-of-bounds", "; ".join(error["message"] for error in errors), errors=errors
        )


_CONTRADICTIONS_SHOWN = 20


def _inherited_mistake(
    session: Session, changed: Collection[str], wanted: Mapping[str, PolicySettings]
) -> Iterator[InvalidError]:
    """What makes the effective policy of any place contradict itself after a change at these places.

    Every such place is named. A table has the effective policy of the nearest place with an attachment, so
    there are no others. wanted: settings of policies, by id, that have others yet.
    """
    rows = session.exec(
        select(PolicyAttachment, Policy, EnrolledTable)
        .join(Policy, col(Policy.id) == col(PolicyAttachment.policy_id))
        .join(EnrolledTable, col(EnrolledTable.id) == col(PolicyAttachment.table_id), isouter=True)
        .where(col(EnrolledTable.deleted_at).is_(None))
        .order_by(col(PolicyAttachment.target))
    ).all()
    attached = {attachment.target: policy for attachment, policy, _ in rows}
    values = {
        policy.id: (wanted.get(policy.id) or PolicySettings.model_validate(policy.settings)).values()
        for _, policy, _ in rows
    }
    found = []
    for attachment, _, table in rows:
        targets = _chain_of(attachment, table)
        if set(targets).isdisjoint(changed):
            continue
        reaching = [attached[target] for target in targets if target in attached]
        sources = [(policy.name, values[policy.id]) for policy in reaching]
        sources.append((STANDARD, BUILT_IN[STANDARD][1].values()))
        for names, why in contradictions(ChainMap(*(each for _, each in sources))):
            origins = (next(policy for policy, each in sources if name in each) for name in names)
            told = ", ".join(
                f"{name} from policy {policy!r}" for name, policy in zip(names, origins, strict=True)
            )
            found.append((names[0], f"{_place(session, attachment)}: {why} ({told})"))
    if found:
        left_out = len(found) - _CONTRADICTIONS_SHOWN
        shown = [{"field": name, "message": message} for name, message in found[:_CONTRADICTIONS_SHOWN]]
        yield InvalidError(
            "policy-contradiction",
            "; ".join(item["message"] for item in shown)
            + (f"; and {left_out:,} more" if left_out > 0 else ""),
            "Set the values that belong together in one policy, or change the other policy first.",
            errors=shown,
        )


def _chain_of(attachment: PolicyAttachment, table: EnrolledTable | None) -> list[str]:
    """The places whose policies hold where this one is attached, itself first."""
    if table is not None:
        return [attachment.target, *targets_of(table.catalog_id, table.identifier[:-1])]
    if attachment.catalog_id is not None:
        return targets_of(attachment.catalog_id, attachment.namespace or [])
    return [SYSTEM_TARGET]


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
            refuse_mistakes([*_inherited_mistake(session, {target}, {})])
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
    refuse_mistakes([*_inherited_mistake(session, {target}, {})])
    return row


def _place(session: Session, attachment: PolicyAttachment) -> str:
    match Level(attachment.level):
        case Level.SYSTEM:
            return "system"
        case Level.CATALOG:
            return f"catalog {session.get_one(Catalog, attachment.catalog_id).name}"
        case Level.NAMESPACE:
            catalog = session.get_one(Catalog, attachment.catalog_id).name
            return f"namespace {'.'.join(attachment.namespace or [])} of catalog {catalog}"
        case Level.TABLE:
            return f"table {session.get_one(EnrolledTable, attachment.table_id).name}"


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
