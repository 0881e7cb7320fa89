"""What workers report of their attempts, as far as rows keep it."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, AwareDatetime, model_validator
from pydantic import Field as ModelField

from service.http.messages import Message

Place = Annotated[str, ModelField(max_length=10_000)]
NAMED_AT_MOST = 200_000
"""Files, decisions or events in a report: more than fit into one (`MAX_REPORT_BYTES`), with their reasons."""
RUNS_AT_MOST = PARTITIONS_AT_MOST = LAYOUTS_AT_MOST = 100
"""Of an index, and of a table: more than anybody looks at."""
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
    """This is what the index of one key set is like."""

    equality_field_ids: FieldIds
    """The key columns have these field ids."""
    columns: Columns
    """The key columns have these names."""
    generation: Amount = 0
    """The indexes of the key set are counted: another key type begins a new one."""
    source: Name | None = None
    """The key set was found in this way: declared, identifier fields or equality deletes."""
    files_covered: Files
    """The index covers this many data files."""
    files_total: Files
    """The table has this many data files."""
    coverage: Ratio
    """The index covers this share of the data files, 0 to 1."""
    entries: SummedAmount
    """The index has this many entries, dead ones too."""
    bytes: SummedAmount
    """The files of the index have this many bytes."""
    sorted_runs: SortedRuns
    """The index has this many sorted runs; a lookup reads all of them."""
    dead_ratio: Ratio
    """This share of the index's entries is of files which are gone, 0 to 1."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if self.files_covered > self.files_total:
            raise ValueError("files_covered should not be more than files_total")
        return self


class SortedRunReport(Message):
    """This is a sorted run of an index."""

    level: Annotated[int, ModelField(ge=0, le=1_000)]
    """The run is at this level; at level 0, each file is a run of its own."""
    files: Files
    """The run has this many files."""
    entries: SummedAmount
    """The run has this many entries, dead ones too."""
    bytes: SummedAmount
    """The files of the run have this many bytes."""
    dead_ratio: Ratio
    """This share of the run's entries is of files which are gone, 0 to 1; where row addresses of runs
    interleave, that of all of these runs together."""


class PartitionReport(Message):
    """This is how far an index covers a partition of the table."""

    partition: Name
    """The values of the partition are written as in a path, such as `region=eu/day=2026-03-01`; empty for a
    table without partitions."""
    data_files: Files
    """The partition has this many data files."""
    covered_data_files: Files
    """The index covers this many of them."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if self.covered_data_files > self.data_files:
            raise ValueError("covered_data_files should not be more than data_files")
        return self


class IndexLayout(Message):
    """This tells what is inside the index of one key set."""

    equality_field_ids: FieldIds
    """The key columns have these field ids."""
    runs: list[SortedRunReport] = ModelField(max_length=RUNS_AT_MOST)
    """These are the largest sorted runs, the largest first."""
    partitions: list[PartitionReport] = ModelField(max_length=PARTITIONS_AT_MOST)
    """These are the partitions with the most data files that the index does not cover, then those with the
    most data files."""


class KeySetLeftOut(Message):
    """This is a key that can't be indexed."""

    columns: list[Name] = ModelField(max_length=1000)
    """The key has these columns."""
    code: Name | None = None
    """Programs know the reason by its code."""
    reason: Words
    """The reason says why it can't be indexed."""
    remedy: Words | None = None
    """The remedy says what to do so that the key can be indexed; null if nothing can be done."""


class DeviatingDelete(Message):
    """This is an equality delete file that Iceberg's Java reader applied otherwise than the spec says."""

    file_path: Place
    """The equality delete file lies at this path."""
    code: Name | None = None
    """Programs know the rule by its code."""
    reason: Words
    """The reader deviates as this says, in words."""


class UnconvertibleDelete(Message):
    """This is an equality delete file that stays in the table."""

    file_path: Place
    """The equality delete file lies at this path."""
    code: Name | None = None
    """Programs know the reason by its code."""
    reason: Words
    """The file stays in the table for this reason, in words."""
    remedy: Words | None = None
    """The remedy says what to do so that the file can be converted; null if nothing is known."""


