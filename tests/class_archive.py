"""Keep the classes of a started Spark as the JVM has them in memory: the next starts take half the time.

`python -m tests.class_archive` makes the archive, once for each installation; tests/conftest.py uses it.
"""

import os
import sys
from pathlib import Path
from typing import Any

PATH = Path(sys.prefix) / "spark-classes.jsa"

# Tests start many short-lived JVMs on few cores: what the optimising compiler makes there comes too late,
# and costs more than all else.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def java_options() -> str:
    """What a JVM of the tests is started with; those of other programs than Spark take no notice."""
    if not PATH.exists():
        return SHORT_LIVED
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={PATH} -Xlog:cds*=off"


def main() -> None:
    # Not at the top: whatever runs a test reads what is above, with or without Spark.
    from worker.spark.session import create_spark

    PATH.unlink(missing_ok=True)
    os.environ["JDK_JAVA_OPTIONS"] = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={PATH} -Xlog:cds*=off"
    spark = create_spark("local[1]")
    gateway: Any = spark.sparkContext._gateway
    spark.range(3).selectExpr("max(id)").collect()
    spark.stop()
    gateway.shutdown()
    # It writes the archive when it ends, which it does once nobody is left to talk to it.
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
