"""`make bench-store`: lookups in an index in a store where each request waits, and what they ask for.

ARGS="--wait-ms 100" measures the same in a store five times as far away.

No Iceberg table is needed: an index of sorted runs is written, and its keys are looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer

from stores.objects import REQUESTS
from tests.benchmarks.measure import Figure, mebibytes, timed
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.report import machine, table
from tests.benchmarks.store_jobs import FORMAT_VERSIONS, JOBS_HEADER, PRICES_ARE_OF, measured_jobs
from tests.slow_store import SlowStore
from worker.index import footers
from worker.index.dictionary import PARTITION_ID
from worker.index.key_set_index import ROW_ADDRESS
from worker.index.run_files import ROW_GROUP_ROWS, RunFile, RunWriter
from worker.io.row_groups import GAP_BYTES
from worker.io.storage import Storage
from worker.keys.key_set import NULL_MASK
from worker.lookup.index_lookup import DeleteKeys, RowAddressMatches, lookup_tasks, rows_to_read
from worker.spark.session import create_spark

_BUCKET = "index"
_PART_ROWS = 5_000_000  # written at a time
_WAIT_MS = 20.0
THREADS = 2  # of a worker with two cores
KEYS = pa.schema([(NULL_MASK, pa.int32()), ("id", pa.int64())])


def write_index(folder: Path, runs: Sequence[int]) -> list[RunFile]:
    """Sorted runs of these sizes in rows, keys dense over all of them; named as in the store."""
    addresses = np.random.default_rng(0)
    files = []
    for run, rows in enumerate(runs):
        writer = RunWriter(
            Storage(),
            str(folder / _BUCKET),
            [PARTITION_ID, NULL_MASK, "id", ROW_ADDRESS],
            level=len(runs) - run,
        )
        for start in range(0, rows, _PART_ROWS):
            count = min(_PART_ROWS, rows - start)
            keys = np.arange(start, start + count) * len(runs) + run
            writer.write(
                pa.table(
                    {
                        PARTITION_ID: np.zeros(count, np.int64),
                        NULL_MASK: np.zeros(count, np.int32),
                        "id": keys,
                        ROW_ADDRESS: addresses.permutation(count) + start,
                    }
                )
            )
        files += writer.close()
    return [replace(f, location=f"s3://{f.location.removeprefix(f'{folder}/')}") for f in files]


def deletes_of(runs: Sequence[int], count: int) -> DeleteKeys:
    """Random keys, the same number from each run as far as that goes."""
    random = np.random.default_rng(1)
    shares = [count * rows // sum(runs) for rows in runs]
    shares[0] += count - sum(shares)
    keys = np.concatenate(
        [
            random.choice(rows, share, replace=False) * len(runs) + run
            for run, (rows, share) in enumerate(zip(runs, shares, strict=True))
        ]
    )
    batch = pa.record_batch([np.zeros(len(keys), np.int32), keys], schema=KEYS)
    return DeleteKeys.of([(0, 1, batch)], KEYS)


def look_up(storage: Storage, files: Sequence[RunFile], deletes: DeleteKeys) -> RowAddressMatches:
    """As a job does: chosen by the footers, then in threads."""
    rows_to_read(storage, files, deletes)
    with ThreadPoolExecutor(THREADS) as threads:
        tasks = lookup_tasks(storage, files, deletes, THREADS)
        return RowAddressMatches.combined(list(threads.map(lambda task: task.run(deletes), tasks)))


def main(
    rows: Annotated[int, typer.Option(help="of the index's largest sorted run")] = 50_000_000,
    deletes: Annotated[list[int] | None, typer.Option(help="keys to look up; may be repeated")] = None,
    job_rows: Annotated[int, typer.Option(help="of the table whose jobs are measured; 0: none")] = 50_000_000,
    wait_ms: Annotated[float, typer.Option(help="of every request")] = _WAIT_MS,
    rounds: Annotated[int, typer.Option(help="of every measurement")] = 5,
) -> None:
    """Look keys up over a slow store, with many requests at a time and with one; and run whole jobs."""
    runs = [rows, *([rows // 50] * 3)]
    lines = []
    with TemporaryDirectory() as directory:
        files = write_index(Path(directory), runs)
        size = sum(file.size_bytes for file in files)
        with SlowStore(Path(directory), wait_ms / 1000).served() as store:
            storage = Storage(store.properties)
            for count in deletes or [1, 100, 1_000, 10_000, 100_000]:
                lines.append(_measured(store, storage, files, deletes_of(runs, count), rounds, size))
    jobs: list[list[object]] = []
    if job_rows:
        spark = create_spark("local[2]", "store")
        spark.sparkContext.setLogLevel("ERROR")
        for format_version in FORMAT_VERSIONS:
            with TemporaryDirectory() as directory:
                for one in measured_jobs(
                    spark, Path(directory), format_version, rows=job_rows, wait_seconds=wait_ms / 1000
                ):
                    jobs.append(one.row(format_version))
                    stages = {stage: round(asked.waits) for stage, asked in one.stages.items()}
                    print(f"V{format_version} {one.name}: waits in turn of its stages {stages}")  # noqa: T201
    text = _TEXT.format(
        machine=machine(None, "pyarrow", "numpy", "obstore"),
        job_rows=job_rows,
        prices=PRICES_ARE_OF,
        jobs=table(JOBS_HEADER, jobs),
        rows=rows,
        more=rows // 50,
        size=mebibytes(size),
        wait=wait_ms,
        requests=REQUESTS,
        group=ROW_GROUP_ROWS,
        gap=GAP_BYTES / 1024,
        share=share_read(1_000, rows + 3 * (rows // 50)),
        share_of_more=share_read(1_000, 500_000_000),
        table=table(_HEADER, lines),
    )
    write_part(Part.OBJECT_STORES if wait_ms == _WAIT_MS else Part.OBJECT_STORES_FARTHER, text)
    print(text)  # noqa: T201


def share_read(keys: int, entries: int) -> float:
    """The part of an index that keys far from each other cost, about: a row group each."""
    return keys * ROW_GROUP_ROWS / entries


def _measured(
    store: SlowStore,
    storage: Storage,
    files: Sequence[RunFile],
    deletes: DeleteKeys,
    rounds: int,
    size: int,
) -> list[object]:
    def once() -> RowAddressMatches:
        found = look_up(storage, files, deletes)
        assert len(found.row_addresses) == len(deletes)
        return found

    footers.KEPT.clear()
    first, cold = timed(lambda: store.counted(once))
    asked = store.counted(once)
    usual = Figure(tuple(timed(once)[1] for _ in range(rounds)))
    return [
        len(deletes),
        asked.count,
        asked.most_at_once,
        mebibytes(asked.sent_bytes) if asked.sent_bytes >= 2**20 else f"{asked.sent_bytes / 1024:,.0f} KiB",
        f"{asked.sent_bytes / size:.2%}",
        f"{asked.waits:.0f}",
        usual,
        first.count,
        f"{first.waits:.0f}",
        Figure((cold,)),
    ]


_HEADER = (
    "deletes | requests | most at once | read | of the index | waits in turn | lookup | requests with footers"
    " | waits | with footers"
)
_TEXT = """\
# Lookups in object stores

