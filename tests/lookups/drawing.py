"""What a seed draws: the setup of a history, and its steps."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tests.soak.drawing import KEY, OTHER, REGION, Step
from tests.soak.values import KEY_TYPES, VALUES

KEY_SETS = ((KEY,), (OTHER,), (KEY, OTHER), (KEY, REGION))
WEIGHTS = {
    "append": 12,
    "upsert": 16,
    "delete": 14,
    "delete_positions": 9,
    "hand_off": 7,
    "append_again": 4,
    "rewrite": 6,
    "drop_file": 2,
    "index": 26,
    "compact_index": 8,
    "drop_index": 3,
    "rebuild_index": 2,
    "roll_back": 4,
    "make_branch": 5,
    "fast_forward": 3,
    "make_tag": 2,
    "expire": 3,
    "change_spec": 5,
    "add_column": 2,
    "drop_column": 2,
    "rename_column": 2,
    "widen_column": 2,
    "upgrade": 2,
}


@dataclass(frozen=True)
class Setup:
    """What is fixed for a whole history. values: of the two key columns, in all rows."""

    format_version: int
    key_type: str
    other_type: str
    values: dict[int, tuple[Any, ...]]
    key_sets: tuple[tuple[int, ...], ...]
    leaves_out: bool  # partition columns may be missing from data files, as in imported tables
    small_bounds: bool  # of the worker: a few rows fill a batch, a row group and a run
    looks_again: bool  # answers look again at an index that leaves files to be scanned, at once or never

    @classmethod
    def draw(cls, rng: Random) -> Setup:
        key_type, other_type = rng.choice(KEY_TYPES), rng.choice(["int", "string", "date", "binary"])
        values = {i: VALUES[kind] for i, kind in ((KEY, key_type), (OTHER, other_type))}
        return cls(
            format_version=rng.choice([2, 3]),
            key_type=key_type,
            other_type=other_type,
            values={i: tuple(rng.sample(known, min(3, len(known)))) for i, known in values.items()},
            key_sets=tuple(rng.sample(KEY_SETS, rng.choice([1, 2, 2, 3]))),
            leaves_out=rng.random() < 0.15,
            small_bounds=rng.random() < 0.5,
            looks_again=rng.random() < 0.3,
        )

    def __str__(self) -> str:
        flags = [name for name in ("leaves_out", "small_bounds", "looks_again") if getattr(self, name)]
        words = (
            f"V{self.format_version}, key {self.key_type}, other {self.other_type}, key sets {self.key_sets}"
        )
        return ", ".join([words, *flags])


def draw(seed: int) -> tuple[Setup, list[Step]]:
    """The history of a seed."""
    rng = Random(seed)
    setup = Setup.draw(rng)
    first = ["change_spec", "append"] if rng.random() < 0.5 else ["append"]
    kinds = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=rng.randint(4, 7))
    return setup, [Step(kind, rng.getrandbits(32)) for kind in (*first, *kinds)]
