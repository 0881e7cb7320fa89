"""What is told about the health of a table: now, and over time."""

from datetime import date, datetime
from typing import Any

from service.http.messages import Message
from service.reader_cost import Read, Reader
from service.records.health import HealthStatus
from service.records.jobs import JobKind
from service.records.reports import (
    KeySetReport,
    PartitionReport,
    SortedRunReport,
    StoppedAt,
    UnconvertibleDelete,
)


class KeySetView(KeySetReport):
    """This is the index of one key set, and what is pending of it."""

    pending_equality_delete_files: int = 0
    """This many live equality delete files have these fields, as of the last poll."""
    lag_seconds: float = 0
    """The oldest live equality delete file with these fields is this many seconds old; 0 when there is
    none."""


class ReadCost(Message):
    """This is what a read of a table costs, in seconds of processor time, as a model estimates it that was
    fitted to measurements."""

    reader: Reader
    """The read is one by this engine."""
    read: Read
    """The read is of this kind, `full` or `point`."""
    seconds: float
    """The read takes this many seconds now."""
    fresh_seconds: float
    """The read would take this many seconds if the table had just been rewritten: without deletes, in files
    as large as the table wants them. With as many data files as now where it is not known how many bytes or
    partitions there are."""
    overhead_seconds: float
    """This part of `seconds` goes for deletes and small files."""
    overhead_ratio: float
    """This is `seconds` by `fresh_seconds`: how many times as long the read takes; 1 is the least."""
    before_seconds: float | None
    """The read took this many seconds before there were last fewer data files, equality delete files or
    deletion vectors than at the look before; null if that was never so."""
    enrolled_overhead_seconds: float
    """This part went for deletes and small files at the first look since the table was enrolled."""


class ReaderCostView(Message):
    """This is what readers of a table have to do with as of the last look, and what that costs them. Seconds
    are those of the machine that the model was measured on, of a reader that is warm, with files on a local
    disk: on others they differ, and ratios say more."""

    data_files: int
    """A full read opens this many data files."""
    data_bytes: int
    """The data files have this many bytes, as the writer of the last snapshot says; 0 if it does not."""
    delete_files: int
    """A full read joins this many equality delete files, deletion vectors and position delete files with
    them."""
    delete_bytes: int
    """The delete files have this many bytes."""
    fresh_data_files: int
    """The table would have this many data files if it had just been rewritten."""
    reads: list[ReadCost]
    """Each kind of read by each reader is listed; the first one is that by which tables are compared."""
    avoided_seconds: float
    """A full read by Spark would take this many seconds more now had no job taken away what deletes and small
    files cost it since the table was enrolled."""
    saved_seconds: float
    """Full reads were spared this many seconds altogether since the table was enrolled, as many of them as
    its policy says (`convert.reads_per_day`): it is the sum over time of what each of them was spared."""
    maintenance_seconds: float
    """All attempts at jobs that maintain the table or its index took this many seconds since it was
    enrolled."""
    measured_on: date
    """The model is fitted to measurements of this day."""
    machine: str
    """The measurements were made on this machine, with these versions."""


class Watch(Message):
    """This is how the service learns that somebody has committed to a table."""

    is_told: bool
    """The last change of the table was told by a notification, and not found out by a poll."""
    polled_every_seconds: float
    """About this many seconds pass at most between two polls of the table, whoever tells of commits: more
    while its changes are told, and in a REST or hadoop catalog, where each table costs a request, more the
    longer it has been quiet. A SQL catalog is asked of all its tables as often as one of them needs it."""
    awaited_until: datetime | None
    """The table is looked at again some times until this time, since a commit was told that was not there
    yet; null if none is awaited."""