class UnreadableFile(Message):
    """This is a data file that could not be read."""

    file_path: Place
    """The data file lies at this path."""
    reason: Words
    """The reason says why it can't be read."""


class StageReport(Message):
    """This is what a part of an attempt took."""

    name: Name
    """The part is named, such as `plan` or `lookup`."""
    seconds: Seconds
    """The part took this many seconds."""
    rows: Amount = 0
    """The tasks went through this many of the planned rows."""
    tasks_in_driver: Amount = 0
    """This many tasks ran in threads of the worker, without Spark."""
    tasks_on_spark: Amount = 0
    """Spark ran this many tasks to their end; the figures below are its own count."""
    failed_tasks: Amount = 0
    """This many tasks failed; Spark runs each of them again, up to four times."""
    task_seconds: Seconds = 0
    """The tasks ran for this many seconds, all together."""
    gc_seconds: Seconds = 0
    """The executors' JVMs spent this many seconds on garbage collection meanwhile, as Spark counts it."""
    spilled_bytes: Amount = 0
    """This many bytes were written to the executors' disks for lack of memory."""
    shuffled_bytes: Amount = 0
    """This many bytes were written to the executors' disks to be sorted."""


KeyValue = (
    bool | Annotated[int, ModelField(ge=-(2**63), le=2**63 - 1)] | Annotated[str, ModelField(max_length=1000)]
)


class RowPlace(Message):
    """This is the place of a row."""

    data_file: Place
    """The row's data file lies at this path."""
    position: Amount
    """Rows of a data file are counted from 0."""


class DuplicateKey(Message):
    """This is a key that has more than one live row."""

    key: dict[Place, KeyValue | None] = ModelField(max_length=1000)
    """The columns of the key have these values; a long text is cut."""
    live_rows: Amount
    """The key has this many live rows."""
    places: list[RowPlace] = ModelField(max_length=100)
    """Some of these rows are at these places."""


class KeySetResult(Message):
    """This is what a job did with one key set; each kind of job tells some of this."""

    equality_field_ids: FieldIds = ModelField(default_factory=list)
    """The key columns have these field ids."""
    columns: Columns = ModelField(default_factory=list)
    """The key columns have these names."""
    generation: Amount = 0
    """The index was one of this generation: another key type begins a new one."""
    source: Name = ""
    """The rows of a conversion's keys were looked for by `index`, `scan` or `index_and_scan`; empty for other
    jobs."""
    reason: Words = ""
    """The source was chosen for this reason, in words."""
    keys: Amount = 0
    """The equality deletes had this many keys to look for."""
    key_ranges: Amount = 0
    """The keys were sorted into this many ranges."""
    matches: Amount = 0
    """The keys were found in this many rows."""
    row_groups_read: Amount = 0
    """This many row groups of index and data files were read."""
    row_groups_total: Amount = 0
    """The files that were read have this many row groups in all."""
    bytes_read: Amount = 0
    """This many bytes of index and data files were read."""
    data_files_from_index: Amount = 0
    """The rows of this many data files were known from the index."""
    data_files_scanned: Amount = 0
    """This many data files were scanned for the keys."""
    predicted_index_seconds: Seconds = 0
    """A lookup in the index, for data files that it covers, was predicted to take this many seconds, in one
    thread; 0 where there was nothing to choose from."""
    predicted_scan_seconds: Seconds = 0
    """A scan of the data files that the index covers was predicted to take this many seconds, in one thread;
    0 where there was nothing to choose from."""
    index_seconds: Seconds = 0
    """The lookup took this many seconds of all its tasks together; with the sorting of keys, if they were too
    many to be held at once."""
    scan_seconds: Seconds = 0
    """The scan took this many seconds of all its tasks together."""
    files_indexed: Amount = 0
    """Data files that the index covers now, and did not before."""
    files_unreadable: Amount = 0
    """This many data files could not be read."""
    unreadable: list[UnreadableFile] = ModelField(default_factory=list, max_length=1000)
    """These are the first of the data files that could not be read."""
    files_gone: Amount = 0
    """This many data files left the table before they were read."""
    rows_indexed: Amount = 0
    """The data files that were indexed have this many rows."""
    bytes_written: Amount = 0
    """This many bytes were written into the index."""
    sorted_runs_written: Amount = 0
    """This many sorted runs were written into the index."""
    sorted_runs_before: Amount = 0
    """The index had this many sorted runs before a compaction."""
    sorted_runs_after: Amount = 0
    """The index had this many sorted runs after a compaction."""
    entries_before: Amount = 0
    """The index had this many entries before a compaction."""
    entries_after: Amount = 0
    """The index had this many entries after a compaction."""
    files_deleted: Amount = 0
    """This many files of the index were deleted, since no snapshot of it needs them."""
    bytes_deleted: Amount = 0
    """The files of the index that were deleted had this many bytes."""
    files_covered: Amount = 0
    """The index covers this many data files."""
    files_checked: Amount = 0
    """The rows of this many data files were compared."""
    files_no_longer_live: Amount = 0
    """This many data files of the index are no longer in the table."""
    rows_checked: Amount = 0
    """This many rows of data files were compared with the index, or their keys were."""
    entries_checked: Amount = 0
    """This many entries of the index were compared with the data files."""
    entries_without_file: Amount = 0
    """This many entries of the index belong to no data file."""
    differences: Amount = 0
    """This many differences between the index and the data files were found."""
    examples: list[Words] = ModelField(default_factory=list, max_length=1000)
    """The first of the differences are listed in words."""
    rebuilt: bool = False
    """The index was rebuilt if this is true."""
    duplicate_keys: Amount = 0
    """This many keys have more than one live row."""
    duplicate_rows: Amount = 0
    """The keys with more than one live row have this many of these rows in all."""
    report: Place = ""
    """The Parquet files that list the keys with more than one live row have paths like this, with a `*` in
    the name; empty for none."""
    duplicates: list[DuplicateKey] = ModelField(default_factory=list, max_length=100)
    """The first of the keys with more than one live row are listed in their order."""


