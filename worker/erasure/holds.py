"""What holds the snapshots of a table: branches and tags, what it retains, and who looks for them later."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from staging.history import FLINK_JOB, History, is_flinks, is_renewal, properties
from telemetry.plurals import counted
from worker.attempt.job import Job
from worker.table.avro_files import CorruptMetadataError

_MIN_SNAPSHOTS = "history.expire.min-snapshots-to-keep"
_MAX_AGE = "history.expire.max-snapshot-age-ms"
_MAX_REF_AGE = "history.expire.max-ref-age-ms"
_BITS = {_MIN_SNAPSHOTS: 31, _MAX_AGE: 63, _MAX_REF_AGE: 63}
"""What Iceberg's own expiry reads, as whole numbers of Java: anything else makes it fail."""
_WHOLE_NUMBER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_GC = "gc.enabled"
_STAGED, _PUBLISHED = "wap.id", "published-wap-id"
_PUBLISHED_BRANCH, _PUBLISHED_SNAPSHOT = "icestream.published-branch", "icestream.published-snapshot-id"
_TARGET_BRANCH = "icestream.target-branch"
_FLINK = (FLINK_JOB, "flink.operator-id")
# Properties by which streaming writers, and publications, find what they committed last; the values say
# whose.
_WRITERS = (
    _FLINK,
    ("spark.sql.streaming.queryId",),
    (_PUBLISHED_BRANCH,),
    (_TARGET_BRANCH,),
)
_PUBLICATIONS = (_PUBLISHED_BRANCH, _TARGET_BRANCH)
_ADDED_DELETES = ("added-equality-deletes", "added-dvs")
_KAFKA = "kafka.connect.offsets."
"""Begins such a property of Kafka Connect, whose name goes on with the topic and group."""
_AGAIN = "and erase again."
SILENCE = timedelta(days=7)
"""After which a streaming writer is taken to be gone, and what was staged with a wap.id to be given up, by an
expiry that goes by age."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a snapshot stays. until: when that ends by itself, if it does."""

    holder: str
    reason: str
    remedy: str
    name: str | None = None
    until: datetime | None = None


def is_never_deleted_from(metadata: TableMetadata) -> bool:
    """Whether the table forbids to delete files that its snapshots named: others may have them, too.

    As Iceberg reads it (Boolean.parseBoolean): all that is not `true` is false, also `yes`, `1` and `true `.
    """
    return metadata.properties.get(_GC, "true").lower() != "true"


def holds(job: Job, metadata: TableMetadata) -> dict[int, Hold]:
    """What holds the snapshots of a table, by their ids; the others may expire."""
    found: dict[int, Hold] = {}
    for snapshot_id, hold in _holds(job, metadata, datetime.now(UTC)):
        found.setdefault(snapshot_id, hold)
    return found


def kept_by_age(
    metadata: TableMetadata,
    branch: str,
    older_than: datetime,
    retain_last: int,
    now: datetime,
    staging_branch: str | None = None,
) -> dict[int, Hold | None]:
    """The snapshots that are older than a time, by their ids, with what holds them: None if they may expire.

    branch: whose history this is about: what only other branches have is theirs, unless it is published.
    retain_last: so many snapshots of each branch stay. What the table retains by itself stays, too.
    staging_branch: that is published on the branch.
    Raises CorruptMetadataError: Iceberg's own expiry follows parents that lead in a circle for ever.
    """
    _check_parents(metadata)
    histories = _Histories(metadata)
    left = min(older_than, now - SILENCE)

    def is_known(snapshot: Snapshot, writer: tuple[str | None, ...]) -> bool:
        if writer[0] in _PUBLICATIONS:
            return writer[1] in metadata.refs  # which may be published for years after
        return not _is_older(snapshot, left)

    found: dict[int, Hold] = {}
    for snapshot_id, hold in chain(
        _of_table(metadata, branch, histories, now, retain_last),
        chain.from_iterable(_of_writers(name, histories, is_known) for name in histories),
        _of_vectors(metadata, histories, lambda flink: not _is_older(flink, left)),
        _of_publications(histories),
        _of_unpublished(branch, staging_branch, histories),
        _of_other_branches(branch, histories),
        _of_staged(metadata, histories, lambda staged: not _is_older(staged, left)),
    ):
        found.setdefault(snapshot_id, hold)
    old = (one.snapshot_id for one in metadata.snapshots if _is_older(one, older_than))
    return {snapshot_id: found.get(snapshot_id) for snapshot_id in old}


