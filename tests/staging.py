"""A table with a staging branch, whose target is read at each of its snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.factories import TableBuilder, WrittenFile, visible_rows
from tests.jobs import Jobs
from tests.readers import duckdb_rows, pyiceberg_rows

Row = Mapping[str, Any]
BRANCH = "ingest"


def row(id_: int, value: int, region: str = "eu") -> dict[str, Any]:
    return {"id": id_, "region": region, "value": value}


def in_order(*rows: Row) -> Counter[tuple[Any, ...]]:
    return Counter((one["id"], one["region"], one["value"]) for one in rows)


class Lake:
    """A table with a staging branch, whose target is read at each of its snapshots."""

    def __init__(self, spark: SparkSession, jobs: Jobs, identifier: str) -> None:
        self._spark, self.jobs, self._identifier = spark, jobs, identifier
        self.table: TableBuilder
        self._looked_at: set[int] = set()

    def create(self, *rows: Row, **how: Any) -> TableBuilder:
        """With the rows on main, from which the branch starts."""
        self.table = TableBuilder.create(self._spark, self._identifier, **{"format_version": 3, **how})
        if rows:
            self.table.append(list(rows))
            self.branch()
        return self.table

    def branch(self) -> None:
        self.table.java.manageSnapshots().createBranch(BRANCH).commit()

    def stage(self, *files: WrittenFile) -> None:
        self.table.commit(*files, branch=BRANCH)

    def upsert(self, *rows: Row, key: Sequence[str] = ("id",)) -> None:
        """As a streaming writer does: rows and equality deletes of their keys, in one commit."""
        table = self.table
        self.stage(*table.data_files(list(rows)), *table.equality_deletes(list(rows), equality_columns=key))

    def delete(self, *ids: int | None) -> None:
        rows = [{"id": one, "region": "eu"} for one in ids]
        self.stage(*self.table.equality_deletes(rows, equality_columns=["id"]))

    def publish(self, **how: Any) -> dict[str, Any]:
        how = {"parameters": {"from": BRANCH}, **how}
        return self.jobs.run("publish", **how).result

    def rows(self) -> Counter[tuple[Any, ...]]:
        """Of the target, as DuckDB and PyIceberg show them, also at each snapshot that has come since; the
        latter refuses equality deletes. Spark, which takes ten times as long, is asked by few tests."""
        metadata = self.table.metadata
        by_id = {one.snapshot_id: one for one in metadata.snapshots}
        at = metadata.current_snapshot_id
        while at is not None and at in by_id and at not in self._looked_at:
            shown = pyiceberg_rows(self.table, snapshot_id=at)
            assert shown == duckdb_rows(self.table, snapshot_id=at)
            self._looked_at.add(at)
            at = by_id[at].parent_snapshot_id
        return pyiceberg_rows(self.table)

    def staged_rows(self) -> Counter[tuple[Any, ...]]:
        """What Iceberg's reader shows of the branch, its equality deletes applied."""
        return visible_rows(self._spark, self._identifier, branch=BRANCH)


@pytest.fixture
def lake(spark: SparkSession, jobs: Jobs, table_name: str) -> Lake:
    return Lake(spark, jobs, table_name)


class Meanwhile:
    """What somebody else does between the look at the table and the commit, so many times."""

    def __init__(self, jobs: Jobs, does: Callable[[int], object], times: int = 1) -> None:
        self.times, self.does, self.done = times, does, 0
        jobs.reporter.before_commit = self

    def __call__(self) -> None:
        if self.done < self.times:
            self.done += 1
            self.does(self.done)
