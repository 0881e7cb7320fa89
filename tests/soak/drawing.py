"""What a seed draws: the setup of a history, and its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from tests.soak.values import KEY_TYPES

KEY, OTHER, REGION, SERIAL, MEASURE = 1, 2, 3, 4, 5  # field ids of the first columns


@dataclass(frozen=True)
class Step:
    """One operation; what it does in detail follows from its seed and the table."""

    kind: str
    seed: int


@dataclass(frozen=True)
class Setup:
    """What is fixed for a whole history."""

    format_version: int
    key_type: str
    other_type: str
    key_sets: tuple[tuple[int, ...], ...]
    file_format: str
    other_formats: bool  # some files in other formats
    granularity: str
    leaves_out: bool  # partition columns may be missing from data files, as in imported tables
    small_bounds: bool  # of the worker: a few rows fill a batch, a row group and a run
    shuffles: bool
    uses_spark: bool

    @classmethod
    def draw(cls, rng: Random) -> Setup:
        key_sets = [(KEY,), (KEY, OTHER), (OTHER,), (KEY, REGION), (KEY, OTHER, REGION)]
        chosen = tuple(rng.sample(key_sets, rng.choice([1, 1, 2, 3])))
        return cls(
            format_version=rng.choice([2, 3]),
            key_type=rng.choice(KEY_TYPES),
            other_type=rng.choice(KEY_TYPES),
            key_sets=chosen if rng.random() > 0.04 else (*chosen, (MEASURE,)),
            file_format=rng.choices(["parquet", "orc", "avro"], [16, 1, 1])[0],
            other_formats=rng.random() < 0.1,
            granularity=rng.choice(["file", "partition"]),
            leaves_out=rng.random() < 0.15,
            small_bounds=rng.random() < 0.6,
            shuffles=rng.random() < 0.04,
            uses_spark=rng.random() < 0.05,
        )

    def __str__(self) -> str:
        flags = ("other_formats", "leaves_out", "small_bounds", "shuffles", "uses_spark")
        return (
            f"V{self.format_version} {self.file_format}, key {self.key_type}, other {self.other_type},"
            f" key sets {self.key_sets}, granularity {self.granularity}"
            + "".join(f", {flag}" for flag in flags if getattr(self, flag))
        )


WEIGHTS = {
    "append": 12,
    "upsert": 18,
    "append_again": 4,
    "upsert_again": 4,
    "delete": 12,
    "delete_positions": 8,
    "merge": 6,
    "start_rewrite": 6,
    "end_rewrite": 7,
    "drop_file": 2,
    "add_column": 3,
    "drop_column": 2,
    "rename_column": 2,
    "move_column": 1,
    "widen_column": 2,
    "change_spec": 6,
    "roll_back": 3,
    "cherry_pick": 2,
    "expire": 2,
    "upgrade": 2,
    "index": 9,
    "compact": 4,
    "verify": 2,
    "report_duplicates": 3,
    "rebuild": 1,
    "convert": 10,
    "write_by_key": 12,
}
SPARK_WEIGHTS = {"spark_merge": 12, "spark_rewrite": 10}
WRITE_WEIGHTS = {"append": 2, "upsert": 2, "delete": 1, "change_spec": 1, "index": 2, "write_by_key": 12}
"""Of histories that are about writes by key."""
ERASE_WEIGHTS = {
    **{kind: weight for kind, weight in WEIGHTS.items() if kind != "write_by_key"},
    "erase": 40,
}
"""Of histories that are about erasures."""
REWRITE_WEIGHTS = {
    **{kind: weight for kind, weight in WEIGHTS.items() if kind != "write_by_key"},
    "rewrite_data_files": 30,
    "rewrite_position_delete_files": 12,
    "rewrite_manifests": 10,
    "expire_snapshots": 14,
    "remove_orphan_files": 8,
}
"""Of histories that are about maintenance by jobs."""


def draw(seed: int, weights: Mapping[str, int] = WEIGHTS) -> tuple[Setup, list[Step]]:
    """The history of a seed."""
    rng = Random(seed)
    setup = Setup.draw(rng)
    weights = {**weights, **(SPARK_WEIGHTS if setup.uses_spark else {})}
    first = ["change_spec", "append"] if rng.random() < 0.6 else ["append"]
    kinds = rng.choices(list(weights), list(weights.values()), k=rng.randint(6, 13))
    return setup, [Step(kind, rng.getrandbits(32)) for kind in (*first, *kinds, "finish")]