KeyNumbers = Annotated[list[Amount], ModelField(max_length=10_000)]
"""Keys by their numbers in the request, or in its files, from 0."""


class KeyCounts(Message):
    """This counts the keys in each state."""

    gone: Amount = 0
    """This many keys are in no file that is left: each was looked through."""
    invisible: Amount = 0
    """This many keys have rows in the branch's own files, none of which it shows."""
    held: Amount = 0
    """This many keys are in a file that something holds, or were written again by a writer."""
    unknown: Amount = 0
    """This many keys may be in something that could not be looked through."""

    @property
    def total(self) -> int:
        return self.gone + self.invisible + self.held + self.unknown

    @property
    def all_gone(self) -> bool:
        return self.gone == self.total


class HeldKeys(Message):
    """This is what holds some keys, or keeps it from being known whether they are gone."""

    holder: Name
    """The keys are held by this: a `tag`, `branch`, `retention`, `snapshot`, `writer`, `orphan_file`,
    `metadata`, `unreadable_file` or `index`."""
    name: Place | None = None
    """The holder has this name: that of a tag, say; null if it has none."""
    snapshot_id: SnapshotId | None = None
    """The snapshot of this id holds the file with the keys; null if none does."""
    until: AwareDatetime | None = None
    """The holder lets the keys go at this time, as retention does; null if no time is known."""
    reason: Words
    """The holder holds the keys for this reason, in words."""
    remedy: Words
    """The remedy says what to do so that the keys can go."""
    keys: KeyNumbers
    """The keys that are held are given by their numbers in the request, from 0."""


