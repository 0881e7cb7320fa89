"""`make bench-store`: lookups in an index in a store where each request waits, and what they ask for.

No Iceberg table is needed: an index of sorted runs is written, and its keys are looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import typer

from tests.benchmarks.measure import Figure, mebibytes, timed
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.report import machine, table
from tests.slow_store import SlowStore
from worker.index import footers
from worker.index.dictionary import PARTITION_ID
from worker.index.key_set_index import ROW_ADDRESS
from worker.index.sorted_runs import ROW_GROUP_ROWS, RunFile, RunWriter
from worker.io.row_groups import REQUESTS
from worker.io.storage import Storage
from worker.keys.key_set import NULL_MASK
from worker.lookup.index_lookup import DeleteKeys, RowAddressMatches, lookup_tasks, rows_to_read

_BUCKET = "index"
_PART_ROWS = 5_000_000  # written at a time
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
    wait_ms: Annotated[float, typer.Option(help="of every request")] = 20,
    rounds: Annotated[int, typer.Option(help="of every measurement")] = 5,
) -> None:
    """Look keys up over a slow store, with many requests at a time and with one."""
    runs = [rows, *([rows // 50] * 3)]
    lines = []
    with TemporaryDirectory() as directory:
        files = write_index(Path(directory), runs)
        size = sum(file.size_bytes for file in files)
        with SlowStore(Path(directory), wait_ms / 1000).served() as store:
            storage = Storage(store.properties)
            for count in deletes or [1, 100, 1_000, 10_000, 100_000]:
                lines.append(_measured(store, storage, files, deletes_of(runs, count), rounds, size))
    text = _TEXT.format(
        machine=machine(None, "pyarrow", "numpy"),
        rows=rows,
        more=rows // 50,
        size=mebibytes(size),
        wait=wait_ms,
        requests=REQUESTS,
        group=ROW_GROUP_ROWS,
        share=share_read(1_000, rows + 3 * (rows // 50)),
        share_of_more=share_read(1_000, 500_000_000),
        table=table(_HEADER, lines),
    )
    write_part(Part.OBJECT_STORES, text)
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
    cold = Figure((timed(once)[1],))
    asked = store.counted(once)
    many: list[float] = []
    single: list[float] = []
    for _ in range(rounds):  # in turn
        many.append(timed(once)[1])
        if len(single) < 2:
            with patch("worker.io.row_groups.side_by_side", map):
                single.append(timed(once)[1])
    few = Figure(tuple(single))
    usual = Figure(tuple(many))
    return [
        len(deletes),
        asked.count,
        asked.most_at_once,
        mebibytes(asked.sent_bytes) if asked.sent_bytes >= 2**20 else f"{asked.sent_bytes / 1024:,.0f} KiB",
        f"{asked.sent_bytes / size:.2%}",
        usual,
        cold,
        few,
        f"{few.median / usual.median:.1f} x",
    ]


_HEADER = (
    "deletes | requests | most at once | read | of the index | lookup | with footers | one at a time | ratio"
)
_TEXT = """\
# Lookups in object stores

Made by `make bench-store` on {machine}

An index of {rows:,} entries in its largest sorted run and {more:,} in each of three smaller ones, {size} in
all, with int64 keys, lies in a store that speaks S3's HTTP and answers each request after {wait:g} ms.
Random keys are looked up by two threads; all are found. `requests` are those of a lookup whose footers are
known from an earlier job: two threads open files, and up to {requests} requests for ranges wait at a time.
`with footers` is the first lookup, which reads these, too. Times are medians (least-most) of rounds that take
turns; `one at a time` is what Arrow's reader does by itself in each of the two threads.

Keys that lie far from each other cost a row group each, of {group:,} rows: of N entries, k of them read about
k x {group:,} / N, and somewhat more, since ranges that lie close together are one request. For 1,000 keys
that is {share:.0%} of these entries, and {share_of_more:.1%} of 500,000,000. Neighbours share row groups.

{table}
"""


if __name__ == "__main__":
    typer.run(main)
