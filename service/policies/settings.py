"""What a policy may say: settings in sections, each of which may be left out."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic import Field as ModelField
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from pyiceberg.table.refs import MAIN_BRANCH

from icestream.readers import reader
from service.http.messages import ClosedMessage
from service.policies.schedules import Window, check_cron, check_time_zone

Count = Annotated[int, ModelField(ge=1, le=10**18)]
Amount = Annotated[int, ModelField(ge=0, le=10**18)]
Seconds = Annotated[float, ModelField(ge=0, le=31_536_000)]

ConvertWhen = Literal["reached", "worthwhile"]
DeletionVectorFiles = Literal["one_per_data_file", "one_per_task"]
RewriteStrategy = Literal["binpack", "sort"]
"""As Iceberg calls them."""
_LEAST_TARGET_BYTES = 1024 * 1024


def _check_target(size_bytes: int) -> int:
    if 0 < size_bytes < _LEAST_TARGET_BYTES:
        raise ValueError(f"should be 0, or at least {_LEAST_TARGET_BYTES:,}")
    return size_bytes


TargetFileSize = Annotated[Amount, AfterValidator(_check_target)]
"""In bytes; 0 for what the table says."""
SizeRatio = Annotated[float, ModelField(gt=0, le=10**9, allow_inf_nan=False)]
"""Of a small file that a rewriting takes, to all others together."""


def _check_reader(name: str) -> str:
    reader(name)
    return name


ReaderName = Annotated[str, ModelField(max_length=100), AfterValidator(_check_reader)]
"""An engine, with its version or without."""

Cron = Annotated[str, AfterValidator(check_cron)]
"""Five fields, in the policy's time zone; empty for none."""


NO_BRANCH = "none"
"""What forms and pages have in place of the empty name, so no staging branch is called like this."""


def _check_staging_branch(source: str) -> str:
    if source == MAIN_BRANCH:
        raise ValueError(
            "readers read main, and a staging branch is emptied: name the one that the writer commits to"
        )
    if source == NO_BRANCH:
        raise ValueError("this is how pages say that there is none: leave the name empty for that")
    return source


StagingBranch = Annotated[str, AfterValidator(_check_staging_branch)]
"""The writer commits to it, and nobody reads it; empty for none."""


class _JobSection(ClosedMessage):
    enabled: bool | None = None
    """While true, such jobs start by themselves, as the triggers say."""


class IndexPolicy(_JobSection):
    """This says when new data files are indexed: whichever of the triggers comes first."""

    data_files: Count | None = None
    """Index as soon as this many data files are new."""
    rows: Count | None = None
    """Index as soon as the new data files have this many rows."""
    bytes: Count | None = None
    """Index as soon as the new data files have this many bytes, with the delete files that were committed
    beside them."""
    age_seconds: Seconds | None = None
    """Index when there is anything new and the last index job is this many seconds ago."""
    cron: Cron | None = None
    """Index what is new at these moments, too."""