class HealthView(Message):
    """These are sums over the key sets; `coverage` is their minimum and null while there is no index."""

    table_id: str
    """The table is enrolled under this id."""
    status: HealthStatus
    """One word says how the table is doing."""
    status_reason: str
    """The table has its status for this reason, in words."""
    what_to_do: str | None
    """A person should do this about the status; null if nothing is to be done."""
    coverage: float | None
    """The index covers this share of the data files, 0 to 1; null while there is no index."""
    lag_seconds: float
    """The oldest live equality delete file is this many seconds old; 0 when there is none."""
    pending_equality_deletes: int
    """The live equality delete files have this many rows."""
    pending_equality_delete_files: int
    """The table has this many live equality delete files."""
    entries: int
    """The index has this many entries."""
    bytes: int
    """The files of the index have this many bytes."""
    sorted_runs: int
    """The index has this many sorted runs; a lookup reads all of them."""
    dead_ratio: float
    """This share of the index's entries is of files which are gone, 0 to 1."""
    staged_snapshots: int
    """This many snapshots of the staging branch are not published; 0 of a table without one."""
    staged_rows: int
    """The staged snapshots have this many rows and row-level deletes."""
    staged_age_seconds: float
    """The oldest staged snapshot is this many seconds old; 0 when there is none. Where it is not known what
    waits, it is the time since something is known to wait, or since publication has stopped."""
    stopped_at: StoppedAt | None
    """Publication has stopped here, and needs what the remedy says; null if nothing stops it."""
    kept_snapshots: int
    """The staging branch has this many snapshots, of which none may expire: Flink would be refused without
    them, in format version 3. A publish job with `renew` lets them go. 0 of other branches."""
    small_manifests: int
    """The head has this many manifests that are smaller than they should be."""
    small_data_files: int
    """This many data files are small and would be rewritten, since their partition has enough of them and
    none is too large beside the others (`size_ratio`), as the last job saw it; 0 unless the policy has them
    rewritten."""
    deleted_data_files: int
    """This many data files have more deleted rows than the policy lets them keep, as the last job saw it; 0
    unless the policy has them rewritten."""
    small_delete_files: int
    """This many position delete files are small, where a partition has enough of them, as the last job saw
    it; 0 unless the policy has them rewritten."""
    snapshots: int
    """The table has this many snapshots, whatever branch has them."""
    oldest_snapshot_at: datetime | None
    """The oldest snapshot that no branch and no tag names was committed at this time; null if there is
    none."""
    done_elsewhere: dict[JobKind, datetime]
    """Somebody else than the jobs of this service does these kinds of maintenance, and was seen last to have
    done so at these times: a snapshot was gone that no job had let expire, or one of operation `replace` was
    no job's."""
    reader_cost: ReaderCostView | None
    """Readers pay this for deletes and small files; null before the first look."""
    unconvertible: list[UnconvertibleDelete]
    """These equality delete files stay in the table, each with its reason."""
    key_sets: list[KeySetView]
    """The index of each key set is listed, as last reported by a worker, with what is pending of it."""
    data_files: int
    """The table has this many data files."""
    unindexed_data_files: int
    """The index does not cover this many data files yet."""
    iceberg_snapshot_id: int | None
    """The table's branch had this head when it was last polled; null while the table is empty."""
    measured_at: datetime | None
    """The table was last polled at this time, or up to six intervals later; null before the first time."""
    watch: Watch | None
    """The service notices commits to the table in this way; null before the first poll, and after one that
    failed."""
    reported_at: datetime | None
    """A worker last reported about the index at this time; null before the first time."""
    poll_error: dict[str, Any] | None
    """The last poll failed with this error; null if it did not."""
    decisions: dict[str, Any]
    """The scheduler has decided this about each kind of job last: what, why, since when."""


class KeySetSample(Message):
    """This is what the index of one key set was like at one time."""

    equality_field_ids: list[int]
    """The key columns have these field ids."""
    columns: list[str]
    """The key columns had these names."""
    coverage: float
    """The index covered this share of the data files, 0 to 1."""
    entries: int
    """The index had this many entries, dead ones too."""
    bytes: int
    """The files of the index had this many bytes."""
    sorted_runs: int
    """The index had this many sorted runs; a lookup reads all of them."""
    dead_ratio: float
    """This share of the index's entries was of files which were gone, 0 to 1."""
    pending_equality_delete_files: int
    """This many equality delete files by these fields were live."""


