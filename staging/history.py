"""Which snapshots of a staging branch wait for their publication: told from snapshots alone. Pure.

Invariant: the target's own history says what was published on it. So whatever else is lost (a database, an
answer, a worker), nothing is published twice and nothing skipped; and nothing at all where it can't be told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

BRANCH = "icestream.published-branch"
SNAPSHOT_ID = "icestream.published-snapshot-id"
"""Of a snapshot of the target: the staging branch, and the last snapshot of it that is published by then."""
SKIPPED = "icestream.skipped-snapshot-id"
SKIPPED_SEQUENCE_NUMBERS = "icestream.skipped-sequence-numbers"
"""Likewise: the one that it left out, as requested; and the sequence numbers of the youngest that were left
out, which clearings of the staging branch repeat."""
SKIPPED_AT_MOST = 100
CLEARED = "icestream.cleared-snapshot-id"
TARGET = "icestream.target-branch"
TARGET_SNAPSHOT_ID = "icestream.target-snapshot-id"
TARGET_SEQUENCE_NUMBER = "icestream.target-sequence-number"
"""Of a snapshot of the staging branch that only takes published files off it: up to which snapshot, and which
one of the target has all that."""
RENEWED = "icestream.renewed-from-snapshot-id"
"""Of such a snapshot with which the branch begins anew, at its first one: the head that it had before."""
FLINK_JOB = "flink.job-id"
KEPT = 1_000
"""The branch of a Flink job has no more snapshots than so many, in format version 3, which keeps all."""
NO_SNAPSHOT = -1
"""Of a target without a snapshot, as Iceberg names it: it has all of deletes alone, whatever comes later."""


@dataclass(frozen=True, slots=True)
class Publication:
    """Up to which snapshot of the staging branch a snapshot of the target has all."""

    snapshot_id: int
    target_snapshot_id: int
    target_sequence_number: int

    @classmethod
    def last(cls, metadata: TableMetadata, source: str, target: str) -> Publication | None:
        """As the target says; None if it does not. Raises PublicationUnreadableError."""
        for snapshot in History.of(metadata, target).snapshots:
            if properties(snapshot).get(BRANCH) == source and snapshot.sequence_number is not None:
                return cls.by(snapshot)
        return None

    @classmethod
    def by(cls, snapshot: Snapshot) -> Publication:
        """As a snapshot of the target says it. Raises PublicationUnreadableError."""
        published = _number(properties(snapshot), SNAPSHOT_ID)
        return cls(published, snapshot.snapshot_id, snapshot.sequence_number or 0)


def skipped_numbers(metadata: TableMetadata, source: str, target: str) -> Set[int]:
    """The sequence numbers of snapshots of the branch `source` that were left out: the youngest of them."""
    by_target = (properties(one) for one in History.of(metadata, target).snapshots)
    published = next((one for one in by_target if one.get(BRANCH) == source), {})
    cleared = next(map(properties, filter(only_clears, History.of(metadata, source).snapshots)), {})
    told = [one.get(SKIPPED_SEQUENCE_NUMBERS, "") for one in (published, cleared)]
    return frozenset(map(int, re.findall("[0-9]{1,19}", " ".join(told))))


Since = Callable[[Publication, bool], Publication | Literal[False] | None]
"""Where ancestors of the target have expired: its last publication, which is the given one or follows it.
False if it does not descend from the given one; None if nothing tells. Where False is given, too, the given
one will do: no later one has published what waits."""


class StagingError(Exception):
    """What is staged can't be told, so nothing is published: what happened, the cause, and what to do."""

    code: str
    title: str
    remedy: str

    def __init__(self, detail: str, remedy: str = "") -> None:
        """remedy: where the type's own does not fit."""
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy or self.remedy


class StagingBranchNotFoundError(StagingError):
    code = "staging_branch_not_found"
    title = "The table has no such staging branch"
    remedy = "Create the branch, or let the writer create it; or name another one (from)."