class ConvertPolicy(_JobSection):
    """This says when equality deletes are converted: whichever of the triggers comes first."""

    delete_files: Count | None = None
    """Convert as soon as this many equality delete files are live."""
    deletes: Count | None = None
    """Convert as soon as the live equality delete files have this many rows."""
    bytes: Count | None = None
    """Convert as soon as the live equality delete files have this many bytes."""
    age_seconds: Seconds | None = None
    """Convert as soon as the oldest live equality delete file is this many seconds old."""
    when: ConvertWhen | None = None
    """Jobs start as soon as any of these is `reached`; or, but for the age, when it is `worthwhile`: readers
    have paid as much as a conversion costs, or a read is about to cost more than `max_read_ratio` allows. For
    the same reasons, data files are rewritten then, where the policy lets them be."""
    reads_per_day: Annotated[float, ModelField(ge=0, le=1e9)] | None = None
    """The table is read in full about this many times a day, for what is worthwhile."""
    max_read_ratio: Annotated[float, ModelField(ge=1.01, le=1e6)] | None = None
    """Over time, a full read may cost this many times what it would if the table had just been rewritten, for
    what is worthwhile."""
    cron: Cron | None = None
    """Convert what is pending at these moments, too."""
    max_delete_files_per_commit: Annotated[int, ModelField(ge=0)] | None = None
    """A job commits after this many equality delete files, those of a partition together; 0 is one commit."""
    deletion_vector_files: DeletionVectorFiles | None = None
    """Each deletion vector has a Puffin file of its own; or those that a task writes share one. This takes
    fewer requests and objects, and is done only where `expire_snapshots` is enabled and nobody else was seen
    to let snapshots expire, since Iceberg's own expireSnapshots() may delete a file of which some is live."""
    readers: Annotated[list[ReaderName], ModelField(max_length=100)] | None = None
    """The table is read by these engines, such as `athena` or `trino-475`. A dry run says what each sees, and
    nothing is converted that none of them could read then."""


class PublishPolicy(ClosedMessage):
    """This names a staging branch, and says when what is staged is published: whichever of the triggers comes
    first."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    source: StagingBranch | None = ModelField(default=None, alias="from")
    """This staging branch is published on the branch of each table that does not say so itself; empty for
    none."""
    enabled: bool | None = None
    """While true, such jobs start by themselves, as the triggers say."""
    rows: Count | None = None
    """Publish as soon as this many rows and row-level deletes are staged."""
    age_seconds: Seconds | None = None
    """Publish as soon as the oldest staged snapshot is this many seconds old; 0 publishes whatever a look at
    the table finds."""
    cron: Cron | None = None
    """Publish what is staged at these moments, too."""


class CompactPolicy(_JobSection):
    """This says when an index is compacted: whichever of the triggers comes first, in any of its key sets."""

    sorted_runs: Annotated[int, ModelField(ge=2)] | None = None
    """An index is compacted when it has this many sorted runs."""
    dead_ratio: Annotated[float, ModelField(gt=0, le=1)] | None = None
    """An index is compacted when this share of its entries is of files which are gone."""
    dead_bytes: Count | None = None
    """An index is compacted when its dead entries have this many bytes, by their share of its size."""
    min_interval_seconds: Seconds | None = None
    """Two compactions are at least this many seconds apart, because each rewrites a part of the index."""
    cron: Cron | None = None
    """The index is compacted at these moments, too, and files that nothing needs any more are deleted."""


class VerifyPolicy(_JobSection):
    """This says when the index is compared with the data files: whichever of the triggers comes first."""

    data_files: Count | None = None
    """Verify once this many data files are new since the last verification."""
    rows: Count | None = None
    """Verify once the data files that are new since the last verification have this many rows."""
    bytes: Count | None = None
    """Verify once the data files that are new since the last verification have this many bytes, with the
    delete files that were committed beside them."""
    age_seconds: Annotated[float, ModelField(ge=60, le=31_536_000)] | None = None
    """Verify an index that was not verified for this many seconds."""
    cron: Cron | None = None
    """The index is verified at these moments, too."""


class ExpireSnapshotsPolicy(_JobSection):
    """This says when snapshots are let go that are old enough: whichever of the triggers comes first."""

    older_than_seconds: Seconds | None = None
    """Snapshots that are older than this many seconds expire, unless something holds them."""
    retain_last: Annotated[int, ModelField(ge=1, le=1_000_000)] | None = None
    """This many snapshots of each branch stay, however old they are."""
    snapshots: Count | None = None
    """Expire snapshots as soon as the table has this many."""
    age_seconds: Seconds | None = None
    """Expire snapshots as soon as the oldest that no branch and no tag names is this many seconds old."""
    min_interval_seconds: Seconds | None = None
    """Two such jobs are at least this many seconds apart, because each reads the table's manifests."""
    cron: Cron | None = None
    """Snapshots that are old enough expire at these moments, too."""
    windows: list[Window] | None = None
    """Jobs of the kind start by themselves only while one of these is open; empty: as the schedule says."""
    max_seconds_per_day: Seconds | None = None
    """The table's jobs of the kind may run for this many seconds a day; 0 for any time. Once they are spent,
    none of them starts by itself until the day turns."""


