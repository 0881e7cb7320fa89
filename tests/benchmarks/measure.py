"""Times, and the memory of this process and of what it started, while something runs."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """Seconds over several rounds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.seconds), max(self.seconds)

    def __str__(self) -> str:
        low, high = self.spread
        return f"{_short(self.median)} ({_short(low)}-{_short(high)})" if low != high else _short(low)


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 0.1 else f"{seconds:.3g} s"


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of resident memory at most: of this process, of the JVM, and of the JVM's Python workers."""

    python: int
    jvm: int
    workers: int = 0

    def __str__(self) -> str:
        return " + ".join(mebibytes(part) for part in (self.python, self.jvm, self.workers) if part)


def mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def with_peak_memory(spark: SparkSession, work: Callable[[], T]) -> tuple[T, PeakMemory]:
    """Runs `work` and asks Linux for the high-water marks since its start."""
    gateway: Any = spark.sparkContext._gateway
    jvm: int = gateway.proc.pid
    _give_back_memory(spark)
    for pid in (os.getpid(), jvm, *descendants(jvm)):
        with suppress(OSError):  # Spark ends its idle Python workers whenever it likes
            Path(f"/proc/{pid}/clear_refs").write_text("5")
    result = work()
    workers = sum(map(high_water_mark, descendants(jvm)))
    return result, PeakMemory(high_water_mark(os.getpid()), high_water_mark(jvm), workers)


def _give_back_memory(spark: SparkSession) -> None:
    """What earlier work left to its allocators would otherwise count as the next one's."""
    jvm: Any = spark.sparkContext._jvm
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    jvm.java.lang.System.gc()
    time.sleep(0.2)  # the JVM gives memory back a little later


def descendants(pid: int) -> list[int]:
    """The processes that it has started, and that these have."""
    children: dict[int, list[int]] = defaultdict(list)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            children[int(parent)].append(int(process.name))
    found = [pid]
    for ancestor in found:
        found += children[ancestor]
    return found[1:]


def high_water_mark(pid: int) -> int:
    """Bytes of resident memory at most, of this process alone; 0 when it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_seconds(pid: int) -> float:
    """That a process has used, with those of its children that have ended; 0 when it has ended."""
    with suppress(OSError):
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope in log-log of the least-squares line: 0 is constant, 1 is linear."""
    x, y = zip(*((math.log(x), math.log(y)) for x, y in points), strict=True)
    return statistics.linear_regression(x, y).slope
