"""The Spark session of a worker, and what it is set to."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from worker.spark.jars import EXCLUDED, SparkSettings, cached_jars, jars_folder, remember_jars, wanted_jars
from worker.spark.jvm import java_object, keep_names

log = logging.getLogger("icestream.worker")

_LOCAL_FILES = Path(__file__).with_name("LocalFiles.java")
_PROMPT_ANSWERS = Path(__file__).with_name("PromptAnswers.java")


class ClusterError(Exception):
    """Spark does not start on its master."""


def create_spark(master: str, app_name: str = "icestream", *, structured_logs: bool = False) -> SparkSession:
    """The worker's Spark session, with Iceberg's runtime and JDBC drivers resolved by Maven coordinate.

    structured_logs: Spark logs in JSON, too, in its own words (`ts`, `msg`).
    Raises the JVM's error when Java or a JAR can't be had, and ClusterError if it ends with no cluster.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.Builder().master(master).appName(app_name)
    for key, value in spark_settings(os.environ, structured_logs=structured_logs).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Py4JJavaError as error:
        if is_local(master):
            raise
        # A master of another version understands nothing that it is asked, and does not say so.
        raise ClusterError(
            f"Spark {pyspark.__version__} has not started on {master}: {java_cause(error)}. Is the cluster"
            f" there, can it reach this machine, and does it run Spark"
            f" {'.'.join(pyspark.__version__.split('.')[:2])}? For another version, install that of PySpark"
            f" here (docs/spark-clusters.md)."
        ) from error
    keep_names(spark.sparkContext._jvm, "PythonUtils")
    context: Any = spark.sparkContext._jsc
    gateway: Any = spark.sparkContext._gateway
    try:
        java_object(context, _PROMPT_ANSWERS, "PromptAnswers").begin(gateway.java_gateway_server)
    except Py4JJavaError as error:  # another py4j may have no such listener
        log.info("Long answers of Java take 40 ms more: %s", java_cause(error))
    try:
        java_object(context, _LOCAL_FILES, "LocalFiles").takePlace(context.hadoopConfiguration())
    except Py4JJavaError as error:  # whoever configures other local files has those
        log.info("Hadoop writes local files as it is configured to: %s", java_cause(error))
    if runs_tasks_in_this_python(spark.sparkContext):
        # It is read when the first task comes.
        context.sc().conf().setIfMissing("spark.python.daemon.module", "worker.spark.python_daemon")
    wanted = wanted_jars(os.environ)
    if not cached_jars(jars_folder(os.environ), wanted):
        remember_jars(jars_folder(os.environ), wanted, (spark.conf.get("spark.jars") or "").split(","))
    return spark


def java_cause(error: Py4JJavaError) -> str:
    """The first line of what Java says."""
    return str(error.java_exception.getMessage() or error).strip().splitlines()[0].rstrip(".")


def is_local(master: str) -> bool:
    """Whether tasks run on this machine and nobody else has to reach the driver."""
    return master == "local" or master.startswith("local[")


def runs_tasks_in_this_python(context: SparkContext) -> bool:
    """Whether what tasks import is what this process has."""
    return is_local(str(context.master)) and context.pythonExec == sys.executable


def spark_settings(environment: Mapping[str, str], *, structured_logs: bool = False) -> dict[str, str]:
    """What the worker sets itself, on any master, before what spark-defaults.conf says."""
    jars = jars_folder(environment)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": SparkSettings.of(environment).driver_memory,
        "spark.jars.ivy": str(jars),
        "spark.scheduler.mode": "FAIR",
        "spark.log.structuredLogging.enabled": str(structured_logs).lower(),
        "spark.speculation": "false",  # two runs of a task would write the same files at once
        "spark.sql.session.timeZone": "UTC",
        "spark.submit.deployMode": "client",
    }
    wanted = wanted_jars(environment)
    cached = cached_jars(jars, wanted)
    if cached:
        settings["spark.jars"] = ",".join(str(jar) for jar in cached)
    else:
        settings["spark.jars.packages"] = ",".join(wanted)
        settings["spark.jars.excludes"] = ",".join(EXCLUDED)
    return settings
