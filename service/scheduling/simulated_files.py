"""The data files of a simulated table: how many of each size, and how many of the rows are deleted. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from service.policies.models import EffectiveRewriteDataFilesPolicy
from service.reader_cost import SMALL_SHARE
from stores.size_tiers import files_taken

_PER_DOUBLING = 4
"""So many classes of sizes."""


@dataclass
class _Alike:
    """Data files of about one size."""

    number: int = 0
    bytes: float = 0.0
    rows: float = 0.0
    deleted: float = 0.0
    """Rows of these, by position."""

    @property
    def each(self) -> float:
        return self.bytes / self.number

    def add(self, other: "_Alike") -> None:
        self.number += other.number
        self.bytes += other.bytes
        self.rows += other.rows
        self.deleted += other.deleted

    def part(self, number: int) -> "_Alike":
        share = number / self.number
        return _Alike(number, self.bytes * share, self.rows * share, self.deleted * share)


@dataclass(frozen=True)
class Taken:
    """What a rewriting takes."""

    numbers: Mapping[int, int]
    """Of each class of sizes."""
    small: int = 0
    deleted: int = 0
    """With many deleted rows."""
    bytes: float = 0.0


@dataclass(frozen=True)
class Rewritten:
    """What became of it."""

    removed: int
    added: int
    bytes_written: float
    bytes_less: float
    deleted: float
    """Rows that are gone."""
    rows: float
    """Rows that the files had."""


class SimulatedFiles:
    """Spread evenly over partitions, of which each has as many of each size."""

    def __init__(self, partitions: int, target_bytes: int, limits: EffectiveRewriteDataFilesPolicy) -> None:
        self._partitions, self._target, self._limits = partitions, target_bytes, limits
        self._alike: dict[int, _Alike] = {}

    def add(self, number: int, size: float, rows: float, deleted: float = 0.0) -> None:
        """So many files of so many bytes together; of at least one each, since not every writer tells."""
        if number > 0:
            size = max(size, number)
            kind = round(_PER_DOUBLING * math.log2(size / number))
            self._alike.setdefault(kind, _Alike()).add(_Alike(number, size, rows, deleted))

    def put_together(self, fewer: int, size: float) -> None:
        """Somebody else has made the smallest files fewer, of so many bytes more or less."""
        gone = self._pop(self._smallest(fewer + 1))
        if gone.number > fewer:
            self.add(1, max(gone.bytes + size, 1.0), gone.rows, gone.deleted)

    def delete(self, rows: float) -> None:
        """Rows by position, each as likely as any other; below 0 if somebody has written files anew."""
        live = sum(one.rows - one.deleted for one in self._alike.values())
        deleted = sum(one.deleted for one in self._alike.values())
        for one in self._alike.values():
            if rows > 0 and live > 0:
                one.deleted += min(rows / live, 1.0) * (one.rows - one.deleted)
            elif rows < 0 and deleted > 0:
                one.deleted *= max(1 + rows / deleted, 0.0)

    def taken(self, threshold: float) -> Taken:
        """What a rewriting would take; threshold: of deleted rows."""
        many = {kind: one for kind, one in self._alike.items() if one.deleted >= threshold * one.rows > 0}
        small = {
            kind: self._alike[kind]
            for kind in sorted(self._alike.keys() - many.keys())
            if self._alike[kind].each < SMALL_SHARE * self._target
        }
        others = sum(one.bytes for one in many.values()), sum(one.number for one in many.values())
        left = files_taken(
            ((one.each, one.number) for one in small.values()),
            size_ratio=self._limits.size_ratio,
            min_files=self._limits.min_input_files,
            target_bytes=self._target,
            max_bytes=self._limits.max_bytes,
            others=others,
            partitions=self._partitions,
        )
        numbers, size = dict[int, int](), 0.0
        for kind, one in (*small.items(), *many.items()):
            number = one.number
            if kind in small:
                number = min(number, left)
                left -= number
            number = min(number, math.ceil((self._limits.max_bytes - size) / one.each))
            if number > 0:
                numbers[kind] = number
                size += number * one.each
        deleted = sum(numbers.get(kind, 0) for kind in many)
        return Taken(numbers, sum(numbers.values()) - deleted, deleted, size)

    def rewrite(self, taken: Taken) -> Rewritten:
        """Put files together that were chosen before others came."""
        gone = self._pop(taken.numbers)
        written = gone.bytes * (1 - (gone.deleted / gone.rows if gone.rows else 0.0))
        partitions = min(self._partitions, max(gone.number, 1))
        full, rest = divmod(written / partitions, self._target)
        left = gone.rows - gone.deleted
        added = 0
        for number, each in ((int(full), self._target), (int(rest >= 1), rest)):
            if number:
                size = partitions * number * each
                self.add(partitions * number, size, left * size / written)
                added += partitions * number
        return Rewritten(gone.number, added, written, gone.bytes - written, gone.deleted, gone.rows)

    def _smallest(self, number: int) -> dict[int, int]:
        numbers = {}
        for kind in sorted(self._alike):
            numbers[kind] = min(self._alike[kind].number, number)
            number -= numbers[kind]
        return numbers

    def _pop(self, numbers: Mapping[int, int]) -> _Alike:
        gone = _Alike()
        for kind, wanted in numbers.items():
            there = self._alike.get(kind)
            if there is None or wanted <= 0:
                continue
            part = there.part(min(wanted, there.number))
            gone.add(part)
            rest = there.part(there.number - part.number)
            if rest.number:
                self._alike[kind] = rest
            else:
                del self._alike[kind]
        return gone
