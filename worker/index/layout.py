"""What an index looks like from within: its sorted runs, and how far it covers each partition. Pure.

Told from what is open anyway: the list of live files with their statistics, and the dictionary.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pyiceberg.partitioning import PartitionSpec

from worker.index.compaction import LiveRowAddresses
from worker.index.key_set_index import dead_share
from worker.index.run_files import RunFile, runs_of
from worker.table.files import DataFiles, PartitionKey

RUNS_TOLD = 100
PARTITIONS_TOLD = 100
_WORDS = 200  # characters of a partition's values


def run_reports(files: Sequence[RunFile], live: LiveRowAddresses) -> list[dict[str, Any]]:
    """The runs of an index, the largest first; RUNS_TOLD at most.

    An entry's address tells whether it is dead, and a file's statistics only which addresses it may have. So
    runs whose addresses interleave have one dead share together.
    """
    runs = runs_of(files)[::-1]
    shares = _dead_shares(runs, live)
    return [
        {
            "level": run[0].level,
            "files": len(run),
            "entries": sum(file.rows for file in run),
            "bytes": sum(file.size_bytes for file in run),
            "dead_ratio": share,
        }
        for run, share in zip(runs[:RUNS_TOLD], shares, strict=False)
    ]


def _dead_shares(runs: Sequence[Sequence[RunFile]], live: LiveRowAddresses) -> list[float]:
    """Of each run; addresses are the last column of a key."""
    spans = [
        (min(file.lower_bounds[-1] for file in run), max(file.upper_bounds[-1] for file in run))
        for run in runs
    ]
    shares = [0.0] * len(runs)
    together: list[int] = []
    low = high = -1
    for number in sorted(range(len(runs)), key=lambda number: spans[number]):
        if together and spans[number][0] > high:
            _share(runs, together, live.count(low, high), shares)
            together = []
        if not together:
            low, high = spans[number]
        together.append(number)
        high = max(high, spans[number][1])
    _share(runs, together, live.count(low, high), shares)
    return shares


def _share(
    runs: Sequence[Sequence[RunFile]], together: Sequence[int], live: int, shares: list[float]
) -> None:
    entries = sum(file.rows for number in together for file in runs[number])
    for number in together:
        shares[number] = dead_share(entries, live)


def partition_reports(
    data_files: DataFiles, covered: npt.NDArray[np.bool_], specs: Mapping[int, PartitionSpec]
) -> list[dict[str, Any]]:
    """How many data files each partition has, and how many of them are covered.

    PARTITIONS_TOLD at most: those with the most that are not covered, then those with the most.
    """
    numbers: dict[PartitionKey, int] = {}
    of_kind = np.array([numbers.setdefault(kind.partition, len(numbers)) for kind in data_files.kinds], int)
    partition_of = of_kind[data_files.kind_of]
    total = np.bincount(partition_of, minlength=len(numbers))
    known = np.bincount(partition_of[covered], minlength=len(numbers))
    order = np.lexsort((-total, known - total))[:PARTITIONS_TOLD]
    partitions = list(numbers)
    return [
        {
            "partition": _words(partitions[number], specs),
            "data_files": int(total[number]),
            "covered_data_files": int(known[number]),
        }
        for number in order.tolist()
        if total[number]  # a selection may have no file of a kind
    ]


def _words(partition: PartitionKey, specs: Mapping[int, PartitionSpec]) -> str:
    """As in a path, `region=eu/day=2026-03-01`; empty for a table without partitions."""
    values, spec = json.loads(partition.values), specs.get(partition.spec_id)
    if spec is None or len(spec.fields) != len(values):
        words = partition.values
    else:
        words = "/".join(
            f"{field.name}={'null' if value is None else value}"
            for field, value in zip(spec.fields, values, strict=True)
        )
    return words if len(words) <= _WORDS else f"{words[: _WORDS - 1]}…"
