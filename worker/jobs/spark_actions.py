"""Iceberg's own actions on Spark, by which jobs maintain tables.

Invariant: an action opens no manifest in a place that the service does not allow, and loads no class that a
table names. What it deletes, it only names: the job decides, and deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject

from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.process.errors import JobError
from worker.spark.jvm import java_object, jvm_of
from worker.table.all_snapshots import manifests_of_all_snapshots
from worker.table.row_delta import java_list

_SOURCE = Path(__file__).with_name("SparkActions.java")


class ActionError(JobError):
    """Of each kind of job, one that says what could not be done."""

    remedy = "The table is as it was. Look at the cause; it is tried again."
    retryable = True


def actions(job: Job) -> Any:
    """Iceberg's `SparkActions`, in the job's session."""
    spark: Any = job.runner.spark
    return jvm_of(spark._jsparkSession).org.apache.iceberg.spark.actions.SparkActions.get(
        spark._jsparkSession
    )


def execute(job: Job, stage: str, action: JavaObject) -> None:
    """Runs an action whose own threads write, in the job's session: Iceberg looks there for what it reads."""
    spark: Any = job.runner.spark

    def in_session() -> None:
        # In PySpark's own view of the JVM, where the class of its sessions is, in each version of Spark.
        spark.sparkContext._jvm.SparkSession.setActiveSession(spark._jsparkSession)
        action.execute()

    job.run_action(stage, in_session)


def table_of(operations: JavaObject, java_table: JavaObject) -> JavaObject:
    """The same table, with other operations."""
    iceberg = jvm_of(java_table).org.apache.iceberg
    return iceberg.BaseTable(operations, java_table.name(), java_table.reporter())


def check_manifests(table: PinnedTable) -> None:
    """Raises LocationNotAllowedError: Java opens the manifests of all snapshots, wherever they should be.

    Also raises as `read_snapshot_files`.
    """
    for path in manifests_of_all_snapshots(table.metadata, table.storage.io):
        table.storage.io.check(path)


def certain(java_table: JavaObject) -> JavaObject:
    """The same table, whose commits fail only if they did: an action deletes what it has written then."""
    operations = java_object(java_table, _SOURCE, "CertainOperations", java_table.operations())
    return table_of(operations, java_table)


def chosen(java_table: JavaObject, paths: Sequence[str]) -> JavaObject:
    """A predicate of Java's: whether a manifest is one of these."""
    return java_object(java_table, _SOURCE, "IsChosen", java_list(jvm_of(java_table), paths))


def nothing_deleted(java_table: JavaObject) -> JavaObject:
    """For an action that deletes: it then only names what it would."""
    return java_object(java_table, _SOURCE, "DeletesNothing")
