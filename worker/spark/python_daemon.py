"""The process that Spark forks its Python processes from on this machine: it has imported what tasks need."""

import gc
from contextlib import suppress
from importlib import import_module
from zipimport import zipimporter

from pyspark.daemon import manager

_TASKS = "worker.jobs.pipeline"
"""Imports whatever may be a task. By its name, since it lies above this package."""


def fork_processes() -> None:
    with suppress(Exception):  # a task says what is missing or wrong
        import_module(_TASKS)
    # Each of them looks for garbage after each task: among what was imported it would find none.
    gc.freeze()
    # And before each task for new modules: it reads all names in PySpark's archive, for each package anew.
    zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    fork_processes()