Made by `make bench-store` on {machine}

An index of {rows:,} entries in its largest sorted run and {more:,} in each of three smaller ones, {size} in
all, with int64 keys, lies in a store that speaks S3's HTTP and answers each request after {wait:g} ms.
Random keys are looked up by two threads; all are found. `requests` are those of a lookup whose footers are
known from an earlier job: up to {requests} wait at a time. `with footers` is the first lookup, which reads
these, too. `waits in turn` is for how long the store was waited for, in waits of one request: those that
wait at the same time count once. It tells more than the times, since the store and all else shared the
machine. Times are medians (least-most).

Keys that lie far from each other cost a row group each, of {group:,} rows: of N entries, k of them need
about k x {group:,} / N. For 1,000 keys that is {share:.0%} of these entries,
and {share_of_more:.1%} of 500,000,000. What lies between two of them is read along up to {gap:g} KiB, as one
request. Neighbours share row groups.

{table}

### Whole jobs

A table of {job_rows:,} rows in 50 data files, whose index lies in the same store, is indexed, and converted
for 1,000 random keys, four times: first with nothing kept of the table, and from the second on each data
file has deletes that are merged. The last time is the first job in the life of a new process, whose Spark has
begun. Then an index that was built without merging its sorted runs is compacted, and verified. PUT has the
parts of uploads and copies. Money is list prices of S3 Standard in us-east-1 as of {prices}, for 1,000 such
jobs.

{jobs}
"""


if __name__ == "__main__":
    typer.run(main)