class ErasureReport(Message):
    """This is what became of the keys of an erasure in one table: never more than was seen."""

    keys: Amount
    """The request had this many keys."""
    rows_deleted: Amount = 0
    """This many rows that the branch had shown were deleted."""
    snapshot_id_deleted: SnapshotId | None = None
    """The snapshot of this id deleted these rows; null if there were none."""
    snapshot_id_rewritten: SnapshotId | None = None
    """This snapshot put new data files in the place of those that had held rows of the keys."""
    data_files_rewritten: Amount = 0
    """This many data files were replaced by new ones without these rows."""
    bytes_rewritten: Amount = 0
    """The data files that were replaced had this many bytes."""
    bytes_written: Amount = 0
    """The data files in their place have this many bytes."""
    snapshots_expired: list[SnapshotId] = ModelField(default_factory=list, max_length=1000)
    """These are the first of the snapshots that were expired."""
    snapshots_expired_count: Amount = 0
    """This many snapshots were expired."""
    files_looked_through: Amount = 0
    """This many files that are left were looked through for the keys."""
    bytes_looked_through: Amount = 0
    """The files that were looked through have this many bytes."""
    looked_at: AwareDatetime
    """The look through all files began at this time: what came later was not looked at."""
    snapshot_id_looked_at: SnapshotId | None = None
    """The branch had this head when the look through all files began; null for a table without a snapshot."""
    counts: KeyCounts
    """This many keys are in each state."""
    held: list[HeldKeys] = ModelField(default_factory=list, max_length=1000)
    """These holders hold keys, or could not be looked through."""
    invisible: KeyNumbers = ModelField(default_factory=list)
    """The keys that are invisible are given by their numbers in the request, from 0."""
    unknown: KeyNumbers = ModelField(default_factory=list)
    """The keys of which too little is known are given by their numbers in the request, from 0."""

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.counts.total != self.keys:
            raise ValueError("the counts of an erasure should have its number of keys as their sum")
        named = (self.invisible, self.unknown, *(one.keys for one in self.held))
        if any(number >= self.keys for numbers in named for number in numbers):
            raise ValueError("the numbers of an erasure's keys should be less than their number")
        return self


class StoppedAt(Message):
    """This is what stops publication: the first staged snapshot that can't be published, or the branch as a
    whole."""

    snapshot_id: SnapshotId | None = None
    """Nothing is published from this snapshot of the staging branch on; null if it is the branch."""
    code: Name | None = None
    """Programs know the reason by its code."""
    reason: Words
    """The snapshot, or the branch, can't be published for this reason, in words."""
    remedy: Words | None = None
    """The remedy says what to do so that publication goes on; null if nothing is known."""


class HeldSnapshots(Message):
    """These snapshots are old enough to expire, and something holds them."""

    holder: Name
    """The snapshots are held by this: a `tag`, `branch`, `retention`, `snapshot` or `writer`."""
    name: Place | None = None
    """The holder has this name: that of a tag, say; null if it has none."""
    reason: Words
    """The holder holds the snapshots for this reason, in words."""
    snapshots: Amount
    """The holder holds this many snapshots."""
    until: AwareDatetime | None = None
    """The holder lets the snapshots go at this time; null if no time is known."""


class ExpiryReport(Message):
    """This is what an expiry of snapshots did, or would do."""

    snapshots_expired: Amount = 0
    """This many snapshots have expired."""
    snapshots_left: Amount = 0
    """The table has this many snapshots now."""
    snapshots_held: Amount = 0
    """This many snapshots are old enough, and something holds them."""
    data_files_deleted: Amount = 0
    """This many data files were deleted, since no snapshot needs them any more."""
    delete_files_deleted: Amount = 0
    """This many delete files were deleted, since no snapshot needs them any more."""
    manifests_deleted: Amount = 0
    """This many manifests were deleted, since no snapshot needs them any more."""
    manifest_lists_deleted: Amount = 0
    """This many manifest lists were deleted, since no snapshot needs them any more."""
    statistics_files_deleted: Amount = 0
    """This many statistics files were deleted, since no snapshot needs them any more."""
    files_of_lost_attempts_deleted: Amount = 0
    """This many files were deleted that an attempt which was lost had left."""
    files_kept_elsewhere: Amount = 0
    """This many files lie outside the table's location, or where indexes are: they stay."""
    held: list[HeldSnapshots] = ModelField(default_factory=list, max_length=1000)
    """These holders hold snapshots that are old enough."""


