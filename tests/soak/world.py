"""What all histories of a process share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.factories import Catalog, sqlite_catalog, suit_small_tables


@dataclass
class World:
    """A Spark session, and a catalog for the tables of all histories."""

    spark: SparkSession
    catalog: Catalog
    directory: Path
    java_catalog: Any = field(init=False)

    @classmethod
    def create(cls, spark: SparkSession, directory: Path) -> World:
        """In a session of its own, with a catalog in `directory`."""
        session = spark.newSession()
        suit_small_tables(session)
        return cls(session, sqlite_catalog(session, "soak", directory), directory)

    def __post_init__(self) -> None:
        jvm: Any = self.spark.sparkContext._jvm
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.catalog.name}.histories")
        self.java_catalog = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(
            self.spark._jsparkSession, self.catalog.name
        )
