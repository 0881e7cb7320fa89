"""What is measured of which kind of key: a run without arguments takes a quarter of an hour on two cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.benchmarks.datasets import Kind


@dataclass(frozen=True)
class Plan:
    """Sizes of the table in rows; the other lists are numbers of deletes.

    deletes: found side by side; at those of `rewrites` the whole table is rewritten, too.
    runs: looked up before and after the compaction of the index.
    readers: read before and after the conversion, in the largest table.
    """

    rounds: int
    rows: Sequence[int]
    deletes: Sequence[int]
    rewrites: Sequence[int] = ()
    runs: Sequence[int] = ()
    readers: Sequence[int] = ()

    def at(self, size: int) -> Plan:
        """What is possible with a table of `size` rows."""

        def fitting(counts: Sequence[int]) -> list[int]:
            return [count for count in counts if count <= size]

        return replace(
            self,
            deletes=fitting(self.deletes),
            rewrites=fitting(self.rewrites),
            runs=fitting(self.runs),
            readers=fitting(self.readers) if size == max(self.rows) else (),
        )


_SHORT = Plan(
    rounds=3,
    rows=(10_000_000,),
    deletes=(1, 1_000, 100_000),
    runs=(1, 1_000, 100_000),
)
_FULL = replace(
    _SHORT,
    rounds=5,
    deletes=(1, 100, 1_000, 10_000, 100_000, 1_000_000),
    rewrites=(1_000, 100_000),
    readers=(100, 100_000),
)
_QUICK_SHORT = Plan(rounds=1, rows=(20_000,), deletes=(100,))
_QUICK_FULL = replace(
    _QUICK_SHORT,
    rows=(1_000, 20_000),
    deletes=(100, 2_000),
    rewrites=(2_000,),
    runs=(100,),
    readers=(2_000,),
)


def plan_of(kind: Kind, *, quick: bool) -> Plan:
    if kind is Kind.INT64:
        return _QUICK_FULL if quick else _FULL
    return _QUICK_SHORT if quick else _SHORT
