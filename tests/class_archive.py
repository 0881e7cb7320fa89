"""Keep the classes of Spark and Iceberg as the JVM has them in memory: the next starts take half the time.

`python -m tests.class_archive` makes the archive, once for each installation; tests/conftest.py uses it.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATH = Path(sys.prefix) / "spark-classes.jsa"
LEAST_BYTES = 100_000_000
"""Of an archive of a JVM that has run Spark; one that has only found out how to start it makes 1 MB."""

# Tests start many short-lived JVMs on few cores: what the optimising compiler makes there comes too late,
# and costs more than all else.
# Nor does the heap need a look each time that room for classes grows.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"


def java_options() -> str:
    """What a JVM of the tests is started with; those of other programs than Spark take no notice."""
    if not PATH.exists():
        return SHORT_LIVED
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={PATH} -Xlog:cds*=off"


def main() -> None:
    # Not at the top: whatever runs a test reads what is above, with or without Spark.
    from worker.spark.session import create_spark

    made = PATH.with_suffix(".new")
    made.unlink(missing_ok=True)
    os.environ["JDK_JAVA_OPTIONS"] = SHORT_LIVED
    # Of Spark's JVM alone, and not of the one that finds out how to start it.
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        f'--driver-java-options "-XX:ArchiveClassesAtExit={made} -Xlog:cds*=off" pyspark-shell'
    )
    spark = create_spark("local[1]")
    gateway: Any = spark.sparkContext._gateway
    with TemporaryDirectory() as directory:
        _use(spark, Path(directory))
    spark.stop()
    gateway.shutdown()
    # It writes the archive when it ends, which it does once nobody is left to talk to it.
    gateway.proc.stdin.close()
    gateway.proc.wait()
    keep(made)


def keep(made: Path) -> None:
    """An archive that is whole, in the place of the one before."""
    if not made.exists() or made.stat().st_size < LEAST_BYTES:
        sys.exit(f"The JVM has not kept its classes in {made}: its words above say why.")
    made.replace(PATH)


def _use(spark: "SparkSession", directory: Path) -> None:
    """As most tests do that have a table, and the workers that some of them start."""
    from tests.factories import TableBuilder, spark_rows, sqlite_catalog, visible_rows
    from tests.jobs import Jobs

    catalog = sqlite_catalog(spark, "local", directory)
    for version in (2, 3):
        table = TableBuilder.create(spark, f"local.db.t{version}", format_version=version)
        jobs = Jobs(spark, catalog, table.identifier, directory / f"index{version}")
        table.append([{"id": number, "region": "eu", "value": number} for number in range(3)])
        table.delete_keys([{"id": 1}])
        for kind in ("index", "convert", "verify"):
            jobs.run(kind)
        table.compact()
        visible_rows(spark, table.identifier)
        spark_rows(spark, table.identifier)


if __name__ == "__main__":
    main()
