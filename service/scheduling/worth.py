"""Whether a conversion or a rewriting of data files is worth its cost to readers. Pure.

What readers pay for pending deletes and small files grows with each read, a job costs once. A job begins when
readers have paid as much as it takes: whatever comes, that is at most twice what somebody pays who knows the
future. And it begins before a read costs more than the policy allows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from service.policies.models import EffectivePolicy
from service.reader_cost import HEADLINE, Read, Reader, Shape, model
from telemetry.plurals import counted

_DAY_SECONDS = 86_400
_NAMES = {Reader.SPARK: "Spark", Reader.DUCKDB: "DuckDB"}
_SHARE = 0.5
"""Of the overhead that the policy allows: pending deletes have one half, files and vectors the other."""
LEAST_SECONDS = 0.1
"""What a job must save of each read before a read is too dear: of small tables, a ratio alone soon is."""
_NOTICED = 0.2
"""Of the overhead that the policy allows: so much dearer may deleted rows in large files make a read, since
these would be written anew for little else."""
FIRST_SECONDS = 5.0
"""What any job is taken to cost at least before one has run: it starts, plans and commits."""
_READS_OF_A_REWRITING = 3
"""What a rewriting is taken to cost before one has run: it reads, sorts out what is deleted, and writes."""


@dataclass(frozen=True)
class Readers:
    """What a table's readers have to do with, and since when."""

    shape: Shape
    fresh: Shape
    """As if it had just been rewritten."""
    rewritable: int | None
    """So many data files at most a rewriting takes; None for all."""
    grown: int
    """So many of them nobody has counted: it may take none."""
    with_deleted: int
    """So many of them have many deleted rows."""
    unconvertible: int
    """Equality delete files that no job takes from readers: they are not in `shape`."""
    pending_since: datetime | None
    """When the oldest delete came that can be converted."""
    rewritten_at: datetime
    """When the last rewriting of data files that did something ended, or since when the table is enrolled."""
    convert_seconds: float | None = None
    """What conversions of the table take, by its own history; None before the first."""
    rewrite_seconds: float | None = None
    rewrite_all_seconds: float | None = None
    """What a rewriting of all data files would take, likewise."""
    deleted_since: datetime | None = None
    """Since when rows have been deleted by vectors of files that no rewriting has taken."""

    @property
    def converted(self) -> Shape:
        """With a vector for each data file that a pending delete may hit."""
        shape = self.shape
        return replace(
            shape,
            equality_delete_files=0,
            equality_deletes=0,
            vectors=min(shape.vectors + shape.equality_deletes, max(shape.data_files, shape.vectors)),
        )

    @property
    def rewritten(self) -> Shape:
        """With what is pending converted, and only those data files written anew that a rewriting takes."""
        if self.rewritable is None:
            return self.fresh
        shape, fresh = self.shape, self.fresh
        stay = max(shape.data_files - self.rewritable, 0)
        # Of those that are rewritten, each partition gets one.
        files = max(min(stay + fresh.data_files, shape.data_files), fresh.data_files)
        # Of files that stay, one may have deletes: that none are left to read is for those who take all.
        had, sure = self.converted.vectors, self.rewritable - self.grown
        each = max(had / max(shape.data_files, 1), 1)  # of format version 2, a data file may have several
        vectors = round(min(max(had - sure * each, 1), files * each)) if had else 0
        # Nearly all deleted rows are in those files that are too large to be taken for their size.
        large = stay + self.with_deleted
        positions = shape.positions * stay // large if large else 0
        rows = fresh.rows + positions
        return replace(
            fresh,
            data_files=files,
            vectors=vectors,
            rows=rows,
            positions=positions,
            data_bytes=fresh.data_bytes * rows // max(fresh.rows, 1),
        )


