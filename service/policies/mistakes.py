"""What is wrong with settings that are valid: against the operator's bounds, or against what is inherited."""

import math
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence

from sqlmodel import Session, col, select

from service.errors import InvalidError
from service.policies.built_in import BUILT_IN, STANDARD
from service.policies.effective import TOGETHER, chain_of, place_of
from service.policies.places import table_target, targets_of_table
from service.policies.schedules import MAX_WINDOWS
from service.policies.settings import PolicySettings, contradictions
from service.records.policies import Policy, PolicyAttachment
from service.records.tables import EnrolledTable
from service.settings import Settings

_CONTRADICTIONS_SHOWN = 20
_TABLES_AT_ONCE = 100


def find_mistakes(
    session: Session, settings: Settings, wanted: PolicySettings, row: Policy | None = None
) -> list[InvalidError]:
    """What is wrong with valid settings, also with those that `row` has not got yet: all of it."""
    found = [*_windows_mistake(wanted), *_bounds_mistake(settings, wanted)]
    if row is not None:
        used = select(PolicyAttachment.target).where(PolicyAttachment.policy_id == row.id)
        found += inherited_mistake(session, session.exec(used).all(), {row.id: wanted})
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


def _tables_of(session: Session, changed: Collection[str]) -> Sequence[EnrolledTable] | None:
    """Of places that are tables, if they are few; None of any others, which reach places below them."""
    ids = [target.removeprefix(table_target("")) for target in changed]
    if len(ids) > _TABLES_AT_ONCE or any(table_target(each) not in changed for each in ids):
        return None
    return session.exec(select(EnrolledTable).where(col(EnrolledTable.id).in_(ids))).all()


def inherited_mistake(
    session: Session, changed: Collection[str], wanted: Mapping[str, PolicySettings]
) -> Iterator[InvalidError]:
    """What makes the effective policy of any place contradict itself after a change at these places.

    Every such place is named. A table has the effective policy of the nearest place with an attachment, so
    there are no others. wanted: settings of policies, by id, that have others yet.
    """
    query = (
        select(PolicyAttachment, Policy, EnrolledTable)
        .join(Policy, col(Policy.id) == col(PolicyAttachment.policy_id))
        .join(EnrolledTable, col(EnrolledTable.id) == col(PolicyAttachment.table_id), isouter=True)
        .where(col(EnrolledTable.deleted_at).is_(None))
        .order_by(col(PolicyAttachment.target))
    )
    if (tables := _tables_of(session, changed)) is not None:
        # Such a change reaches no other place: who enrols the ten thousandth table does not wait for all.
        above = {target for table in tables for target in targets_of_table(table)}
        query = query.where(col(PolicyAttachment.target).in_(above))
    rows = session.exec(query).all()
    attached = {attachment.target: policy for attachment, policy, _ in rows}
    values = {
        policy.id: (wanted.get(policy.id) or PolicySettings.model_validate(policy.settings)).values()
        for policy in {policy.id: policy for policy in attached.values()}.values()
    }
    found = []
    for attachment, _, table in rows:
        targets = chain_of(attachment, table)
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
            found.append((names[0], f"{place_of(session, attachment)}: {why} ({told})"))
    if found:
        left_out = len(found) - _CONTRADICTIONS_SHOWN
        shown = [{"field": name, "message": message} for name, message in found[:_CONTRADICTIONS_SHOWN]]
        yield InvalidError(
            "policy-contradiction",
            "; ".join(item["message"] for item in shown)
            + (f"; and {left_out:,} more" if left_out > 0 else ""),
            TOGETHER,
            errors=shown,
        )
