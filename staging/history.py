"""Which snapshots of a staging branch wait for their publication: told from snapshots alone. Pure.

Invariant: the target's own history says what was published on it. So whatever else is lost (a database, an
answer, a worker), nothing is published twice and nothing skipped; and nothing at all where it can't be told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

BRANCH = "icestream.published-branch"
SNAPSHOT_ID = "icestream.published-snapshot-id"
SEQUENCE_NUMBER = "icestream.published-sequence-number"
"""Of a snapshot of the target: the staging branch, and the last snapshot of it that is published by then."""
CLEARED = "icestream.cleared-snapshot-id"
TARGET = "icestream.target-branch"
TARGET_SNAPSHOT_ID = "icestream.target-snapshot-id"
TARGET_SEQUENCE_NUMBER = "icestream.target-sequence-number"
"""Of a snapshot of the staging branch that only takes published files off it: up to which snapshot, and which
one of the target has all that."""


@dataclass(frozen=True, slots=True)
class Publication:
    """Up to which snapshot of the staging branch a snapshot of the target has all."""

    snapshot_id: int
    sequence_number: int
    target_snapshot_id: int
    target_sequence_number: int

    @classmethod
    def last(cls, metadata: TableMetadata, source: str, target: str) -> Publication | None:
        """As the target says; None if it does not. Raises PublicationUnreadableError."""
        for snapshot in History.of(metadata, target).snapshots:
            told = properties(snapshot)
            if told.get(BRANCH) == source and snapshot.sequence_number is not None:
                published = _number(told, SNAPSHOT_ID), _number(told, SEQUENCE_NUMBER)
                return cls(*published, snapshot.snapshot_id, snapshot.sequence_number)
        return None


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
        return not self.snapshots or self.snapshots[-1].parent_snapshot_id is None


def staged_snapshots(
    metadata: TableMetadata, source: str, target: str, after: int | None = None
) -> list[Snapshot]:
    """The snapshots of the branch `source` that were not published on `target`, the oldest first.

    These are younger than the last published one, which snapshots of the target name, and than the last that
    both branches have. after: a snapshot of `source` that counts as published where the target does not say.
    Raises StagingError.
    """
    staging, on_target = History.of(metadata, source), History.of(metadata, target)
    if not staging.snapshots:
        known = ", ".join(sorted(metadata.refs)) or "none yet"
        raise StagingBranchNotFoundError(f"it has no branch {source}; it has {known}")
    try:
        ids = {one.snapshot_id for one in metadata.snapshots}
        return _since_publication(staging, on_target, ids, source, target)
    except StagingError:
        if after is None:
            raise
        staged = _younger(staging, {after})
        if staged is None:
            told = f"snapshot {after} (after) is no ancestor of branch {source}"
            raise StagingBranchReplacedError(told, "Name a snapshot of the branch (after).") from None
        return staged


def _since_publication(
    staging: History, on_target: History, known: Set[int], source: str, target: str
) -> list[Snapshot]:
    ids = [one.snapshot_id for one in on_target.snapshots]
    names = [properties(one).get(BRANCH) for one in on_target.snapshots]
    ends: set[int | None] = _cleared(staging, on_target, known, target)
    if source in names:
        at = names.index(source)
        published = _number(properties(on_target.snapshots[at]), SNAPSHOT_ID)
        told = f"snapshot {published} was published by snapshot {ids[at]} of branch {target}"
        # What both had before the publication says nothing of what it published.
        ends.update([published, *ids[: at + 1]])
    else:
        told = f"no snapshot of branch {target} says what was published"
        # The oldest of the target's that is known names one that was its, too.
        ends.update(ids, {one.parent_snapshot_id for one in on_target.snapshots[-1:]} - {None})
        if staging.is_whole and on_target.is_whole:
            ends.add(None)
    staged = _younger(staging, ends)
    if staged is not None:
        return staged
    shares = not set(ids).isdisjoint(one.snapshot_id for one in staging.snapshots)
    if source in names and (staging.is_whole or shares):
        raise StagingBranchReplacedError(f"{told}, and is no ancestor of branch {source}")
    raise StagedSnapshotsExpiredError(f"{told}, and the known ancestors of branch {source} end before")


def _younger(history: History, ends: Set[int | None]) -> list[Snapshot] | None:
    """The snapshots after the first of some ids, the oldest first; None if none of these is an ancestor."""
    younger: list[Snapshot] = []
    for snapshot in history.snapshots:
        if snapshot.snapshot_id in ends:
            return younger[::-1]
        if CLEARED not in properties(snapshot):
            younger.append(snapshot)
        if snapshot.parent_snapshot_id in ends:  # it may have expired itself
            return younger[::-1]
    return None


def _cleared(staging: History, on_target: History, known: Set[int], target: str) -> set[int | None]:
    """Snapshots that were published, as the staging branch says: snapshots of the target may have expired.

    Only as far as the target was not rolled back behind the publication since.
    """
    ids = {one.snapshot_id for one in on_target.snapshots}
    oldest = min((one.sequence_number or 0 for one in on_target.snapshots), default=0)
    found: set[int | None] = set()
    for told in map(properties, staging.snapshots):
        if CLEARED in told and told.get(TARGET) == target:
            published_by = _number(told, TARGET_SNAPSHOT_ID)
            has_expired = published_by not in known and _number(told, TARGET_SEQUENCE_NUMBER) < oldest
            if published_by in ids or has_expired:
                found.add(_number(told, CLEARED))
    return found


def properties(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def _number(told: Mapping[str, str], name: str) -> int:
    try:
        return int(told[name])
    except (KeyError, ValueError):
        raise PublicationUnreadableError(f"its property {name} is {told.get(name, 'missing')!r}") from None