class RewriteDataFilesPolicy(_JobSection):
    """This says when data files are rewritten that are small, or have many deleted rows: whichever of the
    triggers comes first. What is pending is converted before."""

    strategy: RewriteStrategy | None = None
    """Put rows together as they come (`binpack`), or `sort` them as the table's sort order says."""
    target_file_size_bytes: TargetFileSize | None = None
    """New data files have about this many bytes, and those below three quarters of it are small; 0 is what
    the table says."""
    min_input_files: Annotated[int, ModelField(ge=2, le=10**9)] | None = None
    """Small data files are rewritten where a partition has this many of them."""
    size_ratio: SizeRatio | None = None
    """The largest small data file that is rewritten is at most this many times as large as the others of its
    partition together."""
    delete_ratio_threshold: Annotated[float, ModelField(gt=0, le=1)] | None = None
    """Data files of which this share of the rows is deleted are rewritten, whatever their size."""
    max_bytes: Count | None = None
    """One job writes data files of this many bytes anew at most, in one commit."""
    small_data_files: Count | None = None
    """Rewrite as soon as this many data files are small, where a partition has enough of them."""
    deleted_data_files: Count | None = None
    """Rewrite as soon as this many data files have at least that share of deleted rows."""
    min_interval_seconds: Seconds | None = None
    """Two such jobs are at least this many seconds apart."""
    cron: Cron | None = None
    """Data files are rewritten at these moments, too, if there are such files."""
    windows: list[Window] | None = None
    """Jobs of the kind start by themselves only while one of these is open; empty: as the schedule says."""
    max_seconds_per_day: Seconds | None = None
    """The table's jobs of the kind may run for this many seconds a day; 0 for any time. Once they are spent,
    none of them starts by itself until the day turns."""


class RewritePositionDeleteFilesPolicy(_JobSection):
    """This says when small position delete files of a table of format version 2 are rewritten as few."""

    target_file_size_bytes: TargetFileSize | None = None
    """New delete files have about this many bytes, and those below three quarters of it are small; 0 is what
    the table says."""
    min_input_files: Annotated[int, ModelField(ge=2, le=10**9)] | None = None
    """Small delete files are rewritten where a partition has this many of them."""
    small_delete_files: Count | None = None
    """Rewrite as soon as this many position delete files are small, where a partition has enough of them."""
    min_interval_seconds: Seconds | None = None
    """Two such jobs are at least this many seconds apart."""
    cron: Cron | None = None
    """Position delete files are rewritten at these moments, too, if any are small."""
    windows: list[Window] | None = None
    """Jobs of the kind start by themselves only while one of these is open; empty: as the schedule says."""
    max_seconds_per_day: Seconds | None = None
    """The table's jobs of the kind may run for this many seconds a day; 0 for any time. Once they are spent,
    none of them starts by itself until the day turns."""


class RewriteManifestsPolicy(_JobSection):
    """This says when small manifests of a table's branch main are rewritten as few large ones."""

    manifests: Annotated[int, ModelField(ge=2, le=10**9)] | None = None
    """Rewrite as soon as the head of the branch has this many small manifests."""
    min_interval_seconds: Seconds | None = None
    """Two such jobs are at least this many seconds apart, because each rewrites what was written since."""
    cron: Cron | None = None
    """Small manifests are written anew at these moments, too, if there are any."""
    windows: list[Window] | None = None
    """Jobs of the kind start by themselves only while one of these is open; empty: as the schedule says."""
    max_seconds_per_day: Seconds | None = None
    """The table's jobs of the kind may run for this many seconds a day; 0 for any time. Once they are spent,
    none of them starts by itself until the day turns."""


