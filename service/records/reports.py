"""What workers report of their attempts, as far as rows keep it."""

from typing import Annotated, Self

from pydantic import AfterValidator, AwareDatetime, model_validator
from pydantic import Field as ModelField

from service.http.messages import Message

Place = Annotated[str, ModelField(max_length=10_000)]
NAMED_AT_MOST = 200_000
"""Files, decisions or events in a report: more than fit into one (`MAX_REPORT_BYTES`), with their reasons."""
_WORDS_AT_MOST = 20_000
Words = Annotated[str, AfterValidator(lambda said: said[:_WORDS_AT_MOST])]
"""What people read. A longer text is cut: what a program wrote to an error may be of any length."""
Name = Annotated[str, ModelField(max_length=200)]
"""What programs go by."""
Amount = Annotated[int, ModelField(ge=0, le=2**63 - 1)]
SummedAmount = Annotated[int, ModelField(ge=0, le=2**53 - 1)]
"""The sum of a thousand fits into 64 bits."""
Files = Annotated[int, ModelField(ge=0, le=2**31 - 1)]
SortedRuns = Annotated[int, ModelField(ge=0, le=1_000_000)]
Seconds = Annotated[float, ModelField(ge=0, le=1e10)]
Ratio = Annotated[float, ModelField(ge=0, le=1)]
SnapshotId = Annotated[int, ModelField(ge=-(2**63), le=2**63 - 1)]
FieldIds = Annotated[list[Annotated[int, ModelField(ge=1, le=2**31 - 1)]], ModelField(max_length=1000)]
Columns = Annotated[list[Place], ModelField(max_length=1000)]


class KeySetReport(Message):
    """What the index of one key set is like."""

    equality_field_ids: FieldIds
    """The key has these field ids."""
    columns: Columns
    """The key columns have these names."""
    generation: Amount = 0
    """The indexes of the key set are counted: another key type begins a new one."""
    source: Name | None = None
    """How the key set was found: declared, identifier fields or equality deletes."""
    files_covered: Files
    """Data files that it covers."""
    files_total: Files
    """The table has so many data files."""
    coverage: Ratio
    """The index covers this share of the data files, 0 to 1."""
    entries: SummedAmount
    """The index has so many entries, dead ones too."""
    bytes: SummedAmount
    """The files of the index have so many bytes."""
    sorted_runs: SortedRuns
    """The index has so many sorted runs; a lookup reads all of them."""
    dead_ratio: Ratio
    """Share of entries that point to files which are gone, 0 to 1."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if self.files_covered > self.files_total:
            raise ValueError("files_covered should not be more than files_total")
        return self


class KeySetLeftOut(Message):
    """A key that can't be indexed."""

    columns: list[Name] = ModelField(max_length=1000)
    """The key has these columns."""
    code: Name | None = None
    """Programs know the reason by its code."""
    reason: Words
    """The reason says why it can't be indexed."""
    remedy: Words | None = None
    """What to do about it."""


class DeviatingDelete(Message):
    """An equality delete file that Iceberg's Java reader applied otherwise than the spec says."""

    file_path: Place
    """The equality delete file lies at this path."""
    code: Name | None = None
    """Programs know the rule by its code."""
    reason: Words
    """How it did."""


class UnconvertibleDelete(Message):
    """An equality delete file that stays in the table."""

    file_path: Place
    """The equality delete file lies at this path."""
    code: Name | None = None
    """Programs know the reason by its code."""
    reason: Words
    """Why it stays."""
    remedy: Words | None = None
    """What to do about it."""


class UnreadableFile(Message):
    """A data file that could not be read."""

    file_path: Place
    """The data file lies at this path."""
    reason: Words
    """The reason says why it can't be read."""


class StageReport(Message):
    """What a part of an attempt took."""

    name: Name
    """The part is named, such as `plan` or `lookup`."""
    seconds: Seconds
    """How long it took."""
    rows: Amount = 0
    """Planned rows that its tasks went through."""
    tasks_in_driver: Amount = 0
    """Tasks that ran in threads of the worker, without Spark."""
    tasks_on_spark: Amount = 0
    """Tasks that Spark ran to their end; the figures below are its own count."""
    failed_tasks: Amount = 0
    """Tasks that failed; Spark runs each of them again, up to four times."""
    task_seconds: Seconds = 0
    """How long its tasks ran, all together."""
    gc_seconds: Seconds = 0
    """The executors' JVMs spent so long on garbage collection meanwhile, which is counted by Spark."""
    spilled_bytes: Amount = 0
    """So many bytes were written to the executors' disks for lack of memory."""
    shuffled_bytes: Amount = 0
    """So many bytes were written to the executors' disks to be sorted."""


