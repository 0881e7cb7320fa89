"""Measure a table with PyIceberg: live deletes of a branch's head, its data files, and those added since.

Live deletes come from the live delete manifests of the head snapshot: history expires, and scan
tasks are pruned by statistics. Manifests are immutable, so each is read once.
"""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from service.catalogs.manifests import DeleteFile, Manifest, read_delete_files, read_manifest_list
from service.db.database import is_id
from service.errors import InvalidError
from service.reader_cost import TARGET_FILE_BYTES, Shape
from service.records.jobs import JobKind
from stores.table_metadata import JOB_ID
from trust.bounds import check_time

_CACHED_MANIFESTS = 20_000
_LARGEST = 2**63 - 1
_REPLACED = {
    "deleted-data-files": JobKind.REWRITE_DATA_FILES,
    "removed-delete-files": JobKind.REWRITE_POSITION_DELETE_FILES,
    "manifests-replaced": JobKind.REWRITE_MANIFESTS,
}
"""What the summary of a snapshot of operation `replace` counts, and what did that; the first one holds."""
_MOST_ROWS = 10**14


@dataclass(frozen=True)
class Volume:
    """How much there is of data files or delete files."""

    files: int = 0
    rows: int = 0
    bytes: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(self.files + other.files, self.rows + other.rows, self.bytes + other.bytes)


@dataclass(frozen=True)
class EqualityDelete:
    """One live equality delete file."""

    file_path: str
    record_count: int
    size_bytes: int
    equality_field_ids: tuple[int, ...]
    """In order."""
    committed_at: datetime


@dataclass(frozen=True)
class Measurement:
    iceberg_snapshot_id: int | None
    equality_deletes: tuple[EqualityDelete, ...]
    data_files: int
    new_since: dict[int | None, Volume]
    """For each snapshot asked about: data files added after it; all of them for None or one that is gone.

    Their bytes are those of the snapshots' summaries, which count delete files, too.
    """
    has_identifier_fields: bool
    small_manifests: int = 0
    """Of the present spec, and of at most three quarters of the size that they should have."""
    position_deletes: Volume = Volume()
    """Position delete files, and deletion vectors, each of which counts as a file."""
    is_partitioned: bool = False
    target_file_bytes: int = TARGET_FILE_BYTES
    """How large the table wants its data files."""

    @property
    def shape(self) -> Shape:
        """What a reader of the head has to do with."""
        equality, everything, positions = self.equality_deletes, self.new_since[None], self.position_deletes
        delete_bytes = sum(delete.size_bytes for delete in equality) + positions.bytes
        # What manifests say is checked nowhere else, and the costs of all tables are added up.
        return Shape(
            _within(everything.files, _MOST_ROWS),
            _within(everything.rows, _MOST_ROWS),
            len(equality),
            _within(sum(delete.record_count for delete in equality), _MOST_ROWS),
            _within(positions.files, _MOST_ROWS),
            _within(positions.rows, _MOST_ROWS),
            _within(everything.bytes - delete_bytes, _LARGEST),
            _within(delete_bytes, _LARGEST),
            max((len(delete.equality_field_ids) for delete in equality), default=0),
        )


def _within(number: int, most: int) -> int:
    return min(max(number, 0), most)


@dataclass(frozen=True)
class _CachedDeletes:
    """The live delete files of a manifest."""

    equality: tuple[DeleteFile, ...]
    positions: Volume


@dataclass(frozen=True)
class Past:
    """The snapshots of a table, whatever branch has them: how many, and the oldest that no ref names."""

    snapshots: int = 0
    oldest_id: int | None = None
    oldest_at: datetime | None = None


def measure_past(metadata: TableMetadata) -> Past:
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    past = [one for one in metadata.snapshots if one.snapshot_id not in named]
    if not past:
        return Past(len(metadata.snapshots))
    oldest = min(past, key=lambda one: one.timestamp_ms)
    try:
        oldest_at = datetime.fromtimestamp(oldest.timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError):  # such as a time in microseconds, which is not old either
        oldest_at = None
    return Past(len(metadata.snapshots), oldest.snapshot_id, oldest_at)


@dataclass(frozen=True)
class Since:
    """What snapshots of a branch say of what was done since a look at it."""

    by_jobs: bool
    """Whether a job of ours has committed any of them."""
    by_others: Mapping[JobKind, Snapshot]
    """The latest one of each kind of maintenance that no job of ours has done."""
    is_whole: bool = True
    """Whether they go back to what was the head then; else they are all that is kept, also from before."""


def measure_since(
    metadata: TableMetadata,
    head_id: int | None,
    seen_id: int | None,
    known: Callable[[Collection[str]], Collection[str]],
) -> Since:
    """What came after a snapshot that was the head, back from the present one; all that is kept if that is
    gone.

    One pass from the end, where the newest are: a stream leaves tens of thousands.

    known: which of some ids are of jobs of this table; anybody may write what they like into a snapshot.
    """
    at = head_id
    found: list[tuple[Snapshot, str | None]] = []
    for one in reversed(metadata.snapshots):
        if at is None or at == seen_id:
            break
        if one.snapshot_id != at:
            continue
        at = one.parent_snapshot_id
        if one.summary is not None:
            found.append((one, one.summary.additional_properties.get(JOB_ID)))
    claimed = {job_id for _, job_id in found if job_id is not None and is_id(job_id)}
    ours: Collection[str] = known(claimed) if claimed else ()
    is_whole = at is not None and at == seen_id
    others: dict[JobKind, Snapshot] = {}
    for one, job_id in found:
        # Of what is older than the look, the jobs may be history that was removed.
        is_foreign = job_id is None or (is_whole and job_id not in ours)
        if is_foreign and one.summary is not None and one.summary.operation is Operation.REPLACE:
            kind = next((kind for name, kind in _REPLACED.items() if summarized(one, name)), None)
            if kind is not None:
                others.setdefault(kind, one)
    return Since(any(job_id in ours for _, job_id in found), others, is_whole)


