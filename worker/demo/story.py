"""`icestream demo`: fills a sample table as a streaming writer would, and shows what Icestream makes of it.

Started by `icestream demo` beside the service and a worker, and knows both through HTTP only. Standard output
is the terminal; what Spark says goes to standard error, which is a log file.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from telemetry.plurals import counted
from worker.demo.table import ROW, Orders, OrdersWriter, to_arrow
from worker.spark.session import create_spark
from worker.table.catalogs import java_properties

CATALOG = "embedded"
NAMESPACE, NAME = "demo", "orders"
IDENTIFIER = f"{CATALOG}.{NAMESPACE}.{NAME}"
QUERY = f"SELECT region, count(*), sum(amount_cents) FROM {IDENTIFIER} GROUP BY region"  # noqa: S608
POLICY = "demo"
POLICY_SETTINGS: dict[str, dict[str, object]] = {
    "convert": {"when": "worthwhile", "reads_per_day": 5000},
    "rewrite_data_files": {"enabled": True, "min_interval_seconds": 60, "min_input_files": 2},
    "expire_snapshots": {
        "enabled": True,
        "older_than_seconds": 600,
        "age_seconds": 900,
        "min_interval_seconds": 300,
    },
}
"""What keeps a stream cheap to read for as long as it goes on."""
CHECKPOINTS = 20
CHANGES = 8_000
STREAM_CHANGES = 2_000
STREAM_PAUSE_SECONDS = 3.0
STREAM_CHECKPOINTS = 6
TIMES_ASKED = 3
PATIENCE_SECONDS = 300.0


class DemoError(Exception):
    """The story can't go on; the text says why."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader sees of the table at one moment."""

    equality_delete_files: int
    equality_deletes: int
    deletion_vectors: int
    rows: int
    checksum: int


