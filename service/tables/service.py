"""List enrolled tables, change them, pause them, forget them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, case, func, or_
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from service.auth.models import Principal
from service.auth.service import authorize, require_role
from service.catalogs.iceberg import IcebergCatalogs
from service.catalogs.service import find_catalog, index_warehouse
from service.db.database import Database, utc_now
from service.errors import InvalidError, UnreachableError
from service.http.etags import check_version, store_change
from service.http.paging import Joined, Page, PageRequest, Sorting, read_page
from service.jobs import queue
from service.jobs.events import record_table_event
from service.jobs.queue import check_index_unused
from service.policies import service as policies
from service.policies.effective import effective_policy
from service.policies.staging import (
    check_staging,
    leave_staging_branch,
    lock_enrolments,
    restaged,
    staging_branches,
)
from service.records.api_keys import Role
from service.records.catalogs import Catalog
from service.records.health import GRAVITY, HealthStatus, TableHealth, add_pending, age_seconds
from service.records.jobs import Job, JobKind
from service.records.policies import Policy, PolicyAttachment
from service.records.tables import EnrolledTable, audited_name, get_table
from service.settings import Settings
from service.tables.models import Staging, TableFilter, TablePatch, TableView

SORTING = Sorting(
    {
        "name": EnrolledTable.name,
        "created_at": EnrolledTable.created_at,
        "updated_at": EnrolledTable.updated_at,
        "status": Joined(
            case({status: rank for rank, status in enumerate(GRAVITY)}, value=TableHealth.status),
            TableHealth.table_id,
        ),
        "pending_equality_deletes": Joined(TableHealth.pending_equality_deletes, TableHealth.table_id),
        "read_overhead_seconds": Joined(TableHealth.read_overhead_seconds, TableHealth.table_id),
    },
    key=EnrolledTable.id,
    default="name",
)

_BESIDE = (
    # What is shown of tables besides their own rows.
    select_columns(
        col(TableHealth.table_id),
        col(TableHealth.status),
        col(TableHealth.status_reason),
        col(TableHealth.what_to_do),
        col(TableHealth.pending_equality_deletes),
        col(TableHealth.pending_equality_delete_files),
        col(TableHealth.oldest_equality_delete_at),
        col(TableHealth.read_seconds),
        col(TableHealth.read_overhead_seconds),
        col(TableHealth.measured_at),
        col(Catalog.name).label("catalog"),
        col(Catalog.index_warehouse),
        col(Policy.name).label("policy"),
    )
    .join(EnrolledTable, col(EnrolledTable.id) == col(TableHealth.table_id))
    .join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
    .outerjoin(PolicyAttachment, col(PolicyAttachment.table_id) == col(TableHealth.table_id))
    .outerjoin(Policy, col(Policy.id) == col(PolicyAttachment.policy_id))
    .where(col(TableHealth.table_id).in_(bindparam("ids", expanding=True)))
)


def list_tables(
    session: Session,
    settings: Settings,
    page: PageRequest,
    which: TableFilter,
    *,
    prefix: str | None = None,
) -> Page[TableView]:
    """Enrolled tables. prefix: how the name begins, with its catalog's before it or without."""
    query = choose_tables(session, which)
    if prefix:
        query = query.where(_begins(session, prefix))
    return read_page(session, query, page, SORTING, lambda rows: views(session, settings, rows))


def choose_tables(session: Session, which: TableFilter) -> SelectOfScalar[EnrolledTable]:
    """The query of `list_tables`, in no order."""
    query = select(EnrolledTable).where(*_of_any_status(session, which))
    if which.status is not None:
        of_status = select(TableHealth.table_id).where(TableHealth.status == which.status)
        query = query.where(col(EnrolledTable.id).in_(of_status))
    return query


def count_by_status(session: Session, which: TableFilter) -> Counter[HealthStatus]:
    """How many tables `list_tables` would list of each status."""
    counted = select(TableHealth.status, func.count()).group_by(col(TableHealth.status))
    if replace(which, status=None) == TableFilter():
        # An index has the answer.
        counted = counted.where(~col(TableHealth.is_removed))
    else:
        counted = counted.join(EnrolledTable, col(EnrolledTable.id) == col(TableHealth.table_id))
        counted = counted.where(*_of_any_status(session, which))
    return Counter({HealthStatus(word): number for word, number in session.exec(counted)})


