"""What a seed draws: a table and its key, and the steps of a history."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.soak.drawing import Step

WEIGHTS = {
    "write": 12,
    "append": 2,
    "stream": 4,
    "delete_keys": 2,
    "start_rewrite": 2,
    "end_rewrite": 2,
    "expire": 1,
    "roll_back": 1,
    "index": 2,
    "convert": 2,
    "compact": 1,
}
SPARK_WEIGHTS = {"rewrite_data_files": 3, "merge": 2}


@dataclass(frozen=True)
class Setup:
    """What is fixed for a whole history."""

    format_version: int
    key: tuple[str, ...]
    is_partitioned: bool
    uses_spark: bool

    def __str__(self) -> str:
        told = "by region" if self.is_partitioned else "unpartitioned"
        return f"V{self.format_version}, key {self.key}, {told}" + (", with Spark" if self.uses_spark else "")


def draw(seed: int) -> tuple[Setup, list[Step]]:
    """The history of a seed."""
    rng = Random(f"writers {seed}")
    setup = Setup(
        format_version=rng.choice([2, 3]),
        key=rng.choice([("id",), ("id",), ("id", "region")]),
        is_partitioned=rng.random() < 0.5,
        uses_spark=rng.random() < 0.04,
    )
    weights = WEIGHTS | (SPARK_WEIGHTS if setup.uses_spark else {})
    kinds = rng.choices(list(weights), list(weights.values()), k=rng.randint(3, 8))
    return setup, [Step(kind, rng.getrandbits(32)) for kind in ("append", *kinds, "write", "finish")]