class ManifestCache:
    """Delete files by manifest path; thread-safe, least recently used first out."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _CachedDeletes] = OrderedDict()
        self._lock = threading.Lock()

    def deletes(self, manifest: Manifest, io: FileIO) -> _CachedDeletes:
        """What is live in a delete manifest."""
        with self._lock:
            if manifest.path in self._known:
                self._known.move_to_end(manifest.path)
                return self._known[manifest.path]
        equality: list[DeleteFile] = []
        files = rows = 0
        # Several vectors may lie in one Puffin file.
        sizes: dict[str, int] = {}
        for file in read_delete_files(io, manifest):
            if file.content is DataFileContent.EQUALITY_DELETES:
                equality.append(file)
            elif file.content is DataFileContent.POSITION_DELETES:
                files, rows = files + 1, rows + file.record_count
                sizes[file.path] = file.size_bytes
        found = _CachedDeletes(tuple(equality), Volume(files, rows, sum(sizes.values())))
        with self._lock:
            self._known[manifest.path] = found
            while len(self._known) > _CACHED_MANIFESTS:
                self._known.popitem(last=False)
        return found


def measure(table: Table, branch: str, cache: ManifestCache, since: set[int | None]) -> Measurement:
    """Measure the head of a branch; `since` are snapshots to count new data files after.

    Raises InvalidError `branch-not-found`.
    """
    head = branch_head(table, branch)
    has_identifier_fields = bool(table.schema().identifier_field_ids)
    is_partitioned = not table.spec().is_unpartitioned()
    if head is None:
        return Measurement(
            None,
            (),
            0,
            dict.fromkeys({None, *since}, Volume()),
            has_identifier_fields,
            is_partitioned=is_partitioned,
        )
    times = commit_times(table)
    deletes = []
    data_files = rows = 0
    small = 0
    positions = Volume()
    target = _size_in(table.metadata.properties, "commit.manifest.target-size-bytes", 8 * 1024 * 1024)
    for manifest in read_manifest_list(table.io, head.manifest_list):
        check_time()
        is_present = manifest.partition_spec_id == table.metadata.default_spec_id
        small += is_present and 4 * manifest.size_bytes <= 3 * target
        if manifest.content is ManifestContent.DELETES:
            found = cache.deletes(manifest, table.io)
            positions += found.positions
            for _, path, deleted, size, field_ids, snapshot_id in found.equality:
                deletes.append(EqualityDelete(path, deleted, size, field_ids, times[snapshot_id]))
        else:
            data_files += manifest.files
            rows += manifest.rows
    everything = Volume(data_files, rows, summarized(head, "total-files-size"))
    # PyIceberg walks through all snapshots to find one: a stream leaves tens of thousands.
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    return Measurement(
        head.snapshot_id,
        tuple(deletes),
        data_files,
        {
            snapshot_id: _added_since(snapshots, head, snapshot_id, everything)
            for snapshot_id in {None, *since}
        },
        has_identifier_fields,
        small,
        positions,
        is_partitioned,
        _size_in(table.metadata.properties, "write.target-file-size-bytes", TARGET_FILE_BYTES)
        or TARGET_FILE_BYTES,
    )


def _size_in(properties: Mapping[str, str], name: str, default: int) -> int:
    """How large a table wants its files of a kind; 0 if it says nothing that can be meant."""
    return _number(properties.get(name, str(default)))


def branch_head(table: Table, branch: str) -> Snapshot | None:
    """The head snapshot; None while the table is empty. Raises InvalidError for a branch that is gone."""
    if branch == "main":
        return table.current_snapshot()
    head = table.snapshot_by_name(branch)
    if head is None:
        raise InvalidError(
            "branch-not-found",
            f"The table no longer has a branch {branch!r}.",
            "Remove the enrolment, or create the branch again.",
        )
    return head


def commit_times(table: Table) -> Mapping[int | None, datetime]:
    """When each snapshot was committed; for one that expired, the time of the oldest one left.

    What an expired snapshot added is at least as old as that.
    """
    times: dict[int | None, datetime] = {
        snapshot.snapshot_id: datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
        for snapshot in table.snapshots()
    }
    oldest = min(times.values(), default=datetime.fromtimestamp(0, UTC))
    return defaultdict(lambda: oldest, times)


def _added_since(
    snapshots: Mapping[int, Snapshot], head: Snapshot, snapshot_id: int | None, everything: Volume
) -> Volume:
    if snapshot_id is None:
        return everything
    files = rows = size = 0
    for at in _history(snapshots, head):
        if at.snapshot_id == snapshot_id:
            return Volume(files, rows, size)
        if added := summarized(at, "added-data-files"):
            files += added
            rows += summarized(at, "added-records")
            size += summarized(at, "added-files-size")
    return everything


def _history(snapshots: Mapping[int, Snapshot], head: Snapshot) -> Iterator[Snapshot]:
    """The head, what came before it, and so on, as far as it is kept; each once, whatever metadata says."""
    left = dict(snapshots)
    at = left.pop(head.snapshot_id, None)
    while at is not None:
        yield at
        parent = at.parent_snapshot_id
        at = left.pop(parent, None) if parent is not None else None


def summarized(snapshot: Snapshot, name: str) -> int:
    """A figure of a snapshot's summary; 0 if it has none."""
    summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return _number(str(summary.get(name, 0)))


def _number(text: str) -> int:
    """What somebody has written into a table, as the database bears it; 0 if it is no number."""
    return min(int(text), _LARGEST) if text.isascii() and text.isdigit() and len(text) < 20 else 0
