"""Enrol tables: one by its name, or those that a pattern matches.

Loading a table from its catalog is slow and happens before the transaction begins: `load_*` functions take
the database and return what `enroll_*` functions then store.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy import and_, or_
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from service.auth.models import Principal
from service.auth.service import authorize, require_role
from service.catalogs.allowlists import check_location
from service.catalogs.iceberg import IcebergCatalogs
from service.catalogs.service import check_index_place, find_catalog, index_warehouse
from service.db.database import Database, utc_now
from service.errors import ConflictError, IcestreamError, InvalidError
from service.jobs import queue
from service.policies import service as policies
from service.policies.staging import check_staging, lock_enrolments
from service.problems import PROBLEM_PATH
from service.records.api_keys import Role
from service.records.catalogs import Catalog
from service.records.tables import EnrolledTable, add_table, quoted_name
from service.settings import Settings
from service.tables.models import PatternMiss, PatternRequest, PatternResult, TableRequest, TableView
from service.tables.service import check_key_sets, view
from stores.table_metadata import named_places
from trust.bounds import checked_names

_MATCHES_AT_ONCE = 200
"""Of a pattern, in one request: reading each takes a call of the catalog, and enrolling all of them is one
transaction that others wait for."""


@dataclass(frozen=True)
class LoadedTable:
    """What was read of a table in its catalog."""

    catalog: Catalog
    identifier: tuple[str, ...]
    table_uuid: str
    format_version: int
    location: str
    columns: frozenset[str]
    other_locations: tuple[str, ...]


LoadedPattern = tuple[list[str], list[LoadedTable], list[PatternMiss]]
"""Names that a pattern matched, what was loaded of them, and what could not be."""


def catalog_of_request(database: Database, name_or_id: str) -> Catalog:
    """A catalog that a request body names. Raises InvalidError."""
    with database.read() as session:
        return _catalog(session, name_or_id)


def _catalog(session: Session, name_or_id: str) -> Catalog:
    found = find_catalog(session, name_or_id)
    if found is not None:
        return found
    names = session.exec(select(Catalog.name).where(col(Catalog.deleted_at).is_(None)).limit(20)).all()
    raise InvalidError(
        "catalog-not-found",
        f"There is no catalog {name_or_id!r}; there are: {', '.join(sorted(names)) or 'none'}.",
        "Register it first.",
    )


def load_for_enrolment(
    database: Database, catalogs: IcebergCatalogs, principal: Principal, request: TableRequest
) -> LoadedTable:
    """Read the table that a request names. Slow: call it outside any transaction.

    Raises UnreachableError, or InvalidError when catalog, table, branch or key columns are not there.
    """
    require_role(principal, Role.OPERATOR, "table.enroll", quoted_name(request.catalog, request.identifier))
    catalog = catalog_of_request(database, request.catalog)
    identifier = tuple(request.identifier)
    table = catalogs.load(catalog, identifier)
    _check_branch(table, request.branch)
    loaded = _loaded(catalog, identifier, table)
    check_key_sets(loaded.columns, request.key_sets or [])
    return loaded


def enroll_table(
    session: Session, settings: Settings, principal: Principal, request: TableRequest, loaded: LoadedTable
) -> TableView:
    """Enrol a table that was just loaded.

    Raises ConflictError if it is enrolled already, or its branches are those of another enrolment, and
    InvalidError if its catalog was removed meanwhile.
    """
    name = quoted_name(loaded.catalog.name, loaded.identifier)
    authorize(session, principal, Role.OPERATOR, "table.enroll", name)
    lock_enrolments(session)
    catalog = _catalog(session, loaded.catalog.id)
    check_places(settings, index_warehouse(settings, catalog), loaded.location, loaded.other_locations)
    row = EnrolledTable(
        catalog_id=catalog.id,
        identifier=list(loaded.identifier),
        namespace=".".join(loaded.identifier[:-1]),
        name=".".join(loaded.identifier),
        branch=request.branch,
        key_sets=request.key_sets or [],
        publish_from=request.publish.source if request.publish is not None else None,
        table_uuid=loaded.table_uuid,
        format_version=loaded.format_version,
        location=loaded.location,
        other_locations=list(loaded.other_locations),
    )
    existing = _find_enrolled(session, loaded, request.branch)
    if existing is not None:
        raise _already_enrolled(existing)
    try:
        with session.begin_nested():
            add_table(session, row)
    except IntegrityError as error:
        winner = _find_enrolled(session, loaded, request.branch)
        if winner is None:
            raise
        raise _already_enrolled(winner) from error
    policies.set_table_policy(session, row.id, request.policy)
    check_staging(session, row)
    queue.cancel_index_drops(session, row, utc_now())
    return view(session, settings, row)


def load_pattern(
    database: Database, catalogs: IcebergCatalogs, principal: Principal, request: PatternRequest
) -> LoadedPattern:
    """Read all tables that a pattern matches. Slow.

    Raises InvalidError if they are too many for one request, unless it is a dry run, which reads none.
    """
    require_role(principal, Role.OPERATOR, "table.enroll_pattern", request.pattern)
    catalog = catalog_of_request(database, request.catalog)
    with catalogs.open(catalog) as source:
        # Each namespace costs its catalog a request: those that no match lies in are spared.
        start = re.split(r"[*?[]", request.pattern, maxsplit=1)[0]
        befores = ((one, f"{'.'.join(one)}.") for one in source.namespaces())
        chosen = (one for one, before in befores if before.startswith(start) or start.startswith(before))
        listed = (name for namespace in chosen for name in source.tables(namespace))
        found = list(checked_names(listed, "tables"))
    matched = sorted(
        {
            name
            for name in found
            if fnmatchcase(".".join(name), request.pattern)
            and not any(fnmatchcase(".".join(name), exclude) for exclude in request.exclude)
        }
    )
    if len(matched) > _MATCHES_AT_ONCE and not request.dry_run:
        raise InvalidError(
            "too-many-matches",
            f"It matches {len(matched):,} tables; one request enrols {_MATCHES_AT_ONCE} at most.",
            "Make it a standing pattern, which enrols them little by little, or narrow it.",
            matched=len(matched),
        )
    loaded, failed = [], []
    for identifier in [] if request.dry_run else matched:
        try:
            table = catalogs.load(catalog, identifier)
            _check_branch(table, request.branch)
            loaded.append(_loaded(catalog, identifier, table))
        except (IcestreamError, NoSuchTableError, NoSuchNamespaceError) as error:
            failed.append(miss(identifier, error))
    return [".".join(identifier) for identifier in matched], loaded, failed


def enroll_pattern(
    session: Session,
    settings: Settings,
    principal: Principal,
    request: PatternRequest,
    matched: list[str],
    loaded: list[LoadedTable],
    failed: list[PatternMiss],
) -> PatternResult:
    """Enrol what a pattern matched; tables that cannot be enrolled are reported one by one."""
    if not request.dry_run:  # which tells no more than candidates do
        authorize(session, principal, Role.OPERATOR, "table.enroll_pattern", request.pattern)
    result = PatternResult(
        dry_run=request.dry_run, matched=matched, enrolled=[], already_enrolled=[], failed=list(failed)
    )
    for table in loaded:
        single = TableRequest(
            catalog=request.catalog,
            identifier=list(table.identifier),
            branch=request.branch,
            policy=request.policy,
            publish=request.publish,
        )
        existing = _find_enrolled(session, table, request.branch)
        if existing is not None:
            result.already_enrolled.append(view(session, settings, existing))
            continue
        try:
            with session.begin_nested():  # what fails leaves no audit entry that it was done
                result.enrolled.append(enroll_table(session, settings, principal, single, table))
        except IcestreamError as error:
            result.failed.append(miss(table.identifier, error))
    return result


def _check_branch(table: Table, branch: str) -> None:
    refs = table.metadata.refs
    # An empty table has no `main` yet.
    if branch == "main" or (branch in refs and refs[branch].snapshot_ref_type == "branch"):
        return
    branches = sorted(name for name, ref in refs.items() if ref.snapshot_ref_type == "branch")
    raise InvalidError(
        "branch-not-found",
        f"There is no branch {branch!r}; there are: {', '.join(branches) or 'none'}.",
        "Name one of those, or leave `branch` out for main.",
    )


def check_places(settings: Settings, index_warehouse: str, location: str, others: Iterable[str]) -> None:
    """Raise InvalidError unless a table lies where it may, outside its index. others: its other places."""
    for place in (location, *others):
        check_location(settings, place)
    check_index_place(index_warehouse, location)


def _loaded(catalog: Catalog, identifier: tuple[str, ...], table: Table) -> LoadedTable:
    return LoadedTable(
        catalog,
        identifier,
        str(table.metadata.table_uuid),
        table.metadata.format_version,
        table.location(),
        frozenset(table.schema().column_names),
        tuple(named_places(table.properties)),
    )


def _find_enrolled(session: Session, loaded: LoadedTable, branch: str) -> EnrolledTable | None:
    # To a sql catalog ["a.b", "t"] and ["a", "b", "t"] are one table, to others they are two.
    same_with_dots = and_(
        col(EnrolledTable.name) == ".".join(loaded.identifier),
        col(EnrolledTable.table_uuid) == loaded.table_uuid,
    )
    return session.exec(
        select(EnrolledTable).where(
            EnrolledTable.catalog_id == loaded.catalog.id,
            or_(col(EnrolledTable.identifier) == list(loaded.identifier), same_with_dots),
            EnrolledTable.branch == branch,
            col(EnrolledTable.deleted_at).is_(None),
        )
    ).first()


def _already_enrolled(row: EnrolledTable) -> ConflictError:
    return ConflictError(
        "table-exists", f"Branch {row.branch!r} of {row.name} is enrolled as {row.id}.", table_id=row.id
    )


def miss(identifier: tuple[str, ...], error: Exception) -> PatternMiss:
    """Why a table can't be had, as an item of a list."""
    if isinstance(error, IcestreamError):
        return PatternMiss(
            identifier=list(identifier), type=error.type, detail=error.detail, remedy=error.remedy
        )
    return PatternMiss(
        identifier=list(identifier),
        type=f"{PROBLEM_PATH}table-not-found",
        detail=str(error),
        remedy="It was dropped meanwhile; nothing to do.",
    )
