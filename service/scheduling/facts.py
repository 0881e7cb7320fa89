"""What a table is like, as far as decisions about its jobs depend on that, and what a decision says. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from service.catalogs.measure import Past, Volume
from service.jobs.budgets import SpentBudget
from service.jobs.estimates import seconds_of
from service.policies.models import EffectivePolicy
from service.policies.schedules import Window
from service.reader_cost import Shape
from service.records.jobs import JobKind
from service.scheduling.worth import Readers, Weighing

SCHEDULED = (
    JobKind.INDEX,
    JobKind.CONVERT,
    JobKind.PUBLISH,
    JobKind.REWRITE_DATA_FILES,
    JobKind.REWRITE_POSITION_DELETE_FILES,
    JobKind.REWRITE_MANIFESTS,
    JobKind.EXPIRE_SNAPSHOTS,
    JobKind.COMPACT,
    JobKind.VERIFY,
)
"""Those that become due at the same time wait in this order: what is let go comes after what replaces it."""


WITH_CONVERSION = "with-conversion"
"""The code of a decision to wait for a conversion that comes or may come."""
WITH_REWRITING = "with-rewriting"
"""The code of a decision to wait for a rewriting of data files that comes soon."""
WAITS = frozenset({WITH_CONVERSION, WITH_REWRITING})
"""Codes of jobs that are due and wait for one of another kind."""


class Action(StrEnum):
    TRIGGER = "trigger"
    WAIT = "wait"
    """Nothing to do yet; the normal state."""
    SKIP = "skip"
    """Something else than the triggers stands in the way."""
    BACKOFF = "backoff"
    """The last jobs got nowhere."""


@dataclass(frozen=True)
class Decision:
    kind: JobKind
    action: Action
    code: str
    sentence: str
    delete_ratio: float | None = None
    """From which share of deleted rows on a rewriting takes data files; None for what the policy says."""


@dataclass(frozen=True)
class LastJob:
    """The latest ended job of a kind that was not cancelled."""

    ended_at: datetime
    failed: int = 0
    """How many started by itself and failed, one after the other, up to it and under the present policy."""
    failed_at: datetime | None = None
    """When the latest of these ended."""
    cause: str = ""
    """Why."""
    idle: int = 0
    """How many in a row found nothing to do, up to it; 0 once the table has changed since."""
    seen_id: int | None = None
    """The head that it saw, if it succeeded."""
    succeeded_at: datetime | None = None
    """When the latest that succeeded ended, whoever asked for it; None if none that is known did."""
    has_succeeded: bool = True
    """Whether any did: what a report counts is known only then."""
    has_counted: bool = False
    """Whether any did under the present policy: then it counted what that has rewritten."""
    committed_at: datetime | None = None
    """When the latest ended that did something; None if none of those that are known did."""
    seconds: float | None = None
    """What such jobs usually take, of the latest that did something; None if none did."""
    delete_ratio: float = 1.0
    """From which share of deleted rows on it took data files, of a rewriting of these."""
    works: tuple[tuple[float, float], ...] = ()
    """Of rewritings of data files: the bytes that each of these wrote anew, and the seconds that it took."""


@dataclass(frozen=True)
class StagedState:
    """What a staging branch has that is not published."""

    snapshots: int = 0
    rows: int = 0
    oldest_at: datetime | None = None
    trouble: str | None = None
    """Why nothing of the branch can be published."""
    unproven_id: int | None = None
    """The head of which only a job can tell whether it has what was published."""
    kept: int = 0
    """Snapshots of the branch of which none may expire before it begins anew."""


@dataclass(frozen=True)
class TableState:
    """All that a decision depends on, besides policy and time."""

    paused: str | None
    has_keys: bool
    new: Volume
    """Data files since all of them were indexed."""
    pending_delete_files: int
    convertible: Volume
    """Equality delete files."""
    oldest_convertible_at: datetime | None
    staged: StagedState | None
    """None of a table without a staging branch."""
    small_data_files: int
    """As last reported, where a partition has enough of them."""
    deleted_data_files: int
    """With many deleted rows, as last reported."""
    small_delete_files: int
    """Of positions, as last reported, where a partition has enough of them."""
    small_manifests: int
    """Of the branch's head; 0 of any but main."""
    past: Past
    sorted_runs: int
    """The most that one key set has, as last reported."""
    dead_ratio: float
    """The highest of one key set, as last reported."""
    dead_bytes: int
    """The most of one key set."""
    unverified: Volume
    """Data files since the last verification."""
    has_index: bool
    enrolled_at: datetime
    active: frozenset[JobKind]
    """Kinds with a queued or running job."""
    held: frozenset[JobKind]
    """Those of them that wait because a budget is spent."""
    later: frozenset[JobKind]
    """Those of them for which nothing waits: asked for at a later time or with a lower priority than the
    policy's, tried again after a failure, or over a budget."""
    spent: SpentBudget | None
    """Of all jobs."""
    last: dict[JobKind, LastJob]
    shape: Shape | None = None
    """What a reader of the branch has to do with; None before the first look."""
    fresh: Shape | None = None
    """As if the table had just been rewritten."""
    indexed_at: datetime | None = None
    """When all data files were indexed last, by a job of any kind."""
    running: frozenset[JobKind] = frozenset()
    """Kinds with a running job."""
    grown_files: int = 0
    """Data files and vectors more than at the first look after the last report."""
    new_small_files: int = 0
    """Small data files since then, by their bytes; nobody has counted which partitions have enough."""
    has_sort_order: bool | None = None
    """None before the first look."""
    spent_of: dict[JobKind, SpentBudget] = field(default_factory=dict)
    """Budgets of single kinds."""
    rows_deleted_since: datetime | None = None
    """Since when a table of format version 3 has had rows that are deleted by position, of which no rewriting
    has taken most."""
    waits_since: Mapping[JobKind, datetime] = field(default_factory=dict)
    """Since when jobs that are due wait for one of another kind, as of the last look."""
    done_elsewhere: dict[JobKind, datetime] = field(default_factory=dict)
    """Kinds of maintenance that somebody else than our jobs does, and when each was seen last."""

    @property
    def kinds(self) -> tuple[JobKind, ...]:
        """What may start by itself."""
        return tuple(kind for kind in SCHEDULED if kind is not JobKind.PUBLISH or self.staged is not None)

    def budget_spent(self, kind: JobKind) -> SpentBudget | None:
        """The budget that holds jobs of a kind up, if any."""
        return self.spent or self.spent_of.get(kind)


