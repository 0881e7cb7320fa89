"""Whole jobs on a store where every request waits: how many requests they are, and how many wait in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from tests.benchmarks.measure import timed
from tests.factories import TableBuilder, register_jdbc_catalog
from tests.jobs import Jobs, SqlCatalog
from tests.slow_store import Requests, SlowStore
from worker.attempt import indexes
from worker.attempt.outcome import Outcome
from worker.index import footers
from worker.spark.session import create_spark
from worker.table import catalogs, manifests

_BUCKET = "lake"
PRICES_ARE_OF = "2025"
PRICES = {
    **dict.fromkeys(("PUT", "COPY", "LIST", "BEGIN UPLOAD", "PUT PART", "END UPLOAD"), 0.005),
    **dict.fromkeys(("GET", "HEAD"), 0.0004),
    "DELETE": 0.0,
}
"""US dollars for 1,000 requests of a kind: list prices of S3 Standard in us-east-1."""
FORMAT_VERSIONS: tuple[Literal[2], Literal[3]] = (2, 3)
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Measured:
    """A job: its seconds, and what it asked the store for, in all and by its stages."""

    name: str
    seconds: float
    requests: Requests
    stages: Mapping[str, Requests]

    def row(self, format_version: int) -> list[object]:
        asked, kinds = self.requests, self.requests.by_kind
        rest = sum(kinds.get(kind, 0) for kind in ("GET", "HEAD", "LIST", "DELETE"))
        return [
            f"V{format_version} {self.name}",
            asked.count,
            *(kinds.get(kind, 0) for kind in ("GET", "HEAD")),
            asked.count - rest,
            *(kinds.get(kind, 0) for kind in ("LIST", "DELETE")),
            f"{asked.sent_bytes / 2**20:,.1f} MiB",
            f"{asked.received_bytes / 2**20:,.1f} MiB",
            asked.most_at_once,
            f"{asked.waits:.0f}",
            f"{self.seconds:.2f} s",
            f"{sum(PRICES[kind] * count for kind, count in kinds.items()):.2f}",
        ]


JOBS_HEADER = (
    "job | requests | GET | HEAD | PUT | LIST | DELETE | read | written | most at once | waits in turn | took"
    " | $ for 1,000"
)


class StoreJobs(Jobs):
    """Jobs on a table in a store."""

    def __init__(self, spark: SparkSession, identifier: str, catalog: SqlCatalog, store: SlowStore) -> None:
        super().__init__(spark, catalog, identifier, Path.cwd())
        self.index_location = f"s3://{_BUCKET}/index/{identifier}"
        self.store = store
        self._stages: dict[str, Requests] = {}
        self._stage = "before"
        real = self.reporter.progress

        def progress(stage: str, done: int, total: int, unit: str, message: str | None = None) -> None:
            real(stage, done, total, unit, message)
            if stage != self._stage:
                self._told()
                self._stage = stage

        self.reporter.progress = progress  # type: ignore[method-assign]

    def measured(self, name: str, kind: str, **how: Any) -> tuple[Measured, Outcome]:
        self._stages, self._stage = {}, "before"
        self.store.asked()
        outcome, seconds = timed(lambda: self.run(kind, **how))
        self._told()
        stages = dict(self._stages)
        return Measured(name, seconds, together(stages.values()), stages), outcome

    def _told(self) -> None:
        asked = self.store.asked()
        known = self._stages.get(self._stage)
        self._stages[self._stage] = asked if known is None else together([known, asked])


def together(parts: Any) -> Requests:
    """One after the other."""
    whole = Requests()
    for part in parts:
        kinds = {*whole.by_kind, *part.by_kind}
        whole = Requests(
            {kind: whole.by_kind.get(kind, 0) + part.by_kind.get(kind, 0) for kind in sorted(kinds)},
            whole.sent_bytes + part.sent_bytes,
            whole.received_bytes + part.received_bytes,
            max(whole.most_at_once, part.most_at_once),
            whole.waits + part.waits,
        )
    return whole


@contextmanager
def table_in_store(
    spark: SparkSession, folder: Path, format_version: Literal[2, 3], rows: int, files: int
) -> Iterator[tuple[TableBuilder, SqlCatalog, SlowStore]]:
    """A table of rows (id, value), keys in random order over its data files; its store waits for nothing."""
    store = SlowStore(folder, 0)
    name = f"far{next(_numbers)}"
    database = folder / f"{name}.db"
    (folder / _BUCKET).mkdir(parents=True, exist_ok=True)
    warehouse = f"s3://{_BUCKET}/{name}"
    java = {
        "jdbc.busy_timeout": "60000",
        "io-impl": "org.apache.iceberg.io.ResolvingFileIO",
        "s3.endpoint": store.properties["s3.endpoint"],
        "s3.access-key-id": "key",
        "s3.secret-access-key": "secret",
        "s3.path-style-access": "true",
        "client.region": "us-east-1",
    }
    catalog = SqlCatalog(name, {"uri": f"sqlite:///{database}", "warehouse": warehouse, **store.properties})
    register_jdbc_catalog(spark, name, f"jdbc:sqlite:{database}", warehouse, java)
    with store.served():
        table = TableBuilder.create(
            spark, f"{name}.db.t", "id bigint, value bigint", format_version=format_version
        )
        table.local = lambda location: folder / location.removeprefix("s3://")
        keys = np.random.default_rng(1).permutation(rows)
        table.append(pa.table({"id": keys, "value": keys}), files=files)
    yield table, catalog, store


def measured_jobs(
    spark: SparkSession,
    folder: Path,
    format_version: Literal[2, 3],
    *,
    rows: int,
    files: int = 50,
    keys: int = 1_000,
    wait_seconds: float = 0.02,
    rounds: int = 3,
) -> Iterator[Measured]:
    """Build; conversions, the first with nothing kept of the table, and the last by a new process; compaction
    of the sorted runs that a build leaves which may not merge them; verification."""
    random = np.random.default_rng(2)
    with table_in_store(spark, folder, format_version, rows, files) as (table, catalog, quick):
        deleted = random.permutation(rows)

        def delete(number: int) -> None:
            with quick.served():
                table.delete_keys(pa.table({"id": deleted[number * keys : (number + 1) * keys]}))

        delete(0)
        slow = replace(quick, wait_seconds=wait_seconds)
        jobs = StoreJobs(spark, table.identifier, catalog, slow)
        with slow.served():
            yield jobs.measured("build", "index")[0]
        for number in range(rounds):
            if number:
                delete(number)
            else:
                for kept in (catalogs.KEPT, footers.KEPT, manifests.KEPT, indexes.KEPT):
                    kept.clear()
            with slow.served():
                measured, outcome = jobs.measured("convert, cold" if not number else "convert", "convert")
            assert outcome.result["rows_deleted"] == keys
            yield measured
        delete(rounds)
        with slow.served(), ProcessPoolExecutor(1, get_context("spawn")) as process:
            measured, converted = process.submit(_convert_anew, table.identifier, catalog, slow).result()
        assert converted == keys
        yield measured
        with quick.served(), patch("worker.jobs.indexing.choose_merge_of_new", return_value=None):
            jobs.run("rebuild")
        with slow.served():
            yield jobs.measured("compact", "compact")[0]
            yield jobs.measured("verify", "verify")[0]


def _convert_anew(identifier: str, catalog: SqlCatalog, store: SlowStore) -> tuple[Measured, int]:
    """As the first job of a worker's life, whose Spark has begun; and how many rows it deleted."""
    spark = create_spark("local[2]", "new")
    spark.sparkContext.setLogLevel("ERROR")
    jobs = StoreJobs(spark, identifier, catalog, store)
    measured, outcome = jobs.measured("convert, new process", "convert", job_id="anew")
    spark.stop()
    return measured, int(outcome.result["rows_deleted"])
