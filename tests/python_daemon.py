"""Spark's Python processes, forked from one that has imported what tasks of jobs need, if it is there."""

import gc
from contextlib import suppress
from zipimport import zipimporter

from pyspark.daemon import manager

with suppress(ImportError):
    import worker.jobs.pipeline as _  # noqa: F401


def fork_processes() -> None:
    # Each of them looks for garbage after each task: among what was imported it would find none.
    gc.freeze()
    # And before each task for new modules: it reads all names in PySpark's archive, for each package anew.
    zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    fork_processes()
