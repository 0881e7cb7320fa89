"""`make bench-publish`: how long what Flink stages waits for its publication, through the service and a
worker; 1,000 snapshots that waited; and a publication beside a conversion of the same deletes.

Each is held to the rows that it should leave.
"""

from __future__ import annotations

import sqlite3
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from staging.history import BRANCH as PUBLISHED_FROM
from staging.history import CLEARED, History, Publication, properties
from tests import maven
from tests.benchmarks.datasets import Dataset, Int64Array, Kind
from tests.benchmarks.measure import Figure, mebibytes, timed
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.report import machine
from tests.benchmarks.report import table as markdown
from tests.benchmarks.servers import Service, served
from tests.factories import WrittenFile
from tests.integration.upsert_stream import PROJECT, UpsertStream
from tests.patience import wait_until
from worker.spark.session import create_spark

BRANCH = "ingest"
FROM_INGEST = {"publish": {"from": BRANCH}}
LOOK_SECONDS = 0.01
UPSERTED = 100
"""Rows of each of many snapshots."""
DELETED = (1_000, 100_000)
WARM_UP = 10
"""Snapshots of a Flink job that are not counted: the worker's JVM warms up."""
WRITTEN = 1_000_000_000_000


@dataclass
class Watch:
    """Follows where a table's metadata lies, in the database of its catalog, from its start on."""

    database: Path
    seen: list[tuple[float, str]] = field(default_factory=list)
    """When (seconds since the epoch), and where."""
    on_change: Callable[[], object] = lambda: None

    def __enter__(self) -> Watch:
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def _follow(self) -> None:
        with sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=30) as connection:
            while not self._has_ended.wait(LOOK_SECONDS):
                ((location,),) = connection.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
                if not self.seen or self.seen[-1][1] != location:
                    self.seen.append((time.time(), location))
                    self.on_change()

    def waited(self) -> list[float]:
        """Seconds of each snapshot that the writer staged, until it was there to be read on main; without
        the first ones."""
        staged: dict[int, float] = {}
        published: dict[int, float] = {}
        for at, location in self.seen:
            metadata = _metadata(location)
            for snapshot in History.of(metadata, BRANCH).snapshots:
                told, number = properties(snapshot), snapshot.sequence_number
                if number is not None and "flink.job-id" in told and CLEARED not in told:
                    staged.setdefault(number, at)
            last = Publication.last(metadata, BRANCH, "main")
            latest = metadata.snapshot_by_id(last.snapshot_id) if last is not None else None
            if latest is not None:
                for number in staged:
                    if number <= (latest.sequence_number or 0):
                        published.setdefault(number, at)
        assert staged.keys() == published.keys()
        return [published[number] - staged[number] for number in staged][WARM_UP:]


def publications(metadata: TableMetadata) -> int:
    """How many snapshots are ones."""
    return sum(PUBLISHED_FROM in properties(one) for one in metadata.snapshots)


def _metadata(location: str) -> TableMetadata:
    return FromInputFile.table_metadata(PyArrowFileIO().new_input(location))


