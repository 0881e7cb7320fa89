"""What whoever maintains a table by hand does to it, beside Icestream."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

FILE_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What it came to. files_before, files_after: data files that were rewritten, and those made of them."""

    files_before: int
    files_after: int
    deleted_files: int


def keep_up(spark: SparkSession, identifier: str, keep_seconds: float = 600) -> Upkeep:
    """Compacts small data files and expires old snapshots, with the procedures that Iceberg has for it.

    Raises Py4JJavaError, for instance when deletes were committed meanwhile to what is compacted.
    """
    catalog, table = identifier.split(".", 1)
    rewritten = spark.sql(
        f"CALL {catalog}.system.rewrite_data_files(table => '{table}', options => map("
        f"'target-file-size-bytes', '{FILE_BYTES}', 'min-file-size-bytes', '{FILE_BYTES // 4}', "
        "'remove-dangling-deletes', 'true'))"
    ).collect()[0]
    before = datetime.now(UTC) - timedelta(seconds=keep_seconds)
    expired = spark.sql(
        f"CALL {catalog}.system.expire_snapshots(table => '{table}', "
        f"older_than => TIMESTAMP '{before:%Y-%m-%d %H:%M:%S.%f} UTC', retain_last => 1)"
    ).collect()[0]
    return Upkeep(
        rewritten["rewritten_data_files_count"],
        rewritten["added_data_files_count"],
        sum(expired.asDict().values()),
    )
