"""A standalone cluster of Spark on loopback, from the installed PySpark: a master and a worker."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.patience import wait_until

_EXECUTOR_MB = 512
EXECUTORS = {"spark.executor.memory": f"{_EXECUTOR_MB}m", "spark.executor.cores": "1"}
"""Settings under which a worker runs as many as it is made for."""
_HOME = Path(pyspark.__path__[0])
_DEPLOY = "org.apache.spark.deploy"


@contextmanager
def standalone_cluster(
    directory: Path, environment: Mapping[str, str], executors: int = 2, home: Path = _HOME
) -> Iterator[str]:
    """The address of its master, `spark://`. directory: of logs and of what executors write, empty.

    environment: of the executors, too. executors: of one core each, in one worker; none without any. home: of
    another Spark.
    """
    given = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        **environment,
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = directory / f"{name}.log"
        with log.open("wb") as output:
            command = [str(home / "bin" / "spark-class"), *arguments]
            started.append(
                subprocess.Popen(
                    command, env=given, cwd=directory, stdout=output, stderr=output, start_new_session=True
                )
            )
        return log

    try:
        address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        log = start("master", f"{_DEPLOY}.master.Master", *address)
        found = wait_until(
            lambda: re.search(r"Starting Spark master at (spark://\S+)", log.read_text()),
            "the master to start",
        )
        if executors:
            room = ["--cores", str(executors), "--memory", f"{executors * _EXECUTOR_MB}m"]
            place = ["--work-dir", str(directory / "worker")]
            start("worker", f"{_DEPLOY}.worker.Worker", *address, *place, *room, found[1])
        yield found[1]
    finally:
        for process in reversed(started):  # a worker ends its executors
            process.terminate()
            process.wait()