class _Keyed(Protocol):
    @property
    def has_keys(self) -> bool: ...


def is_indexed(table: _Keyed, policy: EffectivePolicy) -> bool:
    """Whether index jobs run for a table by themselves: they count what a rewriting would take."""
    return table.has_keys and policy.index.enabled


def grown_files(
    table: _Keyed, policy: EffectivePolicy, grown: int, partitions: int | None, *, are_reported: bool
) -> int:
    """As `TableState` has it, of a table that has grown by so many since the last report, if there was one.

    None of a table of which no other job counts them until there may be enough in each partition; never more
    are asked for than the policy says.
    """
    limits = policy.rewrite_data_files
    # One that was there before the first report may be larger than all others of its partition.
    each = limits.min_input_files + (not are_reported)
    enough = max(min(each * max(partitions or 1, 1), limits.small_data_files), limits.min_input_files)
    return grown if grown >= enough or is_indexed(table, policy) else 0


def may_take_some_again(table: _Keyed, policy: EffectivePolicy, grown: int) -> bool:
    """Whether a rewriting that found nothing to take may find some, though no job has counted what has grown:
    by what readers pay, and where no other job counts."""
    is_guessed = policy.convert.when == "worthwhile" or not is_indexed(table, policy)
    return is_guessed and grown >= policy.rewrite_data_files.min_input_files


def weighing(state: TableState, policy: EffectivePolicy) -> Weighing | None:
    """What readers pay and jobs cost; None unless the policy goes by that."""
    return weigh(state, policy) if policy.convert.when == "worthwhile" else None


def weigh(state: TableState, policy: EffectivePolicy) -> Weighing | None:
    """None before the first look."""
    if state.shape is None or state.fresh is None:
        return None
    convert, rewrite = (state.last.get(kind) for kind in (JobKind.CONVERT, JobKind.REWRITE_DATA_FILES))
    # What can't be converted no job takes from readers.
    pending = state.convertible
    shape = replace(state.shape, equality_delete_files=pending.files, equality_deletes=pending.rows)
    # Before a policy had files rewritten, reports did not count what that would take.
    counted_files = state.small_data_files + state.deleted_data_files + state.grown_files
    counting = (state.last.get(kind) for kind in (JobKind.INDEX, JobKind.CONVERT))
    is_counted = any(last is not None and last.has_counted for last in counting) or not is_indexed(
        state, policy
    )
    readers = Readers(
        shape,
        state.fresh,
        counted_files if is_counted or (rewrite is not None and rewrite.has_succeeded) else None,
        state.grown_files,
        state.deleted_data_files,
        max(state.shape.equality_delete_files - pending.files, 0),
        state.oldest_convertible_at,
        (rewrite.committed_at if rewrite is not None else None) or state.enrolled_at,
        convert.seconds if convert is not None else None,
        rewrite.seconds if rewrite is not None else None,
        seconds_of(shape.data_bytes, rewrite.works) if rewrite is not None and rewrite.works else None,
        state.rows_deleted_since,
    )
    return Weighing(readers, policy)


def windows_of(policy: EffectivePolicy, kind: JobKind) -> list[Window]:
    """Within which a kind starts by itself; none for always."""
    own = getattr(policy, kind.value).windows if kind.is_maintenance else []
    return own or policy.schedule.windows
