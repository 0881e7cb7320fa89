"""Measure what a staging branch has that is not published: by its snapshots, without their files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from service.catalogs.measure import summarized
from staging.history import (
    BRANCH,
    History,
    Publication,
    PublicationUnreadableError,
    StagingError,
    is_flinks,
    is_idle,
    only_clears,
    properties,
    staged_snapshots,
)

_ROWS = ("added-records", "added-equality-deletes", "added-position-deletes")


@dataclass(frozen=True)
class Staged:
    """rows: with row-level deletes. trouble: why it can't be told, nor anything published; then the rest is
    what waits for all that is known."""

    snapshots: int = 0
    rows: int = 0
    oldest_at: datetime | None = None
    first_id: int | None = None
    trouble: StagingError | None = None
    is_cut: bool = False
    """Whether Flink is refused there, or would be if it made the branch, as soon as it commits a vector."""
    is_unproven: bool = False
    """Whether expiry has taken what says, by metadata alone, that the target has what was published."""
    kept: int = 0
    """Snapshots of the branch of which none may expire, since Flink would be refused without them."""
    was_published: bool = False
    """Whether anything of the branch ever was, as far as the snapshots that are left tell."""


def measure_staged(metadata: TableMetadata, source: str, target: str) -> Staged:
    """What branch `source` has that was not published on `target`."""
    staging = History.of(metadata, source).snapshots
    by_flink = metadata.format_version >= 3 and (not staging or any(map(is_flinks, staging)))
    is_cut = by_flink and _is_cut(staging or History.of(metadata, target).snapshots)
    kept = len(staging) if by_flink and not is_cut else 0
    # What clears the branch says nothing: it may be made off another one that was cleared.
    was_published = any(
        properties(one).get(BRANCH) == source for one in History.of(metadata, target).snapshots
    )
    measured = _measured(metadata, source, target)
    return replace(measured, is_cut=is_cut, kept=kept, was_published=was_published)


def _measured(metadata: TableMetadata, source: str, target: str) -> Staged:
    is_unproven = False

    def since(publication: Publication, _: bool) -> Publication:
        nonlocal is_unproven
        is_unproven = True
        return publication

    try:
        found = staged_snapshots(metadata, source, target, since=since)
    except StagingError as error:
        known = _staged(_known_to_wait(metadata, source, target))
        return replace(known, first_id=None, trouble=error)
    return replace(_staged(found), is_unproven=is_unproven)


def _staged(waiting: Sequence[Snapshot]) -> Staged:
    found = [one for one in waiting if not is_idle(one)]
    if not found:
        return Staged()
    return Staged(
        len(found),
        sum(summarized(snapshot, name) for snapshot in found for name in _ROWS),
        datetime.fromtimestamp(min(snapshot.timestamp_ms for snapshot in found) / 1000, UTC),
        found[0].snapshot_id,
    )


def _is_cut(history: Sequence[Snapshot]) -> bool:
    # As Iceberg looks at it: what PyIceberg's expiry leaves has no parent, and is taken for the beginning.
    return any(one.parent_snapshot_id is not None for one in history[-1:])


def _known_to_wait(metadata: TableMetadata, source: str, target: str) -> list[Snapshot]:
    """What the staging branch still has that is younger than the last publication, and not the target's."""
    numbers = {one.snapshot_id: one.sequence_number or 0 for one in metadata.snapshots}
    try:
        published = Publication.last(metadata, source, target)
    except PublicationUnreadableError:
        published = None
    after = numbers.get(published.snapshot_id, published.target_sequence_number) if published else 0
    on_target = {one.snapshot_id for one in History.of(metadata, target).snapshots}
    return [
        one
        for one in History.of(metadata, source).snapshots
        if one.snapshot_id not in on_target and not only_clears(one) and numbers[one.snapshot_id] > after
    ]
