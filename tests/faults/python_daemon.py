"""Spark's Python processes with faults at the same points as in the worker; see tests.faults.worker_build."""

from tests.faults.worker_build import inject
from worker.spark.python_daemon import fork_processes

if __name__ == "__main__":
    inject()
    fork_processes()
