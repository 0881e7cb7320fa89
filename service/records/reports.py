"""What workers report of their attempts, as far as rows keep it."""

from typing import Annotated, Self

from pydantic import AfterValidator, model_validator
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
    """The index of one key set."""

    equality_field_ids: FieldIds
    """Ids of the key fields."""
    columns: Columns
    """Names of the key columns."""
    generation: Amount = 0
    """Counts indexes of the key set: another key type starts a new one."""
    source: Name | None = None
    """How the key set was found: declared, identifier fields or equality deletes."""
    files_covered: Files
    """Data files that it covers."""
    files_total: Files
    """Data files of the table."""
    coverage: Ratio
    """The former by the latter, 0 to 1."""
    entries: SummedAmount
    """Entries, dead ones too."""
    bytes: SummedAmount
    """Bytes of its files."""
    sorted_runs: SortedRuns
    """Sorted runs; a lookup reads all of them."""
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
    """Of the key."""
    code: Name | None = None
    """For programs."""
    reason: Words
    """Why not."""
    remedy: Words | None = None
    """What to do about it."""


class DeviatingDelete(Message):
    """An equality delete file that Iceberg's Java reader applied otherwise than the spec says."""

    file_path: Place
    """Its path."""
    code: Name | None = None
    """For programs."""
    reason: Words
    """How it did."""


class UnconvertibleDelete(Message):
    """An equality delete file that stays in the table."""

    file_path: Place
    """Its path."""
    code: Name | None = None
    """For programs."""
    reason: Words
    """Why it stays."""
    remedy: Words | None = None
    """What to do about it."""


class UnreadableFile(Message):
    """A data file that could not be read."""

    file_path: Place
    """Its path."""
    reason: Words
    """Why not."""


class StageReport(Message):
    """What a part of an attempt took."""

    name: Name
    """Of the part, such as `plan` or `lookup`."""
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
    """What the executors' JVMs spent on garbage collection meanwhile."""
    spilled_bytes: Amount = 0
    """Written to the executors' disks for lack of memory."""
    shuffled_bytes: Amount = 0
    """Written to the executors' disks to be sorted."""


class KeySetResult(Message):
    """What a job did with one key set; each kind of job tells some of this."""

    equality_field_ids: FieldIds = ModelField(default_factory=list)
    """Ids of the key fields."""
    columns: Columns = ModelField(default_factory=list)
    """Names of the key columns."""
    generation: Amount = 0
    """Counts indexes of the key set."""
    source: Name = ""
    """Of a conversion: `index` or `scan`."""
    reason: Words = ""
    """Why that, in words."""
    keys: Amount = 0
    """Keys that were looked for."""
    key_ranges: Amount = 0
    """Ranges that they were sorted into."""
    matches: Amount = 0
    """Rows that were found."""
    row_groups_read: Amount = 0
    """Of index and data files."""
    row_groups_total: Amount = 0
    """Of the same files."""
    bytes_read: Amount = 0
    """Of index and data files."""
    data_files_from_index: Amount = 0
    """Data files whose rows the index told."""
    data_files_scanned: Amount = 0
    """Data files that were read."""
    files_indexed: Amount = 0
    """Data files that the index covers now, and did not before."""
    files_unreadable: Amount = 0
    """Data files that could not be read."""
    unreadable: list[UnreadableFile] = ModelField(default_factory=list, max_length=1000)
    """The first of them."""
    files_gone: Amount = 0
    """Data files that left the table before they were read."""
    rows_indexed: Amount = 0
    """Their rows."""
    bytes_written: Amount = 0
    """Into the index."""
    sorted_runs_written: Amount = 0
    """Into the index."""
    sorted_runs_before: Amount = 0
    """Of the index, before a compaction."""
    sorted_runs_after: Amount = 0
    """The same after it."""
    entries_before: Amount = 0
    """Of the index, before a compaction."""
    entries_after: Amount = 0
    """The same after it."""
    files_deleted: Amount = 0
    """Files of the index that no snapshot of it needs."""
    bytes_deleted: Amount = 0
    """Their bytes."""
    files_covered: Amount = 0
    """Data files that the index covers."""
    files_checked: Amount = 0
    """Those of them whose rows were compared."""
    files_no_longer_live: Amount = 0
    """Data files of the index that the table has no more."""
    rows_checked: Amount = 0
    """Rows that were compared."""
    entries_checked: Amount = 0
    """Entries that were compared."""
    entries_without_file: Amount = 0
    """Entries of no data file."""
    differences: Amount = 0
    """Between the index and the data files."""
    examples: list[Words] = ModelField(default_factory=list, max_length=1000)
    """The first of them in words."""
    rebuilt: bool = False
    """Whether the index was rebuilt."""


class JobResult(Message):
    """What a job did, or a dry run would do: each kind tells some of this, and other fields are ignored."""

    dry_run: bool = False
    """Whether it only says what it would do."""
    iceberg_snapshot_id: SnapshotId | None = None
    """Head of the branch that a job on the index saw."""
    iceberg_snapshot_id_before: SnapshotId | None = None
    """Head of the branch before a conversion."""
    iceberg_snapshot_id_after: SnapshotId | None = None
    """The snapshot that it committed last."""
    equality_delete_files_removed: Amount = 0
    """From the table."""
    equality_deletes_resolved: Amount = 0
    """Their rows."""
    rows_deleted: Amount = 0
    """By position now."""
    data_files_touched: Amount = 0
    """Data files that got new deletes."""
    delete_files_added: Amount = 0
    """Deletion vectors and position delete files."""
    delete_files_removed: Amount = 0
    """Those that the new ones include."""
    deletion_vectors_added: Amount = 0
    """Format version 3."""
    position_delete_files_added: Amount = 0
    """Format version 2."""
    bytes_read: Amount = 0
    """Of index, data files and equality deletes."""
    bytes_written: Amount = 0
    """Of new delete files."""
    commits: Amount = 0
    """Snapshots that a conversion made."""
    estimated_seconds: Seconds | None = None
    """Of a dry run: how long the conversion would take."""
    index_tables_deleted: Amount = 0
    """With an index that was dropped."""
    key_sets: list[KeySetResult] = ModelField(default_factory=list, max_length=1000)
    """What was done with each key set."""
    key_sets_not_indexed: list[KeySetLeftOut] = ModelField(default_factory=list, max_length=1000)
    """Keys that an index job left out."""
    unconvertible: list[UnconvertibleDelete] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """Equality delete files that stay."""
    deviations: list[DeviatingDelete] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """Equality delete files that other readers applied wrongly."""
    decisions: list[Words] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """What the job decided, in words."""
    stages: list[StageReport] = ModelField(default_factory=list, max_length=1000)
    """Where its time went."""
