"""A table of people, and jobs that erase some of them."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.factories import TableBuilder
from tests.jobs import Jobs
from tests.worker.erasure.tables import PLAIN, Erase, NewTable


@pytest.fixture
def new_table(spark: SparkSession, table_name: str) -> NewTable:
    def create(**how: Any) -> TableBuilder:
        columns = {"columns": "id string, region string, value bigint", "format_version": 3}
        table = TableBuilder.create(spark, table_name, **{**columns, "properties": PLAIN, **how})
        table.parquet = {"compression": "none"}  # so that a search of bytes means something
        return table

    return create


@pytest.fixture
def erase(jobs: Jobs) -> Erase:
    return Erase(jobs)