KeyValue = (
    bool | Annotated[int, ModelField(ge=-(2**63), le=2**63 - 1)] | Annotated[str, ModelField(max_length=1000)]
)


class RowPlace(Message):
    """Where a row is."""

    data_file: Place
    """The row's data file lies at this path."""
    position: Amount
    """Rows of a data file are counted from 0."""


class DuplicateKey(Message):
    """A key that has more than one live row."""

    key: dict[Place, KeyValue | None] = ModelField(max_length=1000)
    """The columns of the key have these values; a long text is cut."""
    live_rows: Amount
    """The key has so many live rows."""
    places: list[RowPlace] = ModelField(max_length=100)
    """Some of these rows are at these places."""


class KeySetResult(Message):
    """What a job did with one key set; each kind of job tells some of this."""

    equality_field_ids: FieldIds = ModelField(default_factory=list)
    """The key has these field ids."""
    columns: Columns = ModelField(default_factory=list)
    """The key columns have these names."""
    generation: Amount = 0
    """The indexes of the key set are counted."""
    source: Name = ""
    """A conversion used `index` or `scan`."""
    reason: Words = ""
    """The reason says in words why that source was chosen."""
    keys: Amount = 0
    """Keys that were looked for."""
    key_ranges: Amount = 0
    """Ranges that they were sorted into."""
    matches: Amount = 0
    """Rows that were found."""
    row_groups_read: Amount = 0
    """So many row groups of index and data files were read."""
    row_groups_total: Amount = 0
    """These files have so many row groups in all."""
    bytes_read: Amount = 0
    """So many bytes of index and data files were read."""
    data_files_from_index: Amount = 0
    """Data files whose rows the index told."""
    data_files_scanned: Amount = 0
    """Data files that were read."""
    files_indexed: Amount = 0
    """Data files that the index covers now, and did not before."""
    files_unreadable: Amount = 0
    """Data files that could not be read."""
    unreadable: list[UnreadableFile] = ModelField(default_factory=list, max_length=1000)
    """The first of the data files that could not be read."""
    files_gone: Amount = 0
    """Data files that left the table before they were read."""
    rows_indexed: Amount = 0
    """The data files that were indexed have so many rows."""
    bytes_written: Amount = 0
    """So many bytes were written into the index."""
    sorted_runs_written: Amount = 0
    """So many sorted runs were written into the index."""
    sorted_runs_before: Amount = 0
    """The index had so many sorted runs before a compaction."""
    sorted_runs_after: Amount = 0
    """The index had so many sorted runs after a compaction."""
    entries_before: Amount = 0
    """The index had so many entries before a compaction."""
    entries_after: Amount = 0
    """The index had so many entries after a compaction."""
    files_deleted: Amount = 0
    """So many files of the index were deleted, which no snapshot of it needs."""
    bytes_deleted: Amount = 0
    """The files of the index that were deleted had so many bytes."""
    files_covered: Amount = 0
    """Data files that the index covers."""
    files_checked: Amount = 0
    """The rows of so many data files were compared."""
    files_no_longer_live: Amount = 0
    """Data files of the index that the table has no more."""
    rows_checked: Amount = 0
    """Rows that were compared, or whose keys were."""
    entries_checked: Amount = 0
    """Entries that were compared."""
    entries_without_file: Amount = 0
    """So many entries are of no data file."""
    differences: Amount = 0
    """So many differences between the index and the data files were found."""
    examples: list[Words] = ModelField(default_factory=list, max_length=1000)
    """The first of them in words."""
    rebuilt: bool = False
    """Whether the index was rebuilt."""
    duplicate_keys: Amount = 0
    """So many keys have more than one live row."""
    duplicate_rows: Amount = 0
    """The keys with more than one live row have so many of them."""
    report: Place = ""
    """The Parquet files that list these keys have paths like this, with a `*` in the name; empty for none."""
    duplicates: list[DuplicateKey] = ModelField(default_factory=list, max_length=100)
    """The first of these keys are listed in their order."""


KeyNumbers = Annotated[list[Amount], ModelField(max_length=10_000)]
"""Keys by their numbers in the request, or in its files, from 0."""