class HealthSampleView(Message):
    """This is how a table was doing at one time."""

    at: datetime
    """The sample was taken at this time."""
    status: HealthStatus
    """One word says how the table was doing; with `unknown`, nobody looked at it until the next sample."""
    iceberg_snapshot_id: int | None
    """The table's branch had this head; null while the table was empty."""
    pending_equality_delete_files: int
    """The table had this many live equality delete files."""
    pending_equality_deletes: int
    """The live equality delete files had this many rows."""
    lag_seconds: float
    """The oldest live equality delete file was this many seconds old; 0 when there was none."""
    coverage: float | None
    """The index covered this share of the data files, 0 to 1; null while there was no index."""
    entries: int
    """The index had this many entries."""
    bytes: int
    """The files of the index had this many bytes."""
    sorted_runs: int
    """The index had this many sorted runs; a lookup reads all of them."""
    dead_ratio: float
    """This share of the index's entries was of files which were gone, 0 to 1."""
    unconvertible: int
    """This many equality delete files could not be converted."""
    staged_rows: int
    """The staged snapshots had this many rows and row-level deletes."""
    staged_age_seconds: float
    """The oldest staged snapshot was this many seconds old; 0 when all was published."""
    key_sets: list[KeySetSample]
    """The index of each key set is listed as it was."""


AGE_LIMITS_SECONDS = (60.0, 600.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0)
"""By these, people tell ages of deletes apart: what is counted together lies on one side of each."""


class PendingAge(Message):
    """These equality delete files are pending, and were committed at about the same time."""

    oldest_at: datetime
    """The oldest of the files was committed at this time, and the others later by a minute, or by a third of
    its age at the last poll, at most."""
    age_seconds: float
    """The oldest of the files is this many seconds old now."""
    files: int
    """This many equality delete files are counted together."""
    deletes: int
    """The files that are counted together have this many rows."""


class IndexedKeySet(Message):
    """This is the index of one key set from within, and what is pending of it."""

    equality_field_ids: list[int]
    """The key columns have these field ids."""
    columns: list[str]
    """The key columns have these names; empty if the key is known from pending deletes alone."""
    coverage: float | None
    """The index covers this share of the data files, 0 to 1; null without an index."""
    sorted_runs: int
    """The index has this many sorted runs."""
    runs: list[SortedRunReport]
    """The index has these sorted runs, the largest first, a hundred at most."""
    partitions: list[PartitionReport]
    """These are partitions of the table, a hundred at most: those with the most data files that the index
    does not cover, then those with the most data files."""
    pending: list[PendingAge]
    """The pending equality delete files of the key are counted by their age, the oldest first."""


class LookupCost(Message):
    """This is what a job took to find the rows of the deletes with one key, as it was predicted and as it was
    measured. Seconds are those of all its tasks: more than have passed, where several ran at once."""

    job_id: str
    """The job of this id looked for the rows."""
    kind: JobKind
    """The job was of this kind."""
    dry_run: bool
    """The job was a dry run, which changes nothing, if this is true."""
    ended_at: datetime
    """The job ended at this time."""
    columns: list[str]
    """The key columns had these names."""
    source: str
    """The rows were looked for by `index`, `scan` or `index_and_scan`."""
    reason: str
    """The source was chosen for this reason, in words."""
    keys: int
    """The deletes had this many keys to look for."""
    predicted_index_seconds: float
    """The lookup in the index was expected to take this many seconds, for the data files that it covers."""
    predicted_scan_seconds: float
    """A scan of the data files that the index covers was expected to take this many seconds."""
    index_seconds: float
    """The lookup in the index took this many seconds; 0 if it was not asked."""
    scan_seconds: float
    """Scans took this many seconds, also of data files that the index does not cover; 0 if there were
    none."""


class IndexView(Message):
    """This is what the indexes of a table look like from within, what waits for them, and what it takes to
    ask them: as workers and polls have told. No index is opened to answer."""

    table_id: str
    """The table is enrolled under this id."""
    reported_at: datetime | None
    """A worker reported the indexes at this time; null before the first time."""
    measured_at: datetime | None
    """The table was last polled at this time, or up to six intervals later; null before the first time."""
    partitions: int | None
    """The table has this many partitions with data files, 0 if it is not partitioned; null if that is not
    known."""
    key_sets: list[IndexedKeySet]
    """These are the indexes of the table, and keys of pending deletes that have none."""
    lookups: list[LookupCost]
    """These are the last jobs that had index and scan to choose from, the latest first."""
