"""What calls about policies take and answer, and the effective policy: every value that a policy may say."""

import hashlib
from datetime import datetime
from typing import Any, Self

from pydantic import ConfigDict, model_validator
from pydantic import Field as ModelField

from service.http.messages import ClosedMessage, Message, Name, described_as, example
from service.policies.schedules import Window
from service.policies.settings import (
    BudgetPolicy,
    CompactPolicy,
    ConvertPolicy,
    ConvertWhen,
    DeletionVectorFiles,
    ExpireSnapshotsPolicy,
    IndexPolicy,
    PolicySettings,
    PublishPolicy,
    ResourcesPolicy,
    RetryPolicy,
    RewriteDataFilesPolicy,
    RewriteManifestsPolicy,
    RewritePositionDeleteFilesPolicy,
    SchedulePolicy,
    VerifyPolicy,
)
from service.records.policies import Level


class EffectiveIndexPolicy(Message):
    """This is every value that holds for index jobs."""

    model_config = described_as(IndexPolicy)

    enabled: bool
    data_files: int
    rows: int
    bytes: int
    age_seconds: float
    cron: str


class EffectiveConvertPolicy(Message):
    """This is every value that holds for conversions."""

    model_config = described_as(ConvertPolicy)

    enabled: bool
    delete_files: int
    deletes: int
    bytes: int
    age_seconds: float
    when: ConvertWhen
    reads_per_day: float
    max_read_ratio: float
    cron: str
    max_delete_files_per_commit: int
    deletion_vector_files: DeletionVectorFiles
    readers: list[str]


class EffectivePublishPolicy(Message):
    """This is every value that holds for publications."""

    model_config = described_as(PublishPolicy) | ConfigDict(populate_by_name=True, serialize_by_alias=True)

    source: str = ModelField(alias="from")
    enabled: bool
    rows: int
    age_seconds: float
    cron: str


class EffectiveExpireSnapshotsPolicy(Message):
    """This is every value that holds for the expiry of snapshots."""

    model_config = described_as(ExpireSnapshotsPolicy)

    enabled: bool
    older_than_seconds: float
    retain_last: int
    snapshots: int
    age_seconds: float
    min_interval_seconds: float
    cron: str
    windows: list[Window]
    max_seconds_per_day: float


class EffectiveRewriteDataFilesPolicy(Message):
    """This is every value that holds for the rewriting of data files."""

    model_config = described_as(RewriteDataFilesPolicy)

    enabled: bool
    strategy: str
    target_file_size_bytes: int
    min_input_files: int
    size_ratio: float
    delete_ratio_threshold: float
    max_bytes: int
    small_data_files: int
    deleted_data_files: int
    min_interval_seconds: float
    cron: str
    windows: list[Window]
    max_seconds_per_day: float


class EffectiveRewritePositionDeleteFilesPolicy(Message):
    """This is every value that holds for the rewriting of position delete files."""

    model_config = described_as(RewritePositionDeleteFilesPolicy)

    enabled: bool
    target_file_size_bytes: int
    min_input_files: int
    small_delete_files: int
    min_interval_seconds: float
    cron: str
    windows: list[Window]
    max_seconds_per_day: float


class EffectiveRewriteManifestsPolicy(Message):
    """This is every value that holds for the rewriting of manifests."""

    model_config = described_as(RewriteManifestsPolicy)

    enabled: bool
    manifests: int
    min_interval_seconds: float
    cron: str
    windows: list[Window]
    max_seconds_per_day: float


class EffectiveCompactPolicy(Message):
    """This is every value that holds for compactions of the index."""

    model_config = described_as(CompactPolicy)

    enabled: bool
    sorted_runs: int
    dead_ratio: float
    dead_bytes: int
    min_interval_seconds: float
    cron: str


class EffectiveVerifyPolicy(Message):
    """This is every value that holds for verifications."""

    model_config = described_as(VerifyPolicy)

    enabled: bool
    data_files: int
    rows: int
    bytes: int
    age_seconds: float
    cron: str


class EffectiveSchedulePolicy(Message):
    """This is every value that holds for when jobs start."""

    model_config = described_as(SchedulePolicy)

    time_zone: str
    windows: list[Window]
    priority: int
    idle_pause_seconds: float
    max_idle_pause_seconds: float


class EffectiveRetryPolicy(Message):
    """This is every value that holds after a failure."""

    model_config = described_as(RetryPolicy)

    max_attempts: int
    backoff_seconds: float
    max_backoff_seconds: float
    timeout_seconds: float
    pause_seconds: float
    max_pause_seconds: float


class EffectiveBudgetPolicy(Message):
    """Every value that holds for what jobs may take in a day."""

    model_config = described_as(BudgetPolicy)

    table_seconds_per_day: float
    table_bytes_per_day: int
    catalog_seconds_per_day: float
    catalog_bytes_per_day: int


class EffectiveResourcesPolicy(Message):
    """Every value that holds for what a job may take."""

    model_config = described_as(ResourcesPolicy)

    max_tasks: int
    memory_fraction: float