def _holds(job: Job, metadata: TableMetadata, now: datetime) -> Iterator[tuple[int, Hold]]:
    """The most telling first."""
    assignment = job.assignment
    histories = _Histories(metadata)
    yield from _of_table(metadata, assignment.table.branch, histories, now)
    for name in histories:
        yield from _of_writers(name, histories)
    yield from _of_vectors(metadata, histories)
    yield from _of_publications(histories)
    yield from _of_unpublished(assignment.table.branch, assignment.table.staging_branch, histories)
    yield from _of_staged(metadata, histories)
    if not assignment.job.erase.expire_snapshots:
        why, remedy = (
            "The request lets no snapshot expire.",
            "Let this one expire, or erase again and let snapshots expire.",
        )
        yield from ((one.snapshot_id, Hold("snapshot", why, remedy)) for one in metadata.snapshots)


def _check_parents(metadata: TableMetadata) -> None:
    """Raises CorruptMetadataError. Each snapshot is passed once."""
    left = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in metadata.snapshots}
    while left:
        at, parent = left.popitem()
        way = {at}
        while parent in left:
            at, parent = parent, left.pop(parent)
            way.add(at)
        if parent in way:
            raise CorruptMetadataError(
                f"the parents of snapshot {at} lead in a circle",
                "Register the table with its metadata file from before that; nothing was changed.",
            )