class StagingBranchReplacedError(StagingError):
    code = "staging_branch_replaced"
    title = "The staging branch was rolled back or replaced"
    remedy = (
        "Nothing is published, since rows could come twice. Bring the branch back to a snapshot that has the"
        " published one among its ancestors; or publish once with `after`, the snapshot of the branch up to"
        " which the target has all rows."
    )


class StagedSnapshotsExpiredError(StagingError):
    code = "staged_snapshots_expired"
    title = "Snapshots of the staging branch expired before they were published"
    remedy = (
        "Nothing is published, since rows could be missing or come twice. Look which rows the target lacks,"
        " then publish once with `after`, the snapshot of the branch up to which the target has all rows; and"
        " keep snapshots of the branch longer than publication may take (history.expire.max-snapshot-age-ms)."
    )


class StagingBranchUnclearError(StagingError):
    code = "staging_branch_unclear"
    title = "It can't be told where the staging branch begins"
    remedy = (
        "Nothing is published, since what was rolled back on the target could come again. Publish once with"
        " `after`, the snapshot from which the branch was made, so that the target gets all after it; or make"
        " the branch anew at the target's head, and write again."
    )


class PublicationExpiredError(StagingError):
    code = "publication_expired"
    title = "It can't be told any more whether the target was rolled back"
    remedy = (
        "Nothing is published, since rows could be missing or come twice. Look whether the target has the"
        " rows of that snapshot, then publish once with `after`: this snapshot, or the one before it. Let"
        " snapshots of the target expire later, or publish before they do."
    )


class PublicationUnreadableError(StagingError):
    code = "publication_unreadable"
    title = "A snapshot does not say what it published"
    remedy = (
        "Nothing is published, since rows could come twice. Publish once with `after`, the snapshot of the"
        " branch up to which the target has all rows; and let nobody else write properties that begin with"
        " `icestream.`."
    )


@dataclass(frozen=True, slots=True)
class History:
    """The ancestors of a branch's head that are known, the newest first."""

    snapshots: Sequence[Snapshot]

    @classmethod
    def of(cls, metadata: TableMetadata, branch: str) -> History:
        """Empty if there is no such branch; each snapshot once, whatever the metadata says."""
        left = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        reference = metadata.refs.get(branch)
        at = None if reference is None else left.pop(reference.snapshot_id, None)
        found = []
        while at is not None:
            found.append(at)
            at = left.pop(at.parent_snapshot_id, None) if at.parent_snapshot_id is not None else None
        return cls(found)

    @property
    def is_whole(self) -> bool:
        """Whether no ancestor has expired."""
        return not self.snapshots or _is_first(self.snapshots[-1])

    @property
    def ids(self) -> list[int | None]:
        """Of the known ancestors, and of the one before the oldest of them."""
        before = [one.parent_snapshot_id for one in self.snapshots[-1:]]
        return [*(one.snapshot_id for one in self.snapshots), *(one for one in before if one is not None)]


def _is_first(snapshot: Snapshot) -> bool:
    """Whether it had no parent. PyIceberg's expiry takes the parent's id away, but not what it counted."""
    told = properties(snapshot)
    counts = ((told.get(f"total-{files}-files"), told.get(f"added-{files}-files")) for files in _FILES)
    return snapshot.parent_snapshot_id is None and all(
        total in (None, added or "0") for total, added in counts
    )


def staged_snapshots(
    metadata: TableMetadata,
    source: str,
    target: str,
    after: int | None = None,
    since: Since = lambda publication, _: publication,
) -> list[Snapshot]:
    """The snapshots of the branch `source` that were not published on `target`, the oldest first.

    These are younger than the last published one, which snapshots of the target name, and than the last that
    both branches have. after: a snapshot of `source` that counts as published where the target does not say.
    since: asked where only the staging branch tells of a publication, and expiry has taken the rest.
    Raises StagingError.
    """
    staging, on_target = History.of(metadata, source), History.of(metadata, target)
    is_branch = {name: of.snapshot_ref_type is SnapshotRefType.BRANCH for name, of in metadata.refs.items()}
    if not staging.snapshots or not is_branch[source]:
        branches = (name for name in is_branch if is_branch[name])
        known = ", ".join(sorted(branches)) or "none yet"
        raise StagingBranchNotFoundError(f"it has no branch {source}; it has {known}")
    try:
        waiting, end = _since_publication(metadata, staging, on_target, source, target, since)
        # After a snapshot that was staged, no commit is the target's.
        if target == MAIN_BRANCH and end in on_target.ids:
            return _not_committed_on_main(metadata, waiting)
        return waiting
    except StagingError:
        if after is None:
            raise
        staged, _ = _younger(staging, {after})
        if staged is None:
            told = f"snapshot {after} (after) is no ancestor of branch {source}"
            raise StagingBranchReplacedError(told, "Name a snapshot of the branch (after).") from None
        return staged