class KeyCounts(Message):
    """How many keys are in which state."""

    gone: Amount = 0
    """So many keys are in no file that is left: each was looked through."""
    invisible: Amount = 0
    """So many keys have rows in the branch's own files, none of which it shows."""
    held: Amount = 0
    """So many keys are in a file that something holds, or a writer has written them again."""
    unknown: Amount = 0
    """So many keys may be in something that could not be looked through."""

    @property
    def total(self) -> int:
        return self.gone + self.invisible + self.held + self.unknown

    @property
    def all_gone(self) -> bool:
        return self.gone == self.total


class HeldKeys(Message):
    """What holds some keys, or keeps it from being known whether they are gone."""

    holder: Name
    """What holds them: a `tag`, `branch`, `retention`, `snapshot`, `writer`, `orphan_file`, `metadata`,
    `unreadable_file` or `index`."""
    name: Place | None = None
    """The holder has this name, such as that of a tag."""
    snapshot_id: SnapshotId | None = None
    """This snapshot holds the file with the keys; null if none does."""
    until: AwareDatetime | None = None
    """Retention lets go at this time."""
    reason: Words
    """Why it holds them."""
    remedy: Words
    """What to do about it."""
    keys: KeyNumbers
    """The keys that are held, by their numbers."""


class ErasureReport(Message):
    """What became of the keys of an erasure in one table: never more than was seen."""

    keys: Amount
    """So many keys were asked for."""
    rows_deleted: Amount = 0
    """So many rows that the branch had shown were deleted."""
    snapshot_id_deleted: SnapshotId | None = None
    """The snapshot that deleted them; null if there were none."""
    snapshot_id_rewritten: SnapshotId | None = None
    """The snapshot that put new data files in the place of those that had held rows of the keys."""
    data_files_rewritten: Amount = 0
    """So many data files were replaced."""
    bytes_rewritten: Amount = 0
    """The data files that were replaced had so many bytes."""
    bytes_written: Amount = 0
    """The data files in their place have so many bytes."""
    snapshots_expired: list[SnapshotId] = ModelField(default_factory=list, max_length=1000)
    """The first of the snapshots that were expired."""
    snapshots_expired_count: Amount = 0
    """So many snapshots were expired."""
    files_looked_through: Amount = 0
    """So many files that are left were looked through for the keys."""
    bytes_looked_through: Amount = 0
    """The files that were looked through have so many bytes."""
    looked_at: AwareDatetime
    """The look through all files began at this time: what came later was not looked at."""
    snapshot_id_looked_at: SnapshotId | None = None
    """The head that the branch had then; null for a table without a snapshot."""
    counts: KeyCounts
    """So many keys are in which state."""
    held: list[HeldKeys] = ModelField(default_factory=list, max_length=1000)
    """What holds keys, or could not be looked through."""
    invisible: KeyNumbers = ModelField(default_factory=list)
    """The keys that are invisible, by their numbers."""
    unknown: KeyNumbers = ModelField(default_factory=list)
    """The keys of which too little is known, by their numbers."""

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.counts.total != self.keys:
            raise ValueError("the counts of an erasure should have its number of keys as their sum")
        named = (self.invisible, self.unknown, *(one.keys for one in self.held))
        if any(number >= self.keys for numbers in named for number in numbers):
            raise ValueError("the numbers of an erasure's keys should be less than their number")
        return self


class StoppedAt(Message):
    """What stops publication: the first staged snapshot that can't be published, or the branch as a whole."""

    snapshot_id: SnapshotId | None = None
    """Nothing is published from this snapshot of the staging branch on; null if it is the branch."""
    code: Name | None = None
    """Programs know the reason by its code."""
    reason: Words
    """Why it can't be published."""
    remedy: Words | None = None
    """What to do about it."""


class HeldSnapshots(Message):
    """Snapshots that are old enough to expire, and what holds them."""

    holder: Name
    """What holds them: a `tag`, `branch`, `retention`, `snapshot` or `writer`."""
    name: Place | None = None
    """The holder has this name, such as that of a tag."""
    reason: Words
    """Why it holds them."""
    snapshots: Amount
    """So many snapshots are held by it."""
    until: AwareDatetime | None = None
    """The holder lets go at this time."""


