"""Spark's Python processes, forked from one that has imported what tasks of jobs need, if it is there."""

from contextlib import suppress

from pyspark.daemon import manager

with suppress(ImportError):
    import worker.jobs.pipeline as _  # noqa: F401

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