def _since_publication(
    metadata: TableMetadata,
    staging: History,
    on_target: History,
    source: str,
    target: str,
    since: Since,
) -> tuple[list[Snapshot], int | None]:
    """What waits, and the snapshot after which it does."""
    ids = [one.snapshot_id for one in on_target.snapshots]
    # What a snapshot says takes long to ask for, and the last publication is often a young one.
    told_by = (at for at, one in enumerate(on_target.snapshots) if properties(one).get(BRANCH) == source)
    at = next(told_by, None)
    ends: set[int | None]
    unpublished = staging.snapshots
    if at is not None:
        published = _number(properties(on_target.snapshots[at]), SNAPSHOT_ID)
        told = f"snapshot {published} was published by snapshot {ids[at]} of branch {target}"
        # What both had before the publication says nothing of what it published.
        ends = {published, *ids[: at + 1]}
        unpublished = list(takewhile(lambda one: one.snapshot_id != published, unpublished))
    else:
        told = f"no snapshot of branch {target} says what was published"
        ends = set(on_target.ids)
        if staging.is_whole and on_target.is_whole:
            ends.add(None)
    ends |= _cleared(metadata, unpublished, on_target, target, since)
    staged, end = _younger(staging, ends)
    if staged is not None:
        return staged, end
    shares = not set(ids).isdisjoint(one.snapshot_id for one in staging.snapshots)
    if at is not None and (staging.is_whole or shares):
        raise StagingBranchReplacedError(f"{told}, and is no ancestor of branch {source}")
    raise StagedSnapshotsExpiredError(f"{told}, and the known ancestors of branch {source} end before")


def _younger(history: History, ends: Collection[int | None]) -> tuple[list[Snapshot] | None, int | None]:
    """The snapshots after the first of some ids, the oldest first, and that id. None if there is none."""
    younger: list[Snapshot] = []
    for snapshot in history.snapshots:
        if snapshot.snapshot_id in ends:
            return younger[::-1], snapshot.snapshot_id
        if is_renewal(snapshot):
            raise StagingBranchReplacedError(
                f"the branch began anew with snapshot {snapshot.snapshot_id}, and what it had before was"
                f" published on another branch, or on one that was rolled back since"
            )
        if not only_clears(snapshot):
            younger.append(snapshot)
        if snapshot.parent_snapshot_id in ends:  # it may have expired itself
            return younger[::-1], snapshot.parent_snapshot_id
    return None, None


def _not_committed_on_main(metadata: TableMetadata, staged: list[Snapshot]) -> list[Snapshot]:
    """Without what was committed on main, where the branch was made, before a rollback of main.

    The table's log says what main was at, with the time of the commit where it was one on main.
    Raises StagingBranchUnclearError where it does not tell.
    """
    numbers = {(one.snapshot_id, one.timestamp_ms): one.sequence_number or 0 for one in metadata.snapshots}
    logged = {entry.snapshot_id: entry.timestamp_ms for entry in reversed(metadata.snapshot_log)}
    committed = {entry[0]: numbers[entry] for entry in logged.items() if entry in numbers}
    since = max((at for at, one in enumerate(staged, 1) if one.snapshot_id in committed), default=0)
    left = staged[since:]
    if left and not since and committed and min(committed.values()) > (left[0].sequence_number or 0):
        raise StagingBranchUnclearError(
            f"snapshot {left[0].snapshot_id} is older than what is left of the log of branch {MAIN_BRANCH}:"
            " it may be the writer's, or have been committed there and rolled back"
        )
    if moved := [one.snapshot_id for one in left if one.snapshot_id in logged]:
        raise StagingBranchUnclearError(
            f"branch {MAIN_BRANCH} was set to snapshot {moved[-1]} and rolled back, and no log tells on which"
            " branch that was committed"
        )
    return left