@dataclass(frozen=True)
class Weighing:
    """What readers pay, and what jobs would cost, under a policy."""

    readers: Readers
    policy: EffectivePolicy

    @cached_property
    def reader(self) -> Reader:
        """Of those that the policy names and the model knows, the one that pays most; else Spark."""
        named = {name.partition("-")[0] for name in self.policy.convert.readers}
        known = [reader for reader in Reader if reader.value in named] or [HEADLINE[0]]
        return max(known, key=lambda one: self._saved(self.readers.fresh, one)) if known[1:] else known[0]

    def _saved(self, after: Shape, reader: Reader) -> float:
        """What one full read pays now beyond what it would pay of another shape, in seconds."""
        before, left = (model().seconds(shape, reader, Read.FULL) for shape in (self.readers.shape, after))
        return before - left

    @cached_property
    def seconds(self) -> float:
        """Of a full read now."""
        return model().seconds(self.readers.shape, self.reader, Read.FULL)

    @cached_property
    def fresh_seconds(self) -> float:
        return model().seconds(self.readers.fresh, self.reader, Read.FULL)

    @cached_property
    def saved_by_conversion(self) -> float:
        """Of each read; below 0 where vectors cost the reader more than the deletes."""
        return self._saved(self.readers.converted, self.reader)

    @property
    def overhead(self) -> float:
        return self.seconds - self.fresh_seconds

    @cached_property
    def saved_by_rewriting(self) -> float:
        """Of each read, beyond what a conversion would save."""
        return self._saved(self.readers.rewritten, self.reader) - max(self.saved_by_conversion, 0.0)

    @property
    def convert_seconds(self) -> float:
        """As the last conversions took; a full read before the first, as if all of the table were scanned."""
        known = self.readers.convert_seconds
        return max(self.seconds, FIRST_SECONDS) if known is None else known

    @property
    def rewrite_seconds(self) -> float:
        known = self.readers.rewrite_seconds
        return max(_READS_OF_A_REWRITING * self.seconds, FIRST_SECONDS) if known is None else known

    @cached_property
    def saved_by_rewriting_all(self) -> float:
        """Of each read, if deleted rows and their vectors went that a rewriting leaves, which takes no large
        file with few of them."""
        if self.readers.deleted_since is None:
            return 0.0
        left, fresh = self.readers.rewritten, self.readers.fresh
        rows, size = min(left.rows, fresh.rows), min(left.data_bytes, fresh.data_bytes)
        without = replace(left, rows=rows, vectors=0, positions=0, data_bytes=size)
        return self._saved(without, self.reader) - self._saved(left, self.reader)

    @property
    def are_deleted_rows_noticed(self) -> bool:
        """Whether these cost a read enough for large files to be written anew at all."""
        return self.saved_by_rewriting_all > _NOTICED * self._allowed

    @property
    def rewrite_all_seconds(self) -> float:
        """What that takes, and no less than what a table without history is taken to take."""
        known = self.readers.rewrite_all_seconds or 0.0
        return max(_READS_OF_A_REWRITING * self.seconds, FIRST_SECONDS, known)

    @property
    def delete_ratio(self) -> float | None:
        """From which share of deleted rows on a rewriting takes the files that have most of them; None of a
        table whose manifests tell of no rows."""
        shape = self.readers.shape
        return shape.positions / shape.rows / 2 if shape.positions and shape.rows else None

    @property
    def reads_per_second(self) -> float:
        return self.policy.convert.reads_per_day / _DAY_SECONDS

    def paid(self, saved: float, since: datetime | None, now: datetime) -> float:
        """Seconds that readers have paid since then for what a job would save each read.

        It has grown from nothing about evenly, so they paid half of it on average.
        """
        age = max((now - since).total_seconds(), 0.0) if since is not None else 0.0
        return max(saved, 0.0) * self.reads_per_second * age / 2

    @property
    def _allowed(self) -> float:
        """The overhead that the policy allows."""
        return self.fresh_seconds * (self.policy.convert.max_read_ratio - 1)

    @property
    def _acts_at(self) -> float:
        """What a job may save of each read; from more on it starts, whatever it costs."""
        return max(self._allowed * _SHARE, LEAST_SECONDS)

    @property
    def are_deletes_too_dear(self) -> bool:
        """Whether pending deletes cost a read their share of what the policy allows, whatever files do."""
        return self.saved_by_conversion > self._acts_at

    @property
    def are_files_too_dear(self) -> bool:
        """Whether small files, vectors and deleted rows cost a read theirs."""
        return self.saved_by_rewriting + self.saved_by_rewriting_all > self._acts_at

    @property
    def are_deleted_rows_too_dear(self) -> bool:
        """Whether a third of that or more is for deleted rows in files that are too large to be taken."""
        return self.are_files_too_dear and 3 * self.saved_by_rewriting_all > self._acts_at

    def is_rewriting_worth_it(self, now: datetime) -> bool:
        return self.paid(self.saved_by_rewriting, self.readers.rewritten_at, now) >= self.rewrite_seconds

    def is_rewriting_all_worth_it(self, now: datetime) -> bool:
        """Whether large files are worth it, too, however few of their rows are deleted."""
        paid = self.paid(self.saved_by_rewriting_all, self.readers.deleted_since, now)
        return self.are_deleted_rows_noticed and paid >= self.rewrite_all_seconds

    def is_conversion_worth_it(self, now: datetime) -> bool:
        paid = self.paid(self.saved_by_conversion, self.readers.pending_since, now)
        return self.saved_by_conversion > 0 and paid >= self.convert_seconds

    @property
    def patience_seconds(self) -> float:
        """That a rewriting may wait to spare a conversion: readers pay meanwhile what that costs."""
        rate = max(self.saved_by_rewriting, 0.0) * self.reads_per_second
        return self.convert_seconds / rate if rate else math.inf

    def moments(self) -> Sequence[datetime]:
        """When readers will have paid as much as a job costs, if nothing changes meanwhile."""
        saved_by_all = self.saved_by_rewriting_all if self.are_deleted_rows_noticed else 0.0
        found = (
            self.conversion_worth_at(),
            self._paid_at(self.saved_by_rewriting, self.readers.rewritten_at, self.rewrite_seconds),
            self._paid_at(saved_by_all, self.readers.deleted_since, self.rewrite_all_seconds),
        )
        return [one for one in found if one is not None]

    def conversion_worth_at(self) -> datetime | None:
        """The one of these that is about a conversion."""
        return self._paid_at(self.saved_by_conversion, self.readers.pending_since, self.convert_seconds)

    def _paid_at(self, saved: float, since: datetime | None, cost: float) -> datetime | None:
        rate = max(saved, 0.0) * self.reads_per_second / 2
        # A second more, since times are rounded. Beyond a year, nobody waits for it.
        if since is None or rate * 366 * _DAY_SECONDS <= cost:
            return None
        return since + timedelta(seconds=cost / rate + 1)

    def words(self, now: datetime) -> str:
        """The figures in a sentence or two."""
        convert, readers = self.policy.convert, self.readers
        paid = self.paid(self.saved_by_rewriting, readers.rewritten_at, now)
        times = self.seconds / (self.fresh_seconds or 1)
        told = (
            f"A full read by {_NAMES[self.reader]} costs {self.seconds:.2f} s, {times:.2f} times"
            f" what it would of a table just rewritten (policy: {convert.max_read_ratio:g}): it joins"
            f" {counted(readers.shape.delete_files, 'delete file')} with"
            f" {counted(readers.shape.data_files, 'data file')}. At {convert.reads_per_day:,.0f} reads a"
            f" day, readers have paid {paid:.0f} s for what only a rewriting mends, which costs"
            f" {self.rewrite_seconds:.0f} s. Whatever a job costs, one that saves {self._acts_at:.2f} s of"
            f" each read starts."
        )
        if readers.shape.equality_delete_files:
            vectors = readers.converted.vectors
            paid = self.paid(self.saved_by_conversion, readers.pending_since, now)
            told += (
                f" For pending deletes they have paid {paid:.0f} s, and a conversion costs"
                f" {self.convert_seconds:.0f} s and leaves up to {counted(vectors, 'vector')}."
            )
        if self.are_deleted_rows_noticed:
            paid = self.paid(self.saved_by_rewriting_all, readers.deleted_since, now)
            told += (
                f" For deleted rows in files that it would not take they have paid {paid:.0f} s, and to"
                f" write all anew costs {self.rewrite_all_seconds:.0f} s."
            )
        if readers.unconvertible:
            left_out = counted(readers.unconvertible, "equality delete file")
            told += f" Not counted: {left_out} that can't be converted."
        return told
