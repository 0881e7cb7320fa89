"""Spark, with Iceberg's runtime: a JAR that is named as the first argument, or fetched by Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from conformance.readers import Row, serve
from conformance.readers.arrow import rows_of

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def main(arguments: list[str]) -> None:
    builder = SparkSession.builder.master("local[1]").appName("conformance")
    builder = (
        builder.config("spark.jars", arguments[0])
        if arguments
        else builder.config("spark.jars.packages", RUNTIME)
    )
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def read(metadata: str, snapshot_id: int | None) -> Iterable[Row]:
        table = spark.read.format("iceberg")
        if snapshot_id is not None:
            table = table.option("versionAsOf", snapshot_id)
        try:
            return rows_of(table.load(metadata).toArrow())
        except Py4JJavaError as error:
            cause = error.java_exception
            while cause.getCause() is not None:
                cause = cause.getCause()
            raise RuntimeError(cause.toString()) from error

    serve(read)


if __name__ == "__main__":
    main(sys.argv[1:])
