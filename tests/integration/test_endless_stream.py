"""A stream of small checkpoints under the policy `standard`, by what the service says about it meanwhile."""

import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog
from tests.integration.icestream import Icestream, Json
from tests.patience import wait_until
from tests.upkeep import keep_up
from worker.demo.story import Reader
from worker.demo.table import Orders, OrdersWriter, to_arrow

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

CHECKPOINTS = int(os.environ.get("ICESTREAM_TEST_CHECKPOINTS", "40"))
UPKEEP_CHECKPOINTS = 25
CHEAP_CHECKPOINTS = 8
MOST = 6
"""Times a fresh read that one may cost: more than comes of the tenth of a second that any may waste."""
PENDING_FILES = 40
"""The writer goes on once fewer equality delete files wait: so the test takes the pace of the machine."""


def test_a_stream_under_standard_is_healthy_throughout_and_none_of_its_conversions_scans_what_is_indexed(
    spark: SparkSession, icestream: Icestream, registered: Catalog, tmp_path: Path
) -> None:
    identifier = f"{registered.name}.demo.orders"
    orders = Orders(400_000)
    writer = OrdersWriter.create(spark, identifier)
    writer.append(orders.visible)
    table_id = icestream.enroll(registered, "demo.orders", policy="standard")
    wait_until(lambda: icestream.health(table_id)["coverage"], "the first index")

    for checkpoint in range(1, CHECKPOINTS + 1):
        writer.commit(orders.advance(500))
        wait_until(
            lambda: icestream.health(table_id)["pending_equality_delete_files"] < PENDING_FILES,
            "conversions to keep up",
        )
        if checkpoint % UPKEEP_CHECKPOINTS == 0:
            icestream.run(table_id, "convert")
            assert keep_up(spark, identifier).files_before > UPKEEP_CHECKPOINTS
            icestream.run(table_id, "index")  # these files are small enough to be compacted all together
    icestream.run(table_id, "convert")

    history = Counter(sample["status"] for sample in every(icestream, f"/tables/{table_id}/health/history"))
    assert history == {"healthy": history.total()}
    jobs = list(every(icestream, "/jobs", table_id=table_id, status="succeeded"))
    indexed_at = min(job["ended_at"] for job in jobs if job["kind"] == "index")
    sources = Counter(
        key_set["source"]
        for job in jobs
        if job["kind"] == "convert" and job["started_at"] > indexed_at
        for key_set in icestream.get(f"/jobs/{job['id']}")["result"]["key_sets"]
    )
    assert sources.keys() <= {"index", "index_and_scan"}
    assert sources.total() >= CHECKPOINTS * 4 // (PENDING_FILES + 4)

    pq.write_table(to_arrow(orders.visible), tmp_path / "model.parquet")
    reader = Reader(spark)
    assert reader.checksum(identifier) == reader.checksum(f"parquet.`{tmp_path}/model.parquet`")


def test_a_stream_is_kept_cheap_to_read_by_rewritings_where_a_policy_goes_by_that(
    spark: SparkSession, icestream: Icestream, registered: Catalog, tmp_path: Path
) -> None:
    identifier = f"{registered.name}.demo.orders"
    orders = Orders(100_000)
    writer = OrdersWriter.create(spark, identifier)
    writer.append(orders.visible)
    rewrite = {"enabled": True, "min_interval_seconds": 0, "min_input_files": 2, "small_data_files": 10**6}
    convert = {"when": "worthwhile", "reads_per_day": 0, "max_read_ratio": MOST}
    settings = {"convert": convert, "rewrite_data_files": rewrite}
    icestream.post("/policies", {"name": "thrifty", "settings": settings})
    table_id = icestream.enroll(registered, "demo.orders", policy="thrifty")
    wait_until(lambda: icestream.health(table_id)["coverage"], "the first index")

    for _ in range(CHEAP_CHECKPOINTS):
        writer.commit(orders.advance(500))
        is_cheap = partial(costs_what_it_may, icestream, table_id, datetime.now(UTC))
        wait_until(is_cheap, "reads to cost what they may")
    icestream.run(table_id, "convert")

    jobs = list(every(icestream, "/jobs", table_id=table_id, status="succeeded"))
    rewritings = [job for job in jobs if job["kind"] == "rewrite_data_files"]
    assert rewritings
    assert all(
        f"what it would of a table just rewritten (policy: {MOST})" in job["trigger"] for job in rewritings
    )
    vectors = [job["result"]["deletion_vectors_added"] for job in jobs if job["kind"] == "convert"]
    assert max(vectors) < 4 * CHEAP_CHECKPOINTS, "no files gather that each conversion would write vectors of"
    pq.write_table(to_arrow(orders.visible), tmp_path / "model.parquet")
    reader = Reader(spark)
    assert reader.checksum(identifier) == reader.checksum(f"parquet.`{tmp_path}/model.parquet`")


def costs_what_it_may(icestream: Icestream, table_id: str, since: datetime) -> bool:
    """Whether a look at a table since then has found that a read does."""
    health = icestream.health(table_id)
    is_new = datetime.fromisoformat(health["measured_at"]) > since
    cost = health["reader_cost"]["reads"][0]
    return is_new and bool(cost["overhead_ratio"] <= MOST)


def every(icestream: Icestream, path: str, **query: str) -> Iterator[Json]:
    """All items of a list, page by page."""
    page = icestream.get(path, limit=500, **query)
    yield from page["items"]
    while page["next_cursor"] is not None:
        page = icestream.get(path, limit=500, cursor=page["next_cursor"], **query)
        yield from page["items"]
