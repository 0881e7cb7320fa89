"""Which staging branch is published on the branch of each enrolled table, and what may change that.

Invariant: a staging branch of an Iceberg table belongs to one enrolment, and no other one converts it,
whoever says so; and what is staged is left behind only if somebody says that, too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlmodel import Session, col, select

from service.db.database import FOR_UPDATE, utc_now
from service.errors import ConflictError, InvalidError
from service.policies.places import targets_of_table
from service.records.catalogs import Catalog
from service.records.health import TableHealth
from service.records.policies import Policy, PolicyAttachment
from service.records.tables import EnrolledTable
from service.webhooks.outbox import write_event
from telemetry.plurals import counted


def lock_enrolments(session: Session) -> None:
    """Lets nobody else enrol a table, or change a staging branch, until this transaction ends.

    So one of two who take the same branch sees the other, also if their catalogs are two records of the same
    place; and whoever removes a catalog sees its tables.
    """
    session.exec(
        select(Catalog)
        .order_by(col(Catalog.id))
        .with_for_update(key_share=FOR_UPDATE["key_share"])
        .execution_options(populate_existing=True)
    ).all()


def staging_branches(session: Session, tables: Iterable[EnrolledTable]) -> dict[str, str]:
    """What is published on the branches of tables, by their ids; those without any are absent."""
    return _resolved(tables, _of_policies(session))


def check_staging(session: Session, table: EnrolledTable) -> None:
    """Raises unless the branches of an enrolment are what it takes them for to every other one, too.

    A staging branch that was converted, or published twice, would lose what the other needs.
    """
    found = session.exec(
        select(EnrolledTable).where(
            EnrolledTable.table_uuid == table.table_uuid,
            EnrolledTable.id != table.id,
            col(EnrolledTable.deleted_at).is_(None),
        )
    ).all()
    _check(table, found, staging_branches(session, [table, *found]), "body.publish.from")


def leave_staging_branch(
    session: Session, left: Sequence[tuple[EnrolledTable, str | None]], *, leave_staged: bool
) -> dict[str, str]:
    """Forget what was seen on the staging branches that these tables had until now.

    Returns what is left there unpublished, in words, by the ids of the tables that have anything. Raises
    ConflictError if any have, unless it may be left.
    """
    branches = {table.id: (table.name, branch) for table, branch in left}
    # A look at one of them is over by then, or stores nothing of the former branch.
    rows = select(EnrolledTable.id).where(col(EnrolledTable.id).in_(branches)).order_by(col(EnrolledTable.id))
    session.exec(rows.with_for_update(key_share=FOR_UPDATE["key_share"])).all()
    known = session.exec(
        select(TableHealth)
        .where(col(TableHealth.table_id).in_(branches))
        .order_by(col(TableHealth.table_id))
        .with_for_update()
        .execution_options(populate_existing=True)
    ).all()
    waiting = [health for health in known if health.oldest_staged_at is not None]
    if waiting and not leave_staged:
        first, others = waiting[0], len(waiting) - 1
        name, branch = branches[first.table_id]
        raise ConflictError(
            "staged-rows-left",
            f"Branch {branch!r} of {name} has {_staged_on(first)}"
            " that are not published, as far as the last look at the table knows"
            + (f"; and so have those of {counted(others, 'other table')}." if others else "."),
            staged_snapshots=sum(health.staged_snapshots for health in waiting),
            staged_rows=sum(health.staged_rows for health in waiting),
        )
    told = {health.table_id: _staged_on(health) for health in waiting}
    for health in known:  # the next poll looks at the other branch
        health.staged_snapshots = health.staged_rows = 0
        health.oldest_staged_at = health.first_staged_id = health.stopped_at = None
        health.staging_is_cut, health.staging_is_unproven, health.kept_snapshots = False, False, 0
        health.watched_branch = None
        session.add(health)
    return told


def restaged(before: str | None, after: str | None, left: str | None) -> tuple[str, dict[str, Any]]:
    """What an event says, in words and as fields, of a table that has another staging branch by now.

    left: unpublished on the former one, as `leave_staging_branch` has it.
    """
    sentence = f"Staging branch: {after or 'none'}, formerly {before or 'none'}."
    if left is not None:
        sentence += f" Left there unpublished: {left}."
    return sentence, {"staging_branch": after, "former_staging_branch": before, "left_staged": left}


@contextmanager
def restaging(session: Session, doing: str, field: str, *, leave_staged: bool) -> Iterator[None]:
    """Lets the body change policies, or where they are attached.

    doing: who does what, for the events of tables that have another staging branch by that.

    Raises as `check_staging` and `leave_staging_branch` do of every table that has another staging branch by
    that. Jobs that publish the former one commit nothing any more: `claims` and `attempts` look at that.
    """
    lock_enrolments(session)
    former = _of_policies(session)
    yield
    session.flush()
    current = _of_policies(session)
    if former == current:
        return
    tables = session.exec(
        select(EnrolledTable).where(col(EnrolledTable.deleted_at).is_(None)).order_by(col(EnrolledTable.name))
    ).all()
    before, after = _resolved(tables, former), _resolved(tables, current)
    changed = [table for table in tables if before.get(table.id) != after.get(table.id)]
    left = leave_staging_branch(
        session, [(table, before.get(table.id)) for table in changed], leave_staged=leave_staged
    )
    enrolments: dict[str, list[EnrolledTable]] = {}
    for table in tables:
        enrolments.setdefault(table.table_uuid, []).append(table)
    for table in changed:
        others = [other for other in enrolments[table.table_uuid] if other is not table]
        _check(table, others, after, field)
        told, fields = restaged(before.get(table.id), after.get(table.id), left.get(table.id))
        write_event(
            session,
            at=utc_now(),
            kind="table.changed",
            level="info",
            message=f"{doing}. {told}",
            table_id=table.id,
            job_id=None,
            attempt=None,
            fields=fields,
        )


def _staged_on(health: TableHealth) -> str:
    if not health.staged_snapshots:
        return "perhaps snapshots"
    rows = counted(health.staged_rows, "row")
    return f"{counted(health.staged_snapshots, 'snapshot')} with {rows} and row-level deletes"


def _check(
    table: EnrolledTable, others: Iterable[EnrolledTable], branches: Mapping[str, str], field: str
) -> None:
    own = branches.get(table.id)
    if own == table.branch:
        raise InvalidError(
            "no-staging-branch",
            f"Branch {own!r} of {table.name} can't be published on itself.",
            'Name the branch that the writer commits to, or none (`publish: {"from": ""}`) for that table.',
            errors=[{"field": field, "message": f"This is the branch of {table.name} that is enrolled."}],
        )
    for other in others:
        theirs = branches.get(other.id)
        if own is not None and own in (other.branch, theirs):
            does = "publishes it, too" if own == theirs else "converts it"
            detail = f"Branch {own!r} of {table.name} can't be published: {other.id} ({other.name}) {does}."
        elif table.branch == theirs:
            detail = f"Branch {table.branch!r} is the staging branch of {other.id} ({other.name})."
        else:
            continue
        raise ConflictError("staging-branch-in-use", detail, table_id=other.id)


def _of_policies(session: Session) -> dict[str, str]:
    """What is published by policies, by the places that they are attached to; empty for none there."""
    attached = select(PolicyAttachment.target, Policy.settings).join(
        Policy, col(Policy.id) == col(PolicyAttachment.policy_id)
    )
    return {
        target: branch
        for target, said in session.exec(attached)
        if (branch := said.get("publish", {}).get("from")) is not None
    }


def _resolved(tables: Iterable[EnrolledTable], of_policies: Mapping[str, str]) -> dict[str, str]:
    """As `staging_branches`."""
    found = {}
    for table in tables:
        said = (of_policies[target] for target in targets_of_table(table) if target in of_policies)
        branch = table.publish_from if table.publish_from is not None else next(said, "")
        if branch:
            found[table.id] = branch
    return found
