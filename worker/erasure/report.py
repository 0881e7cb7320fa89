"""What an erasure tells of each key: gone, invisible, held and by what, or unknown. Pure.

Invariant: it never says more than was seen. A key is gone only if each file that is left was looked through
and none has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np

from worker.erasure.holds import Hold
from worker.erasure.keys import ErasedKeys
from worker.erasure.trace import NOTHING, Trace
from worker.process.errors import Reason

HELD_AT_MOST = 1_000
KEYS_AT_MOST = 10_000
NUMBERS_AT_MOST = 2_000_000
"""Of all holders together: a report has some megabytes of these, and not more than the service takes."""


@dataclass(slots=True)
class Findings:
    """What holds keys, and what could not be looked through. Keys are numbers of distinct ones.

    invisible: keys of which the branch's head has rows that nobody sees.
    """

    held: list[dict[str, Any]] = field(default_factory=list)
    invisible: frozenset[int] = NOTHING
    _held: set[int] = field(default_factory=set)
    _is_all_known: bool = True

    def hold(self, keys: Iterable[int], hold: Hold, snapshot_id: int | None = None) -> None:
        numbers = frozenset(keys)
        if numbers:
            self._held |= numbers
            self._add(numbers, hold, snapshot_id)

    def tell(self, path: str, trace: Trace, hold: Hold) -> None:
        """What a file tells that is of no snapshot."""
        self.hold(trace.keys, replace(hold, name=path))
        if trace.why is not None:
            self.miss(path, trace.why)

    def miss(
        self, path: str, why: Reason, snapshot_id: int | None = None, holder: str = "unreadable_file"
    ) -> None:
        """Something could not be looked through."""
        self._is_all_known = False
        self._add(None, Hold(holder, why.reason, why.remedy, path), snapshot_id)

    def _add(self, keys: frozenset[int] | None, hold: Hold, snapshot_id: int | None) -> None:
        self.held.append({"keys": keys, "hold": hold, "snapshot_id": snapshot_id})

    def told(self, keys: ErasedKeys) -> dict[str, Any]:
        """counts, and keys by their states, as a job's result has them: of the keys as they were sent."""
        states = np.full(len(keys), "gone" if self._is_all_known else "unknown", object)
        states[sorted(self._held)] = "held"
        states[sorted(self.invisible)] = "invisible"
        of_sent = states[keys.number_of]
        names = ("gone", "invisible", "held", "unknown")
        unknown = frozenset(np.flatnonzero(states == "unknown").tolist())
        held, left = [], NUMBERS_AT_MOST
        for one in self.held[:HELD_AT_MOST]:
            numbers = _sent(keys, unknown if one["keys"] is None else one["keys"])[:left]
            left -= len(numbers)
            held.append({**_told(one["hold"], keys), "snapshot_id": one["snapshot_id"], "keys": numbers})
        return {
            "counts": {name: int((of_sent == name).sum()) for name in names},
            "invisible": _sent(keys, self.invisible),
            "unknown": _sent(keys, unknown),
            "held": held,
        }


def _told(hold: Hold, keys: ErasedKeys) -> dict[str, Any]:
    """Without values of keys; the words of a hold may repeat its name."""
    name = hold.name or ""
    told = keys.redacted_name(name)
    reason, remedy = (
        keys.redacted(text.replace(name, told) if name else text) for text in (hold.reason, hold.remedy)
    )
    return {
        "holder": hold.holder,
        "name": None if hold.name is None else told,
        "until": _iso(hold.until),
        "reason": reason,
        "remedy": remedy,
    }


def _sent(keys: ErasedKeys, numbers: frozenset[int]) -> list[int]:
    """The numbers of the first of these keys, as they were sent."""
    chosen = np.isin(keys.number_of, np.fromiter(numbers, np.int64, len(numbers)))
    found: list[int] = np.flatnonzero(chosen)[:KEYS_AT_MOST].tolist()
    return found


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