class DataFilesReport(Message):
    """This is what a rewriting of data files did, or would do."""

    data_files_rewritten: Amount = 0
    """This many data files were written anew."""
    data_files_added: Amount = 0
    """This many new data files are in the place of the rewritten ones; of a dry run as their sizes let
    expect."""
    bytes_rewritten: Amount = 0
    """The data files that were written anew had this many bytes."""
    bytes_added: Amount = 0
    """The new data files have this many bytes; a dry run does not know."""
    delete_files_removed: Amount = 0
    """This many position delete files and deletion vectors of the rewritten data files were removed."""
    data_files_left_out: Amount = 0
    """This many data files stay as they are: equality deletes that can't be converted apply to them, or the
    table names them twice."""
    files: list[Place] = ModelField(default_factory=list, max_length=1000)
    """A dry run names the data files that would be rewritten, the first thousand."""


class DeleteFilesReport(Message):
    """This is what a rewriting of position delete files did, or would do."""

    delete_files_rewritten: Amount = 0
    """This many position delete files were written anew."""
    delete_files_added: Amount = 0
    """This many new position delete files are in the place of the rewritten ones."""
    bytes_rewritten: Amount = 0
    """The delete files that were written anew had this many bytes."""
    bytes_added: Amount = 0
    """The new delete files have this many bytes; a dry run does not know."""
    files: list[Place] = ModelField(default_factory=list, max_length=1000)
    """A dry run names the delete files that would be rewritten, the first thousand."""


class ManifestsReport(Message):
    """This is what a rewriting of manifests did, or would do."""

    manifests_rewritten: Amount = 0
    """This many manifests of the branch's head were written anew."""
    manifests_added: Amount = 0
    """This many new manifests are in the place of the rewritten ones."""
    manifests_left: Amount = 0
    """The branch's head has this many manifests now."""
    bytes_rewritten: Amount = 0
    """The manifests that were written anew had this many bytes."""


class OrphanFilesReport(Message):
    """This is what a removal of orphan files did, or what its dry run has found."""

    older_than: AwareDatetime | None = None
    """Files that were written later were left alone."""
    files_in_location: Amount = 0
    """This many files lie in the table's location, of whatever kind."""
    orphan_files: Amount = 0
    """This many files are orphans, of the hundred thousand largest that may be such; of a removal, of those
    that its dry run has listed."""
    orphan_bytes: Amount = 0
    """The orphans have this many bytes."""
    files: list[Place] = ModelField(default_factory=list, max_length=1000)
    """A dry run lists these, the thousand largest: just these may a removal delete that names the dry run."""
    bytes_listed: Amount = 0
    """The files that are listed have this many bytes."""
    files_deleted: Amount = 0
    """This many orphan files were deleted."""
    bytes_deleted: Amount = 0
    """The orphan files that were deleted had this many bytes."""
    files_failed: Amount = 0
    """This many orphan files could not be deleted, such as for lack of a permission."""
    files_kept: Amount = 0
    """This many files that the dry run has listed were left: they are needed by now, were written again, or
    are gone."""


class ReaderReport(Message):
    """This is one of the engines in the policy, and its view of the table."""

    reader: Place
    """The policy names the engine like this, with a version or without."""
    before: Literal["reads", "refuses", "unknown"]
    """The engine `reads` or `refuses` the table with its equality deletes, or that is `unknown`."""
    after: Literal["reads", "refuses", "unknown"]
    """The engine `reads` or `refuses` the table once it is converted, or that is `unknown`."""
    source: Place = ""
    """The page or file that says so is this; empty if nothing is known."""


