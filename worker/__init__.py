"""The PySpark worker: claim -> plan -> read -> index | lookup -> deletes -> commit -> report."""
