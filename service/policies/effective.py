"""What holds for a table: each value from the nearest policy that sets it, and the place that says so."""

import json
from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import BindParameter, String, bindparam, cast
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import Select

from service.errors import InvalidError
from service.policies.built_in import BUILT_IN, STANDARD
from service.policies.models import (
    EffectivePolicy,
    EffectivePolicyView,
    EffectiveValue,
    ValueSource,
)
from service.policies.places import SYSTEM_TARGET, targets_of, targets_of_table
from service.policies.settings import PolicySettings, contradictions
from service.records.catalogs import Catalog
from service.records.policies import Level, Policy, PolicyAttachment
from service.records.tables import EnrolledTable
from service.settings import Settings

TOGETHER = "Set the values that belong together in one policy, or change the other policy first."
"""What to do about a contradiction."""
_POLICIES_KEPT = 1000


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
    return effective_policies(session, [table])[0]


def effective_policies(session: Session, tables: Sequence[EnrolledTable]) -> Sequence[EffectivePolicy]:
    """The same for each of some tables."""
    targets = [targets_of_table(table) for table in tables]
    asked = {target: None for each in targets for target in each}
    session.flush()
    places = {f"target_{number}": target for number, target in enumerate(asked)}
    settings = dict(session.connection().execute(_settings_of(len(asked)), places).all())
    found = [_effective(tuple(settings[target] for target in each if target in settings)) for each in targets]
    return [_with_own(each, table) for each, table in zip(found, tables, strict=True)]


@lru_cache(64)
def _settings_of(places: int) -> Select[str, str]:
    """Of the policies at so many places, as text, since they are nearly always the same."""
    targets: list[BindParameter[str]] = [bindparam(f"target_{number}") for number in range(places)]
    return (
        select(PolicyAttachment.target, cast(Policy.settings, String))
        .join(Policy, col(Policy.id) == col(PolicyAttachment.policy_id))
        .where(col(PolicyAttachment.target).in_(targets))
    )


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
            TOGETHER,
            errors=[{"field": f"body.settings.{names[0]}", "message": why} for names, why in wrong],
        )
    return _with_own(effective, table)


def explain_policy(session: Session, table: EnrolledTable) -> EffectivePolicyView:
    """The effective policy, with the place that each value comes from."""
    attached = chain(session, table)
    effective, sources = _resolve(attached)
    values = {}
    known: dict[tuple[str, str], ValueSource] = {}
    for name, (value, attachment, policy) in sources.items():
        at = attachment.target, policy.name
        if at not in known:
            place = place_of(session, attachment)
            known[at] = ValueSource(level=Level(attachment.level), place=place, policy=policy.name)
        values[name] = EffectiveValue(value=value, source=known[at])
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
        chains = {tuple(chain_of(attachment, table)[1:]) for attachment, table in rows} or chains
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
    bounds = {
        "max_tasks": min(wanted.max_tasks or most, most) if most else wanted.max_tasks,
        "memory_fraction": min(wanted.memory_fraction, settings.max_memory_fraction),
    }
    if all(getattr(wanted, name) == bound for name, bound in bounds.items()):
        return policy  # nearly always
    return policy.model_copy(update={"resources": wanted.model_copy(update=bounds)})


def _with_own(policy: EffectivePolicy, table: EnrolledTable) -> EffectivePolicy:
    """The same with what the enrolment of a table says itself: its staging branch."""
    if table.publish_from is None:
        return policy
    publish = policy.publish.model_copy(update={"source": table.publish_from})
    return policy.model_copy(update={"publish": publish})


def _flat(policy: EffectivePolicy) -> dict[str, Any]:
    """By dotted name."""
    return {
        f"{section}.{name}": value
        for section, part in policy.model_dump().items()
        for name, value in part.items()
    }


def _nested(values: Mapping[str, Any]) -> EffectivePolicy:
    """values: by dotted names, as `PolicySettings.values` has them."""
    nested: dict[str, dict[str, Any]] = {}
    for dotted, value in values.items():
        section, _, name = dotted.partition(".")
        nested.setdefault(section, {})[name] = value
    return EffectivePolicy.model_validate(nested)


def chain_of(attachment: PolicyAttachment, table: EnrolledTable | None) -> list[str]:
    """The places whose policies hold where this one is attached, itself first."""
    if table is not None:
        return [attachment.target, *targets_of(table.catalog_id, table.identifier[:-1])]
    if attachment.catalog_id is not None:
        return targets_of(attachment.catalog_id, attachment.namespace or [])
    return [SYSTEM_TARGET]


def place_of(session: Session, attachment: PolicyAttachment) -> str:
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
