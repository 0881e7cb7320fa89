"""What a conversion asks a store for: each file of the table's metadata once, and no size."""

from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.benchmarks.store_jobs import StoreJobs, table_in_store
from tests.thorough import V3_FIRST

pytestmark = pytest.mark.integration


@V3_FIRST
def test_a_conversion_reads_each_file_of_metadata_once(
    spark: SparkSession, tmp_path: Path, format_version: Literal[2, 3]
) -> None:
    with table_in_store(spark, tmp_path, format_version, 1_000, 4) as (table, catalog, store), store.served():
        jobs = StoreJobs(spark, table, catalog, store)
        table.delete_keys(pa.table({"id": [1]}))
        jobs.measured("build", "index")
        table.delete_keys(pa.table({"id": [2]}))
        measured, outcome = jobs.measured("convert", "convert")

    assert outcome.result["rows_deleted"] == 2
    asked = {stage: dict(requests.by_kind) for stage, requests in measured.stages.items()}
    of_index = 4  # of both of its tables the schema and the last snapshot
    # Metadata, by Java alone; the list of manifests; the one that came since the build.
    assert asked["plan"]["GET"] == 1 + 1 + 1 + of_index
    # The list; a manifest of each commit of equality deletes; and the new metadata, once the catalog has it.
    # The same manifests without them, one of new deletes, a list, the metadata.
    assert asked["commit"] == {"GET": 1 + 2 + 1, "PUT": 2 + 1 + 1 + 1}
    assert not asked["report"]
    assert "HEAD" not in measured.requests.by_kind