def _of_any_status(session: Session, which: TableFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [col(EnrolledTable.deleted_at).is_(None)]
    if which.catalog is not None:
        found = find_catalog(session, which.catalog)
        conditions.append(col(EnrolledTable.catalog_id) == (found.id if found else ""))
    if namespace := which.namespace:
        # LIKE would ignore case on SQLite, and names of namespaces don't.
        start = func.substr(EnrolledTable.namespace, 1, len(namespace) + 1)
        conditions.append(or_(col(EnrolledTable.namespace) == namespace, start == f"{namespace}."))
    if which.search:
        conditions.append(col(EnrolledTable.name).icontains(which.search, autoescape=True))
    if which.paused is not None:
        conditions.append(col(EnrolledTable.paused) == which.paused)
    return conditions


def _begins(session: Session, prefix: str) -> ColumnElement[bool]:
    """Whether the name of a table begins so, with its catalog's before it or without."""

    def name_begins(start: str) -> ColumnElement[bool]:
        # LIKE would ignore case on SQLite.
        return func.substr(EnrolledTable.name, 1, len(start)) == start

    ways = [name_begins(prefix)]
    known = select(Catalog.id, Catalog.name).where(col(Catalog.deleted_at).is_(None))
    for catalog_id, name in session.exec(known):
        before, of_catalog = f"{name}.", col(EnrolledTable.catalog_id) == catalog_id
        if before.startswith(prefix):
            ways.append(of_catalog)
        elif prefix.startswith(before):
            ways.append(and_(of_catalog, name_begins(prefix.removeprefix(before))))
    return or_(*ways)


def load_columns(
    database: Database, catalogs: IcebergCatalogs, principal: Principal, table_id: str, patch: TablePatch
) -> frozenset[str] | None:
    """Names of the table's columns, for a change that declares a key. Slow: call it outside any transaction.

    None if no key is new, or the catalog can't be reached: the next job that indexes then says what does not
    fit. Raises NotFoundError, or InvalidError if the catalog has no such table any more.
    """
    require_role(principal, Role.OPERATOR, "table.update", table_id)
    with database.read() as session:
        row = get_table(session, table_id)
        catalog = session.get_one(Catalog, row.catalog_id)
    if not _new_key_sets(row, patch):
        return None
    try:
        return frozenset(catalogs.load(catalog, tuple(row.identifier)).schema().column_names)
    except UnreachableError:
        return None


def _new_key_sets(row: EnrolledTable, patch: TablePatch) -> list[list[str]]:
    """What was declared before may stay, whatever became of its columns."""
    return [key_set for key_set in patch.key_sets or [] if key_set not in row.key_sets]


def update_table(
    session: Session,
    settings: Settings,
    principal: Principal,
    table_id: str,
    patch: TablePatch,
    if_match: str,
    columns: frozenset[str] | None,
    *,
    leave_staged: bool = False,
) -> TableView:
    """Change policy, declared keys or staging branch of a table that nobody changed meanwhile.

    columns: as `load_columns` found them. leave_staged: what is staged and not published stays where it is.
    Raises InvalidError for a new key with others, and ConflictError for a staging branch that is another
    enrolment's, or that has what would be left unless it is told so.
    """
    if patch.model_fields_set & {"policy", "publish"}:
        lock_enrolments(session)
    row = get_table(session, table_id, for_update=True)
    said = {"fields": sorted(patch.model_fields_set), "leave_staged": leave_staged}
    authorize(session, principal, Role.OPERATOR, "table.update", audited_name(session, row), **said)
    check_version(if_match, row.version)
    before = staging_branches(session, [row]).get(row.id)
    if "policy" in patch.model_fields_set:
        policies.set_table_policy(session, row.id, patch.policy)
    added = _new_key_sets(row, patch)
    check_key_sets(columns, added)
    if "key_sets" in patch.model_fields_set:
        row.key_sets = patch.key_sets or []
    if "publish" in patch.model_fields_set:
        row.publish_from = patch.publish.source if patch.publish is not None else None
    told, fields = _restage(session, principal, row, before, leave_staged=leave_staged)
    changed = _changed(session, settings, row)
    keys = " and ".join(f"({', '.join(key_set)})" for key_set in changed.key_sets) or "none"
    sentence = f"Changed by {principal.name}: policy {changed.policy or 'inherited'}, declared keys {keys}."
    sentence += told
    if added and columns is None:
        sentence += " The catalog could not be reached, so whether the table has these columns is not known."
    record_table_event(session, row.id, "table.changed", sentence, utc_now(), **fields)
    return changed


def _restage(
    session: Session, principal: Principal, row: EnrolledTable, before: str | None, *, leave_staged: bool
) -> tuple[str, dict[str, Any]]:
    """What another staging branch than before, or none, takes; jobs that publish are cancelled.

    Returns what the table's event says of it, in words and as fields; empty if the branch is the same.
    """
    after = staging_branches(session, [row]).get(row.id)
    if after == before:
        return "", {}
    # Jobs are locked before the table's health, as where one ends.
    reason = f"{principal.name} changed the staging branch"
    queue.cancel_jobs_of_table(session, row.id, reason, utc_now(), JobKind.PUBLISH)
    left = leave_staging_branch(session, [(row, before)], leave_staged=leave_staged)
    check_staging(session, row)
    told, fields = restaged(before, after, left.get(row.id))
    return f" {told}", fields


def pause_table(
    session: Session, settings: Settings, principal: Principal, table_id: str, *, paused: bool
) -> TableView:
    """While paused, none of its jobs starts; a running one ends as usual."""
    row = get_table(session, table_id, for_update=True)
    authorize(
        session,
        principal,
        Role.OPERATOR,
        "table.pause" if paused else "table.resume",
        audited_name(session, row),
    )
    if row.paused == paused:
        return view(session, settings, row)
    row.paused = paused
    done = "paused" if paused else "resumed"
    record_table_event(
        session, row.id, f"table.{done}", f"{done.capitalize()} by {principal.name}.", utc_now()
    )
    return _changed(session, settings, row)


def delete_table(
    session: Session,
    principal: Principal,
    table_id: str,
    *,
    drop_index: bool = False,
    leave_staged: bool = False,
    if_match: str | None = None,
) -> Job | None:
    """Forget a table: queued jobs are cancelled, a running one is asked to stop, history stays readable.

    The Iceberg table is left as it is, and so is its index, unless `drop_index`: the job that is returned
    then deletes it, however long that takes. Raises ConflictError if the index is another enrolment's too, or
    if its staging branch has what is not published, unless that may be left.
    """
    row = get_table(session, table_id, for_update=True)
    said = {"drop_index": drop_index, "leave_staged": leave_staged}
    authorize(session, principal, Role.OPERATOR, "table.delete", audited_name(session, row), **said)
    check_version(if_match, row.version)
    if drop_index:
        check_index_unused(session, row)
    now = utc_now()
    branch = staging_branches(session, [row]).get(row.id)
    policy = effective_policy(session, row)
    # Jobs are locked before the table's health, as where one ends.
    queue.cancel_jobs_of_table(session, row.id, f"the table was removed by {principal.name}", now)
    leave_staging_branch(session, [(row, branch)], leave_staged=leave_staged)
    policies.set_table_policy(session, row.id, None)
    row.deleted_at = now
    session.add(row)
    job = None
    if drop_index:
        job, _ = queue.enqueue(session, row, JobKind.DROP_INDEX, policy, now, requested_by=principal.name)
    health = session.get_one(TableHealth, row.id)
    health.is_removed = True
    session.add(health)
    add_pending(session, row.id, health.count_pending(), now)
    return job


def view(session: Session, settings: Settings, row: EnrolledTable) -> TableView:
    return views(session, settings, [row])[0]


def views_of(session: Session, settings: Settings, table_ids: Sequence[str]) -> list[TableView]:
    """Of these tables, in this order."""
    found = session.exec(select(EnrolledTable).where(col(EnrolledTable.id).in_(table_ids)))
    return views(session, settings, sorted(found, key=lambda row: table_ids.index(row.id)))


def views(session: Session, settings: Settings, rows: Sequence[EnrolledTable]) -> list[TableView]:
    """What is shown of tables, with as many queries for a page of them as for one."""
    ids = [row.id for row in rows]
    beside: dict[str, Any] = {row.table_id: row for row in session.execute(_BESIDE, {"ids": ids})}
    staging = staging_branches(session, rows)
    now = utc_now()
    return [
        TableView(
            **row.model_dump(exclude={"deleted_at", "publish_from", "other_locations"}),
            publish=Staging(source=row.publish_from) if row.publish_from is not None else None,
            staging_branch=staging.get(row.id),
            catalog=other.catalog,
            policy=other.policy,
            index_warehouse=index_warehouse(settings, other),
            status=HealthStatus(other.status),
            status_reason=other.status_reason or "The table was not looked at yet.",
            what_to_do=other.what_to_do if other.status_reason else "Wait for the next poll.",
            pending_equality_deletes=other.pending_equality_deletes,
            pending_equality_delete_files=other.pending_equality_delete_files,
            lag_seconds=age_seconds(other.oldest_equality_delete_at, now),
            read_seconds=other.read_seconds,
            read_overhead_seconds=other.read_overhead_seconds,
            measured_at=other.measured_at,
        )
        for row in rows
        for other in [beside[row.id]]
    ]


def check_key_sets(columns: frozenset[str] | None, key_sets: list[list[str]]) -> None:
    """Raise InvalidError unless every declared key column is in the table, and once in its key.

    columns: None if nobody knows them.
    """
    for key_set in key_sets:
        missing = [name for name in key_set if columns is not None and name not in columns]
        if missing or len(set(key_set)) != len(key_set):
            known = f" The table has: {', '.join(sorted(columns))}." if columns is not None else ""
            raise InvalidError(
                "invalid-key-set",
                f"Key {key_set} names columns that are missing or twice: {missing or key_set}.{known}",
                "Correct key_sets; nested fields are written with dots.",
            )


def _changed(session: Session, settings: Settings, row: EnrolledTable) -> TableView:
    store_change(session, row)
    return view(session, settings, row)
