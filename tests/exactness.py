"""One way to convert a table and to ask its readers, before and after, whether they see the same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import SparkSession

from tests.factories import TableBuilder, equality_delete_files, spark_rows, visible_rows
from tests.jobs import Jobs
from tests.readers import Rows, duckdb_rows


@dataclass
class Exactness:
    """Builds tables in `local` and converts them under the eyes of several readers."""

    spark: SparkSession
    jobs: Jobs
    table_name: str
    asks_spark: bool = False
    """For what is visible, in three times the time that Iceberg's generic reader takes."""

    def table(
        self, columns: str = "id bigint, region string, value bigint", *, format_version: int = 2, **how: Any
    ) -> TableBuilder:
        """The test's table; see `TableBuilder.create`."""
        version: Literal[2, 3] = 3 if format_version == 3 else 2
        return TableBuilder.create(self.spark, self.table_name, columns, format_version=version, **how)

    def visible_rows(self, table: TableBuilder) -> Rows:
        return self.spark_rows(table) if self.asks_spark else visible_rows(self.spark, table.identifier)

    def spark_rows(self, table: TableBuilder) -> Rows:
        return spark_rows(self.spark, table.identifier)

    def convert(
        self,
        table: TableBuilder,
        *,
        rows: Mapping[tuple[Any, ...], int] | None = None,
        read: Callable[[TableBuilder], Rows] | None = None,
        read_after: Callable[[TableBuilder], Rows] | None = None,
        duckdb: bool = True,
        sources: tuple[str, ...] = ("scan", "index"),
    ) -> dict[str, Any]:
        """Convert the table and return the job's result, after these checks:

        The rows that DuckDB shows are the same before and after, and those that `read_after` (`read`, which
        is `visible_rows`) shows after; where DuckDB can't read the table, `read` tells what was before. They
        are `rows`, if given: what the test's author says the spec makes visible. A dry run by scan foretells
        the rows that the conversion by index deletes. No equality delete is left.
        """
        read = read or self.visible_rows
        # DuckDB takes a tenth of the time that Spark does.
        before = duckdb_rows(table) if duckdb else read(table)
        if rows is not None:
            assert before == Counter(rows), "the reader contradicts the test before the conversion"
        foretold = self.jobs.run("convert", dry_run=True).result
        if "index" in sources:
            self.jobs.run("index")
        result = self.jobs.run("convert").result
        assert result["unconvertible"] == []
        assert equality_delete_files(self.spark, table.identifier) == []
        assert (read_after or read)(table) == before
        assert not duckdb or duckdb_rows(table) == before
        assert result["rows_deleted"] == foretold["rows_deleted"]
        for explained, source in ((foretold, sources[0]), (result, sources[-1])):
            assert {one["source"] for one in explained["key_sets"]} <= {source, "none"}
        return result
