"""The PySpark worker: claim -> plan -> read -> index | lookup -> deletes -> commit -> report."""

from worker.process.threads import bound_thread_starts

bound_thread_starts()
