"""Every rule of equality deletes on real tables, under the eyes of several readers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.exactness import Exactness
from tests.factories import Catalog
from tests.jobs import Jobs


@pytest.fixture
def jobs(spark: SparkSession, catalog: Catalog, table_name: str, tmp_path: Path) -> Jobs:
    return Jobs(spark, catalog, table_name, tmp_path / "index")


@pytest.fixture
def exactly(spark: SparkSession, jobs: Jobs, table_name: str) -> Exactness:
    return Exactness(spark, jobs, table_name)
