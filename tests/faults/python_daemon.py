"""Spark's Python processes with faults at the same points as in the worker; see tests.faults.worker_build."""

from pyspark.daemon import manager

from tests.faults.worker_build import inject

if __name__ == "__main__":
    inject()
    manager()  # type: ignore[no-untyped-call]