class ExpiryReport(Message):
    """What an expiry of snapshots did, or would do."""

    snapshots_expired: Amount = 0
    """So many snapshots have expired."""
    snapshots_left: Amount = 0
    """The table has so many snapshots now."""
    snapshots_held: Amount = 0
    """So many of these are old enough, and something holds them."""
    data_files_deleted: Amount = 0
    """So many data files were deleted, which no snapshot needs any more."""
    delete_files_deleted: Amount = 0
    """So many delete files were deleted."""
    manifests_deleted: Amount = 0
    """So many manifests were deleted."""
    manifest_lists_deleted: Amount = 0
    """So many manifest lists were deleted."""
    statistics_files_deleted: Amount = 0
    """So many files with statistics were deleted."""
    files_of_lost_attempts_deleted: Amount = 0
    """So many files were deleted that an attempt which was lost had left."""
    files_kept_elsewhere: Amount = 0
    """So many files lie outside the table's location, or where indexes are: they stay."""
    held: list[HeldSnapshots] = ModelField(default_factory=list, max_length=1000)
    """What holds snapshots that are old enough."""


class ManifestsReport(Message):
    """What a rewriting of manifests did, or would do."""

    manifests_rewritten: Amount = 0
    """So many manifests of the branch's head were written anew."""
    manifests_added: Amount = 0
    """So many manifests are in their place."""
    manifests_left: Amount = 0
    """The branch's head has so many manifests now."""
    bytes_rewritten: Amount = 0
    """The manifests that were written anew had so many bytes."""


class JobResult(Message):
    """What a job did, or a dry run would do: each kind tells some of this, and other fields are ignored."""

    dry_run: bool = False
    """Whether it only says what it would do."""
    iceberg_snapshot_id: SnapshotId | None = None
    """Head of the branch that a job on the index saw."""
    iceberg_snapshot_id_before: SnapshotId | None = None
    """The head that the branch had before a conversion."""
    iceberg_snapshot_id_after: SnapshotId | None = None
    """The snapshot that it committed last."""
    equality_delete_files_removed: Amount = 0
    """So many equality delete files were removed from the table."""
    equality_deletes_resolved: Amount = 0
    """The equality delete files that were removed had so many rows."""
    rows_deleted: Amount = 0
    """So many rows are deleted by position now."""
    data_files_touched: Amount = 0
    """Data files that got new deletes."""
    delete_files_added: Amount = 0
    """So many deletion vectors and position delete files were added."""
    delete_files_removed: Amount = 0
    """So many older delete files were removed, which the new ones include."""
    deletion_vectors_added: Amount = 0
    """So many deletion vectors were added, in format version 3."""
    position_delete_files_added: Amount = 0
    """So many position delete files were added, in format version 2."""
    bytes_read: Amount = 0
    """So many bytes of index, data files and equality deletes were read."""
    bytes_written: Amount = 0
    """The new delete files, and data files, have so many bytes."""
    rows_added: Amount = 0
    """So many rows were added, by a job that writes rows by key or publishes."""
    rows_left_out: Amount = 0
    """So many rows of the request were not written, as it says of those that exist or are no newer."""
    left_out: list[Amount] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """The rows that were left out, by their numbers in the request, from 0."""
    data_files_added: Amount = 0
    """So many data files were added."""
    staging_branch: Place | None = None
    """The branch that was published."""
    staged_snapshots: Amount = 0
    """So many snapshots of it were published."""
    published_snapshot_id: SnapshotId | None = None
    """The last of these; null if there were none."""
    files_cleared: Amount = 0
    """So many published files were taken off the staging branch."""
    stopped_at: StoppedAt | None = None
    """Publication has stopped at this staged snapshot; null if nothing stopped it."""
    expiry: ExpiryReport | None = None
    """What an expiry of snapshots did."""
    manifests: ManifestsReport | None = None
    """What a rewriting of manifests did."""
    erasure: ErasureReport | None = None
    """What a job of an erasure has done and seen."""
    commits: Amount = 0
    """Snapshots that a conversion made."""
    estimated_seconds: Seconds | None = None
    """The conversion that a dry run foretells would take so long."""
    index_tables_deleted: Amount = 0
    """So many tables were deleted with an index that was dropped."""
    key_sets: list[KeySetResult] = ModelField(default_factory=list, max_length=1000)
    """What was done with each key set."""
    key_sets_not_indexed: list[KeySetLeftOut] = ModelField(default_factory=list, max_length=1000)
    """The keys that were left out by an index job."""
    unconvertible: list[UnconvertibleDelete] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """Equality delete files that stay."""
    deviations: list[DeviatingDelete] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """The equality delete files that were applied wrongly by other readers."""
    decisions: list[Words] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """What the job decided, in words."""
    stages: list[StageReport] = ModelField(default_factory=list, max_length=1000)
    """Where its time went."""