class Icestream:
    """The service, as any client sees it."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=f"{url}/api/v1", headers=headers, timeout=30)

    def catalog(self) -> Mapping[str, str]:
        """Properties of the embedded catalog."""
        found = next(item for item in self._items("/catalogs") if item["name"] == CATALOG)
        properties: Mapping[str, str] = found["properties"]
        return properties

    def forget_table(self) -> None:
        """Remove what an earlier demo registered."""
        for table in self._items("/tables"):
            if table["catalog"] == CATALOG and table["identifier"] == [NAMESPACE, NAME]:
                self._call("DELETE", f"/tables/{table['id']}")

    def make_policy(self) -> None:
        """Of the demo, unless an earlier one has made it."""
        if all(policy["name"] != POLICY for policy in self._items("/policies")):
            self._call("POST", "/policies", json={"name": POLICY, "settings": POLICY_SETTINGS})

    def register_table(self) -> str:
        """Register the sample table; returns the table's id."""
        body = {"catalog": CATALOG, "identifier": [NAMESPACE, NAME], "policy": POLICY}
        table_id: str = self._call("POST", "/tables", json=body)["id"]
        return table_id

    def request_conversion(self, table_id: str) -> None:
        """Let what is pending be converted now, though the policy would wait for more."""
        self._call("POST", f"/tables/{table_id}/jobs", json={"kind": "convert"})

    def jobs(self, table_id: str) -> list[dict[str, Any]]:
        """The table's jobs, newest first."""
        return self._items("/jobs", table_id=table_id)

    def _items(self, path: str, **query: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._call("GET", path, params={"limit": 100, **query})["items"]
        return items

    def _call(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        answer = self._http.request(method, path, **request)
        if answer.is_error:
            problem = answer.json()
            raise DemoError(f"{method} {path}: {problem['detail']} {problem['remedy']}")
        body: dict[str, Any] = answer.json() if answer.content else {}
        return body


class Reader:
    """Reads the table with Iceberg's own reader in Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def look(self) -> Seen:
        kinds = {
            row["content"]: (row["files"], row["records"])
            for row in self._spark.sql(
                "SELECT content, count(*) AS files, sum(record_count) AS records "  # noqa: S608
                f"FROM {IDENTIFIER}.delete_files GROUP BY content"
            ).collect()
        }
        return Seen(*kinds.get(2, (0, 0)), kinds.get(1, (0, 0))[0], *self.checksum(IDENTIFIER))

    def checksum(self, source: str) -> tuple[int, int]:
        """Rows, and the sum of their 64-bit hashes: equal for the same multiset of rows in any order."""
        columns = ", ".join(ROW.names or ())
        row = self._spark.sql(
            f"SELECT count(*), sum(CAST(xxhash64({columns}) AS DECIMAL(20, 0))) FROM {source}"  # noqa: S608
        ).collect()[0]
        return int(row[0]), int(row[1])

    def query_seconds(self) -> float:
        """The median time of the demo's query."""
        times = []
        for _ in range(TIMES_ASKED):
            started = time.monotonic()
            self._spark.sql(QUERY).collect()
            times.append(time.monotonic() - started)
        return statistics.median(times)


class Story:
    """What is shown, in order."""

    def __init__(
        self, console: Console, icestream: Icestream, spark: SparkSession, cache: Path, login: str
    ) -> None:
        """login: the command that prints a link to the page."""
        self._console, self._icestream, self._cache, self._login = console, icestream, cache, login
        self._reader = Reader(spark)
        self._spark = spark

    def tell(self, row_count: int, *, once: bool) -> bool:
        """Returns whether every reader saw the right rows throughout."""
        orders = Orders(row_count)
        self._icestream.forget_table()
        writer = self._fill(orders)
        before, seconds_before = self._look("before")
        self._icestream.make_policy()
        table_id = self._icestream.register_table()
        self._say(f"Registered {NAMESPACE}.{NAME} with Icestream; its policy does the rest.")
        self._await_conversion(table_id)
        after, seconds_after = self._look("after")
        same = self._report(before, seconds_before, after, seconds_after, self._expect(orders))
        same &= self._stream(table_id, writer, orders, once=once)
        return same

    def _fill(self, orders: Orders) -> OrdersWriter:
        with self._progress() as progress:
            task = progress.add_task("Loading the sample table", total=CHECKPOINTS + 1)
            writer = OrdersWriter.create(self._spark, IDENTIFIER)
            writer.append(orders.visible)
            progress.update(task, advance=1, description="Committing checkpoints of upserts and deletes")
            for _ in range(CHECKPOINTS):
                writer.commit(orders.advance(CHANGES))
                progress.advance(task)
        self._say(
            f"Table {NAMESPACE}.{NAME}: {len(orders.visible):,} rows, {CHECKPOINTS} checkpoints of about "
            f"{CHANGES:,} upserts and deletes, committed the way Flink does."
        )
        return writer

    def _look(self, when: str) -> tuple[Seen, float]:
        with self._progress() as progress:
            progress.add_task(f"Reading all rows and timing a query {when} conversion", total=None)
            seen = self._reader.look()
            return seen, self._reader.query_seconds()

    def _await_conversion(self, table_id: str) -> None:
        """Until no equality delete file is left, showing the jobs at work."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._progress() as progress:
            task = progress.add_task("Waiting for the worker", total=None)
            while self._equality_delete_files() > 0:
                jobs = self._icestream.jobs(table_id)
                if failed := next((job for job in jobs if job["status"] == "failed"), None):
                    error = failed["error"]
                    raise DemoError(f"Job {failed['kind']} failed: {error['detail']} {error['remedy']}")
                if running := next((job for job in jobs if job["status"] == "running"), None):
                    stage = running["progress"] or {"stage": "starting", "done": 0, "total": None}
                    progress.update(
                        task,
                        description=f"Job {running['kind']}: {stage['stage']}",
                        completed=stage["done"],
                        total=stage["total"] or None,
                    )
                if time.monotonic() > deadline:
                    raise DemoError(f"Equality deletes are still there after {PATIENCE_SECONDS:.0f} s.")
                time.sleep(0.5)

    def _equality_delete_files(self) -> int:
        return self._spark.table(f"{IDENTIFIER}.delete_files").where("content = 2").count()

    def _expect(self, orders: Orders) -> tuple[int, int]:
        """Rows and checksum of the writer's own model, which never passed through Iceberg."""
        self._cache.mkdir(parents=True, exist_ok=True)
        path = self._cache / "demo-model.parquet"
        pq.write_table(to_arrow(orders.visible), path)
        try:
            return self._reader.checksum(f"parquet.`{path}`")
        finally:
            path.unlink()

    def _report(
        self,
        before: Seen,
        seconds_before: float,
        after: Seen,
        seconds_after: float,
        expected: tuple[int, int],
    ) -> bool:
        table = Table("", "before", "after")
        for column in table.columns[1:]:
            column.justify = "right"
        table.add_row(
            "Equality delete files", f"{before.equality_delete_files:,}", f"{after.equality_delete_files:,}"
        )
        table.add_row(
            "Equality deletes in them", f"{before.equality_deletes:,}", f"{after.equality_deletes:,}"
        )
        table.add_row("Deletion vectors", f"{before.deletion_vectors:,}", f"{after.deletion_vectors:,}")
        table.add_row(f"Query, median of {TIMES_ASKED}", f"{seconds_before:.2f} s", f"{seconds_after:.2f} s")
        table.add_row("Visible rows", f"{before.rows:,}", f"{after.rows:,}")
        table.add_row("Checksum of all rows", f"{before.checksum:x}", f"{after.checksum:x}")
        self._console.print(table)
        same = (before.rows, before.checksum) == (after.rows, after.checksum)
        self._verdict(same, "The table before and after", f"{after.rows:,} rows")
        as_written = expected == (after.rows, after.checksum)
        self._verdict(as_written, "The table and the writer's own model", f"{expected[0]:,} rows")
        if seconds_after < seconds_before:
            self._say(f"The query takes {seconds_before / seconds_after:.1f} times less time.")
        return same and as_written

    def _stream(self, table_id: str, writer: OrdersWriter, orders: Orders, *, once: bool) -> bool:
        """A writer that never stops, and conversion at the same table; the rows are checked once."""
        with self._progress() as progress:
            for _ in progress.track(
                range(STREAM_CHECKPOINTS), description="Upserts go on while Icestream converts"
            ):
                writer.commit(orders.advance(STREAM_CHANGES))
                time.sleep(STREAM_PAUSE_SECONDS)
        self._icestream.request_conversion(table_id)
        self._await_conversion(table_id)
        same = self._expect(orders) == self._reader.checksum(IDENTIFIER)
        done = [job["kind"] for job in self._icestream.jobs(table_id) if job["status"] == "succeeded"]
        self._say(
            f"{STREAM_CHECKPOINTS} more checkpoints came in meanwhile; "
            f"so far {counted(done.count('convert'), 'conversion')} and "
            f"{counted(done.count('index'), 'run')} of the indexer."
        )
        self._verdict(same, "The table and the writer's own model", f"{len(orders.visible):,} rows")
        if same and not once:
            self._say(
                "The stream goes on, as the page shows. Its policy converts, rewrites small files and lets"
                " snapshots expire when that is worth it to readers. Ctrl-C ends it."
            )
            self._say(f"`{self._login}` prints another link to the page.")
            while True:
                writer.commit(orders.advance(STREAM_CHANGES))
                time.sleep(STREAM_PAUSE_SECONDS)
        return same

    def _verdict(self, same: bool, who: str, what: str) -> None:
        self._say(
            f"{who}: the same {what}." if same else f"{who}: NOT the same {what}.", "green" if same else "red"
        )

    def _say(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style, highlight=False, soft_wrap=True)

    def _progress(self) -> Progress:
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--once", action="store_true", help="end after the report")
    parser.add_argument("--login", default="icestream login-link", help="what prints a link to the page")
    options = parser.parse_args()
    console = Console()
    icestream = Icestream(os.environ["ICESTREAM_URL"], os.environ["ICESTREAM_API_KEY"])
    try:
        with console.status("Starting Spark for the demo's writer"):
            spark = open_spark(icestream.catalog())
        cache = Path(os.environ["ICESTREAM_DATA_DIR"]) / "cache"
        story = Story(console, icestream, spark, cache, options.login)
        return 0 if story.tell(options.rows, once=options.once) else 1
    except DemoError as error:
        console.print(str(error), style="red", highlight=False, soft_wrap=True)
        return 1


def open_spark(catalog: Mapping[str, str]) -> SparkSession:
    """A Spark session that knows the embedded catalog by its name."""
    spark = create_spark("local[*]", "icestream demo")
    prefix = f"spark.sql.catalog.{CATALOG}"
    # The worker commits to the same tables: what was read before is not what is there now.
    settings = {"cache-enabled": "false", **java_properties("sql", catalog)}
    spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    for name, value in settings.items():
        spark.conf.set(f"{prefix}.{name}", value)
    return spark


if __name__ == "__main__":
    sys.exit(main())
