"""The demo's model and its table tell of the same rows, so that the demo's verdict means something."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.factories import live_delete_files, sqlite_catalog, visible_rows
from tests.upkeep import keep_up
from worker.demo.table import Checkpoint, Orders, OrdersWriter, Rows, to_arrow


def as_tuples(rows: Rows) -> list[tuple[Any, ...]]:
    table = to_arrow(rows)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def replay(visible: dict[int, tuple[Any, ...]], checkpoint: Checkpoint) -> None:
    """What a reader makes of a checkpoint: deletes of older rows first, then every row not overwritten."""
    for order_id in checkpoint.keys["order_id"].tolist():
        visible.pop(order_id, None)
    for row in as_tuples(checkpoint.rows[~checkpoint.overwritten]):
        assert row[0] not in visible, "a key is visible twice"
        visible[row[0]] = row


@given(st.lists(st.integers(1, 400), max_size=6))
@settings(deadline=None, max_examples=40)
def test_replayed_checkpoints_give_the_rows_of_the_model(changes: list[int]) -> None:
    orders = Orders(200)
    visible = {row[0]: row for row in as_tuples(orders.visible)}
    for count in changes:
        replay(visible, orders.advance(count))
    assert sorted(visible.values()) == sorted(as_tuples(orders.visible))


def test_checkpoint_updates_deletes_adds_and_writes_some_rows_twice() -> None:
    orders = Orders(10_000)
    checkpoint = orders.advance(1_000)
    order_ids = checkpoint.rows["order_id"]
    assert len(set(checkpoint.keys["order_id"].tolist())) == len(checkpoint.keys)
    assert 0 < np.count_nonzero(checkpoint.overwritten) < len(order_ids)
    assert set(order_ids[checkpoint.overwritten]) <= set(order_ids[~checkpoint.overwritten])
    assert np.count_nonzero(order_ids[~checkpoint.overwritten] >= 10_000) == 200
    assert np.setdiff1d(checkpoint.keys["order_id"], order_ids).size > 0
    assert abs(len(orders.visible) - 10_000) < 50


@pytest.mark.integration
def test_table_shows_the_rows_of_the_model(spark: SparkSession, tmp_path: Path) -> None:
    catalog = sqlite_catalog(spark, "demo_table", tmp_path)
    identifier = f"{catalog.name}.demo.orders"
    orders = Orders(2_000)
    writer = OrdersWriter.create(spark, identifier)
    writer.append(orders.visible)
    for _ in range(3):
        writer.commit(orders.advance(200))

    shown = [(*row[:5], row[5].isoformat()) for row in visible_rows(spark, identifier).elements()]
    modelled = [(*row[:5], row[5].isoformat()) for row in as_tuples(orders.visible)]
    assert sorted(shown) == sorted(modelled)
    contents = [file["content"] for file in live_delete_files(spark, identifier)]
    assert contents.count(2) == 12, "an equality delete file for each region and checkpoint"
    assert contents.count(1) == 12, "a deletion vector for each data file with rows written twice"


@pytest.mark.integration
@pytest.mark.exhaustive
def test_a_writer_s_upkeep_leaves_the_rows_and_few_files_and_lets_the_stream_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    catalog = sqlite_catalog(spark, "demo_upkeep", tmp_path)
    identifier = f"{catalog.name}.demo.orders"
    orders = Orders(2_000)
    writer = OrdersWriter.create(spark, identifier)
    writer.append(orders.visible)

    def files(metadata: str) -> int:
        return spark.table(f"{identifier}.{metadata}").count()

    def metadata_files() -> int:
        return len(list(tmp_path.glob("warehouse/**/*.metadata.json")))

    for _ in range(3):
        for _ in range(10):
            writer.commit(orders.advance(200))
        upkeep = keep_up(spark, identifier, keep_seconds=0)
        assert upkeep.files_before >= 40
        assert upkeep.files_after == files("data_files") == 4
        assert files("delete_files") == 0
        assert files("snapshots") == 1
        assert metadata_files() <= 22
    writer.commit(orders.advance(200))  # whose history is gone but for the last snapshot
    assert visible_rows(spark, identifier).total() == len(orders.visible)


@pytest.mark.integration
def test_created_anew_table_forgets_the_older_one(spark: SparkSession, tmp_path: Path) -> None:
    catalog = sqlite_catalog(spark, "demo_again", tmp_path)
    identifier = f"{catalog.name}.demo.orders"
    OrdersWriter.create(spark, identifier).append(Orders(100).visible)
    OrdersWriter.create(spark, identifier)
    assert not visible_rows(spark, identifier)