class SchedulePolicy(ClosedMessage):
    """This says when jobs may start by themselves, and which go first. Requests are not held up by
    windows."""

    time_zone: Annotated[str, AfterValidator(check_time_zone)] | None = None
    """The time zone of `cron` and `windows` is an IANA name, such as `Europe/Berlin`."""
    windows: list[Window] | None = None
    """Jobs start by themselves only while one is open; empty for always. At most 50."""
    priority: Annotated[int, ModelField(ge=-100, le=100)] | None = None
    """The waiting jobs of the highest priority run first."""
    idle_pause_seconds: Seconds | None = None
    """A pause of this many seconds follows a job that found nothing to do, unless the table changes; doubled
    with each further one."""
    max_idle_pause_seconds: Seconds | None = None
    """The pause after jobs that found nothing to do does not grow beyond this many seconds."""


class RetryPolicy(ClosedMessage):
    """This says how often a job is tried, and how long the pause is after jobs that failed with all their
    attempts."""

    max_attempts: Annotated[int, ModelField(ge=1, le=100)] | None = None
    """The job has failed after this many failed attempts."""
    backoff_seconds: Seconds | None = None
    """A pause of this many seconds comes before the second attempt; doubled with each further one."""
    max_backoff_seconds: Seconds | None = None
    """The pause between attempts does not grow beyond this many seconds."""
    timeout_seconds: Seconds | None = None
    """An attempt that has run this many seconds is ended, and counts as failed; 0 for no limit."""
    pause_seconds: Seconds | None = None
    """A pause of this many seconds follows a failed job, before the next of its kind starts by itself;
    doubled with each further failure."""
    max_pause_seconds: Seconds | None = None
    """The pause after failed jobs does not grow beyond this many seconds."""


class BudgetPolicy(ClosedMessage):
    """This limits what jobs may take within a day, in the policy's time zone; 0 for any amount. Once it is
    spent, no job starts by itself until the day turns. Requests count, and are not held up.
    """

    table_seconds_per_day: Seconds | None = None
    """All jobs of the table may run for this many seconds; counted when an attempt ends."""
    table_bytes_per_day: Amount | None = None
    """All jobs of the table may read and write this many bytes, as the workers report it."""
    catalog_seconds_per_day: Seconds | None = None
    """All jobs of all tables of the catalog may run for this many seconds."""
    catalog_bytes_per_day: Amount | None = None
    """All jobs of all tables of the catalog may read and write this many bytes."""


class ResourcesPolicy(ClosedMessage):
    """This is how much of a worker, and of its Spark, a job takes; bounded by what the operator allows."""

    max_tasks: Annotated[int, ModelField(ge=0, le=100_000)] | None = None
    """This many tasks of a stage run at a time, on the driver and on Spark; 0 for as many as there are
    cores."""
    memory_fraction: Annotated[float, ModelField(ge=1 / 64, le=1)] | None = None
    """A job holds this share of what it usually holds in memory at once; the next smaller power of two
    counts."""