class _Histories(Mapping[str, Sequence[Snapshot]]):
    """The ancestors of each branch's head, the newest first. Each is made when it is asked for: thousands of
    branches may have thousands of ancestors in common."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._metadata = metadata
        self._branches = {
            name: ref
            for name, ref in metadata.refs.items()
            if ref.snapshot_ref_type is SnapshotRefType.BRANCH
        }

    def __getitem__(self, branch: str) -> Sequence[Snapshot]:
        if branch not in self._branches:
            raise KeyError(branch)
        return History.of(self._metadata, branch).snapshots

    def __iter__(self) -> Iterator[str]:
        return iter(self._branches)

    def __len__(self) -> int:
        return len(self._branches)


def _of_table(
    metadata: TableMetadata,
    branch: str,
    histories: Mapping[str, Sequence[Snapshot]],
    now: datetime,
    retain_last: int = 0,
) -> Iterator[tuple[int, Hold]]:
    """What the table itself says: its branches and tags, and what it retains."""
    for name, ref in metadata.refs.items():
        if ref.snapshot_ref_type is SnapshotRefType.TAG:
            yield ref.snapshot_id, _of_tag(metadata, name, ref)
        else:
            why, remedy = f"It is the head of branch {name}.", f"Erase on branch {name}, or drop it, {_AGAIN}"
            if name == branch:
                remedy = "Erase again."
            yield ref.snapshot_id, Hold("branch", why, remedy, name)
    if is_never_deleted_from(metadata):
        why, remedy = (
            f"The table's property {_GC} is not true.",
            f"Set it to true if no other table has its files, {_AGAIN}",
        )
        yield from ((one.snapshot_id, Hold("retention", why, remedy)) for one in metadata.snapshots)
    for name in _BITS:
        if name in metadata.properties and _number(metadata, name) is None:
            why, remedy = (
                f"The table's property {name} is no whole number, so nobody can tell what the table retains.",
                f"Set it to a whole number, or remove it, {_AGAIN}",
            )
            yield from ((one.snapshot_id, Hold("retention", why, remedy)) for one in metadata.snapshots)
    for name, ancestors in histories.items():
        yield from _of_retention(metadata, name, metadata.refs[name], ancestors, now, retain_last)
    yield from _of_age(metadata, now)


def _of_tag(metadata: TableMetadata, name: str, ref: SnapshotRef) -> Hold:
    snapshot = metadata.snapshot_by_id(ref.snapshot_id)
    until = None
    if ref.max_ref_age_ms is not None and snapshot is not None:
        until = _after(snapshot, ref.max_ref_age_ms)
    return Hold("tag", f"Tag {name} names it.", f"Drop the tag, {_AGAIN}", name, until)


def _of_retention(
    metadata: TableMetadata,
    name: str,
    ref: SnapshotRef,
    ancestors: Sequence[Snapshot],
    now: datetime,
    retain_last: int,
) -> Iterator[tuple[int, Hold]]:
    """As the branch says, or else the table; what neither says holds nothing but the last ones to retain."""
    remedy = f"Wait, or let the branch keep fewer, {_AGAIN}"
    least = max(retain_last, ref.min_snapshots_to_keep or _number(metadata, _MIN_SNAPSHOTS) or 0)
    of_last = Hold("retention", f"Branch {name} keeps its last {counted(least, 'snapshot')}.", remedy, name)
    yield from ((snapshot.snapshot_id, of_last) for snapshot in ancestors[:least])
    if ref.max_snapshot_age_ms is None:
        return
    for snapshot in ancestors:
        if (until := _after(snapshot, ref.max_snapshot_age_ms)) > now:
            why = f"Branch {name} keeps snapshots of that age."
            yield snapshot.snapshot_id, Hold("retention", why, remedy, name, until)


def _of_age(metadata: TableMetadata, now: datetime) -> Iterator[tuple[int, Hold]]:
    age = _number(metadata, _MAX_AGE)
    if age is None:
        return
    for snapshot in metadata.snapshots:
        if (until := _after(snapshot, age)) > now:
            why = f"The table keeps snapshots of that age ({_MAX_AGE})."
            remedy = f"Wait, or let the table keep fewer, {_AGAIN}"
            yield snapshot.snapshot_id, Hold("retention", why, remedy, until=until)


def _of_writers(
    branch: str,
    histories: Mapping[str, Sequence[Snapshot]],
    is_known: Callable[[Snapshot, tuple[str | None, ...]], bool] = lambda *_: True,
) -> Iterator[tuple[int, Hold]]:
    """Streaming writers go back from the head to what they committed last, and over no gap. Without that they
    would commit it once more.

    is_known: whether the writer that committed a snapshot may come back.
    """
    ancestors = histories[branch]
    last, writers = 0, set[tuple[str | None, ...]]()
    for number, snapshot in enumerate(ancestors, start=1):
        told = properties(snapshot)
        of_snapshot = {
            (*names, *(told.get(name) for name in names)) for names in _WRITERS if names[0] in told
        } | {(name,) for name in told if name.startswith(_KAFKA)}
        of_snapshot = {writer for writer in of_snapshot if is_known(snapshot, writer)}
        if not of_snapshot <= writers:
            last = number
        writers |= of_snapshot
    why = "A streaming writer looks for its last snapshot when it starts: this one, or one behind it."
    remedy = f"Wait until that writer has committed again, or let it expire if it never will, {_AGAIN}"
    hold = Hold("writer", why, remedy, branch)
    yield from ((snapshot.snapshot_id, hold) for snapshot in ancestors[:last])


def _of_vectors(
    metadata: TableMetadata,
    histories: Mapping[str, Sequence[Snapshot]],
    is_known: Callable[[Snapshot], bool] = lambda _: True,
) -> Iterator[tuple[int, Hold]]:
    """The whole history of a branch to which Flink commits deletes in format version 3: for a key that comes
    twice in a checkpoint it writes a deletion vector, and Iceberg refuses that where the history is cut.

    is_known: whether the writer that committed a snapshot may come back; to a staging branch it may always.
    """
    if metadata.format_version < 3:
        return
    why = (
        "Flink commits deletes to its branch, and in format version 3 can go on only where the history of the"
        " branch reaches its beginning."
    )
    remedy = (
        "Renew the branch if it is a staging branch (`renew` of a publish job), or drop it once the writer is"
        f" gone, {_AGAIN}"
    )
    published = {properties(one).get(_PUBLISHED_BRANCH) for one in metadata.snapshots}
    for name, history in histories.items():
        if not history or history[-1].parent_snapshot_id is not None:  # nothing of it helps any more
            continue
        by_flink = [one for one in history if is_flinks(one)]
        writes_deletes = any(
            is_renewal(one) or not properties(one).keys().isdisjoint(_ADDED_DELETES) for one in by_flink
        )
        if writes_deletes and (name in published or any(map(is_known, by_flink))):
            hold = Hold("writer", why, remedy, name)
            yield from ((one.snapshot_id, hold) for one in history)


def _of_publications(histories: Mapping[str, Sequence[Snapshot]]) -> Iterator[tuple[int, Hold]]:
    """What a staging branch has since its last publication: without it, nobody could tell what is staged."""
    looked_at = set[int]()
    for target, history in histories.items():
        told_of = set[str]()
        for publication in history:
            told = properties(publication)
            source = told.get(_PUBLISHED_BRANCH)
            if source is None or source in told_of:
                continue
            told_of.add(source)
            if publication.snapshot_id in looked_at:  # as another branch has it, too
                continue
            looked_at.add(publication.snapshot_id)
            why, remedy = f"It is not published on branch {target} yet.", f"Publish it, {_AGAIN}"
            hold = Hold("branch", why, remedy, source)
            for snapshot in histories.get(source, ()):
                if str(snapshot.snapshot_id) == told.get(_PUBLISHED_SNAPSHOT):
                    break
                yield snapshot.snapshot_id, hold


def _of_unpublished(
    branch: str, staging_branch: str | None, histories: Mapping[str, Sequence[Snapshot]]
) -> Iterator[tuple[int, Hold]]:
    """What a staging branch has since it began, and the branch that it is to be published on, while nothing
    is published: without either, nobody could tell what is staged."""
    staging, own = histories.get(staging_branch or "", ()), histories.get(branch, ())
    if any(properties(one).get(_PUBLISHED_BRANCH) == staging_branch for one in own):
        return
    why = f"Nothing of branch {staging_branch} is published on branch {branch} yet, and both began there."
    hold = Hold("branch", why, f"Publish it, or drop the branch, {_AGAIN}", staging_branch)
    shared = {one.snapshot_id for one in staging} & {one.snapshot_id for one in own}
    for history in (staging, own) if staging else ():
        for snapshot in history:
            yield snapshot.snapshot_id, hold
            if snapshot.snapshot_id in shared:
                break


def _of_other_branches(
    branch: str, histories: Mapping[str, Sequence[Snapshot]]
) -> Iterator[tuple[int, Hold]]:
    """What only they have, of those of which nothing was published: that may be to come."""
    published = {properties(one).get(_PUBLISHED_BRANCH) for history in histories.values() for one in history}
    own = {one.snapshot_id for one in histories.get(branch, ())}
    for name, history in histories.items():
        if name == branch or name in published:
            continue
        why = f"Only branch {name} has it, of which nothing is published."
        hold = Hold("branch", why, f"Drop the branch, {_AGAIN}", name)
        yield from ((one.snapshot_id, hold) for one in history if one.snapshot_id not in own)


def _of_staged(
    metadata: TableMetadata,
    histories: Mapping[str, Sequence[Snapshot]],
    is_wanted: Callable[[Snapshot], bool] = lambda _: True,
) -> Iterator[tuple[int, Hold]]:
    """What was written to be looked at first, and what publishing it needs: all since its parent."""
    reached = {one.snapshot_id for history in histories.values() for one in history}
    published = {properties(one).get(_PUBLISHED) for one in metadata.snapshots}
    hold = Hold(
        "snapshot",
        "A snapshot with a wap.id is not published yet: this one, or one that was staged on it.",
        f"Publish it, or let it expire if it never will be, {_AGAIN}",
    )
    parents = set[int | None]()
    for staged in metadata.snapshots:
        wap_id = properties(staged).get(_STAGED)
        if wap_id is None or wap_id in published or staged.snapshot_id in reached or not is_wanted(staged):
            continue
        yield staged.snapshot_id, hold
        parents.add(staged.parent_snapshot_id)
    for history in histories.values():
        since = max((at for at, one in enumerate(history, 1) if one.snapshot_id in parents), default=0)
        yield from ((one.snapshot_id, hold) for one in history[:since])


def _number(metadata: TableMetadata, name: str) -> int | None:
    """A setting of the table; None if it is not set, or is no number that Iceberg's expiry takes."""
    text = metadata.properties.get(name)
    if text is None or not _WHOLE_NUMBER.fullmatch(text):
        return None
    number, limit = int(text), 1 << _BITS[name]
    return number if -limit <= number < limit else None


def _is_older(snapshot: Snapshot, moment: datetime) -> bool:
    return snapshot.timestamp_ms < moment.timestamp() * 1000


def _after(snapshot: Snapshot, milliseconds: int) -> datetime:
    """Or the last moment that there is, if that comes first."""
    try:
        age = timedelta(milliseconds=milliseconds)
        return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC) + age
    except (OverflowError, ValueError):  # such as a moment in microseconds
        return datetime.max.replace(tzinfo=UTC) if milliseconds > 0 else datetime.min.replace(tzinfo=UTC)