class JobResult(Message):
    """This is what a job did, or a dry run would do: each kind tells some of this, and other fields are
    ignored."""

    dry_run: bool = False
    """The job changed nothing, and tells what it would do, if this is true."""
    iceberg_snapshot_id: SnapshotId | None = None
    """The branch had this head when a job on the index looked at it."""
    iceberg_snapshot_id_before: SnapshotId | None = None
    """The branch had this head before a conversion."""
    iceberg_snapshot_id_after: SnapshotId | None = None
    """The last snapshot that the job committed has this id; null if it committed none."""
    equality_delete_files_removed: Amount = 0
    """A conversion removed this many equality delete files from the table, a rewriting of data files did
    before it, or an erasure since they were in its way."""
    equality_deletes_resolved: Amount = 0
    """The equality delete files that were removed had this many rows."""
    rows_deleted: Amount = 0
    """This many rows were deleted by position."""
    data_files_touched: Amount = 0
    """This many data files got new deletes."""
    delete_files_added: Amount = 0
    """This many deletion vectors and position delete files were added to the table."""
    delete_files_removed: Amount = 0
    """This many older delete files were removed, because the new ones include them."""
    deletion_vectors_added: Amount = 0
    """This many deletion vectors were added, in format version 3."""
    position_delete_files_added: Amount = 0
    """This many position delete files were added, in format version 2."""
    bytes_read: Amount = 0
    """This many bytes of index, data files and equality deletes were read."""
    bytes_written: Amount = 0
    """The new delete files, and data files, have this many bytes."""
    rows_added: Amount = 0
    """This many rows were added, by a job that writes rows by key or publishes."""
    rows_left_out: Amount = 0
    """This many rows of the request were not written, because they exist or are no newer."""
    left_out: list[Amount] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """These rows were left out, by their numbers in the request, from 0."""
    data_files_added: Amount = 0
    """This many data files were added to the table."""
    staging_branch: Place | None = None
    """The publication was one of this staging branch; null for other jobs."""
    staged_snapshots: Amount = 0
    """This many snapshots of the staging branch were published."""
    published_snapshot_id: SnapshotId | None = None
    """The last staged snapshot that was published has this id; null if there were none."""
    skipped_snapshot_id: SnapshotId | None = None
    """Nothing of the staged snapshot of this id was published, as the request said; null if it named none."""
    files_cleared: Amount = 0
    """This many published files were taken off the staging branch."""
    renewed: bool = False
    """The staging branch begins anew after its first snapshot."""
    stopped_at: StoppedAt | None = None
    """Publication has stopped at this staged snapshot; null if nothing stopped it."""
    expiry: ExpiryReport | None = None
    """An expiry of snapshots did this; null for other jobs."""
    data_files: DataFilesReport | None = None
    """A rewriting of data files did this; null for other jobs."""
    delete_files: DeleteFilesReport | None = None
    """A rewriting of position delete files did this; null for other jobs."""
    manifests: ManifestsReport | None = None
    """A rewriting of manifests did this; null for other jobs."""
    orphans: OrphanFilesReport | None = None
    """A removal of orphan files did this; null for other jobs."""
    erasure: ErasureReport | None = None
    """A job of an erasure has done and seen this; null for other jobs."""
    commits: Amount = 0
    """A conversion made this many snapshots."""
    estimated_seconds: Seconds | None = None
    """The conversion would take this many seconds, as its dry run foretells; null for other jobs."""
    index_tables_deleted: Amount = 0
    """This many tables were deleted with an index that was dropped."""
    key_sets: list[KeySetResult] = ModelField(default_factory=list, max_length=1000)
    """The job did this with each key set."""
    key_sets_not_indexed: list[KeySetLeftOut] = ModelField(default_factory=list, max_length=1000)
    """An index job left out these key sets."""
    unconvertible: list[UnconvertibleDelete] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """These equality delete files stay in the table, each with its reason."""
    deviations: list[DeviatingDelete] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """These equality delete files were applied wrongly by other readers."""
    readers: list[ReaderReport] = ModelField(default_factory=list, max_length=100)
    """These are the readers in the policy, and their views of the table."""
    decisions: list[Words] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """The job decided this, in sentences."""
    stages: list[StageReport] = ModelField(default_factory=list, max_length=1000)
    """The time of the job went into these stages."""


class EstimateReport(Message):
    """How long the job that a dry run is of would take, by what earlier ones took on the table."""

    seconds: Seconds
    """The job would take this many seconds."""
    jobs: Amount
    """This many earlier jobs of its kind tell so."""
    off_by: float | None = None
    """Estimates of these, from those before each, were off by this factor in the middle; null for one job."""


class StoredResult(JobResult):
    """What a job did, as its worker has reported it, with what the service knows beside it."""

    estimate: EstimateReport | None = None
    """A dry run has it, if earlier jobs tell."""
