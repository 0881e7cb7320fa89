"""What a write comes to, given the live rows that have its keys: pure.

Invariant: it depends on nothing but the rows that were sent and the live rows of their keys, so whoever looks
at a later snapshot and finds the same live rows comes to the same changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from worker.io.sorting import Int64Array


@dataclass(frozen=True, slots=True)
class Changes:
    """added: numbers of the rows that become rows of the table. left_out: of those that do not. deleted:
    which of the live rows go. All ascend."""

    added: Int64Array
    left_out: Int64Array
    deleted: Int64Array


def deletion(live_keys: Int64Array) -> Changes:
    """live_keys: of each live row, the number of the key that it has."""
    nothing = np.empty(0, np.int64)
    return Changes(nothing, nothing, np.arange(len(live_keys)))


def upsert(rows: int, live_keys: Int64Array) -> Changes:
    return Changes(np.arange(rows), np.empty(0, np.int64), np.arange(len(live_keys)))


def insertion(rows: int, live_keys: Int64Array) -> Changes:
    """Only rows whose keys have no live row."""
    exists = np.zeros(rows, np.bool_)
    exists[live_keys] = True
    return Changes(np.flatnonzero(~exists), np.flatnonzero(exists), np.empty(0, np.int64))


def upsert_if_newer(new: pa.Array, live_keys: Int64Array, old: pa.Array) -> Changes:
    """Only rows that are newer than each live row of their keys; null is older than anything.

    new: of each row, what is compared. old: of each live row, of the same type.
    """
    compared = new.take(pa.array(live_keys))
    is_newer = pc.if_else(old.is_null(), compared.is_valid(), pc.fill_null(pc.greater(compared, old), False))
    is_written = np.ones(len(new), np.bool_)
    is_written[live_keys[~is_newer.to_numpy(zero_copy_only=False)]] = False
    return Changes(
        np.flatnonzero(is_written), np.flatnonzero(~is_written), np.flatnonzero(is_written[live_keys])
    )
