"""Times, and the memory of this process and of Spark's JVM while something runs."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


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
    """Bytes of resident memory at most, of this process and of the JVM that it started."""

    python: int
    jvm: int


def peak_memory(spark: SparkSession, work: Callable[[], Any]) -> PeakMemory:
    """Runs `work` and asks Linux for the high-water marks since its start."""
    gateway: Any = spark.sparkContext._gateway
    processes = (os.getpid(), gateway.proc.pid)
    for pid in processes:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    work()
    return PeakMemory(*map(_high_water_mark, processes))


def _high_water_mark(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"Process {pid} tells no VmHWM")


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope in log-log of the least-squares line: 0 is constant, 1 is linear."""
    x, y = zip(*((math.log(x), math.log(y)) for x, y in points), strict=True)
    return statistics.linear_regression(x, y).slope