class EffectivePolicy(Message):
    """These are the settings with every value present, by which the scheduler and the worker go."""

    index: EffectiveIndexPolicy
    """This says when data files are indexed."""
    convert: EffectiveConvertPolicy
    """This says when equality deletes are converted."""
    publish: EffectivePublishPolicy
    """This names a staging branch, and says when what is staged is published."""
    expire_snapshots: EffectiveExpireSnapshotsPolicy
    """This says when old snapshots are let go."""
    rewrite_data_files: EffectiveRewriteDataFilesPolicy
    """This says when data files are rewritten."""
    rewrite_position_delete_files: EffectiveRewritePositionDeleteFilesPolicy
    """This says when small position delete files are rewritten."""
    rewrite_manifests: EffectiveRewriteManifestsPolicy
    """This says when small manifests are rewritten."""
    compact: EffectiveCompactPolicy
    """This says when the index is compacted."""
    verify: EffectiveVerifyPolicy
    """This says when the index is compared with the data files."""
    schedule: EffectiveSchedulePolicy
    """This says when jobs may start, and in which order."""
    retries: EffectiveRetryPolicy
    """This is what happens after a failed attempt."""
    resources: EffectiveResourcesPolicy
    """This is how much of a worker a job takes."""
    budget: EffectiveBudgetPolicy
    """This limits what jobs may take within a day."""

    @property
    def digest(self) -> str:
        """Tells policies apart by their values, wherever they come from."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


class PolicyRequest(ClosedMessage):
    """A policy to be made."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {
                "name": "nightly",
                "description": "Converts at night only.",
                "settings": {
                    "convert": {"enabled": True, "deletes": 100_000, "age_seconds": 3600},
                    "schedule": {
                        "time_zone": "Europe/Berlin",
                        "windows": [{"days": ["sat", "sun"], "start": "22:00", "end": "06:00"}],
                    },
                },
            },
        ),
    )

    name: Name
    """The name is unique among policies, and has letters, digits and `_.-`."""
    description: str = ""
    """People read here what the policy is for."""
    settings: PolicySettings
    """The policy says these values; those left out are inherited where it is attached."""


class PolicyPatch(ClosedMessage):
    """Fields left out stay; `settings` is replaced as a whole."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"description": "Converts once an hour.", "settings": {"convert": {"age_seconds": 3600}}},
        ),
    )

    name: Name | None = None
    """The policy gets this new name; attachments stay."""
    description: str | None = None
    """People read here what the policy is for."""
    settings: PolicySettings | None = None
    """The policy has these settings from now on, and no others."""


class PolicyView(Message):
    """This is a policy as it is kept."""

    id: str
    """The id names the policy, whatever it is called."""
    name: str
    """The name is unique among policies."""
    description: str
    """People read here what the policy is for."""
    built_in: bool
    """The policy comes with the service and cannot be changed if this is true."""
    settings: dict[str, Any]
    """The policy says these values; those left out are inherited."""
    version: int
    """Counts its changes; also its ETag."""
    created_at: datetime
    """The policy was made at this time."""
    updated_at: datetime
    """The policy was last changed at this time."""


class AttachmentRequest(ClosedMessage):
    """This is where a policy goes: `catalog` for catalog and namespace level, `namespace` for namespace
    level, `table_id` for table level. A null `policy` detaches."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"level": "system", "policy": "standard"},
            {"level": "namespace", "catalog": "local", "namespace": ["sales"], "policy": "manual"},
        ),
    )

    level: Level
    """The policy is attached at this level: it holds for everything in one such place."""
    catalog: str | None = None
    """The catalog is given by name or id."""
    namespace: list[str] | None = None
    """The namespace is given by its parts."""
    table_id: str | None = None
    """The id names an enrolled table."""
    policy: str | None
    """The policy has this name or id; null detaches what is attached there."""

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        needed = {
            Level.SYSTEM: (),
            Level.CATALOG: ("catalog",),
            Level.NAMESPACE: ("catalog", "namespace"),
            Level.TABLE: ("table_id",),
        }[self.level]
        given = tuple(name for name in ("catalog", "namespace", "table_id") if getattr(self, name))
        if given != needed:
            raise ValueError(f"level {self.level.value} takes exactly: {', '.join(needed) or 'nothing else'}")
        return self


class AttachmentView(Message):
    """This is a policy at the place that it holds for."""

    level: Level
    """The policy is attached at this level: it holds for everything in one such place."""
    catalog: str | None
    """The catalog has this name; null at the levels of system and table."""
    namespace: list[str] | None
    """The namespace is given by its parts; null at other levels."""
    table_id: str | None
    """The policy holds for the table that is enrolled under this id; null at other levels."""
    table: str | None
    """The name of this table has its catalog before it, with dots; null at other levels."""
    policy: str
    """The policy has this name."""
    version: int
    """The version is another one with each change, and also its ETag."""
    updated_at: datetime
    """This policy was attached here at this time."""


class ValueSource(Message):
    """This is a policy at the place that it is attached to, or a table that says a value itself."""

    level: Level
    """The value comes from this level."""
    place: str
    """The place is given in words, such as `catalog local`."""
    policy: str | None
    """The policy has this name; null if the enrolment of the table says it."""


class EffectiveValue(Message):
    """This is a value and where it comes from."""

    value: Any
    """The value has the type that the policy gives it."""
    source: ValueSource
    """The value comes from this policy or enrolment."""


class EffectivePolicyView(Message):
    """This is the policy of a table, with the source of each value."""

    table_id: str
    """The table is enrolled under this id."""
    policy: str
    """The policy that is attached nearest to the table has this name."""
    effective: EffectivePolicy
    """The table's policy has these values, inherited ones too."""
    values: dict[str, EffectiveValue]
    """Every value is listed by its dotted name, with the place that sets it."""
    explanation: list[str]
    """The sentences say of each value which policy or enrolment it comes from."""
