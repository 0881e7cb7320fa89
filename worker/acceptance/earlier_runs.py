"""What earlier runs have left: found by marks and names together, and removed on request.

Invariant: a table goes only if its name is one that the run of its mark gives; files go only where its
own run has seen none before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from icestream.connection import Json
from icestream.errors import NotFoundError
from worker.acceptance.lake import Lake, LakeError
from worker.acceptance.service import Service

_NAME = re.compile(r"(a(\d{8}_\d{6})_[0-9a-f]{6})_(?:v2|v3|faults)")
_UNDER_WAY = timedelta(hours=2)
"""A run that began later may not have ended."""


def is_of_run(name: str) -> bool:
    """Whether a run gives such a name to its tables."""
    return _NAME.fullmatch(name) is not None


@dataclass
class TableOfRun:
    """What is there of a table that a run has made. name: of the table, which may be gone. enrolments: ids.
    place: of its files, if known."""

    name: str
    run: str
    has_table: bool
    enrolments: Sequence[str]
    place: str = ""
    is_cleared: bool = False

    @property
    def words(self) -> str:
        parts = ["a table with its files"] if self.has_table else []
        parts += ["an enrolment with its index"] if self.enrolments else []
        return " and ".join(parts)

    @property
    def what_may_be_left(self) -> str:
        return "" if self.is_cleared or not self.place else f"; files may be left at {self.place}"


@dataclass
class CleanUpPlan:
    """stays: what has the name of a run and is not removed, with the reason, a sentence each."""

    to_remove: list[TableOfRun] = field(default_factory=list)
    stays: list[str] = field(default_factory=list)


def plan_clean_up(
    service: Service,
    lake: Lake,
    namespace: Sequence[str],
    runs: Collection[str] = (),
    now: datetime | None = None,
) -> CleanUpPlan:
    """runs: only of these, however young; without them, of all that are not under way.

    Raises LakeError and IcestreamError.
    """
    plan, tables = CleanUpPlan(), lake.table_names(namespace)
    enrolled: dict[str, list[Json]] = {}
    for one in service.items("/tables", catalog=lake.name, namespace=".".join(namespace)):
        if one["identifier"][:-1] == [*namespace]:
            enrolled.setdefault(one["identifier"][-1], []).append(one)
    for name in sorted(tables | enrolled.keys()):
        named = _NAME.fullmatch(name)
        if named is None or (runs and named[1] not in runs):
            continue
        if name in tables and _mark_of(lake, [*namespace, name]) != named[1]:
            plan.stays.append(f"{name} can't be opened or is no run's, in spite of its name: it stays.")
        elif not runs and _may_be_under_way(named[2], now or datetime.now(UTC)):
            plan.stays.append(
                f"{name} is of a run that may be under way: it stays. Once that has ended, --run {named[1]}"
                " --clean-up removes it."
            )
        else:
            of_table = enrolled.get(name, [])
            place = next((str(one["location"]) for one in of_table), "")
            ids = [str(one["id"]) for one in of_table]
            plan.to_remove.append(TableOfRun(name, named[1], name in tables, ids, place))
    return plan


def _mark_of(lake: Lake, identifier: Sequence[str]) -> str | None:
    """None also for a table that can't be opened."""
    try:
        return lake.mark_of(identifier)
    except LakeError:
        return None


def _may_be_under_way(began: str, now: datetime) -> bool:
    try:
        return datetime.strptime(began, "%Y%m%d_%H%M%S").replace(tzinfo=UTC) > now - _UNDER_WAY
    except ValueError:  # no run's
        return True


def remove(one: TableOfRun, service: Service, lake: Lake, namespace: Sequence[str]) -> None:
    """Raises LakeError, NotOursError, JobEndedError and IcestreamError."""
    for enrolment in one.enrolments:
        try:
            job = service.delete(f"/tables/{enrolment}", drop_index="true", leave_staged="true")
        except NotFoundError:
            continue
        if job is not None:
            service.result_of(job)
    if not one.has_table:
        return
    identifier = [*namespace, one.name]
    table = lake.load(identifier)
    storage, place = lake.storage_of(table), lake.place_of(table)
    lake.drop_table(identifier, one.run)
    if place is not None:
        lake.clear(storage, place)
        one.is_cleared = True


def remove_namespace(lake: Lake, namespace: Sequence[str]) -> bool:
    """Whether it was a run that had made it, and is gone: nothing may be in it. Raises LakeError."""
    if not lake.has_namespace(namespace) or lake.table_names(namespace):
        return False
    if lake.mark_of_namespace(namespace) is None:
        return False
    lake.drop_namespace(namespace)
    return True