def _cleared(
    metadata: TableMetadata,
    staging: Sequence[Snapshot],
    on_target: History,
    target: str,
    since: Since,
) -> set[int | None]:
    """Up to where the staging branch says that it was published: snapshots of the target may have expired.

    Only as far as the target was not rolled back behind that since. Raises PublicationExpiredError.
    """
    numbers = {one.snapshot_id: one.sequence_number or 0 for one in metadata.snapshots}
    ids = on_target.ids
    oldest = min((numbers[one] for one in ids if one in numbers), default=0)
    for snapshot in staging:
        told = properties(snapshot)
        if not only_clears(snapshot) or told.get(TARGET, target) != target:
            continue
        by, number = _number(told, TARGET_SNAPSHOT_ID), _number(told, TARGET_SEQUENCE_NUMBER)
        publication = Publication(_number(told, CLEARED), by, numbers.get(by, number))
        ends: set[int | None] = {publication.snapshot_id}
        if is_renewal(snapshot):
            ends.add(snapshot.snapshot_id)
        if by == NO_SNAPSHOT:
            return ends
        if publication.target_sequence_number >= (snapshot.sequence_number or 0):
            raise PublicationUnreadableError(
                f"snapshot {snapshot.snapshot_id} says that the younger snapshot {by} had published it"
            )
        if by not in ids and publication.target_sequence_number >= oldest:
            continue  # ancestors as young as that are known
        if by in ids:
            return ends
        waiting, _ = _younger(History(staging), ends)
        # Whatever published these is younger, and of the target's ancestors as young as that none is unknown.
        is_told = not waiting or (waiting[0].sequence_number or 0) >= oldest
        last = since(publication, not is_told)
        if last is None:
            raise PublicationExpiredError(
                f"snapshot {by} published up to snapshot {publication.snapshot_id}, and expiry has taken what"
                f" says whether branch {target} still descends from it, and what was published since"
            )
        if last:
            return ends if last == publication else {last.snapshot_id}
    return set()


def only_clears(snapshot: Snapshot) -> bool:
    """Whether it takes published files off a staging branch, and adds nothing, whatever else it says."""
    told = properties(snapshot)
    return CLEARED in told and all(told.get(f"added-{files}-files", "0") == "0" for files in _FILES)


def is_renewal(snapshot: Snapshot) -> bool:
    """Whether the staging branch begins with it, for all that waits: what was older is published."""
    return RENEWED in properties(snapshot) and only_clears(snapshot)


_FILES = ("data", "delete")


def is_flinks(snapshot: Snapshot) -> bool:
    """Whether a Flink job committed it, at a checkpoint."""
    return FLINK_JOB in properties(snapshot)


def is_idle(snapshot: Snapshot) -> bool:
    """Whether nothing waits in it: Flink commits now and then when it has nothing to commit."""
    return is_flinks(snapshot) and all(properties(snapshot).get(name, "0") == "0" for name in _CHANGES)


_CHANGES = ("added-data-files", "added-delete-files", "deleted-data-files", "removed-delete-files")


def properties(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def _number(told: Mapping[str, str], name: str) -> int:
    """As Iceberg writes ids and sequence numbers: a whole number of Java."""
    value = told.get(name, "missing")
    if not _WHOLE_NUMBER.fullmatch(value) or int(value).bit_length() > 63:
        shown = value if len(value) <= 50 else f"{value[:50]}..."
        raise PublicationUnreadableError(f"its property {name} is {shown!r}")
    return int(value)


_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
