"""The policies that come with the service.

`standard` sets every value and is attached to the system, under `manual` nothing runs by itself. They cannot
be changed, so that every value always has a source.
"""

from service.policies.settings import (
    BudgetPolicy,
    CompactPolicy,
    ConvertPolicy,
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

STANDARD = "standard"
MANUAL = "manual"
BUILT_IN: dict[str, tuple[str, PolicySettings]] = {
    STANDARD: (
        "Indexes within about a minute, converts equality deletes within about five, compacts now and then.",
        PolicySettings(
            index=IndexPolicy(
                enabled=True, data_files=50, rows=10_000_000, bytes=1_000_000_000, age_seconds=60, cron=""
            ),
            convert=ConvertPolicy(
                enabled=True,
                delete_files=10,
                deletes=1_000_000,
                bytes=100_000_000,
                age_seconds=300,
                when="reached",
                reads_per_day=1_000,
                max_read_ratio=1.5,
                cron="",
                max_delete_files_per_commit=0,
                deletion_vector_files="one_per_data_file",
                readers=[],
            ),
            publish=PublishPolicy(source="", enabled=True, rows=100_000, age_seconds=10, cron=""),
            expire_snapshots=ExpireSnapshotsPolicy(
                enabled=False,
                older_than_seconds=432_000,
                retain_last=1,
                snapshots=1_000,
                age_seconds=518_400,
                min_interval_seconds=3_600,
                cron="",
                windows=[],
                max_seconds_per_day=0,
            ),
            rewrite_data_files=RewriteDataFilesPolicy(
                enabled=False,
                strategy="binpack",
                target_file_size_bytes=0,
                min_input_files=5,
                size_ratio=1,
                delete_ratio_threshold=0.3,
                max_bytes=100_000_000_000,
                small_data_files=100,
                deleted_data_files=10,
                min_interval_seconds=3_600,
                cron="",
                windows=[],
                max_seconds_per_day=0,
            ),
            rewrite_position_delete_files=RewritePositionDeleteFilesPolicy(
                enabled=False,
                target_file_size_bytes=0,
                min_input_files=5,
                small_delete_files=100,
                min_interval_seconds=3_600,
                cron="",
                windows=[],
                max_seconds_per_day=0,
            ),
            rewrite_manifests=RewriteManifestsPolicy(
                enabled=False,
                manifests=100,
                min_interval_seconds=3_600,
                cron="",
                windows=[],
                max_seconds_per_day=0,
            ),
            compact=CompactPolicy(
                enabled=True,
                sorted_runs=16,
                dead_ratio=0.5,
                dead_bytes=10_000_000_000,
                min_interval_seconds=60,
                cron="",
            ),
            verify=VerifyPolicy(
                enabled=False,
                data_files=100_000,
                rows=10_000_000_000,
                bytes=1_000_000_000_000,
                age_seconds=604_800,
                cron="",
            ),
            schedule=SchedulePolicy(
                time_zone="UTC", windows=[], priority=0, idle_pause_seconds=300, max_idle_pause_seconds=3600
            ),
            retries=RetryPolicy(
                max_attempts=5,
                backoff_seconds=10,
                max_backoff_seconds=600,
                timeout_seconds=0,
                pause_seconds=600,
                max_pause_seconds=3600,
            ),
            budget=BudgetPolicy(
                table_seconds_per_day=0,
                table_bytes_per_day=0,
                catalog_seconds_per_day=0,
                catalog_bytes_per_day=0,
            ),
            resources=ResourcesPolicy(max_tasks=0, memory_fraction=1),
        ),
    ),
    MANUAL: (
        "Nothing runs by itself: jobs start only on request.",
        PolicySettings(
            index=IndexPolicy(enabled=False),
            convert=ConvertPolicy(enabled=False),
            publish=PublishPolicy(enabled=False),
            expire_snapshots=ExpireSnapshotsPolicy(enabled=False),
            rewrite_data_files=RewriteDataFilesPolicy(enabled=False),
            rewrite_position_delete_files=RewritePositionDeleteFilesPolicy(enabled=False),
            rewrite_manifests=RewriteManifestsPolicy(enabled=False),
            compact=CompactPolicy(enabled=False),
            verify=VerifyPolicy(enabled=False),
        ),
    ),
}