def percentile(seconds: Sequence[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


def streamed(dataset: Dataset, class_path: str, checkpoints: int, *, notifies: bool) -> list[object]:
    """Flink upserts a thousand rows with each checkpoint, one a second; what that comes to."""
    stream = UpsertStream(
        records=1_000 * checkpoints,
        keys=dataset.rows,
        checkpoints=checkpoints,
        checkpoint_milliseconds=1_000,
        branch=BRANCH,
    )
    with served(dataset, **FROM_INGEST) as service:
        _publish_at_once(service)
        watch = Watch(dataset.catalog.database)
        if notifies:
            watch.on_change = lambda: service.http.post(f"/tables/{service.table_id}/notifications")
        with watch:
            log = service.directory / "flink.log"
            with stream.start(class_path, dataset.catalog, "db.t", log) as running:
                running.finish()
            wait_until(partial(_has_published, service, dataset), "all to be published")
        waited = watch.waited()
        memory = mebibytes(service.worker_memory)
    commits = publications(dataset.table.metadata)
    check_stream(dataset, stream)
    dataset.rewind()
    how = "told of each commit" if notifies else "polled"
    figures = [f"{percentile(waited, percent):.2f} s" for percent in (50, 95)]
    return [
        f"{dataset.rows:,}",
        how,
        len(waited),
        commits,
        *figures,
        f"{max(waited):.2f} s",
        memory,
    ]


def _publish_at_once(service: Service) -> None:
    policy = {"name": "fresh", "settings": {"publish": {"age_seconds": 0}}}
    service.http.post("/policies", json=policy).raise_for_status()
    path = f"/tables/{service.table_id}"
    service.http.patch(path, json={"policy": "fresh"}, headers={"If-Match": "*"}).raise_for_status()


def _has_published(service: Service, dataset: Dataset) -> bool:
    metadata = dataset.table.metadata
    last = Publication.last(metadata, BRANCH, "main")
    newest = [one for one in History.of(metadata, BRANCH).snapshots if CLEARED not in properties(one)]
    return last is not None and last.snapshot_id == newest[0].snapshot_id


def check_stream(dataset: Dataset, stream: UpsertStream) -> None:
    """The table has what the stream left, and of the rows before those of other keys."""
    left = stream.expected_rows()
    written = np.unique(stream.ids).astype(np.int64)
    positions = dataset.positions
    total = int(positions.sum() - positions[written].sum()) + sum(row[2] for row in left)
    query = f"SELECT count(*), sum(amount) FROM {dataset.table.identifier}"
    (found,) = dataset.spark.sql(query).collect()
    assert tuple(found) == (dataset.rows - len(written) + len(left), total)


def waiting(dataset: Dataset, count: int) -> list[object]:
    """Snapshots that waited, each of which upserts some rows: the job that publishes them."""
    keys = [_keys(dataset, number, UPSERTED) for number in range(count)]
    _start_branch(dataset)
    for number, one in enumerate(keys):
        dataset.table.commit(*_files(dataset, one, number, adds=True), branch=BRANCH)
    with served(dataset, **FROM_INGEST) as service:
        job, seconds = timed(partial(service.run, "publish"))
    commits = publications(dataset.table.metadata)
    assert job["result"]["staged_snapshots"] == count
    last = {int(id_): number for number, one in enumerate(keys) for id_ in one}
    _check(dataset, np.array(list(last)), sum(last.values()))
    dataset.rewind()
    return [f"{dataset.rows:,}", f"{count:,}", commits, f"{seconds:.1f} s"]


@dataclass(frozen=True)
class Took:
    """Seconds of a job: until its snapshot of main, and in all, with the one that indexes its new rows."""

    until_commit: float
    in_all: float


@dataclass(frozen=True)
class Pair:
    """Jobs of the same rows and equality deletes of their keys."""

    publication: Took
    conversion: Took


def beside_conversion(dataset: Dataset, count: int, *, adds: bool, rounds: int) -> list[Pair]:
    """Jobs that publish a staged commit of so many keys, and such as convert the same on main, in turn.

    adds: rows in place of the deleted ones. A publication has them indexed, a conversion leaves that to a
    job.
    """
    dataset.jobs.run("index", key_sets=[dataset.kind.key])

    def run(kind: str, branch: str, keys: Int64Array, number: int) -> Took:
        if branch != "main":
            _start_branch(dataset)
        dataset.table.commit(*_files(dataset, keys, number, adds=adds), branch=branch)
        began = time.time()
        _, seconds = timed(partial(dataset.jobs.run, kind, parameters={"from": branch}))
        if adds and branch == "main":
            seconds += timed(partial(dataset.jobs.run, "index"))[1]
        _check(dataset, keys, number * count, adds=adds)
        head = dataset.table.metadata.current_snapshot()
        assert head is not None
        dataset.rewind()
        return Took(head.timestamp_ms / 1000 - began, seconds)

    pairs = []
    for number in range(rounds + 1):
        keys = _keys(dataset, number, count)
        jobs = [("publish", BRANCH), ("convert", "main")]
        seconds = {kind: run(kind, branch, keys, number) for kind, branch in jobs[:: -1 if number % 2 else 1]}
        pairs.append(Pair(seconds["publish"], seconds["convert"]))
    return pairs[1:]  # the first warmed up


def _start_branch(dataset: Dataset) -> None:
    dataset.table.java.manageSnapshots().createBranch(BRANCH).commit()


def _keys(dataset: Dataset, number: int, count: int) -> Int64Array:
    """Others with each number."""
    return np.random.default_rng([5, number]).choice(dataset.rows, count, replace=False)


def _files(dataset: Dataset, keys: Int64Array, number: int, *, adds: bool) -> list[WrittenFile]:
    """Of an upsert that writes this number into each row, or of a delete."""
    rows = pa.table({"id": keys, "value": np.full(len(keys), WRITTEN + number)})
    rows = rows.append_column("note", pa.nulls(len(keys), pa.string()))
    deletes = dataset.table.equality_deletes(rows, equality_columns=["id"])
    return [*(dataset.table.data_files(rows) if adds else []), *deletes]


def _check(dataset: Dataset, keys: Int64Array, numbers: int, *, adds: bool = True) -> None:
    """The table has other rows of these keys, or none, and as before those of the others.

    numbers: the sum of those in the rows.
    """
    before = dataset.rows * (dataset.rows - 1) // 2 - int(dataset.positions[keys].sum())
    written = numbers + WRITTEN * len(keys) if adds else 0
    query = f"SELECT count(*), sum(value) FROM {dataset.table.identifier}"
    (found,) = dataset.spark.sql(query).collect()
    assert tuple(found) == (dataset.rows - (0 if adds else len(keys)), before + written)


def compared(dataset: Dataset, rounds: int) -> list[list[object]]:
    """`beside_conversion` of several sizes."""
    lines: list[list[object]] = []
    for adds in (False, True):
        for count in (one for one in DELETED if one < dataset.rows):
            pairs = beside_conversion(dataset, count, adds=adds, rounds=rounds)
            lines.append([f"{count:,} rows {'upserted' if adds else 'deleted'}", rounds])
            for part in ("until_commit", "in_all"):
                took = [(getattr(one.publication, part), getattr(one.conversion, part)) for one in pairs]
                ratios = [publication / conversion for publication, conversion in took]
                ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
                lines[-1] += [Figure(seconds) for seconds in zip(*took, strict=True)] + [ratio]
            _say([str(one) for one in lines[-1]])
    return lines


def main(
    rows: Annotated[list[int], typer.Option(help="of the tables")] = [1_000_000, 50_000_000],  # noqa: B006
    checkpoints: Annotated[int, typer.Option(help="of each Flink job, one a second")] = 70,
    snapshots: Annotated[int, typer.Option(help="that waited, in the last table")] = 1_000,
    rounds: Annotated[int, typer.Option(help="of publications and conversions, in the last table")] = 5,
    directory: Annotated[Path, typer.Option(help="where tables are kept")] = Path("build/benchmarks"),
) -> None:
    """Publish what is staged: by a Flink job, after a long wait, and beside conversions."""
    spark = create_spark("local[*]", "publish")
    spark.sparkContext.setLogLevel("ERROR")
    class_path = maven.build(PROJECT)
    kind = Kind.INT64
    by_flink = []
    for count in rows:
        dataset = Dataset(spark, directory.resolve() / f"{kind}-{count}-v3", kind, count)
        dataset.load(_say)
        for notifies in (False, True):
            by_flink.append(streamed(dataset.load_streamed(), class_path, checkpoints, notifies=notifies))
            _say(by_flink[-1])
    waited = [waiting(dataset, snapshots)]
    _say(waited)
    text = _TEXT.format(
        machine=machine(spark, "pyspark", "pyarrow", "pyiceberg"),
        streamed=markdown(
            "rows of the table | the service is | snapshots | publications | median | 95 of 100 | longest"
            " | memory of the worker",
            by_flink,
        ),
        upserted=UPSERTED,
        warm_up=WARM_UP,
        waited=markdown("rows of the table | snapshots that waited | commits | the job", waited),
        rows=count,
        compared=markdown(
            "staged | rounds | publication until its commit | conversion | ratio"
            " | publication in all | conversion | ratio",
            compared(dataset, rounds),
        ),
    )
    spark.stop()
    write_part(Part.PUBLISH, text)
    _say(text)


def _say(what: object) -> None:
    print(what, file=sys.stderr)  # noqa: T201


_TEXT = """\
# Publication of staging branches

Made by `make bench-publish` on {machine}

A Flink job upserts 1,000 rows a second by random keys of the table (V3), with a checkpoint each second,
into the branch `ingest`; the table's policy has `publish.age_seconds` 0. Service, worker, Flink and what
watches them share the two cores. Seconds are those from the moment at which a staged snapshot could be read
on its branch until its rows could be read on main, with all its deletes by position; at the end the table
had the right rows. The service is told of each commit of the table as [notifications](notifications.md) do,
or left to its polls. The first {warm_up} snapshots of each job, while the worker warms up, are not
counted.

{streamed}

Snapshots that waited, each of which upserts {upserted} rows, and the job that publishes them, from its
request to its end:

{waited}

A job that publishes one snapshot beside one that converts the same commit on main, in turn, of a table with
{rows:,} rows and an index; the ratio is that of the two in each round. A publication takes what it has
published off the staging branch, which is a second commit, and lets the index have its new rows, which a
conversion leaves to an index job: that is counted with it.

{compared}
"""


if __name__ == "__main__":
    typer.run(main)