class PolicySettings(ClosedMessage):
    """This is what a policy says. Every field may be left out."""

    index: IndexPolicy = ModelField(default_factory=IndexPolicy)
    """This says when data files are indexed."""
    convert: ConvertPolicy = ModelField(default_factory=ConvertPolicy)
    """This says when equality deletes are converted."""
    publish: PublishPolicy = ModelField(default_factory=PublishPolicy)
    """This names a staging branch, and says when what is staged is published."""
    expire_snapshots: ExpireSnapshotsPolicy = ModelField(default_factory=ExpireSnapshotsPolicy)
    """This says when old snapshots are let go."""
    rewrite_data_files: RewriteDataFilesPolicy = ModelField(default_factory=RewriteDataFilesPolicy)
    """This says when data files are rewritten."""
    rewrite_position_delete_files: RewritePositionDeleteFilesPolicy = ModelField(
        default_factory=RewritePositionDeleteFilesPolicy
    )
    """This says when small position delete files are rewritten."""
    rewrite_manifests: RewriteManifestsPolicy = ModelField(default_factory=RewriteManifestsPolicy)
    """This says when small manifests are rewritten."""
    compact: CompactPolicy = ModelField(default_factory=CompactPolicy)
    """This says when the index is compacted."""
    verify: VerifyPolicy = ModelField(default_factory=VerifyPolicy)
    """This says when the index is compared with the data files."""
    schedule: SchedulePolicy = ModelField(default_factory=SchedulePolicy)
    """This says when jobs may start, and in which order."""
    retries: RetryPolicy = ModelField(default_factory=RetryPolicy)
    """This is what happens after a failed attempt."""
    resources: ResourcesPolicy = ModelField(default_factory=ResourcesPolicy)
    """This is how much of a worker a job takes."""
    budget: BudgetPolicy = ModelField(default_factory=BudgetPolicy)
    """This limits what jobs may take within a day."""

    @model_validator(mode="wrap")
    @classmethod
    def _check_as_a_whole(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Find contradictions between fields also when other fields are wrong by themselves."""
        errors: list[InitErrorDetails] = []
        try:
            settings = handler(data)
        except ValidationError as error:
            if not isinstance(data, dict):
                raise
            errors = [_restated(item) for item in error.errors()]
            settings = handler(_without(data, [item["loc"][:2] for item in error.errors()]))
        errors += [
            InitErrorDetails(
                type=PydanticCustomError("contradiction", "{why}", {"why": why}),
                loc=tuple(names[0].split(".")),
                input=settings.values()[names[0]],
            )
            for names, why in contradictions(settings.values())
        ]
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return settings

    @classmethod
    def valid_part(cls, data: Any) -> Self:
        """What is left of settings without the fields, or whole sections, that are wrong."""
        while isinstance(data, dict):
            try:
                return cls.model_validate(data)
            except ValidationError as error:
                data = _without(data, [item["loc"][:2] for item in error.errors()])
        return cls()

    def values(self) -> dict[str, Any]:
        """The settings that are given, by dotted name."""
        return {
            f"{section}.{name}": value
            for section, settings in self.model_dump(exclude_none=True).items()
            for name, value in settings.items()
        }


def _without(data: Mapping[str, Any], places: Iterable[tuple[int | str, ...]]) -> dict[str, Any]:
    """Settings without the fields, or whole sections, at these places."""
    left = {name: dict(part) if isinstance(part, dict) else part for name, part in data.items()}
    for section, *field in places:
        if field and isinstance(left.get(str(section)), dict):
            left[str(section)].pop(field[0], None)
        else:
            left.pop(str(section), None)
    return left


def _restated(error: ErrorDetails) -> InitErrorDetails:
    """An error that was found, to be raised again beside others."""
    kind = PydanticCustomError(error["type"], "{why}", {**error.get("ctx", {}), "why": error["msg"]})
    return InitErrorDetails(type=kind, loc=error["loc"], input=error["input"])


_NOT_LARGER = (
    ("retries.backoff_seconds", "retries.max_backoff_seconds"),
    ("retries.pause_seconds", "retries.max_pause_seconds"),
    ("schedule.idle_pause_seconds", "schedule.max_idle_pause_seconds"),
    ("expire_snapshots.older_than_seconds", "expire_snapshots.age_seconds"),
)


def contradictions(values: Mapping[str, Any]) -> list[tuple[tuple[str, ...], str]]:
    """What is wrong with settings, by dotted name, that are each valid: (names, why).

    Settings that are left out contradict nothing.
    """
    return [
        (
            (smaller, larger),
            f"{smaller} ({values[smaller]:g}) must not be larger than {larger} ({values[larger]:g})",
        )
        for smaller, larger in _NOT_LARGER
        if smaller in values and larger in values and values[smaller] > values[larger]
    ]
