"""Index or scan, and how long a conversion takes: a model of costs with measured rates. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from telemetry.plurals import counted
from worker.io.sorting import is_bytes


class Source(StrEnum):
    """Where the rows of a key set's deletes are looked for."""

    INDEX = "index"
    SCAN = "scan"
    INDEX_AND_SCAN = "index_and_scan"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rates:
    """Rows decoded and matched a second by one thread; measured on two cores, see docs/benchmarks.md."""

    index: float
    scan: float


NUMBERS = Rates(index=60e6, scan=20e6)
STRINGS = Rates(index=8e6, scan=8e6)  # as soon as one key column is string or binary
INTEGER_FIRST = Rates(index=20e6, scan=12e6)  # but a lookup hashes only what an integer before it leaves
# 200 million entries in 50 files take a worker's threads 1.2 to 3.5 s of CPU time, and Spark on the same
# cores 3.5 to 6.4 s.
_NUMBERS_ROW_COST = 0.25
INDEX_FILE_SECONDS = 0.002  # to open one file of the index with its footer at hand
DATA_FILE_SECONDS = 0.001  # to open one data file, whatever it holds: one core's, which threads don't share
COMMIT_SECONDS = 0.5  # of one RowDelta and its manifests
WRITTEN_FILE_SECONDS = 0.001  # to make one delete file, and to list it in the commit


def rates_of(key_types: Sequence[pa.DataType]) -> Rates:
    """key_types: of the key columns, in the index's order."""
    if not any(map(is_bytes, key_types)):
        return NUMBERS
    return INTEGER_FIRST if pa.types.is_integer(key_types[0]) else STRINGS


def row_cost(key_types: Sequence[pa.DataType]) -> float:
    """Of an entry in a lookup, see `TaskRunner.run`."""
    return _NUMBERS_ROW_COST if rates_of(key_types) is NUMBERS else 1.0


def conversion_seconds(measured: Mapping[str, float], commits: int, delete_files: int) -> float:
    """How long a conversion is expected to take, after a dry run of it that did all but write and commit.

    measured: seconds of each stage of the dry run. Each commit after the first plans anew.
    """
    if not commits:
        return sum(measured.values())
    return (
        sum(measured.values())
        + (commits - 1) * measured.get("plan", 0.0)
        + commits * COMMIT_SECONDS
        + delete_files * WRITTEN_FILE_SECONDS
    )


@dataclass(frozen=True, slots=True)
class Costs:
    """What it would take to ask the index about some data files, and to scan them: seconds of one thread."""

    index_seconds: float
    scan_seconds: float
    words: str

    @property
    def index_is_cheaper(self) -> bool:
        # Estimates this small are within each other's error: the index touches fewer bytes of the table.
        return self.index_seconds <= max(self.scan_seconds, 0.05)


def compare(
    keys: int, lookup_rows: int, index_files: int, scan_rows: int, data_files: int, rates: Rates
) -> Costs:
    """lookup_rows: entries of the index that a lookup reads at most. scan_rows, data_files: that a scan
    reads.
    """
    lookup_seconds = lookup_rows / rates.index + index_files * INDEX_FILE_SECONDS
    scan_seconds = scan_rows / rates.scan + data_files * DATA_FILE_SECONDS
    words = (
        f"{keys:,} keys: at most {lookup_rows:,} index rows (about {lookup_seconds:.2f} s)"
        f" against {scan_rows:,} rows in {counted(data_files, 'data file')} (about {scan_seconds:.2f} s)"
    )
    return Costs(lookup_seconds, scan_seconds, words)
